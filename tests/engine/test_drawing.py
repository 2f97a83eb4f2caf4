"""Synapses drawn by rules and distributions: sources, targets, weights and delays."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import RoundingWarning
from neuraxis.network import (
    AllToAll,
    Explicit,
    FixedInDegree,
    FixedOutDegree,
    FixedTotalNumber,
    HomeostaticScaling,
    LogNormal,
    Network,
    Normal,
    OneToOne,
    PairwiseBernoulli,
    Rule,
    Uniform,
)
from neuraxis.network.grid import to_steps
from neuraxis.network.models import spike_source
from neuraxis.simulation import Simulation

from .running import adder, give_spikes, two_adders
from .statistics import binomial_probabilities, chi_square_fits, normal_cumulative, uniform_fits

Synapses = dict[str, np.ndarray[Any, Any]]


def drawn(
    rule: Any, n_pre: int, n_post: int, *, same: bool = False, seed: int = 1, workers: int = 1, **options: Any
) -> Synapses:
    """The synapses of a projection between two populations, or of one to itself."""
    network = Network(dt_ms=0.1, seed=seed)
    post = network.population("post", n_post, adder)
    pre = post if same else network.population("pre", n_pre, spike_source)
    projection = network.connect(pre, post, rule, **({"weight": 1.0} | options))
    with Simulation(network, workers=workers) as simulation:
        return simulation.synapses(projection)  # type: ignore[return-value]


def matrix_of(synapses: Synapses, n_pre: int, n_post: int) -> np.ndarray[Any, Any]:
    """Return the number of synapses from each source (row) to each target (column)."""
    matrix = np.zeros((n_pre, n_post), np.int64)
    np.add.at(matrix, (synapses["pre"], synapses["post"]), 1)
    return matrix


# --- rules ---


def test_one_to_one() -> None:
    assert np.array_equal(matrix_of(drawn(OneToOne(), 2100, 2100), 2100, 2100), np.eye(2100))


def test_all_to_all() -> None:
    assert (matrix_of(drawn(AllToAll(), 30, 50), 30, 50) == 1).all()
    assert (matrix_of(drawn(AllToAll(), 30, 30, same=True), 30, 30) == 1).all()
    assert np.array_equal(matrix_of(drawn(AllToAll(autapses=False), 30, 30, same=True), 30, 30), 1 - np.eye(30))
    assert (matrix_of(drawn(AllToAll(autapses=False), 30, 30), 30, 30) == 1).all(), "two populations have no autapses"


@pytest.mark.parametrize("multapses", [True, False])
@pytest.mark.parametrize("autapses", [True, False])
def test_fixed_in_degree(multapses: bool, autapses: bool) -> None:
    n, k = 60, 20
    found = matrix_of(drawn(FixedInDegree(k, multapses=multapses, autapses=autapses), n, n, same=True), n, n)
    assert (found.sum(axis=0) == k).all()
    assert (found.max() > 1) == multapses
    assert (found.diagonal().sum() > 0) == autapses
    total = sum(
        matrix_of(drawn(FixedInDegree(k, multapses=multapses, autapses=autapses), n, n, same=True, seed=s), n, n)
        for s in range(10)
    )
    allowed = np.ones((n, n), bool) if autapses else ~np.eye(n, dtype=bool)
    counts = total[allowed].astype(float)
    # Of distinct sources each cell is binomial, not Poisson: its variance is smaller by (1 - k / n).
    expected, scale = counts.mean(), 1.0 if multapses else 1 - k / (n if autapses else n - 1)
    assert abs(((counts - expected) ** 2).sum() / expected / scale / len(counts) - 1) < 5 * math.sqrt(2 / len(counts))
    assert uniform_fits(total.sum(axis=1))


def test_the_largest_in_degree_without_multapses_takes_everybody() -> None:
    assert (matrix_of(drawn(FixedInDegree(37, multapses=False), 37, 90), 37, 90) == 1).all()
    everybody_else = drawn(FixedInDegree(36, multapses=False, autapses=False), 37, 37, same=True)
    assert np.array_equal(matrix_of(everybody_else, 37, 37), 1 - np.eye(37))


@pytest.mark.parametrize("multapses", [True, False])
@pytest.mark.parametrize("autapses", [True, False])
def test_fixed_out_degree(multapses: bool, autapses: bool) -> None:
    n, k = 60, 20
    found = matrix_of(drawn(FixedOutDegree(k, multapses=multapses, autapses=autapses), n, n, same=True), n, n)
    assert (found.sum(axis=1) == k).all()
    assert (found.max() > 1) == multapses
    assert (found.diagonal().sum() > 0) == autapses
    assert uniform_fits(found.sum(axis=0))
    assert np.unique(found.sum(axis=0)).size > 3, "in-degrees are random"


@pytest.mark.parametrize("multapses", [True, False])
@pytest.mark.parametrize("autapses", [True, False])
def test_fixed_total_number(multapses: bool, autapses: bool) -> None:
    n, total = 64, 1500
    found = matrix_of(drawn(FixedTotalNumber(total, multapses=multapses, autapses=autapses), n, n, same=True), n, n)
    assert found.sum() == total
    assert (found.max() > 1) == multapses
    assert (found.diagonal().sum() > 0) == autapses
    assert uniform_fits(found.sum(axis=0))
    assert uniform_fits(found.sum(axis=1))


def test_the_in_degrees_of_a_total_number_are_binomial() -> None:
    n_post, total = 3001, 24_000
    found = np.bincount(drawn(FixedTotalNumber(total), 50, n_post)["post"], minlength=n_post)
    assert found.sum() == total
    mean = total / n_post
    assert abs(found.var() / (mean * (1 - 1 / n_post)) - 1) < 4 * math.sqrt(2 / n_post)
    highest = 30
    expected = [n_post * math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(highest)]
    counts = np.bincount(found, minlength=highest)[:highest].astype(float)
    expected[-1] += n_post - sum(expected)
    counts[-1] += n_post - counts.sum()
    assert chi_square_fits(counts.tolist(), expected)


def test_all_pairs_can_be_the_total() -> None:
    assert (matrix_of(drawn(FixedTotalNumber(30 * 20, multapses=False), 30, 20), 30, 20) == 1).all()
    nobody_itself = drawn(FixedTotalNumber(30 * 29, multapses=False, autapses=False), 30, 30, same=True)
    assert np.array_equal(matrix_of(nobody_itself, 30, 30), 1 - np.eye(30))


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("autapses", [True, False])
def test_pairwise_bernoulli(p: float, autapses: bool) -> None:
    n = 120
    found = matrix_of(drawn(PairwiseBernoulli(p, autapses=autapses), n, n, same=True), n, n)
    assert found.max() == 1
    assert autapses or not found.diagonal().any()
    trials = n if autapses else n - 1
    pairs = n * trials
    assert abs(found.sum() - p * pairs) < 4 * math.sqrt(pairs * p * (1 - p))
    for axis in (0, 1):
        degrees = np.bincount(found.sum(axis=axis), minlength=trials + 1)[: trials + 1]
        assert chi_square_fits(degrees.tolist(), [n * q for q in binomial_probabilities(trials, p)])


def test_probabilities_zero_and_one() -> None:
    assert len(drawn(PairwiseBernoulli(0.0), 30, 40)["pre"]) == 0
    assert (matrix_of(drawn(PairwiseBernoulli(1.0), 30, 40), 30, 40) == 1).all()
    certain = drawn(PairwiseBernoulli(1.0, autapses=False), 30, 30, same=True)
    assert np.array_equal(matrix_of(certain, 30, 30), 1 - np.eye(30))


@pytest.mark.parametrize("rule", [FixedInDegree(0), FixedOutDegree(0), FixedTotalNumber(0), Explicit([], [])])
def test_no_synapses_at_all(rule: Rule) -> None:
    assert len(drawn(rule, 10, 10)["pre"]) == 0


def test_explicit_synapses_are_the_given_ones() -> None:
    rng = np.random.default_rng(5)
    pre, post = rng.integers(0, 40, 500), rng.integers(0, 1500, 500)
    pre[:3], post[:3] = [7, 7, 7], [1400, 1400, 1400]  # a multapse
    found = drawn(Explicit(pre, post), 40, 1500)
    order = np.lexsort((pre, post))
    assert np.array_equal(found["pre"], pre[order])
    assert np.array_equal(found["post"], post[order])


class Entries:
    """Like SciPy's sparse matrices."""

    def __init__(self, row: Any, col: Any, data: Any) -> None:
        self.row, self.col, self.data = np.asarray(row), np.asarray(col), np.asarray(data)
        self.shape = (3, 4)

    def tocoo(self) -> Entries:
        return self


