"""A whole session: what the documentation says of the default brain. Minutes; run with --slow."""

from __future__ import annotations

import pytest

from neuraxis.brain import Brain
from neuraxis.brain.tasks import CueActionTask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def session(workers: int, trials: int, lesion: str = "", **task: object) -> tuple[float, str, list[tuple[int, float]]]:
    with Brain.default(seed=3, workers=workers) as brain:
        if lesion:
            brain.lesion(lesion)
        learned = CueActionTask(brain, **task)  # type: ignore[arg-type]
        for _ in range(trials):
            learned.run_trial()
        return learned.accuracy(100), brain.fingerprint(), [(one.action, one.reward) for one in learned.trials]


def test_it_learns_and_every_number_of_workers_gives_the_same() -> None:
    alone = session(1, 200)
    assert alone[0] >= 0.85
    assert session(2, 200) == alone
    assert session(3, 200) == alone
    assert session(5, 200) == alone


def test_it_learns_the_delayed_form_and_not_without_prefrontal_cortex() -> None:
    assert session(1, 200, delayed=True)[0] >= 0.7
    assert session(1, 120, "prefrontal", delayed=True)[0] < 0.4


def test_it_recovers_from_a_reversal_and_needs_its_striatum() -> None:
    assert session(1, 400, reverse_at=200)[0] >= 0.85
    assert session(1, 120, "striatum")[0] < 0.4
