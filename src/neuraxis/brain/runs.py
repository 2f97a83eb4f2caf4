"""Complete runs of a brain: on a task, on a stimulus, or with regions that follow the wall clock.

`learn` and `play` show progress, save checkpoints, stop on Ctrl-C and return their result as plain data, for
`neuraxis run` and for sweeps. `run_by_wall_clock` starts the regions as nodes that no driver keeps in step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuraxis.brain.brain import Brain
from neuraxis.brain.stimulus_file import StimulusFile
from neuraxis.brain.tasks import CueActionTask
from neuraxis.mesh.topology import Topology
from neuraxis.network.grid import to_steps, whole_steps
from neuraxis.process.signals import Interrupts
from neuraxis.progress import ProgressLine, run_text
from neuraxis.simulation.mesh.executor import RegionTeam
from neuraxis.simulation.mesh.setup import RegionSetup

__all__ = ["ACCURACY_WINDOW", "TaskRun", "learn", "play", "region_rates", "run_by_wall_clock", "run_task"]

ACCURACY_WINDOW = 100  # number of last trials that the accuracy of a run is about

_CHUNK_MS = 100.0  # of a stimulus, between two checks for Ctrl-C
_SAVE_EVERY_S = 60.0
_STATUS_EVERY = 10  # trials between two requests for the load of the workers
_START_TIMEOUT_S = 300.0
_START_DELAY_S = 0.2  # from the start command to step 0, so that no region misses it


@dataclass(frozen=True)
class TaskRun:
    """Result of the trials of a task.

    Attributes
    ----------
    trials : int
        Number of trials of the task so far.
    accuracy : float
        Share of right choices in the last `ACCURACY_WINDOW` trials, from 0 to 1.
    real_time_factor : float
        Wall-clock time per model time.
    seconds : float
        Wall-clock time of the run, in s.
    interrupted : bool
        True if Ctrl-C ended the run early.
    """

    trials: int
    accuracy: float
    real_time_factor: float
    seconds: float
    interrupted: bool


def learn(
    brain: Brain,
    name: str,
    trials: int,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    report: Callable[[CueActionTask, TaskRun], None] | None = None,
    progress: bool | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Run a brain on the task `name`; return its result as plain data, and True if Ctrl-C ended it early.

    Parameters
    ----------
    brain : Brain
        The brain.
    name : {"cue-action", "delayed", "reversal"}
        The task.
    trials : int
        Total number of trials.
    checkpoint : Path, optional
        Folder to save the state in.
    resume : bool
        Continue from the state in that folder.
    report : callable, optional
        Called with the task and its result when the run has ended; on all ranks, where ranks run the brain together.
    progress, stop
        See `run_task`.
    """
    task = CueActionTask(brain, delayed=name == "delayed", reverse_at=trials // 2 if name == "reversal" else None)
    if resume and checkpoint is not None:
        task.restore(brain.restore(checkpoint))
    run = run_task(task, trials, checkpoint=checkpoint, progress=progress, stop=stop)
    if report is not None:
        report(task, run)
    result = {
        "task": name,
        "trials": run.trials,
        "accuracy": run.accuracy,
        "real_time_factor": run.real_time_factor,
        **_common(brain),
    }
    return result, run.interrupted


def play(
    brain: Brain,
    stimulus: StimulusFile,
    time_ms: float,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Run a brain for `time_ms` with a stimulus; options and result are those of `learn`."""
    dt_ms = brain.spec.dt_ms
    at = 0
    if resume and checkpoint is not None:
        at = int(brain.restore(checkpoint).get("played", 0))
    until = whole_steps(time_ms, dt_ms, "--time-ms")
    interrupted, chunk, started = False, max(1, to_steps(_CHUNK_MS, dt_ms, "time")), at
    begun = saved = time.monotonic()
    with ProgressLine("running", max(1, until), progress) as line:
        try:
            while at < until:
                with Interrupts():
                    stimulus.play(brain, at, min(until, at + chunk))
                    at = min(until, at + chunk)
                is_stopped, is_due = _agree_to_stop_or_save(brain, stop, saved, _SAVE_EVERY_S)
                if is_stopped:
                    interrupted = True
                    break
                if checkpoint is not None and is_due:
                    brain.save(checkpoint, {"played": at})
                    saved = time.monotonic()
                line.update(at, run_text(at * dt_ms, (at - started) * dt_ms * 1e-3, time.monotonic() - begun, 0))
        except KeyboardInterrupt:
            interrupted = True
    if checkpoint is not None:
        brain.save(checkpoint, {"played": at})
    result = {"real_time_factor": brain.real_time_factor, "rates_hz": region_rates(brain), **_common(brain)}
    return result, interrupted


def run_task(
    task: CueActionTask,
    trials: int,
    *,
    progress: bool | None = None,
    checkpoint: Path | None = None,
    checkpoint_every_s: float = 60.0,
    stop: Callable[[], bool] | None = None,
) -> TaskRun:
    """Run a task until it has had `trials` trials in total; Ctrl-C ends it after the current one.

    Parameters
    ----------
    task : CueActionTask
        The task.
    trials : int
        Total number of trials.
    progress : bool, optional
        Show a progress bar; None: only on a terminal.
    checkpoint : Path, optional
        Folder to save the complete state in, every `checkpoint_every_s` seconds and at the end.
    stop : callable, optional
        Returns True to end the run. Used where ranks run the brain together: Ctrl-C reaches them at different times.
    """
    begun = saved = time.monotonic()
    interrupted = False
    load = ""
    with ProgressLine("learning", max(1, trials), progress) as line:
        line.update(len(task.trials), "")
        try:
            while len(task.trials) < trials:
                with Interrupts():  # a trial is complete or has not begun
                    task.run_trial()
                if len(task.trials) % _STATUS_EVERY == 0:
                    load = _load_text(task)
                line.update(len(task.trials), _progress_text(task, trials) + load)
                is_stopped, is_due = _agree_to_stop_or_save(task.brain, stop, saved, checkpoint_every_s)
                if is_stopped:
                    interrupted = True
                    break
                if checkpoint is not None and is_due:
                    task.brain.save(checkpoint, task.save())
                    saved = time.monotonic()
        except KeyboardInterrupt:
            interrupted = True
    if checkpoint is not None:
        task.brain.save(checkpoint, task.save())
    return TaskRun(
        trials=len(task.trials),
        accuracy=task.accuracy(ACCURACY_WINDOW),
        real_time_factor=task.brain.real_time_factor,
        seconds=time.monotonic() - begun,
        interrupted=interrupted,
    )


def run_by_wall_clock(
    setups: dict[str, RegionSetup],
    steps: int,
    dt_ms: float,
    topology: Topology | None = None,
    remote: Collection[str] = (),
) -> tuple[dict[str, Any], bool]:
    """Run regions as nodes that follow the wall clock; return the report of each, and True if Ctrl-C ended it early.

    Remote regions that run already have a clock, which all follow; they continue after this run.
    """
    interrupted = False
    with RegionTeam(setups, topology=topology, remote=remote) as team:
        team.wait(_START_TIMEOUT_S)
        now_ns = time.time_ns() + int(_START_DELAY_S * 1e9)
        epoch_ns = min([now_ns, *team.epochs_ns()])
        until = steps + int((now_ns - epoch_ns) * 1e-6 / dt_ms)
        team.ask("start", until, epoch_ns)
        end_s = until * dt_ms * 1e-3
        begun_s = (now_ns - epoch_ns) * 1e-9
        with ProgressLine("running", end_s - begun_s) as line:
            try:
                while (now := (time.time_ns() - epoch_ns) * 1e-9) < end_s + 0.1:
                    lost = "".join(f", {name} is gone" for name in team.names if not team.is_live(name))
                    line.update(max(0.0, now - begun_s), f"{len(team.names)} regions by the wall clock{lost}")
                    time.sleep(0.1)
            except KeyboardInterrupt:
                interrupted = True
        reports = team.ask("statistics")
    return reports, interrupted


def region_rates(brain: Brain) -> dict[str, float]:
    """Return the mean rate of each region, sensor and effector since the start, in Hz."""
    return {name: region.rate_hz for name, region in brain.diagnostics().regions.items()}


def _agree_to_stop_or_save(
    brain: Brain, stop: Callable[[], bool] | None, saved_at: float, save_every_s: float
) -> tuple[bool, bool]:
    """Return (stop requested, checkpoint due), the same on all ranks that run a brain together.

    Their clocks differ, and Ctrl-C reaches them at different times.
    """

    def local() -> list[bool]:
        return [stop is not None and stop(), time.monotonic() - saved_at >= save_every_s]

    is_stopped, is_due = brain.agree(local)
    return is_stopped, is_due


def _progress_text(task: CueActionTask, trials: int) -> str:
    factor = task.brain.real_time_factor
    speed = f"{1 / factor:.1f} x real time" if factor else ""
    last = min(50, max(1, len(task.trials)))
    return f"trial {len(task.trials)}/{trials}, {task.accuracy(50):.0%} of {last} right, {speed}"


def _load_text(task: CueActionTask) -> str:
    """Return the load and memory of the workers; "" for a single one."""
    if task.brain.workers == 1:
        return ""
    status = task.brain.status()
    busy = "/".join(f"{100 * (1 - one.shares['waiting']):.0f}" for one in status)
    return f", busy {busy} %, {sum(one.memory_bytes for one in status) / 2**20:.0f} MB"


def _common(brain: Brain) -> dict[str, Any]:
    return {
        "time_ms": brain.time_ms,
        "neurons": brain.neuron_count,
        "workers": brain.workers,
        "device": brain.device,
        "seed": brain.spec.seed,
        "fingerprint": brain.fingerprint(),
    }
