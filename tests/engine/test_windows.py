"""Delivery by windows of delays: the same bits as delivery by delay, and a choice that fits the network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from neuraxis.engine.cpu import segments, static_tables, windows
from neuraxis.engine.cpu.segments import WindowChoice, choose_windows, has_several_delays
from neuraxis.network import AllToAll, Constant, Explicit, FixedInDegree, LogNormal, Network, Normal, Uniform
from neuraxis.network.distributions import Distribution
from neuraxis.network.library import brunel
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import Simulation
from tests.simulation.by_turns import ByTurns
from tests.simulation.networks import many_delays

from .running import adder, give_spikes, random_trains, values_of

BY_DELAY = 0


@pytest.fixture
def always_use(monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets the windows of all projections, of shards that are made after it."""

    def use(bits: int) -> None:
        def chosen(network: Network, projections, held: Mapping[int, int]) -> WindowChoice:
            return WindowChoice(bits, frozenset(p.index for p in projections) if bits else frozenset())

        monkeypatch.setattr(static_tables, "choose_windows", chosen)

    return use


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize(("first", "second"), [(BY_DELAY, 3), (5, BY_DELAY), (8, 1)], ids=str)
def test_a_state_of_one_representation_continues_in_another(
    first: int, second: int, precision: str, always_use, tmp_path: Path
) -> None:
    """Spikes are in flight, and windows have begun, when the state is saved; each step has the events that it had."""
    always_use(BY_DELAY)
    with Simulation(many_delays(7, precision)) as simulation:
        events = [simulation.step(1).synaptic_events for _ in range(500)]
        expected = simulation.fingerprint()
        trace = simulation.samples("part 0", "v_mv")[1]
    always_use(first)
    with Simulation(many_delays(7, precision), executor=ByTurns(3)) as simulation:
        simulation.step(301)
        simulation.save(tmp_path)
    always_use(second)
    with Simulation(many_delays(7, precision), executor=ByTurns(2)) as simulation:
        simulation.restore(tmp_path)
        assert [simulation.step(1).synaptic_events for _ in range(199)] == events[301:]
        assert simulation.fingerprint() == expected
        assert np.array_equal(simulation.samples("part 0", "v_mv")[1], trace[301:])
        simulation.restore(tmp_path)  # over a ring that is in use
        simulation.step(199)
        assert simulation.fingerprint() == expected


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("delays", [[1, 2, 3], [1, 4000], [7, 3000, 3001, 4095], [255, 256, 257, 511]], ids=str)
def test_every_delay_is_kept_to_the_step(bits: int, delays: list[int], always_use) -> None:
    always_use(bits)
    n, steps = len(delays), 6000
    network = Network(dt_ms=0.1)
    source, target = network.population("source", 1, spike_source), network.population("target", n, adder)
    network.connect(source, target, AllToAll(), weight=1.0, delay_ms=np.array(delays) * 0.1)
    train = random_trains(4, 1, steps, 0.02)[0]
    give_spikes(network, source, [train])
    network.record(target, "arrived")
    with Simulation(network) as simulation:
        simulation.step(steps)
        arrived = values_of(simulation, target, "arrived")
    for i, delay in enumerate(delays):
        assert (np.flatnonzero(arrived[:, i]) + 1).tolist() == [s + delay for s in train if s + delay <= steps]


def test_more_neurons_than_a_band_and_blocks_that_are_not_full(always_use) -> None:
    """The ring has no gaps where the accumulators have, and words count from the start of a band."""
    always_use(2)
    network = Network(dt_ms=0.1)
    source = network.population("source", 3, spike_source)
    targets = [network.population(f"target {n}", n, adder) for n in (1, 1025, 70_000, 17)]
    for target in targets:
        post = np.arange(target.n)
        network.connect(
            source, target, Explicit(post % 3, post), weight=1.0 + post % 100, delay_ms=(1 + post % 6) * 0.1
        )
    give_spikes(network, source, [[1]] * 3)
    with Simulation(network, executor=ByTurns(2)) as simulation:
        simulation.step(5)
        for target in targets:
            post = np.arange(target.n)
            arrived = post % 6 < 4
            assert np.array_equal(simulation.state(target, "total"), np.where(arrived, 1.0 + post % 100, 0.0))


