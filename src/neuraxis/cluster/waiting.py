"""Waiting for a Dask cluster with failure detection.

The duration of a computation is unknown, so waiting for one has no deadline unless the caller sets one. A scheduler
that is gone must not block a caller: Dask detects a closed connection and cancels all pending work. A scheduler that is
connected but stuck is detected here by a heartbeat: while a caller waits, the scheduler is queried periodically and
must reply in time. Its reply also has the number of workers, for callers that limit the time without any worker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from distributed import Client, Future, as_completed, futures_of
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from neuraxis.errors import ClusterClosed, ClusterError, ClusterTimeout, TaskLost

__all__ = ["Waiter"]

Value = TypeVar("Value")

_HEARTBEAT_S = 1.0


class Waiter:
    """Waits for calls of one client; its scheduler must reply within `reply_s` seconds.

    `own_workers_s` limits the time without any of the workers that were started with the cluster; a dead one is
    restarted. It is None for workers that were started elsewhere, and come and go.
    """

    def __init__(self, client: Client, reply_s: float, own_workers_s: float | None = None) -> None:
        self._client = client
        self._own_workers_s = own_workers_s
        self._address = str(client.scheduler.address)
        self._reply_s = reply_s
        self._closed = False

    def close(self) -> None:
        """Make callers in other threads raise ClusterClosed, before the client is closed."""
        self._closed = True

    def wait(
        self,
        what: str,
        call: Callable[[], Awaitable[Value]],
        timeout: float | None = None,
        no_workers_timeout: float | None = None,
    ) -> Value:
        """Run `call` in the client's event loop and return its result.

        Raises
        ------
        ClusterTimeout
            After `timeout` seconds, after `no_workers_timeout` seconds without any worker, or if the scheduler does not
            reply, or none of the cluster's own workers is restarted.
        ClusterClosed
            If the cluster was closed meanwhile.
        ClusterError
            If the scheduler is gone.
        TaskLost
            If the task has ended every worker that ran it.
        Exception
            Whatever the task raised.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        answer: concurrent.futures.Future[Value] | None = None
        heartbeat: concurrent.futures.Future[int | None] | None = None
        asked_at = 0.0
        without_workers_since: float | None = None
        try:
            answer = self._begin(call)
            while True:
                left = _HEARTBEAT_S if deadline is None else min(_HEARTBEAT_S, max(0.0, deadline - time.monotonic()))
                if concurrent.futures.wait([answer], left).done:
                    return answer.result()
                if self._closed:
                    raise self._lost(what, None)
                if deadline is not None and time.monotonic() >= deadline:
                    raise ClusterTimeout(f"{what}: not done after {timeout:g} s. Give more time with timeout=")
                if heartbeat is None or heartbeat.done():
                    if heartbeat is None or heartbeat.result() != 0:
                        without_workers_since = None
                    elif without_workers_since is None:
                        without_workers_since = asked_at
                    else:
                        self._check_workers(what, asked_at - without_workers_since, no_workers_timeout)
                    heartbeat, asked_at = self._begin(self._count_workers), time.monotonic()
                elif time.monotonic() - asked_at > self._reply_s:
                    raise ClusterTimeout(
                        f"{what}: the scheduler at {self._address} has not answered for {self._reply_s:g} s. "
                        "Check that it runs and can be reached"
                    )
        except (FutureCancelledError, FuturesCancelledError, CommClosedError) as error:
            raise self._lost(what, error) from error
        except CancelledError as error:
            if answer is not None and not answer.cancelled():
                raise  # raised by a task
            raise self._lost(what, error) from error
        except OSError as error:
            if isinstance(error, ClusterError) or (self._client.status == "running" and not self._closed):
                raise  # raised here or by a task
            raise self._lost(what, error) from error
        except KilledWorker as error:
            count = error.allowed_failures + 1
            died = f"{count} workers died, one after the other," if count > 1 else "1 worker died"
            raise TaskLost(
                f"{what}: {died} while running the task {error.task!r}; "
                "usual reasons are a crash in native code and too little memory",
                str(error.task),
            ) from error
        finally:
            for future in (answer, heartbeat):
                if future is not None:
                    future.cancel()

    def _check_workers(self, what: str, seconds: float, no_workers_timeout: float | None) -> None:
        """Raise ClusterTimeout if there was no worker for too long."""
        if no_workers_timeout is not None and seconds >= no_workers_timeout:
            raise ClusterTimeout(
                f"{what}: the scheduler at {self._address} has had no workers for {no_workers_timeout:g} s; "
                "start some and try again"
            )
        if self._own_workers_s is not None and seconds >= self._own_workers_s:
            raise ClusterTimeout(
                f"{what}: the workers of the cluster are gone, and for {self._own_workers_s:g} s none was started "
                "again; call close() and start(), and try again"
            )

    def gather(self, what: str, futures: Any, timeout: float | None = None) -> Any:
        """Return the results of nested futures; the first error is raised at once."""
        awaited = futures_of(futures)

        async def results() -> Any:
            # Dask's gather, when cancelled, leaves tasks behind whose errors are never retrieved.
            await self._first_failed(awaited)
            return await self._client.gather(futures, asynchronous=True)

        return self.wait(what, results, timeout)

    def finish(self, what: str, futures: Sequence[Future]) -> None:
        """Wait until all tasks are done, without fetching results; the first error is raised at once."""

        async def failed() -> None:
            future = await self._first_failed(futures)
            if future is not None:
                await self._client.gather(future, asynchronous=True)  # raises

        self.wait(what, failed)

    async def _first_failed(self, futures: Sequence[Future]) -> Future | None:
        """Return the first failed future, or None when all are done."""
        async for future in as_completed(futures, loop=self._client.loop):
            if future.status != "finished":
                return future
        return None

    def _begin(self, call: Callable[[], Awaitable[Value]]) -> concurrent.futures.Future[Value]:
        """Start `call` in the client's event loop.

        The event loop's own thread creates the coroutine. With asyncio.run_coroutine_threadsafe a Ctrl-C in this
        thread could leave a coroutine that is never awaited, and a warning about it on the terminal.
        """
        loop = self._client.loop.asyncio_loop
        answer: concurrent.futures.Future[Value] = concurrent.futures.Future()

        async def run() -> Value:
            return await call()

        def start() -> None:
            if not answer.cancelled():
                task = loop.create_task(run())
                task.add_done_callback(finish)
                answer.add_done_callback(lambda _: cancel(task))

        def finish(task: asyncio.Task[Value]) -> None:
            error = None if task.cancelled() else task.exception()
            with suppress(concurrent.futures.InvalidStateError):  # the caller cancelled it meanwhile
                if task.cancelled():
                    answer.cancel()
                elif error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(task.result())

        def cancel(task: asyncio.Task[Value]) -> None:
            if answer.cancelled():
                with suppress(RuntimeError):  # the event loop has ended, and the task with it
                    loop.call_soon_threadsafe(task.cancel)

        try:
            loop.call_soon_threadsafe(start)
        except RuntimeError as error:  # the event loop has ended
            raise CancelledError from error
        return answer

    async def _count_workers(self) -> int | None:
        try:
            return int((await self._client.scheduler.identity(n_workers=0))["n_workers"])
        except (AttributeError, OSError):
            return None  # the connection is gone, which the awaited call reports

    def _lost(self, what: str, error: BaseException | None) -> ClusterError:
        if self._closed:
            return ClusterClosed(f"{what}: the cluster was closed while this call was waiting")
        # The client may detect it a moment later.
        lost = isinstance(error, OSError) or getattr(error, "reason", "") == "scheduler-connection-lost"
        if self._client.status == "running" and not lost:
            return ClusterError(
                f"{what}: it was cancelled ({error}). Data that scatter sent to a worker are lost when that worker "
                "dies: scatter them again, or use broadcast=True, which leaves a copy on every worker"
            )
        return ClusterError(
            f"{what}: the scheduler at {self._address} is gone, with all its results. Start it and try again"
        )
