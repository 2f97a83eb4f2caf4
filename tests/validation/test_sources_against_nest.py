"""Random spikes, noise and relays in NEST and here: distributions of the random ones, every spike of the relays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from neuraxis.network import Explicit, Network, NeuronModel, with_noise_current
from neuraxis.network.models import (
    gamma_source,
    lif_delta,
    parrot,
    poisson_source,
    pp_delta,
    rate_linear,
    rate_linear_output_noise,
    spike_source,
)
from neuraxis.simulation import Simulation
from tests.engine.running import give_spikes, random_trains, trains_of

DT = 0.1
# The distance of Kolmogorov and Smirnov that one in ten thousand pairs of samples exceeds, by sqrt(1/n + 1/m).
LARGEST = 2.23


def distance(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """The largest difference between the distributions of two samples."""
    both = np.union1d(found, expected)
    parts = (np.searchsorted(np.sort(one), both, "right") / one.size for one in (found, expected))
    return float(np.abs(np.subtract(*parts)).max())


# --- random trains ---


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
    # NEST's may spike several times in a step, which counts as one here.
    "poisson_generator": Trains(poisson_source(rate_hz=400.0), "poisson_generator", {"rate": 400.0}, generator=True),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINS)
def test_random_trains_have_the_statistics_of_nest(name: str, nest_results: dict[str, Any]) -> None:
    """Rates and mean intervals within four standard errors, intervals by their distributions."""
    ours, theirs = TRAINS[name].trains(), nest_results[name]
    counts = [np.array([len(train) for train in trains]) for trains in (ours, theirs)]
    error = np.hypot(*(one.std(ddof=1) / np.sqrt(one.size) for one in counts))
    assert counts[1].mean() > 20
    assert abs(counts[0].mean() - counts[1].mean()) < 4 * error
    found, expected = (np.concatenate([np.diff(train) for train in trains]) for trains in (ours, theirs))
    # Intervals in whole steps make the test stricter than for continuous values, not weaker.
    assert distance(found, expected) < LARGEST * np.sqrt(1 / found.size + 1 / expected.size)


def test_intervals_of_a_poisson_source_are_geometric() -> None:
    trains = TRAINS["poisson_generator"].trains()
    probability = 1 - np.exp(-400.0 * DT * 1e-3)
    intervals = np.concatenate([np.diff(train) for train in trains])
    steps = np.arange(1, intervals.max() + 1)
    exact = 1 - (1 - probability) ** steps
    found = np.searchsorted(np.sort(intervals), steps, "right") / intervals.size
    # Long intervals that the end of the run cut off make the others seem shorter, by less than a part in 500.
    assert np.abs(found - exact).max() < LARGEST / np.sqrt(intervals.size) + 2e-3


# --- relays ---


class Relays:
    """Neurons that repeat given spikes, to others that repeat them in turn, with delays of 1 to 30 steps."""

    n, inputs, steps = 60, 20, 2000

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.trains = random_trains(6, self.inputs, self.steps, 0.01)
        self.first = np.arange(self.n) < 20  # these repeat the inputs alone
        targets = np.repeat(np.arange(self.n), 3)
        self.given = rng.integers(0, self.inputs, 60), targets[:60], rng.integers(1, 31, 60)
        self.further = rng.integers(0, targets[60:] // 2 + 1), targets[60:], rng.integers(1, 31, 120)

    def for_nest(self) -> dict[str, Any]:
        def listed(pre: Any, post: Any, delays: Any) -> list[list[Any]]:
            return [[int(i), int(j), 1.0, int(d), 0] for i, j, d in zip(pre, post, delays, strict=True)]

        synapses = {"synapses": listed(*self.further), "input_synapses": listed(*self.given)}
        own = {"n": self.n, "steps": self.steps, "parameters": {}, "currents": None, "inputs": self.trains}
        return {"kind": "network", "model": "parrot_neuron", **own, **synapses}


RELAYS = Relays()


def test_relays_repeat_every_spike(nest_results: dict[str, Any]) -> None:
    """NEST's emit spikes with a multiplicity, of which the first neurons here count what is beyond one."""
    network = Network(dt_ms=DT)
    source, relays = network.population("source", RELAYS.inputs, spike_source), network.population("relays", 60, parrot)
    give_spikes(network, source, RELAYS.trains)
    for population, (pre, post, delays) in ((source, RELAYS.given), (relays, RELAYS.further)):
        network.connect(population, relays, Explicit(pre, post), weight=1.0, delay_ms=delays * DT)
    network.record(relays)
    with Simulation(network) as simulation:
        simulation.step(RELAYS.steps)
        trains, surplus = trains_of(simulation, relays), simulation.state(relays, "surplus")
    answer = np.array(nest_results["relays"])
    assert len({tuple(one) for one in answer.tolist()}) > 3000
    counted = [answer[answer[:, 1] == neuron, 0] for neuron in range(RELAYS.n)]
    assert trains == [np.unique(steps).tolist() for steps in counted]
    beyond = np.array([steps.size - np.unique(steps).size for steps in counted])
    assert beyond[RELAYS.first].sum() > 5
    assert surplus[RELAYS.first].tolist() == beyond[RELAYS.first].tolist()


