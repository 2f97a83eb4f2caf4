"""This rank's doorbell: a counter in shared memory that others increment, and who of our threads minds it.

A thread that waits looks at the bell for a moment, in compiled code that holds no lock of Python's, and then sleeps on
it. To wake a sleeper costs a system call at the other side and a turn of Python's lock here. So while one thread looks,
others need not know that more of them sleep: the one that looks moves the bytes of all, and wakes whom they are for.
Before it goes, it lets the sleepers be known again, and looks once more for what came in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from neuraxis.comm.futex import sleep_on_word
from neuraxis.comm.rings import DOORBELL, await_ring, change_sleepers, wake_sleepers

__all__ = ["Doorbell"]

# How often to look at the bell in a row, and then with the core given away in between. Who is to ring it has to run
# Python first, perhaps on this very core; and to give away a core that nobody wants takes half a microsecond.
_SPINS, _YIELDS = 100, 500
_NAP_S = 0.05  # how long a sleeper sleeps before it looks whether the others live


class Doorbell:
    """The bell at an address."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._looking = 0
        self._sleeping = 0
        self._known = 0  # sleepers that others know of: one at most stands for all

    @property
    def has_sleepers(self) -> bool:
        return self._sleeping > 0

    def look(self, until: Callable[[], bool], move: Callable[[], bool]) -> None:
        """Move bytes as they come, until it is done or nothing comes for as long as the patience lasts."""
        self._count(looking=1)
        try:
            seen = change_sleepers(self._address, 0)
            while not until():
                if move():
                    continue
                rung = await_ring(self._address, seen, _SPINS, _YIELDS)
                if rung == seen:
                    return
                seen = rung
        finally:
            self._count(looking=-1)
            if self._sleeping:
                move()

    def sleep(self, move: Callable[[], bool], seconds: float = _NAP_S) -> None:
        """Sleep until the bell rings, or for a moment; not at all if there is something to move."""
        self._count(sleeping=1)
        try:
            seen = change_sleepers(self._address, 0)
            if not move():
                sleep_on_word(self._address + DOORBELL, seen, min(seconds, _NAP_S))
        finally:
            self._count(sleeping=-1)

    def wake(self) -> None:
        """Wake our own sleepers."""
        wake_sleepers(self._address)

    def _count(self, looking: int = 0, sleeping: int = 0) -> None:
        with self._lock:
            self._looking += looking
            self._sleeping += sleeping
            known = 1 if self._sleeping and not self._looking else 0
            if known != self._known:
                change_sleepers(self._address, known - self._known)
                self._known = known
