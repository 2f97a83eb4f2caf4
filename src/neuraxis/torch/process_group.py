"""A process group of `torch.distributed` over shared memory.

torch uses an instance of a Python subclass of `ProcessGroup` as the group itself and calls the methods below, from
Python directly and from C++ (DDP's reducer, functional collectives) through a trampoline. Some methods have different
names in different versions of torch; both names are defined.

Synchronous calls run in the calling thread. The option `asyncOp` is False for synchronous calls (torch 2.8 and
later; without it, calls run as asynchronous ones). Asynchronous calls run one after another in the communicator's
thread, so they overlap with a backward pass.

The ranks set a group up through the store that `torch.distributed` passes to a backend. A store outlives the groups
made over it, and the same keys recur when a process group is destroyed and initialized again. So each rank counts its
setups, and the count is part of every key: no rank reads values of an earlier setup.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial, wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd import _profiler_enabled, _record_function_with_args_enter, _record_function_with_args_exit

from neuraxis.comm.backends.base import Exchange
from neuraxis.comm.backends.shm.backend import ShmBackend
from neuraxis.comm.communicator import Communicator
from neuraxis.comm.failures import error_to_close_with, open_groups
from neuraxis.comm.host import host_identity
from neuraxis.comm.operations import Work, seconds_of
from neuraxis.comm.reduction import ReduceOp
from neuraxis.errors import (
    BackendUnavailable,
    CollectiveMismatch,
    ForkedProcess,
    InvalidArgument,
    InvalidType,
    RendezvousError,
    RendezvousTimeout,
)
from neuraxis.torch.work import FinishedWork, PendingWork, excluded_from_graphs, running_callbacks
from neuraxis.wire.trees import iter_leaves

__all__ = [
    "ShmProcessGroup",
    "StoreExchange",
    "check_one_host",
    "create_process_group",
    "reduce_op_of",
    "send_last_messages",
]

Tensors = Sequence[torch.Tensor]
_Method = TypeVar("_Method", bound=Callable[..., Any])


def _recorded(name: str) -> Callable[[_Method], _Method]:
    """Count the calls of a collective, and record them in torch's profiler as `shm:<name>`, from call to completion."""

    def decorate(method: _Method) -> _Method:
        @wraps(method)
        def call(self: ShmProcessGroup, *arguments: Any, **options: Any) -> Any:
            self._sequence_number += 1
            if not _profiler_enabled():
                return method(self, *arguments, **options)
            record = _record_function_with_args_enter(f"shm:{name}", *iter_leaves(arguments, torch.Tensor))
            try:
                work = method(self, *arguments, **options)
            except BaseException:
                _record_function_with_args_exit(record)
                raise
            work.add_done_callback(lambda: _record_function_with_args_exit(record))
            return work

        return call  # type: ignore[return-value]

    return decorate


