"""Complete sessions: the documented learning of the default brain."""

from __future__ import annotations

import pytest

from neuraxis.brain import Brain
from neuraxis.brain.tasks import CueActionTask

pytestmark = pytest.mark.timeout(600)


def session(workers: int, trials: int, lesion: str = "", **task: object) -> tuple[float, str, list[tuple[int, float]]]:
    with Brain.default(seed=3, workers=workers) as brain:
        if lesion:
            brain.lesion(lesion)
        learned = CueActionTask(brain, **task)  # type: ignore[arg-type]
        for _ in range(trials):
            learned.run_trial()
        return learned.accuracy(100), brain.fingerprint(), [(one.action, one.reward) for one in learned.trials]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_number_of_workers_learns_the_same() -> None:
    """`test_modes.py` compares short sessions; this one is 200 trials of each."""
    alone = session(1, 200)
    for workers in (2, 3, 5):
        assert session(workers, 200) == alone


def test_it_learns_the_delayed_form_and_not_without_prefrontal_cortex() -> None:
    assert session(1, 200, delayed=True)[0] >= 0.7
    assert session(1, 120, "prefrontal", delayed=True)[0] < 0.4


def test_it_learns_recovers_from_a_reversal_and_needs_its_striatum() -> None:
    with Brain.default(seed=3, workers=1) as brain:
        task = CueActionTask(brain, reverse_at=200)
        for _ in range(2):
            for _ in range(200):
                task.run_trial()
            assert task.accuracy(100) >= 0.85
    assert session(1, 120, "striatum")[0] < 0.4
