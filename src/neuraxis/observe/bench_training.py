"""Measure steps of training, ours and torch's, in one run.

All ways to train a model take turns within each round, in another order each time: whatever else the machine does
meets all of them alike. What is compared is compared within each round, and the median of the rounds counts, so that
load that comes and goes drops out. A sample is many steps in a row on every rank, and its time is that of the slowest
rank, for one step.

Before anything is timed, the ways that must come to the same parameters are compared.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec

from neuraxis.observe.bench_contender import Contender, ContenderFailed
from neuraxis.observe.bench_contenders import Contenders, LeftOut
from neuraxis.observe.bench_machine import describe_machine
from neuraxis.observe.bench_rank import Ask
from neuraxis.observe.bench_training_plan import WAYS, Plan

__all__ = ["Entry", "Results", "measure"]

_PROGRAM = "neuraxis.observe.bench_training_rank"
_TRIAL_STEPS = 5
_LEAST_STEPS, _MOST_STEPS = 3, 5000
_EQUAL = 1e-3  # of the way that the parameters have gone: float32 in another order, and nothing else
_WORTH_HIDING = 0.05
_FIRST_BUCKET_BYTES = 1 << 20  # DataParallel's: a smaller model is sent in one piece, when the backward pass is over

Progress = Callable[[int, int, str], None]  # done, total, what is measured now


class Entry(msgspec.Struct):
    """One model in one way: microseconds for a step in each round, and what else its ranks told.

    Attributes:
        bytes: what one rank hands over in a step.
        error: of compression, ‖sent - wanted‖ / ‖wanted‖ of a rank's gradients.
        moved, along: how far the parameters had come after the first steps, and how far in one direction.
    """

    model: str
    way: str
    steps: int
    bytes: float
    error: float
    moved: float
    along: float
    rounds_us: list[float]

    @property
    def median_us(self) -> float:
        return statistics.median(self.rounds_us)


class Results(msgspec.Struct):
    """All that a run found out. `load_before`: how many processes wanted a core when it began, besides this one."""

    plan: Plan
    machine: dict[str, str]
    load_before: float
    entries: list[Entry]
    left_out: list[LeftOut]
    failures: list[str]

    def entry(self, model: str, way: str) -> Entry | None:
        return next((one for one in self.entries if (one.model, one.way) == (model, way) and one.rounds_us), None)

    def step_us(self, model: str, way: str) -> float | None:
        found = self.entry(model, way)
        return None if found is None else found.median_us

    def samples_per_s(self, model: str, way: str) -> float | None:
        """Of all ranks together."""
        step = self.step_us(model, way)
        return None if step is None else self.plan.samples_of(model, way) / step * 1e6

    def overhead_us(self, model: str, way: str) -> float | None:
        """What a step takes beyond that of the module by itself."""
        pairs = self._rounds_of(model, way, "cuda-one" if WAYS[way].crew == "cuda" else "one")
        return statistics.median(step - alone for step, alone in pairs) if pairs else None

    def overhead_ratio(self, model: str, way: str, peer: str = "ddp-gloo") -> float | None:
        """An overhead by that of a peer; None where the peer has none that could be measured."""
        ours, theirs = self.overhead_us(model, way), self.overhead_us(model, peer)
        return None if ours is None or theirs is None or theirs <= 0 else ours / theirs

    def step_ratio(self, model: str, way: str, peer: str = "ddp-gloo") -> float | None:
        """A step's time by that of a peer."""
        pairs = self._rounds_of(model, way, peer)
        return statistics.median(ours / theirs for ours, theirs in pairs) if pairs else None

    def _rounds_of(self, model: str, way: str, other: str) -> list[tuple[float, float]]:
        """The times of two ways, round by round; of one that failed on the way there are fewer."""
        one, two = self.entry(model, way), self.entry(model, other)
        return [] if one is None or two is None else list(zip(one.rounds_us, two.rounds_us, strict=False))

    def hidden(self, model: str, way: str) -> float | None:
        """The share of the exchange that takes place behind the backward pass; None where there is too little of it."""
        if not self.has_several_buckets(model):
            return None
        within, after, without = (self.step_us(model, one) for one in (way, f"{way}-late", "unsent"))
        if within is None or after is None or without is None or after - without < _WORTH_HIDING * without:
            return None
        return 1 - (within - without) / (after - without)

    def has_several_buckets(self, model: str) -> bool:
        """Whether some gradients of a model are sent before its backward pass is over."""
        return any(one.model == model and one.bytes > _FIRST_BUCKET_BYTES for one in self.entries)

    @property
    def disagreements(self) -> list[str]:
        """Ways that should have come to the same parameters, and have not."""
        found = []
        for model in self.plan.models:
            equal = [one for one in self.entries if one.model == model and WAYS[one.way].equal]
            for one in equal[1:]:
                first = equal[0]
                if abs(one.along - first.along) > _EQUAL * first.moved or abs(one.moved / first.moved - 1) > _EQUAL:
                    found.append(
                        f"{model}: {one.way} has moved by {one.moved:.6g} ({one.along:.6g} in one direction), "
                        f"{first.way} by {first.moved:.6g} ({first.along:.6g})"
                    )
        return found

    @property
    def sound(self) -> bool:
        """Whether every way that could be started was measured, and equal ones were equal."""
        return not self.failures and not self.disagreements


