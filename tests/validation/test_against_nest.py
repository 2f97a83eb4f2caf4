"""Membranes, plastic synapses and rate neurons in NEST and here, step for step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuraxis.network import (
    STDP,
    Explicit,
    Network,
    NeuronModel,
    OneToOne,
    PlasticityRule,
    TsodyksMarkram,
    nmda_saturation,
)
from neuraxis.network.models import (
    adex,
    adex_cond_alpha,
    glif_1,
    glif_2,
    glif_3,
    glif_4,
    glif_5,
    hh_alpha,
    hh_cond_exp,
    hh_cond_exp_fine,
    izhikevich,
    lif_alpha,
    lif_alpha_multi,
    lif_cond_alpha,
    lif_cond_beta,
    lif_cond_exp,
    lif_delta,
    lif_exp_multi,
    lif_exp_two,
    lif_nmda,
    mat2,
    rate_linear,
    rate_linear_output_noise,
    rate_tanh,
    rate_tanh_each,
    rate_threshold_linear,
    rate_threshold_linear_each,
    spike_source,
)
from neuraxis.simulation import Simulation
from tests.engine.running import adder, give_spikes, random_trains, trains_of, values_of

DT = 0.1


# --- membranes ---


class Membranes:
    """Five neurons of a model without synapses among them, with input of both signs."""

    n = 5

    def __init__(
        self,
        model: NeuronModel,
        name: str,
        parameters: dict[str, Any],
        weight: float,
        current: float,
        tolerance: float,
        *,
        steps: int = 2000,
        late: int = 0,
        ports: tuple[int, ...] | None = None,
        has_current: bool = True,
    ) -> None:
        self.model, self.name, self.parameters, self.tolerance = model, name, parameters, tolerance
        self.steps, self.late, self.has_current = steps, late, has_current
        n, unsigned = self.n, name == "iaf_bw_2001"  # whose weights are all above 0
        self.trains = random_trains(31, 2 * n, steps, 0.02)
        self.weights = [weight * (1 + i / 8) for i in range(n)] + [-weight * (1 + i / 4) for i in range(n)]
        self.weights_in_nest = [abs(w) if unsigned else w for w in self.weights]
        self.delays = [1 + i for i in range(2 * n)]
        self.currents = [current * i / n for i in range(n)]
        self.ports = ports and [ports[i % len(ports)] if len(ports) > 2 else ports[i // n] for i in range(2 * n)]

    def for_nest(self) -> dict[str, Any]:
        synapses = [[i, i % self.n, self.weights_in_nest[i], self.delays[i]] for i in range(2 * self.n)]
        return {
            "kind": "traces",
            "model": self.name,
            "n": self.n,
            "steps": self.steps,
            "parameters": self.parameters,
            "currents": self.currents,
            "has_current": self.has_current,
            "inputs": self.trains,
            "input_synapses": synapses,
            "ports": self.ports,
        }

    def run(self) -> tuple[np.ndarray[Any, Any], list[list[int]]]:
        network = Network(dt_ms=DT)
        target = network.population("target", self.n, self.model)
        network.current(target, self.currents, start_ms=0.0 if self.has_current else 2 * DT)
        sources = network.population("sources", 2 * self.n, spike_source)
        give_spikes(network, sources, self.trains)
        for i, (weight, delay) in enumerate(zip(self.weights, self.delays, strict=True)):
            port = self.ports[i] if self.ports else 0
            receptor = self.model.receptors[port - 1] if port else self.model.receptor_for(1 if weight > 0 else -1)
            network.connect(sources, target, Explicit([i], [i % self.n]), weight, delay * DT, receptor)
        network.record(target)
        network.record(target, "v_mv")
        with Simulation(network) as simulation:
            simulation.step(self.steps)
            return values_of(simulation, target, "v_mv"), trains_of(simulation, target)


def glif(level: int, model: NeuronModel) -> Membranes:
    """NEST has the five models as one with switches, whose currents come from generators."""
    switches = {
        "spike_dependent_threshold": level in (2, 4, 5),
        "after_spike_currents": level >= 3,
        "adapting_threshold": level == 5,
    }
    parameters = {"t_ref": 3.8, "tau_syn": [2.0, 3.0], **switches}
    return Membranes(
        model(tau_syn_in_ms=3.0), "glif_psc", parameters, 60.0, 400.0, 2e-3, steps=5000, ports=(1, 2), has_current=False
    )


MULTI = {"tau_syn_1_ms": 0.5, "tau_syn_2_ms": 3.0, "tau_syn_3_ms": 20.0}
MULTI_IN_NEST = {"tau_syn": [0.5, 3.0, 20.0]}
MEMBRANES = {
    "iaf_psc_delta": Membranes(lif_delta, "iaf_psc_delta", {}, 4.0, 300.0, 1e-3),
    "iaf_psc_exp": Membranes(lif_exp_two, "iaf_psc_exp", {}, 250.0, 450.0, 1e-3),
    "iaf_psc_alpha": Membranes(lif_alpha, "iaf_psc_alpha", {}, 100.0, 300.0, 1e-3),
    "iaf_psc_exp_multisynapse": Membranes(
        lif_exp_multi(3)(**MULTI), "iaf_psc_exp_multisynapse", MULTI_IN_NEST, 250.0, 450.0, 2e-3, ports=(1, 2, 3)
    ),
    "iaf_psc_alpha_multisynapse": Membranes(
        lif_alpha_multi(3)(**MULTI), "iaf_psc_alpha_multisynapse", MULTI_IN_NEST, 100.0, 450.0, 2e-3, ports=(1, 2, 3)
    ),
    "mat2_psc_exp": Membranes(mat2, "mat2_psc_exp", {}, 300.0, 500.0, 1e-3, steps=10_000),
    **{f"glif_{k}": glif(k, model) for k, model in enumerate((glif_1, glif_2, glif_3, glif_4, glif_5), start=1)},
    # NEST integrates these with an absolute tolerance of 1e-3 mV.
    "iaf_cond_exp": Membranes(lif_cond_exp, "iaf_cond_exp", {}, 20.0, 350.0, 1e-2),
    "iaf_cond_alpha": Membranes(lif_cond_alpha, "iaf_cond_alpha", {}, 20.0, 350.0, 1e-2, steps=10_000),
    "iaf_cond_beta": Membranes(
        lif_cond_beta, "iaf_cond_beta",
        {"tau_rise_ex": 0.2, "tau_decay_ex": 2.0, "tau_rise_in": 0.5, "tau_decay_in": 8.0},
        15.0, 350.0, 1e-2, steps=10_000,
    ),
    "iaf_bw_2001": Membranes(
        lif_nmda(tau_rise_nmda_ms=0.0, v_threshold_mv=-55.0, v_reset_mv=-60.0), "iaf_bw_2001", {}, 10.0, 400.0, 1e-2,
        steps=10_000, ports=(1, 2), has_current=False,
    ),
    # In its upswing a rounding grows by a half in each step.
    "izhikevich": Membranes(izhikevich, "izhikevich", {}, 2.0, 4.0, 0.1),
    # Its upswing differs within the step; below the threshold the two must agree.
    "aeif_cond_exp": Membranes(adex, "aeif_cond_exp", {}, 4.0, 300.0, 1e-2),
    "aeif_cond_alpha": Membranes(adex_cond_alpha, "aeif_cond_alpha", {}, 8.0, 1200.0, 1e-2, steps=10_000, late=1),
    # The tolerance holds before the first spike: in the upswing, a difference of 1 us in time is one of 0.5 mV.
    "hh_psc_alpha": Membranes(hh_alpha, "hh_psc_alpha", {}, 300.0, 1000.0, 5e-2, steps=10_000, late=1),
    "hh_cond_exp_traub": Membranes(
        hh_cond_exp_fine, "hh_cond_exp_traub", {}, 10.0, 500.0, 5e-2, steps=10_000, late=2
    ),
    # Of second order: spikes are up to 2 ms late after 100 ms.
    "hh_cond_exp_traub, fast": Membranes(
        hh_cond_exp, "hh_cond_exp_traub", {}, 4.0, 500.0, 0.5, steps=1000, late=20
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MEMBRANES)
def test_a_membrane_step_for_step(name: str, nest_results: dict[str, Any]) -> None:
    """The same spikes, `late` steps earlier or later at most; with `late`, V is compared until shortly before them."""
    membranes = MEMBRANES[name]
    v, trains = membranes.run()
    answer = nest_results[name]
    assert answer["first_step"] == 1
    assert [len(train) for train in trains] == [len(train) for train in answer["spikes"]]
    assert name == "aeif_cond_exp" or sum(map(len, trains)) >= 10 or membranes.steps < 5000
    for found, expected in zip(trains, answer["spikes"], strict=True):
        assert np.abs(np.array(found) - expected).max(initial=0) <= membranes.late
    assert np.ptp(v) > 5.0
    apart = np.abs(v - np.array(answer["v_mv"]).T)
    for i, train in enumerate(trains):
        end = train[0] - 20 if membranes.late and train else membranes.steps
        assert apart[:end, i].max() < membranes.tolerance


# --- NMDA receptors that saturate, as in the networks of Brunel and Wang ---


class Saturating:
    """Sources that spike at 20 to 100 Hz, and the membranes of neurons with NMDA receptors."""

    n, steps, strength = 5, 10_000, 400.0

    def __init__(self) -> None:
        self.weights = [20.0 + 10.0 * i for i in range(self.n)]
        self.trains = [list(range(100 + i, self.steps, (500, 300, 200, 150, 100)[i])) for i in range(self.n)]

    def for_nest(self) -> dict[str, Any]:
        own = {"n": self.n, "steps": self.steps, "strength": self.strength, "weights": self.weights}
        return {"kind": "saturating", "inputs": self.trains, **own}

    def membranes(self) -> np.ndarray[Any, Any]:
        model = lif_nmda(tau_rise_nmda_ms=0.0, v_threshold_mv=-55.0, v_reset_mv=-60.0)
        network = Network(dt_ms=DT)
        given = network.population("given", self.n, spike_source)
        sources, targets = network.population("sources", self.n, model), network.population("targets", self.n, model)
        give_spikes(network, given, self.trains)
        network.connect(given, sources, OneToOne(), self.strength, DT)
        saturation, jump = nmda_saturation()
        weights = np.array(self.weights) * jump
        network.connect(sources, targets, OneToOne(), weights, 10 * DT, "nmda_ns", saturation)
        network.record(targets, "v_mv")
        with Simulation(network) as simulation:
            simulation.step(self.steps)
            return values_of(simulation, targets, "v_mv")


SATURATING = Saturating()


def test_nmda_receptors_saturate_as_in_nest(nest_results: dict[str, Any]) -> None:
    v, expected = SATURATING.membranes(), np.array(nest_results["saturating"]).T
    assert np.ptp(expected, axis=0).min() > 1.0
    assert np.abs(v - expected).max() < 1e-2


# --- plastic synapses ---


class Plastic:
    """Pairs of neurons that spike in given steps; three delays, bursts, and every order around coincidence."""

    steps, pairs = 4000, 9

    def __init__(
        self, rule: PlasticityRule, model: str, common: dict[str, Any], own: dict[str, Any], weight: float
    ) -> None:
        self.rule, self.model, self.common, self.own = rule, model, common, own
        # NEST's relays repeat a spike one step after it was given: the first step is theirs.
        pre = random_trains(41, self.pairs, self.steps - 40, 0.01)
        post = random_trains(42, self.pairs, self.steps, 0.02)
        pre[3] = sorted({*pre[3], *range(2000, 2100, 3)})
        post[4] = sorted({*post[4], *range(1500, 1700)})
        self.delays = [(1, 15, 30)[i % 3] for i in range(self.pairs)]
        for i in range(3):  # the target's spike comes back just before, with and just after the source's
            met = [3000 + 50 * k for k in range(10)]
            post[i] = sorted({*post[i], *met})
            offsets = (self.delays[i] + k % 3 - 1 for k in range(10))
            pre[i] = sorted({*pre[i], *(step + offset for step, offset in zip(met, offsets, strict=True))})
        self.pre = [[s for s in train if s > 1] for train in pre]
        self.post = [[s for s in train if s > 1] for train in post]
        self.weights = [weight * (1 + i / 8) for i in range(self.pairs)]

    def for_nest(self) -> dict[str, Any]:
        job = {
            "kind": "synapses",
            "model": self.model,
            "steps": self.steps,
            "pre": self.pre,
            "post": self.post,
            "weights": self.weights,
            "delays": self.delays,
            "common": self.common,
            "own": self.own,
        }
        if isinstance(self.rule, STDP):
            job["tau_minus_ms"] = self.rule.tau_minus_ms
        return job

    def transmitted(self) -> list[list[tuple[int, float]]]:
        """(step of the source's spike, weight) of all that arrived, by pair."""
        network = Network(dt_ms=DT)
        source = network.population("source", self.pairs, spike_source)
        target = network.population("target", self.pairs, adder)
        give_spikes(network, source, self.pre)
        give_spikes(network, target, self.post)
        delays = np.array(self.delays)
        network.connect(source, target, OneToOne(), self.weights, delays * DT, plasticity=self.rule)
        network.record(target, "arrived")
        with Simulation(network) as simulation:
            simulation.step(self.steps + 40)
            arrived = values_of(simulation, target, "arrived")
        return [
            [(s, float(arrived[s + delay - 1, i])) for s in train]
            for i, (train, delay) in enumerate(zip(self.pre, self.delays, strict=True))
        ]


SYNAPSES = {
    "stdp_synapse, additive": Plastic(
        STDP.additive(w_max=8.0, learning_rate=0.01, alpha=1.2, tau_plus_ms=15.0, tau_minus_ms=30.0),
        "stdp_synapse",
        {},
        {"lambda": 0.01, "alpha": 1.2, "mu_plus": 0.0, "mu_minus": 0.0, "Wmax": 8.0, "tau_plus": 15.0},
        2.0,
    ),
    "stdp_synapse, multiplicative": Plastic(
        STDP.multiplicative(w_max=8.0, learning_rate=0.02),
        "stdp_synapse",
        {},
        {"lambda": 0.02, "alpha": 1.0, "mu_plus": 1.0, "mu_minus": 1.0, "Wmax": 8.0, "tau_plus": 20.0},
        2.0,
    ),
    "stdp_pl_synapse_hom": Plastic(
        STDP.power_law(w_max=1000.0, learning_rate=0.05, alpha=0.11, mu=0.4, tau_plus_ms=15.0, tau_minus_ms=30.0),
        "stdp_pl_synapse_hom",
        {"lambda": 0.05, "alpha": 0.11, "mu": 0.4, "tau_plus": 15.0},
        {},
        40.0,
    ),
    "tsodyks2_synapse, tiring": Plastic(
        TsodyksMarkram(u=0.5, tau_recovery_ms=300.0),
        "tsodyks2_synapse",
        {},
        {"U": 0.5, "u": 0.5, "tau_rec": 300.0, "tau_fac": 0.0},
        8.0,
    ),
    "tsodyks2_synapse, facilitating": Plastic(
        TsodyksMarkram(u=0.15, tau_recovery_ms=130.0, tau_facilitation_ms=500.0),
        "tsodyks2_synapse",
        {},
        {"U": 0.15, "u": 0.15, "tau_rec": 130.0, "tau_fac": 500.0},
        8.0,
    ),
}


@pytest.mark.parametrize("name", SYNAPSES)
def test_every_transmitted_weight(name: str, nest_results: dict[str, Any]) -> None:
    """Float32 beside float64: a few parts in a hundred thousand after some hundred changes."""
    synapses = SYNAPSES[name]
    transmitted, expected = synapses.transmitted(), nest_results[name]
    assert [[step for step, _ in one] for one in transmitted] == [[step for step, _ in one] for one in expected]
    found = np.array([weight for one in transmitted for _, weight in one])
    wanted = np.array([weight for one in expected for _, weight in one])
    assert np.ptp(wanted) > 0.5 * np.abs(wanted).mean(), "something is learned"
    assert np.abs(found - wanted).max() < 2e-4 * np.abs(wanted).max()


# --- rate neurons ---


class Rates:
    """A recurrent network of rate neurons without noise, each connection with its own weight and delay."""

    n, steps, in_degree = 40, 1000, 8

    def __init__(self, model: NeuronModel, nest_model: str, seed: int, **parameters: float) -> None:
        self.model, self.nest_model, self.parameters = model, nest_model, parameters
        rng = np.random.default_rng(seed)
        n, k = self.n, self.in_degree
        self.pre, self.post = rng.integers(0, n, n * k), np.repeat(np.arange(n), k)
        self.weights = rng.normal(0.0, 0.25, n * k)
        self.delays = rng.integers(1, 41, n * k)
        self.rates = rng.normal(0.0, 0.5, n)

    def for_nest(self) -> dict[str, Any]:
        columns = (self.pre, self.post, self.weights, self.delays)
        return {
            "kind": "rates",
            "model": self.nest_model,
            "n": self.n,
            "steps": self.steps,
            "parameters": self.parameters,
            "rates": self.rates.tolist(),
            "synapses": [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)],
        }

    def traces(self) -> np.ndarray:
        """The rate of each neuron (rows) after every step."""
        network = Network(dt_ms=DT)
        initial: dict[str, Any] = {"rate": self.rates}
        if "noisy_rate" in self.model.states:
            initial["noisy_rate"] = self.rates
        if "activity" in self.model.states:
            initial["activity"] = self.activity(self.rates)
        neurons = network.population("neurons", self.n, self.model, **initial)
        network.connect_rates(
            neurons, neurons, Explicit(self.pre, self.post), weight=self.weights, delay_ms=self.delays * DT
        )
        network.record(neurons, "rate")
        with Simulation(network) as simulation:
            simulation.step(self.steps)
            return simulation.samples(neurons, "rate")[1].T

    def activity(self, rates: np.ndarray) -> np.ndarray:
        """The outputs before the first step."""
        gain, theta = self.parameters.get("g", 1.0), self.parameters.get("theta", 0.0)
        return np.tanh(gain * (rates - theta)) if "tanh" in self.nest_model else gain * np.maximum(0.0, rates - theta)


