"""State of one upstream region: the windows received from it, and its status: awaited, live or missing.

A state machine without I/O: methods take events and the time, and return the next action: continue, wait, request a
replay, or give up. It uses neither the network nor the engine.

**The rule.** A region waits for its upstream regions while they are live. A region is live if it sent a sign of life (a
window of spikes, or its status) within the last `silence_timeout`. Otherwise it is *missing* from the first step that
was not received: its spikes are absent, and no region waits for it. One sign of life makes it live again, and the
others wait until it has caught up. Joining, leaving, crashing, being stuck and rejoining all follow this rule.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from neuraxis.simulation.mesh.wire import RegionStatus, Window

__all__ = ["AWAITED", "LIVE", "MISSING", "Outage", "Upstream"]

AWAITED, LIVE, MISSING = "awaited", "live", "missing"
_REQUEST_AGAIN_S = 0.25
_MOST_OUT_OF_ORDER = 1000
_LONGEST_HOLD_S = 600.0
_IN_FLIGHT_S = 0.1  # windows and statuses arrive on different keys, in any order


@dataclass
class Outage:
    """The steps in which a region was missing, and why; `last` is None while it still is."""

    first: int
    why: str
    last: int | None = None


@dataclass
class Upstream:
    """One upstream region, whose spikes arrive with a delay of at least `lag` steps."""

    name: str
    lag: int
    silence_timeout: float
    state: str = AWAITED
    incarnation: int = 0
    received: int = 0  # everything up to this step was received
    published_step: int = 0  # last step that it reported as completed
    last_heartbeat: float = 0.0
    last_window: float = 0.0
    hold_until: float = 0.0
    left: bool = False
    left_at: float = 0.0
    hold_step: int = 0  # a hold lasts until a later step is reported
    requested_at: float = 0.0
    ready: deque[Window] = field(default_factory=deque)  # received in order, not yet written to the spike buffer
    out_of_order: dict[int, Window] = field(default_factory=dict)  # received while earlier windows are missing
    replay_pending: bool = False  # a replay was requested and has not arrived
    outages: list[Outage] = field(default_factory=list)
    recovered: int = 0  # steps received by a replay
    lost: int = 0  # steps that are no longer available
    late: int = 0  # steps received after they were needed

    # --- Events -------------------------------------------------------------------------------------------------

    def heartbeat(self, incarnation: int, now: float, step: int) -> bool:
        """Record a sign of life; return False if it is from an earlier incarnation."""
        if incarnation < self.incarnation:
            return False
        self.set_incarnation(incarnation)
        self.last_heartbeat = now
        if step > self.hold_step:
            self.hold_until = 0.0  # the slow operation is over
        self.published_step = max(self.published_step, step)
        return True

    def set_incarnation(self, incarnation: int) -> None:
        """Set the incarnation; reset what is known of an earlier one."""
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self.left = False
            self.published_step = self.hold_step = 0
            self.hold_until = 0.0
            self.out_of_order.clear()

    def status(self, status: RegionStatus, incarnation: int, now: float) -> bool:
        """Record a status; return False if it is from an earlier incarnation."""
        if not self.heartbeat(incarnation, now, status.step):
            return False
        self.hold_until = now + min(status.hold_s, _LONGEST_HOLD_S) if status.hold_s > 0 else 0.0
        self.hold_step = status.step
        if status.leaving:
            self.left, self.left_at = True, now
        return True

    def take(self, window: Window, now: float) -> bool:
        """Record a window; return False if windows before it are missing."""
        self.last_window = now
        if window.first > self.received + 1:
            if len(self.out_of_order) < _MOST_OUT_OF_ORDER:
                self.out_of_order[window.first] = window
            return False
        self._accept(window)
        while self.out_of_order and (first := min(self.out_of_order)) <= self.received + 1:
            self._accept(self.out_of_order.pop(first))
        return not self.out_of_order

    def _accept(self, window: Window) -> None:
        if window.last > self.received:
            self.ready.append(window)
            self.received = window.last

    def begin_at(self, step: int) -> None:
        """Continue after `step`: no earlier window is expected any more."""
        self.ready.clear()
        self.out_of_order.clear()
        self.received = self.published_step = step

    # --- Decisions ----------------------------------------------------------------------------------------------

    def blocks(self, step: int) -> bool:
        """Return True if a region that has completed `step` must wait for this one."""
        return self.state != MISSING and self.received < step + 1 - self.lag

    def why_missing(self, now: float, listening_since: float = 0.0) -> str:
        """Return why the region counts as missing, or ""; time before `listening_since` does not count."""
        if self.left and (self.received >= self.published_step or now - self.left_at > _IN_FLIGHT_S):
            return "left"
        if now < self.hold_until or now - max(self.last_heartbeat, listening_since) <= self.silence_timeout:
            return ""
        return "no sign of life"

    def needs_replay(self, step: int, now: float) -> bool:
        """Return True if a replay is needed of windows that were published and did not arrive."""
        behind = self.published_step > self.received and self.blocks(step)
        return behind and self.may_request(now) and now - self.last_window >= _IN_FLIGHT_S

    def may_request(self, now: float) -> bool:
        """Return True if the last replay request is long enough ago."""
        return not self.replay_pending and now - self.requested_at >= _REQUEST_AGAIN_S

    def mark_missing(self, why: str) -> Outage:
        """Mark the region as missing from the first step that was not received."""
        self.state = MISSING
        self.outages.append(Outage(self.received + 1, why))
        return self.outages[-1]

    def mark_live(self, step: int) -> Outage | None:
        """Mark the region as live and return the outage that this ends; `step` is the last one completed here."""
        was, self.state = self.state, LIVE
        if was != MISSING or not self.outages:
            return None
        outage = self.outages[-1]
        outage.last = max(outage.first - 1, step - self.lag, self.received)
        return outage
