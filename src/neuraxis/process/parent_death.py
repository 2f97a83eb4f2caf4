"""Let the kernel kill this process when its parent dies (parent-death signal), then exec another program.

Linux can kill a process when its parent dies (PR_SET_PDEATHSIG), but only the process itself can request that. Doing it
between fork and exec (`preexec_fn`) would run Python code in a forked copy of a parent that may hold threads and locks.
So the launcher starts this file, which sets the signal and then execs the real command: same pid, no fork. It is run by
path with `-I -S` and imports almost nothing, to start fast.

The signal covers this process, not its children; those are ended by the parent-death watchdog (watchdog.py).
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Let the kernel kill this process when its parent dies; exit now if the parent is already dead."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # a Python built without ctypes: only the watchdog remains
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)


def _main() -> None:
    die_with_parent(int(sys.argv[1]))
    command = sys.argv[2:]
    # Python ignores SIGPIPE, and exec would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(command[0], command)


if __name__ == "__main__":
    _main()
