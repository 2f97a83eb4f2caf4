"""How many calls are served at a time.

A call needs a *place* while its function runs. A function that waits for a call of its own gives its place back for as
long as it waits: so calls that call back do not deadlock, even with a single place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

__all__ = ["Pool"]


class _Mine(threading.local):
    depth = 0  # functions that this thread runs, one within the other
    waits = 0


_NOTHING = nullcontext()


class Pool:
    """`places` for functions that run. `given_back` is told when one of them begins to wait, with whether more of them
    wait than ever before: a thread that is added then stays, for later."""

    def __init__(self, places: int, given_back: Callable[[bool], None]) -> None:
        self._free = places
        self._queued = 0  # threads that wait for a place
        self._waiting = 0
        self._most_waiting = 0
        self._given_back = given_back
        self._lock = threading.Lock()  # taken by itself where nobody waits: that is quicker
        self._changed = threading.Condition(self._lock)
        self._mine = _Mine()
        self._inside = 0  # calls that have begun and are not answered, waiting ones included
        self._awaited = 0  # threads that wait until there are none
        self.closed = False

    def try_enter(self) -> bool:
        """Take a place, if there is one that nobody waits for."""
        with self._lock:
            if self._free <= self._queued:
                return False
            self._free -= 1
            self._inside += 1
        self._mine.depth += 1
        return True

    def enter(self, timeout: float) -> bool:
        """Wait for a place; False where there was none in time, or there will be none."""
        with self._changed:
            self._queued += 1
            try:
                self._changed.wait_for(lambda: self._free > 0 or self.closed, timeout)
                if self.closed or self._free <= 0:
                    return False
                self._free -= 1
                self._inside += 1
            finally:
                self._queued -= 1
        self._mine.depth += 1
        return True

    def leave(self) -> None:
        """The function has ended: another may have its place. To be followed by `answered`."""
        self._mine.depth -= 1
        with self._lock:
            self._free += 1
            if self._queued:
                self._changed.notify_all()

    def answered(self) -> None:
        """Who called has its reply, or will not get it."""
        with self._lock:
            self._inside -= 1
            if self._awaited:
                self._changed.notify_all()

    def waiting(self) -> AbstractContextManager[None]:
        """Around what waits for another call: another function has the place of this thread meanwhile.

        A thread that waits for several (in one call for another that it needs, or in asyncio) gives one place back.
        """
        return self._without_place() if self._mine.depth else _NOTHING

    @contextmanager
    def _without_place(self) -> Iterator[None]:
        self._mine.waits += 1
        try:
            if self._mine.waits == 1:
                self._give_back()
            yield
        finally:
            self._mine.waits -= 1
            if not self._mine.waits:
                with self._changed:
                    # It goes on at once, though another may have its place: whoever has that may be waiting for it.
                    self._waiting -= 1
                    self._free -= 1

    def _give_back(self) -> None:
        with self._changed:
            self._free += 1
            self._waiting += 1
            more = self._waiting > self._most_waiting
            self._most_waiting = max(self._waiting, self._most_waiting)
            self._changed.notify_all()
        self._given_back(more)

    def wait_until_empty(self, patience_s: float) -> bool:
        """Wait for functions that run, and their replies; whether all have ended.

        One that runs in this thread is not waited for.
        """
        own = 1 if self._mine.depth else 0
        with self._changed:
            self._awaited += 1
            try:
                return self._changed.wait_for(lambda: self._inside <= own, patience_s)
            finally:
                self._awaited -= 1

    def close(self) -> None:
        """Nobody who waits for a place gets one any more."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
