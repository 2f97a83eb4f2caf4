"""Files that grow while a network runs, and that an accident does not cost.

What is safe when a process dies: all goes to `<path>.partial`, and only `close` gives the file its name, so that a
file under its own name is always complete and an older one stays until it is replaced. Between two calls
the partial file is a whole HDF5 file. HDF5 cannot change one in a single stroke, so a process that is killed within
the milliseconds of a write may tear it. That it can be read all the same, each kind of file writes last what makes the
rest count, and `readable_beginning` stops before what the index names but the file does not hold.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import h5py  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument

if sys.platform != "win32":
    import fcntl

__all__ = ["Disk", "GrowingFile", "readable_beginning"]

_MAGIC = 0x0A7A
_VERSION = (0, 1)  # of the SONATA format: major, minor


class GrowingFile(ABC):
    """A SONATA file (HDF5) that is called `<path>.partial` until it is closed, and is locked for its only writer.

    As a context manager it is closed at the end, or left as `.partial` if the block raised.
    """

    _kind: ClassVar[str]  # what it is, for errors: "spike file"
    _content: ClassVar[str]  # what is written to it, for errors: "spikes"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.partial_path = self.path.with_name(self.path.name + ".partial") if self.path.name else self.path
        self._disk = self._make_disk()
        self._file: Any = None
        try:
            self._file = h5py.File(self._disk, "w")
            self._file.attrs["magic"] = np.uint32(_MAGIC)
            self._file.attrs["version"] = np.array(_VERSION, np.uint32)
            self._lay_out()
            self._file.flush()
            self._disk.commit()
        except BaseException:
            self._let_go()
            raise

    @abstractmethod
    def _lay_out(self) -> None:
        """Make the groups and datasets of a file without content."""

    @abstractmethod
    def _write(self) -> None:
        """Put what waits in memory on the disk."""

    def flush(self) -> None:
        """Write all that was appended; if the process dies later, `<path>.partial` can be read up to here."""
        self._require_open()
        self._write()

    def close(self) -> None:
        """Write the rest and give the file its name, in place of any older one. Again: does nothing."""
        if not self._file:
            return
        self.abandon()
        os.replace(self.partial_path, self.path)

    def abandon(self) -> None:
        """Write the rest and close the file, but leave it as `<path>.partial` and any older file as it is."""
        if not self._file:
            return
        try:
            self.flush()
        finally:
            self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.abandon()
        except OSError:
            pass  # most likely the disk that is full is the very error on its way to the caller

    def _let_go(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
        finally:
            self._disk.close()

    def _require_open(self) -> None:
        if not self._file:
            raise InvalidArgument(
                f"the {self._kind} {str(self.path)!r} is closed: make a new {type(self).__name__} to write more"
            )

    def _make_disk(self) -> Disk:
        """The file under its temporary name; all that can be known to go wrong at the end is said now."""
        where = f"path is {str(self.path)!r}"
        try:
            if not self.path.parent.is_dir():
                raise InvalidArgument(f"{where}: the folder {str(self.path.parent)!r} does not exist, make it first")
            if self.path.is_dir():
                raise InvalidArgument(f"{where}: that is a folder, give the name of a file")
            return Disk(self.partial_path, self._content)
        except BlockingIOError:
            raise InvalidArgument(
                f"{where}: another {type(self).__name__} is writing to it, choose another name"
            ) from None
        except OSError as error:
            raise _telling(error, f"cannot make a {self._kind}", self.partial_path) from error


def readable_beginning(dataset: Any) -> npt.NDArray[Any]:
    """The dataset up to the first chunk that the index names but the file does not hold."""
    rows = dataset.chunks[0] if dataset.chunks else max(1, len(dataset))
    parts = [np.empty((0, *dataset.shape[1:]), dataset.dtype)]
    for start in range(0, len(dataset), rows):
        try:
            parts.append(dataset[start : start + rows])
        except OSError:
            break
    return np.concatenate(parts)


class Disk:
    """The file beneath HDF5: locked for its only writer, and changed by nothing but `commit`.

    HDF5 cannot live with a write that fails, as on a full disk: it may crash the process when it tries again, at the
    latest as the interpreter ends. And it changes its index in place, so that a flush that stops halfway can lose what
    earlier ones wrote. Therefore HDF5 writes to memory here, at most what one flush brings, and `commit` first
    writes what makes the file longer. If that fails the file is as it was, and another `commit` may succeed.
    """

    def __init__(self, path: Path, content: str) -> None:
        self._path = path
        self._content = content
        # Not emptied on opening: somebody else may be writing to it.
        self._file = open(  # noqa: SIM115 - it stays open
            path, "r+b", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_CREAT, 0o666)
        )
        try:
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.truncate(0)
        except BaseException:
            self._file.close()
            raise
        self._committed_size = 0
        self._size = 0
        self._position = 0
        self._pending: list[tuple[int, bytes]] = []

    # What HDF5 calls. It must not fail.

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (self._size if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int) -> bytes:
        self._file.seek(self._position)
        found = bytearray((self._file.read(count) or b"").ljust(count, b"\0"))
        for offset, data in self._pending:
            start, stop = max(offset, self._position), min(offset + len(data), self._position + count)
            if start < stop:
                found[start - self._position : stop - self._position] = data[start - offset : stop - offset]
        self._position += count
        return bytes(found)

    def readinto(self, buffer: Any) -> int:
        buffer[:] = self.read(len(buffer))
        return len(buffer)

    def write(self, data: Any) -> int:
        self._pending.append((self._position, bytes(data)))
        self._position += len(data)
        self._size = max(self._size, self._position)
        return len(data)

    def truncate(self, size: int) -> int:
        self._size = size
        return size

    def flush(self) -> None:
        pass

    # What the owner of the file calls.

    def commit(self) -> None:
        """Bring the file on disk to the state that HDF5 believes it to be in."""
        border = self._committed_size
        try:
            for offset, data in self._pending:
                if offset + len(data) > border:
                    self._put(max(offset, border), data[max(border - offset, 0) :])
            for offset, data in self._pending:
                if offset < border:
                    self._put(offset, data[: border - offset])
            self._file.truncate(self._size)
        except OSError as error:
            raise _telling(error, f"cannot write {self._content}", self._path) from error
        self._committed_size = self._size
        self._pending.clear()

    def close(self) -> None:
        """Commit, make sure that it survives a crash of the machine, and let go."""
        try:
            self.commit()
            os.fsync(self._file.fileno())
        finally:
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may hold the descriptor, and with it the lock
            self._file.close()

    def _put(self, offset: int, data: bytes) -> None:
        self._file.seek(offset)
        left = memoryview(data)
        while len(left):
            left = left[self._file.write(left) :]


def _telling(error: OSError, what: str, path: object) -> OSError:
    """The same error, of the same kind, that says what could not be done."""
    return OSError(error.errno, f"{what}: {error.strerror}", str(path))
