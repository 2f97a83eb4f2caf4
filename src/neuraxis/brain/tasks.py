"""Tasks that a brain learns by reward.

In `CueActionTask`, each trial presents one of several cues, and the brain is rewarded if it chooses the right action.
The delayed form has a gap without input between cue and choice. A reversal gives every cue another right action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from neuraxis.arguments import not_negative, whole
from neuraxis.brain.brain import Brain
from neuraxis.brain.session import uniform
from neuraxis.deprecation import renamed_members
from neuraxis.errors import InvalidArgument
from neuraxis.network.grid import on_grid, to_steps

__all__ = ["CueActionTask", "Timing", "Trial"]

ERROR = "error"  # name of a sensor that gets the wrong action as input, if the brain has it


@dataclass(frozen=True)
class Timing:
    """Durations of the parts of a trial, in ms.

    Attributes
    ----------
    cue_ms : float
        Presentation of the cue before the choice.
    gap_ms : float
        Gap without input between cue and choice; 0: the cue stays until `outcome_ms` has passed.
    decision_ms : float
        Last part before the choice; its activity determines the choice.
    action_ms : float
        Time from choice to outcome.
    outcome_ms : float
        Time after the outcome in which the cue stays, if there is no gap.
    rest_ms : float
        Time without input before the next trial.

    Raises
    ------
    InvalidArgument
        A duration is negative, or `decision_ms` is longer than the part that it ends.

    Examples
    --------
    >>> Timing(gap_ms=1000.0).total_ms
    1680.0
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
            raise InvalidArgument(
                f"Timing.decision_ms={self.decision_ms:g}: must not be longer than the gap, or than the cue without one"
            )

    @property
    def total_ms(self) -> float:
        """Duration of a trial, in ms."""
        return self.cue_ms + self.gap_ms + self.action_ms + self.outcome_ms + self.rest_ms


@dataclass(frozen=True)
class Trial:
    """Result of one trial.

    Attributes
    ----------
    number : int
        Number of the trial, from 0.
    cue, right_action, action : int
        The cue, the action that is right for it, and the one that the brain chose; each from 0.
    reward : float
        The reward.
    surprise : float
        Reward prediction error: the reward minus the expected one.

    Examples
    --------
    >>> Trial(number=0, cue=2, right_action=1, action=1, reward=1.0, surprise=0.8).correct
    True
    """

    number: int
    cue: int
    right_action: int
    action: int
    reward: float
    surprise: float

    @property
    def correct(self) -> bool:
        """True if the brain chose the right action."""
        return self.action == self.right_action


@dataclass
@renamed_members(state="save")
class CueActionTask:
    """A task of successive trials: cue, choice, reward. The brain's seed determines cues and right actions.

    Parameters
    ----------
    brain : Brain
        A brain with one effector, and a sensor whose groups are the cues.
    delayed : bool
        Leave a gap of a second between cue and choice.
    reverse_at : int, optional
        Number of the trial from which on every cue has another right action.
    timing : Timing, optional
        Durations of the parts of a trial.
    sensor : str
        Name of the sensor that gets the cues.
    trials : list of Trial
        Results so far.

    Raises
    ------
    InvalidArgument
        The brain has no such sensor or not exactly one effector, or `timing` has no gap although `delayed` is set.

    Examples
    --------
    >>> from neuraxis.brain import Brain
    >>> with Brain.default(seed=1) as brain:
    ...     task = CueActionTask(brain, timing=Timing(cue_ms=150.0, action_ms=50.0, rest_ms=20.0))
    ...     trial = task.run_trial()
    >>> trial.number, len(task.trials), trial.cue in range(4)
    (0, 1, True)
    """

    brain: Brain
    delayed: bool = False
    reverse_at: int | None = None
    timing: Timing | None = None
    sensor: str = "cue"
    trials: list[Trial] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.delayed and self.timing is not None and not self.timing.gap_ms:
            raise InvalidArgument("delayed: the timing has no gap; use Timing(gap_ms=1000.0)")
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
        """Return the action that is rewarded for a cue in a trial.

        Parameters
        ----------
        cue : int
            Number of the cue.
        number : int
            Number of the trial, from 0; the rule is reversed from `reverse_at` on.

        Returns
        -------
        int
            Number of the action.
        """
        order = sorted(range(self.actions), key=lambda action: uniform(self.brain.spec.seed ^ 0xAC710, action))
        turned = self.reverse_at is not None and number >= self.reverse_at
        return order[(cue + turned) % self.actions]

    def run_trial(self) -> Trial:
        """Run one trial: present a cue, let the brain choose, reward a right choice.

        Returns
        -------
        Trial
            The result, which is also added to `trials`.
        """
        brain, timing, number = self.brain, self.times, len(self.trials)
        cue = int(uniform(brain.spec.seed ^ 0xC0E, number) * self.cues)
        shown = {self.sensor: np.eye(self.cues)[cue]}
        kept = None if timing.gap_ms else shown  # input around the choice
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
        """Return the input at the outcome; the sensor for errors, if there is one, gets the wrong action."""
        sensor = self.brain.spec.sensors.get(ERROR)
        if reward or sensor is None or sensor.groups != self.actions:
            return shown
        return {**(shown or {}), ERROR: np.eye(self.actions)[action]}

    def _forward(self, shown: Any, duration_ms: float) -> None:
        dt_ms = self.brain.spec.dt_ms
        steps = to_steps(on_grid(duration_ms, dt_ms, "duration_ms"), dt_ms, "duration_ms")
        if steps:
            self.brain.step(shown, steps)

    def accuracy(self, last: int = 100) -> float:
        """Return the share of right choices in the last trials.

        Parameters
        ----------
        last : int
            Number of trials that count, the newest ones.

        Returns
        -------
        float
            Share from 0 to 1; 0 before the first trial.
        """
        recent = self.trials[-whole(last, "last", 1) :]
        return sum(trial.correct for trial in recent) / len(recent) if recent else 0.0

    def save(self) -> dict[str, Any]:
        """Return the state of the task as JSON-like values, for `Brain.save`."""
        return {**self._settings(), "trials": [asdict(one) for one in self.trials]}

    def _settings(self) -> dict[str, Any]:
        return {"reverse_at": self.reverse_at, "timing": asdict(self.times), "sensor": self.sensor}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Parameters
        ----------
        state : mapping
            State from `save`.

        Raises
        ------
        InvalidArgument
            The state is that of a task with other settings.
        """
        for name, value in self._settings().items():
            if state.get(name) != value:
                was = state.get(name)
                raise InvalidArgument(
                    f"the state is that of another task: {name} was {was!r}, is {value!r}. Make the task as it was"
                )
        self.trials = [Trial(**one) for one in state["trials"]]
