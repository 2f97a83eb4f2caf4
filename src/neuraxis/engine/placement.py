"""Which neurons live in which shard.

Large populations are cut into as many equal slices as there are shards: every shard then gets its share of every kind
of load, whatever the rates turn out to be. A population too small for that stays whole and goes to the shard with
the least expected load. Results do not depend on any of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from neuraxis.network import Network

__all__ = ["Slice", "expected_load", "place"]

# Below this many neurons for each shard, cutting a population costs more (a block, an outbox entry) than it shares.
SMALLEST_SLICE = 64

# Rough costs in nanoseconds, measured: the update of a neuron, a synaptic event, and an event of a plastic synapse.
UPDATE_NS = 1.5
EVENT_NS = 1.0
PLASTIC_EVENT_NS = 12.0
EXPECTED_RATE_HZ = 5.0


@dataclass(frozen=True)
class Slice:
    """Neurons `first` to `last` (exclusive) of the population with this index."""

    population: int
    first: int
    last: int

    @property
    def n(self) -> int:
        return self.last - self.first


def place(network: Network, shards: int) -> tuple[tuple[Slice, ...], ...]:
    """The slices of each shard, in the order of the populations; a shard may be empty."""
    load = expected_load(network)
    held: list[list[Slice]] = [[] for _ in range(shards)]
    total = [0.0] * shards
    small = []
    for population in network.populations:
        n = population.n
        if shards > 1 and n < SMALLEST_SLICE * shards:
            small.append(population)
            continue
        for shard in range(shards):
            first, last = n * shard // shards, n * (shard + 1) // shards
            held[shard].append(Slice(population.index, first, last))
            total[shard] += (last - first) * load[population.index]
    for population in sorted(small, key=lambda one: (-one.n * load[one.index], one.index)):
        lightest = min(range(shards), key=lambda shard: (total[shard], shard))
        held[lightest].append(Slice(population.index, 0, population.n))
        total[lightest] += population.n * load[population.index]
    return tuple(tuple(sorted(slices, key=lambda one: one.population)) for slices in held)


def expected_load(network: Network) -> list[float]:
    """Nanoseconds that a neuron of each population is expected to take for a step."""
    load = [UPDATE_NS] * len(network.populations)
    for projection in network.projections:
        in_degree = projection.expected_synapses / projection.post.n
        cost = PLASTIC_EVENT_NS if projection.plasticity else EVENT_NS
        load[projection.post.index] += in_degree * EXPECTED_RATE_HZ * network.dt_ms * 1e-3 * cost
    return load
