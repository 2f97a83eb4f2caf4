"""A line between the ranks of a communicator: over shared memory, gloo or MPI.

Over shared memory a lane is a tag, so the mailbox itself brings a reply to the thread that waits for it. Shared memory
and MPI can receive from whoever sends. gloo cannot once a rank has died; there each rank is heard by a thread of its
own, until it says that it leaves.

A rank is lost when its process has ended, its connection is gone, or it has said good-bye. One that is only late,
however late, is not: it may be stopped, and come back. What cannot be read as a message is left out, and the log says
so.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
from typing import Any

from neuraxis.comm import Communicator, DistributedContext
from neuraxis.comm.context import current_context
from neuraxis.comm.host import host_identity
from neuraxis.comm.liveness import ProcessIdentity, ProcessWatch, identify_self
from neuraxis.comm.objects import Unreadable
from neuraxis.errors import (
    CallCancelled,
    CalleeDied,
    CallTimeout,
    CollectiveTimeout,
    CommunicatorClosed,
    InvalidArgument,
    NeuraxisError,
    NotInitialized,
    PeerLost,
)
from neuraxis.rpc.fixed_ranks import LIFE, FixedRanks
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.group_messages import GroupMessages, MessagesInTwo, WholeMessages
from neuraxis.rpc.line import INBOX
from neuraxis.rpc.messages import Kind, pack_head, read_head
from neuraxis.rpc.transport import Party
from neuraxis.rpc.world import World

__all__ = ["GroupLine"]

_log = logging.getLogger("neuraxis.rpc")
_FOREVER_S = 1e8
_FAREWELL_S = 2.0


class GroupLine(FixedRanks):
    """A rank of a group that is only used for this. `owned` is the context that was started for it, if one was."""

    largest = 2**40
    quick_s = 3e-4

    def __init__(self, group: Communicator, name: str, owned: DistributedContext | None) -> None:
        self._group = group
        self._owned = owned
        self._hears_anybody = group.backend_name != "gloo"
        # gloo and MPI cannot give up a wait: what is sent then to who waits no longer would block who sends it.
        self.has_lanes = group.backend_name == "shm"
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
        self._messages: GroupMessages = WholeMessages(group) if self.has_lanes else MessagesInTwo(group, self._is_lost)
        self._senders = [threading.Lock() for _ in everybody]
        self._lane_numbers = itertools.count(INBOX + 1)
        self._stopped = threading.Event()
        self._telling = threading.Lock()
        self._told: set[int] = set()  # ranks that know that this one leaves
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

    def detach(self, to: Party, frame: Frame) -> None:
        frame.joined()

    def send(self, to: Party, lane: int, frame: Frame, timeout: float) -> None:
        rank = self._ranks.get(to.name)
        if rank is None or rank in self._left:
            raise self._died(to.name)
        self._send(rank, to, lane, frame, timeout)

    def _send(self, rank: int, to: Party, lane: int, frame: Frame, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        if not self._senders[rank].acquire(timeout=timeout):
            raise CallTimeout(f"{to.name!r} takes no message within {timeout:g} s", to.name)
        try:
            self._messages.send(rank, lane, frame, deadline)
        except CollectiveTimeout:
            raise CallTimeout(f"{to.name!r} takes no message within {timeout:g} s", to.name) from None
        except NeuraxisError as error:
            raise self._translated(to.name, rank, error) from None
        finally:
            self._senders[rank].release()

    def _translated(self, name: str, rank: int, error: NeuraxisError) -> NeuraxisError:
        if self._stopped.is_set() or isinstance(error, CommunicatorClosed):
            return CallCancelled("this context was shut down during the call", name)
        if isinstance(error, PeerLost):
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
                frame, rank = self._messages.receive(None, INBOX, _FOREVER_S)
                if read_head(frame).kind != Kind.BYE:
                    return frame
                if rank != self._rank:
                    self._left.add(rank)
            except CollectiveTimeout:
                continue
            except Unreadable as error:
                _log.warning("rpc: a message is left out: %s", error)
            except PeerLost as error:
                if self._all_are_lost_with(error.rank):
                    self._stopped.wait()  # nothing more is to be heard, and this one has not left yet
            except NeuraxisError:
                self._stopped.wait()  # the group was closed
        return None

    def _all_are_lost_with(self, rank: int) -> bool:
        """A rank was lost (-1: not known which, so all are); whether it was the last one."""
        others = set(range(self._group.size)) - {self._rank}
        self._left |= others if rank < 0 else {self._group.ranks.index(rank)}
        return all(self._is_lost(other) for other in others)

    def _hear(self, rank: int) -> None:
        """What one rank says, until it leaves."""
        while True:
            try:
                frame, _ = self._messages.receive(rank, INBOX, _FOREVER_S)
            except Unreadable as error:
                _log.error("rpc: %s is heard no longer, since nobody knows where its next message begins: %s",
                           self._names[rank], error)  # fmt: skip
                break
            except NeuraxisError:
                self._left.add(rank)
                return
            try:
                if read_head(frame).kind == Kind.BYE:
                    break
                self._heard.put(frame)
            except Unreadable as error:
                _log.warning("rpc: a message is left out: %s", error)
        self._left.add(rank)
        self._say_bye(rank, _FAREWELL_S)  # it waits for our last word

    def lane(self) -> _GroupLane:
        return _GroupLane(self, next(self._lane_numbers))

    # --- to end -----------------------------------------------------------------------------------------------

    def _say_bye(self, rank: int, patience_s: float) -> None:
        """Say good-bye to a rank, once."""
        with self._telling:
            if rank in self._told:
                return
            self._told.add(rank)
        party = Party(self._names[rank], LIFE)
        try:
            self._send(rank, party, INBOX, Frame(pack_head(Kind.BYE, 0, 0, 0, LIFE, self.me, 0, 0)), patience_s)
        except NeuraxisError:
            pass  # it is gone

    def stop(self) -> None:
        """Say good-bye to all; who receives from anybody wakes itself up by it."""
        self._stopped.set()
        deadline = time.monotonic() + _FAREWELL_S
        for rank in range(self._group.size):
            # An ear of gloo's waits for our last word, though its rank may have said its own.
            needs_it = rank not in self._left if self._hears_anybody else rank != self._rank
            if needs_it and rank not in self._watch.ended():
                self._say_bye(rank, max(0.01, deadline - time.monotonic()))
        deadline = max(deadline, time.monotonic() + _FAREWELL_S / 4)
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
            return line._messages.receive(rank, self.number, timeout)[0]
        except CollectiveTimeout:
            return None
        except NeuraxisError as error:
            raise line._translated(source.name, rank, error) from None


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
