"""Gradients at plain addresses into one array and back, compiled: one pass over memory and one call for a bucket.

What these kernels are to do is written in a table, of which they are given the address: to hand over a number takes a
fraction of the time that an array takes. A table is int64: the number of gradients, the address and the length of the
array, then for each gradient its address (0 if there is none), for each its length, and for each where in the array it
is said, by a number that is not 0, that it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from neuraxis.comm.atomics import load, pointer_to
from neuraxis.compiled import compiled

__all__ = ["FIRST_ADDRESS", "pack_float32", "pack_float64", "unpack_float32", "unpack_float64"]

_COUNT, _ARRAY, _LENGTH, FIRST_ADDRESS = 0, 1, 2, 3
_FEW = 64  # of which all pairs are looked at in less than a microsecond


@njit
def _scale(source: Any, factor: Any, target: Any) -> None:
    for index in range(len(source)):  # both begin at 0: only so the compiler makes vectors of it
        target[index] = source[index] * factor


@njit
def _array(table: int, dtype: Any) -> Any:
    return carray(pointer_to(load(table + 8 * _ARRAY), dtype), load(table + 8 * _LENGTH))


@njit
def _entry(table: int, column: int, place: int) -> int:
    return load(table + 8 * (FIRST_ADDRESS + column * load(table + 8 * _COUNT) + place))


@njit
def _pack(table: int, weight: float, dtype: Any) -> bool:
    array = _array(table, dtype)
    count = load(table + 8 * _COUNT)
    start = 0
    for place in range(count):
        address, length = _entry(table, 0, place), _entry(table, 1, place)
        part = array[start : start + length]
        if address == 0 or weight == 0.0:
            part[:] = 0
        else:
            _scale(carray(pointer_to(address, dtype), length), dtype(weight), part)
        start += length
    return count <= _FEW and _are_apart(table, count, array.itemsize)


@njit
def _are_apart(table: int, count: int, item_bytes: int) -> bool:
    for one in range(count):
        begin = _entry(table, 0, one)
        end = begin + _entry(table, 1, one) * item_bytes
        for other in range(one):
            other_begin = _entry(table, 0, other)
            if begin and other_begin < end and begin < other_begin + _entry(table, 1, other) * item_bytes:
                return False
    return True


@compiled
def pack_float32(table: int, weight: float) -> bool:
    """`weight` times each gradient into the array, one after the other; zeros for one that is not there.

    With a weight of 0 all of it becomes zeros: the mean over no samples is not a number. Returns whether they are few
    and no two of them share memory, so that each can be written to by itself.
    """
    return _pack(table, weight, np.float32)


@compiled
def pack_float64(table: int, weight: float) -> bool:
    """As `pack_float32`."""
    return _pack(table, weight, np.float64)


@njit
def _unpack(table: int, factor: float, dtype: Any) -> None:
    array = _array(table, dtype)
    start = 0
    for place in range(load(table + 8 * _COUNT)):
        address, length = _entry(table, 0, place), _entry(table, 1, place)
        part = array[start : start + length]
        if address == 0 or array[_entry(table, 2, place)] == 0:
            _scale(part, dtype(factor), part)
        else:
            _scale(part, dtype(factor), carray(pointer_to(address, dtype), length))
        start += length


@compiled
def unpack_float32(table: int, factor: float) -> None:
    """`factor` times what is in the array back to the gradients; of those that are not there, or not used, it stays."""
    _unpack(table, factor, np.float32)


@compiled
def unpack_float64(table: int, factor: float) -> None:
    """As `unpack_float32`."""
    _unpack(table, factor, np.float64)
