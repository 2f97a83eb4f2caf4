"""Operations under way: what `async_op=True` returns, and the thread that runs them in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from neuraxis.comm.backend import Request
from neuraxis.errors import CollectiveTimeout

__all__ = ["OrderedRunner", "TransferWork", "Work", "seconds_of"]


def seconds_of(timeout: float | timedelta) -> float:
    """A timeout in seconds, also from a timedelta, as torch has it."""
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)


class Work:
    """An operation under way.

    Its buffers must be neither read nor written until `wait` has returned or `is_completed` is true.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Work], None]] = []
        self._lock = threading.Lock()

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until the operation is done; True. Raises what the operation raised.

        After `timeout` (seconds or a timedelta) it raises CollectiveTimeout; the operation itself goes on
        until its own deadline.
        """
        if not self._finished.wait(None if timeout is None else seconds_of(timeout)):
            raise CollectiveTimeout(
                f"{self._what} was not done within {seconds_of(timeout or 0):g} s; it goes on",
                operation=self._what,
            )
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether the operation is over, well or not."""
        return self._finished.is_set()

    def exception(self) -> BaseException | None:
        """The error that the operation ended with, if any."""
        return self._error

    def add_done_callback(self, callback: Callable[[Work], None]) -> None:
        """Call `callback(work)` when the operation is over (at once if it is)."""
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
            except Exception as reason:  # a callback's own mistake must not stop the operations behind this one
                details = (type(reason), reason, reason.__traceback__, threading.current_thread())
                threading.excepthook(threading.ExceptHookArgs(details))


class TransferWork(Work):
    """A message under way (`isend`, `irecv`)."""

    def __init__(self, what: str, request: Request, timeout: float, on_done: Callable[[], None], keep: Any) -> None:
        super().__init__(what)
        self.request = request
        self._timeout = timeout
        self._on_done = on_done
        self._keep = keep  # what the buffers belong to

    def wait(self, timeout: float | timedelta | None = None) -> bool:
        if not self._finished.is_set():
            try:
                self.request.wait(self._timeout if timeout is None else seconds_of(timeout))
                self._complete()
            except CollectiveTimeout as error:
                if timeout is None:  # its own deadline, not only the caller's patience
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
    """Runs calls one after another in a thread that exists only while there are any."""

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
            self._on_busy()  # here, so that it cannot be overtaken by the last call's on_idle
            self._queue.append((work, call))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._condition.notify_all()
        return work

    def owns_this_thread(self) -> bool:
        """Whether the caller is itself something that this runner runs (a callback, say)."""
        return threading.current_thread() is self._thread

    def drop(self, error: BaseException) -> None:
        """End what is queued and has not begun, with an error."""
        with self._condition:
            dropped = [self._queue.pop() for _ in range(len(self._queue) - 1)]
        for work, _ in reversed(dropped):
            work._finish(error)

    def stop(self, patience_s: float | None = None) -> None:
        """Finish what is queued and end the thread; after `patience_s` it is left to end by itself."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience_s)

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
