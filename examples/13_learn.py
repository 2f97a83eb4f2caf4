"""A brain learns by reward which action is right for which cue, in one process or in several, with the same result.

python examples/13_learn.py --workers 2 --plot learning.png
"""

from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
from cyclopts import App, Parameter

from neuraxis.brain import Brain, CueActionTask

app = App(help=__doc__, version_flags=[])


@app.default
def main(
    *,
    trials: Annotated[int, Parameter(help="How many trials.")] = 100,
    workers: Annotated[int, Parameter(help="Processes; the result is the same.")] = 1,
    device: Annotated[str, Parameter(help="cpu, cuda, cuda:1; the result is the same.")] = "cpu",
    seed: Annotated[int, Parameter(help="Everything random is drawn from it.")] = 1,
    plot: Annotated[Path | None, Parameter(help="Draw the learning curve to this file (png, pdf, svg).")] = None,
) -> None:
    with Brain.default(seed=seed, workers=workers, device=device) as brain:
        task = CueActionTask(brain)
        curve = []
        for _ in range(trials):
            trial = task.run_trial()
            curve.append(task.accuracy(20))
            if (trial.number + 1) % 20 == 0:
                print(f"trial {trial.number + 1:4}: {task.accuracy(20):4.0%} of the last 20 right")
        print(f"{brain!r}, fingerprint {brain.fingerprint()}")
    if plot is not None:
        plt.figure(figsize=(7, 3.5), layout="constrained")
        plt.plot(range(1, trials + 1), curve)
        plt.axhline(0.25, color="gray", linestyle="dotted", label="chance")
        plt.ylim(0, 1.02)
        plt.xlabel("trial")
        plt.ylabel("share of the last 20 that are right")
        plt.legend()
        plt.savefig(plot)


if __name__ == "__main__":  # worker processes import this file
    app()
