"""What training is meant to reach against torch's DistributedDataParallel over gloo, and whether a run reached it.

The numbers are for two ranks on two cores; a run elsewhere is compared all the same, as information.
"""

from __future__ import annotations

import msgspec

from neuraxis.observe.bench_training import Results

__all__ = ["Verdict", "verdicts"]

_LEAST_MODEL, _MOST_OVERHEAD = "mlp", 1 / 3


class Verdict(msgspec.Struct):
    """One target, and whether this run reached it."""

    text: str
    met: bool

    def __str__(self) -> str:
        return f"{self.text}: {'met' if self.met else 'MISSED'}"


def verdicts(results: Results) -> list[Verdict]:
    """Every target that what was measured can be held against."""
    found = []
    ratio = results.overhead_ratio(_LEAST_MODEL, "shm")
    if ratio is not None:
        text = f"{_LEAST_MODEL}: overhead over shm {ratio:.3f} of ddp-gloo's, wanted {_MOST_OVERHEAD:.3f} at most"
        if ratio < 0:
            text += " (less than nothing: the machine was busy with something else)"
        found.append(Verdict(text, 0 <= ratio <= _MOST_OVERHEAD))
    for model in results.plan.models:
        ratio = results.step_ratio(model, "shm")
        if ratio is not None:
            text = f"{model}: a step over shm takes {ratio:.3f} of ddp-gloo's time, wanted 1 at most"
            found.append(Verdict(text, ratio <= 1))
    return found
