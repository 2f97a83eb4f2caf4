"""Measure the communication patterns, ours and the peers', in one run.

The contenders take turns within each round, and the rounds go over everything again, so that whatever else
the machine does meets all of them alike; the median of the rounds then drops what met only some of them. A
sample is many calls in a row on every rank, and its time is that of the slowest rank, for one call.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from neuraxis.observe.bench_contender import Contender, ContenderFailed
from neuraxis.observe.bench_contenders import Contenders, LeftOut
from neuraxis.observe.bench_machine import describe_machine
from neuraxis.observe.bench_rank import Ask

__all__ = ["Measurement", "Plan", "Results", "measure"]

_MOST_ITERATIONS = 20_000
_CALIBRATION_S = 0.003  # a trial this long says well enough how long a call takes

Progress = Callable[[int, int, str], None]  # done, total, what is measured now


class Plan(msgspec.Struct, frozen=True):
    """What to measure: `contenders` in turns, `rounds` times, in samples of about `sample_s` seconds."""

    contenders: tuple[str, ...]
    patterns: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: int = 2
    rounds: int = 5
    sample_s: float = 0.025

    def cells(self) -> list[tuple[str, int]]:
        """Every pattern at every size; a barrier has no size, which is written as 0."""
        return [(pattern, size) for pattern in self.patterns for size in ((0,) if pattern == "barrier" else self.sizes)]


class Measurement(msgspec.Struct):
    """One pattern at one size by one contender: microseconds for a call, in each round and their median."""

    pattern: str
    size: int
    contender: str
    iterations: int
    rounds_us: list[float]

    @property
    def median_us(self) -> float:
        return statistics.median(self.rounds_us)


class Results(msgspec.Struct):
    """All that a run found out."""

    plan: Plan
    machine: dict[str, str]
    measurements: list[Measurement]
    left_out: list[LeftOut]
    failures: list[str]

    @property
    def contenders(self) -> list[str]:
        """Those that have measurements, in the plan's order."""
        present = {measurement.contender for measurement in self.measurements}
        return [name for name in self.plan.contenders if name in present]

    def median_us(self, pattern: str, size: int, contender: str) -> float | None:
        for found in self.measurements:
            if (found.pattern, found.size, found.contender) == (pattern, size, contender):
                return found.median_us
        return None

    def ratio(self, pattern: str, size: int, peer: str, ours: str = "shm") -> float | None:
        """How many times faster `ours` is than `peer`."""
        theirs, mine = self.median_us(pattern, size, peer), self.median_us(pattern, size, ours)
        return None if theirs is None or mine is None else theirs / mine


def measure(plan: Plan, left_out: Sequence[LeftOut] = (), progress: Progress | None = None) -> Results:
    """Start the plan's contenders, measure, and end them. A contender that fails is left out from there on."""
    cells = plan.cells()
    total, done = len(cells) * plan.rounds, 0
    found: dict[tuple[str, int, str], Measurement] = {}
    unsupported: dict[tuple[str, str], str] = {}
    if progress is not None:
        progress(0, total, "starting the contenders")
    with Contenders(plan.contenders, plan.ranks) as contenders:
        for _ in range(plan.rounds):
            for pattern, size in cells:
                for name, contender in list(contenders.running.items()):
                    if (name, pattern) in unsupported:
                        continue
                    key = (pattern, size, name)
                    try:
                        measurement = found.get(key)
                        if measurement is None:
                            measurement = _calibrate(contender, pattern, size, plan.sample_s)
                        measurement.rounds_us.append(_sample(contender, measurement))
                        found[key] = measurement
                    except _Unsupported as problem:
                        unsupported[name, pattern] = str(problem)
                    except ContenderFailed as error:
                        contenders.fail(name, str(error))
                done += 1
                if progress is not None:
                    progress(done, total, pattern)
        failures = [f"{name}: {reason}" for name, reason in contenders.failed.items()]
    failures += [f"{name}: {pattern}: {problem}" for (name, pattern), problem in unsupported.items()]
    return Results(plan, describe_machine(), list(found.values()), list(left_out), failures)


class _Unsupported(Exception):
    """Every rank of a contender refused a pattern: it lacks that pattern, and can go on with others."""


def _calibrate(contender: Contender, pattern: str, size: int, sample_s: float) -> Measurement:
    """Find how many calls make a sample, and see that the calls do what they should."""
    iterations = 1
    while True:
        reply = contender.ask(Ask(pattern, size, iterations, check=iterations == 1))
        if reply.problem:
            raise _Unsupported(reply.problem)
        seconds = reply.seconds
        if seconds >= _CALIBRATION_S and iterations < _MOST_ITERATIONS:
            # Once more: a trial that lost its core for a while must not make the samples too short.
            seconds = min(seconds, contender.ask(Ask(pattern, size, iterations)).seconds)
        if seconds >= _CALIBRATION_S or iterations >= _MOST_ITERATIONS:
            break
        iterations *= 10
    wanted = round(sample_s * iterations / max(seconds, 1e-9))
    # A call of 100 ms is a sample of its own; two of a middling one even out what a single one would show.
    least = 1 if seconds / iterations > 0.1 else 2
    return Measurement(pattern, size, contender.name, min(max(wanted, least), _MOST_ITERATIONS), [])


def _sample(contender: Contender, measurement: Measurement) -> float:
    """Microseconds for one call; half a round trip for messages."""
    iterations = measurement.iterations
    reply = contender.ask(Ask(measurement.pattern, measurement.size, iterations, warmups=min(iterations // 10, 100)))
    if reply.problem:
        raise ContenderFailed(f"{measurement.pattern}: {reply.problem}")
    ways = 2 if measurement.pattern == "send_recv" else 1
    return reply.seconds / iterations / ways * 1e6