def test_a_sparse_matrix_is_a_rule_with_weights() -> None:
    found = drawn(Entries([2, 0, 1], [1, 3, 1], [0.5, 0.25, 0.75]), 3, 4, weight=None)
    assert found["post"].tolist() == [1, 1, 3]
    assert found["pre"].tolist() == [1, 2, 0]
    assert found["weight"].tolist() == [0.75, 0.5, 0.25]


# --- given values ---


def test_given_values_land_at_their_synapses_one_to_one() -> None:
    n = 1300
    weights, delays = np.arange(1, n + 1) / 16, 0.1 * (1 + np.arange(n) % 50)
    found = drawn(OneToOne(), n, n, weight=weights, delay_ms=delays)
    assert np.array_equal(found["post"], np.arange(n))
    assert np.array_equal(found["weight"], weights)
    assert np.array_equal(found["delay_steps"], 1 + np.arange(n) % 50)


@pytest.mark.parametrize("autapses", [True, False])
def test_given_values_land_at_their_synapses_all_to_all(autapses: bool) -> None:
    n = 25
    weights = np.arange(1, n * n + 1).reshape(n, n) / 4  # by (pre, post)
    delays = 0.1 * (1 + (np.arange(n * n).reshape(n, n) % 30))
    found = drawn(AllToAll(autapses=autapses), n, n, same=True, weight=weights.T.ravel(), delay_ms=delays.T.ravel())
    assert len(found["pre"]) == (n * n if autapses else n * (n - 1))
    assert np.array_equal(found["weight"], weights[found["pre"], found["post"]])
    assert np.array_equal(found["delay_steps"], np.rint(10 * delays)[found["pre"], found["post"]])


