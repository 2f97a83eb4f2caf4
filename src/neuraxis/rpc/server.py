"""The callee's side: what a request makes happen, and the reply to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from neuraxis.errors import CallCancelled, CalleeDied, CallRefused, NotSerializable, UnknownFunction
from neuraxis.rpc.failures import to_data
from neuraxis.rpc.kept import Kept
from neuraxis.rpc.messages import Operation, Request, read_request
from neuraxis.rpc.once import AtMostOnce
from neuraxis.rpc.pool import Pool
from neuraxis.rpc.registry import Registry
from neuraxis.rpc.transport import Party
from neuraxis.rpc.values import Values

__all__ = ["Server"]

_MOST_CANCELLED = 10_000  # that are remembered, of requests which may never come


class Server:
    """Answers requests for one context.

    Args:
        largest: the bytes that a reply can have.
        handle_for: makes the handle of an object that was just made, which the reply carries.
        on_done: told who has no more calls to make.
    """

    def __init__(
        self,
        me: Party,
        registry: Registry,
        values: Values,
        kept: Kept,
        pool: Pool,
        once: AtMostOnce,
        largest: int,
        handle_for: Callable[[int, str], Any],
        on_done: Callable[[Party], None],
    ) -> None:
        self._me = me
        self._registry = registry
        self._values = values
        self._kept = kept
        self._pool = pool
        self._once = once
        self._largest = largest
        self._handle_for = handle_for
        self._on_done = on_done
        self._cancelled: OrderedDict[tuple[Party, int], None] = OrderedDict()

    def answer(self, frame: Any) -> bytes:
        """The reply to a call, whatever happens."""
        try:
            request = self._open(frame)
            known = self._once.begin(request.caller, request.number)
        except BaseException as error:
            return self._fail(error)
        if known is not None:
            return known
        try:
            reply = self._run_in_place(request)
        except BaseException as error:  # also SystemExit: it is this call's, not the program's
            reply = self._fail(error)
        self._once.end(request.caller, request.number, reply)
        return reply

    def control(self, frame: Any) -> bytes:
        """The reply to what is done at once: holding, releasing, cancelling."""
        try:
            request = self._open(frame)
            if request.operation == Operation.HOLD:
                number, name, life = request.args
                self._kept.hold(number, Party(name, life))
            elif request.operation == Operation.RELEASE:
                self._kept.release(request.args[0], request.caller)
            elif request.operation == Operation.CANCEL:
                self._cancelled[request.caller, request.args[0]] = None
                while len(self._cancelled) > _MOST_CANCELLED:
                    self._cancelled.popitem(last=False)
            elif request.operation == Operation.DONE:
                self._on_done(request.caller)
            else:
                raise CallRefused(f"operation {request.operation} is none of control", self._me.name)
            return self._values.encode([True, None], request.caller)
        except BaseException as error:
            return self._fail(error)

    def _open(self, frame: Any) -> Request:
        try:
            request = read_request(self._values.decode(frame))
        except NotSerializable as error:
            raise CallRefused(f"{error}: say allow_pickle=True on {self._me.name!r}, too", self._me.name) from None
        if request.life != self._me.life:
            # Who was called is dead, and this process has its name: it must not run what the other may have run.
            raise CalleeDied(f"{self._me.name!r} was called, and has died since; another has its name", self._me.name)
        return request

    def _run_in_place(self, request: Request) -> bytes:
        self._pool.enter()
        try:
            if self._cancelled and (request.caller, request.number) in self._cancelled:
                raise CallCancelled(f"{request.name!r} was cancelled before it began", self._me.name)
            frame = self._values.encode([True, self._run(request)], request.caller)
        finally:
            self._pool.leave()
        if len(frame) > self._largest:
            raise CallRefused(
                f"the result of {request.name!r} has {len(frame):,} bytes; a message has {self._largest:,} at most: "
                "return it in parts, or keep it here and hold it with remote_object",
                self._me.name,
            )
        return frame

    def _run(self, request: Request) -> Any:
        if request.operation == Operation.CALL:
            function = self._registry.function(request.name)
            if function is not None:
                return function(*request.args, **request.kwargs)
            raise self._unknown("function", request.name)
        if request.operation == Operation.METHOD:
            number, *args = request.args
            return self._kept.method(number, request.name)(*args, **request.kwargs)
        if request.operation == Operation.MAKE:
            factory = self._registry.factory(request.name)
            if factory is not None:
                made = factory(*request.args, **request.kwargs)
                return self._handle_for(self._kept.add(made, request.name, self._me), request.name)
            raise self._unknown("class or factory", request.name)
        raise CallRefused(f"operation {request.operation} is not known here", self._me.name)

    def _unknown(self, what: str, name: str) -> UnknownFunction:
        names = self._registry.names()
        there = "that name is something else" if name in names else f"there are {', '.join(names) or 'none'}"
        return UnknownFunction(f"{self._me.name!r} has registered no {what} {name!r}; {there}", self._me.name)

    def _fail(self, error: BaseException) -> bytes:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # where the function raised, not how it was called
        error.__traceback__ = trace
        return self._values.encode([False, to_data(error)], None)
