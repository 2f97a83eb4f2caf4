"""Diagnostics of a running brain, and the load of its regions.

`diagnose` collects activity, learned weights and worker load. `auto_workers` estimates how many workers make a brain
faster, before it runs; `measured_load` measures the cost of each population, to rebalance regions over workers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from neuraxis.brain.lowering import Lowered
from neuraxis.engine.placement import expected_load, place_regions, step_cost_ns
from neuraxis.machine import usable_cores
from neuraxis.notebook import html_table
from neuraxis.simulation import Simulation

__all__ = ["Diagnostics", "RegionHealth", "WeightSummary", "WorkerHealth", "auto_workers", "diagnose", "measured_load"]

# Mean rate above which `diagnose` warns.
_HIGHEST_RATE_HZ = 150.0


@dataclass(frozen=True)
class RegionHealth:
    """Activity of a region since the start.

    Attributes
    ----------
    rate_hz : float
        Mean rate of a neuron, in Hz.
    rates_hz : dict of str to float
        Mean rate of a neuron by population, in Hz.
    active : float
        Share of the neurons that ever spiked.
    spikes_out : int
        Spikes of all its neurons.
    spikes_in : int
        Spikes that arrived over pathways.
    excitation_to_inhibition : float or None
        Ratio of excitatory to inhibitory synaptic events; None if there is no inhibition.
    """

    rate_hz: float
    rates_hz: dict[str, float]
    active: float
    spikes_out: int
    spikes_in: int
    excitation_to_inhibition: float | None


@dataclass(frozen=True)
class WeightSummary:
    """Mean, standard deviation and range of the current weights of a plastic projection."""

    mean: float
    sd: float
    low: float
    high: float
    synapses: int


@dataclass(frozen=True)
class WorkerHealth:
    """State and load of a worker; the only part of `Diagnostics` that depends on how the brain runs.

    Attributes
    ----------
    worker : int
        Number of the worker.
    regions : tuple of str
        Regions with neurons on this worker.
    step : int
        Its step.
    memory_bytes : int
        Memory of its neurons and synapses.
    spikes_in, spikes_out : int
        Spikes exchanged with other workers.
    shares : dict of str to float
        Shares of its run time by activity.
    load_by_region : dict of str to float
        Shares of its computing time by region.
    """

    worker: int
    regions: tuple[str, ...]
    step: int
    memory_bytes: int
    spikes_in: int
    spikes_out: int
    shares: dict[str, float]
    load_by_region: dict[str, float]


@dataclass(frozen=True, repr=False)
class Diagnostics:
    """Activity, learned weights and worker load of a brain; `Brain.diagnostics` returns it.

    Attributes
    ----------
    time_ms : float
        Model time, in ms.
    regions : dict of str to RegionHealth
        Activity by region, sensors and effectors included.
    weights : dict of str to WeightSummary
        Weights by plastic projection.
    workers : tuple of WorkerHealth
        State and load of each worker.
    warnings : tuple of str
        Unusual values, in words.

    Examples
    --------
    >>> from neuraxis.brain import BrainBuilder, Brain
    >>> spec = BrainBuilder("b").sensor("eye", 20, background_hz=50.0).region("thalamus", "thalamus", relay=40)
    >>> with Brain(spec.pathway("eye", "thalamus", 1.0).spec()) as brain:
    ...     activity = brain.run(100.0)
    ...     diagnostics = brain.diagnostics()
    >>> print(diagnostics)  # doctest: +ELLIPSIS
    <Diagnostics at 100 ms: 2 regions, 0 plastic projections, 1 worker, no warnings>
      eye         ... Hz ... % active
      thalamus    ... Hz ... % active
    """

    time_ms: float
    regions: dict[str, RegionHealth]
    weights: dict[str, WeightSummary]
    workers: tuple[WorkerHealth, ...]
    warnings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return all values as nested dicts and lists."""
        return asdict(self)

    def __repr__(self) -> str:
        lines = [f"<{self._summary()}>"]
        lines += [
            f"  {name:<12}{health.rate_hz:8.2f} Hz {100 * health.active:4.0f} % active"
            for name, health in self.regions.items()
        ]
        return "\n".join([*lines, *(f"  warning: {warning}" for warning in self.warnings)])

    def _repr_html_(self) -> str:
        rows = (
            (
                name,
                f"{health.rate_hz:.2f}",
                f"{health.active:.0%}",
                f"{health.spikes_in:,}",
                f"{health.spikes_out:,}",
                "" if health.excitation_to_inhibition is None else f"{health.excitation_to_inhibition:.2f}",
            )
            for name, health in self.regions.items()
        )
        header = ("region", "rate (Hz)", "active", "spikes in", "spikes out", "excitation / inhibition")
        text = "; ".join([self._summary(), *self.warnings])
        return html_table(text, header, rows)

    def _summary(self) -> str:
        plastic, workers, warnings = len(self.weights), len(self.workers), len(self.warnings)
        return (
            f"Diagnostics at {self.time_ms:g} ms: {len(self.regions)} regions, "
            f"{plastic} plastic projection{'s' * (plastic != 1)}, {workers} worker{'s' * (workers != 1)}, "
            f"{warnings or 'no'} warning{'s' * (warnings != 1)}"
        )


