"""What is told to others without anybody waiting for it, and what dead holders held: done by one thread."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from neuraxis.rpc.kept import Kept
from neuraxis.rpc.transport import Party

__all__ = ["Housekeeping"]

_log = logging.getLogger("neuraxis.rpc")
_LOOK_S = 0.5  # how often holders are looked at, while something is held


class Housekeeping:
    """A thread that runs small jobs one after the other, and frees what those held that are gone."""

    def __init__(self, kept: Kept, is_gone: Callable[[Party], bool]) -> None:
        self._kept = kept
        self._is_gone = is_gone
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="neuraxis rpc housekeeping", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], object]) -> None:
        """Run a job soon. It may be asked for from anywhere, a finalizer included."""
        self._jobs.put(job)

    def look(self) -> None:
        """Something is held from now on."""
        self._jobs.put(lambda: None)

    def close(self, patience_s: float) -> None:
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(patience_s)

    def _work(self) -> None:
        looked = 0.0
        while True:
            try:
                job = self._jobs.get(timeout=_LOOK_S if len(self._kept) else None)
                if job is None:
                    return
                job()
            except queue.Empty:
                pass
            except Exception as error:  # the other side is gone, and so is what it held or should do
                _log.debug("rpc: %s", error)
            if time.monotonic() > looked + _LOOK_S:
                looked = time.monotonic()
                self._free_what_the_dead_held()

    def _free_what_the_dead_held(self) -> None:
        for holder in self._kept.holders():
            if self._is_gone(holder):
                self._kept.release_all(holder)