def measure(plan: Plan, left_out: Sequence[LeftOut] = (), progress: Progress | None = None) -> Results:
    """Start the processes, measure, and end them. A way that fails is left out from there on."""
    results = Results(plan, describe_machine(), os.getloadavg()[0], [], list(left_out), [])
    total, done = plan.rounds * len(plan.models), 0
    if progress is not None:
        progress(0, total, "starting the ranks")
    together = [crew for crew in plan.crews if crew != "cuda"]
    alone = [crew for crew in plan.crews if crew == "cuda"]
    with ExitStack() as stack:
        groups = [
            stack.enter_context(Contenders(names, ranks, _PROGRAM))
            for names, ranks in ((together, plan.ranks), (alone, 1))
            if names
        ]
        turns = _Turns(results, groups)
        for number in range(plan.rounds):
            for model in plan.models:
                turns.round(model, number)
                done += 1
                if progress is not None:
                    progress(done, total, model)
        results.failures += [f"{name}: {reason}" for group in groups for name, reason in group.failed.items()]
    results.entries.sort(key=lambda entry: (plan.models.index(entry.model), plan.ways.index(entry.way)))
    return results


class _Turns:
    """Lets every way have its turn with a model, and notes what came of it."""

    def __init__(self, results: Results, groups: Sequence[Contenders]) -> None:
        self._results = results
        self._groups = groups
        self._unable: set[tuple[str, str]] = set()

    def round(self, model: str, number: int) -> None:
        # In another order each time, the same in every run: nobody always comes after the same one.
        ways = random.Random(number).sample(self._results.plan.ways, len(self._results.plan.ways))
        for way in ways:
            name = WAYS[way].crew
            group = next((group for group in self._groups if name in group.running), None)
            if group is None or (model, way) in self._unable:
                continue
            try:
                self._turn(group.running[name], model, way)
            except _Unable as problem:
                self._unable.add((model, way))
                self._results.failures.append(f"{model}/{way}: {problem}")
            except ContenderFailed as error:
                group.fail(name, str(error))

    def _turn(self, crew: Contender, model: str, way: str) -> None:
        entry = self._results.entry(model, way)
        if entry is None:
            entry = _begin(crew, model, way, self._results.plan.sample_s)
            self._results.entries.append(entry)
        reply = crew.ask(Ask(f"{model}/{way}", 0, entry.steps, warmups=max(2, entry.steps // 10)))
        if reply.problem:
            raise ContenderFailed(reply.problem)
        entry.rounds_us.append(reply.seconds / entry.steps * 1e6)


class _Unable(Exception):
    """Every rank refused to train in some way; others are not concerned."""


def _begin(crew: Contender, model: str, way: str, sample_s: float) -> Entry:
    """The first steps, what they led to, and how many of them make a sample."""
    pattern = f"{model}/{way}"
    first = crew.ask(Ask(pattern, check=True))
    if first.problem:
        raise _Unable(first.problem)
    # Twice: a trial that lost its core for a while must not make the samples too short.
    trials = [crew.ask(Ask(pattern, 0, _TRIAL_STEPS, warmups=2)) for _ in range(2)]
    for trial in trials:
        if trial.problem:
            raise _Unable(trial.problem)
    steps = round(sample_s * _TRIAL_STEPS / max(min(trial.seconds for trial in trials), 1e-9))
    facts = {name: first.facts[name] for name in ("bytes", "error", "moved", "along")}
    return Entry(model, way, min(max(steps, _LEAST_STEPS), _MOST_STEPS), **facts, rounds_us=[])
