"""Mathematical functions: the kernels' float32 against float64, the host's decimal against exact digits."""

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
def weight_power_of(x: Array, y: Array) -> Array:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = kernels.power_of_positive(x[i], y[i])
    return out


@njit
def sqrt_of(x: Array) -> Array:
    out = np.empty_like(x)
    for i in range(len(x)):
        out[i] = kernels.sqrt(x[i])
    return out


def of_each(function: Any) -> Callable[[Array], Array]:
    @njit
    def of(x: Array) -> Array:
        out = np.empty_like(x)
        for i in range(len(x)):
            out[i] = function(x[i])
        return out

    return of  # type: ignore[no-any-return]


FUNCTIONS = {name: of_each(getattr(kernels, name)) for name in ("cos", "expm1", "exprel", "log1p", "sin", "tanh")}
MOST_ULPS = {"cos": 0.501, "expm1": 2.0, "exprel": 2.5, "log1p": 2.0, "sin": 0.501, "tanh": 3.0}  # documented


def exact(name: str, x: Array) -> Array:
    """Return a function in float64, with the value of exprel at 0."""
    if name != "exprel":
        return getattr(np, name)(x)  # type: ignore[no-any-return]
    return np.where(x == 0, 1.0, np.expm1(x) / np.where(x == 0, 1.0, x))


def ulps(found: Array, exact: Array) -> Array:
    """Return the distance of float32 results from exact ones, in units in the last place (ulp)."""
    assert found.dtype == np.float32
    assert exact.dtype == np.float64
    return np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)


def spread(low: float, high: float, n: int = 100_001) -> Array:
    return np.linspace(low, high, n).astype(np.float32)


@pytest.mark.parametrize(("low", "high"), [(-87.0, 88.0), (-1.0, 1.0), (-1e-3, 1e-3), (-20.0, 0.0)])
def test_exp_is_within_three_ulps(low: float, high: float) -> None:
    x = spread(low, high)
    assert ulps(exp_of(x), np.exp(x.astype(np.float64))).max() < ULPS


def test_exp_beyond_its_range_is_that_of_numpy() -> None:
    x = np.array([-87.1, -90.0, -103.0, -103.9, -104.0, -1e30, -np.inf, 88.1, 88.72, 88.73, 1e30, np.inf], np.float32)
    found = exp_of(x)
    assert ulps(found[[0, 1, 2, 7, 8]], np.exp(x[[0, 1, 2, 7, 8]].astype(np.float64))).max() < ULPS
    assert found[4:7].tolist() == [0.0] * 3
    assert found[9:].tolist() == [np.inf] * 3
    assert exp_of(np.zeros(1, np.float32))[0] == 1.0
    assert np.isnan(exp_of(np.array([np.nan], np.float32))[0])


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


def test_log_where_there_is_none_is_that_of_numpy() -> None:
    with np.errstate(all="ignore"):
        x = np.array([0.0, -0.0, -1.0, -np.inf, np.inf, np.nan], np.float32)
        np.testing.assert_array_equal(log_of(x), np.log(x))
    denormal = np.array([1e-39, 1e-42, 1.4e-45, 1.17e-38], np.float32)
    assert ulps(log_of(denormal), np.log(denormal.astype(np.float64))).max() < ULPS


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5, -1.5, 5.0, 15.0, 16.0, 17.0, -17.0,
                    257.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-40, 3.4e38, -3.4e38, 16777215.0, -16777215.0,
                    16777216.0, 33554434.0, 1e-30, 1e30, 0.1, -0.1, 1 / 3], np.float32)  # fmt: skip


