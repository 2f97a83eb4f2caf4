"""Subscriptions: messages that reach a handler or a channel by a thread, or lie ready for a loop that takes them."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from neuraxis.errors import ForkedProcess, MeshClosed
from neuraxis.mesh.counts import Counts
from neuraxis.mesh.declared import Declared
from neuraxis.mesh.messages import MOST_STREAMS, Message, Opener

__all__ = ["Polled", "Subscription"]

_log = logging.getLogger("neuraxis.mesh")


class _Heard(Declared):
    """What both have: a declared subscriber, what opens its messages, and what was counted."""

    def __init__(self, expression: str, declared: Any, opener: Opener) -> None:
        super().__init__(declared)
        self.expression = expression
        self._opener = opener
        self._ledger = opener.ledger

    def counts(self) -> Counts:
        """What came and what did not, over all keys."""
        return self._ledger.total()

    def counts_by_key(self) -> dict[str, Counts]:
        return self._ledger.copy()


class Polled(_Heard):
    """What `Node.poll` returns: messages lie ready until they are taken, by one thread; no other is woken by them.

    For a loop that turns to them by itself, and soon: waking a thread takes longer than a message's whole way.
    """

    def __init__(self, expression: str, declared: Any, opener: Opener) -> None:
        super().__init__(expression, declared, opener)
        self._receive = self._channel.try_recv

    def take(self) -> Message | None:
        """The next message, if there is one."""
        while True:
            try:
                sample = self._receive()
            except Exception:  # undeclared, or the session is closed: nothing more comes
                raise MeshClosed(f"the subscription {self.expression!r} is closed") from None
            if sample is None:
                return None
            message = self._opener.open(sample)
            if message is not None:
                return message


class Subscription(_Heard):
    """What `Node.subscribe` returns. With a handler, that is called for every message, one after the other.

    Without one it is a channel: `get(timeout)`, or a loop over it, which ends when it is closed. A channel holds
    `capacity` messages; where it is full, the oldest is dropped and counted as lost.
    """

    def __init__(
        self,
        expression: str,
        declared: Any,
        opener: Opener,
        handler: Callable[[Message], Any] | None,
        capacity: int,
    ) -> None:
        super().__init__(expression, declared, opener)
        self._handler = handler or self._keep
        self._messages: deque[Message] = deque()
        self._capacity = capacity
        self._dropped: dict[tuple[str, str, int], int] = {}  # from the channel, before the next of that node and key
        self._start(expression, self._read)

    # --- to receive -------------------------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> Message:
        """The next message; TimeoutError when none came in time, MeshClosed when none will come."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if os.getpid() != self._pid:
            raise ForkedProcess(f"the subscription {self.expression!r} belongs to the process that made it")
        with self._changed:
            while not self._messages:
                if self.closed:
                    raise MeshClosed(f"the subscription {self.expression!r} is closed")
                # In pieces, so that Ctrl-C is heard where a lock cannot be interrupted.
                left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"nothing came on {self.expression!r} within {timeout:g} s")
                self._changed.wait(left)
            message = self._messages.popleft()
            if dropped := self._dropped.pop(_stream(message), 0):
                return msgspec.structs.replace(message, lost=message.lost + dropped)
            return message

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                yield self.get()
            except MeshClosed:
                return

    # --- helpers ----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        receive = self._channel.recv
        while not self.closed:
            try:
                sample = receive()
            except Exception:  # undeclared, or the session is closed: nothing more comes
                break
            message = self._opener.open(sample)
            if message is None:
                continue
            try:
                self._handler(message)
            except BaseException as error:  # also SystemExit: it is this thread's, not the program's
                _log.exception("the handler of %r raised at a message on %s", self.expression, message.key)
                self._ledger.note(message.key, "handler_errors", why=repr(error))
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _keep(self, message: Message) -> None:
        with self._changed:
            if len(self._messages) == self._capacity:
                oldest = self._messages.popleft()
                self._ledger.note(oldest.key, "received", -1)
                self._ledger.note(oldest.key, "lost", why="the channel was full")
                if len(self._dropped) > MOST_STREAMS:
                    self._dropped.clear()  # nobody reads, and somebody invents keys
                self._dropped[_stream(oldest)] = self._dropped.get(_stream(oldest), 0) + 1 + oldest.lost
            self._messages.append(message)
            self._changed.notify()


def _stream(message: Message) -> tuple[str, str, int]:
    return message.key, message.node, message.incarnation
