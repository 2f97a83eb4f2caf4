"""The headline of a report claims no more than the accuracy of the last trials shows."""

from __future__ import annotations

import pytest

from neuraxis.brain import Brain
from neuraxis.brain.runs import TaskRun
from neuraxis.brain.tasks import CueActionTask
from neuraxis.report.brain.task_report import headline, task_report
from tests.brain.test_brain import small
from tests.brain.test_tasks import QUICK


@pytest.fixture(scope="module")
def task():
    with Brain(small().spec()) as brain:
        yield CueActionTask(brain, timing=QUICK)


@pytest.mark.parametrize(
    ("trials", "accuracy", "progress"),
    [
        (0, 0.0, "has not yet learned"),
        (300, 0.0, "has not yet learned"),
        (300, 0.3, "has not yet learned"),  # guessing gets 25 %
        (300, 0.5, "is learning"),
        (300, 0.95, "has learned"),
    ],
)
def test_the_headline_follows_the_accuracy(task, trials, accuracy, progress):
    run = TaskRun(trials, accuracy, 0.1, 1.0, False)
    assert headline(task, run, target=0.8) == f"The small brain {progress} to map 4 cues to 4 actions"


def test_a_report_has_the_headline_and_the_accuracy(task):
    run = TaskRun(300, 0.0, 0.1, 1.0, False)
    report = task_report(task, run)
    assert report.title == headline(task, run, None)
    assert "0% of the last 100 right" in report.subtitle
    assert report.title in report._repr_html_()
