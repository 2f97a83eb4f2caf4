"""Calls as messages over a link: a request goes to the callee's inbox, the reply to the caller's reply channel.

The serving threads follow the leader/followers pattern (`neuraxis.threads.LeaderFollower`): the thread that received a
call runs it, and another reads meanwhile only if that takes long. There is one thread more than there are slots in the
pool, and only a thread with a slot may block, so one can always read. Calls without a slot are queued, and refused when
the queue is full. So the bytes that wait here are bounded, although Zenoh bounds its channel in messages.

A call waits in `neuraxis.request_reply`. An asynchronous one has no reply channel: its reply arrives in the inbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from neuraxis.errors import CallCancelled, CallTimeout, NeuraxisError
from neuraxis.mesh.limits import Refusals
from neuraxis.request_reply import Exchange, PendingRequests, wait_for_completion, wait_for_reply
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.messages import Head, Kind, read_head
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.server import RequestState, Server
from neuraxis.rpc.transport import INBOX, Done, Endpoint, Link, Reply, ReplyChannel, Request
from neuraxis.threads import LeaderFollower, Threads
from neuraxis.wire.objects import Unreadable

__all__ = ["CallQueue", "MessageTransport", "call_and_wait", "pending_calls", "too_slow"]

_log = logging.getLogger("neuraxis.rpc")
_CLOSE_S = 0.5  # for threads; running functions have been waited for
_MAX_QUEUED = 1000  # calls without a slot,
_MAX_QUEUED_BYTES = 512 * 2**20  # and their bytes: eight of the largest calls that a mesh carries
_MAX_UNSENT = 1000  # replies that wait for a thread which may block
_PAUSE_S = 0.05  # before receiving again from a link that raised
_REPLY_S = 30.0  # timeout for sending a reply
_CONTROL_S = 10.0  # timeout for sending a control message to a process that may be stopped

Queued = TypeVar("Queued")


class _Call(Exchange[Reply]):
    """A call over a link; without a reply channel, its reply arrives in the inbox."""

    def __init__(self, transport: MessageTransport, request: Request, channel: ReplyChannel | None) -> None:
        self.frame = request.write(INBOX if channel is None else channel.number)
        self._transport = transport
        self._link = transport._link
        self._channel = channel
        self._to = request.to
        self._number = request.number
        self._timeout = request.timeout
        if channel is None:
            self._epoch = self._link.epoch(self._to)  # pending calls may be checked before they are sent

    def send(self, timeout: float) -> None:
        epoch = self._link.epoch(self._to)
        self._link.send(self._to, INBOX, self.frame, timeout)
        self._epoch = epoch

    def receive(self, timeout: float) -> Reply | None:
        assert self._channel is not None
        reply = self._channel.receive(self._to, timeout)
        if reply is None:
            return None
        head = self._transport._reply_head(reply, self._number, self._to)
        return None if head is None else (head, reply)

    def must_resend(self) -> bool:
        if self._transport._closed:
            raise _cancelled((self._to, self._number))
        return self._link.must_resend(self._to, self._epoch)

    def too_late(self) -> Exception:
        if self._transport._closed:
            return _cancelled((self._to, self._number))
        return too_slow(self._to, self._timeout, self._link.trouble())


def too_slow(to: Endpoint, timeout: float, trouble: str = "") -> CallTimeout:
    """Return the error of a call that has reached its deadline; `trouble` is the reason, if it is known."""
    return CallTimeout(
        f"{to.name!r} has not replied within {timeout:g} s" + (f": {trouble}" if trouble else ""), to.name
    )


def call_and_wait(start: Callable[[Request, Done], None], request: Request) -> Reply:
    """Start a call and wait for the reply, which another thread receives."""

    def begin(done: Done) -> None:
        start(request, done)

    return wait_for_completion(begin, request.timeout, lambda: too_slow(request.to, request.timeout))


def pending_calls() -> PendingRequests[tuple[Endpoint, int], Reply]:
    """Return an empty table of asynchronous calls by callee and number, so that only the callee can answer one."""
    return PendingRequests(_cancelled)


def _cancelled(key: tuple[Endpoint, int]) -> CallCancelled:
    return CallCancelled("this context was closed during the call", key[0].name)


class CallQueue(Generic[Queued]):
    """Calls that wait for a slot in the pool, bounded in number and in bytes."""

    def __init__(self) -> None:
        self.calls: deque[tuple[Queued, int]] = deque()
        self._nbytes = 0
        self._lock = threading.Lock()

    def add(self, call: Queued, nbytes: int) -> str:
        """Append a call; return "", or the reason why there is no room for it."""
        with self._lock:
            if len(self.calls) >= _MAX_QUEUED:
                return f"{_MAX_QUEUED:,} calls are queued"
            if self._nbytes + nbytes > _MAX_QUEUED_BYTES and self.calls:
                return f"{self._nbytes:,} bytes of calls are queued, and {_MAX_QUEUED_BYTES:,} is the limit"
            self._nbytes += nbytes
            self.calls.append((call, nbytes))
        return ""

    def pop(self) -> Queued | None:
        """Return the oldest call; None if there is none."""
        with self._lock:
            if not self.calls:
                return None
            call, nbytes = self.calls.popleft()
            self._nbytes -= nbytes
            return call


def _nbytes(frame: Any) -> int:
    """Return the size of a received frame in bytes, with its arrays in shared memory."""
    pieces = frame.pieces if isinstance(frame, Frame) else ()
    return len(frame) + sum(getattr(piece, "nbytes", 0) for _, piece in pieces)


class MessageTransport:
    """A transport over a link."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.me = link.me
        self.largest = link.largest
        self._idle_channels: list[ReplyChannel] = []
        self._pending = pending_calls()
        self._threads = Threads("neuraxis rpc")
        self._leadership = LeaderFollower(link.quick_s)
        self._queue: CallQueue[tuple[Any, Head]] = CallQueue()
        self._unsent: deque[tuple[Head, Frame]] = deque()  # replies of the last thread that can read the inbox
        self._unsent_lock = threading.Lock()
        self._sending_unsent = False
        self._refuses = False
        self._closed = False
        self._refusals = Refusals(_log, f"calls to {self.me.name!r}")

    # --- serving ----------------------------------------------------------------------------------------------

    def serve(self, server: Server, pool: Pool, threads: int) -> None:
        self._server = server
        self._pool = pool
        for _ in range(threads + 1):
            self._threads.run(self._read)
        self._link.open()

    def slot_released(self, more: bool) -> None:
        if more:
            self._threads.run(self._read)  # replaces the thread that waits for a call
        if self._queue.calls:
            self._threads.run(self._run_queued)

    def refuse(self) -> None:
        self._refuses = True
        while (call := self._queue.pop()) is not None:
            frame, head = call
            self._send_reply(head, self._server.refuse(head, "it is shutting down", frame))

    def _refuse(self, frame: Any, head: Head, why: str) -> None:
        self._reply_from_reader(head, self._server.refuse(head, why, frame))

    def _read(self) -> None:
        leadership = self._leadership
        leadership.lead()
        try:
            while not self._closed:
                try:
                    frame = self._link.receive()
                except BaseException as error:  # one bad frame must not end this thread
                    self._refusals.add("a frame that could not be received", repr(error))
                    time.sleep(_PAUSE_S)
                    continue
                if frame is None:
                    break
                began = leadership.begin()
                try:
                    self._handle(frame, read_head(frame))
                except Unreadable as error:
                    self._refusals.add("a malformed frame", error)
                except BaseException:
                    _log.warning("rpc: a call could not be answered", exc_info=True)
                leadership.end(began)
        finally:
            leadership.resign()  # another thread becomes the leader, also after an exception

    def _handle(self, frame: Any, head: Head) -> None:
        if head.kind == Kind.REPLY:
            if head.incarnation == self.me.incarnation:  # otherwise it is for an earlier process of this name
                if not self._pending.complete((head.sender, head.number), (head, frame)):
                    self._drop(frame, head)
            return
        if head.kind == Kind.BYE:
            self._link.peer_left(head.sender)
            self._server.deduplication.forget(head.sender)
            return
        if head.kind not in (Kind.CALL, Kind.CONTROL):
            raise Unreadable(f"the message has the unknown kind {head.kind}")
        state = self._server.begin(head)
        if state is RequestState.IN_PROGRESS:
            return  # the reply to the first request is the reply to this repeat as well
        if isinstance(state, Frame):
            self._reply_from_reader(head, state)
        elif head.kind == Kind.CONTROL:
            self._reply_from_reader(head, self._server.control(frame, head))
        elif self._refuses:
            self._refuse(frame, head, "it is shutting down")
        elif self._pool.try_enter():
            self._run(frame, head)
        elif full := self._queue.add((frame, head), _nbytes(frame)):
            self._refusals.add("a call that found no room in the queue", full)
            self._refuse(frame, head, full)
        else:
            self._run_queued()  # a slot may have become free in between

    def _run(self, frame: Any, head: Head) -> None:
        self._answer(frame, head)
        if self._queue.calls:
            self._run_queued()

    def _answer(self, frame: Any, head: Head) -> None:
        """Run a call that has a slot, and reply. It has the slot until the reply is sent, which may block."""
        try:
            self._send_reply(head, self._server.answer(frame, head))
        finally:
            self._pool.leave()
            self._pool.answered()

    def _run_queued(self) -> None:
        if self._refuses:
            self.refuse()
        while self._queue.calls and self._pool.try_enter():
            call = self._queue.pop()
            if call is None:  # another thread was faster
                self._pool.leave()
                self._pool.answered()
                return
            self._answer(*call)
            del call  # free its memory before this thread waits

    def _send_reply(self, head: Head, reply: Frame) -> None:
        try:
            self._link.send(head.sender, head.channel, reply, _REPLY_S)
        except NeuraxisError as error:  # the caller is gone
            _log.debug("rpc: %s", error)

    def _reply_from_reader(self, head: Head, reply: Frame) -> None:
        """Send a reply from a thread that reads the inbox, which must not block if all others may be blocked.

        With a slot it may: then there is another thread that reads. Otherwise one more thread sends the reply.
        """
        if self._pool.try_enter():
            try:
                self._send_reply(head, reply)
            finally:
                self._pool.leave()
                self._pool.answered()
            if self._queue.calls:
                self._run_queued()
            return
        if len(self._unsent) >= _MAX_UNSENT:
            self._refusals.add("a reply beyond those that wait to be sent", f"to {head.sender.name!r}")
            return
        with self._unsent_lock:
            self._unsent.append((head, reply))
            if self._sending_unsent:
                return
            self._sending_unsent = True
        try:
            self._threads.run(self._send_unsent)
        except BaseException:  # no more threads can be started
            self._sending_unsent = False
            raise

    def _send_unsent(self) -> None:
        while True:
            with self._unsent_lock:
                if not self._unsent:
                    self._sending_unsent = False
                    return
                head, reply = self._unsent.popleft()
            try:
                self._send_reply(head, reply)
            except BaseException:
                _log.warning("rpc: a call could not be answered", exc_info=True)

    # --- calling ----------------------------------------------------------------------------------------------

    def call(self, request: Request) -> Reply:
        if not self._link.has_reply_channels:
            return call_and_wait(self.start, request)
        try:
            channel = self._idle_channels.pop()
        except IndexError:
            channel = self._link.open_reply_channel()
        try:
            return wait_for_reply(_Call(self, request, channel), request.timeout)
        except BaseException:
            self._pending.abandon((request.to, request.number))
            raise
        finally:
            self._idle_channels.append(channel)

    def _reply_head(self, reply: Any, number: int, to: Endpoint) -> Head | None:
        """Return the head if it is the reply to that call of this incarnation, otherwise None."""
        try:
            head = read_head(reply)
        except Unreadable as error:
            self._refusals.add("a malformed reply", error)
            return None
        if head.kind != Kind.REPLY or head.incarnation != self.me.incarnation:
            return None
        if head.number == number and head.sender == to:
            return head
        self._drop(reply, head)  # too late for the thread that used this channel before
        return None

    def _drop(self, reply: Any, head: Head) -> None:
        """Drop a reply without a waiting call: the second one to a resent request, or a late one."""
        if self._pending.take_abandoned((head.sender, head.number)):
            self._server.discard(reply, head)

    def start(self, request: Request, done: Done) -> None:
        call = _Call(self, request, None)
        key = request.to, request.number
        self._link.detach(request.to, call.frame)
        self._pending.add(key, call, request.timeout, done)
        try:
            call.send(min(request.timeout, _CONTROL_S) if request.is_control else request.timeout)
        except NeuraxisError as error:
            self._pending.fail(key, error)

    # --- membership -------------------------------------------------------------------------------------------

    def find(self, dst: int | str) -> Endpoint:
        return self._link.find(dst)

    def names(self) -> list[str]:
        return self._link.names()

    def is_gone(self, endpoint: Endpoint) -> bool:
        return self._link.is_gone(endpoint)

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        return self._link.wait_for(names, timeout)

    def close(self) -> None:
        self._closed = True
        self._pending.close()
        self._link.stop()
        self._threads.close(_CLOSE_S)
        self._link.close()
