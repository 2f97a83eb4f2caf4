"""Steps by the wall clock, and how well a region keeps to them.

Every region of a brain counts steps from one moment, its *epoch*: the start of whichever was there first. The others
adopt it as they hear of it. Machines that share a brain need clocks that agree to well below the shortest delay
between them (NTP, PTP): what a clock is off is as if the way were so much longer.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["WallClock"]

_KEPT = 10_000


@dataclass
class WallClock:
    """When which step is due.

    Attributes:
        missed: windows that began later than a whole window after their time.
        skipped: steps left out to be on time again, where the region was further behind than `resync_s`.
    """

    dt_ms: float
    epoch_ns: int = 0
    resync_s: float = 1.0
    missed: int = 0
    windows: int = 0
    skipped: int = 0
    _lateness_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _margins_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def start(self, step: int = 0) -> None:
        """Count from here: `step` is now, until an earlier epoch is heard of."""
        if not self.epoch_ns:
            self.epoch_ns = time.time_ns() - round(step * self.dt_ms * 1e6)

    def now(self) -> float:
        """Seconds since the epoch of the brain."""
        return (time.time_ns() - self.epoch_ns) * 1e-9

    def step_now(self) -> int:
        return max(0, int(self.now() * 1000.0 / self.dt_ms))

    def time_of(self, step: int) -> float:
        return step * self.dt_ms * 1e-3

    def note(self, step: int, window: int) -> float:
        """A window that ends with `step` begins to be run; by how many seconds too late."""
        late = self.now() - self.time_of(step)
        self._lateness_s.append(late)
        self.windows += 1
        self.missed += late > window * self.dt_ms * 1e-3
        return late

    def note_arrival(self, needed: int) -> None:
        """A window came whose first spike is needed at step `needed`."""
        self._margins_s.append(self.time_of(needed) - self.now())

    def jitter_ms(self, percentile: float) -> float:
        """How late windows begin, in ms."""
        return float(np.percentile(self._lateness_s, percentile)) * 1e3 if self._lateness_s else 0.0

    def report(self) -> dict[str, Any]:
        """Figures for a person: lateness of windows, and how early (negative: late) those of others came."""
        margins = np.array(self._margins_s) * 1e3
        return {
            "windows": self.windows,
            "missed_deadlines": self.missed,
            "skipped_steps": self.skipped,
            "jitter_ms": {"p50": self.jitter_ms(50), "p99": self.jitter_ms(99), "max": self.jitter_ms(100)},
            "margin_ms": {
                "p50": float(np.percentile(margins, 50)) if len(margins) else None,
                "p1": float(np.percentile(margins, 1)) if len(margins) else None,
                "min": float(margins.min()) if len(margins) else None,
            },
        }
