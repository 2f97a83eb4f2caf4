"""Correctly rounded exp, log, power and sqrt, which return the same bits on every machine.

Constants of neuron models (a decay factor for one step, say) are computed with these functions, once, on the host. The
`exp` of two C libraries can differ in the last bit, and one such bit changes the spikes of a network; `decimal` is
specified to be correctly rounded. Inside the function of a neuron model the same names stand for the float32 functions
of `neuraxis.engine.arithmetic`.
"""

from __future__ import annotations

import math
import struct
from decimal import Context, Decimal

from neuraxis.errors import InvalidArgument

__all__ = ["exp", "float32", "log", "power", "sqrt"]

# Twice the digits of a float64, so that only the final rounding to float64 matters.
_CONTEXT = Context(prec=36)


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


def float32(x: float) -> float:
    """Round x to float32, as kernels store it."""
    return float(struct.unpack("f", struct.pack("f", x))[0])


def sqrt(x: float) -> float:
    """Return the square root, which IEEE 754 rounds correctly everywhere."""
    return math.sqrt(x)