RATES = {
    "rate_linear_output_noise": Rates(rate_linear_output_noise(gain=0.9, mean=0.3), "lin_rate_opn", 6, g=0.9, mu=0.3),
    "rate_linear": Rates(rate_linear(gain=0.9, mean=0.3), "lin_rate_ipn", 1, g=0.9, mu=0.3),
    "rate_tanh": Rates(rate_tanh(tau_ms=5.0, gain=1.5, theta=0.1), "tanh_rate_ipn", 2, tau=5.0, g=1.5, theta=0.1),
    "rate_tanh_each": Rates(
        rate_tanh_each(gain=1.5, theta=0.1), "tanh_rate_ipn", 3, g=1.5, theta=0.1, linear_summation=False
    ),
    "rate_threshold_linear": Rates(
        rate_threshold_linear(gain=1.2, theta=0.1, mean=0.2), "threshold_lin_rate_ipn", 4, g=1.2, theta=0.1, mu=0.2
    ),
    "rate_threshold_linear_each": Rates(
        rate_threshold_linear_each(gain=1.2, theta=0.1), "threshold_lin_rate_ipn", 5, g=1.2, theta=0.1,
        linear_summation=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RATES)
def test_rates_with_delays(name: str, nest_results: dict[str, Any]) -> None:
    """Float32 beside float64, over 100 ms."""
    found, expected = RATES[name].traces(), np.array(nest_results[name])
    assert np.abs(expected - expected[:, :1]).max() > 0.3, "the rates change"
    assert np.abs(found - expected).max() < 2e-6


JOBS: dict[str, Membranes | Saturating | Plastic | Rates] = {
    **MEMBRANES,
    "saturating": SATURATING,
    **SYNAPSES,
    **RATES,
}
