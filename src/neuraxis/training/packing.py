"""Gradients into their bucket, and the mean of all ranks back: one pass over memory each way, in few calls.

What is called between the parts of a step runs with cold caches, so a small model pays for the number of calls more
than for its bytes. Where gradients are plain memory, one compiled call packs a bucket. Else `torch._foreach_copy_`
does, which is not public, and what torch's own optimizers use.

On the way back, gradients of a small bucket that were plain are written where they are: nothing has to be set, and
they are the user's own memory. Of a large one, and of any other, each `.grad` becomes a view of the bucket, so that
there is no second copy of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuraxis.training.buckets import Bucket
from neuraxis.training.control_words import ControlWords
from neuraxis.training.packing_kernels import (
    FIRST_ADDRESS,
    pack_float32,
    pack_float64,
    unpack_float32,
    unpack_float64,
)

__all__ = ["Packer"]

_KERNELS: dict[torch.dtype, tuple[Callable[[int, float], bool], Callable[[int, float], None]]] = {
    torch.float32: (pack_float32, unpack_float32),
    torch.float64: (pack_float64, unpack_float64),
}
_SMALL_BYTES = 1 << 20


class Packer:
    """Packs and unpacks the gradients of one bucket.

    Args:
        used_from: where in the bucket the control words begin that say of each parameter whether it is used. With them
            a small bucket is unpacked in place, which takes that nobody touches a gradient after `pack`.
    """

    def __init__(self, bucket: Bucket, used_from: int | None = None) -> None:
        self._bucket = bucket
        self._dtype = bucket.flat.dtype
        self._is_in_place = used_from is not None and bucket.values.nbytes <= _SMALL_BYTES
        self._packed: list[Tensor | None] = []  # what is written to when it is unpacked
        self._some_missing = False
        plain = bucket.array is not None and all(view.is_contiguous() for view in bucket.views)
        self._kernels = _KERNELS.get(self._dtype) if plain else None
        if self._kernels is None:
            return
        table = _table_for(bucket, used_from or 0)
        self._table = table.ctypes.data
        # Written to by Python's own means: to find NumPy's anew, where caches are cold, takes longer than their work.
        # This keeps the table alive.
        self._addresses = memoryview(table.data)[FIRST_ADDRESS : FIRST_ADDRESS + len(bucket.views)]
        nothing = np.zeros(FIRST_ADDRESS, np.int64)
        for kernel in self._kernels:  # compiled, or loaded, now: not while others wait for us
            kernel(nothing.ctypes.data, 1.0)

    def pack(self, weight: float, *, add: bool) -> None:
        """`weight` times each gradient into the bucket, or added to what is there; one that is None counts as 0."""
        bucket = self._bucket
        self._packed = []
        gradients = [parameter.grad for parameter in bucket.parameters]
        if self._kernels is not None and not add and self._have_addresses(gradients):
            if self._kernels[0](self._table, weight) and self._is_in_place:
                self._packed = gradients
        elif weight:
            _pack_any(bucket, gradients, weight, add)
        elif not add:  # never multiplied by 0: the mean over no samples is not a number
            bucket.values.zero_()

    def unpack(self, factor: float, words: ControlWords) -> None:
        """`factor` times what is in the bucket becomes the gradients; of those parameters that some rank has used."""
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
        """Whether all that are there are memory that can be read as it is; if so their addresses are noted."""
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
    """What the kernels are given, as yet without addresses of gradients. The bucket must outlive it."""
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
