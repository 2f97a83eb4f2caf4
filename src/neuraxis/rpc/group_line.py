"""Messages between the ranks of a communicator: over shared memory, gloo or MPI.

Over shared memory a lane is a tag, so the mailbox itself brings a reply to the thread that waits for it, and a message
comes as it is, in memory that is taken for it. A receiver of gloo or MPI must know the length of what it receives: so
there a message begins with a piece of fixed length, which has room for a small one, and the rest of a larger follows.

Shared memory and MPI can receive from whoever sends. gloo cannot once a rank has died; there each rank is heard by a
thread of its own, until it says that it leaves.
"""

from __future__ import annotations

import itertools
import queue
import struct
import threading
import time
from typing import Any

import numpy as np

from neuraxis.comm import Communicator, DistributedContext
from neuraxis.comm.context import current_context
from neuraxis.comm.host import host_identity
from neuraxis.comm.liveness import ProcessIdentity, ProcessWatch, identify_self
from neuraxis.errors import (
    CallCancelled,
    CalleeDied,
    CallTimeout,
    CollectiveTimeout,
    CommunicatorClosed,
    InvalidArgument,
    NeuraxisError,
    NotInitialized,
)
from neuraxis.rpc.fixed_ranks import LIFE, FixedRanks
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.line import INBOX
from neuraxis.rpc.messages import Kind, pack_head, read_head, with_pieces_apart
from neuraxis.rpc.transport import Party
from neuraxis.rpc.world import World

__all__ = ["GroupLine"]

_FIRST_BYTES = 3072  # which MPI sends without waiting for the receiver
_LENGTHS = struct.Struct("<QII")  # of the message, of what the first piece has of it; how many pieces follow
_PIECE = struct.Struct("<QQ")  # where a piece begins, and its length
_MOST_PIECES = 16
_MOST_APART = 255
_INLINE = _FIRST_BYTES - _LENGTHS.size - _MOST_PIECES * _PIECE.size
_FOREVER_S = 1e8
_FAREWELL_S = 2.0


