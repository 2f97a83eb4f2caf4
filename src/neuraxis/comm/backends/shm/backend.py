"""The shared-memory backend: collectives and messages between the ranks of one host.

The collectives are in `kernels.py`, messages between two ranks in `mailbox.py`, and the memory in `memory.py`. This
module lays out the segment, sleeps while other ranks are late, and turns a death, a timeout or a mismatched call into
an error that names the rank.

Layout of a segment: control blocks | small slots (two per rank) | doorbells | counters of the rings | large slots |
rings (one per ordered pair of ranks). The first four are allocated when the group is made, the large slots when an
operation first moves more than the small ones hold, and a ring when its first message is sent. A group that cannot
allocate the large slots keeps using the small ones, which takes more rounds.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, NoReturn

import msgspec
import numpy as np

from neuraxis.comm.backends.base import (
    Backend,
    Exchange,
    MessageMemoryExhausted,
    Operation,
    Request,
    all_reduce_by_gathering,
    as_folded,
    describe_call,
    reduce_by_gathering,
    reduce_scatter_by_gathering,
)
from neuraxis.comm.backends.shm import kernels, memory
from neuraxis.comm.backends.shm.array_kernels import array_layout_is_known
from neuraxis.comm.backends.shm.fast_path import FastPath
from neuraxis.comm.backends.shm.mailbox import Endpoint
from neuraxis.comm.backends.shm.rings import DOORBELL_BYTES, RING_COUNTERS_BYTES, ring_bytes
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.failures import (
    LAST_MESSAGE_BYTES,
    Cause,
    LastMessage,
    LastMessages,
    ProcessExit,
    ProcessIdentity,
    ProcessWatch,
    error_to_close_with,
    error_to_leave_with,
    identify_self,
    open_groups,
    register_open,
    unregister_open,
)
from neuraxis.comm.reduce_kernels import TILE_BYTES, fold_address
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.compiled import compile_once
from neuraxis.compiled.atomics import sleep_on_word
from neuraxis.errors import (
    BackendUnavailable,
    CollectiveMismatch,
    CollectiveTimeout,
    InvalidArgument,
    NeuraxisError,
    PeerLost,
    ResourceExhausted,
)
from neuraxis.machine import usable_cores

__all__ = ["GroupErrors", "ShmBackend"]

# --- errors ---


class GroupErrors:
    """Errors of one rank of one group, from the kernels' state and the calls that other ranks have published."""

    def __init__(self, state: np.ndarray, rank: int, world_ranks: Sequence[int], label: str) -> None:
        self._state = state
        self._address = int(state.ctypes.data)
        self._rank = rank
        self._world_ranks = world_ranks
        self._label = label

    def lost(self, what: str, cause: Cause, missing: Sequence[int]) -> PeerLost:
        gone = tuple(self._world_ranks[rank] for rank in missing)
        return cause.error(what, int(self._state[kernels.SEQUENCE]), self._label, gone=gone)

    def timeout(self, what: str, missing: list[int], timeout: float) -> CollectiveTimeout:
        sequence = int(self._state[kernels.SEQUENCE])
        ranks = [self._world_ranks[rank] for rank in missing]
        names = ", ".join(map(str, ranks))
        reason = f"did not arrive within {timeout:g} s: alive, but stopped, stuck or in another operation"
        return CollectiveTimeout(
            f"rank{'s' if len(ranks) > 1 else ''} {names} {reason}; waited for in {what}, operation {sequence} of the "
            f"{self._label}",
            rank=ranks[0],
            operation=what,
            sequence=sequence,
            reason=reason,
        )

    def mismatch(self) -> NeuraxisError:
        rank = int(self._state[kernels.WAIT_RANK])
        mine = self._call_of(self._rank)
        theirs = self._call_of(rank)
        sequence = int(self._state[kernels.SEQUENCE])
        me, other = self._world_ranks[self._rank], self._world_ranks[rank]
        detail = ""
        if mine == theirs:
            sends, expects = kernels.lengths_of(self._address, rank)
            detail = f" (it sends this rank {sends} bytes and expects {expects} from it)"
        return CollectiveMismatch(
            f"rank {other} called {theirs}{detail} while rank {me} called {mine}: "
            f"operation {sequence} of the {self._label}. "
            "All ranks of a group must make the same calls in the same order",
            rank=other,
            mine=mine,
            theirs=theirs,
        )

    def _call_of(self, rank: int) -> str:
        signature, count = kernels.header_of(self._address, rank)
        root = (signature >> 24) - 1
        return describe_call(
            Operation(signature & 0xFF),
            ElementType(signature >> 8 & 0xFF),
            ReduceOp(signature >> 16 & 0xFF),
            self._world_ranks[root] if root >= 0 else -1,
            count,
        )


