"""A call under way, as `rpc_async` returns it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Generator
from typing import Any

from neuraxis.errors import CallCancelled, CallTimeout

__all__ = ["RpcFuture"]


class RpcFuture(concurrent.futures.Future[Any]):
    """The result that a call will have: a `concurrent.futures.Future` that can also be awaited in asyncio.

    `wait(timeout)` gives the result or raises; `done()`, `cancel()`, `add_done_callback(f)`, `result()`, `exception()`
    and `concurrent.futures.wait` are those of the library. Callbacks run in a thread of the context.
    """

    def __init__(self, callee: str, what: str, on_cancel: Callable[[], None], giving_place: Callable[[], Any]) -> None:
        super().__init__()
        self.callee = callee
        self._what = what
        self._on_cancel = on_cancel
        self._giving_place = giving_place
        self._first_cancel = threading.Lock()
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

    def result(self, timeout: float | None = None) -> Any:
        if self.done():
            return super().result(0)
        with self._giving_place():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        with self._giving_place():
            return super().exception(timeout)

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
        return asyncio.wrap_future(self).__await__()
