"""Publish the spikes, payloads and status of a region, and replay them to subscribers that missed some.

The `ReplayLog` stores the last published windows and payloads for regions that missed some of them, joined later, or
resumed from an older state.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.spikes import SpikeBuffers, pack_outputs, pack_steps
from neuraxis.errors import InvalidArgument
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node
from neuraxis.simulation.mesh.setup import RegionSetup
from neuraxis.simulation.mesh.wire import HEALTH, SPIKES, RegionStatus, Window, pack_window
from neuraxis.simulation.python_populations import Payload
from neuraxis.wire.tensors import to_device
from neuraxis.wire.trees import iter_leaves

__all__ = ["Publisher", "ReplayLog"]

_REPLY_BYTES = 4 * 2**20
_REPLY_WINDOWS = 1000  # bounds the time that the receiver's loop needs for a reply
_OVERHEAD = 100  # bytes of an entry besides its content


@dataclass
class ReplayLog:
    """The last windows and payloads of a region, up to `room` bytes; used by the loop and by service threads."""

    room: int = 64 * 2**20
    _windows: deque[tuple[int, int, bytes]] = field(default_factory=deque)
    _payloads: list[tuple[int, int, Any]] = field(default_factory=list)  # (step, size, content), by step
    _bytes: int = 0
    _began: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_window(self, first: int, last: int, payload: bytes) -> None:
        with self._lock:
            self._windows.append((first, last, payload))
            self._bytes += len(payload) + _OVERHEAD
            self._evict()

    def add_payload(self, step: int, content: Any, size: int) -> None:
        with self._lock:
            bisect.insort(self._payloads, (step, size + _OVERHEAD, content), key=lambda entry: entry[0])
            self._bytes += size + _OVERHEAD
            self._evict()

    def _evict(self) -> None:
        """Drop the oldest windows and the payloads of their steps."""
        while self._bytes > self.room and (len(self._windows) > 1 or len(self._payloads) > 1):
            last = self._payloads[0][0] if self._payloads else 0
            if len(self._windows) > 1:
                _, last, payload = self._windows.popleft()
                self._bytes -= len(payload) + _OVERHEAD
            dropped = bisect.bisect_right(self._payloads, last, key=lambda entry: entry[0])
            self._bytes -= sum(size for _, size, _ in self._payloads[:dropped])
            del self._payloads[:dropped]

    def begin_again(self, step: int) -> None:
        """Drop everything; the log continues after `step`."""
        with self._lock:
            self._began = step
            self._windows.clear()
            self._payloads.clear()
            self._bytes = 0

    def oldest(self) -> int | None:
        """Return the first step in the log, or None if it is empty."""
        with self._lock:
            return self._windows[0][0] if self._windows else None

    def since(self, step: int) -> dict[str, Any]:
        """Return the windows and payloads from a step on, as many as fit into one reply.

        "oldest" and "last" are the steps between which the log is complete, "began" the step after which it began,
        "letters" the payloads, "letters_to" the step up to which the payloads are complete (None: the last), "more"
        whether to request more.
        """
        with self._lock:
            windows = [(end, payload) for _, end, payload in self._windows if end >= step]
            at = bisect.bisect_left(self._payloads, step, key=lambda entry: entry[0])
            payloads = self._payloads[at:]
            oldest, began = self._windows[0][0] if self._windows else None, self._began
            last = self._windows[-1][1] if self._windows else began
        windows_sent: list[bytes] = []
        payloads_sent: list[list[Any]] = []
        size, taken = 0, 0
        for end, payload in windows:
            due = taken
            while due < len(payloads) and payloads[due][0] <= end:
                due += 1
            cost = len(payload) + sum(one[1] for one in payloads[taken:due])
            if windows_sent and (size + cost > _REPLY_BYTES or len(windows_sent) >= _REPLY_WINDOWS):
                break
            windows_sent.append(payload)
            payloads_sent += [[at, content] for at, _, content in payloads[taken:due]]
            size, taken = size + cost, due
        more = len(windows_sent) < len(windows)
        complete_to = windows[len(windows_sent) - 1][0] if more else None
        if not more:
            payloads_sent += [[at, content] for at, _, content in payloads[taken:]]
        return {
            "windows": windows_sent, "letters": payloads_sent, "letters_to": complete_to, "more": more,
            "oldest": oldest, "began": began, "last": last,
        }  # fmt: skip


class Publisher:
    """Publishes for one region; `window` is the shortest delay to a downstream region, in steps."""

    def __init__(self, setup: RegionSetup, digest: int, shard: Shard, buffers: SpikeBuffers, window: int) -> None:
        self.node: Node | None = None
        self.window = window
        self.published = 0  # last published step
        self._setup = setup
        self._digest = digest
        self._shard = shard
        self._buffers = buffers
        self._populations = len(setup.network.populations)
        self._log = ReplayLog(setup.replay_log_bytes)
        self._status_at = 0.0

    def begin_at(self, step: int) -> None:
        """Continue after `step` with an empty log."""
        self.published = step
        self._log.begin_again(step)

    def publish(self, whole: bool = False, epoch_ns: int = 0) -> None:
        """Publish the spikes and outputs since the last window, if it is full or `whole` is set."""
        step, first = self._shard.step, self.published + 1
        if step < first or (not whole and step < self.published + self.window):
            return
        after, ids = pack_steps(self._buffers, self._shard.me, self._populations, first, step)
        outputs = pack_outputs(self._buffers, self._shard.me, first, step)
        payload = pack_window(Window(first, step, after, ids, epoch_ns, self._digest, outputs))
        self.published = step
        self._log.add_window(first, step, payload)
        if self.node is not None:
            self.node.step = step
            self.node.publish(SPIKES, payload, step=step)

    def publish_payload(self, payload: Payload) -> None:
        """Publish a payload on its own key, where users can subscribe to it too."""
        content = self.log_payload(payload)
        if self.node is not None:
            self.node.publish(self._setup.units.topic(self._setup.name), content, step=payload.step)

    def log_payload(self, payload: Payload) -> Any:
        """Add a payload to the replay log and return its content as it is published."""
        content = to_device(payload.content, "cpu")
        self._log.add_payload(payload.step, content, sum(map(_size_of, iter_leaves(content))))
        return content

    def publish_status(self, make: Callable[[], RegionStatus], force: bool = False) -> None:
        """Publish the status if the last one is long enough ago, or if `force` is set."""
        now = time.monotonic()
        if self.node is None or (not force and now - self._status_at < self._setup.silence_timeout / 5):
            return
        self._status_at = now
        self.node.step = self._shard.step
        self.node.publish(HEALTH, msgspec.to_builtins(make()), step=self._shard.step)

    def replay(self, message: Message) -> dict[str, Any]:
        """Answer a replay request; called by service threads."""
        try:
            step = int(message.value["from"])
        except (TypeError, KeyError, ValueError):
            raise InvalidArgument("from: expected a step") from None
        node = self.node
        return {**self._log.since(step), "incarnation": -1 if node is None else node.incarnation}

    def oldest(self) -> int | None:
        """Return the first step that can be replayed."""
        return self._log.oldest()


def _size_of(leaf: Any) -> int:
    if isinstance(leaf, bytes | str):
        return len(leaf)
    nbytes = getattr(leaf, "nbytes", None)
    return int(nbytes) if isinstance(nbytes, int) else 64
