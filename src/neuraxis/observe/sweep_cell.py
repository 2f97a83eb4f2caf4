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

from neuraxis.observe.sweep_plan import Cell, Job

__all__ = ["cell_work", "run_cell"]


def cell_work(cell: Cell, job: Job) -> dict[str, Any]:
    """What a worker needs to run a cell."""
    return {"brain": cell.brain, "seed": cell.seed, "job": msgspec.to_builtins(job)}


def run_cell(work: dict[str, Any]) -> dict[str, Any]:
    """Run it in this process: {"answer": what came of it} or {"error": the reason, "traceback": where}.

    An error is an answer, too, so that one cell's does not keep others from being run.
    """
    begun = time.monotonic()
    try:
        answer = _run(work["brain"], work["seed"], msgspec.convert(work["job"], Job))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return {"answer": {**answer, "wall_s": time.monotonic() - begun, "host": socket.gethostname()}}


def _run(text: str, seed: int, job: Job) -> dict[str, Any]:
    from neuraxis.brain import Brain
    from neuraxis.brain.checks import validate
    from neuraxis.brain.spec import as_spec
    from neuraxis.observe.brain_run import learn, play, region_rates

    if job.where is not None:
        folder = str(Path(job.where).parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)  # where code of a brain's regions may lie
    where = job.where or "brain"
    spec = validate(as_spec({**tomllib.loads(text), "seed": seed}, where), where)
    with Brain(spec, where=where) as brain:
        if job.task is not None:
            answer, _ = learn(brain, job.task, job.trials, progress=False)
        else:
            answer, _ = play(brain, *job.shown_to(spec), progress=False)
        return {**answer, "rates_hz": region_rates(brain)}
