"""Model time: a whole number of steps. Times in ms are rounded to the nearest step, halves upwards."""

from __future__ import annotations

import numpy as np

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arguments import not_negative, number
from neuraxis.network.arrays import Floats, Integers

__all__ = ["HIGHEST_STEP", "STEP_TOLERANCE", "array_to_steps", "at_least_one_step", "to_steps", "whole_steps"]

# Far beyond any run, and far within what float64 counts exactly.
HIGHEST_STEP = 2**48

# A time that misses a step by less than this part of it is meant to be on it: 0.3 ms is not 3 * 0.1 ms in binary.
STEP_TOLERANCE = 1e-6


def to_steps(ms: float, dt_ms: float, name: str) -> int:
    """A time or duration in ms (0 or more) as the nearest whole number of steps of `dt_ms`."""
    ms = not_negative(ms, name)
    steps = ms / dt_ms + 0.5
    if steps > HIGHEST_STEP:
        raise InvalidArgument(f"{name}={ms}: is more than {HIGHEST_STEP} steps of {dt_ms} ms")
    return int(steps)


def array_to_steps(ms: Floats, dt_ms: float, name: str) -> Integers:
    """The same for an array: each element is rounded as `to_steps` rounds it."""
    if ms.size:
        not_negative(float(ms.min()), f"{name} (its lowest)")
        to_steps(float(ms.max()), dt_ms, f"{name} (its highest)")
    return (ms / dt_ms + 0.5).astype(np.int64)


def at_least_one_step(ms: float, dt_ms: float, name: str) -> float:
    """Check that a time is not below one step; the time itself is returned, not rounded."""
    if ms < dt_ms * (1 - STEP_TOLERANCE):
        raise InvalidArgument(f"{name}={ms:g}: must be one step (dt_ms={dt_ms:g}) or more")
    return ms


def whole_steps(time_ms: object, dt_ms: float) -> int:
    """A duration as steps; an error if it is none, negative, or no whole number of steps."""
    try:
        duration = number(time_ms, "time_ms")
    except InvalidType:
        raise InvalidArgument(f"time_ms={time_ms!r}: a time in ms is expected") from None
    if duration < 0:
        raise InvalidArgument(f"time_ms={time_ms!r}: a time cannot be negative")
    steps = to_steps(duration, dt_ms, "time_ms")
    if abs(duration / dt_ms - steps) > 1e-6 * max(1, steps):
        raise InvalidArgument(f"time_ms={time_ms!r}: a whole number of steps of {dt_ms:g} ms is expected")
    return steps
