"""Start and end the processes of a benchmark, whatever happens in between.

Every process leads a session of its own: Ctrl-C reaches only the benchmark, which then ends each process group in
order. Signals are deferred while a process is started or ended, because an exception at that point would leave a
process that nothing refers to.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from neuraxis.errors import LaunchError, NeuraxisError
from neuraxis.machine import usable_cores

__all__ = [
    "ContenderFailed",
    "defer_signals",
    "end_process",
    "find_mpirun",
    "last_error",
    "mpirun_command",
    "python_command",
    "signal_group",
    "start_process",
    "wait_for_all",
]


class ContenderFailed(NeuraxisError, RuntimeError):
    """A contender's processes died or no longer reply; the benchmark cannot measure it any further."""


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the end of the block."""
    received: list[int] = []
    old = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module; -P keeps files of the working folder from being imported instead."""
    return [sys.executable, "-P", "-m", module, *arguments]


def start_process(
    name: str,
    command: Sequence[str],
    *,
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; `name` is that of the contender in the error."""
    try:
        return subprocess.Popen(
            command,
            env=None if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors or output,
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"{name}: {command[0]} could not be started: {error.strerror}") from error


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process and what it has started, if it still runs."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def wait_for_all(processes: Sequence[subprocess.Popen[bytes]], timeout: float) -> None:
    """Wait until all processes have ended, or until the timeout (in seconds) is over."""
    deadline = time.monotonic() + timeout
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))


def end_process(
    process: subprocess.Popen[bytes], *steps: tuple[signal.Signals, float], kill_group: bool = False
) -> None:
    """End a process with signals of increasing force: (signal, seconds to wait for its effect).

    With `kill_group`, children that ignored the signals are killed as well.
    """
    if process.poll() is not None:
        return
    for number, timeout in steps:
        signal_group(process, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
            break
    if kill_group:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def last_error(log: str) -> str:
    """Return the last line of a log that names an error, else its last line."""
    # mpirun frames its own report, which follows that of the rank, with rulers.
    lines = [line.strip() for line in log.splitlines()]
    lines = [line for line in lines if line and not line.startswith("---")]
    errors = [line for line in lines if _names_error(line)]
    return (errors or lines or [""])[-1][:300]


def _names_error(line: str) -> bool:
    kind = line.split(":")[0]
    return "Error" in kind or "neuraxis.errors." in kind or ": error:" in line


def find_mpirun() -> str | None:
    """Return the mpirun of this Python's environment, or the first on PATH."""
    local = Path(sys.executable).parent / "mpirun"
    return str(local) if os.access(local, os.X_OK) else shutil.which("mpirun")


def mpirun_command(ranks: int) -> list[str]:
    mpirun = find_mpirun()
    if mpirun is None:
        raise LaunchError("mpi: no mpirun in the folder of this Python or on PATH")
    command = [mpirun, "-n", str(ranks)]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-run-as-root")
    if ranks > usable_cores():
        # Only then: the option also stops Open MPI from binding ranks to cores, which makes it slower.
        command.append("--oversubscribe")
    return command
