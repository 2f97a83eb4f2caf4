"""Calls as messages over a line: a request to the callee's inbox, a reply to the lane in which it is waited for.

Threads that serve take turns at the inbox: the one that got a call runs it, and another reads meanwhile only if that
takes long (`mesh.turns`). There is one thread more than there are places in the pool, so somebody always reads; what
has no place waits in a queue, and is refused when that is full.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from neuraxis.comm.objects import Unreadable
from neuraxis.errors import CallCancelled, NeuraxisError
from neuraxis.mesh.turns import Turns
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.line import INBOX, Lane, Line
from neuraxis.rpc.messages import Head, Kind, read_head
from neuraxis.rpc.once import Standing
from neuraxis.rpc.pending import GivenUp, Pending, too_slow, wait_for_reply
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.server import Server
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Done, Party, Reply, Request

__all__ = ["MessageTransport"]

_log = logging.getLogger("neuraxis.rpc")
_MOST_WAITING = 1000  # calls that have no place yet
_REPLY_S = 30.0  # for sending a reply
_CONTROL_S = 10.0  # for sending what is told to one that may be stopped
_CLOSE_S = 0.5  # for threads; functions that run have been waited for


class MessageTransport:
    """A transport over a line."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self.me = line.me
        self.largest = line.largest
        self._lanes: list[Lane] = []  # that nobody uses now
        self._given_up = GivenUp()
        self._pending = Pending(line, self._given_up)
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
        while self._waiting:
            try:
                frame, head = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                return
            self._refuse(frame, head, "it is shutting down")

    def _refuse(self, frame: Any, head: Head, why: str) -> None:
        self._reply(head, self._server.refuse(head, why, frame))

    def _read(self) -> None:
        turns = self._turns
        turns.take()
        try:
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
        finally:
            turns.leave()  # however this thread ends, another one listens

    def _take(self, frame: Any, head: Head) -> None:
        if head.kind == Kind.REPLY:
            if head.life == self.me.life:  # else it is for a process that had this name before
                if not self._pending.complete((head, frame)):
                    self._drop(frame, head)
            return
        if head.kind == Kind.BYE:
            self._line.left(head.sender)
            self._server.once.forget(head.sender)
            return
        if head.kind not in (Kind.CALL, Kind.CONTROL):
            raise Unreadable(f"what came is of kind {head.kind}, which is not known here")
        standing = self._server.begin(head)
        if standing is Standing.UNDER_WAY:
            return  # who asked waits for the answer to its first request: it is the answer to this one, too
        if isinstance(standing, Frame):
            self._reply(head, standing)
        elif head.kind == Kind.CONTROL:
            self._reply(head, self._server.control(frame, head))
        elif self._refuses:
            self._refuse(frame, head, "it is shutting down")
        elif self._pool.try_enter():
            self._run(frame, head)
        elif len(self._waiting) >= _MOST_WAITING:
            self._refuse(frame, head, f"{_MOST_WAITING:,} calls are waiting")
        else:
            self._waiting.append((frame, head))
            self._run_waiting()  # a place may have become free in between

    def _run(self, frame: Any, head: Head) -> None:
        self._answer(frame, head)
        if self._waiting:
            self._run_waiting()

    def _answer(self, frame: Any, head: Head) -> None:
        """Run a call that has a place, and reply."""
        pool = self._pool
        try:
            try:
                reply = self._server.answer(frame, head)
            finally:
                pool.leave()
            self._reply(head, reply)
        finally:
            pool.answered()

    def _run_waiting(self) -> None:
        if self._refuses:
            self.refuse()
        while self._waiting and self._pool.try_enter():
            try:
                frame, head = self._waiting.popleft()
            except IndexError:  # another thread was quicker
                self._pool.leave()
                self._pool.answered()
                return
            self._answer(frame, head)

    def _reply(self, head: Head, reply: Frame) -> None:
        try:
            self._line.send(head.sender, head.lane, reply, _REPLY_S)
        except NeuraxisError as error:  # who asked is gone
            _log.debug("rpc: %s", error)

    # --- to call ----------------------------------------------------------------------------------------------

    def call(self, request: Request) -> Reply:
        if not self._line.has_lanes:
            return wait_for_reply(self.start, request)
        try:
            lane = self._lanes.pop()
        except IndexError:
            lane = self._line.lane()
        try:
            return self._call_in(lane, request)
        except BaseException:
            self._given_up.add(request.number)
            raise
        finally:
            self._lanes.append(lane)

    def _call_in(self, lane: Lane, request: Request) -> Reply:
        line, to, number = self._line, request.to, request.number
        frame = request.write(lane.number)
        deadline = time.monotonic() + request.timeout
        left = request.timeout
        mark = line.mark(to)
        line.send(to, INBOX, frame, left)
        while True:
            came = lane.receive(to, left)
            if came is not None:
                head = self._head_of(came, number, to)
                if head is not None:
                    return head, came
                continue
            left = deadline - time.monotonic()
            if self._closed:
                raise CallCancelled("this context was shut down during the call", to.name)
            if left <= 0:
                raise too_slow(request)
            if line.look(to, mark):
                mark = line.mark(to)
                line.send(to, INBOX, frame, left)

    def _head_of(self, reply: Any, number: int, to: Party) -> Head | None:
        """The head, if it is the reply to that call of this process, and not of one that had its name before."""
        try:
            head = read_head(reply)
        except Unreadable as error:
            _log.warning("rpc: %s", error)
            return None
        if head.kind != Kind.REPLY or head.life != self.me.life:
            return None
        if head.number == number and head.sender == to:
            return head
        self._drop(reply, head)  # it came too late for who used this lane before
        return None

    def _drop(self, reply: Any, head: Head) -> None:
        """A reply that nobody waits for: the second one to a request that was sent twice, or one that came too late."""
        if self._given_up.take(head.number):
            self._server.discard(reply, head)

    def start(self, request: Request, done: Done) -> None:
        frame = request.write(INBOX)
        self._line.detach(request.to, frame)
        mark = self._line.mark(request.to)
        self._pending.add(request, frame, mark, done)
        try:
            limit = min(request.timeout, _CONTROL_S) if request.is_control else request.timeout
            self._line.send(request.to, INBOX, frame, limit)
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
