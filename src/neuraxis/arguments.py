"""Checks of arguments that users pass, and the building blocks of immutable descriptions.

Every check takes the value and the name of the argument, and returns the value in the form in which it is stored
(`number` a float, `float_array` a read-only float64 array) or raises `InvalidType` or `InvalidArgument` with that name.
NumPy scalars and arrays without dimensions count as numbers; a bool does not.

Networks and brains are described by frozen dataclasses. A simulation reads a description once and would ignore later
changes, so changing one is an error: arrays are read-only, dicts and lists are frozen.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.errors import InvalidArgument, InvalidType, RoundingWarning

__all__ = [
    "Floats",
    "FrozenDict",
    "FrozenList",
    "HoldsArrays",
    "Integers",
    "ShortRepr",
    "check_ids",
    "flag",
    "float_array",
    "frozen",
    "id_array",
    "is_array",
    "is_number",
    "is_whole",
    "label",
    "near",
    "not_negative",
    "number",
    "one_of",
    "path_of",
    "plain",
    "positive",
    "read_only",
    "set_fields",
    "short_repr",
    "warn_user",
    "whole",
]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Array = TypeVar("Array", bound="np.ndarray[Any, Any]")
Key = TypeVar("Key")
Item = TypeVar("Item")


def plain(value: object) -> object:
    """Convert a NumPy scalar or an array without dimensions to a Python number; return anything else unchanged.

    >>> plain(np.float32(0.5)), plain(np.array(3)), plain("3")
    (0.5, 3, '3')
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    return float(value) if isinstance(value, np.floating) else value


def is_number(value: object) -> TypeGuard[float]:
    """Return True for an int or a float, NumPy scalars included."""
    value = plain(value)
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for an int, NumPy scalars included; 2.0 is not one."""
    value = plain(value)
    return isinstance(value, int) and not isinstance(value, bool)


def number(value: object, name: str) -> float:
    """Return a finite number as a float."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidType(f"{name}={value!r}: a number is expected, not {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise InvalidArgument(f"{name}={value!r}: a finite number is expected")
    return result


def positive(value: object, name: str) -> float:
    """Return a finite number above 0."""
    result = number(value, name)
    if result <= 0:
        raise InvalidArgument(f"{name}={value!r}: must be above 0")
    return result


def not_negative(value: object, name: str) -> float:
    """Return a finite number that is 0 or more."""
    result = number(value, name)
    if result < 0:
        raise InvalidArgument(f"{name}={value!r}: must be 0 or more")
    return result


def whole(value: object, name: str, lowest: int, highest: int | None = None) -> int:
    """Return an int from `lowest` to `highest` inclusive; 2.0 is not accepted."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidType(f"{name}={value!r}: a whole number is expected, not {type(value).__name__}")
    if value < lowest:
        raise InvalidArgument(f"{name}={value}: must be {lowest} or more")
    if highest is not None and value > highest:
        raise InvalidArgument(f"{name}={value}: must be {highest} or less")
    return value


def flag(value: object, name: str) -> bool:
    """Return a bool."""
    value = plain(value)
    if not isinstance(value, bool):
        raise InvalidType(f"{name}={value!r}: True or False is expected, not {type(value).__name__}")
    return value


def label(value: object, name: str) -> str:
    """Return a name: a string that is not blank."""
    if not isinstance(value, str):
        raise InvalidType(f"{name}={value!r}: text is expected, not {type(value).__name__}")
    if not value.strip():
        raise InvalidArgument(f"{name}={value!r}: must not be empty")
    return value


def path_of(value: object, name: str) -> Path:
    """Return the path that is given as text or as a Path."""
    if not isinstance(value, str | Path):
        raise InvalidType(f"{name}={value!r}: the path of a file or folder is expected, not {type(value).__name__}")
    return Path(value)


def one_of(value: object, name: str, choices: Iterable[str]) -> str:
    """Return a string that is one of `choices`."""
    allowed = list(choices)
    if not isinstance(value, str):
        raise InvalidType(f"{name}={value!r}: text is expected, not {type(value).__name__}")
    if value not in allowed:
        raise InvalidArgument(f"{name}={value!r}: {near(value, allowed)}")
    return value


def near(value: str, known: Iterable[str]) -> str:
    """End an error message about an unknown name: the closest known names, then all of them."""
    names = list(known)
    if not names:
        return "there is none yet"
    close = difflib.get_close_matches(value, names, n=3)
    shown = ", ".join(repr(name) for name in names[:20]) + (", ..." if len(names) > 20 else "")
    meant = f"did you mean {' or '.join(repr(name) for name in close)}? " if close else ""
    return f"{meant}there is {shown}"


def is_array(value: object) -> bool:
    """Return True if a value that may be a number or an array is an array, list, tuple or range."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, list | tuple | range) or (hasattr(value, "__array__") and not np.isscalar(value))


def float_array(value: Any, name: str) -> Floats:
    """Return finite numbers as a read-only float64 copy with one dimension."""
    array = _array(value, name)
    if array.size and array.dtype.kind not in "iuf":
        raise InvalidType(f"{name}: numbers are expected, not {array.dtype}")
    result = array.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(result))
    if bad.size:
        raise InvalidArgument(f"{name}[{bad[0]}]={result[bad[0]]}: finite numbers are expected")
    return read_only(result)


