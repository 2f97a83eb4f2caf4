"""A queue whose timed wait ends on time, also when a signal comes."""

from __future__ import annotations

import threading
import time
from collections import deque
from queue import Empty
from typing import Generic, TypeVar

__all__ = ["Empty", "TimedQueue"]

T = TypeVar("T")


class TimedQueue(Generic[T]):
    """A queue without a bound, for any number of threads; `put` may be called from anywhere, a finalizer included.

    `queue.SimpleQueue.get(timeout=...)` waits for ever if a signal is handled while it waits and the handler ends
    after the deadline (CPython 3.11 and others take what is left, a negative number, for "no deadline"): Ctrl-C came
    and the process stayed. Waiting for a lock has no such fault.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._bell = threading.Lock()  # free: something was put in since a reader last found nothing
        self._bell.acquire()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._ring()

    def get(self, timeout: float | None = None) -> T:
        """The oldest thing in it; if none comes in time, `Empty`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._bell.acquire(timeout=left):
                    raise Empty from None
                continue
            if self._items:
                self._ring()  # one ring may stand for several things: another reader is to look, too
            return item

    def get_nowait(self) -> T:
        try:
            return self._items.popleft()
        except IndexError:
            raise Empty from None

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def _ring(self) -> None:
        if self._bell.locked():
            try:
                self._bell.release()
            except RuntimeError:
                pass  # another thread has rung in this very moment
