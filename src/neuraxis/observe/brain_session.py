"""Run a brain on a task, trial by trial: progress, checkpoints, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from neuraxis.brain import Brain
from neuraxis.brain.tasks import CueActionTask
from neuraxis.execution.progress import ProgressLine
from neuraxis.launch.interrupts import Interrupts

__all__ = ["WINDOW", "TaskRun", "agreed_wishes", "run_task"]

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
    stop: Callable[[], bool] | None = None,
) -> TaskRun:
    """Run until the task has had `trials` trials in all. Ctrl-C ends it after the present one.

    With `checkpoint`, the complete state is kept in that folder: now and then, and at the end, whatever ends it.
    Where ranks run the brain together, all run the task, and `stop` says whether to end it: Ctrl-C would reach each
    of them at another time.
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
                is_asked, is_old = agreed_wishes(task.brain, stop, saved, checkpoint_every_s)
                if is_asked:
                    interrupted = True
                    break
                if checkpoint is not None and is_old:
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


def agreed_wishes(
    brain: Brain, stop: Callable[[], bool] | None, saved_at: float, save_every_s: float
) -> tuple[bool, bool]:
    """(Whether a user wants an end, whether the state is to be saved), the same on all ranks that run a brain together.

    Their clocks differ, and so does the time at which Ctrl-C reaches each of them.
    """

    def wishes() -> list[bool]:
        return [stop is not None and stop(), time.monotonic() - saved_at >= save_every_s]

    is_asked, is_old = brain.agree(wishes)
    return is_asked, is_old


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
