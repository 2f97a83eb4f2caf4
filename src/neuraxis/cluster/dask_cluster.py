"""Dask cluster: workers on this machine, or the connection to a running scheduler.

Dask's configuration and log level are global to the process, and each of its clients would restore what it found.
Clusters that overlap end in any order, so the first to end would take the configuration from the others, and the last
would restore what another had set. So `_dask_configuration` sets them with the first cluster and restores them after
the last.

The client and the scheduler run in an event loop thread of the cluster. Dask would start one itself, but leave it
running if a client cannot connect or loses its scheduler; this one ends with `close`, whatever has happened.

Worker processes are started from that thread and inherit its signal mask: Ctrl-C on a terminal, which reaches all
processes of a program, must not end one that is still importing modules (see `worker`).
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Any, Self

import dask
from dask.utils import format_bytes
from distributed import Client, Future, LocalCluster, Security, as_completed
from distributed.utils import format_dashboard_link, silence_logging_cmgr
from tornado.ioloop import IOLoop

from neuraxis import imports as optional
from neuraxis.arguments import positive
from neuraxis.cluster.settings import ClusterSettings, checked_settings
from neuraxis.cluster.waiting import Waiter
from neuraxis.cluster.worker import describe_mismatches, version_probe
from neuraxis.deprecation import renamed_arguments
from neuraxis.errors import ClusterClosed, ClusterError, ClusterTimeout, InvalidArgument, InvalidType
from neuraxis.version import __version__

__all__ = ["DaskCluster"]

_SETTINGS = {
    # Dask warns about tasks with large data, but tensors are in memory here and sent as they are.
    "distributed.admin.large-graph-warning-threshold": "1PB",
    # Dask collections compute on the cluster. A client sets this too, but does not restore it correctly.
    "scheduler": "dask.distributed",
}

_lock = threading.Lock()
_set = ExitStack()
_users = 0
_LIMIT_S = 20.0
_LOOPBACK = "127.0.0.1"
_CLOSE_S = 20.0
_RESTART_S = 5.0  # within which Dask starts a worker again, after `timeout`
_OWN_SCHEDULER = {
    # It would drop copies made by `replicate` and `scatter(broadcast=True)` as soon as no task needs them.
    "distributed.scheduler.active-memory-manager.start": False,
}


class DaskCluster:
    """Run functions on worker processes of this machine, or on those of a running Dask scheduler.

    It is a context manager: entering calls `start`, leaving calls `close`. While it runs, Dask collections (arrays,
    delayed calls) compute on it, too. Worker processes import the file of the main program, so a script must do its
    work below ``if __name__ == "__main__":``.

    Everything listens on loopback. Dask executes what it receives: anyone who can connect to a scheduler can run code
    as the user of its workers. On a machine with other users, or to reach further, use TLS (`security`).

    Parameters
    ----------
    n_workers : int
        Number of worker processes to start.
    threads_per_worker : int
        Tasks that a process runs concurrently.
    memory_limit : str, int or None
        Limit of each worker: "4GB", a number of bytes, "auto" for an even share of the machine's memory, or None. Near
        the limit a worker spills data to disk; above it, it is restarted.
    scheduler_address : str, optional
        Connect to the scheduler at this address ("tcp://127.0.0.1:8786"). Nothing is started then, the arguments above
        have no effect, and `close` leaves that cluster running.
    security : distributed.Security or bool, optional
        TLS keys; True creates temporary keys for this cluster, in memory only.
    timeout : float
        Seconds for starting, for moving data and for a reply of the scheduler. Computations have no time limit.

    Raises
    ------
    InvalidArgument, InvalidType
        If an argument is invalid.
    ClusterError, ClusterTimeout
        On starting: if workers cannot be started, or no scheduler answers.

    Examples
    --------
    >>> with DaskCluster(n_workers=1) as cluster:
    ...     cluster.gather(cluster.map(abs, [-1, 2, -3]))
    [1, 2, 3]
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
        self._lock = threading.RLock()  # for start and close
        self._open = ExitStack()  # closed in reverse order
        self._client: Client | None = None
        self._waiter: Waiter | None = None
        self._dashboard_link: str | None = None

    # --- start and close --------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the workers, or connect to the scheduler, and return self. Does nothing while it runs."""
        with self._lock:
            if not self.is_running:
                self.close()  # the remains of a cluster whose scheduler was lost
                self._start()
        return self

    def _start(self) -> None:
        settings = self.settings
        with ExitStack() as opened:
            opened.enter_context(_dask_configuration())
            loop = _EventLoop()
            opened.callback(loop.close)
            own_workers_s = None
            if settings.scheduler_address is None:
                cluster = self._started_here(loop)
                own_workers_s = settings.timeout + _RESTART_S
                opened.callback(cluster.close, timeout=_CLOSE_S)
                # Own workers are on this machine: results need not pass through the scheduler.
                client = self._connected(loop, cluster, direct_to_workers=True)
            else:
                client = self._joined(loop, settings.scheduler_address)
            opened.callback(client.close, timeout=_CLOSE_S)
            waiter = Waiter(client, settings.timeout, own_workers_s)
            opened.callback(waiter.close)
            self._dashboard_link = _dashboard_link(client, waiter, settings)
            self._client, self._waiter = client, waiter
            self._open = opened.pop_all()

    def _joined(self, loop: _EventLoop, address: str) -> Client:
        try:
            return self._connected(loop, address)
        except OSError as error:
            kind = ClusterTimeout if isinstance(error, TimeoutError) else ClusterError
            raise kind(
                f"scheduler_address={address!r}: no Dask scheduler answers there within {self.settings.timeout:g} s. "
                f"Start one with `dask scheduler --host {_LOOPBACK}` ({error})"
            ) from error

    def _connected(self, loop: _EventLoop, to: Any, **options: Any) -> Client:
        settings = self.settings
        return Client(to, loop=loop.io_loop, security=settings.security, timeout=settings.timeout, **options)

    def _started_here(self, loop: _EventLoop) -> LocalCluster:
        if getattr(multiprocessing.process.current_process(), "_inheriting", False):
            raise ClusterError(
                "a worker process imports the file of the main program, which starts a cluster while it is imported. "
                'Put the code of the program below `if __name__ == "__main__":`'
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
                    preload=["neuraxis.cluster.worker"],
                )
        except (RuntimeError, OSError) as error:
            workers = f"{settings.n_workers} workers of {settings.threads_per_worker} threads"
            if isinstance(error, TimeoutError):
                raise ClusterTimeout(
                    f"{workers} did not start within {settings.timeout:g} s. Start fewer, or pass a larger timeout"
                ) from error
            raise ClusterError(f"{workers} could not be started: {error}") from error

    def close(self) -> None:
        """Stop the workers that were started here, and close the connection. A second call does nothing.

        A busy worker is given some seconds. Of a cluster that runs elsewhere only the connection is closed, and the
        results of this client are released.
        """
        with self._lock:
            self._client = self._waiter = None
            self._open.close()

    def stop(self) -> None:
        """Do the same as `close`."""
        self.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True if it was started and its scheduler is connected."""
        client = self._client
        return client is not None and client.status == "running"

    @property
    def client(self) -> Client:
        """Dask's client, for everything that is not offered here; ClusterClosed if the cluster is not running."""
        return self._running()[0]

    def _running(self) -> tuple[Client, Waiter]:
        client, waiter = self._client, self._waiter
        if client is None or waiter is None:
            raise ClusterClosed("the cluster is not running. Use it in a with statement, or call start()")
        if client.status != "running":
            raise ClusterError(
                f"the scheduler at {self.settings.scheduler_address} is gone. Start it, and then call start() again"
            )
        return client, waiter

    @property
    def scheduler_address(self) -> str:
        """Address of the scheduler, for other clients."""
        return str(self.client.scheduler.address)

    @property
    def dashboard_link(self) -> str | None:
        """URL of Dask's dashboard; None if Bokeh is not installed."""
        self._running()
        return self._dashboard_link

    def get_worker_info(self) -> dict[str, dict[str, Any]]:
        """Return what the scheduler knows of each worker, by address. Workers report about once a second.

        The entries are `name`, `host`, `threads`, `memory_limit` and `memory` in bytes, `executing` (tasks) and
        `last_seen` (Unix time in seconds).
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
        """Return the number of workers; ClusterError if some lack the neuraxis version of this program.

        Only tasks that use neuraxis need it. A worker that receives a function of a module that it lacks ends.
        """
        client, waiter = self._running()
        ask = partial(client.run, version_probe(), on_error="return", asynchronous=True)
        found = waiter.wait("check_workers", ask, self.settings.timeout)
        wrong = describe_mismatches(found)
        if wrong:
            raise ClusterError(
                f"of {len(found)} workers of {client.scheduler.address} some lack neuraxis {__version__}, which this "
                f"program has: {wrong}. Install it there and restart them"
            )
        return len(found)

    # --- computations -----------------------------------------------------------------------------------------

    def submit(self, func: Any, *args: Any, **kwargs: Any) -> Future:
        """Run a function on a worker.

        A call with the same arguments as an earlier one reuses its result: pass ``pure=False`` for a function that is
        not pure.

        Parameters
        ----------
        func : callable
            The function.
        *args
            Its arguments; futures among them become results.
        **kwargs
            Its keyword arguments, and options of Dask: `pure`, `retries`, `workers`, `priority`, ...

        Returns
        -------
        distributed.Future
            Future of the result.
        """
        return self.client.submit(_callable(func), *args, **kwargs)

    def map(self, func: Any, *iterables: Any, **kwargs: Any) -> list[Future]:
        """Run a function on the first, second, ... elements of iterables.

        Parameters
        ----------
        func : callable
            Function of as many arguments as there are iterables.
        *iterables
            First, second, ... arguments of the calls.
        **kwargs
            As for `submit`.

        Returns
        -------
        list of distributed.Future
            Future of each call.

        Raises
        ------
        InvalidArgument, InvalidType
            If there are no iterables, or one is not iterable.
        """
        _callable(func)
        if not iterables:
            raise InvalidArgument("map: there is nothing to map over. Pass an iterable: map(func, [1, 2, 3])")
        for each in iterables:
            if not isinstance(each, Iterable):
                raise InvalidType(f"map: {each!r} is not iterable. Use submit for one call")
        # Dask needs the number of elements.
        return list(self.client.map(func, *map(list, iterables), **kwargs))

    def gather(self, futures: Any, timeout: float | None = None) -> Any:
        """Return the results of a future, or of futures in lists, tuples, sets and dicts.

        If a worker dies, others, or its replacement, compute its results again.

        Parameters
        ----------
        futures : Future or nested collection
            Futures of this cluster.
        timeout : float, optional
            Seconds to wait; by default as long as the computation takes.

        Raises
        ------
        Exception
            Whatever a task raised.
        ClusterTimeout
            After `timeout` seconds, or if the scheduler does not answer.
        ClusterError, TaskLost
            If the scheduler is gone, data were lost, or a task has ended every worker that ran it.
        """
        limit = None if timeout is None else positive(timeout, "timeout")
        if isinstance(futures, Iterator):
            futures = list(futures)
        return self._running()[1].gather("gather", futures, limit)

    @renamed_arguments(no_workers_s="no_workers_timeout")
    def completed(self, futures: Iterable[Future], *, no_workers_timeout: float | None = None) -> Iterator[Future]:
        """Yield the futures in the order in which they finish, including failed ones.

        Parameters
        ----------
        futures : iterable of Future
            Futures of this cluster.
        no_workers_timeout : float, optional
            Seconds without any worker after which ClusterTimeout is raised. By default there is no limit for workers
            that were started elsewhere.
        """
        limit = None if no_workers_timeout is None else positive(no_workers_timeout, "no_workers_timeout")
        return self._completed(futures, limit)

    def _completed(self, futures: Iterable[Future], limit: float | None) -> Iterator[Future]:
        order = as_completed(list(futures), loop=self.client.loop)
        while not order.is_empty():
            future = self._running()[1].wait("completed", lambda: anext(order), no_workers_timeout=limit)
            if future.cancelled():
                self.gather(future)  # raises the reason
            yield future

    def scatter(self, data: Any, broadcast: bool = False) -> Any:
        """Send data to the workers and return futures for `submit` and `map`.

        Data that only one worker has are lost when it dies: Dask computes results again, but cannot restore data that
        were sent.

        Parameters
        ----------
        data : object
            The data; a list or dict is sent by element.
        broadcast : bool
            Send a copy to every worker.

        Returns
        -------
        future, list or dict of them
            Futures of the data.
        """
        client, waiter = self._running()
        limit = self.settings.timeout
        sent = partial(client.scatter, data, broadcast=broadcast, timeout=limit, asynchronous=True)
        return waiter.wait("scatter", sent, limit)

    def replicate(self, future: Any) -> None:
        """Copy the result of a future, or of several, to every worker when it is ready.

        The scheduler of a cluster that runs elsewhere may drop copies: by default Dask's memory manager drops those
        that no task needs.

        Parameters
        ----------
        future : distributed.Future or iterable of them
            Results to copy.

        Raises
        ------
        Exception
            What a task raised.
        """
        futures = [future] if isinstance(future, Future) else list(future)
        client, waiter = self._running()
        waiter.finish("replicate", futures)
        keys = list(dict.fromkeys(one.key for one in futures))
        # Dask's client ignores both the outcome of the tasks and the scheduler's reply.
        answer = waiter.wait("replicate", partial(client.scheduler.replicate, keys=keys), self.settings.timeout)
        if answer is not None and answer.get("status") == "partial-fail":
            raise ClusterError(f"replicate: no worker has {answer['keys']} any more. Compute or scatter it again")

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
        page = f"dashboard {link}" if link else f"no dashboard: {optional.install_command('', 'bokeh')}"
        return f"<DaskCluster {self.scheduler_address}: {workers}; {page}>"


def _dashboard_link(client: Client, waiter: Waiter, settings: ClusterSettings) -> str | None:
    """Query the link once: Dask's client would query the scheduler each time, without a deadline."""
    if settings.scheduler_address is None:
        return str(client.dashboard_link) if _has_bokeh() else None
    known = waiter.wait("start", partial(client.scheduler.identity, n_workers=0), settings.timeout)
    port = known["services"].get("dashboard")
    if port is None:
        return None
    host = str(client.scheduler.address).partition("://")[2].rpartition(":")[0]
    return str(format_dashboard_link(host, port))


