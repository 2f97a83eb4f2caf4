"""Messages as they come: a thread that reads them from Zenoh's ring, and a handler or a channel that gets them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from neuraxis.errors import ForkedProcess, MeshClosed
from neuraxis.mesh.codecs import Undecodable, decode
from neuraxis.mesh.counts import Counts, Ledger
from neuraxis.mesh.envelope import NO_STEP, numbers_of, open_envelope, sender_of
from neuraxis.mesh.topology import LARGEST_MESSAGE

__all__ = ["Message", "Subscription"]

_log = logging.getLogger("neuraxis.mesh")
_END_S = 2.0
_MOST_STREAMS = 4000


class Message(msgspec.Struct, frozen=True, gc=False):
    """A value and where it came from.

    Attributes:
        key: relative to the mesh: "vision/objects".
        node: who sent it; "" where a program that is no node of ours did. Of a question it is what the asker says.
        incarnation, sequence: which life of that node, and the number of the message on its key; -1 if not told.
        step: the model time it belongs to, in steps; -1 if it belongs to none.
        encoding: how it was encoded.
        lost: how many messages right before this one are missing.
    """

    value: Any
    key: str
    node: str = ""
    incarnation: int = -1
    sequence: int = -1
    step: int = NO_STEP
    encoding: str = ""
    lost: int = 0

    @property
    def topic(self) -> str:
        return self.key.removeprefix(f"{self.node}/") if self.node else self.key


@dataclass(slots=True)
class _Stream:
    """What is known of the messages of one life of a node on a key; `next` is the number expected, -1 at first."""

    key: str
    node: str
    incarnation: int
    counts: Counts
    is_own: bool = False
    next: int = -1


class Subscription:
    """What `Node.subscribe` returns. With a handler, that is called for every message, one after the other.

    Without one it is a channel: `get(timeout)`, or a loop over it, which ends when it is closed. A channel holds
    `capacity` messages; where it is full, the oldest is dropped and counted as lost.

    The messages of a node on a key come in the order in which they were sent, none twice; what is missing is counted.
    """

    def __init__(
        self,
        declared: Any,
        expression: str,
        prefix: str,
        handler: Callable[[Message], Any] | None,
        *,
        type: Any = None,
        capacity: int,
        allow_pickle: bool,
        own: tuple[str, int] | None = None,
        largest: int = LARGEST_MESSAGE,
    ) -> None:
        import zenoh

        self.expression = expression
        self._put = zenoh.SampleKind.PUT
        self._declared = declared
        self._prefix = prefix
        self._handler = handler or self._keep
        self._type = type
        self._allow_pickle = allow_pickle
        self._largest = largest
        self._own = own
        self._ledger = Ledger(f"subscription {expression!r}")
        self._streams: dict[tuple[str, bytes, bytes], _Stream] = {}
        self._messages: deque[Message] = deque()
        self._capacity = capacity
        self._dropped: dict[tuple[str, str, int], int] = {}  # from the channel, before the next of that node and key
        self._pid = os.getpid()
        self._came = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._read, name=f"neuraxis {expression}", daemon=True)
        self._thread.start()

    # --- to receive -------------------------------------------------------------------------------------------

    def get(self, timeout: float | None = None) -> Message:
        """The next message; TimeoutError when none came in time, MeshClosed when none will come."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if os.getpid() != self._pid:
            raise ForkedProcess(f"the subscription {self.expression!r} belongs to the process that made it")
        with self._came:
            while not self._messages:
                if self._closed:
                    raise MeshClosed(f"the subscription {self.expression!r} is closed")
                # In pieces, so that Ctrl-C is heard where a lock cannot be interrupted.
                left = 0.5 if deadline is None else min(0.5, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"nothing came on {self.expression!r} within {timeout:g} s")
                self._came.wait(left)
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

    # --- to look at -------------------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """What came and what did not, over all keys."""
        return self._ledger.total()

    def counts_by_key(self) -> dict[str, Counts]:
        return self._ledger.copy()

    # --- to end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Hear nothing more. A handler that is at work is waited for, a few seconds at most (not by itself)."""
        if os.getpid() != self._pid:
            return
        self._stop()
        self._wait_for_end(time.monotonic() + _END_S)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- helpers ----------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        with self._came:
            if self._closed:
                return
            self._closed = True
            self._came.notify_all()
        try:
            self._declared.undeclare()
        except Exception:  # the session may be closed already
            pass

    def _wait_for_end(self, deadline: float) -> None:
        if threading.current_thread() is not self._thread:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _runs_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _read(self) -> None:
        receive = self._declared.handler.recv
        while not self._closed:
            try:
                sample = receive()
            except Exception:  # undeclared, or the session is closed: nothing more comes
                break
            try:
                message = self._open(sample)
            except Exception as error:  # whatever a stranger sent, this thread goes on
                self._ledger.note("?", "malformed", why=repr(error))
                continue
            if message is None:
                continue
            try:
                self._handler(message)
            except BaseException as error:  # also SystemExit: it is this thread's, not the program's
                _log.exception("the handler of %r raised at a message on %s", self.expression, message.key)
                self._ledger.note(message.key, "handler_errors", why=repr(error))
        with self._came:
            self._closed = True
            self._came.notify_all()

    def _open(self, sample: Any) -> Message | None:
        """A message from what came; None, and counted, where it is none.

        This is the way of every message, so what is known of its sender is looked up and not worked out again.
        """
        attachment = sample.attachment
        head = b"" if attachment is None else bytes(attachment)
        name = str(sample.key_expr)
        sender = (name, *sender_of(head))
        stream = self._streams.get(sender)
        if stream is None:
            stream = self._meet(sender, name, head)
        if stream.is_own:
            return None  # what Zenoh gives again to who comes later, it also gives to who said it
        key, missing, sequence, step = stream.key, 0, -1, NO_STEP
        if stream.node:
            sequence, step = numbers_of(head)
            if sequence != stream.next:
                missing = self._find_gap(stream, sequence)
                if missing < 0:
                    return None
            stream.next = sequence + 1
        payload = sample.payload
        if len(payload) > self._largest:
            self._ledger.note(key, "oversized", why=f"{len(payload):,} bytes")
            return None
        if sample.kind != self._put:
            self._ledger.note(key, "malformed", why="it deletes the key")
            return None
        encoding = str(sample.encoding)
        try:
            value = decode(bytes(payload), encoding, type=self._type, allow_pickle=self._allow_pickle)
        except Undecodable as error:
            self._ledger.note(key, "malformed", why=error)
            return None
        stream.counts.received += 1
        return Message(value, key, stream.node, stream.incarnation, sequence, step, encoding, missing)

    def _meet(self, sender: tuple[str, bytes, bytes], name: str, head: bytes) -> _Stream:
        """The first message of one life of a node on a key."""
        key = name.removeprefix(self._prefix)
        envelope = open_envelope(head) if head else None
        if envelope is not None and not key.startswith(f"{envelope.node}/"):
            envelope = None  # where access is controlled, a key is proven, and what a sender says of itself never is
        counts = self._ledger.counts_of(key)
        if envelope is None:
            stream = _Stream(key, "", -1, counts)
        else:
            is_own = (envelope.node, envelope.incarnation) == self._own
            stream = _Stream(key, envelope.node, envelope.incarnation, counts, is_own)
        if len(self._streams) >= _MOST_STREAMS:
            del self._streams[next(iter(self._streams))]  # too many to follow: the one met first begins anew
        self._streams[sender] = stream
        return stream

    def _find_gap(self, stream: _Stream, sequence: int) -> int:
        """How many messages are missing before one that is not the next, and -1 if it came before."""
        if stream.next < 0:
            return 0
        if sequence < stream.next:
            self._ledger.note(stream.key, "repeated")
            return -1
        self._ledger.note(stream.key, "lost", sequence - stream.next)
        return sequence - stream.next

    def _keep(self, message: Message) -> None:
        with self._came:
            if len(self._messages) == self._capacity:
                oldest = self._messages.popleft()
                self._ledger.note(oldest.key, "received", -1)
                self._ledger.note(oldest.key, "lost", why="the channel was full")
                if len(self._dropped) > _MOST_STREAMS:
                    self._dropped.clear()  # nobody reads, and somebody invents keys
                self._dropped[_stream(oldest)] = self._dropped.get(_stream(oldest), 0) + 1 + oldest.lost
            self._messages.append(message)
            self._came.notify()


def _stream(message: Message) -> tuple[str, str, int]:
    return message.key, message.node, message.incarnation
