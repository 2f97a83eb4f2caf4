"""One cell of a sweep, run by a worker of a cluster. What comes and goes is plain data."""

from __future__ import annotations

import socket
import sys
import time
import tomllib
import traceback
from pathlib import Path
from typing import Any

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.observe.sweep_plan import Cell, Job
from neuraxis.version import __version__

__all__ = ["cell_work", "run_cell"]


def cell_work(cell: Cell, job: Job) -> dict[str, Any]:
    """What a worker needs to run a cell."""
    return {"version": __version__, "brain": cell.brain, "seed": cell.seed, "job": msgspec.to_builtins(job)}


def run_cell(work: dict[str, Any]) -> dict[str, Any]:
    """Run it in this process: {"answer": what came of it} or {"error": the reason, "traceback": where}.

    An error is an answer, too, so that one cell's does not keep others from being run.
    """
    begun = time.monotonic()
    try:
        if work["version"] != __version__:
            raise InvalidArgument(
                f"the worker on {socket.gethostname()} has neuraxis {__version__}, the sweep {work['version']}; "
                "results would differ: install the same"
            )
        answer = _run(work["brain"], work["seed"], msgspec.convert(work["job"], Job))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return {"answer": {**answer, "wall_s": time.monotonic() - begun, "host": socket.gethostname()}}


def _run(text: str, seed: int, job: Job) -> dict[str, Any]:
    from neuraxis.brain import Brain
    from neuraxis.brain.checks import validate
    from neuraxis.brain.spec import as_spec
    from neuraxis.brain.stimulus_file import StimulusFile, read_stimulus
    from neuraxis.observe.brain_run import learn, play, region_rates

    if job.where is not None:
        folder = str(Path(job.where).parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)  # where code of a brain's regions may lie
    where = job.where or "brain"
    spec = validate(as_spec({**tomllib.loads(text), "seed": seed}, where), where)
    shown = StimulusFile() if job.stimulus is None else read_stimulus(job.stimulus, spec)
    time_ms = job.time_ms
    if time_ms is None:
        time_ms = 1000.0 if job.stimulus is None else shown.steps * spec.dt_ms
    with Brain(spec, where=where) as brain:
        if job.task is not None:
            answer, _ = learn(brain, job.task, job.trials, progress=False)
        else:
            answer, _ = play(brain, shown, time_ms, progress=False)
        return {**answer, "rates_hz": region_rates(brain)}