class GroupLine(FixedRanks):
    """A rank of a group that is only used for this. `owned` is the context that was started for it, if one was."""

    largest = 2**40
    quick_s = 2e-3  # who reads looks for messages in Python, and so slows down who runs a call

    def __init__(self, group: Communicator, name: str, owned: DistributedContext | None) -> None:
        self._group = group
        self._owned = owned
        self._hears_anybody = group.backend_name != "gloo"
        self._any_length = group.backend_name == "shm"
        # gloo and MPI cannot give up a wait: what is sent then to who waits no longer would block who sends it.
        self.has_lanes = self._any_length
        me = identify_self()
        everybody: list[Any] = [None] * group.size
        group.all_gather_object(everybody, [name, host_identity(), me.pid, me.started])
        names = [str(one[0]) for one in everybody]
        if len(set(names)) != len(names):
            raise InvalidArgument(f"name: two ranks have the same: {', '.join(names)}")
        here = host_identity()
        watch = ProcessWatch(
            {
                r: ProcessIdentity(one[2], one[3])
                for r, one in enumerate(everybody)
                if one[1] == here and r != group.rank
            }
        )
        super().__init__(names, group.rank, watch)
        self._senders = [threading.Lock() for _ in everybody]
        self._firsts = [np.zeros(_FIRST_BYTES, np.uint8) for _ in everybody]
        self._inbox_first = np.zeros(_FIRST_BYTES, np.uint8)
        self._lane_numbers = itertools.count(INBOX + 1)
        self._stopped = threading.Event()
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ears: list[threading.Thread] = []

    def open(self) -> None:
        if self._hears_anybody:
            return
        for rank in range(self._group.size):
            if rank != self._rank:
                ear = threading.Thread(target=self._hear, args=(rank,), name=f"neuraxis rpc {rank}", daemon=True)
                self._ears.append(ear)
                ear.start()

    # --- who is here ------------------------------------------------------------------------------------------

    def left(self, party: Party) -> None:
        self._left.add(self._ranks.get(party.name, -1))

    def mark(self, to: Party) -> int:
        return 0

    def look(self, to: Party, mark: int) -> bool:
        if self.is_gone(to):
            raise self._died(to.name)
        return False

    def _died(self, name: str, why: object = "") -> CalleeDied:
        because = f" ({why})" if why else ""
        return CalleeDied(f"{name!r} died or left during the call: it may or may not have run{because}", name)

    # --- messages ---------------------------------------------------------------------------------------------

    def send(self, to: Party, lane: int, frame: Frame, timeout: float) -> None:
        rank = self._ranks.get(to.name)
        if rank is None or rank in self._left:
            raise self._died(to.name)
        deadline = time.monotonic() + timeout
        if not self._senders[rank].acquire(timeout=timeout):
            raise CallTimeout(f"{to.name!r} takes no message within {timeout:g} s", to.name)
        try:
            if self._any_length:
                self._send_whole(rank, lane, frame, deadline)
                return
            pieces = _fill(self._firsts[rank], frame)
            self._group.send(self._firsts[rank], group_dst=rank, tag=lane, timeout=timeout)
            for _, piece in pieces:
                self._group.send(piece, group_dst=rank, tag=lane, timeout=max(1e-3, deadline - time.monotonic()))
        except CollectiveTimeout:
            # A part of it may still be on its way, and nothing can follow it.
            self._left.add(rank)
            self._firsts[rank] = np.zeros(_FIRST_BYTES, np.uint8)
            raise CallTimeout(f"{to.name!r} takes no message within {timeout:g} s", to.name) from None
        except (CommunicatorClosed, NeuraxisError) as error:
            raise self._translated(to.name, rank, error) from None
        finally:
            self._senders[rank].release()

    def _send_whole(self, rank: int, lane: int, frame: Frame, deadline: float) -> None:
        """Send a message as it is; large pieces of it go from where they are, each as a message."""
        start: Any = frame.start
        pieces = frame.pieces
        if len(pieces) > _MOST_APART:
            start, pieces = frame.joined(), []
        if pieces:
            start = with_pieces_apart(start, len(pieces))
        for one in (start, *(piece for _, piece in pieces)):
            content = np.frombuffer(one, np.uint8)
            self._group.send(content, group_dst=rank, tag=lane, timeout=max(1e-3, deadline - time.monotonic()))

    def _receive_whole(self, rank: int | None, lane: int, timeout: float) -> tuple[Any, int]:
        """A message that was sent so, and who sent it."""
        start, rank = self._group.receive_bytes(rank, lane, timeout)
        apart = start[1]
        if not apart:
            return start, rank
        pieces = [self._group.receive_bytes(rank, lane, timeout)[0] for _ in range(apart)]
        return Frame(start, pieces), rank  # type: ignore[arg-type]

    def _translated(self, name: str, rank: int, error: NeuraxisError) -> NeuraxisError:
        if self._stopped.is_set() or isinstance(error, CommunicatorClosed):
            return CallCancelled("this context was shut down during the call", name)
        self._left.add(rank)
        return self._died(name, error)

    def receive(self) -> Any:
        if not self._hears_anybody:
            frame = self._heard.get()
            if frame is None:
                self._heard.put(None)  # for the next one
            return frame
        while not self._stopped.is_set():
            try:
                if self._any_length:
                    frame, rank = self._receive_whole(None, INBOX, _FOREVER_S)
                else:
                    rank = self._group.ranks.index(self._group.recv(self._inbox_first, tag=INBOX))
                    frame = self._rest(self._inbox_first, rank, INBOX, _FOREVER_S)
            except CollectiveTimeout:
                continue
            except NeuraxisError:
                # All others are gone; there is nothing to hear until this one leaves, too.
                self._stopped.wait()
                return None
            if not _is_bye(frame):
                return frame
            if rank != self._rank:
                self._left.add(rank)
        return None

    def _hear(self, rank: int) -> None:
        """What one rank says, until it leaves."""
        first = np.zeros(_FIRST_BYTES, np.uint8)
        while True:
            try:
                self._group.recv(first, group_src=rank, tag=INBOX)
                frame = self._rest(first, rank, INBOX, _FOREVER_S)
            except NeuraxisError:
                self._left.add(rank)
                return
            if not _is_bye(frame):
                self._heard.put(frame)
                continue
            if not self._stopped.is_set():
                self._say_bye(rank)  # it leaves first, and waits for our last word
            self._left.add(rank)
            return

    def _rest(self, first: np.ndarray, rank: int, lane: int, timeout: float) -> np.ndarray:
        """The message that a first piece begins."""
        length, inline, pieces = _LENGTHS.unpack_from(first.data)
        start = _LENGTHS.size + pieces * _PIECE.size
        frame = np.empty(length, np.uint8)
        frame[:inline] = first[start : start + inline]
        for index in range(pieces):
            offset, nbytes = _PIECE.unpack_from(first.data, _LENGTHS.size + index * _PIECE.size)
            self._group.recv(frame[offset : offset + nbytes], group_src=rank, tag=lane, timeout=timeout)
        return frame

    def lane(self) -> _GroupLane:
        return _GroupLane(self, next(self._lane_numbers))

    # --- to end -----------------------------------------------------------------------------------------------

    def _say_bye(self, rank: int) -> None:
        party = Party(self._names[rank], LIFE)
        try:
            self.send(party, INBOX, Frame(pack_head(Kind.BYE, 0, 0, 0, LIFE, self.me, 0, 0)), _FAREWELL_S)
        except NeuraxisError:
            pass  # it is gone

    def stop(self) -> None:
        """Say good-bye to all; who receives from anybody wakes itself up by it."""
        self._stopped.set()
        for rank in range(self._group.size):
            if rank != self._rank or self._hears_anybody:
                if rank not in self._left:
                    self._say_bye(rank)
        deadline = time.monotonic() + _FAREWELL_S
        for ear in self._ears:
            ear.join(max(0.0, deadline - time.monotonic()))
        self._heard.put(None)

    def close(self) -> None:
        self._watch.close()
        self._group.abort()
        if self._owned is not None:
            self._owned.abort()


