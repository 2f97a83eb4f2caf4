"""Processes that stand still, as under a debugger."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

_LIMIT_S = 20.0


def stop(pid: int) -> None:
    """Stop a process; return when all of its threads stand.

    The signal only makes one of them stop the others, when it is its turn: on a busy machine they go on for a while.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + _LIMIT_S
    while not all(_stands(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < deadline, f"process {pid} goes on"
        time.sleep(0.001)


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def _stands(thread: Path) -> bool:
    try:
        after_name = (thread / "stat").read_text().rpartition(")")[2]
    except OSError:  # it has ended
        return True
    return after_name.split()[0] in "TZX"