def test_power_of_special_values_has_the_bits_of_numpy() -> None:
    """Every pair: zeros with signs, infinities, NaN, whole and odd exponents, results beyond float32."""
    x, y = (one.ravel() for one in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    found = power_of(x, y)
    same = (found.view(np.uint32) == exact.view(np.uint32)) | (np.isnan(found) & np.isnan(exact))
    assert same.all(), [(x[i], y[i], found[i], exact[i]) for i in np.flatnonzero(~same)]


def test_power_is_within_half_an_ulp_and_a_thousandth() -> None:
    rng = np.random.default_rng(1)
    x = np.abs(rng.integers(0, 2**31, 500_000).astype(np.uint32).view(np.float32))
    x = x[np.isfinite(x)]
    scale = np.where(rng.random(len(x)) < 0.5, 100.0 / np.maximum(1.0, np.abs(np.log2(np.maximum(x, 1e-45)))), 1.0)
    y = (rng.normal(0, 1.5, len(x)) * scale).astype(np.float32)
    found = power_of(x, y)
    held = np.isfinite(found) & (found > 0)
    exact = np.power(x[held].astype(np.longdouble), y[held].astype(np.longdouble))
    error = np.abs(found[held] - exact) / np.spacing(exact.astype(np.float32)).astype(np.longdouble)
    assert held.sum() > 100_000
    assert error.max() < 0.501
    # NumPy's own float32 power is off by up to two ulps, depending on the processor.
    with np.errstate(all="ignore"):
        numpys = np.power(x[held], y[held])
    assert np.abs(found[held].view(np.int32).astype(np.int64) - numpys.view(np.int32)).max() <= 3


def test_power_of_whole_exponents_is_exact_where_it_can_be() -> None:
    for exponent in range(-15, 16):
        x = np.concatenate([np.arange(1, 2000), 1 / np.arange(1, 2000)]).astype(np.float32)
        found = power_of(x, np.full_like(x, exponent))
        with np.errstate(over="ignore", under="ignore"):
            exact = np.power(x.astype(np.longdouble), exponent).astype(np.float32)
        assert np.array_equal(found, exact), exponent
    assert power_of(np.array([257.0], np.float32), np.array([3.0], np.float32))[0] == np.float32(257**3)  # a tie


def test_power_of_positive_is_as_good_as_its_exponential_and_logarithm() -> None:
    """An error of one ulp in y log x, which can be 80, is an error of 80 half ulps in the result."""
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(np.geomspace(1e-6, 1e3, 501), np.linspace(0.05, 2.0, 79)))
    exact = x.astype(np.float64) ** y.astype(np.float64)
    exponents = np.abs(y.astype(np.float64) * np.log(x.astype(np.float64)))
    assert (ulps(weight_power_of(x, y), exact) < ULPS + 2 * exponents).all()
    assert weight_power_of(np.zeros(3, np.float32), np.array([0.1, 0.4, 2.0], np.float32)).tolist() == [0.0] * 3


@pytest.mark.parametrize("exponent", [2, 3, 4])
def test_products_for_small_exponents_are_within_two_ulps(exponent: int) -> None:
    """All 2^23 mantissas of an octave."""
    x = np.arange(0x3F800000, 0x40000000, dtype=np.uint32).view(np.float32)
    product = x.copy()
    for _ in range(exponent - 1):
        product = product * x
    exact = x.astype(np.float64) ** exponent if exponent == 2 else np.power(x.astype(np.longdouble), exponent)
    error = np.abs(product - exact) / np.spacing(exact.astype(np.float32))
    assert error.max() < {2: 0.5001, 3: 1.3, 4: 2.0}[exponent]


