"""What a region says: its spikes once a window, its data, and how it is; and what it said, for who missed it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from neuraxis.engine.outboxes import Outboxes
from neuraxis.engine.packing import pack_steps
from neuraxis.engine.shard import Shard
from neuraxis.errors import InvalidArgument
from neuraxis.execution.mesh.journal import Journal
from neuraxis.execution.mesh.setup import RegionSetup
from neuraxis.execution.mesh.wire import HEALTH, SPIKES, RegionStatus, Window, pack_window
from neuraxis.execution.resident import Letter
from neuraxis.execution.tensors import raised
from neuraxis.mesh.messages import Message
from neuraxis.mesh.node import Node

__all__ = ["Speaker"]


class Speaker:
    """Publishes for one region. `window`: the shortest delay of anybody who hears it."""

    def __init__(self, setup: RegionSetup, digest: int, shard: Shard, boxes: Outboxes, window: int) -> None:
        self.node: Node | None = None
        self.window = window
        self.published = 0  # the last step that was said
        self._setup = setup
        self._digest = digest
        self._shard = shard
        self._boxes = boxes
        self._populations = len(setup.network.populations)
        self._journal = Journal(setup.journal_bytes)
        self._said_at = 0.0

    def begin_at(self, step: int) -> None:
        """Say nothing of what was before."""
        self.published = step
        self._journal.begin_again(step)

    def publish(self, whole: bool = False, epoch_ns: int = 0) -> None:
        """Say what was emitted since the last window, if that makes a full one or the `whole` is wanted."""
        step, first = self._shard.step, self.published + 1
        if step < first or (not whole and step < self.published + self.window):
            return
        after, ids = pack_steps(self._boxes, self._shard.me, self._populations, first, step)
        payload = pack_window(Window(first, step, after, ids, epoch_ns, self._digest))
        self.published = step
        self._journal.add_window(first, step, payload)
        if self.node is not None:
            self.node.step = step
            self.node.publish(SPIKES, payload, step=step)

    def send(self, letter: Letter) -> None:
        """Data on their way to others: on a key of their own, where people can look at them."""
        content = self.remember(letter)
        if self.node is not None:
            self.node.publish(self._setup.units.topic(self._setup.name), content, step=letter.step)

    def remember(self, letter: Letter) -> Any:
        """Keep data for who misses them; what they are on the way."""
        content = raised(letter.content, "cpu")
        self._journal.add_letter(letter.step, content, _size_of(content))
        return content

    def say(self, make: Callable[[], RegionStatus], force: bool = False) -> None:
        """Tell how the region is, if it was a while ago that it was told, or `force`."""
        now = time.monotonic()
        if self.node is None or (not force and now - self._said_at < self._setup.patience_s / 5):
            return
        self._said_at = now
        self.node.step = self._shard.step
        self.node.publish(HEALTH, msgspec.to_builtins(make()), step=self._shard.step)

    def again(self, message: Message) -> dict[str, Any]:
        """Answer who missed something. Called by threads of a service; the journal has a lock."""
        try:
            step = int(message.value["from"])
        except (TypeError, KeyError, ValueError):
            raise InvalidArgument("from: a step is expected") from None
        node = self.node
        return {**self._journal.since(step), "incarnation": -1 if node is None else node.incarnation}

    def oldest(self) -> int | None:
        """The first step that could be said again."""
        return self._journal.oldest()


def _size_of(content: Any) -> int:
    if isinstance(content, np.ndarray):
        return int(content.nbytes)
    if isinstance(content, dict):
        return sum(_size_of(one) for one in content.values())
    if isinstance(content, list | tuple):
        return sum(_size_of(one) for one in content)
    if isinstance(content, bytes | str):
        return len(content)
    nbytes = getattr(content, "nbytes", None)
    return int(nbytes) if isinstance(nbytes, int) else 64
