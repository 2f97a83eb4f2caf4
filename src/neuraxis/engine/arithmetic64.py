"""The functions of `neuraxis.engine.arithmetic` in float64, for networks with `precision="float64"`.

They run on CPUs only. As there, each is a fixed sequence of additions, multiplications and divisions without branches
that depend on values, and has the same bits on every machine. Errors in units in the last place: below 2 for `exp`,
`log`, `log1p`, `sin` and `cos` (up to 2^20; beyond it their absolute error is below 2e-16), below 3 for `expm1`,
`exprel` and `tanh`. `power` has a relative error below 2^-52 (2 + |y ln x|); whole exponents up to 15 are products.
Random numbers are those of float32, so that both precisions draw the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from neuraxis.compiled.atomics import bits_to_float64, float64_to_bits
from neuraxis.engine import arithmetic
from neuraxis.engine.arithmetic import (
    entry,
    floor_divide,
    floor_divide_int,
    int_power,
    remainder,
    remainder_int,
    shift_left,
    shift_right,
    sqrt,
    to_int32,
    to_int64,
    within,
)

__all__ = [
    "cos",
    "drawn_normal",
    "drawn_random",
    "entry",
    "exp",
    "expm1",
    "exprel",
    "floor_divide",
    "floor_divide_int",
    "int_power",
    "log",
    "log1p",
    "power",
    "remainder",
    "remainder_int",
    "shift_left",
    "shift_right",
    "sin",
    "sqrt",
    "tanh",
    "to_int32",
    "to_int64",
    "within",
]

_d, _l, _u = np.float64, np.int64, np.uint64

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: the first has 32 bits, so that its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_ROUNDER = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to an integer
_LOWEST, _HIGHEST = -746.0, 710.0
_SMALLEST = 2.2250738585072014e-308
_TINY = 1e-300
_SQRT_HALF = 0.7071067811865476
_INFINITY, _NAN = np.inf, np.nan
_LARGEST_PRODUCT = 15.0

# e^r = 1 + (r + r^2 p) for |r| <= ln 2 / 2, and ln m = z q with z = (m - 1) / (m + 1), |z| < 0.1716.
_E = tuple(1.0 / math.factorial(k) for k in range(2, 15))
_E0, _E1, _E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12 = _E
_A0, _A1, _A2, _A3, _A4, _A5, _A6, _A7, _A8, _A9, _A10 = (2.0 / (2 * k + 1) for k in range(11))

# pi / 2 in three parts: the first two have 22 bits, so that their products with whole numbers up to 2^31 are exact.
_INVERSE_HALF_PI = 0.6366197723675814
_HALF_PI_0, _HALF_PI_1, _HALF_PI_2 = 1.570796012878418, 3.139164164167596e-07, 6.223372171896613e-14
_LARGEST_ANGLE = 2.0**30
_S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8 = ((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9))
_C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8 = ((-1) ** k / math.factorial(2 * k) for k in range(1, 9))

_drawn_random, _drawn_normal = arithmetic.drawn_random, arithmetic.drawn_normal
_inlined = njit(error_model="numpy", forceinline=True)


@_inlined
def _two_to(n: Any) -> Any:
    """Return 2^n for a whole float64 n from -1022 to 1023."""
    return bits_to_float64(_u(_l(n) + _l(1023)) << _u(52))


@_inlined
def _reduced(x: Any) -> Any:
    """Return (n, e^r - 1) with x = n ln 2 + r."""
    n = (x * _LOG2_E + _ROUNDER) - _ROUNDER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = (((((_E12 * r + _E11) * r + _E10) * r + _E9) * r + _E8) * r + _E7) * r + _E6
    p = (((((p * r + _E5) * r + _E4) * r + _E3) * r + _E2) * r + _E1) * r + _E0
    return n, r + (r * r) * p


@_inlined
def exp(x: Any) -> Any:
    """Return e^x: 0 below -745.2, infinity above 709.8."""
    n, q = _reduced(min(max(_LOWEST, x), _HIGHEST))
    first = np.floor(n * 0.5)  # 2^n as a product of two: n goes from -1077 to 1025
    found = ((1.0 + q) * _two_to(first)) * _two_to(n - first)
    return x if x != x else found


@_inlined
def log(x: Any) -> Any:
    """Return the natural logarithm: minus infinity for 0, NaN below."""
    denormal = x < _SMALLEST
    scaled = max(_SMALLEST, x * 18014398509481984.0 if denormal else x)
    bits = float64_to_bits(scaled)
    exponent = _l(bits >> _u(52)) - (_l(1076) if denormal else _l(1022))
    m = bits_to_float64((bits & _u(0x000FFFFFFFFFFFFF)) | _u(0x3FE0000000000000))  # in [0.5, 1)
    small = m < _SQRT_HALF
    e = _d(exponent - _l(1)) if small else _d(exponent)
    m = m + m if small else m
    z = (m - 1.0) / (m + 1.0)
    s = z * z
    q = ((((_A10 * s + _A9) * s + _A8) * s + _A7) * s + _A6) * s + _A5
    q = (((q * s + _A4) * s + _A3) * s + _A2) * s + _A1
    # The largest term, 2 z, is m - 1 less what the series adds: m - 1 is exact.
    f = m - 1.0
    found = e * _LN2_HIGH + ((f - z * (f - s * q)) + e * _LN2_LOW)
    found = x if x == _INFINITY else found
    found = -_INFINITY if x == 0.0 else found
    return found if x >= 0.0 else _NAN


@_inlined
def expm1(x: Any) -> Any:
    """Return e^x - 1, also where e^x is close to 1; infinity above 709.8."""
    n, q = _reduced(min(max(-60.0, x), _HIGHEST))
    n = min(n, 1024.0)
    half = _two_to(n - 1.0)
    found = (half * q + (half - 0.5)) * 2.0
    found = _INFINITY if x > 709.782712893384 else found
    return x if x != x or abs(x) < _TINY else found


@_inlined
def exprel(x: Any) -> Any:
    """Return (e^x - 1) / x, 1 at 0; infinity above 709.8."""
    small = abs(x) < _TINY
    found = expm1(x) / (1.0 if small else x)
    found = 1.0 if small else found
    return x if x == _INFINITY else found


@_inlined
def log1p(x: Any) -> Any:
    """Return log(1 + x), also where x is close to 0: minus infinity for -1, NaN below."""
    u = 1.0 + x
    lost = x - (u - 1.0)  # by the rounding of u
    found = log(u) + lost / u
    found = log(u) if u == 0.0 or x == _INFINITY else found
    return x if abs(x) < _TINY else found


@_inlined
def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent."""
    size = min(25.0, abs(x))  # tanh(25) rounds to 1; in this order NaN becomes a number
    t = expm1(size + size)
    found = np.copysign(t / (t + 2.0), x)
    return x if x != x or abs(x) < _TINY else found


