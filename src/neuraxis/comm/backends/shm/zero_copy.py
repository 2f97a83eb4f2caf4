"""Shared buffers for large messages between two processes of one host: only a small handle travels.

The sender copies a message into memory that the receiver can map, and sends a handle to it. The receiver copies the
message out and marks it as read in the memory itself, so the sender needs no reply.

The memory is a memfd: a file descriptor of the sender without a name in any folder, which the receiver opens through
`/proc/<pid>/fd`. The kernel frees it with its last user, so nothing is left behind, however either process ends. The
sender allocates all of it at once and seals its size, so a receiver that has mapped it can always read it.

Each memory begins with a header: a random token, the number of bytes that follow, and the token once more after the
receiver has read them. Sender and receiver access the header with system calls, which orders these accesses with the
copies before and after them. A receiver reads a buffer only if it holds the token of the handle, so a process that has
not seen a handle cannot make another one read memory of a third. The sender reuses memory only after it was read
(reuse is much faster than a new allocation): a handle that arrives late or twice finds its own message or is refused,
never a message to another receiver.

A receiver may be on another host, in another container, or run as another user. So the sender first sends the handle
of an empty buffer, a probe, and uses shared buffers for a receiver only after it has read that one.
"""

from __future__ import annotations

import mmap
import os
import secrets
import stat
import struct
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from neuraxis.wire.objects import Unreadable

__all__ = ["TOKEN_BYTES", "BufferHandle", "BufferReceiver", "BufferSender", "MappedMemory", "SharedBuffer"]

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has neither memfd nor /proc
    fcntl = None

TOKEN_BYTES = 16
_NAME = "neuraxis-buffer"  # of the memfd; a receiver checks it, so it is part of the protocol
_LINK = f"/memfd:{_NAME} (deleted)"
_HANDLE = struct.Struct("<4sIi16s")
_MAGIC = b"nxl1"
_HEADER = struct.Struct("<16sQ")
_READ_AT = 32  # offset at which the receiver writes the token after reading
_HEADER_BYTES = 64
_MAX_HANDLE_PARTS = 500
_MAX_PARTS = 100
_MAX_BUFFERS = 64
_MAX_BYTES = 128 * 2**20  # shared at a time, or kept for reuse
_MAX_KEPT_BYTES = 32 * 2**20  # kept for reuse
_MAX_OPEN = 32  # memories of other processes that a receiver keeps open
_MAX_OPEN_BYTES = 2 * 2**20  # of each
_HOLD_S = 10.0  # a sender keeps a buffer this long for a receiver that has not read it
_POLL_S = 1e-3


class BufferHandle(NamedTuple):
    """Reference to a shared buffer: its process and descriptor, its token, and the lengths of its parts in bytes."""

    pid: int
    number: int
    token: bytes
    lengths: tuple[int, ...]

    def pack(self) -> bytes:
        start = _HANDLE.pack(_MAGIC, self.pid, self.number, self.token)
        return start + struct.pack(f"<{len(self.lengths)}Q", *self.lengths)

    @classmethod
    def unpack(cls, content: bytes) -> BufferHandle:
        """Decode a handle; raise Unreadable if the bytes are not one."""
        count, rest = divmod(len(content) - _HANDLE.size, 8)
        if not 0 <= count <= _MAX_HANDLE_PARTS or rest or not content.startswith(_MAGIC):
            raise Unreadable(
                "the attachment of a message is not the handle of a shared buffer. Run the same version of neuraxis in "
                "both processes"
            )
        _, pid, number, token = _HANDLE.unpack_from(content)
        return cls(pid, number, token, struct.unpack_from(f"<{count}Q", content, _HANDLE.size))


class MappedMemory:
    """Mapped memory for a header and `capacity` bytes. `number` is its descriptor in this process."""

    def __init__(self, descriptor: int, size: int, writable: bool) -> None:
        self.number = descriptor
        self.capacity = size - _HEADER_BYTES
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapped = mmap.mmap(descriptor, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, protection)
        self._bytes = np.frombuffer(mapped, np.uint8)

    @staticmethod
    def is_supported() -> bool:
        return hasattr(os, "memfd_create") and hasattr(mmap, "MAP_POPULATE") and os.path.exists("/proc/self/fd")

    @classmethod
    def create(cls, nbytes: int) -> MappedMemory:
        """Allocate memory for at least `nbytes` bytes; raise OSError if the system has none left."""
        # Rounded up, so that messages of similar lengths can reuse the memory.
        step = 1 << max(16, nbytes.bit_length() - 3)
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
    def open(cls, pid: int, number: int) -> MappedMemory:
        """Map the memory of a handle; raise Unreadable if it is another file, or not private to this user."""
        path = f"/proc/{pid}/fd/{number}"
        try:
            # Checked before it is opened, too: opening another kind of file can block or have side effects.
            if os.readlink(path) != _LINK:
                raise Unreadable(_NOT_A_BUFFER)
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise Unreadable(
                f"a shared buffer cannot be opened ({error.strerror}): its sender is gone, or on another host"
            ) from None
        try:
            return cls(descriptor, _checked_size(descriptor), writable=False)
        except OSError as error:
            os.close(descriptor)
            raise Unreadable(f"a shared buffer cannot be read: {error.strerror}") from None
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
        """Copy the parts out and mark them as read; return None if the memory holds another token."""
        header = _HEADER.pack(token, sum(lengths))
        if sum(lengths) > self.capacity or os.pread(self.number, len(header), 0) != header:
            return None
        parts = []
        start = _HEADER_BYTES
        for length in lengths:
            parts.append(self._bytes[start : start + length].copy())
            start += length
        # Checked again: the sender may have reused the memory during the copy if this handle was read before.
        if os.pread(self.number, len(header), 0) != header:
            return None
        os.pwrite(self.number, token, _READ_AT)
        return parts

    def was_read(self, token: bytes) -> bool:
        return os.pread(self.number, TOKEN_BYTES, _READ_AT) == token

    def close(self) -> None:
        """Unmap and close the memory. Must be called at most once, and the memory must not be used afterwards."""
        os.close(self.number)
        self.number = -1
        del self._bytes  # holds the mapping


