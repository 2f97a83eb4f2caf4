"""Limits on the log lines and the memory that a remote peer can make a process use.

Any program that can reach a process can send it bad messages as fast as the network allows. One log line for each would
fill a disk and hide everything else, and storing all of them would fill the memory. `Refusals` counts refused
messages and connections by reason and logs each reason at most once per interval; `LineLimit` limits the lines of one
source; `FairDict` is a bounded dictionary in which no peer can evict the entries of others.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, OrderedDict
from typing import Generic, TypeVar

__all__ = ["INTERVAL_S", "FairDict", "LineLimit", "Refusals"]

INTERVAL_S = 10.0  # between two log lines about the same thing
_MAX_REASONS = 100  # counted apart; more share one count
_LONGEST = 300  # characters of a detail, which a remote peer may have written

_K = TypeVar("_K")
_V = TypeVar("_V")


class LineLimit:
    """A rate limit for the log lines of one source.

    Parameters
    ----------
    lines : int
        Number of lines allowed within each interval.
    interval_s : float
        Length of an interval in seconds.

    Examples
    --------
    >>> limit = LineLimit(2)
    >>> [limit.take() for _ in range(4)]
    [0, 0, None, None]
    """

    def __init__(self, lines: int, interval_s: float = INTERVAL_S) -> None:
        self._lines = lines
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._since = -interval_s
        self._used = 0
        self._withheld = 0

    def take(self) -> int | None:
        """Return how many lines were withheld since the last one; None if this one must be withheld as well."""
        now = time.monotonic()
        with self._lock:
            if now >= self._since + self._interval_s:
                self._since, self._used = now, 0
            if self._used >= self._lines:
                self._withheld += 1
                return None
            self._used += 1
            withheld, self._withheld = self._withheld, 0
            return withheld


class Refusals:
    """Counts of refused messages and connections, by reason.

    Parameters
    ----------
    log : logging.Logger
        Logger for the warnings.
    where : str
        Prefix of every line.
    interval_s : float
        Seconds between two lines about the same reason. The first is logged immediately.

    Examples
    --------
    >>> refusals = Refusals(logging.getLogger("doctest"), "service 'look'")
    >>> for _ in range(3):
    ...     refusals.add("a sender that the key does not name", "sent by arm, names console")
    >>> refusals.counts()
    {'a sender that the key does not name': 3}
    """

    def __init__(self, log: logging.Logger, where: str, interval_s: float = INTERVAL_S) -> None:
        self._log = log
        self._where = where
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: dict[str, tuple[float, int]] = {}  # by reason: when, and the count at that time

    def add(self, reason: str, detail: object = "", amount: int = 1) -> None:
        """Count a refusal, and log it unless the same reason was logged within the interval."""
        now = time.monotonic()
        with self._lock:
            if reason not in self._counts and len(self._counts) >= _MAX_REASONS:
                reason = "other reasons"
            self._counts[reason] += amount
            total = self._counts[reason]
            last, before = self._logged.get(reason, (-self._interval_s, 0))
            if now < last + self._interval_s:
                return
            self._logged[reason] = (now, total)
        text = _printable(detail)
        more = f" ({total - before:,} more since the last line, {total:,} in all)" if before else ""
        self._log.warning("%s: refused: %s%s%s", self._where, reason, f": {text}" if text else "", more)

    def close(self) -> None:
        """Log the totals of reasons that have occurred again since their last line."""
        with self._lock:
            left = [(reason, total) for reason, total in self._counts.items() if total > self._logged[reason][1]]
            self._logged.update((reason, (time.monotonic(), total)) for reason, total in left)
        for reason, total in left:
            self._log.warning("%s: refused: %s (%s in all)", self._where, reason, f"{total:,}")

    def counts(self) -> dict[str, int]:
        """Return how often each reason has occurred."""
        with self._lock:
            return dict(self._counts)

    def total(self) -> int:
        """Return the number of refusals for all reasons."""
        with self._lock:
            return sum(self._counts.values())


class FairDict(Generic[_K, _V]):
    """A thread-safe dictionary of bounded size, in which every entry has an owner.

    When there are too many entries, the owner with the most entries loses its oldest one; when they have too many
    bytes, the owner with the most bytes does. So no owner can evict the entries of owners that have fewer.

    Parameters
    ----------
    max_entries : int
        Maximum number of entries.
    max_bytes : float
        Maximum size of all entries together. A larger entry is not added.
    keep_s : float
        Seconds after which an entry is dropped.

    Examples
    --------
    >>> entries: FairDict[str, int] = FairDict(3)
    >>> entries.add("a", "of a", 0)
    >>> for number in range(10):
    ...     entries.add("b", f"of b {number}", number)
    >>> len(entries), entries.get("of a"), entries.get("of b 9"), entries.get("of b 7")
    (3, 0, 9, None)
    """

    def __init__(self, max_entries: float = math.inf, max_bytes: float = math.inf, keep_s: float = math.inf) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._keep_s = keep_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[_K, tuple[str, _V, int, float]] = OrderedDict()  # owner, value, bytes, time
        self._by_owner: dict[str, OrderedDict[_K, None]] = {}
        self._bytes: dict[str, int] = {}  # by owner
        self.nbytes = 0

    def add(self, owner: str, key: _K, value: _V, nbytes: int = 0) -> None:
        """Add an entry. An existing key keeps its owner and value."""
        with self._lock:
            if key in self._entries or nbytes > self._max_bytes:
                return
            now = time.monotonic()
            self._entries[key] = owner, value, nbytes, now
            if (keys := self._by_owner.get(owner)) is None:
                keys = self._by_owner[owner] = OrderedDict()
                self._bytes[owner] = 0
            keys[key] = None
            self._bytes[owner] += nbytes
            self.nbytes += nbytes
            if self._keep_s < math.inf:
                while next(iter(self._entries.values()))[3] < now - self._keep_s:
                    self._remove(next(iter(self._entries)))
            while len(self._entries) > self._max_entries:
                self._remove_oldest(max(self._by_owner, key=lambda name: len(self._by_owner[name])))
            while self.nbytes > self._max_bytes:
                self._remove_oldest(max(self._bytes, key=self._bytes.__getitem__))

    def get(self, key: _K) -> _V | None:
        """Return the value of a key; None if there is none."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def discard(self, key: _K) -> bool:
        """Remove a key; return True if it was there."""
        with self._lock:
            return self._remove(key)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def _remove_oldest(self, owner: str) -> None:
        self._remove(next(iter(self._by_owner[owner])))

    def _remove(self, key: _K) -> bool:
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        owner, _, nbytes, _ = entry
        keys = self._by_owner[owner]
        del keys[key]
        self.nbytes -= nbytes
        self._bytes[owner] -= nbytes
        if not keys:
            del self._by_owner[owner], self._bytes[owner]
        return True


def _printable(detail: object) -> str:
    """Return a detail in one line of limited length, without control characters."""
    text = str(detail)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(one if one.isprintable() else "\ufffd" for one in text)
