"""Correctly rounded mathematical functions, which return the same bits on every machine.

Constants of neuron models (a decay factor for one step, say) are computed with these functions, once, on the host. The
`exp` of two C libraries can differ in the last bit, and one such bit changes the spikes of a network; these functions
compute with twice the digits of a float64 in `decimal`, which is specified exactly, and round once. Inside the function
of a neuron model the same names stand for the float32 functions of `neuraxis.engine.arithmetic`.

Each function also takes arrays, as for parameters that differ between neurons, and returns the same bits for each
element as for the number alone. `exp` of an array computes with pairs of float64 (an error below 2^-70) and leaves to
`decimal` what that does not round safely, one element in tens of thousands; the other functions call `decimal` for each
distinct value.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Context, Decimal
from functools import cache, wraps
from typing import Any, TypeVar, cast, overload

import numpy as np

from neuraxis.arguments import Floats
from neuraxis.errors import InvalidArgument

__all__ = [
    "cos",
    "exp",
    "expm1",
    "exprel",
    "float32",
    "log",
    "log1p",
    "normal",
    "power",
    "random",
    "sin",
    "sqrt",
    "tanh",
]


def __dir__() -> list[str]:
    return __all__


_is_wide: ContextVar[bool] = ContextVar("is_wide", default=False)

# Twice the digits of a float64, so that only the final rounding to float64 matters.
_CONTEXT = Context(prec=36)
_WIDE = Context(prec=60)  # for sums whose first digits cancel
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863")
_SMALL = Decimal("1e-3")  # below it, series instead of differences
_LARGEST_ANGLE = 2.0**30

# For `exp` of arrays: e^x = 2^(k / _PARTS) e^r with |r| <= ln 2 / (2 _PARTS).
_PARTS = 64
_LARGEST_EXPONENT = 700.0  # beyond it, results near the limits of float64 are left to `decimal`
_SAFE = 2.0**-68  # more than the relative error of the pairs of float64
_AT_ONCE = 4096  # elements whose intermediate results fit a core's cache
_SPLITTER = 2.0**27 + 1.0

Function = TypeVar("Function", bound=Callable[..., Any])


def _of_arrays(function: Function) -> Function:
    """Let a function of numbers take arrays: it is called once for each distinct combination of values."""

    @wraps(function)
    def called(*arguments: Any) -> Any:
        if not any(isinstance(one, np.ndarray) for one in arguments):
            return function(*arguments)
        given = np.broadcast_arrays(*(np.asarray(one, np.float64) for one in arguments))
        bits = np.stack([one.ravel() for one in given], axis=1).view(np.int64)
        distinct, places = np.unique(bits, axis=0, return_inverse=True)
        found = np.array([function(*row) for row in distinct.view(np.float64).tolist()])
        return found[places.reshape(given[0].shape)]

    return cast(Function, called)


@overload
def exp(x: float) -> float: ...
@overload
def exp(x: Floats) -> Floats: ...
def exp(x: float | Floats) -> float | Floats:
    """Return e**x.

    Parameters
    ----------
    x : float or numpy.ndarray
        A number, or an array of any shape.

    Returns
    -------
    float or numpy.ndarray
        A float64 for a number; an array of the shape of the argument for an array.

    Examples
    --------
    >>> exp(-0.1)
    0.9048374180359595
    >>> exp(np.array([-0.1, 0.0]))
    array([0.90483742, 1.        ])
    """
    if isinstance(x, np.ndarray):
        return _exp_of_array(x)
    if x < -745.0:
        return 0.0
    return float(_CONTEXT.exp(Decimal(x)))


def _exp_of_array(x: Floats) -> Floats:
    given = np.ascontiguousarray(x, np.float64).ravel()
    found = np.empty_like(given)
    for first in range(0, len(given), _AT_ONCE):
        here = given[first : first + _AT_ONCE]
        easy = np.abs(here) <= _LARGEST_EXPONENT
        made, safe = _exp_in_pairs(np.where(easy, here, 0.0))
        for i in np.flatnonzero(~(easy & safe)).tolist():
            made[i] = exp(float(here[i]))
        found[first : first + _AT_ONCE] = made
    return found.reshape(x.shape)


def _exp_in_pairs(x: Floats) -> tuple[Floats, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return e^x rounded once, and where that is certainly the correct rounding.

    A number is a sum of two float64, the second below half a unit of the first. Terms of the series of e^r that are
    below 2^-25 need one float64 only.
    """
    (high, middle, low), table = _exp_constants()
    k = np.rint(x * (_PARTS / math.log(2.0)))
    # The products with k and the first difference are exact.
    r, rest = _sum(x - k * high, -(k * middle))
    r, rest = _sum(r, rest - k * low)
    square, square_rest = _product(r, r)
    square_rest = square_rest + 2.0 * r * rest
    q = 1.0 / 40320.0
    for coefficient in (5040.0, 720.0, 120.0, 24.0, 6.0):
        q = q * r + 1.0 / coefficient
    total, lost = _sum(r, 0.5 * square)
    p, p_rest = _sum(total, lost + rest + 0.5 * square_rest + q * r * square)
    part = k.astype(np.int64)
    t, t_rest = table[part % _PARTS].T
    product, product_rest = _product(t, p)
    total, lost = _sum(t, product)
    y, y_rest = _sum(total, lost + (product_rest + t_rest + t * p_rest + t_rest * p))
    below, above = y + (y_rest - _SAFE * y), y + (y_rest + _SAFE * y)
    return np.ldexp(y + y_rest, part // _PARTS), below == above


@cache
def _exp_constants() -> tuple[tuple[float, float, float], Floats]:
    """Return ln 2 / _PARTS in three parts, and 2^(i / _PARTS) in two each."""
    step = _WIDE.divide(_WIDE.ln(Decimal(2)), _PARTS)
    high = math.floor(float(step) * 2.0**42) / 2.0**42  # 36 bits: its products with 17 bits are exact
    middle = math.floor(float(step - Decimal(high)) * 2.0**78) / 2.0**78
    low = float(step - Decimal(high) - Decimal(middle))
    powers = [_WIDE.exp(_WIDE.multiply(step, i)) for i in range(_PARTS)]
    table = np.array([[float(one), float(_WIDE.subtract(one, Decimal(float(one))))] for one in powers])
    return (high, middle, low), table


def _sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a + b rounded, and what the rounding has lost (Knuth)."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return a * b rounded, and what the rounding has lost (Dekker)."""
    product = a * b
    a_scaled, b_scaled = _SPLITTER * a, _SPLITTER * b
    a_high, b_high = a_scaled - (a_scaled - a), b_scaled - (b_scaled - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@_of_arrays
def log(x: float) -> float:
    """Return the natural logarithm of x > 0.

    Parameters
    ----------
    x : float or numpy.ndarray
        A number above 0, or an array of them.

    Returns
    -------
    float or numpy.ndarray
        A float64 for a number; an array of the shape of the argument for an array.

    Raises
    ------
    InvalidArgument
        x is not above 0.

    Examples
    --------
    >>> log(2.0)
    0.6931471805599453
    """
    if not x > 0:
        raise InvalidArgument(f"log({x!r}): a number above 0 is expected")
    return float(_CONTEXT.ln(Decimal(x)))


@_of_arrays
def power(x: float, y: float) -> float:
    """Return x**y; y must be an integer if x < 0, and not negative if x is 0.

    Parameters
    ----------
    x : float or numpy.ndarray
        The base.
    y : float or numpy.ndarray
        The exponent. Arrays are broadcast against each other.

    Returns
    -------
    float or numpy.ndarray
        A float64 for numbers; an array of the broadcast shape if either is an array.

    Raises
    ------
    InvalidArgument
        The power is not a finite real number.

    Examples
    --------
    >>> power(2.0, 0.5)
    1.4142135623730951
    """
    if y == 0 or x == 1:
        return 1.0
    if x < 0 and float(y).is_integer():
        return power(-x, y) if y % 2 == 0 else -power(-x, y)
    if x == 0 and y > 0:
        return 0.0
    if not x > 0:
        raise InvalidArgument(f"power({x!r}, {y!r}): has no finite value")
    return float(_CONTEXT.exp(_CONTEXT.multiply(_CONTEXT.ln(Decimal(x)), Decimal(y))))


@_of_arrays
def expm1(x: float) -> float:
    """Return e**x - 1, also where e**x is close to 1.

    Parameters
    ----------
    x : float or numpy.ndarray
        A number, or an array of any shape.

    Returns
    -------
    float or numpy.ndarray
        A float64 for a number; an array of the shape of the argument for an array.

    Examples
    --------
    >>> expm1(1e-20)
    1e-20
    """
    if x < -745.0:
        return -1.0
    return float(_expm1(Decimal(x)))


@_of_arrays
def exprel(x: float) -> float:
    """Return (e**x - 1) / x, and 1 for x = 0.

    Parameters
    ----------
    x : float or numpy.ndarray
        A number, or an array of any shape.

    Returns
    -------
    float or numpy.ndarray
        A float64 for a number; an array of the shape of the argument for an array.

    Examples
    --------
    >>> exprel(0.0)
    1.0
    """
    return 1.0 if x == 0 else float(_WIDE.divide(_expm1(Decimal(x)), Decimal(x)))


@_of_arrays
def log1p(x: float) -> float:
    """Return log(1 + x) for x > -1, also where x is close to 0.

    Parameters
    ----------
    x : float or numpy.ndarray
        A number above -1, or an array of them.

    Returns
    -------
    float or numpy.ndarray
        A float64 for a number; an array of the shape of the argument for an array.

    Raises
    ------
    InvalidArgument
        x is not above -1.

    Examples
    --------
    >>> log1p(1e-20)
    1e-20
    """
    if not x > -1:
        raise InvalidArgument(f"log1p({x!r}): a number above -1 is expected")
    wide = Decimal(x)
    if abs(wide) >= _SMALL:
        return float(_WIDE.ln(_WIDE.add(1, wide)))
    return float(_series(wide, lambda term, k: _WIDE.divide(_WIDE.multiply(term, -wide * (k - 1)), k)))


@_of_arrays
def tanh(x: float) -> float:
    """Return the hyperbolic tangent.

    Parameters
    ----------
    x : float or numpy.ndarray
        A number, or an array of any shape.

    Returns
    -------
    float or numpy.ndarray
        A float64 for a number; an array of the shape of the argument for an array.

    Examples
    --------
    >>> tanh(0.5)
    0.46211715726000974
    """
    if abs(x) > 40.0:
        return math.copysign(1.0, x)
    grown = _expm1(2 * Decimal(x))
    return float(_WIDE.divide(grown, _WIDE.add(grown, 2)))


@_of_arrays
def sin(x: float) -> float:
    """Return the sine of an angle.

    Parameters
    ----------
    x : float or numpy.ndarray
        An angle in radians between -2**30 and 2**30, or an array of them.

    Returns
    -------
    float or numpy.ndarray
        A float64 for a number; an array of the shape of the argument for an array.

    Raises
    ------
    InvalidArgument
        The angle is beyond 2**30.

    Examples
    --------
    >>> sin(1.0)
    0.8414709848078965
    """
    return _turned(x, 0)


@_of_arrays
def cos(x: float) -> float:
    """Return the cosine of an angle.

    Parameters
    ----------
    x : float or numpy.ndarray
        An angle in radians between -2**30 and 2**30, or an array of them.

    Returns
    -------
    float or numpy.ndarray
        A float64 for a number; an array of the shape of the argument for an array.

    Raises
    ------
    InvalidArgument
        The angle is beyond 2**30.

    Examples
    --------
    >>> cos(1.0)
    0.5403023058681398
    """
    return _turned(x, 1)


def _expm1(x: Decimal) -> Decimal:
    if abs(x) >= _SMALL:
        return _WIDE.subtract(_WIDE.exp(x), 1)
    return _series(x, lambda term, k: _WIDE.divide(_WIDE.multiply(term, x), k))


def _series(first: Decimal, following: Callable[[Decimal, int], Decimal]) -> Decimal:
    """Sum a series of falling terms; `following` returns the k-th (from 2 on) from the one before."""
    total, term, k = first, first, 1
    while term and abs(term) > abs(total) * Decimal("1e-40"):
        k += 1
        term = following(term, k)
        total = _WIDE.add(total, term)
    return total


def _turned(x: float, quarters: int) -> float:
    """Return the sine of x + quarters * pi / 2."""
    if not abs(x) <= _LARGEST_ANGLE:
        raise InvalidArgument(f"the sine or cosine of {x!r}: an angle of up to 2**30 is expected")
    half_pi = _WIDE.divide(_PI, 2)
    n = int(_WIDE.divide(Decimal(x), half_pi).to_integral_value())
    r = _WIDE.subtract(Decimal(x), _WIDE.multiply(n, half_pi))
    square = _WIDE.multiply(r, r)
    quarter = n + quarters
    is_cosine = quarter % 2
    found = _series(
        Decimal(1) if is_cosine else r,
        lambda term, k: _WIDE.divide(
            _WIDE.multiply(term, -square), (2 * k - 3) * (2 * k - 2) if is_cosine else (2 * k - 2) * (2 * k - 1)
        ),
    )
    return float(-found if quarter % 4 >= 2 else found)


@overload
def float32(x: float) -> float: ...
@overload
def float32(x: Floats) -> Floats: ...
def float32(x: float | Floats) -> float | Floats:
    """Round x to float32, as kernels store it; in constants of a network in float64 return it unchanged.

    Parameters
    ----------
    x : float or numpy.ndarray
        A number, or an array of any shape.

    Returns
    -------
    float or numpy.ndarray
        The rounded value as a float64, so that arithmetic on it is not rounded again; an array for an array.

    Examples
    --------
    >>> float32(0.1)
    0.10000000149011612
    """
    if _is_wide.get():
        return x
    if isinstance(x, np.ndarray):
        return x.astype(np.float32).astype(np.float64)
    return float(struct.unpack("f", struct.pack("f", x))[0])


@_of_arrays
def sqrt(x: float) -> float:
    """Return the square root, which IEEE 754 rounds correctly everywhere.

    Parameters
    ----------
    x : float or numpy.ndarray
        A number of at least 0, or an array of them.

    Returns
    -------
    float or numpy.ndarray
        A float64 for a number; an array of the shape of the argument for an array.

    Raises
    ------
    ValueError
        x is below 0.

    Examples
    --------
    >>> sqrt(2.0)
    1.4142135623730951
    """
    return math.sqrt(x)


def normal() -> float:
    """Draw a standard normal number in the function of a neuron model.

    Each place of a call is one draw for each neuron and step, whether or not it is reached. The number of draws of a
    model is constant: calls in a `while`, or in a loop over other than a constant range or table, are refused.

    Returns
    -------
    float
        A float32 with mean 0 and variance 1, between -6.23 and 6.23.

    Raises
    ------
    InvalidArgument
        It was called outside the function of a model.

    Examples
    --------
    >>> from neuraxis.network import neuron_model
    >>> @neuron_model(states={"v_mv": -65.0, "i_pa": 0.0}, parameters={"sigma_mv": 0.5, "sigma_pa": 20.0})
    ... def noisy(v_mv, i_pa, sigma_mv, sigma_pa):
    ...     i_pa = 0.98 * i_pa + sigma_pa * normal()
    ...     v_mv = v_mv + 0.005 * (-65.0 - v_mv) + 0.001 * i_pa + sigma_mv * normal()
    ...     spike = v_mv > -50.0
    ...     return spike, -65.0 if spike else v_mv, i_pa
    >>> noisy
    noisy(sigma_mv=0.5, sigma_pa=20)
    """
    raise _outside("normal")


def random() -> float:
    """Draw a number that is uniform in [0, 1) in the function of a neuron model.

    As for `normal`, each place of a call is one draw for each neuron and step.

    Returns
    -------
    float
        A float32, a multiple of 2**-24.

    Raises
    ------
    InvalidArgument
        It was called outside the function of a model.

    Examples
    --------
    >>> from neuraxis.network import neuron_model
    >>> @neuron_model(states={"open": 0}, parameters={"p_open": 0.01, "p_close": 0.1})
    ... def channel(open, p_open, p_close):
    ...     open = (random() >= p_close) if open else (random() < p_open)
    ...     return False, open
    >>> channel
    channel(p_open=0.01, p_close=0.1)
    """
    raise _outside("random")


def _outside(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name}() was called outside the function of a neuron model, where a random number belongs to no neuron. Call "
        "it in the function; on the host, use a generator of NumPy."
    )


@contextmanager
def stored_as(precision: str) -> Iterator[None]:
    """Within this, `float32` rounds only if kernels store numbers with this precision, "float32" or "float64"."""
    before = _is_wide.set(precision == "float64")
    try:
        yield
    finally:
        _is_wide.reset(before)
