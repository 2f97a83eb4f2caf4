"""The inbox of a region's loop: one queue for the messages of all receiving threads.

Spike windows in lockstep are the exception. The loop polls them from Zenoh's own buffers, because waking a receiving
thread for each window, and then the loop, would dominate the latency.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from neuraxis.mesh.messages import Message
from neuraxis.mesh.subscription import Polled
from neuraxis.simulation.mesh.wire import Window
from neuraxis.threads import Empty, TimedQueue

__all__ = ["DEPTH", "MOST_WAITING", "Inbox"]

_log = logging.getLogger("neuraxis.region")
MOST_WAITING = 20_000
DEPTH = 1000  # of subscriptions whose handler only queues messages: none may be replaced by a newer one

Check = Callable[[str, object], Window]


class Inbox:
    """The inbox of region `name`.

    Parameters
    ----------
    name : str
        The region.
    handlers : mapping
        By kind of message, the function that the loop calls.
    check : callable
        Decodes a spike window or raises ValueError; any thread may call it.
    """

    def __init__(self, name: str, handlers: Mapping[str, Callable[..., None]], check: Check) -> None:
        self.refused = 0  # invalid messages
        self.overrun = 0  # messages dropped because this region was too slow
        self.received_at = 0.0  # when the last message of any region arrived
        self._name = name
        self._handlers = handlers
        self._check = check
        self._queue: TimedQueue[tuple[str, tuple[Any, ...]]] = TimedQueue()
        self._windows: list[tuple[str, Polled]] = []

    # --- Putting messages in, from any thread -------------------------------------------------------------------

    def put(self, kind: str, *what: Any) -> None:
        self._queue.put((kind, what))

    def handler_for(self, kind: str, about: Any) -> Callable[[Message], None]:
        """Return a subscription handler that queues messages as `kind`, with `about`."""

        def take(message: Message) -> None:
            if self._queue.qsize() < MOST_WAITING or kind == "health":
                self.put(kind, about, message)
            else:
                self.overrun += 1

        return take

    def window_handler_for(self, name: str) -> Callable[[Message], None]:
        """Return a subscription handler that queues the spike windows of a region."""

        def take(message: Message) -> None:
            if self._queue.qsize() >= MOST_WAITING:
                self.overrun += 1  # the window will be requested again
                return
            try:
                self.put("window", name, message.incarnation, self._check(name, message.value))
            except ValueError as error:
                self.put("refused", error)

        return take

    def poll_windows(self, name: str, polled: Polled) -> None:
        """Let the loop poll the windows of a region."""
        self._windows.append((name, polled))

    # --- Taking messages out, by the loop -----------------------------------------------------------------------

    def handle_one(self, timeout_s: float) -> bool:
        """Handle one message if one arrives within `timeout_s`; return whether one did."""
        try:
            kind, what = self._queue.get(timeout=timeout_s) if timeout_s > 0 else self._queue.get_nowait()
        except Empty:
            return False
        if kind == "command":
            self._handlers[kind](*what)  # an exception stops the region
        else:
            self.received_at = time.monotonic()
            self._handle(kind, *what)
        return True

    def handle_all(self) -> None:
        """Handle all messages that have arrived."""
        while not self._queue.empty():
            self.handle_one(0.0)
        self._handle_windows()

    def spin(self, until: float) -> None:
        """Wait for a message until `until` without sleeping, yielding the core."""
        while not self._handle_windows() and self._queue.empty() and time.monotonic() < until:
            os.sched_yield()

    def drain(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Remove and return the remaining messages without handling them."""
        while True:
            try:
                yield self._queue.get_nowait()
            except Empty:
                return

    # --- Helpers ------------------------------------------------------------------------------------------------

    def _handle_windows(self) -> bool:
        received = False
        for name, polled in self._windows:
            while (message := polled.take()) is not None:
                received = True
                self.received_at = time.monotonic()
                try:
                    window = self._check(name, message.value)
                except ValueError as error:
                    self._refuse(error)
                else:
                    self._handle("window", name, message.incarnation, window)
        return received

    def _handle(self, kind: str, *what: Any) -> None:
        if kind == "refused":
            self._refuse(*what)
            return
        try:
            self._handlers[kind](*what)
        except Exception as error:  # a bad message must not stop the region
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Count an invalid message; log at powers of two."""
        self.refused += 1
        if self.refused & (self.refused - 1) == 0:
            _log.warning("%s: refused %d messages so far; the last: %r", self._name, self.refused, error)
