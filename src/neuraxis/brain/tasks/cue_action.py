"""Cue to action: one of several cues is shown, one of several actions is right for it, and a right one is rewarded.

The delayed form has a gap between the cue and the choice, in which nothing is shown. A reversal gives every cue
another right action, in the middle of a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from neuraxis.brain.brain import Brain
from neuraxis.brain.choice import uniform
from neuraxis.errors import InvalidArgument
from neuraxis.network.arguments import not_negative, whole
from neuraxis.network.grid import to_steps

__all__ = ["CueActionTask", "Timing", "Trial"]

ERROR = "error"  # a sensor of this name is told of wrong actions


@dataclass(frozen=True)
class Timing:
    """The parts of a trial, in ms.

    Attributes:
        cue_ms: how long the cue is shown before the choice.
        gap_ms: between the cue and the choice; 0: the cue stays.
        decision_ms: the last part of what comes before the choice, in which the choice is made.
        action_ms: between the choice and its outcome; without a gap the cue stays.
        outcome_ms: how long the cue stays after the outcome, without a gap.
        rest_ms: from there to the next cue.
    """

    cue_ms: float = 250.0
    gap_ms: float = 0.0
    decision_ms: float = 150.0
    action_ms: float = 200.0
    outcome_ms: float = 30.0
    rest_ms: float = 200.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            not_negative(value, f"Timing.{name}")
        if self.decision_ms > (self.gap_ms or self.cue_ms):
            raise InvalidArgument(f"Timing.decision_ms={self.decision_ms:g}: longer than what comes before the choice")

    @property
    def total_ms(self) -> float:
        return self.cue_ms + self.gap_ms + self.action_ms + self.outcome_ms + self.rest_ms


@dataclass(frozen=True)
class Trial:
    """What happened in one trial."""

    number: int
    cue: int
    right_action: int
    action: int
    reward: float
    surprise: float  # the reward less what was expected

    @property
    def correct(self) -> bool:
        return self.action == self.right_action


@dataclass
class CueActionTask:
    """Trials, one after the other. Which cue comes, and which action is right for it, follows from the brain's seed.

    Args:
        delayed: whether there is a gap of a second between cue and choice.
        reverse_at: the number of the trial from which on every cue has another right action; None: never.
    """

    brain: Brain
    delayed: bool = False
    reverse_at: int | None = None
    timing: Timing | None = None
    sensor: str = "cue"
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.delayed and self.timing is not None and not self.timing.gap_ms:
            raise InvalidArgument("delayed: the timing has no gap; say Timing(gap_ms=1000.0)")
        self.times = self.timing or (Timing(gap_ms=1000.0) if self.delayed else Timing())
        if self.reverse_at is not None:
            whole(self.reverse_at, "reverse_at", 0)
        if self.sensor not in self.brain.spec.sensors:
            raise InvalidArgument(
                f"sensor={self.sensor!r}: the brain has {', '.join(self.brain.spec.sensors) or 'none'}"
            )
        self.cues = self.brain.spec.sensors[self.sensor].groups
        if len(self.brain.spec.effectors) != 1:
            raise InvalidArgument(f"brain: it has {len(self.brain.spec.effectors)} effectors; the task needs one")
        self.actions = next(iter(self.brain.spec.effectors.values())).actions

    def right_action(self, cue: int, number: int) -> int:
        """The action that is rewarded for a cue in a trial."""
        order = sorted(range(self.actions), key=lambda action: uniform(self.brain.spec.seed ^ 0xAC710, action))
        turned = self.reverse_at is not None and number >= self.reverse_at
        return order[(cue + turned) % self.actions]

    def run_trial(self) -> Trial:
        """Show a cue, let the brain choose, and reward it if it is right."""
        brain, timing, number = self.brain, self.times, len(self.trials)
        cue = int(uniform(brain.spec.seed ^ 0xC0E, number) * self.cues)
        shown = {self.sensor: np.eye(self.cues)[cue]}
        kept = None if timing.gap_ms else shown  # what is seen around the choice
        if timing.gap_ms:
            self._forward(shown, timing.cue_ms)
            self._forward(None, timing.gap_ms - timing.decision_ms)
        else:
            self._forward(shown, timing.cue_ms - timing.decision_ms)
        self._forward(kept, timing.decision_ms)
        action = brain.select_action()
        self._forward(kept, timing.action_ms)
        right = self.right_action(cue, number)
        reward = float(action == right)
        surprise = brain.deliver_reward(reward)
        self._forward(self._with_error(kept, action, reward), timing.outcome_ms)
        self._forward(None, timing.rest_ms)
        trial = Trial(number, cue, right, action, reward, surprise)
        self.trials.append(trial)
        return trial

    def _with_error(self, shown: dict[str, Any] | None, action: int, reward: float) -> dict[str, Any] | None:
        """What is shown at the outcome: a brain with a sensor for errors sees which action was wrong."""
        sensor = self.brain.spec.sensors.get(ERROR)
        if reward or sensor is None or sensor.groups != self.actions:
            return shown
        return {**(shown or {}), ERROR: np.eye(self.actions)[action]}

    def _forward(self, shown: Any, duration_ms: float) -> None:
        steps = to_steps(duration_ms, self.brain.spec.dt_ms, "duration_ms")
        if steps:
            self.brain.step(shown, steps)

    def accuracy(self, last: int = 100) -> float:
        """The share of right choices in the last trials; 0 before the first."""
        recent = self.trials[-whole(last, "last", 1) :]
        return sum(trial.correct for trial in recent) / len(recent) if recent else 0.0

    def state(self) -> dict[str, Any]:
        """What `Brain.save_checkpoint` can keep."""
        return {**self._form(), "trials": [asdict(one) for one in self.trials]}

    def _form(self) -> dict[str, Any]:
        return {"reverse_at": self.reverse_at, "timing": asdict(self.times), "sensor": self.sensor}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that was kept; it must be that of a task of the same form."""
        for name, value in self._form().items():
            if state.get(name) != value:
                was = state.get(name)
                raise InvalidArgument(f"the state is that of another task: {name} was {was!r}, is {value!r}")
        self.trials = [Trial(**one) for one in state["trials"]]
