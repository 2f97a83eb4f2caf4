"""A brain learns by reward which action is right for which cue, in one process or in several, with the same result."""

from typing import Annotated

from cyclopts import App, Parameter

from neuraxis.brain import Brain
from neuraxis.brain.tasks import CueActionTask

app = App(help=__doc__, version_flags=[])


@app.default
def main(
    *,
    trials: Annotated[int, Parameter(help="How many trials.")] = 100,
    workers: Annotated[int, Parameter(help="Processes; the result is the same.")] = 1,
    device: Annotated[str, Parameter(help="cpu, cuda, cuda:1; the result is the same.")] = "cpu",
    seed: Annotated[int, Parameter(help="Everything random is drawn from it.")] = 1,
) -> None:
    with Brain.default(seed=seed, workers=workers, device=device) as brain:
        task = CueActionTask(brain)
        for _ in range(trials):
            trial = task.run_trial()
            if (trial.number + 1) % 20 == 0:
                print(f"trial {trial.number + 1:4}: {task.accuracy(20):4.0%} of the last 20 right")
        print(f"{brain!r}, fingerprint {brain.fingerprint()}")


if __name__ == "__main__":  # worker processes import this file
    app()
