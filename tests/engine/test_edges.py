"""Limits of tables, histories and models: each raises an error or is exact, never silently wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neuraxis.engine.cpu import plastic_tables
from neuraxis.errors import CheckpointError, InvalidArgument
from neuraxis.network import (
    STDP,
    AllToAll,
    Explicit,
    FixedInDegree,
    HomeostaticScaling,
    Network,
    RewardSTDP,
    Uniform,
    neuron_model,
)
from neuraxis.network.models import lif_delta, lif_exp, spike_source
from neuraxis.simulation import SequentialExecutor, Simulation


@neuron_model(states={"total": 0.0}, receptors=("input",))
def keeper(total, input):
    return False, total + input


def learning_pair(plasticity) -> Network:
    """One synapse with a long delay onto a target that spikes all the time."""
    network = Network(seed=1)
    network.neuromodulator("dopamine")
    source = network.population("source", 1, spike_source)
    target = network.population("target", 1, spike_source_with_input)
    network.spikes(source, np.arange(5.0, 300.0, 37.0), np.zeros(8, int))
    network.spikes(target, np.arange(1.0, 300.0, 1.0), np.zeros(299, int))
    network.connect(source, target, AllToAll(), 0.5, 20.0, plasticity=plasticity)
    return network


@neuron_model(states={"total": 0.0}, receptors=("input",))
def spike_source_with_input(total, input):
    return False, total + input


RULES = {
    "pairs": STDP.additive(w_max=1.0, learning_rate=0.002, alpha=0.5),
    "reward": RewardSTDP(w_max=1.0, a_plus=1e-6, a_minus=5e-7, every_ms=1.0),
    "pairs and homeostasis": [
        STDP.additive(w_max=1.0, learning_rate=0.002, alpha=0.5),
        HomeostaticScaling(900.0, every_ms=1.0, strength=0.001, w_max=1.0),
    ],
}


@pytest.mark.parametrize("rule", RULES)
def test_notes_of_spikes_are_kept_as_long_as_they_are_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any division of a run, and any initial capacity, keep the histories of spikes."""

    def learned(pieces: int) -> bytes:
        with Simulation(learning_pair(RULES[rule])) as simulation:
            simulation.release("dopamine", 1.0)
            for _ in range(pieces):
                simulation.run(300.0 / pieces)
            return bytes(simulation.weights("source->target").tobytes())

    whole = learned(1)
    assert learned(300) == whole
    monkeypatch.setattr(plastic_tables, "FIRST_CAPACITY", 1024)
    assert learned(1) == whole
    assert np.frombuffer(whole, np.float32)[0] not in (0.0, 0.5, 1.0)


def test_too_many_synapses_with_one_delay_are_refused() -> None:
    network = Network(seed=1)
    source = network.population("source", 1, spike_source)
    network.connect(source, network.population("many", 60_000, keeper), FixedInDegree(300), 0.1, 1.0)
    with pytest.raises(InvalidArgument, match=r"source has 16,777,216 synapses or more"):
        Simulation(network)


def test_a_network_with_few_synapses_and_many_delays_stays_small() -> None:
    network = Network(seed=1)
    cells = network.population("cells", 5000, lif_delta)
    network.connect(cells, cells, FixedInDegree(10), 0.1, Uniform(0.1, 50.0))
    with Simulation(network) as simulation:
        assert simulation.build.bytes_per_synapse < 9


def test_given_weights_of_many_magnitudes_arrive() -> None:
    weights = np.array([1.0, 1e-2, 1e-4])
    network = Network(seed=1)
    source = network.population("source", 1, spike_source)
    target = network.population("target", 3, keeper)
    network.spikes(source, [1.0], [0])
    network.connect(source, target, Explicit([0, 0, 0], [0, 1, 2]), weights, 1.0)
    with Simulation(network) as simulation:
        simulation.run(5.0)
        np.testing.assert_allclose(simulation.state("target", "total"), weights, rtol=5e-3)


def test_decaying_states_become_exactly_zero() -> None:
    network = Network(seed=1)
    source = network.population("source", 1, spike_source)
    target = network.population("target", 3, lif_exp)
    network.spikes(source, [1.0], [0])
    network.connect(source, target, AllToAll(), 50.0, 1.0)
    with Simulation(network) as simulation:
        simulation.run(3.0)
        assert np.all(simulation.state("target", "i_syn_pa") > 0)
        simulation.run(60.0)
        assert np.all(simulation.state("target", "i_syn_pa") == 0.0)


def test_a_power_in_a_model_is_a_product() -> None:
    @neuron_model(states={"x": 1.5, "y": 2.5})
    def powers(x, y):
        return False, x**2, y**1.5

    network = Network()
    network.population("cells", 1, powers)
    with Simulation(network) as simulation:
        simulation.step(2)
        assert simulation.state("cells", "x")[0] == np.float32(1.5) ** 4
        np.testing.assert_allclose(simulation.state("cells", "y"), 2.5 ** (1.5**2), rtol=1e-5)


def test_a_receptor_that_the_function_does_not_take_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="does not take the receptor 'ghost'"):

        @neuron_model(states={"x": 0.0}, receptors=("input", "ghost"))
        def model(x, input):
            return False, x + input


def test_too_many_receptors_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="40 of them"):
        neuron_model(states={"x": 0.0}, receptors=tuple(f"r{i}" for i in range(40)))


def test_an_executor_runs_one_simulation() -> None:
    executor = SequentialExecutor()
    network = Network()
    network.population("cells", 3, lif_delta)
    with Simulation(network, executor=executor), pytest.raises(InvalidArgument, match="already runs a simulation"):
        Simulation(network, executor=executor)


def test_times_that_cannot_be_are_refused() -> None:
    network = Network()
    cells = network.population("cells", 3, lif_delta)
    with pytest.raises(InvalidArgument, match="beyond the last step"):
        network.spikes(cells, [2.0**32], [0])
    with Simulation(network) as simulation:
        with pytest.raises(InvalidArgument, match=r"time_ms=0\.25: a whole number of steps"):
            simulation.run(0.25)
        with pytest.raises(InvalidArgument, match="steps at most"):
            simulation.step(2**31)


def test_saving_touches_nothing_that_is_not_its_own(tmp_path: Path) -> None:
    network = Network()
    network.population("cells", 3, lif_delta)
    (tmp_path / "state-of-my-thesis").mkdir()
    with Simulation(network) as simulation:
        simulation.save(tmp_path)
        simulation.step()
        simulation.save(tmp_path)
        assert (tmp_path / "state-of-my-thesis").is_dir()
        assert len(list(tmp_path.glob("state-????????"))) == 1
        other = tmp_path / "other"
        other.mkdir()
        (other / "manifest.json").write_text('{"mine": true}')
        with pytest.raises(CheckpointError, match=r"manifest\.json: exists"):
            simulation.save(other)
        assert [p.name for p in other.iterdir()] == ["manifest.json"]
