"""A segment of memory shared by the ranks of one group, that cannot be left behind.

A segment is a file in memory (`/dev/shm`, elsewhere the temporary folder) with a random name, readable by its
user alone, so two jobs can meet neither by accident nor by guessing. Its name lives only until the last rank
has attached: then it is unlinked, and the memory goes with its last process, however that ends. For the short
time before that each process holds a shared lock (flock) on the file; a lock dies with its process, so whoever
can take the exclusive lock knows that the owners are gone. `sweep` does that at every start.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from neuraxis.errors import BackendUnavailable, RendezvousError

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: a file that is open cannot be removed there, which serves the same end
    fcntl = None

__all__ = ["Segment", "segment_folder", "sweep"]

_PREFIX = "neuraxis"


def segment_folder() -> Path:
    """Where segments live for the moment in which they have a name."""
    shared = Path("/dev/shm")
    return shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


class Segment:
    """Shared memory of `size` bytes, zero at first. `address` is where this process sees it."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)

    @classmethod
    def create(cls, size: int, reserved: int) -> Segment:
        """A new segment; its first `reserved` bytes are taken from the system now.

        Memory that is only promised kills the process (SIGBUS) where the folder turns out to be full, so
        what will surely be used is taken at once, and its absence is an error that can be read.
        """
        folder = segment_folder()
        while True:
            path = folder / f"{_PREFIX}-{_user()}-{secrets.token_hex(8)}"
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            try:
                _lock_shared(descriptor)
                if os.fstat(descriptor).st_nlink == 0:  # swept between its creation and our lock
                    os.close(descriptor)
                    continue
                os.ftruncate(descriptor, size)
                _take(descriptor, 0, reserved)
                return cls(path, descriptor, size)
            except OSError as error:
                os.close(descriptor)
                path.unlink(missing_ok=True)
                raise BackendUnavailable(
                    "shm",
                    f"{folder} has no room for {reserved / 2**20:.0f} MiB of shared memory ({error.strerror})",
                    "Free some, give the container more (docker run --shm-size), or use backend='gloo'",
                ) from error

    @classmethod
    def attach(cls, path: Path) -> Segment:
        """The segment that another process created."""
        try:
            descriptor = os.open(path, os.O_RDWR)
        except OSError as error:
            raise RendezvousError(
                f"rank 0's shared memory {path.name} cannot be opened here ({error.strerror}): "
                "the ranks do not share this host's memory; use backend='gloo'"
            ) from error
        _lock_shared(descriptor)
        return cls(path, descriptor, os.fstat(descriptor).st_size)

    def take(self, offset: int, length: int) -> None:
        """Take memory from the system for a part of the segment that was not reserved."""
        try:
            _take(self._descriptor, offset, length)
        except OSError as error:
            raise MemoryError(
                f"no shared memory left for {length} bytes in {self.path.parent} ({error.strerror})"
            ) from error

    def unlink(self) -> None:
        """Remove the name, once everybody has attached: from here on the memory cannot outlive its users."""
        with suppress(OSError):
            self.path.unlink()

    def close(self) -> None:
        """Give the memory back. Nothing may use `address` after this."""
        self.unlink()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            # Raises only if an array over the memory is still alive, in which case it goes when that does.
            with suppress(BufferError):
                self._map.close()

    def abandon(self) -> None:
        """Let go of the segment in a forked child, where it is still the parent's."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def sweep() -> list[Path]:
    """Remove this user's segments whose owners are all gone; the paths removed."""
    removed = []
    for path in segment_folder().glob(f"{_PREFIX}-{_user()}-*"):
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


def _take(descriptor: int, offset: int, length: int) -> None:
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, offset, length)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
