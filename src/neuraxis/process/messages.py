"""Python objects as messages over a stream socket, in both directions, without blocking.

A frame is a header (kind, number of parts), the size of each part, and the parts: the pickle, then the large buffers
that it refers to (pickle protocol 5, out of band). Buffers are sent from and received into their final memory, so only
the kernel copies a large array.

No call blocks. A partly read or written message stays in the stream until the next call continues it, so a caller that
waits may time out between two calls and resume later.
"""

from __future__ import annotations

import mmap
import pickle
import socket
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any

from neuraxis.errors import InvalidType, LineClosed, MissingDependency
from neuraxis.process.pickling import serialize

__all__ = ["Frame", "Kind", "MessageStream", "encode"]

_HEADER = struct.Struct("<QQ")
# A smaller buffer stays in the pickle: copying it costs less than a system call.
_OUT_OF_BAND = 16 * 1024
_MAPPED = 1024 * 1024
_MAX_BUFFERS = 2**20  # of one message
_MAX_PARTS = 64  # in one system call; the kernel takes at most 1024
_MAX_READ = 16 * 1024 * 1024  # per call, so that a worker that never stops sending does not starve the others


class Kind(IntEnum):
    """Kind of a frame. All but MESSAGE are sent by the worker process itself, not by user code."""

    MESSAGE = 0
    READY = 1
    FINISHED = 2
    FAILED = 3


@dataclass(frozen=True)
class Frame:
    kind: int
    parts: list[bytearray | mmap.mmap]

    def mentions(self, word: bytes) -> bool:
        """Return True if the pickle contains `word`."""
        return self.parts[0].find(word) >= 0

    def message(self) -> Any:
        """Return the object; arrays in it are views of the parts."""
        return pickle.loads(self.parts[0], buffers=self.parts[1:])


def encode(message: object = None, kind: Kind = Kind.MESSAGE) -> list[memoryview]:
    """Return the bytes of a frame. Large buffers are not copied and must not change until they are written."""
    parts: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _OUT_OF_BAND:
            parts.append(raw)
        return raw.nbytes < _OUT_OF_BAND

    def attempt(dump: Callable[..., bytes]) -> bytes:
        parts.clear()
        return dump(message, protocol=5, buffer_callback=keep_in_band)

    if kind in (Kind.MESSAGE, Kind.FAILED):
        try:
            data = serialize(attempt)
        except MissingDependency:
            raise
        except Exception as error:
            raise InvalidType(f"message, a {type(message).__qualname__}, cannot be pickled: {error}") from error
        parts.insert(0, memoryview(data))
    sizes = struct.pack(f"<{len(parts)}Q", *(part.nbytes for part in parts))
    return [memoryview(_HEADER.pack(kind, len(parts)) + sizes), *parts]


class MessageStream:
    """One end of a socket with its partly transferred messages.

    Attributes
    ----------
    incoming : deque of Frame
        Complete frames that were not taken yet.
    at_end : bool
        The other end sends nothing more.
    broken : bool
        The other end receives nothing more; unsent data was dropped.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self.descriptor = end.fileno()
        self.incoming: deque[Frame] = deque()
        self.at_end = False
        self.broken = False
        self._outgoing: deque[memoryview] = deque()
        self._assembly = self._assemble()
        self._target = next(self._assembly)
        self._torn = False

    @property
    def writing(self) -> bool:
        """True while data is left to write."""
        return bool(self._outgoing)

    def put(self, parts: Sequence[memoryview]) -> None:
        """Queue a frame for `write_some`."""
        if not self.broken:
            self._outgoing.extend(parts)

    def keep_rest(self) -> None:
        """Copy the data left to write, because its owner stops waiting and may change it."""
        self._outgoing = deque(memoryview(bytes(part)) for part in self._outgoing)

    def write_some(self) -> None:
        """Write as much as the socket accepts now."""
        self._check_whole()
        while self._outgoing:
            self._torn = True
            try:
                count = self._socket.sendmsg(list(islice(self._outgoing, _MAX_PARTS)))
            except BlockingIOError:
                self._torn = False
                return
            except OSError:
                self.broken, self._torn = True, False
                self._outgoing.clear()
                return
            while count and count >= self._outgoing[0].nbytes:
                count -= self._outgoing.popleft().nbytes
            if count:
                self._outgoing[0] = self._outgoing[0][count:]
            self._torn = False

    def read_some(self) -> bool:
        """Read the data that has arrived; return True if there may be more."""
        self._check_whole()
        left = _MAX_READ
        while left > 0 and not self.at_end:
            self._torn = True
            try:
                count = self._socket.recv_into(self._target)
            except BlockingIOError:
                self._torn = False
                return False
            except OSError:
                count = 0  # the other end died with unread data: the same as an end of stream
            if count == 0:
                self.at_end = True
            self._target = self._target[count:]
            while not self._target.nbytes:
                self._target = next(self._assembly)
            left -= count
            self._torn = False
        return not self.at_end

    def stop_writing(self) -> None:
        """Close the sending direction; data from the other end can still be read."""
        self._outgoing.clear()
        self.broken = True
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other end has gone already

    def close(self) -> None:
        self._outgoing.clear()
        self._socket.close()

    def _assemble(self) -> Iterator[memoryview]:
        while True:
            self.incoming.append((yield from _assemble_frame()))

    def _check_whole(self) -> None:
        # Ctrl-C is deferred during transfers, but a handler of another signal may raise.
        if self._torn:
            raise LineClosed(
                "a signal handler raised during a transfer, so the connection is unusable. Start a new Team"
            )


def _assemble_frame() -> Generator[memoryview, None, Frame]:
    """Yield buffers to fill, one after the other, and return the frame when all are filled."""
    header = bytearray(_HEADER.size)
    yield memoryview(header)
    kind, count = _HEADER.unpack(header)
    if kind > max(Kind) or count > _MAX_BUFFERS:
        raise LineClosed("received data that is not a message, so the connection is unusable. Start a new Team")
    sizes = bytearray(8 * count)
    yield memoryview(sizes)
    lengths = struct.unpack(f"<{count}Q", sizes)
    try:
        parts = [_memory(size) for size in lengths]
    except (MemoryError, OverflowError, OSError, ValueError) as error:
        raise LineClosed(
            f"a message of {sum(lengths):,} bytes does not fit into memory, so the connection is unusable. Start a new "
            "Team"
        ) from error
    for part in parts:
        yield memoryview(part)
    return Frame(kind, parts)


def _memory(size: int) -> bytearray | mmap.mmap:
    # A bytearray is zeroed first; the kernel zeroes mapped memory page by page on first use.
    if size < _MAPPED:
        return bytearray(size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
