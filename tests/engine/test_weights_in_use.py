"""Weights in use: shown weights equal delivered ones, and rounding is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuraxis.launch
from neuraxis.comm import DistributedContext
from neuraxis.errors import AccumulatorOverflow, RoundingWarning
from neuraxis.network import (
    STDP,
    AllToAll,
    Explicit,
    FixedInDegree,
    LogNormal,
    Network,
    OneToOne,
    PairwiseBernoulli,
    Uniform,
    projection,
)
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import LockstepExecutor, Simulation
from tests.engine.cuda.twin import TwinDevice, compiler
from tests.engine.running import adder, give_spikes

twin = pytest.mark.skipif(compiler() is None, reason="the twin of a GPU needs g++")
PLACES = [
    pytest.param({}, id="one process"),
    pytest.param({"workers": 2}, id="two workers"),
    pytest.param({"device": TwinDevice}, id="the twin of a GPU", marks=twin),
]
GIVEN = np.array([1e-6, 0.01, 0.1, 1.0, 1e3, 1e5])
IN_USE = np.array([0.0, 0.015625, 0.09375, 1.0, 1e3, 1e5])


def one_by_one(**options: Any) -> Network:
    """Source i has one synapse, onto neuron i, and all of them spike in step 1."""
    network = Network(dt_ms=0.1)
    sources = network.population("sources", 6, spike_source)
    cells = network.population("cells", 6, adder)
    network.connect(sources, cells, Explicit(range(6), range(6)), delay_ms=0.1, name="all", **options)
    give_spikes(network, sources, [[1]] * 6)
    return network


@pytest.mark.parametrize("place", PLACES)
def test_shown_weights_equal_delivered_ones_and_rounding_warns_once(place: dict[str, Any], tmp_path: Path) -> None:
    with pytest.warns(
        RoundingWarning, match=r"'all': 3 of 6 weights changed by more than 1 %, 1 of them to 0"
    ) as warned:
        simulation = Simulation(one_by_one(weight=GIVEN), **place)
    assert [one.filename for one in warned] == [__file__]
    with simulation:
        np.testing.assert_array_equal(simulation.weights("all"), IN_USE)
        summary = simulation.step(3)
        np.testing.assert_array_equal(simulation.state("cells", "total"), IN_USE)
        assert (summary.rounding["all"].changed, summary.rounding["all"].to_zero) == (3, 1)
        assert "rounded in fixed point: all: 3 of 6 weights" in str(summary)
        assert summary.as_json()["rounding"] == {"all": {"synapses": 6, "changed": 3, "to_zero": 1}}
        simulation.save(tmp_path)
        simulation.restore(tmp_path)
        np.testing.assert_array_equal(simulation.synapses("all")["weight"], IN_USE)


@pytest.mark.parametrize("place", PLACES)
def test_plastic_weights_are_those_in_use_while_they_learn(place: dict[str, Any], tmp_path: Path) -> None:
    rule = STDP.multiplicative(w_max=3e5, learning_rate=0.3)
    with pytest.warns(RoundingWarning, match="3 of 6"):
        simulation = Simulation(one_by_one(weight=GIVEN, plasticity=rule), **place)
    with simulation:
        np.testing.assert_array_equal(simulation.weights("all"), IN_USE)
        simulation.step(3)
        np.testing.assert_array_equal(simulation.state("cells", "total"), IN_USE)

    def learning() -> Network:
        network = Network(dt_ms=0.1)
        sources = network.population("sources", 40, spike_source)
        cells = network.population("cells", 40, lif_delta(v_threshold_mv=-69.9))
        seen = network.population("seen", 40, adder)
        network.connect(sources, cells, OneToOne(), Uniform(0.2, 2.7), 0.1, plasticity=rule, name="learning")
        network.connect(cells, seen, OneToOne(), weight=1.0, delay_ms=0.1)
        give_spikes(network, sources, [[1, 30 + i, 90] for i in range(40)])
        return network

    with Simulation(learning(), **place) as simulation:
        simulation.step(80)
        scale = 2.0 ** -simulation.network.exponent("cells", "input_mv")
        weights = simulation.weights("learning")
        assert np.array_equal(np.rint(weights * scale), weights * scale)
        simulation.save(tmp_path)
        simulation.step(40)
        simulation.restore(tmp_path)
        np.testing.assert_array_equal(simulation.weights("learning"), weights)


def test_a_few_rounded_weights_are_in_the_summary_and_no_warning() -> None:
    weights = np.ones(200)
    weights[:3] = 1e-7
    network = Network()
    network.population("cells", 200, adder)
    network.connect("cells", "cells", OneToOne(), weight=weights, name="few")
    with Simulation(network) as simulation:
        rounding = simulation.step(1).rounding
    assert {name: (one.changed, one.share) for name, one in rounding.items()} == {"few": (3, 0.015)}


# --- networks that one scale does not hold ---


@pytest.mark.parametrize("place", PLACES)
def test_weak_synapses_beside_strong_drivers_arrive_in_full(place: dict[str, Any]) -> None:
    """1000 synapses of 0.1 pA and 100 drivers of 5000 pA, each in one step: nothing is lost."""
    network = Network(dt_ms=0.1)
    weak, drivers = network.population("weak", 1000, spike_source), network.population("drivers", 100, spike_source)
    cells = network.population("cells", 5, adder)
    network.connect(weak, cells, AllToAll(), weight=0.1, delay_ms=0.1)
    network.connect(drivers, cells, AllToAll(), weight=5000.0, delay_ms=0.2)
    assert len(network.accumulators("cells")) == 2
    assert all(one.proven for one in network.accumulators("cells"))
    give_spikes(network, weak, [[1]] * 1000)
    give_spikes(network, drivers, [[5]] * 100)
    learning = STDP.additive(w_max=0.3)  # as weak as the others, and in the same accumulator
    network.connect(weak, cells, AllToAll(), weight=0.2, delay_ms=0.5, plasticity=learning, name="learning")
    network.record(cells, "arrived", every_ms=0.1)
    with Simulation(network, **place) as simulation:
        simulation.step(10)
        _, arrived = simulation.samples("cells", "arrived")
        assert arrived.max(axis=1).tolist() == [
            0, pytest.approx(100.0, rel=1e-4), 0, 0, 0, pytest.approx(200.0, rel=1e-4), 500e3, 0, 0, 0,
        ]  # fmt: skip
        np.testing.assert_allclose(simulation.weights("weak->cells"), 0.1, rtol=1e-4)


def heavy_tailed(n: int = 2000) -> Network:
    """Like 100,000 neurons with 1 % connectivity: the sum of their largest weights would fit no scale."""
    network = Network(dt_ms=0.1, seed=3)
    cells = network.population("cells", n, adder)
    sources = network.population("sources", n, spike_source)
    network.connect(sources, cells, PairwiseBernoulli(0.01), weight=LogNormal(-0.7, 0.94), delay_ms=0.1, name="tail")
    return network


def test_a_hundred_thousand_neurons_with_heavy_tailed_weights_are_described() -> None:
    for network in (heavy_tailed(100_000), heavy_tailed()):
        (used,) = network.accumulators("cells")
        assert used.exponent <= -13  # 12 bits for the mean of 0.77
        assert not used.proven  # every weight is looked at when it is drawn


@pytest.mark.parametrize("place", PLACES)
def test_heavy_tailed_weights_arrive_as_shown(place: dict[str, Any]) -> None:
    network = heavy_tailed()
    give_spikes(network, network["sources"], [[1]] * 2000)
    with Simulation(network, **place) as simulation:
        simulation.step(3)
        synapses = simulation.synapses("tail")
        expected = np.bincount(synapses["post"].astype(int), synapses["weight"].astype(float), 2000)
        np.testing.assert_array_equal(simulation.state("cells", "total"), expected.astype(np.float32))


def overflowing(patch: pytest.MonkeyPatch, plasticity: Any = None) -> Network:
    """A network whose weights do not fit; such a draw is too rare to wait for, so the bound is lowered."""
    patch.setattr(projection, "likely_sum", lambda count, typical, largest: 0.01 * count * typical)
    network = Network(dt_ms=0.1)
    network.population("sources", 2000, spike_source)
    network.population("cells", 20, adder)
    weight = LogNormal(-0.7, 0.94, high=250.0)
    network.connect("sources", "cells", FixedInDegree(2000), weight, 0.1, plasticity=plasticity)
    return network


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("plasticity", [None, STDP.additive(w_max=300.0)], ids=["static", "plastic"])
def test_a_draw_beyond_all_likelihood_is_an_error_and_no_wrong_sum(
    place: dict[str, Any], plasticity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = overflowing(monkeypatch, plasticity)
    text = r"'input' of population 'cells'.*neuron \d+ add up to .*high="
    with pytest.raises(AccumulatorOverflow, match=text) as raised:
        Simulation(network, **place)
    error = raised.value
    assert (error.population, error.receptor) == ("cells", "input")
    assert error.load >= error.limit
    assert 0 <= error.neuron < 20
    notes = "".join(getattr(error, "__notes__", ()))
    assert ("Raised by worker 0:\nTraceback" in notes) == (place.get("workers", 1) > 1)  # the lowest rank of several


def overflow_on_a_rank(backend: str) -> tuple[Any, ...]:
    with pytest.MonkeyPatch.context() as patch, DistributedContext(backend=backend) as context:
        network = overflowing(patch)
        with pytest.raises(AccumulatorOverflow) as raised:
            Simulation(network, executor=LockstepExecutor(context.world))
        return raised.value.population, raised.value.neuron, raised.value.load, raised.value.limit, str(raised.value)


def test_ranks_in_lockstep_raise_the_same_overflow() -> None:
    first, second = neuraxis.launch.run(overflow_on_a_rank, 2, "shm", timeout=100)
    assert first == second
    assert first[0] == "cells"
    assert first[2] >= first[3]


def test_the_bound_holds_with_room_to_spare() -> None:
    network = heavy_tailed()
    bound = network.projections[0].contribution().likely
    with Simulation(network) as simulation:
        synapses = simulation.synapses("tail")
    sums = np.bincount(synapses["post"].astype(int), synapses["weight"].astype(float))
    assert 3 * sums.max() < bound < 2**31 * 2.0 ** network.exponent("cells", "input")
