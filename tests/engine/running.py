"""Helpers for tests of the engine: a neuron that shows its input, and spikes as a table of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neuraxis.network import Network, Population, neuron_model
from neuraxis.simulation import Simulation


@neuron_model(states={"total": 0.0, "arrived": 0.0}, receptors=("input",))
def adder(total, arrived, input):
    """Sum of all input; `arrived` is the input of the last step."""
    return False, total + input, input


@neuron_model(states={"plus": 0.0, "minus": 0.0}, receptors=("positive", "negative"))
def two_adders(plus, minus, positive, negative):
    """The same with one sum for each of two receptors."""
    return False, plus + positive, minus + negative


def give_spikes(network: Network, population: Population, trains: Sequence[Sequence[int]]) -> None:
    """Make neuron i emit spikes in the steps trains[i]."""
    steps = np.concatenate([np.asarray(train, float) for train in trains])
    ids = np.repeat(np.arange(len(trains)), [len(train) for train in trains])
    network.spikes(population, steps * network.dt_ms, ids)


def trains_of(simulation: Simulation, population: Population) -> list[list[int]]:
    """The steps in which each neuron of a population spiked."""
    times_ms, ids = simulation.spikes(population)
    steps = np.rint(times_ms / simulation.network.dt_ms).astype(int)
    return [steps[ids == i].tolist() for i in range(population.n)]


def values_of(simulation: Simulation, population: Population, state: str) -> np.ndarray[Any, Any]:
    """A recorded state by (step, neuron), float64; every step must have been recorded. Row 0 is step 1."""
    times_ms, values = simulation.samples(population, state)
    assert np.array_equal(np.rint(times_ms / simulation.network.dt_ms), np.arange(1, simulation.steps + 1))
    return values.astype(np.float64)


def random_trains(seed: int, n: int, steps: int, probability: float) -> list[list[int]]:
    """Independent random spikes in steps 1 to `steps`."""
    drawn = np.random.default_rng(seed).random((n, steps)) < probability
    return [(np.flatnonzero(row) + 1).tolist() for row in drawn]
