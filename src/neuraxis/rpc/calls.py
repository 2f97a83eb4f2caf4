"""The caller's side of remote calls: numbering requests, sending them, and reading replies.

Each callee has a sequence of request numbers of its own, without gaps, so it can refuse a number that is far ahead of
the last one: a genuine caller never sends such a number.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from neuraxis.errors import CalleeDied, InvalidArgument, NeuraxisError, NotSerializable
from neuraxis.mesh.limits import Refusals
from neuraxis.request_reply import LONGEST_S, check_timeout
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.future import RpcFuture
from neuraxis.rpc.messages import CONTROL_OPERATIONS, Kind, Operation, read_reply, unreadable
from neuraxis.rpc.pool import Housekeeping, Pool
from neuraxis.rpc.transport import Done, Endpoint, Reply, Request, Transport
from neuraxis.rpc.values import TooLarge, Values
from neuraxis.threads import Threads
from neuraxis.wire.exceptions import from_data
from neuraxis.wire.objects import Unreadable

__all__ = ["Calls", "Invocation", "Number", "Numbers"]

_log = logging.getLogger("neuraxis.rpc")
_MAX_OPEN = 128  # open requests that a request lists, 8 bytes each
_CONTROL_S = 10.0  # timeout of control operations
_LONGEST_CHAIN = 100  # of exceptions and their causes
_MAX_NUMBER = 2**62  # request numbers stay below it


class Number(NamedTuple):
    """The number of a request.

    The caller waits for no reply of the same endpoint to a number below `settled`, except those in `still_open`. So one
    long call does not keep the callee from forgetting later ones.
    """

    value: int
    settled: int
    still_open: list[int]


class Numbers:
    """Request numbers for each endpoint, in ascending order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[Endpoint, int] = {}
        self._open: dict[Endpoint, dict[int, None]] = {}  # each in ascending order

    def take(self, to: Endpoint) -> Number:
        with self._lock:
            self._last[to] = number = self._last.get(to, 0) + 1
            still_open = self._open.setdefault(to, {})
            earlier = list(islice(still_open, _MAX_OPEN + 1)) if still_open else []
            still_open[number] = None
        if len(earlier) <= _MAX_OPEN:
            return Number(number, number, earlier)
        return Number(number, earlier.pop(), earlier)

    def skip_to(self, to: Endpoint, number: int) -> bool:
        """Continue after a number that a callee has seen; return False if this process has used it itself."""
        with self._lock:
            if number <= self._last.get(to, 0):
                return False
            self._last[to] = number
            return True

    def settle(self, to: Endpoint, number: int) -> None:
        """Note that this process no longer waits for a reply."""
        with self._lock:
            still_open = self._open.get(to)
            if still_open is not None:
                still_open.pop(number, None)
                if not still_open:
                    del self._open[to]


class Invocation(NamedTuple):
    """An operation to execute at an endpoint. `timeout` is in seconds; None is the context's timeout."""

    to: Endpoint
    operation: Operation
    name: str
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] | None = None
    timeout: float | None = None


class Route(Protocol):
    """A route for requests: the transport, or the local route to this process itself."""

    def call(self, request: Request) -> Reply: ...

    def start(self, request: Request, done: Done) -> None: ...


