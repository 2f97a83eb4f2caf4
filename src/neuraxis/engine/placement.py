"""Placement of neurons on shards.

Large populations are cut into as many equal slices as there are shards, so every shard gets the same share of every
kind of load, whatever the rates are. A population that is too small stays whole and goes to the shard with the least
expected load. Results do not depend on the placement.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from neuraxis.errors import InvalidArgument
from neuraxis.network import Network

__all__ = [
    "Placement",
    "Slice",
    "check_placement",
    "describe_slices",
    "expected_load",
    "place",
    "place_on_devices",
    "place_regions",
    "step_cost_ns",
]

# With fewer neurons per shard, cutting a population costs more (a block, an entry of the spike buffer) than it gains.
SMALLEST_SLICE = 64

# Measured costs in nanoseconds: the update of a neuron, a synaptic event, an event of a plastic synapse.
UPDATE_NS = 1.5
EVENT_NS = 1.0
PLASTIC_EVENT_NS = 12.0
EXPECTED_RATE_HZ = 5.0

# A continuous synapse, in every step.
RATE_SYNAPSE_NS = 0.5

# An exchange between processes: the transfer of a cache line, and waiting for the slowest shard.
EXCHANGE_NS = 3000.0

# Steps that one shard may be ahead of another. More would gain nothing, and each needs a slot in the spike buffers.
LONGEST_LAG = 64


@dataclass(frozen=True)
class Slice:
    """Neurons `first` to `last` (exclusive) of the population with this index."""

    population: int
    first: int
    last: int

    @property
    def n(self) -> int:
        return self.last - self.first


Placement = tuple[tuple[Slice, ...], ...]


def place(network: Network, shards: int, together: Sequence[Collection[int]] = ()) -> Placement:
    """Return the slices of each shard, in the order of the populations; a shard may be empty.

    The populations of each group in `together` are not cut and stay on one shard.
    """
    load = expected_load(network)
    held: list[list[Slice]] = [[] for _ in range(shards)]
    total = [0.0] * shards
    grouped = {index for group in together for index in group}
    small = [sorted(group) for group in together]
    for population in network.populations:
        n = population.n
        if population.index in grouped:
            continue
        if shards > 1 and n < SMALLEST_SLICE * shards:
            small.append([population.index])
            continue
        for shard in range(shards):
            first, last = n * shard // shards, n * (shard + 1) // shards
            held[shard].append(Slice(population.index, first, last))
            total[shard] += (last - first) * load[population.index]
    for group in sorted(small, key=lambda group: (-sum(network.populations[p].n * load[p] for p in group), group)):
        lightest = min(range(shards), key=lambda shard: (total[shard], shard))
        for index in group:
            held[lightest].append(Slice(index, 0, network.populations[index].n))
            total[lightest] += network.populations[index].n * load[index]
    return tuple(tuple(sorted(slices, key=lambda one: one.population)) for slices in held)


def place_on_devices(network: Network, gpus: Sequence[bool], together: Sequence[Collection[int]] = ()) -> Placement:
    """Return the slices of each shard if some shards are on GPUs (`gpus[shard]` is True).

    The GPUs share all neurons, because a step on a GPU costs little per neuron and most for spikes from other shards.
    Only the groups in `together`, of populations that Python code serves, go to shards on the CPU, if there are any.
    """
    gpu_shards = [shard for shard, gpu in enumerate(gpus) if gpu]
    cpu_shards = [shard for shard, gpu in enumerate(gpus) if not gpu]
    groups = _joined(together)
    left = {index for group in groups for index in group if cpu_shards}
    held: list[tuple[Slice, ...]] = [()] * len(gpus)
    for shard, slices in zip(gpu_shards, place(network, len(gpu_shards), groups), strict=True):
        held[shard] = tuple(part for part in slices if part.population not in left)
    if cpu_shards:
        for shard, slices in zip(cpu_shards, place(network, len(cpu_shards), groups), strict=True):
            held[shard] = tuple(part for part in slices if part.population in left)
    return tuple(held)


def _joined(groups: Sequence[Collection[int]]) -> list[set[int]]:
    """Merge groups that have a member in common."""
    found: list[set[int]] = []
    for group in groups:
        same = [one for one in found if one & set(group)]
        found = [one for one in found if one not in same] + [set(group).union(*same)]
    return found


def check_placement(network: Network, placement: Placement, shards: int) -> None:
    """Raise unless every neuron is on one shard, and every shard has at most one slice of a population, in order."""
    if len(placement) != shards:
        raise InvalidArgument(f"placement: is for {len(placement)} workers; there are {shards}")
    ends = [0] * len(network.populations)
    for shard, slices in enumerate(placement):
        held = [part.population for part in slices]
        if held != sorted(set(held)):
            raise InvalidArgument(
                f"placement: worker {shard} must have at most one slice of each population, in their order"
            )
        for part in slices:
            if not 0 <= part.population < len(ends) or part.first != ends[part.population] or part.last <= part.first:
                raise InvalidArgument(
                    f"placement: {part} on worker {shard}: the slices of a population must follow each other"
                )
            ends[part.population] = part.last
    for population, end in zip(network.populations, ends, strict=True):
        if end != population.n:
            raise InvalidArgument(f"placement: {end} neurons of {population.name!r} are placed; it has {population.n}")


def describe_slices(network: Network, slices: Sequence[Slice]) -> str:
    """Return the neurons of a shard as text: "cortex, striatum.D1[0:50]".

    If all populations called "region.name" are on the shard and uncut, the text has the name of the region.
    """
    if not slices:
        return "no neurons"
    held = {network.populations[part.population].name: part for part in slices}
    texts: list[str] = []
    for name, part in held.items():
        region, dot, _ = name.partition(".")
        family = [one for one in network.populations if dot and one.name.startswith(f"{region}.")]
        if family and all(one.name in held and held[one.name].n == one.n for one in family):
            texts.append(region)
        else:
            texts.append(f"{name}[{part.first}:{part.last}]")
    return ", ".join(dict.fromkeys(texts))


def place_regions(
    network: Network,
    shards: int,
    regions: Sequence[Sequence[int]],
    load: Sequence[float] | None = None,
    whole: Collection[int] = (),
) -> Placement:
    """Return the slices of each shard, keeping the populations of a region together if that is faster.

    Compares several placements and returns the one with the fastest slowest shard (`step_cost_ns`): every region on
    one shard, assigned greedily, largest first; the same with one of the two largest regions cut over all shards; and
    all regions cut. `load` is the expected time in ns per neuron and step, by population. Regions with a population in
    `whole` are never cut.
    """
    load = expected_load(network) if load is None else load
    if sorted(population for region in regions for population in region) != list(range(len(network.populations))):
        raise InvalidArgument("regions: every population must be in one of them")
    weight = [sum(network.populations[p].n * load[p] for p in region) for region in regions]
    order = sorted(range(len(regions)), key=lambda r: (-weight[r], r))
    uncut = {r for r, region in enumerate(regions) if set(region) & set(whole)}
    cuttable = [r for r in order if r not in uncut]
    candidates = [
        _largest_first(network, shards, regions, order, cut, load) for cut in ((), cuttable[:1], cuttable[1:2])
    ]
    candidates.append(_largest_first(network, shards, regions, order, cuttable, load))
    return min(candidates, key=lambda one: step_cost_ns(network, one, load))


def _largest_first(
    network: Network,
    shards: int,
    regions: Sequence[Sequence[int]],
    order: Sequence[int],
    cut: Sequence[int],
    load: Sequence[float],
) -> Placement:
    held: list[list[Slice]] = [[] for _ in range(shards)]
    total = [0.0] * shards

    def put(population: int, first: int, last: int, shard: int) -> None:
        held[shard].append(Slice(population, first, last))
        total[shard] += (last - first) * load[population]

    def lightest() -> int:
        return min(range(shards), key=lambda shard: (total[shard], shard))

    for region in sorted(order, key=lambda r: r not in cut):
        home = lightest()
        for population in regions[region]:
            n = network.populations[population].n
            if region not in cut:
                put(population, 0, n, home)
            elif n < SMALLEST_SLICE * shards:
                put(population, 0, n, lightest())
            else:
                for shard in range(shards):
                    put(population, n * shard // shards, n * (shard + 1) // shards, shard)
    return tuple(tuple(sorted(slices, key=lambda one: one.population)) for slices in held)


def step_cost_ns(network: Network, placement: Placement, load: Sequence[float]) -> float:
    """Return the expected time of a step of the slowest shard in ns, the exchange with other shards included."""
    busiest = max(sum(part.n * load[part.population] for part in slices) for slices in placement)
    homes: dict[int, set[int]] = {}
    for shard, slices in enumerate(placement):
        for part in slices:
            homes.setdefault(part.population, set()).add(shard)
    between = [
        network.delay_bounds_steps(projection)[0]
        for projection in network.projections
        if len(homes[projection.pre.index] | homes[projection.post.index]) > 1
    ]
    between += [
        1 + network.delay_bounds_steps(projection)[0]
        for projection in network.rate_projections
        if len(homes[projection.pre.index] | homes[projection.post.index]) > 1
    ]
    if len(placement) == 1:
        return busiest
    return busiest + EXCHANGE_NS / min([*between, LONGEST_LAG])


def expected_load(network: Network) -> list[float]:
    """Return the expected time per neuron and step in ns, for each population."""
    load = [UPDATE_NS] * len(network.populations)
    for projection in network.projections:
        in_degree = projection.expected_synapses / projection.post.n
        cost = PLASTIC_EVENT_NS if projection.plasticity else EVENT_NS
        load[projection.post.index] += in_degree * EXPECTED_RATE_HZ * network.dt_ms * 1e-3 * cost
    for projection in network.rate_projections:
        load[projection.post.index] += projection.expected_synapses / projection.post.n * RATE_SYNAPSE_NS
    return load
