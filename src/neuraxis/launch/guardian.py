"""The process that ends the ranks when the launcher cannot any more.

A launcher that is killed with -9 runs no handler. This process holds the other end of a pipe: `+pid` and
`-pid` lines say which process groups are in its care, and the end of file, which the kernel delivers
whatever way the launcher dies, makes it end them all, grandchildren included. A fork of the launcher
may hold the pipe open, so the launcher's own death is watched as well. `quit` ends it with nothing done.

It is run by path with `-I -S`, so only the standard library is imported, and little of it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

_GRACE_S = 1.0
_STDIN = 0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the launcher does, not before
    launcher = int(sys.argv[1])
    os.set_blocking(_STDIN, False)
    poller = select.poll()
    poller.register(_STDIN, select.POLLIN)
    if hasattr(os, "pidfd_open"):
        try:
            poller.register(os.pidfd_open(launcher), select.POLLIN)
        except OSError:
            pass  # dead already, so the pipe is at its end; or a kernel without pidfds, and the pipe must do
    groups: set[int] = set()
    pending = b""
    launcher_lives = True
    while launcher_lives:
        ready = {descriptor for descriptor, _ in poller.poll()}
        launcher_lives = ready == {_STDIN}
        while True:
            try:
                data = os.read(_STDIN, 65536)
            except BlockingIOError:
                break
            if not data:
                launcher_lives = False
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if line == b"quit":
                    return
                if line.startswith(b"+"):
                    groups.add(int(line[1:]))
                elif line.startswith(b"-"):
                    groups.discard(int(line[1:]))
    _end(groups)


def _end(groups: set[int]) -> None:
    left = {group for group in groups if _signal(group, signal.SIGTERM)}
    deadline = time.monotonic() + _GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = {group for group in left if _signal(group, 0)}
    for group in left:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
