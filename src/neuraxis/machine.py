"""Resources of the machine that this process may use: cores, open files, processes and memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from neuraxis.errors import InvalidArgument, NeuraxisError, ResourceExhausted

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

__all__ = ["OUT_OF_FILES", "check_process_count", "out_of_files", "reporting_exhaustion", "usable_cores"]

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
"""Error numbers of a system that cannot open more files, for this process or at all."""

_LIMIT_VARIABLE = "NEURAXIS_MAX_PROCESSES"
_PROCESS_BYTES = 32 * 2**20  # least private memory of a Python process with NumPy
_PROCESS_FILES = 5  # open in the parent for each process: output, errors, result, pidfd
_OWN_FILES = 32  # open in this process for other purposes


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its CPU affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no such limit here
    return cores


def check_process_count(n: int, what: str = "n") -> None:
    """Raise if the machine cannot hold `n` more processes.

    More processes than cores are allowed. The limits are those at which starts fail halfway or the machine runs out of
    memory: each process needs 32 MiB of available memory, five open files and one process of the user's limit. The
    environment variable NEURAXIS_MAX_PROCESSES replaces these limits.

    Parameters
    ----------
    n : int
        Number of processes to start.
    what : str
        Name of the argument in the error message.

    Raises
    ------
    InvalidArgument
        `n` is less than 1, or more than the machine can hold.

    Examples
    --------
    >>> check_process_count(1)
    """
    if n < 1:
        raise InvalidArgument(f"{what} is {n}: at least one process is needed")
    chosen = os.environ.get(_LIMIT_VARIABLE, "")
    if chosen:
        if not chosen.isdecimal():
            raise InvalidArgument(f"{_LIMIT_VARIABLE} is {chosen!r}. It must be a whole number of processes")
        bounds = [(int(chosen), f"{_LIMIT_VARIABLE} is {chosen}")]
    else:
        bounds = list(_process_bounds())
    most, why = min(bounds, default=(n, ""))
    if n > most:
        raise InvalidArgument(
            f"{what} is {n}, but this machine can hold about {max(most, 1)} more processes: {why}. "
            f"Use fewer, or set {_LIMIT_VARIABLE}={n} to start them anyway"
        )


def _process_bounds() -> Iterator[tuple[int, str]]:
    """Yield limits on the number of new processes, each with its reason."""
    available = _available_memory()
    if available is not None:
        yield available // _PROCESS_BYTES, f"{available / 2**30:.1f} GiB of memory are available"
    with suppress(OSError, ValueError):
        limit = int(Path("/proc/sys/kernel/pid_max").read_text())
        yield limit, f"the largest process id is {limit}"
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/pids.max").read_text())
        used = int(Path("/sys/fs/cgroup/pids.current").read_text())
        yield limit - used, f"its container allows {limit} processes and has {used}"
    if resource is None:
        return
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY:
        yield (files - _OWN_FILES) // _PROCESS_FILES, f"a process may open {files} files (ulimit -n)"
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes != resource.RLIM_INFINITY and os.getuid() != 0:  # the limit does not apply to root
        yield processes, f"a user may have {processes} processes (ulimit -u)"


def _available_memory() -> int | None:
    """Return the bytes available without swapping, by the machine and the container."""
    bounds = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        bounds.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        bounds.append(max(0, limit - int(Path("/sys/fs/cgroup/memory.current").read_text())))
    return min(bounds, default=None)


def out_of_files(what: str) -> ResourceExhausted:
    """Return the error for `what`, which needed one more open file than this process may have."""
    limit = "" if resource is None else f" (ulimit -n) is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}"
    return ResourceExhausted(
        f"{what} needs an open file, and this process can have no more: its limit{limit}",
        "Raise the limit (ulimit -n 4096), or close groups, nodes and files that are not needed",
    )


@contextmanager
def reporting_exhaustion(what: str) -> Iterator[None]:
    """Convert a system error while starting `what`, for lack of files, processes or memory, to ResourceExhausted."""
    try:
        yield
    except NeuraxisError:
        raise
    except OSError as error:
        if error.errno in OUT_OF_FILES:
            raise out_of_files(what) from error
        if error.errno in (errno.EAGAIN, errno.ENOMEM):
            raise ResourceExhausted(
                f"the system cannot start more processes for {what} ({error.strerror})",
                "Start fewer, or raise the limits on processes (ulimit -u) and memory",
            ) from error
        raise
