"""Crash report of a worker: its peak memory and the last lines of its log.

The report lies in memory shared with the parent, so it survives even `kill -9` of the worker.
"""

from __future__ import annotations

import ctypes
import logging
import sys

__all__ = ["CRASH_REPORT_BYTES", "CrashReport", "CrashReportHandler", "peak_memory_bytes"]

CRASH_REPORT_BYTES = 4096
_HEADER_BYTES = 16
_TEXT_BYTES = CRASH_REPORT_BYTES - _HEADER_BYTES


class CrashReport:
    """The report of one worker at a memory address: peak memory (int64), length of the text (int64), text."""

    def __init__(self, address: int) -> None:
        self._words = (ctypes.c_int64 * 2).from_address(address)
        self._text = memoryview((ctypes.c_uint8 * _TEXT_BYTES).from_address(address + _HEADER_BYTES)).cast("B")

    def write_memory(self) -> None:
        self._words[0] = peak_memory_bytes()

    def write_line(self, line: str) -> None:
        """Append a line; drop the oldest lines if there is no room."""
        lines = [*self.lines(), line]
        encoded = "\n".join(lines).encode("utf-8", "replace")
        while len(encoded) > _TEXT_BYTES and len(lines) > 1:
            lines.pop(0)
            encoded = "\n".join(lines).encode("utf-8", "replace")
        encoded = encoded[:_TEXT_BYTES]
        self._words[1] = 0
        self._text[: len(encoded)] = encoded
        self._words[1] = len(encoded)

    @property
    def memory_bytes(self) -> int:
        return int(self._words[0])

    def lines(self) -> list[str]:
        size = max(0, min(_TEXT_BYTES, int(self._words[1])))
        text = bytes(self._text[:size]).decode("utf-8", "replace")
        return text.splitlines()


class CrashReportHandler(logging.Handler):
    """Copies the log records of a worker to its crash report."""

    def __init__(self, report: CrashReport) -> None:
        super().__init__(logging.INFO)
        self._report = report
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self._report.write_line(self.format(record))


def peak_memory_bytes() -> int:
    """Return the peak resident memory of this process in bytes; 0 where the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
