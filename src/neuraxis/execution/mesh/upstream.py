"""What a region knows of one that it hears: how far it has heard, whether it is still there, since when it is silence.

A state machine: what happens is told to it, with the time, and it says whether to go on, to wait, to ask again, or to
give up. It touches no network and no memory of the engine, and keeps its story.

**The rule.** While a region is live, whoever hears it waits for it. Live is who gave a sign of life within the last
`patience_s`: a window, or a word on how it is. Who gave none is *missing* from the first step that was not heard:
silence, and nobody waits. One sign, and it is live again, and waited for until it has caught up. So joining, leaving,
crashing, being stuck, and coming back are one rule.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from neuraxis.execution.mesh.wire import RegionStatus, Window

__all__ = ["AWAITED", "LIVE", "MISSING", "Silence", "Upstream"]

AWAITED, LIVE, MISSING = "awaited", "live", "missing"
_ASK_AGAIN_S = 0.25
_MOST_AHEAD = 1000
_LONGEST_HOLD_S = 600.0
_ON_ITS_WAY_S = 0.1  # windows and words on how a region is come by two ways


@dataclass
class Silence:
    """The steps in which a region was missing, and why; `last` None: it still is."""

    first: int
    why: str
    last: int | None = None


@dataclass
class Upstream:
    """One region that another one hears with a delay of at least `lag` steps."""

    name: str
    lag: int
    patience_s: float
    state: str = AWAITED
    incarnation: int = 0
    heard: int = 0  # everything up to this step is known
    said_step: int = 0  # the last step it said it had completed
    last_sign: float = 0.0
    last_window: float = 0.0
    hold_until: float = 0.0
    left: bool = False
    left_at: float = 0.0
    hold_step: int = 0  # a hold is not over while no later step was heard
    asked_at: float = 0.0
    early: deque[Window] = field(default_factory=deque)  # heard, and not yet put where they are needed
    ahead: dict[int, Window] = field(default_factory=dict)  # came while something before them is missing
    asking: bool = False  # what it says again is on its way
    silences: list[Silence] = field(default_factory=list)
    recovered: int = 0  # steps that came only when asked for again
    lost: int = 0  # steps that nobody has any more
    late: int = 0  # steps that came after they were needed

    # --- what happens -----------------------------------------------------------------------------------------

    def sign(self, incarnation: int, now: float, step: int) -> bool:
        """It is alive; False if this is from an earlier life of it."""
        if incarnation < self.incarnation:
            return False
        self.live_as(incarnation)
        self.last_sign = now
        if step > self.hold_step:
            self.hold_until = 0.0  # whatever it was that took so long is over
        self.said_step = max(self.said_step, step)
        return True

    def live_as(self, incarnation: int) -> None:
        """It speaks as this life of it, which may be a new one."""
        if incarnation != self.incarnation:
            self.incarnation = incarnation
            self.left = False
            self.said_step = self.hold_step = 0
            self.hold_until = 0.0
            self.ahead.clear()

    def status(self, status: RegionStatus, incarnation: int, now: float) -> bool:
        if not self.sign(incarnation, now, status.step):
            return False
        self.hold_until = now + min(status.hold_s, _LONGEST_HOLD_S) if status.hold_s > 0 else 0.0
        self.hold_step = status.step
        if status.leaving:
            self.left, self.left_at = True, now
        return True

    def take(self, window: Window, now: float) -> bool:
        """A window came: True if it goes on from what was heard, False if something before it is missing."""
        self.last_window = now
        if window.first > self.heard + 1:
            if len(self.ahead) < _MOST_AHEAD:
                self.ahead[window.first] = window
            return False
        self._go_on(window)
        while self.ahead and (first := min(self.ahead)) <= self.heard + 1:
            self._go_on(self.ahead.pop(first))
        return not self.ahead

    def _go_on(self, window: Window) -> None:
        if window.last > self.heard:
            self.early.append(window)
            self.heard = window.last

    def begin_at(self, step: int) -> None:
        """Everything up to `step` is known or will never be: it came, began again, or is silence."""
        self.early.clear()
        self.ahead.clear()
        self.heard = self.said_step = step

    # --- what to do -------------------------------------------------------------------------------------------

    def blocks(self, step: int) -> bool:
        """Whether a region that has completed `step` must wait for it."""
        return self.state != MISSING and self.heard < step + 1 - self.lag

    def is_gone(self, now: float, listening_since: float = 0.0) -> str:
        """Why it counts as missing; "" while it does not. Who was not listened to cannot have been heard."""
        if self.left and (self.heard >= self.said_step or now - self.left_at > _ON_ITS_WAY_S):
            return "left"
        if now < self.hold_until or now - max(self.last_sign, listening_since) <= self.patience_s:
            return ""
        return "said nothing"

    def should_ask(self, step: int, now: float) -> bool:
        """Whether to ask it for what it said and did not arrive."""
        behind = self.said_step > self.heard and self.blocks(step)
        return behind and self.may_ask(now) and now - self.last_window >= _ON_ITS_WAY_S

    def may_ask(self, now: float) -> bool:
        """Whether it was long enough ago that it was asked."""
        return not self.asking and now - self.asked_at >= _ASK_AGAIN_S

    def give_up(self, why: str) -> Silence:
        """It is missing from the first step that was not heard."""
        self.state = MISSING
        self.silences.append(Silence(self.heard + 1, why))
        return self.silences[-1]

    def welcome(self, step: int) -> Silence | None:
        """It is live; the silence that this ends. `step`: what the one who hears it has completed."""
        was, self.state = self.state, LIVE
        if was != MISSING or not self.silences:
            return None
        silence = self.silences[-1]
        silence.last = max(silence.first - 1, step - self.lag, self.heard)
        return silence
