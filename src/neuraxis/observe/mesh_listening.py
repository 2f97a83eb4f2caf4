"""To hear everything on the mesh as it came: also what is malformed, and what no node of ours sent."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from neuraxis.mesh import Node
from neuraxis.mesh.counts import Ledger
from neuraxis.mesh.declared import Declared
from neuraxis.mesh.envelope import Envelope, open_envelope
from neuraxis.mesh.keys import ROOT, check_expression
from neuraxis.mesh.kinds import declare_subscriber
from neuraxis.timed_queue import Empty, TimedQueue

__all__ = ["Heard", "Listener", "anybody_listens"]

_CAPACITY = 10_000
_MOST_WAITING = 1_000_000


@dataclass(frozen=True, slots=True)
class Heard:
    """A message as it came.

    Attributes:
        time: when, by time.monotonic.
        key: relative to the mesh.
        envelope: what travels beside the value; None where a program that is no node of ours sent it.
        size: of the payload, in bytes.
        payload: None where the listener does not keep it.
        lost: how many messages right before this one are missing.
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
        return "" if self.envelope is None else self.envelope.node


class Listener(Declared):
    """All messages on a key expression, through the session of a node, to be taken by one thread.

    A thread takes them from Zenoh as they come and notes the time. They wait in a queue whose reader may be
    interrupted at any moment.

    Args:
        payloads: whether payloads are kept.
        last: whether the last message of a "state" topic is heard that was sent before, and missed ones again.
    """

    def __init__(self, node: Node, expression: str, *, payloads: bool = False, last: bool = False) -> None:
        check_expression(expression, "KEY")
        self._prefix = f"{ROOT}/{node.mesh}/"
        self._payloads = payloads
        self._ledger = Ledger(f"listener {expression!r}")
        self._queue: TimedQueue[Heard] = TimedQueue()
        self._most = _CAPACITY if payloads else _MOST_WAITING
        super().__init__(declare_subscriber(node.session, self._prefix + expression, _CAPACITY, int(last), last))
        self._start(f"hears {expression}", self._read)

    def get(self, timeout: float) -> Heard | None:
        """The next message; None when none came in time."""
        try:
            return self._queue.get(timeout=max(0.0, timeout))
        except Empty:
            return None

    def take(self) -> list[Heard]:
        """All messages that wait."""
        taken = []
        while True:
            try:
                taken.append(self._queue.get_nowait())
            except Empty:
                return taken

    def lost(self, key: str) -> int:
        """How many messages on a key were sent and not heard."""
        counts = self._ledger.by_key.get(key)
        return 0 if counts is None else counts.lost

    def _read(self) -> None:
        receive = self._channel.recv
        while True:
            try:
                sample = receive()
            except Exception:  # undeclared: nothing more comes
                return
            # Who cannot keep up sees a gap in the numbers of what it takes later.
            if self._queue.qsize() < self._most:
                self._queue.put(self._heard(time.monotonic(), sample))

    def _heard(self, now: float, sample: Any) -> Heard:
        key = str(sample.key_expr).removeprefix(self._prefix)
        attachment = sample.attachment
        envelope = None if attachment is None else open_envelope(bytes(attachment))
        missing = 0 if envelope is None else max(0, self._ledger.follow(key, envelope))
        payload = bytes(sample.payload) if self._payloads else None
        return Heard(now, key, str(sample.encoding), envelope, len(sample.payload), payload, missing)


def anybody_listens(node: Node, key: str, timeout: float) -> bool:
    """Whether somebody has subscribed to a key (relative to the mesh), or does within this time."""
    deadline = time.monotonic() + timeout
    with node.session.declare_publisher(f"{ROOT}/{node.mesh}/{key}") as publisher:
        while not publisher.matching_status.matching:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.005)
    return True
