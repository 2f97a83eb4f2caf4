"""Handles of the launcher for the process of a rank and for the parent-death watchdog.

A dead rank stays a zombie until the whole attempt is over: survivors read its exit status from `/proc/<pid>/stat`,
which needs the zombie, and its process group id cannot be reused meanwhile. So the launcher detects death by a pidfd
and `waitid(WNOWAIT)`, which keep the zombie; where these are missing, it uses `Popen.poll`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from neuraxis.errors import LaunchError, ResourceExhausted
from neuraxis.machine import reporting_exhaustion

__all__ = ["LINUX", "POSIX", "ExitStatus", "RankProcess", "Watchdog", "groups_with_members", "with_parent_death_signal"]

POSIX = os.name == "posix"
LINUX = sys.platform.startswith("linux")
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class ExitStatus:
    """Exit code or signal of an ended process; exactly one is not None."""

    exit_code: int | None = None
    signal: int | None = None

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def shell_status(self) -> int:
        """Exit status as a shell reports it: 128 + signal for a killed process."""
        if self.signal is not None:
            return 128 + self.signal
        return self.exit_code or 0

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.exit_code}"
        try:
            return f"{signal.Signals(self.signal).name} (signal {self.signal})"
        except ValueError:
            return f"signal {self.signal}"

    @classmethod
    def from_returncode(cls, returncode: int) -> ExitStatus:
        return cls(signal=-returncode) if returncode < 0 else cls(exit_code=returncode)


class RankProcess:
    """The process of a rank, leader of its own session and process group."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: int | IO[bytes] | None,
        capture: bool,
        pass_fds: Sequence[int] = (),
    ) -> None:
        pipe = subprocess.PIPE if capture else None
        try:
            with reporting_exhaustion(f"rank {rank}"):
                self._popen = subprocess.Popen(
                    command,
                    env=dict(environment),
                    stdin=stdin,
                    stdout=pipe,
                    stderr=pipe,
                    bufsize=0,
                    start_new_session=POSIX,
                    pass_fds=tuple(pass_fds) if POSIX else (),
                )
        except ResourceExhausted:
            raise
        except OSError as error:
            raise LaunchError(f"cannot start rank {rank} with {command[0]!r}: {error}") from error
        self.rank = rank
        self.pid = self._popen.pid
        self.pidfd = _open_pidfd(self.pid)
        self.exit: ExitStatus | None = None
        self.ended_by_launcher = False

    @property
    def pipes(self) -> tuple[int, int] | None:
        """Descriptors of standard output and error, if they are captured."""
        if self._popen.stdout is None or self._popen.stderr is None:
            return None
        return self._popen.stdout.fileno(), self._popen.stderr.fileno()

    def check_exit(self) -> ExitStatus | None:
        """Return the exit status if the process has ended, and store it in `exit`."""
        if self.exit is None:
            self.exit = self._exit_status()
        return self.exit

    def send(self, number: int) -> None:
        """Send a signal to the rank and its children."""
        if POSIX:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass  # only a zombie is left (macOS: PermissionError)
        else:
            self._popen.send_signal(number)

    def terminate(self) -> None:
        if POSIX:
            self.send(signal.SIGTERM)
        else:
            self._popen.terminate()

    def kill(self) -> None:
        if POSIX:
            self.send(signal.SIGKILL)
        else:
            self._popen.kill()

    def reap(self) -> None:
        """Wait for the end of the process, reap the zombie and close every descriptor."""
        self._popen.wait()
        if self.exit is None:
            self.exit = ExitStatus.from_returncode(self._popen.returncode)
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                pipe.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def _exit_status(self) -> ExitStatus | None:
        if self.pidfd is None:
            returncode = self._popen.poll()
            return None if returncode is None else ExitStatus.from_returncode(returncode)
        try:
            state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            # Other code reaped it (SIGCHLD ignored, a stray os.wait): its status is lost, which Popen reports as 0.
            return ExitStatus(exit_code=0)
        if state is None:
            return None
        if state.si_code == os.CLD_EXITED:
            return ExitStatus(exit_code=state.si_status)
        return ExitStatus(signal=state.si_status)


class Watchdog:
    """Runs watchdog.py, which ends the watched ranks if this process dies.

    Windows has no process groups, so there it does nothing.
    """

    def __init__(self) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        if POSIX:
            self._popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_HERE / "watchdog.py"), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )

    def watch(self, process: RankProcess) -> None:
        self._write(f"+{process.pid}\n")

    def forget(self, process: RankProcess) -> None:
        self._write(f"-{process.pid}\n")

    def close(self) -> None:
        if self._popen is None:
            return
        self._write("quit\n")
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: str) -> None:
        if self._popen is None or self._popen.stdin is None:
            return
        try:
            self._popen.stdin.write(line.encode())
        except BrokenPipeError:
            pass  # the watchdog was killed; the parent-death signal remains


def with_parent_death_signal(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` with the parent-death signal, on systems that have one."""
    if not LINUX:
        return list(command)
    return [sys.executable, "-I", "-S", str(_HERE / "parent_death.py"), str(os.getpid()), *command]


def groups_with_members(groups: Iterable[int]) -> set[int]:
    """Return the process groups with a live process, zombies not counted (Linux only)."""
    wanted = set(groups)
    alive: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path("/proc", entry, "stat").read_text(errors="replace")
        except OSError:
            continue  # ended meanwhile
        # The name in parentheses may contain anything; the fields after the last parenthesis are fixed.
        state, _, group = text.rpartition(")")[2].split()[:3]
        if int(group) in wanted and state not in "ZX":
            alive.add(int(group))
    return alive


def _open_pidfd(pid: int) -> int | None:
    if not (hasattr(os, "pidfd_open") and hasattr(os, "waitid")):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # a kernel or sandbox without pidfds