def diagnose(lowered: Lowered, simulation: Simulation) -> Diagnostics:
    """Return the diagnostics of a running brain."""
    regions = _regions(lowered, simulation)
    weights = {
        projection.name: _weights(simulation, projection.name)
        for projection in lowered.network.projections
        if projection.has_changing_weights
    }
    warnings = [
        f"region {name!r} fires at {health.rate_hz:.0f} Hz: neurons rarely fire so fast; check its weights and input"
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
        active = sum(int(np.count_nonzero(simulation.spike_counts(one))) for one in populations.values())
        excitation, inhibition = drive[name]
        health[name] = RegionHealth(
            rate_hz=spikes / cells / seconds if seconds else 0.0,
            rates_hz={
                short: float(totals[one.index]) / one.n / seconds if seconds else 0.0
                for short, one in populations.items()
            },
            active=active / cells,
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


# --- Load ---

# Cost of a population in every step, however few neurons it has, in ns.
_POPULATION_NS = 180.0

# Use several workers only for at least this speedup, and only if a step takes at least this long in one process.
_LEAST_SPEEDUP = 1.15
_SHORTEST_STEP_NS = 3000.0

# Share of the speedup that every further worker costs: regions differ in load, and cores share memory bandwidth.
# Measured with up to 8 workers on 16 cores.
_LOSS_PER_WORKER = 0.18
_MOST_WORKERS = 8


def auto_workers(lowered: Lowered) -> tuple[int, str]:
    """Return the number of workers that should be fastest, and the reason in words."""
    network, cores = lowered.network, usable_cores()
    load = [
        per_neuron + _POPULATION_NS / population.n
        for per_neuron, population in zip(expected_load(network), network.populations, strict=True)
    ]
    alone = sum(population.n * per for population, per in zip(network.populations, load, strict=True))
    best, speedup = 1, 1.0
    for workers in range(2, min(cores, _MOST_WORKERS) + 1):
        placement = place_regions(network, workers, lowered.groups, load, lowered.uncut)
        gain = alone / step_cost_ns(network, placement, load) / (1 + _LOSS_PER_WORKER * (workers - 1))
        if gain > speedup * 1.1:
            best, speedup = workers, gain
    size = f"a step of {network.neuron_count:,} neurons takes about {alone / 1000:.1f} us in one process"
    if best == 1 or speedup < _LEAST_SPEEDUP or alone < _SHORTEST_STEP_NS:
        return 1, f"sequential: {size}, and {cores} core{'s' * (cores != 1)} would not make it much faster"
    return best, f"{best} workers: {size}, and should be {speedup:.1f} times faster on {best} of {cores} cores"


def measured_load(lowered: Lowered, simulation: Simulation) -> list[float] | None:
    """Return the measured cost of a neuron of each population in a step; None before the first run.

    The unit is roughly that of `expected_load`; only ratios matter. Workers measure the time for static synapses as a
    whole; it is divided among the worker's populations by the number of events that they received.
    """
    network = lowered.network
    status = simulation.status()
    total = sum(one.busy_ticks for one in status)
    if not total or not simulation.steps:
        return None
    counts = simulation.counters().spike_counts
    events = [0.0] * len(network.populations)
    for projection in network.projections:
        if not projection.plasticity:
            spikes = float(counts[projection.pre.index]) / projection.pre.n
            events[projection.post.index] += spikes * projection.expected_synapses
    ticks = [0.0] * len(network.populations)
    for one in status:
        here = one.update_ticks
        for index, spent in here.items():
            ticks[index] += spent
        for index, spent in one.plastic_ticks.items():
            ticks[network.projections[index].post.index] += spent
        arrived = sum(events[index] for index in here)
        for index in here:
            if arrived:
                ticks[index] += one.static_ticks * events[index] / arrived
    expected = sum(p.n * load for p, load in zip(network.populations, expected_load(network), strict=True))
    scale = expected / max(sum(ticks), 1.0)
    return [spent * scale / population.n for spent, population in zip(ticks, network.populations, strict=True)]
