"""Shared memory between the processes of one host that cannot be left behind.

A segment is a file in memory (in `/dev/shm`), readable by its user alone. It has no name: the other processes open the
creator's descriptor through `/proc/<pid>/fd`. So the kernel frees the memory with its last process, however and
whenever that ends.

Where a file without a name is not possible (other file systems and operating systems), the file has a random name until
the last rank has attached. During that time each process holds a shared lock (flock) on it. A lock ends with its
process, so a process that gets the exclusive lock knows that the owners are gone. `sweep` removes such files at every
start.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from neuraxis.errors import BackendUnavailable, NeuraxisError
from neuraxis.machine import OUT_OF_FILES, out_of_files

__all__ = ["Segment", "SharedRegion", "segment_folder", "sweep"]

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, where an open file cannot be removed, so `sweep` needs no lock
    fcntl = None


_PREFIX = "neuraxis"
_UNNAMED = re.compile(r"/proc/\d{1,10}/fd/\d{1,10}")
_NAME = re.compile(r"(?P<path>/.+) (?P<device>\d{1,20}) (?P<inode>\d{1,20}) (?P<size>\d{1,20})", re.ASCII)


def segment_folder() -> Path:
    """Return the folder in whose file system segments live."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


class Segment:
    """Shared memory of `size` bytes, zeroed, at `address` in this process; other processes attach by its `name`."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)
        state = os.fstat(descriptor)
        self._identity = state.st_dev, state.st_ino, size
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)

    @property
    def name(self) -> str:
        """Text by which others attach: the path, and the identity and size of the file that must be there."""
        return " ".join(map(str, (self.path, *self._identity)))

    @classmethod
    def create(cls, size: int, reserved: int) -> Segment:
        """Create a segment and allocate its first `reserved` bytes.

        Access to memory that is not allocated kills the process (SIGBUS) if the folder is full. So memory that is
        certainly used is allocated at once, and a full folder raises an error instead.
        """
        folder = segment_folder()
        try:
            path, descriptor = _open_unnamed(folder) or _open_named(folder)
        except OSError as error:
            raise _allocation_error(error, folder, reserved) from error
        try:
            os.ftruncate(descriptor, size)
            _allocate(descriptor, 0, reserved)
            return cls(path, descriptor, size)
        except OSError as error:
            os.close(descriptor)
            if not _is_unnamed(path):
                path.unlink(missing_ok=True)
            raise _allocation_error(error, folder, reserved) from error

    @classmethod
    def attach(cls, name: str) -> Segment:
        """Attach to the segment that another process created, by its `name`.

        Only the path of a segment is opened, and only if it leads to the very file that the name describes: the
        descriptor may have been closed meanwhile, and its number reused for another file.
        """
        match = _NAME.fullmatch(name)
        path = Path(match["path"] if match else name)
        if not _is_unnamed(path):
            path = segment_folder() / path.name
        try:
            if match is None:
                raise OSError(errno.EINVAL, "it is not a segment")
            identity = int(match["device"]), int(match["inode"]), int(match["size"])
            _check_identity(os.stat(path), identity)  # before opening it, too, which may have side effects
            descriptor = os.open(path, os.O_RDWR)
            try:
                _check_identity(os.fstat(descriptor), identity)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            if error.errno in OUT_OF_FILES:
                raise out_of_files("a shared-memory group") from error
            raise BackendUnavailable(
                "shm",
                f"the shared memory {path} that rank 0 has created cannot be opened here ({error.strerror}): the "
                "ranks do not share memory",
                "Use backend='gloo'",
            ) from error
        try:
            _lock_shared(descriptor)
            return cls(path, descriptor, os.fstat(descriptor).st_size)
        except OSError as error:
            os.close(descriptor)
            raise _allocation_error(error, segment_folder(), 0) from error

    def array(self) -> np.ndarray:
        """Return the memory as bytes; it stays mapped while the array exists."""
        return np.frombuffer(self._map, np.uint8)

    def allocate(self, offset: int, length: int) -> None:
        """Allocate memory for a part of the segment that was not reserved."""
        try:
            _allocate(self.descriptor, offset, length)
        except OSError as error:
            raise _allocation_error(error, segment_folder(), length) from error

    def unlink(self) -> None:
        """Remove the name, if there is one. Called after all ranks have attached, so the memory ends with its users."""
        if not _is_unnamed(self.path):
            with suppress(OSError):
                self.path.unlink()

    def close(self) -> None:
        """Unmap the memory. `address` must not be used afterwards."""
        self.unlink()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            # Raises if an array over the memory is still alive; then the memory is unmapped with the array.
            with suppress(BufferError):
                self._map.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked child, where the segment belongs to the parent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def sweep() -> list[Path]:
    """Remove this user's named segments whose owners are all gone; return the removed paths."""
    removed: list[Path] = []
    try:
        paths = list(segment_folder().glob(f"{_PREFIX}-{_user()}-*"))
    except OSError:  # no descriptor left to list the folder; the next start sweeps
        return removed
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError:
            continue
        try:
            if _lock_exclusive(descriptor):
                path.unlink(missing_ok=True)
                removed.append(path)
        finally:
            os.close(descriptor)
    return removed


