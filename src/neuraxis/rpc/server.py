"""The callee's side of remote calls: deduplication, execution, and the reply.

**At-most-once execution.** A transport whose links break may deliver a request twice. The server runs it once: a repeat
gets the reply of the first, or none while that is in progress, because the caller waits for the same reply. With every
request a caller sends the numbers of earlier requests for which it still waits; the server forgets all others.

A caller that sends malformed or forged requests must not cost another its replies. So the cache of replies is shared
fairly between names, which the transport verifies: when it is full, the name with the most bytes loses its oldest one.
A number far ahead of a caller's last one is refused, because it would mark all numbers before it as settled.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Any

from neuraxis.errors import CallCancelled, CalleeDied, CallRefused, NotSerializable, UnknownFunction
from neuraxis.mesh.limits import FairDict, Refusals
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.handles import ObjectTable
from neuraxis.rpc.messages import Head, Kind, Operation, read_request
from neuraxis.rpc.registry import Registry
from neuraxis.rpc.transport import Endpoint
from neuraxis.rpc.values import TooLarge, Values
from neuraxis.wire.exceptions import to_data
from neuraxis.wire.objects import Unreadable

__all__ = ["MAX_AHEAD", "AtMostOnce", "RequestState", "Server"]

_log = logging.getLogger("neuraxis.rpc")

MAX_AHEAD = 2**20  # how far a number may be ahead of the caller's last one
_MAX_BYTES = 64 * 2**20  # of cached replies
_MAX_NAMES = 10_000  # present callers, and as many gone ones whose highest numbers are remembered
_MAX_INCARNATIONS = 64  # incarnations of one name, likewise
_MAX_UNSETTLED = 100_000  # requests of one caller
_MAX_CANCELLED = 10_000  # cancellations that are remembered, of requests that may never arrive
_NUMBER = [int]
_NUMBER_AND_ENDPOINT = [int, str, int]
_NONE: frozenset[int] = frozenset()


class RequestState(enum.Enum):
    """The state of a request without a reply."""

    NEW = enum.auto()  # must be run
    IN_PROGRESS = enum.auto()  # is queued or running, and will get a reply


class _Caller:
    """The unsettled requests of a caller."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.settled = newest + 1
        self.still_open = _NONE
        self.requests: dict[int, bool] = {}  # True if it has ended


class AtMostOnce:
    """Deduplication of the requests to one callee, with a bounded cache of replies."""

    def __init__(self, max_bytes: int = _MAX_BYTES) -> None:
        self._lock = threading.Lock()
        self._callers: dict[Endpoint, _Caller] = {}
        self._incarnations: Counter[str] = Counter()  # number of callers by name
        self._past: OrderedDict[str, OrderedDict[int, int]] = OrderedDict()  # highest numbers of forgotten callers
        self._replies: FairDict[tuple[Endpoint, int], Frame] = FairDict(max_bytes=max_bytes)

    def begin(
        self, caller: Endpoint, number: int, settled: int, still_open: Collection[int] = ()
    ) -> Frame | RequestState:
        """Register a request; return its state, or its reply if it has one.

        Raises
        ------
        CalleeDied
            The reply is no longer cached. Its `newest` is the highest number received from this caller.
        CallRefused
            The number is too far ahead, or the caller has too many requests.
        """
        with self._lock:
            known = self._callers.get(caller) or self._add(caller)
            if number > known.newest + MAX_AHEAD:
                raise CallRefused(
                    f"the call has the number {number}, but the last one of {caller.name!r} was {known.newest}. "
                    "Another process may send in its name"
                )
            if number > known.newest:  # otherwise a later request has overtaken it
                known.newest = number
                self._settle(caller, known, settled, still_open)
            has_ended = known.requests.get(number)
            if has_ended is None and (number >= known.settled or number in known.still_open):
                if len(known.requests) >= _MAX_UNSETTLED:
                    raise CallRefused(f"{caller.name!r} has {_MAX_UNSETTLED:,} unsettled calls")
                known.requests[number] = False
                return RequestState.NEW
            if has_ended is False:
                return RequestState.IN_PROGRESS
            answer = self._replies.get((caller, number))
        if answer is None:
            error = CalleeDied("the call has run, but its result is no longer available")
            error.newest = known.newest
            raise error
        return answer

    def _add(self, caller: Endpoint) -> _Caller:
        if len(self._callers) >= _MAX_NAMES or self._incarnations[caller.name] >= _MAX_INCARNATIONS:
            raise CallRefused(f"there are too many callers named {caller.name!r}, or in total")
        past = self._past.get(caller.name)
        known = self._callers[caller] = _Caller(0 if past is None else past.pop(caller.incarnation, 0))
        self._incarnations[caller.name] += 1
        return known

    def end(self, caller: Endpoint, number: int, answer: Frame) -> None:
        """Cache the reply to a request."""
        with self._lock:
            known = self._callers.get(caller)
            if known is None or known.requests.get(number) is not False:
                return  # it will not be repeated
            known.requests[number] = True
            self._replies.add(caller.name, (caller, number), answer, answer.size)

    @property
    def nbytes(self) -> int:
        """The size of all cached replies."""
        return self._replies.nbytes

    def remembered(self, caller: Endpoint) -> int:
        """Return the number of tracked requests of a caller."""
        known = self._callers.get(caller)
        return 0 if known is None else len(known.requests)

    def __len__(self) -> int:
        return len(self._callers)

    def endpoints(self) -> set[Endpoint]:
        """Return all tracked callers."""
        with self._lock:
            return set(self._callers)

    def forget(self, endpoint: Endpoint) -> None:
        """Forget a caller that is gone, except its highest number: should it return, nothing runs twice."""
        with self._lock:
            known = self._callers.pop(endpoint, None)
            if known is None:
                return
            self._incarnations[endpoint.name] -= 1
            if not self._incarnations[endpoint.name]:
                del self._incarnations[endpoint.name]
            for number in known.requests:
                self._replies.discard((endpoint, number))
            past = self._past.setdefault(endpoint.name, OrderedDict())
            self._past.move_to_end(endpoint.name)
            past[endpoint.incarnation] = known.newest
            if len(past) > _MAX_INCARNATIONS:
                past.popitem(last=False)
            if len(self._past) > _MAX_NAMES:
                self._past.popitem(last=False)

    def _settle(self, caller: Endpoint, known: _Caller, settled: int, still_open: Collection[int]) -> None:
        known.settled = min(settled, known.newest + 1)
        known.still_open = still = frozenset(still_open) if still_open else _NONE
        for number in [number for number in known.requests if number < known.settled and number not in still]:
            del known.requests[number]
            self._replies.discard((caller, number))


