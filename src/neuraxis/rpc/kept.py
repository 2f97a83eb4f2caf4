"""The objects that stay here: who holds each, and when it can go."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import Any

from neuraxis.errors import CallRefused, UnknownFunction
from neuraxis.rpc.transport import Party

__all__ = ["Kept"]


class _Entry:
    def __init__(self, value: Any, kind: str) -> None:
        self.value = value
        self.kind = kind
        self.holders: Counter[Party] = Counter()


class Kept:
    """Objects by number. An object is freed when its last holder has let go."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, value: Any, kind: str, holder: Party) -> int:
        """Keep an object for a holder; its number."""
        entry = _Entry(value, kind)
        entry.holders[holder] = 1
        with self._lock:
            number = next(self._numbers)
            self._entries[number] = entry
            return number

    def method(self, number: int, name: str) -> Any:
        """A public method of an object."""
        entry = self._entry(number)
        if name.startswith("_"):
            raise CallRefused(f"{name!r} of a {entry.kind!r} is private: only public methods can be called")
        # Of its class: what an object merely refers to (a module, another function) was not meant to be called.
        if not callable(getattr(type(entry.value), name, None)):
            raise AttributeError(f"a {entry.kind!r} has no method {name!r}")
        return getattr(entry.value, name)

    def hold(self, number: int, holder: Party) -> None:
        with self._lock:
            self._entry(number).holders[holder] += 1

    def release(self, number: int, holder: Party) -> None:
        with self._lock:
            entry = self._entries.get(number)
            if entry is None:
                return
            entry.holders[holder] -= 1
            if entry.holders[holder] <= 0:
                del entry.holders[holder]
            freed = None if entry.holders else self._entries.pop(number)
        del freed  # not while we hold the lock: its end may be anything

    def parties(self) -> set[Party]:
        """Who holds something."""
        with self._lock:
            return {holder for entry in self._entries.values() for holder in entry.holders}

    def forget(self, party: Party) -> None:
        """Let go of what a party held that is gone."""
        freed = []
        with self._lock:
            for number, entry in list(self._entries.items()):
                if entry.holders.pop(party, 0) and not entry.holders:
                    freed.append(self._entries.pop(number))
        freed.clear()

    def clear(self) -> None:
        with self._lock:
            freed, self._entries = self._entries, {}
        freed.clear()

    def _entry(self, number: int) -> _Entry:
        entry = self._entries.get(number)
        if entry is None:
            raise UnknownFunction(f"there is no object of number {number} here (any more)")
        return entry
