"""At most once: which requests have begun, and what was answered to those that may be asked again.

A transport whose links break may bring a request twice. It runs once: the second time it gets the answer of the first,
and no answer of its own while that is being made, because who asked is waiting for the same one. A caller says with
every request which of its earlier ones it still waits for: of all others nothing need be known.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from collections.abc import Collection

from neuraxis.errors import CalleeDied
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.transport import Party

__all__ = ["AtMostOnce", "Standing"]

_MOST_BYTES = 64 * 2**20  # of answers that are kept
_MOST_PAST = 10_000  # callers that are gone of which it is known how far they came


_DROPPED = Frame(b"")
_NONE: frozenset[int] = frozenset()


class Standing(enum.Enum):
    """How it stands with a request that has no answer yet."""

    NEW = enum.auto()  # it is to be run now
    UNDER_WAY = enum.auto()  # it waits or runs, and will be answered


class _Caller:
    """The requests of a caller that are not settled: their answers, or how it stands."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.settled = newest + 1
        self.still_open = _NONE
        self.answers: dict[int, Frame | None] = {}  # None while there is none, _DROPPED where one was


class AtMostOnce:
    """What has begun, for one callee. When the answers have too many bytes, the oldest is dropped."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._callers: dict[Party, _Caller] = {}
        self._past: OrderedDict[Party, int] = OrderedDict()  # the newest number of those that were forgotten
        self._kept: OrderedDict[tuple[Party, int], int] = OrderedDict()  # the bytes of each answer, the oldest first
        self.nbytes = 0

    def begin(self, caller: Party, number: int, settled: int, still_open: Collection[int] = ()) -> Frame | Standing:
        """How it stands with a request, or the answer that it had. CalleeDied if that is not there any more."""
        with self._lock:
            known = self._callers.get(caller)
            if known is None:
                known = self._callers[caller] = _Caller(self._past.pop(caller, 0))
            if number > known.newest:  # else it was overtaken by one that knew more
                known.newest = number
                self._settle(caller, known, settled, still_open)
            if number not in known.answers and (number >= known.settled or number in known.still_open):
                known.answers[number] = None
                return Standing.NEW
            answer = known.answers.get(number, _DROPPED)
        if answer is None:
            return Standing.UNDER_WAY
        if answer is _DROPPED:
            raise CalleeDied("the call has run, and its result is no longer there")
        return answer

    def end(self, caller: Party, number: int, answer: Frame) -> None:
        """What was answered to a request that was begun."""
        with self._lock:
            known = self._callers.get(caller)
            if known is None or known.answers.get(number, _DROPPED) is not None:
                return  # nobody will ask for it
            known.answers[number] = _DROPPED
            nbytes = answer.size
            if nbytes > self._most_bytes:
                return
            known.answers[number] = answer
            self._kept[caller, number] = nbytes
            self.nbytes += nbytes
            while self.nbytes > self._most_bytes:
                (oldest, its_number), nbytes = self._kept.popitem(last=False)
                self._callers[oldest].answers[its_number] = _DROPPED
                self.nbytes -= nbytes

    def remembered(self, caller: Party) -> int:
        """Of how many requests of a caller something is known."""
        known = self._callers.get(caller)
        return 0 if known is None else len(known.answers)

    def __len__(self) -> int:
        return len(self._callers)

    def parties(self) -> set[Party]:
        """Those that have asked."""
        with self._lock:
            return set(self._callers)

    def forget(self, party: Party) -> None:
        """Of one that is gone nothing is kept but how far it came: should it return, nothing runs twice."""
        with self._lock:
            known = self._callers.pop(party, None)
            if known is None:
                return
            for number in known.answers:
                self.nbytes -= self._kept.pop((party, number), 0)
            self._past[party] = known.newest
            if len(self._past) > _MOST_PAST:
                self._past.popitem(last=False)

    def _settle(self, caller: Party, known: _Caller, settled: int, still_open: Collection[int]) -> None:
        known.settled = settled
        known.still_open = still = frozenset(still_open) if still_open else _NONE
        for number in [number for number in known.answers if number < settled and number not in still]:
            del known.answers[number]
            self.nbytes -= self._kept.pop((caller, number), 0)
