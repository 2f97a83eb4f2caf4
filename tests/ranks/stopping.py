"""Stop a process with SIGSTOP, as a debugger does, and resume it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_LIMIT_S = 20.0


def stop(pid: int) -> None:
    """Stop a process; return when all of its threads have stopped.

    The kernel stops the threads one by one after the signal; on a busy machine some run on for a while.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _LIMIT_S
    while not all(_is_stopped(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} still runs after SIGSTOP"
        time.sleep(0.001)


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def _is_stopped(thread: Path) -> bool:
    try:
        after_name = (thread / "stat").read_text().rpartition(")")[2]
    except OSError:  # it has ended
        return True
    return after_name.split()[0] in "TZX"
