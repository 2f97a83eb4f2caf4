"""Delivery of spikes: every form of synapse table, delays from one step to the longest, many neurons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuraxis.engine.cpu.static_tables import narrow_shifts
from neuraxis.engine.cpu.synapses import sort_rows
from neuraxis.network import AllToAll, Explicit, FixedInDegree, Network, Normal, OneToOne
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import Simulation

from .running import adder, give_spikes, random_trains, trains_of, two_adders, values_of

DT = 0.1


def test_weights_keep_their_precision_in_narrow_tables() -> None:
    """16 bits for the largest weight of a projection, 12 at least for a typical one."""
    n = 200
    weights = np.linspace(1.0, 3.0, n)
    network = Network(dt_ms=DT)
    source, target = network.population("source", n, spike_source), network.population("target", n, adder)
    network.connect(source, target, OneToOne(), weight=weights, delay_ms=DT)
    assert narrow_shifts(network), "this is about the narrow form"
    give_spikes(network, source, [[1]] * n)
    with Simulation(network) as simulation:
        simulation.step(2)
        found = simulation.state(target, "total").astype(float)
    assert np.abs(found / weights - 1).max() < 2**-13
    assert not np.array_equal(found, np.zeros(n))


def test_rows_of_wide_tables_are_sorted_by_source() -> None:
    """Rows of all lengths, empty and long ones included, and more of one length than are sorted together."""
    sizes = np.concatenate([[0, 2000], np.random.default_rng(1).integers(0, 20, 2000), np.full(20_000, 3)])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    words = np.random.default_rng(2).integers(0, 2**64 - 1, starts[-1], np.uint64)
    expected = np.concatenate([np.sort(row) for row in np.split(words, starts[1:-1])])
    sort_rows(np.append(starts, starts[-1]).astype(np.uint32), words)
    assert np.array_equal(words, expected)


def test_weights_that_differ_much_keep_their_precision_in_wide_tables() -> None:
    weights = np.array([100.0] + [0.01 * (1 + i / 50) for i in range(99)])
    network = Network(dt_ms=DT)
    source, target = network.population("source", 100, spike_source), network.population("target", 100, adder)
    network.connect(source, target, OneToOne(), weight=weights, delay_ms=DT)
    assert not narrow_shifts(network), "this is about the wide form"
    give_spikes(network, source, [[1]] * 100)
    with Simulation(network) as simulation:
        simulation.step(2)
        found = simulation.state(target, "total").astype(float)
    assert np.abs(found - weights).max() < 1e-4


def test_weak_and_strong_projections_side_by_side() -> None:
    """One source population with a weak and a strong projection onto the same receptor, and one onto the other."""
    network = Network(dt_ms=DT)
    source, target = network.population("source", 3, spike_source), network.population("target", 3, two_adders)
    for weight, delay in ((0.125, 1), (500.0, 2), (-0.375, 3), (1.0, 1)):
        network.connect(source, target, OneToOne(), weight=weight, delay_ms=delay * DT)
    give_spikes(network, source, [[1], [1, 2], []])
    with Simulation(network) as simulation:
        simulation.step(10)
        plus, minus = simulation.state(target, "plus"), simulation.state(target, "minus")
    assert plus == pytest.approx([501.125, 1002.25, 0.0], rel=1e-4)
    assert minus == pytest.approx([-0.375, -0.75, 0.0], rel=1e-4)


@pytest.mark.parametrize("delays", [[1, 2, 3], [1, 4000], [7, 3000, 3001, 4095], [1000], [1, 4096]], ids=str)
def test_every_delay_is_kept_to_the_step(delays: list[int]) -> None:
    n, steps = len(delays), 6000
    network = Network(dt_ms=DT)
    source, target = network.population("source", 1, spike_source), network.population("target", n, adder)
    network.connect(source, target, AllToAll(), weight=1.0, delay_ms=np.array(delays) * DT)
    train = random_trains(4, 1, steps, 0.01)[0]
    give_spikes(network, source, [train])
    network.record(target, "arrived")
    with Simulation(network) as simulation:
        simulation.step(steps)
        arrived = values_of(simulation, target, "arrived")
    for i, delay in enumerate(delays):
        expected = [s + delay for s in train if s + delay <= steps]
        assert (np.flatnonzero(arrived[:, i]) + 1).tolist() == expected


def test_the_longest_constant_delay() -> None:
    network = Network(dt_ms=DT)
    source, target = network.population("source", 1, spike_source), network.population("target", 1, adder)
    network.connect(source, target, OneToOne(), weight=1.0, delay_ms=6553.5)
    give_spikes(network, source, [[3, 5]])
    with Simulation(network) as simulation:
        simulation.step(65_537)
        assert simulation.state(target, "total")[0] == 0.0
        simulation.step(1)
        assert simulation.state(target, "total")[0] == 1.0
        simulation.step(2)
        assert simulation.state(target, "total")[0] == 2.0


def test_projections_with_delays_of_different_length_share_a_source() -> None:
    """Short, long and drawn delays, static and onto several populations: each spike arrives once at each synapse."""
    network = Network(dt_ms=DT, seed=6)
    source = network.population("source", 40, spike_source)
    targets = [network.population(name, 30, adder) for name in ("a", "b")]
    given: list[tuple[Any, Any]] = [
        (FixedInDegree(7), 0.1),
        (FixedInDegree(5), 250.0),
        (FixedInDegree(6), Normal(10.0, 5.0)),
    ]
    names = [
        (target, network.connect(source, target, rule, weight=0.5, delay_ms=delay).name)
        for target in targets
        for rule, delay in given
    ]
    trains = random_trains(8, 40, 500, 0.05)
    give_spikes(network, source, trains)
    for target in targets:
        network.record(target, "total")
    with Simulation(network) as simulation:
        simulation.step(3500)
        for target in targets:
            arriving = np.zeros((3500, 30))
            for owner, name in names:
                if owner is not target:
                    continue
                listed = simulation.synapses(name)
                for pre, post, delay in zip(listed["pre"], listed["post"], listed["delay_steps"], strict=True):
                    np.add.at(arriving[:, post], np.array(trains[pre], int) + delay - 1, 0.5)
            assert np.array_equal(values_of(simulation, target, "total"), np.cumsum(arriving, axis=0))


def test_more_targets_than_a_band_of_accumulators_holds() -> None:
    """70,000 neurons with two receptors: 140,000 accumulators, where 16 bits name one within a band."""
    n = 70_000
    rng = np.random.default_rng(1)
    network = Network(dt_ms=DT)
    source = network.population("source", 50, spike_source)
    first = network.population("first", 1030, two_adders)
    target = network.population("target", n, two_adders)
    last = network.population("last", 10, two_adders)
    give_spikes(network, source, [[1]] * 50)
    for population in (first, target, last):
        post = np.arange(population.n)
        for sign in (1, -1):
            pre = rng.integers(0, 50, population.n)
            weights = sign * (1 + (post % 1000) / 8)
            network.connect(source, population, Explicit(pre, post), weight=weights, delay_ms=DT)
    with Simulation(network) as simulation:
        simulation.step(2)
        for population in (first, target, last):
            expected = 1 + (np.arange(population.n) % 1000) / 8
            assert np.array_equal(simulation.state(population, "plus"), expected)
            assert np.array_equal(simulation.state(population, "minus"), -expected)


def test_many_spikes_in_one_step() -> None:
    """More segments in one step than are looked up at a time, all at one neuron: nothing is lost."""
    n = 20_000
    network = Network(dt_ms=DT)
    source, target = network.population("source", n, spike_source), network.population("target", 2, adder)
    network.connect(source, target, AllToAll(), weight=0.25, delay_ms=0.3)
    network.spikes(source, np.full(n, 0.5), np.arange(n))
    network.record(target, "arrived")
    with Simulation(network) as simulation:
        summary = simulation.step(12)
        arrived = values_of(simulation, target, "arrived")
    assert summary.synaptic_events == 2 * n
    assert arrived[7].tolist() == [0.25 * n, 0.25 * n]
    assert np.count_nonzero(arrived) == 2


def test_a_chain_passes_a_spike_on() -> None:
    """Each neuron makes the next one spike: one delay a link, from the end of a block to the start of the next."""
    n, delay = 1100, 3
    network = Network(dt_ms=DT)
    chain = network.population("chain", n, lif_delta)
    network.connect(chain, chain, Explicit(np.arange(n - 1), np.arange(1, n)), weight=20.0, delay_ms=delay * DT)
    network.spikes(chain, [0.1], [0])
    network.record(chain)
    with Simulation(network) as simulation:
        simulation.step(delay * n)
        assert trains_of(simulation, chain) == [[1 + delay * i] for i in range(n)]
