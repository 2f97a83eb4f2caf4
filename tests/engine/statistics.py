"""Tests of fit that need no statistics package: critical values from the normal distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


def chi_square_fits(observed: Sequence[float], expected: Sequence[float], sigmas: float = 4.0) -> bool:
    """Return True if counts fit the expected ones (Wilson and Hilferty's approximation of the critical value).

    Cells with few expected counts are put together. With fixed seeds the answer is always the same; `sigmas` says how
    unlikely a "no" is for a correct generator.
    """
    merged: list[list[float]] = []
    seen = wanted = 0.0
    for one, other in zip(observed, expected, strict=True):
        seen, wanted = seen + one, wanted + other
        if wanted >= 10:
            merged.append([seen, wanted])
            seen = wanted = 0.0
    if wanted:
        merged[-1][0] += seen
        merged[-1][1] += wanted
    cells = np.array(merged)
    assert len(cells) > 1, "too few counts for a test"
    assert math.isclose(cells[:, 0].sum(), cells[:, 1].sum(), rel_tol=1e-6), "expected counts must have the same sum"
    statistic = float(((cells[:, 0] - cells[:, 1]) ** 2 / cells[:, 1]).sum())
    k = len(cells) - 1
    critical = k * (1 - 2 / (9 * k) + sigmas * math.sqrt(2 / (9 * k))) ** 3
    return statistic < critical


def uniform_fits(counts: Any) -> bool:
    counts = np.asarray(counts, float).ravel()
    return chi_square_fits(counts, [counts.mean()] * len(counts))


def normal_cumulative(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def ks_distance_to_normal(values: Any) -> float:
    """The largest distance between the distribution of values and the standard normal one."""
    ordered = np.sort(np.asarray(values, float))
    cumulative = np.array([normal_cumulative(z) for z in ordered])
    n = len(ordered)
    steps = np.arange(n + 1) / n
    return float(max(np.abs(cumulative - steps[:-1]).max(), np.abs(cumulative - steps[1:]).max()))


def binomial_probabilities(n: int, p: float) -> list[float]:
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def poisson_probabilities(mean: float, highest: int) -> list[float]:
    """Return the probabilities of 0 to highest - 1, and of all larger numbers together."""
    found = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(highest)]
    return [*found, max(0.0, 1 - math.fsum(found))]
