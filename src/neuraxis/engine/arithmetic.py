"""Functions and operators of neuron models with the same bits on every machine.

Each is a few additions, multiplications and divisions in a fixed order, which Numba does not contract into fused ones.
`exp`, `log` and the functions made of them are float32 without branches, so that loops around them vectorise; `power`,
`sin` and `cos` compute in float64 and round once. The only function of the C library is `fmod`, whose result is exact
by definition. Infinities, NaN, signed zeros and denormal numbers behave as in NumPy. docs/reference/model-language.md
states the errors; tests compare with float64.

engine/cuda/kernels/portable.cuh has the same operations in C++ for GPUs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numba.extending import register_jitable

from neuraxis.compiled.atomics import bits_to_float32, float32_to_bits

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
    "power_of_positive",
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

_f = np.float32
_d = np.float64
_i = np.int32
_l = np.int64
_u = np.uint32

# ln 2 in two parts: the first has few bits, so that its product with an exponent is exact.
_LN2_HIGH = _f(0.693359375)
_LN2_LOW = _f(-2.12194440e-4)
_INVERSE_LN2 = _f(1.44269504)
_LOWEST = _f(-104.0)  # below it, e^x rounds to 0
_HIGHEST = _f(89.0)  # above it, to infinity
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
_TINY = _f(1e-30)
_TWO = _f(2.0)
_TWO_TO_23 = _f(8388608.0)
_INFINITY = _f(np.inf)
_NAN = _f(np.nan)

# For `power`, in float64. ln m = 2 atanh z with z = (m - 1) / (m + 1), |z| < 0.1716: 2 / (2 k + 1); e^u for
# |u| <= ln 2 / 2: 1 / k!. The first terms left out are below 2^-56 of the sum.
_ATANH = tuple(2.0 / (2 * k + 1) for k in range(11))
_TAYLOR = tuple(1.0 / math.factorial(k) for k in range(14))
_LOG2_E = 1.4426950408889634
_LN2 = 0.6931471805599453
_ROUNDER_64 = 6755399441055744.0  # 1.5 * 2^52
_A0, _A1, _A2, _A3, _A4, _A5, _A6, _A7, _A8, _A9, _A10 = _ATANH
_T0, _T1, _T2, _T3, _T4, _T5, _T6, _T7, _T8, _T9, _T10, _T11, _T12, _T13 = _TAYLOR
_LOWEST_LOG2 = -160.0  # 2^-160 rounds to 0 in float32
_HIGHEST_LOG2 = 130.0  # 2^130 to infinity
_LARGEST_PRODUCT = _f(15.0)

# For `sin` and `cos`, in float64. pi / 2 in three parts: the first two have 22 bits, so that their products with whole
# numbers up to 2^31 are exact. Taylor series for |r| <= pi / 4: the first terms left out are below 2^-40 of the sum.
_INVERSE_HALF_PI = 0.6366197723675814
_HALF_PI_0, _HALF_PI_1, _HALF_PI_2 = 1.570796012878418, 3.139164164167596e-07, 6.223372171896613e-14
_S1, _S2, _S3, _S4, _S5, _S6 = ((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 7))
_C1, _C2, _C3, _C4, _C5, _C6 = ((-1) ** k / math.factorial(2 * k) for k in range(1, 7))
_LARGEST_ANGLE = _f(2.0**30)

# For `drawn_normal`: a ratio of polynomials of w = -ln(4 p (1 - p)) that is within 1e-7 of quantile / (p - 1/2).
_N0, _N1, _N2 = _f(2.5066285023), _f(0.89872801979), _f(0.17777212262)
_N3, _N4, _N5 = _f(2.3426135741e-2), _f(1.9626535200e-3), _f(5.9574590112e-5)
_D1, _D2, _D3 = _f(9.6743506313e-2), _f(3.2552369140e-2), _f(2.2107349692e-3)
_D4, _D5 = _f(1.7014250202e-4), _f(1.0380320527e-6)
_FOUR = _f(4.0)
_TWO_TO_MINUS_24 = _f(2.0**-24)
_TWO_TO_MINUS_32 = _f(2.0**-32)

_LOWEST_INT32 = _i(-(2**31))
_LOWEST_INT64 = _l(-(2**63))

# A call in the loop over neurons prevents its vectorisation, and LLVM alone inlines only the first few.
_inlined = njit(error_model="numpy", forceinline=True)


@_inlined
def exp(x: Any) -> Any:
    """Return e^x for float32; 0 from -103.98 on downwards, infinity above 88.72."""
    clipped = min(max(_LOWEST, x), _HIGHEST)  # in this order NaN becomes a number, which can be converted
    n = (clipped * _INVERSE_LN2 + _ROUNDER) - _ROUNDER
    r = (clipped - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    p = (p * (r * r) + r) + _ONE
    # 2^n as a product of two: n goes from -150 to 128, and only the last product can round.
    first = _i(n) >> _i(1)
    second = _i(n) - first
    low = bits_to_float32(_u((first + _i(127)) << _i(23)))
    high = bits_to_float32(_u((second + _i(127)) << _i(23)))
    return x if x != x else (p * low) * high


@_inlined
def _log_of_normal(x: Any, bias: Any) -> Any:
    """Return the logarithm of 2^(126 - bias) x for a positive, finite float32 that is not denormal."""
    bits = float32_to_bits(x)
    exponent = _i(bits >> _u(23)) - bias
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


@_inlined
def log(x: Any) -> Any:
    """Return the natural logarithm of a float32: minus infinity for 0, NaN below."""
    denormal = x < _SMALLEST
    scaled = x * _TWO_TO_23 if denormal else x
    found = _log_of_normal(max(_SMALLEST, scaled), _i(149) if denormal else _i(126))
    found = x if x == _INFINITY else found
    found = -_INFINITY if x == _f(0.0) else found
    return found if x >= _f(0.0) else _NAN


@_inlined
def expm1(x: Any) -> Any:
    """Return e^x - 1 for float32, also where e^x is close to 1; infinity above 88.72."""
    clipped = min(max(_f(-30.0), x), _HIGHEST)
    n = (clipped * _INVERSE_LN2 + _ROUNDER) - _ROUNDER
    r = (clipped - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    q = p * (r * r) + r
    # 2^n (q + 1) - 1, with half of 2^n: n goes up to 128.
    half = bits_to_float32(_u((_i(n) + _i(126)) << _i(23)))
    found = (half * q + (half - _HALF)) * _TWO
    return x if x != x or abs(x) < _TINY else found


@_inlined
def exprel(x: Any) -> Any:
    """Return (e^x - 1) / x for float32, 1 at 0; infinity above 88.72."""
    small = abs(x) < _TINY
    found = expm1(x) / (_ONE if small else x)
    found = _ONE if small else found
    return x if x == _INFINITY else found


@_inlined
def log1p(x: Any) -> Any:
    """Return log(1 + x) for float32, also where x is close to 0: minus infinity for -1, NaN below."""
    u = _ONE + x
    lost = x - (u - _ONE)  # by the rounding of u
    found = log(u) + lost / u
    found = log(u) if u == _f(0.0) or x == _INFINITY else found
    return x if abs(x) < _TINY else found


@_inlined
def tanh(x: Any) -> Any:
    """Return the hyperbolic tangent of a float32."""
    size = min(_f(10.0), abs(x))  # tanh(10) rounds to 1; in this order NaN becomes a number
    t = expm1(size + size)
    found = np.copysign(t / (t + _TWO), x)
    return x if x != x or abs(x) < _TINY else found


@_inlined
def _turned(x: Any, quarters: Any) -> Any:
    """Return the sine of x + quarters pi / 2 for float32; NaN where |x| exceeds 2^30."""
    inside = abs(x) <= _LARGEST_ANGLE
    wide = _d(x if inside else _f(0.0))
    n = (wide * _INVERSE_HALF_PI + _ROUNDER_64) - _ROUNDER_64
    r = ((wide - n * _HALF_PI_0) - n * _HALF_PI_1) - n * _HALF_PI_2
    s = r * r
    sine = r + (r * s) * (((((_S6 * s + _S5) * s + _S4) * s + _S3) * s + _S2) * s + _S1)
    cosine = 1.0 + s * (((((_C6 * s + _C5) * s + _C4) * s + _C3) * s + _C2) * s + _C1)
    quarter = _i(n) + quarters
    found = cosine if quarter & _i(1) else sine
    found = -found if quarter & _i(2) else found
    return _f(found) if inside else _NAN


@_inlined
def sin(x: Any) -> Any:
    """Return the sine of a float32 in radians; NaN where |x| exceeds 2^30, where neighbours are 64 apart."""
    return x if abs(x) < _TINY else _turned(x, _i(0))


@_inlined
def cos(x: Any) -> Any:
    """Return the cosine of a float32 in radians; NaN where |x| exceeds 2^30, where neighbours are 64 apart."""
    return _turned(x, _i(1))


@_inlined
def power_of_positive(x: Any, y: Any) -> Any:
    """Return x^y for float32 x >= 0 and y > 0, computed in float32: faster and less exact than `power`."""
    return exp(y * log(x)) if x > _f(0.0) else _f(0.0)


@_inlined
def power(x: Any, y: Any) -> Any:
    """Return x^y for float32, with the special values of NumPy (those of IEEE 754's pow).

    The logarithm and the exponential are computed in float64 with an error below 2^-40, and integer exponents up to
    15 as products in float64, so only one rounding matters: the error is below 0.501 units in the last place, and a
    result that float32 can represent is exact.
    """
    size = abs(x)
    whole_y = y == np.floor(y)
    odd_y = whole_y and abs(y) < _f(16777216.0) and (_l(y) & _l(1)) == _l(1)
    # log2 of the size
    denormal = size < _SMALLEST
    bits = float32_to_bits(size * _TWO_TO_23 if denormal else size)
    exponent = _i(bits >> _u(23)) - (_i(149) if denormal else _i(126))
    m = _d(bits_to_float32((bits & _u(0x007FFFFF)) | _u(0x3F000000)))
    small = m < 0.7071067811865476
    e = _d(exponent - _i(1)) if small else _d(exponent)
    m = m + m if small else m
    z = (m - 1.0) / (m + 1.0)
    s = z * z
    p = ((((_A10 * s + _A9) * s + _A8) * s + _A7) * s + _A6) * s + _A5
    p = ((((p * s + _A4) * s + _A3) * s + _A2) * s + _A1) * s + _A0
    log2 = e + (p * z) * _LOG2_E
    # 2 to the power of y times it
    t = min(max(_LOWEST_LOG2, _d(y) * log2), _HIGHEST_LOG2)
    n = (t + _ROUNDER_64) - _ROUNDER_64
    u = (t - n) * _LN2
    q = (((((_T13 * u + _T12) * u + _T11) * u + _T10) * u + _T9) * u + _T8) * u + _T7
    q = ((((((q * u + _T6) * u + _T5) * u + _T4) * u + _T3) * u + _T2) * u + _T1) * u + _T0
    first = _i(n) >> _i(1)
    second = _i(n) - first
    low = _d(bits_to_float32(_u((first + _i(127)) << _i(23))))
    high = _d(bits_to_float32(_u((second + _i(127)) << _i(23))))
    found: Any = (q * low) * high
    # Small integer exponents as products, which round results halfway between two float32 correctly.
    times = abs(y)
    if whole_y and times <= _LARGEST_PRODUCT:
        k = _i(times)
        one = _d(size)
        two = one * one
        four = two * two
        product = (one if k & _i(1) else 1.0) * (two if k & _i(2) else 1.0)
        product = product * (four if k & _i(4) else 1.0) * (four * four if k & _i(8) else 1.0)
        found = 1.0 / product if y < _f(0.0) else product
    result = _f(found)
    result = -result if x < _f(0.0) and odd_y else result
    result = _NAN if x < _f(0.0) and not whole_y else result
    if size == _f(0.0) or size == _INFINITY:
        grows = (size == _INFINITY) == (y > _f(0.0))
        result = _INFINITY if grows else _f(0.0)
        negative = odd_y and (float32_to_bits(x) >> _u(31)) == _u(1)
        result = -result if negative else result
    if abs(y) == _INFINITY:
        grows = (size > _ONE) == (y > _f(0.0))
        result = _ONE if size == _ONE else (_INFINITY if grows else _f(0.0))
    result = _NAN if x != x or y != y else result
    return _ONE if x == _ONE or y == _f(0.0) else result


@_inlined
def drawn_random(bits: Any) -> Any:
    """Return a uniform float32 in [0, 1) from 32 random bits (int32): a multiple of 2^-24."""
    return _f(_i(_u(bits) >> _u(8))) * _TWO_TO_MINUS_24


@_inlined
def drawn_normal(bits: Any) -> Any:
    """Return a standard normal float32 from 32 random bits (int32): their quantile, with an error below 5e-7 |z|.

    The first bit is the sign. The others give one of 2^30 equal cells of the probability of a half, whose middles p are
    odd multiples of 2^-32. The distance q from 1/2 and p itself have all bits of float32, so that the relative error is
    the same in the centre and in the tails; |z| is between 5.8e-10 and 6.23.
    """
    v = (bits & _i(0x7FFFFFFF)) | _i(1)
    p = _f(_i(v)) * _TWO_TO_MINUS_32
    q = _f(_i(_l(0x80000000) - v)) * _TWO_TO_MINUS_32
    w = -_log_of_normal((p * _FOUR) * (_HALF + q), _i(126))
    above = ((((_N5 * w + _N4) * w + _N3) * w + _N2) * w + _N1) * w + _N0
    below = ((((_D5 * w + _D4) * w + _D3) * w + _D2) * w + _D1) * w + _ONE
    z = q * (above / below)
    return bits_to_float32(float32_to_bits(z) | (_u(bits) & _u(0x80000000)))


@register_jitable
def sqrt(x: Any) -> Any:
    """Return the square root: correctly rounded by IEEE arithmetic, NaN below 0."""
    return np.sqrt(x)


@_inlined
def floor_divide(a: Any, b: Any) -> Any:
    """Return a // b of two float32 or two float64 as NumPy does, from the exact remainder."""
    rest = np.fmod(a, b)
    quotient = (a - rest) / b
    if rest != 0 and (b < 0) != (rest < 0):
        quotient -= _ONE
    whole = np.floor(quotient)
    if quotient - whole > _HALF:
        whole += _ONE
    zero = np.copysign(_f(0.0), a / b)
    found = whole if quotient != 0 else zero
    return a / b if b == 0 else found


@_inlined
def remainder(a: Any, b: Any) -> Any:
    """Return a % b of two float32 or two float64 with the sign of b, as NumPy does."""
    rest = np.fmod(a, b)
    if b == 0:
        return rest
    if rest == 0:
        return np.copysign(_f(0.0), b)
    return rest + b if (b < 0) != (rest < 0) else rest


@_inlined
def floor_divide_int(a: Any, b: Any) -> Any:
    """Return a // b of two int64; 0 for b = 0, as in NumPy."""
    if b == 0:
        return _l(0)
    if b == -1:
        return _l(0) - a  # the lowest number has no negative and stays
    return _l(a // b)


@_inlined
def remainder_int(a: Any, b: Any) -> Any:
    """Return a % b of two int64; 0 for b = 0, as in NumPy."""
    if b == 0 or b == -1:
        return _l(0)
    return _l(a % b)


@_inlined
def int_power(a: Any, n: Any) -> Any:
    """Return a^n of an int64 for n >= 0; it wraps around, as in NumPy."""
    found, factor = _l(1), _l(a)
    while n > 0:
        if n & 1:
            found = found * factor
        factor = factor * factor
        n >>= 1
    return found


@_inlined
def shift_left(a: Any, n: Any) -> Any:
    """Return a << n of two int64; 0 where n is not within 0 to 63, as in NumPy."""
    return a << n if 0 <= n < 64 else _l(0)


@_inlined
def shift_right(a: Any, n: Any) -> Any:
    """Return a >> n of two int64; all sign where n is not within 0 to 63, as in NumPy."""
    return a >> (n if 0 <= n < 64 else _l(63))


@_inlined
def within(i: Any, n: Any) -> Any:
    """Return an index of n entries: that of the first or last one where i (int64) is beyond."""
    return max(_l(0), min(i, _l(n) - _l(1)))


@_inlined
def entry(table: Any, i: Any) -> Any:
    """Return an entry of a table (an array) at an int64 index within its bounds."""
    return table[np.uint64(i)]


@_inlined
def to_int32(x: Any) -> Any:
    """Truncate a float to int32; the lowest int32 if it is out of range or NaN."""
    return _i(x) if x > -2147483649.0 and x < 2147483648.0 else _LOWEST_INT32


@_inlined
def to_int64(x: Any) -> Any:
    """Truncate a float to int64; the lowest int64 if it is out of range or NaN."""
    return _l(x) if x >= -9223372036854775808.0 and x < 9223372036854775808.0 else _LOWEST_INT64
