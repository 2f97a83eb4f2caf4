"""Everything that comes to a region's loop, from all threads that receive, in one place.

Windows in lockstep are the exception: those the loop takes from where Zenoh has put them by itself, because another
thread would have to be woken for each of them, and then wake the loop, which takes longer than all the rest.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neuraxis.execution.mesh.wire import Window
from neuraxis.mesh.messages import Message
from neuraxis.mesh.subscription import Polled
from neuraxis.timed_queue import Empty, TimedQueue

__all__ = ["MOST_WAITING", "Inbox"]

_log = logging.getLogger("neuraxis.region")
MOST_WAITING = 20_000

Check = Callable[[str, object], Window]


class Inbox:
    """What waits for the loop of region `name`. `handlers`: by its kind, what the loop does with a thing.

    `check` makes a window of a payload, or raises ValueError; it may be called by any thread.
    """

    def __init__(self, name: str, handlers: Mapping[str, Callable[..., None]], check: Check) -> None:
        self.refused = 0  # messages that made no sense here
        self.overrun = 0  # messages that found no room, because this region was too slow
        self.heard_at = 0.0  # when anything came from anybody
        self._name = name
        self._handlers = handlers
        self._check = check
        self._queue: TimedQueue[tuple[str, tuple[Any, ...]]] = TimedQueue()
        self._windows: list[tuple[str, Polled]] = []

    # --- to put something in ------------------------------------------------------------------------------------

    def put(self, kind: str, *what: Any) -> None:
        self._queue.put((kind, what))

    def put_from(self, kind: str, about: Any) -> Callable[[Message], None]:
        """What puts messages of a subscription here."""

        def take(message: Message) -> None:
            if self._queue.qsize() < MOST_WAITING or kind == "health":
                self.put(kind, about, message)
            else:
                self.overrun += 1

        return take

    def put_windows_of(self, name: str) -> Callable[[Message], None]:
        """What puts a region's windows here when they come, and not only when they are looked for."""

        def take(message: Message) -> None:
            if self._queue.qsize() >= MOST_WAITING:
                self.overrun += 1  # it is asked for again
                return
            try:
                self.put("window", name, message.incarnation, self._check(name, message.value))
            except ValueError as error:
                self.put("refused", error)

        return take

    def look_for_windows(self, name: str, polled: Polled) -> None:
        """Have the loop itself take a region's windows from where they lie."""
        self._windows.append((name, polled))

    # --- to take something out, by the loop ---------------------------------------------------------------------

    def take_one(self, timeout_s: float) -> bool:
        """Take one thing, if one comes in time."""
        try:
            kind, what = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
        except Empty:
            return False
        if kind == "command":
            self._handlers[kind](*what)  # what it raises ends the region
        else:
            self.heard_at = time.monotonic()
            self._handle(kind, *what)
        return True

    def take_all(self) -> None:
        """Take what is there."""
        while not self._queue.empty():
            self.take_one(0.0)
        self._take_windows()

    def poll(self, until: float) -> None:
        """Wait for a window or anything else for a short time, without sleeping, and giving way to others."""
        while not self._take_windows() and self._queue.empty() and time.monotonic() < until:
            os.sched_yield()

    def rest(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Take what is left, and do nothing with it."""
        while True:
            try:
                yield self._queue.get_nowait()
            except Empty:
                return

    # --- helpers ------------------------------------------------------------------------------------------------

    def _take_windows(self) -> bool:
        came = False
        for name, polled in self._windows:
            while (message := polled.take()) is not None:
                came = True
                self.heard_at = time.monotonic()
                try:
                    window = self._check(name, message.value)
                except ValueError as error:
                    self._refuse(error)
                else:
                    self._handle("window", name, message.incarnation, window)
        return came

    def _handle(self, kind: str, *what: Any) -> None:
        if kind == "refused":
            self._refuse(*what)
            return
        try:
            self._handlers[kind](*what)
        except Exception as error:  # what a stranger sent; this region goes on
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """A message made no sense."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:
            _log.warning("%s: refused %d messages so far; the last: %r", self._name, self.refused, error)