@excluded_from_graphs
class ShmProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """Collectives and messages on CPU tensors between processes of one host.

    `torch.distributed` makes it; programs use it through torch's functions.

    Examples
    --------
    >>> import torch, torch.distributed, neuraxis.torch
    >>> torch.distributed.init_process_group("shm", store=torch.distributed.HashStore(), rank=0, world_size=1)
    >>> values = torch.ones(3)
    >>> _ = torch.distributed.all_reduce(values)
    >>> values.tolist()
    [1.0, 1.0, 1.0]
    >>> torch.distributed.destroy_process_group()

    In a program that torchrun starts, ``init_process_group("shm")`` needs no further arguments.
    """

    def __init__(self, store: Any, communicator: Communicator) -> None:
        super().__init__(communicator.rank, communicator.size)
        self._communicator = communicator
        self._store = store
        self._sequence_number = 0
        self._group_name = ""
        self._group_description = ""

    # --- names (in camel case for C++) ----------------------------------------------------------

    def getBackendName(self) -> str:
        """Return "shm"."""
        return "shm"

    name = getBackendName

    def getGroupName(self) -> str:
        """Return the name that torch has given the group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """Set the name of the group.

        Parameters
        ----------
        name : str
            The name.
        """
        self._group_name = name

    def getGroupDesc(self) -> str:
        """Return the description of the group."""
        return self._group_description

    def setGroupDesc(self, description: str) -> None:
        """Set the description of the group.

        Parameters
        ----------
        description : str
            The description.
        """
        self._group_description = description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Any:
        """Return the store through which the ranks have found each other."""
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: Any) -> ShmProcessGroup:
        """Return the backend for a device. A backend written in Python is the group itself."""
        if torch.device(device).type != "cpu":
            raise BackendUnavailable(
                "shm", f"it does not support {device}", "Make a group for that device with new_group(backend='nccl')"
            )
        return self

    def _get_sequence_number_for_group(self) -> int:
        """Return the number of collectives and messages that this rank has started in the group."""
        return self._sequence_number

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing: every rank counts from zero."""

    # --- deadlines ------------------------------------------------------------------------------

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the deadline of every later call.

        Parameters
        ----------
        timeout : timedelta
            The deadline.
        """
        self._communicator.set_timeout(seconds_of(timeout))

    _set_default_timeout = set_timeout

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; the error on the first rank names the missing ones.

        Parameters
        ----------
        timeout : timedelta, optional
            Deadline; by default the group's.
        wait_all_ranks : bool
            Name all missing ranks instead of the first.
        """
        limit = None if timeout is None else seconds_of(timeout)
        self._communicator.monitored_barrier(limit, wait_all_ranks)

    # --- reductions -----------------------------------------------------------------------------

    @_recorded("all_reduce")
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.AllreduceOptions() if opts is None else opts
        tensor = _single(tensors)
        if tensor.layout is not torch.strided:
            return self._allreduce_sparse(tensor, opts)
        async_op = _is_async(opts)
        value = tensor if async_op else _as_array(tensor)
        return _work(self._communicator.all_reduce(value, reduce_op_of(opts), async_op), tensors)

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> Any:
        """Sum COO tensors in rank order. Synchronous, because the ranks first exchange the lengths of their parts."""
        if tensor.layout is not torch.sparse_coo or opts.reduceOp.op != dist.ReduceOp.RedOpType.SUM:
            raise InvalidType(
                f"backend shm only sums sparse COO tensors; this is {opts.reduceOp.op.name} of a tensor of layout "
                f"{tensor.layout}. Use .to_dense() first"
            )
        mine = tensor.detach().coalesce()
        shape = (mine.sparse_dim(), *mine.shape)
        parts: list[Any] = [None] * self._communicator.size
        self._communicator.all_gather_object(parts, [list(shape), mine._nnz()])
        for rank, (other, _) in enumerate(parts):
            if tuple(other) != shape:
                world = self._communicator.ranks
                raise CollectiveMismatch(
                    f"rank {world[rank]} reduces a sparse tensor of shape {tuple(other[1:])} with {other[0]} sparse "
                    f"dimensions, rank {world[self._communicator.rank]} one of {shape[1:]} with {shape[0]}. All ranks "
                    "must reduce tensors of one shape",
                    rank=world[rank],
                    mine=str(shape),
                    theirs=str(tuple(other)),
                )
        counts = [int(count) for _, count in parts]
        indices = [mine.indices().new_empty((shape[0], count)) for count in counts]
        values = [mine.values().new_empty((count, *mine.values().shape[1:])) for count in counts]
        # all_to_all is the collective that takes parts of different lengths.
        self._communicator.all_to_all(indices, [mine.indices().contiguous()] * len(counts))
        self._communicator.all_to_all(values, [mine.values().contiguous()] * len(counts))
        total = torch.sparse_coo_tensor(torch.cat(indices, 1), torch.cat(values), tensor.shape).coalesce()
        tensor.copy_(total)
        return FinishedWork([tensor])

    @_recorded("all_reduce")
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.AllreduceCoalescedOptions() if opts is None else opts
        op, async_op = reduce_op_of(opts), _is_async(opts)
        _check_cpu(tensors)
        return self._each([partial(self._communicator.all_reduce, t, op, async_op) for t in tensors], tensors)

    @_recorded("reduce")
    def reduce(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.ReduceOptions() if opts is None else opts
        work = self._communicator.reduce(
            _single(tensors), op=reduce_op_of(opts), group_dst=opts.rootRank, async_op=_is_async(opts)
        )
        return _work(work, tensors)

    @_recorded("reduce_scatter")
    def reduce_scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None) -> Any:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        output, inputs = _single(output_tensors), _single_list(input_tensors)
        work = self._communicator.reduce_scatter(output, inputs, reduce_op_of(opts), _is_async(opts))
        return _work(work, output_tensors)

    @_recorded("reduce_scatter")
    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        opts = dist.ReduceScatterOptions() if opts is None else opts
        _check_cpu((output, input))
        work = self._communicator.reduce_scatter_tensor(output, input, reduce_op_of(opts), _is_async(opts))
        return _work(work, [output])

    _reduce_scatter_base = reduce_scatter_single

    @_recorded("reduce_scatter")
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

    # --- data movement --------------------------------------------------------------------------

    @_recorded("broadcast")
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.BroadcastOptions() if opts is None else opts
        work = self._communicator.broadcast(_single(tensors), group_src=opts.rootRank, async_op=_is_async(opts))
        return _work(work, tensors)

    @_recorded("all_gather")
    def allgather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None) -> Any:
        outputs, tensor = _single_list(output_tensors), _single(input_tensors)
        work = self._communicator.all_gather(outputs, tensor, _is_async(opts))
        return _work(work, output_tensors)

    @_recorded("all_gather")
    def allgather_coalesced(self, output_lists: Sequence[Tensors], input_tensors: Tensors, opts: Any = None) -> Any:
        """Gather each of several tensors: `output_lists[rank][i]` receives that rank's `input_tensors[i]`.

        Parameters
        ----------
        output_lists : sequence of lists of Tensor
            A list for each rank.
        input_tensors : list of Tensor
            Tensors of this rank.
        opts : AllgatherOptions, optional
            Options of torch; `asyncOp` returns at once.

        Returns
        -------
        Work
            The operation.
        """
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

    @_recorded("all_gather")
    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Any:
        _check_cpu((output, input))
        work = self._communicator.all_gather_into_tensor(output, input, _is_async(opts))
        return _work(work, [output])

    _allgather_base = all_gather_single

    @_recorded("all_gather")
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

    @_recorded("gather")
    def gather(self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None) -> Any:
        opts = dist.GatherOptions() if opts is None else opts
        outputs = _single_list(output_tensors) if output_tensors else None
        work = self._communicator.gather(
            _single(input_tensors), outputs, group_dst=opts.rootRank, async_op=_is_async(opts)
        )
        return _work(work, output_tensors)

    @_recorded("scatter")
    def scatter(self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None) -> Any:
        opts = dist.ScatterOptions() if opts is None else opts
        inputs = _single_list(input_tensors) if input_tensors else None
        work = self._communicator.scatter(
            _single(output_tensors), inputs, group_src=opts.rootRank, async_op=_is_async(opts)
        )
        return _work(work, output_tensors)

    @_recorded("all_to_all")
    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None) -> Any:
        _check_cpu((*output_tensors, *input_tensors))
        work = self._communicator.all_to_all(list(output_tensors), list(input_tensors), _is_async(opts))
        return _work(work, output_tensors)

    @_recorded("all_to_all")
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

    @_recorded("barrier")
    def barrier(self, opts: Any = None) -> Any:
        return _work(self._communicator.barrier(_is_async(opts)), [])

    # --- messages -------------------------------------------------------------------------------

    @_recorded("send")
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> Any:
        return PendingWork(self._communicator.isend(_single(tensors), group_dst=dst, tag=tag), tensors)

    @_recorded("recv")
    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> Any:
        return PendingWork(self._communicator.irecv(_single(tensors), group_src=src, tag=tag), tensors)

    @_recorded("recvAnySource")
    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Any:
        return PendingWork(self._communicator.irecv(_single(tensors), tag=tag), tensors)

    # --- coalesced calls ------------------------------------------------------------------------

    def _start_coalescing(self, device: Any) -> None:
        """Do nothing: bundling several calls would not make them cheaper."""

    def _end_coalescing(self, device: Any) -> Any:
        # Calls run in order, so a barrier after them completes when all of them have.
        return _work(self._communicator.barrier(async_op=not running_callbacks()), [])

    def _each(self, calls: Sequence[Callable[[], Work | None]], tensors: Any) -> Any:
        work = None
        for call in calls:
            work = call()  # in order: the last completes after all others, and fails if one of them has
        return _work(work, tensors)

    # --- closing --------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Complete pending operations, then free all resources."""
        self._communicator.close()

    def abort(self) -> None:
        """Free all resources at once; pending operations end with an error."""
        self._communicator.abort()


