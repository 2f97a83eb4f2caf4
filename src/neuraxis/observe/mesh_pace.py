"""How often something comes: the messages of one key within the last seconds."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Pace"]


@dataclass
class Pace:
    """The messages of one key within a window of time.

    The rate is one over the mean interval while messages come; a silence counts as soon as it is longer than that, so a
    stream that has stopped slows down until the window is empty.
    """

    window_s: float
    _messages: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, time: float, size: int) -> None:
        self._messages.append((time, size))

    def at(self, now: float) -> dict[str, float | int | None]:
        """What there is to say at a time: rate, intervals in ms (None where there are fewer than two messages)."""
        messages = self._messages
        while messages and messages[0][0] < now - self.window_s:
            messages.popleft()
        times = [time for time, _ in messages]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        size = sum(size for _, size in messages)
        told: dict[str, float | int | None] = {"messages": len(messages)}
        if not gaps:
            told |= {"rate_hz": len(messages) / self.window_s, "bytes_per_s": size / self.window_s}
            return told | dict.fromkeys(("mean_ms", "min_ms", "max_ms", "std_ms"))
        mean = sum(gaps) / len(gaps)
        # Messages that came at the same reading of the clock have no rate; a microsecond is what can be told apart.
        span = max(times[-1] - times[0], now - mean - times[0], 1e-6)
        rate = len(gaps) / span
        told |= {"rate_hz": rate, "bytes_per_s": rate * size / len(messages)}
        deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
        return told | {
            "mean_ms": 1e3 * mean,
            "min_ms": 1e3 * min(gaps),
            "max_ms": 1e3 * max(gaps),
            "std_ms": 1e3 * deviation,
        }
