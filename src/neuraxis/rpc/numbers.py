"""The numbers of a caller's requests, and which of them are settled."""

from __future__ import annotations

import threading
from itertools import islice
from typing import NamedTuple

from neuraxis.rpc.transport import Party

__all__ = ["Number", "Numbers"]

_MOST_OPEN = 128  # that a request names, 8 bytes each


class Number(NamedTuple):
    """The number of a request.

    Nobody waits any more for a reply to a request to the same party of a number below `settled`, but for those of
    `still_open`. So one that takes long does not keep the party from forgetting those that came after it.
    """

    value: int
    settled: int
    still_open: list[int]


class Numbers:
    """Gives each number once, in rising order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._open: dict[Party, dict[int, None]] = {}  # each in rising order

    def take(self, to: Party) -> Number:
        with self._lock:
            self._last = number = self._last + 1
            still_open = self._open.setdefault(to, {})
            earlier = list(islice(still_open, _MOST_OPEN + 1)) if still_open else []
            still_open[number] = None
        if len(earlier) <= _MOST_OPEN:
            return Number(number, number, earlier)
        return Number(number, earlier.pop(), earlier)

    def settle(self, to: Party, number: int) -> None:
        """Nobody waits for its reply any more."""
        with self._lock:
            still_open = self._open.get(to)
            if still_open is not None:
                still_open.pop(number, None)
                if not still_open:
                    del self._open[to]
