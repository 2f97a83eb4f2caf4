"""How long kernels took: the times of their launches, kernel by kernel."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["KernelTimes", "Profile"]


@dataclass(frozen=True)
class KernelTimes:
    """The launches of one kernel, in milliseconds on the device."""

    count: int
    total_ms: float
    min_ms: float
    max_ms: float

    @property
    def mean_ms(self) -> float:
        return self.total_ms / self.count

    def with_launch(self, time_ms: float) -> KernelTimes:
        """The same with one launch more."""
        return KernelTimes(
            self.count + 1, self.total_ms + time_ms, min(self.min_ms, time_ms), max(self.max_ms, time_ms)
        )


class Profile:
    """The times of all kernels of a context; threads may add to it."""

    def __init__(self) -> None:
        self._times: dict[str, KernelTimes] = {}
        self._lock = threading.Lock()

    def add(self, kernel: str, time_ms: float) -> None:
        with self._lock:
            known = self._times.get(kernel)
            self._times[kernel] = known.with_launch(time_ms) if known else KernelTimes(1, time_ms, time_ms, time_ms)

    def times(self) -> dict[str, KernelTimes]:
        """By the kernel's name; the one that took most in all comes first."""
        with self._lock:
            return dict(sorted(self._times.items(), key=lambda item: -item[1].total_ms))
