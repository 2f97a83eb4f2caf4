"""What a worker leaves for others to read after it has died: its memory, and the last lines of its log.

The notes are in memory that the parent shares, so that they outlive a kill -9.
"""

from __future__ import annotations

import ctypes
import logging
import sys

__all__ = ["NOTES_BYTES", "Notes", "NotesHandler", "peak_memory_bytes"]

NOTES_BYTES = 4096
_HEAD = 16
_ROOM = NOTES_BYTES - _HEAD


class Notes:
    """The notes of one worker, at an address: bytes of memory, length of the text, text."""

    def __init__(self, address: int) -> None:
        self._words = (ctypes.c_int64 * 2).from_address(address)
        self._text = memoryview((ctypes.c_uint8 * _ROOM).from_address(address + _HEAD)).cast("B")

    def write_memory(self) -> None:
        self._words[0] = peak_memory_bytes()

    def write_line(self, line: str) -> None:
        """Add a line; the oldest go when there is no room left."""
        lines = [*self.lines(), line]
        encoded = "\n".join(lines).encode("utf-8", "replace")
        while len(encoded) > _ROOM and len(lines) > 1:
            lines.pop(0)
            encoded = "\n".join(lines).encode("utf-8", "replace")
        encoded = encoded[:_ROOM]
        self._words[1] = 0
        self._text[: len(encoded)] = encoded
        self._words[1] = len(encoded)

    @property
    def memory_bytes(self) -> int:
        return int(self._words[0])

    def lines(self) -> list[str]:
        size = max(0, min(_ROOM, int(self._words[1])))
        text = bytes(self._text[:size]).decode("utf-8", "replace")
        return text.splitlines()


class NotesHandler(logging.Handler):
    """Writes what is logged in a worker to its notes."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.INFO)
        self._notes = notes
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.write_line(self.format(record))


def peak_memory_bytes() -> int:
    """The most memory that this process has had."""
    try:
        import resource
    except ImportError:  # Windows has no such thing
        return 0
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
