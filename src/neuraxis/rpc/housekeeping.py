"""What is told to others without anybody waiting for it, and what is kept for those that are gone: by one thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from neuraxis.rpc.transport import Party
from neuraxis.timed_queue import Empty, TimedQueue

__all__ = ["Housekeeping", "KeptForOthers"]

_log = logging.getLogger("neuraxis.rpc")
_LOOK_S = 0.5  # how often it is looked who is gone, while something is kept


class KeptForOthers(Protocol):
    """What is kept here because of other parties."""

    def __len__(self) -> int: ...

    def parties(self) -> Iterable[Party]:
        """For whom something is kept."""

    def forget(self, party: Party) -> None:
        """A party is gone for good."""


class Housekeeping:
    """A thread that runs small jobs one after the other, and frees what was kept for those that are gone.

    No job may wait for another process: that would hold up all others.

    Args:
        kept: what is kept, each with the seconds that one must have been gone for it to be freed.
    """

    def __init__(self, kept: Sequence[tuple[KeptForOthers, float]], is_gone: Callable[[Party], bool]) -> None:
        self._kept = kept
        self._is_gone = is_gone
        self._gone_since: dict[Party, float] = {}
        self._closed = False
        self._jobs: TimedQueue[Callable[[], object] | None] = TimedQueue()
        self._thread = threading.Thread(target=self._work, name="neuraxis rpc housekeeping", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], object]) -> None:
        """Run a job soon. It may be asked for from anywhere, a finalizer included."""
        if not self._closed:
            self._jobs.put(job)

    def close(self, patience_s: float) -> None:
        self._closed = True
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(patience_s)

    def _work(self) -> None:
        looked = 0.0
        while True:
            try:
                job = self._jobs.get(timeout=_LOOK_S)
                if job is None:
                    return
                job()
                del job
            except Empty:
                pass
            except Exception as error:  # the other side is gone, and so is what it held or should do
                _log.debug("rpc: %s", error)
            if time.monotonic() > looked + _LOOK_S:
                looked = time.monotonic()
                self._free_what_was_kept_for_the_gone()

    def _free_what_was_kept_for_the_gone(self) -> None:
        now = time.monotonic()
        parties = {party for kept, _ in self._kept if len(kept) for party in kept.parties()}
        self._gone_since = {party: self._gone_since.get(party, now) for party in parties if self._is_gone(party)}
        for party, since in self._gone_since.items():
            for kept, patience_s in self._kept:
                if now >= since + patience_s:
                    kept.forget(party)
