"""Dispatch of a group's calls, and asynchronous operations.

All ranks must make the calls of a group in the same order, so the dispatcher runs them one at a time: synchronous calls
in the caller's thread, asynchronous ones in a thread of their own, in the order of the calls. After a failure the ranks
may be at different operations, so every later call on the group raises that failure again.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from neuraxis.comm.backends.base import Backend, MessageMemoryExhausted, Request
from neuraxis.comm.backends.shm.fast_path import FastPath
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.failures import loss_behind
from neuraxis.errors import BackendUnavailable, CollectiveTimeout, CommunicatorClosed, NeuraxisError, ResourceExhausted

__all__ = ["CallDispatcher", "OrderedRunner", "TransferWork", "Work", "seconds_of"]


def seconds_of(timeout: float | timedelta) -> float:
    """Return a timeout in seconds, also from a timedelta."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)


class Work:
    """An asynchronous operation.

    Its arrays must be neither read nor written until `wait` has returned or `is_completed` is True.

    Examples
    --------
    >>> import numpy as np
    >>> import neuraxis.distributed as dist
    >>> with dist.DistributedContext("local"):
    ...     values = np.ones(2)
    ...     work = dist.all_reduce(values, async_op=True)
    ...     work.wait()
    True
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Work], None]] = []
        self._lock = threading.Lock()

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until the operation has completed, and raise its error if it failed.

        Parameters
        ----------
        timeout : float or timedelta, optional
            Limit of this wait (float: seconds), by default none. The operation has its own deadline.

        Returns
        -------
        bool
            True.

        Raises
        ------
        CollectiveTimeout
            The operation has not completed within `timeout`; it continues.
        """
        if not self._finished.wait(None if timeout is None else seconds_of(timeout)):
            raise CollectiveTimeout(
                f"{self._what} did not complete within {seconds_of(timeout or 0):g} s. It continues; call wait() again",
                operation=self._what,
            )
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return True if the operation has ended, successfully or not."""
        return self._finished.is_set()

    def exception(self) -> BaseException | None:
        """Return the error that the operation has ended with, or None."""
        return self._error

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Call a function when the operation has ended, at once if it has ended already.

        Parameters
        ----------
        callback : callable
            Function of this `Work`.
        """
        with self._lock:
            if not self._finished.is_set():
                self._callbacks.append(callback)
                return
        callback(self)

    def _finish(self, error: BaseException | None = None) -> None:
        with self._lock:
            self._error = error
            self._finished.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception as reason:  # an error in a callback must not stop later operations
                details = (type(reason), reason, reason.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(details))


class TransferWork(Work):
    """A message that is being sent or received (`isend`, `irecv`)."""

    def __init__(self, what: str, request: Request, timeout: float, on_done: Callable[[], None], keep: Any) -> None:
        super().__init__(what)
        self.request = request
        self._timeout = timeout
        self._on_done = on_done
        self._keep = keep  # owner of the memory

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        if not self._finished.is_set():
            try:
                self.request.wait(self._timeout if timeout is None else seconds_of(timeout))
                self._complete()
            except CollectiveTimeout as error:
                if timeout is None:  # the deadline of the operation, not only of this wait
                    self.request.cancel()
                    self._finish(error)
                raise
            except BaseException as error:
                self.request.cancel()
                self._finish(error)
                raise
        return super().wait()

    def is_completed(self) -> bool:
        if not self._finished.is_set():
            try:
                if self.request.test():
                    self._complete()
            except Exception as error:
                self._finish(error)
        return self._finished.is_set()

    def _complete(self) -> None:
        self._on_done()
        self._finish()


