"""Plastic synapses against reference implementations in plain Python (see `network/plasticity.py`).

Sources and targets spike in given steps; the targets add up what arrives, so that every transmitted weight
shows. Delays count as dendritic: a source's spike of step s meets the target's spikes q as they come back, at q + d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from neuraxis.network import (
    STDP,
    AllToAll,
    Explicit,
    HomeostaticScaling,
    Network,
    OneToOne,
    PlasticityRule,
    RewardSTDP,
    TsodyksMarkram,
)
from neuraxis.network.models import spike_source
from neuraxis.simulation import Simulation

from .running import adder, give_spikes, random_trains, values_of

DT = 0.1
DELAYS = (1, 7, 30)
STEPS = 4000
# 32 bits a number, thousands of changes, each rounded; transmitted weights are rounded once more.
RELATIVE = 3e-4

Array = np.ndarray[Any, Any]
Train = list[int]


# --- the oracles: one synapse, float64, step by step ---


@dataclass
class Synapse:
    """Reference synapse, advanced step by step: its transmitted weights and its weight."""

    delay: int
    pre: Train
    post: Train
    weight: float
    rules: list[PlasticityRule]
    level: Callable[[int], float] = lambda step: 0.0

    def run(self, steps: int) -> list[tuple[int, float]]:
        """(step of arrival, transmitted weight) of all spikes that arrive by step `steps`."""
        pairing = next((r for r in self.rules if isinstance(r, STDP | RewardSTDP)), None)
        scaling = next((r for r in self.rules if isinstance(r, HomeostaticScaling)), None)
        self.eligibility, self.k_plus, self.last, self.done = 0.0, 0.0, 0, 0
        arriving, spiking = {s + self.delay for s in self.pre}, set(self.post)
        since_scaling = 0
        transmitted = []
        for t in range(1, steps + 1):
            if t in arriving:
                if pairing is not None:
                    self._pre_spike(pairing, t - self.delay)
                transmitted.append((t, self.weight))
            since_scaling += t in spiking
            if isinstance(pairing, RewardSTDP) and t % round(pairing.every_ms / DT) == 0:
                self._facilitate(pairing, t - self.delay)
                changed = self.weight + self.level(t) * self.eligibility
                self.weight = min(max(changed, pairing.w_min), pairing.w_max)
                self.eligibility *= math.exp(-pairing.every_ms / pairing.tau_eligibility_ms)
            if scaling is not None and t % round(scaling.every_ms / DT) == 0:
                if pairing is not None:
                    self._facilitate(pairing, t - self.delay)
                rate_hz = since_scaling / (scaling.every_ms * 1e-3)
                error = (scaling.target_rate_hz - rate_hz) / scaling.target_rate_hz
                self.weight = min(max(self.weight * (1 + scaling.strength * error), scaling.w_min), scaling.w_max)
                since_scaling = 0
        if pairing is not None:
            self._facilitate(pairing, steps - self.delay)
        return transmitted

    def _pre_spike(self, rule: STDP | RewardSTDP, s: int) -> None:
        self._facilitate(rule, s)
        k_minus = sum(math.exp((q + self.delay - s) * DT / rule.tau_minus_ms) for q in self.post if q + self.delay < s)
        if isinstance(rule, RewardSTDP):
            self.eligibility -= rule.a_minus * k_minus
        elif rule.form == "power_law":
            self._put(rule, self.weight - rule.learning_rate * rule.alpha * self.weight * k_minus)
        else:
            x = self.weight / rule.w_max
            self._put(rule, rule.w_max * (x - rule.alpha * rule.learning_rate * x**rule.mu_minus * k_minus))
        self.k_plus = self.k_plus * math.exp((self.last - s) * DT / rule.tau_plus_ms) + 1
        self.last = s

    def _facilitate(self, rule: STDP | RewardSTDP, until: int) -> None:
        """Process the target's spikes that reach the synapse by `until` and were not counted yet, in order."""
        for q in sorted(self.post):
            at = q + self.delay
            if not self.done < at <= until:
                continue
            k = self.k_plus * math.exp((self.last - at) * DT / rule.tau_plus_ms)
            if isinstance(rule, RewardSTDP):
                self.eligibility += rule.a_plus * k
            elif rule.form == "power_law":
                mu = rule.mu_plus
                self._put(rule, self.weight + rule.learning_rate * rule.w0 ** (1 - mu) * self.weight**mu * k)
            else:
                x = self.weight / rule.w_max
                self._put(rule, rule.w_max * (x + rule.learning_rate * (1 - x) ** rule.mu_plus * k))
        self.done = max(self.done, until)

    def _put(self, rule: STDP, weight: float) -> None:
        self.weight = min(max(weight, 0.0), rule.w_max)


