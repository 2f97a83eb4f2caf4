"""Memory of one process that another one of the same host can open, if it was given a note of it.

It has no name in any folder: it is a descriptor (memfd) of who made it, which others open through /proc. So nothing is
left behind, however any of them ends. Its size is sealed, and all of it was taken from the system at once: whoever has
mapped it can read it whatever its maker does, and the worst is that it reads what it does not want.

It begins with a header: a token that the note has, too, how many bytes follow, and the token once more when they were
read. The header is written and looked at by system calls, which keeps it in order with what is copied before and after.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from neuraxis.comm.objects import Unreadable

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows, which has nothing of this
    fcntl = None

__all__ = ["TOKEN_BYTES", "Memory", "Note"]

TOKEN_BYTES = 16
_NAME = "neuraxis-loan"
_LINK = f"/memfd:{_NAME} (deleted)"
_NOTE = struct.Struct("<4sIi16s")
_MARK = b"nxl1"
_HEADER = struct.Struct("<16sQ")
_READ_AT = 32  # where the header has the token once more
_HEADER_BYTES = 64
_MOST_PARTS = 500


class Note(NamedTuple):
    """Where memory is (a descriptor of a process), what it begins with, and how long the parts are that lie in it."""

    pid: int
    number: int
    token: bytes
    lengths: tuple[int, ...]

    def pack(self) -> bytes:
        start = _NOTE.pack(_MARK, self.pid, self.number, self.token)
        return start + struct.pack(f"<{len(self.lengths)}Q", *self.lengths)

    @classmethod
    def unpack(cls, content: bytes) -> Note:
        """Unreadable where it is none."""
        count, rest = divmod(len(content) - _NOTE.size, 8)
        if not 0 <= count <= _MOST_PARTS or rest or not content.startswith(_MARK):
            raise Unreadable("what came is not a note of lent memory: is another version of neuraxis at work?")
        _, pid, number, token = _NOTE.unpack_from(content)
        return cls(pid, number, token, struct.unpack_from(f"<{count}Q", content, _NOTE.size))


class Memory:
    """Memory with room for `room` bytes, made here or opened. `number` is its descriptor in this process."""

    def __init__(self, descriptor: int, size: int, writable: bool) -> None:
        self.number = descriptor
        self.room = size - _HEADER_BYTES
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, protection)
        self._bytes = np.frombuffer(mapped, np.uint8)

    @staticmethod
    def can_be_made() -> bool:
        return hasattr(os, "memfd_create") and hasattr(mmap, "MAP_POPULATE") and os.path.exists("/proc/self/fd")

    @classmethod
    def make(cls, nbytes: int) -> Memory:
        """Memory with room for as many bytes, or somewhat more; OSError where there is none."""
        step = 1 << max(16, nbytes.bit_length() - 3)  # messages of about the same length can use the same memory
        size = -(-(_HEADER_BYTES + nbytes) // step) * step
        descriptor = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.fchmod(descriptor, 0o600)
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(descriptor, size, writable=True)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, pid: int, number: int) -> Memory:
        """The memory that a note speaks of; Unreadable where that is anything else, or not this user's alone."""
        path = f"/proc/{pid}/fd/{number}"
        try:
            # Before it is opened, too: to open what is not memory can block, or have effects.
            if os.readlink(path) != _LINK:
                raise Unreadable("a note speaks of what is no lent memory: its lender is gone, or the note is forged")
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise Unreadable(
                f"lent memory cannot be opened: {error.strerror}: its lender is gone, or elsewhere"
            ) from None
        try:
            return cls(descriptor, _checked_size(descriptor), writable=False)
        except OSError as error:
            os.close(descriptor)
            raise Unreadable(f"lent memory cannot be read: {error.strerror}") from None
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, token: bytes, parts: Sequence[Any]) -> None:
        os.pwrite(self.number, _HEADER.pack(token, sum(map(len, parts))), 0)
        start = _HEADER_BYTES
        for part in parts:
            end = start + len(part)
            self._bytes[start:end] = np.frombuffer(part, np.uint8)
            start = end

    def read(self, token: bytes, lengths: Sequence[int]) -> list[np.ndarray] | None:
        """Copies of the parts that lie in it, after which it may be used anew; None where it has another token."""
        header = _HEADER.pack(token, sum(lengths))
        if sum(lengths) > self.room or os.pread(self.number, len(header), 0) != header:
            return None
        parts = []
        start = _HEADER_BYTES
        for length in lengths:
            parts.append(self._bytes[start : start + length].copy())
            start += length
        # Looked at once more: it can have been used anew meanwhile, if its note has come before.
        if os.pread(self.number, len(header), 0) != header:
            return None
        os.pwrite(self.number, token, _READ_AT)
        return parts

    def was_read(self, token: bytes) -> bool:
        return os.pread(self.number, TOKEN_BYTES, _READ_AT) == token

    def close(self) -> None:
        """Give it up, once. Nothing may use it after this."""
        os.close(self.number)
        self.number = -1
        del self._bytes  # and what was mapped with it


def _checked_size(descriptor: int) -> int:
    status = os.fstat(descriptor)
    if os.readlink(f"/proc/self/fd/{descriptor}") != _LINK or not stat.S_ISREG(status.st_mode):
        raise Unreadable("a note speaks of what is no lent memory: its lender is gone, or the note is forged")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise Unreadable("lent memory is not this user's alone: the note is forged")
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK or status.st_size < _HEADER_BYTES:
        raise Unreadable("lent memory can become smaller while it is read: the note is forged")
    return status.st_size
