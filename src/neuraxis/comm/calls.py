"""How the calls of one group are made: in order, one at a time, and no more after a failure."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from neuraxis.comm.backend import Backend
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.short_ways import ShortWays
from neuraxis.comm.work import OrderedRunner, Work
from neuraxis.errors import CommunicatorClosed, NeuraxisError

__all__ = ["CallOrder"]

_T = TypeVar("_T")

_PATIENCE_S = 2.0  # how long a group that is destroyed waits for a call under way
_ABORT_PATIENCE_S = 0.2  # the same of one that is aborted, where such a call was told to end; not all backends can


class CallOrder:
    """Makes a group's calls on its backend.

    A synchronous call runs at once in the caller's thread; while asynchronous ones are queued it takes its turn
    behind them. After a failure that leaves the ranks in different places the group only repeats that failure.
    `name` is the group's, for errors.
    """

    def __init__(self, backend: Backend, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._backend: Backend | None = backend
        self._lock = threading.Lock()
        self._runner: OrderedRunner | None = None
        self._doomed: Backend | None = None  # to be closed by the call that is still in it
        self._short_ways = backend.short_ways(self._lock, self.fail)
        # How plain NumPy arrays can do without all this, while nothing is queued and nothing has failed.
        self.short_ways: ShortWays | None = self._short_ways

    @property
    def closed(self) -> bool:
        return self._backend is None

    def call(self, method: str, *arguments: Any, written: Sequence[Buffer] = (), async_op: bool = False) -> Work | None:
        """Call a method of the backend now, or in the order of the queue if one is running or wanted."""
        runner = self._runner
        if not async_op and (runner is None or not runner.busy or runner.owns_this_thread()):
            self._run(method, arguments, written)
            return None
        self.usable_backend()
        if runner is None:
            name = f"neuraxis-{self.name}"
            runner = self._runner = OrderedRunner(name, self._suspend_short_ways, self._restore_short_ways)
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
            self._close_what_is_doomed()
        for buffer in written:
            if buffer.origin is not None:
                buffer.write_back()

    def guarded(self, call: Callable[[Backend], _T]) -> _T:
        with self._lock:
            backend = self.usable_backend()
            try:
                return call(backend)
            except BaseException as error:
                self.fail(error)
                raise

    def fail(self, error: BaseException) -> None:
        """Remember that a call has failed, and let the others know. Called within the call, under its lock."""
        self.error = error
        self._retire_short_ways()
        if self._backend is not None:
            self._backend.poison(error)
        self._close_what_is_doomed()

    def _close_what_is_doomed(self) -> None:
        doomed, self._doomed = self._doomed, None
        if doomed is not None:
            doomed.close()

    def usable_backend(self) -> Backend:
        backend = self._backend
        if self.error is None:
            if backend is None:
                raise CommunicatorClosed(f"{self.name} is closed: it was destroyed, or its context was shut down")
            return backend
        if isinstance(self.error, NeuraxisError):
            again = copy.copy(self.error)
            again.add_note(f"(raised again: {self.name} failed with this earlier, and can only be destroyed)")
            raise again from self.error
        raise CommunicatorClosed(
            f"{self.name} was interrupted in an operation ({type(self.error).__name__}) and can only be destroyed"
        ) from self.error

    def _suspend_short_ways(self) -> None:
        self.short_ways = None

    def _restore_short_ways(self) -> None:
        if self.error is None and self._backend is not None:
            self.short_ways = self._short_ways

    def _retire_short_ways(self) -> None:
        self.short_ways = None
        if self._short_ways is not None:
            self._short_ways.retired = True  # for another thread that is about to take one

    def destroy(self) -> None:
        """Finish what is queued, then free everything. Can be called again, and after a failure."""
        self._end(None, _PATIENCE_S)

    def _end(self, patience_with_queued_s: float | None, patience_with_call_s: float) -> None:
        if self._runner is not None:
            self._runner.stop(patience_with_queued_s)
        # Not while a call is under way: the call's memory would be gone. If one is, in another thread or below the
        # signal handler that has called us, it closes the backend when it ends in the error that it was told.
        idle = self._lock.acquire(timeout=patience_with_call_s)
        backend, self._backend = self._backend, None
        self._retire_short_ways()
        if idle:
            self._lock.release()
            if backend is not None:
                backend.close()
        else:
            self._doomed = backend

    def say_farewell(self, error: BaseException) -> None:
        """Tell the others, before an abort, what it is because of."""
        if self._backend is not None:
            self._backend.say_farewell(error)

    def abort(self) -> None:
        """Destroy the group without waiting: operations under way or queued end with CommunicatorClosed."""
        error = CommunicatorClosed(f"{self.name} was aborted")
        if self._backend is not None:
            self._backend.interrupt(error)
        if self._runner is not None:
            self._runner.drop(error)
        self._end(_ABORT_PATIENCE_S, _ABORT_PATIENCE_S)

    def abandon(self, error: NeuraxisError) -> None:
        """Forget, in a forked child, what is the parent's; later calls raise `error`."""
        self._retire_short_ways()
        self.error = error
        self._lock = threading.Lock()  # another thread of the parent may have held it
        backend, self._backend, self._runner = self._backend, None, None
        if backend is not None:
            backend.abandon()