def short_term(rule: TsodyksMarkram, pre: Train) -> list[float]:
    """The share of the weight that each spike transmits."""
    u, x, shares, last = 0.0, 1.0, [], None
    for s in pre:
        if last is not None:
            passed = (s - last) * DT
            x = 1 - (1 - x) * math.exp(-passed / rule.tau_recovery_ms)
            u = u * math.exp(-passed / rule.tau_facilitation_ms) if rule.tau_facilitation_ms else 0.0
        u += rule.u * (1 - u)
        shares.append(u * x)
        x -= u * x
        last = s
    return shares


# --- a network for them ---


class Trained:
    """All sources to all targets, three delays in turn, under the given rules."""

    def __init__(
        self, rules: list[PlasticityRule], pre: list[Train], post: list[Train], w: float, seed: int = 1
    ) -> None:
        self.rules, self.pre, self.post = rules, pre, post
        n_pre, n_post = len(pre), len(post)
        self.pairs = [(i, j) for j in range(n_post) for i in range(n_pre)]  # the order in which weights are read
        rng = np.random.default_rng(seed)
        self.delays = [DELAYS[k % len(DELAYS)] for k in range(len(self.pairs))]
        self.weights = np.rint(rng.uniform(0.5, 1.5, len(self.pairs)) * w * 256) / 256
        network = self.network = Network(dt_ms=DT)
        source = network.population("pre", n_pre, spike_source)
        self.target = network.population("post", n_post, adder)
        give_spikes(network, source, pre)
        give_spikes(network, self.target, post)
        if any(isinstance(rule, RewardSTDP) for rule in rules):
            network.neuromodulator("dopamine", baseline=0.25, tau_ms=50.0)
        self.projection = network.connect(
            source,
            self.target,
            Explicit([i for i, _ in self.pairs], [j for _, j in self.pairs]),
            weight=self.weights,
            delay_ms=np.array(self.delays) * DT,
            plasticity=rules,
        )
        network.record(self.target, "arrived")

    def expected(self, steps: int, level: Callable[[int], float] = lambda step: 0.0) -> tuple[Array, Array]:
        """(what arrives, by step and target; the weights at the end)"""
        arrived, weights = np.zeros((steps, len(self.post))), []
        for (i, j), delay, weight in zip(self.pairs, self.delays, self.weights, strict=True):
            synapse = Synapse(delay, self.pre[i], self.post[j], float(weight), self.rules, level)
            for step, transmitted in synapse.run(steps):
                arrived[step - 1, j] += transmitted
            weights.append(synapse.weight)
        return arrived, np.array(weights)

    def check(self, simulation: Simulation, level: Callable[[int], float] = lambda step: 0.0) -> Array:
        arrived, weights = self.expected(simulation.steps, level)
        assert np.abs(weights - self.weights).max() > 0.05 * self.weights.mean(), "something is learned"
        found = simulation.weights(self.projection)
        scale = np.abs(weights).max()
        assert np.abs(found - weights).max() < RELATIVE * scale
        assert np.abs(values_of(simulation, self.target, "arrived") - arrived).max() < 4 * RELATIVE * scale
        return weights