def test_given_values_land_at_their_synapses_explicit() -> None:
    rng = np.random.default_rng(6)
    pre, post = rng.integers(0, 50, 800), rng.integers(0, 60, 800)
    weights, steps = np.arange(800) / 8 + 1, rng.integers(1, 40, 800)
    found = drawn(Explicit(pre, post), 50, 60, weight=weights, delay_ms=0.1 * steps)
    given = sorted(zip(post, pre, steps, weights, strict=True))
    listed = zip(found["post"], found["pre"], found["delay_steps"], found["weight"], strict=True)
    assert sorted(listed) == given


@pytest.mark.parametrize("plastic", [False, True])
def test_listed_synapses_equal_delivered_ones(plastic: bool) -> None:
    """Every synapse alone: each source spikes once, and the targets add up what arrives in each step."""
    n_pre, n_post, steps = 12, 1500, 60
    network = Network(dt_ms=0.1, seed=3)
    pre = network.population("pre", n_pre, spike_source)
    post = network.population("post", n_post, two_adders)
    # Homeostasis far in the future: a plastic table whose weights stay as they are.
    rule = HomeostaticScaling(1.0, w_max=8.0, every_ms=1e6) if plastic else None
    given: list[Any] = [
        (FixedInDegree(3), {"weight": Normal(2.0, 0.5, low=0.0), "delay_ms": Uniform(0.1, 3.0), "plasticity": rule}),
        (PairwiseBernoulli(0.2), {"weight": Uniform(1.0, 2.0), "delay_ms": 0.7, "synapse": "negative"}),
        (AllToAll(), {"weight": -1.5, "delay_ms": Normal(1.5, 0.75)}),
    ]
    projections = [network.connect(pre, post, rule, **options) for rule, options in given]
    emitted = 1 + np.arange(n_pre)
    give_spikes(network, pre, [[int(step)] for step in emitted])
    network.record(post, "plus")
    network.record(post, "minus")
    with Simulation(network) as simulation:
        simulation.step(steps)
        sums = {state: simulation.samples(post, state)[1].astype(float) for state in ("plus", "minus")}
        arriving = {state: np.zeros((steps, n_post)) for state in sums}
        for projection, state in zip(projections, ("plus", "minus", "minus"), strict=True):
            found = simulation.synapses(projection)
            at = emitted[found["pre"]] + found["delay_steps"]
            assert at.max() <= steps
            np.add.at(arriving[state], (at - 1, found["post"]), found["weight"])
    for state, expected in arriving.items():
        total = np.cumsum(expected, axis=0)
        assert np.abs(sums[state] - total).max() < 2e-3, state
        assert np.abs(total[-1]).max() > 5


# --- distributions ---

MANY = {"rule": FixedInDegree(40), "n_pre": 100, "n_post": 500}


