"""Recurrent networks against plain NumPy in float64: the same spikes, also for a model that NEST does not have."""

from __future__ import annotations

import numpy as np
import pytest

from neuraxis.network import Network
from neuraxis.network.models import qif
from neuraxis.simulation import Simulation
from tests.engine.running import trains_of
from tests.validation.recurrent import DT, LEAKY, Array, Recurrent, Spikes

QUADRATIC = Recurrent(qif, "", {}, 1, 30.0, 120.0)


class Leaky:
    """The exact solution of leaky neurons with delta, exponential or alpha synapses."""

    threshold_mv, reset_mv, held_steps = 15.0, 0.0, 20

    def __init__(self, kind: str, n: int, currents: Array) -> None:
        self.kind, self.currents = kind, currents
        self.v, self.current, self.slope = np.zeros(n), np.zeros((2, n)), np.zeros((2, n))
        self.taus = np.array([0.5, 1.5])
        self.m, self.s = np.exp(-DT / 10.0), np.exp(-DT / self.taus)
        b = 1 / self.taus - 1 / 10.0
        self.per_pa = (self.m - self.s) / (250.0 * b)
        self.per_slope = (self.m - self.s * (1 + DT * b)) / (250.0 * b * b)

    def step(self, arriving: Array) -> Array:
        v = self.v * self.m + 10.0 / 250.0 * (1 - self.m) * self.currents
        if self.kind == "lif_delta":
            return v + arriving.sum(axis=0)
        v += self.per_pa @ self.current + self.per_slope @ self.slope
        s = self.s[:, None]
        if self.kind == "lif_alpha":
            self.current = self.current * s + DT * s * self.slope
            self.slope = self.slope * s + np.e / self.taus[:, None] * arriving
        else:
            self.current = self.current * s + arriving
        return v


class Quadratic:
    """Quadratic neurons with exponential currents, by the Runge-Kutta method with a twentieth of the step."""

    threshold_mv, reset_mv, held_steps, parts = 35.0, -50.0, 0, 20

    def __init__(self, kind: str, n: int, currents: Array) -> None:
        self.currents = currents
        self.v, self.synaptic = np.full(n, -60.0), np.zeros(n)

    def step(self, arriving: Array) -> Array:
        h, v, i = DT / self.parts, self.v, self.synaptic
        for _ in range(self.parts):
            middle, end = i * np.exp(-0.5 * h / 2.0), i * np.exp(-h / 2.0)
            a = self.slope(v, i)
            b = self.slope(v + 0.5 * h * a, middle)
            c = self.slope(v + 0.5 * h * b, middle)
            d = self.slope(v + h * c, end)
            v, i = np.minimum(v + h / 6.0 * (a + 2.0 * (b + c) + d), self.threshold_mv), end
        self.synaptic = i + arriving.sum(axis=0)
        return v

    def slope(self, v: Array, i: Array) -> Array:
        return (0.7 * (v + 60.0) * (v + 40.0) + i + self.currents) / 100.0


def spikes_of(network: Recurrent, neurons: Leaky | Quadratic) -> tuple[Spikes, float]:
    """The spikes, and how near to the threshold a membrane was at the end of any step."""
    recurrent, given, _ = network.wiring
    arriving = np.zeros((network.steps + 40, 2, network.n))
    for i, train in enumerate(network.trains):
        for k in np.flatnonzero(given.pre == i):
            np.add.at(arriving, (np.array(train, int) + given.delays[k], 0, given.post[k]), given.weights[k])
    held = np.zeros(network.n, int)
    spikes, margin = [], np.inf
    by_source = [np.flatnonzero(recurrent.pre == i) for i in range(network.n)]
    for t in range(1, network.steps + 1):
        free = held == 0
        neurons.v = np.where(free, neurons.step(arriving[t]), neurons.v)
        held = np.where(free, 0, held - 1)
        margin = min(margin, float(np.abs(neurons.v - neurons.threshold_mv).min()))
        for i in np.flatnonzero(neurons.v >= neurons.threshold_mv):
            spikes.append([t, int(i)])
            neurons.v[i], held[i] = neurons.reset_mv, neurons.held_steps
            for k in by_source[i]:
                arriving[t + recurrent.delays[k], int(recurrent.weights[k] < 0), recurrent.post[k]] += (
                    recurrent.weights[k]
                )
    return spikes, margin


@pytest.mark.parametrize("kind", LEAKY)
def test_leaky_neurons_spike_for_spike(kind: str) -> None:
    """The networks that are compared with NEST, too: the oracle shows that the comparison is a fair one."""
    network = LEAKY[kind]
    spikes, margin = spikes_of(network, Leaky(kind, network.n, network.wiring[2]))
    assert margin > 1e-4, "choose another seed"
    assert len(spikes) > 500
    assert len({neuron for _, neuron in spikes}) > 0.8 * network.n
    assert network.spikes == spikes


def test_quadratic_neurons_spike_for_spike() -> None:
    """With a tenth of the steps of `qif` itself; the seed is such that no spike is at the border of a step."""
    spikes, _ = spikes_of(QUADRATIC, Quadratic("qif", QUADRATIC.n, QUADRATIC.wiring[2]))
    assert len(spikes) > 500
    assert len({neuron for _, neuron in spikes}) > 0.8 * QUADRATIC.n
    assert QUADRATIC.spikes == spikes


def test_quadratic_neurons_have_the_intervals_of_the_closed_form() -> None:
    """From the reset to the peak the time is a difference of arc tangents; a reset is at the end of a step."""
    currents = np.array([71.0, 75.0, 90.0, 120.0, 210.0, 500.0, 1500.0])
    middle, rate = -50.0, np.sqrt(0.7 * (currents - 70.0))  # 70 pA is the rheobase: k (v_t - e_rest)^2 / 4
    times = (np.arctan(0.7 * (35.0 - middle) / rate) - np.arctan(0.7 * (-50.0 - middle) / rate)) * 100.0 / rate
    steps = np.ceil(times / DT).astype(int)
    assert np.abs(times / DT - np.rint(times / DT)).min() > 0.01
    network = Network(dt_ms=DT)
    neurons = network.population("neurons", currents.size, qif, v_mv=-50.0)
    network.current(neurons, currents)
    network.record(neurons)
    with Simulation(network) as simulation:
        simulation.step(10_000)
        trains = trains_of(simulation, neurons)
    assert trains == [list(range(step, 10_001, step)) for step in steps]
