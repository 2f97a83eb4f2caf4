"""Request and reply: the one place where a request waits for its reply, its deadline, or the end of its peer.

An `Exchange` is one request together with the transport that carries it: a query of a node, or a remote call over a
mesh, shared memory or a socket. It can be sent again, and knows whether a reply can still arrive. There are two ways to
wait, depending on the thread that receives the reply:

- `wait_for_reply` blocks the calling thread, which receives the reply itself, so no other thread has to wake it.
- `PendingRequests` holds requests whose replies another thread receives. One thread checks their deadlines and peers.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from neuraxis.arguments import is_number
from neuraxis.errors import InvalidArgument
from neuraxis.threads import Threads

__all__ = ["LONGEST_S", "Done", "Exchange", "PendingRequests", "check_timeout", "wait_for_completion", "wait_for_reply"]

_log = logging.getLogger("neuraxis.rpc")

LONGEST_S = 1e6  # the longest timeout
_POLL_S = 0.05  # how often the deadlines and peers of pending requests are checked
_RESEND_S = 1.0  # timeout for sending a pending request again: other requests have deadlines as well
_SHORTEST_S = 1e-3
_LINGER_S = 0.2  # how long the checking thread lives without pending requests
_CLOSE_S = 0.5
_GRACE_S = 10.0  # after a deadline, until the checking thread counts as stuck
_MAX_ABANDONED = 10_000

Key = TypeVar("Key")
Reply = TypeVar("Reply")

Done = Callable[[Reply | None, BaseException | None], None]
"""Called once with the reply, or with the error."""


def check_timeout(timeout: object) -> float:
    """Return a timeout in seconds as a float; raise InvalidArgument if it is not a valid one."""
    if not is_number(timeout) or not 0 < timeout <= LONGEST_S:
        raise InvalidArgument(f"timeout={timeout!r}: a number of seconds is expected")
    return float(timeout)


class Exchange(ABC, Generic[Reply]):
    """One request, which waits for its reply."""

    @abstractmethod
    def send(self, timeout: float) -> None:
        """Send the request, within `timeout` seconds; the first time, and after `must_resend` has returned True."""

    def receive(self, timeout: float) -> Reply | None:
        """Return the reply; None after `timeout` seconds, or earlier. `PendingRequests` does not call it."""
        raise NotImplementedError

    @abstractmethod
    def must_resend(self) -> bool:
        """Return True if the request may be lost, and must be sent again.

        Raises the error of the request if no reply can arrive any more: the peer is gone, or this side was closed.
        """

    @abstractmethod
    def too_late(self) -> Exception:
        """Return the error of a request that has reached its deadline."""


def wait_for_reply(exchange: Exchange[Reply], timeout: float) -> Reply:
    """Send a request and return its reply, which the calling thread receives; `timeout` is in seconds."""
    deadline = time.monotonic() + timeout
    left = timeout
    exchange.send(left)
    while True:
        reply = exchange.receive(left)
        if reply is not None:
            return reply
        left = deadline - time.monotonic()
        if left <= 0:
            raise exchange.too_late()
        if exchange.must_resend():
            left = max(_SHORTEST_S, deadline - time.monotonic())
            exchange.send(left)


def wait_for_completion(
    start: Callable[[Done[Reply]], None], timeout: float, too_late: Callable[[], Exception]
) -> Reply:
    """Start a request and return its reply, which another thread receives and passes to the given function.

    That thread also keeps the deadline; it counts as stuck ten seconds after `timeout`.
    """
    outcome: list[Any] = []
    ended = threading.Event()

    def done(reply: Reply | None, error: BaseException | None) -> None:
        outcome.extend((reply, error))
        ended.set()

    start(done)
    if not ended.wait(timeout + _GRACE_S):
        raise too_late()
    reply, error = outcome
    try:
        if error is not None:
            raise error
        return reply  # type: ignore[no-any-return]
    finally:
        del error, outcome[:]  # breaks the reference cycle through this frame in the error's traceback


class _Pending(NamedTuple):
    exchange: Exchange[Any]
    deadline: float
    done: Done[Any]


class PendingRequests(Generic[Key, Reply]):
    """Requests whose replies another thread receives, by a key that only the right reply has.

    A thread checks their deadlines and peers while there are any. Abandoned requests are remembered for a while, to
    distinguish a late reply from a stray one.

    Parameters
    ----------
    cancelled : callable
        Returns the error of a request that is pending when this is closed, by its key.
    """

    def __init__(self, cancelled: Callable[[Key], Exception]) -> None:
        self._cancelled = cancelled
        self._requests: dict[Key, _Pending] = {}
        self._abandoned: OrderedDict[Key, None] = OrderedDict()
        self._abandoned_lock = threading.Lock()
        self._changed = threading.Condition()
        self._threads = Threads("neuraxis pending requests")
        self._checking = False
        self._closed = False

    def add(self, key: Key, exchange: Exchange[Reply], timeout: float, done: Done[Reply]) -> None:
        """Add a request that is about to be sent."""
        with self._changed:
            if self._closed:
                raise self._cancelled(key)
            self._requests[key] = _Pending(exchange, time.monotonic() + timeout, done)
            if self._checking:
                return
            self._checking = True
        try:
            self._threads.run(self._check_until_idle)
        except BaseException:
            self._checking = False
            self._requests.pop(key, None)
            raise

    def complete(self, key: Key, reply: Reply) -> bool:
        """Pass a reply to its request; return False if none waits for it."""
        pending = self._requests.pop(key, None)
        if pending is None:
            return False
        pending.done(reply, None)
        return True

    def fail(self, key: Key, error: BaseException) -> None:
        """End a request with an error, unless it has its reply."""
        self.abandon(key)  # before it is removed here: its reply may arrive at this moment
        pending = self._requests.pop(key, None)
        if pending is None:
            self.take_abandoned(key)  # it has its reply
        else:
            # The traceback is of no use to the caller, and would create a reference cycle with the request.
            pending.done(None, error.with_traceback(None))

    def abandon(self, key: Key) -> None:
        """Note that no thread waits any more for the reply to a request."""
        with self._abandoned_lock:
            self._abandoned[key] = None
            if len(self._abandoned) > _MAX_ABANDONED:
                self._abandoned.popitem(last=False)

    def take_abandoned(self, key: Key) -> bool:
        """Return True if a request was abandoned and this is its first reply."""
        with self._abandoned_lock:
            return self._abandoned.pop(key, 0) is None

    def close(self) -> None:
        """Cancel all requests, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for key in list(self._requests):
            self.fail(key, self._cancelled(key))
        self._threads.close(_CLOSE_S)

    def _check_until_idle(self) -> None:
        idle_since = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait(_POLL_S)
                if self._requests:
                    idle_since = time.monotonic()
                if self._closed or time.monotonic() > idle_since + _LINGER_S:
                    self._checking = False
                    return
            for key, pending in list(self._requests.items()):
                try:
                    self._check(key, pending)
                except BaseException:  # a callback of the user raised
                    _log.warning("the end of a request could not be reported", exc_info=True)

    def _check(self, key: Key, pending: _Pending) -> None:
        exchange, deadline, _ = pending
        try:
            if time.monotonic() > deadline:
                raise exchange.too_late()
            if exchange.must_resend():
                exchange.send(min(_RESEND_S, max(_SHORTEST_S, deadline - time.monotonic())))
        except TimeoutError as error:
            if time.monotonic() > deadline:
                self.fail(key, error)  # otherwise it is sent again at the next check
        except Exception as error:  # any error ends this request, not the thread that checks all deadlines
            self.fail(key, error)
