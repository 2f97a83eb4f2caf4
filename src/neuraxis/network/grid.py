"""Conversion of times in ms to whole steps.

Times in a description (delays, refractory times, periods, starts and ends) are rounded to the nearest step, halves
upwards, with a `RoundingWarning` that names the time and the value used: `on_grid`. The duration of a run must be a
whole number of steps, because rounding errors of many runs would add up: `whole_steps`. Times drawn from a
distribution are rounded as part of the draw.

Delays are at least one step, and at most the length of a ring buffer. A Normal or LogNormal delay that can fall below
one step and has no `low` gets one step as `low`; the engine reports the part of the distribution that this changes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from neuraxis.arguments import Floats, Integers, not_negative, number, read_only, warn_user
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.distributions import Constant, Distribution, LogNormal, Normal, Values, as_distribution

__all__ = [
    "HIGHEST_CONSTANT_STEPS",
    "HIGHEST_DRAWN_STEPS",
    "HIGHEST_STEP",
    "STEP_TOLERANCE",
    "array_on_grid",
    "array_to_steps",
    "as_delay",
    "at_least_one_step",
    "delay_bounds_steps",
    "on_grid",
    "period",
    "to_steps",
    "whole_steps",
]

# Far beyond any run, and small enough for float64 to be exact.
HIGHEST_STEP = 2**48

# A time that misses a whole step by more than this fraction of a step is off the grid, however late it is. (Adding up
# dt_ms n times is off by n^2 / 2 halves of float64's epsilon at most: below this for 134,000 steps.)
STEP_TOLERANCE = 1e-6

# Rounding errors grow with the time: 0.3 ms is not 3 * 0.1 ms in binary. Reading a time and dt_ms as decimals,
# computing n * dt_ms or a + b, and dividing by dt_ms round by half an epsilon each; this is room for eight of them. At
# HIGHEST_STEP it is a quarter of a step, so a time between two steps is never taken for one of them.
_ROUNDING_ERROR = 4 * float(np.finfo(np.float64).eps)

# Delays are stored in 16 bits.
HIGHEST_CONSTANT_STEPS = 65535

# The longest possible delay determines the size of buffers; the tail of a distribution should not make them huge.
HIGHEST_DRAWN_STEPS = 4096


def to_steps(ms: float, dt_ms: float, name: str) -> int:
    """Round a time to the nearest whole number of steps.

    Parameters
    ----------
    ms : float
        Time in ms, 0 or more.
    dt_ms : float
        Step in ms.
    name : str
        Name of the argument, for error messages.

    Returns
    -------
    int
        Number of steps; halves are rounded upwards.

    Raises
    ------
    InvalidArgument
        The time is negative, or longer than 2**48 steps.

    Examples
    --------
    >>> to_steps(1.5, 0.1, "delay_ms")
    15
    """
    ms = not_negative(ms, name)
    steps = ms / dt_ms + 0.5
    if steps > HIGHEST_STEP:
        raise InvalidArgument(f"{name}={ms}: is more than {HIGHEST_STEP} steps of {dt_ms} ms")
    return int(steps)


def array_to_steps(ms: Floats, dt_ms: float, name: str) -> Integers:
    """Round an array of times to whole steps, each as `to_steps` does.

    Parameters
    ----------
    ms : array of float, shape (n,)
        Times in ms, 0 or more.
    dt_ms : float
        Step in ms.
    name : str
        Name of the argument, for error messages.

    Returns
    -------
    array of int64, shape (n,)
        Numbers of steps.

    Raises
    ------
    InvalidArgument
        A time is negative, or longer than 2**48 steps.

    Examples
    --------
    >>> array_to_steps(np.array([0.0, 0.26, 1.5]), 0.1, "times_ms")
    array([ 0,  3, 15])
    """
    if ms.size:
        not_negative(float(ms.min()), f"{name} (its lowest)")
        to_steps(float(ms.max()), dt_ms, f"{name} (its highest)")
    return (ms / dt_ms + 0.5).astype(np.int64)


def on_grid(ms: float, dt_ms: float, name: str) -> float:
    """Return a time in ms unchanged if it is on a step, else rounded to the nearest step, with a warning."""
    steps = to_steps(ms, dt_ms, name)
    if _misses(ms / dt_ms, steps):
        warn_user(
            f"{name}={float(ms)!r}: is not a whole number of steps of {dt_ms:g} ms; {_shown(steps * dt_ms)} ms "
            f"({steps} step{'' if steps == 1 else 's'}) is used. Pass a multiple of dt_ms, or change dt_ms."
        )
        return steps * dt_ms
    return ms


def period(every_ms: float, dt_ms: float, name: str) -> float:
    """Return the time between two periodic events, rounded to steps with a warning; raise if it is below one step."""
    return on_grid(at_least_one_step(every_ms, dt_ms, name), dt_ms, name)


def array_on_grid(ms: Floats, dt_ms: float, name: str) -> Floats:
    """Round an array of times in ms to steps as `on_grid` does, with one warning for all of them."""
    steps = array_to_steps(ms, dt_ms, name)
    missed = np.flatnonzero(np.abs(ms / dt_ms - steps) > STEP_TOLERANCE + _ROUNDING_ERROR * steps)
    if not missed.size:
        return ms
    first = missed[0]
    warn_user(
        f"{name}: {missed.size:,} of {ms.size:,} times are not whole numbers of steps of {dt_ms:g} ms, the first is "
        f"{name}[{first}]={float(ms[first])!r}, for which {_shown(steps[first] * dt_ms)} ms is used. Pass multiples of "
        "dt_ms, or change dt_ms."
    )
    rounded = ms.copy()
    rounded[missed] = steps[missed] * dt_ms
    return read_only(rounded)


def _misses(exact: float, steps: int) -> bool:
    return abs(exact - steps) > STEP_TOLERANCE + _ROUNDING_ERROR * steps


def _shown(ms: float) -> str:
    """Return a time on the grid as text, without the rounding error of its product."""
    return f"{ms:.15g}"


def at_least_one_step(ms: float, dt_ms: float, name: str) -> float:
    """Return a time in ms unchanged; raise if it is below one step."""
    if ms < dt_ms * (1 - STEP_TOLERANCE):
        raise InvalidArgument(f"{name}={ms:g}: must be one step (dt_ms={dt_ms:g}) or more")
    return ms


def whole_steps(time_ms: object, dt_ms: float, name: str = "time_ms") -> int:
    """Return a duration in ms as a number of steps; raise if it is negative or not a whole number of steps."""
    try:
        duration = number(time_ms, name)
    except InvalidType:
        raise InvalidArgument(f"{name}={time_ms!r}: a time in ms is expected") from None
    if duration < 0:
        raise InvalidArgument(f"{name}={time_ms!r}: a time cannot be negative")
    steps = to_steps(duration, dt_ms, name)
    if _misses(duration / dt_ms, steps):
        raise InvalidArgument(
            f"{name}={duration!r}: a whole number of steps of {dt_ms:g} ms is expected, such as {_shown(steps * dt_ms)}"
        )
    return steps


def as_delay(value: Any, dt_ms: float, name: str) -> Distribution:
    """Return the distribution of a delay in ms, limited to one step or more; raise if that is not possible."""
    delay = as_distribution(value, name)
    if isinstance(delay, Constant) and _is_valid_delay(delay.value, dt_ms):
        return delay
    if isinstance(delay, Values) and not len(delay):
        return delay
    low, high = delay.bounds()
    one_step = dt_ms * (1 - STEP_TOLERANCE)
    if high < one_step:
        at_least_one_step(high, dt_ms, name)
    if low < one_step:
        if not isinstance(delay, Normal | LogNormal) or delay.low is not None:
            raise InvalidArgument(
                f"{name}={delay}: can be as short as {low:g} ms; a delay must be one step (dt_ms={dt_ms:g}) or more"
            )
        delay = replace(delay, low=dt_ms)
    highest = HIGHEST_CONSTANT_STEPS if isinstance(delay, Constant) else HIGHEST_DRAWN_STEPS
    if to_steps(high, dt_ms, name) > highest:
        raise InvalidArgument(
            f"{name}={delay}: can be as long as {high:g} ms, more than {highest} steps; "
            "use a shorter one, or limit it with high="
        )
    if isinstance(delay, Constant):
        return Constant(on_grid(delay.value, dt_ms, name))
    if isinstance(delay, Values):
        return Values(array_on_grid(delay.array, dt_ms, name))
    return delay


def delay_bounds_steps(delay: Distribution, dt_ms: float) -> tuple[int, int]:
    """Return the shortest and the longest delay of a distribution made by `as_delay`, in steps."""
    if isinstance(delay, Constant):
        steps = max(1, _constant_steps(delay.value, dt_ms))
        return steps, steps
    low, high = delay.bounds()
    # Another order of operations may round a bound half way between two steps to either of them.
    slack = STEP_TOLERANCE * dt_ms
    lowest, highest = to_steps(max(low - slack, 0.0), dt_ms, "delay_ms"), to_steps(high + slack, dt_ms, "delay_ms")
    return max(1, lowest), max(1, highest)


@lru_cache(maxsize=4096)
def _is_valid_delay(ms: float, dt_ms: float) -> bool:
    """Return True for a number of steps that a delay can have, without rounding."""
    steps = ms / dt_ms + 0.5
    return 1 <= int(steps) <= HIGHEST_CONSTANT_STEPS and not _misses(ms / dt_ms, int(steps))


@lru_cache(maxsize=4096)
def _constant_steps(ms: float, dt_ms: float) -> int:
    return to_steps(max(ms, 0.0), dt_ms, "delay_ms")
