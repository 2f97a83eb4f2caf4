"""How many calls are served at a time.

A call needs a *place* while its function runs. A function that waits for a call of its own gives its place back for as
long as it waits: so calls that call back do not deadlock, even with a single place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Pool"]


class Pool:
    """`places` for functions that run. `given_back` is told when one of them begins to wait, with whether more of them
    wait than ever before: a thread that is added then stays, for later."""

    def __init__(self, places: int, given_back: Callable[[bool], None]) -> None:
        self._free = places
        self._waiting = 0
        self._most_waiting = 0
        self._given_back = given_back
        self._changed = threading.Condition(threading.Lock())
        self._mine = threading.local()
        self._inside = 0  # functions that have begun and not ended, waiting ones included

    def try_enter(self) -> bool:
        """Take a place, if there is one."""
        with self._changed:
            if self._free <= 0:
                return False
            self._free -= 1
            self._inside += 1
        self._mine.depth = getattr(self._mine, "depth", 0) + 1
        return True

    def enter(self) -> None:
        """Wait for a place."""
        while not self.try_enter():
            with self._changed:
                self._changed.wait_for(lambda: self._free > 0)

    def leave(self) -> None:
        self._mine.depth -= 1
        with self._changed:
            self._inside -= 1
            self._free += 1
            self._changed.notify_all()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what waits for another call: another function has the place of this thread meanwhile."""
        if not getattr(self._mine, "depth", 0):
            yield
            return
        with self._changed:
            self._free += 1
            self._waiting += 1
            more = self._waiting > self._most_waiting
            self._most_waiting = max(self._waiting, self._most_waiting)
            self._changed.notify_all()
        try:
            self._given_back(more)
            yield
        finally:
            with self._changed:
                # It goes on at once, though another may have its place: whoever has that may be waiting for it.
                self._waiting -= 1
                self._free -= 1

    def wait_until_empty(self, patience_s: float) -> bool:
        """Wait for functions that run; whether all have ended. One that runs in this thread is not waited for."""
        own = 1 if getattr(self._mine, "depth", 0) else 0
        deadline = time.monotonic() + patience_s
        with self._changed:
            return self._changed.wait_for(lambda: self._inside <= own, max(0.0, deadline - time.monotonic()))
