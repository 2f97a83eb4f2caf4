"""Waiting for what a Dask cluster does, without waiting for ever.

How long a computation takes nobody knows, so a wait for one has no deadline unless its caller sets one. But nobody
waits for a scheduler that is gone: Dask notices a connection that was closed, and tells by cancelling all that was
under way. A scheduler that is connected but does nothing (stopped, or stuck) is noticed here: while something is
waited for it is asked for a sign of life now and then, and has to answer in time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from distributed import Client, as_completed, futures_of
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.comm import CommClosedError
from distributed.scheduler import KilledWorker

from neuraxis.errors import ClusterError, ClusterTimeout, TaskLost

__all__ = ["Waiter"]

Value = TypeVar("Value")

_LOOK_EVERY_S = 1.0


class Waiter:
    """Waits for calls of one client; its scheduler has to answer within `patience_s`."""

    def __init__(self, client: Client, patience_s: float) -> None:
        self._client = client
        self._address = str(client.scheduler.address)
        self._patience_s = patience_s

    def wait(self, what: str, call: Callable[[], Awaitable[Value]], timeout: float | None = None) -> Value:
        """What `call` comes to in the client's event loop.

        Raises:
            ClusterTimeout: after `timeout` seconds, or because the scheduler does not answer.
            ClusterError: the scheduler is gone.
            TaskLost: the task ended every worker that ran it.
            Exception: what the task itself raised.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        answer = self._begin(call)
        sign: concurrent.futures.Future[Any] | None = None
        asked_at = 0.0
        try:
            while True:
                left = _LOOK_EVERY_S if deadline is None else min(_LOOK_EVERY_S, max(0.0, deadline - time.monotonic()))
                if concurrent.futures.wait([answer], left).done:
                    return answer.result()
                if deadline is not None and time.monotonic() >= deadline:
                    raise ClusterTimeout(f"{what}: not done after {timeout:g} s")
                if sign is None or sign.done():
                    sign, asked_at = self._begin(self._ask_for_a_sign), time.monotonic()
                elif time.monotonic() - asked_at > self._patience_s:
                    raise ClusterTimeout(
                        f"{what}: the scheduler at {self._address} has not answered for {self._patience_s:g} s; "
                        "it is stopped or stuck, or cannot be reached"
                    )
        except (FutureCancelledError, FuturesCancelledError, CommClosedError) as error:
            raise self._lost(what, error) from error
        except OSError as error:
            if isinstance(error, ClusterError) or self._client.status == "running":
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
            answer.cancel()
            if sign is not None:
                sign.cancel()

    def gather(self, what: str, futures: Any, timeout: float | None = None) -> Any:
        """The results of futures, in whatever lists and dicts they are; the first error is raised at once."""
        client = self._client
        awaited = futures_of(futures)

        async def results() -> Any:
            # Dask's own gather, left before its time, leaves tasks behind whose errors nobody looks at.
            async for future in as_completed(awaited, loop=client.loop):
                if future.status != "finished":
                    break
            return await client.gather(futures, asynchronous=True)

        return self.wait(what, results, timeout)

    def _begin(self, call: Callable[[], Awaitable[Value]]) -> concurrent.futures.Future[Value]:
        async def run() -> Value:
            return await call()

        return asyncio.run_coroutine_threadsafe(run(), self._client.loop.asyncio_loop)

    async def _ask_for_a_sign(self) -> None:
        try:
            await self._client.scheduler.identity(n_workers=0)
        except (AttributeError, OSError):
            pass  # the connection is gone, which whatever is waited for will say

    def _lost(self, what: str, error: BaseException) -> ClusterError:
        # The client itself may notice a moment later.
        lost = isinstance(error, OSError) or getattr(error, "reason", "") == "scheduler-connection-lost"
        if self._client.status == "running" and not lost:
            return ClusterError(f"{what}: it was cancelled ({error})")
        return ClusterError(
            f"{what}: the scheduler at {self._address} is gone, and what it had with it; start it and do this again"
        )