def test_sqrt_is_correctly_rounded() -> None:
    x = np.abs(np.random.default_rng(1).standard_normal(100_000).astype(np.float32)) * np.float32(1e10)
    assert np.array_equal(sqrt_of(x), np.sqrt(x.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize(("low", "high"), [(-88.0, 88.0), (-1.0, 1.0), (-1e-3, 1e-3), (-1e-7, 1e-7), (-1e9, 1e9)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_of_a_function_is_below_the_documented_one(name: str, low: float, high: float) -> None:
    x = spread(low, high)
    x = x[x > -1.0] if name == "log1p" else x[x < 88.7] if name in ("expm1", "exprel") else x
    assert ulps(FUNCTIONS[name](x), exact(name, x.astype(np.float64))).max() < MOST_ULPS[name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_those_of_numpy(name: str) -> None:
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -2.0, 1e-40, -1e-40, -100.0, 2.0**30], np.float32)
    with np.errstate(all="ignore"):
        wanted = exact(name, x.astype(np.float64)).astype(np.float32)
    if name == "exprel":
        wanted[2] = np.inf  # its limit
    found = FUNCTIONS[name](x)
    same = (found == wanted) & (np.signbit(found) == np.signbit(wanted)) | np.isnan(found) & np.isnan(wanted)
    assert same.all(), (x[~same], found[~same], wanted[~same])


def test_what_functions_return_beyond_their_range() -> None:
    huge = np.array([89.0, 2.0**30 + 128, -3e38], np.float32)
    assert FUNCTIONS["exprel"](huge)[0] == np.inf
    assert FUNCTIONS["expm1"](huge).tolist() == [np.inf, np.inf, -1.0]
    assert np.isnan(FUNCTIONS["sin"](huge)[1:]).all()
    assert np.isnan(FUNCTIONS["cos"](huge)[1:]).all()


def test_sine_and_cosine_lie_on_the_circle() -> None:
    x = spread(-1e6, 1e6)
    one = FUNCTIONS["sin"](x).astype(np.float64) ** 2 + FUNCTIONS["cos"](x).astype(np.float64) ** 2
    assert np.abs(one - 1).max() < 1e-7


def test_vectorised_and_single_calls_give_the_same_bits() -> None:
    x = spread(-30.0, 30.0, 1037)
    for function in FUNCTIONS.values():
        single = np.array([function(x[i : i + 1])[0] for i in range(len(x))])
        assert np.array_equal(function(x).view(np.uint32), single.view(np.uint32)) or np.isnan(single).any()
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
    for x, y in ((-3.0, 2.0), (-3.0, 3.0), (-2.0, -1.0), (0.0, 0.0), (-2.0, 0.0), (0.0, 0.4), (1.0, -7.5)):
        assert host.power(x, y) == pytest.approx(x**y, rel=4e-16)
    for x, y in ((-2.0, 0.5), (0.0, -1.0), (math.nan, 2.0)):
        with pytest.raises(InvalidArgument, match="no finite value"):
            host.power(x, y)
    assert host.sqrt(2.0) == math.sqrt(2.0)
    assert host.exp(-1e9) == 0.0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_hosts_other_functions_are_those_of_the_c_library(name: str) -> None:
    """The C library rounds correctly in nearly all cases, and is off by one unit at most in these."""
    for x in (0.0, 1e-300, -1e-20, 1e-5, 9e-4, 1e-3, 0.5, -0.5, 0.99, 3.0, 20.0, -30.0, 100.0, 700.0, 1e6, 2.0**30):
        if (name == "log1p" and x <= -1) or (name in ("expm1", "exprel") and x > 700):
            continue
        assert getattr(host, name)(x) == pytest.approx(float(exact(name, np.float64(x))), rel=3e-16, abs=0)
    assert host.expm1(-1e9) == -1.0
    assert host.tanh(1e9) == 1.0


def test_the_hosts_functions_refuse_values_that_they_have_no_number_for() -> None:
    for function, x in ((host.log1p, -1.0), (host.sin, 2.0**31), (host.cos, math.inf), (host.cos, math.nan)):
        with pytest.raises(InvalidArgument, match="is expected"):
            function(x)


@pytest.mark.parametrize("x", [0.0, -1.0, math.nan])
def test_the_hosts_log_refuses_non_positive_numbers(x: float) -> None:
    with pytest.raises(InvalidArgument, match="above 0"):
        host.log(x)
