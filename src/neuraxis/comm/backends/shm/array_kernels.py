"""The collectives on NumPy arrays given by their ids, compiled.

Getting the address and size of an array in Python, checking and passing them takes several times as long as a small
collective itself. So these kernels take the id() of each array and read the rest from the array object. Its layout is
NumPy's C interface (PyArrayObject_fields), on which every compiled extension that uses NumPy depends;
`array_layout_is_known` verifies it once against NumPy.

An array must be C-contiguous, and writeable if it is written. If one is not, a kernel returns NOT_PLAIN before it has
done anything, and the caller uses the general path. Lists of arrays are passed in the words at state[OBJECTS].
"""

from __future__ import annotations

import sys
from functools import cache

import numpy as np
from numba import njit

from neuraxis.comm.backends.shm.kernels import (
    OBJECTS,
    PIECES,
    RANK,
    SIZE,
    all_reduce,
    broadcast,
    exchange,
    reduce,
    reduce_pieces,
)
from neuraxis.compiled import compiled
from neuraxis.compiled.atomics import load, store

NOT_PLAIN = 3  # another status besides DONE, WAITING and MISMATCH: use the general path

# Offsets in an array object.
_HEAD = object.__basicsize__
_DATA = _HEAD
_DIMENSION_COUNT = _HEAD + 8
_DIMENSIONS = _HEAD + 16
_FLAGS = _HEAD + 48
_C_CONTIGUOUS = 0x0001
_WRITEABLE = 0x0400

# The plan of a reduction: the parameters that depend on dtype and operation, PLAN_WORDS int64 at one address.
PLAN_SIGNATURE, PLAN_ITEM_BYTES, PLAN_FOLD, PLAN_OP = 0, 1, 2, 3
PLAN_WORDS = 4


@njit
def _readable(array: int) -> bool:
    return load(array + _FLAGS) & _C_CONTIGUOUS != 0


@njit
def _writeable(array: int) -> bool:
    return load(array + _FLAGS) & (_C_CONTIGUOUS | _WRITEABLE) == _C_CONTIGUOUS | _WRITEABLE


@njit
def _count(array: int) -> int:
    count = 1
    dimensions = load(array + _DIMENSIONS)
    for axis in range(load(array + _DIMENSION_COUNT) & 0xFFFFFFFF):
        count *= load(dimensions + 8 * axis)
    return count


@njit
def _rows(array: int) -> int:
    """Return the length of the first dimension; 1 if there is none."""
    return load(load(array + _DIMENSIONS)) if load(array + _DIMENSION_COUNT) & 0xFFFFFFFF > 0 else 1


@njit
def _set_send(state: int, to: int, address: int, nbytes: int) -> None:
    pieces, size = load(state + 8 * PIECES), load(state + 8 * SIZE)
    store(pieces + 8 * to, address)
    store(pieces + 8 * (size + to), nbytes)


@njit
def _set_receive(state: int, source: int, address: int, nbytes: int) -> None:
    pieces, size = load(state + 8 * PIECES), load(state + 8 * SIZE)
    store(pieces + 8 * (2 * size + source), address)
    store(pieces + 8 * (3 * size + source), nbytes)


@njit
def _object(state: int, index: int) -> int:
    return load(load(state + 8 * OBJECTS) + 8 * index)


@compiled
def address_of_array(array: int) -> int:
    """Return the address of the data of the array with this id(); 0 unless it is C-contiguous."""
    return load(array + _DATA) if _readable(array) else 0


@compiled
def all_reduce_array(state: int, plan: int, array: int) -> int:
    """Run `all_reduce` in place."""
    if not _writeable(array):
        return NOT_PLAIN
    return all_reduce(
        state,
        load(plan + 8 * PLAN_SIGNATURE),
        load(array + _DATA),
        _count(array),
        load(plan + 8 * PLAN_ITEM_BYTES),
        load(plan + 8 * PLAN_FOLD),
        load(plan + 8 * PLAN_OP),
    )


@compiled
def reduce_array(state: int, plan: int, root: int, array: int) -> int:
    """Run `reduce`, in place on the root."""
    if not (_writeable(array) if load(state + 8 * RANK) == root else _readable(array)):
        return NOT_PLAIN
    return reduce(
        state,
        load(plan + 8 * PLAN_SIGNATURE) | (root + 1) << 24,
        root,
        load(array + _DATA),
        _count(array),
        load(plan + 8 * PLAN_ITEM_BYTES),
        load(plan + 8 * PLAN_FOLD),
        load(plan + 8 * PLAN_OP),
    )


@compiled
def broadcast_array(state: int, signature: int, item_bytes: int, root: int, array: int) -> int:
    """Run `broadcast` in place."""
    if not (_readable(array) if load(state + 8 * RANK) == root else _writeable(array)):
        return NOT_PLAIN
    count = _count(array)
    return broadcast(state, signature | (root + 1) << 24, root, load(array + _DATA), count, count * item_bytes)


@compiled
def gather_arrays(state: int, signature: int, item_bytes: int, root: int, array: int) -> int:
    """Gather into the listed arrays on the root; root -1 is an all-gather."""
    rank, size = load(state + 8 * RANK), load(state + 8 * SIZE)
    if not _readable(array):
        return NOT_PLAIN
    count = _count(array)
    if rank == root or root < 0:
        for source in range(size):
            output = _object(state, source)
            if not _writeable(output) or (source == rank and _count(output) != count):
                return NOT_PLAIN
            _set_receive(state, source, load(output + _DATA), _count(output) * item_bytes)
    else:
        for source in range(size):
            _set_receive(state, source, 0, 0)
    for to in range(size):
        _set_send(state, to, load(array + _DATA), count * item_bytes if to == root or root < 0 else 0)
    return exchange(state, signature | (root + 1) << 24, count, False, True)


