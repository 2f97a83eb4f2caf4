"""Gradients at plain addresses into one array, compiled: one pass over memory and one call for a whole bucket."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from neuraxis.comm.atomics import pointer_to
from neuraxis.compiled import compiled

__all__ = ["pack_float32", "pack_float64"]


@njit
def _scale(source: Any, weight: Any, target: Any) -> None:
    for index in range(len(source)):  # both begin at 0: only so the compiler makes vectors of it
        target[index] = source[index] * weight


@compiled
def pack_float32(addresses: Any, lengths: Any, weight: float, target: Any) -> None:
    """`weight` times what lies at these addresses, one after the other into `target`."""
    start = 0
    for place in range(len(addresses)):
        n = lengths[place]
        source = carray(pointer_to(addresses[place], np.float32), n)
        _scale(source, np.float32(weight), target[start : start + n])
        start += n


@compiled
def pack_float64(addresses: Any, lengths: Any, weight: float, target: Any) -> None:
    """As `pack_float32`."""
    start = 0
    for place in range(len(addresses)):
        n = lengths[place]
        source = carray(pointer_to(addresses[place], np.float64), n)
        _scale(source, weight, target[start : start + n])
        start += n
