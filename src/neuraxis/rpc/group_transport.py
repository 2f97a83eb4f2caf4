"""A link between the ranks of a communicator: over shared memory, gloo or MPI.

Over shared memory a reply channel is a tag, so the mailbox itself delivers a reply to the waiting thread. Shared memory
and MPI can receive from any rank. gloo cannot once a rank has died; there one thread per rank receives, until that rank
leaves.

A rank is lost when its process has ended, its connection is gone, or it has announced that it leaves. A rank that is
only late is not lost: it may be stopped, and continue. Malformed messages are skipped and logged.

Over shared memory a message is sent unchanged, from the buffers of its parts. A receiver of gloo or MPI must know the
length of the data: there a message starts with a part of fixed length, which holds a small message completely,
and the rest of a larger one follows. If a deadline passes in the middle of a message, the message is still sent to its
end, from memory without other users, so that the next one starts where the receiver expects it. A message that has not
started is never sent.
"""

from __future__ import annotations

import itertools
import logging
import queue
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

import numpy as np

from neuraxis.comm import Communicator, DistributedContext
from neuraxis.comm.context import current_context
from neuraxis.comm.failures import ProcessIdentity, ProcessWatch, identify_self
from neuraxis.comm.host import host_identity
from neuraxis.comm.operations import Work
from neuraxis.errors import (
    CallCancelled,
    CalleeDied,
    CollectiveTimeout,
    CommunicatorClosed,
    InvalidArgument,
    NeuraxisError,
    NotInitialized,
    PeerLost,
)
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.messages import Kind, pack_head, read_head
from neuraxis.rpc.transport import INBOX, ONLY_INCARNATION, Endpoint, FixedRanks, World, not_accepted
from neuraxis.wire.objects import Unreadable

__all__ = ["GroupLink", "GroupMessages", "SplitMessages", "WholeMessages"]

_log = logging.getLogger("neuraxis.rpc")
_FIRST_BYTES = 3072  # MPI sends this many without waiting for the receiver (eager protocol)
_LENGTH = struct.Struct("<8sQ")  # a magic number, and the length of the message
_MAGIC = b"nx-rpc-1"
_INLINE = _FIRST_BYTES - _LENGTH.size
_LONGEST = 2**40
_POLL_S = 0.1  # how often a waiting sender checks that the receiver has not left
_FOREVER_S = 1e8
_BYE_S = 2.0


class GroupMessages(Protocol):
    """Whole messages between ranks. One thread at a time sends to a rank, and one receives from it on a tag."""

    def send(self, rank: int, tag: int, frame: Frame, deadline: float) -> None:
        """Send a message; raise CollectiveTimeout after the deadline, whether or not sending has started."""

    def receive(self, rank: int | None, tag: int, timeout: float) -> tuple[memoryview, int]:
        """Return a message from a rank (None: any) and its sender; raise Unreadable if no message starts here."""


class WholeMessages:
    """Messages over shared memory."""

    def __init__(self, group: Communicator) -> None:
        self._group = group

    def send(self, rank: int, tag: int, frame: Frame, deadline: float) -> None:
        self._group.send_bytes(frame.parts(), rank, tag, _remaining(deadline))

    def receive(self, rank: int | None, tag: int, timeout: float) -> tuple[memoryview, int]:
        content, rank = self._group.receive_bytes(rank, tag, timeout)
        return content.data, rank


class SplitMessages:
    """Messages over gloo and MPI, in one or two parts. `is_lost` returns True for a rank that has died or left."""

    def __init__(self, group: Communicator, is_lost: Callable[[int], bool]) -> None:
        self._group = group
        self._is_lost = is_lost
        self._sending: defaultdict[int, deque[Work]] = defaultdict(deque)  # parts in their order, by rank

    def send(self, rank: int, tag: int, frame: Frame, deadline: float) -> None:
        self._finish(rank, deadline)  # first the rest of messages whose deadline has passed
        for part in _split(frame.joined()):
            self._sending[rank].append(self._group.isend(part, group_dst=rank, tag=tag))
        self._finish(rank, deadline)

    def _finish(self, rank: int, deadline: float) -> None:
        """Wait until the parts for a rank are sent. After the deadline the rest remains in `_sending`."""
        sending = self._sending[rank]
        try:
            while sending:
                try:
                    sending[0].wait(min(_POLL_S, _remaining(deadline)))
                    sending.popleft()
                except CollectiveTimeout:
                    if self._is_lost(rank):
                        raise PeerLost("it accepts no more messages", rank=self._group.ranks[rank]) from None
                    if time.monotonic() >= deadline:
                        raise
        except CollectiveTimeout:
            raise
        except BaseException:
            sending.clear()
            raise

    def receive(self, rank: int | None, tag: int, timeout: float) -> tuple[memoryview, int]:
        deadline = time.monotonic() + timeout
        first = np.empty(_FIRST_BYTES, np.uint8)
        rank = self._group.ranks.index(self._group.recv(first, group_src=rank, tag=tag, timeout=timeout))
        magic, length = _LENGTH.unpack_from(first.data)
        if magic != _MAGIC or length > _LONGEST:
            raise Unreadable(f"rank {rank} sent data that is not the start of a message ({bytes(first[:16])!r})")
        content = first[_LENGTH.size : _LENGTH.size + length]
        if length <= _INLINE:
            return content.data, rank
        message = np.empty(length, np.uint8)
        message[:_INLINE] = content
        self._group.recv(message[_INLINE:], group_src=rank, tag=tag, timeout=_remaining(deadline))
        return message.data, rank


