"""Descriptions that hold arrays: the arrays never change, and are compared by value."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "HoldsArrays", "Integers", "read_only"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Array = TypeVar("Array", bound="np.ndarray[Any, Any]")


def read_only(array: Array) -> Array:
    """The same array, which can no longer be written to."""
    array.setflags(write=False)
    return array


class HoldsArrays:
    """For frozen dataclasses with arrays among their fields (made with `eq=False`).

    Gives them equality by value and a hash, which a dataclass cannot give where a field is an array, and keeps
    the arrays read-only over pickling and copying.
    """

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_same(mine, theirs) for mine, theirs in zip(_fields(self), _fields(other), strict=True))

    def __hash__(self) -> int:
        # Arrays of one size share a hash: cheap, and equality decides.
        return hash(tuple(v.size if isinstance(v, np.ndarray) else v for v in _fields(self)))

    def __setstate__(self, state: dict[str, Any]) -> None:
        for value in state.values():
            if isinstance(value, np.ndarray):
                read_only(value)
        self.__dict__.update(state)


def _fields(instance: Any) -> list[Any]:
    return [getattr(instance, field.name) for field in dataclasses.fields(instance) if field.compare]


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, np.ndarray) or isinstance(theirs, np.ndarray):
        return type(mine) is type(theirs) and np.array_equal(mine, theirs)
    return bool(mine == theirs)
