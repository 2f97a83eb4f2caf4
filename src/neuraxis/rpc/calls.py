"""The caller's side: what is asked, by which way, and what the reply means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from neuraxis.comm.objects import Unreadable
from neuraxis.errors import InvalidArgument, NeuraxisError, NotSerializable
from neuraxis.rpc.failures import from_data, unreadable
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.future import RpcFuture
from neuraxis.rpc.housekeeping import Housekeeping
from neuraxis.rpc.messages import CONTROL_OPERATIONS, Kind, Operation, read_reply
from neuraxis.rpc.numbers import Number, Numbers
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Done, Party, Reply, Request, Transport
from neuraxis.rpc.values import TooLarge, Values

__all__ = ["Ask", "Calls", "seconds"]

_log = logging.getLogger("neuraxis.rpc")
_CONTROL_S = 10.0  # for what the other side does at once
_LONGEST_CHAIN = 100  # of errors, each the reason of the one before
_PATIENT_S = 1e6  # for what is told to one that may be stopped, and goes on some time


class Ask(NamedTuple):
    """What is asked of a party. `timeout` is in seconds; None stands for the context's."""

    to: Party
    operation: Operation
    name: str
    args: Sequence[Any] = ()
    kwargs: dict[str, Any] | None = None
    timeout: float | None = None


class Way(Protocol):
    """By which requests go: a transport, or what carries them to this process itself."""

    def call(self, request: Request) -> Reply: ...

    def start(self, request: Request, done: Done) -> None: ...


class Calls:
    """Makes calls for one context.

    Args:
        own: the way of those to this process.
        timeout: the deadline of calls that have none of their own.
        callbacks: where callbacks of futures run.
    """

    def __init__(
        self,
        transport: Transport,
        own: Way,
        values: Values,
        pool: Pool,
        timeout: float,
        housekeeping: Housekeeping,
        callbacks: Threads,
    ) -> None:
        self.me = transport.me
        self._transport = transport
        self._own = own
        self._values = values
        self._pool = pool
        self._timeout = timeout
        self._housekeeping = housekeeping
        self._callbacks = callbacks
        self._numbers = Numbers()

    def call(self, ask: Ask) -> Any:
        """Ask, and wait for the result."""
        number = self._numbers.take(ask.to)
        try:
            request = self._request(ask, number)
            with self._pool.waiting():
                reply = self._way(ask.to).call(request)
        finally:
            self._numbers.settle(ask.to, number.value)
        return self._read(reply, ask.to)

    def start(self, ask: Ask, keep: object = None) -> RpcFuture:
        """Ask without waiting. What is to be kept until the call is over is kept."""
        number = self._numbers.take(ask.to)
        future = self._future(ask.to.name, ask.name, lambda: self._cancel(ask.to, number.value))
        future.sent = keep, ask.args, ask.kwargs  # handles among them are held until the call is over

        def done(reply: Reply | None, error: BaseException | None) -> None:
            result = None
            self._numbers.settle(ask.to, number.value)
            if reply is not None:
                try:
                    # Also where it was cancelled: what handles in it stand for is let go then.
                    result = self._read(reply, ask.to)
                except BaseException as raised:
                    error = raised
            future.sent = None
            future.finish(result, _untraced(error))

        self._begin(ask, number, done)
        return future

    def failed(self, callee: str, name: str, error: BaseException) -> RpcFuture:
        """The future of a call that could not be made."""
        future = self._future(callee, name, lambda: None)
        future.finish(None, error)
        return future

    def control(self, to: Party, operation: Operation, args: list[Any]) -> None:
        """Have something done at once, and wait until it is."""
        self.call(Ask(to, operation, "", args, timeout=_CONTROL_S))

    def tell(self, to: Party, operation: Operation, args: list[Any]) -> None:
        """Have something done soon; nobody waits for it. It may be asked for from anywhere, a finalizer included.

        One that is stopped does it when it goes on: each is told once, and so it cannot be told again.
        """
        ask = Ask(to, operation, "", args, timeout=_PATIENT_S)
        self._housekeeping.do(lambda: self._tell(ask))

    def _tell(self, ask: Ask) -> None:
        number = self._numbers.take(ask.to)

        def done(reply: Reply | None, error: BaseException | None) -> None:
            self._numbers.settle(ask.to, number.value)
            try:
                if error is not None:
                    raise error
                if reply is not None:
                    self._read(reply, ask.to)
            except NeuraxisError as error:  # it is gone, and so is what it should do
                _log.debug("rpc: %s", error)

        self._begin(ask, number, done)

    def _begin(self, ask: Ask, number: Number, done: Done) -> None:
        try:
            self._way(ask.to).start(self._request(ask, number), done)
        except BaseException:
            self._numbers.settle(ask.to, number.value)
            raise

    def _way(self, to: Party) -> Way:
        return self._own if to == self.me else self._transport

    def _future(self, callee: str, name: str, on_cancel: Callable[[], None]) -> RpcFuture:
        return RpcFuture(callee, f"{name!r} of {callee!r}", on_cancel, self._pool.waiting, self._callbacks.run)

    def _cancel(self, to: Party, number: int) -> None:
        self.tell(to, Operation.CANCEL, [number])

    def _request(self, ask: Ask, number: Number) -> Request:
        if not isinstance(ask.name, str):
            raise InvalidArgument(f"name={ask.name!r}: the name of a registered function is expected")
        is_control = ask.operation in CONTROL_OPERATIONS
        kind = Kind.CONTROL if is_control else Kind.CALL
        value = [int(ask.operation), ask.name, list(ask.args), ask.kwargs or {}]
        timeout = self._timeout if ask.timeout is None else seconds(ask.timeout)

        def write(lane: int) -> Frame:
            try:
                return self._values.encode(kind, lane, number.value, number.settled, value, ask.to, number.still_open)
            except TooLarge as error:
                raise InvalidArgument(
                    f"{ask.name!r}: the arguments have {error}; over this backend a message has "
                    f"{self._values.largest:,} at most"
                ) from None

        return Request(ask.to, number.value, is_control, write, timeout)

    def _read(self, reply: Reply, sender: Party) -> Any:
        head, frame = reply
        try:
            succeeded, result = read_reply(self._values.decode(frame, head))
            if succeeded:
                return result
            failure = from_data(result, sender.name)
        except Unreadable as error:
            raise unreadable(sender.name, error) from error
        except NotSerializable as error:
            raise NotSerializable(
                f"the call has run, and the answer of {sender.name!r} is not taken: {error}; say allow_pickle=True "
                "here, too, where everybody who can be called is trusted"
            ) from None
        try:
            raise failure
        finally:
            del failure  # else it would refer to itself, by this frame in its traceback


def _untraced(error: BaseException | None) -> BaseException | None:
    """The error without where it was found out: that would refer to the call's future, and so to the error itself."""
    link = error
    for _ in range(_LONGEST_CHAIN):
        if link is None:
            break
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def seconds(timeout: object) -> float:
    """A deadline that was given."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= _PATIENT_S:
        raise InvalidArgument(f"timeout={timeout!r}: a number of seconds is expected")
    return float(timeout)
