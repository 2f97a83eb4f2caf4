"""External inputs of a network, and recordings of its probes."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest

from neuraxis.engine.codegen import BLOCK, poisson_function
from neuraxis.engine.random import poisson_thresholds
from neuraxis.errors import InvalidArgument
from neuraxis.network import AllToAll, Network, OneToOne, Uniform, neuron_model
from neuraxis.network.models import lif_exp, spike_source
from neuraxis.simulation import Simulation

from .running import adder, give_spikes, trains_of, two_adders, values_of
from .statistics import chi_square_fits, poisson_probabilities

DT = 0.1


@neuron_model(states={"received_pa": 0.0, "count": 0})
def ammeter(received_pa, count, current_pa):
    """Shows the current of the last step, and counts the steps with one."""
    return False, current_pa, count + 1 if current_pa != 0.0 else count


# --- poisson ---


def poisson_counts(rate_hz: Any, neurons: int, steps: int, seed: int = 1, **options: Any) -> np.ndarray[Any, Any]:
    """The numbers of spikes that arrived, by (step, neuron)."""
    network = Network(dt_ms=DT, seed=seed)
    target = network.population("target", neurons, adder)
    network.poisson(target, rate_hz, weight=0.5, **options)
    network.record(target, "arrived")
    with Simulation(network) as simulation:
        simulation.step(steps)
        counts = values_of(simulation, target, "arrived") / 0.5
    assert np.array_equal(counts, np.rint(counts)), "whole numbers of weights"
    return counts.astype(int)


@pytest.mark.parametrize("form", ["one", "each"])
@pytest.mark.parametrize("mean", [1e-3, 0.2, 1.5, 8.0, 29.0, 31.0, 200.0])
def test_poisson_counts_have_the_exact_distribution(form: str, mean: float) -> None:
    """Few and many a step, below and above where the kernel changes its method."""
    neurons, steps = 250, 200
    rate_hz = mean / DT * 1e3
    counts = poisson_counts(rate_hz if form == "one" else np.full(neurons, rate_hz), neurons, steps).ravel()
    n = neurons * steps
    assert abs(counts.mean() - mean) < 4 * math.sqrt(mean / n)
    assert abs(counts.var() / mean - 1) < 4 * math.sqrt((2 + 1 / mean) / n)
    highest = int(mean + 8 * math.sqrt(mean) + 3)
    observed = np.bincount(np.minimum(counts, highest), minlength=highest + 1)
    assert chi_square_fits(observed.tolist(), [n * p for p in poisson_probabilities(mean, highest)])


def test_poisson_counts_have_no_memory_and_are_each_neurons_own() -> None:
    counts = poisson_counts(5000.0, 100, 1000).astype(float)
    n = counts.size
    following = np.corrcoef(counts[:-1].ravel(), counts[1:].ravel())[0, 1]
    neighbours = np.corrcoef(counts[:, :-1].ravel(), counts[:, 1:].ravel())[0, 1]
    assert abs(following) < 4 / math.sqrt(n)
    assert abs(neighbours) < 4 / math.sqrt(n)
    assert np.unique(counts.sum(axis=0)).size > 20


def test_rates_can_differ_between_neurons() -> None:
    rates = np.array([0.0, 10.0, 1000.0, 20_000.0, 500_000.0] * 205)  # beyond one block
    counts = poisson_counts(rates, len(rates), 200).sum(axis=0)
    assert not counts[rates == 0].any()
    for rate in np.unique(rates[rates > 0]):
        here = counts[rates == rate]
        mean = rate * 200 * DT * 1e-3
        assert abs(here.mean() - mean) < 4 * math.sqrt(mean / len(here))
        assert abs(here.var(ddof=1) / mean - 1) < 4 * math.sqrt((2 + 1 / mean) / len(here))


@pytest.mark.parametrize("form", ["one", "each"])
def test_a_rate_beyond_the_method_is_no_silence(form: str) -> None:
    """e^-mean is 0 in float64 for a thousand spikes a step: it is refused by name, or counted right."""
    mean, counts = 1000.0, None
    rate_hz = mean / DT * 1e3
    with contextlib.suppress(InvalidArgument):
        counts = poisson_counts(rate_hz if form == "one" else [rate_hz] * 20, 20, 50)
    assert counts is None or abs(counts.mean() - mean) < 4 * math.sqrt(mean / counts.size)


@pytest.mark.parametrize("rate_hz", [50_000.0, [50_000.0, 60_000.0, 70_000.0]])
def test_poisson_input_acts_from_start_and_before_stop(rate_hz: Any) -> None:
    """The steps start + 1 to stop: a rate of five a step and more leaves hardly a step without a spike."""
    counts = poisson_counts(rate_hz, 3, 60, start_ms=1.0, stop_ms=3.0)
    assert not counts[:10].any()
    assert not counts[30:].any()
    assert (counts[10:30].sum(axis=1) > 0).all()


def test_windows_of_several_inputs_add_up_at_their_receptors() -> None:
    network = Network(dt_ms=DT, seed=5)
    target = network.population("target", 400, two_adders)
    network.poisson(target, 10_000.0, weight=1.0, stop_ms=10.0)
    network.poisson(target, 5000.0, weight=2.0, start_ms=5.0, stop_ms=15.0)
    network.poisson(target, np.full(400, 20_000.0), weight=-0.5, start_ms=10.0, stop_ms=20.0)
    network.record(target, "plus")
    network.record(target, "minus")
    with Simulation(network) as simulation:
        simulation.run(25.0)
        plus = np.diff(values_of(simulation, target, "plus"), axis=0, prepend=0)
        minus = np.diff(values_of(simulation, target, "minus"), axis=0, prepend=0)

    def mean(values: np.ndarray[Any, Any], first: int, last: int) -> float:
        return float(values[first:last].mean())

    n = 400 * 50
    assert mean(plus, 0, 50) == pytest.approx(1.0, abs=4 * math.sqrt(1 / n))
    assert mean(plus, 50, 100) == pytest.approx(2.0, abs=4 * math.sqrt(3 / n))
    assert mean(plus, 100, 150) == pytest.approx(1.0, abs=4 * math.sqrt(2 / n))
    assert not plus[150:].any()
    assert not minus[:100].any()
    assert mean(minus, 100, 200) == pytest.approx(-1.0, abs=4 * math.sqrt(0.5 / (2 * n)))
    assert not minus[200:].any()


def test_each_seed_and_population_has_its_own_spikes() -> None:
    network = Network(dt_ms=DT, seed=1)
    targets = [network.population(name, 50, adder) for name in "ab"]
    for target in targets:
        network.poisson(target, 5000.0, weight=1.0)
    with Simulation(network) as simulation:
        simulation.run(10.0)
        a, b = (simulation.state(target, "total") for target in targets)
    assert not np.array_equal(a, b)
    assert not np.array_equal(poisson_counts(5000.0, 50, 20, seed=1), poisson_counts(5000.0, 50, 20, seed=2))
    assert np.array_equal(poisson_counts(5000.0, 50, 20, seed=1), poisson_counts(5000.0, 50, 20, seed=1))


# --- given spikes ---


def test_given_spikes_are_emitted_in_their_steps_and_once() -> None:
    n = 2050
    network = Network(dt_ms=DT)
    source = network.population("source", n, spike_source)
    target = network.population("target", n, adder)
    network.connect(source, target, OneToOne(), weight=1.0, delay_ms=0.5)
    rng = np.random.default_rng(3)
    steps, ids = rng.integers(1, 100, 5000), rng.integers(0, n, 5000)
    ids[:4], steps[:4] = [0, 1023, 1024, n - 1], 50  # ends of blocks
    network.spikes(source, steps[:3000] * DT, ids[:3000])
    network.spikes(source, steps[2000:] * DT, ids[2000:])  # a thousand of them twice
    network.record(source)
    network.record(target, "total")
    with Simulation(network) as simulation:
        assert simulation.step(120).spikes == len(set(zip(steps, ids, strict=True)))
        times_ms, found = simulation.spikes(source)
        total = values_of(simulation, target, "total")
    expected = sorted(set(zip(steps.tolist(), ids.tolist(), strict=True)))
    assert list(zip(np.rint(times_ms / DT).astype(int).tolist(), found.tolist(), strict=True)) == expected
    arrived = np.zeros((120, n))
    for step, neuron in expected:
        arrived[step + 5 - 1, neuron] += 1
    assert np.array_equal(total, np.cumsum(arrived, axis=0))


def test_a_given_spike_in_the_first_and_last_step() -> None:
    network = Network(dt_ms=DT)
    source = network.population("source", 2, spike_source)
    give_spikes(network, source, [[1, 10], [10, 11]])
    network.record(source)
    with Simulation(network) as simulation:
        simulation.step(10)
        assert trains_of(simulation, source) == [[1, 10], [10]]
        simulation.step(1)
        assert trains_of(simulation, source) == [[1, 10], [10, 11]]


def test_a_neuron_that_is_made_to_spike_keeps_its_state() -> None:
    network = Network(dt_ms=DT)
    target = network.population("target", 2, lif_exp, v_mv=[-60.0, -60.0])
    give_spikes(network, target, [[5, 6, 7], []])
    network.record(target)
    network.record(target, "v_mv")
    with Simulation(network) as simulation:
        simulation.step(30)
        assert trains_of(simulation, target) == [[5, 6, 7], []]
        v = values_of(simulation, target, "v_mv")
    assert np.array_equal(v[:, 0], v[:, 1])


# --- currents ---


def test_currents_of_all_kinds_overlap_and_add_up() -> None:
    n, steps = 1100, 100
    network = Network(dt_ms=DT)
    target = network.population("target", n, ammeter)
    ramp = np.arange(n, dtype=float)
    network.current(target, 3.0)
    network.current(target, 10.0, start_ms=2.0, stop_ms=5.0)
    network.current(target, ramp, start_ms=4.0, stop_ms=6.0)
    network.current(target, -2 * ramp, start_ms=5.5)
    network.record(target, "received_pa")
    with Simulation(network) as simulation:
        simulation.step(37)  # in pieces: what was set must stay
        simulation.step(steps - 37)
        found = values_of(simulation, target, "received_pa")
    expected = np.full((steps, n), 3.0)
    expected[20:50] += 10.0
    expected[40:60] += ramp
    expected[55:] -= 2 * ramp
    assert np.array_equal(found, expected)


def test_a_current_of_one_step() -> None:
    network = Network(dt_ms=DT)
    target = network.population("target", 3, ammeter)
    network.current(target, [1.0, 2.0, 0.0], start_ms=1.0, stop_ms=1.1)
    with Simulation(network) as simulation:
        simulation.step(50)
        assert simulation.state(target, "count").tolist() == [1, 1, 0]


# --- probes ---


def test_probes_see_every_nth_step_of_the_neurons_asked_for() -> None:
    n = 1500
    network = Network(dt_ms=DT, seed=3)
    target = network.population("target", n, adder, total=Uniform(0.0, 1.0))
    other = network.population("other", 4, adder)
    network.poisson(target, 3000.0, weight=0.25)
    network.poisson(other, 3000.0, weight=0.25)
    subset = [1499, 0, 1024, 7]
    network.record(target, "total", every_ms=0.7, subset=subset)
    network.record(target, "arrived", every_ms=0.1, subset=slice(100, 1300, 300))
    network.record(other, "total", every_ms=2.5)
    whole: list[np.ndarray[Any, Any]] = []
    with Simulation(network) as simulation:
        for _ in range(50):
            simulation.step(1)
            whole.append(simulation.state(target, "total"))
        times_ms, total = simulation.samples(target, "total")
        arrived_ms, arrived = simulation.samples(target, "arrived")
        rare_ms, rare = simulation.samples(other, "total")
        last = simulation.state(other, "total")
    assert np.allclose(times_ms, 0.7 * np.arange(1, 8))
    assert np.array_equal(total, np.array([whole[7 * k - 1][subset] for k in range(1, 8)]))
    assert np.allclose(arrived_ms, 0.1 * np.arange(1, 51))
    differences = np.diff(np.array(whole)[:, 100:1300:300], axis=0)
    assert arrived.shape == (50, 4)
    assert np.allclose(arrived[1:], differences, atol=1e-5)
    assert np.allclose(rare_ms, [2.5, 5.0])
    assert np.array_equal(rare[-1], last)


def test_probes_of_whole_number_states_give_whole_numbers() -> None:
    network = Network(dt_ms=DT)
    target = network.population("target", 2, ammeter)
    network.current(target, [1.0, 0.0])
    network.record(target, "count", every_ms=0.3)
    with Simulation(network) as simulation:
        simulation.step(10)
        _, values = simulation.samples(target, "count")
    assert values.dtype == np.int32
    assert values.tolist() == [[3, 0], [6, 0], [9, 0]]


def test_spikes_of_a_subset() -> None:
    network = Network(dt_ms=DT)
    source = network.population("source", 2000, spike_source)
    ids = np.arange(2000)
    network.spikes(source, np.full(2000, 0.5), ids)
    network.record(source, subset=[5, 1999, 1024])
    with Simulation(network) as simulation:
        simulation.step(10)
        times_ms, found = simulation.spikes(source)
    assert found.tolist() == [5, 1024, 1999]
    assert np.allclose(times_ms, 0.5)


def test_more_samples_and_spikes_than_the_buffers_hold() -> None:
    """Beyond the room for 131,072 spikes and 262,144 samples they are taken out while the kernel waits."""
    n, steps = 1000, 400
    network = Network(dt_ms=DT)
    source = network.population("source", 1, spike_source)
    give_spikes(network, source, [list(range(1, steps + 1))])
    target = network.population("target", n, adder)
    network.connect(source, target, AllToAll(), weight=1.0, delay_ms=DT)
    busy = network.population("busy", n, spike_source)
    network.spikes(busy, np.repeat(np.arange(1, steps + 1), n) * DT, np.tile(np.arange(n), steps))
    network.record(busy)
    network.record(target, "total")
    with Simulation(network) as simulation:
        simulation.step(steps)
        times_ms, ids = simulation.spikes(busy)
        total = values_of(simulation, target, "total")
    assert np.array_equal(ids, np.tile(np.arange(n), steps))
    assert np.array_equal(np.rint(times_ms / DT), np.repeat(np.arange(1, steps + 1), n))
    assert np.array_equal(total, np.broadcast_to(np.arange(steps, dtype=float)[:, None], (steps, n)))


@pytest.mark.parametrize("mean", [0.3, 1.28, 2.32, 9.0, 25.0])
def test_a_poisson_number_is_the_count_of_thresholds_that_the_draw_exceeds(mean: float) -> None:
    """Also in the far tail, which the kernel computes in a second pass."""
    thresholds = poisson_thresholds(mean)
    assert thresholds is not None
    random = np.random.default_rng(1)
    streams = random.integers(1, 2**32, (2, BLOCK), dtype=np.uint32)
    draws = (streams[0] * np.uint32(0x9E3779BB)).view(np.int32)
    draws[:50] = thresholds[-1] - 1  # a few that exceed all that can be exceeded
    inverse = np.uint32(pow(0x9E3779BB, -1, 2**32))
    streams[0] = draws.view(np.uint32) * inverse
    wanted = (draws[:, None] > thresholds[None, :]).sum(axis=1)
    usual = int(np.count_nonzero(thresholds < 2**31 - 2**32 * 1e-4))
    assert wanted.max() > usual
    accumulators = np.zeros(BLOCK, np.int32)
    for settled_first in sorted({2, usual + usual % 2, len(thresholds)}):
        function = poisson_function(min(settled_first, len(thresholds)), len(thresholds))
        now, accumulators[:] = streams.copy(), 0
        function.ctypes(now.ctypes.data, accumulators.ctypes.data, BLOCK, thresholds.ctypes.data, 3)
        np.testing.assert_array_equal(accumulators, 3 * wanted)
        assert not np.array_equal(now, streams)
