"""How many workers pay for a brain, and what each region costs: as expected, and as measured."""

from __future__ import annotations

from neuraxis.brain.lowering import Lowered
from neuraxis.engine.placement import expected_load, place_regions, step_cost_ns
from neuraxis.execution import Simulation
from neuraxis.machine import usable_cores

__all__ = ["auto_workers", "measured_load"]

# Nanoseconds that a population costs in every step, however few its neurons are.
_POPULATION_NS = 180.0

# Two workers must promise this to be worth the processes, and a step must be as long as this.
_WORTH = 1.15
_SMALLEST_NS = 3000.0

# What every further worker takes from the gain: regions do not weigh the same, and cores share memory. Measured with up
# to 8 workers on 16 cores; more were not tried.
_LOST = 0.18
_MOST = 8


def auto_workers(lowered: Lowered) -> tuple[int, str]:
    """How many workers to take, and why."""
    network, cores = lowered.network, usable_cores()
    load = [
        per_neuron + _POPULATION_NS / population.n
        for per_neuron, population in zip(expected_load(network), network.populations, strict=True)
    ]
    alone = sum(population.n * per for population, per in zip(network.populations, load, strict=True))
    best, promise = 1, 1.0
    for workers in range(2, min(cores, _MOST) + 1):
        placement = place_regions(network, workers, lowered.groups, load, lowered.kept_whole)
        gain = alone / step_cost_ns(network, placement, load) / (1 + _LOST * (workers - 1))
        if gain > promise * 1.1:
            best, promise = workers, gain
    size = f"a step of {network.neuron_count:,} neurons takes about {alone / 1000:.1f} us in one process"
    if best == 1 or promise < _WORTH or alone < _SMALLEST_NS:
        return 1, f"sequential: {size}, and {cores} core{'s' * (cores != 1)} would not make it much quicker"
    return best, f"{best} workers: {size}, and should be {promise:.1f} times quicker on {best} of {cores} cores"


def measured_load(lowered: Lowered, simulation: Simulation) -> list[float] | None:
    """What a neuron of each population costs in a step, from what the workers measured; None before they ran.

    The unit is that of `expected_load`, roughly: only how the numbers compare matters. The time for static synapses
    is known for a worker as a whole; it is shared out by how many events its populations got.
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
