from __future__ import annotations

import pytest

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network import Constant, LogNormal, Normal, Uniform, Values
from neuraxis.network.grid import HIGHEST_CONSTANT_STEPS, HIGHEST_DRAWN_STEPS, as_delay, delay_bounds_steps


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        (1.5, (15, 15)),
        (0.1, (1, 1)),
        (0.3 - 0.2, (1, 1)),
        ([0.1, 2.5, 1.0], (1, 25)),
        (Uniform(0.5, 3.0), (5, 30)),
        (Normal(2.0, 0.1), (13, 27)),  # half way between two steps, at both ends
        (Normal(2.0, 0.08), (15, 25)),
        (Normal(1.5, 0.75), (1, 64)),
        (Normal(1.5, 0.75, low=0.3, high=2.0), (3, 20)),
        (LogNormal(0.0, 1.0, high=20.0), (1, 200)),
        (Constant(HIGHEST_CONSTANT_STEPS * 0.1), (HIGHEST_CONSTANT_STEPS, HIGHEST_CONSTANT_STEPS)),
        (Uniform(1.0, HIGHEST_DRAWN_STEPS * 0.1), (10, HIGHEST_DRAWN_STEPS)),
        ([], (1, 1)),
    ],
)
def test_bounds_in_steps(value, steps):
    assert delay_bounds_steps(as_delay(value, 0.1, "delay_ms"), 0.1) == steps


def test_a_tail_below_one_step_is_cut_there():
    assert as_delay(Normal(1.5, 0.75), 0.1, "d") == Normal(1.5, 0.75, low=0.1, outside="clip")
    assert as_delay(Normal(1.5, 0.75, outside="redraw"), 0.1, "d") == Normal(1.5, 0.75, low=0.1, outside="redraw")
    assert as_delay(LogNormal(0.0, 1.0, high=9.0), 0.25, "d") == LogNormal(0.0, 1.0, low=0.25, high=9.0)


def test_delays_above_one_step_are_not_clipped():
    for delay in (Normal(2.0, 0.1), Normal(1.0, 1.0, low=0.5), Uniform(0.1, 0.2), Constant(0.3), Values([1.0])):
        assert as_delay(delay, 0.1, "d") == delay


@pytest.mark.parametrize(
    "value",
    [
        0.0,
        -1.0,
        0.05,
        [1.0, 0.0],
        Uniform(0.05, 1.0),
        Normal(1.0, 1.0, low=0.0),
        Normal(1.0, 1.0, high=0.05),
        Normal(-9.0, 1.0),
        LogNormal(0.0, 1.0, low=0.01, high=5.0),
        (HIGHEST_CONSTANT_STEPS + 1) * 0.1,
        Uniform(1.0, (HIGHEST_DRAWN_STEPS + 1) * 0.1),
        [1.0, (HIGHEST_DRAWN_STEPS + 1) * 0.1],
        LogNormal(0.0, 1.0),
        Normal(100.0, 50.0),
        1e300,
    ],
    ids=repr,
)
def test_delays_that_cannot_be(value):
    with pytest.raises(InvalidArgument, match="delay_ms"):
        as_delay(value, 0.1, "delay_ms")


@pytest.mark.parametrize("value", [None, True, "1", Normal])
def test_delays_of_the_wrong_type(value):
    with pytest.raises(InvalidType, match="delay_ms"):
        as_delay(value, 0.1, "delay_ms")
