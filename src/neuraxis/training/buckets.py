"""Which gradient lies where: the parameters of a model, cut into buckets that are sent as one flat tensor each.

Gradients appear in about the reverse of the order in which parameters were registered, so buckets are filled in that
order, and the first can be sent while the backward pass still runs. The plan follows from the model alone, never
from what was observed: an all-reduce may add in an order that depends on the place in the tensor, and a plan with a
history would cost equal bits after a restart.

The control words travel with the last bucket: how many samples each rank had, how large its buffers are, and which
parameters it used. Nobody knows them before the backward pass is over, and there they cost no call of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Bucket", "BucketPlan", "plan_buckets"]

_EXACT = (torch.float32, torch.float64)  # where counts of samples are exact, up to 2**24 of them
# Gradients times samples, summed over ranks, are more than float16 can hold.
_PACKED_AS = {torch.float16: torch.float32}


@dataclass
class Bucket:
    """Gradients of some parameters in one flat tensor.

    Attributes:
        index: its place in the order of sending.
        names, parameters: whose gradients these are.
        places: the place of each of them in `BucketPlan.parameters`.
        flat: all of it, with the control words if it has them.
        values: all but the control words.
        views: the gradient of each parameter within `flat`, in the parameter's own layout, and in its dtype except for
            float16.
        array: `flat` as a NumPy array of the same memory, where NumPy has its dtype and the memory is the CPU's.
        nbytes: how many bytes all of it is.
    """

    index: int
    names: list[str]
    parameters: list[nn.Parameter]
    places: list[int]
    flat: Tensor
    values: Tensor
    views: list[Tensor]
    array: np.ndarray | None
    nbytes: int


@dataclass
class BucketPlan:
    """The buckets of a model in the order of sending, and where a parameter is.

    Attributes:
        names, parameters: the trained parameters, in their order of registration.
        buckets: the last one carries the control words.
        bucket_of: for each parameter the index of its bucket.
        weights: the control words with the number of samples of each rank.
        sizes: the control words with the size of each rank's buffers.
        used: the control words that say for each parameter how many ranks used it.
    """

    names: list[str]
    parameters: list[nn.Parameter]
    buckets: list[Bucket]
    bucket_of: list[int]
    weights: Tensor
    sizes: Tensor
    used: Tensor


def plan_buckets(
    parameters: Sequence[tuple[str, nn.Parameter]],
    first_bytes: int,
    bucket_bytes: int,
    size: int,
    *,
    control_apart: bool,
) -> BucketPlan:
    """Buckets for these parameters (in order of registration) and `size` ranks.

    The first bucket is closed when it has `first_bytes`, the others at `bucket_bytes`. A bucket has one dtype and one
    device. With `control_apart` the control words have a bucket of their own, as they have where the last bucket's
    dtype cannot count.
    """
    places = _grouped([parameter for _, parameter in parameters], first_bytes, bucket_bytes)
    words = 2 * size + len(parameters)
    last = parameters[places[-1][0]][1] if places else None
    if control_apart or last is None or _PACKED_AS.get(last.dtype, last.dtype) not in _EXACT:
        places.append([])
    buckets: list[Bucket] = []
    bucket_of = [0] * len(parameters)
    for index, members in enumerate(places):
        for place in members:
            bucket_of[place] = index
        control = words if index == len(places) - 1 else 0
        buckets.append(_bucket(index, [(place, *parameters[place]) for place in members], control, last))
    control_words = buckets[-1].flat[buckets[-1].values.numel() :]
    return BucketPlan(
        names=[name for name, _ in parameters],
        parameters=[parameter for _, parameter in parameters],
        buckets=buckets,
        bucket_of=bucket_of,
        weights=control_words[:size],
        sizes=control_words[size : 2 * size],
        used=control_words[2 * size :],
    )


def _grouped(parameters: Sequence[nn.Parameter], first_bytes: int, bucket_bytes: int) -> list[list[int]]:
    """The places of the parameters, bucket by bucket, in the order in which the buckets are full."""
    closed: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    for place in reversed(range(len(parameters))):
        parameter = parameters[place]
        kind = (parameter.dtype, parameter.device)
        members, held = filling.pop(kind, ([], 0))
        members.append(place)
        held += parameter.numel() * parameter.element_size()
        if held >= (bucket_bytes if closed else first_bytes):
            closed.append(members)
        else:
            filling[kind] = (members, held)
    # What is left was touched in this order, so the one that is last becomes ready last.
    return closed + [members for members, _ in filling.values()]


def _bucket(
    index: int, members: Sequence[tuple[int, str, nn.Parameter]], control: int, example: nn.Parameter | None
) -> Bucket:
    like = members[0][2] if members else example
    own = members[0][2].dtype if members else torch.float32
    dtype = _PACKED_AS.get(own, own)
    device = torch.device("cpu") if like is None else like.device
    count = sum(parameter.numel() for _, _, parameter in members)
    flat = torch.zeros(count + control, dtype=dtype, device=device)
    views, start = [], 0
    for _, _, parameter in members:
        views.append(_view(flat, start, parameter))
        start += parameter.numel()
    has_array = flat.is_cpu and dtype not in (torch.bfloat16, torch.complex32)
    return Bucket(
        index=index,
        names=[name for _, name, _ in members],
        parameters=[parameter for _, _, parameter in members],
        places=[place for place, _, _ in members],
        flat=flat,
        values=flat[:count],
        views=views,
        array=flat.numpy() if has_array else None,
        nbytes=flat.nbytes,
    )


def _view(flat: Tensor, start: int, parameter: nn.Parameter) -> Tensor:
    """The parameter's part of `flat`, with its strides where they fill memory without a gap (channels_last, say)."""
    if _is_dense(parameter):
        return flat.as_strided(parameter.shape, parameter.stride(), start)
    return flat[start : start + parameter.numel()].view(parameter.shape)


def _is_dense(tensor: Tensor) -> bool:
    """Whether every element has its own place and there is no gap between them."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return bool(tensor.numel() > 0)
