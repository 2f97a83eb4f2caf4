"""Recurrent networks with given connections, delays and inputs, for NEST, for float64 and for neuraxis."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from neuraxis.network import Explicit, Network, NeuronModel, nmda_saturation
from neuraxis.network.models import lif_alpha, lif_delta, lif_exp_two, spike_source
from neuraxis.simulation import Simulation
from tests.engine.running import give_spikes, random_trains

DT = 0.1
Array = np.ndarray[Any, Any]
Spikes = list[list[int]]
"""[step, neuron] of each."""


@dataclass(frozen=True)
class Synapses:
    """One synapse in each row of the columns; `ports` are NEST's numbers of receptors, 0 if it has none."""

    pre: Array
    post: Array
    weights: Array
    delays: Array
    ports: Array

    def listed(self, positive: bool) -> list[list[Any]]:
        columns = (self.pre, self.post, np.abs(self.weights) if positive else self.weights, self.delays, self.ports)
        return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]


@dataclass(frozen=True)
class Recurrent:
    """Neurons, one in five inhibitory, driven by given spikes and currents, with delays of 1 to 30 steps.

    The seeds are such that float32 and float64 decide alike.
    """

    model: NeuronModel
    nest_model: str
    parameters: dict[str, Any]
    seed: int
    weight: float
    current: float
    _: KW_ONLY
    n: int = 60
    steps: int = 2000
    in_degree: int = 10
    late: int = 0
    """By how many steps a spike may differ from NEST's."""
    ports: Literal["none", "sign", "any", "nmda"] = "none"
    """Which of NEST's receptors a synapse takes: that of its sign, any of three, or of those of iaf_bw_2001."""
    has_current: bool = True
    initial: dict[str, float] | None = None

    inputs = 20

    @cached_property
    def wiring(self) -> tuple[Synapses, Synapses, Array]:
        """The recurrent synapses, those of the inputs, and the currents."""
        rng, others = np.random.default_rng(self.seed), np.random.default_rng(self.seed + 2)
        n, k = self.n, self.in_degree
        pre, post = rng.integers(0, n, n * k), np.repeat(np.arange(n), k)
        # Eighths are the same in fixed point, in float32 and in float64.
        sizes = np.rint(rng.uniform(0.5, 1.5, n * k) * self.weight * 8) / 8
        weights = np.where(pre < 0.8 * n, sizes, -3 * sizes)
        recurrent = Synapses(pre, post, weights, rng.integers(1, 31, n * k), self.drawn_ports(others, weights))
        pre, post = rng.integers(0, self.inputs, 2 * n), np.repeat(np.arange(n), 2)
        weights = np.rint(rng.uniform(2.0, 4.0, 2 * n) * self.weight * 8) / 8
        ports = np.minimum(self.drawn_ports(others, weights), 1 if self.ports == "nmda" else 3)
        given = Synapses(pre, post, weights, rng.integers(1, 31, 2 * n), ports)
        return recurrent, given, np.rint(rng.uniform(0.6, 1.1, n) * self.current)

    def drawn_ports(self, rng: np.random.Generator, weights: Array) -> Array:
        some = rng.integers(1, 4, weights.size)
        by_sign = np.where(weights > 0, 1, 2)
        slow = np.where((weights > 0) & (some == 3), 3, by_sign)
        return {"none": 0 * some, "sign": by_sign, "any": some, "nmda": slow}[self.ports]

    @cached_property
    def trains(self) -> list[list[int]]:
        return random_trains(self.seed + 1, self.inputs, self.steps, 0.02)

    def for_nest(self) -> dict[str, Any]:
        recurrent, given, currents = self.wiring
        positive = self.ports == "nmda"
        return {
            "kind": "network",
            "model": self.nest_model,
            "n": self.n,
            "steps": self.steps,
            "parameters": self.parameters,
            "currents": currents.tolist(),
            "has_current": self.has_current,
            "inputs": self.trains,
            "input_synapses": given.listed(positive),
            "synapses": recurrent.listed(positive),
        }

    @cached_property
    def spikes(self) -> Spikes:
        """The spikes here."""
        recurrent, given, currents = self.wiring
        network = Network(dt_ms=DT)
        source = network.population("source", self.inputs, spike_source)
        neurons = network.population("neurons", self.n, self.model, **self.initial or {})
        give_spikes(network, source, self.trains)
        # A generator of NEST gives its current two steps later.
        network.current(neurons, currents, start_ms=0.0 if self.has_current else 2 * DT)
        for pre, synapses in ((source, given), (neurons, recurrent)):
            for port in np.unique(synapses.ports):
                for sign in (1, -1):
                    here = (synapses.ports == port) & (synapses.weights * sign > 0)
                    if not here.any():
                        continue
                    receptor = self.model.receptors[port - 1] if port else None
                    rule, jump = nmda_saturation() if self.ports == "nmda" and port == 3 else (None, 1.0)
                    network.connect(
                        pre, neurons, Explicit(synapses.pre[here], synapses.post[here]),
                        weight=synapses.weights[here] * jump, delay_ms=synapses.delays[here] * DT,
                        synapse=receptor, plasticity=rule,
                    )  # fmt: skip
        network.record(neurons)
        with Simulation(network) as simulation:
            simulation.step(self.steps)
            times_ms, ids = simulation.spikes(neurons)
        return [[int(step), int(i)] for step, i in zip(np.rint(times_ms / DT), ids, strict=True)]


LIF = {"e_rest_mv": 0.0, "v_threshold_mv": 15.0, "v_reset_mv": 0.0}
LIF_IN_NEST = {"tau_m": 10.0, "C_m": 250.0, "E_L": 0.0, "V_th": 15.0, "V_reset": 0.0, "t_ref": 2.0, "V_m": 0.0}
TAUS, TAUS_IN_NEST = {"tau_syn_ex_ms": 0.5, "tau_syn_in_ms": 1.5}, {"tau_syn_ex": 0.5, "tau_syn_in": 1.5}
LARGE: dict[str, Any] = {"n": 100, "steps": 3000, "in_degree": 15, "initial": {"v_mv": 0.0}}

LEAKY = {
    "lif_delta": Recurrent(lif_delta(**LIF), "iaf_psc_delta", LIF_IN_NEST, 2, 0.5, 300.0, **LARGE),
    "lif_exp_two": Recurrent(
        lif_exp_two(**TAUS, **LIF), "iaf_psc_exp", {**LIF_IN_NEST, **TAUS_IN_NEST}, 141, 120.0, 400.0, **LARGE
    ),
    "lif_alpha": Recurrent(
        lif_alpha(**TAUS, **LIF), "iaf_psc_alpha", {**LIF_IN_NEST, **TAUS_IN_NEST}, 6, 120.0, 400.0, **LARGE
    ),
}
