"""A user's arguments, checked: each function returns the value in its one stored form or raises with its name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arrays import Floats, Integers, read_only

__all__ = [
    "check_ids",
    "flag",
    "float_array",
    "id_array",
    "is_array",
    "label",
    "near",
    "not_negative",
    "number",
    "one_of",
    "positive",
    "settle",
    "whole",
]


def number(value: object, name: str) -> float:
    """A finite number as a float."""
    value = _scalar(value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidType(f"{name}={value!r}: a number is expected, not {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise InvalidArgument(f"{name}={value!r}: a finite number is expected")
    return result


def positive(value: object, name: str) -> float:
    """A finite number above zero."""
    result = number(value, name)
    if result <= 0:
        raise InvalidArgument(f"{name}={value!r}: must be above 0")
    return result


def not_negative(value: object, name: str) -> float:
    """A finite number, zero or more."""
    result = number(value, name)
    if result < 0:
        raise InvalidArgument(f"{name}={value!r}: must be 0 or more")
    return result


def whole(value: object, name: str, lowest: int, highest: int | None = None) -> int:
    """A whole number between two bounds; a bool is none, and neither is a float without fraction."""
    value = _scalar(value)
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise InvalidType(f"{name}={value!r}: a whole number is expected, not {type(value).__name__}")
    result = int(value)
    if result < lowest:
        raise InvalidArgument(f"{name}={result}: must be {lowest} or more")
    if highest is not None and result > highest:
        raise InvalidArgument(f"{name}={result}: must be {highest} or less")
    return result


def flag(value: object, name: str) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidType(f"{name}={value!r}: True or False is expected, not {type(value).__name__}")
    return bool(value)


def label(value: object, name: str) -> str:
    """A name: text that is not empty."""
    if not isinstance(value, str):
        raise InvalidType(f"{name}={value!r}: text is expected, not {type(value).__name__}")
    if not value.strip():
        raise InvalidArgument(f"{name}={value!r}: must not be empty")
    return value


def one_of(value: object, name: str, choices: Iterable[str]) -> str:
    """One of several words."""
    allowed = list(choices)
    if not isinstance(value, str):
        raise InvalidType(f"{name}={value!r}: text is expected, not {type(value).__name__}")
    if value not in allowed:
        raise InvalidArgument(f"{name}={value!r}: {near(value, allowed)}")
    return value


def near(value: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: what was probably meant, and what there is."""
    names = list(known)
    if not names:
        return "there is none yet"
    close = difflib.get_close_matches(value, names, n=3)
    shown = ", ".join(repr(name) for name in names[:20]) + (", ..." if len(names) > 20 else "")
    meant = f"did you mean {' or '.join(repr(name) for name in close)}? " if close else ""
    return f"{meant}there is {shown}"


def is_array(value: object) -> bool:
    """Whether a value that may be a number or an array is meant as an array."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, list | tuple | range) or (hasattr(value, "__array__") and not np.isscalar(value))


def float_array(value: Any, name: str) -> Floats:
    """Finite numbers in one dimension, as a read-only copy in float64."""
    array = _array(value, name)
    if array.size and array.dtype.kind not in "iuf":
        raise InvalidType(f"{name}: numbers are expected, not {array.dtype}")
    result = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(result))
    if bad.size:
        raise InvalidArgument(f"{name}[{bad[0]}]={result[bad[0]]}: finite numbers are expected")
    return read_only(result)


def id_array(value: Any, name: str, n: int | None = None) -> Integers:
    """Ids of neurons within a population (of `n` neurons, if known), as a read-only copy in int64."""
    array = _array(value, name)
    if array.size and array.dtype.kind not in "iu":
        raise InvalidType(f"{name}: whole numbers are expected, not {array.dtype}")
    result = array.astype(np.int64)
    check_ids(result, name, n)
    return read_only(result)


def check_ids(ids: Integers, name: str, n: int | None) -> None:
    """Raise if an id is negative or not below `n`."""
    bad = np.flatnonzero((ids < 0) | (ids >= n) if n is not None else ids < 0)
    if bad.size:
        limit = "0 or more" if n is None else f"from 0 to {n - 1}"
        raise InvalidArgument(f"{name}[{bad[0]}]={ids[bad[0]]}: an id within the population must be {limit}")


def settle(instance: object, **fields: object) -> None:
    """Store checked values in the fields of a frozen dataclass that is being made."""
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


def _scalar(value: object) -> object:
    """The number in an array without dimensions; anything else as it is."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _array(value: Any, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    if isinstance(value, str | bytes):
        raise InvalidType(f"{name}={value!r}: an array is expected, not {type(value).__name__}")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidType(f"{name}: an array in one dimension is expected: {error}") from error
    if array.dtype.kind == "O":
        raise InvalidType(f"{name}: an array of numbers is expected, not {type(value).__name__}")
    if array.ndim != 1:
        raise InvalidArgument(f"{name} has shape {array.shape}: an array in one dimension is expected")
    return array
