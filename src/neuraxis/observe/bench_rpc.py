"""Measure calls of functions in another process, ours and those of peers, in one run.

All ways to call take turns within each round, in another order each time: whatever else the machine does meets all of
them alike. What is compared is compared within each round, and the median of the rounds counts. Caller and callee are
two processes of one host; what is sent comes back.

TensorPipe turns in circles while it waits, a core for each process, even where nobody calls: such crews are paused
between their turns, else whoever has the turn would share its cores with them.
"""

from __future__ import annotations

import importlib.metadata
import os
import random
import statistics
from collections.abc import Callable, Sequence

import msgspec

from neuraxis.observe.bench_contender import Contender, ContenderFailed
from neuraxis.observe.bench_contenders import Contenders, LeftOut
from neuraxis.observe.bench_machine import describe_machine
from neuraxis.observe.bench_patterns import size_text
from neuraxis.observe.bench_rank import Ask, Reply
from neuraxis.observe.bench_rpc_plan import MANY, SPINNING, WAYS, Plan

__all__ = ["Entry", "Results", "measure"]

_PROGRAM = "neuraxis.observe.bench_rpc_rank"
_TRIAL_CALLS = 50
_LEAST_CALLS, _MOST_CALLS = 100, 50_000  # of fewer there is no 99th percentile

Progress = Callable[[int, int, str], None]  # done, total, what is measured now


class Entry(msgspec.Struct):
    """One size in one way, by round: microseconds of a call, and calls per second, one by one and with many under way.

    `calls` and `many_calls` are those of a sample.
    """

    size: int
    way: str
    calls: int
    many_calls: int = 0
    p50_us: list[float] = []
    p99_us: list[float] = []
    per_s: list[float] = []
    many_per_s: list[float] = []


class Results(msgspec.Struct):
    """All that a run found out. `load_before`: how many processes wanted a core when it began, besides this one."""

    plan: Plan
    machine: dict[str, str]
    load_before: float
    entries: list[Entry]
    left_out: list[LeftOut]
    failures: list[str]

    def entry(self, size: int, way: str) -> Entry | None:
        return next((one for one in self.entries if (one.size, one.way) == (size, way) and one.p50_us), None)

    def ratio(self, size: int, way: str, peer: str) -> float | None:
        """How many times a peer's time a call takes: of the median calls, by round, the median."""
        ours, theirs = self.entry(size, way), self.entry(size, peer)
        if ours is None or theirs is None:
            return None
        # Of one that failed on the way there are fewer rounds.
        return statistics.median(a / b for a, b in zip(ours.p50_us, theirs.p50_us, strict=False))

    def many_ratio(self, size: int, way: str, peer: str) -> float | None:
        """How many times a peer's calls per second there are with many under way."""
        ours, theirs = self.entry(size, way), self.entry(size, peer)
        if ours is None or theirs is None or not ours.many_per_s or not theirs.many_per_s:
            return None
        return statistics.median(a / b for a, b in zip(ours.many_per_s, theirs.many_per_s, strict=False))

    @property
    def sound(self) -> bool:
        """Whether every way that could be started was measured."""
        return not self.failures


def measure(plan: Plan, left_out: Sequence[LeftOut] = (), progress: Progress | None = None) -> Results:
    """Start the processes, measure, and end them. A crew that fails is left out from there on."""
    machine = describe_machine()
    machine["zenoh"] = importlib.metadata.version("eclipse-zenoh")
    results = Results(plan, machine, os.getloadavg()[0], [], list(left_out), [])
    total, done = plan.rounds * len(plan.sizes), 0
    if progress is not None:
        progress(0, total, "starting callers and callees")
    with Contenders(plan.crews, 2, _PROGRAM) as crews:
        for name in SPINNING:
            if name in crews.running:
                crews.running[name].pause()
        for number in range(plan.rounds):
            for size in plan.sizes:
                _round(results, crews, size, number)
                done += 1
                if progress is not None:
                    progress(done, total, size_text(size))
        results.failures += [f"{name}: {reason}" for name, reason in crews.failed.items()]
    results.entries.sort(key=lambda entry: (plan.sizes.index(entry.size), plan.ways.index(entry.way)))
    return results


def _round(results: Results, crews: Contenders, size: int, number: int) -> None:
    # In another order each time, the same in every run: nobody always comes after the same one.
    for way in random.Random(number).sample(results.plan.ways, len(results.plan.ways)):
        name = WAYS[way].crew
        if name not in crews.running:
            continue
        crew = crews.running[name]
        try:
            crew.resume()
            _turn(results, crew, size, way)
            if name in SPINNING:
                crew.pause()
        except ContenderFailed as error:
            crews.fail(name, str(error))


def _turn(results: Results, crew: Contender, size: int, way: str) -> None:
    entry = results.entry(size, way)
    if entry is None:
        entry = _begin(crew, size, way, results.plan.sample_s)
        results.entries.append(entry)
    one = _ask(crew, Ask(f"{way}/one", size, entry.calls, warmups=max(2, entry.calls // 10)))
    if entry.many_calls:
        many = _ask(crew, Ask(f"{way}/many", size, entry.many_calls, warmups=2))
        entry.many_per_s.append(entry.many_calls / many.seconds)
    entry.p50_us.append(one.facts["p50_us"])
    entry.p99_us.append(one.facts["p99_us"])
    entry.per_s.append(entry.calls / one.seconds)


def _begin(crew: Contender, size: int, way: str, sample_s: float) -> Entry:
    """The first calls: whether what was sent comes back, and how many of them make a sample."""
    _ask(crew, Ask(f"{way}/one", size, 1, check=True))

    def calls_for(pattern: str, calls: int) -> int:
        # Twice: a trial that lost its core for a while must not make the samples too short.
        trials = [_ask(crew, Ask(f"{way}/{pattern}", size, calls, warmups=calls // 5)).seconds for _ in range(2)]
        return min(max(round(sample_s * calls / max(min(trials), 1e-9)), _LEAST_CALLS), _MOST_CALLS)

    return Entry(
        size, way, calls_for("one", _TRIAL_CALLS), calls_for("many", _TRIAL_CALLS + MANY) if WAYS[way].many else 0
    )


def _ask(crew: Contender, ask: Ask) -> Reply:
    reply = crew.ask(ask)
    if reply.problem:
        raise ContenderFailed(reply.problem)
    return reply
