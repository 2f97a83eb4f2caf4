"""Asyncio for a node: coroutine handlers, requests that do not block an event loop, and message streams.

A subscription or service calls its handler in a thread of its own. If that returns an awaitable, the thread runs it in
an event loop and waits for it, so handlers of one subscription still run one after the other, and their exceptions are
treated like those of other handlers. The loop is the one in which `subscribe` or `serve` was called or, outside of any
loop, one that the node runs in another thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

from neuraxis.errors import MeshClosed, RequestTimeout
from neuraxis.threads import Threads

if TYPE_CHECKING:
    from neuraxis.mesh.messages import Message
    from neuraxis.mesh.subscription import Subscription

__all__ = ["AsyncBridge", "HandlerCancelled", "MessageStream", "SyncHandler", "running_loop"]

_POLL_S = 0.2  # how often a waiting thread checks that the event loop still runs
_STOPPED_POLLS = 5  # consecutive checks that find the loop stopped, after which its coroutine is abandoned
_END_S = 1.0  # how long a closing node waits for cancelled coroutines
_MAX_THREADS = 64  # concurrent requests of coroutines; others are queued
_YIELD_EVERY = 16  # messages after which a stream lets other tasks run


class HandlerCancelled(MeshClosed):
    """A handler's coroutine was cancelled, or the event loop that should run it has ended."""


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, or None."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class SyncHandler:
    """A blocking function for a handler: if the handler returns an awaitable, an event loop runs it to completion."""

    def __init__(self, bridge: AsyncBridge, handler: Callable[..., Any]) -> None:
        self._bridge = bridge
        self._handler = handler
        self._home = running_loop()
        self._pending = 0

    def __call__(self, *arguments: Any) -> Any:
        result = self._handler(*arguments)
        if result is None or not inspect.isawaitable(result):
            return result
        self._pending += 1
        try:
            return self._bridge.run(result, self._home)
        finally:
            self._pending -= 1

    def waits_for_this_thread(self) -> bool:
        """Return True if a coroutine of this handler needs the event loop of the current thread to finish."""
        return self._pending > 0 and self._home is not None and self._home is running_loop()


class AsyncBridge:
    """Runs coroutines for threads, and blocking calls for coroutines. Threads and the loop start on first use."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._running: dict[concurrent.futures.Future[Any], asyncio.AbstractEventLoop] = {}
        self._threads = Threads(f"neuraxis {name} requests", _MAX_THREADS)

    def synchronous(self, handler: Callable[..., Any]) -> SyncHandler:
        """Return a blocking function for a handler that may be a coroutine function."""
        return SyncHandler(self, handler)

    def run(self, awaitable: Any, home: asyncio.AbstractEventLoop | None) -> Any:
        """Run an awaitable in an event loop of another thread, and return its result."""
        coroutine = awaitable if inspect.iscoroutine(awaitable) else _as_coroutine(awaitable)
        try:
            loop = home or self._own_loop()
            if loop is running_loop():
                raise HandlerCancelled(f"node {self._name!r}: a coroutine cannot be awaited from its own event loop")
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except (RuntimeError, MeshClosed) as error:
            coroutine.close()
            raise HandlerCancelled(f"node {self._name!r}: the event loop of a handler has ended ({error})") from None
        with self._lock:
            self._running[future] = loop
        try:
            stopped = 0
            while not concurrent.futures.wait((future,), _POLL_S).done:
                stopped = 0 if loop.is_running() else stopped + 1
                if loop.is_closed() or stopped >= _STOPPED_POLLS:
                    future.cancel()
                    if loop.is_closed() or inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                        coroutine.close()  # otherwise its task is cancelled when the loop runs again
                    raise HandlerCancelled(
                        f"node {self._name!r}: the event loop of a handler has ended or stopped. "
                        "Keep the loop running in which you subscribe or serve, or do so outside of any loop."
                    )
            return future.result()
        except (concurrent.futures.CancelledError, asyncio.CancelledError):
            raise HandlerCancelled(f"node {self._name!r}: the coroutine of a handler was cancelled") from None
        finally:
            with self._lock:
                self._running.pop(future, None)

    async def in_thread(self, function: Callable[[float], Any], timeout: float) -> Any:
        """Run a blocking function in a thread and await it; its argument is the remaining time in seconds."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()
        deadline = time.monotonic() + timeout

        def call() -> None:
            try:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RequestTimeout(
                        f"the request was not sent: {_MAX_THREADS} others were in progress for {timeout:g} s"
                    )
                value, error = function(left), None
            except BaseException as raised:  # raised again in the awaiting task
                value, error = None, raised
            try:
                loop.call_soon_threadsafe(_settle, result, value, error)
            except RuntimeError:
                pass  # the loop has ended, and the awaiting task with it

        if not self._threads.run(call):
            raise MeshClosed(f"node {self._name!r} has been closed. Create another one")
        return await result

    def _stop(self) -> None:
        """Accept no more calls, and cancel coroutines that only the calling thread could finish."""
        here = running_loop()
        with self._lock:
            self._closing = True
            stuck = [future for future, loop in self._running.items() if loop is here]
        for future in stuck:
            future.cancel()
        self._threads.close(0.0)

    def _wait_for_end(self, deadline: float) -> None:
        """Cancel running coroutines, and stop the node's own loop."""
        with self._lock:
            left, loop, thread = list(self._running), self._loop, self._thread
        for future in left:
            future.cancel()
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            if not self._runs_here():
                thread.join(max(_END_S, deadline - time.monotonic()))

    def _runs_here(self) -> bool:
        """Return True if the current thread runs the node's own loop."""
        return threading.current_thread() is self._thread

    # --- helpers ------------------------------------------------------------------------------------------------

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closing:
                raise MeshClosed("the node has been closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name=f"neuraxis {self._name} loop", daemon=True
                )
                self._thread.start()
            return self._loop


class MessageStream:
    """A subscription for `async for`, as returned by `Node.stream`. It ends when it or its node is closed.

    Close it (`async with node.stream(...) as messages`, or `close()`) when you leave the loop early; a stream without
    references closes itself. Several tasks may read one stream: each message goes to one of them.
    """

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._in_a_row = 0
        self._finalizer = weakref.finalize(self, subscription._stop)
        self._finalizer.atexit = False

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> Message:
        loop, subscription = asyncio.get_running_loop(), self.subscription
        self._in_a_row += 1
        if self._in_a_row >= _YIELD_EVERY:
            self._in_a_row = 0
            await asyncio.sleep(0)
        while (message := subscription.get_nowait()) is None:
            if subscription.closed:
                raise StopAsyncIteration
            self._in_a_row = 0
            waiter = loop.create_future()
            wake = functools.partial(_wake, loop, waiter)
            subscription._add_waiter(wake)
            try:
                await waiter
            finally:
                subscription._remove_waiter(wake)
        return message

    def close(self) -> None:
        """End the stream; queued messages can still be read."""
        self._finalizer()

    async def __aenter__(self) -> MessageStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    try:
        loop.call_soon_threadsafe(_settle, waiter, None, None)
    except RuntimeError:
        pass  # the loop has ended


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return  # cancelled meanwhile
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        ended: Coroutine[Any, Any, Any] = _gather(tasks)
        loop.run_until_complete(ended)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _gather(tasks: set[asyncio.Task[Any]]) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=_END_S)
