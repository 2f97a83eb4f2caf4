"""exp, log, power and sqrt in float32 for kernels, written out in operations that every machine does alike.

Each is a few additions and multiplications in a fixed order (Numba contracts none of them into a fused one), with no
branch, so that a loop around it vectorises. Their error is about one unit in the last place: tests hold them against
float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import register_jitable

from neuraxis.comm.atomics import bits_to_float32, float32_to_bits

__all__ = ["exp", "log", "power", "sqrt"]

_f = np.float32
_i = np.int32
_u = np.uint32

# ln 2 in two parts: the first has few bits, so that its product with an exponent is exact.
_LN2_HIGH = _f(0.693359375)
_LN2_LOW = _f(-2.12194440e-4)
_INVERSE_LN2 = _f(1.44269504)
_LOWEST = _f(-87.0)
_HIGHEST = _f(88.0)
_HALF = _f(0.5)
_ONE = _f(1.0)
_E0, _E1, _E2 = _f(1.9875691500e-4), _f(1.3981999507e-3), _f(8.3334519073e-3)
_E3, _E4, _E5 = _f(4.1665795894e-2), _f(1.6666665459e-1), _f(5.0000001201e-1)
_ROUNDER = _f(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds to an integer
_SQRT_HALF = _f(0.707106781)
_L0, _L1, _L2 = _f(7.0376836292e-2), _f(-1.1514610310e-1), _f(1.1676998740e-1)
_L3, _L4, _L5 = _f(-1.2420140846e-1), _f(1.4249322787e-1), _f(-1.6668057665e-1)
_L6, _L7, _L8 = _f(2.0000714765e-1), _f(-2.4999993993e-1), _f(3.3333331174e-1)
_SMALLEST = _f(1.17549435e-38)


@njit
def exp(x: Any) -> Any:
    """e^x for float32; below -87 it stays at e^-87, above 88 at e^88."""
    x = min(max(x, _LOWEST), _HIGHEST)
    n = (x * _INVERSE_LN2 + _ROUNDER) - _ROUNDER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    p = (p * (r * r) + r) + _ONE
    return p * bits_to_float32(_u((_i(n) + _i(127)) << _i(23)))


@njit
def log(x: Any) -> Any:
    """The natural logarithm of a float32 above 0; anything smaller counts as the smallest normal number."""
    bits = float32_to_bits(max(x, _SMALLEST))
    exponent = _i(bits >> _u(23)) - _i(126)
    m = bits_to_float32((bits & _u(0x007FFFFF)) | _u(0x3F000000))  # in [0.5, 1)
    small = m < _SQRT_HALF
    e = _f(exponent - _i(1)) if small else _f(exponent)
    m = (m + m) - _ONE if small else m - _ONE
    z = m * m
    p = (((((((_L0 * m + _L1) * m + _L2) * m + _L3) * m + _L4) * m + _L5) * m + _L6) * m + _L7) * m + _L8
    p = (p * m) * z
    p = p + e * _LN2_LOW
    p = p - _HALF * z
    return (m + p) + e * _LN2_HIGH


@njit
def power(x: Any, y: Any) -> Any:
    """x^y for float32 x >= 0 (0 stays 0 for y > 0)."""
    return exp(y * log(x)) if x > _f(0.0) else _f(0.0)


@register_jitable
def sqrt(x: Any) -> Any:
    """The square root: correctly rounded by IEEE arithmetic."""
    return np.sqrt(x)
