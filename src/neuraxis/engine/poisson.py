"""Poisson numbers with a given mean, as tables for the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.generated import BLOCK, POISSON_SIZES, poisson_function
from neuraxis.network.arithmetic import exp

__all__ = ["poisson_kernel", "poisson_table", "poisson_thresholds"]


def poisson_kernel(table: NDArray[Any]) -> Any:
    """The compiled function for a table of thresholds; None for one of means."""
    if table.dtype != np.int32:
        return None
    # How many thresholds settle all but one in ten thousand draws, rounded up to have few kernels.
    usual = 2 + int(np.count_nonzero(table < 2**31 - 2**32 * 1e-4))
    return poisson_function(min(usual + usual % 2, len(table)), len(table))


def poisson_table(mean: NDArray[np.float64], n: int) -> NDArray[np.generic]:
    """Thresholds (int32) where one mean for all n neurons has few; else (probability of none, mean) of each neuron."""
    if mean.ndim == 0:
        thresholds = poisson_thresholds(float(mean))
        if thresholds is not None:
            return thresholds
        mean = np.full(n, float(mean))
    pairs = np.zeros((-(-n // BLOCK) * BLOCK, 2))
    decays = {float(m): exp(-float(m)) for m in np.unique(mean)}
    pairs[:n, 0] = [decays[float(m)] for m in mean]
    pairs[:n, 1] = mean
    return pairs


def poisson_thresholds(mean: float) -> NDArray[np.int32] | None:
    """A 32-bit draw exceeds as many of these as the Poisson number is; None if that would take too many."""
    if mean > 30:
        return None
    probability = exp(-mean)
    reached = probability
    thresholds: list[int] = []
    while reached * 2.0**32 <= 2.0**32 - 1 and len(thresholds) <= POISSON_SIZES[-1]:
        thresholds.append(int(np.ceil(reached * 2.0**32)) - 2**31 - 1)
        probability *= mean / len(thresholds)
        reached += probability
        if probability < 1e-12 and reached > 0.5:
            break
    size = next((size for size in POISSON_SIZES if size >= len(thresholds)), None)
    if size is None:
        return None
    return np.array(thresholds + [2**31 - 1] * (size - len(thresholds)), np.int32)
