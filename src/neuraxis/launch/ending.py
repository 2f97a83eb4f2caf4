"""When ranks are asked to end and when they are killed: a state machine without processes or clocks.

running --a rank failed--> settling --time, or nobody left--> terminating --grace is over--> killing

While settling, survivors of a failure may still say what happened to them: a rank that lost its peer notices
at once and raises an error of its own, which is worth more to the reader than a silent SIGTERM.
"""

from __future__ import annotations

from enum import Enum, auto

__all__ = ["Action", "Ending", "Phase"]

SETTLE_S = 1.5


class Phase(Enum):
    RUNNING = auto()
    SETTLING = auto()
    TERMINATING = auto()
    KILLING = auto()


class Action(Enum):
    """What the supervisor has to do to every rank now."""

    TERMINATE = auto()
    KILL = auto()


class Ending:
    """`now` is a monotonic time in seconds everywhere."""

    def __init__(self, grace_s: float, *, settle_s: float = SETTLE_S, timeout_at: float | None = None) -> None:
        self.phase = Phase.RUNNING
        self.timed_out = False
        self._grace_s = grace_s
        self._settle_s = settle_s
        self._deadline = timeout_at

    @property
    def deadline(self) -> float | None:
        """When `step` will have something to do, if nothing happens before."""
        return self._deadline

    @property
    def ranks_act_alone(self) -> bool:
        """Whether a rank that ends now does so of itself, not because the launcher told it to."""
        return self.phase in (Phase.RUNNING, Phase.SETTLING)

    def failed(self, now: float) -> None:
        """A rank failed of itself."""
        if self.phase is Phase.RUNNING:
            self.phase, self._deadline = Phase.SETTLING, now + self._settle_s

    def told(self, now: float) -> None:
        """Every rank was just told to end (a signal was forwarded)."""
        if self.ranks_act_alone:
            self.phase, self._deadline = Phase.TERMINATING, now + self._grace_s

    def leave(self, now: float, patience_s: float) -> None:
        """The ranks were asked, not by a signal, to end by themselves within `patience_s`."""
        if self.ranks_act_alone:
            self.phase, self._deadline = Phase.SETTLING, now + patience_s

    def hurry(self, now: float) -> None:
        """End the ranks now: ask them if they were not asked yet, kill them otherwise."""
        if self.phase is Phase.TERMINATING:
            self._deadline = now
        elif self.ranks_act_alone:
            self.phase, self._deadline = Phase.SETTLING, now

    def step(self, now: float, *, anyone_alive: bool) -> Action | None:
        due = self._deadline is not None and now >= self._deadline
        if self.phase is Phase.RUNNING and due:
            self.timed_out = True
            self.phase = Phase.SETTLING
        if self.phase is Phase.SETTLING and (due or not anyone_alive):
            self.phase, self._deadline = Phase.TERMINATING, now + self._grace_s
            return Action.TERMINATE
        if self.phase is Phase.TERMINATING and due:
            self.phase, self._deadline = Phase.KILLING, None
            return Action.KILL
        return None