# --- the backend ---


_SLOT_BYTES = 512 * 1024  # the two slots of a rank stay in the L2 cache
_SMALL_SLOT_BYTES = 32 * 1024  # enough for most groups, and cheap enough for a program with many groups
_SLOT_VARIABLE = "NEURAXIS_SHM_SLOT_KIB"
_LIVENESS_SECONDS = 0.05  # how long a rank sleeps before it checks that the others are alive

_NO_ROOT = -1


class _Problem(msgspec.Struct):
    """Reason why a rank cannot complete the setup of a group."""

    kind: str
    reason: str
    remedy: str

    @classmethod
    def of(cls, error: BackendUnavailable | ResourceExhausted) -> _Problem:
        return cls(type(error).__name__, error.reason, error.remedy)

    def error(self, world_rank: int) -> NeuraxisError:
        """Return the error that all ranks raise about the rank that has the problem."""
        reason = f"{self.reason} (rank {world_rank})"
        if self.kind == ResourceExhausted.__name__:
            return ResourceExhausted(reason, self.remedy)
        return BackendUnavailable("shm", reason, self.remedy)


class _Hello(msgspec.Struct):
    """First message of each rank to all others when a group is set up."""

    pid: int
    started: int
    segment: str = ""
    slot_bytes: int = 0
    problem: _Problem | None = None


