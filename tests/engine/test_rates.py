"""Continuous connections: bit for bit against plain NumPy, their noise against theory, and what ends in an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.engine.cpu.advance import is_check_step
from neuraxis.engine.placement import Slice
from neuraxis.engine.spikes import SpikeBuffers, clear_steps, lags_between, pack_outputs, unpack_outputs
from neuraxis.errors import InvalidArgument, InvalidType, NetworkInUse, NumericalInstability
from neuraxis.network import (
    AllToAll,
    Explicit,
    FixedInDegree,
    Network,
    Normal,
    OneToOne,
    PairwiseBernoulli,
    Uniform,
    neuron_model,
)
from neuraxis.network.models import lif_delta, rate_linear, rate_threshold_linear
from neuraxis.simulation import Simulation

DT = 0.1
F = np.float32


@neuron_model(states={"rate": 0.0}, rate_inputs=("one", "other"), output="rate", parameters={"mean": 0.0})
def relay(rate, one, other, mean):
    return False, one - other + mean


# --- the sums, in their order ---


def summed() -> Network:
    """Targets in two blocks, several projections onto one input, delays of one step and of many."""
    network = Network(dt_ms=DT, seed=11)
    a = network.population("a", 1100, relay(mean=0.1), rate=Normal(0.0, 1.0))
    b = network.population("b", 60, relay(mean=-0.2), rate=Uniform(-1.0, 1.0))
    network.connect_rates(b, a, FixedInDegree(k=7), weight=Normal(0.0, 0.3), delay_ms=Uniform(0.1, 3.0))
    network.connect_rates(a, a, FixedInDegree(k=3), weight=0.3, delay_ms=0.1)
    network.connect_rates(b, a, PairwiseBernoulli(p=0.05), 0.2, 1.7, "other")
    network.connect_rates(a, b, PairwiseBernoulli(p=0.02), Uniform(-0.2, 0.2), 0.4)
    network.connect_rates(b, b, OneToOne(), np.linspace(-0.5, 0.5, 60), np.repeat([0.1, 0.2, 2.0], 20), "other")
    # Twice the same synapse: both count, in their order.
    network.connect_rates(b, b, Explicit([3, 3, 4], [5, 5, 5]), [0.3, 0.7, 0.1], [0.2, 0.1, 0.1])
    return network


def oracle(network: Network, synapses: dict[str, dict[str, Any]], steps: int) -> dict[str, list[np.ndarray]]:
    """Return the outputs after each step, from step 0: float32 sums, one synapse of every target at a time."""
    with Simulation(network) as simulation:
        outputs = {p.name: [simulation.state(p, "rate")] for p in network.populations}
    for t in range(1, steps + 1):
        new = {}
        for population in network.populations:
            inputs = {name: np.zeros(population.n, F) for name in ("one", "other")}
            for projection in network.rate_projections:
                if projection.post.name == population.name:
                    add(inputs[projection.receptor], synapses[projection.name], outputs[projection.pre.name], t)
            new[population.name] = inputs["one"] - inputs["other"] + F(population.model.parameters["mean"])
        for name, values in new.items():
            outputs[name].append(values)
    return outputs


def add(total: np.ndarray, synapses: dict[str, Any], outputs: list[np.ndarray], t: int) -> None:
    """Add the inputs of the update from step t - 1 to t; synapses are sorted by target, source and delay."""
    post = synapses["post"]
    assert (np.diff(post) >= 0).all()
    nth = np.arange(len(post)) - np.searchsorted(post, post)
    for place_in_row in range(int(nth.max()) + 1):
        here = nth == place_in_row
        steps = t - 1 - synapses["delay_steps"][here]
        sources = synapses["pre"][here]
        values = np.array([outputs[s][i] if s >= 0 else 0.0 for s, i in zip(steps, sources, strict=True)], F)
        total[post[here]] += synapses["weight"][here] * values


def test_every_output_is_that_of_the_oracle_bit_for_bit() -> None:
    network, steps = summed(), 40
    for population in network.populations:
        network.record(population, "rate")
    with Simulation(network) as simulation:
        synapses = {one.name: simulation.synapses(one) for one in network.rate_projections}
        simulation.step(steps)
        expected = oracle(network.copy(), synapses, steps)
        for population in network.populations:
            _, found = simulation.samples(population, "rate")
            assert np.array_equal(found, np.array(expected[population.name][1:])), population.name
    assert [len(one["pre"]) for one in synapses.values()][:2] == [7700, 3300]
    assert synapses["b->b#2"]["weight"].tolist() == [F(0.7), F(0.3), F(0.1)]
    assert np.abs(expected["b"][-1]).max() > 0.1
    assert len(np.unique(expected["a"][-1])) > 1000


def test_what_a_delay_is() -> None:
    """The update from t to t + dt receives the output of t - delay, and 0 from before time 0."""
    network = Network(dt_ms=DT)
    clock = network.population("clock", 1, counter, rate=5.0)
    late = network.population("late", 3, relay)
    network.connect_rates(clock, late, Explicit([0, 0, 0], [0, 1, 2]), weight=1.0, delay_ms=[0.1, 0.3, 0.7])
    network.record(late, "rate")
    with Simulation(network) as simulation:
        simulation.step(10)
        _, found = simulation.samples(late, "rate")
    for neuron, delay in enumerate((1, 3, 7)):
        assert found[:, neuron].tolist() == [max(0, 5 + t - 1 - delay) if t > delay else 0 for t in range(1, 11)]


@neuron_model(states={"rate": 0.0}, output="rate")
def counter(rate):
    return False, rate + 1.0


# --- noise ---


def test_noise_is_an_ornstein_uhlenbeck_process_whatever_the_step() -> None:
    sigma, tau_ms, n = 2.0, 5.0, 4000
    for dt_ms in (0.1, 2.0):
        network = Network(dt_ms=dt_ms, seed=1)
        free = network.population("free", n, rate_linear(sigma=sigma, tau_ms=tau_ms, mean=1.0), rate=1.0)
        fed = network.population("fed", n, rate_linear(tau_ms=tau_ms), rate=1.0)
        network.connect_rates(free, fed, OneToOne(), weight=1.0, delay_ms=dt_ms)
        for population in (free, fed):
            network.record(population, "rate", every_ms=10.0)
        with Simulation(network) as simulation:
            simulation.run(200.0)
            found, filtered = (simulation.samples(name, "rate")[1][5:] for name in ("free", "fed"))
        # 16 samples of 4000 neurons, nearly independent: 4 standard errors.
        assert found.mean() == pytest.approx(1.0, abs=4 * sigma / np.sqrt(found.size))
        assert found.var() == pytest.approx(sigma**2 / 2, rel=4 * np.sqrt(2 / found.size))
        assert np.corrcoef(found[:-1].ravel(), found[1:].ravel())[0, 1] == pytest.approx(np.exp(-2), abs=0.016)
        assert filtered.mean() == pytest.approx(1.0, abs=4 * sigma / np.sqrt(found.size))
        if dt_ms < 1:  # a second filter of the same time constant halves the variance
            assert filtered.var() == pytest.approx(sigma**2 / 4, rel=0.03)


# --- outputs in buffers ---


def test_outputs_travel_as_they_are() -> None:
    network = Network(dt_ms=DT)
    cells = network.population("cells", 3, lif_delta)
    a = network.population("a", 5, rate_linear)
    b = network.population("b", 2, rate_linear)
    c = network.population("c", 1, rate_linear)  # not read by anyone
    network.connect_rates(a, c, AllToAll(), 1.0, 0.4)
    network.connect_rates(b, a, AllToAll(), 1.0, 2.0)
    placement = (
        (Slice(cells.index, 0, 3), Slice(a.index, 0, 2)),
        (Slice(a.index, 2, 5), Slice(b.index, 0, 2), Slice(c.index, 0, 1)),
    )
    assert lags_between(network, placement).tolist() == [[64, 21], [5, 5]]
    here, there = (SpikeBuffers.private(network, placement) for _ in range(2))
    assert here.output_counts.tolist() == [2, 5]
    for step in range(1, 9):
        here.outputs(1)[step % here.slots] = step + np.arange(5) / 8
    here.slot(1, 3)[:4] = 1  # spikes and outputs are beside each other
    packed = pack_outputs(here, 1, 2, 5)
    assert packed.dtype == F
    assert packed.tolist() == [step + i / 8 for step in range(2, 6) for i in range(5)]
    unpack_outputs(there, 1, 2, 5, packed, 4)
    assert [there.outputs(1)[step, 0] for step in range(1, 7)] == [0, 0, 0, 4, 5, 0]
    clear_steps(there, 1, 4, 5, 5)
    assert [there.outputs(1)[step, 4] for step in range(1, 7)] == [0, 0, 0, 4.5, 0, 0]
    unpack_outputs(there, 1, 3, 4, np.zeros(0, F), 3)  # a step that was lost
    assert not there.outputs(1).any()
    assert pack_outputs(here, 0, 1, 2).size == 4
    assert pack_outputs(SpikeBuffers.private(Network(), ((),)), 0, 1, 2).size == 0


# --- acting on a run ---


def test_a_silenced_population_has_the_output_0(tmp_path: Path) -> None:
    network = Network(dt_ms=DT)
    source = network.population("source", 2, counter, rate=10.0)
    target = network.population("target", 2, relay)
    network.connect_rates(source, target, OneToOne(), weight=1.0, delay_ms=0.2)
    network.record(target, "rate", subset=1)
    with Simulation(network) as simulation:
        simulation.step(4)
        simulation.silence("source")
        simulation.step(3)
        simulation.silence()
        simulation.save(tmp_path)
        simulation.step(4)
        _, found = simulation.samples(target, "rate")
        assert found[:, 0].tolist() == [0, 0, 10, 11, 12, 13, 14, 0, 0, 0, 15]
        fingerprint = simulation.fingerprint()
        simulation.restore(tmp_path)
        simulation.step(4)
        assert simulation.fingerprint() == fingerprint
        # A state that is set is transmitted with the next step.
        simulation.set_state("source", "rate", 100.0)
        simulation.step(4)
        assert simulation.samples(target, "rate")[1][-4:, 0].tolist() == [16, 17, 18, 101]


def test_fingerprints_tell_rates_apart() -> None:
    def fingerprint(**parameters: float) -> str:
        network = Network(dt_ms=DT)
        cells = network.population("cells", 3, rate_linear(**parameters), rate=[0.1, 0.2, 0.3])
        if parameters:
            network.connect_rates(cells, cells, OneToOne(), weight=-0.1)
        with Simulation(network) as simulation:
            summary = simulation.step(20)
            assert summary.synapses == (3 if parameters else 0)
            return summary.fingerprint

    found = [fingerprint(mean=0.0), fingerprint(mean=0.1), fingerprint()]
    assert len(set(found)) == 3


def test_a_rate_that_diverges_is_an_error() -> None:
    network = Network(dt_ms=DT)
    network.population("calm", 2, rate_linear)
    wild = network.population("wild", 5, rate_linear(gain=1e6), rate=[0.0, 0.0, 0.0, 1.0, 0.0])
    network.connect_rates(wild, wild, OneToOne(), weight=1e6, delay_ms=DT)
    with Simulation(network) as simulation, pytest.raises(NumericalInstability, match="rate of neuron 3") as raised:
        simulation.step(100)
    assert is_check_step.py_func(raised.value.step)


# --- what cannot be described ---


def test_descriptions_that_are_refused() -> None:
    network = Network(dt_ms=DT)
    cells = network.population("cells", 4, lif_delta)
    units = network.population("units", 4, rate_threshold_linear)
    with pytest.raises(InvalidArgument, match="lif_delta has no output to transmit"):
        network.connect_rates(cells, units, OneToOne(), 1.0)
    with pytest.raises(InvalidArgument, match="lif_delta has no rate inputs"):
        network.connect_rates(units, cells, OneToOne(), 1.0)
    with pytest.raises(InvalidArgument, match=r"rate_input='rate'.*input"):
        network.connect_rates(units, units, OneToOne(), 1.0, rate_input="rate")
    with pytest.raises(InvalidArgument, match="delay_ms"):
        network.connect_rates(units, units, OneToOne(), 1.0, delay_ms=0.0)
    with pytest.raises(InvalidArgument, match="float32"):
        network.connect_rates(units, units, OneToOne(), 1e39)
    with pytest.raises(InvalidType, match="rule="):
        network.connect_rates(units, units, 3, 1.0)
    with pytest.raises(InvalidArgument, match="tau_ms=0"):
        network.population("none", 1, rate_linear(tau_ms=0.0))
    with pytest.raises(InvalidArgument, match=r"sigma=-1"):
        network.population("none", 1, rate_linear(sigma=-1.0))
    assert network.rate_projections == ()
    first = network.connect_rates(units, units, OneToOne(), 1.0)
    assert network.connect_rates("units", "units", OneToOne(), 1.0).name == "units->units#2"
    with pytest.raises(InvalidArgument, match="already"):
        network.connect_rates(units, units, OneToOne(), 1.0, name=first.name)
    assert "rate projections" in str(network)
    with Simulation(network), pytest.raises(NetworkInUse):
        network.connect_rates(units, units, OneToOne(), 1.0)
    with pytest.raises(InvalidArgument, match="output='rte': a state that is a float is expected; did you mean 'rate'"):
        neuron_model(states={"rate": 0.0, "count": 0}, output="rte")(counted)
    with pytest.raises(InvalidArgument, match="output='count'"):
        neuron_model(states={"rate": 0.0, "count": 0}, output="count")(counted)
    with pytest.raises(InvalidArgument, match="does not take the rate input 'in1'"):
        neuron_model(states={"rate": 0.0, "count": 0}, rate_inputs=("in1",))(counted)
    with pytest.raises(InvalidType, match="rate_inputs='input'"):
        neuron_model(states={"rate": 0.0, "count": 0}, rate_inputs="input")(counted)


def counted(rate, count):
    return False, rate, count
