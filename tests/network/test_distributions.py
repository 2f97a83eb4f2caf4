from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import Constant, LogNormal, Normal, Uniform, Values
from neuraxis.network.distributions import LARGEST_NORMAL, as_distribution

EVERY = [
    Constant(-2.5),
    Uniform(-1.0, 3.0),
    Normal(1.0, 0.5),
    Normal(-1.0, 2.0),
    Normal(0.0, 2.0),
    Normal(1.0, 2.0, low=0.0),
    Normal(1.0, 2.0, low=0.5, high=1.5, outside="redraw"),
    Normal(-3.0, 1.0, high=-3.0),
    LogNormal(-1.0, 0.5),
    LogNormal(0.0, 1.0, low=0.5, high=2.0),
    LogNormal(0.0, 1.0, high=1.0, outside="redraw"),
    Values([1.0, -2.0, 0.0, 4.0]),
]


def drawn(distribution, count=200_000):
    """An independent draw of many values, to compare what the distribution says of itself."""
    generator = np.random.default_rng(7)
    if isinstance(distribution, Constant):
        return np.full(count, distribution.value)
    if isinstance(distribution, Uniform):
        return generator.uniform(distribution.low, distribution.high, count)
    if isinstance(distribution, Values):
        return generator.choice(distribution.array, count)
    if isinstance(distribution, Normal):
        values = generator.normal(distribution.mean, distribution.sd, count)
    else:
        values = generator.lognormal(distribution.mu, distribution.sigma, count)
    low = -math.inf if distribution.low is None else distribution.low
    high = math.inf if distribution.high is None else distribution.high
    if distribution.outside == "redraw":
        return values[(values >= low) & (values <= high)]
    return np.clip(values, low, high)


@pytest.mark.parametrize("distribution", EVERY, ids=repr)
def test_drawn_values_match_the_stated_bounds_and_mean(distribution):
    values = drawn(distribution)
    low, high = distribution.bounds()
    assert low <= values.min()
    assert values.max() <= high
    assert distribution.expected() == pytest.approx(values.mean(), abs=0.02)
    if isinstance(distribution, Values):
        values = values[values != 0]
    assert distribution.expected_magnitude() == pytest.approx(np.abs(values).mean(), abs=0.02)


@pytest.mark.parametrize("distribution", EVERY, ids=repr)
def test_pickling_and_copying_keep_a_distribution(distribution):
    for other in (pickle.loads(pickle.dumps(distribution)), copy.deepcopy(distribution)):
        assert other == distribution
        assert hash(other) == hash(distribution)


def test_normal_draws_are_bounded():
    assert Normal(10.0, 2.0).bounds() == (10.0 - 2 * LARGEST_NORMAL, 10.0 + 2 * LARGEST_NORMAL)
    assert Normal(10.0, 2.0, low=5.0, high=11.0).bounds() == (5.0, 11.0)
    assert Normal(-100.0, 1.0, low=0.0).bounds() == (0.0, 0.0)  # everything is clipped


def test_the_bounds_of_a_log_normal_leave_room_for_float32():
    low, high = LogNormal(1.0, 2.0).bounds()
    assert low < np.float32(math.exp(np.float32(1.0 - 2 * LARGEST_NORMAL)))
    assert high > np.float32(math.exp(np.float32(1.0 + 2 * LARGEST_NORMAL)))
    assert high == pytest.approx(math.exp(14.0), rel=1e-4)
    assert LogNormal(1.0, 2.0, low=0.5, high=3.0).bounds() == (0.5, 3.0)


def test_without_spread_there_is_one_value():
    assert Normal(2.0, 0.0).bounds() == (2.0, 2.0)
    assert Normal(2.0, 0.0, low=2.0, high=2.0, outside="redraw").expected() == 2.0
    assert Normal(2.0, 0.0, high=1.0).expected() == 1.0
    assert LogNormal(0.0, 0.0, low=2.0).expected() == 2.0


def test_values_are_a_copy_that_cannot_be_written_to():
    given = np.array([1.0, 2.0, 3.0])
    values = Values(given)
    given[0] = 9.0
    assert values.array.tolist() == [1.0, 2.0, 3.0]
    for same in (values, pickle.loads(pickle.dumps(values)), copy.deepcopy(values)):
        with pytest.raises(ValueError, match="read-only"):
            same.array[0] = 5.0


