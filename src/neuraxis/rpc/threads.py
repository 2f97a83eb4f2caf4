"""Threads for what is to be run at once: as many as there is to run, used again, all ended together."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from neuraxis.timed_queue import Empty, TimedQueue

__all__ = ["Threads"]

_log = logging.getLogger("neuraxis.rpc")
_LINGER_S = 5.0  # how long a thread stays that has nothing to do
_LOOK_S = 1e-3

_Job = Callable[[], object]


class Threads:
    """Runs each job at once: in a thread that has nothing to do, or in a new one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._jobs: TimedQueue[_Job | None] = TimedQueue()
        self._closed = False
        self.idle = 0  # threads that wait for a job and for which none is on its way

    def run(self, job: _Job) -> bool:
        """Run a job; False where it is too late for it."""
        with self._lock:
            if self._closed:
                return False
            if self.idle:
                self.idle -= 1
                self._jobs.put(job)
                return True
            thread = threading.Thread(target=self._work, args=(job,), name=self._name, daemon=True)
            self._threads.add(thread)
        try:
            thread.start()  # not while we hold the lock: it waits until the thread runs
        except BaseException:
            with self._lock:
                self._threads.discard(thread)
            raise
        return True

    def _work(self, job: _Job | None) -> None:
        try:
            while job is not None:
                try:
                    job()
                except BaseException:
                    _log.warning("rpc: a thread was given what failed", exc_info=True)
                job = None  # what it holds is not to live as long as this thread waits
                job = self._next()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self) -> _Job | None:
        with self._lock:
            if self._closed:
                return None
            self.idle += 1
        try:
            return self._jobs.get(timeout=_LINGER_S)
        except Empty:
            with self._lock:
                if self.idle:
                    self.idle -= 1
                    return None
            return self._jobs.get()  # one is on its way for this thread, or another takes that and leaves it its own

    def close(self, patience_s: float) -> bool:
        """Run nothing more, and wait for what runs, all together for so long at most; whether all has ended."""
        deadline = time.monotonic() + patience_s
        with self._lock:
            self._closed = True
            for _ in range(self.idle):
                self._jobs.put(None)
            self.idle = 0
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            while thread.ident is None and time.monotonic() < deadline:
                time.sleep(_LOOK_S)  # it is about to be started
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)
