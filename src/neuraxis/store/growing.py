"""HDF5 files that grow during a run and stay readable when the process dies.

All data goes to `<path>.partial`, and only `close` renames the file to `<path>`. So a file under its own name is always
complete, and an older one stays until it is replaced. Between two calls the partial file is a valid HDF5 file. HDF5
cannot change a file atomically, so a process that is killed within the milliseconds of a write may leave it torn. To
keep it readable, each kind of file writes last what makes the rest valid, and `readable_prefix` stops before chunks
that are in the index but not in the file.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import h5py  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument, NeuraxisError

if sys.platform != "win32":
    import fcntl

__all__ = ["CommittedFile", "GrowingFile", "readable_prefix", "reading", "whole_dataset"]

_MAGIC = 0x0A7A
_VERSION = (0, 1)  # of the SONATA format: major, minor


class GrowingFile(ABC):
    """A SONATA file (HDF5) named `<path>.partial` until it is closed, and locked by its only writer.

    As a context manager it closes on exit, or stays `.partial` if the block raised.
    """

    _kind: ClassVar[str]  # for error messages: "spike file"
    _content: ClassVar[str]  # for error messages: "spikes"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.partial_path = self.path.with_name(self.path.name + ".partial") if self.path.name else self.path
        self._disk = self._open_partial()
        self._file: Any = None
        try:
            self._file = h5py.File(self._disk, "w")
            self._file.attrs["magic"] = np.uint32(_MAGIC)
            self._file.attrs["version"] = np.array(_VERSION, np.uint32)
            self._create_datasets()
            self._file.flush()
            self._disk.commit()
        except BaseException:
            self._release()
            raise

    @abstractmethod
    def _create_datasets(self) -> None:
        """Create the groups and empty datasets."""

    @abstractmethod
    def _write(self) -> None:
        """Write buffered data to disk."""

    def flush(self) -> None:
        """Write all appended data; if the process dies later, `<path>.partial` can be read up to here."""
        self._require_open()
        self._write()

    def close(self) -> None:
        """Write the rest and rename the file to `path`, replacing an older one; a second call does nothing."""
        if not self._file:
            return
        self.abandon()
        os.replace(self.partial_path, self.path)

    def abandon(self) -> None:
        """Write the rest and close the file, but leave it as `<path>.partial`; an older file stays."""
        if not self._file:
            return
        try:
            self.flush()
        finally:
            self._release()

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
            pass  # most likely a full disk, which is the error that is already being raised

    def _release(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
        finally:
            self._disk.close()

    def _require_open(self) -> None:
        if not self._file:
            raise InvalidArgument(
                f"the {self._kind} {str(self.path)!r} is closed. Make a new {type(self).__name__} to write more"
            )

    def _open_partial(self) -> CommittedFile:
        """Open the file under its temporary name; raise now for errors that would otherwise occur at the end."""
        where = f"path is {str(self.path)!r}"
        try:
            if not self.path.parent.is_dir():
                raise InvalidArgument(f"{where}: the folder {str(self.path.parent)!r} does not exist. Make it first")
            if self.path.is_dir():
                raise InvalidArgument(f"{where}: that is a folder. Give the name of a file")
            return CommittedFile(self.partial_path, self._content)
        except BlockingIOError:
            raise InvalidArgument(
                f"{where}: another {type(self).__name__} is writing to it. Choose another name"
            ) from None
        except OSError as error:
            raise _with_context(error, f"cannot make a {self._kind}", self.partial_path) from error


_MAX_COMPRESSION = 1100  # largest compression ratio of HDF5's gzip filter
_ALWAYS_READ = 2**26


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open an untrusted HDF5 file for reading; errors in its content become InvalidArgument.

    Raises
    ------
    OSError
        The file cannot be opened or is not an HDF5 file.
    InvalidArgument
        The file is damaged.
    """
    _check_heaps(path)
    with h5py.File(path, "r") as file:
        try:
            yield file
        except NeuraxisError:
            raise
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, IndexError, ArithmeticError) as error:
            raise InvalidArgument(f"path is {str(path)!r}: the file is damaged: {error!r:.300}") from error


