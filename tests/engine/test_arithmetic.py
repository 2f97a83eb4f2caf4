"""exp, log, power and sqrt: the kernels' float32 against float64, the host's decimal against exact digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from numba import njit

from neuraxis.engine import arithmetic as kernels
from neuraxis.errors import InvalidArgument
from neuraxis.network import arithmetic as host

Array = np.ndarray[Any, Any]

# What the module promises.
ULPS = 3.0


@njit
def exp_of(x: Array) -> Array:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = kernels.exp(x[i])
    return out


@njit
def log_of(x: Array) -> Array:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = kernels.log(x[i])
    return out


@njit
def power_of(x: Array, y: Array) -> Array:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = kernels.power(x[i], y[i])
    return out


@njit
def sqrt_of(x: Array) -> Array:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = kernels.sqrt(x[i])
    return out


def ulps(found: Array, exact: Array) -> Array:
    """How far float32 results are from exact ones, in units in the last place of the latter."""
    assert found.dtype == np.float32
    assert exact.dtype == np.float64
    return np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


def spread(low: float, high: float, n: int = 100_001) -> Array:
    return np.linspace(low, high, n).astype(np.float32)


@pytest.mark.parametrize(("low", "high"), [(-87.0, 88.0), (-1.0, 1.0), (-1e-3, 1e-3), (-20.0, 0.0)])
def test_exp_is_within_three_ulps(low: float, high: float) -> None:
    x = spread(low, high)
    assert ulps(exp_of(x), np.exp(x.astype(np.float64))).max() < ULPS


def test_exp_beyond_its_range_stays_at_the_end() -> None:
    ends = exp_of(np.array([-87.0, 88.0], np.float32))
    beyond = exp_of(np.array([-87.1, -1e30, -np.inf, 88.1, 1e30, np.inf], np.float32))
    assert beyond.tolist() == [ends[0]] * 3 + [ends[1]] * 3
    assert exp_of(np.zeros(1, np.float32))[0] == 1.0
    assert np.isfinite(beyond).all()


def test_exp_does_not_fall_where_its_pieces_meet() -> None:
    """Neighbouring float32 numbers around a change of octave: by one ulp at most, which is its error."""
    for centre in (0.5 * math.log(2), -0.5 * math.log(2), 10.5 * math.log(2)):
        x = np.float32(centre) + np.arange(-2000, 2000, dtype=np.float32) * np.spacing(np.float32(centre))
        found = exp_of(x)
        assert (np.diff(found) >= -np.spacing(found[:-1])).all()


def test_log_is_within_three_ulps() -> None:
    x = np.exp(np.linspace(-87.0, 88.0, 200_001)).astype(np.float32)
    away = np.abs(x - 1) > 0.05
    assert ulps(log_of(x[away]), np.log(x[away].astype(np.float64))).max() < ULPS
    near = spread(0.95, 1.05)
    near = near[near != 1.0]
    assert ulps(log_of(near), np.log(near.astype(np.float64))).max() < ULPS
    assert log_of(np.ones(1, np.float32))[0] == 0.0


def test_log_of_nothing_is_that_of_the_smallest_normal_number() -> None:
    smallest = np.finfo(np.float32).tiny
    found = log_of(np.array([smallest, smallest / 2, 0.0, -1.0], np.float32))
    assert (found == found[0]).all()
    assert found[0] == pytest.approx(math.log(smallest), rel=1e-6)


def test_power_is_as_good_as_its_exponential_and_logarithm() -> None:
    """An error of one ulp in y log x, which can be 80, is an error of 80 half ulps in the result."""
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(np.geomspace(1e-6, 1e3, 501), np.linspace(0.05, 2.0, 79)))
    exact = x.astype(np.float64) ** y.astype(np.float64)
    exponents = np.abs(y.astype(np.float64) * np.log(x.astype(np.float64)))
    assert (ulps(power_of(x, y), exact) < ULPS + 2 * exponents).all()
    unit = spread(1e-3, 1.0)
    for mu in (0.1, 0.4, 0.5, 0.9):
        found = power_of(unit, np.full_like(unit, mu))
        assert np.abs(found / unit.astype(np.float64) ** np.float64(np.float32(mu)) - 1).max() < 1e-6


def test_power_of_zero_is_zero() -> None:
    assert power_of(np.zeros(3, np.float32), np.array([0.1, 0.4, 2.0], np.float32)).tolist() == [0.0] * 3
    assert power_of(np.ones(3, np.float32), np.array([0.1, 0.4, 2.0], np.float32)).tolist() == [1.0] * 3


def test_sqrt_is_correctly_rounded() -> None:
    x = np.abs(np.random.default_rng(1).standard_normal(100_000).astype(np.float32)) * np.float32(1e10)
    assert np.array_equal(sqrt_of(x), np.sqrt(x.astype(np.float64)).astype(np.float32))


def test_vectorised_and_single_calls_give_the_same_bits() -> None:
    x = spread(-30.0, 30.0, 1037)
    assert exp_of(x).tolist() == [float(exp_of(x[i : i + 1])[0]) for i in range(len(x))]
    y = np.abs(x) + np.float32(1e-3)
    assert log_of(y).tolist() == [float(log_of(y[i : i + 1])[0]) for i in range(len(y))]


# --- the host ---


def digits(function: Callable[[Decimal], Decimal], x: float) -> float:
    with localcontext() as context:
        context.prec = 80
        return float(function(Decimal(x)))


@pytest.mark.parametrize("x", [0.0, 1.0, -0.01, -0.005, -1e-17, 1e-300, -700.5, 709.0, 12.345678901234567, -744.9])
def test_the_hosts_exp_is_correctly_rounded(x: float) -> None:
    assert host.exp(x) == digits(Decimal.exp, x)
    assert host.exp(x) == pytest.approx(math.exp(x), rel=1e-14, abs=5e-324)


@pytest.mark.parametrize("x", [1.0, 2.0, 0.1, 1e-300, 1e300, 1 + 2**-52, math.pi])
def test_the_hosts_log_is_correctly_rounded(x: float) -> None:
    assert host.log(x) == digits(Decimal.ln, x)
    assert host.log(x) == pytest.approx(math.log(x), rel=1e-14)


def test_the_hosts_power_and_square_root() -> None:
    for x, y in ((2.0, 10.0), (1.0, 0.6), (0.25, 0.5), (45.0, 0.6), (1e-5, 0.4), (3.0, -2.0)):
        assert host.power(x, y) == pytest.approx(x**y, rel=4e-16)
    assert host.power(0.0, 0.4) == 0.0
    assert host.sqrt(2.0) == math.sqrt(2.0)
    assert host.exp(-1e9) == 0.0


@pytest.mark.parametrize("x", [0.0, -1.0, math.nan])
def test_the_hosts_log_refuses_what_has_none(x: float) -> None:
    with pytest.raises(InvalidArgument, match="above 0"):
        host.log(x)
