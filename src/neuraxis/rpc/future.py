"""A call under way, as `rpc_async` returns it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

from neuraxis.errors import CallCancelled, CallTimeout

__all__ = ["RpcFuture"]

_log = logging.getLogger("neuraxis.rpc")


class RpcFuture(concurrent.futures.Future[Any]):
    """The result that a call will have: a `concurrent.futures.Future` that can also be awaited in asyncio.

    `wait(timeout)` gives the result or raises; `done()`, `cancel()`, `add_done_callback(f)`, `result()`, `exception()`
    and `concurrent.futures.wait` are those of the library. Callbacks run in threads that do nothing else, those of one
    future in their order.
    """

    def __init__(
        self,
        callee: str,
        what: str,
        on_cancel: Callable[[], None],
        giving_place: Callable[[], Any],
        run: Callable[[Callable[[], None]], bool],
    ) -> None:
        super().__init__()
        self.callee = callee
        self._what = what
        self._on_cancel = on_cancel
        self._giving_place = giving_place
        self._run = run
        self._first_cancel = threading.Lock()
        self._callbacks: list[Callable[[Any], object]] = []
        self.sent: Any = None  # what was sent, kept until it is over: whoever is to hold a handle of it may not yet

    def wait(self, timeout: float | None = None) -> Any:
        """The result. What the function raised, or why there is no result, is raised here.

        After `timeout` seconds it raises CallTimeout, and the call goes on until its own deadline.
        """
        try:
            return self.result(timeout)
        except concurrent.futures.CancelledError as error:
            if isinstance(error, CallCancelled):
                raise
            raise CallCancelled(f"{self._what} was cancelled; it may have begun before", self.callee) from None
        except TimeoutError:
            if self.done():  # it is what the call ended with
                raise
            raise CallTimeout(f"{self._what} was not done within {timeout:g} s; it goes on", self.callee) from None
        finally:
            del self  # what is raised has this frame in its traceback, and would refer to itself by the future

    def result(self, timeout: float | None = None) -> Any:
        try:
            if self.done():
                return super().result(0)
            with self._giving_place():
                return super().result(timeout)
        finally:
            del self  # as in `wait`

    def exception(self, timeout: float | None = None) -> BaseException | None:
        with self._giving_place():
            return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Have `fn` called with this future when it is done; at once if it is."""
        with self._condition:  # which is taken to end it, too
            if not self.done():
                if not self._callbacks:
                    super().add_done_callback(self._hand_over)
                self._callbacks.append(fn)
                return
        super().add_done_callback(fn)

    def _hand_over(self, _: Any) -> None:
        """Whoever ends a call reads replies or looks at deadlines: what a program does then is not to hold that up."""
        try:
            handed_over = self._run(self._call_back)
        except RuntimeError:  # the process cannot have more threads
            handed_over = False
        if not handed_over:
            self._call_back()  # as a rule the context is shut down: there is nothing to hold up

    def _call_back(self) -> None:
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception:
                _log.exception("rpc: a callback of %s failed", self._what)
        self._callbacks.clear()

    def cancel(self) -> bool:
        """Do not wait for it any longer; False if it was done.

        Where it has not begun, the callee is told not to begin; where it has, it goes on and its result is dropped.
        """
        if not super().cancel():
            return False
        if self._first_cancel.acquire(blocking=False):
            self.set_running_or_notify_cancel()  # which also tells those that wait for several futures
            self._on_cancel()
        return True

    def finish(self, result: Any, error: BaseException | None) -> None:
        """The call is over; nothing happens where it was cancelled before."""
        try:
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass

    def __await__(self) -> Generator[Any, None, Any]:
        with self._giving_place():
            return (yield from asyncio.wrap_future(self).__await__())
