"""Limits on concurrent calls, and the housekeeping thread of a context.

A call needs a *slot* while its function runs. A function that waits for a call of its own releases its slot meanwhile,
so calls that call back do not deadlock, even with a single slot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from neuraxis.rpc.transport import Endpoint
from neuraxis.threads import Empty, TimedQueue

__all__ = ["Housekeeping", "PeerState", "Pool"]

_log = logging.getLogger("neuraxis.rpc")
_CHECK_S = 0.5  # how often Housekeeping checks which endpoints are gone


class PeerState(Protocol):
    """State that a process keeps for other endpoints."""

    def __len__(self) -> int: ...

    def endpoints(self) -> Iterable[Endpoint]:
        """Return the endpoints with state."""

    def forget(self, endpoint: Endpoint) -> None:
        """Free the state of an endpoint that is gone for good."""


class Housekeeping:
    """A thread that runs small jobs one after the other, and frees the state of endpoints that are gone.

    No job may wait for another process, which would delay all others.

    Parameters
    ----------
    states : sequence of pairs
        State of endpoints, each with the seconds after which that of a gone endpoint is freed.
    is_gone : callable
        Returns True for an endpoint that is gone.
    """

    def __init__(self, states: Sequence[tuple[PeerState, float]], is_gone: Callable[[Endpoint], bool]) -> None:
        self._states = states
        self._is_gone = is_gone
        self._gone_since: dict[Endpoint, float] = {}
        self._closed = False
        self._jobs: TimedQueue[Callable[[], object] | None] = TimedQueue()
        self._thread = threading.Thread(target=self._work, name="neuraxis rpc housekeeping", daemon=True)
        self._thread.start()

    def do(self, job: Callable[[], object]) -> None:
        """Queue a job. Safe to call from anywhere, including finalizers."""
        if not self._closed:
            self._jobs.put(job)

    def close(self, timeout: float) -> None:
        """End the thread after the queued jobs, and wait up to `timeout` seconds."""
        self._closed = True
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _work(self) -> None:
        checked = 0.0
        while True:
            try:
                job = self._jobs.get(timeout=_CHECK_S)
                if job is None:
                    return
                job()
                del job
            except Empty:
                pass
            except Exception as error:  # the other process is gone
                _log.debug("rpc: %s", error)
            if time.monotonic() > checked + _CHECK_S:
                checked = time.monotonic()
                try:
                    self._free_state_of_gone_endpoints()
                except Exception:  # retried at the next check
                    _log.warning("rpc: the state of processes that are gone could not be freed", exc_info=True)

    def _free_state_of_gone_endpoints(self) -> None:
        now = time.monotonic()
        endpoints = {endpoint for state, _ in self._states if len(state) for endpoint in state.endpoints()}
        self._gone_since = {
            endpoint: self._gone_since.get(endpoint, now) for endpoint in endpoints if self._is_gone(endpoint)
        }
        for endpoint, since in self._gone_since.items():
            for state, grace_s in self._states:
                if now >= since + grace_s:
                    state.forget(endpoint)


class _ThreadState(threading.local):
    depth = 0  # nested functions that this thread runs
    waits = 0


_NOTHING = nullcontext()


class Pool:
    """Slots for running functions.

    Parameters
    ----------
    slots : int
        Number of functions that run at the same time.
    released : callable
        Called when a function starts to wait for a call; its argument is True if more functions wait than ever before,
        so that another thread is needed.
    """

    def __init__(self, slots: int, released: Callable[[bool], None]) -> None:
        self._free = slots
        self._queued = 0  # threads that wait for a slot
        self._waiting = 0
        self._most_waiting = 0
        self._released = released
        self._lock = threading.Lock()  # acquired directly where no thread waits, which is faster
        self._changed = threading.Condition(self._lock)
        self._thread_state = _ThreadState()
        self._inside = 0  # calls that have started and have no reply, waiting ones included
        self._awaited = 0  # threads in wait_until_empty
        self.closed = False

    def try_enter(self) -> bool:
        """Take a slot if one is free that no thread waits for; return True if so."""
        with self._lock:
            if self._free <= self._queued:
                return False
            self._free -= 1
            self._inside += 1
        self._thread_state.depth += 1
        return True

    def enter(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a slot; return False if there was none, or the pool is closed."""
        with self._changed:
            self._queued += 1
            try:
                self._changed.wait_for(lambda: self._free > 0 or self.closed, timeout)
                if self.closed or self._free <= 0:
                    return False
                self._free -= 1
                self._inside += 1
            finally:
                self._queued -= 1
        self._thread_state.depth += 1
        return True

    def leave(self) -> None:
        """Release the slot after the function has ended. Call `answered` afterwards."""
        self._thread_state.depth -= 1
        with self._lock:
            self._free += 1
            if self._queued:
                self._changed.notify_all()

    def answered(self) -> None:
        """Note that the reply was sent, or cannot be."""
        with self._lock:
            self._inside -= 1
            if self._awaited:
                self._changed.notify_all()

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context manager that releases this thread's slot while it waits for another call.

        Nested waits (and several in asyncio) release one slot.
        """
        return self._without_slot() if self._thread_state.depth else _NOTHING

    @contextmanager
    def _without_slot(self) -> Iterator[None]:
        self._thread_state.waits += 1
        try:
            if self._thread_state.waits == 1:
                self._release()
            yield
        finally:
            self._thread_state.waits -= 1
            if not self._thread_state.waits:
                with self._changed:
                    # It continues immediately, even if its slot is taken: the function in the slot may wait for this
                    # one.
                    self._waiting -= 1
                    self._free -= 1

    def _release(self) -> None:
        with self._changed:
            self._free += 1
            self._waiting += 1
            more = self._waiting > self._most_waiting
            self._most_waiting = max(self._waiting, self._most_waiting)
            self._changed.notify_all()
        self._released(more)

    def wait_until_empty(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for running functions and their replies; return True if all have ended.

        A function that runs in the current thread does not count.
        """
        own = 1 if self._thread_state.depth else 0
        with self._changed:
            self._awaited += 1
            try:
                return self._changed.wait_for(lambda: self._inside <= own, timeout)
            finally:
                self._awaited -= 1

    def close(self) -> None:
        """Give no more slots to waiting threads."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