class ShmBackend(Backend):
    """Collectives between the ranks of one host. All ranks of the group make it at the same time.

    Parameters
    ----------
    rank, size : int
        Rank of this process in the group, and number of ranks.
    exchange : callable
        Exchange between the ranks; used up to two times.
    timeout : float
        Deadline of every call, in seconds.
    world_ranks : sequence of int, optional
        Names of the ranks in errors, by default the group ranks.
    label : str
        Name of the group in errors.
    slot_bytes : int, optional
        Bytes that a rank writes in one round at most, by default NEURAXIS_SHM_SLOT_KIB or 512 KiB. The group allocates
        two such slots per rank once it moves that much.
    fallback : callable, optional
        Factory of another backend for subgroups that find no shared memory left, by default an error.
    """

    name: ClassVar[str] = "shm"

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        timeout: float,
        world_ranks: Sequence[int] | None = None,
        label: str = "world",
        slot_bytes: int | None = None,
        fallback: Callable[..., Backend] | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.timeout = timeout
        self.label = label
        self._world_ranks = list(world_ranks if world_ranks is not None else range(size))
        _warm_up()
        self._fallback = fallback
        self._segment, self._watch = self._attach_ranks(
            exchange, slot_bytes if slot_bytes is not None else _slot_bytes()
        )
        self._lay_out()
        self._errors = GroupErrors(self._state, rank, self._world_ranks, label)
        self._last_messages = LastMessages(rank, self._world_ranks)
        # Held while this rank writes its last message, so that `close` does not unmap the memory meanwhile. Reentrant,
        # because a signal handler may close the group while the interrupted thread writes.
        self._last_message_lock = threading.RLock()
        self._last_message_sent = self._sending_last_message = False
        self._interruption: NeuraxisError | None = None
        register_open(self)
        self._endpoint = Endpoint(self, ring_bytes(size), _spin_limits(size), self._check_peer, self._expire_transfer)

    # --- setup and layout -----------------------------------------------------------------------

    def _attach_ranks(self, exchange: Exchange, slot_bytes: int) -> tuple[memory.Segment, ProcessWatch]:
        """Create the segment on rank 0 and attach to it on the others; then remove its name, if it has one.

        A rank that cannot complete its part reports the problem in its turn, so all ranks raise the same error at once.
        """
        segment = None
        me = identify_self()
        hello = _Hello(me.pid, me.started)
        try:
            if self.rank == 0:
                try:
                    memory.sweep()
                    segment = memory.Segment.create(self._total_bytes(slot_bytes), self._reserved_bytes())
                    hello.segment, hello.slot_bytes = segment.name, slot_bytes
                except (BackendUnavailable, ResourceExhausted) as error:
                    hello.problem = _Problem.of(error)
            hellos = [msgspec.msgpack.decode(answer, type=_Hello) for answer in exchange(msgspec.msgpack.encode(hello))]
            problems = [hellos[0].problem]
            if hellos[0].problem is None:
                mine = None
                if segment is None:
                    try:
                        segment = memory.Segment.attach(hellos[0].segment)
                    except (BackendUnavailable, ResourceExhausted) as error:
                        mine = _Problem.of(error)
                answers = exchange(msgspec.msgpack.encode(mine))
                problems = [msgspec.msgpack.decode(answer, type=_Problem | None) for answer in answers]
            for rank, problem in enumerate(problems):
                if problem is not None:
                    raise problem.error(self._world_ranks[rank])
            assert segment is not None
            self._slot_bytes = hellos[0].slot_bytes
            segment.unlink()
        except BaseException:
            if segment is not None:
                segment.close()
            raise
        others = {
            rank: ProcessIdentity(hello.pid, hello.started) for rank, hello in enumerate(hellos) if rank != self.rank
        }
        return segment, ProcessWatch(others)

    def _control_stride(self) -> int:
        return (kernels.LENGTHS + 2 * 16 * self.size + 127) // 128 * 128

    def _slot_offset(self) -> int:
        return _pages(self.size * self._control_stride())

    def _small_slot_bytes(self) -> int:
        # A slot must hold some cache lines for each rank.
        return max(_SMALL_SLOT_BYTES, 1024 * self.size)

    def _doorbell_offset(self) -> int:
        return self._slot_offset() + 2 * self.size * self._small_slot_bytes()

    def _counters_offset(self) -> int:
        return self._doorbell_offset() + self.size * DOORBELL_BYTES

    def _reserved_bytes(self) -> int:
        """Return the bytes that are allocated when the group is made."""
        return _pages(self._counters_offset() + self.size**2 * RING_COUNTERS_BYTES)

    def _ring_offset(self, slot_bytes: int) -> int:
        return self._reserved_bytes() + _pages(2 * self.size * slot_bytes)

    def _total_bytes(self, slot_bytes: int) -> int:
        return self._ring_offset(slot_bytes) + self.size**2 * ring_bytes(self.size)

    def _lay_out(self) -> None:
        base = self._segment.address
        spins, yields = _spin_limits(self.size)
        self._state = np.zeros(kernels.STATE_WORDS, np.int64)
        # Aligned, so that a fold's accumulator never straddles a cache line.
        self._scratch = np.zeros(TILE_BYTES + 64, np.uint8)
        self._sources = np.zeros(self.size, np.int64)
        self._pieces = np.zeros(4 * self.size, np.int64)
        self._piece_words = memoryview(self._pieces.data)  # faster to write to than the array
        self._objects = np.zeros(2 * self.size, np.int64)
        for word, value in {
            kernels.RANK: self.rank,
            kernels.SIZE: self.size,
            kernels.CONTROL: base,
            kernels.CONTROL_STRIDE: self._control_stride(),
            kernels.SLOTS: base + self._slot_offset(),
            kernels.SLOT_BYTES: self._small_slot_bytes(),
            kernels.LARGE_SLOTS: base + self._reserved_bytes(),
            kernels.LARGE_SLOT_BYTES: self._slot_bytes,
            kernels.LARGE_OFFSET: self._reserved_bytes(),
            kernels.LARGE_BYTES: 2 * self.size * self._slot_bytes,
            kernels.DESCRIPTOR: self._segment.descriptor,
            kernels.SPINS: spins,
            kernels.YIELDS: yields,
            kernels.SCRATCH: (self._scratch.ctypes.data + 63) // 64 * 64,
            kernels.SOURCES: self._sources.ctypes.data,
            kernels.PIECES: self._pieces.ctypes.data,
            kernels.OBJECTS: self._objects.ctypes.data,
        }.items():
            self._state[word] = value
        self._state_address = int(self._state.ctypes.data)
        self._open_rings: set[int] = set()

    # --- addresses for the mailbox (the protocol `Rings`) ----------------------------------------

    def ring_counters(self, source: int, to: int) -> int:
        pair = source * self.size + to
        return self._segment.address + self._counters_offset() + pair * RING_COUNTERS_BYTES

    def ring_data(self, source: int, to: int) -> int:
        offset = self._ring_offset(self._slot_bytes) + (source * self.size + to) * ring_bytes(self.size)
        if source == self.rank and to not in self._open_rings:
            try:
                self._segment.allocate(offset, ring_bytes(self.size))
            except (BackendUnavailable, ResourceExhausted) as error:
                raise MessageMemoryExhausted(
                    f"{error.reason}, needed for messages to rank {self._world_ranks[to]}; the {self.label} was closed",
                    error.remedy,
                ) from error
            self._open_rings.add(to)
        return self._segment.address + offset

    def doorbell(self, rank: int) -> int:
        return self._segment.address + self._doorbell_offset() + rank * DOORBELL_BYTES

    # --- the collectives ------------------------------------------------------------------------

    def barrier(self) -> None:
        signature = _pack(Operation.BARRIER)
        status = kernels.barrier(self._state_address, signature)
        if status != kernels.DONE:
            self._drive(status, Operation.BARRIER, kernels.barrier, signature)

    def all_reduce(self, buffer: Buffer, op: ReduceOp) -> None:
        if _needs_numpy(buffer):
            all_reduce_by_gathering(self, buffer, op)
            return
        element, count, item_bytes = as_folded(buffer)
        signature = _pack(Operation.ALL_REDUCE, element, op)
        self._run(
            Operation.ALL_REDUCE,
            kernels.all_reduce,
            signature,
            buffer.address,
            count,
            item_bytes,
            fold_address(element),
            int(op),
        )

    def fast_path(self, lock: threading.Lock, fail: Callable[[BaseException], None]) -> FastPath | None:
        if not array_layout_is_known():
            return None
        objects = memoryview(self._objects.data)
        return FastPath(self._state_address, self.size, self.rank, objects, self._drive, lock, fail)

    def reduce(self, buffer: Buffer, op: ReduceOp, root: int) -> None:
        if _needs_numpy(buffer):
            reduce_by_gathering(self, buffer, op, root)
            return
        element, count, item_bytes = as_folded(buffer)
        self._run(
            Operation.REDUCE,
            kernels.reduce,
            _pack(Operation.REDUCE, element, op, root),
            root,
            buffer.address,
            count,
            item_bytes,
            fold_address(element),
            int(op),
        )

    def reduce_scatter(self, output: Buffer, inputs: Sequence[Buffer], op: ReduceOp) -> None:
        if _needs_numpy(output):
            reduce_scatter_by_gathering(self, output, inputs, op)
            return
        element, _, item_bytes = as_folded(output)
        pieces, size = self._piece_words, self.size
        for rank, piece in enumerate(inputs):
            pieces[rank] = piece.address
            pieces[size + rank] = piece.nbytes
        pieces[2 * size] = output.address
        signature = _pack(Operation.REDUCE_SCATTER, element, op)
        arguments = (signature, item_bytes, fold_address(element), int(op))
        self._run(Operation.REDUCE_SCATTER, kernels.reduce_pieces, *arguments)

    def broadcast(self, buffer: Buffer, root: int) -> None:
        signature = _pack(Operation.BROADCAST, buffer.element, ReduceOp.SUM, root)
        self._run(Operation.BROADCAST, kernels.broadcast, signature, root, buffer.address, buffer.count, buffer.nbytes)

    def gather(self, buffer: Buffer, outputs: Sequence[Buffer], root: int) -> None:
        self._exchange(
            Operation.GATHER,
            buffer,
            sends=[buffer if rank == root else None for rank in range(self.size)],
            receives=outputs if self.rank == root else [None] * self.size,
            root=root,
            shared=True,
        )

    def all_gather(self, outputs: Sequence[Buffer], buffer: Buffer) -> None:
        self._exchange(Operation.ALL_GATHER, buffer, sends=[buffer] * self.size, receives=outputs, shared=True)

    def scatter(self, buffer: Buffer, inputs: Sequence[Buffer], root: int) -> None:
        self._exchange(
            Operation.SCATTER,
            buffer,
            sends=inputs if self.rank == root else [None] * self.size,
            receives=[buffer if rank == root else None for rank in range(self.size)],
            root=root,
        )

    def all_to_all(self, outputs: Sequence[Buffer], inputs: Sequence[Buffer]) -> None:
        self._exchange(Operation.ALL_TO_ALL, inputs[0], sends=inputs, receives=outputs)

    def _exchange(
        self,
        operation: Operation,
        example: Buffer,
        sends: Sequence[Buffer | None],
        receives: Sequence[Buffer | None],
        root: int = _NO_ROOT,
        shared: bool = False,
    ) -> None:
        pieces, size = self._piece_words, self.size
        for rank in range(size):
            out, into = sends[rank], receives[rank]
            pieces[rank], pieces[size + rank] = (0, 0) if out is None else (out.address, out.nbytes)
            pieces[2 * size + rank], pieces[3 * size + rank] = (0, 0) if into is None else (into.address, into.nbytes)
        signature = _pack(operation, example.element, ReduceOp.SUM, root)
        self._run(operation, kernels.exchange, signature, example.count, False, shared)

    # --- messages -------------------------------------------------------------------------------

    def isend(self, buffer: Buffer, to: int, tag: int) -> Request:
        return self._endpoint.isend(buffer, to, tag)

    def ireceive(self, buffer: Buffer, source: int | None, tag: int) -> Request:
        return self._endpoint.ireceive(buffer, source, tag)

    def send(self, buffer: Buffer, to: int, tag: int, timeout: float) -> None:
        self._endpoint.send(buffer, to, tag, timeout)

    def send_bytes(self, parts: Sequence[Buffer], to: int, tag: int, timeout: float) -> None:
        self._endpoint.send(parts[0], to, tag, timeout, parts[1:])

    def receive(self, buffer: Buffer, source: int | None, tag: int, timeout: float) -> int:
        return self._endpoint.receive(buffer, source, tag, timeout)

    def receive_bytes(self, source: int | None, tag: int, timeout: float) -> tuple[np.ndarray, int]:
        return self._endpoint.receive_bytes(source, tag, timeout)

    def ensure_progress(self) -> None:
        self._endpoint.ensure_progress()

    # --- groups and closing ---------------------------------------------------------------------

    def split(
        self,
        ranks: Sequence[int],
        exchange: Exchange,
        world_ranks: Sequence[int],
        timeout: float,
        check_calls: bool | None = None,
    ) -> Backend:
        label = "group of ranks " + ", ".join(map(str, world_ranks))
        rank = list(ranks).index(self.rank)
        try:
            return ShmBackend(rank, len(ranks), exchange, timeout, world_ranks, label, self._slot_bytes, self._fallback)
        except BackendUnavailable as error:  # from `_attach_ranks`, on all these ranks or on none
            if self._fallback is None:
                raise
            return self._fallback(error, rank, len(ranks), exchange, timeout, world_ranks)

    def interrupt(self, error: NeuraxisError) -> None:
        self._interruption = error

    def poison(self, error: BaseException) -> None:
        self._send_last_message(error)

    def send_last_message(self, error: BaseException) -> None:
        self._send_last_message(error)

    def close(self) -> None:
        no_thread_inside = self._endpoint.close()
        self._send_last_message(error_to_close_with(self))
        unregister_open(self)
        with self._last_message_lock:
            self._last_message_sent = True
            self._watch.close()
            if no_thread_inside and not self._sending_last_message:  # otherwise the memory is freed with the process
                self._segment.close()

    def abandon(self) -> None:
        unregister_open(self)
        self._watch.close()
        self._segment.abandon()

    def _send_last_message(self, error: BaseException | None) -> None:
        """Write the last message of this rank; only the first call has an effect."""
        with self._last_message_lock:
            if self._last_message_sent:
                return
            self._last_message_sent = self._sending_last_message = True
            try:
                self._write_last_message(error)
            finally:
                self._sending_last_message = False

    def _write_last_message(self, error: BaseException | None) -> None:
        after = -1
        if error is not None:
            dead = [rank for rank in self._watch.ended() if self._last_message_of(rank) is None]
            after = self._world_ranks[dead[0]] if dead else -1
        rounds = int(self._state[kernels.ROUND])
        content = LastMessage.because_of(error, self._world_ranks[self.rank], rounds, after).packed().tobytes()
        ctypes.memmove(kernels.last_message_address(self._state_address, self.rank), content, len(content))
        kernels.set_status(self._state_address, self.rank, kernels.GONE)

    def _last_message_of(self, rank: int) -> LastMessage | None:
        if kernels.get_status(self._state_address, rank) == kernels.PRESENT:
            return None
        address = kernels.last_message_address(self._state_address, rank)
        return LastMessage.unpacked(np.frombuffer(ctypes.string_at(address, LAST_MESSAGE_BYTES), np.uint8))

    # --- waiting and errors ---------------------------------------------------------------------

    def _run(self, operation: Operation, kernel: Callable[..., int], *arguments: Any) -> None:
        status = kernel(self._state_address, *arguments)
        if status != kernels.DONE:
            self._drive(status, operation, kernel, *arguments)

    def _drive(self, status: int, operation: Operation, kernel: Callable[..., int], *arguments: Any) -> None:
        """Finish a kernel that returned early: sleep until the other ranks arrive, and re-enter it until it is done."""
        deadline = time.monotonic() + self.timeout
        while status == kernels.WAITING:
            self._sleep(operation, deadline)
            status = kernel(self._state_address, *arguments)
        if status == kernels.MISMATCH:
            raise self._errors.mismatch()

    def _sleep(self, operation: Operation, deadline: float) -> None:
        """Sleep until the rank that the kernel waits for arrives, then check for lost ranks and the deadline."""
        rank = int(self._state[kernels.WAIT_RANK])
        wanted = int(self._state[kernels.ROUND]) + 1
        seen = kernels.count_sleeper(self._state_address, rank, 1)
        try:
            if seen < wanted:
                word = kernels.flag_word(self._state_address, rank)
                sleep_on_word(word, seen, max(0.0, min(_LIVENESS_SECONDS, deadline - time.monotonic())))
        finally:
            seen = kernels.count_sleeper(self._state_address, rank, -1)
        if seen >= wanted:
            return
        self._endpoint.progress()  # another rank may need a message of this one before it can arrive
        self._check_ranks(operation.label, None, wanted)
        if time.monotonic() >= deadline:
            missing = [r for r in range(self.size) if kernels.flag_of(self._state_address, r) < wanted]
            if missing:
                raise self._errors.timeout(operation.label, missing, self.timeout)

    def _check_ranks(self, what: str, only: int | None, wanted: int) -> None:
        """Raise PeerLost if a rank that is waited for has died or left; the error names the rank that caused it."""
        if self._interruption is not None:
            raise self._interruption
        ended = self._watch.ended()  # before the last messages: a process that has ended has written its message
        missing = [
            rank
            for rank in range(self.size)
            if rank != self.rank
            and only in (None, rank)
            and self._is_gone(rank, ended)
            # A rank that published its data for this operation before it left is not missing.
            and not (wanted and kernels.flag_of(self._state_address, rank) >= wanted)
        ]
        cause = self._last_messages.cause(missing, exits=ended) if missing else None
        if cause is not None:
            lost = self._errors.lost(what, cause, missing)
            self.loss = self.loss or lost
            raise lost

    def ended_ranks(self) -> set[int]:
        """Return the world ranks whose processes have ended."""
        return {self._world_ranks[rank] for rank in self._watch.ended()}

    def raise_loss(self, what: str, world_rank: int) -> None:
        """Raise PeerLost if a rank has died or left; `what` is the call that needs it."""
        self._check_ranks(what, self._world_ranks.index(world_rank), 0)

    def _is_gone(self, rank: int, ended: dict[int, ProcessExit]) -> bool:
        message = self._last_message_of(rank)
        if message is not None:
            self._last_messages.record(rank, message)
        return message is not None or rank in ended

    def _check_peer(self, what: str, peer: int | None) -> None:
        if peer is None:  # any rank will do, as long as one is left
            ended = self._watch.ended()
            others = [rank for rank in range(self.size) if rank != self.rank]
            if self._interruption is None and not (others and all(self._is_gone(rank, ended) for rank in others)):
                return
        self._check_ranks(what, peer, 0)

    def _expire_transfer(self, what: str, peer: int | None, timeout: float) -> NoReturn:
        missing = [peer] if peer is not None else [r for r in range(self.size) if r != self.rank]
        raise self._errors.timeout(what, missing, timeout)