def _open_unnamed(folder: Path) -> tuple[Path, int] | None:
    """Create a file without a name; return None if that is not possible, or if there is no /proc to open it by.

    A rank that may not read this process's /proc entry (another user or process namespace) cannot attach; then the
    ranks of the group raise BackendUnavailable.
    """
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except AttributeError:  # not Linux
        return None
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            return None  # the file system does not support O_TMPFILE
        raise
    path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")
    if path.exists():
        return path, descriptor
    os.close(descriptor)  # there is no /proc here
    return None


def _open_named(folder: Path) -> tuple[Path, int]:
    while True:
        path = folder / f"{_PREFIX}-{_user()}-{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        _lock_shared(descriptor)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # another process has swept it between creation and lock


def _check_identity(state: os.stat_result, identity: tuple[int, int, int]) -> None:
    if not stat.S_ISREG(state.st_mode) or (state.st_dev, state.st_ino, state.st_size) != identity:
        raise OSError(errno.EINVAL, "it is another file")


def _is_unnamed(path: Path) -> bool:
    return _UNNAMED.fullmatch(str(path)) is not None


def _allocation_error(error: OSError, folder: Path, needed: int) -> NeuraxisError:
    """Return the error for a failed allocation of `needed` bytes of shared memory."""
    if error.errno in OUT_OF_FILES:
        return out_of_files("a shared-memory group")
    free = ""
    with suppress(OSError, AttributeError):
        state = os.statvfs(folder)
        sizes = (state.f_bavail * state.f_frsize / 2**20, state.f_blocks * state.f_frsize / 2**20)
        free = f": {sizes[0]:.1f} MiB of its {sizes[1]:.1f} MiB are free"
    return BackendUnavailable(
        "shm",
        f"{folder} has no room for {needed / 2**20:.2f} MiB of shared memory{free} ({error.strerror})",
        "Close unused groups, give the container more (docker run --shm-size=1g), or use backend='gloo'",
    )


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")


def _lock_shared(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def _lock_exclusive(descriptor: int) -> bool:
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _allocate(descriptor: int, offset: int, length: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, offset, length)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


class SharedRegion:
    """Shared memory of `size` bytes, zeroed, at `address` in this process, for users outside `comm`.

    One process creates it and sends the others its name. After all have attached, `seal` removes the name, so the
    memory cannot outlive the processes that use it, however they end.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.address = segment.address
        self.size = segment.size

    @classmethod
    def create(cls, size: int) -> SharedRegion:
        """Create a region and allocate all of it, so that a lack of memory raises here and not later."""
        return cls(Segment.create(size, reserved=size))

    @classmethod
    def attach(cls, name: str) -> SharedRegion:
        """Attach to the region that another process of this host created."""
        return cls(Segment.attach(name))

    @property
    def name(self) -> str:
        """Text by which others attach, until the region is sealed."""
        return self._segment.name

    def array(self) -> np.ndarray:
        """Return the region as bytes. It stays mapped, also after `close`, while the array exists."""
        return self._segment.array()

    def seal(self) -> None:
        """Remove the name: no other process can attach any more."""
        self._segment.unlink()

    def close(self) -> None:
        """Unmap the memory. `address` must not be used afterwards."""
        self._segment.close()

    def __enter__(self) -> SharedRegion:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
