"""Calls that nobody waits for in a lane: told what became of them when a reply comes, or none will."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from neuraxis.errors import CallCancelled, CallTimeout, NeuraxisError
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.line import INBOX, Line
from neuraxis.rpc.transport import Done, Request

__all__ = ["Pending"]

_LOOK_S = 0.05  # how often deadlines and callees are looked at
_LINGER_S = 0.2  # how long the thread stays that does, when there is nothing to look at


@dataclass
class _Call:
    request: Request
    frame: Frame
    mark: int
    deadline: float
    done: Done


class Pending:
    """Calls by number. A thread looks after them while there are any."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._calls: dict[int, _Call] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, request: Request, frame: Frame, mark: int, done: Done) -> None:
        call = _Call(request, frame, mark, time.monotonic() + request.timeout, done)
        with self._changed:
            if self._closed:
                raise CallCancelled("this context was shut down", request.to.name)
            self._calls[request.number] = call
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_after, name="neuraxis rpc pending", daemon=True)
                self._thread.start()

    def complete(self, number: int, reply: Any) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call.done(reply, None)

    def fail(self, number: int, error: BaseException) -> None:
        call = self._calls.pop(number, None)
        if call is not None:
            call.done(None, error)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        for number, call in list(self._calls.items()):
            self.fail(number, CallCancelled("this context was shut down during the call", call.request.to.name))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _look_after(self) -> None:
        idle_since = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait(_LOOK_S)
                if self._calls:
                    idle_since = time.monotonic()
                if self._closed or time.monotonic() > idle_since + _LINGER_S:
                    self._thread = None
                    return
            for number, call in list(self._calls.items()):
                self._look(number, call)

    def _look(self, number: int, call: _Call) -> None:
        request = call.request
        try:
            if time.monotonic() > call.deadline:
                raise CallTimeout(f"{request.to.name!r} has not answered within {request.timeout:g} s", request.to.name)
            if self._line.look(request.to, call.mark):
                call.mark = self._line.mark(request.to)
                self._line.send(request.to, INBOX, call.frame, max(1e-3, call.deadline - time.monotonic()))
        except NeuraxisError as error:
            self.fail(number, error)
