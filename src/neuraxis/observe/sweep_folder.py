"""Where the results of a sweep's cells are kept: a file for each, written whole or not at all.

A file is called by what its cell runs, so a sweep that is started again finds what is done, also if it has more values
or seeds now, and does not mistake results of another brain for its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.observe.sweep_plan import Cell

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: nothing keeps two sweeps apart
    fcntl = None

__all__ = ["SweepFolder"]

_TEMPORARY = ".tmp"


class SweepFolder:
    """The folder, made if need be; as a context manager it is for one sweep at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """What came of a cell: {"answer": ...} or {"error": ...}; None if that is not known."""
        try:
            record = msgspec.json.decode((self.path / f"{cell.key}.json").read_bytes())
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):  # a file that somebody else has damaged
            return None
        if not isinstance(record, dict):
            return None
        whole = isinstance(record.get("answer"), dict) or isinstance(record.get("error"), str)
        return record if whole else None

    def write(self, cell: Cell, record: dict[str, Any]) -> None:
        """Keep what came of a cell; whatever happens meanwhile, it is there as a whole or not at all."""
        target = self.path / f"{cell.key}.json"
        temporary = self.path / f".{cell.key}{_TEMPORARY}"
        content = msgspec.json.encode({"settings": cell.settings, "seed": cell.seed, **record})
        with open(temporary, "wb") as file:
            file.write(msgspec.json.format(content, indent=1))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)

    def forget(self, cells: Iterable[Cell]) -> None:
        """Remove what is known of these cells."""
        for cell in cells:
            (self.path / f"{cell.key}.json").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise InvalidArgument(f"{self.path}: results cannot be kept there ({error.strerror})") from error
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise InvalidArgument(f"{self.path}: another sweep is at work there; wait, or give another --out") from None
        except OSError:
            pass  # a file system without locks
        for left in self.path.glob(f".*{_TEMPORARY}"):  # of a sweep that was killed
            left.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