_NOT_A_BUFFER = "a handle names no shared buffer: its sender is gone, or the handle is forged"


def _checked_size(descriptor: int) -> int:
    status = os.fstat(descriptor)
    if os.readlink(f"/proc/self/fd/{descriptor}") != _LINK or not stat.S_ISREG(status.st_mode):
        raise Unreadable(_NOT_A_BUFFER)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise Unreadable("a shared buffer is not private to this user: its handle is forged")
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK or status.st_size < _HEADER_BYTES:
        raise Unreadable("a shared buffer could shrink while it is read: its handle is forged")
    return status.st_size


class SharedBuffer:
    """A message in shared memory. `handle` is sent to the receiver. The memory is freed with this object."""

    def __init__(self, memory: MappedMemory, lengths: Sequence[int]) -> None:
        self._memory: MappedMemory | None = memory
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._in_use = threading.Lock()
        self.capacity = memory.capacity
        self.handle = BufferHandle(os.getpid(), memory.number, self._token, tuple(lengths)).pack()

    @property
    def is_read(self) -> bool:
        """True after the receiver has read it; it does not read it again."""
        with self._in_use:
            return self._memory is not None and self._memory.was_read(self._token)

    def fill(self, parts: Sequence[Any]) -> bool:
        """Write the message; return False if the buffer is closed."""
        with self._in_use:
            if self._memory is None:
                return False
            self._memory.write(self._token, parts)
        return True

    def release(self) -> MappedMemory | None:
        """Detach the memory and return it for reuse; None if it was detached or closed before."""
        with self._in_use:
            memory, self._memory = self._memory, None
        return memory

    def close(self) -> None:
        memory = self.release()
        if memory is not None:
            memory.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close()


