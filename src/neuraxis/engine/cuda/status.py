"""What a launch tells the host, in one array: so one reading of the device's memory is enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.device import Device
from neuraxis.engine.cuda.words import word

__all__ = ["Status", "Told"]


@dataclass(frozen=True)
class Told:
    totals: NDArray[np.int64]
    ticks: NDArray[np.int64]
    lost: bool  # a block waited in vain for another
    spikes: NDArray[np.int64]  # of each population that has neurons here

    def total(self, name: str) -> int:
        return int(self.totals[word(f"TOTAL_{name}")])


class Status:
    """It is all zero when a kernel starts that adds to it."""

    def __init__(self, device: Device, blocks: int, parts: int) -> None:
        self._device = device
        self._blocks, self._parts = blocks, parts
        sizes = {
            "TOTALS": word("TOTAL_WORDS"),
            "TICKS": word("TICKS_WORDS"),
            "LOST": 1,
            "POPULATION_SPIKES": blocks * max(1, parts),
        }
        ends = np.cumsum([0, *sizes.values()])
        self._cuts = ends[1:-1]
        self._words = int(ends[-1])
        self._memory = device.zeros(8 * self._words)
        self.addresses = {
            name: self._memory.address + 8 * int(first) for name, first in zip(sizes, ends[:-1], strict=True)
        }

    def address_of(self, total: str) -> int:
        """Where one of the totals is."""
        return self.addresses["TOTALS"] + 8 * word(f"TOTAL_{total}")

    def take(self) -> Told:
        """Wait for what was launched, and what it says; zero again for the next."""
        words = self._device.read(self._memory, np.int64, self._words)
        self._device.clear(self._memory)
        totals, ticks, lost, spikes = np.split(words, self._cuts)
        return Told(totals, ticks, bool(lost[0]), spikes.reshape(self._blocks, -1).sum(axis=0)[: self._parts])
