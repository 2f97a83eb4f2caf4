"""Calls that nobody waits for in a lane: told what became of them when a reply comes, or none will."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from neuraxis.errors import CallCancelled, CallTimeout, NeuraxisError
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.line import INBOX, Line
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Done, Reply, Request

__all__ = ["GivenUp", "Pending", "too_slow", "wait_for_reply"]

_LOOK_S = 0.05  # how often deadlines and callees are looked at
_SEND_S = 1.0  # for sending one again: others have deadlines, too
_LINGER_S = 0.2  # how long they are looked at when there are none
_CLOSE_S = 0.5
_MOST_GIVEN_UP = 10_000
_GRACE_S = 10.0  # beyond a deadline, until who looks at deadlines counts as stuck


@dataclass
class _Call:
    request: Request
    frame: Frame
    mark: int
    deadline: float
    done: Done


class GivenUp:
    """Calls whose replies nobody waits for any more: each reply that comes nevertheless is known once."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[int, None] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, number: int) -> None:
        with self._lock:
            self._numbers[number] = None
            if len(self._numbers) > _MOST_GIVEN_UP:
                self._numbers.popitem(last=False)

    def take(self, number: int) -> bool:
        """Whether it is one of them, and this is its first reply."""
        with self._lock:
            return self._numbers.pop(number, 0) is None


class Pending:
    """Calls by number. A thread looks after them while there are any.

    `line` is where they were sent, and are sent again; None where nothing gets lost and nobody dies.
    """

    def __init__(self, line: Line | None, given_up: GivenUp) -> None:
        self._line = line
        self._given_up = given_up
        self._calls: dict[int, _Call] = {}
        self._changed = threading.Condition()
        self._threads = Threads("neuraxis rpc pending")
        self._looked_after = False
        self._closed = False

    def add(self, request: Request, frame: Frame, mark: int, done: Done) -> None:
        call = _Call(request, frame, mark, time.monotonic() + request.timeout, done)
        with self._changed:
            if self._closed:
                raise CallCancelled("this context was shut down", request.to.name)
            self._calls[request.number] = call
            if self._looked_after:
                return
            self._looked_after = True
        try:
            self._threads.run(self._look_after)
        except BaseException:
            self._looked_after = False
            self._calls.pop(request.number, None)
            raise

    def complete(self, reply: Reply) -> bool:
        """A reply came; whether it was waited for."""
        call = self._calls.pop(reply[0].number, None)
        if call is None:
            return False
        call.done(reply, None)
        return True

    def fail(self, number: int, error: BaseException) -> None:
        self._given_up.add(number)  # before it is gone from here: a reply may come this moment
        call = self._calls.pop(number, None)
        if call is None:
            self._given_up.take(number)  # it had its reply before
        else:
            # Where it was found out tells the caller nothing, and refers to the call, which then would refer to itself.
            call.done(None, error.with_traceback(None))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for number, call in list(self._calls.items()):
            self.fail(number, CallCancelled("this context was shut down during the call", call.request.to.name))
        self._threads.close(_CLOSE_S)

    def _look_after(self) -> None:
        idle_since = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait(_LOOK_S)
                if self._calls:
                    idle_since = time.monotonic()
                if self._closed or time.monotonic() > idle_since + _LINGER_S:
                    self._looked_after = False
                    return
            self._look_at_all()

    def _look_at_all(self) -> None:
        for number, call in list(self._calls.items()):
            self._look(number, call)

    def _look(self, number: int, call: _Call) -> None:
        request, line = call.request, self._line
        try:
            if time.monotonic() > call.deadline:
                raise too_slow(request)
            if line is not None and line.look(request.to, call.mark):
                mark = line.mark(request.to)
                line.send(request.to, INBOX, call.frame, min(_SEND_S, max(1e-3, call.deadline - time.monotonic())))
                call.mark = mark
        except CallTimeout as error:
            if time.monotonic() > call.deadline:
                self.fail(number, error)  # else it is sent when this call is looked at again
        except NeuraxisError as error:
            self.fail(number, error)


def too_slow(request: Request) -> CallTimeout:
    """The error of a call that has reached its deadline."""
    return CallTimeout(f"{request.to.name!r} has not answered within {request.timeout:g} s", request.to.name)


def wait_for_reply(start: Callable[[Request, Done], None], request: Request) -> Reply:
    """Start a call, and wait for the reply that another thread reads."""
    outcome: list[Any] = []
    came = threading.Event()

    def done(reply: Reply | None, error: BaseException | None) -> None:
        outcome.extend((reply, error))
        came.set()

    start(request, done)
    if not came.wait(request.timeout + _GRACE_S):
        raise too_slow(request)
    reply, error = outcome
    try:
        if error is not None:
            raise error
        return cast(Reply, reply)
    finally:
        del error, outcome[:]  # else the error would refer to itself, by this frame in its traceback