def _pack(
    operation: Operation,
    element: ElementType = ElementType.BOOL,
    op: ReduceOp = ReduceOp.SUM,
    root: int = _NO_ROOT,
) -> int:
    """Return the signature of a call: operation, element type, reduction and root in one integer."""
    return operation | element << 8 | op << 16 | (root + 1) << 24


def _pages(nbytes: int) -> int:
    """Round `nbytes` up to whole pages."""
    return (nbytes + 4095) // 4096 * 4096


def _slot_bytes() -> int:
    """Return the size of a large slot, from the environment or the default."""
    text = os.environ.get(_SLOT_VARIABLE, "")
    if not text:
        return _SLOT_BYTES
    if not text.isdecimal() or not 1 <= int(text) <= 2**20:
        raise InvalidArgument(
            f"{_SLOT_VARIABLE} is {text!r}. Set it to a whole number of KiB between 1 and {2**20}: each rank of a "
            "group allocates twice as much when it moves long arrays"
        )
    return int(text) * 1024


def _needs_numpy(buffer: Buffer) -> bool:
    return buffer.element in (ElementType.LONGDOUBLE, ElementType.CLONGDOUBLE)


def _spin_limits(size: int) -> tuple[int, int]:
    """Return the number of busy polls of a flag, and of polls that yield the core in between, before sleeping.

    With a core per rank, spinning for about 100 µs avoids the sleep in nearly all small operations. With fewer cores
    the rank that is waited for may need this very core, so it is yielded almost at once.
    """
    return (2000, 500) if size <= usable_cores() else (10, 1000)


