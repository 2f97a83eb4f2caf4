"""The numbers of a caller's requests, and which of them are settled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Numbers"]


class Numbers:
    """Gives each number once, in rising order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._open: dict[int, None] = {}  # in rising order

    def take(self) -> tuple[int, int]:
        """A number, and the lowest one whose reply is still waited for: nobody asks for those below it again."""
        with self._lock:
            self._last += 1
            self._open[self._last] = None
            return self._last, next(iter(self._open))

    def settle(self, number: int) -> None:
        with self._lock:
            self._open.pop(number, None)

    @contextmanager
    def one(self) -> Iterator[tuple[int, int]]:
        """A number for as long as its reply is waited for."""
        number, settled = self.take()
        try:
            yield number, settled
        finally:
            self.settle(number)
