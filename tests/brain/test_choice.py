from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.brain.session import Choice, by_group, choose, uniform


def shares(values, temperature, draws=2_001):
    """Return the share of each action over all equally spaced random numbers."""
    values = np.array(values, float)
    chosen = [choose(values, temperature, (i + 0.5) / draws) for i in range(draws)]
    return np.bincount(chosen, minlength=len(values)) / draws


@pytest.mark.parametrize(
    ("values", "temperature"),
    [([3.0, 0.0, 0.0, 0.0], 3.0), ([1.0, -2.0, 5.0], 2.0), ([0.0, 0.0], 1.0), ([7.0], 3.0), ([-50.0, -49.0], 0.5)],
)
def test_actions_have_the_probabilities_of_a_softmax(values, temperature):
    weights = np.exp((np.array(values) - max(values)) / temperature)
    assert shares(values, temperature) == pytest.approx(weights / weights.sum(), abs=2e-3)


def test_one_temperature_ahead_is_e_times_as_likely():
    found = shares([4.0, 1.0], 3.0)
    assert found[0] / found[1] == pytest.approx(math.e, rel=1e-2)


@given(
    values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8),
    temperature=st.floats(1e-3, 1e3),
    random=st.floats(0, 1),
)
def test_there_is_always_a_choice(values, temperature, random):
    action = choose(np.array(values), temperature, random)
    assert action in range(len(values))
    assert choose(np.array(values), temperature, random) == action
    # Within a thousandth of the best whatever the temperature: 1e6 / 1e-3 does not overflow.
    if temperature == 1e-3 and random < 1:
        assert values[action] >= max(values) - 1


def test_far_behind_is_never_chosen():
    assert {choose(np.array([100.0, 0.0, 99.9]), 1.0, random) for random in (0.0, 0.3, 0.9, 0.999999)} == {0, 2}
    assert choose(np.array([0.0, 0.0, 0.0]), 1.0, 1.0) in (0, 1, 2)


def test_random_numbers_are_the_same_everywhere():
    # These numbers are part of every fingerprint: a change would be another brain.
    assert [uniform(seed, number) for seed, number in ((0, 0), (1, 0), (1, 1), (2**64 - 1, 5))] == [
        0.5827496615028087,
        0.753439610411553,
        0.20698074306879533,
        0.11702705606383124,
    ]


def test_random_numbers_fill_the_interval_evenly():
    for seed in (0, 1, 2, 1 ^ 0xC0E, 2**64 - 1):
        drawn = np.array([uniform(seed, number) for number in range(20_000)])
        assert drawn.min() >= 0
        assert drawn.max() < 1
        counts = np.bincount((drawn * 20).astype(int), minlength=20)
        chi_square = float(((counts - 1000) ** 2 / 1000).sum())
        assert chi_square < 50  # with 19 degrees of freedom: 1 in 10,000
        pairs = np.bincount((drawn[:-1] * 4).astype(int) * 4 + (drawn[1:] * 4).astype(int), minlength=16)
        assert ((pairs - 1250) ** 2 / 1250).sum() < 45  # 15 degrees of freedom: 1 in 10,000


def test_seeds_and_numbers_give_different_draws():
    drawn = {uniform(seed, number) for seed in range(200) for number in range(200)}
    assert len(drawn) == 40_000


def test_the_mean_of_each_group():
    assert by_group(np.array([1.0, 3.0, 10.0, 20.0, 0.0, 4.0]), 3).tolist() == [2.0, 15.0, 2.0]
    assert by_group(np.arange(5.0), 1).tolist() == [2.0]
    assert by_group(np.arange(5.0), 2).tolist() == [0.5, 3.0]


def test_a_choice_can_be_written():
    choice = Choice(1, (0.0, 2.5), 0.75)
    assert choice.as_json() == {"action": 1, "values": [0.0, 2.5], "expected_reward": 0.75}
