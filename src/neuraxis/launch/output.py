"""The ranks' output, gathered into the launcher's own.

Lines of all ranks and of both streams wait in one queue and leave in that order, each whole, so nothing can
come between two parts of a line even where standard output and error are the same file. Writing never blocks
the launcher for long: a reader that is slow (or has stopped, like a pager) leaves the queue full, the ranks'
pipes are then not read until there is room, and deaths and signals are still seen to.
"""

from __future__ import annotations

import os
import select
import selectors
import sys
from collections import deque
from functools import partial

from neuraxis.launch.lines import LineSplitter, Tail
from neuraxis.launch.processes import RankProcess

__all__ = ["Output"]

_FULL = 1024 * 1024
_ROOM = 256 * 1024
_READ = 64 * 1024
# A pipe that is ready for writing takes this much without blocking (POSIX: PIPE_BUF), and takes it whole.
_WRITE = 4096
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
_STDOUT, _STDERR = 1, 2


class _Stream:
    def __init__(self, source: int, target: int, prefix: bytes, tail: Tail) -> None:
        self.source = source
        self.target = target
        self.prefix = prefix
        self.tail = tail
        self.splitter = LineSplitter()


class Output:
    """Reads the pipes of captured ranks and writes their lines.

    `broken` says that nobody reads our standard output any more (`| head`).
    """

    def __init__(self, selector: selectors.BaseSelector, *, prefix: bool) -> None:
        self.broken = False
        self._selector = selector
        self._prefix = prefix
        self._streams: dict[int, _Stream] = {}
        self._tails: dict[int, Tail] = {}
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued = 0
        self._paused = False
        self._waiting_for: int | None = None
        for file in (sys.stdout, sys.stderr):
            if file is not None:
                file.flush()  # what was printed before comes before

    def attach(self, process: RankProcess) -> None:
        tail = self._tails[process.rank] = Tail()
        for source, target in zip(process.pipes or (), (_STDOUT, _STDERR), strict=False):
            os.set_blocking(source, False)
            self._streams[source] = _Stream(source, target, self._prefix_of(process.rank, target), tail)
            if not self._paused:
                self._selector.register(source, selectors.EVENT_READ, partial(self._read, source))

    def tail(self, rank: int) -> Tail:
        return self._tails.get(rank) or Tail()

    def say(self, text: str) -> None:
        """Put the launcher's own words in the queue, for standard error."""
        for line in text.splitlines():
            self._put(_STDERR, line.encode("utf-8", "replace") + b"\n")

    def flush(self) -> None:
        """Write what can be written without blocking; hold back the ranks if that is too little."""
        if self._waiting_for is not None:
            self._selector.unregister(self._waiting_for)
            self._waiting_for = None
        while self._queue:
            target = self._queue[0][0]
            if not select.select([], [target], [], 0)[1]:
                self._selector.register(target, selectors.EVENT_WRITE, lambda: None)
                self._waiting_for = target
                break
            self._write_some(target)
        if self._paused and self._queued < _ROOM:
            self._paused = False
            for source in self._streams:
                self._selector.register(source, selectors.EVENT_READ, partial(self._read, source))
        elif not self._paused and self._queued > _FULL:
            self._paused = True
            for source in self._streams:
                self._selector.unregister(source)

    def drain(self) -> None:
        """Take what the (dead) ranks left in their pipes, part of a line included, and let go of the pipes.

        What a process outside of a rank's group still holds open is not waited for.
        """
        for source in list(self._streams):
            while source in self._streams and self._read(source):
                pass
            if source in self._streams:
                self._close(source)

    def finish(self) -> None:
        """Write all that is left, however long the reader takes. The selector is no longer needed."""
        while self._queue:
            self._write_some(self._queue[0][0])

    def _read(self, source: int) -> bool:
        stream = self._streams[source]
        try:
            data = os.read(source, _READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close(source)
            return False
        for line in stream.splitter.feed(data):
            self._emit(stream, line)
        return True

    def _close(self, source: int) -> None:
        stream = self._streams.pop(source)
        rest = stream.splitter.finish()
        if rest:
            # Another rank's line must not go on where this one stopped.
            self._emit(stream, rest if rest.endswith(b"\r") else rest + b"\n")
        if not self._paused:
            self._selector.unregister(source)

    def _emit(self, stream: _Stream, line: bytes) -> None:
        text = line.rstrip(b"\r\n")
        if not self._prefix:
            stream.tail.add(line)
            self._put(stream.target, line)
        elif text or not line.endswith(b"\r"):
            stream.tail.add(line)
            self._put(stream.target, stream.prefix + text + b"\n")

    def _put(self, target: int, line: bytes) -> None:
        if self.broken and target == _STDOUT:
            return
        self._queue.append((target, line))
        self._queued += len(line)

    def _write_some(self, target: int) -> None:
        chunk = bytearray()
        while self._queue and self._queue[0][0] == target:
            line = self._queue[0][1]
            if chunk and len(chunk) + len(line) > _WRITE:
                break
            chunk += line
            self._queue.popleft()
        try:
            written = os.write(target, chunk[:_WRITE])
        except OSError:
            # The reader has gone. Lost errors are no reason to stop; lost output is.
            self._queued -= len(chunk)
            if target == _STDOUT:
                self.broken = True
                self._queued -= sum(len(line) for fd, line in self._queue if fd == _STDOUT)
                self._queue = deque((fd, line) for fd, line in self._queue if fd != _STDOUT)
            return
        self._queued -= written
        if written < len(chunk):
            self._queue.appendleft((target, bytes(chunk[written:])))

    def _prefix_of(self, rank: int, target: int) -> bytes:
        if not self._prefix:
            return b""
        plain = f"[rank {rank}] ".encode()
        if not _takes_colour(target):
            return plain
        return b"\x1b[%dm%s\x1b[0m" % (_COLOURS[rank % len(_COLOURS)], plain)


def _takes_colour(descriptor: int) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
