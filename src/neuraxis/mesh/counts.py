"""What came and what did not: counted by key, so that nothing is lost unseen."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from neuraxis.mesh.envelope import Envelope

__all__ = ["Counts", "Ledger"]

_log = logging.getLogger("neuraxis.mesh")
_MOST_KEYS = 1000  # of those that are counted apart; a stranger may invent as many as it likes
_OTHERS = "(others)"


@dataclass
class Counts:
    """Messages on one key.

    Attributes:
        received: those that reached the handler.
        lost: sent and never seen here (gaps in the sequence), or dropped where the reader was too slow.
        repeated: seen again, or after later ones: dropped.
        malformed: could not be decoded, or not as the type that was asked for.
        oversized: larger than is accepted.
        handler_errors: the handler raised.
    """

    received: int = 0
    lost: int = 0
    repeated: int = 0
    malformed: int = 0
    oversized: int = 0
    handler_errors: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass
class Ledger:
    """The counts of one subscription or service; it says in the log what went wrong, ever less often."""

    where: str
    by_key: dict[str, Counts] = field(default_factory=dict)
    _next: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, key: str, what: str, amount: int = 1, why: object = "") -> None:
        """Count something; what is no good reception is logged ever less often: when its number has doubled."""
        with self._lock:
            counts = self._of(key)
            before: int = getattr(counts, what)
            setattr(counts, what, before + amount)
        if what != "received" and (before == 0 or (before + amount).bit_length() > before.bit_length()):
            _log.warning("%s: %s: %d %s so far%s", self.where, key, before + amount, what, f": {why}" if why else "")

    def follow(self, key: str, envelope: Envelope) -> int:
        """Look at a message's number: how many before it are missing (0 mostly), -1 if it came before."""
        stream = (key, envelope.node, envelope.incarnation)
        expected = self._next.get(stream)
        if expected is not None and envelope.sequence < expected:
            self.note(key, "repeated")
            return -1
        if expected is None and len(self._next) >= 4 * _MOST_KEYS:
            del self._next[next(iter(self._next))]  # too many streams to follow: the one met first begins anew
        self._next[stream] = envelope.sequence + 1
        missing = 0 if expected is None else envelope.sequence - expected
        if missing:
            self.note(key, "lost", missing)
        return missing

    def counts_of(self, key: str) -> Counts:
        """The counts of a key, for the one thread that counts what is received."""
        with self._lock:
            return self._of(key)

    def total(self) -> Counts:
        with self._lock:
            return sum(self.by_key.values(), Counts())

    def copy(self) -> dict[str, Counts]:
        with self._lock:
            return {key: replace(counts) for key, counts in self.by_key.items()}

    def add(self, counts: Mapping[str, Counts]) -> None:
        """Take over the counts of another one."""
        with self._lock:
            for key, more in counts.items():
                have = self._of(key)
                for one in fields(Counts):
                    setattr(have, one.name, getattr(have, one.name) + getattr(more, one.name))

    def _of(self, key: str) -> Counts:
        if key not in self.by_key and len(self.by_key) >= _MOST_KEYS:
            key = _OTHERS
        return self.by_key.setdefault(key, Counts())