def trains() -> tuple[list[Train], list[Train]]:
    """Random spikes; a source and a target that burst, one of each that is silent for long, and spikes at once."""
    pre = random_trains(11, 4, STEPS - 100, 0.02)
    post = random_trains(12, 3, STEPS, 0.03)
    pre[1] = sorted({*pre[1], *range(1500, 1560)})
    pre[2] = [s for s in pre[2] if not 500 < s < 3000]
    post[1] = sorted({*post[1], *range(1400, 1800)})
    post[2] = [q for q in post[2] if not 200 < q < 2500]
    # Every order of a source's and a target's spikes around each delay, coincidence included.
    post[0] = sorted({*post[0], *(3200 + 40 * k for k in range(8))})
    pre[0] = sorted({*pre[0], *(3200 + 40 * k + offset for k, offset in enumerate((0, 1, 2, 6, 7, 8, 30, 31)))})
    return pre, post


RULES: dict[str, tuple[PlasticityRule, float]] = {
    "additive": (STDP.additive(w_max=4.0, learning_rate=0.004, alpha=1.1), 2.0),
    "additive, clipped": (STDP.additive(w_max=2.0, learning_rate=0.1, alpha=0.7), 1.2),
    "multiplicative": (STDP.multiplicative(w_max=4.0, learning_rate=0.01, tau_plus_ms=12.0, tau_minus_ms=33.0), 2.0),
    "between": (STDP(w_max=4.0, learning_rate=0.01, mu_plus=0.4, mu_minus=0.3), 2.0),
    "power law": (STDP.power_law(w_max=500.0, learning_rate=0.02, alpha=0.5, mu=0.4, w0=1.0), 40.0),
    "power law, clipped": (STDP.power_law(w_max=60.0, learning_rate=0.1, alpha=0.1, mu=0.4, w0=2.0), 30.0),
    "only facilitation": (STDP.additive(w_max=40.0, learning_rate=0.001, alpha=0.0), 2.0),
}


@pytest.mark.parametrize("name", RULES)
def test_spike_timing(name: str) -> None:
    rule, weight = RULES[name]
    trained = Trained([rule], *trains(), weight)
    with Simulation(trained.network) as simulation:
        simulation.step(STEPS)
        weights = trained.check(simulation)
    if "clipped" in name:
        assert isinstance(rule, STDP)
        assert (weights == rule.w_max).any() or (weights == 0).any()


def test_homeostasis_alone() -> None:
    rule = HomeostaticScaling(200.0, w_max=5.0, w_min=0.5, every_ms=25.0, strength=0.2)
    trained = Trained([rule], *trains(), 2.0)
    with Simulation(trained.network) as simulation:
        simulation.step(STEPS)
        weights = trained.check(simulation)
    assert (weights == 0.5).any(), "w_min"
    assert np.unique(weights[8:]).size < 4, "w_max, from where all went down by the same factors"


def test_homeostasis_with_spike_timing() -> None:
    rules: list[PlasticityRule] = [
        STDP.additive(w_max=8.0, learning_rate=0.004),
        HomeostaticScaling(250.0, w_max=8.0, every_ms=20.0, strength=0.05),
    ]
    trained = Trained(rules, *trains(), 2.0)
    with Simulation(trained.network) as simulation:
        simulation.step(STEPS)
        trained.check(simulation)


# --- reward ---

REWARD = RewardSTDP(
    w_max=6.0, a_plus=0.02, a_minus=0.015, tau_eligibility_ms=80.0, every_ms=5.0, tau_plus_ms=15.0, tau_minus_ms=25.0
)


def test_reward_that_is_released() -> None:
    """Given between two steps, it decays in each step from then on."""
    trained = Trained([REWARD], *trains(), 2.0)
    amounts = {1000: 0.5, 1777: 1.0, 2600: -0.8}
    level, levels = 0.0, [0.0]
    for t in range(1, STEPS + 1):
        level = (level + amounts.get(t - 1, 0.0)) * math.exp(-DT / 50.0)
        levels.append(level)
    with Simulation(trained.network) as simulation:
        for at, amount in amounts.items():
            simulation.step(at - simulation.steps)
            assert simulation.level("dopamine") == pytest.approx(0.25 + levels[at], rel=1e-4)
            simulation.release("dopamine", amount)
            assert simulation.level("dopamine") == pytest.approx(0.25 + levels[at] + amount, rel=1e-4)
        simulation.step(STEPS - simulation.steps)
        trained.check(simulation, lambda step: levels[step])


