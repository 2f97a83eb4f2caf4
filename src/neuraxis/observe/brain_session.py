"""Run a brain on a task, trial by trial: progress, checkpoints, and what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from neuraxis.brain.tasks import CueActionTask
from neuraxis.execution.progress import ProgressLine
from neuraxis.launch.interrupts import Interrupts

__all__ = ["WINDOW", "TaskRun", "run_task"]

WINDOW = 100  # trials over which accuracy is told
_LOOK_EVERY = 10  # trials between two looks at the workers


@dataclass(frozen=True)
class TaskRun:
    """What came of some trials. `interrupted`: Ctrl-C ended it early."""

    trials: int
    accuracy: float
    real_time_factor: float
    seconds: float
    interrupted: bool


def run_task(
    task: CueActionTask,
    trials: int,
    *,
    progress: bool | None = None,
    checkpoint: Path | None = None,
    checkpoint_every_s: float = 60.0,
) -> TaskRun:
    """Run until the task has had `trials` trials in all. Ctrl-C ends it after the present one.

    With `checkpoint`, the complete state is kept in that folder: now and then, and at the end, whatever ends it.
    """
    begun = saved = time.monotonic()
    interrupted = False
    load = ""
    with ProgressLine("learning", max(1, trials), progress) as line:
        line.update(len(task.trials), "")
        try:
            while len(task.trials) < trials:
                with Interrupts():  # a trial is whole or has not been
                    task.run_trial()
                if len(task.trials) % _LOOK_EVERY == 0:
                    load = _load(task)
                line.update(len(task.trials), _says(task, trials) + load)
                if checkpoint is not None and time.monotonic() - saved >= checkpoint_every_s:
                    task.brain.save_checkpoint(checkpoint, task.state())
                    saved = time.monotonic()
        except KeyboardInterrupt:
            interrupted = True
    if checkpoint is not None:
        task.brain.save_checkpoint(checkpoint, task.state())
    return TaskRun(
        trials=len(task.trials),
        accuracy=task.accuracy(WINDOW),
        real_time_factor=task.brain.real_time_factor,
        seconds=time.monotonic() - begun,
        interrupted=interrupted,
    )


def _says(task: CueActionTask, trials: int) -> str:
    """The progress line: trial, running accuracy, speed."""
    factor = task.brain.real_time_factor
    speed = f"{1 / factor:.1f} x real time" if factor else ""
    last = min(50, max(1, len(task.trials)))
    return f"trial {len(task.trials)}/{trials}, {task.accuracy(50):.0%} of {last} right, {speed}"


def _load(task: CueActionTask) -> str:
    """How busy each worker is, where there are several."""
    if task.brain.workers == 1:
        return ""
    status = task.brain.status()
    busy = "/".join(f"{100 * (1 - one.shares['waiting']):.0f}" for one in status)
    return f", busy {busy} %, {sum(one.memory_bytes for one in status) / 2**20:.0f} MB"
