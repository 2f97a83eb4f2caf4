"""Measure learning of the default brain over several seeds, intact and with lesions: a table and learning curves.

    python benchmarks/learning.py --seeds 1,2,3,4,5 --plot learning.png

Every run is a separate process, in which the brain runs sequentially; as many run at once as there are cores.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from neuraxis.brain import Brain
from neuraxis.brain.tasks import CueActionTask
from neuraxis.machine import usable_cores
from neuraxis.report.brain.model import LearningCurve
from neuraxis.report.plots import learning_curve_figure

# (name, delayed, reversal, lesion)
CONDITIONS = {
    "cue to action": (False, False, None),
    "delayed": (True, False, None),
    "reversal": (False, True, None),
    "cue to action, without striatum": (False, False, "striatum"),
    "cue to action, without prefrontal cortex": (False, False, "prefrontal"),
    "delayed, without prefrontal cortex": (True, False, "prefrontal"),
}

app = App(help=__doc__, version_flags=[])


def run_one(condition: str, seed: int, trials: int) -> dict[str, object]:
    """Run one session; return the correct trials and the elapsed time."""
    delayed, reversal, lesion = CONDITIONS[condition]
    begun = time.perf_counter()
    with Brain.default(seed=seed) as brain:
        if lesion is not None:
            brain.lesion(lesion)
        task = CueActionTask(brain, delayed=delayed, reverse_at=trials if reversal else None)
        for _ in range(2 * trials if reversal else trials):
            task.run_trial()
        return {
            "condition": condition,
            "seed": seed,
            "correct": [trial.correct for trial in task.trials],
            "fingerprint": brain.fingerprint(),
            "model_s": brain.time_ms * 1e-3,
            "seconds": time.perf_counter() - begun,
        }


@app.default
def main(
    *,
    seeds: Annotated[str, Parameter(help="Seeds, with commas.")] = "1,2,3,4,5",
    trials: Annotated[int, Parameter(help="Trials of a session; of a reversal, before and again after it.")] = 300,
    conditions: Annotated[str, Parameter(help="Which conditions, with semicolons.")] = ";".join(CONDITIONS),
    plot: Annotated[Path | None, Parameter(help="Draw the learning curves of the whole brain to this file.")] = None,
    output: Annotated[Path | None, Parameter(help="Keep every trial in this JSON file.")] = None,
    processes: Annotated[int, Parameter(help="How many at once.")] = usable_cores(),
) -> None:
    jobs = [(name, int(seed), trials) for name in conditions.split(";") for seed in seeds.split(",")]
    found: list[dict[str, object]] = []
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(run_one, *job) for job in jobs]
        for done in as_completed(futures):
            found.append(done.result())
            one = found[-1]
            last = one["correct"][-100:]
            print(
                f"{len(found)}/{len(jobs)} {one['condition']}, seed {one['seed']}: {sum(last) / len(last):.0%} of the "
                f"last {len(last)} right, {one['seconds']:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    print("| | right of the last 100, by seed | worst | mean |")
    print("|---|---|--:|--:|")
    curves = {}
    for name in conditions.split(";"):
        runs = sorted((one for one in found if one["condition"] == name), key=lambda one: one["seed"])
        shares = [sum(one["correct"][-100:]) / len(one["correct"][-100:]) for one in runs]
        each = ", ".join(f"{share:.0%}" for share in shares)
        print(f"| {name} | {each} | {min(shares):.0%} | {sum(shares) / len(shares):.0%} |")
        worst = runs[shares.index(min(shares))]
        curves[f"{name} (seed {worst['seed']}, the worst)"] = LearningCurve(
            correct=tuple(worst["correct"]), chance=0.25, window=25, reversal_at=trials if name == "reversal" else None
        )
    if output is not None:
        output.write_text(json.dumps(found))
    if plot is not None:
        learning_curve_figure(curves, plot)


if __name__ == "__main__":
    app()