class BufferSender:
    """The shared buffers that one process sends to its receivers, each of which has a hashable key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: weakref.WeakSet[SharedBuffer] = weakref.WeakSet()
        self._held: deque[tuple[float, Hashable, SharedBuffer]] = deque()  # time, receiver, buffer; oldest first
        self._kept: list[MappedMemory] = []  # unused memory, newest last
        self._probes: dict[Hashable, tuple[float, SharedBuffer] | None] = {}  # time, buffer; None once decided
        self._readers: set[Hashable] = set()
        self._closed = not MappedMemory.is_supported()

    def reaches(self, receiver: Hashable) -> bool:
        """Return True once a receiver has read its probe."""
        if receiver in self._readers:
            return True
        probe = self._probes.get(receiver)
        if probe is None:
            return False
        since, buffer = probe
        can_read = buffer.is_read
        if can_read or since + _HOLD_S < time.monotonic():
            with self._lock:
                if self._probes.get(receiver) is probe:
                    self._probes[receiver] = None
                    if can_read:
                        self._readers.add(receiver)
        return can_read

    def probe(self, receiver: Hashable) -> bytes | None:
        """Return the handle of an empty buffer to send to a receiver; None if it has been probed before."""
        if receiver in self._probes:
            return None
        buffer = self._share([])
        if buffer is None:
            return None
        probe = time.monotonic(), buffer
        with self._lock:
            return buffer.handle if self._probes.setdefault(receiver, probe) is probe else None

    def share(self, receiver: Hashable, parts: Sequence[Any]) -> SharedBuffer | None:
        """Copy these parts into a shared buffer; return None at a limit, when the caller must send the bytes."""
        buffer = self._share(parts)
        if buffer is not None:
            with self._lock:
                self._held.append((time.monotonic(), receiver, buffer))
        return buffer

    def _share(self, parts: Sequence[Any]) -> SharedBuffer | None:
        lengths = [len(part) for part in parts]
        if len(parts) > _MAX_PARTS:
            return None
        with self._lock:
            self._collect()
            memory = self._memory(sum(lengths))
            if memory is None:
                return None
            buffer = SharedBuffer(memory, lengths)
            self._buffers.add(buffer)
        return buffer if buffer.fill(parts) else None

    def _memory(self, nbytes: int) -> MappedMemory | None:
        """Return kept or new memory for `nbytes` bytes; None at a limit, or if the system has none left."""
        if self._closed:
            return None
        # The memory used last is likely to be in a cache, and open at the receiver.
        fitting = [memory for memory in reversed(self._kept) if 0 < nbytes <= memory.capacity <= 2 * nbytes + 2**20]
        if fitting:
            memory = min(fitting, key=lambda memory: memory.capacity)
            self._kept.remove(memory)
            return memory
        capacities = [buffer.capacity for buffer in self._buffers]
        if len(capacities) >= _MAX_BUFFERS or sum(capacities) + nbytes > _MAX_BYTES:
            return None
        while self._kept and len(capacities) + len(self._kept) >= _MAX_BUFFERS:
            self._kept.pop(0).close()
        try:
            return MappedMemory.create(nbytes)
        except OSError:  # no descriptor, or no memory
            return None

    def _collect(self) -> None:
        """Keep the memory of buffers that were read, and stop holding those that were not read in time."""
        old = time.monotonic() - _HOLD_S
        still_held: deque[tuple[float, Hashable, SharedBuffer]] = deque()
        for one in self._held:
            since, _, buffer = one
            if buffer.is_read:
                memory = buffer.release()
                if memory is not None:
                    self._kept.append(memory)
                self._buffers.discard(buffer)
            elif since > old:
                still_held.append(one)
        self._held = still_held
        while self._kept and sum(memory.capacity for memory in self._kept) > _MAX_KEPT_BYTES:
            self._kept.pop(0).close()

    def drop(self, receiver: Hashable) -> None:
        """Forget a receiver that has disconnected: stop holding its buffers, and probe it again if it returns."""
        with self._lock:
            self._readers.discard(receiver)
            self._probes.pop(receiver, None)
            self._held = deque(one for one in self._held if one[1] != receiver)

    def close(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds until the receivers have read their buffers, then free all memory."""
        self._closed = True
        deadline = time.monotonic() + timeout_s
        with self._lock:
            held = [buffer for _, _, buffer in self._held]
        while time.monotonic() < deadline and not all(buffer.is_read for buffer in held):
            time.sleep(_POLL_S)
        with self._lock:
            for buffer in list(self._buffers):
                buffer.close()
            for memory in self._kept:
                memory.close()
            self._kept.clear()
            self._held.clear()
            self._probes.clear()


class BufferReceiver:
    """Reads the shared buffers that other processes send to this one, each of at most `max_bytes` bytes.

    Senders reuse memory, so the receiver keeps some of it open. The token shows whether it holds the expected message.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._open: OrderedDict[tuple[int, int], MappedMemory] = OrderedDict()  # idle memory, newest last
        self._closed = False

    def receive(self, handle: BufferHandle) -> list[np.ndarray]:
        """Copy the parts of a shared buffer out, as bytes; raise Unreadable if that is not possible."""
        if sum(handle.lengths) > self._max_bytes:
            raise Unreadable(
                f"a shared buffer has {sum(handle.lengths):,} bytes, more than the limit of {self._max_bytes:,}"
            )
        memory = self._open.pop((handle.pid, handle.number), None)
        parts = self._read(memory, handle) if memory is not None else None
        if memory is None or parts is None:
            memory = MappedMemory.open(handle.pid, handle.number)
            parts = self._read(memory, handle)
        if parts is None:
            raise Unreadable("a shared buffer holds another message: it was read before, or its handle is forged")
        if handle.lengths and memory.capacity <= _MAX_OPEN_BYTES:
            self._keep((handle.pid, handle.number), memory)
        else:
            memory.close()
        return parts

    def _read(self, memory: MappedMemory, handle: BufferHandle) -> list[np.ndarray] | None:
        """Read the parts from this memory; close it and return None if it holds another message."""
        parts = None
        try:
            parts = memory.read(handle.token, handle.lengths)
        finally:
            if parts is None:
                memory.close()
        return parts

    def _keep(self, key: tuple[int, int], memory: MappedMemory) -> None:
        before = self._open.pop(key, None)
        if before is not None:
            before.close()
        self._open[key] = memory
        if len(self._open) > _MAX_OPEN or self._closed:
            self._close_oldest()

    def _close_oldest(self) -> bool:
        try:
            _, memory = self._open.popitem(last=False)
        except KeyError:
            return False
        memory.close()
        return True

    def close_idle(self) -> None:
        """Close all memory that is kept open, so that the memory of a sender that has exited is freed."""
        while self._close_oldest():
            pass

    def close(self) -> None:
        self._closed = True
        self.close_idle()
