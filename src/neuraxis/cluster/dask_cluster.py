"""A Dask cluster: workers on this machine, or a scheduler that others have started."""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

import dask
from dask.utils import format_bytes
from distributed import Client, Future, LocalCluster, Security, as_completed
from distributed.utils import format_dashboard_link

from neuraxis.cluster.event_loop import EventLoop
from neuraxis.cluster.settings import ClusterSettings, checked_settings
from neuraxis.cluster.software import unlike, version_there
from neuraxis.cluster.surroundings import while_a_cluster_runs
from neuraxis.cluster.waiting import Waiter
from neuraxis.errors import ClusterClosed, ClusterError, ClusterTimeout, InvalidArgument, InvalidType
from neuraxis.network.arguments import positive
from neuraxis.version import __version__

__all__ = ["DaskCluster"]

_LOOPBACK = "127.0.0.1"
_CLOSE_S = 20.0
_RESTART_S = 5.0  # after Dask has given up to start a worker, at the latest
_OWN_SCHEDULER = {
    # It would drop copies that `replicate` and `scatter(broadcast=True)` have made, as soon as nobody uses them.
    "distributed.scheduler.active-memory-manager.start": False,
}


class DaskCluster:
    """Functions run on workers, which are processes on this machine or belong to a scheduler that runs already.

        with DaskCluster(n_workers=2) as cluster:
            squares = cluster.gather(cluster.map(square, range(10)))

    While it runs, Dask's own collections (arrays, delayed calls) compute on it, too. Worker processes import the main
    program's file: a script has to do its work below `if __name__ == "__main__":`.

    Everything listens on loopback. Dask runs what it is sent: whoever can connect to a scheduler can run code as the
    user of its workers. On a machine with other users, or to reach further, use TLS (`security`).

    Args:
        n_workers: how many processes to start.
        threads_per_worker: how many tasks a process runs at a time.
        memory_limit: of each worker ("4GB", a number of bytes, "auto": an even share of the machine's, None: no limit).
            Near it a worker puts data on disk; above it, it is ended and started again.
        scheduler_address: join the scheduler at this address ("tcp://127.0.0.1:8786") instead: nothing is started here,
            the three arguments above mean nothing, and `stop` leaves that cluster as it is.
        security: Dask's `distributed.Security`, with TLS keys; True: keys made for this cluster, in memory only.
        timeout: how many seconds starting, moving data and a sign of life from the scheduler may take. Computations
            take as long as they take.
    """

    def __init__(
        self,
        n_workers: int = 4,
        threads_per_worker: int = 2,
        memory_limit: str | int | None = "4GB",
        scheduler_address: str | None = None,
        *,
        security: Security | bool | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.settings = checked_settings(
            n_workers, threads_per_worker, memory_limit, scheduler_address, security, timeout
        )
        self._lock = threading.RLock()  # of starting and stopping
        self._open = ExitStack()  # what is to be closed, the last first
        self._client: Client | None = None
        self._waiter: Waiter | None = None
        self._dashboard_link: str | None = None

    # --- to start and to stop ---------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the workers, or join the scheduler. Where it runs already: nothing."""
        with self._lock:
            if not self.is_running:
                self.stop()  # what is left of one whose scheduler was lost
                self._start()
        return self

    def _start(self) -> None:
        settings = self.settings
        with ExitStack() as opened:
            opened.enter_context(while_a_cluster_runs())
            loop = EventLoop()
            opened.callback(loop.close)
            own_workers_s = None
            if settings.scheduler_address is None:
                cluster = self._started_here(loop)
                own_workers_s = settings.timeout + _RESTART_S
                opened.callback(cluster.close, timeout=_CLOSE_S)
                # Our own workers are on this machine: results need not pass through the scheduler.
                client = self._connected(loop, cluster, direct_to_workers=True)
            else:
                client = self._joined(loop, settings.scheduler_address)
            opened.callback(client.close, timeout=_CLOSE_S)
            waiter = Waiter(client, settings.timeout, own_workers_s)
            opened.callback(waiter.stop)
            self._dashboard_link = _dashboard_link(client, waiter, settings)
            self._client, self._waiter = client, waiter
            self._open = opened.pop_all()

    def _joined(self, loop: EventLoop, address: str) -> Client:
        try:
            return self._connected(loop, address)
        except OSError as error:
            kind = ClusterTimeout if isinstance(error, TimeoutError) else ClusterError
            raise kind(
                f"scheduler_address={address!r}: no Dask scheduler answers there within {self.settings.timeout:g} s; "
                f"start one with `dask scheduler --host {_LOOPBACK}` ({error})"
            ) from error

    def _connected(self, loop: EventLoop, to: Any, **options: Any) -> Client:
        settings = self.settings
        return Client(to, loop=loop.io_loop, security=settings.security, timeout=settings.timeout, **options)

    def _started_here(self, loop: EventLoop) -> LocalCluster:
        if getattr(multiprocessing.process.current_process(), "_inheriting", False):
            raise ClusterError(
                "a worker process imports the file of the main program, which starts a cluster while it is imported: "
                'put what the program does below `if __name__ == "__main__":`'
            )
        settings = self.settings
        try:
            with dask.config.set(_OWN_SCHEDULER):
                return LocalCluster(
                    n_workers=settings.n_workers,
                    threads_per_worker=settings.threads_per_worker,
                    memory_limit=settings.memory_limit,
                    processes=True,
                    host=_LOOPBACK,
                    loop=loop.io_loop,
                    dashboard_address=f"{_LOOPBACK}:0",
                    scheduler_kwargs={"dashboard": _has_bokeh()},
                    security=settings.security,
                    silence_logs=logging.CRITICAL,
                    death_timeout=settings.timeout,
                    preload=["neuraxis.cluster.worker_process"],
                )
        except (RuntimeError, OSError) as error:
            workers = f"{settings.n_workers} workers of {settings.threads_per_worker} threads"
            if isinstance(error, TimeoutError):
                raise ClusterTimeout(f"{workers} have not started within {settings.timeout:g} s") from error
            raise ClusterError(f"{workers} could not be started: {error}") from error

    def stop(self) -> None:
        """End the workers that were started here; one that is busy is given some seconds. Again: does nothing.

        Of a cluster that was joined, only the connection is closed, and what was computed for it is forgotten.
        """
        with self._lock:
            self._client = self._waiter = None
            self._open.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # --- what is known of it ----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether it was started, and its scheduler is connected."""
        client = self._client
        return client is not None and client.status == "running"

    @property
    def client(self) -> Client:
        """Dask's own client, for all that is not here."""
        return self._running()[0]

    def _running(self) -> tuple[Client, Waiter]:
        client, waiter = self._client, self._waiter
        if client is None or waiter is None:
            raise ClusterClosed("the cluster is not running: call start(), or use it in a with statement")
        if client.status != "running":
            raise ClusterError(
                f"the scheduler at {self.settings.scheduler_address} is gone; start it, and then call start() again"
            )
        return client, waiter

    @property
    def scheduler_address(self) -> str:
        """Where others can join it."""
        return str(self.client.scheduler.address)

    @property
    def dashboard_link(self) -> str | None:
        """The page on which Dask shows what it does; None where Bokeh, which draws it, is not installed."""
        self._running()
        return self._dashboard_link

    def get_worker_info(self) -> dict[str, dict[str, Any]]:
        """By address: `name`, `host`, `threads`, `memory_limit` and `memory` in bytes, `executing` and `last_seen`.

        It is what the scheduler knows, which workers tell it about once a second.
        """
        client, waiter = self._running()
        known = partial(client.scheduler.identity, n_workers=-1)
        found = waiter.wait("get_worker_info", known, self.settings.timeout)
        return {
            address: {
                "name": worker["name"],
                "host": worker["host"],
                "threads": worker["nthreads"],
                "memory_limit": worker["memory_limit"],
                "memory": worker["metrics"].get("memory", 0),
                "executing": worker["metrics"].get("task_counts", {}).get("executing", 0),
                "last_seen": worker["last_seen"],
            }
            for address, worker in found["workers"].items()
        }

    def check_workers(self) -> int:
        """How many workers there are; ClusterError, with their addresses, if some lack the neuraxis of this program.

        Only tasks that use neuraxis need it. A worker that is sent a function of a module that it lacks ends.
        """
        client, waiter = self._running()
        ask = partial(client.run, version_there(), on_error="return", asynchronous=True)
        found = waiter.wait("check_workers", ask, self.settings.timeout)
        wrong = unlike(found)
        if wrong:
            raise ClusterError(
                f"of {len(found)} workers of {client.scheduler.address} some lack neuraxis {__version__}, which this "
                f"program has: {wrong}; install it there, and start them again"
            )
        return len(found)

    # --- to compute -------------------------------------------------------------------------------------------

    def submit(self, func: Any, *args: Any, **kwargs: Any) -> Future:
        """Have `func(*args, **kwargs)` run on a worker. Futures among the arguments are replaced by their results.

        Dask's own options go along (`pure`, `retries`, `workers`, `priority`, ...). A call that was made before with
        equal arguments is not made again: for a function that is not pure (one that draws random numbers, say), give
        `pure=False`.
        """
        return self.client.submit(_callable(func), *args, **kwargs)

    def map(self, func: Any, *iterables: Any, **kwargs: Any) -> list[Future]:
        """Have `func` run on the first, second, ... elements; see `submit` for `kwargs` and for what is not pure."""
        _callable(func)
        if not iterables:
            raise InvalidArgument("map: what to run the function on is missing: map(func, [1, 2, 3])")
        for each in iterables:
            if not isinstance(each, Iterable):
                raise InvalidType(f"map: {each!r} is nothing to go through element by element; for one call, submit it")
        # Dask wants to know how many there are.
        return list(self.client.map(func, *map(list, iterables), **kwargs))

    def gather(self, futures: Any, timeout: float | None = None) -> Any:
        """The results of a future, or of futures in lists, tuples, sets and dicts. What a task raised is raised here.

        It takes as long as the computation does, or at most `timeout` seconds. A worker that dies is no error: others,
        or one that is started in its place, compute again what it had.
        """
        limit = None if timeout is None else positive(timeout, "timeout")
        if isinstance(futures, Iterator):
            futures = list(futures)
        return self._running()[1].gather("gather", futures, limit)

    def completed(self, futures: Iterable[Future], *, no_workers_s: float | None = None) -> Iterator[Future]:
        """The futures, in the order in which they finish; also those whose tasks failed.

        `no_workers_s`: ClusterTimeout when the cluster has had no worker for so long; by default that is waited
        out where the workers are somebody else's.
        """
        limit = None if no_workers_s is None else positive(no_workers_s, "no_workers_s")
        order = as_completed(list(futures), loop=self.client.loop)
        while not order.is_empty():
            future = self._running()[1].wait("completed", lambda: anext(order), no_workers_s=limit)
            if future.cancelled():
                self.gather(future)  # says why
            yield future

    def scatter(self, data: Any, broadcast: bool = False) -> Any:
        """Send data to the workers, as futures for `submit` and `map`: a list or dict is dealt out, element by element.

        `broadcast`: send a copy to every worker. Of what only one worker has, nothing is left when it dies: Dask
        computes again what was computed, but not what was sent.
        """
        client, waiter = self._running()
        limit = self.settings.timeout
        sent = partial(client.scatter, data, broadcast=broadcast, timeout=limit, asynchronous=True)
        return waiter.wait("scatter", sent, limit)

    def replicate(self, future: Any) -> None:
        """Copy the result of a future, or of several, to every worker, once it is there. What a task raised is raised.

        The scheduler of a cluster that was joined may drop copies again: Dask's memory manager does so, by default,
        with those that no task needs at the time.
        """
        futures = [future] if isinstance(future, Future) else list(future)
        client, waiter = self._running()
        waiter.finish("replicate", futures)
        keys = list(dict.fromkeys(one.key for one in futures))
        # Dask's own client looks at neither what came of the tasks nor what the scheduler answers.
        answer = waiter.wait("replicate", partial(client.scheduler.replicate, keys=keys), self.settings.timeout)
        if answer is not None and answer.get("status") == "partial-fail":
            raise ClusterError(f"replicate: no worker has {answer['keys']} any more; compute or scatter it again")

    def __repr__(self) -> str:
        settings = self.settings
        where = settings.scheduler_address
        if not self.is_running:
            state = "not running" if where is None else f"not connected to {where}"
            return f"<DaskCluster {state}>"
        if where is not None:
            return f"<DaskCluster joined {where}; dashboard {self.dashboard_link}>"
        memory = "no memory limit"
        if settings.memory_limit is not None:
            size = settings.memory_limit
            memory = f"{size if isinstance(size, str) else format_bytes(size)} each"
        workers = f"{settings.n_workers} workers x {settings.threads_per_worker} threads, {memory}"
        link = self.dashboard_link
        page = f"dashboard {link}" if link else "no dashboard: pip install bokeh"
        return f"<DaskCluster {self.scheduler_address}: {workers}; {page}>"


def _dashboard_link(client: Client, waiter: Waiter, settings: ClusterSettings) -> str | None:
    """Asked for once: a client asks its scheduler each time, and waits for the answer without a deadline."""
    if settings.scheduler_address is None:
        return str(client.dashboard_link) if _has_bokeh() else None
    known = waiter.wait("start", partial(client.scheduler.identity, n_workers=0), settings.timeout)
    port = known["services"].get("dashboard")
    if port is None:
        return None
    host = str(client.scheduler.address).partition("://")[2].rpartition(":")[0]
    return str(format_dashboard_link(host, port))


def _has_bokeh() -> bool:
    return importlib.util.find_spec("bokeh") is not None


def _callable(func: Any) -> Any:
    if not callable(func):
        raise InvalidType(f"func={func!r}: a function is expected, not {type(func).__name__}")
    return func
