from __future__ import annotations

import json
import math

import numpy as np
import pytest

from neuraxis.brain import Brain, BrainBuilder
from neuraxis.brain.runs import run_task
from neuraxis.brain.tasks import CueActionTask, Timing, Trial
from neuraxis.errors import InvalidArgument, InvalidType, NeuraxisError
from neuraxis.simulation import simulation
from tests.brain.test_brain import small

QUICK = Timing(cue_ms=20.0, decision_ms=10.0, action_ms=5.0, outcome_ms=2.0, rest_ms=3.0)


@pytest.fixture(scope="module")
def brain():
    with Brain(small().spec()) as brain:
        yield brain


# --- timing ---


def test_the_parts_of_a_trial_add_up():
    assert Timing().total_ms == 250 + 200 + 30 + 200
    assert Timing(gap_ms=1000.0).total_ms == Timing().total_ms + 1000
    assert QUICK.total_ms == 30


@pytest.mark.parametrize("name", ["cue_ms", "gap_ms", "decision_ms", "action_ms", "outcome_ms", "rest_ms"])
def test_a_time_is_a_number_and_not_negative(name):
    for wrong in (-1.0, math.nan, math.inf):
        with pytest.raises(InvalidArgument, match=rf"Timing\.{name}"):
            Timing(**{name: wrong})
    with pytest.raises(InvalidType, match=rf"Timing\.{name}"):
        Timing(**{name: "long"})


def test_a_decision_fits_into_the_time_before_the_choice():
    with pytest.raises(InvalidArgument, match=r"Timing\.decision_ms=150"):
        Timing(cue_ms=100.0)
    with pytest.raises(InvalidArgument, match=r"Timing\.decision_ms=150"):
        Timing(gap_ms=100.0)
    assert Timing(cue_ms=10.0, gap_ms=200.0).decision_ms == 150.0


# --- what is right ---


@pytest.mark.parametrize("seed", range(8))
def test_every_cue_has_an_action_of_its_own_and_another_one_after_the_reversal(brain, seed):
    class Seeded:
        spec = small(seed).spec()

    task = CueActionTask(Seeded(), reverse_at=5)
    before = [task.right_action(cue, 4) for cue in range(4)]
    after = [task.right_action(cue, 5) for cue in range(4)]
    assert sorted(before) == sorted(after) == [0, 1, 2, 3]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert [task.right_action(cue, 0) for cue in range(4)] == before
    assert [task.right_action(cue, 99) for cue in range(4)] == after
    never = CueActionTask(Seeded())
    assert [never.right_action(cue, 99) for cue in range(4)] == before


def test_other_seeds_have_other_right_actions():
    orders = set()
    for seed in range(40):

        class Seeded:
            spec = small(seed).spec()

        task = CueActionTask(Seeded())
        orders.add(tuple(task.right_action(cue, 0) for cue in range(4)))
    assert len(orders) > 12  # of 24


def test_a_task_needs_its_sensor_and_one_effector(brain):
    with pytest.raises(InvalidArgument, match="sensor='ear': the brain has cue"):
        CueActionTask(brain, sensor="ear")
    with pytest.raises(InvalidArgument, match="reverse_at"):
        CueActionTask(brain, reverse_at=-1)

    class Numb:
        spec = BrainBuilder("numb").sensor("cue", 4).region("t", "thalamus").spec()

    with pytest.raises(InvalidArgument, match="it has 0 effectors; the task needs one"):
        CueActionTask(Numb())
    with pytest.raises(InvalidArgument, match="gap"):
        CueActionTask(brain, delayed=True, timing=Timing())
    assert CueActionTask(brain, delayed=True).times.gap_ms == 1000.0


# --- a trial ---


class Recorded:
    """A brain that keeps what is done to it."""

    def __init__(self, brain):
        self._brain = brain
        self.spec = brain.spec
        self.calls = []

    def step(self, shown, steps):
        self.calls.append(("step", {name: list(values) for name, values in (shown or {}).items()}, steps))
        return self._brain.step(shown, steps)

    def select_action(self):
        action = self._brain.select_action()
        self.calls.append(("act", action))
        return action

    def deliver_reward(self, reward):
        self.calls.append(("reward", reward))
        return self._brain.deliver_reward(reward)


def test_a_trial_shows_the_cue_until_its_outcome(brain):
    watched = Recorded(brain)
    task = CueActionTask(watched, timing=QUICK)
    for number in range(6):
        watched.calls.clear()
        trial = task.run_trial()
        shown = {"cue": [float(cue == trial.cue) for cue in range(4)]}
        assert watched.calls == [
            ("step", shown, 100),
            ("step", shown, 100),
            ("act", trial.action),
            ("step", shown, 50),
            ("reward", trial.reward),
            ("step", shown, 20),
            ("step", {}, 30),
        ]
        assert trial.number == number
        assert trial.right_action == task.right_action(trial.cue, number)
        assert trial.reward == float(trial.correct) == float(trial.action == trial.right_action)
        assert trial.surprise == trial.reward - brain.last_choice.expected_reward
    assert len({trial.cue for trial in task.trials}) > 1


