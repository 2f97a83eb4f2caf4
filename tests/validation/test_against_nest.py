"""The same small networks in NEST and here: the same spikes, the same membranes, the same weights.

NEST is looked for in this interpreter, in the one that NEURAXIS_PEERS names, and in `.venv-peers` of the project. One
process makes all NEST runs, once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
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
    gamma_source,
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
    pp_delta,
    rate_linear,
    rate_tanh,
    rate_tanh_each,
    rate_threshold_linear,
    rate_threshold_linear_each,
    spike_source,
)
from neuraxis.simulation import Simulation
from tests.engine.running import adder, give_spikes, random_trains, trains_of, values_of

DT = 0.1
ROOT = Path(__file__).parents[2]


def python_with_nest() -> str:
    if importlib.util.find_spec("nest") is not None:
        return sys.executable
    if chosen := os.environ.get("NEURAXIS_PEERS"):
        return chosen
    beside = ROOT / ".venv-peers" / "bin" / "python"
    if beside.exists():
        return str(beside)
    pytest.fail("NEST is missing: pip install -e '.[dev]' here, or name a Python that has it in NEURAXIS_PEERS")


@pytest.fixture(scope="module")
def nest_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """NEST's results for all jobs of this module."""
    folder = tmp_path_factory.mktemp("nest")
    jobs = {name: job.for_nest() for name, job in JOBS.items()}
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [python_with_nest(), str(Path(__file__).with_name("nest_side.py")), "jobs.json", "results.json"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYNEST_QUIET": "1"}, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results


# --- recurrent networks, spike for spike ---

# Tau, capacitance and refractory time are the defaults of both.
LIF = {"e_rest_mv": 0.0, "v_threshold_mv": 15.0, "v_reset_mv": 0.0}
LIF_IN_NEST = {"tau_m": 10.0, "C_m": 250.0, "E_L": 0.0, "V_th": 15.0, "V_reset": 0.0, "t_ref": 2.0, "V_m": 0.0}
TAUS, TAUS_IN_NEST = {"tau_syn_ex_ms": 0.5, "tau_syn_in_ms": 1.5}, {"tau_syn_ex": 0.5, "tau_syn_in": 1.5}


class Recurrent:
    """A hundred neurons, one in five inhibitory, driven by given spikes and currents, with delays of 1 to 30 steps."""

    n, inputs, steps, in_degree, margin_mv = 100, 20, 3000, 15, 1e-4
    current_from_ms = 0.0

    def __init__(self, kind: str, seed: int, weight: float, current: float) -> None:
        self.kind, self.weight = kind, weight
        rng = np.random.default_rng(seed)
        n, k = self.n, self.in_degree
        self.pre, self.post = rng.integers(0, n, n * k), np.repeat(np.arange(n), k)
        # Eighths are the same in fixed point, in float32 and in float64.
        sizes = np.rint(rng.uniform(0.5, 1.5, n * k) * weight * 8) / 8
        self.weights = np.where(self.pre < 0.8 * n, sizes, -3 * sizes)
        self.delays = rng.integers(1, 31, n * k)
        self.trains = random_trains(seed + 1, self.inputs, self.steps, 0.02)
        self.input_pre, self.input_post = rng.integers(0, self.inputs, 2 * n), np.repeat(np.arange(n), 2)
        self.input_weights = np.rint(rng.uniform(2.0, 4.0, 2 * n) * weight * 8) / 8
        self.input_delays = rng.integers(1, 31, 2 * n)
        self.currents = np.rint(rng.uniform(0.6, 1.1, n) * current)

    def for_nest(self) -> dict[str, Any]:
        def listed(*columns: Any) -> list[Any]:
            return [list(row) for row in zip(*(np.asarray(column).tolist() for column in columns), strict=True)]

        names = {"delta": "iaf_psc_delta", "exp": "iaf_psc_exp", "alpha": "iaf_psc_alpha"}
        return {
            "kind": "network",
            "model": names.get(self.kind, self.kind),
            "n": self.n,
            "steps": self.steps,
            "parameters": LIF_IN_NEST if self.kind == "delta" else {**LIF_IN_NEST, **TAUS_IN_NEST},
            "currents": self.currents.tolist(),
            "has_current": True,
            "ports": False,
            "inputs": self.trains,
            "input_synapses": listed(self.input_pre, self.input_post, self.input_weights, self.input_delays),
            "synapses": listed(self.pre, self.post, self.weights, self.delays),
        }

    def model(self) -> NeuronModel:
        return {"delta": lif_delta, "exp": lif_exp_two(**TAUS), "alpha": lif_alpha(**TAUS)}[self.kind](**LIF)

    def spikes(self) -> list[list[int]]:
        """[step, neuron] of every spike here."""
        model = self.model()
        network = Network(dt_ms=DT)
        source = network.population("source", self.inputs, spike_source)
        neurons = network.population("neurons", self.n, model, v_mv=model.parameters["e_rest_mv"])
        give_spikes(network, source, self.trains)
        network.current(neurons, self.currents, start_ms=self.current_from_ms)
        network.connect(
            source,
            neurons,
            Explicit(self.input_pre, self.input_post),
            weight=self.input_weights,
            delay_ms=self.input_delays * DT,
        )
        for sign in (1, -1):
            here = self.weights * sign > 0
            network.connect(
                neurons,
                neurons,
                Explicit(self.pre[here], self.post[here]),
                weight=self.weights[here],
                delay_ms=self.delays[here] * DT,
            )
        network.record(neurons)
        with Simulation(network) as simulation:
            simulation.step(self.steps)
            times_ms, ids = simulation.spikes(neurons)
        return [[int(step), int(i)] for step, i in zip(np.rint(times_ms / DT), ids, strict=True)]

    def oracle(self) -> tuple[list[list[int]], float]:
        """The spikes in float64, and how near to the threshold a membrane was in any step."""
        n, exp = self.n, np.exp
        m = exp(-DT / 10.0)
        taus = np.array([0.5, 1.5])
        s, b = exp(-DT / taus), 1 / taus - 1 / 10.0
        per_pa, per_slope = (m - s) / (250.0 * b), (m - s * (1 + DT * b)) / (250.0 * b * b)
        arriving = np.zeros((self.steps + 40, 2, n))
        for i, train in enumerate(self.trains):
            for k in np.flatnonzero(self.input_pre == i):
                np.add.at(
                    arriving,
                    (np.array(train, int) + self.input_delays[k], 0, self.input_post[k]),
                    self.input_weights[k],
                )
        v, held = np.zeros(n), np.zeros(n, int)
        current, slope = np.zeros((2, n)), np.zeros((2, n))
        spikes, margin = [], np.inf
        by_source = [np.flatnonzero(self.pre == i) for i in range(n)]
        for t in range(1, self.steps + 1):
            free = held == 0
            moved = v * m + 10.0 / 250.0 * (1 - m) * self.currents
            moved += arriving[t].sum(axis=0) if self.kind == "delta" else per_pa @ current + per_slope @ slope
            v = np.where(free, moved, v)
            held = np.where(free, 0, held - 1)
            if self.kind == "alpha":
                current = current * s[:, None] + DT * s[:, None] * slope
                slope = slope * s[:, None] + np.e / taus[:, None] * arriving[t]
            else:
                current = current * s[:, None] + arriving[t]
            margin = min(margin, float(np.abs(v - 15.0).min()))
            for i in np.flatnonzero(v >= 15.0):
                spikes.append([t, int(i)])
                v[i], held[i] = 0.0, 20
                for k in by_source[i]:
                    arriving[t + self.delays[k], int(self.weights[k] < 0), self.post[k]] += self.weights[k]
        return spikes, margin


# The seeds are such that no membrane comes nearer to the threshold than float32 can tell.
NETWORKS = {
    "delta": Recurrent("delta", 2, 0.5, 300.0),
    "exp": Recurrent("exp", 141, 120.0, 400.0),
    "alpha": Recurrent("alpha", 6, 120.0, 400.0),
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_recurrent_network_spike_for_spike_in_float64(kind: str) -> None:
    """Without NEST: the oracle also shows that the comparison is a fair one."""
    network = NETWORKS[kind]
    spikes, margin = network.oracle()
    assert margin > network.margin_mv, "choose another seed"
    assert len(spikes) > 500
    assert len({neuron for _, neuron in spikes}) > 0.8 * network.n
    assert network.spikes() == spikes


class Adaptive(Recurrent):
    """The same network of neurons that adapt, with the seeds for which float32 and float64 decide alike."""

    def __init__(
        self, model: NeuronModel, name: str, parameters: dict[str, Any], seed: int, weight: float, current: float
    ) -> None:
        super().__init__(name, seed, weight, current)
        self.own, self.name, self.parameters = model, name, parameters
        self.current_from_ms = 2 * DT if name == "glif_psc" else 0.0

    def for_nest(self) -> dict[str, Any]:
        alike = {"model": self.name, "parameters": self.parameters}
        with_ports = self.name == "glif_psc"
        return {**super().for_nest(), **alike, "has_current": not with_ports, "ports": with_ports}

    def model(self) -> NeuronModel:
        return self.own


ADAPTIVE = {
    "mat2 network": Adaptive(mat2, "mat2_psc_exp", {}, 7, 80.0, 450.0),
    "glif_5 network": Adaptive(
        glif_5(tau_syn_in_ms=3.0), "glif_psc",
        {"t_ref": 3.8, "tau_syn": [2.0, 3.0], "spike_dependent_threshold": True, "after_spike_currents": True,
         "adapting_threshold": True},
        3, 20.0, 300.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", [*NETWORKS, *ADAPTIVE])
def test_a_recurrent_network_spike_for_spike(kind: str, nest_results: dict[str, Any]) -> None:
    spikes = {**NETWORKS, **ADAPTIVE}[kind].spikes()
    assert len(spikes) > 300
    assert spikes == nest_results[kind]


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


# --- random trains ---


class Trains:
    """Independent neurons that spike at random: rates and the irregularity of intervals."""

    n, steps = 200, 20_000

    def __init__(
        self,
        model: NeuronModel,
        name: str,
        parameters: dict[str, Any],
        *,
        current: float = 0.0,
        generator: bool = False,
    ) -> None:
        self.model, self.name, self.parameters = model, name, parameters
        self.current, self.generator = current, generator

    def for_nest(self) -> dict[str, Any]:
        own = {"n": self.n, "steps": self.steps, "seed": 7, "generator": self.generator}
        return {"kind": "trains", "model": self.name, "parameters": self.parameters, **own}

    def trains(self) -> list[list[int]]:
        network = Network(dt_ms=DT, seed=7)
        neurons = network.population("neurons", self.n, self.model)
        if self.current:
            network.current(neurons, self.current)
        network.record(neurons)
        with Simulation(network) as simulation:
            simulation.step(self.steps)
            return trains_of(simulation, neurons)


TRAINS = {
    "pp_psc_delta": Trains(pp_delta(), "pp_psc_delta", {"I_e": 300.0}, current=300.0),
    "pp_psc_delta, adapting": Trains(
        pp_delta(q_sfa_mv=7.0, dead_time_ms=2.0, with_reset=0, c_1=0.5, c_2=5.0),
        "pp_psc_delta",
        {"I_e": 400.0, "q_sfa": 7.0, "tau_sfa": 34.0, "dead_time": 2.0, "with_reset": False, "c_1": 0.5, "c_2": 5.0},
        current=400.0,
    ),
    "gamma_sup_generator": Trains(
        gamma_source(rate_hz=40.0, shape=4), "gamma_sup_generator", {"rate": 40.0, "gamma_shape": 4, "n_proc": 1},
        generator=True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINS)
def test_random_trains_have_the_statistics_of_nest(name: str, nest_results: dict[str, Any]) -> None:
    """Rates and mean intervals within four standard errors, intervals by their distributions."""
    ours, theirs = TRAINS[name].trains(), nest_results[name]
    counts = [np.array([len(train) for train in trains]) for trains in (ours, theirs)]
    error = np.hypot(*(one.std(ddof=1) / np.sqrt(one.size) for one in counts))
    assert counts[1].mean() > 20
    assert abs(counts[0].mean() - counts[1].mean()) < 4 * error
    found, expected = (np.sort(np.concatenate([np.diff(train) for train in trains])) for trains in (ours, theirs))
    steps = np.union1d(found, expected)
    apart = (
        np.searchsorted(found, steps, "right") / found.size - np.searchsorted(expected, steps, "right") / expected.size
    )
    # Kolmogorov and Smirnov, at 1e-4; intervals in whole steps make the test stricter than that, not weaker.
    assert np.abs(apart).max() < 2.23 * np.sqrt(1 / found.size + 1 / expected.size)


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


JOBS: dict[str, Recurrent | Membranes | Saturating | Trains | Plastic | Rates] = {
    **NETWORKS, **ADAPTIVE, **MEMBRANES, "saturating": SATURATING, **TRAINS, **SYNAPSES, **RATES,
}  # fmt: skip
