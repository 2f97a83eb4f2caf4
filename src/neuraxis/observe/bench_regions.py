"""Region brains over numbers of workers, the sequential run among them: what several processes gain and cost.

All brains of one size are built, then they run by turns, a stretch each, so that other load on the machine meets all of
them. They must end with the same fingerprint.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
import numpy as np

from neuraxis.brain import Brain, default_brain
from neuraxis.brain.balance import auto_workers
from neuraxis.brain.default import CUES
from neuraxis.engine.outboxes import lags_between
from neuraxis.errors import InvalidArgument
from neuraxis.observe.bench_machine import describe_machine

__all__ = ["SIZES", "RegionEntry", "RegionResults", "measure_regions", "parse_numbers"]

# Times the cells of the default brain.
SIZES = {"small": 1, "medium": 4, "large": 10}
_WARM_MS = 600.0  # long enough for the workers to be balanced by what they measure


class RegionEntry(msgspec.Struct, frozen=True):
    """One brain on one number of workers.

    Attributes:
        start_seconds: to make it, processes included.
        seconds: for each stretch.
        waiting: the share of the run that the workers spent waiting for each other, on average.
        exchange: the share that they spent taking in each other's spikes.
        window_ms: how long the workers can run without news of each other.
        window_us: what taking in each other's spikes takes for a window.
    """

    size: str
    neurons: int
    synapses: int
    workers: int
    start_seconds: float
    seconds: list[float]
    waiting: float
    exchange: float
    window_ms: float
    window_us: float
    fingerprint: str


class RegionResults(msgspec.Struct, frozen=True):
    """All of it. `choices` is what workers="auto" would have taken, by size, and why."""

    machine: dict[str, str]
    time_ms: float
    entries: list[RegionEntry]
    choices: dict[str, str]

    def sequential(self, entry: RegionEntry) -> RegionEntry:
        return next(one for one in self.entries if one.size == entry.size and one.workers == 1)

    def speedup(self, entry: RegionEntry) -> float:
        """How many times as fast as one process: the median over the rounds."""
        alone = self.sequential(entry).seconds
        return statistics.median(one / other for one, other in zip(alone, entry.seconds, strict=True))

    @property
    def sound(self) -> bool:
        """Whether every brain gave the same spikes on every number of workers."""
        return all(entry.fingerprint == self.sequential(entry).fingerprint for entry in self.entries)


def parse_numbers(text: str, option: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise InvalidArgument(f"{option} {text}: numbers with commas are expected, such as 1,2,4") from None
    if numbers[0] < 1:
        raise InvalidArgument(f"{option} {text}: at least one worker is needed")
    return [1, *(number for number in numbers if number > 1)]  # the sequential run is always there


def measure_regions(
    sizes: list[str],
    workers: list[int],
    time_ms: float,
    repeats: int,
    progress: Callable[[int, int, str], None] | None = None,
) -> RegionResults:
    """Run brains of these sizes on these numbers of workers."""
    entries: list[RegionEntry] = []
    choices: dict[str, str] = {}
    total, done = len(sizes) * len(workers) * (repeats + 1), 0

    def tell(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(done, total, what)
        done += 1

    for size in sizes:
        spec = default_brain(seed=1, scale=SIZES[size])
        with ExitStack() as alive:
            contenders: list[_Contender] = []
            for number in workers:
                tell(f"{size}, {number}: starting")
                begun = time.perf_counter()
                brain = alive.enter_context(Brain(spec, workers=number))
                contenders.append(_Contender(brain, time.perf_counter() - begun))
                for _ in range(2):
                    contenders[-1].run(_WARM_MS)
                contenders[-1].forget()
            choices[size] = auto_workers(contenders[0].brain.lowered)[1]
            for _ in range(repeats):
                for contender in contenders:
                    tell(f"{size}, {contender.brain.workers}")
                    contender.run(time_ms)
            entries += [contender.entry(size, time_ms) for contender in contenders]
    return RegionResults(describe_machine(), time_ms, entries, choices)


@dataclass
class _Contender:
    """A brain that runs, and what was measured of it."""

    brain: Brain
    start_seconds: float

    def __post_init__(self) -> None:
        self.forget()
        self._turn = 0

    def forget(self) -> None:
        self.seconds: list[float] = []

    def run(self, duration_ms: float) -> None:
        steps = round(duration_ms / self.brain.spec.dt_ms)
        begun = time.perf_counter()
        self.brain.step({"cue": np.eye(CUES)[self._turn % CUES]}, steps)
        self.seconds.append(time.perf_counter() - begun)
        self._turn += 1

    def entry(self, size: str, time_ms: float) -> RegionEntry:
        brain = self.brain
        after = brain.status()
        lag = 0
        if brain.workers > 1:
            lags = lags_between(brain.lowered.network, brain.placement)
            lag = int(lags[~np.eye(brain.workers, dtype=bool)].min())
        exchange = float(np.mean([one.exchange for one in after]))
        windows = len(self.seconds) * time_ms / brain.spec.dt_ms / max(1, lag)
        return RegionEntry(
            size=size,
            neurons=brain.neuron_count,
            synapses=brain.synapse_count,
            workers=brain.workers,
            start_seconds=self.start_seconds,
            seconds=self.seconds,
            waiting=float(np.mean([one.shares["waiting"] for one in after])),
            exchange=exchange,
            window_ms=lag * brain.spec.dt_ms,
            window_us=1e6 * exchange * sum(self.seconds) / windows,
            fingerprint=brain.fingerprint(),
        )