class _GroupLane:
    """A tag, for replies to one thread at a time."""

    def __init__(self, line: GroupLine, number: int) -> None:
        self.number = number
        self._line = line

    def receive(self, source: Party, timeout: float) -> Any:
        line = self._line
        rank = line._ranks[source.name]
        try:
            return line._receive_whole(rank, self.number, timeout)[0]
        except CollectiveTimeout:
            return None
        except NeuraxisError as error:
            raise line._translated(source.name, rank, error) from None


def _fill(first: np.ndarray, frame: Frame) -> list[tuple[int, Any]]:
    """Write the first piece of a message; those that follow, each with where it begins."""
    start, pieces = frame.start, [(offset, np.frombuffer(piece, np.uint8)) for offset, piece in frame.pieces]
    if len(pieces) >= _MOST_PIECES:
        start, pieces = frame.joined(), []
    inline = min(len(start), _INLINE)
    if len(start) > inline:
        pieces.insert(0, (inline, np.frombuffer(start, np.uint8, offset=inline)))
    memory = first.data
    _LENGTHS.pack_into(memory, 0, len(frame), inline, len(pieces))
    position = _LENGTHS.size
    for offset, piece in pieces:
        _PIECE.pack_into(memory, position, offset, piece.size)
        position += _PIECE.size
    memory[position : position + inline] = start[:inline]
    return pieces


def _is_bye(frame: Any) -> bool:
    return read_head(frame).kind == Kind.BYE


def open_group(backend: str, world: World, init_method: str | None, timeout: float, name: str | None) -> GroupLine:
    """A line over a group of all ranks: of the process's distributed context, or of one that is started for it."""
    try:
        context, owned = current_context(), None
    except NotInitialized:
        context = owned = DistributedContext(backend, init_method, world.size, world.rank, timeout=timeout).initialize()
    if context.backend != backend and context.world_size > 1:
        raise InvalidArgument(
            f"backend={backend!r}: the distributed context of this process has {context.backend!r}; take that, or make "
            "the RPC context where there is none"
        )
    try:
        group = context.world.new_group(timeout=_FOREVER_S, check_calls=False)
        assert isinstance(group, Communicator)
        return GroupLine(group, name or f"rank{group.rank}", owned)
    except BaseException:
        if owned is not None:
            owned.abort()
        raise
