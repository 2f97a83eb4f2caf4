"""One run of a brain, on a task or a stimulus, and what came of it as plain data."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuraxis.brain import Brain
from neuraxis.brain.stimulus_file import StimulusFile
from neuraxis.brain.tasks import CueActionTask
from neuraxis.execution.progress import ProgressLine, run_text
from neuraxis.launch.interrupts import Interrupts
from neuraxis.network.grid import to_steps
from neuraxis.observe.brain_session import agreed_wishes, run_task

__all__ = ["learn", "play", "region_rates"]

_PIECE_MS = 100.0
_SAVE_EVERY_S = 60.0


def learn(
    brain: Brain,
    name: str,
    trials: int,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    html: Path | None = None,
    progress: bool | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Let a brain learn the task of that name: (what came of it, whether it was interrupted).

    Args:
        checkpoint, resume: keep the state in this folder; go on from the one that is there.
        html: write a report to this file.
        progress, stop: as for `run_task`.
    """
    task = CueActionTask(brain, delayed=name == "delayed", reverse_at=trials // 2 if name == "reversal" else None)
    if resume and checkpoint is not None:
        task.restore(brain.load_checkpoint(checkpoint))
    session = run_task(task, trials, checkpoint=checkpoint, progress=progress, stop=stop)
    if html is not None:
        from neuraxis.observe.brain_report.page import write_report
        from neuraxis.observe.demo import brain_report

        report = brain_report(task, session)
        if brain.leads:
            write_report(report, html)
    answer = {
        "task": name,
        "trials": session.trials,
        "accuracy": session.accuracy,
        "real_time_factor": session.real_time_factor,
        **_common(brain),
    }
    return answer, session.interrupted


def play(
    brain: Brain,
    shown: StimulusFile,
    time_ms: float,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    stop: Callable[[], bool] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Show a brain a stimulus for some time; what is given and returned is as for `learn`."""
    dt_ms = brain.spec.dt_ms
    at = 0
    if resume and checkpoint is not None:
        at = int(brain.load_checkpoint(checkpoint).get("played", 0))
    until = to_steps(time_ms, dt_ms, "--time-ms")
    interrupted, piece, started = False, max(1, to_steps(_PIECE_MS, dt_ms, "time")), at
    begun = saved = time.monotonic()
    with ProgressLine("running", max(1, until), progress) as line:
        try:
            while at < until:
                with Interrupts():
                    shown.play(brain, at, min(until, at + piece))
                    at = min(until, at + piece)
                is_asked, is_old = agreed_wishes(brain, stop, saved, _SAVE_EVERY_S)
                if is_asked:
                    interrupted = True
                    break
                if checkpoint is not None and is_old:
                    brain.save_checkpoint(checkpoint, {"played": at})
                    saved = time.monotonic()
                line.update(at, run_text(at * dt_ms, (at - started) * dt_ms * 1e-3, time.monotonic() - begun, 0))
        except KeyboardInterrupt:
            interrupted = True
    if checkpoint is not None:
        brain.save_checkpoint(checkpoint, {"played": at})
    answer = {"real_time_factor": brain.real_time_factor, "rates_hz": region_rates(brain), **_common(brain)}
    return answer, interrupted


def region_rates(brain: Brain) -> dict[str, float]:
    """The rate of each region, sensor and effector since the start, in Hz."""
    return {name: region.rate_hz for name, region in brain.diagnostics().regions.items()}


def _common(brain: Brain) -> dict[str, Any]:
    return {
        "time_ms": brain.time_ms,
        "neurons": brain.neuron_count,
        "workers": brain.workers,
        "device": brain.device,
        "seed": brain.spec.seed,
        "fingerprint": brain.fingerprint(),
    }
