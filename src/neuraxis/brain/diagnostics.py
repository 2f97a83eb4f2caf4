"""How a brain is doing: what each region does, what was learned, and how the load is spread."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from neuraxis.brain.lowering import Lowered
from neuraxis.execution import Simulation

__all__ = ["Diagnostics", "RegionHealth", "WeightSummary", "WorkerHealth", "diagnose"]

# Where a region is reported as unusual; from the health ranges of the reference, which are wide.
_HIGHEST_RATE_HZ = 150.0


@dataclass(frozen=True)
class RegionHealth:
    """A region since the start.

    Attributes:
        rates_hz: by population.
        active: the share of its cells that ever spiked.
        spikes_out: of all its cells.
        spikes_in: that came to it over pathways.
        excitation_to_inhibition: spikes times synapses; None where nothing inhibits.
    """

    rate_hz: float
    rates_hz: dict[str, float]
    active: float
    spikes_out: int
    spikes_in: int
    excitation_to_inhibition: float | None


@dataclass(frozen=True)
class WeightSummary:
    """The weights of a plastic projection now."""

    mean: float
    sd: float
    low: float
    high: float
    synapses: int


@dataclass(frozen=True)
class WorkerHealth:
    """A worker: what it has, how far it is, and where its time goes. It differs between modes, as nothing else here."""

    worker: int
    regions: tuple[str, ...]
    step: int
    memory_bytes: int
    spikes_in: int
    spikes_out: int
    shares: dict[str, float]
    load_by_region: dict[str, float]


@dataclass(frozen=True)
class Diagnostics:
    """All of it; `as_json` for programs, `warnings` for people."""

    time_ms: float
    regions: dict[str, RegionHealth]
    weights: dict[str, WeightSummary]
    workers: tuple[WorkerHealth, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(lowered: Lowered, simulation: Simulation) -> Diagnostics:
    """Look at a running brain."""
    regions = _regions(lowered, simulation)
    weights = {
        projection.name: _weights(simulation, projection.name)
        for projection in lowered.network.projections
        if projection.has_changing_weights
    }
    warnings = [
        f"region {name!r} fires at {health.rate_hz:.0f} Hz: more than neurons usually do"
        for name, health in regions.items()
        if health.rate_hz > _HIGHEST_RATE_HZ
    ]
    return Diagnostics(simulation.time_ms, regions, weights, _workers(lowered, simulation), tuple(warnings))


def _regions(lowered: Lowered, simulation: Simulation) -> dict[str, RegionHealth]:
    network = lowered.network
    totals = simulation.counters().spike_counts
    seconds = simulation.time_ms * 1e-3
    drive: dict[str, list[float]] = {name: [0.0, 0.0] for name in lowered.regions}
    home = {one.index: name for name, region in lowered.regions.items() for one in region.populations.values()}
    inhibitory = {region.populations[short].index for region in lowered.regions.values() for short in region.inhibitory}
    for projection in network.projections:
        events = float(totals[projection.pre.index]) / projection.pre.n * projection.expected_synapses
        sign = int(projection.pre.index in inhibitory)
        drive[home[projection.post.index]][sign] += events
    health = {}
    for name, region in lowered.regions.items():
        populations = region.populations
        cells = sum(one.n for one in populations.values())
        spikes = sum(int(totals[one.index]) for one in populations.values())
        spoke = sum(int(np.count_nonzero(simulation.spike_counts(one))) for one in populations.values())
        excitation, inhibition = drive[name]
        health[name] = RegionHealth(
            rate_hz=spikes / cells / seconds if seconds else 0.0,
            rates_hz={
                short: float(totals[one.index]) / one.n / seconds if seconds else 0.0
                for short, one in populations.items()
            },
            active=spoke / cells,
            spikes_out=spikes,
            spikes_in=sum(int(totals[one.source_population.index]) for one in lowered.pathways if one.target == name),
            excitation_to_inhibition=excitation / inhibition if inhibition else None,
        )
    return health


def _weights(simulation: Simulation, projection: str) -> WeightSummary:
    weights = simulation.weights(projection).astype(np.float64)
    if not len(weights):
        return WeightSummary(0.0, 0.0, 0.0, 0.0, 0)
    return WeightSummary(
        float(weights.mean()), float(weights.std()), float(weights.min()), float(weights.max()), len(weights)
    )


def _workers(lowered: Lowered, simulation: Simulation) -> tuple[WorkerHealth, ...]:
    home = {one.index: name for name, region in lowered.regions.items() for one in region.populations.values()}
    network = lowered.network
    found = []
    for one in simulation.status():
        work: dict[str, float] = {}
        for index, ticks in one.update_ticks.items():
            work[home[index]] = work.get(home[index], 0.0) + ticks
        for index, ticks in one.plastic_ticks.items():
            region = home[network.projections[index].post.index]
            work[region] = work.get(region, 0.0) + ticks
        total = sum(work.values())
        found.append(
            WorkerHealth(
                worker=one.worker,
                regions=tuple(dict.fromkeys(home[index] for index in one.update_ticks)),
                step=one.step,
                memory_bytes=one.memory_bytes,
                spikes_in=one.spikes_in,
                spikes_out=one.spikes_out,
                shares=one.shares,
                load_by_region={name: ticks / total if total else 0.0 for name, ticks in work.items()},
            )
        )
    return tuple(found)