def _has_bokeh() -> bool:
    return optional.installed("bokeh")


def _callable(func: Any) -> Any:
    if not callable(func):
        raise InvalidType(f"func={func!r}: a function is expected, not {type(func).__name__}")
    return func


@contextmanager
def _dask_configuration() -> Iterator[None]:
    """Hold Dask's configuration while a cluster runs. Blocks may overlap."""
    global _users
    with _lock:
        if _users == 0:
            # Errors are raised; Dask would also write them to the terminal.
            _set.enter_context(silence_logging_cmgr(logging.CRITICAL))
            _set.enter_context(dask.config.set(_SETTINGS))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _set.close()


class _EventLoop:
    """Event loop in its own thread, until `close`."""

    io_loop: IOLoop

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="neuraxis-cluster", daemon=True)
        self._thread.start()
        if not self._ready.wait(_LIMIT_S):
            raise ClusterError(f"the event loop of the cluster did not start within {_LIMIT_S:g} s. Call start() again")

    async def _run(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            # It would start with the first worker, and starting it unblocks this signal.
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._end = asyncio.Event()
        self.io_loop = IOLoop.current()
        self._ready.set()
        await self._end.wait()

    def close(self) -> None:
        """Stop the loop and cancel its tasks."""
        self.io_loop.add_callback(self._end.set)
        self._thread.join(_LIMIT_S)
