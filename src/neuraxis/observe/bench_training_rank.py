"""One rank of `neuraxis bench training`: a process that makes the steps its parent asks for."""

from __future__ import annotations

import gc
import time
from itertools import repeat

from neuraxis.observe.bench_rank import Ask, Reply, serve_rank
from neuraxis.observe.bench_training_plan import WAYS
from neuraxis.observe.bench_training_ways import Crew

__all__ = ["CHECKED_STEPS", "measure_steps"]

CHECKED_STEPS = 5  # after which ways that should be equal are compared


def measure_steps(crew: Crew, ask: Ask) -> Reply:
    """Make steps; `ask.pattern` is model/way. With `check` they are the first, and the facts tell what came of them."""
    model, way = ask.pattern.split("/")
    training = crew.training(model, way)
    if ask.check:
        for _ in repeat(None, CHECKED_STEPS):
            training.step()
        facts = training.facts()
        if WAYS[way].equal and not crew.same_everywhere([facts["moved"], facts["along"]]):
            return Reply(problem=f"{ask.pattern}: the ranks' parameters differ after {CHECKED_STEPS} steps")
        return Reply(facts=facts)
    for _ in repeat(None, ask.warmups):
        training.step()
    collecting = gc.isenabled()
    gc.disable()
    try:
        crew.meet()
        start = time.perf_counter()
        for _ in repeat(None, ask.iterations):
            training.step()
        crew.settle()
        seconds = time.perf_counter() - start
    finally:
        if collecting:
            gc.enable()
    return Reply(seconds)


if __name__ == "__main__":
    serve_rank(Crew, measure_steps)
