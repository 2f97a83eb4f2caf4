"""`neuraxis bench brain --regions`: gain and cost of worker processes for brains of regions.

All brains of one size are built, then run in turns, one stretch of model time each; the sequential run is one of them.
All must end with the same fingerprint.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from neuraxis.bench import harness
from neuraxis.bench.harness import Progress, Report, Table, machine_lines, ratio_text
from neuraxis.bench.machine import machine_state
from neuraxis.brain import Brain, default_brain
from neuraxis.brain.default import CUES
from neuraxis.brain.diagnostics import auto_workers
from neuraxis.engine.spikes import lags_between
from neuraxis.errors import InvalidArgument

__all__ = [
    "SIZES",
    "RegionEntry",
    "RegionResults",
    "measure_regions",
    "parse_numbers",
    "report",
]

# Multiples of the default brain's neurons.
SIZES = {"small": 1, "medium": 4, "large": 10}
_WARM_MS = 600.0  # long enough for the workers to balance their load


class RegionEntry(msgspec.Struct, frozen=True):
    """One brain on one number of workers.

    Attributes:
        start_seconds: to build it, processes included.
        seconds: of each stretch.
        waiting: average share of the run in which workers waited for each other.
        exchange: average share in which they received each other's spikes.
        window_ms: model time that workers can run without receiving from each other.
        window_us: time to receive the spikes of one window.
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


class RegionResults(harness.Results):
    """The results of a run. `choices` is the choice of workers="auto" by size, with its reason."""

    time_ms: float
    entries: list[RegionEntry]
    choices: dict[str, str]

    def sequential(self, entry: RegionEntry) -> RegionEntry:
        return next(one for one in self.entries if one.size == entry.size and one.workers == 1)

    def speedup(self, entry: RegionEntry) -> float:
        """Return how many times as fast as one process it is: the median over the rounds."""
        alone = self.sequential(entry).seconds
        return statistics.median(one / other for one, other in zip(alone, entry.seconds, strict=True))

    @property
    def sound(self) -> bool:
        """True if every brain gave the same spikes on every number of workers."""
        return all(entry.fingerprint == self.sequential(entry).fingerprint for entry in self.entries)


def parse_numbers(text: str, option: str) -> list[int]:
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise InvalidArgument(f"{option} {text}: numbers with commas are expected, such as 1,2,4") from None
    if numbers[0] < 1:
        raise InvalidArgument(f"{option} {text}: at least one worker is needed")
    return [1, *(number for number in numbers if number > 1)]  # always with the sequential run


def measure_regions(
    sizes: list[str],
    workers: list[int],
    time_ms: float,
    repeats: int,
    progress: Progress | None = None,
) -> RegionResults:
    """Run brains of some sizes on some numbers of workers, `repeats` stretches of `time_ms` of model time each."""
    state = machine_state(max(workers))
    entries: list[RegionEntry] = []
    choices: dict[str, str] = {}
    total, done = len(sizes) * len(workers) * (repeats + 1), 0

    def show(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(done, total, what)
        done += 1

    for size in sizes:
        spec = default_brain(seed=1, scale=SIZES[size])
        with ExitStack() as alive:
            contenders: list[_Contender] = []
            for number in workers:
                show(f"{size}, {number}: starting")
                begun = time.perf_counter()
                brain = alive.enter_context(Brain(spec, workers=number))
                contenders.append(_Contender(brain, time.perf_counter() - begun))
                for _ in range(2):
                    contenders[-1].run(_WARM_MS)
                contenders[-1].reset()
            choices[size] = auto_workers(contenders[0].brain.lowered)[1]
            for _ in range(repeats):
                for contender in contenders:
                    show(f"{size}, {contender.brain.workers}")
                    contender.run(time_ms)
            entries += [contender.entry(size, time_ms) for contender in contenders]
    return RegionResults(time_ms, entries, choices, **state)


@dataclass
class _Contender:
    """A running brain and its measurements."""

    brain: Brain
    start_seconds: float

    def __post_init__(self) -> None:
        self.reset()
        self._turn = 0

    def reset(self) -> None:
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


def report(results: RegionResults) -> Report:
    headings = [
        "brain", "workers", "neurons", "start s", "s per model s", "speedup", "waiting", "exchange", "window ms",
        "µs a window",
    ]  # fmt: skip
    rows = []
    for entry in results.entries:
        of_workers = ["-"] * 5
        if entry.workers > 1:
            of_workers = [ratio_text(results.speedup(entry)), f"{entry.waiting:.0%}", f"{entry.exchange:.1%}"]
            of_workers += [f"{entry.window_ms:.1f}", f"{entry.window_us:.1f}"]
        size = [entry.size, str(entry.workers), f"{entry.neurons:,}", f"{entry.start_seconds:.2f}"]
        rows.append([*size, f"{_per_second(results, entry):.3f}", *of_workers])
    rounds = len(results.entries[0].seconds) if results.entries else 0
    meaning = (
        f"Medians of {rounds} stretches of {results.time_ms:g} ms of model time, in turns. Waiting: for other workers, "
        "uneven load included. Exchange: receiving each other's spikes, which is done once in a step. A window is the "
        "model time that two workers can run without receiving from each other."
    )
    notes = [f"{size}, workers='auto': {choice}" for size, choice in results.choices.items()]
    if not results.sound:
        notes.append("NOT SOUND: fingerprints differ between numbers of workers")
    table = Table("Brains of regions", headings, rows, meaning, bold=["speedup"])
    return Report(_data(results), machine_lines(results), [table], notes)


def _data(results: RegionResults) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(results)
    for found, entry in zip(data["entries"], results.entries, strict=True):
        found["speedup"] = results.speedup(entry)
        found["seconds_per_model_second"] = _per_second(results, entry)
    return data


def _per_second(results: RegionResults, entry: RegionEntry) -> float:
    return statistics.median(entry.seconds) / (results.time_ms * 1e-3)
