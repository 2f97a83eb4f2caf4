"""Collect the output of ranks and write it, line by line, to the launcher's own output.

Lines of all ranks and of both streams go through one queue, each in one piece, so lines never mix even if standard
output and error are the same file. Writing does not block the launcher: if a reader is slow or has stopped, like a
pager, the queue fills and the launcher stops reading the ranks' pipes (backpressure), but still handles deaths and
signals.

When one rank raises, all others raise because they lost it. So a traceback waits until its rank has ended, or for two
seconds: then it is known whether it is one of those.
"""

from __future__ import annotations

import os
import re
import select
import selectors
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

from neuraxis.process.processes import RankProcess

__all__ = ["LineSplitter", "Output", "Tail"]

_LONGEST_LINE = 64 * 1024
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
_TRACEBACK = b"Traceback (most recent call last)"


class LineSplitter:
    """Splits a stream of bytes into lines, each with its original ending.

    A carriage return alone also ends a line, so that progress bars appear. One at the end of the data waits, because a
    line feed may follow. Lines longer than 64 KiB are split.
    """

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[bytes]:
        self._pending += data
        ends = [match.end() for match in _LINE_END.finditer(self._pending)]
        lines = [self._pending[start:end] for start, end in pairwise([0, *ends])]
        self._pending = self._pending[ends[-1] :] if ends else self._pending
        while len(self._pending) > _LONGEST_LINE:
            lines.append(self._pending[:_LONGEST_LINE])
            self._pending = self._pending[_LONGEST_LINE:]
        return lines

    def finish(self) -> bytes:
        """Return the incomplete last line at the end of the stream."""
        rest, self._pending = self._pending, b""
        return rest


class Tail:
    """The last lines of a rank, from both streams; a traceback among them is kept complete."""

    _SHOWN = 20
    _KEPT = 100

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=self._KEPT)

    def add(self, line: bytes) -> None:
        self._lines.append(line.rstrip(b"\r\n"))

    def lines(self) -> list[str]:
        kept = [line.decode("utf-8", "replace") for line in self._lines]
        start = max(0, len(kept) - self._SHOWN)
        tracebacks = [i for i, line in enumerate(self._lines) if line.startswith(_TRACEBACK)]
        return kept[min([start, *tracebacks]) :]

    def last_error(self) -> str:
        """Return the last line that can be the `Type: text` of a traceback, or ""."""
        seen_traceback = False
        error = ""
        for line in self._lines:
            if line.startswith(_TRACEBACK):
                seen_traceback, error = True, ""
            elif seen_traceback and not error and line and not line.startswith(b" "):
                error = line.decode("utf-8", "replace")
        return error


_FULL = 1024 * 1024
_ROOM = 256 * 1024
_READ = 64 * 1024
# A pipe that is ready for writing accepts this much atomically without blocking (POSIX: PIPE_BUF).
_WRITE = 4096
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)
_STDOUT, _STDERR = 1, 2
_HOLD_S = 2.0  # longest delay of a traceback whose rank goes on
_LONGEST_HELD = 1000  # lines


class _Stream:
    def __init__(self, rank: int, target: int, prefix: bytes, tail: Tail) -> None:
        self.rank = rank
        self.target = target
        self.prefix = prefix
        self.tail = tail
        self.splitter = LineSplitter()
        self.has_ended = False
        self.held: list[bytes] | None = None  # a traceback that waits, and what follows it
        self.held_until = 0.0