@_inlined
def _turned(x: Any, quarters: Any) -> Any:
    """Return the sine of x + quarters pi / 2; NaN where |x| exceeds 2^30."""
    inside = abs(x) <= _LARGEST_ANGLE
    wide = x if inside else 0.0
    n = (wide * _INVERSE_HALF_PI + _ROUNDER) - _ROUNDER
    r = ((wide - n * _HALF_PI_0) - n * _HALF_PI_1) - n * _HALF_PI_2
    s = r * r
    sine = ((((((_S8 * s + _S7) * s + _S6) * s + _S5) * s + _S4) * s + _S3) * s + _S2) * s + _S1
    sine = r + (r * s) * sine
    cosine = ((((((_C8 * s + _C7) * s + _C6) * s + _C5) * s + _C4) * s + _C3) * s + _C2) * s + _C1
    cosine = 1.0 + s * cosine
    quarter = _l(n) + quarters
    found = cosine if quarter & _l(1) else sine
    found = -found if quarter & _l(2) else found
    return found if inside else _NAN


@_inlined
def sin(x: Any) -> Any:
    """Return the sine of an angle in radians; NaN where |x| exceeds 2^30."""
    return x if abs(x) < _TINY else _turned(x, _l(0))


@_inlined
def cos(x: Any) -> Any:
    """Return the cosine of an angle in radians; NaN where |x| exceeds 2^30."""
    return _turned(x, _l(1))


@_inlined
def power(x: Any, y: Any) -> Any:
    """Return x^y with the special values of NumPy (those of IEEE 754's pow)."""
    size = abs(x)
    whole_y = y == np.floor(y)
    odd_y = whole_y and abs(y) < 9007199254740992.0 and (_l(y) & _l(1)) == _l(1)
    found: Any = exp(y * log(size))
    times = abs(y)
    if whole_y and times <= _LARGEST_PRODUCT:
        k = _l(times)
        two = size * size
        four = two * two
        product = (size if k & _l(1) else 1.0) * (two if k & _l(2) else 1.0)
        product = product * (four if k & _l(4) else 1.0) * (four * four if k & _l(8) else 1.0)
        found = 1.0 / product if y < 0.0 else product
    found = -found if x < 0.0 and odd_y else found
    found = _NAN if x < 0.0 and not whole_y else found
    if size == 0.0 or size == _INFINITY:
        grows = (size == _INFINITY) == (y > 0.0)
        found = _INFINITY if grows else 0.0
        negative = odd_y and (float64_to_bits(x) >> _u(63)) == _u(1)
        found = -found if negative else found
    if abs(y) == _INFINITY:
        grows = (size > 1.0) == (y > 0.0)
        found = 1.0 if size == 1.0 else (_INFINITY if grows else 0.0)
    found = _NAN if x != x or y != y else found
    return 1.0 if x == 1.0 or y == 0.0 else found


@_inlined
def drawn_random(bits: Any) -> Any:
    """Return a uniform number in [0, 1) from 32 random bits (int32): a multiple of 2^-24, as in float32."""
    return _d(_drawn_random(bits))


@_inlined
def drawn_normal(bits: Any) -> Any:
    """Return a standard normal number from 32 random bits (int32), that of float32."""
    return _d(_drawn_normal(bits))
