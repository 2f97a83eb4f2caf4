"""The thalamus relays its input, group by group, unless its gate is closed."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from neuraxis.brain.region import Afferent
from neuraxis.brain.regions.sources import rate_source, thresholds
from neuraxis.brain.regions.thalamus import Thalamus, ThalamusConfig, create_thalamus_region
from neuraxis.errors import InvalidArgument
from neuraxis.network import FixedInDegree, Network, PairwiseBernoulli
from neuraxis.simulation import Simulation

GROUPS = 4


def make(config=None, sensors=160, topographic=True, rhythm=None) -> Network:
    """An eye and a prefrontal cortex, both silent, before a thalamus: the eye at its relay, the other at its gate."""
    network = Network(seed=11)
    if rhythm is not None:
        network.rhythm(rhythm, 10.0)
    eye = network.population("eye", sensors, rate_source)
    prefrontal = network.population("prefrontal", 160, rate_source)
    region = create_thalamus_region(config)
    built = region.build(network, "thalamus")
    region.receive(network, built, Afferent("see", eye, GROUPS, 2.0, topographic=topographic))
    region.receive(network, built, Afferent("close", prefrontal, GROUPS, 2.0, port="gate"))
    network.record("thalamus.relay")
    return network


def drive(simulation, population, *rates_hz):
    """Set the rate of each group of a source."""
    n = simulation.network[population].n
    rates = np.repeat(np.array(rates_hz, float), n // len(rates_hz))
    simulation.set_state(population, "threshold", thresholds(rates, simulation.network.dt_ms))


def group_rates(simulation, time_ms=1000.0, population="thalamus.relay", settle_ms=50.0):
    """The mean rate of each group over the next `time_ms`, after some time to settle."""
    steps = round(1 / simulation.network.dt_ms)
    simulation.advance(int(settle_ms) * steps)
    before = simulation.spike_counts(population)
    simulation.advance(int(time_ms) * steps)
    counts = simulation.spike_counts(population) - before
    return counts.reshape(GROUPS, -1).mean(axis=1) * 1e3 / time_ms


@pytest.fixture
def thalamus():
    with Simulation(make(), progress=False) as simulation:
        yield simulation


@pytest.mark.parametrize("group", [0, 3])
def test_each_group_is_relayed_to_its_group_only(thalamus, group):
    rates = np.zeros(GROUPS)
    rates[group] = 60.0
    drive(thalamus, "eye", *rates)
    relayed = group_rates(thalamus)
    assert 20 < relayed[group] < 60
    assert np.delete(relayed, group).max() < 3


def test_a_stronger_input_is_relayed_more_strongly(thalamus):
    measured = []
    for rate in (0, 20, 40, 60, 80):
        drive(thalamus, "eye", rate, 0, 0, 0)
        measured.append(group_rates(thalamus)[0])
    assert measured[0] == 0
    assert measured[1] > 3
    assert np.diff(measured).min() > 3


@pytest.mark.parametrize(("sensors", "topographic"), [(40, True), (400, True), (40, False), (400, False)])
def test_the_drive_does_not_depend_on_how_many_sources_there_are(sensors, topographic):
    measured = []
    for count in (160, sensors):
        with Simulation(make(sensors=count, topographic=topographic), progress=False) as simulation:
            drive(simulation, "eye", 60)
            measured.append(group_rates(simulation).mean())
    assert measured[1] == pytest.approx(measured[0], rel=0.15)


def test_feedback_inhibition_reduces_the_rate(thalamus):
    drive(thalamus, "eye", 60, 0, 0, 0)
    with_feedback = group_rates(thalamus)[0]
    assert group_rates(thalamus, population="thalamus.reticular")[0] > 20
    with Simulation(make({"feedback_pa": 0.0}), progress=False) as without:
        drive(without, "eye", 60, 0, 0, 0)
        alone = group_rates(without)[0]
    assert 0.3 * alone < with_feedback < 0.75 * alone


def test_a_strong_group_weakens_the_others(thalamus):
    drive(thalamus, "eye", 0, 35, 0, 0)
    alone = group_rates(thalamus)[1]
    drive(thalamus, "eye", 100, 35, 0, 0)
    beside = group_rates(thalamus)[1]
    assert beside < 0.75 * alone


def test_the_gate_closes_and_opens_again(thalamus):
    drive(thalamus, "eye", 60, 60, 0, 0)
    before = group_rates(thalamus)[:2]
    drive(thalamus, "prefrontal", 20)
    closed = group_rates(thalamus)[:2]
    drive(thalamus, "prefrontal", 0)
    after = group_rates(thalamus)[:2]
    assert before.min() > 20
    assert (closed < 0.1 * before).all()
    np.testing.assert_allclose(after, before, rtol=0.15)


def test_one_active_group_in_prefrontal_cortex_closes_the_gate_and_its_background_does_not(thalamus):
    drive(thalamus, "eye", 60, 0, 0, 0)
    before = group_rates(thalamus)[0]
    drive(thalamus, "prefrontal", 0.7)
    quiet = group_rates(thalamus)[0]
    drive(thalamus, "prefrontal", 30, 0.7, 0.7, 0.7)
    closed = group_rates(thalamus)[0]
    assert quiet > 0.75 * before
    assert closed < 0.1 * before


def test_the_upper_half_of_a_rhythm_closes_the_gate():
    rates = []
    for config in (None, {"gate_rhythm": "alpha"}):
        with Simulation(make(config, rhythm="alpha"), progress=False) as simulation:
            drive(simulation, "eye", 60, 0, 0, 0)
            simulation.advance(21_000)
            times, _ = simulation.spikes("thalamus.relay")
            turns = (times[times > 100] / 100) % 1  # 0 at the top of the cosine
            counts = np.histogram(turns, [0, 0.2, 0.4, 0.7, 0.9, 1])[0]
            rates.append(counts / np.array([0.2, 0.2, 0.3, 0.2, 0.1]) / 2.0 / 40)
    free, gated = rates
    top, bottom = [0, 4], 2
    assert (gated[top] < 0.1 * free[top]).all()
    assert gated[bottom] > 0.7 * free[bottom]


# --- descriptions ---


def test_sizes_ports_and_populations():
    network = Network()
    region = create_thalamus_region({"relay": 80, "groups": 2, "delay_ms": 0.5})
    assert isinstance(region, Thalamus)
    built = region.build(network, "lgn")
    assert {name: population.n for name, population in built.populations.items()} == {"relay": 80, "reticular": 16}
    assert [population.name for population in network.populations] == ["lgn.relay", "lgn.reticular"]
    assert built.input() is built.input("relay") is built.output() is network["lgn.relay"]
    assert built.input("gate") is network["lgn.reticular"]
    assert built.inhibitory == {"reticular"}
    assert (built.groups, built.kind) == (2, "thalamus")
    assert {projection.delay_ms.value for projection in network.projections} == {0.5}


def test_a_pathway_is_made_as_it_asks():
    network = Network()
    eye = network.population("eye", 20, rate_source)
    region = create_thalamus_region(ThalamusConfig(relay=40, reticular=10))
    built = region.build(network, "t")

    def made(**asked):
        (projection,) = region.receive(network, built, Afferent(f"a{len(network.projections)}", eye, 4, 3.0, **asked))
        assert projection.pre is eye
        assert projection.delay_ms.value == 3.0
        return projection

    assert made(weight=7.0, in_degree=30).rule == FixedInDegree(30)
    assert made(weight=7.0).weight.value == 7.0
    assert made(weight=-7.0).receptor == "in_pa"
    assert made(probability=0.5).rule == PairwiseBernoulli(0.5)
    assert made(probability=0.5).weight.value == pytest.approx(500.0)
    assert made(topographic=True).rule == FixedInDegree(5, multapses=False, groups=4)
    assert made(topographic=True).weight.value == pytest.approx(1000.0)
    assert made(port="gate", in_degree=4, plasticity="none").post is built.populations["reticular"]


def test_wrong_pathways_are_refused():
    network = Network()
    eye = network.population("eye", 20, rate_source)
    region = create_thalamus_region()
    built = region.build(network, "t")
    with pytest.raises(InvalidArgument, match="'eye' has 5 groups and 't' has 4"):
        region.receive(network, built, Afferent("a", eye, 5, 1.0, topographic=True))
    with pytest.raises(InvalidArgument, match=r"no input 'gates'; did you mean 'gate'\?"):
        region.receive(network, built, Afferent("a", eye, 4, 1.0, port="gates"))
    with pytest.raises(InvalidArgument, match="plasticity='stdp'"):
        region.receive(network, built, Afferent("a", eye, 4, 1.0, plasticity="stdp"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"relays": 3}, "thalamus: .*relays"),
        ({"relay": 3}, "relay=3: must be 4 or more"),
        ({"relay": "many"}, "relay"),
        ({"delay_ms": 0.0}, "delay_ms=0.0"),
        ({"surround_in_degree": 0}, "surround_in_degree=0"),
    ],
)
def test_wrong_settings_are_refused(config, message):
    with pytest.raises(InvalidArgument, match=message):
        create_thalamus_region(config)


def test_a_rhythm_that_the_network_does_not_have_is_refused():
    with pytest.raises(InvalidArgument, match="alpha"):
        create_thalamus_region({"gate_rhythm": "alpha"}).build(Network(), "t")


def test_a_region_can_be_sent_to_another_process():
    region = create_thalamus_region({"relay": 80})
    copied = pickle.loads(pickle.dumps(region))
    assert copied == region
    networks = [Network(), Network()]
    for one, network in zip((region, copied), networks, strict=True):
        one.build(network, "t")
    assert networks[0] == networks[1]