def unit_of(*weights: np.ndarray[Any, Any]) -> float:
    """The unit that delivered weights are multiples of: all of them are, and half of them are no multiple of two."""
    found = np.concatenate(weights).astype(float)
    unit = 2.0 ** math.floor(math.log2(np.abs(found).max()))
    while (found % unit).any():
        unit /= 2
    return unit


def assert_drawn_independently(weights: np.ndarray[Any, Any], below: Callable[[float], float]) -> None:
    """Weights in use are rounded, so some pairs are equal by chance: as many as independent draws of `below` give."""
    n, unit = len(weights), unit_of(weights)
    places = np.arange(math.floor(weights.min() / unit) - 1, math.ceil(weights.max() / unit) + 2)
    shares = np.diff([below((place - 0.5) * unit) for place in places])
    counts = np.unique(weights, return_counts=True)[1]
    pairs, expected = (counts * (counts - 1)).sum() / 2, n * (n - 1) * (shares**2).sum() / 2
    variance = expected + n**3 * ((shares**3).sum() - (shares**2).sum() ** 2)
    assert abs(pairs - expected) < 5 * math.sqrt(variance)
    deviations = weights - weights.mean()
    for lag in (1, 2, 40):  # 40 synapses of each target
        correlation = (deviations[lag:] * deviations[:-lag]).mean() / deviations.var()
        assert abs(correlation) < 4.5 / math.sqrt(n), lag


@pytest.mark.parametrize(
    ("weight", "mean", "sd", "below"),
    [
        (Normal(2.0, 0.25), 2.0, 0.25, lambda x: normal_cumulative((x - 2.0) / 0.25)),
        (Normal(-3.0, 0.5), -3.0, 0.5, lambda x: normal_cumulative((x + 3.0) / 0.5)),
        (Uniform(1.0, 4.0), 2.5, 3 / math.sqrt(12), lambda x: min(max((x - 1.0) / 3.0, 0.0), 1.0)),
        (
            LogNormal(0.5, 0.3),
            math.exp(0.5 + 0.045),
            math.exp(0.5 + 0.045) * math.sqrt(math.exp(0.09) - 1),
            lambda x: normal_cumulative((math.log(x) - 0.5) / 0.3),
        ),
    ],
    ids=lambda given: None if callable(given) else str(given),
)
def test_weights_have_mean_and_deviation(weight: Any, mean: float, sd: float, below: Callable[[float], float]) -> None:
    found = drawn(**MANY, weight=weight)["weight"].astype(float)
    assert len(found) == 20_000
    assert abs(found.mean() - mean) < 4 * sd / math.sqrt(len(found))
    assert abs(found.std() / sd - 1) < 0.04
    assert_drawn_independently(found, below)


def test_the_check_of_independence_finds_repeated_draws() -> None:
    """One in ten of 20,000 weights repeats that of another synapse, or one equals the next."""
    generator = np.random.default_rng(1)
    free = np.rint(generator.normal(2.0, 0.25, 20_000) * 2**13) / 2**13
    assert_drawn_independently(free, lambda x: normal_cumulative((x - 2.0) / 0.25))
    repeated, alike = free.copy(), free.copy()
    repeated[2_000:4_000] = repeated[:2_000]
    alike[1:] = np.rint((2.0 + (0.1 * (free[:-1] - 2.0) + math.sqrt(0.99) * (free[1:] - 2.0))) * 2**13) / 2**13
    for wrong in (repeated, alike):
        with pytest.raises(AssertionError):
            assert_drawn_independently(wrong, lambda x: normal_cumulative((x - 2.0) / 0.25))


def test_normal_weights_are_clipped_or_drawn_again() -> None:
    mean, sd, low, high = 1.0, 1.0, 0.0, 2.5
    below, above = normal_cumulative((low - mean) / sd), normal_cumulative((mean - high) / sd)
    clipped = drawn(**MANY, weight=Normal(mean, sd, low=low, high=high))["weight"]
    n = len(clipped)
    for share, value in ((below, low), (above, high)):
        assert abs(np.count_nonzero(clipped == value) - n * share) < 4 * math.sqrt(n * share)
    assert low <= clipped.min()
    assert clipped.max() <= high
    again = drawn(**MANY, weight=Normal(mean, sd, low=low, high=high, outside="redraw"))["weight"].astype(float)
    assert low <= again.min()
    assert again.max() <= high
    assert_drawn_independently(  # so nothing piles up at the bounds
        again, lambda x: min(max((normal_cumulative((x - mean) / sd) - below) / (1 - below - above), 0.0), 1.0)
    )
    edges = np.linspace(low, high, 21)
    shares = np.diff([normal_cumulative((edge - mean) / sd) for edge in edges]) / (1 - below - above)
    assert chi_square_fits(np.histogram(again, edges)[0].tolist(), (n * shares).tolist())


