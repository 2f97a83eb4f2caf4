"""Carry spikes between shards that share no memory, by an all-gather for each window of steps: the shortest delay."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from neuraxis.comm import Communicator
from neuraxis.engine.shard import Shard

__all__ = ["Exchange"]


class Exchange:
    """Fills this process's copies of the others' outboxes with what they sent.

    All ranks run as far as they can without news and then stop at the same step, so each call is one collective call.
    """

    def __init__(self, shard: Shard, communicator: Communicator) -> None:
        self._shard = shard
        self._communicator = communicator
        self._header = len(shard.network.populations) + 1
        self._known = 0  # the last step that was exchanged

    def __call__(self) -> None:
        """Exchange the spikes of the steps since the last time."""
        self._carry(self._known)

    def begin_at(self, step: int) -> None:
        """After a state was restored: exchange the spikes of the window before it."""
        self._carry(max(0, step - int(self._shard.lags.min())))

    def _carry(self, after: int) -> None:
        now, me = self._shard.step, self._shard.me
        mine = [self._box(me, step) for step in range(after + 1, now + 1)]
        packed = [box[: self._header + int(box[self._header - 1])] for box in mine]
        flat = np.concatenate([np.zeros(0, np.int32), *packed])
        sizes = np.empty(self._communicator.size, np.int64)
        self._communicator.all_gather_into_tensor(sizes, np.array([flat.size], np.int64))
        rows = np.zeros((self._communicator.size, max(1, int(sizes.max()))), np.int32)
        padded = np.zeros(rows.shape[1], np.int32)
        padded[: flat.size] = flat
        self._communicator.all_gather_into_tensor(rows.reshape(-1), padded)
        for other in range(self._communicator.size):
            if other != me:
                position = 0
                for step in range(after + 1, now + 1):
                    end = position + self._header + int(rows[other, position + self._header - 1])
                    self._box(other, step)[: end - position] = rows[other, position:end]
                    position = end
            ctypes.c_int64.from_address(int(self._shard.outboxes.done[other])).value = now
        self._known = now

    def _box(self, shard: int, step: int) -> NDArray[np.int32]:
        """The slot of a shard's outbox that holds a step."""
        return self._shard.outboxes.slot(shard, step)
