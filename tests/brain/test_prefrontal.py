from __future__ import annotations

import numpy as np
import pytest

from neuraxis.brain.region import Afferent
from neuraxis.brain.regions.prefrontal import Prefrontal, PrefrontalConfig, create_pfc_region
from neuraxis.brain.regions.sources import rate_source, thresholds
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network
from neuraxis.simulation.simulation import Simulation

GROUPS = 4


class Memory:
    """A prefrontal cortex and the cells that give it cues, 40 for each cluster."""

    def __init__(self, seed=1, dopamine=1.0, noradrenaline=0.0, background_hz=1.0):
        network = Network(dt_ms=0.1, seed=seed)
        if dopamine is not None:
            network.neuromodulator("dopamine", baseline=dopamine, tau_ms=200.0)
        if noradrenaline is not None:
            network.neuromodulator("noradrenaline", baseline=noradrenaline, tau_ms=60.0)
        cortex = network.population("cortex", 40 * GROUPS, rate_source)
        region = create_pfc_region()
        built = region.build(network, "pfc")
        region.receive(network, built, Afferent("cue", cortex, GROUPS, 6.0, topographic=True))
        self.simulation = Simulation(network, progress=False)
        self.background_hz = background_hz
        self.drive(None)

    def drive(self, cluster, rate_hz=25.0):
        rates = np.full((GROUPS, 40), self.background_hz)
        if cluster is not None:
            rates[cluster] = rate_hz
        self.simulation.set_state("cortex", "threshold", thresholds(rates.ravel(), 0.1))

    def cue(self, cluster, rate_hz=25.0, time_ms=250):
        self.drive(cluster, rate_hz)
        self.simulation.advance(time_ms * 10)
        self.drive(None)

    def rates_hz(self, time_ms):
        before = self.simulation.spike_counts("pfc.memory")
        self.simulation.advance(time_ms * 10)
        spikes = self.simulation.spike_counts("pfc.memory") - before
        return spikes.reshape(GROUPS, -1).mean(axis=1) / time_ms * 1e3


def assert_holds(rates_hz, cluster):
    others = np.delete(rates_hz, cluster)
    assert rates_hz[cluster] >= 20, rates_hz
    assert others.max() < 5, rates_hz


@pytest.mark.parametrize(
    ("cluster", "rate_hz", "time_ms", "seed"), [(0, 15.0, 200, 1), (1, 25.0, 250, 2), (3, 30.0, 300, 3)]
)
def test_a_cue_is_held_by_its_cluster_alone(cluster, rate_hz, time_ms, seed):
    memory = Memory(seed)
    memory.simulation.advance(1000)
    memory.cue(cluster, rate_hz, time_ms)
    for _ in range(3):
        assert_holds(memory.rates_hz(400), cluster)


def test_without_dopamine_nothing_is_held():
    memory = Memory(dopamine=0.0)
    memory.cue(2)
    memory.simulation.advance(1500)
    assert memory.rates_hz(150).max() < 3
    assert memory.rates_hz(500).max() < 1


def test_noradrenaline_clears_the_memory_and_the_next_cue_is_held():
    memory = Memory()
    memory.cue(2)
    assert_holds(memory.rates_hz(500), 2)
    memory.simulation.release("noradrenaline", 1.0)
    memory.simulation.advance(1000)
    assert memory.rates_hz(300).max() < 1
    memory.cue(1)
    memory.simulation.advance(1000)
    assert_holds(memory.rates_hz(500), 1)


def test_a_later_cue_takes_the_place_of_an_earlier_one():
    memory = Memory()
    memory.cue(2)
    assert_holds(memory.rates_hz(500), 2)
    memory.cue(0)
    memory.simulation.advance(1000)
    assert_holds(memory.rates_hz(500), 0)


@pytest.mark.parametrize("amount", [1.0, -1.0])
def test_phasic_dopamine_neither_ignites_nor_deletes(amount):
    memory = Memory()
    memory.simulation.release("dopamine", amount)
    assert memory.rates_hz(600).max() < 1
    memory.cue(1)
    memory.simulation.advance(1000)
    for _ in range(3):
        memory.simulation.release("dopamine", amount)
        assert_holds(memory.rates_hz(600), 1)


def test_at_rest_nothing_ignites():
    assert Memory(background_hz=3.0).rates_hz(10_000).max() < 1


def test_without_modulators_it_holds():
    memory = Memory(dopamine=None, noradrenaline=None)
    memory.cue(1)
    memory.simulation.advance(2000)
    assert_holds(memory.rates_hz(500), 1)


def test_ports_and_names():
    network = Network()
    built = Prefrontal({"memory": 120, "groups": 2}).build(network, "pfc")
    assert built.kind == "prefrontal"
    assert built.input().name == built.output("memory").name == "pfc.memory"
    assert (built.groups, built.input().n, network["pfc.inhibitory"].n) == (2, 120, 60)


def test_a_smaller_source_drives_as_much():
    network = Network()
    source = network.population("few", 40, rate_source)
    region = create_pfc_region()
    built = region.build(network, "pfc")
    (few,) = region.receive(network, built, Afferent("few", source, GROUPS, 6.0, topographic=True))
    (own,) = region.receive(network, built, Afferent("own", source, GROUPS, 6.0, weight=5.0, probability=0.5))
    assert few.rule.k * few.weight.value == pytest.approx(PrefrontalConfig().afferent_pa * 40)
    assert (own.rule.p, own.weight.value) == (0.5, 5.0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"source_groups": 3, "topographic": True}, "a source in 3 groups cannot be mapped to 4 clusters"),
        ({"source_groups": 4, "plasticity": "stdp"}, "plasticity"),
        ({"source_groups": 4, "options": {"gain": 2}}, "there is no option 'gain'"),
        ({"source_groups": 4, "port": "L4"}, "has no input 'L4'"),
    ],
)
def test_a_pathway_that_cannot_end_here_is_refused(fields, text):
    network = Network()
    source = network.population("source", 12, rate_source)
    region = create_pfc_region()
    built = region.build(network, "pfc")
    with pytest.raises(InvalidArgument, match=text):
        region.receive(network, built, Afferent("path", source, delay_ms=6.0, **fields))


@pytest.mark.parametrize(
    ("config", "text"),
    [({"memory": 10, "groups": 4}, "memory=10"), ({"memories": 3}, "memories"), ({"groups": 0}, "=0")],
)
def test_a_bad_configuration_is_refused(config, text):
    with pytest.raises(InvalidArgument, match=text):
        create_pfc_region(config)
