"""Placement of neurons on shards, and the lag that it permits between shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.engine.placement import (
    EXCHANGE_NS,
    SMALLEST_SLICE,
    Placement,
    Slice,
    expected_load,
    place,
    place_regions,
    step_cost_ns,
)
from neuraxis.engine.spikes import LONGEST_LAG, Listener, SpikeBuffers, lags_between
from neuraxis.network import STDP, AllToAll, FixedInDegree, Network, RewardSTDP, Uniform
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import Simulation
from tests.simulation.by_turns import ByTurns


def network_of(sizes: Sequence[int]) -> Network:
    network = Network()
    for i, n in enumerate(sizes):
        network.population(f"p{i}", n, lif_delta)
    return network


def assert_complete(placement: Placement, sizes: Sequence[int], shards: int) -> None:
    """Every neuron is somewhere, once; slices are in the order of populations and, over the shards, of neurons."""
    assert len(placement) == shards
    for slices in placement:
        assert [part.population for part in slices] == sorted({part.population for part in slices})
    for population, n in enumerate(sizes):
        parts = [part for slices in placement for part in slices if part.population == population]
        ends = [0, *(part.last for part in parts)]
        assert [part.first for part in parts] == ends[:-1]
        assert all(part.n > 0 for part in parts)
        assert ends[-1] == n


def homes_of(placement: Placement, population: int) -> set[int]:
    return {shard for shard, slices in enumerate(placement) for part in slices if part.population == population}


SIZES = st.lists(st.integers(1, 700), min_size=1, max_size=9)


@given(SIZES, st.integers(1, 6), st.data())
def test_every_neuron_is_placed_once_and_groups_stay_together(sizes: list[int], shards: int, data: Any) -> None:
    order = data.draw(st.permutations(range(len(sizes))), label="order")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sizes)), max_size=4), label="cuts"))
    grouped = order[: cuts[-1]] if cuts else []
    groups = [grouped[first:last] for first, last in zip([0, *cuts], cuts, strict=False)]
    placement = place(network_of(sizes), shards, together=groups)
    assert_complete(placement, sizes, shards)
    for group in groups:
        assert len({frozenset(homes_of(placement, p)) for p in group}) <= 1
        assert all(len(homes_of(placement, p)) == 1 for p in group)
    for population, n in enumerate(sizes):
        if population not in grouped:
            assert len(homes_of(placement, population)) == (shards if n >= SMALLEST_SLICE * shards else 1)


def test_small_groups_fill_up_the_shards_with_the_least_to_do() -> None:
    placement = place(network_of([50, 60, 20, 30, 40, 10]), 3, together=[(0, 2), (4, 5)])
    assert [sum(part.n for part in slices) for slices in placement] == [70, 60, 80]


@settings(max_examples=40)
@given(SIZES, st.integers(1, 5), st.data())
def test_regions_are_placed_whole_at_the_lowest_estimated_cost(sizes: list[int], shards: int, data: Any) -> None:
    network = network_of(sizes)
    populations = range(len(sizes))
    for _ in range(data.draw(st.integers(0, 6), label="projections")):
        pre, post = data.draw(st.sampled_from(populations)), data.draw(st.sampled_from(populations))
        delay = data.draw(st.integers(1, 60), label="delay")
        network.connect(f"p{pre}", f"p{post}", FixedInDegree(5), 1.0, delay_ms=0.1 * delay)
    labels = [data.draw(st.integers(0, 3), label="region") for _ in populations]
    regions = [[p for p in populations if labels[p] == r] for r in sorted(set(labels))]
    whole = data.draw(st.sets(st.sampled_from(populations), max_size=3), label="whole")
    load = [data.draw(st.floats(0.1, 100.0), label="load") for _ in populations]
    placement = place_regions(network, shards, regions, load, whole)
    assert_complete(placement, sizes, shards)
    for region in regions:
        if whole & set(region):
            assert len({shard for p in region for shard in homes_of(placement, p)}) == 1
    # Never worse than all on one shard, nor than all cut (where all may be).
    one = (tuple(Slice(p, 0, n) for p, n in enumerate(sizes)), *[()] * (shards - 1))
    cost = step_cost_ns(network, placement, load)
    if shards == 1 or len(regions) == 1:
        assert cost <= step_cost_ns(network, one, load) * (1 + 1e-9)
    if not whole and all(n >= SMALLEST_SLICE * shards for n in sizes):
        assert cost <= step_cost_ns(network, place(network, shards), load) * (1 + 1e-9)


def two_regions(within_ms: float, between_ms: float, n: int = 10_000) -> Network:
    network = Network()
    for name in ("left", "right"):
        cells = network.population(name, n, lif_delta)
        network.connect(cells, cells, FixedInDegree(10), 1.0, delay_ms=within_ms)
    network.connect("left", "right", FixedInDegree(10), 1.0, delay_ms=between_ms)
    return network


def test_regions_far_from_each_other_are_not_cut() -> None:
    placement = place_regions(two_regions(0.1, 5.0), 2, [[0], [1]])
    assert placement == ((Slice(1, 0, 10_000),), (Slice(0, 0, 10_000),))  # the larger load comes first


def test_a_region_that_takes_most_of_the_time_is_cut() -> None:
    network = two_regions(5.0, 5.0)
    uneven = place_regions(network, 2, [[0], [1]], load=[100.0, 1.0])
    assert homes_of(uneven, 0) == {0, 1}
    assert homes_of(place_regions(network, 2, [[0], [1]], load=[100.0, 1.0], whole=[0]), 0) == {0}


def test_where_exchanging_costs_more_than_it_shares_all_stays_together() -> None:
    placement = place_regions(two_regions(0.1, 0.1, n=300), 2, [[0, 1]])
    assert sorted(map(len, placement)) == [0, 2]


def test_a_step_costs_the_slowest_shard_plus_the_exchange() -> None:
    network = two_regions(0.1, 2.0, n=100)
    apart = ((Slice(0, 0, 100),), (Slice(1, 0, 100),))
    assert step_cost_ns(network, apart, [3.0, 5.0]) == 500.0 + EXCHANGE_NS / 20
    together = ((*apart[0], *apart[1]), ())
    assert step_cost_ns(network, together, [3.0, 5.0]) == 800.0 + EXCHANGE_NS / LONGEST_LAG
    assert step_cost_ns(network, together[:1], [3.0, 5.0]) == 800.0
    cut = ((Slice(0, 0, 50), Slice(1, 0, 100)), (Slice(0, 50, 100),))
    assert step_cost_ns(network, cut, [3.0, 5.0]) == 650.0 + EXCHANGE_NS


def test_plastic_projections_have_a_higher_estimated_cost() -> None:
    network = network_of([100, 100, 100])
    network.connect("p0", "p0", FixedInDegree(100), 1.0)
    network.connect("p1", "p1", FixedInDegree(100), 1.0, plasticity=STDP.additive(w_max=2.0))
    static, plastic, nothing = expected_load(network)
    assert nothing < static < plastic


# --- placements that are given to a simulation -------------------------------------------------------------------


HALVES = ((Slice(0, 0, 70),), (Slice(0, 70, 140),))


@pytest.mark.parametrize(
    "placement",
    [
        HALVES[:1],
        (*HALVES, ()),
        ((Slice(0, 0, 75),), (Slice(0, 70, 140),)),
        ((Slice(0, 0, 70),), (Slice(0, 80, 140),)),
        ((Slice(0, 0, 70),), (Slice(0, 70, 150),)),
        ((Slice(0, 0, 70),), (Slice(1, 70, 140),)),
    ],
    ids=["too few workers", "too many", "neurons twice", "neurons nowhere", "beyond the end", "no such population"],
)
def test_an_invalid_placement_is_refused_before_anything_starts(placement: Placement) -> None:
    with pytest.raises(ValueError, match="placement"):
        Simulation(network_of([140]), workers=2, placement=placement)


# --- how far apart shards may run --------------------------------------------------------------------------------


class Placed(ByTurns):
    """Shards that run by turns, with a given placement."""

    def __init__(self, placement: Placement, seed: int = 0) -> None:
        super().__init__(len(placement), seed)
        self._given = placement

    def _cut(self, network: Network) -> Placement:
        return self._given


def test_the_lag_of_two_shards_is_the_shortest_delay_from_one_to_the_other() -> None:
    network = network_of([10, 10, 10, 10])
    network.connect("p0", "p0", AllToAll(), 1.0, delay_ms=0.3)
    network.connect("p0", "p1", AllToAll(), 1.0, delay_ms=Uniform(2.0, 3.0))
    network.connect("p0", "p1", AllToAll(), 1.0, delay_ms=2.5)
    network.connect("p1", "p0", AllToAll(), 1.0, delay_ms=100.0)
    network.connect("p2", "p1", AllToAll(), 1.0, delay_ms=0.7)
    apart = tuple((Slice(p, 0, 10),) for p in range(4))
    far = LONGEST_LAG
    expected = [[3, far, far, far], [20, far, 7, far], [far, far, far, far], [far, far, far, far]]
    assert lags_between(network, apart).tolist() == expected
    listener = Listener(shard=3, population=1, delay_steps=11, depth_steps=20)
    expected[3][1] = 11
    assert lags_between(network, apart, [listener]).tolist() == expected
    network.neuromodulator("dopamine")
    network.modulate("p2", "dopamine", 1.0, delay_ms=0.4)
    network.connect("p0", "p3", AllToAll(), 1.0, delay_ms=9.0, plasticity=REWARD)
    assert lags_between(network, apart)[1:, 2].tolist() == [7, far, 4]  # plastic targets follow the level
    mixed = ((Slice(0, 0, 5), Slice(1, 0, 10)), (Slice(0, 5, 10),))
    assert lags_between(network, mixed).tolist() == [[3, 3], [3, 3]]


REWARD = RewardSTDP(w_max=2.0, a_plus=0.1, a_minus=0.05, every_ms=0.5, modulator="dopamine")


@given(st.lists(st.integers(1, LONGEST_LAG), min_size=9, max_size=9))
def test_no_slot_is_written_over_before_everybody_has_read_it(lags: list[int]) -> None:
    """A shard may be at step t when another one still has to read its step t - lag - lag of the other."""
    matrix = np.array(lags).reshape(3, 3)
    spike_buffers = SpikeBuffers.private(network_of([5, 5, 5]), tuple((Slice(p, 0, 5),) for p in range(3)), matrix)
    assert spike_buffers.slots > (matrix + matrix.T).max()


@st.composite
def networks_and_placements(draw: Any) -> tuple[Network, Placement]:
    """Regions, of sources and of neurons, with delays of very different lengths, or no connection; cut anyhow."""
    network = Network(dt_ms=0.1, seed=draw(st.integers(0, 99)))
    network.neuromodulator("dopamine", tau_ms=20.0)
    populations = draw(st.integers(2, 5))
    for p in range(populations):
        cells = network.population(f"p{p}", draw(st.integers(1, 30)), lif_delta, v_mv=Uniform(-70.0, -55.1))
        network.poisson(cells, rate_hz=1500.0, weight=2.0)
        network.record(cells)
    lengths = st.sampled_from([1, 2, 3, 17, 40, 63, 64, 65, 90])
    for _ in range(draw(st.integers(0, 6))):
        pre, post = (f"p{draw(st.integers(0, populations - 1))}" for _ in range(2))
        first, more = draw(lengths), draw(st.integers(0, 5))
        learning = draw(st.sampled_from([None, None, STDP.additive(w_max=2.0), REWARD]))
        delay = Uniform(0.1 * first, 0.1 * (first + more)) if more else 0.1 * first
        network.connect(pre, post, FixedInDegree(3), draw(st.sampled_from([0.5, 1.5])), delay, plasticity=learning)
    if draw(st.booleans()):
        network.modulate("p0", "dopamine", 0.1, delay_ms=0.1 * draw(lengths))
    shards = draw(st.integers(2, 4))
    held: list[list[Slice]] = [[] for _ in range(shards)]
    for population in network.populations:
        cut = draw(st.integers(0, population.n)) if draw(st.booleans()) else population.n
        one, other = sorted(draw(st.lists(st.integers(0, shards - 1), min_size=2, max_size=2, unique=True)))
        if cut:
            held[one].append(Slice(population.index, 0, cut))
        if cut < population.n:
            held[other].append(Slice(population.index, cut, population.n))
    return network, tuple(map(tuple, held))


@settings(max_examples=25)
@given(networks_and_placements(), st.integers(0, 99))
def test_shards_with_individual_lags_equal_one_process(
    tmp_path_factory: pytest.TempPathFactory, case: Any, seed: int
) -> None:
    network, placement = case
    steps, middle = 260, 131
    folder = tmp_path_factory.mktemp("state")
    with Simulation(network) as simulation:
        simulation.advance(middle)
        simulation.save(folder / "one")
        simulation.advance(steps - middle)
        expected = simulation.fingerprint()
        spikes = {p.name: simulation.spikes(p) for p in network.populations}
        assert sum(len(times) for times, _ in spikes.values()) > 3
    with Simulation(network, executor=Placed(placement, seed)) as simulation:
        simulation.advance(middle)
        simulation.save(folder / "many")
        simulation.advance(steps - middle)
        assert simulation.fingerprint() == expected
        for name, (times, ids) in spikes.items():
            assert np.array_equal(simulation.spikes(name)[0], times)
            assert np.array_equal(simulation.spikes(name)[1], ids)
        simulation.restore(folder / "one")
        simulation.advance(steps - middle)
        assert simulation.fingerprint() == expected
    with Simulation(network, executor=Placed(placement[::-1], seed + 1)) as simulation:
        simulation.restore(folder / "many")
        simulation.advance(steps - middle)
        assert simulation.fingerprint() == expected


def test_a_shard_without_inputs_runs_ahead_at_most_by_its_outbox(tmp_path: Path) -> None:
    """A source on a shard of its own with delays of one step: the fastest writer and the slowest reader."""
    network = Network(dt_ms=0.1, seed=1)
    source = network.population("source", 4, spike_source)
    network.spikes(source, 0.1 * np.arange(1, 1001), np.arange(1000) % 4)
    cells = network.population("cells", 4, lif_delta)
    network.connect(source, cells, AllToAll(), 1.5, delay_ms=0.1)
    network.record(cells)
    with Simulation(network) as simulation:
        simulation.advance(1000)
        expected = simulation.fingerprint()
        assert len(simulation.spikes(cells)[0]) > 50
    placement = ((Slice(0, 0, 4),), (Slice(1, 0, 4),))
    with Simulation(network, executor=Placed(placement)) as simulation:
        fast, slow = simulation._executor._runners  # type: ignore[attr-defined]
        fast.shard.advance(1000, 0, 0)
        assert LONGEST_LAG <= fast.shard.step < SpikeBuffers.private(network, placement).slots
        simulation.advance(1000)
        assert slow.shard.step == 1000
        assert simulation.fingerprint() == expected
