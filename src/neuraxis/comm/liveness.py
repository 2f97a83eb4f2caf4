"""Which ranks of this host are alive, and how those ended that are not.

On Linux a `pidfd` names a process for good (a number can be given to another process, a pidfd cannot) and
becomes readable when it ends. How it ended is known to its parent; others can read it from /proc while the
dead process waits for its parent to collect it, and from the pidfd afterwards (Linux 6.15). Elsewhere
signal 0 tells whether the process exists, and nothing tells how it ended.
"""

from __future__ import annotations

import os
import select
import signal as signals
import struct
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Ending", "ProcessIdentity", "ProcessWatch", "identify_self"]


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, told apart from a later one that was given the same number."""

    pid: int
    started: int  # clock ticks since boot; 0 where the system does not tell


@dataclass(frozen=True)
class Ending:
    """How a process ended; both are None where that is not known."""

    exit_code: int | None = None
    signal: int | None = None

    @property
    def severity(self) -> int:
        """More for what is less likely to have been meant: killed, exited with an error, nobody knows, a good end."""
        if self.signal is not None:
            return 3
        if self.exit_code is None:
            return 1
        return 2 if self.exit_code else 0

    def __str__(self) -> str:
        if self.signal is not None:
            try:
                name = signals.Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            return f"killed by {name}"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        return "died (only its parent knows how)"

    @classmethod
    def from_wait_status(cls, status: int) -> Ending:
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(exit_code=os.WEXITSTATUS(status))


def identify_self() -> ProcessIdentity:
    return ProcessIdentity(os.getpid(), _start_time(os.getpid()))


class ProcessWatch:
    """Watches processes of this host, each under a key (its rank)."""

    def __init__(self, processes: dict[int, ProcessIdentity]) -> None:
        self._processes = processes
        self._descriptors: dict[int, int] = {}  # descriptor → key
        self._poll = select.poll() if hasattr(os, "pidfd_open") else None
        self._ended: dict[int, Ending] = {}
        self._lock = threading.Lock()  # a poll object cannot be used by two threads at once
        for key, process in processes.items():
            self._watch(key, process)

    def _watch(self, key: int, process: ProcessIdentity) -> None:
        if self._poll is None:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._ended[key] = Ending()
            return
        except OSError:  # an old kernel, or out of descriptors: the process numbers have to do
            self._poll = None
            return
        if process.started and _start_time(process.pid) not in (0, process.started):
            os.close(descriptor)
            self._ended[key] = Ending()
            return
        self._descriptors[descriptor] = key
        self._poll.register(descriptor, select.POLLIN)

    def ended(self) -> dict[int, Ending]:
        """Those that have ended so far, by key."""
        with self._lock:
            self._look()
            return dict(self._ended)

    def _look(self) -> None:
        if self._poll is not None:
            for descriptor, _ in self._poll.poll(0):
                key = self._descriptors.pop(descriptor)
                self._poll.unregister(descriptor)
                self._ended[key] = _how_it_ended(self._processes[key].pid, descriptor)
                os.close(descriptor)
        else:
            for key, process in self._processes.items():
                if key not in self._ended and not _exists(process):
                    self._ended[key] = Ending()

    def close(self) -> None:
        with self._lock:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors.clear()
            self._processes = {}
            self._poll = None


def _exists(process: ProcessIdentity) -> bool:
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return process.started in (0, _start_time(process.pid))


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third on (the second may contain anything)."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def _start_time(pid: int) -> int:
    fields = _stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else 0


# struct pidfd_info, first version: a mask (8 bytes), ids, and the wait status at offset 60.
_PIDFD_INFO_BYTES = 64
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO_BYTES << 16) | (0xFF << 8) | 11
_PIDFD_INFO_EXIT = 1 << 3


def _how_it_ended(pid: int, descriptor: int) -> Ending:
    fields = _stat_fields(pid)
    if fields and fields[0] in "ZX" and len(fields) > 49:
        return Ending.from_wait_status(int(fields[49]))
    if sys.platform == "linux":
        import fcntl

        info = bytearray(struct.pack("=Q", _PIDFD_INFO_EXIT).ljust(_PIDFD_INFO_BYTES, b"\0"))
        with suppress(OSError):
            fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
            if struct.unpack_from("=Q", info)[0] & _PIDFD_INFO_EXIT:
                return Ending.from_wait_status(struct.unpack_from("=i", info, 60)[0])
    return Ending()