def test_values_are_equal_by_value():
    assert Values([1, 2]) == Values([1.0, 2.0])
    assert Values([1, 2]) != Values([1, 3])
    assert Values([1, 2]) != Values([1, 2, 3])
    assert Values([1]) != Constant(1)
    assert len({Values([1, 2]), Values([1.0, 2.0]), Values([3, 4])}) == 2


def test_no_values():
    empty = Values([])
    assert (len(empty), empty.bounds(), empty.expected(), empty.expected_magnitude()) == (0, (0.0, 0.0), 0.0, 0.0)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, Constant(2.0)),
        (np.int16(-3), Constant(-3.0)),
        (np.float32(0.5), Constant(0.5)),
        (np.array(1.5), Constant(1.5)),
        ([1, 2.5], Values([1.0, 2.5])),
        ((3,), Values([3.0])),
        (range(3), Values([0.0, 1.0, 2.0])),
        (np.arange(3, dtype=np.uint8), Values([0.0, 1.0, 2.0])),
        (Uniform(0, 1), Uniform(0.0, 1.0)),
    ],
)
def test_numbers_and_arrays_become_distributions(value, expected):
    made = as_distribution(value, "weight")
    assert made == expected
    assert made.bounds() == expected.bounds()


@pytest.mark.parametrize(
    "value", [True, np.True_, None, "1.0", b"1", 1j, Normal, {1.0}, ["a"], [True], [1j], [[1], [1, 2]]]
)
def test_nan_and_infinity_are_refused(value):
    with pytest.raises(InvalidType, match="the_weight"):
        as_distribution(value, "the_weight")


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 10**400, [1.0, math.nan], [math.inf], np.ones((2, 2)), np.float32("nan")]
)
def test_numbers_that_cannot_be_are_refused(value):
    with pytest.raises(InvalidArgument, match="the_weight"):
        as_distribution(value, "the_weight")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Constant(math.nan), r"Constant\.value=nan"),
        (lambda: Uniform(1.0, 0.0), r"Uniform\.low=1\.0.*high=0\.0"),
        (lambda: Uniform(0.0, math.inf), r"Uniform\.high=inf"),
        (lambda: Uniform(-1.7e308, 1.7e308), r"Uniform\.low"),
        (lambda: Normal(0.0, -1.0), r"Normal\.sd=-1\.0"),
        (lambda: Normal(math.nan, 1.0), r"Normal\.mean=nan"),
        (lambda: Normal(0.0, 1e308), r"Normal.*too large"),
        (lambda: Normal(0.0, 1.0, low=2.0, high=1.0), r"Normal\.low=2\.0.*high=1\.0"),
        (lambda: Normal(0.0, 1.0, low=math.nan), r"Normal\.low=nan"),
        (lambda: Normal(0.0, 1.0, outside="reject"), r"Normal\.outside='reject'.*'clip', 'redraw'"),
        (lambda: Normal(0.0, 1.0, low=4.0, outside="redraw"), r"Normal\.low=4\.0.*outside=\"clip\""),
        (lambda: Normal(0.0, 1.0, low=0.0, high=0.001, outside="redraw"), r"Normal\.low=0\.0, high=0\.001"),
        (lambda: Normal(0.0, 0.0, low=1.0, outside="redraw"), r"Normal\.low=1\.0"),
        (lambda: LogNormal(0.0, -0.1), r"LogNormal\.sigma=-0\.1"),
        (lambda: LogNormal(500.0, 1.0), r"LogNormal\.mu=500\.0.*too large"),
        (lambda: LogNormal(0.0, 1.0, high=0.0), r"LogNormal\.high=0\.0"),
        (lambda: LogNormal(0.0, 1.0, low=100.0, outside="redraw"), r"LogNormal\.low=100\.0"),
        (lambda: Values([1.0, math.nan]), r"Values\.array\[1\]=nan"),
    ],
)
def test_impossible_distributions_name_the_field_and_the_value(make, field):
    with pytest.raises(InvalidArgument, match=field):
        make()


@pytest.mark.parametrize("fields", [{"mean": True}, {"sd": "1"}, {"sd": None}, {"low": "0"}, {"outside": 1}])
def test_fields_of_the_wrong_type(fields):
    with pytest.raises(InvalidType, match=rf"Normal\.{next(iter(fields))}="):
        Normal(**{"mean": 0.0, "sd": 1.0} | fields)


def test_redrawing_is_allowed_where_it_ends_soon():
    kept = Normal(0.0, 1.0, low=3.0, outside="redraw")  # 0.00135 of the draws
    assert kept.expected() == pytest.approx(3.283, abs=1e-3)
