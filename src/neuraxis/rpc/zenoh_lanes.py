"""Keys of a node, each for replies to one thread at a time, and a thread that looks at the clock for all of them.

A thread sleeps in Zenoh until its reply comes: one that looks for it again and again takes the core from those that
bring it, unless there are many. Zenoh has no deadline for that. So each that sleeps says until when, and gets an empty
message of this node's own then. Nothing is done for a reply that comes sooner, but to write down a time.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from neuraxis.machine import usable_cores
from neuraxis.rpc.line import INBOX
from neuraxis.rpc.threads import Threads
from neuraxis.rpc.transport import Party

__all__ = ["Lanes"]

_MANY_CORES = 8
_POLL_S = 2e-4  # with many cores: quick answers come within this, and to wake a thread takes about as long
_LOOK_S = 0.05  # how long is slept in a row
_REST_S = 1.0  # how long the clock is looked at when nobody sleeps
_LANE_MESSAGES = 100
_CLOSE_S = 0.5


class Lanes:
    """The lanes of one node.

    Args:
        session: of Zenoh.
        key: of the lane with a number.
        message: what a sample is for who waits for it.
    """

    def __init__(self, session: Any, key: Callable[[int], str], message: Callable[[Any], Any]) -> None:
        self._session = session
        self._key = key
        self._message = message
        self._numbers = itertools.count(INBOX + 1)
        self._lanes: list[_Lane] = []
        self._poll_s = _POLL_S if usable_cores() >= _MANY_CORES else 0.0
        self._threads = Threads("neuraxis rpc clock")
        self._lock = threading.Lock()
        self._runs = False
        self._planned = threading.Event()
        self.awake_at = math.inf  # when the clock is looked at next
        self._closed = False

    def lane(self) -> _Lane:
        import zenoh

        number = next(self._numbers)
        # A ring: nobody may be reading when a reply comes too late, and the newest is the one that is waited for.
        channel: Any = zenoh.handlers.RingChannel(_LANE_MESSAGES)
        lane = _Lane(self, number, self._session.declare_subscriber(self._key(number), channel), self._message)
        with self._lock:
            self._lanes.append(lane)
        return lane

    @property
    def poll_s(self) -> float:
        return self._poll_s

    def plan(self) -> None:
        """One sleeps that is to be woken before the clock is looked at next."""
        with self._lock:
            self._planned.set()
            begins = not self._runs
            self._runs = True
        if begins:
            try:
                self._runs = self._threads.run(self._run)
            except BaseException:
                self._runs = False
                raise

    def _run(self) -> None:
        try:
            self._look_at_clock()
        except BaseException:
            self._runs, self.awake_at = False, math.inf
            raise

    def _look_at_clock(self) -> None:
        idle_since = time.monotonic()
        while not self._closed:
            # Whoever falls asleep from here on plans anew, and so is seen now or in the next turn.
            self.awake_at = math.inf
            self._planned.clear()
            now = time.monotonic()
            next_s = _LOOK_S
            for lane in list(self._lanes):
                until = lane.sleeps_until
                if until == math.inf:
                    continue
                idle_since = now
                if until <= now:
                    self._wake(lane)
                else:
                    next_s = min(next_s, until - now)
            if now > idle_since + _REST_S:
                with self._lock:
                    if not self._planned.is_set():
                        self._runs = False
                        return
                continue
            self.awake_at = now + next_s
            self._planned.wait(next_s)

    def _wake(self, lane: _Lane) -> None:
        import zenoh

        try:
            self._session.put(self._key(lane.number), b"", allowed_destination=zenoh.Locality.SESSION_LOCAL)
        except Exception:  # the session is closed, which wakes all
            pass

    def stop(self) -> None:
        """Wake all that sleep."""
        for lane in list(self._lanes):
            if lane.sleeps_until != math.inf:
                self._wake(lane)

    def close(self) -> None:
        self._closed = True
        self._planned.set()
        self._threads.close(_CLOSE_S)


class _Lane:
    """See `line.Lane`. Its subscriber ends with the session."""

    def __init__(self, lanes: Lanes, number: int, subscriber: Any, message: Callable[[Any], Any]) -> None:
        self.number = number
        self.sleeps_until = math.inf
        self._lanes = lanes
        self._subscriber = subscriber
        self._message = message
        self._receive = subscriber.handler.recv
        self._try_receive = subscriber.handler.try_recv

    def receive(self, source: Party, timeout: float) -> Any:
        try:
            sample = self._look_for() if self._lanes.poll_s else None
            if sample is None:
                sample = self._sleep(min(timeout, _LOOK_S))
        except Exception:  # the session is closed
            return None
        # An empty one was there to wake this lane, now or when its reply had come.
        return None if sample is None or not len(sample.payload) else self._message(sample)

    def _look_for(self) -> Any:
        receive, monotonic, give_way = self._try_receive, time.monotonic, os.sched_yield
        sample = receive()
        end = monotonic() + self._lanes.poll_s
        while sample is None and monotonic() < end:
            give_way()
            sample = receive()
        return sample

    def _sleep(self, limit_s: float) -> Any:
        until = self.sleeps_until = time.monotonic() + limit_s
        try:
            if until < self._lanes.awake_at:
                self._lanes.plan()
            sample = self._receive()
        finally:
            self.sleeps_until = math.inf
        return sample
