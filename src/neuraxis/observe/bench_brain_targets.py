"""What neuraxis is meant to reach with spiking networks, and whether a run reached it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from neuraxis.observe.bench_brain import Entry, Results
from neuraxis.observe.bench_brain_plan import BRUNEL_ORDER, Plan

__all__ = ["TARGETS", "Target", "Verdict", "verdicts"]


class Target(msgspec.Struct, frozen=True):
    """A `figure` of a network that is to be at most `wanted`; a ratio to `peer` is to be at least that.

    It applies to the whole network (Brunel's of order 2500, the microcircuit of scale 1), and where `workers` is given
    to that many only.
    """

    network: str
    figure: str  # ratio, real_time_factor, built_seconds, import_seconds or ready_seconds
    wanted: float
    peer: str = ""
    workers: int | None = None


TARGETS = (
    Target("brunel", "ratio", 10.0, peer="nest", workers=2),
    Target("brunel", "ratio", 6.0, peer="brian2", workers=2),
    Target("microcircuit", "real_time_factor", 2.0),
    Target("microcircuit", "built_seconds", 30.0),
    Target("start-up", "import_seconds", 1.0),
    Target("start-up", "ready_seconds", 3.0),
)

_TEXTS = {
    "real_time_factor": "{:.3g} s for 1 s of model time",
    "built_seconds": "built in {:.3g} s",
    "import_seconds": "`import neuraxis` takes {:.3g} s",
    "ready_seconds": "the first step is done {:.3g} s after Simulation(...)",
}


class Verdict(msgspec.Struct):
    """A target and what was `reached`; `contender` is whose row in the table has the figure."""

    target: Target
    contender: str
    reached: float
    met: bool

    def __str__(self) -> str:
        target = self.target
        if target.figure == "ratio":
            text = f"{self.reached:.3g}x as fast as {self.contender}, wanted {target.wanted:g}x or more"
            missed = 1 - self.reached / target.wanted
        else:
            text = f"{_TEXTS[target.figure].format(self.reached)}, wanted {target.wanted:g} s or less"
            missed = self.reached / target.wanted - 1
        return f"{target.network}: {text}: {'met' if self.met else f'missed by {missed:.0%}'}"


def verdicts(results: Results, targets: Sequence[Target] = TARGETS) -> list[Verdict]:
    """Every target that the run can be held against; none when it compared numbers of workers."""
    found = []
    for target in targets:
        if results.plan.scaling or not _applies(target, results.plan):
            continue
        reached = _reached(target, results)
        if reached is not None:
            contender, value = reached
            met = value >= target.wanted if target.figure == "ratio" else value <= target.wanted
            found.append(Verdict(target, contender, value, met))
    return found


def _applies(target: Target, plan: Plan) -> bool:
    if target.workers not in (None, plan.ours.cores):
        return False
    if target.network == "brunel":
        return plan.order == BRUNEL_ORDER
    return target.network != "microcircuit" or plan.scale == 1.0


def _reached(target: Target, results: Results) -> tuple[str, float] | None:
    """Whose figure it is, and the figure."""
    if target.network == "start-up":
        seconds = [] if results.start_up is None else getattr(results.start_up, target.figure)
        return ("neuraxis", statistics.median(seconds)) if seconds else None
    ours = results.ours(target.network)
    if ours is None:
        return None
    if target.figure != "ratio":
        return str(ours.contender), getattr(ours, target.figure)
    rivals = [entry for entry in results.of(target.network) if entry.contender.simulator == target.peer]
    if not rivals:
        return None
    best: Entry = min(rivals, key=lambda entry: entry.real_time_factor)
    return str(best.contender), best.real_time_factor / ours.real_time_factor
