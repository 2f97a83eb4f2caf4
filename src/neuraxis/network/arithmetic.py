"""Correctly rounded mathematical functions, which return the same bits on every machine.

Constants of neuron models (a decay factor for one step, say) are computed with these functions, once, on the host. The
`exp` of two C libraries can differ in the last bit, and one such bit changes the spikes of a network; these functions
compute with twice the digits of a float64 in `decimal`, which is specified exactly, and round once. Inside the function
of a neuron model the same names stand for the float32 functions of `neuraxis.engine.arithmetic`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Context, Decimal

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

# Twice the digits of a float64, so that only the final rounding to float64 matters.
_CONTEXT = Context(prec=36)
_WIDE = Context(prec=60)  # for sums whose first digits cancel
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863")
_SMALL = Decimal("1e-3")  # below it, series instead of differences
_LARGEST_ANGLE = 2.0**30


def exp(x: float) -> float:
    """Return e**x.

    >>> exp(-0.1)
    0.9048374180359595
    """
    if x < -745.0:
        return 0.0
    return float(_CONTEXT.exp(Decimal(x)))


def log(x: float) -> float:
    """Return the natural logarithm of x > 0."""
    if not x > 0:
        raise InvalidArgument(f"log({x!r}): a number above 0 is expected")
    return float(_CONTEXT.ln(Decimal(x)))


def power(x: float, y: float) -> float:
    """Return x**y; y must be an integer if x < 0, and not negative if x is 0."""
    if y == 0 or x == 1:
        return 1.0
    if x < 0 and float(y).is_integer():
        return power(-x, y) if y % 2 == 0 else -power(-x, y)
    if x == 0 and y > 0:
        return 0.0
    if not x > 0:
        raise InvalidArgument(f"power({x!r}, {y!r}): has no finite value")
    return float(_CONTEXT.exp(_CONTEXT.multiply(_CONTEXT.ln(Decimal(x)), Decimal(y))))


def expm1(x: float) -> float:
    """Return e**x - 1, also where e**x is close to 1.

    >>> expm1(1e-20)
    1e-20
    """
    if x < -745.0:
        return -1.0
    return float(_expm1(Decimal(x)))


def exprel(x: float) -> float:
    """Return (e**x - 1) / x, and 1 for x = 0.

    >>> exprel(0.0)
    1.0
    """
    return 1.0 if x == 0 else float(_WIDE.divide(_expm1(Decimal(x)), Decimal(x)))


def log1p(x: float) -> float:
    """Return log(1 + x) for x > -1, also where x is close to 0.

    >>> log1p(1e-20)
    1e-20
    """
    if not x > -1:
        raise InvalidArgument(f"log1p({x!r}): a number above -1 is expected")
    wide = Decimal(x)
    if abs(wide) >= _SMALL:
        return float(_WIDE.ln(_WIDE.add(1, wide)))
    return float(_series(wide, lambda term, k: _WIDE.divide(_WIDE.multiply(term, -wide * (k - 1)), k)))


def tanh(x: float) -> float:
    """Return the hyperbolic tangent.

    >>> tanh(0.5)
    0.46211715726000974
    """
    if abs(x) > 40.0:
        return math.copysign(1.0, x)
    grown = _expm1(2 * Decimal(x))
    return float(_WIDE.divide(grown, _WIDE.add(grown, 2)))


def sin(x: float) -> float:
    """Return the sine of an angle in radians, up to 2**30.

    >>> sin(1.0)
    0.8414709848078965
    """
    return _turned(x, 0)


def cos(x: float) -> float:
    """Return the cosine of an angle in radians, up to 2**30.

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


def float32(x: float) -> float:
    """Round x to float32, as kernels store it."""
    return float(struct.unpack("f", struct.pack("f", x))[0])


def sqrt(x: float) -> float:
    """Return the square root, which IEEE 754 rounds correctly everywhere."""
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
    ::

        @neuron_model(states={"v_mv": -65.0, "i_pa": 0.0}, parameters={"sigma_mv": 0.5, "sigma_pa": 20.0})
        def noisy(v_mv, i_pa, sigma_mv, sigma_pa):
            i_pa = 0.98 * i_pa + sigma_pa * normal()
            v_mv = v_mv + 0.005 * (-65.0 - v_mv) + 0.001 * i_pa + sigma_mv * normal()
            spike = v_mv > -50.0
            return spike, -65.0 if spike else v_mv, i_pa
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
    ::

        @neuron_model(states={"open": 0}, parameters={"p_open": 0.01, "p_close": 0.1})
        def channel(open, p_open, p_close):
            open = (random() >= p_close) if open else (random() < p_open)
            return False, open
    """
    raise _outside("random")


def _outside(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"{name}() was called outside the function of a neuron model, where a random number belongs to no neuron. Call "
        "it in the function; on the host, use a generator of NumPy."
    )
