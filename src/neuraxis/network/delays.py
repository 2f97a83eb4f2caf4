"""Delays: one step at least, a ring buffer's length at most.

A delay is rounded to the nearest whole step. A Normal or LogNormal that could fall below one step and has no `low` of
its own gets one step as `low`: where the tail is cut, the engine reports which part was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from neuraxis.errors import InvalidArgument
from neuraxis.network.distributions import Constant, Distribution, LogNormal, Normal, Values, as_distribution
from neuraxis.network.grid import STEP_TOLERANCE, at_least_one_step, to_steps

__all__ = ["HIGHEST_CONSTANT_STEPS", "HIGHEST_DRAWN_STEPS", "as_delay", "delay_bounds_steps"]

# What 16 bits hold.
HIGHEST_CONSTANT_STEPS = 65535

# The longest delay sets the size of buffers: a distribution's far tail should not do so by accident.
HIGHEST_DRAWN_STEPS = 4096


def as_delay(value: Any, dt_ms: float, name: str) -> Distribution:
    """The distribution of a delay in ms, cut at one step where it may be, or an error."""
    delay = as_distribution(value, name)
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
            "take a shorter one, or cut it with high="
        )
    return delay


def delay_bounds_steps(delay: Distribution, dt_ms: float) -> tuple[int, int]:
    """The shortest and the longest delay that a distribution made by `as_delay` can give, in steps."""
    low, high = delay.bounds()
    # A bound half way between two steps may be rounded to either, by whoever computes it in another order.
    slack = 0.0 if isinstance(delay, Constant) else STEP_TOLERANCE * dt_ms
    lowest, highest = to_steps(max(low - slack, 0.0), dt_ms, "delay_ms"), to_steps(high + slack, dt_ms, "delay_ms")
    return max(1, lowest), max(1, highest)
