"""The callee's side: what a request makes happen, and the reply to it."""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from neuraxis.comm.objects import Unreadable
from neuraxis.errors import CallCancelled, CalleeDied, CallRefused, NotSerializable, UnknownFunction
from neuraxis.rpc.failures import to_data
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.kept import Kept
from neuraxis.rpc.messages import Head, Kind, Operation, read_request
from neuraxis.rpc.once import AtMostOnce, Standing
from neuraxis.rpc.registry import Registry
from neuraxis.rpc.transport import Party
from neuraxis.rpc.values import TooLarge, Values

__all__ = ["Server"]

_MOST_CANCELLED = 10_000  # that are remembered, of requests which may never come
_NUMBER = [int]
_PARTY_OF_NUMBER = [int, str, int]


class Server:
    """Answers requests for one context.

    A transport that may bring a request more than once first asks how it stands with it, by `begin`; the others do not.

    Args:
        handle_for: makes the handle of an object that was just made, which the reply carries.
        on_done: told who has no more calls to make.
    """

    def __init__(
        self,
        me: Party,
        registry: Registry,
        values: Values,
        kept: Kept,
        handle_for: Callable[[int, str], Any],
        on_done: Callable[[Party], None],
    ) -> None:
        self._me = me
        self._registry = registry
        self._values = values
        self._kept = kept
        self.once = AtMostOnce()
        self._handle_for = handle_for
        self._on_done = on_done
        self._cancelled: OrderedDict[tuple[Party, int], None] = OrderedDict()

    def begin(self, head: Head) -> Frame | Standing:
        """How it stands with a request: it is to be answered or refused now, it is under way, or its reply."""
        try:
            return self.once.begin(head.sender, head.number, head.settled, head.still_open)
        except CalleeDied as error:
            return self._fail(head, error)

    def answer(self, frame: Any, head: Head) -> Frame:
        """The reply to a call, whatever happens. Whoever calls this has a place in the pool."""
        reply = self._answer(frame, head)
        self.once.end(head.sender, head.number, reply)
        return reply

    def _answer(self, frame: Any, head: Head) -> Frame:
        try:
            run = self._prepared(head, frame)
        except BaseException as error:
            return self._fail(head, error)
        try:
            result = run()
        except BaseException as error:  # also SystemExit: it is this call's, not the program's
            return self._fail(head, error, of_function=True)
        return self._success(head, result)

    def control(self, frame: Any, head: Head) -> Frame:
        """The reply to what is done at once: holding, releasing, cancelling."""
        try:
            self._do(head, frame)
        except BaseException as error:
            return self._ended(head, self._fail(head, error))
        return self._ended(head, self._success(head, None))

    def refuse(self, head: Head, why: str, frame: Any = None) -> Frame:
        """The reply to a call that is not run, and whose frame is not read."""
        if frame is not None:
            self.discard(frame, head)
        error = CallRefused(f"{self._me.name!r} does not take this call: {why}", self._me.name)
        return self._ended(head, self._fail(head, error))

    def discard(self, frame: Any, head: Head) -> None:
        """A frame is not read, because nobody wants it any more."""
        if head.life == self._me.life:
            self._values.discard(frame, head)

    def _ended(self, head: Head, reply: Frame) -> Frame:
        self.once.end(head.sender, head.number, reply)
        return reply

    def _do(self, head: Head, frame: Any) -> None:
        operation, _, args, _ = self._open(head, frame)
        if operation == Operation.HOLD:
            number, name, life = self._checked(args, _PARTY_OF_NUMBER)
            self._kept.hold(number, Party(name, life))
        elif operation == Operation.RELEASE:
            number, name, life = self._checked(args, _PARTY_OF_NUMBER)
            self._kept.release(number, Party(name, life))
        elif operation == Operation.CANCEL:
            (number,) = self._checked(args, _NUMBER)
            self._cancelled[head.sender, number] = None
            while len(self._cancelled) > _MOST_CANCELLED:
                self._cancelled.popitem(last=False)
        elif operation == Operation.DONE:
            self._on_done(head.sender)
        else:
            raise CallRefused(f"operation {operation} is none of control", self._me.name)

    def _checked(self, args: list[Any], types: Sequence[type]) -> list[Any]:
        if [arg.__class__ for arg in args] != types:
            raise CallRefused(f"what came is not what it should be: {args!r:.200}", self._me.name)
        return args

    def _open(self, head: Head, frame: Any) -> tuple[int, str, list[Any], dict[str, Any]]:
        if head.life != self._me.life:
            # Who was called is dead, and this process has its name: it must not run what the other may have run.
            raise CalleeDied(f"{self._me.name!r} was called, and has died since; another has its name", self._me.name)
        try:
            return read_request(self._values.decode(frame, head))
        except NotSerializable as error:
            raise CallRefused(f"{error}: say allow_pickle=True on {self._me.name!r}, too", self._me.name) from None
        except Unreadable as error:
            raise CallRefused(f"{self._me.name!r} cannot read this call: {error}", self._me.name) from None

    def _prepared(self, head: Head, frame: Any) -> Callable[[], Any]:
        """What a request wants to be run."""
        operation, name, args, kwargs = self._open(head, frame)
        if self._cancelled and self._cancelled.pop((head.sender, head.number), 0) is None:
            raise CallCancelled(f"{name!r} was cancelled before it began", self._me.name)
        if operation == Operation.CALL:
            function = self._registry.function(name)
            if function is None:
                raise self._unknown("function", name)
        elif operation == Operation.METHOD:
            (number,) = self._checked(args[:1], _NUMBER)
            del args[0]
            function = self._kept.method(number, name)
        elif operation == Operation.MAKE:
            factory = self._registry.factory(name)
            if factory is None:
                raise self._unknown("class or factory", name)
            return lambda: self._handle_for(self._kept.add(_to_its_end(factory(*args, **kwargs)), name, self._me), name)
        else:
            raise CallRefused(f"operation {operation} is not known here", self._me.name)
        return lambda: _to_its_end(function(*args, **kwargs))

    def _success(self, head: Head, result: Any) -> Frame:
        try:
            return self._values.encode(Kind.REPLY, head.lane, head.number, 0, [True, result], head.sender)
        except TooLarge as error:
            return self._fail(
                head,
                NotSerializable(
                    f"the result has {error}; a message has {self._values.largest:,} at most: return it in parts, or "
                    "keep it where it is and hold it with remote_object"
                ),
            )
        except BaseException as error:
            return self._fail(head, error)

    def _unknown(self, what: str, name: str) -> UnknownFunction:
        names = self._registry.names()
        there = "that name is something else" if name in names else f"there are {', '.join(names) or 'none'}"
        return UnknownFunction(f"{self._me.name!r} has registered no {what} {name!r}; {there}", self._me.name)

    def _fail(self, head: Head, error: BaseException, of_function: bool = False) -> Frame:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # where the function raised, not how it was called
        error.__traceback__ = trace
        data = to_data(error, of_function)
        return self._values.encode(Kind.REPLY, head.lane, head.number, 0, [False, data], head.sender)


def _to_its_end(result: Any) -> Any:
    """The result of a function; an `async def` one is run to its end, in this thread and a loop of its own."""
    return asyncio.run(result) if inspect.iscoroutine(result) else result
