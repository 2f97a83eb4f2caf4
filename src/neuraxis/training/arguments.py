"""What several parts of training ask of their arguments."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from neuraxis.errors import InvalidArgument, InvalidType

__all__ = ["whole_number"]


def whole_number(value: Any, what: str, least: int = 1) -> int:
    """`value` as an int; `what` names it, with who asks: "shard: batch_size"."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidType(f"{what}={value!r}: a whole number is expected")
    if int(value) < least:
        raise InvalidArgument(f"{what}={value} must be at least {least}")
    return int(value)
