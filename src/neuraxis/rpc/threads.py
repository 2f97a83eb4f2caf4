"""Threads for what is to be run at once: as many as there is to run, all ended together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Threads"]


class Threads:
    """Runs each function in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def run(self, job: Callable[[], None]) -> None:
        def work() -> None:
            try:
                job()
            finally:
                with self._lock:
                    self._threads.discard(thread)

        thread = threading.Thread(target=work, name=self._name, daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def close(self, patience_s: float) -> bool:
        """Wait for those that run, all together for so long at most; whether they have ended."""
        deadline = time.monotonic() + patience_s
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)