class Server:
    """Executes requests for one context.

    A transport that may deliver a request more than once calls `begin` first; the others need not.

    Parameters
    ----------
    me : Endpoint
        This process.
    registry : Registry
        The functions and factories that may be called.
    values : Values
        The serializer.
    table : ObjectTable
        The remote objects of this process.
    handle_for : callable
        Returns the handle of a new object, by its number and kind.
    on_done : callable
        Called with an endpoint that has no more calls to make.
    """

    def __init__(
        self,
        me: Endpoint,
        registry: Registry,
        values: Values,
        table: ObjectTable,
        handle_for: Callable[[int, str], Any],
        on_done: Callable[[Endpoint], None],
    ) -> None:
        self._me = me
        self._registry = registry
        self._values = values
        self._objects = table
        self.deduplication = AtMostOnce()
        self._handle_for = handle_for
        self._on_done = on_done
        self._cancelled: FairDict[tuple[Endpoint, int], None] = FairDict(_MAX_CANCELLED)  # owned by the caller
        self._refusals = Refusals(_log, f"calls to {me.name!r}")

    def begin(self, head: Head) -> Frame | RequestState:
        """Register a request; return its state, or the reply if it has one or is refused."""
        try:
            return self.deduplication.begin(head.sender, head.number, head.settled, head.still_open)
        except CallRefused as error:
            self._refusals.add("a call beyond the limits of its caller", error)
            return self._fail(head, error)
        except CalleeDied as error:
            return self._fail(head, error)

    def answer(self, frame: Any, head: Head) -> Frame:
        """Run a call and return the reply, whatever happens. The caller of this method has a slot in the pool."""
        reply = self._answer(frame, head)
        self.deduplication.end(head.sender, head.number, reply)
        return reply

    def _answer(self, frame: Any, head: Head) -> Frame:
        try:
            run = self._prepare(head, frame)
        except BaseException as error:
            return self._fail(head, error)
        try:
            result = run()
        except BaseException as error:  # SystemExit as well: it must not end this thread
            return self._fail(head, error, of_function=True)
        return self._success(head, result)

    def control(self, frame: Any, head: Head) -> Frame:
        """Execute a control request (retain, release, cancel, done) and return the reply."""
        try:
            self._execute(head, frame)
        except BaseException as error:
            return self._ended(head, self._fail(head, error))
        return self._ended(head, self._success(head, None))

    def refuse(self, head: Head, why: str, frame: Any = None) -> Frame:
        """Return the reply to a call that is not run."""
        if frame is not None:
            self.discard(frame, head)
        error = CallRefused(f"{self._me.name!r} refuses this call: {why}", self._me.name)
        return self._ended(head, self._fail(head, error))

    def discard(self, frame: Any, head: Head) -> None:
        """Release the references in a frame that is not decoded."""
        if head.incarnation == self._me.incarnation:
            self._values.discard(frame, head)

    def _ended(self, head: Head, reply: Frame) -> Frame:
        self.deduplication.end(head.sender, head.number, reply)
        return reply

    def _execute(self, head: Head, frame: Any) -> None:
        operation, _, args, _ = self._open(head, frame)
        if operation == Operation.RETAIN:
            number, name, incarnation = self._checked(args, _NUMBER_AND_ENDPOINT)
            self._objects.retain(number, Endpoint(name, incarnation), head.sender)
        elif operation == Operation.RELEASE:
            number, name, incarnation = self._checked(args, _NUMBER_AND_ENDPOINT)
            self._objects.release(number, Endpoint(name, incarnation), head.sender)
        elif operation == Operation.CANCEL:
            (number,) = self._checked(args, _NUMBER)
            self._cancelled.add(head.sender.name, (head.sender, number), None)
        elif operation == Operation.DONE:
            self._on_done(head.sender)
        else:
            raise CallRefused(f"operation {operation} is not a control operation", self._me.name)

    def _checked(self, args: list[Any], types: Sequence[type]) -> list[Any]:
        if [arg.__class__ for arg in args] != types:
            raise CallRefused(f"the arguments of the operation are malformed: {args!r:.200}", self._me.name)
        return args

    def _open(self, head: Head, frame: Any) -> tuple[int, str, list[Any], dict[str, Any]]:
        if head.incarnation != self._me.incarnation:
            # The callee is dead and this process has its name. The callee may have run the call, so it is not run
            # again.
            raise CalleeDied(f"{self._me.name!r} has died since the call; another process has its name", self._me.name)
        try:
            return read_request(self._values.decode(frame, head))
        except NotSerializable as error:
            raise CallRefused(f"{error}. Use allow_pickle=True on {self._me.name!r} as well", self._me.name) from None
        except Unreadable as error:
            raise CallRefused(f"{self._me.name!r} cannot decode this call: {error}", self._me.name) from None

    def _prepare(self, head: Head, frame: Any) -> Callable[[], Any]:
        """Decode a request; return the function that runs it."""
        operation, name, args, kwargs = self._open(head, frame)
        if self._cancelled and self._cancelled.discard((head.sender, head.number)):
            raise CallCancelled(f"{name!r} was cancelled before it started", self._me.name)
        if operation == Operation.CALL:
            function = self._registry.function(name)
            if function is None:
                raise self._unknown("function", name)
        elif operation == Operation.METHOD:
            (number,) = self._checked(args[:1], _NUMBER)
            del args[0]
            function = self._objects.method(number, name, head.sender)
        elif operation == Operation.MAKE:
            factory = self._registry.factory(name)
            if factory is None:
                raise self._unknown("class or factory", name)
            return lambda: self._handle_for(self._objects.add(_finish(factory(*args, **kwargs)), name, self._me), name)
        else:
            raise CallRefused(f"the operation {operation} is unknown", self._me.name)
        return lambda: _finish(function(*args, **kwargs))

    def _success(self, head: Head, result: Any) -> Frame:
        try:
            return self._values.encode(Kind.REPLY, head.channel, head.number, 0, [True, result], head.sender)
        except TooLarge as error:
            return self._fail(
                head,
                NotSerializable(
                    f"the result has {error}; a message has {self._values.largest:,} at most. Return it in parts, or "
                    "keep it in its process and refer to it with remote_object"
                ),
            )
        except BaseException as error:
            return self._fail(head, error)

    def _unknown(self, what: str, name: str) -> UnknownFunction:
        names = self._registry.names()
        others = "that name is something else" if name in names else f"it has {', '.join(names) or 'none'}"
        return UnknownFunction(f"{self._me.name!r} has registered no {what} {name!r}; {others}", self._me.name)

    def _fail(self, head: Head, error: BaseException, of_function: bool = False) -> Frame:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # hide the frames of this module
        error.__traceback__ = trace
        data = to_data(error, of_function)
        return self._values.encode(Kind.REPLY, head.channel, head.number, 0, [False, data], head.sender)


def _finish(result: Any) -> Any:
    """Return the result of a function; run a coroutine to completion in this thread, in a new event loop."""
    return asyncio.run(result) if inspect.iscoroutine(result) else result