# --- setup ---


_communicators: weakref.WeakSet[Communicator] = weakref.WeakSet()
_LONGEST_PAUSE_S = 0.02  # of the setup of a group, between two looks at the other ranks


class StoreExchange:
    """Exchange between the ranks of a group over a store: takes this rank's bytes and returns those of all ranks."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float, world_ranks: Sequence[int]) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._deadline = time.monotonic() + timeout
        self._timeout = timeout
        self._world_ranks = world_ranks
        self._setup = int(store.add(f"neuraxis/meetings/{rank}", 1))
        self._round = 0

    def __call__(self, content: bytes) -> list[bytes]:
        keys = [self._key(self._round, rank) for rank in range(self._size)]
        # Some stores treat an empty value as missing.
        self._store.set(keys[self._rank], b"=" + content)
        try:
            self._wait(keys)
            contents = [bytes(self._store.get(key))[1:] for key in keys]
        except (RuntimeError, dist.DistError) as error:
            raise self._failure(keys, error) from error
        if self._round > 0:  # all ranks have arrived in this round, so all have read the previous one
            with suppress(RuntimeError, NotImplementedError):
                self._store.delete_key(self._key(self._round - 1, self._rank))
        self._round += 1
        return contents

    def _wait(self, keys: Sequence[str]) -> None:
        """Wait for the keys, and look meanwhile for ranks whose processes have ended."""
        watched = any(isinstance(group, ShmBackend) for group in open_groups())
        pause_s = 0.001
        # Polled, because torch's store writes a warning for each wait that runs out.
        while watched and time.monotonic() < self._deadline:
            if self._store.check(keys):
                return
            self._check_processes(keys)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._store.wait(keys, timedelta(seconds=max(0.001, self._deadline - time.monotonic())))

    def _check_processes(self, keys: Sequence[str]) -> None:
        """Raise PeerLost for a rank that is missing here and whose process has ended, if an open group watches it."""
        for group in open_groups():
            if not isinstance(group, ShmBackend):
                continue
            for world in group.ended_ranks().intersection(self._world_ranks):
                # A rank that has ended cannot write its key any more.
                if not self._store.check([keys[self._world_ranks.index(world)]]):
                    group.raise_loss("the setup of a group", world)

    def _key(self, round_: int, rank: int) -> str:
        return f"neuraxis/{self._setup}/{round_}/{rank}"

    def _failure(self, keys: Sequence[str], error: Exception) -> RendezvousError:
        if time.monotonic() < self._deadline:
            return RendezvousError(f"the store failed while the process group was set up: {error}")
        missing: list[int] = []
        with suppress(RuntimeError, dist.DistError):
            missing = [rank for rank, key in zip(self._world_ranks, keys, strict=True) if not self._store.check([key])]
        names = ", ".join(map(str, missing)) or "unknown"
        return RendezvousTimeout(
            f"not every rank joined the process group within {self._timeout:g} s. Missing ranks: {names}",
            tuple(missing),
        )


def check_one_host(exchange: Exchange, world_ranks: Sequence[int]) -> None:
    """Raise BackendUnavailable unless all ranks share a host."""
    hosts = [identity.decode() for identity in exchange(host_identity().encode())]
    if len(set(hosts)) == 1:
        return
    where = ", ".join(f"rank {rank} on {host.split('/')[0]}" for rank, host in zip(world_ranks, hosts, strict=True))
    raise BackendUnavailable(
        "shm",
        f"the ranks are on several hosts ({where})",
        "Use init_process_group('gloo'), or new_group(backend='shm') among the ranks of one host",
    )


def create_process_group(options: Any) -> ShmProcessGroup:
    """Set up a group with its other members; `init_process_group` and `new_group` call it on every member."""
    rank, size = int(options.group_rank), int(options.group_size)
    timeout = options.timeout.total_seconds()
    # torch passes no ranks for the default group.
    world_ranks = [int(world) for world in options.global_ranks_in_group] or list(range(size))
    exchange = StoreExchange(options.store, rank, size, timeout, world_ranks)
    check_one_host(exchange, world_ranks)
    name = f"torch group {options.group_id}"
    backend = ShmBackend(rank, size, exchange, timeout, world_ranks, label=name)
    communicator = Communicator(backend, world_ranks, timeout, name)
    _communicators.add(communicator)
    return ShmProcessGroup(options.store, communicator)


def send_last_messages() -> None:
    """Send the last message of this rank in all groups, if it leaves them because of an exception or a lost rank."""
    for communicator in list(_communicators):
        backend = communicator.backend
        error = None if backend is None else error_to_close_with(backend)
        if error is not None:
            communicator.send_last_message(error)


def _after_fork_in_child() -> None:
    # A forked child, e.g. a worker of a DataLoader, has a copy of every group, but its parent is the rank.
    error = ForkedProcess(
        f"this process was forked from process {os.getppid()}, and only that process can use this process group"
    )
    for communicator in list(_communicators):
        communicator.abandon(error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# --- helpers ---


_OPERATIONS = {
    kind: ReduceOp[name] for name, kind in dist.ReduceOp.RedOpType.__members__.items() if name in ReduceOp.__members__
}


def reduce_op_of(options: Any) -> ReduceOp:
    """Return the reduction that the options of a call ask for."""
    kind = options.reduceOp.op
    op = _OPERATIONS.get(kind)
    if op is None:
        raise InvalidType(
            f"backend shm does not have the reduction {kind.name}. Use one of "
            f"{', '.join(op.name for op in ReduceOp)} (for PREMUL_SUM: multiply, then use SUM)"
        )
    return op


def _is_async(opts: Any) -> bool:
    return getattr(opts, "asyncOp", True) and not running_callbacks()


_ARRAY_DTYPES = {torch.float32, torch.float64, torch.int32, torch.int64}


def _as_array(tensor: torch.Tensor) -> Any:
    """Return a plain tensor as an array over the same memory, for which the communicator has a fast path."""
    if tensor.dtype in _ARRAY_DTYPES and tensor.layout is torch.strided and not tensor.is_neg():
        return tensor.detach().numpy()
    return tensor


def _work(work: Work | None, tensors: Any) -> Any:
    return FinishedWork(tensors) if work is None else PendingWork(work, tensors)


def _single(tensors: Tensors) -> torch.Tensor:
    if len(tensors) != 1:
        raise InvalidArgument(f"backend shm takes one tensor per call, not {len(tensors)}")
    tensor = tensors[0]
    if not tensor.is_cpu:
        _check_cpu(tensors)
    return tensor


def _single_list(lists: Sequence[Tensors]) -> list[torch.Tensor]:
    if len(lists) != 1:
        raise InvalidArgument(f"backend shm takes one list of tensors per call, not {len(lists)}")
    _check_cpu(lists[0])
    return list(lists[0])


def _check_cpu(tensors: Tensors) -> None:
    for tensor in tensors:
        if not tensor.is_cpu:
            raise InvalidType(
                f"backend shm is for CPU tensors, and this one is on {tensor.device}. Move it with .cpu(), or make a "
                "group with a backend for that device (new_group(backend='nccl'))"
            )
