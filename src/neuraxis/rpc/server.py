"""The callee's side: what a request makes happen, and the reply to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from neuraxis.errors import CallCancelled, CalleeDied, CallRefused, NotSerializable, UnknownFunction
from neuraxis.rpc.failures import to_data
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.kept import Kept
from neuraxis.rpc.messages import Head, Kind, Operation, read_request
from neuraxis.rpc.once import AtMostOnce
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
        largest: int,
        handle_for: Callable[[int, str], Any],
        on_done: Callable[[Party], None],
    ) -> None:
        self._me = me
        self._registry = registry
        self._values = values
        self._kept = kept
        self._once = AtMostOnce()
        self._largest = largest
        self._handle_for = handle_for
        self._on_done = on_done
        self._cancelled: OrderedDict[tuple[Party, int], None] = OrderedDict()

    def answer(self, frame: Any, head: Head) -> Frame:
        """The reply to a call, whatever happens. Whoever calls this has a place in the pool."""
        try:
            known = self._once.begin(head.sender, head.number, head.settled)
        except CalleeDied as error:
            return self._fail(head, error)
        if known is not None:
            return known
        try:
            reply = self._success(head, self._run(head, frame))
        except BaseException as error:  # also SystemExit: it is this call's, not the program's
            reply = self._fail(head, error)
        self._once.end(head.sender, head.number, reply)
        return reply

    def control(self, frame: Any, head: Head) -> Frame:
        """The reply to what is done at once: holding, releasing, cancelling."""
        try:
            known = self._once.begin(head.sender, head.number, head.settled)
        except CalleeDied as error:
            return self._fail(head, error)
        if known is not None:
            return known
        try:
            self._do(head, frame)
            reply = self._success(head, None)
        except BaseException as error:
            reply = self._fail(head, error)
        self._once.end(head.sender, head.number, reply)
        return reply

    def refuse(self, head: Head, why: str) -> Frame:
        """The reply to a call that is not run."""
        return self._fail(head, CallRefused(f"{self._me.name!r} does not take this call: {why}", self._me.name))

    def _do(self, head: Head, frame: Any) -> None:
        operation, _, args, _ = self._open(head, frame)
        if operation == Operation.HOLD:
            number, name, life = args
            self._kept.hold(number, Party(name, life))
        elif operation == Operation.RELEASE:
            self._kept.release(args[0], head.sender)
        elif operation == Operation.CANCEL:
            self._cancelled[head.sender, args[0]] = None
            while len(self._cancelled) > _MOST_CANCELLED:
                self._cancelled.popitem(last=False)
        elif operation == Operation.DONE:
            self._on_done(head.sender)
        else:
            raise CallRefused(f"operation {operation} is none of control", self._me.name)

    def _open(self, head: Head, frame: Any) -> tuple[int, str, list[Any], dict[str, Any]]:
        if head.life != self._me.life:
            # Who was called is dead, and this process has its name: it must not run what the other may have run.
            raise CalleeDied(f"{self._me.name!r} was called, and has died since; another has its name", self._me.name)
        try:
            return read_request(self._values.decode(frame, head))
        except NotSerializable as error:
            raise CallRefused(f"{error}: say allow_pickle=True on {self._me.name!r}, too", self._me.name) from None

    def _run(self, head: Head, frame: Any) -> Any:
        operation, name, args, kwargs = self._open(head, frame)
        if self._cancelled and (head.sender, head.number) in self._cancelled:
            raise CallCancelled(f"{name!r} was cancelled before it began", self._me.name)
        if operation == Operation.CALL:
            function = self._registry.function(name)
            if function is not None:
                return function(*args, **kwargs)
            raise self._unknown("function", name)
        if operation == Operation.METHOD:
            number, *args = args
            return self._kept.method(number, name)(*args, **kwargs)
        if operation == Operation.MAKE:
            factory = self._registry.factory(name)
            if factory is not None:
                return self._handle_for(self._kept.add(factory(*args, **kwargs), name, self._me), name)
            raise self._unknown("class or factory", name)
        raise CallRefused(f"operation {operation} is not known here", self._me.name)

    def _success(self, head: Head, result: Any) -> Frame:
        frame = self._values.encode(Kind.REPLY, head.lane, head.number, 0, [True, result], head.sender)
        if len(frame) > self._largest:
            raise CallRefused(
                f"the result has {len(frame):,} bytes; a message has {self._largest:,} at most: return it in parts, or "
                "keep it where it is and hold it with remote_object",
                self._me.name,
            )
        return frame

    def _unknown(self, what: str, name: str) -> UnknownFunction:
        names = self._registry.names()
        there = "that name is something else" if name in names else f"there are {', '.join(names) or 'none'}"
        return UnknownFunction(f"{self._me.name!r} has registered no {what} {name!r}; {there}", self._me.name)

    def _fail(self, head: Head, error: BaseException) -> Frame:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # where the function raised, not how it was called
        error.__traceback__ = trace
        return self._values.encode(Kind.REPLY, head.lane, head.number, 0, [False, to_data(error)], head.sender)
