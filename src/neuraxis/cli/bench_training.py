"""`neuraxis bench training`: steps of training, ours beside torch's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from neuraxis.cli.bench_output import check_form, ended_by_sigterm, print_results, progress_line
from neuraxis.errors import NeuraxisError
from neuraxis.observe import bench_training_tables
from neuraxis.observe.bench_training import measure
from neuraxis.observe.bench_training_plan import MODELS, WAYS, Plan, check_torch, left_out_ways, parse_models

__all__ = ["training"]

_QUICK = {"rounds": 5, "sample_s": 0.05}


def training(
    *,
    n: Annotated[int, Parameter(name="-n")] = 2,
    models: str = ",".join(MODELS),
    repeats: int | None = None,
    quick: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
    markdown: Annotated[bool, Parameter(negative=())] = False,
    into: Path | None = None,
) -> int:
    """Time steps of training: DataParallel over shm and gloo, torch's own, and a module by itself, all in one run.

    Prints for each model and way the time of a step, samples per second, the overhead over a module by itself, the
    bytes that a rank hands over, with compression and without, and how much of the exchange is hidden behind the
    backward pass; with a GPU also mixed precision on it. Ways that must come to the same parameters are compared: the
    status is 1 when they differ, or when a way failed. The ways take turns; still, measure on a quiet machine.

    Parameters
    ----------
    n
        Ranks, all on this host.
    models
        Models to train: mlp, conv, transformer.
    repeats
        Rounds, of which the median counts; 21 without it, 5 with --quick.
    quick
        Fewer and shorter samples: about half a minute.
    json
        Print the results as JSON, every round included.
    markdown
        Print the tables as Markdown.
    into
        Write the tables, as Markdown, between two marks in this file, which it must have; see docs/training.md.
    """
    try:
        check_form(json, markdown)
        if into is not None:
            bench_training_tables.check_marked(into)
        gone = left_out_ways()
        changes: dict[str, Any] = {"ranks": n, "models": parse_models(models), **(_QUICK if quick else {})}
        if repeats is not None:
            changes["rounds"] = repeats
        plan = Plan(ways=tuple(way for way in WAYS if way not in gone), **changes)
        check_torch()
        with ended_by_sigterm(), progress_line() as progress:
            results = measure(plan, list(gone.values()), progress)
        if into is not None:
            bench_training_tables.write_between(results, into)
        print_results(bench_training_tables, results, as_json=json, markdown=markdown)
    except NeuraxisError as error:
        print(f"neuraxis bench training: {error}", file=sys.stderr)
        return 2
    return 0 if results.sound else 1
