"""A process group of `torch.distributed` over shared memory.

torch takes an instance of a Python subclass of `ProcessGroup` as the group itself and calls the methods below,
from Python directly and from C++ (DDP's reducer, functional collectives) through a trampoline. Some have changed
their names between versions of torch: both names are here.

Sync calls run in the calling thread. Whether a call is sync is in its options (`asyncOp`, torch 2.8 and later;
an older one leaves some calls without it, and these run as async ones do): async calls run one after the other in
the communicator's thread, so that they overlap with a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from neuraxis.comm.communicator import Communicator
from neuraxis.comm.work import Work
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.torch.reduction import reduce_op_of
from neuraxis.torch.work import FinishedWork, PendingWork, running_callbacks

__all__ = ["ShmProcessGroup"]

Tensors = Sequence[torch.Tensor]


class ShmProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """Collectives and messages on CPU tensors between processes of one host."""

    def __init__(self, store: Any, communicator: Communicator) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._communicator = communicator
        self._store = store

        self._group_name = ""
        self._group_description = ""

    # --- names (C++ asks for them too, under the names in camel case) ---------------------------

    def getBackendName(self) -> str:
        return "shm"

    name = getBackendName

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupDesc(self) -> str:
        return self._group_description

    def setGroupDesc(self, description: str) -> None:
        self._group_description = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Any:
        return self._store

    # --- reductions -----------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.AllreduceOptions() if opts is None else opts
        tensor = _single(tensors)
        async_op = _is_async(opts)
        value = tensor if async_op else _as_array(tensor)
        return _work(self._communicator.all_reduce(value, reduce_op_of(opts), async_op), tensors)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.AllreduceCoalescedOptions() if opts is None else opts
        op, async_op = reduce_op_of(opts), _is_async(opts)
        _check_cpu(tensors)
        return self._each([partial(self._communicator.all_reduce, t, op, async_op) for t in tensors], tensors)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.ReduceOptions() if opts is None else opts
        work = self._communicator.reduce(
            _single(tensors), op=reduce_op_of(opts), group_dst=opts.rootRank, async_op=_is_async(opts)
        )
        return _work(work, tensors)

    def reduce_scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None) -> Any:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        output, inputs = _single(output_tensors), _single_list(input_tensors)
        work = self._communicator.reduce_scatter(output, inputs, reduce_op_of(opts), _is_async(opts))
        return _work(work, output_tensors)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        _check_cpu((output, input))
        work = self._communicator.reduce_scatter_tensor(output, input, reduce_op_of(opts), _is_async(opts))
        return _work(work, [output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        op, async_op = reduce_op_of(opts), _is_async(opts)
        _check_cpu((*outputs, *inputs))
        return self._each(
            [
                partial(self._communicator.reduce_scatter_tensor, o, i, op, async_op)
                for o, i in zip(outputs, inputs, strict=True)
            ],
            outputs,
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # --- moving ---------------------------------------------------------------------------------

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.BroadcastOptions() if opts is None else opts
        work = self._communicator.broadcast(_single(tensors), group_src=opts.rootRank, async_op=_is_async(opts))
        return _work(work, tensors)

    def allgather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None) -> Any:
        outputs, tensor = _single_list(output_tensors), _single(input_tensors)
        work = self._communicator.all_gather(outputs, tensor, _is_async(opts))
        return _work(work, output_tensors)

    def allgather_coalesced(self, output_lists: Sequence[Tensors], input_tensors: Tensors, opts: Any = None) -> Any:
        """`output_lists[rank][i]` becomes that rank's `input_tensors[i]`."""
        async_op = _is_async(opts)
        for tensors in (*output_lists, input_tensors):
            _check_cpu(tensors)
        return self._each(
            [
                partial(self._communicator.all_gather, [outputs[index] for outputs in output_lists], i, async_op)
                for index, i in enumerate(input_tensors)
            ],
            output_lists,
        )

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        _check_cpu((output, input))
        work = self._communicator.all_gather_into_tensor(output, input, _is_async(opts))
        return _work(work, [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Any:
        async_op = _is_async(opts)
        _check_cpu((*outputs, *inputs))
        return self._each(
            [
                partial(self._communicator.all_gather_into_tensor, o, i, async_op)
                for o, i in zip(outputs, inputs, strict=True)
            ],
            outputs,
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.GatherOptions() if opts is None else opts
        outputs = _single_list(output_tensors) if output_tensors else None
        work = self._communicator.gather(
            _single(input_tensors), outputs, group_dst=opts.rootRank, async_op=_is_async(opts)
        )
        return _work(work, output_tensors)

    def scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None) -> Any:
        opts = dist.ScatterOptions() if opts is None else opts
        inputs = _single_list(input_tensors) if input_tensors else None
        work = self._communicator.scatter(
            _single(output_tensors), inputs, group_src=opts.rootRank, async_op=_is_async(opts)
        )
        return _work(work, output_tensors)

    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> Any:
        _check_cpu((*output_tensors, *input_tensors))
        work = self._communicator.all_to_all(list(output_tensors), list(input_tensors), _is_async(opts))
        return _work(work, output_tensors)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> Any:
        _check_cpu((output, input))
        work = self._communicator.all_to_all_single(
            output, input, output_split_sizes, input_split_sizes, _is_async(opts)
        )
        return _work(work, [output])

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> Any:
        return _work(self._communicator.barrier(_is_async(opts)), [])

    # --- messages -------------------------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Any:
        return PendingWork(self._communicator.isend(_single(tensors), group_dst=dst, tag=tag), tensors)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Any:
        return PendingWork(self._communicator.irecv(_single(tensors), group_src=src, tag=tag), tensors)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        return PendingWork(self._communicator.irecv(_single(tensors), tag=tag), tensors)

    # --- several calls as one -------------------------------------------------------------------

    def _start_coalescing(self, device: Any) -> None:
        """Calls between start and end need no bundling here: each is already as cheap as its bytes."""

    def _end_coalescing(self, device: Any) -> Any:
        # Calls run in order, so that the end of an empty one after them is the end of them all.
        return _work(self._communicator.barrier(async_op=not running_callbacks()), [])

    def _each(self, calls: Sequence[Callable[[], Work | None]], tensors: Any) -> Any:
        work = None
        for call in calls:
            work = call()  # in order: the last is done when all are, and fails if one before it has
        return _work(work, tensors)

    # --- the end --------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Free everything; what was called before is finished first."""
        self._communicator.destroy()

    def abort(self) -> None:
        """Free everything at once; what is under way ends with an error."""
        self._communicator.abort()


def _is_async(opts: Any) -> bool:
    return getattr(opts, "asyncOp", True) and not running_callbacks()


_ARRAY_DTYPES = {torch.float32, torch.float64, torch.int32, torch.int64}


def _as_array(tensor: torch.Tensor) -> Any:
    """The tensor as an array over the same memory where it is plain: the communicator has a short way for those."""
    if tensor.dtype in _ARRAY_DTYPES and tensor.layout is torch.strided and not tensor.is_neg():
        return tensor.detach().numpy()
    return tensor


def _work(work: Work | None, tensors: Any) -> Any:
    return FinishedWork(tensors) if work is None else PendingWork(work, tensors)


def _single(tensors: Tensors) -> torch.Tensor:
    if len(tensors) != 1:
        raise InvalidArgument(f"backend shm takes one tensor a call, not {len(tensors)}")
    tensor = tensors[0]
    if not tensor.is_cpu:
        _check_cpu(tensors)
    return tensor


def _single_list(lists: Sequence[Tensors]) -> list[torch.Tensor]:
    if len(lists) != 1:
        raise InvalidArgument(f"backend shm takes one list of tensors a call, not {len(lists)}")
    _check_cpu(lists[0])
    return list(lists[0])


def _check_cpu(tensors: Tensors) -> None:
    for tensor in tensors:
        if not tensor.is_cpu:
            raise InvalidType(
                f"backend shm is for CPU tensors, and this one is on {tensor.device}: move it with .cpu(), or make a "
                "group with a backend for that device (new_group(backend='nccl'))"
            )
