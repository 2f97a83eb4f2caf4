"""The cortex is sparse and never silent, relays its input from layer to layer, and learns only on request."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from neuraxis.brain.region import Afferent
from neuraxis.brain.regions.cortex import Cortex, CortexConfig, create_cortex_region
from neuraxis.brain.regions.sources import rate_source, thresholds
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, RewardSTDP
from neuraxis.simulation import Simulation

COLUMNS = 4
LAYERS = ("L4e", "L23e", "L5e")
FORWARD = [f"cortex.{a}->cortex.{b}{c}" for a, b in (("L4e", "L23e"), ("L23e", "L5e")) for c in ("", "#2")]


def make(config=None, modulators=("acetylcholine", "noradrenaline")) -> Network:
    """A thalamus before layer 4 of a cortex, and other cortex before its layer 2/3, both silent."""
    network = Network(seed=12)
    for name in modulators:
        network.neuromodulator(name, baseline=0.5, tau_ms=1e6)
    thalamus = network.population("thalamus", 160, rate_source)
    other = network.population("other", 200, rate_source)
    region = create_cortex_region(config)
    built = region.build(network, "cortex")
    region.receive(network, built, Afferent("up", thalamus, COLUMNS, 2.0, topographic=True))
    region.receive(network, built, Afferent("back", other, COLUMNS, 2.0, port="L23e", topographic=True))
    return network


def drive(simulation, population, *rates_hz):
    """Set the rate of each column of a source."""
    n = simulation.network[population].n
    rates = np.repeat(np.array(rates_hz, float), n // len(rates_hz))
    simulation.set_state(population, "threshold", thresholds(rates, simulation.network.dt_ms))


def cell_rates(simulation, time_ms=1000, settle_ms=100):
    """The rate of each excitatory cell over the next `time_ms`, by layer, with a row for each column."""
    simulation.advance(10 * settle_ms)
    before = {layer: simulation.spike_counts(f"cortex.{layer}") for layer in LAYERS}
    simulation.advance(10 * time_ms)
    return {
        layer: (simulation.spike_counts(f"cortex.{layer}") - before[layer]).reshape(COLUMNS, -1) * 1e3 / time_ms
        for layer in LAYERS
    }


def column_rates(simulation, **times):
    """Three layers by four columns."""
    return np.array([rates.mean(axis=1) for rates in cell_rates(simulation, **times).values()])


@pytest.fixture
def cortex():
    with Simulation(make(), progress=False) as simulation:
        yield simulation


def test_without_input_every_layer_is_nearly_silent(cortex):
    rates = column_rates(cortex, time_ms=3000)
    assert rates.min() > 0.2
    assert rates.max() < 2


@pytest.mark.parametrize("column", [0, 2])
def test_a_driven_column_is_active_and_the_others_are_not(cortex, column):
    rates = np.zeros(COLUMNS)
    rates[column] = 40.0
    drive(cortex, "thalamus", *rates)
    by_cell = cell_rates(cortex, time_ms=2000)
    measured = np.array([rates.mean(axis=1) for rates in by_cell.values()])
    low, high = np.array([10, 5, 10]), np.array([40, 25, 40])
    assert ((low < measured[:, column]) & (measured[:, column] < high)).all()
    assert np.delete(measured, column, axis=1).max() < 3
    for layer in LAYERS:
        assert 0.15 < (by_cell[layer] > 3).mean() <= 0.3


def test_all_columns_at_once_inhibit_each_other_but_stay_active(cortex):
    drive(cortex, "thalamus", 40, 0, 0, 0)
    single = column_rates(cortex)[:, 0]
    drive(cortex, "thalamus", 40, 40, 40, 40)
    together = column_rates(cortex).mean(axis=1)
    assert (together < 0.95 * single).all()
    assert (together > 0.5 * single).all()


def test_feedback_from_other_cortex_reaches_layers_23_and_5_but_not_4(cortex):
    drive(cortex, "other", 0, 20, 0, 0)
    rates = column_rates(cortex)
    assert rates[0].max() < 2
    assert rates[1, 1] > 5
    assert rates[2, 1] > 4
    assert np.delete(rates, 1, axis=1).max() < 3


def test_activity_travels_from_layer_4_to_23_to_5():
    network = make()
    for layer in LAYERS:
        network.record(f"cortex.{layer}")
    trials = 10
    with Simulation(network, progress=False) as simulation:
        for _ in range(trials):
            drive(simulation, "thalamus", 0)
            simulation.advance(1000)
            drive(simulation, "thalamus", 80, 0, 0, 0)
            simulation.advance(500)
        latencies = np.zeros((trials, len(LAYERS)))
        for k, layer in enumerate(LAYERS):
            times, ids = simulation.spikes(f"cortex.{layer}")
            cells = network[f"cortex.{layer}"].n // COLUMNS
            for trial in range(trials):
                onset = 150 * trial + 100
                after = times[(times > onset) & (ids < cells)] - onset
                latencies[trial, k] = after[cells // 4]  # until one spike for each fourth cell
    first, second, third = latencies.mean(axis=0)
    assert first + 1 < second
    assert second + 1 < third
    assert third < 40


def test_noradrenaline_raises_the_gain(cortex):
    drive(cortex, "thalamus", 40, 0, 0, 0)
    before = column_rates(cortex)
    cortex.release("noradrenaline", 1.0)
    raised = column_rates(cortex)
    cortex.release("noradrenaline", -1.0)
    after = column_rates(cortex)
    assert (raised[:, 0] > 1.15 * before[:, 0]).all()
    assert (raised[:, 0] < 2.5 * before[:, 0]).all()
    assert raised[:, 1:].max() < 3
    np.testing.assert_allclose(after[:, 0], before[:, 0], rtol=0.2)


def test_learning_needs_acetylcholine_and_leaves_rates_and_selectivity_as_they_were(cortex):
    first = {name: cortex.weights(name) for name in FORWARD}
    drive(cortex, "thalamus", 40, 0, 0, 0)
    before = column_rates(cortex, time_ms=2000)
    for name in FORWARD:
        np.testing.assert_array_equal(cortex.weights(name), first[name])

    cortex.release("acetylcholine", 1.0)
    cortex.advance(200_000)
    cortex.release("acetylcholine", -cortex.level("acetylcholine") + 0.5)
    learned = {name: cortex.weights(name) for name in FORWARD}
    for name in FORWARD:
        change = learned[name] / first[name]
        assert (change != 1).mean() > 0.2
        assert change.min() >= 0.499
        assert change.max() <= 1.201
    in_column = learned[FORWARD[0]] / first[FORWARD[0]]
    driven = in_column.reshape(COLUMNS, -1).mean(axis=1)
    assert driven[0] > 1.02
    np.testing.assert_allclose(driven[1:], 1, atol=0.01)

    after = column_rates(cortex, time_ms=2000)
    np.testing.assert_allclose(after[:, 0], before[:, 0], rtol=0.4)
    assert after[:, 1:].max() < 3
    for name in FORWARD:
        np.testing.assert_array_equal(cortex.weights(name), learned[name])


def test_without_neuromodulators_it_is_static_and_just_as_active(cortex):
    network = make(modulators=())
    assert not any(projection.plasticity for projection in network.projections)
    for simulation in (cortex, Simulation(network, progress=False)):
        with simulation:
            drive(simulation, "thalamus", 40, 0, 0, 0)
            column_rates(simulation, time_ms=200)
            counts = [simulation.spike_counts(f"cortex.{layer}") for layer in LAYERS]
        if simulation is cortex:
            expected = counts
    for mine, other in zip(expected, counts, strict=True):
        np.testing.assert_array_equal(mine, other)


# --- descriptions ---


def test_sizes_ports_and_populations():
    network = Network()
    region = create_cortex_region({"neurons": 80, "groups": 2})
    assert isinstance(region, Cortex)
    built = region.build(network, "v1")
    assert {name: population.n for name, population in built.populations.items()} == {
        "L4e": 80, "L4i": 16, "L23e": 120, "L23i": 24, "L5e": 80, "L5i": 16,
    }  # fmt: skip
    assert built.populations["L23i"] is network["v1.L23i"]
    assert built.input() is network["v1.L4e"]
    assert built.input("L23e") is built.output("L23e") is network["v1.L23e"]
    assert built.output() is network["v1.L5e"]
    assert built.inhibitory == {"L4i", "L23i", "L5i"}
    assert (built.groups, built.kind) == (2, "cortex")


def test_settings_choose_the_modulators():
    network = Network()
    network.neuromodulator("dopamine", baseline=0.2)
    region = create_cortex_region({"learning_modulator": "dopamine", "gain_modulator": None})
    built = region.build(network, "c")
    learning = [projection for projection in network.projections if projection.plasticity]
    assert [projection.name.replace("cortex", "c") for projection in learning] == [
        name.replace("cortex", "c") for name in FORWARD
    ]
    assert {projection.plasticity[0].modulator for projection in learning} == {"dopamine"}
    assert built.populations["L5e"].model.signals == {"level": 0.0}
    gained = create_cortex_region({"gain_modulator": "dopamine"}).build(network, "d")
    assert gained.populations["L5e"].model.signals == {"level": "dopamine"}


def test_a_pathway_is_made_as_it_asks():
    network = Network()
    network.neuromodulator("acetylcholine")
    source = network.population("source", 40, rate_source)
    region = create_cortex_region(CortexConfig(neurons=40))
    built = region.build(network, "c")

    def made(**asked):
        name = f"a{len(network.projections)}"
        (projection,) = region.receive(network, built, Afferent(name, source, 4, 3.0, **asked))
        return projection

    assert made().weight.value == pytest.approx(190.0)
    assert made(topographic=True).rule == FixedInDegree(10, multapses=False, groups=4)
    assert made(topographic=True).weight.value == pytest.approx(380.0)
    assert made(in_degree=8, weight=5.0).weight.value == 5.0
    assert made(port="L23e").post is built.populations["L23e"]
    assert made(plasticity="none").plasticity == ()
    (rule,) = made(plasticity="reward_stdp", weight=100.0).plasticity
    assert isinstance(rule, RewardSTDP)
    assert (rule.w_min, rule.w_max) == (50.0, 120.0)
    with pytest.raises(InvalidArgument, match="'source' has 5 groups and 'c' has 4"):
        region.receive(network, built, Afferent("b", source, 5, 1.0, topographic=True))
    with pytest.raises(InvalidArgument, match="no input 'L5e'"):
        made(port="L5e")
    with pytest.raises(InvalidArgument, match="plasticity='hebb'"):
        made(plasticity="hebb")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"neuron": 3}, "cortex: .*neuron"),
        ({"neurons": 3}, "neurons=3: must be 4 or more"),
        ({"strongest": 0.9}, "strongest=0.9"),
        ({"across_share": -1.0}, "across_share"),
        ({"lateral_in_degree": 0}, "lateral_in_degree=0"),
    ],
)
def test_wrong_settings_are_refused(config, message):
    with pytest.raises(InvalidArgument, match=message):
        create_cortex_region(config)


def test_a_region_can_be_sent_to_another_process():
    region = create_cortex_region({"neurons": 80})
    copied = pickle.loads(pickle.dumps(region))
    assert copied == region
    networks = [Network(), Network()]
    for one, network in zip((region, copied), networks, strict=True):
        network.neuromodulator("acetylcholine")
        one.build(network, "c")
    assert networks[0] == networks[1]
