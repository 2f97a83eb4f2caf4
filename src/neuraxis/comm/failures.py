"""Failure detection and attribution: which ranks are gone, and which one caused it.

When a process ends, the other ranks do not learn why, and a process that raised an exception may live on for a while.
So a rank that gives up on a group, or leaves it, sends every other rank one last message: the world rank that caused
it to leave, and the number of exchanges it has completed. With shared memory it lies in the rank's control block; gloo
and MPI send it as a message.

Losses cascade: a rank that notices a dead peer leaves as well, and a third rank may look only then, when several ranks
are gone. So a rank that leaves because of another names that other rank, and `LastMessages.cause` prefers ranks that
failed by themselves (raised, killed) to ranks that left because of them. A killed rank sends no message; where its
process can be watched, the exit of the process is evidence.

`ProcessWatch` is the failure detector within a host. On Linux it uses pidfds: a pidfd refers to one process for good (a
pid can be reused) and becomes readable when that process exits. The exit status is known to the parent; other processes
read it from /proc while the process is a zombie, and from the pidfd afterwards (Linux 6.15). On other systems signal 0
shows whether the process exists, and its exit status stays unknown.
"""

from __future__ import annotations

import os
import select
import signal as signals
import struct
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from neuraxis.errors import PeerLost

if TYPE_CHECKING:
    from neuraxis.comm.backends.base import Backend

__all__ = [
    "LAST_MESSAGE_BYTES",
    "Cause",
    "Evidence",
    "LastMessage",
    "LastMessages",
    "ProcessExit",
    "ProcessIdentity",
    "ProcessWatch",
    "error_to_close_with",
    "error_to_leave_with",
    "identify_self",
    "loss_behind",
    "open_groups",
    "register_open",
    "unregister_open",
]

# --- failure detector for the processes of this host ---


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, distinguished from a later one with the same pid by its start time."""

    pid: int
    started: int  # clock ticks since boot; 0 if unknown


@dataclass(frozen=True)
class ProcessExit:
    """Exit of a process; both fields are None if its status is unknown."""

    exit_code: int | None = None
    signal: int | None = None
    noticed: float = field(default_factory=time.monotonic, compare=False)  # when this process observed it

    @property
    def severity(self) -> int:
        """Rank of how unlikely the exit was intended: signal 3, error code 2, unknown 1, success 0."""
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
        return "died (its exit status is known only to its parent)"

    @classmethod
    def from_wait_status(cls, status: int) -> ProcessExit:
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(exit_code=os.WEXITSTATUS(status))


def identify_self() -> ProcessIdentity:
    """Return the identity of this process."""
    return ProcessIdentity(os.getpid(), _start_time(os.getpid()))


class _Descriptors:
    """The pidfds of this process: one per watched process, shared by all groups that watch it."""

    def __init__(self) -> None:
        self._open: dict[ProcessIdentity, tuple[int, int]] = {}  # descriptor and reference count
        self._lock = threading.RLock()  # a signal handler may close a group

    def open(self, process: ProcessIdentity) -> int:
        with self._lock:
            descriptor, users = self._open.get(process, (-1, 0))
            if not users:
                descriptor = os.pidfd_open(process.pid)
            self._open[process] = (descriptor, users + 1)
            return descriptor

    def close(self, process: ProcessIdentity) -> None:
        with self._lock:
            descriptor, users = self._open.pop(process)
            if users > 1:
                self._open[process] = (descriptor, users - 1)
            else:
                os.close(descriptor)


_descriptors = _Descriptors()


def _after_fork_in_child() -> None:
    _descriptors._lock = threading.RLock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class ProcessWatch:
    """Failure detector for processes of this host.

    Parameters
    ----------
    processes : dict of int to ProcessIdentity
        The processes to watch, by a key of the caller (a rank).
    """

    def __init__(self, processes: dict[int, ProcessIdentity]) -> None:
        self._processes = processes
        self._descriptors: dict[int, int] = {}  # descriptor → key
        self._poll = select.poll() if hasattr(os, "pidfd_open") else None
        self._by_pid: set[int] = set()  # keys of processes without a descriptor
        self._ended: dict[int, ProcessExit] = {}
        # Two threads must not use a poll object at once; reentrant, as a signal handler may close a group.
        self._lock = threading.RLock()
        for key, process in processes.items():
            self._watch(key, process)

    def _watch(self, key: int, process: ProcessIdentity) -> None:
        if self._poll is None:
            self._by_pid.add(key)
            return
        try:
            descriptor = _descriptors.open(process)
        except ProcessLookupError:
            self._ended[key] = ProcessExit()
            return
        except OSError:  # an old kernel, or no descriptors left: watch by pid instead
            self._by_pid.add(key)
            return
        if process.started and _start_time(process.pid) not in (0, process.started):
            _descriptors.close(process)
            self._ended[key] = ProcessExit()
            return
        self._descriptors[descriptor] = key
        self._poll.register(descriptor, select.POLLIN)

    def ended(self) -> dict[int, ProcessExit]:
        """Return the exits of the processes that have ended so far, by key."""
        with self._lock:
            self._poll_processes()
            return dict(self._ended)

    def _poll_processes(self) -> None:
        if self._poll is not None:
            for descriptor, _ in self._poll.poll(0):
                key = self._descriptors.pop(descriptor)
                self._poll.unregister(descriptor)
                self._ended[key] = _exit_of(self._processes[key].pid, descriptor)
                _descriptors.close(self._processes[key])
        for key in list(self._by_pid):
            process = self._processes[key]
            if not _exists(process):
                same = process.started in (0, _start_time(process.pid))
                self._ended[key] = _exit_of(process.pid) if same else ProcessExit()
                self._by_pid.remove(key)

    def close(self) -> None:
        with self._lock:
            for key in self._descriptors.values():
                _descriptors.close(self._processes[key])
            self._descriptors.clear()
            self._by_pid.clear()
            self._processes = {}
            self._poll = None


def _exists(process: ProcessIdentity) -> bool:
    """Return True if a process is running; a zombie is not."""
    fields = _stat_fields(process.pid)
    if fields and fields[0] in "ZX":
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    started = int(fields[19]) if len(fields) > 19 else 0
    return 0 in (process.started, started) or process.started == started


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third on (the second, the name, may contain spaces)."""
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


