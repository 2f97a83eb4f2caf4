from __future__ import annotations

import numpy as np
import pytest

from neuraxis.brain.region import Afferent
from neuraxis.brain.regions.sources import rate_source, thresholds
from neuraxis.brain.regions.striatum import Striatum, StriatumConfig, create_striatum_region
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network
from neuraxis.simulation.simulation import Simulation

CUES = 4
CORTEX = 40  # cells for each cue
MOTOR = 10  # cells for each action
WINDOW_MS = 150
REWARD_HZ = 30.0  # the critic's rate that means a reward of 1


class Loop:
    """A striatum between cells that give cues and cells that give motor commands; the test sets the rates of both."""

    def __init__(self, seed=1, actions=4, dopamine=True):
        network = Network(dt_ms=0.1, seed=seed)
        if dopamine:
            network.neuromodulator("dopamine", baseline=1.0, tau_ms=100.0)
        cortex = network.population("cortex", CUES * CORTEX, rate_source)
        motor = network.population("motor", actions * MOTOR, rate_source)
        region = create_striatum_region({"actions": actions})
        built = region.build(network, "striatum")
        region.receive(network, built, Afferent("cortex", cortex, CUES, 5.0))
        region.receive(network, built, Afferent("command", motor, actions, 2.0, "efference"))
        self.actions = actions
        self.random = np.random.default_rng(seed)
        self.simulation = Simulation(network, progress=False)
        self.show(None)
        self.move(None)

    def show(self, cue, rate_hz=25.0):
        rates = np.full((CUES, CORTEX), 1.0)
        if cue is not None:
            rates[cue] = rate_hz
        self.simulation.set_state("cortex", "threshold", thresholds(rates.ravel(), 0.1))

    def move(self, action):
        rates = np.full((self.actions, MOTOR), 1.0)
        if action is not None:
            rates[action] = 100.0
        self.simulation.set_state("motor", "threshold", thresholds(rates.ravel(), 0.1))

    def rates_hz(self, time_ms, *populations):
        """Return the rates of D1 and D2 by action, and of the others over all cells."""
        names = [f"striatum.{name}" for name in populations]
        before = [self.simulation.spike_counts(name) for name in names]
        self.simulation.advance(time_ms * 10)
        spikes = [self.simulation.spike_counts(name) - old for name, old in zip(names, before, strict=True)]
        parts = [self.actions if name.endswith(("D1", "D2")) else 1 for name in names]
        return [s.reshape(n, -1).mean(axis=1) / time_ms * 1e3 for s, n in zip(spikes, parts, strict=True)]

    def decide(self, cue):
        """The values of the actions in Hz, and the reward that is expected."""
        self.show(cue)
        self.simulation.advance(1000)
        d1, d2, critic = self.rates_hz(WINDOW_MS, "D1", "D2", "critic")
        return d1 - d2, min(max(critic[0] / REWARD_HZ, 0.2), 1.0)

    def finish(self, action, dopamine):
        """Take an action and release dopamine."""
        self.move(action)
        self.simulation.advance(2000)
        self.move(None)
        if dopamine:
            self.simulation.release("dopamine", dopamine)
        self.simulation.advance(300)
        self.show(None)
        self.simulation.advance(2000)

    def trial(self, cue, rewarded, learn=True):
        values, expected = self.decide(cue)
        odds = np.exp((values - values.max()) / 3.0)
        action = int(self.random.choice(self.actions, p=odds / odds.sum()))
        reward = float(action == rewarded)
        self.finish(action, reward - expected if learn else 0.0)
        return reward

    def weights(self, target, cue, action=0):
        """The mean weight from the cells of a cue to those of an action."""
        synapses = self.simulation.synapses(f"cortex->{target}")
        cells = self.simulation.network[f"striatum.{target}"].n
        if target != "critic":
            cells //= self.actions
        chosen = (synapses["pre"] // CORTEX == cue) & (synapses["post"] // cells == action)
        return float(synapses["weight"][chosen].mean())


@pytest.mark.parametrize(("seed", "actions"), [(1, 2), (2, 4)])
def test_choice_follows_reward(seed, actions):
    loop = Loop(seed, actions)
    rewarded = [1, 0]
    results = [loop.trial(trial % 2, rewarded[trial % 2]) for trial in range(44)]
    assert np.mean(results[-20:]) >= 0.9, results
    for projection in ("cortex->D1", "cortex->D2", "cortex->critic"):
        weights = loop.simulation.weights(projection)
        assert weights.min() >= 0
        assert weights.max() <= StriatumConfig().largest_pa


def test_without_dopamine_nothing_is_learned():
    loop = Loop(2, 4)
    before = loop.simulation.weights("cortex->D1")
    results = [loop.trial(trial % 2, 1 - trial % 2, learn=False) for trial in range(20)]
    assert np.mean(results) <= 0.6, results
    assert np.array_equal(loop.simulation.weights("cortex->D1"), before)


def test_a_network_without_the_modulator_has_a_striatum_that_does_not_learn():
    loop = Loop(dopamine=False)
    values, _ = loop.decide(0)
    assert np.isfinite(values).all()
    assert not any(projection.plasticity for projection in loop.simulation.network.projections)


@pytest.mark.parametrize("dopamine", [0.6, -0.6])
def test_dopamine_teaches_the_pair_of_cue_and_action(dopamine):
    loop = Loop()
    before = {target: loop.weights(target, 2, 1) for target in ("D1", "D2")}
    other_action, other_cue, critic = loop.weights("D1", 2, 3), loop.weights("D1", 0, 1), loop.weights("critic", 2)
    for _ in range(4):
        loop.decide(2)
        loop.finish(1, dopamine)
    sign = np.sign(dopamine)
    changes = {target: sign * (loop.weights(target, 2, 1) - before[target]) for target in before}
    assert changes["D1"] > 20
    assert changes["D2"] < -20
    assert sign * (loop.weights("critic", 2) - critic) > 5
    assert abs(loop.weights("D1", 2, 3) - other_action) < changes["D1"] / 4
    assert abs(loop.weights("D1", 0, 1) - other_cue) < changes["D1"] / 4


def test_a_taught_pair_has_the_highest_value_and_reward_is_expected():
    loop = Loop()
    values, expected = loop.decide(2)
    assert np.ptp(values) < 10
    assert 0.2 <= expected < 0.8
    loop.finish(1, 0.0)
    for _ in range(12):
        loop.decide(2)
        loop.finish(1, 0.8)
    values, expected_now = loop.decide(2)
    assert values[1] > np.delete(values, 1).max() + 15
    assert expected_now > expected + 0.15


def test_the_efference_copy_makes_the_chosen_action_fire_alone():
    loop = Loop()
    loop.decide(0)
    loop.move(3)
    loop.simulation.advance(300)
    d1, d2, relay = loop.rates_hz(150, "D1", "D2", "efference")
    for rates in (d1, d2):
        assert rates[3] > 30
        assert rates[:3].max() < 5
    assert 15 < relay[0] < 35  # a quarter of the cells at 60 to 140 Hz


def test_fast_spiking_cells_normalize_a_stronger_cue():
    loop = Loop()
    loop.decide(0)
    (weak,) = loop.rates_hz(300, "critic")
    loop.show(0, rate_hz=100.0)
    loop.simulation.advance(500)
    (strong,) = loop.rates_hz(300, "critic")
    assert weak[0] < strong[0] < 3 * weak[0] + 10


def test_ports_and_names():
    network = Network()
    network.neuromodulator("dopamine", baseline=1.0)
    source = network.population("source", 30, rate_source)
    region = Striatum({"actions": 3})
    built = region.build(network, "striatum")
    assert (built.kind, built.groups) == ("striatum", 3)
    assert built.input().name == built.output().name == "striatum.D1"
    assert built.output("D2").n == 75
    made = region.receive(network, built, Afferent("path", source, 3, 4.0))
    assert [p.name for p in made] == ["path->D1", "path->D2", "path->critic", "path->fast"]
    assert [p.plasticity[0].a_plus > 0 for p in made[:3]] == [True, False, True]
    static = region.receive(network, built, Afferent("static", source, 3, 4.0, plasticity="none", weight=10.0))
    assert not any(p.plasticity for p in static)
    (command,) = region.receive(network, built, Afferent("command", source, 3, 2.0, "efference"))
    assert (command.post.name, command.rule.groups) == ("striatum.efference", 3)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"source_groups": 3, "port": "efference"}, "a group for each of 4 actions, not 3"),
        ({"source_groups": 4, "topographic": True}, "cannot be topographic"),
        ({"source_groups": 4, "plasticity": "stdp"}, "plasticity"),
        ({"source_groups": 4, "plasticity": "reward"}, "dopamine"),
        ({"source_groups": 4, "port": "efference", "plasticity": "reward"}, "plasticity"),
        ({"source_groups": 4, "options": {"gain": 2}}, "there is no option 'gain'"),
        ({"source_groups": 4, "port": "critic"}, "has no input 'critic'"),
    ],
)
def test_a_pathway_that_cannot_end_here_is_refused(fields, text):
    network = Network()
    source = network.population("source", 12, rate_source)
    region = create_striatum_region()
    built = region.build(network, "striatum")
    with pytest.raises(InvalidArgument, match=text):
        region.receive(network, built, Afferent("path", source, delay_ms=5.0, **fields))


@pytest.mark.parametrize(("config", "text"), [({"actions": 0}, "actions=0"), ({"action": 3}, "action")])
def test_a_bad_configuration_is_refused(config, text):
    with pytest.raises(InvalidArgument, match=text):
        create_striatum_region(config)