class Output:
    """Reads the pipes of captured ranks and writes their lines.

    `broken` is True once the reader of our standard output has gone (`| head`).

    If `is_secondary` is given, it gets the last line of the traceback of a rank that has failed; True if the rank only
    lost another one. Such a traceback is written only if `release` is called.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        *,
        prefix: bool,
        is_secondary: Callable[[str], bool] | None = None,
    ) -> None:
        self.broken = False
        self._selector = selector
        self._prefix = prefix
        self._is_secondary = is_secondary
        self._errors: dict[int, _Stream] = {}  # standard error of each rank
        self._withheld: dict[int, tuple[bytes, ...]] = {}  # tracebacks of ended ranks
        self._shown: set[tuple[bytes, ...]] = set()
        self._streams: dict[int, _Stream] = {}
        self._tails: dict[int, Tail] = {}
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued = 0
        self._paused = False
        self._waiting_for: int | None = None
        for file in (sys.stdout, sys.stderr):
            if file is not None:
                file.flush()  # keeps the order with earlier prints

    def attach(self, process: RankProcess) -> None:
        tail = self._tails[process.rank] = Tail()
        for source, target in zip(process.pipes or (), (_STDOUT, _STDERR), strict=False):
            os.set_blocking(source, False)
            stream = _Stream(process.rank, target, self._prefix_of(process.rank, target), tail)
            self._streams[source] = stream
            if target == _STDERR:
                self._errors[process.rank] = stream
            if not self._paused:
                self._selector.register(source, selectors.EVENT_READ, partial(self._read, source))

    def tail(self, rank: int) -> Tail:
        return self._tails.get(rank) or Tail()

    def ended(self, rank: int, *, ok: bool) -> None:
        """Decide about the traceback of a rank that has ended; withhold a secondary one, and one that is shown."""
        for source in [source for source, stream in self._streams.items() if stream.rank == rank]:
            while source in self._streams and self._read(source):
                pass
        errors = self._errors.get(rank)
        if errors is None:
            return
        errors.has_ended = True
        lines, errors.held = tuple(errors.held or ()), None
        if not lines:
            return
        assert self._is_secondary is not None
        if not ok and (lines in self._shown or self._is_secondary(errors.tail.last_error())):
            self._withheld[rank] = lines
            return
        self._shown.add(lines)
        self._put_all(errors, lines)

    def release(self, rank: int | None = None) -> None:
        """Write the withheld traceback of a rank, by default those of all."""
        for one in [rank] if rank is not None else [*self._withheld]:
            if one in self._withheld:
                self._put_all(self._errors[one], self._withheld.pop(one))

    def report(self, text: str) -> None:
        """Queue a message of the launcher itself for standard error."""
        for line in text.splitlines():
            self._put(_STDERR, line.encode("utf-8", "replace") + b"\n")

    def flush(self) -> None:
        """Write what can be written without blocking; stop reading from ranks while the queue is full."""
        for stream in self._errors.values():
            if stream.held is not None and time.monotonic() >= stream.held_until:
                self._stop_holding(stream)
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
        """Read what dead ranks left in their pipes, incomplete lines included, and stop watching the pipes.

        It does not wait for a process outside a rank's group that still holds a pipe open.
        """
        for source in list(self._streams):
            while source in self._streams and self._read(source):
                pass
            if source in self._streams:
                self._close(source)
        for stream in self._errors.values():
            self._stop_holding(stream)

    def finish(self) -> None:
        """Write all that is left, however slow the reader is. The selector may be closed already."""
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
            # The next line of another rank must not continue this one.
            self._emit(stream, rest if rest.endswith(b"\r") else rest + b"\n")
        if not self._paused:
            self._selector.unregister(source)

    def _emit(self, stream: _Stream, line: bytes) -> None:
        text = line.rstrip(b"\r\n")
        if self._prefix:
            if not text and line.endswith(b"\r"):
                return
            line = text + b"\n"
        stream.tail.add(line)
        begins = stream.target == _STDERR and line.startswith(_TRACEBACK) and not stream.has_ended
        if stream.held is None and begins and self._is_secondary is not None:
            stream.held, stream.held_until = [], time.monotonic() + _HOLD_S
        if stream.held is None:
            self._put(stream.target, stream.prefix + line)
            return
        stream.held.append(line)
        if len(stream.held) > _LONGEST_HELD:
            self._stop_holding(stream)

    def _stop_holding(self, stream: _Stream) -> None:
        lines, stream.held = stream.held or [], None
        self._put_all(stream, lines)

    def _put_all(self, stream: _Stream, lines: Iterable[bytes]) -> None:
        for line in lines:
            self._put(stream.target, stream.prefix + line)

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
            # The reader has gone. Stop for lost standard output, but not for lost standard error.
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