@compiled
def all_gather_into_array(state: int, signature: int, item_bytes: int, output: int, array: int) -> int:
    """All-gather into one array."""
    size = load(state + 8 * SIZE)
    count = _count(array)
    if not _readable(array) or not _writeable(output) or _count(output) != size * count:
        return NOT_PLAIN
    for rank in range(size):
        _set_send(state, rank, load(array + _DATA), count * item_bytes)
        _set_receive(state, rank, load(output + _DATA) + rank * count * item_bytes, count * item_bytes)
    return exchange(state, signature, count, False, True)


@compiled
def scatter_arrays(state: int, signature: int, item_bytes: int, root: int, array: int) -> int:
    """Scatter the listed arrays of the root."""
    rank, size = load(state + 8 * RANK), load(state + 8 * SIZE)
    if not _writeable(array):
        return NOT_PLAIN
    count = _count(array)
    for to in range(size):
        if rank == root:
            source = _object(state, to)
            if not _readable(source) or (to == rank and _count(source) != count):
                return NOT_PLAIN
            _set_send(state, to, load(source + _DATA), _count(source) * item_bytes)
        else:
            _set_send(state, to, 0, 0)
        _set_receive(state, to, load(array + _DATA), count * item_bytes if to == root else 0)
    return exchange(state, signature | (root + 1) << 24, count, False, False)


@compiled
def all_to_all_arrays(state: int, signature: int, item_bytes: int) -> int:
    """Run an all-to-all of listed arrays: first the inputs, then the outputs."""
    size = load(state + 8 * SIZE)
    for rank in range(size):
        source, output = _object(state, rank), _object(state, size + rank)
        if not _readable(source) or not _writeable(output):
            return NOT_PLAIN
        _set_send(state, rank, load(source + _DATA), _count(source) * item_bytes)
        _set_receive(state, rank, load(output + _DATA), _count(output) * item_bytes)
    return exchange(state, signature, _count(_object(state, 0)), False, False)


@compiled
def all_to_all_array(state: int, signature: int, item_bytes: int, output: int, array: int) -> int:
    """Run an all-to-all from one array to another, in equal parts."""
    size = load(state + 8 * SIZE)
    if not _readable(array) or not _writeable(output) or _rows(array) % size != 0 or _rows(output) % size != 0:
        return NOT_PLAIN
    sent, received = _count(array) // size * item_bytes, _count(output) // size * item_bytes
    for rank in range(size):
        _set_send(state, rank, load(array + _DATA) + rank * sent, sent)
        _set_receive(state, rank, load(output + _DATA) + rank * received, received)
    return exchange(state, signature, _count(array) // size, False, False)


@compiled
def reduce_scatter_arrays(state: int, plan: int, output: int) -> int:
    """Reduce-scatter the listed arrays."""
    size = load(state + 8 * SIZE)
    item_bytes = load(plan + 8 * PLAN_ITEM_BYTES)
    if not _writeable(output) or _count(_object(state, load(state + 8 * RANK))) != _count(output):
        return NOT_PLAIN
    for rank in range(size):
        source = _object(state, rank)
        if not _readable(source):
            return NOT_PLAIN
        _set_send(state, rank, load(source + _DATA), _count(source) * item_bytes)
    store(load(state + 8 * PIECES) + 16 * size, load(output + _DATA))
    return reduce_pieces(
        state, load(plan + 8 * PLAN_SIGNATURE), item_bytes, load(plan + 8 * PLAN_FOLD), load(plan + 8 * PLAN_OP)
    )


@compiled
def reduce_scatter_array(state: int, plan: int, output: int, array: int) -> int:
    """Reduce-scatter one array, in equal parts."""
    size = load(state + 8 * SIZE)
    item_bytes = load(plan + 8 * PLAN_ITEM_BYTES)
    part = _count(output) * item_bytes
    if not _readable(array) or not _writeable(output) or _count(array) * item_bytes != size * part:
        return NOT_PLAIN
    for rank in range(size):
        _set_send(state, rank, load(array + _DATA) + rank * part, part)
    store(load(state + 8 * PIECES) + 16 * size, load(output + _DATA))
    return reduce_pieces(
        state, load(plan + 8 * PLAN_SIGNATURE), item_bytes, load(plan + 8 * PLAN_FOLD), load(plan + 8 * PLAN_OP)
    )


@compiled
def _inspect(array: int) -> tuple[int, int, int, int, int]:
    """Return what this module reads from an array object, for `array_layout_is_known`."""
    return load(array + _DATA), _count(array), _rows(array), int(_readable(array)), int(_writeable(array))


@cache
def array_layout_is_known() -> bool:
    """Return True if array objects of this NumPy and Python have the layout that this module reads."""
    if sys.implementation.name != "cpython" or sys.byteorder != "little":
        return False
    plain, backwards, frozen = np.zeros((3, 5)), np.zeros((4, 2))[::-1], np.zeros(())
    frozen.flags.writeable = False
    return (
        _inspect(id(plain)) == (plain.ctypes.data, 15, 3, 1, 1)
        and _inspect(id(backwards)) == (backwards.ctypes.data, 8, 4, 0, 0)
        and _inspect(id(frozen)) == (frozen.ctypes.data, 1, 1, 1, 0)
    )
