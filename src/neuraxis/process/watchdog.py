"""Parent-death watchdog: a process that ends the ranks if the launcher dies without doing so itself.

A launcher that is killed with -9 runs no handler. The watchdog reads from a pipe: lines `+pid` and `-pid` add and
remove process groups. At the end of file, which the kernel delivers for every kind of death, the watchdog ends all
remaining groups, grandchildren included. A fork of the launcher may hold the pipe open, so the watchdog also watches
the launcher's pidfd. The line `quit` makes it exit without ending anything.

It is run by path with `-I -S`, and imports only a little of the standard library.
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
        signal.signal(number, signal.SIG_IGN)  # it must outlive the launcher
    launcher = int(sys.argv[1])
    os.set_blocking(_STDIN, False)
    poller = select.poll()
    poller.register(_STDIN, select.POLLIN)
    if hasattr(os, "pidfd_open"):
        try:
            poller.register(os.pidfd_open(launcher), select.POLLIN)
        except OSError:
            pass  # already dead, so the pipe is at its end; or a kernel without pidfds, and only the pipe remains
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
