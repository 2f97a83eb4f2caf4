"""Counts of received, lost and refused messages by key, and the sequence numbers that reveal losses.

All tables are bounded, and eviction is fair: a remote sender can invent keys, names and sequence numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TypeVar

from neuraxis.mesh.limits import LineLimit
from neuraxis.wire.envelope import Envelope
from neuraxis.wire.exceptions import summarize

__all__ = ["IMPOSSIBLE", "MAX_STREAMS", "REPEATED", "Counts", "Ledger", "SequenceTracker", "streams_to_evict"]

_log = logging.getLogger("neuraxis.mesh")
_MAX_KEYS = 1000  # keys with counts of their own; all others share one entry
_OTHERS = "(others)"
_MAX_LINES = 20  # log lines of a ledger within ten seconds, over all keys
_EVICTED = 250  # streams evicted at a time: finding them takes as long as finding one
_MAX_GAPS = 16  # ranges of missing numbers that a tracker remembers
_NEAR = 8  # gaps with at most this many numbers between them may be merged
_FASTEST_HZ = 1_000_000  # no node sends more messages per second on one key
_END = 2**64  # above every sequence number

MAX_STREAMS = 4000  # pairs of sender and key that are tracked at a time
REPEATED, IMPOSSIBLE = -1, -2  # results of `SequenceTracker.follow`

_Stream = TypeVar("_Stream")


def streams_to_evict(streams: Iterable[tuple[_Stream, str, str, float]]) -> list[_Stream]:
    """Return the streams to evict: those of the owner with the most streams, the longest silent first.

    A sender can invent incarnations, keys, and names below its own. So the share of each owner is determined by the
    first part of the key, which access rules tie to a sender, then by node, then by key.

    Parameters
    ----------
    streams : iterable of tuple
        Stream, key relative to the mesh, node, time of the last message in seconds.
    """
    order = sorted(streams, key=lambda one: -one[3])
    for level in range(3):
        have: Counter[str] = Counter()
        ranks = []
        for _, key, node, _ in order:
            owner = (key, node, key.partition("/")[0])[level]
            ranks.append(have[owner])
            have[owner] += 1
        order = [order[index] for index in sorted(range(len(order)), key=ranks.__getitem__)]
    return [one[0] for one in order[-_EVICTED:]]


@dataclass(slots=True)
class _Gap:
    """A range of missing numbers, `low` <= number < `high`.

    `hits` counts consecutive messages received right before `low`: a real sender continues there, a forged number has
    few. `seen` counts numbers of the range that have arrived after all; which ones is unknown where gaps were merged.
    """

    low: int
    high: int
    hits: int
    before_first: bool = False
    seen: int = 0

    @property
    def missing(self) -> int:
        return self.high - self.low - self.seen


class SequenceTracker:
    """The sequence numbers of one sender on one key: received and missing ones.

    A number counts as repeated only if it was received before. So a message with a forged number uses up only that
    number: the tracker remembers the range that it skipped, and accepts the real messages there. A number that skips
    more than a node can have sent since the last message is impossible, and ignored.

    Attributes
    ----------
    expected : int
        The next number; -1 before the first message.
    end : int
        A received number; those from `expected` up to it are missing.
    lost : int
        Count of missing numbers below `expected`, without those before the first message.
    at : float
        Time of the last message in seconds, set by the caller.
    """

    __slots__ = ("_evicted", "_gaps", "_hits", "_seen", "_since", "at", "end", "expected", "lost")

    def __init__(self) -> None:
        self.expected = -1
        self.end = _END
        self.lost = 0
        self.at = 0.0
        self._hits = 0
        self._seen = 0
        self._since = 0
        self._evicted = 0
        self._gaps: list[_Gap] = []

    def follow(self, number: int, now: float) -> int:
        """Record a number received at time `now` in seconds.

        Returns
        -------
        int
            The count of newly missing numbers before it (mostly 0), or REPEATED or IMPOSSIBLE.
        """
        if self.expected < 0:
            if number:
                self._gaps.append(_Gap(0, number, 0, before_first=True))
            self.expected = self._since = number + 1
            self.at = now
            return 0
        if number == self.expected and number + 1 != self.end:
            self.expected, self.at = number + 1, now
            return 0
        seen = min(self._seen, self.end - self.expected)
        here = _Gap(self.expected, self.end, self._hits + self.expected - self._since, seen=seen)
        found = next((gap for gap in (here, *self._gaps) if gap.low <= number < gap.high), None)
        if found is None:
            return REPEATED
        if number >= self.expected and self._skipped(number) > _FASTEST_HZ * (1.0 + max(0.0, now - self.at)):
            return IMPOSSIBLE
        gaps = [gap for gap in (here, *self._gaps) if gap is not found]
        seen = min(found.seen, number - found.low)
        if number > found.low:
            gaps.append(_Gap(found.low, number, found.hits, found.before_first, seen))
        seen = min(found.seen - seen, found.high - number - 1)
        rest = _Gap(number + 1, found.high, found.hits + 1 if number == found.low else 1, seen=seen)
        if rest.low == rest.high:  # the next number was received before: continue where missing ones begin
            rest = min((gap for gap in gaps if gap.low > number), key=lambda gap: gap.low, default=rest)
            gaps = [gap for gap in gaps if gap is not rest]
        self.expected = self._since = rest.low
        self.end, self._hits, self._seen, self.at = rest.high, rest.hits, rest.seen, now
        before = self.lost
        gaps.sort(key=lambda gap: gap.low)
        while len(gaps) > _MAX_GAPS:
            self._evict_gap(gaps)
        self._gaps = gaps
        missing = (gap.missing for gap in gaps if gap.high <= self.expected and not gap.before_first)
        self.lost = self._evicted + sum(missing)
        return max(0, self.lost - before)

    def _evict_gap(self, gaps: list[_Gap]) -> None:
        """Merge two gaps that are close to each other, or else forget the gap with the fewest hits.

        Merging forgets which few numbers between the two were received; forging them gains a sender nothing.
        """
        near, first = min(
            (high.low - low.high, index)
            for index, (low, high) in enumerate(pairwise(gaps))
            if not (low.before_first or low.high <= self.expected <= high.low)
        )
        low, high = gaps[first : first + 2]
        if near <= _NEAR:
            hits = max(low.hits, high.hits)
            gaps[first : first + 2] = [_Gap(low.low, high.high, hits, seen=low.seen + high.seen + near)]
            return
        least = min((gap for gap in gaps if gap.high != _END), key=lambda gap: gap.hits)
        if least.high <= self.expected and not least.before_first:
            self._evicted += least.missing
        gaps.remove(least)

    def _skipped(self, number: int) -> int:
        """Return how many missing numbers lie between the next one and `number`, in all gaps."""
        between = (
            max(0, min(gap.high, number) - gap.low - gap.seen) for gap in self._gaps if self.end <= gap.low < number
        )
        return min(number, self.end) - self.expected + sum(between)


@dataclass
class Counts:
    """Counts of messages on one key.

    Attributes
    ----------
    received : int
        Passed to the handler, or queued in the channel.
    lost : int
        Sent but never received: gaps in the sequence numbers.
    repeated : int
        Duplicates, ignored.
    malformed : int
        Not decodable, not of the requested type, of another version of the wire format, or with an envelope that names
        another node than the key.
    oversized : int
        With a value or attachment beyond the limit.
    handler_errors : int
        The handler raised.
    dropped : int
        Received and dropped in favour of newer ones because the reader was too slow.
    misnumbered : int
        With an impossible sequence number, ignored.
    late : int
        Received out of order, after messages with higher numbers.
    skewed : int
        Sent more than a second in the future or a day in the past, by the sender's clock.
    """

    received: int = 0
    lost: int = 0
    repeated: int = 0
    malformed: int = 0
    oversized: int = 0
    handler_errors: int = 0
    dropped: int = 0
    misnumbered: int = 0
    late: int = 0
    skewed: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass
class Ledger:
    """The counts of one subscription or service by key, with rate-limited warnings in the log."""

    where: str
    by_key: dict[str, Counts] = field(default_factory=dict)
    _trackers: dict[tuple[str, str, int], SequenceTracker] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lines: LineLimit = field(default_factory=lambda: LineLimit(_MAX_LINES))
    _tracebacks: LineLimit = field(default_factory=lambda: LineLimit(1))

    def note(self, key: str, what: str, amount: int = 1, why: object = "", *, is_logged: bool = False) -> None:
        """Add to a count. Log a warning each time an error count has doubled; the caller logs drops.

        With `is_logged` it has logged this one.

        A remote sender can invent keys, so the lines about all keys together are limited as well.
        """
        with self._lock:
            counts = self._of(key)
            before: int = getattr(counts, what)
            setattr(counts, what, before + amount)
        if what in ("received", "dropped") or amount < 0 or is_logged:
            return
        if before <= 0 or (before + amount).bit_length() > before.bit_length():
            withheld = self._lines.take()
            if withheld is not None:
                reason = f": {why}" if why else ""
                more = f" ({withheld:,} such lines withheld)" if withheld else ""
                label = what.replace("_", " ")
                _log.warning("%s: %s: %s: %d so far%s%s", self.where, key, label, before + amount, reason, more)

    def note_error(self, key: str, error: BaseException) -> None:
        """Count that a handler raised; log the traceback unless one was logged within the last ten seconds."""
        withheld = self._tracebacks.take()
        if withheld is not None:
            more = f" ({withheld:,} more tracebacks withheld since the last one)" if withheld else ""
            _log.error("%s: the handler raised for a message on %s%s", self.where, key, more, exc_info=error)
        failure = summarize(error)
        why = f"{failure.kind}: {failure.text:.300}"
        self.note(key, "handler_errors", why=why, is_logged=withheld is not None)

    def log_failure(self, what: str, error: BaseException) -> None:
        """Log an error outside of handlers, with its traceback, under the same rate limit."""
        withheld = self._tracebacks.take()
        if withheld is not None:
            more = f" ({withheld:,} more tracebacks withheld since the last one)" if withheld else ""
            _log.warning("%s: %s%s", self.where, what, more, exc_info=error)

    def follow(self, key: str, envelope: Envelope) -> int:
        """Record a message's number; see `SequenceTracker.follow`."""
        stream = (key, envelope.node, envelope.incarnation)
        tracker = self._trackers.get(stream)
        if tracker is None:
            if len(self._trackers) >= MAX_STREAMS:
                known = ((one, one[0], one[1], tracker.at) for one, tracker in self._trackers.items())
                for one in streams_to_evict(known):
                    del self._trackers[one]
            tracker = self._trackers[stream] = SequenceTracker()
        return self.take(key, tracker, envelope.sequence, time.monotonic())

    def take(self, key: str, tracker: SequenceTracker, number: int, now: float, lost_as: str = "lost") -> int:
        """Record a number with a tracker, and count the result; missing numbers as `lost_as`."""
        lost, expected = tracker.lost, tracker.expected
        missing = tracker.follow(number, now)
        if missing == REPEATED:
            self.note(key, "repeated")
        elif missing == IMPOSSIBLE:
            self.note(key, "misnumbered", why=f"number {number} cannot follow {expected - 1}; the message is ignored")
        elif tracker.lost > lost:
            self.note(key, lost_as, tracker.lost - lost)
        elif number < expected:
            self.note(key, "late", why=f"number {number} arrived after {expected - 1}")
            if tracker.lost < lost:
                self.note(key, "lost", max(tracker.lost - lost, -self.counts_of(key).lost))
        return missing

    def counts_of(self, key: str) -> Counts:
        """Return the counts of a key, for the one thread that counts received messages."""
        with self._lock:
            return self._of(key)

    def total(self) -> Counts:
        with self._lock:
            return sum(self.by_key.values(), Counts())

    def copy(self) -> dict[str, Counts]:
        with self._lock:
            return {key: replace(counts) for key, counts in self.by_key.items()}

    def add(self, counts: Mapping[str, Counts]) -> None:
        """Add the counts of another ledger."""
        with self._lock:
            for key, more in counts.items():
                have = self._of(key)
                for one in fields(Counts):
                    setattr(have, one.name, getattr(have, one.name) + getattr(more, one.name))

    def _of(self, key: str) -> Counts:
        if key not in self.by_key and len(self.by_key) >= _MAX_KEYS:
            key = _OTHERS
        return self.by_key.setdefault(key, Counts())