class OrderedRunner:
    """Runs calls one after another in a thread, which exists from the first call until `stop`.

    It calls `on_busy` before a call is queued, and `on_idle` after the last one has ended.
    """

    def __init__(self, name: str, on_busy: Callable[[], None], on_idle: Callable[[], None]) -> None:
        self._name = name
        self._on_busy = on_busy
        self._on_idle = on_idle
        self._queue: deque[tuple[Work, Callable[[], None]]] = deque()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.busy = False

    def submit(self, what: str, call: Callable[[], None]) -> Work:
        work = Work(what)
        with self._condition:
            self.busy = True
            self._on_busy()  # under the lock, so that the last call's on_idle cannot come after it
            self._queue.append((work, call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._condition.notify_all()
        return work

    def owns_this_thread(self) -> bool:
        """Return True if the caller runs in this runner's thread, e.g. in a callback."""
        return threading.current_thread() is self._thread

    def drop(self, error: BaseException) -> None:
        """End all queued calls that have not started with an error."""
        with self._condition:
            dropped = [self._queue.pop() for _ in range(len(self._queue) - 1)]
        for work, _ in reversed(dropped):
            work._finish(error)

    def stop(self, timeout_s: float | None = None) -> None:
        """Run what is queued and end the thread; stop waiting for it after `timeout_s` seconds."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue:
                    if self._stopping:
                        self._thread = None
                        return
                    self._condition.wait()
                work, call = self._queue[0]
            error = None
            try:
                call()
            except BaseException as caught:
                error = caught
            with self._condition:
                self._queue.popleft()
                if not self._queue:
                    self.busy = False
                    self._on_idle()
            work._finish(error)


_T = TypeVar("_T")

_CLOSE_TIMEOUT_S = 2.0  # `close` waits this long for a running call
_ABORT_TIMEOUT_S = 0.2  # `abort` waits this long for a running call that it has interrupted; not all backends can


class CallDispatcher:
    """Makes the calls of one group on its backend, in order; `name` is the group's name in errors.

    A synchronous call runs in the caller's thread, or is queued while asynchronous calls are. After a failure every
    call raises that failure again.
    """

    def __init__(self, backend: Backend, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._backend: Backend | None = backend
        self._lock = threading.Lock()
        self._runner: OrderedRunner | None = None
        self._close_deferred: Backend | None = None  # closed by the call that is still running in it
        self._fast_path = backend.fast_path(self._lock, self.fail)
        # None while calls are queued, and after a failure: the fast path bypasses queue and error checks.
        self.fast_path: FastPath | None = self._fast_path

    @property
    def backend(self) -> Backend | None:
        """The backend, also after a failure; None once the group is closed."""
        return self._backend

    @property
    def closed(self) -> bool:
        return self._backend is None

    def call(self, method: str, *arguments: Any, written: Sequence[Buffer] = (), async_op: bool = False) -> Work | None:
        """Call a method of the backend, at once or through the queue; then copy results into `written`."""
        runner = self._runner
        if not async_op and (runner is None or not runner.busy or runner.owns_this_thread()):
            self._run(method, arguments, written)
            return None
        self.usable_backend()
        if runner is None:
            name = f"neuraxis-{self.name}"
            runner = self._runner = OrderedRunner(name, self._suspend_fast_path, self._restore_fast_path)
        work = runner.submit(method, lambda: self._run(method, arguments, written))
        if async_op:
            return work
        work.wait()
        return None

    def _run(self, method: str, arguments: tuple[Any, ...], written: Sequence[Buffer]) -> None:
        with self._lock:
            backend = self.usable_backend()
            try:
                getattr(backend, method)(*arguments)
            except BaseException as error:
                self.fail(error)
                raise
            self._close_if_deferred()
        for buffer in written:
            if buffer.origin is not None:
                buffer.write_back()

    def guarded(self, call: Callable[[Backend], _T]) -> _T:
        """Make a call on the backend under the lock, and record a failure."""
        with self._lock:
            backend = self.usable_backend()
            try:
                return call(backend)
            except (BackendUnavailable, ResourceExhausted):
                # All participating ranks raise it and the group remains usable; or `end` was called before.
                raise
            except BaseException as error:
                self.fail(error)
                raise

    def fail(self, error: BaseException) -> None:
        """Record the failure of a call and inform the other ranks. The caller holds the lock."""
        self.end(error)
        self._close_if_deferred()

    def end(self, error: BaseException) -> None:
        """Make every later call raise `error` and inform the other ranks. Needs no lock."""
        self.error = error
        self._retire_fast_path()
        backend = self._backend
        if backend is not None:
            backend.failure = backend.failure or loss_behind(error)
            backend.poison(error)

    def send(self, start: Callable[[Backend], _T]) -> _T:
        """Send, or start to send, a message on the backend. Messages do not wait for queued calls."""
        try:
            return start(self.usable_backend())
        except MessageMemoryExhausted as error:
            self.end(error)
            raise

    def _close_if_deferred(self) -> None:
        backend, self._close_deferred = self._close_deferred, None
        if backend is not None:
            backend.close()

    def usable_backend(self) -> Backend:
        """Return the backend; raise if the group has failed or is closed."""
        backend = self._backend
        if self.error is None:
            if backend is None:
                raise CommunicatorClosed(f"{self.name} is closed: it was closed, or its context was. Make a new one")
            return backend
        if isinstance(self.error, NeuraxisError):
            again = copy.copy(self.error)
            again.add_note(f"(raised again: {self.name} failed with this error before. Close it)")
            raise again from self.error
        raise CommunicatorClosed(
            f"{self.name} was interrupted in an operation by {type(self.error).__name__}. Close it and make a new one"
        ) from self.error

    def _suspend_fast_path(self) -> None:
        self.fast_path = None

    def _restore_fast_path(self) -> None:
        if self.error is None and self._backend is not None:
            self.fast_path = self._fast_path

    def _retire_fast_path(self) -> None:
        self.fast_path = None
        if self._fast_path is not None:
            self._fast_path.retired = True  # for another thread that is about to use it

    def close(self) -> None:
        """Run what is queued, then free all resources; idempotent, also after a failure."""
        self._close(None, _CLOSE_TIMEOUT_S)

    def _close(self, queue_timeout_s: float | None, call_timeout_s: float) -> None:
        if self._runner is not None:
            self._runner.stop(queue_timeout_s)
        # Closing unmaps memory that a running call uses. If a call is still running, in another thread or below the
        # signal handler that has called this, it closes the backend itself when it ends.
        idle = self._lock.acquire(timeout=call_timeout_s)
        backend, self._backend = self._backend, None
        self._retire_fast_path()
        if idle:
            self._lock.release()
            if backend is not None:
                backend.close()
        else:
            self._close_deferred = backend

    def send_last_message(self, error: BaseException) -> None:
        """Send the other ranks the reason of an abort that follows."""
        if self._backend is not None:
            self._backend.send_last_message(error)

    def abort(self) -> None:
        """Close the group without waiting: running and queued operations raise CommunicatorClosed."""
        error = CommunicatorClosed(f"{self.name} was aborted")
        if self._backend is not None:
            self._backend.interrupt(error)
        if self._runner is not None:
            self._runner.drop(error)
        self._close(_ABORT_TIMEOUT_S, _ABORT_TIMEOUT_S)

    def abandon(self, error: NeuraxisError) -> None:
        """Detach from the group in a forked child; later calls raise `error`."""
        self._retire_fast_path()
        self.error = error
        self._lock = threading.Lock()  # another thread of the parent may have held it
        backend, self._backend, self._runner = self._backend, None, None
        if backend is not None:
            backend.abandon()