def test_calendars_grow(always_use, monkeypatch: pytest.MonkeyPatch) -> None:
    """More segments in one step than the chunks of a new calendar hold: nothing is lost, and nothing comes twice."""
    monkeypatch.setattr(windows, "_FIRST_CHUNKS", 1)
    always_use(3)
    n = 5000
    network = Network(dt_ms=0.1)
    source, target = network.population("source", n, spike_source), network.population("target", 2, adder)
    network.connect(source, target, AllToAll(), weight=0.25, delay_ms=np.repeat([0.2, 3.0], n))
    for time_ms in (0.5, 0.6, 1.4, 2.6):
        network.spikes(source, np.full(n, time_ms), np.arange(n))
    network.record(target, "arrived")
    with Simulation(network) as simulation:
        summary = simulation.step(60)
        arrived = values_of(simulation, target, "arrived")
    assert summary.synaptic_events == 8 * n
    steps, neurons = np.nonzero(arrived)
    assert sorted((steps + 1).tolist()) == sorted(s + d for s in (5, 6, 14, 26) for d in (2, 30))
    assert (arrived[steps, neurons] == 0.25 * n).all()


def test_silenced_neurons_lose_what_arrives_meanwhile(always_use) -> None:
    network = Network(dt_ms=0.1)
    source, target = network.population("source", 1, spike_source), network.population("target", 4, adder)
    network.connect(source, target, AllToAll(), weight=1.0, delay_ms=np.array([3, 10, 17, 40]) * 0.1)
    give_spikes(network, source, [[1]])
    totals = []
    for bits in (BY_DELAY, 5):
        always_use(bits)
        with Simulation(network.copy()) as simulation:
            simulation.step(6)
            simulation.silence("target")
            simulation.step(8)
            simulation.silence()
            simulation.step(60)
            totals.append(simulation.state("target", "total").tolist())
    assert totals == [[1.0, 0.0, 1.0, 1.0]] * 2


# --- the choice ---


def choice(network: Network, workers: int = 1) -> WindowChoice:
    return choose_windows(network, network.projections, {p.index: p.n // workers for p in network.populations})


def network_with(delay: Distribution, in_degree: int, n: int = 2000) -> Network:
    network = Network(dt_ms=0.1)
    cells = network.population("cells", n, lif_delta)
    network.connect(cells, cells, FixedInDegree(in_degree), weight=0.1, delay_ms=delay)
    return network


@pytest.mark.parametrize(
    ("delay", "in_degree", "workers", "windowed"),
    [
        (Constant(1.5), 1000, 1, False),
        (Constant(1.5), 3, 8, False),  # short, but a window would not make it longer
        (Normal(1.5, 0.75, low=0.1), 3800, 2, False),
        (Uniform(0.1, 50.0), 1000, 1, True),
        (Uniform(0.1, 50.0), 1000, 8, True),
        (Normal(20.0, 10.0, low=0.1), 200, 1, True),
        (Normal(20.0, 10.0, low=0.1, outside="redraw"), 200, 1, True),
        (LogNormal(2.0, 0.8, high=90.0), 200, 1, True),
        (Uniform(0.1, 50.0), 50_000, 1, False),
    ],
    ids=str,
)
def test_windows_are_for_short_segments(delay: Distribution, in_degree: int, workers: int, windowed: bool) -> None:
    assert bool(choice(network_with(delay, in_degree), workers).projections) is windowed


def test_projections_of_one_population_share_segments_and_differ_in_windows() -> None:
    """Ten thin projections with one delay make one long segment; those with many delays beside them do not."""
    network = Network(dt_ms=0.1)
    cells = [network.population(f"cells {i}", 200, lif_delta) for i in range(10)]
    near = [network.connect(cells[0], target, FixedInDegree(5), weight=0.1, delay_ms=1.5) for target in cells]
    far = [network.connect(cells[0], one, FixedInDegree(5), weight=0.1, delay_ms=Uniform(1, 90)) for one in cells]
    chosen = choice(network)
    assert chosen.projections == {p.index for p in far}
    assert chosen.projections.isdisjoint(p.index for p in near)


def test_a_ring_takes_no_more_memory_than_synapses() -> None:
    """Few synapses onto many neurons: a long window would take more memory than all of them."""
    network = network_with(Uniform(0.1, 50.0), 20, n=10**6)
    chosen = choice(network)
    assert 4 * 10**6 << chosen.bits <= segments.RING_BYTES_A_SYNAPSE * 20 * 10**6


def test_only_networks_with_several_delays_need_the_kernels() -> None:
    assert not has_several_delays(brunel(100))
    assert has_several_delays(network_with(Uniform(0.1, 50.0), 10))
    network = network_with(Constant(1.5), 10)
    network.connect("cells", "cells", FixedInDegree(10), weight=0.1, delay_ms=2.5)
    assert has_several_delays(network)