def _exit_of(pid: int, descriptor: int = -1) -> ProcessExit:
    fields = _stat_fields(pid)
    if fields and fields[0] in "ZX" and len(fields) > 49:
        return ProcessExit.from_wait_status(int(fields[49]))
    if sys.platform == "linux" and descriptor >= 0:
        import fcntl

        info = bytearray(struct.pack("=Q", _PIDFD_INFO_EXIT).ljust(_PIDFD_INFO_BYTES, b"\0"))
        with suppress(OSError):
            fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
            if struct.unpack_from("=Q", info)[0] & _PIDFD_INFO_EXIT:
                return ProcessExit.from_wait_status(struct.unpack_from("=i", info, 60)[0])
    return ProcessExit()


# --- last messages and failure attribution ---


LAST_MESSAGE_BYTES = 512  # fixed size on the wire; shorter messages are padded
_REASON_BYTES = 400  # longer reasons are truncated
_PREFIX_BYTES = 2
# The open groups of this process, each with the id of the exception that was being handled when it was made: a program
# may start again within its handler of a failure, which is not a reason to leave the new group.
_open_groups: weakref.WeakKeyDictionary[Backend, int] = weakref.WeakKeyDictionary()

_TERMINATION_SIGNALS = (1, 2, 15)  # SIGHUP, SIGINT, SIGTERM; the numbers are the same on all systems
_COMPLETE = 1  # last byte of a message that has been written completely


class Evidence:
    """Weights of the evidence about a lost rank: the cause of a loss is the rank with the largest weight.

    Among equal weights it is the one noticed first.
    """

    LEFT = 0  # left the group normally
    LEFT_BADLY = 1  # left the group normally, and its process ended with an error afterwards
    GAVE_UP = 2  # left without knowing the cause, or its own error came after another rank's death
    TERMINATED = 3  # by a signal that launchers send to the remaining ranks
    DIED = 4  # for an unknown reason
    EXITED = 5  # with an error and without a last message
    KILLED = 6  # by another signal, or another rank reported its loss
    RAISED = 7  # an error of its own