def _check_heaps(path: str | os.PathLike[str]) -> None:
    """Raise if a heap of strings in an HDF5 file is damaged, before HDF5 reads it.

    HDF5 stores strings of variable length in collections of objects, and walks a collection by the sizes of its objects
    without checking them: a free object of size 0 would keep it in an endless loop.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return  # HDF5 raises a clear error
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            start = data.find(b"GCOL\x01\0\0\0")
            while start >= 0:
                if not _is_sound_heap(data, start):
                    raise InvalidArgument(
                        f"path is {str(path)!r}: the file is damaged: a heap of strings in it is inconsistent"
                    )
                start = data.find(b"GCOL\x01\0\0\0", start + 8)


def _is_sound_heap(data: mmap.mmap, start: int) -> bool:
    """Return True if the objects of the collection at `start` follow each other up to its end."""
    header = struct.Struct("<HHIQ")  # index (0 is the free rest), references, reserved, size
    at = start + header.size
    end = start + struct.unpack_from("<Q", data, start + 8)[0] if at <= len(data) else len(data) + 1
    if end > len(data):
        return True  # a torn file; HDF5 does not read beyond its end
    while at + header.size <= end:
        index, _, _, size = header.unpack_from(data, at)
        length = header.size + -(-size // 8) * 8 if index else size
        if not header.size <= length <= end - at:
            return False
        at += length
    return True


def whole_dataset(dataset: Any) -> npt.NDArray[Any]:
    """Read a whole dataset, unless it claims more than its file can hold."""
    check_extent(dataset)
    values: npt.NDArray[Any] = dataset[:]
    return values


def check_extent(dataset: Any) -> None:
    """Raise, before memory is allocated, if a dataset claims more than its file can hold.

    HDF5 invents values for missing chunks, so a few bytes can claim an array of any size.
    """
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "biuf" or not dataset.shape:
        raise InvalidArgument(f"path is {dataset.file.filename!r}: {dataset.name} is not an array of numbers")
    room = max(_ALWAYS_READ, _MAX_COMPRESSION * os.path.getsize(dataset.file.filename))
    if math.prod(dataset.shape) * dataset.dtype.itemsize > room:
        raise InvalidArgument(
            f"path is {dataset.file.filename!r}: {dataset.name} claims the shape {dataset.shape!s:.80}, but the "
            "file is too small for it, so it is damaged"
        )


def readable_prefix(dataset: Any) -> npt.NDArray[Any]:
    """Return the dataset up to the first chunk that is in the index but not in the file."""
    check_extent(dataset)
    rows = dataset.chunks[0] if dataset.chunks else max(1, len(dataset))
    parts = [np.empty((0, *dataset.shape[1:]), dataset.dtype)]
    for start in range(0, len(dataset), rows):
        try:
            parts.append(dataset[start : start + rows])
        except OSError:
            break
    return np.concatenate(parts)


class CommittedFile:
    """The file beneath HDF5, locked by its only writer and changed only by `commit`.

    HDF5 cannot handle a failed write, as on a full disk: it may crash the process when it tries again, at the latest
    when the interpreter exits. It also changes its index in place, so a flush that stops halfway can lose earlier data.
    Therefore HDF5 writes to memory here, at most the data of one flush, and `commit` first writes what extends the
    file. If that fails, the file is unchanged, and a later `commit` may succeed.
    """

    def __init__(self, path: Path, content: str) -> None:
        self._path = path
        self._content = content
        # Not truncated on opening: another process may be writing to it.
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

    # Called by HDF5; these must not fail.

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

    # Called by the owner of the file.

    def commit(self) -> None:
        """Write the pending changes of HDF5 to disk."""
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
            raise _with_context(error, f"cannot write {self._content}", self._path) from error
        self._committed_size = self._size
        self._pending.clear()

    def close(self) -> None:
        """Commit, flush to disk, unlock and close."""
        try:
            self.commit()
            os.fsync(self._file.fileno())
        finally:
            if sys.platform != "win32":
                fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may still hold the descriptor and the lock
            self._file.close()

    def _put(self, offset: int, data: bytes) -> None:
        self._file.seek(offset)
        left = memoryview(data)
        while len(left):
            left = left[self._file.write(left) :]


def _with_context(error: OSError, what: str, path: object) -> OSError:
    """Return the same kind of error with what could not be done."""
    return OSError(error.errno, f"{what}: {error.strerror}", str(path))