# --- noise ---


@dataclass(frozen=True)
class Noise:
    """Neurons that only noise moves: what was recorded of each, every 50.3 ms."""

    nest_model: str
    parameters: dict[str, float]
    record: tuple[str, ...]
    generator: dict[str, float] | None = None

    n: ClassVar[int] = 400
    steps: ClassVar[int] = 6000
    every: ClassVar[int] = 503  # also for noise that changes every ten steps: all phases occur

    def for_nest(self) -> dict[str, Any]:
        own = {"n": self.n, "steps": self.steps, "every": self.every, "seed": 11, "record": list(self.record)}
        more = {"model": self.nest_model, "parameters": self.parameters, "generator": self.generator}
        return {"kind": "noise", **own, **more}

    def values(self, model: NeuronModel, *states: str) -> list[np.ndarray[Any, Any]]:
        """The recorded states, by (time, neuron)."""
        network = Network(dt_ms=DT, seed=11)
        neurons = network.population("neurons", self.n, model)
        for state in states:
            network.record(neurons, state, every_ms=self.every * DT)
        with Simulation(network) as simulation:
            simulation.step(self.steps)
            return [simulation.samples(neurons, state)[1].astype(float) for state in states]


# The threshold is out of reach.
CURRENT = Noise("iaf_psc_delta", {"V_th": 1000.0}, ("V_m",), {"mean": 100.0, "std": 300.0, "dt": 1.0})
RATE = Noise("lin_rate_ipn", {"sigma": 0.5, "mu": 0.3, "tau": 10.0}, ("rate",))
OUTPUT = Noise("lin_rate_opn", {"sigma": 0.5, "mu": 0.3, "tau": 10.0}, ("rate", "noisy_rate"))


def assert_alike(here: np.ndarray[Any, Any], there: np.ndarray[Any, Any], mean: float, deviation: float) -> None:
    """Both have the mean and the standard deviation within four standard errors, and the same distribution."""
    for one in (here.ravel(), there.ravel()):
        assert abs(one.mean() - mean) < 4 * deviation / np.sqrt(one.size)
        assert abs(one.std() / deviation - 1) < 4 / np.sqrt(2 * one.size)
    assert distance(here.ravel(), there.ravel()) < LARGEST * np.sqrt(1 / here.size + 1 / there.size)


def test_a_noise_current_moves_membranes_as_in_nest(nest_results: dict[str, Any]) -> None:
    model = with_noise_current(lif_delta(v_threshold_mv=1000.0))
    model = model(noise_mean_pa=100.0, noise_std_pa=300.0, noise_every_ms=1.0)
    (here,) = CURRENT.values(model, "v_mv")
    # In the middle of an interval V has less of its own variance, and some of that of the interval.
    kept, resistance = np.exp(-np.arange(1, 11) * DT / 10.0), 10.0 / 250.0
    at_ends = (resistance * 300.0 * (1 - kept[-1])) ** 2 / (1 - kept[-1] ** 2)
    deviation = np.sqrt(np.mean(kept**2 * at_ends + (resistance * 300.0 * (1 - kept)) ** 2))
    assert_alike(here[1:], np.array(nest_results["noise current"]["V_m"])[1:], -70.0 + 4.0, deviation)


def test_the_noise_of_rates_is_that_of_nest(nest_results: dict[str, Any]) -> None:
    (here,) = RATE.values(rate_linear(sigma=0.5, mean=0.3), "rate")
    there = np.array(nest_results["rate noise"]["rate"])
    assert_alike(here[1:], there[1:], 0.3, 0.5 / np.sqrt(2))


def test_the_noise_of_the_output_is_that_of_nest(nest_results: dict[str, Any]) -> None:
    model = rate_linear_output_noise(sigma=0.5, mean=0.3)
    rate, noisy = OUTPUT.values(model, "rate", "noisy_rate")
    answer = nest_results["output noise"]
    expected = np.array(answer["rate"])
    assert np.abs(rate - expected).max() < 5e-6, "the noise does not move the rate itself"
    assert_alike(noisy[1:], np.array(answer["noisy_rate"])[1:], 0.3, 0.5 * np.sqrt(10.0 / DT))


JOBS: dict[str, Trains | Relays | Noise] = {
    **TRAINS, "relays": RELAYS, "noise current": CURRENT, "rate noise": RATE, "output noise": OUTPUT,
}  # fmt: skip
