"""Gradients into their bucket: one pass over memory, in few calls.

What is called between the parts of a step runs with cold caches, so a small model pays for the number of calls more
than for its bytes. Where gradients are plain memory, one compiled call packs a bucket. Else `torch._foreach_copy_`
does, which is not public, and what torch's own optimizers use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuraxis.training.buckets import Bucket
from neuraxis.training.packing_kernels import pack_float32, pack_float64

__all__ = ["Packer"]

_KERNELS: dict[torch.dtype, Callable[..., None]] = {torch.float32: pack_float32, torch.float64: pack_float64}


class Packer:
    """Packs the gradients of one bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._kernel: Callable[..., None] | None = None
        if bucket.array is not None and all(view.is_contiguous() for view in bucket.views):
            self._kernel = _KERNELS.get(bucket.flat.dtype)
            self._addresses = np.zeros(len(bucket.views), np.int64)
            self._lengths = np.array([view.numel() for view in bucket.views], np.int64)
        if self._kernel is not None:  # compiled, or loaded, now: not while others wait for us
            self._kernel(self._addresses[:0], self._lengths[:0], 1.0, bucket.array)

    def pack(self, weight: float, *, add: bool, some_missing: bool) -> None:
        """`weight` times each gradient into the bucket, or added to what is there.

        Args:
            some_missing: whether some parameter may have no gradient, which counts as 0.
        """
        bucket = self._bucket
        if not weight:  # never multiplied by 0: the mean over no samples is not a number
            if not add:
                bucket.values.zero_()
            return
        gradients = [parameter.grad for parameter in bucket.parameters]
        if self._kernel is not None and not add and self._are_plain(gradients):
            self._addresses[:] = [gradient.data_ptr() for gradient in gradients]
            self._kernel(self._addresses, self._lengths, weight, bucket.array)
            return
        views = bucket.views
        if some_missing:
            there = [place for place, gradient in enumerate(gradients) if gradient is not None]
            if not add:
                for place, gradient in enumerate(gradients):
                    if gradient is None:
                        views[place].zero_()
            views, gradients = [views[place] for place in there], [gradients[place] for place in there]
        if gradients:
            _pack_any(bucket, views, gradients, weight, add)

    def _are_plain(self, gradients: list[Any]) -> bool:
        """Whether each of them is there, and is memory of the bucket's dtype without a gap, to be read as it is."""
        dtype = self._bucket.flat.dtype
        return all(
            type(gradient) is Tensor
            and gradient.dtype is dtype
            and gradient.layout is torch.strided
            and gradient.is_contiguous()
            and gradient.is_cpu
            and not gradient.is_neg()
            for gradient in gradients
        )


def _pack_any(bucket: Bucket, views: list[Tensor], gradients: list[Tensor], weight: float, add: bool) -> None:
    if any(gradient.is_sparse for gradient in gradients):
        gradients = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
    if add:
        torch._foreach_add_(views, gradients, alpha=weight)
    else:
        torch._foreach_copy_(views, gradients)
        if weight != 1.0:
            bucket.values.mul_(weight)
