"""Python objects as messages over a stream socket, in both directions, bit by bit.

A frame is a header (kind, number of parts), the size of each part, and the parts: the pickle, then the large buffers
it refers to (protocol 5, out of band). A buffer leaves from where it lies and arrives where it will stay, so a large
array is copied by the kernel alone.

Nothing here waits. What is half read or half written stays in the stream until somebody goes on with it, so whoever
waits may give up at any time, between two calls, and come back.
"""

from __future__ import annotations

import mmap
import pickle
import socket
import struct
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any

from neuraxis.errors import InvalidType, LineClosed

__all__ = ["Frame", "Kind", "MessageStream", "encode"]

_HEADER = struct.Struct("<QQ")
# A smaller buffer travels within the pickle: copying it costs less than a system call of its own.
_OUT_OF_BAND = 16 * 1024
_MAPPED = 1024 * 1024
_MOST_PARTS = 64  # in one system call; the kernel takes at most 1024
_MOST_READ = 16 * 1024 * 1024  # in one go, so that a worker that never stops sending does not keep us


class Kind(IntEnum):
    """What a frame says. All but the first come from the worker, without the user's doing."""

    MESSAGE = 0
    READY = 1
    FINISHED = 2
    FAILED = 3


@dataclass(frozen=True)
class Frame:
    kind: int
    parts: list[bytearray | mmap.mmap]

    def mentions(self, word: bytes) -> bool:
        """Whether `word` is in the pickle."""
        return self.parts[0].find(word) >= 0

    def message(self) -> Any:
        """The object itself; arrays in it are views of the parts."""
        return pickle.loads(self.parts[0], buffers=self.parts[1:])


def encode(message: object = None, kind: Kind = Kind.MESSAGE) -> list[memoryview]:
    """The bytes of a frame. Large buffers are not copied: they must stay unchanged until they are written."""
    parts: list[memoryview] = []

    def keep_in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= _OUT_OF_BAND:
            parts.append(raw)
        return raw.nbytes < _OUT_OF_BAND

    if kind in (Kind.MESSAGE, Kind.FAILED):
        try:
            data = pickle.dumps(message, protocol=5, buffer_callback=keep_in_band)
        except Exception as error:
            raise InvalidType(f"message, a {type(message).__qualname__}, cannot be pickled: {error}") from error
        parts.insert(0, memoryview(data))
    sizes = struct.pack(f"<{len(parts)}Q", *(part.nbytes for part in parts))
    return [memoryview(_HEADER.pack(kind, len(parts)) + sizes), *parts]


class MessageStream:
    """One end of a socket, and what is under way in it.

    Attributes:
        incoming: frames that have arrived whole and nobody has taken yet.
        at_end: the other end sends nothing more.
        broken: the other end takes nothing more; what was left to write has been dropped.
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
        """Whether something is left to write."""
        return bool(self._outgoing)

    def put(self, parts: Sequence[memoryview]) -> None:
        """Queue a frame, to be written by `write_some`."""
        if not self.broken:
            self._outgoing.extend(parts)

    def keep_rest(self) -> None:
        """Copy what is left to write: its owner will not wait for it any longer and may change it."""
        self._outgoing = deque(memoryview(bytes(part)) for part in self._outgoing)

    def write_some(self) -> None:
        """Write as much as the socket takes now."""
        self._check_whole()
        while self._outgoing:
            self._torn = True
            try:
                count = self._socket.sendmsg(list(islice(self._outgoing, _MOST_PARTS)))
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
        """Read what has arrived; true if it was so much that there may be more."""
        self._check_whole()
        left = _MOST_READ
        while left > 0 and not self.at_end:
            self._torn = True
            try:
                count = self._socket.recv_into(self._target)
            except BlockingIOError:
                self._torn = False
                return False
            except OSError:
                count = 0  # it died with something of ours unread: an end like any other
            if count == 0:
                self.at_end = True
            self._target = self._target[count:]
            while not self._target.nbytes:
                self._target = next(self._assembly)
            left -= count
            self._torn = False
        return not self.at_end

    def stop_writing(self) -> None:
        """Tell the other end that nothing more comes; what it sends can still be read."""
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
        # Ctrl-C is held back while something is transferred, but the handler of another signal may raise then.
        if self._torn:
            raise LineClosed("a signal's handler raised while a message was being transferred: the line is unusable")


def _assemble_frame() -> Generator[memoryview, None, Frame]:
    """Yields memory to fill, one piece after the other, and returns the frame when all are filled."""
    header = bytearray(_HEADER.size)
    yield memoryview(header)
    kind, count = _HEADER.unpack(header)
    sizes = bytearray(8 * count)
    yield memoryview(sizes)
    parts = [_memory(size) for size in struct.unpack(f"<{count}Q", sizes)]
    for part in parts:
        yield memoryview(part)
    return Frame(kind, parts)


def _memory(size: int) -> bytearray | mmap.mmap:
    # A bytearray is filled with zeros first. Mapped memory is that already, page by page, when it is first written.
    if size < _MAPPED:
        return bytearray(size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
