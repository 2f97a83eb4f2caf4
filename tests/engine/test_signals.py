"""Signals: the values of rhythms and neuromodulators in models, in every step, on every shard, after every restore."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import AllToAll, Network, RewardSTDP, neuron_model
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import Simulation
from tests.engine.running import values_of
from tests.simulation.by_turns import ByTurns

STEPS = 300


@neuron_model(states={"first": 0.0, "second": 0.0}, signals={"gain": 0.5, "beat": 0.25})
def follower(first, second, gain, beat):
    """Shows what it sees."""
    return False, gain, beat


def rhythmic() -> Network:
    network = Network(dt_ms=0.1, seed=3)
    network.neuromodulator("unused", baseline=7.0)
    network.rhythm("theta", 133.3, phase=0.4, floor=-0.3)
    network.rhythm("gamma", 5000.0)
    network.rhythm("delta", 1.5, phase=-0.25)
    network.population("a", 9, follower(gain="gamma", beat="theta"))
    network.population("b", 5, follower(gain="theta", beat="delta"))
    network.population("plain", 4, follower)
    network.population("given", 4, follower(beat=2))
    for population in network.populations:
        network.record(population, "first")
        network.record(population, "second")
    return network


def expected_of(network: Network, rhythm: str) -> list[float]:
    known = next(one for one in network.rhythms if one.name == rhythm)
    return [known.value_at(step, network.dt_ms) for step in range(1, STEPS + 1)]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_a_model_sees_the_value_of_each_rhythm_in_every_step(workers: int) -> None:
    network = rhythmic()
    with Simulation(network, executor=ByTurns(workers, seed=workers)) as simulation:
        simulation.advance(STEPS)
        for name, state, rhythm in [
            ("a", "first", "gamma"), ("a", "second", "theta"), ("b", "first", "theta"), ("b", "second", "delta"),
        ]:  # fmt: skip
            seen = values_of(simulation, network[name], state)
            expected = expected_of(network, rhythm)
            assert len(set(expected)) > 1
            assert (seen == np.array(expected)[:, None]).all(), f"{rhythm} in {name}"
        for name, pair in {"plain": (0.5, 0.25), "given": (0.5, 2.0)}.items():
            assert (values_of(simulation, network[name], "first") == pair[0]).all()
            assert (values_of(simulation, network[name], "second") == pair[1]).all()


def test_a_rhythm_goes_on_where_it_was_after_a_restore(tmp_path: Path) -> None:
    network = rhythmic()
    with Simulation(network, executor=ByTurns(3)) as simulation:
        simulation.advance(117)
        simulation.save(tmp_path)
    with Simulation(network, executor=ByTurns(2)) as simulation:
        simulation.advance(40)
        simulation.restore(tmp_path)
        simulation.advance(STEPS - 117)
        seen = simulation.samples("b", "first")[1]
        assert (seen == np.array(expected_of(network, "theta")[117:])[:, None]).all()


def test_a_state_of_another_rhythm_is_refused(tmp_path: Path) -> None:
    with Simulation(rhythmic()) as simulation:
        simulation.save(tmp_path)
    other = Network(dt_ms=0.1, seed=3)
    other.neuromodulator("unused", baseline=7.0)
    other.rhythm("theta", 133.3, phase=0.4, floor=-0.2)
    other.rhythm("gamma", 5000.0)
    other.rhythm("delta", 1.5, phase=-0.25)
    for population in rhythmic().populations:
        tied = {name: value for name, value in population.model.signals.items() if isinstance(value, str)}
        given = {"beat": 2} if population.name == "given" else {}
        other.population(population.name, population.n, follower(**tied, **given))
    with Simulation(other) as simulation, pytest.raises(OSError, match="another network"):
        simulation.restore(tmp_path)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_model_sees_the_baseline_and_the_level_of_a_neuromodulator(workers: int) -> None:
    network = Network(dt_ms=0.1, seed=3)
    network.neuromodulator("noise", baseline=-1.0)
    network.neuromodulator("dopamine", baseline=0.3, tau_ms=5.0)
    source = network.population("source", 3, spike_source)
    network.spikes(source, [0.5, 0.5, 1.1, 2.0], [0, 2, 1, 1])
    cells = network.population("cells", 6, follower(gain="dopamine", beat="noise"))
    network.modulate(source, "dopamine", amount=0.25, delay_ms=0.3)
    network.record(cells, "first")
    network.record(cells, "second")
    decay = np.float32(np.exp(-0.1 / 5.0))
    level, expected = np.float32(0.0), []
    with Simulation(network, executor=ByTurns(workers)) as simulation:
        for step in range(1, 61):
            level = level * decay + np.float32(0.25) * np.float32({8: 2, 14: 1, 23: 1}.get(step, 0))
            expected.append(np.float32(0.3) + level)
            simulation.advance(1)
            assert simulation.level("dopamine") == pytest.approx(0.3 + float(level), rel=1e-6)
            if step == 30:
                simulation.release("dopamine", 2.0)
                level = level + np.float32(2.0)
        seen = values_of(simulation, cells, "first")
        assert (values_of(simulation, cells, "second") == -1.0).all()
    assert (seen == seen[:, :1]).all()
    np.testing.assert_allclose(seen[:, 0], np.array(expected, np.float64), rtol=1e-6)
    assert seen[6, 0] == np.float32(0.3)  # not before the delay is over
    assert seen[7, 0] > 0.7
    assert seen[29, 0] < seen[30, 0] - 1.9


def test_learning_that_follows_a_rhythm_happens_at_its_values() -> None:
    """The rhythm is 1 and -1 by turns, and learning happens when it is -1 (or 1): what was potentiated is undone."""

    def learned(phase: float) -> float:
        network = Network(dt_ms=0.1)
        network.rhythm("swap", 5000.0, phase=phase)
        pre = network.population("pre", 1, spike_source)
        post = network.population("post", 1, lif_delta)
        rule = RewardSTDP(w_max=10.0, a_plus=0.1, a_minus=0.0, modulator="swap", every_ms=0.2)
        network.connect(pre, post, AllToAll(), 5.0, 0.1, plasticity=rule)
        network.spikes(pre, [1.0], [0])
        network.spikes(post, [1.5], [0])
        with Simulation(network) as simulation:
            simulation.advance(60)
            return float(simulation.weights("pre->post")[0])

    assert learned(0.0) > 5.01
    assert learned(0.5) < 4.99
    assert learned(0.0) - 5.0 == pytest.approx(5.0 - learned(0.5), rel=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda n: n.population("p", 2, follower(gain="dopamin")), InvalidArgument, "gain='dopamin'.*add it first"),
        (lambda n: n.population("p", 2, follower(gain="p")), InvalidArgument, "add it first"),
        (lambda n: follower(rate=2.0), InvalidArgument, "no parameter 'rate'; there is 'gain', 'beat'"),
        (lambda n: follower(gain=None), InvalidType, "gain=None"),
        (lambda n: follower(gain=float("nan")), InvalidArgument, "gain=nan"),
        (lambda n: lif_delta(tau_m_ms="dopamine"), InvalidType, "tau_m_ms='dopamine'"),
        (lambda n: neuron_model(states={"v": 0.0}, signals={"gain": "dopamine"})(no_gain), InvalidType, "gain"),
        (lambda n: neuron_model(states={"v": 0.0}, signals={"gain": 1.0})(no_gain), InvalidArgument, "signal 'gain'"),
        (
            lambda n: n.connect("c", "c", AllToAll(), 1.0, plasticity=reward("thet")),
            InvalidArgument,
            "modulator='thet': add it first",
        ),
    ],
)
def test_signals_that_cannot_be(call: Any, error: type[Exception], message: str) -> None:
    network = Network()
    network.neuromodulator("dopamine")
    network.rhythm("theta", 8.0)
    network.population("c", 2, lif_delta)
    before = network.copy()
    with pytest.raises(error, match=message):
        call(network)
    assert network == before


def reward(modulator: str) -> RewardSTDP:
    return RewardSTDP(w_max=2.0, a_plus=0.1, a_minus=0.1, modulator=modulator)


def no_gain(v):
    return False, v


def test_a_tie_can_be_changed_and_undone() -> None:
    tied = follower(gain="dopamine")
    assert tied.signals == {"gain": "dopamine", "beat": 0.25}
    assert tied(gain=3).signals == {"gain": 3.0, "beat": 0.25}
    assert tied(beat="theta").signals == {"gain": "dopamine", "beat": "theta"}
    assert follower.signals == {"gain": 0.5, "beat": 0.25}
    assert "gain=dopamine" in str(tied)