def test_a_delayed_trial_shows_nothing_when_it_comes_to_choose(brain):
    watched = Recorded(brain)
    timing = Timing(cue_ms=20.0, gap_ms=30.0, decision_ms=10.0, action_ms=5.0, outcome_ms=2.0, rest_ms=3.0)
    trial = CueActionTask(watched, delayed=True, timing=timing).run_trial()
    assert [call[1:] for call in watched.calls if call[0] == "step"] == [
        ({"cue": [float(cue == trial.cue) for cue in range(4)]}, 200),
        ({}, 200),
        ({}, 100),
        ({}, 50),
        ({}, 20),
        ({}, 30),
    ]
    assert [call[0] for call in watched.calls].index("act") == 3


def test_a_sensor_for_errors_sees_which_action_was_wrong():
    spec = small().sensor("error", 8, groups=4).spec()
    with Brain(spec) as brain:
        watched = Recorded(brain)
        task = CueActionTask(watched, timing=QUICK)
        seen = set()
        while len(seen) < 2 and len(task.trials) < 60:
            watched.calls.clear()
            trial = task.run_trial()
            seen.add(trial.correct)
            reported = [call[1].get("error") for call in watched.calls if call[0] == "step"]
            wrong = [float(action == trial.action) for action in range(4)]
            assert reported == [None, None, None, None if trial.correct else wrong, None]
        assert seen == {True, False}


# --- what came of it ---


def trials(*correct):
    return [Trial(number, 0, 1, 1 if right else 0, float(right), 0.0) for number, right in enumerate(correct)]


def test_accuracy_is_over_the_last_trials(brain):
    task = CueActionTask(brain)
    assert task.accuracy() == 0.0
    task.trials = trials(True, False, False, True)
    assert task.accuracy() == 0.5
    assert task.accuracy(1) == 1.0
    assert task.accuracy(3) == pytest.approx(1 / 3)
    for wrong in (0, -1, 1.5):
        with pytest.raises(NeuraxisError, match="last"):
            task.accuracy(wrong)


def test_the_state_of_a_task_can_be_kept(brain):
    task = CueActionTask(brain, reverse_at=3, timing=QUICK)
    task.trials = trials(True, False)
    kept = json.loads(json.dumps(task.save()))
    again = CueActionTask(brain, reverse_at=3, timing=QUICK)
    again.restore(kept)
    assert again.trials == task.trials
    for other in (
        CueActionTask(brain, timing=QUICK),
        CueActionTask(brain, reverse_at=4, timing=QUICK),
        CueActionTask(brain, reverse_at=3),
        CueActionTask(brain, reverse_at=3, delayed=True),
    ):
        with pytest.raises(InvalidArgument, match="another"):
            other.restore(kept)
        assert other.trials == []
    with pytest.raises(InvalidArgument):
        again.restore({})
    assert again.trials == task.trials


def test_a_session_runs_until_there_are_so_many_trials(brain, tmp_path, capsys):
    task = CueActionTask(brain, timing=QUICK)
    session = run_task(task, 3, progress=False, checkpoint=tmp_path / "state", checkpoint_every_s=0.0)
    assert (session.trials, len(task.trials), session.interrupted) == (3, 3, False)
    assert session.accuracy == task.accuracy()
    assert session.seconds > 0
    assert session.real_time_factor > 0
    fingerprint = brain.fingerprint()
    assert run_task(task, 3, progress=False).trials == 3  # there is nothing left to do
    assert brain.fingerprint() == fingerprint
    run_task(task, 5, progress=False)
    expected = brain.fingerprint()
    again = CueActionTask(brain, timing=QUICK)
    again.restore(brain.restore(tmp_path / "state"))
    assert brain.fingerprint() == fingerprint
    run_task(again, 5, progress=False)
    assert (brain.fingerprint(), again.trials) == (expected, task.trials)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")


# --- learning ---


def test_a_small_brain_learns_by_reward_and_not_without_its_striatum():
    """Chance is 25 %; of 40 trials at chance, 24 or more are right once in a million times."""
    timing = Timing(cue_ms=150.0, decision_ms=100.0, action_ms=60.0, outcome_ms=20.0, rest_ms=60.0)
    with Brain(small().spec()) as brain:
        task = CueActionTask(brain, timing=timing)
        run_task(task, 80, progress=False)
        assert task.accuracy(40) >= 0.6
        values = []
        for cue in range(4):
            brain.forward(np.eye(4)[cue], 2000)
            brain.select_action()
            values.append(int(np.argmax(brain.last_choice.values)))
            brain.run(100.0)
        assert sum(values[cue] == task.right_action(cue, 0) for cue in range(4)) >= 3
        brain.lesion("striatum")
        lesioned = CueActionTask(brain, timing=QUICK)
        lesioned.run_trial()
        for _ in range(60):
            lesioned.run_trial()
            assert brain.last_choice.values == (0.0, 0.0, 0.0, 0.0)
        # 15 of 60 are right at chance; 28 or more once in 5,000 times.
        assert lesioned.accuracy(60) < 28 / 60


def test_a_task_draws_one_line_and_a_long_run_its_own(monkeypatch):
    """Two lines at once would write over each other."""
    drawn = []

    class Line(simulation.ProgressLine):
        def __init__(self, what, total, enabled=None):
            drawn.append((what, enabled))
            super().__init__(what, total, False)

    monkeypatch.setattr(simulation, "ProgressLine", Line)
    with Brain(small().spec(), progress=True) as brain:
        run_task(CueActionTask(brain, timing=QUICK), 1, progress=False)
        assert [what for what, enabled in drawn if enabled] == ["building"]
        brain.run(1.0)
        assert [what for what, enabled in drawn if enabled] == ["building", "running"]
