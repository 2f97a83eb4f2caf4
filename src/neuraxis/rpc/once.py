"""At most once: which requests have begun, and what was answered to those that may be asked again.

A transport whose links break may bring a request twice. The second time it gets the answer of the first, is kept
waiting while that is being made, or is told that it is no longer there; it never runs again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque

from neuraxis.errors import CalleeDied
from neuraxis.rpc.transport import Party

__all__ = ["AtMostOnce"]

_MOST_CALLERS = 1000  # whose requests are followed
_MOST_NUMBERS = 20_000  # of one caller, that are known one by one
_ANSWERS = 10_000  # that are remembered,
_ANSWER_BYTES = 64 * 2**20  # as long as they have no more bytes than these,
_ANSWER_S = 60.0  # and for so long: whoever asks again does so soon
_LONGEST_S = 1e6  # the longest deadline that a call can have


class _Caller:
    """The numbers of a caller rise. All up to `floor` count as begun; above it, those in `begun`."""

    def __init__(self) -> None:
        self.begun: OrderedDict[int, None] = OrderedDict()
        self.floor = 0


class AtMostOnce:
    """`remembers` is whether answers are kept for who asks again."""

    def __init__(self, remembers: bool) -> None:
        self._remembers = remembers
        self._changed = threading.Condition(threading.Lock())
        self._callers: OrderedDict[Party, _Caller] = OrderedDict()
        self._answers: OrderedDict[tuple[Party, int], bytes] = OrderedDict()
        self._answered_at: deque[float] = deque()
        self._answer_bytes = 0
        self._under_way: set[tuple[Party, int]] = set()

    def begin(self, caller: Party, number: int) -> bytes | None:
        """None if the request is to be run now; else the answer that it had. CalleeDied if that is lost."""
        with self._changed:
            known = self._caller(caller)
            if number > known.floor and number not in known.begun:
                known.begun[number] = None
                if len(known.begun) > _MOST_NUMBERS:
                    known.floor = max(known.floor, known.begun.popitem(last=False)[0])
                self._under_way.add((caller, number))
                return None
            self._changed.wait_for(lambda: (caller, number) not in self._under_way, _LONGEST_S)
            answer = self._answers.get((caller, number))
        if answer is None:
            raise CalleeDied("the call has run, and its result is no longer there")
        return answer

    def end(self, caller: Party, number: int, answer: bytes) -> None:
        """What was answered to a request that was begun."""
        with self._changed:
            self._under_way.discard((caller, number))
            if self._remembers:
                self._remember((caller, number), answer)
                self._changed.notify_all()

    def _remember(self, identity: tuple[Party, int], answer: bytes) -> None:
        now = time.monotonic()
        self._answers[identity] = answer
        self._answered_at.append(now)
        self._answer_bytes += len(answer)
        while (
            len(self._answers) > _ANSWERS
            or self._answer_bytes > _ANSWER_BYTES
            or self._answered_at[0] < now - _ANSWER_S
        ):
            self._answered_at.popleft()
            self._answer_bytes -= len(self._answers.popitem(last=False)[1])

    def _caller(self, caller: Party) -> _Caller:
        known = self._callers.get(caller)
        if known is None:
            known = self._callers[caller] = _Caller()
            if len(self._callers) > _MOST_CALLERS:
                self._callers.popitem(last=False)
        return known
