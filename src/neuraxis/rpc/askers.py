"""Threads that wait for others: as many as there is to wait for, kept for a while when they are done."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["Askers"]

_IDLE_S = 5.0  # how long a thread stays that has nothing to do


class Askers:
    """Runs functions, each at once, in threads of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def run(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.put(job)
            if self._idle > 0:
                self._idle -= 1  # one that waits will take it
                return
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads.add(thread)
            thread.start()

    def close(self, patience_s: float) -> None:
        """End the threads when they are done; they are waited for, all together for so long at most."""
        with self._lock:
            self._closed = True
            threads = self._threads - {threading.current_thread()}
            for _ in threads:
                self._jobs.put(None)
        for thread in threads:
            thread.join(patience_s)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._idle > 0:
                        self._idle -= 1
                        self._threads.discard(threading.current_thread())
                        return
                continue  # a job is on its way
            if job is None:
                break
            job()
            with self._lock:
                if self._closed:
                    break
                self._idle += 1
        with self._lock:
            self._threads.discard(threading.current_thread())
