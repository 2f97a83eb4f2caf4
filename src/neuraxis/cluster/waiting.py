"""Waiting for what a Dask cluster does, without waiting for ever.

How long a computation takes nobody knows, so a wait for one has no deadline unless its caller sets one. But nobody
waits for a scheduler that is gone: Dask notices a connection that was closed, and tells by cancelling all that was
under way. A scheduler that is connected but does nothing (stopped, or stuck) is noticed here: while something is
waited for it is asked for a sign of life now and then, and has to answer in time. It also says how many workers it has,
for those who do not want to wait for one that never comes.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from distributed import Client, Future, as_completed, futures_of
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from neuraxis.errors import ClusterClosed, ClusterError, ClusterTimeout, TaskLost

__all__ = ["Waiter"]

Value = TypeVar("Value")

_LOOK_EVERY_S = 1.0


class Waiter:
    """Waits for calls of one client; its scheduler has to answer within `patience_s`.

    `own_workers_s`: how long there may be none of the workers that were started with the cluster, one of which is
    started again when it dies. None where they are somebody else's, and come and go.
    """

    def __init__(self, client: Client, patience_s: float, own_workers_s: float | None = None) -> None:
        self._client = client
        self._own_workers_s = own_workers_s
        self._address = str(client.scheduler.address)
        self._patience_s = patience_s
        self._stopped = False

    def stop(self) -> None:
        """The client is about to be closed by its owner: whoever waits in another thread is told so."""
        self._stopped = True

    def wait(
        self,
        what: str,
        call: Callable[[], Awaitable[Value]],
        timeout: float | None = None,
        no_workers_s: float | None = None,
    ) -> Value:
        """What `call` comes to in the client's event loop.

        Raises:
            ClusterTimeout: after `timeout` seconds, or `no_workers_s` seconds without any worker, or because the
                scheduler does not answer, or none of the cluster's own workers is started again.
            ClusterClosed: the cluster was stopped meanwhile.
            ClusterError: the scheduler is gone.
            TaskLost: the task ended every worker that ran it.
            Exception: what the task itself raised.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        answer: concurrent.futures.Future[Value] | None = None
        sign: concurrent.futures.Future[int | None] | None = None
        asked_at = 0.0
        alone_since: float | None = None
        try:
            answer = self._begin(call)
            while True:
                left = _LOOK_EVERY_S if deadline is None else min(_LOOK_EVERY_S, max(0.0, deadline - time.monotonic()))
                if concurrent.futures.wait([answer], left).done:
                    return answer.result()
                if self._stopped:
                    raise self._lost(what, None)
                if deadline is not None and time.monotonic() >= deadline:
                    raise ClusterTimeout(f"{what}: not done after {timeout:g} s")
                if sign is None or sign.done():
                    if sign is None or sign.result() != 0:
                        alone_since = None
                    elif alone_since is None:
                        alone_since = asked_at
                    else:
                        self._check_alone(what, asked_at - alone_since, no_workers_s)
                    sign, asked_at = self._begin(self._count_workers), time.monotonic()
                elif time.monotonic() - asked_at > self._patience_s:
                    raise ClusterTimeout(
                        f"{what}: the scheduler at {self._address} has not answered for {self._patience_s:g} s; "
                        "it is stopped or stuck, or cannot be reached"
                    )
        except (FutureCancelledError, FuturesCancelledError, CommClosedError) as error:
            raise self._lost(what, error) from error
        except CancelledError as error:
            if answer is not None and not answer.cancelled():
                raise  # what a task raised
            raise self._lost(what, error) from error
        except OSError as error:
            if isinstance(error, ClusterError) or (self._client.status == "running" and not self._stopped):
                raise  # ours, or what a task raised
            raise self._lost(what, error) from error
        except KilledWorker as error:
            count = error.allowed_failures + 1
            died = f"{count} workers died, one after the other," if count > 1 else "1 worker died"
            raise TaskLost(
                f"{what}: {died} while running the task {error.task!r}; "
                "a crash in native code or too little memory are the usual reasons",
                str(error.task),
            ) from error
        finally:
            for future in (answer, sign):
                if future is not None:
                    future.cancel()

    def _check_alone(self, what: str, seconds: float, no_workers_s: float | None) -> None:
        """There was no worker for so long."""
        if no_workers_s is not None and seconds >= no_workers_s:
            raise ClusterTimeout(
                f"{what}: the scheduler at {self._address} has had no workers for {no_workers_s:g} s; "
                "start some, and do this again"
            )
        if self._own_workers_s is not None and seconds >= self._own_workers_s:
            raise ClusterTimeout(
                f"{what}: the workers of the cluster are gone, and for {self._own_workers_s:g} s none was started "
                "again; call stop() and start(), and do this again"
            )

    def gather(self, what: str, futures: Any, timeout: float | None = None) -> Any:
        """The results of futures, in whatever lists and dicts they are; the first error is raised at once."""
        awaited = futures_of(futures)

        async def results() -> Any:
            # Dask's own gather, left before its time, leaves tasks behind whose errors nobody looks at.
            await self._first_failed(awaited)
            return await self._client.gather(futures, asynchronous=True)

        return self.wait(what, results, timeout)

    def finish(self, what: str, futures: Sequence[Future]) -> None:
        """Return when all tasks are done, their results still where they are; the first error is raised at once."""

        async def failed() -> None:
            future = await self._first_failed(futures)
            if future is not None:
                await self._client.gather(future, asynchronous=True)  # raises

        self.wait(what, failed)

    async def _first_failed(self, futures: Sequence[Future]) -> Future | None:
        """As soon as a task has failed, it; None when all are done."""
        async for future in as_completed(futures, loop=self._client.loop):
            if future.status != "finished":
                return future
        return None

    def _begin(self, call: Callable[[], Awaitable[Value]]) -> concurrent.futures.Future[Value]:
        async def run() -> Value:
            return await call()

        coroutine = run()
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._client.loop.asyncio_loop)
        except RuntimeError as error:  # the event loop has ended
            coroutine.close()
            raise CancelledError from error

    async def _count_workers(self) -> int | None:
        try:
            return int((await self._client.scheduler.identity(n_workers=0))["n_workers"])
        except (AttributeError, OSError):
            return None  # the connection is gone, which whatever is waited for will say

    def _lost(self, what: str, error: BaseException | None) -> ClusterError:
        if self._stopped:
            return ClusterClosed(f"{what}: the cluster was stopped while this was waited for")
        # The client itself may notice a moment later.
        lost = isinstance(error, OSError) or getattr(error, "reason", "") == "scheduler-connection-lost"
        if self._client.status == "running" and not lost:
            return ClusterError(f"{what}: it was cancelled ({error})")
        return ClusterError(
            f"{what}: the scheduler at {self._address} is gone, and what it had with it; start it and do this again"
        )
