"""Gradients into their bucket: one pass over memory, in few calls.

`torch._foreach_copy_` is not public, and what torch's own optimizers use: one call for a bucket costs what a copy of
one gradient does.
"""

from __future__ import annotations

import torch

from neuraxis.training.buckets import Bucket

__all__ = ["pack"]


def pack(bucket: Bucket, weight: float, *, add: bool, some_missing: bool) -> None:
    """`weight` times each gradient into the bucket, or added to what is there.

    Args:
        some_missing: whether some parameter may have no gradient, which counts as 0.
    """
    if not weight:  # never multiplied by 0: the mean over no samples is not a number
        if not add:
            bucket.values.zero_()
        return
    views = bucket.views
    gradients = [parameter.grad for parameter in bucket.parameters]
    if some_missing:
        there = [place for place, gradient in enumerate(gradients) if gradient is not None]
        if not add:
            for place, gradient in enumerate(gradients):
                if gradient is None:
                    views[place].zero_()
        views, gradients = [views[place] for place in there], [gradients[place] for place in there]
    if not gradients:
        return
    if any(gradient.is_sparse for gradient in gradients):
        gradients = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in gradients]
    if add:
        torch._foreach_add_(views, gradients, alpha=weight)
    else:
        torch._foreach_copy_(views, gradients)
        if weight != 1.0:
            bucket.values.mul_(weight)
