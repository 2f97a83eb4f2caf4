"""Steps by the wall clock, the epoch that regions agree on, and figures on lateness.

All regions of a brain count steps from one *epoch*: the start of the region that began first. The others adopt it when
they receive it. The clocks of the machines must agree to well below the shortest delay between regions (NTP, PTP): a
clock offset acts like additional latency.

An epoch moves a region to another step, so `SharedEpoch` validates it first. A neighbour sends its epoch and its step,
from which its clock follows; if that differs by more than `CLOCKS_AGREE_S`, the epoch is refused. An epoch that is
earlier by more than `SMALL_S`, at once or in small moves, needs a majority of the neighbours. Refusals are logged.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuraxis.mesh.limits import INTERVAL_S, Refusals

__all__ = ["CLOCKS_AGREE_S", "SMALL_S", "SharedEpoch", "WallClock"]

CLOCKS_AGREE_S = 10.0  # larger than the lag of a busy region, about a second
SMALL_S = 60.0  # covers regions started one after the other
_FARTHEST_S = 24 * 3600.0
_REPORTED_S = 1.0
_KEPT = 10_000
_log = logging.getLogger("neuraxis.region")


@dataclass
class WallClock:
    """Maps steps to wall-clock time.

    Attributes
    ----------
    dt_ms : float
        Length of a step.
    epoch_ns : int
        Wall-clock time of step 0 in ns since 1970; 0 before `start`.
    resync_s : float
        Skip steps when further behind than this.
    missed : int
        Windows that began more than a window too late.
    windows : int
        Windows run.
    skipped : int
        Steps skipped to be on time again.
    """

    dt_ms: float
    epoch_ns: int = 0
    resync_s: float = 1.0
    missed: int = 0
    windows: int = 0
    skipped: int = 0
    _offset_ns: int = 0  # wall clock minus monotonic clock
    _lateness_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _margins_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def start(self, step: int = 0) -> None:
        """Start the clock with `step` at the present time; a received earlier epoch may replace this."""
        if not self.epoch_ns:
            self.epoch_ns = time.time_ns() - round(step * self.dt_ms * 1e6)
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def follow_setting(self) -> float:
        """Keep the present step if this machine's clock was set; return by how many seconds it moved."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        moved_ns = offset_ns - self._offset_ns
        if not self._offset_ns or abs(moved_ns) < CLOCKS_AGREE_S * 1e9:
            return 0.0
        self._offset_ns = offset_ns
        self.epoch_ns += moved_ns
        return moved_ns * 1e-9

    def now(self) -> float:
        """Return the seconds since the epoch."""
        return (time.time_ns() - self.epoch_ns) * 1e-9

    def step_now(self) -> int:
        return max(0, int(self.now() * 1000.0 / self.dt_ms))

    def time_of(self, step: int) -> float:
        return step * self.dt_ms * 1e-3

    def record_start(self, step: int, window: int) -> float:
        """Record that the window ending with `step` starts now; return how many seconds late."""
        late = self.now() - self.time_of(step)
        self._lateness_s.append(late)
        self.windows += 1
        self.missed += late > window * self.dt_ms * 1e-3
        return late

    def record_arrival(self, needed: int) -> None:
        """Record that a window arrived whose first spike is needed at step `needed`."""
        self._margins_s.append(self.time_of(needed) - self.now())

    def jitter_ms(self, percentile: float) -> float:
        """Return a percentile of the lateness of windows in ms."""
        return float(np.percentile(self._lateness_s, percentile)) * 1e3 if self._lateness_s else 0.0

    def report(self) -> dict[str, Any]:
        """Return figures: lateness of windows, and how early (negative: late) windows of others arrived."""
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


@dataclass
class SharedEpoch:
    """Agreement on the epoch of a brain: a state machine without I/O except the log.

    Attributes
    ----------
    region : str
        The region of this clock.
    received : dict
        By neighbour, the last epoch received, if its clock agrees with this machine's.
    adopted : int
        Number of times the epoch of a neighbour was adopted.
    """

    region: str
    clock: WallClock
    received: dict[str, int] = field(default_factory=dict)
    adopted: int = 0
    refusals: Refusals = field(init=False)
    _began_ns: int = field(init=False, default=0)  # own epoch, before any was adopted
    _anchor_ns: int = field(init=False, default=0)  # that, or the last epoch with a majority
    _set_ns: int = field(init=False, default=0)  # epoch of the clock at the last check
    _next_report: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.refusals = Refusals(_log, self.region)

    def _follow_clock(self) -> None:
        """Take the clock's epoch as the anchor if the clock was started or set since the last check."""
        if self.clock.epoch_ns != self._set_ns:
            self._began_ns = self._anchor_ns = self._set_ns = self.clock.epoch_ns

    def receive(self, name: str, epoch_ns: int, step: int, now_ns: int | None = None) -> bool:
        """Handle the epoch and the step of a neighbour; return whether its epoch was adopted.

        Without a majority the epoch stays within `SMALL_S` of the anchor, so one neighbour cannot move it further, in
        however many moves.

        Parameters
        ----------
        name : str
            The neighbour.
        epoch_ns : int
            Time of its step 0 in ns since 1970, by its clock; 0 if it has none.
        step : int
            Its last completed step.
        now_ns : int, optional
            Time on this machine.
        """
        clock, now_ns = self.clock, time.time_ns() if now_ns is None else now_ns
        self._follow_clock()
        if epoch_ns <= 0 or epoch_ns == clock.epoch_ns:
            if epoch_ns:
                self.received[name] = epoch_ns
            return False
        behind_s = (now_ns - epoch_ns) * 1e-9 - clock.time_of(step)
        if abs(behind_s) > CLOCKS_AGREE_S:
            self.received.pop(name, None)
            self.refusals.add(
                f"the time of {name!r}, whose clock does not agree with this machine's",
                f"its clock is {abs(behind_s):,.0f} s {'behind' if behind_s > 0 else 'ahead'}. Synchronize the "
                "clocks of both machines (NTP)",
            )
            return False
        self.received[name] = epoch_ns
        earlier_s = (clock.epoch_ns - epoch_ns) * 1e-9
        if earlier_s <= 0:
            return False  # the neighbour adopts ours
        supporters = sum(one == epoch_ns for one in self.received.values())
        shares_ours = sum(
            one != epoch_ns and abs(self._anchor_ns - one) * 1e-9 <= SMALL_S for one in self.received.values()
        )
        is_far = (self._anchor_ns - epoch_ns) * 1e-9 > SMALL_S
        too_far = (self._began_ns - epoch_ns) * 1e-9 > _FARTHEST_S
        if too_far or (is_far and supporters <= shares_ours):
            self.refusals.add(
                f"the start of the brain from {name!r}",
                f"it is {earlier_s:,.0f} s before the one in use; {supporters} neighbours report it, {shares_ours} the "
                "one in use. Restart that region",
            )
            return False
        clock.epoch_ns = self._set_ns = epoch_ns
        if is_far:
            self._anchor_ns = epoch_ns
        self.adopted += 1
        if earlier_s > _REPORTED_S and time.monotonic() >= self._next_report:
            self._next_report = time.monotonic() + INTERVAL_S
            _log.warning(
                "%s: moves by %.1f s to step %d, because the brain of %s began earlier",
                self.region, earlier_s, clock.step_now(), name,
            )  # fmt: skip
        return True

    def forget(self, name: str) -> None:
        """Drop the epoch of a neighbour that left."""
        self.received.pop(name, None)
