"""Every collective through `torch.distributed`, with values that identify their rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from neuraxis.errors import InvalidType
from tests.ranks.processes import run_ranks
from tests.torch.groups import process_group

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("size", [2, 3])
def test_every_pattern(size: int) -> None:
    assert run_ranks(_every_pattern, size, torch=True) == [None] * size


def _every_pattern() -> None:
    with process_group() as (rank, size):
        assert dist.get_backend() == "shm"
        _reductions(rank, size)
        _dtypes(rank, size)
        _moves(rank, size)
        _all_to_all(rank, size)
        _messages(rank, size)
        _objects(rank, size)
        _asynchronous(rank, size)
        _coalesced(rank, size)
        _functional(rank, size)
        _groups(rank, size)
        _layouts(rank, size)
        _refusals(rank)
        dist.barrier()


def _reductions(rank: int, size: int) -> None:
    values = torch.arange(1, size + 1, dtype=torch.int64)
    expected = {
        dist.ReduceOp.SUM: values.sum(),
        dist.ReduceOp.PRODUCT: values.prod(),
        dist.ReduceOp.MIN: values.min(),
        dist.ReduceOp.MAX: values.max(),
        dist.ReduceOp.BAND: values[0] & values[1] & values[-1],
        dist.ReduceOp.BOR: values[0] | values[1] | values[-1],
        dist.ReduceOp.BXOR: values[0] ^ values[1] ^ (values[2] if size == 3 else 0),
    }
    for op, value in expected.items():
        tensor = torch.full((5,), rank + 1)
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == [int(value)] * 5, op
    mean = torch.full((4,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    assert mean.tolist() == [(size - 1) / 2] * 4
    for root in range(size):
        tensor = torch.full((3,), float(rank + 1))
        dist.reduce(tensor, dst=root)
        assert tensor[0] == (size * (size + 1) / 2 if rank == root else rank + 1)
    output = torch.zeros(2)
    dist.reduce_scatter(output, [torch.full((2,), float(10 * piece + rank)) for piece in range(size)])
    assert output.tolist() == [float(10 * rank * size + sum(range(size)))] * 2
    dist.reduce_scatter_tensor(output, torch.arange(2.0 * size) + rank, op=dist.ReduceOp.MAX)
    assert output.tolist() == [2.0 * rank + size - 1, 2.0 * rank + size]


def _dtypes(rank: int, size: int) -> None:
    for dtype in DTYPES:
        tensor = torch.tensor([1, 0, rank], dtype=dtype)
        everybody = [torch.empty(3, dtype=dtype) for _ in range(size)]
        dist.all_gather(everybody, tensor)
        for other, received in enumerate(everybody):
            assert torch.equal(received, torch.tensor([1, 0, other], dtype=dtype)), dtype
        dist.all_reduce(tensor)
        total = [1, 0, 1] if dtype is torch.bool else [size, 0, sum(range(size))]
        assert torch.equal(tensor, torch.tensor(total, dtype=dtype)), dtype
    large = torch.full((1 << 20,), float(rank + 1))
    dist.all_reduce(large)
    assert bool((large == size * (size + 1) / 2).all())


def _moves(rank: int, size: int) -> None:
    for root in range(size):
        tensor = torch.full((2, 3), float(rank))
        dist.broadcast(tensor, src=root)
        assert bool((tensor == root).all())
        gathered = [torch.zeros(2) for _ in range(size)] if rank == root else None
        dist.gather(torch.full((2,), float(rank)), gathered, dst=root)
        if gathered is not None:
            assert [piece[0].item() for piece in gathered] == list(range(size))
        pieces = [torch.full((2,), 10.0 * root + other) for other in range(size)] if rank == root else None
        mine = torch.zeros(2)
        dist.scatter(mine, pieces, src=root)
        assert mine.tolist() == [10.0 * root + rank] * 2
    flat = torch.zeros(2 * size)
    dist.all_gather_into_tensor(flat, torch.full((2,), float(rank)))
    assert flat.tolist() == [float(other) for other in range(size) for _ in range(2)]
    stacked = torch.zeros(size, 2)
    dist.all_gather_into_tensor(stacked, torch.full((2,), float(rank)))
    assert stacked[:, 0].tolist() == list(range(size))


def _all_to_all(rank: int, size: int) -> None:
    outputs = [torch.zeros(other + 1) for other in range(size)]
    dist.all_to_all(outputs, [torch.full((rank + 1,), 10.0 * rank + other) for other in range(size)])
    assert [output.tolist() for output in outputs] == [[10.0 * o + rank] * (o + 1) for o in range(size)]
    single = torch.zeros(size)
    dist.all_to_all_single(single, torch.arange(size) + 10.0 * rank)
    assert single.tolist() == [10.0 * other + rank for other in range(size)]
    uneven = torch.zeros(sum(range(1, size + 1)), 2)
    splits_in, splits_out = [rank + 1] * size, list(range(1, size + 1))
    dist.all_to_all_single(uneven, torch.full((size * (rank + 1), 2), float(rank)), splits_out, splits_in)
    assert uneven[:, 1].tolist() == [float(o) for o in range(size) for _ in range(o + 1)]


def _messages(rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    large = torch.full((1 << 18,), float(rank))  # more than a ring holds
    sent = dist.isend(large, after, tag=7)
    received = torch.zeros(1 << 18)
    assert dist.recv(received, before, tag=7) == before
    sent.wait()
    assert bool((received == before).all())
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            value = torch.zeros(1)
            source = dist.recv(value, tag=3)
            assert value.item() == source
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.tensor([float(rank)]), 0, tag=3)
    incoming = torch.zeros(2)
    for work in dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((2,), float(rank)), after),
            dist.P2POp(dist.irecv, incoming, before),
        ]
    ):
        work.wait()
    assert incoming.tolist() == [float(before)] * 2


def _objects(rank: int, size: int) -> None:
    everything: list[object] = [None] * size
    dist.all_gather_object(everything, {"rank": rank})
    assert everything == [{"rank": other} for other in range(size)]
    shared = ["a", {1, 2}] if rank == size - 1 else [None, None]
    dist.broadcast_object_list(shared, src=size - 1)
    assert shared == ["a", {1, 2}]
    mine: list[object] = [None]
    dist.scatter_object_list(mine, [f"for {o}" for o in range(size)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]
    collected = [None] * size if rank == 1 else None
    dist.gather_object(rank**2, collected, dst=1)
    assert collected is None or collected == [other**2 for other in range(size)]


def _asynchronous(rank: int, size: int) -> None:
    tensors = [torch.full((1000,), float(rank + index)) for index in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    dist.barrier()  # a sync call after async ones waits for its turn
    for index, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        assert work.is_completed()
        assert tensor[0] == size * index + sum(range(size))
    tensor = torch.ones(3)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    # A callback that needs the group itself, as PowerSGD's has.
    chained = future.then(lambda done: _reduced_again(done.value()[0]))
    assert chained.wait().tolist() == [float(size * size)] * 3


def _reduced_again(tensor: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor


def _coalesced(rank: int, size: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    tensors = [torch.full((3,), float(rank)), torch.full((2,), 2.0 * rank)]
    with dist.distributed_c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    total = float(sum(range(size)))
    assert [tensor[0].item() for tensor in tensors] == [total, 2 * total]
    outputs = [torch.zeros(size), torch.zeros(2 * size)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(outputs[0], torch.tensor([float(rank)]))
        dist.all_gather_into_tensor(outputs[1], torch.tensor([float(rank)] * 2))
    manager.wait()
    assert outputs[0].tolist() == list(range(size))
    tensor = torch.ones(1)
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu")):
        dist.broadcast(tensor, 0)
    lists = [[torch.zeros(1), torch.zeros(2)] for _ in range(size)]
    group.allgather_coalesced(lists, [torch.tensor([float(rank)]), torch.full((2,), 10.0 * rank)]).wait()
    assert [[piece[-1].item() for piece in pieces] for pieces in lists] == [[o, 10 * o] for o in range(size)]


def _functional(rank: int, size: int) -> None:
    """The calls of DTensor and FSDP2: C++ operators that find the group by its name."""
    ones = torch.full((size,), float(rank + 1))
    total = size * (size + 1) / 2
    group = dist.group.WORLD
    assert functional.all_reduce(ones, "sum", group).tolist() == [total] * size
    assert ones[0] == rank + 1
    assert functional.all_gather_tensor(ones[:1], 0, group).tolist() == list(range(1, size + 1))
    assert functional.reduce_scatter_tensor(ones, "avg", 0, group).tolist() == [total / size]
    assert functional.broadcast(ones, 1, group).tolist() == [2.0] * size
    swapped = functional.all_to_all_single(torch.arange(size) + 10.0 * rank, None, None, group)
    assert swapped.tolist() == [10.0 * other + rank for other in range(size)]
    both = functional.all_reduce_coalesced([ones, 2 * ones], "sum", group)
    assert [tensor[0].item() for tensor in both] == [total, 2 * total]
    leaf = torch.full((2,), float(rank), requires_grad=True)
    functional.all_gather_tensor_autograd(leaf, 0, group).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [float(size)] * 2


def _groups(rank: int, size: int) -> None:
    """Every rank makes every group; only members take part; roots are world ranks."""
    pair = dist.new_group([size - 1, 0])
    tensor = torch.tensor([float(rank)])
    if rank in (0, size - 1):
        dist.all_reduce(tensor, group=pair)
        assert tensor.item() == size - 1
        dist.broadcast(tensor.fill_(rank), src=size - 1, group=pair)
        assert tensor.item() == size - 1
        assert dist.get_process_group_ranks(pair) == [0, size - 1]
    alone, _ = dist.new_subgroups(1)
    dist.all_reduce(tensor.fill_(rank), group=alone)
    assert tensor.item() == rank
    if rank in (0, size - 1):
        dist.destroy_process_group(pair)
    dist.barrier()


def _layouts(rank: int, size: int) -> None:
    """Tensors whose memory is not in order, that need a gradient, that are empty or have no dimension."""
    tensor = torch.full((4, 6), float(rank))
    dist.all_reduce(tensor.t()[1:3])
    assert tensor[:, 1:3].eq(sum(range(size))).all()
    assert tensor[:, 0].eq(rank).all()
    parameter = torch.nn.Parameter(torch.full((2,), float(rank)))
    with torch.no_grad():
        dist.broadcast(parameter, 1)
    assert parameter.tolist() == [1.0, 1.0]
    dist.all_reduce(torch.empty(0))
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    assert scalar.item() == sum(range(size))


def _refusals(rank: int) -> None:
    """Wrong calls are errors before anything is sent, and the group can be used afterwards."""
    with pytest.raises(InvalidType, match="PREMUL_SUM"):
        dist.all_reduce(torch.ones(1), dist._make_nccl_premul_sum(2.0))
    with pytest.raises(InvalidType, match="bitwise"):
        dist.all_reduce(torch.ones(1), dist.ReduceOp.BAND)
    with pytest.raises(InvalidType, match=r"for CPU tensors.*meta"):
        dist.all_reduce(torch.ones(1, device="meta"))
    with pytest.raises(InvalidType, match=r"for CPU tensors.*meta"):
        dist.all_gather_into_tensor(torch.ones(4), torch.ones(1, device="meta"))