def id_array(value: Any, name: str, n: int | None = None) -> Integers:
    """Return neuron ids within a population (of `n` neurons, if given) as a read-only int64 copy with one dimension."""
    array = _array(value, name)
    if array.size and array.dtype.kind not in "iu":
        raise InvalidType(f"{name}: whole numbers are expected, not {array.dtype}")
    result = array.astype(np.int64)
    check_ids(result, name, n)
    return read_only(result)


def check_ids(ids: Integers, name: str, n: int | None) -> None:
    """Raise if an id is negative, or not below `n` where `n` is given."""
    bad = np.flatnonzero((ids < 0) | (ids >= n) if n is not None else ids < 0)
    if bad.size:
        limit = "0 or more" if n is None else f"from 0 to {n - 1}"
        raise InvalidArgument(f"{name}[{bad[0]}]={ids[bad[0]]}: an id within the population must be {limit}")


def warn_user(message: str) -> None:
    """Issue a `RoundingWarning` that points at the caller's line outside of neuraxis."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "neuraxis":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, RoundingWarning, stacklevel=level)


# --- Immutable descriptions ---


def set_fields(instance: object, **fields: object) -> None:
    """Set fields of a frozen dataclass; for its `__post_init__`, which replaces arguments by their checked form."""
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


def read_only(array: Array) -> Array:
    """Make an array read-only, in place, and return it."""
    array.setflags(write=False)
    return array


def frozen(value: Any) -> Any:
    """Return an immutable deep copy of dicts and lists; anything else is returned unchanged."""
    if type(value) is dict:
        return FrozenDict({key: frozen(inner) for key, inner in value.items()})
    if type(value) is list:
        return FrozenList([frozen(inner) for inner in value])
    return value


class FrozenDict(dict[Key, Item]):
    """An immutable dict."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InvalidType("a description never changes. Copy this with dict(...) and change the copy.")

    __setitem__ = __delitem__ = update = setdefault = pop = popitem = clear = __ior__ = _refuse


class FrozenList(list[Item]):
    """An immutable list."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InvalidType("a description never changes. Copy this with list(...) and change the copy.")

    __setitem__ = __delitem__ = append = extend = insert = pop = remove = clear = _refuse
    sort = reverse = __iadd__ = __imul__ = _refuse


class HoldsArrays:
    """Base of frozen dataclasses with array fields (declared with `eq=False`).

    Provides equality by value and a hash, which a dataclass cannot generate for array fields, and keeps the arrays
    read-only across pickling and copying.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(mine, theirs) for mine, theirs in zip(_fields(self), _fields(other), strict=True))

    def __hash__(self) -> int:
        # Hashing only the sizes of arrays is cheap; equality resolves the collisions.
        return hash(tuple(v.size if isinstance(v, np.ndarray) else v for v in _fields(self)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        for value in state.values():
            if isinstance(value, np.ndarray):
                read_only(value)
        self.__dict__.update(state)


class ShortRepr:
    """Base of frozen dataclasses (declared with `repr=False`) that print on one line, without default values.

    Arrays print as their length, a part that has a name prints as that name, and fields declared with
    `field(repr=False)` are left out.

    >>> from neuraxis.network import FixedInDegree
    >>> FixedInDegree(k=100, autapses=False)
    FixedInDegree(k=100, autapses=False)
    """

    def __repr__(self) -> str:
        return short_repr(self, _exact)


def short_repr(instance: Any, number_text: Callable[[float], str]) -> str:
    """Return the text of `ShortRepr`, with floats as `number_text` prints them."""
    fields = [(field, getattr(instance, field.name)) for field in dataclasses.fields(instance) if field.repr]
    given = [f"{field.name}={_short(value, number_text)}" for field, value in fields if _differs(value, field.default)]
    return f"{type(instance).__name__}({', '.join(given)})"


def _exact(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _differs(value: Any, default: Any) -> bool:
    return isinstance(value, np.ndarray) or bool(value != default)


def _short(value: Any, number_text: Callable[[float], str]) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.size:,} values>"
    if isinstance(value, float):
        return number_text(value)
    name = getattr(value, "name", None)
    return repr(name) if isinstance(name, str) else repr(value)


def _fields(instance: Any) -> list[Any]:
    return [getattr(instance, field.name) for field in dataclasses.fields(instance) if field.compare]


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, np.ndarray) or isinstance(theirs, np.ndarray):
        return type(mine) is type(theirs) and np.array_equal(mine, theirs)
    return bool(mine == theirs)


def _array(value: Any, name: str) -> np.ndarray[Any, np.dtype[Any]]:
    if isinstance(value, str | bytes):
        raise InvalidType(f"{name}={value!r}: an array is expected, not {type(value).__name__}")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InvalidType(f"{name}: a one-dimensional array is expected: {error}") from error
    if array.dtype.kind == "O":
        raise InvalidType(f"{name}: an array of numbers is expected, not {type(value).__name__}")
    if array.ndim != 1:
        raise InvalidArgument(f"{name} has shape {array.shape}: a one-dimensional array is expected")
    return array
