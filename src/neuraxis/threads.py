"""A queue with reliable timeouts, a pool of reusable threads, and threads that share one channel."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty
from typing import Generic, TypeVar

__all__ = ["Empty", "LeaderFollower", "Threads", "TimedQueue"]

_log = logging.getLogger("neuraxis.rpc")
_LINGER_S = 5.0  # how long an idle thread lives
_POLL_S = 1e-3
_LONG_S = 2e-3  # time in a handler after which a follower takes over
_QUICK_S = 3e-4  # if handlers take longer on average, the leader resigns before each
_REST_S = 0.1  # time without an item after which no follower watches the clock

T = TypeVar("T")
_Job = Callable[[], object]


class TimedQueue(Generic[T]):
    """An unbounded queue for any number of threads. `put` is safe to call from anywhere, including finalizers.

    It replaces `queue.SimpleQueue`, whose `get(timeout=...)` blocks forever if a signal handler runs during the wait
    and ends after the deadline: CPython 3.11 and others take the negative remaining time for "no timeout", so Ctrl-C
    does not end the process. Waiting for a lock does not have this defect.

    Examples
    --------
    >>> items = TimedQueue()
    >>> items.put(1)
    >>> items.get(timeout=1.0)
    1
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._event = threading.Lock()  # unlocked: an item was added since a reader found the queue empty
        self._event.acquire()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._notify()

    def get(self, timeout: float | None = None) -> T:
        """Return the oldest item; raise `Empty` if there is none within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._event.acquire(timeout=left):
                    raise Empty from None
                continue
            if self._items:
                self._notify()  # one notification may stand for several items: wake another reader
            return item

    def get_nowait(self) -> T:
        try:
            return self._items.popleft()
        except IndexError:
            raise Empty from None

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def _notify(self) -> None:
        if self._event.locked():
            try:
                self._event.release()
            except RuntimeError:
                pass  # another thread has notified at the same moment


class Threads:
    """A pool of reusable threads: each job runs immediately, in an idle thread or in a new one.

    When `max_threads` are busy, further jobs are queued; queued jobs still run after `close`.
    """

    def __init__(self, name: str, max_threads: float = math.inf) -> None:
        self._name = name
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._jobs: TimedQueue[_Job | None] = TimedQueue()
        self._closed = False
        self.idle = 0  # waiting threads for which no job is queued
        self.queued = 0  # jobs that wait for a busy thread

    def run(self, job: _Job) -> bool:
        """Run a job; return False after `close`."""
        with self._lock:
            if self._closed:
                return False
            if self.idle:
                self.idle -= 1
                self._jobs.put(job)
                return True
            if len(self._threads) >= self._max_threads:
                self.queued += 1
                self._jobs.put(job)
                return True
            thread = threading.Thread(target=self._work, args=(job,), name=self._name, daemon=True)
            self._threads.add(thread)
        try:
            thread.start()  # outside of the lock: it blocks until the thread runs
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
                    _log.warning("rpc: a job of a thread raised", exc_info=True)
                job = None  # release the objects that it refers to before this thread waits
                job = self._next()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _next(self) -> _Job | None:
        with self._lock:
            if self.queued:
                self.queued -= 1
                timeout = None
            elif self._closed:
                return None
            else:
                self.idle += 1
                timeout = _LINGER_S
        try:
            return self._jobs.get(timeout)
        except Empty:
            with self._lock:
                if self.idle:
                    self.idle -= 1
                    return None
            return self._jobs.get()  # a job is queued for this thread, or for one that takes this thread's job

    def close(self, timeout: float) -> bool:
        """Accept no more jobs, and wait up to `timeout` seconds for running ones; return True if all have ended."""
        deadline = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            for _ in range(self.idle):
                self._jobs.put(None)
            self.idle = 0
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            while thread.ident is None and time.monotonic() < deadline:
                time.sleep(_POLL_S)  # it is about to be started
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)


class LeaderFollower:
    """Threads that share one channel: one of them, the leader, waits on it (the leader/followers pattern).

    Waking a thread takes longer than a short handler does. So the leader handles the item that it received and waits
    again, while the others sleep; a follower takes over only when a handler takes long.

    Each thread calls `lead` first, then `begin` and `end` around the handling of each item.

    Parameters
    ----------
    quick_s : float
        If handling takes longer on average, in seconds, the leader resigns before it handles an item. A larger value
        suits threads that poll and thereby keep the interpreter busy.
    """

    def __init__(self, quick_s: float = _QUICK_S) -> None:
        self._quick_s = quick_s
        self._lock = threading.Lock()  # acquired directly where no thread waits, which is faster
        self._changed = threading.Condition(self._lock)
        self._leader = 0  # id of the thread that waits on the channel, or will after its current item
        self._busy_since = 0.0  # when the leader began to handle an item; 0 while it waits
        self._last = 0.0  # when the last item arrived
        self._watched = False  # True while a follower watches the clock
        self._mean_s = 0.0

    def lead(self) -> None:
        """Block until this thread is the leader."""
        with self._changed:
            while self._leader:
                if self._watched or time.monotonic() - self._last > _REST_S:
                    self._changed.wait()
                    continue
                self._watched = True
                self._changed.wait(_LONG_S)
                self._watched = False
                if self._busy_since and time.monotonic() - self._busy_since > _LONG_S:
                    break
            self._leader, self._busy_since = threading.get_ident(), 0.0

    def begin(self) -> float:
        """Note that an item arrived; return the time. Resign if handling takes long on average."""
        now = time.monotonic()
        if self._mean_s > self._quick_s:
            self.resign()
        else:
            self._last = self._busy_since = now
            if not self._watched:
                with self._lock:
                    self._changed.notify()
        return now

    def end(self, began: float) -> None:
        """Note that an item was handled; block until this thread is the leader again."""
        self._mean_s += (time.monotonic() - began - self._mean_s) / 8
        with self._lock:
            if self._leader == threading.get_ident():
                self._busy_since = 0.0
                return
        self.lead()

    def resign(self) -> None:
        """Let a follower become the leader."""
        with self._lock:
            if self._leader == threading.get_ident():
                self._leader = 0
                self._changed.notify()
