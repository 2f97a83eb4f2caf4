"""Saved data on disk: states of simulations and trainings, files that grow during a run, and files replaced as a whole.

All data is complete or absent after a crash: it is written under a temporary name, flushed to disk, and renamed last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["replacing", "sync_folder"]


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Replace a file atomically: readers see the old file or the new one, never a part.

    Yields
    ------
    Path
        A temporary name beside `path`, with the same suffix. When the block ends, the file that it has written there is
        flushed to disk and renamed to `path`; when the block raises, it is removed.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "greeting.txt")) as new:
    ...         _ = new.write_text("hello")
    ...     [path.name for path in Path(folder).iterdir()]
    ['greeting.txt']
    """
    path = Path(path)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk, so that a rename survives a crash; does nothing on Windows."""
    if os.name == "posix":
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
