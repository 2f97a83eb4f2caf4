"""Recorded spikes on their way from the device to the host, while the device runs on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.device import Device

__all__ = ["Drain"]

_FIRST_ROOM = 1 << 16


class Drain:
    """Two rooms on the device take turns: a launch fills one while the other is copied and taken apart.

    Args:
        most: spikes of a launch, at most.
    """

    def __init__(self, device: Device, most: int) -> None:
        self._device = device
        self._rooms = [device.outbound(8 * most) for _ in range(2)]
        self._turn = 0
        self._under_way = False
        self._n, self._room = 0, _FIRST_ROOM
        self._make_arrays()

    @property
    def address(self) -> int:
        """Where the next launch's spikes (step << 32 | id) are to be put, in any order."""
        return self._rooms[self._turn].memory.address

    def send(self, count: int) -> None:
        """So many are there now: have them sorted and copied to the host. The next launch may begin at once."""
        self.settle()
        room = self._rooms[self._turn]
        self._device.sort(room.memory, count)
        room.send(8 * count)
        self._under_way, self._turn = True, 1 - self._turn

    def settle(self) -> None:
        """Take apart what has come. Called while a launch runs, it costs no time."""
        if not self._under_way:
            return
        self._under_way = False
        came = self._rooms[1 - self._turn].wait().view(np.int64)
        end = self._n + len(came)
        if end > self._room:
            old_steps, old_ids = self._steps, self._ids
            self._room = max(end, 2 * self._room)
            self._make_arrays()
            self._steps[: self._n], self._ids[: self._n] = old_steps[: self._n], old_ids[: self._n]
        np.right_shift(came, 32, out=self._steps[self._n : end])
        np.bitwise_and(came, 0xFFFFFFFF, out=self._ids[self._n : end])
        self._n = end

    def take(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Steps and ids of all that was recorded since this was last called, in order."""
        self.settle()
        taken = self._steps[: self._n], self._ids[: self._n]
        self._n = 0
        self._make_arrays()
        return taken

    def _make_arrays(self) -> None:
        # Memory that is never written to takes no room in the machine's.
        self._steps, self._ids = np.empty(self._room, np.int64), np.empty(self._room, np.int64)
