"""Calls as messages over a line: a request to the callee's inbox, a reply to the lane in which it is waited for.

Threads that serve take turns at the inbox: the one that got a call runs it, and another reads meanwhile only if that
takes long (`mesh.turns`). There is one thread more than there are places in the pool, so somebody always reads; what
has no place waits in a queue, and is refused when that is full.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from neuraxis.comm.objects import Unreadable
from neuraxis.errors import CallCancelled, CallTimeout, NeuraxisError
from neuraxis.mesh.turns import Turns
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.line import INBOX, Lane, Line
from neuraxis.rpc.messages import Head, Kind, read_head
from neuraxis.rpc.pending import Pending
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.server import Server
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Done, Party, Request

__all__ = ["MessageTransport"]

_log = logging.getLogger("neuraxis.rpc")
_MOST_WAITING = 1000  # calls that have no place yet
_REPLY_S = 30.0  # for sending a reply
_CLOSE_S = 0.5  # for threads; functions that run have been waited for


class MessageTransport:
    """A transport over a line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.me = line.me
        self.largest = line.largest
        self._lanes: list[Lane] = []  # that nobody uses now
        self._pending = Pending(line)
        self._threads = Threads("neuraxis rpc")
        self._turns = Turns(line.quick_s)
        self._waiting: deque[tuple[Any, Head]] = deque()
        self._refuses = False
        self._closed = False

    # --- to answer --------------------------------------------------------------------------------------------

    def serve(self, server: Server, pool: Pool, threads: int) -> None:
        self._server = server
        self._pool = pool
        for _ in range(threads + 1):
            self._threads.run(self._read)
        self._line.open()

    def place_given_back(self, more: bool) -> None:
        if more:
            self._threads.run(self._read)  # in place of the one that waits
        if self._waiting:
            self._threads.run(self._run_waiting)

    def refuse(self) -> None:
        self._refuses = True

    def _read(self) -> None:
        turns = self._turns
        turns.take()
        while not self._closed:
            frame = self._line.receive()
            if frame is None:
                break
            began = turns.begin()
            try:
                self._take(frame, read_head(frame))
            except Unreadable as error:
                _log.warning("rpc: %s", error)
            except BaseException:
                _log.warning("rpc: an answer could not be given", exc_info=True)
            turns.end(began)
        turns.leave()

    def _take(self, frame: Any, head: Head) -> None:
        if head.kind == Kind.REPLY:
            if head.life == self.me.life:  # else it is for a process that had this name before
                self._pending.complete(head.number, frame)
        elif head.kind == Kind.CONTROL:
            self._reply(head, self._server.control(frame, head))
        elif head.kind == Kind.BYE:
            self._line.left(head.sender)
        elif head.kind != Kind.CALL:
            raise Unreadable(f"what came is of kind {head.kind}, which is not known here")
        elif self._refuses:
            self._reply(head, self._server.refuse(head, "it is shutting down"))
        elif self._pool.try_enter():
            self._run(frame, head)
        elif len(self._waiting) >= _MOST_WAITING:
            self._reply(head, self._server.refuse(head, f"{_MOST_WAITING:,} calls are waiting"))
        else:
            self._waiting.append((frame, head))
            self._run_waiting()  # a place may have become free in between

    def _run(self, frame: Any, head: Head) -> None:
        try:
            reply = self._server.answer(frame, head)
        finally:
            self._pool.leave()
        self._reply(head, reply)
        if self._waiting:
            self._run_waiting()

    def _run_waiting(self) -> None:
        while self._waiting and self._pool.try_enter():
            try:
                frame, head = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                self._pool.leave()
                return
            try:
                reply = self._server.answer(frame, head)
            finally:
                self._pool.leave()
            self._reply(head, reply)

    def _reply(self, head: Head, reply: Frame) -> None:
        try:
            self._line.send(head.sender, head.lane, reply, _REPLY_S)
        except NeuraxisError as error:  # who asked is gone
            _log.debug("rpc: %s", error)

    # --- to call ----------------------------------------------------------------------------------------------

    def call(self, request: Request) -> Any:
        if not self._line.has_lanes:
            return self._call_by_inbox(request)
        try:
            lane = self._lanes.pop()
        except IndexError:
            lane = self._line.lane()
        try:
            return self._call_in(lane, request)
        finally:
            self._lanes.append(lane)

    def _call_by_inbox(self, request: Request) -> Any:
        """Wait for a reply that another thread reads."""
        outcome: list[Any] = []
        came = threading.Event()

        def done(reply: Any, error: BaseException | None) -> None:
            outcome.extend((reply, error))
            came.set()

        self.start(request, done)
        came.wait()  # it comes within the request's time: see `Pending`
        reply, error = outcome
        if error is not None:
            raise error
        return reply

    def _call_in(self, lane: Lane, request: Request) -> Any:
        line, to, number = self._line, request.to, request.number
        frame = request.write(lane.number)
        deadline = time.monotonic() + request.timeout
        left = request.timeout
        mark = line.mark(to)
        line.send(to, INBOX, frame, left)
        while True:
            reply = lane.receive(to, left)
            if reply is not None:
                if self._answers(reply, number, to):
                    return reply
                continue  # one that came too late for who used this lane before
            left = deadline - time.monotonic()
            if self._closed:
                raise CallCancelled("this context was shut down during the call", to.name)
            if left <= 0:
                raise CallTimeout(f"{to.name!r} has not answered within {request.timeout:g} s", to.name)
            if line.look(to, mark):
                mark = line.mark(to)
                line.send(to, INBOX, frame, left)

    def _answers(self, reply: Any, number: int, to: Party) -> bool:
        """Whether it is the reply to that call of this process, and not of one that had its name before."""
        try:
            head = read_head(reply)
        except Unreadable as error:
            _log.warning("rpc: %s", error)
            return False
        return (head.kind, head.number, head.life, head.sender) == (Kind.REPLY, number, self.me.life, to)

    def start(self, request: Request, done: Done) -> None:
        frame = request.write(INBOX)
        frame.joined()  # what the user does with arrays from now on is not to change it
        mark = self._line.mark(request.to)
        self._pending.add(request, frame, mark, done)
        try:
            self._line.send(request.to, INBOX, frame, request.timeout)
        except NeuraxisError as error:
            self._pending.fail(request.number, error)

    # --- who is here ------------------------------------------------------------------------------------------

    def find(self, dst: int | str) -> Party:
        return self._line.find(dst)

    def names(self) -> list[str]:
        return self._line.names()

    def is_gone(self, party: Party) -> bool:
        return self._line.is_gone(party)

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        return self._line.wait_for(names, timeout)

    # --- to end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._closed = True
        self._pending.close()
        self._line.stop()
        self._threads.close(_CLOSE_S)
        self._line.close()
