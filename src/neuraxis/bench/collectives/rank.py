"""A rank of `neuraxis bench collectives`: for each contender, the calls that its users would write.

An operation is built once with its arguments bound (`partial` adds almost nothing to a call), then called repeatedly.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import repeat
from typing import Any, Protocol

from neuraxis import imports as optional
from neuraxis.bench.collectives.patterns import Buffers
from neuraxis.bench.rank import Reply, Request, no_garbage_collection, serve_rank

__all__ = ["Calls", "open_calls"]

Operation = Callable[[], object]


class Calls(Protocol):
    """One rank of a contender's group."""

    rank: int
    ranks: int

    def operation(self, buffers: Buffers) -> Operation:
        """Return a function that makes one call of the buffers' pattern; for send_recv, a round trip."""

    def barrier(self) -> None: ...

    def close(self) -> None: ...


def open_calls(contender: str, timeout_s: float) -> Calls:
    """Join the contender's group from a process that its launcher started."""
    if contender == "shm":
        return _ShmCalls(timeout_s)
    if contender == "mpi":
        return _MpiCalls()
    return _TorchCalls(contender, timeout_s)


class _ShmCalls:
    """neuraxis's collectives on NumPy arrays."""

    def __init__(self, timeout_s: float) -> None:
        from neuraxis.comm import functions, init_distributed  # what neuraxis.distributed exports

        self._comm = functions
        self._context = init_distributed("shm", timeout=timeout_s)
        self.rank, self.ranks = self._context.rank, self._context.world_size

    def operation(self, buffers: Buffers) -> Operation:
        comm, source, target = self._comm, buffers.source, buffers.target
        match buffers.pattern:
            case "broadcast":
                return partial(comm.broadcast, source, 0)
            case "reduce":
                return partial(comm.reduce, source, 0)
            case "all_reduce":
                return partial(comm.all_reduce, source)
            case "barrier":
                barrier: Operation = comm.barrier
                return barrier
            case "gather":
                return partial(comm.gather, source, buffers.target_parts if self.rank == 0 else None, 0)
            case "all_gather":
                return partial(comm.all_gather, buffers.target_parts, source)
            case "scatter":
                return partial(comm.scatter, target, buffers.source_parts if self.rank == 0 else None, 0)
            case "all_to_all":
                return partial(comm.all_to_all_single, target, source)
            case "reduce_scatter":
                return partial(comm.reduce_scatter_tensor, target, source)
            case _:
                return _ping_pong(self.rank, source, target, comm.send, comm.recv)

    def barrier(self) -> None:
        self._comm.barrier()

    def close(self) -> None:
        self._context.close()


class _TorchCalls:
    """torch.distributed on torch tensors: torch's own gloo, or neuraxis's shm as torch's backend."""

    def __init__(self, contender: str, timeout_s: float) -> None:
        torch = optional.require("torch", extra="torch", purpose=contender)
        optional.require("torch.distributed", extra="torch", purpose=contender)
        torch.set_num_threads(1)
        backend = contender
        if contender == "torch-shm":
            importlib.import_module("neuraxis.torch")  # registers the backend
            backend = "shm"
        self._torch, self._dist = torch, torch.distributed
        self._dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        self.rank, self.ranks = self._dist.get_rank(), self._dist.get_world_size()

    def operation(self, buffers: Buffers) -> Operation:
        dist, tensor = self._dist, self._torch.from_numpy
        source, target = tensor(buffers.source), tensor(buffers.target)
        source_parts = [tensor(part) for part in buffers.source_parts]
        target_parts = [tensor(part) for part in buffers.target_parts]
        match buffers.pattern:
            case "broadcast":
                return partial(dist.broadcast, source, 0)
            case "reduce":
                return partial(dist.reduce, source, 0)
            case "all_reduce":
                return partial(dist.all_reduce, source)
            case "barrier":
                barrier: Operation = dist.barrier
                return barrier
            case "gather":
                return partial(dist.gather, source, target_parts if self.rank == 0 else None, 0)
            case "all_gather":
                return partial(dist.all_gather, target_parts, source)
            case "scatter":
                return partial(dist.scatter, target, source_parts if self.rank == 0 else None, 0)
            case "all_to_all":
                return partial(dist.all_to_all_single, target, source)
            case "reduce_scatter":
                # Newer versions of torch renamed it, and the old name prints a warning.
                function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
                return partial(function, target, source)
            case _:
                return _ping_pong(self.rank, source, target, dist.send, dist.recv)

    def barrier(self) -> None:
        self._dist.barrier()

    def close(self) -> None:
        self._dist.destroy_process_group()


class _MpiCalls:
    """mpi4py's upper-case calls on NumPy arrays."""

    def __init__(self) -> None:
        MPI = optional.require("mpi4py.MPI", extra="mpi", purpose="mpi")
        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self.rank, self.ranks = self._comm.Get_rank(), self._comm.Get_size()

    def operation(self, buffers: Buffers) -> Operation:
        comm, in_place = self._comm, self._mpi.IN_PLACE
        source, target = buffers.source, buffers.target
        root = self.rank == 0
        match buffers.pattern:
            case "broadcast":
                return partial(comm.Bcast, source, 0)
            case "reduce" if root:
                return partial(comm.Reduce, in_place, source)
            case "reduce":
                return partial(comm.Reduce, source, None)
            case "all_reduce":
                return partial(comm.Allreduce, in_place, source)
            case "barrier":
                barrier: Operation = comm.Barrier
                return barrier
            case "gather":
                return partial(comm.Gather, source, target if root else None)
            case "all_gather":
                return partial(comm.Allgather, source, target)
            case "scatter":
                return partial(comm.Scatter, source if root else None, target)
            case "all_to_all":
                return partial(comm.Alltoall, source, target)
            case "reduce_scatter":
                return partial(comm.Reduce_scatter_block, source, target)
            case _:
                return _ping_pong(self.rank, source, target, comm.Send, comm.Recv)

    def barrier(self) -> None:
        self._comm.Barrier()

    def close(self) -> None:
        self._mpi.Finalize()


def _ping_pong(
    rank: int, source: Any, target: Any, send: Callable[..., object], receive: Callable[..., object]
) -> Operation:
    """Return a round trip between ranks 0 and 1; other ranks do nothing."""
    if rank > 1:
        return lambda: None
    there = partial(send, source if rank == 0 else target, 1 - rank)
    back = partial(receive, target, 1 - rank)
    first, second = (there, back) if rank == 0 else (back, there)

    def ping_pong() -> None:
        first()
        second()

    return ping_pong


def _measure(calls: Calls, request: Request) -> Reply:
    buffers = Buffers(request.pattern, request.size, calls.ranks, calls.rank)
    operation = calls.operation(buffers)
    buffers.fill()
    # The first call finds cold caches and new pages, and sometimes a kernel to load; it does not count.
    operation()
    if request.check:
        buffers.check()
    buffers.clear()
    for _ in repeat(None, request.warmups):
        operation()
    # Ranks outside a ping-pong must not spin in a barrier meanwhile: they may share its cores.
    meet = operation if request.pattern == "send_recv" else calls.barrier
    with no_garbage_collection():
        meet()
        start = time.perf_counter()
        for _ in repeat(None, request.iterations):
            operation()
        seconds = time.perf_counter() - start
        meet()  # outside the time: an MPI library may need one more call to deliver buffered messages
    return Reply(seconds)


if __name__ == "__main__":
    serve_rank(open_calls, _measure)