def test_lognormal_weights_are_drawn_again() -> None:
    again = drawn(**MANY, weight=LogNormal(0.0, 1.0, low=0.5, high=2.0, outside="redraw"))["weight"].astype(float)
    assert again.min() >= 0.5
    assert again.max() <= 2.0
    edges = np.linspace(math.log(0.5), math.log(2.0), 15)
    shares = np.diff([normal_cumulative(edge) for edge in edges])
    expected = len(again) * shares / shares.sum()
    assert chi_square_fits(np.histogram(np.log(again), edges)[0].tolist(), expected.tolist())


def test_weights_do_not_depend_on_sources_or_delays() -> None:
    found = drawn(**MANY, weight=Normal(1.0, 0.25), delay_ms=Normal(5.0, 1.0))
    weight, delay, pre = (found[name].astype(float) for name in ("weight", "delay_steps", "pre"))
    for one, other in ((weight, delay), (weight, pre), (delay, pre)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / math.sqrt(len(one))


@pytest.mark.parametrize("outside", ["clip", "redraw"])
def test_delays_are_normal_on_the_grid(outside: str) -> None:
    mean, sd, low = 1.5, 0.75, 0.1
    found = drawn(**MANY, delay_ms=Normal(mean, sd, low=low, outside=outside))["delay_steps"]
    n, longest = len(found), 45
    assert found.min() == 1
    kept = 1 - normal_cumulative((low - mean) / sd) if outside == "redraw" else 1.0
    edges = [
        low - mean if outside == "redraw" else -math.inf,
        *((k + 0.5) / 10 - mean for k in range(1, longest)),
        math.inf,
    ]
    shares = np.diff([normal_cumulative(edge / sd) for edge in edges]) / kept
    observed = np.bincount(np.minimum(found, longest), minlength=longest + 1)[1:]
    assert chi_square_fits(observed.tolist(), (n * shares).tolist())


def test_a_delay_without_a_bound_is_cut_at_one_step_and_counted() -> None:
    network = Network(dt_ms=0.1, seed=1)
    pre, post = network.population("pre", 100, spike_source), network.population("post", 500, adder)
    projection = network.connect(pre, post, FixedInDegree(40), weight=1.0, delay_ms=Normal(0.3, 0.2))
    with Simulation(network) as simulation:
        found = simulation.synapses(projection)["delay_steps"]
        clipped = simulation.run(1.0).clipped_delays
    assert found.min() == 1
    share = normal_cumulative((0.1 - 0.3) / 0.2)
    assert abs(clipped - 20_000 * share) < 4 * math.sqrt(20_000 * share * (1 - share))


def test_uniform_delays_fill_the_grid_evenly() -> None:
    found = drawn(**MANY, delay_ms=Uniform(0.15, 2.05))["delay_steps"]
    assert found.min() >= 1
    assert found.max() <= 21
    assert uniform_fits(np.bincount(found)[3:20])


@pytest.mark.parametrize(
    ("delay_ms", "steps"),
    [(0.1, 1), (0.14, 1), (0.16, 2), (0.25, 3), (0.3, 3), (0.75, 8), (1.449, 14), (6553.5, 65535)],
)
def test_constant_and_given_delays_are_rounded_as_all_times_are(delay_ms: float, steps: int) -> None:
    """To the nearest step, halves upwards."""
    assert to_steps(delay_ms, 0.1, "delay_ms") == steps
    rounded = abs(delay_ms / 0.1 - steps) > 1e-6 * steps

    def delays(given: Any) -> dict[str, Any]:
        with pytest.warns(RoundingWarning) if rounded else nullcontext():
            return drawn(OneToOne(), 5, 5, delay_ms=given)

    constant = delays(delay_ms)
    assert constant["delay_steps"].tolist() == [steps] * 5
    assert constant["pre"].tolist() == [0, 1, 2, 3, 4]
    if steps < 4096:
        assert delays([delay_ms] * 5)["delay_steps"].tolist() == [steps] * 5


# --- initial values ---


def test_initial_values_are_drawn_for_each_neuron() -> None:
    network = Network(dt_ms=0.1, seed=12)
    n = 5000
    normal = network.population("normal", n, adder, total=Normal(-60.0, 2.0), arrived=Uniform(1.0, 3.0))
    bounded = network.population("bounded", n, adder, total=Normal(0.0, 1.0, low=-0.5, high=1.0), arrived=range(n))
    other = network.population("other", n, adder, total=Normal(-60.0, 2.0), arrived=LogNormal(0.0, 0.5))
    with Simulation(network) as simulation:
        total, arrived = simulation.state(normal, "total").astype(float), simulation.state(normal, "arrived")
        assert abs(total.mean() + 60.0) < 4 * 2 / math.sqrt(n)
        assert abs(total.std() / 2 - 1) < 4 / math.sqrt(2 * n)
        assert uniform_fits(np.histogram(arrived, 20, (1.0, 3.0))[0])
        assert abs(np.corrcoef(total, arrived)[0, 1]) < 4 / math.sqrt(n)
        clipped = simulation.state(bounded, "total")
        assert (clipped.min(), clipped.max()) == (-0.5, 1.0)
        assert np.array_equal(simulation.state(bounded, "arrived"), np.arange(n))
        assert not np.array_equal(simulation.state(other, "total"), total.astype(np.float32))
        logarithms = np.log(simulation.state(other, "arrived").astype(float))
        assert abs(logarithms.mean()) < 4 * 0.5 / math.sqrt(n)
        assert abs(logarithms.std() / 0.5 - 1) < 4 / math.sqrt(2 * n)


# --- independence of placement ---


def test_synapses_do_not_depend_on_the_number_of_workers() -> None:
    network = Network(dt_ms=0.1, seed=21)
    n_pre, n_post = 300, 3100
    pre, post = network.population("pre", n_pre, spike_source), network.population("post", n_post, adder)
    weight, delay = Normal(1.0, 0.25, low=0.0, outside="redraw"), Normal(1.5, 0.75)
    rng = np.random.default_rng(2)
    explicit = Explicit(rng.integers(0, n_pre, 5000), rng.integers(0, n_post, 5000))
    rules: list[Rule] = [
        FixedInDegree(5),
        FixedInDegree(5, multapses=False),
        FixedOutDegree(20),
        FixedOutDegree(20, multapses=False),
        FixedTotalNumber(4000),
        FixedTotalNumber(4000, multapses=False),
        PairwiseBernoulli(0.01),
        explicit,
    ]
    names = [network.connect(pre, post, rule, weight=weight, delay_ms=delay).name for rule in rules]
    names.append(network.connect(post, post, FixedInDegree(3, autapses=False), weight=weight, delay_ms=delay).name)
    found: list[list[Synapses]] = []
    for workers in (1, 2, 3):
        with Simulation(network, workers=workers) as simulation:
            found.append([simulation.synapses(name) for name in names])  # type: ignore[misc]
    for others in found[1:]:
        for name, one, other in zip(names, found[0], others, strict=True):
            for field, values in one.items():
                assert np.array_equal(values, other[field]), f"{field} of {name}"


def test_projections_and_seeds_draw_different_synapses() -> None:
    network = Network(dt_ms=0.1, seed=1)
    pre, post = network.population("pre", 100, spike_source), network.population("post", 100, adder)
    names = [network.connect(pre, post, FixedInDegree(10), weight=Normal(1.0, 0.1)).name for _ in range(2)]
    with Simulation(network) as simulation:
        one, other = (simulation.synapses(name) for name in names)
    third = drawn(FixedInDegree(10), 100, 100, seed=2, weight=Normal(1.0, 0.1))
    fourth = drawn(FixedInDegree(10), 100, 100, seed=3, weight=Normal(1.0, 0.1))
    for a, b in ((one, other), (third, fourth)):
        shared = np.minimum(matrix_of(a, 100, 100), matrix_of(b, 100, 100)).sum()  # type: ignore[arg-type]
        assert shared < 200, "a tenth of a thousand by chance"
        # Weights on one grid: some are equal by chance (by the integral of the squared density, in units).
        by_chance = 1000**2 * unit_of(a["weight"], b["weight"]) / (2 * math.sqrt(math.pi) * 0.1)
        assert np.intersect1d(a["weight"], b["weight"]).size < 1.5 * by_chance < 500
