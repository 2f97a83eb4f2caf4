"""Tie this process's life to its parent's, then become another program.

Linux can kill a process at the moment its parent dies (PR_SET_PDEATHSIG), but only the process itself can
ask for it. Asking between fork and exec (`preexec_fn`) would run Python code in a forked copy of a parent
that may hold threads and locks. So the launcher starts this file, which asks and then execs the real
command: same pid, no fork. It is run by path with `-I -S` and imports next to nothing, to be quick.

The kernel's promise covers this process, not its children: those are the guardian's business.
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["tether"]

_PR_SET_PDEATHSIG = 1


def tether(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies; end now if the parent is dead already."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # a Python built without ctypes: the guardian alone has to do
    if os.getppid() != parent_pid:
        os._exit(128 + signal.SIGKILL)


def _main() -> None:
    tether(int(sys.argv[1]))
    command = sys.argv[2:]
    # Python starts with SIGPIPE ignored, and exec would hand that on.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(command[0], command)


if __name__ == "__main__":
    _main()