@dataclass(frozen=True)
class Cause:
    """The world rank that caused a loss, and the reason."""

    rank: int
    reason: str
    weight: int
    exit_code: int | None = None
    signal: int | None = None
    noticed: float = 0.0  # a time of `time.monotonic`

    def error(
        self, what: str, sequence: int, group: str = "", detail: str = "", gone: tuple[int, ...] = ()
    ) -> PeerLost:
        """Return the error for operation `sequence` of `group`, called `what`, which waited for the ranks `gone`."""
        where = f"operation {sequence}" + (f" of the {group}" if group else "")
        return PeerLost(
            f"rank {self.rank} {self.reason}; noticed in {what}, {where}{detail}. "
            "Shut this context down; the remaining ranks can start a new one",
            rank=self.rank,
            exit_code=self.exit_code,
            signal=self.signal,
            operation=what,
            sequence=sequence,
            reason=self.reason,
            gone=gone,
        )


class LastMessage(msgspec.Struct, frozen=True, array_like=True):
    """The last message of a rank to the others of a group."""

    rounds: int  # exchanges of the group that the sender has completed: it is not missing in these
    rank: int  # world rank that caused the departure: its own, or one that it has lost; -1 if unknown
    reason: str  # predicate of a sentence about that rank, e.g. "raised KeyError: 'x'"
    failed: bool  # False for a normal departure
    exit_code: int | None = None
    signal: int | None = None
    after: int = -1  # a rank whose process had died before the sender raised its own error; -1 if there was none

    @classmethod
    def because_of(cls, error: BaseException | None, me: int, rounds: int, after: int = -1) -> LastMessage:
        """Return the message of world rank `me`, which leaves because of `error`, or normally without one."""
        if error is None:
            return cls(rounds, me, "has left this group: its context was shut down, or its process ended", False)
        lost = loss_behind(error)
        if lost is not None:
            return cls(rounds, lost.rank, _cut(lost.reason or str(lost)), True, lost.exit_code, lost.signal)
        if isinstance(error, SystemExit):
            code = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
            return cls(rounds, me, _cut(f"left by sys.exit({_text_of(error)})"), True, code, after=after)
        text = _text_of(error)
        reason = _cut(f"raised {type(error).__name__}" + (f": {text}" if text else ""))
        return cls(rounds, me, reason, True, after=after)

    def packed(self) -> np.ndarray:
        """Serialize the message into LAST_MESSAGE_BYTES bytes."""
        content = msgspec.msgpack.encode(self)
        filled = len(content).to_bytes(_PREFIX_BYTES) + content.ljust(LAST_MESSAGE_BYTES - _PREFIX_BYTES - 1, b"\0")
        return np.frombuffer(bytearray(filled + bytes([_COMPLETE])), np.uint8)

    @classmethod
    def unpacked(cls, room: np.ndarray) -> LastMessage | None:
        """Deserialize a message; return None if `room` holds none, or not all of it yet."""
        if room[-1] != _COMPLETE:
            return None
        content = room.tobytes()
        length = int.from_bytes(content[:_PREFIX_BYTES])
        try:
            return msgspec.msgpack.decode(content[_PREFIX_BYTES : _PREFIX_BYTES + length], type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            return cls(0, -1, _cut(f"left with an unreadable last message ({error})"), True)


class LastMessages:
    """The last messages that one rank of a group has received, by the group ranks of their senders."""

    def __init__(self, rank: int, world_ranks: Sequence[int]) -> None:
        self._me = world_ranks[rank]
        self._world_ranks = world_ranks
        self._received: dict[int, tuple[LastMessage, float]] = {}

    def record(self, sender: int, message: LastMessage) -> None:
        self._received.setdefault(sender, (message, time.monotonic()))

    def has_message_from(self, sender: int) -> bool:
        return sender in self._received

    def all_left(self) -> bool:
        return len(self._received) == len(self._world_ranks) - 1

    def cause(
        self,
        senders: Collection[int] | None = None,
        rounds: int | None = None,
        before: float = float("inf"),
        exits: Mapping[int, ProcessExit] = MappingProxyType({}),
    ) -> Cause | None:
        """Return the cause of the loss of ranks, or None if no rank is known to be gone.

        Parameters
        ----------
        senders : collection of int, optional
            Group ranks that are waited for, by default all.
        rounds : int, optional
            The exchange that is waited in; a rank that has completed it is not missing.
        before : float, default inf
            A time of `time.monotonic`; messages received later are ignored.
        exits : mapping of int to ProcessExit
            Exits of processes, by group rank.
        """
        received = self._received.copy()
        causes = [
            replace(self._cause_from_message(sender, message, exits.get(sender)), noticed=at)
            for sender, (message, at) in received.items()
            if (senders is None or sender in senders) and (rounds is None or message.rounds <= rounds) and at <= before
        ]
        causes += [
            self._cause_from_exit(rank, process_exit)
            for rank, process_exit in exits.items()
            if rank not in received and (senders is None or rank in senders)
        ]
        return max(causes, key=lambda cause: (cause.weight, -cause.noticed), default=None)

    def _cause_from_message(self, sender: int, message: LastMessage, process_exit: ProcessExit | None) -> Cause:
        """Return the cause according to the last message of a rank and, if known, the exit of its process."""
        rank = self._world_ranks[sender]
        if not message.failed:
            if process_exit is None:
                return Cause(rank, message.reason, Evidence.LEFT)
            weight = Evidence.LEFT_BADLY if process_exit.severity > 1 else Evidence.LEFT
            return Cause(
                rank, f"{message.reason}, and {process_exit}", weight, process_exit.exit_code, process_exit.signal
            )
        if message.rank in (-1, self._me):  # -1, or this rank, which is not lost
            return Cause(rank, f"gave up on this group: {message.reason}", Evidence.GAVE_UP)
        if message.rank == rank:
            weight = Evidence.RAISED
        else:
            weight = Evidence.TERMINATED if message.signal in _TERMINATION_SIGNALS else Evidence.KILLED
        if message.after not in (-1, self._me):
            weight = Evidence.GAVE_UP
        return Cause(message.rank, message.reason, weight, message.exit_code, message.signal)

    def _cause_from_exit(self, rank: int, process_exit: ProcessExit) -> Cause:
        """Return the cause according to the exit of a process that has sent no last message."""
        if process_exit.signal is not None:
            weight = Evidence.TERMINATED if process_exit.signal in _TERMINATION_SIGNALS else Evidence.KILLED
        elif process_exit.exit_code is None:
            weight = Evidence.DIED
        else:
            weight = Evidence.EXITED if process_exit.exit_code else Evidence.LEFT_BADLY
        world_rank = self._world_ranks[rank]
        return Cause(
            world_rank, str(process_exit), weight, process_exit.exit_code, process_exit.signal, process_exit.noticed
        )


def loss_behind(error: BaseException | None) -> PeerLost | None:
    """Return the `PeerLost` among an error and its causes, or None: programs raise other errors because of it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, PeerLost):
            return error
        error = error.__cause__ or error.__context__
    return None


def error_to_leave_with(error: BaseException | None, backends: Iterable[Backend]) -> BaseException | None:
    """Return the error to send to the other ranks when this rank leaves these groups, because of `error` or normally.

    A loss that has ended one of the groups takes precedence over an error that does not have it among its causes: a
    program may notice the loss in one place and raise something else in another.
    """
    if loss_behind(error) is not None:
        return error
    groups = list(backends)
    failures = [group.failure for group in groups if group.failure is not None]
    losses = [group.loss for group in groups if group.loss is not None]
    return next(iter([*failures, *([] if error is None else [error]), *losses]), None)


def register_open(group: Backend) -> None:
    """Add a group to the open groups of this process, until `unregister_open`."""
    _open_groups[group] = id(sys.exc_info()[1])


def open_groups() -> list[Backend]:
    """Return the open groups of this process."""
    return list(_open_groups)


def unregister_open(group: Backend) -> None:
    """Remove a group from the open groups of this process."""
    _open_groups.pop(group, None)


def error_to_close_with(group: Backend) -> BaseException | None:
    """Return the error to send to the other ranks when this rank closes a group, or None.

    It is the exception that is being handled (`finally: destroy_process_group()`), or a loss that was noticed in this
    group or in another one of this process.
    """
    handled = sys.exc_info()[1]
    if id(handled) == _open_groups.get(group):
        handled = None
    return error_to_leave_with(handled, [group, *_open_groups])


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error in a user's __str__ must not keep this rank from leaving
        return ""


def _cut(reason: str) -> str:
    encoded = reason.encode(errors="replace")
    rest = " ..." if len(encoded) > _REASON_BYTES else ""
    return encoded[:_REASON_BYTES].decode(errors="ignore") + rest
