"""Copy gradients into their bucket and the average back: one pass over memory each way, in few calls.

Code between the operations of a step runs with cold caches, so a small model pays more for the number of calls than
for its bytes. Where gradients are contiguous CPU memory, one compiled call packs a bucket. Elsewhere
`torch._foreach_copy_` does; it is not public, and torch's optimizers use it.

On the way back, gradients of a small bucket are written in place: no attribute has to be set, and they stay the user's
memory. Of a large bucket each `.grad` becomes a view of the bucket, which avoids a second copy.

The kernels get the address of an int64 table, because passing an integer to compiled code is much faster than passing
an array. The table has the number of gradients, the address and length of the bucket, then one column each for the
addresses of the gradients (0 if absent), their lengths, and the position in the bucket of the metadata that counts the
ranks that used the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba import carray, njit
from torch import Tensor

from neuraxis.compiled import compiled
from neuraxis.compiled.atomics import load, pointer_to
from neuraxis.training.parallel.buckets import Bucket, StepMetadata

__all__ = ["FIRST_ADDRESS", "Packer", "pack_float32", "pack_float64", "unpack_float32", "unpack_float64"]

_COUNT, _ARRAY, _LENGTH, FIRST_ADDRESS = 0, 1, 2, 3
_FEW = 64  # gradients whose pairs are compared in less than a microsecond


@njit
def _scale(source: Any, factor: Any, target: Any) -> None:
    for index in range(len(source)):  # both start at 0, which the compiler needs to vectorize the loop
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
    """Write `weight` times each gradient into the bucket; zeros for absent gradients.

    A weight of 0 writes zeros everywhere, because the mean over no samples is NaN. Returns True if there are few
    gradients and no two share memory, so that each can be written in place.
    """
    return _pack(table, weight, np.float32)


@compiled
def pack_float64(table: int, weight: float) -> bool:
    """Do the same as `pack_float32` in float64."""
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
    """Write `factor` times the bucket into the used gradients; scale the rest within the bucket."""
    _unpack(table, factor, np.float32)


@compiled
def unpack_float64(table: int, factor: float) -> None:
    """Do the same as `unpack_float32` in float64."""
    _unpack(table, factor, np.float64)


_KERNELS: dict[torch.dtype, tuple[Callable[[int, float], bool], Callable[[int, float], None]]] = {
    torch.float32: (pack_float32, unpack_float32),
    torch.float64: (pack_float64, unpack_float64),
}
_SMALL_BYTES = 1 << 20  # largest bucket that is unpacked in place


class Packer:
    """Pack and unpack the gradients of one bucket.

    `used_from` is the position of the usage metadata in the bucket. With it a small bucket is unpacked in place, which
    requires that nothing modifies a gradient between `pack` and `unpack`.
    """

    def __init__(self, bucket: Bucket, used_from: int | None = None) -> None:
        self._bucket = bucket
        self._dtype = bucket.flat.dtype
        self._is_in_place = used_from is not None and bucket.values.nbytes <= _SMALL_BYTES
        self._packed: list[Tensor | None] = []  # gradients to unpack in place
        self._some_missing = False
        plain = bucket.array is not None and all(view.is_contiguous() for view in bucket.views)
        self._kernels = _KERNELS.get(self._dtype) if plain else None
        if self._kernels is None:
            return
        table = _table_for(bucket, used_from or 0)
        self._table = table.ctypes.data
        # A memoryview, because with cold caches NumPy's call overhead exceeds the work. It keeps the table alive.
        self._addresses = memoryview(table.data)[FIRST_ADDRESS : FIRST_ADDRESS + len(bucket.views)]
        nothing = np.zeros(FIRST_ADDRESS, np.int64)
        for kernel in self._kernels:  # compile or load now, not while other ranks wait
            kernel(nothing.ctypes.data, 1.0)

    def pack(self, weight: float, *, add: bool) -> None:
        """Write `weight` times each gradient into the bucket, or with `add` add it; None counts as 0."""
        bucket = self._bucket
        self._packed = []
        gradients = [parameter.grad for parameter in bucket.parameters]
        if self._kernels is not None and not add and self._have_addresses(gradients):
            if self._kernels[0](self._table, weight) and self._is_in_place:
                self._packed = gradients
        elif weight:
            _pack_any(bucket, gradients, weight, add)
        elif not add:  # not multiplied by 0: the mean over no samples is NaN
            bucket.values.zero_()

    def unpack(self, factor: float, words: StepMetadata) -> None:
        """Set the gradients of all parameters that some rank used to `factor` times the bucket."""
        bucket, packed = self._bucket, self._packed
        self._packed = []
        if packed:
            assert self._kernels is not None
            self._kernels[1](self._table, factor)
            if not self._some_missing:
                return
        elif factor != 1.0:
            bucket.values.mul_(factor)
        used = words.used()
        for index, (place, parameter, view) in enumerate(
            zip(bucket.places, bucket.parameters, bucket.views, strict=True)
        ):
            if used[place] and (not packed or packed[index] is None):
                parameter.grad = view if view.dtype is parameter.dtype else view.to(parameter.dtype)

    def _have_addresses(self, gradients: Sequence[Any]) -> bool:
        """Return True if the kernels can read all gradients in place; writes their addresses into the table."""
        addresses, dtype, strided = self._addresses, self._dtype, torch.strided
        self._some_missing = False
        for index, gradient in enumerate(gradients):
            if (
                type(gradient) is Tensor
                and gradient.dtype is dtype
                and gradient.is_contiguous()
                and gradient.is_cpu
                and gradient.layout is strided
                and not gradient.requires_grad
                and not gradient.is_neg()
            ):
                addresses[index] = gradient.data_ptr()
            elif gradient is None:
                addresses[index] = 0
                self._some_missing = True
            else:
                return False
        return True


def _table_for(bucket: Bucket, used_from: int) -> np.ndarray:
    """Return the table of the kernels, without addresses of gradients. The bucket must outlive it."""
    count = len(bucket.views)
    lengths = [view.numel() for view in bucket.views]
    used_at = [used_from + place for place in bucket.places]
    words = [count, bucket.flat.data_ptr(), bucket.flat.numel(), *[0] * count, *lengths, *used_at]
    return np.array(words, np.int64)


def _pack_any(bucket: Bucket, gradients: Sequence[Tensor | None], weight: float, add: bool) -> None:
    there = [place for place, gradient in enumerate(gradients) if gradient is not None]
    if len(there) < len(gradients) and not add:
        for place, gradient in enumerate(gradients):
            if gradient is None:
                bucket.views[place].zero_()
    if not there:
        return
    views = [bucket.views[place] for place in there]
    dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients if gradient is not None]
    if add:
        torch._foreach_add_(views, dense, alpha=weight)
    else:
        torch._foreach_copy_(views, dense)
        if weight != 1.0:
            bucket.values.mul_(weight)
