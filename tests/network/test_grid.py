from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.grid import HIGHEST_STEP, array_to_steps, at_least_one_step, to_steps


@pytest.mark.parametrize(
    ("ms", "dt_ms", "steps"),
    [(0.3, 0.1, 3), (1.5, 0.1, 15), (0, 0.1, 0), (0.04, 0.1, 0), (0.06, 0.1, 1), (0.125, 0.25, 1), (1e9, 0.1, 10**10)],
)
def test_times_are_rounded_to_steps(ms, dt_ms, steps):
    assert to_steps(ms, dt_ms, "t") == steps
    assert array_to_steps(np.array([ms], dtype=np.float64), dt_ms, "t").tolist() == [steps]


@given(st.integers(0, 10**9), st.sampled_from([0.025, 0.1, 0.125, 1.0, 1 / 3]))
def test_whole_steps_come_back(steps, dt_ms):
    assert to_steps(steps * dt_ms, dt_ms, "t") == steps


@given(st.lists(st.floats(0, 1e6), max_size=20), st.sampled_from([0.1, 0.25]))
def test_arrays_are_rounded_like_numbers(times, dt_ms):
    expected = [to_steps(time, dt_ms, "t") for time in times]
    assert array_to_steps(np.array(times, dtype=np.float64), dt_ms, "t").tolist() == expected


@pytest.mark.parametrize("ms", [-0.1, float("nan"), float("inf"), 0.2 * HIGHEST_STEP])
def test_times_that_cannot_be(ms):
    with pytest.raises(InvalidArgument, match="start_ms"):
        to_steps(ms, 0.1, "start_ms")


@pytest.mark.parametrize("times", [[1.0, -1.0], [1.0, 0.2 * HIGHEST_STEP]])
def test_arrays_of_times_that_cannot_be(times):
    with pytest.raises(InvalidArgument, match="times_ms"):
        array_to_steps(np.array(times), 0.1, "times_ms")


def test_a_time_is_a_number():
    with pytest.raises(InvalidType, match="start_ms='1'"):
        to_steps("1", 0.1, "start_ms")


def test_one_step_at_least():
    assert at_least_one_step(0.3 - 0.2, 0.1, "delay_ms") == 0.3 - 0.2  # below 0.1 by a rounding error
    with pytest.raises(InvalidArgument, match=r"delay_ms=0\.099.*dt_ms=0\.1"):
        at_least_one_step(0.099, 0.1, "delay_ms")
