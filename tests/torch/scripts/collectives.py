"""Every collective, on tensors and on objects, in the default group and in smaller ones."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist


def main():
    print(dist.is_available(), dist.is_initialized(), dist.is_gloo_available(), dist.is_backend_available("nothing"))
    dist.init_process_group(backend=os.environ["BACKEND"], init_method="env://", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    print(dist.is_initialized(), rank, size, dist.group.WORLD is not None, dist.get_process_group_ranks(None))

    for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        tensor = torch.arange(4, dtype=torch.float64) + rank
        dist.all_reduce(tensor, op=op)
        print("all_reduce", tensor.tolist())
    tensor = torch.tensor([rank + 1])
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    print("async", tensor.tolist())

    tensor = torch.full((2,), float(rank))
    dist.broadcast(tensor, src=1)
    print("broadcast", tensor.tolist())
    tensor = torch.full((2,), float(rank + 1))
    dist.reduce(tensor, dst=0)
    if rank == 0:
        print("reduce", tensor.tolist())

    pieces = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(pieces, torch.full((2,), float(rank)))
    print("all_gather", [piece.tolist() for piece in pieces])
    whole = torch.zeros(2 * size)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    print("all_gather_into_tensor", whole.tolist())
    part = torch.zeros(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * size) + rank)
    print("reduce_scatter_tensor", part.tolist())
    dist.scatter(part, [torch.full((2,), float(i)) for i in range(size)] if rank == 0 else None, src=0)
    print("scatter", part.tolist())
    gathered = [torch.zeros(2) for _ in range(size)] if rank == 0 else None
    dist.gather(part, gathered, dst=0)
    if rank == 0:
        print("gather", [piece.tolist() for piece in gathered])
    output = torch.zeros(size, dtype=torch.int64)
    dist.all_to_all_single(output, torch.arange(size) + 10 * rank)
    print("all_to_all_single", output.tolist())

    objects = ["a", {"b": rank}] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, src=0)
    print("objects", objects)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    print("objects", objects)
    objects = [None] * size if rank == 0 else None
    dist.gather_object((rank, "x"), objects, dst=0)
    print("objects", objects and [tuple(o) for o in objects])
    mine = [None]
    dist.scatter_object_list(mine, [f"for {i}" for i in range(size)] if rank == 0 else None, src=0)
    print("objects", mine)

    ranks = list(range(1, size))
    group = dist.new_group(ranks, timeout=timedelta(seconds=60), backend=os.environ["BACKEND"])
    if rank in ranks:
        tensor = torch.ones(1) * rank
        dist.all_reduce(tensor, group=group)
        print("group", tensor.item(), dist.get_rank(group), dist.get_world_size(group))
        print(dist.get_global_rank(group, 0), dist.get_group_rank(group, 1), dist.get_process_group_ranks(group))
        dist.monitored_barrier(group, timeout=timedelta(seconds=30))
    else:
        print("outside", dist.get_rank(group), group == dist.GroupMember.NON_GROUP_MEMBER)
    mine, groups = dist.new_subgroups(group_size=1)
    print("subgroups", dist.get_world_size(mine), len(groups))
    dist.barrier(dist.group.WORLD)
    dist.destroy_process_group(mine)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
