"""How many calls are served at a time.

A call needs a *place* while its function runs. A function that waits for a call of its own gives its place back for as
long as it waits: so calls that call back do not deadlock, even with a single place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from neuraxis.errors import CallRefused

__all__ = ["Pool"]


class Pool:
    """`places` for functions that run.

    `need_thread` is called when more of them wait than ever before: threads that were added then stay, for later.
    """

    def __init__(self, places: int, need_thread: Callable[[], None]) -> None:
        self._free = places
        self._waiting = 0
        self._most_waiting = 0
        self._need_thread = need_thread
        self._changed = threading.Condition()
        self._mine = threading.local()
        self._closed = False
        self._inside = 0  # functions that have begun and not ended, waiting ones included

    def enter(self) -> None:
        """Wait for a place; CallRefused if there will be none."""
        with self._changed:
            self._take(refuse=True)
            self._inside += 1
        self._mine.depth = getattr(self._mine, "depth", 0) + 1

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
            short = self._waiting > self._most_waiting
            self._most_waiting = max(self._waiting, self._most_waiting)
            self._changed.notify_all()
        try:
            if short:
                self._need_thread()
            yield
        finally:
            with self._changed:
                self._waiting -= 1
                self._take(refuse=False)

    def close(self, patience_s: float) -> bool:
        """Begin nothing more, and wait for what runs; whether all has ended. One that runs here is not waited for."""
        own = 1 if getattr(self._mine, "depth", 0) else 0
        deadline = time.monotonic() + patience_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._inside > own and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._inside <= own

    def _take(self, refuse: bool) -> None:
        while self._free <= 0 and not (refuse and self._closed):
            self._changed.wait()
        if refuse and self._closed:
            raise CallRefused("the callee is shutting down")
        self._free -= 1