class Calls:
    """Makes calls for one context.

    Parameters
    ----------
    transport : Transport
        The route to other processes.
    local : Route
        The route to this process itself.
    values : Values
        The serializer.
    pool : Pool
        The pool whose slot a thread releases while it waits for a reply.
    timeout : float
        Default timeout of calls, in seconds.
    housekeeping : Housekeeping
        The thread that sends notifications.
    callbacks : Threads
        The threads that run callbacks of futures.
    """

    def __init__(
        self,
        transport: Transport,
        local: Route,
        values: Values,
        pool: Pool,
        timeout: float,
        housekeeping: Housekeeping,
        callbacks: Threads,
    ) -> None:
        self.me = transport.me
        self._transport = transport
        self._local = local
        self._values = values
        self._pool = pool
        self._timeout = timeout
        self._housekeeping = housekeeping
        self._callbacks = callbacks
        self._numbers = Numbers()
        self._refusals = Refusals(_log, f"calls of {self.me.name!r}")

    def call(self, invocation: Invocation) -> Any:
        """Execute an operation, and wait for the result."""
        number = self._numbers.take(invocation.to)
        try:
            request = self._request(invocation, number)
            with self._pool.waiting():
                reply = self._route(invocation.to).call(request)
        finally:
            self._numbers.settle(invocation.to, number.value)
        return self._read(reply, invocation.to)

    def start(self, invocation: Invocation, keep: object = None) -> RpcFuture:
        """Start an operation and return its future, which refers to `keep` until the call ends."""
        number = self._numbers.take(invocation.to)
        future = self._future(invocation.to.name, invocation.name, lambda: self._cancel(invocation.to, number.value))
        future.sent = keep, invocation.args, invocation.kwargs  # keeps handles alive until the call ends

        def done(reply: Reply | None, error: BaseException | None) -> None:
            result = None
            self._numbers.settle(invocation.to, number.value)
            if reply is not None:
                try:
                    # Decoded even if it was cancelled, so that references in it are released.
                    result = self._read(reply, invocation.to)
                except BaseException as raised:
                    error = raised
            future.sent = None
            future._finish(result, _untraced(error))

        self._begin(invocation, number, done)
        return future

    def failed(self, callee: str, name: str, error: BaseException) -> RpcFuture:
        """Return the future of a call that could not be started."""
        future = self._future(callee, name, lambda: None)
        future._finish(None, error)
        return future

    def control(self, to: Endpoint, operation: Operation, args: list[Any]) -> None:
        """Execute a control operation, and wait for its completion."""
        self.call(Invocation(to, operation, "", args, timeout=_CONTROL_S))

    def notify(self, to: Endpoint, operation: Operation, args: list[Any]) -> None:
        """Send a control operation without waiting. Safe to call from anywhere, including finalizers.

        It is sent once, with a long timeout: a stopped process handles it when it continues.
        """
        invocation = Invocation(to, operation, "", args, timeout=LONGEST_S)
        self._housekeeping.do(lambda: self._notify(invocation))

    def _notify(self, invocation: Invocation) -> None:
        number = self._numbers.take(invocation.to)

        def done(reply: Reply | None, error: BaseException | None) -> None:
            self._numbers.settle(invocation.to, number.value)
            try:
                if error is not None:
                    raise error
                if reply is not None:
                    self._read(reply, invocation.to)
            except NeuraxisError as error:  # the other process is gone
                _log.debug("rpc: %s", error)

        self._begin(invocation, number, done)

    def _begin(self, invocation: Invocation, number: Number, done: Done) -> None:
        try:
            self._route(invocation.to).start(self._request(invocation, number), done)
        except BaseException:
            self._numbers.settle(invocation.to, number.value)
            raise

    def _route(self, to: Endpoint) -> Route:
        return self._local if to == self.me else self._transport

    def _future(self, callee: str, name: str, on_cancel: Callable[[], None]) -> RpcFuture:
        return RpcFuture(callee, f"{name!r} of {callee!r}", on_cancel, self._pool.waiting, self._callbacks.run)

    def _cancel(self, to: Endpoint, number: int) -> None:
        self.notify(to, Operation.CANCEL, [number])

    def _request(self, invocation: Invocation, number: Number) -> Request:
        if not isinstance(invocation.name, str):
            raise InvalidArgument(f"name={invocation.name!r}: the name of a registered function is expected")
        is_control = invocation.operation in CONTROL_OPERATIONS
        kind = Kind.CONTROL if is_control else Kind.CALL
        value = [int(invocation.operation), invocation.name, list(invocation.args), invocation.kwargs or {}]
        timeout = self._timeout if invocation.timeout is None else check_timeout(invocation.timeout)

        def write(channel: int) -> Frame:
            try:
                return self._values.encode(
                    kind, channel, number.value, number.settled, value, invocation.to, number.still_open
                )
            except TooLarge as error:
                raise InvalidArgument(
                    f"{invocation.name!r}: the arguments have {error}; over this backend a message has "
                    f"{self._values.largest:,} at most"
                ) from None

        return Request(invocation.to, number.value, is_control, write, timeout)

    def _read(self, reply: Reply, sender: Endpoint) -> Any:
        head, frame = reply
        try:
            succeeded, result = read_reply(self._values.decode(frame, head))
            if succeeded:
                return result
            failure = from_data(result, sender.name)
            self._recover_numbers(failure, sender)
        except Unreadable as error:
            raise unreadable(sender.name, error) from error
        except NotSerializable as error:
            raise NotSerializable(
                f"the call has run, but the reply of {sender.name!r} is refused: {error}. Use allow_pickle=True here "
                "as well if you trust every process that can be called"
            ) from None
        try:
            raise failure
        finally:
            del failure  # breaks the reference cycle through this frame in its traceback

    def _recover_numbers(self, failure: Exception, callee: Endpoint) -> None:
        """Skip numbers that a callee has seen and this process never sent: another process sends in its name."""
        newest = getattr(failure, "newest", None)
        if not isinstance(failure, CalleeDied) or newest.__class__ is not int or not 0 < newest < _MAX_NUMBER:
            return
        if self._numbers.skip_to(callee, newest):
            self._refusals.add(
                "a call number that this process has not used",
                f"{callee.name!r} has run a call with the number {newest} in the name of {self.me.name!r}; later calls "
                "use higher numbers. Prevent others from sending in this name: use access rules (docs/security.md)",
            )


def _untraced(error: BaseException | None) -> BaseException | None:
    """Remove the tracebacks of an error, which would create a reference cycle with the call's future."""
    link = error
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            break
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