@cache
def _warm_up() -> None:
    """Compile the kernels, or load them from the cache, before other ranks wait for this one."""
    with compile_once(kernels.__file__):
        _run_kernels_once()


def _run_kernels_once() -> None:
    """Run the kernels that every group uses once, for a group of one rank in private memory."""
    scratch = np.zeros(16384, np.uint8)
    start = int(scratch.ctypes.data)
    state = np.zeros(kernels.STATE_WORDS, np.int64)
    objects = np.zeros(2, np.int64)
    for word, value in {
        kernels.SIZE: 1,
        kernels.CONTROL: start,
        kernels.CONTROL_STRIDE: 1024,
        kernels.SLOTS: start + 1024,
        kernels.SLOT_BYTES: 1024,
        kernels.SOURCES: start + 3072,
        kernels.PIECES: start + 3200,
        kernels.OBJECTS: objects.ctypes.data,
        kernels.SCRATCH: start + 4096,
    }.items():
        state[word] = value
    address, one = int(state.ctypes.data), np.zeros(1, np.float32)
    kernels.count_sleeper(address, 0, 0)
    kernels.set_status(address, 0, kernels.get_status(address, 0))
    kernels.last_message_address(address, 0)
    kernels.flag_of(address, 0)
    kernels.exchange(address, 1, 0, True, True)
    if array_layout_is_known():
        fast = FastPath(address, 1, 0, memoryview(objects.data), _unreachable, threading.Lock(), _unreachable)
        fast.barrier()
        fast.all_reduce(one, ReduceOp.SUM)
        fast.broadcast(one, 0)
        fast.reduce(one, ReduceOp.SUM, 0)


def _unreachable(*arguments: Any) -> None:
    raise AssertionError("a group of one rank never waits")


def _at_exit() -> None:
    """Send the last messages of this process in groups that the program has not closed."""
    # The exception that ended the program. In an interactive session last_value may be an older one.
    uncaught = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    groups = open_groups()
    error = error_to_leave_with(uncaught, groups)
    if error is not None:
        for group in groups:
            if isinstance(group, ShmBackend):
                group.send_last_message(error)


atexit.register(_at_exit)