def test_nothing_is_learned_without_reward() -> None:
    trained = Trained([REWARD], *trains(), 2.0)
    with Simulation(trained.network) as simulation:
        simulation.step(STEPS)
        assert np.array_equal(simulation.weights(trained.projection), trained.weights)


def test_reward_that_spikes_bring() -> None:
    """Two populations that release, at once and later; one that takes away."""
    trained = Trained([REWARD], *trains(), 2.0)
    network = trained.network
    releases = [(0.125, 1, random_trains(3, 5, STEPS, 0.002)), (-0.25, 40, [[1200, 1201, 2500]])]
    for i, (amount, delay, given) in enumerate(releases):
        population = network.population(f"releasing {i}", len(given), spike_source)
        give_spikes(network, population, given)
        network.modulate(population, "dopamine", amount, delay_ms=delay * DT)
    level, levels = 0.0, [0.0]
    for t in range(1, STEPS + 1):
        level *= math.exp(-DT / 50.0)
        for amount, delay, given in releases:
            level += amount * sum(t - delay in train for train in given)
        levels.append(level)
    with Simulation(network) as simulation:
        simulation.step(STEPS)
        assert simulation.level("dopamine") == pytest.approx(0.25 + levels[-1], rel=1e-4)
        trained.check(simulation, lambda step: levels[step])


def test_reward_with_homeostasis() -> None:
    rules: list[PlasticityRule] = [REWARD, HomeostaticScaling(300.0, w_max=6.0, every_ms=50.0, strength=0.05)]
    trained = Trained(rules, *trains(), 2.0)
    with Simulation(trained.network) as simulation:
        simulation.release("dopamine", 0.5)
        simulation.step(STEPS)
        trained.check(simulation, lambda step: 0.5 * math.exp(-step * DT / 50.0))


# --- short-term plasticity ---


@pytest.mark.parametrize(
    "rule",
    [TsodyksMarkram(), TsodyksMarkram(u=0.1, tau_recovery_ms=100.0, tau_facilitation_ms=500.0), TsodyksMarkram(u=1.0)],
    ids=["tiring", "facilitating", "all at once"],
)
def test_short_term_plasticity(rule: TsodyksMarkram) -> None:
    pre = random_trains(5, 3, STEPS, 0.01)
    pre[1] = sorted({*pre[1], *range(1000, 1100, 4)})
    network = Network(dt_ms=DT)
    source = network.population("pre", 3, spike_source)
    target = network.population("post", 3, adder)
    give_spikes(network, source, pre)
    weights = np.array([1.0, 2.0, -4.0])
    delays = np.array([1, 13, 40])
    projection = network.connect(source, target, OneToOne(), weights, delays * DT, synapse="input", plasticity=rule)
    network.record(target, "arrived")
    with Simulation(network) as simulation:
        simulation.step(STEPS + 40)
        arrived = values_of(simulation, target, "arrived")
        assert np.array_equal(simulation.weights(projection), weights), "the weights themselves stay"
    expected = np.zeros_like(arrived)
    for i, train in enumerate(pre):
        for s, share in zip(train, short_term(rule, train), strict=True):
            expected[s + delays[i] - 1, i] = weights[i] * share
    assert np.abs(arrived - expected).max() < 4e-5
    assert np.count_nonzero(arrived) == np.count_nonzero(expected)


@pytest.mark.parametrize("pause_ms", [1000.0, 6500.0, 7000.0, 10_000.0])
def test_slow_recovery_is_followed_over_long_pauses(pause_ms: float) -> None:
    """Time constants of several seconds: what is left after 65,536 steps and more still counts."""
    rule = TsodyksMarkram(u=0.5, tau_recovery_ms=5000.0, tau_facilitation_ms=4000.0)
    train = [10, 10 + round(pause_ms / DT)]
    network = Network(dt_ms=DT)
    source, target = network.population("pre", 1, spike_source), network.population("post", 1, adder)
    give_spikes(network, source, [train])
    network.connect(source, target, OneToOne(), weight=1.0, delay_ms=DT, plasticity=rule)
    with Simulation(network) as simulation:
        simulation.step(train[-1] + 1)
        assert simulation.state(target, "arrived")[0] == pytest.approx(short_term(rule, train)[-1], rel=1e-4)


