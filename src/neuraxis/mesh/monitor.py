"""Monitoring of raw traffic: everything on the mesh, including malformed messages and those of other programs."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from neuraxis.mesh import Node
from neuraxis.mesh.counts import Ledger
from neuraxis.mesh.declarations import Declaration
from neuraxis.mesh.keys import LONGEST_KEY, ROOT, check_keys_of_nodes
from neuraxis.mesh.messages import declare_subscriber
from neuraxis.threads import Empty, TimedQueue
from neuraxis.wire.envelope import LONGEST_ATTACHMENT, Envelope, open_envelope

__all__ = ["Monitor", "ObservedMessage", "RateWindow", "has_subscriber"]

_CAPACITY = 10_000  # samples in Zenoh's ring, and messages with payloads that are queued
_MAX_QUEUED = 1_000_000  # messages without payloads that are queued


@dataclass
class RateWindow:
    """The message rate of one key over the last `window_s` seconds.

    The rate is the inverse of the mean interval. A silence that is longer than that counts as well, so the rate of a
    stream that has stopped falls until the window is empty.
    """

    window_s: float
    _messages: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, time: float, size: int) -> None:
        """Add a message of `size` bytes that arrived at `time` in seconds."""
        self._messages.append((time, size))

    def at(self, now: float) -> dict[str, float | int | None]:
        """Return the statistics at a time: rate, and intervals in ms (None for fewer than two messages)."""
        messages = self._messages
        while messages and messages[0][0] < now - self.window_s:
            messages.popleft()
        times = [time for time, _ in messages]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        size = sum(size for _, size in messages)
        statistics: dict[str, float | int | None] = {"messages": len(messages)}
        if not gaps:
            statistics |= {"rate_hz": len(messages) / self.window_s, "bytes_per_s": size / self.window_s}
            return statistics | dict.fromkeys(("mean_ms", "min_ms", "max_ms", "std_ms"))
        mean = sum(gaps) / len(gaps)
        # Messages with the same clock reading would have an infinite rate; the clock resolves a microsecond.
        span = max(times[-1] - times[0], now - mean - times[0], 1e-6)
        rate = len(gaps) / span
        statistics |= {"rate_hz": rate, "bytes_per_s": rate * size / len(messages)}
        deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
        return statistics | {
            "mean_ms": 1e3 * mean,
            "min_ms": 1e3 * min(gaps),
            "max_ms": 1e3 * max(gaps),
            "std_ms": 1e3 * deviation,
        }


@dataclass(frozen=True, slots=True)
class ObservedMessage:
    """A message before decoding.

    Attributes
    ----------
    time : float
        Time of arrival, by `time.monotonic`.
    key : str
        The key relative to the mesh.
    encoding : str
        The encoding of the payload.
    envelope : Envelope or None
        None if another program sent the message, or if it names another node than the key.
    size : int
        Size of the payload in bytes.
    payload : bytes or None
        None unless the monitor keeps payloads.
    lost : int
        Number of messages missing right before this one.
    """

    time: float
    key: str
    encoding: str
    envelope: Envelope | None
    size: int
    payload: bytes | None
    lost: int = 0

    @property
    def node(self) -> str:
        """The sender's name; "" if unknown."""
        return "" if self.envelope is None else self.envelope.node


class Monitor(Declaration):
    """A subscription to all messages on a key expression, through the session of a node, for one reader.

    A thread takes the messages from Zenoh, notes their arrival times and queues them. The reader can be interrupted at
    any moment.

    Parameters
    ----------
    node : Node
        The node whose session is used.
    expression : str
        Keys relative to the mesh.
    payloads : bool
        Keep payloads.
    last : bool
        Receive the last earlier message of a "state" or "event" topic, and recover missed ones.
    """

    def __init__(self, node: Node, expression: str, *, payloads: bool = False, last: bool = False) -> None:
        check_keys_of_nodes(expression, "KEY")
        self._prefix = f"{ROOT}/{node.mesh}/"
        self._payloads = payloads
        self._ledger = Ledger(f"monitor {expression!r}")
        self._queue: TimedQueue[ObservedMessage] = TimedQueue()
        self._max_queued = _CAPACITY if payloads else _MAX_QUEUED
        super().__init__(declare_subscriber(node.session, self._prefix + expression, _CAPACITY, int(last), last))
        self._start(f"monitor {expression}", self._read)

    def get(self, timeout: float) -> ObservedMessage | None:
        """Return the next message; None if none arrives within `timeout` seconds."""
        try:
            return self._queue.get(timeout=max(0.0, timeout))
        except Empty:
            return None

    def take(self) -> list[ObservedMessage]:
        """Return all queued messages."""
        taken = []
        while True:
            try:
                taken.append(self._queue.get_nowait())
            except Empty:
                return taken

    def lost(self, key: str) -> int:
        """Return the number of lost messages on a key."""
        counts = self._ledger.by_key.get(key)
        return 0 if counts is None else counts.lost

    def _read(self) -> None:
        receive = self._channel.recv
        while True:
            try:
                sample = receive()
            except Exception:  # undeclared: nothing more arrives
                return
            # A reader that cannot keep up sees a gap in the sequence numbers.
            if self._queue.qsize() < self._max_queued:
                try:
                    self._queue.put(self._observe(time.monotonic(), sample))
                except Exception as error:  # one message must not end the thread
                    self._ledger.log_failure("reading a message failed", error)
                    self._ledger.note("?", "malformed", why=repr(error))

    def _observe(self, now: float, sample: Any) -> ObservedMessage:
        key = str(sample.key_expr).removeprefix(self._prefix)
        envelope = self._envelope(key, sample.attachment)
        missing = 0 if envelope is None else max(0, self._ledger.follow(key, envelope))
        payload = bytes(sample.payload) if self._payloads else None
        return ObservedMessage(now, key, str(sample.encoding), envelope, len(sample.payload), payload, missing)

    def _envelope(self, key: str, attachment: Any) -> Envelope | None:
        """Return the envelope if it names the node of the key, otherwise None."""
        if attachment is None or len(key) > LONGEST_KEY:
            return None
        if len(attachment) > LONGEST_ATTACHMENT:
            self._ledger.note(key, "oversized", why=f"an attachment of {len(attachment):,} bytes")
            return None
        envelope = open_envelope(bytes(attachment))
        if envelope is not None and not (envelope.node and key.startswith(f"{envelope.node}/")):
            self._ledger.note(
                key, "malformed", why=f"its envelope names the node {envelope.node!r}, but its key does not"
            )
            return None
        return envelope


def has_subscriber(node: Node, key: str, timeout: float) -> bool:
    """Wait up to `timeout` seconds for a subscriber of a key (relative to the mesh); return True if there is one."""
    deadline = time.monotonic() + timeout
    with node.session.declare_publisher(f"{ROOT}/{node.mesh}/{key}") as publisher:
        while not publisher.matching_status.matching:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)
    return True
