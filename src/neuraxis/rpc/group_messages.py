"""How a message goes from rank to rank of a communicator.

Over shared memory it goes as it is, from wherever its parts lie, and comes in memory that is taken for it. A receiver
of gloo or MPI must know the length of what it receives: so there a message begins with a part of fixed length, which
has room for a small one, and the rest of a larger follows.

A deadline that passes in mid-message is no reason to lose the other side: what has begun goes on to its end, of memory
that nobody else uses, so the next message begins where it should. What has not begun is never sent.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from neuraxis.comm import Communicator
from neuraxis.comm.objects import Unreadable
from neuraxis.comm.work import Work
from neuraxis.errors import CollectiveTimeout, PeerLost
from neuraxis.rpc.frames import Frame

__all__ = ["GroupMessages", "MessagesInTwo", "WholeMessages"]

_FIRST_BYTES = 3072  # which MPI sends without waiting for the receiver
_LENGTH = struct.Struct("<8sQ")  # a mark, and the length of the message
_MARK = b"nx-rpc-1"
_INLINE = _FIRST_BYTES - _LENGTH.size
_LONGEST = 2**40
_LOOK_S = 0.1  # how often who waits for a rank looks whether that has left


class GroupMessages(Protocol):
    """Whole messages between ranks. One thread at a time sends to a rank, and one receives from it on a tag."""

    def send(self, rank: int, tag: int, frame: Frame, deadline: float) -> None:
        """Send a message; CollectiveTimeout when the deadline has passed, whether or not it has begun to go out."""

    def receive(self, rank: int | None, tag: int, timeout: float) -> tuple[memoryview, int]:
        """A message, of a rank or anybody, and who sent it. Unreadable where that was not the beginning of one."""


class WholeMessages:
    """Over shared memory."""

    def __init__(self, group: Communicator) -> None:
        self._group = group

    def send(self, rank: int, tag: int, frame: Frame, deadline: float) -> None:
        self._group.send_bytes(frame.parts(), rank, tag, _left(deadline))

    def receive(self, rank: int | None, tag: int, timeout: float) -> tuple[memoryview, int]:
        content, rank = self._group.receive_bytes(rank, tag, timeout)
        return content.data, rank


class MessagesInTwo:
    """Over gloo and MPI. `is_lost` tells of a rank that has died or left."""

    def __init__(self, group: Communicator, is_lost: Callable[[int], bool]) -> None:
        self._group = group
        self._is_lost = is_lost
        self._under_way: defaultdict[int, deque[Work]] = defaultdict(deque)  # parts, in their order

    def send(self, rank: int, tag: int, frame: Frame, deadline: float) -> None:
        self._finish(rank, deadline)  # what an earlier deadline has left: nothing can overtake it
        for part in _in_two(frame.joined()):
            self._under_way[rank].append(self._group.isend(part, group_dst=rank, tag=tag))
        self._finish(rank, deadline)

    def _finish(self, rank: int, deadline: float) -> None:
        """Wait until the parts for a rank are gone. What is left when the deadline passes stays on its way."""
        under_way = self._under_way[rank]
        try:
            while under_way:
                try:
                    under_way[0].wait(min(_LOOK_S, _left(deadline)))
                    under_way.popleft()
                except CollectiveTimeout:
                    if self._is_lost(rank):
                        raise PeerLost("it takes no more messages", rank=self._group.ranks[rank]) from None
                    if time.monotonic() >= deadline:
                        raise
        except CollectiveTimeout:
            raise
        except BaseException:
            under_way.clear()
            raise

    def receive(self, rank: int | None, tag: int, timeout: float) -> tuple[memoryview, int]:
        deadline = time.monotonic() + timeout
        first = np.empty(_FIRST_BYTES, np.uint8)
        rank = self._group.ranks.index(self._group.recv(first, group_src=rank, tag=tag, timeout=timeout))
        mark, length = _LENGTH.unpack_from(first.data)
        if mark != _MARK or length > _LONGEST:
            raise Unreadable(f"rank {rank} sends what is not the beginning of a message ({bytes(first[:16])!r})")
        content = first[_LENGTH.size : _LENGTH.size + length]
        if length <= _INLINE:
            return content.data, rank
        message = np.empty(length, np.uint8)
        message[:_INLINE] = content
        self._group.recv(message[_INLINE:], group_src=rank, tag=tag, timeout=_left(deadline))
        return message.data, rank


def _in_two(content: bytes) -> list[np.ndarray]:
    """The first part of a message, and the rest if there is one."""
    first = np.zeros(_FIRST_BYTES, np.uint8)
    inline = min(len(content), _INLINE)
    _LENGTH.pack_into(first.data, 0, _MARK, len(content))
    first.data[_LENGTH.size : _LENGTH.size + inline] = content[:inline]
    return [first] if len(content) == inline else [first, np.frombuffer(content, np.uint8, offset=inline)]


def _left(deadline: float) -> float:
    return max(1e-3, deadline - time.monotonic())
