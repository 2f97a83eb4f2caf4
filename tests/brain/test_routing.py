"""Routing by entropy: hand-computed examples, and properties for any scores."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing import EPSILON, Route, route, softmax

from neuraxis.brain.session import uniform
from neuraxis.errors import InvalidArgument

NAMES = st.sampled_from(["lang", "vision", "motor", "audio", "memory"])
SCORES = st.dictionaries(NAMES, st.floats(-50, 50), min_size=1)
RANDOM = st.floats(0, 1, exclude_max=True)


def shares(scores: dict[str, float], live: list[str], draws: int = 2_001) -> dict[str, float]:
    """Return the share of each target over all equally spaced random numbers."""
    drawn = [route(scores, live, (i + 0.5) / draws).target for i in range(draws)]
    return {name: drawn.count(name) / draws for name in live}


def test_probabilities_are_in_proportion_to_powers_of_e():
    assert softmax({"a": math.log(1), "b": math.log(2), "c": math.log(5)}) == pytest.approx(
        {"a": 1 / 8, "b": 2 / 8, "c": 5 / 8}
    )
    assert softmax({"a": 0.0, "b": math.log(4)}, temperature=2.0) == pytest.approx({"a": 1 / 3, "b": 2 / 3})
    assert softmax({}) == {}


def test_three_targets_by_hand():
    # p = 1/4, 1/4, 1/2: H = 2 · 1/4 · ln 4 + 1/2 · ln 2 = 1.5 ln 2 = 1.03972, H_max = ln 3 = 1.09861,
    # πH / 2H_max = 1.486593, its cosine sin 0.084203 = 0.084104, alpha = 0.0070735, temperature
    # 1 / 0.0080735 = 123.86,
    # and 2^(1/123.86) = 1.005612 is to 1 as the best target is to the others.
    found = route({"a": 0.0, "b": 0.0, "c": math.log(2)}, ["a", "b", "c"], 0.5)
    assert found.entropy == pytest.approx(1.5 * math.log(2), rel=1e-14)
    assert found.largest_entropy == pytest.approx(math.log(3), rel=1e-14)
    assert found.alpha == pytest.approx(0.0070735, rel=1e-4)
    assert found.temperature == pytest.approx(123.86, rel=1e-4)
    assert found.probabilities == pytest.approx({"a": 1 / 3.005612, "b": 1 / 3.005612, "c": 1.005612 / 3.005612})
    assert (found.target, found.is_fallback) == ("b", False)


def test_a_dominant_score_is_drawn_with_its_probability():
    found = route({"lang": 0.0, "motor": 10.0}, ["lang", "motor"], 0.3)
    behind = math.exp(-10) / (1 + math.exp(-10))
    entropy = -behind * math.log(behind) - (1 - behind) * math.log(1 - behind)
    assert found.entropy == pytest.approx(entropy, rel=1e-12)
    assert found.alpha == pytest.approx(math.cos(math.pi * entropy / (2 * math.log(2))) ** 2, rel=1e-14)
    assert found.alpha > 0.999
    assert found.temperature == pytest.approx(1 / (found.alpha + EPSILON))
    assert found.target == "motor"


def test_where_all_are_the_same_all_are_tried():
    scores = dict.fromkeys(["a", "b", "c", "d"], 3.0)
    found = route(scores, list(scores), 0.0)
    assert found.entropy == pytest.approx(math.log(4))
    assert found.alpha == pytest.approx(0.0, abs=1e-12)
    assert found.temperature == pytest.approx(1 / EPSILON)
    assert shares(scores, list(scores)) == pytest.approx(dict.fromkeys(scores, 0.25), abs=1e-3)


def test_only_those_that_are_there_are_drawn_and_the_entropy_is_of_all():
    scores = {"motor": 8.0, "vision": 0.0, "lang": 0.0}
    whole = route(scores, list(scores), 0.9)
    without = route(scores, ["vision", "lang"], 0.9)
    assert without.target in ("vision", "lang")
    assert sorted(without.probabilities) == ["lang", "vision"]
    assert without.entropy == whole.entropy
    assert without.alpha == whole.alpha
    assert shares(scores, ["lang", "vision"]) == pytest.approx({"lang": 0.5, "vision": 0.5}, abs=1e-3)


def test_without_targets_the_fallback_is_chosen():
    found = route({"motor": 1.0, "vision": 2.0}, [], 0.1, fallback="lang")
    assert (found.target, found.is_fallback, found.probabilities) == ("lang", True, {})
    assert route({"motor": 1.0}, ["vision"], 0.1, fallback="lang").target == "lang"
    assert route({}, ["lang"], 0.1, fallback="lang").is_fallback
    assert route({"motor": 1.0}, [], 0.1).target is None


def test_a_single_target_is_certain():
    found = route({"lang": -7.0}, ["lang"], 0.99)
    assert (found.target, found.entropy, found.alpha) == ("lang", 0.0, 1.0)
    assert found.temperature == pytest.approx(1 / (1 + EPSILON))


def test_draws_of_a_seed_are_always_the_same():
    # These are part of every run of a brain that routes: a change would be another run.
    scores = {"lang": 0.2, "motor": 1.4, "vision": 0.9}
    drawn = [route(scores, list(scores), uniform(7, number)).target for number in range(12)]
    assert drawn == [route(dict(reversed(scores.items())), set(scores), uniform(7, n)).target for n in range(12)]
    assert "".join(str(name)[0] for name in drawn) == "lvvmmlvlllmm"


@pytest.mark.parametrize("random", [-0.1, 1.0, math.nan])
def test_a_random_number_is_from_0_to_below_1(random: float):
    with pytest.raises(InvalidArgument, match="random="):
        route({"a": 1.0}, ["a"], random)


def test_scores_are_finite_and_epsilon_is_above_0():
    with pytest.raises(InvalidArgument, match=r"scores\['b'\]=nan"):
        route({"a": 1.0, "b": math.nan}, ["a"], 0.5)
    with pytest.raises(InvalidArgument, match="epsilon="):
        route({"a": 1.0}, ["a"], 0.5, epsilon=0.0)


def reference(scores: dict[str, float], epsilon: float) -> tuple[float, float, float]:
    """H, alpha and the temperature by NumPy."""
    values = np.array(list(scores.values()))
    p = np.exp(values - values.max())
    p /= p.sum()
    entropy = float(-(p[p > 0] * np.log(p[p > 0])).sum())
    alpha = 1.0 if len(p) == 1 else math.cos(math.pi * min(1, entropy / math.log(len(p))) / 2) ** 2
    return entropy, alpha, 1 / (alpha + epsilon)


@given(scores=SCORES, live=st.sets(NAMES), random=RANDOM, epsilon=st.floats(1e-6, 1.0))
def test_properties_of_routing_for_any_scores(scores: dict[str, float], live: set[str], random: float, epsilon: float):
    found = route(scores, live, random, "lang", epsilon)
    entropy, alpha, temperature = reference(scores, epsilon)
    assert found.entropy == pytest.approx(entropy, abs=1e-12)
    assert 0 <= found.entropy <= found.largest_entropy + 1e-12
    assert 0 <= found.alpha <= 1
    assert found.alpha == pytest.approx(alpha, abs=1e-12)
    assert found.temperature == pytest.approx(temperature, rel=1e-5)
    here = set(scores) & live
    assert set(found.probabilities) == here
    if here:
        assert not found.is_fallback
        assert found.target in here
        assert sum(found.probabilities.values()) == pytest.approx(1.0)
        likely = max(found.probabilities, key=lambda name: found.probabilities[name])
        assert scores[likely] == pytest.approx(max(scores[name] for name in here))
    else:
        assert (found.target, found.is_fallback) == ("lang", True)
    assert route(dict(reversed(scores.items())), sorted(live), random, "lang", epsilon) == found


@given(scores=SCORES, random=RANDOM, shift=st.floats(-100, 100))
def test_only_differences_of_scores_count(scores: dict[str, float], random: float, shift: float):
    found = route(scores, list(scores), random)
    moved = route({name: score + shift for name, score in scores.items()}, list(scores), random)
    assert moved.entropy == pytest.approx(found.entropy, abs=1e-9)
    assert moved.probabilities == pytest.approx(found.probabilities, abs=1e-9)


def test_shares_follow_the_probabilities():
    scores = {"lang": 1.0, "motor": 4.0, "vision": 0.0}
    found: Route = route(scores, list(scores), 0.0)
    assert shares(scores, list(scores)) == pytest.approx(dict(found.probabilities), abs=1e-3)
