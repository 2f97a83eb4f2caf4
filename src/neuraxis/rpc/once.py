"""At most once: which requests have begun, and what was answered to those that may be asked again.

A transport whose links break may bring a request twice. The second time it gets the answer of the first, and is kept
waiting while that is being made; it never runs again. A caller says with every request which of its calls are settled:
of those nothing need be known.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from neuraxis.errors import CalleeDied
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.transport import Party

__all__ = ["AtMostOnce"]

_MOST_CALLERS = 1000  # whose requests are followed
_MOST_BYTES = 64 * 2**20  # of answers that are kept


_DROPPED = Frame(b"")


class _Caller:
    """The requests of a caller from number `settled` on: None while one is run, _DROPPED where the answer was."""

    def __init__(self) -> None:
        self.settled = 0
        self.answers: dict[int, Frame | None] = {}


class AtMostOnce:
    """What has begun, for one callee."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._callers: OrderedDict[Party, _Caller] = OrderedDict()
        self._bytes = 0

    def begin(self, caller: Party, number: int, settled: int) -> Frame | None:
        """None if the request is to be run now; else the answer that it had. CalleeDied if that is not there."""
        with self._changed:
            known = self._callers.get(caller)
            if known is None:
                known = self._callers[caller] = _Caller()
                if len(self._callers) > _MOST_CALLERS:
                    self._forget(self._callers.popitem(last=False)[1])
            if settled > known.settled:
                self._settle(known, settled)
            if number >= known.settled and number not in known.answers:
                known.answers[number] = None
                return None
            while known.answers.get(number, _DROPPED) is None:
                self._changed.wait()
            answer = known.answers.get(number, _DROPPED)
        if answer is None or answer is _DROPPED:
            raise CalleeDied("the call has run, and its result is no longer there")
        return answer

    def end(self, caller: Party, number: int, answer: Frame) -> None:
        """What was answered to a request that was begun."""
        with self._changed:
            known = self._callers.get(caller)
            if known is not None and number in known.answers:
                if self._bytes + len(answer) > _MOST_BYTES:
                    answer = _DROPPED
                known.answers[number] = answer
                self._bytes += len(answer)
                self._changed.notify_all()

    def _settle(self, known: _Caller, settled: int) -> None:
        known.settled = settled
        for number in [number for number in known.answers if number < settled]:
            self._bytes -= len(known.answers.pop(number) or _DROPPED)

    def _forget(self, known: _Caller) -> None:
        self._bytes -= sum(len(answer or _DROPPED) for answer in known.answers.values())