def test_slow_traces_are_followed_over_long_pauses() -> None:
    rule = STDP.additive(w_max=10.0, learning_rate=0.1, tau_plus_ms=6000.0, tau_minus_ms=6000.0, alpha=0.5)
    pre, post = [[20, 90_000]], [[80_000]]
    trained = Trained([rule], pre, post, 2.0)
    synapse = Synapse(DELAYS[0], pre[0], post[0], float(trained.weights[0]), [rule])
    with Simulation(trained.network) as simulation:
        simulation.step(90_100)
        synapse.run(90_100)
        assert simulation.weights(trained.projection)[0] == pytest.approx(synapse.weight, rel=1e-4)


# --- when weights are brought up to date ---

EVERY_KIND: dict[str, list[PlasticityRule]] = {
    "additive": [RULES["additive"][0]],
    "power law": [STDP.power_law(w_max=60.0, learning_rate=0.02, mu=0.4)],
    "reward": [REWARD],
    "scaled": [RULES["multiplicative"][0], HomeostaticScaling(250.0, w_max=4.0, every_ms=20.0, strength=0.05)],
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_reading_weights_now_and_then_changes_no_bit(kind: str) -> None:
    """Reading brings weights up to date; a run that was cut and read in every piece ends as one that was not."""
    steps, results = 2500, []
    for pieces in ([steps], [*[1] * 300, *[7] * 100, *[50] * 30]):
        trained = Trained(EVERY_KIND[kind], *trains(), 2.0)
        with Simulation(trained.network) as simulation:
            if kind == "reward":
                simulation.release("dopamine", 1.0)
            for piece in pieces:
                simulation.step(piece)
                if len(pieces) > 1:
                    simulation.weights(trained.projection)
            simulation.step(steps - simulation.steps)
            results.append(
                (
                    simulation.fingerprint(),
                    simulation.weights(trained.projection).tolist(),
                    simulation.samples(trained.target, "arrived")[1].tolist(),
                )
            )
    assert results[0] == results[1]


def test_a_weight_that_is_read_holds_all_that_cannot_change_any_more() -> None:
    """At every step: what the oracle says of the spikes that have met at the synapse by now - delay."""
    rule = STDP.additive(w_max=4.0, learning_rate=0.02)
    pre, post = trains()
    trained = Trained([rule], pre, post, 2.0)
    with Simulation(trained.network) as simulation:
        for _ in range(60):
            simulation.step(23)
            _, weights = trained.expected(simulation.steps)
            assert np.abs(simulation.weights(trained.projection) - weights).max() < 1e-4


def test_targets_that_spike_in_every_step_without_end() -> None:
    """Ten thousand spikes of the target and hardly one of the source: recorded spikes must be discarded in time."""
    steps = 10_000
    rule = STDP.multiplicative(w_max=4.0, learning_rate=0.01)
    pre = [[50, 4000, 9000], []]
    post = [list(range(1, steps + 1)), list(range(2, steps, 2))]
    trained = Trained([rule], pre, post, 2.0)
    with Simulation(trained.network) as simulation:
        simulation.step(steps)
        trained.check(simulation)


def test_two_rules_at_the_same_targets_do_not_mix() -> None:
    """A second plastic projection and a static one: each behaves as it does alone."""
    pre, post = trains()
    alone = Trained([RULES["additive"][0]], pre, post, 2.0)
    with Simulation(alone.network) as simulation:
        simulation.step(STEPS)
        expected = simulation.weights(alone.projection).tolist()
    both = Trained([RULES["additive"][0]], pre, post, 2.0)
    other = both.network.population("other", 2, spike_source)
    give_spikes(both.network, other, random_trains(9, 2, STEPS, 0.05))
    both.network.connect(other, both.target, AllToAll(), weight=0.5, plasticity=RULES["multiplicative"][0])
    both.network.connect(other, both.target, AllToAll(), weight=0.25, delay_ms=2.5)
    with Simulation(both.network) as simulation:
        simulation.step(STEPS)
        # The receptor's other weights decide how fine its accumulators are, and weights are reported as delivered.
        assert simulation.weights(both.projection).tolist() == pytest.approx(expected, abs=2.0**-18)
