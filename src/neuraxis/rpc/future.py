"""The future of an asynchronous remote call."""

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
    """The future of a call, as returned by `rpc_async`: a `concurrent.futures.Future` that can also be awaited.

    `wait(timeout)` returns the result or raises; `done()`, `cancel()`, `add_done_callback(f)`, `result()`,
    `exception()` and `concurrent.futures.wait` work as in the standard library. Callbacks run in separate threads,
    those of one future in their order.

    Examples
    --------
    >>> from neuraxis.rpc import RpcContext
    >>> with RpcContext("shm", world_size=1, rank=0) as context:
    ...     context.register_function("double", lambda x: 2 * x)
    ...     future = context.rpc_async("rank0", "double", 21)
    ...     future.wait(timeout=10.0)
    42

    In a coroutine::

        label = await future
    """

    def __init__(
        self,
        callee: str,
        what: str,
        on_cancel: Callable[[], None],
        releasing_slot: Callable[[], Any],
        run: Callable[[Callable[[], None]], bool],
    ) -> None:
        super().__init__()
        self.callee = callee
        self._what = what
        self._on_cancel = on_cancel
        self._releasing_slot = releasing_slot
        self._run = run
        self._first_cancel = threading.Lock()
        self._callbacks: list[Callable[[Any], object]] = []
        self.sent: Any = None  # the arguments, kept alive until the callee has its references

    def wait(self, timeout: float | None = None) -> Any:
        """Wait for the result.

        Parameters
        ----------
        timeout : float, optional
            Longest time to wait, in seconds; by default until the deadline of the call.

        Returns
        -------
        object
            Result of the function.

        Raises
        ------
        CallTimeout
            There was no result within `timeout` seconds; the call continues until its own deadline.
        RpcError
            There is no result; the subclass gives the reason.
        Exception
            The exception that the function raised.
        """
        try:
            return self.result(timeout)
        except concurrent.futures.CancelledError as error:
            if isinstance(error, CallCancelled):
                raise
            raise CallCancelled(f"{self._what} was cancelled; it may have started before", self.callee) from None
        except TimeoutError:
            if self.done():  # the call itself ended with this error
                raise
            raise CallTimeout(f"{self._what} has not ended within {timeout:g} s; it continues", self.callee) from None
        finally:
            del self  # breaks the reference cycle through this frame in the error's traceback

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, as futures of the standard library do; `wait` raises the errors of neuraxis.

        Parameters
        ----------
        timeout : float, optional
            Longest time to wait, in seconds; by default until the deadline of the call.

        Returns
        -------
        object
            Result of the function.
        """
        try:
            if self.done():
                return super().result(0)
            with self._releasing_slot():
                return super().result(timeout)
        finally:
            del self  # as in `wait`

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception of the call, or None.

        Parameters
        ----------
        timeout : float, optional
            Longest time to wait, in seconds; by default until the deadline of the call.

        Returns
        -------
        BaseException or None
            The exception.

        Raises
        ------
        TimeoutError
            There was no result within `timeout` seconds.
        """
        with self._releasing_slot():
            return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call a function when this future is done; immediately if it is.

        Parameters
        ----------
        fn : callable
            Function of this future.
        """
        with self._condition:  # ending the future takes this lock as well
            if not self.done():
                if not self._callbacks:
                    super().add_done_callback(self._hand_over)
                self._callbacks.append(fn)
                return
        super().add_done_callback(fn)

    def _hand_over(self, _: Any) -> None:
        """Run the callbacks in another thread: the present one receives replies or checks deadlines."""
        try:
            handed_over = self._run(self._call_back)
        except RuntimeError:  # no more threads can be started
            handed_over = False
        if not handed_over:
            self._call_back()  # usually the context is shut down, and nothing is delayed

    def _call_back(self) -> None:
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception:
                _log.exception("rpc: a callback of %s raised", self._what)
        self._callbacks.clear()

    def cancel(self) -> bool:
        """Cancel the call; return False if it was done.

        If it has not started, the callee does not start it; otherwise it continues, and its result is dropped.
        """
        if not super().cancel():
            return False
        if self._first_cancel.acquire(blocking=False):
            self.set_running_or_notify_cancel()  # notifies `concurrent.futures.wait` as well
            self._on_cancel()
        return True

    def _finish(self, result: Any, error: BaseException | None) -> None:
        """End the call, unless it was cancelled before."""
        try:
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass

    def __await__(self) -> Generator[Any, None, Any]:
        with self._releasing_slot():
            return (yield from asyncio.wrap_future(self).__await__())
