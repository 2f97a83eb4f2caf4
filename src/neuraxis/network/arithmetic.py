"""exp, log, power and sqrt of the host, correctly rounded: the same bits from every C library.

Constants of a model (a decay factor for one step, say) are computed once with these and then travel as numbers. The C
library's `exp` may differ from another's in the last bit, and one such bit would give another network on another
machine; `decimal` is specified to be correctly rounded. A model's function that names `exp`, `log`, `power` or `sqrt`
gets the engine's float32 forms of them (see `neuraxis.engine.arithmetic`).
"""

from __future__ import annotations

import math
import struct
from decimal import Context, Decimal

from neuraxis.errors import InvalidArgument

__all__ = ["exp", "float32", "log", "power", "sqrt"]

# Twice as many digits as a float64 has, so that rounding to float64 is the only rounding that counts.
_CONTEXT = Context(prec=36)


def exp(x: float) -> float:
    """e to the power x."""
    if x < -745.0:
        return 0.0
    return float(_CONTEXT.exp(Decimal(x)))


def log(x: float) -> float:
    """The natural logarithm of x > 0."""
    if not x > 0:
        raise InvalidArgument(f"log({x!r}): a number above 0 is expected")
    return float(_CONTEXT.ln(Decimal(x)))


def power(x: float, y: float) -> float:
    """x > 0 to the power y."""
    return float(_CONTEXT.exp(_CONTEXT.multiply(_CONTEXT.ln(Decimal(x)), Decimal(y)))) if x else 0.0


def float32(x: float) -> float:
    """x rounded to float32, as kernels hold it."""
    return float(struct.unpack("f", struct.pack("f", x))[0])


def sqrt(x: float) -> float:
    """The square root; IEEE arithmetic rounds it correctly everywhere."""
    return math.sqrt(x)
