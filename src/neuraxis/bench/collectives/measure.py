"""Measure communication patterns over shm and over peers in one run.

A sample is many consecutive calls on every rank; its time is that of the slowest rank divided by the calls. The
contenders take turns within each round.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from neuraxis.bench import harness
from neuraxis.bench.collectives.patterns import PATTERNS, SIZES
from neuraxis.bench.contenders import Contender, Contenders
from neuraxis.bench.harness import LeftOut, Progress, check_rounds
from neuraxis.bench.machine import machine_state
from neuraxis.bench.processes import ContenderFailed
from neuraxis.bench.rank import Request
from neuraxis.errors import InvalidArgument
from neuraxis.machine import check_process_count

__all__ = ["Measurement", "Plan", "Results", "measure"]

_PROGRAM = "neuraxis.bench.collectives.rank"
_MOST_ITERATIONS = 20_000
_CALIBRATION_S = 0.003  # a trial of this length is long enough to estimate the time of a call


class Plan(msgspec.Struct, frozen=True):
    """Plan of a measurement: `contenders` in turns, `rounds` times, in samples of about `sample_s` seconds."""

    contenders: tuple[str, ...]
    patterns: tuple[str, ...] = PATTERNS
    sizes: tuple[int, ...] = SIZES
    ranks: int = 2
    rounds: int = 5
    sample_s: float = 0.025

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise InvalidArgument(f"-n {self.ranks}: at least two ranks are needed to communicate")
        check_process_count(self.ranks, "-n")
        check_rounds(self.rounds)

    def cells(self) -> list[tuple[str, int]]:
        """Return every pattern with every size; a barrier has the size 0."""
        return [(pattern, size) for pattern in self.patterns for size in ((0,) if pattern == "barrier" else self.sizes)]


class Measurement(msgspec.Struct):
    """One pattern at one size by one contender: microseconds per call, in each round and their median."""

    pattern: str
    size: int
    contender: str
    iterations: int
    rounds_us: list[float]

    @property
    def median_us(self) -> float:
        return statistics.median(self.rounds_us)


class Results(harness.Results):
    """The results of a run."""

    plan: Plan
    measurements: list[Measurement]
    left_out: list[LeftOut]
    failures: list[str]

    @property
    def contenders(self) -> list[str]:
        """Contenders that have measurements, in the plan's order."""
        present = {measurement.contender for measurement in self.measurements}
        return [name for name in self.plan.contenders if name in present]

    def median_us(self, pattern: str, size: int, contender: str) -> float | None:
        for found in self.measurements:
            if (found.pattern, found.size, found.contender) == (pattern, size, contender):
                return found.median_us
        return None

    def ratio(self, pattern: str, size: int, peer: str, ours: str = "shm") -> float | None:
        """Return how many times as fast as `peer` `ours` is."""
        theirs, mine = self.median_us(pattern, size, peer), self.median_us(pattern, size, ours)
        return None if theirs is None or mine is None else theirs / mine


def measure(plan: Plan, left_out: Sequence[LeftOut] = (), progress: Progress | None = None) -> Results:
    """Start the plan's contenders, measure, and end them. A contender that fails is not measured any further."""
    state = machine_state(plan.ranks)
    cells = plan.cells()
    total, done = len(cells) * plan.rounds, 0
    found: dict[tuple[str, int, str], Measurement] = {}
    unsupported: dict[tuple[str, str], str] = {}
    if progress is not None:
        progress(0, total, "starting the contenders")
    with Contenders(plan.contenders, plan.ranks, _PROGRAM) as contenders:
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
    return Results(plan, list(found.values()), list(left_out), failures, **state)


class _Unsupported(Exception):
    """Every rank of a contender refused a pattern: it lacks that pattern, and can run others."""


def _calibrate(contender: Contender, pattern: str, size: int, sample_s: float) -> Measurement:
    """Find how many calls make a sample, and check the results of the first call."""
    iterations = 1
    while True:
        reply = contender.request(Request(pattern, size, iterations, check=iterations == 1))
        if reply.problem:
            raise _Unsupported(reply.problem)
        seconds = reply.seconds
        if seconds >= _CALIBRATION_S and iterations < _MOST_ITERATIONS:
            # Twice: a trial that lost its core for a while must not make the samples too short.
            seconds = min(seconds, contender.request(Request(pattern, size, iterations)).seconds)
        if seconds >= _CALIBRATION_S or iterations >= _MOST_ITERATIONS:
            break
        iterations *= 10
    wanted = round(sample_s * iterations / max(seconds, 1e-9))
    # A call of 100 ms is a sample by itself; of shorter calls at least two are averaged.
    least = 1 if seconds / iterations > 0.1 else 2
    return Measurement(pattern, size, contender.name, min(max(wanted, least), _MOST_ITERATIONS), [])


def _sample(contender: Contender, measurement: Measurement) -> float:
    """Return the microseconds of one call; for send_recv, of half a round trip."""
    iterations = measurement.iterations
    reply = contender.request(
        Request(measurement.pattern, measurement.size, iterations, warmups=min(iterations // 10, 100))
    )
    if reply.problem:
        raise ContenderFailed(f"{measurement.pattern}: {reply.problem}")
    trips = 2 if measurement.pattern == "send_recv" else 1
    return reply.seconds / iterations / trips * 1e6