def _split(content: bytes) -> list[np.ndarray]:
    """Return the first part of a message, and the rest if there is one."""
    first = np.zeros(_FIRST_BYTES, np.uint8)
    inline = min(len(content), _INLINE)
    _LENGTH.pack_into(first.data, 0, _MAGIC, len(content))
    first.data[_LENGTH.size : _LENGTH.size + inline] = content[:inline]
    return [first] if len(content) == inline else [first, np.frombuffer(content, np.uint8, offset=inline)]


def _remaining(deadline: float) -> float:
    return max(1e-3, deadline - time.monotonic())


class GroupLink(FixedRanks):
    """A link of a rank over a group that has no other use. `owned` is the context that was started for it, if any."""

    largest = 2**40
    quick_s = 3e-4

    def __init__(self, group: Communicator, name: str, owned: DistributedContext | None) -> None:
        self._group = group
        self._owned = owned
        self._receives_from_any = group.backend_name != "gloo"
        # gloo and MPI cannot abandon a receive: sending to a rank that stopped waiting would block the sender.
        self.has_reply_channels = group.backend_name == "shm"
        me = identify_self()
        ranks: list[Any] = [None] * group.size
        group.all_gather_object(ranks, [name, host_identity(), me.pid, me.started])
        names = [str(one[0]) for one in ranks]
        if len(set(names)) != len(names):
            raise InvalidArgument(f"name: two ranks have the same name: {', '.join(names)}. Use different names")
        here = host_identity()
        watch = ProcessWatch(
            {r: ProcessIdentity(one[2], one[3]) for r, one in enumerate(ranks) if one[1] == here and r != group.rank}
        )
        super().__init__(names, group.rank, watch)
        self._messages: GroupMessages = (
            WholeMessages(group) if self.has_reply_channels else SplitMessages(group, self._is_lost)
        )
        self._send_locks = [threading.Lock() for _ in ranks]
        self._channel_numbers = itertools.count(INBOX + 1)
        self._stopped = threading.Event()
        self._bye_lock = threading.Lock()
        self._bye_sent: set[int] = set()  # ranks that were sent BYE
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._receivers: list[threading.Thread] = []  # one per rank, with gloo

    def open(self) -> None:
        if self._receives_from_any:
            return
        for rank in range(self._group.size):
            if rank != self._rank:
                name = f"neuraxis rpc {rank}"
                receiver = threading.Thread(target=self._receive_from, args=(rank,), name=name, daemon=True)
                self._receivers.append(receiver)
                receiver.start()

    # --- membership -------------------------------------------------------------------------------------------

    def peer_left(self, endpoint: Endpoint) -> None:
        self._left.add(self._ranks.get(endpoint.name, -1))

    def epoch(self, to: Endpoint) -> int:
        return 0

    def trouble(self) -> str:
        return ""  # the loss of a peer is an error of its own

    def must_resend(self, to: Endpoint, epoch: int) -> bool:
        if self.is_gone(to):
            raise self._died(to.name)
        return False

    def _died(self, name: str, why: object = "") -> CalleeDied:
        because = f" ({why})" if why else ""
        return CalleeDied(f"{name!r} died or left during the call: it may or may not have run{because}", name)

    # --- messages ---------------------------------------------------------------------------------------------

    def detach(self, to: Endpoint, frame: Frame) -> None:
        frame.joined()

    def send(self, to: Endpoint, channel: int, frame: Frame, timeout: float) -> None:
        rank = self._ranks.get(to.name)
        if rank is None or rank in self._left:
            raise self._died(to.name)
        self._send(rank, to, channel, frame, timeout)

    def _send(self, rank: int, to: Endpoint, channel: int, frame: Frame, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        if not self._send_locks[rank].acquire(timeout=timeout):
            raise not_accepted(to, timeout)
        try:
            self._messages.send(rank, channel, frame, deadline)
        except CollectiveTimeout:
            raise not_accepted(to, timeout) from None
        except NeuraxisError as error:
            raise self._translated(to.name, rank, error) from None
        finally:
            self._send_locks[rank].release()

    def _translated(self, name: str, rank: int, error: NeuraxisError) -> NeuraxisError:
        if self._stopped.is_set() or isinstance(error, CommunicatorClosed):
            return CallCancelled("this context was closed during the call", name)
        if isinstance(error, PeerLost):
            self._left.add(rank)
        return self._died(name, error)

    def receive(self) -> Any:
        if not self._receives_from_any:
            frame = self._received.get()
            if frame is None:
                self._received.put(None)  # for the next thread
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
                _log.warning("rpc: a malformed message is skipped: %s", error)
            except PeerLost as error:
                if self._all_are_lost_with(error.gone or (error.rank,)):
                    self._stopped.wait()  # nothing more arrives, and this rank has not left yet
            except NeuraxisError:
                self._stopped.wait()  # the group was closed
        return None

    def _all_are_lost_with(self, lost: Collection[int]) -> bool:
        """Record lost ranks of the world, or all ranks if none is in the group; return True if all are lost."""
        others = set(range(self._group.size)) - {self._rank}
        self._left |= {rank for rank in others if self._group.ranks[rank] in lost} or others
        return all(self._is_lost(other) for other in others)

    def _receive_from(self, rank: int) -> None:
        """Receive messages of one rank, until it leaves."""
        while True:
            try:
                frame, _ = self._messages.receive(rank, INBOX, _FOREVER_S)
            except (Unreadable, MemoryError, OSError) as error:
                _log.error("rpc: no more messages of %s are received, since the start of its next one is unknown: %s",
                           self._names[rank], error)  # fmt: skip
                break
            except NeuraxisError:
                self._left.add(rank)
                return
            try:
                if read_head(frame).kind == Kind.BYE:
                    break
                self._received.put(frame)
            except Unreadable as error:
                _log.warning("rpc: a malformed message is skipped: %s", error)
        self._left.add(rank)
        self._send_bye(rank, _BYE_S)  # which ends its receiving thread

    def open_reply_channel(self) -> _GroupReplyChannel:
        return _GroupReplyChannel(self, next(self._channel_numbers))

    def _send_bye(self, rank: int, timeout_s: float) -> None:
        """Announce to a rank that this one leaves, once."""
        with self._bye_lock:
            if rank in self._bye_sent:
                return
            self._bye_sent.add(rank)
        endpoint = Endpoint(self._names[rank], ONLY_INCARNATION)
        try:
            self._send(rank, endpoint, INBOX, Frame(pack_head(Kind.BYE, 0, 0, 0, ONLY_INCARNATION, self.me)), timeout_s)
        except NeuraxisError:
            pass  # it is gone

    def stop(self) -> None:
        """Send BYE to all ranks, to this one as well, which wakes a thread that receives from any."""
        self._stopped.set()
        deadline = time.monotonic() + _BYE_S
        for rank in range(self._group.size):
            # A receiving thread of gloo waits for our BYE, even if its rank has sent its own.
            needs_it = rank not in self._left if self._receives_from_any else rank != self._rank
            if needs_it and rank not in self._watch.ended():
                self._send_bye(rank, max(0.01, deadline - time.monotonic()))
        deadline = max(deadline, time.monotonic() + _BYE_S / 4)
        for receiver in self._receivers:
            receiver.join(max(0.0, deadline - time.monotonic()))
        self._received.put(None)

    def close(self) -> None:
        self._watch.close()
        self._group.abort()
        if self._owned is not None:
            self._owned.abort()


class _GroupReplyChannel:
    """A tag for the replies to one thread at a time."""

    def __init__(self, link: GroupLink, number: int) -> None:
        self.number = number
        self._link = link

    def receive(self, source: Endpoint, timeout: float) -> Any:
        link = self._link
        rank = link._ranks[source.name]
        try:
            return link._messages.receive(rank, self.number, timeout)[0]
        except CollectiveTimeout:
            return None
        except NeuraxisError as error:
            raise link._translated(source.name, rank, error) from None


def open_group(backend: str, world: World, init_method: str | None, timeout: float, name: str | None) -> GroupLink:
    """Open a link over a group of all ranks, of the process's distributed context or of one that is started for it."""
    try:
        context, owned = current_context(), None
    except NotInitialized:
        context = owned = DistributedContext(backend, init_method, world.size, world.rank, timeout=timeout).initialize()
    if context.backend != backend and context.world_size > 1:
        raise InvalidArgument(
            f"backend={backend!r}: the distributed context of this process has the backend {context.backend!r}. Use "
            "that backend, or create the RPC context before the distributed context"
        )
    try:
        group = context.world.new_group(timeout=_FOREVER_S, check_calls=False)
        assert isinstance(group, Communicator)
        return GroupLink(group, name or f"rank{group.rank}", owned)
    except BaseException:
        if owned is not None:
            owned.abort()
        raise
