from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument, InvalidType, RoundingWarning
from neuraxis.network.grid import (
    HIGHEST_STEP,
    array_on_grid,
    array_to_steps,
    at_least_one_step,
    on_grid,
    to_steps,
    whole_steps,
)

STEPS_MS = [0.001, 0.025, 0.05, 0.1, 0.125, 0.2, 0.3, 0.7, 1.0, 1 / 3]


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


# --- a millionth of a step, at any time ---


def is_on_grid(ms, dt_ms):
    """Return True if the three conversions, which agree, accept a time as a whole number of steps."""
    steps = to_steps(ms, dt_ms, "t")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one, several = on_grid(ms, dt_ms, "t"), array_on_grid(np.array([0.0, ms]), dt_ms, "t")
    assert {type(warned.message) for warned in caught} <= {RoundingWarning}
    assert len(caught) in (0, 2)
    assert (one, several[1]) == ((ms, ms) if not caught else (steps * dt_ms, steps * dt_ms))
    try:
        assert whole_steps(ms, dt_ms) == steps
        assert not caught
    except InvalidArgument:
        assert caught
    return not caught


@given(st.integers(0, 2**31), st.sampled_from(STEPS_MS))
def test_products_and_decimals_are_on_the_grid(steps, dt_ms):
    assert is_on_grid(steps * dt_ms, dt_ms)
    assert is_on_grid(float(f"{steps * dt_ms:.12g}"), dt_ms) or f"{dt_ms:.12g}" != repr(dt_ms)
    assert is_on_grid(steps * dt_ms * 1e-3 * 1e3, dt_ms)  # by way of seconds


@given(st.integers(0, 10**8), st.integers(0, 10**8), st.sampled_from(STEPS_MS))
def test_sums_and_differences_of_times_are_on_the_grid(a, b, dt_ms):
    assert is_on_grid(a * dt_ms + b * dt_ms, dt_ms)
    assert is_on_grid((a + b) * dt_ms - b * dt_ms, dt_ms)


@given(st.integers(0, 10**9), st.floats(2e-6, 0.5) | st.floats(-0.5, -2e-6), st.sampled_from(STEPS_MS))
def test_a_time_between_steps_is_off_the_grid_however_late(steps, off, dt_ms):
    if (steps + off) > 0:
        assert not is_on_grid((steps + off) * dt_ms, dt_ms)


@given(st.integers(0, HIGHEST_STEP - 1), st.sampled_from([0.125, 1.0, 2.0]))
def test_the_middle_of_two_steps_is_off_the_grid_up_to_the_highest_step(steps, dt_ms):
    assert is_on_grid(steps * dt_ms, dt_ms)
    assert not is_on_grid((steps + 0.5) * dt_ms, dt_ms)


@pytest.mark.parametrize("dt_ms", STEPS_MS)
def test_ranges_and_running_sums_are_on_the_grid(dt_ms):
    count, end = 134_000, 10**6 * dt_ms
    made = [np.arange(0, end, dt_ms), np.arange(dt_ms, end, dt_ms), np.linspace(0, end, 10**6 + 1)]
    made.append(np.cumsum(np.full(count, dt_ms)))
    for times in made:
        assert array_on_grid(times, dt_ms, "t") is times
    assert whole_steps(made[-1][-1], dt_ms) == count


def test_the_range_of_a_long_run_is_on_the_grid():
    times = np.arange(0, 1e6, 0.1)
    assert array_on_grid(times, 0.1, "t") is times


def test_a_longer_running_sum_is_rounded_to_the_right_steps_with_a_warning():
    times = np.cumsum(np.full(10**6, 0.1))
    with pytest.warns(RoundingWarning, match=r"of 1,000,000 times are not whole .*Pass multiples of dt_ms"):
        rounded = array_on_grid(times, 0.1, "t")
    assert array_to_steps(rounded, 0.1, "t").tolist() == list(range(1, 10**6 + 1))
    with pytest.raises(InvalidArgument, match=r"time_ms=100000\.0000013.*, such as 100000"):
        whole_steps(times[-1], 0.1)


def test_the_texts_have_all_digits():
    with pytest.warns(RoundingWarning, match=r"t=50000\.05: .*; 50000\.1 ms \(500001 steps\) is used"):
        on_grid(50000.05, 0.1, "t")
    with pytest.warns(RoundingWarning, match=r"t\[1\]=9999999\.97, for which 10000000 ms is used"):
        array_on_grid(np.array([0.3, 9999999.97]), 0.1, "t")
    with pytest.raises(InvalidArgument, match=r"time_ms=100\.09999847.*, such as 100\.1"):
        whole_steps(np.float32(100.1), 0.1)
