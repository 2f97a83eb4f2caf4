"""Cut a stream of bytes into lines, and remember the last ones."""

from __future__ import annotations

import re
from collections import deque
from itertools import pairwise

__all__ = ["LineSplitter", "Tail"]

_LONGEST_LINE = 64 * 1024
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
_TRACEBACK = b"Traceback (most recent call last)"


class LineSplitter:
    """Bytes in, whole lines out, each with the ending it came with.

    A carriage return alone ends a line too, or a progress bar would show nothing until it is finished; one
    at the end of what has arrived waits, as a line feed may follow. What is longer than 64 KiB is cut.
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
        """What is left when the stream ends without a line's end."""
        rest, self._pending = self._pending, b""
        return rest


class Tail:
    """The last lines of a rank, of both streams; a traceback among them is whole."""

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
        """The last line that can be the `Type: text` at the end of a traceback, or ""."""
        seen_traceback = False
        error = ""
        for line in self._lines:
            if line.startswith(_TRACEBACK):
                seen_traceback, error = True, ""
            elif seen_traceback and not error and line and not line.startswith(b" "):
                error = line.decode("utf-8", "replace")
        return error
