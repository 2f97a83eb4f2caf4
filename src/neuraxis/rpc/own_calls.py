"""Calls of a process to itself: as any other by bytes, with a place in the pool and a deadline."""

from __future__ import annotations

from neuraxis.errors import CallCancelled
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.line import INBOX
from neuraxis.rpc.messages import Head, read_head
from neuraxis.rpc.pending import GivenUp, Pending, wait_for_reply
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.server import Server
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Done, Reply, Request, Transport

__all__ = ["OwnCalls"]

_CLOSE_S = 0.5  # functions that run have been waited for


class OwnCalls:
    """The way of calls whose callee is the caller."""

    def __init__(self, server: Server, pool: Pool, transport: Transport) -> None:
        self._server = server
        self._pool = pool
        self._transport = transport
        self._pending = Pending(None, GivenUp())
        self._threads = Threads("neuraxis rpc own call")

    def call(self, request: Request) -> Reply:
        if request.is_control:
            frame = request.write(INBOX).joined()
            return _reply(self._server.control(frame, read_head(frame)))
        return wait_for_reply(self.start, request)

    def start(self, request: Request, done: Done) -> None:
        frame = request.write(INBOX)
        frame.joined()  # what the user does with arrays from now on is not to change it
        if request.is_control:
            done(_reply(self._server.control(frame.start, read_head(frame))), None)
            return
        self._pending.add(request, frame, 0, done)
        number, timeout = request.number, request.timeout  # the request has what the user gave, and lives no longer
        self._threads.run(lambda: self._run(number, timeout, frame.start))

    def _run(self, number: int, timeout: float, frame: bytes) -> None:
        head = read_head(frame)
        if not self._pool.enter(timeout):
            self._transport.place_given_back(False)  # another call may have waited behind this one
            self._server.discard(frame, head)
            if self._pool.closed:
                self._pending.fail(number, CallCancelled("this context was shut down", head.sender.name))
            return
        try:
            reply = self._answer(frame, head)
            if not self._pending.complete(reply):
                self._server.discard(reply[1], reply[0])
        finally:
            self._pool.answered()

    def _answer(self, frame: bytes, head: Head) -> Reply:
        try:
            return _reply(self._server.answer(frame, head))
        finally:
            self._pool.leave()
            self._transport.place_given_back(False)  # another call may wait for the place that this one had

    def close(self) -> None:
        self._pending.close()
        self._threads.close(_CLOSE_S)


def _reply(answer: Frame) -> Reply:
    frame = answer.joined()
    return read_head(frame), frame
