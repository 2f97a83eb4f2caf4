"""Gradient buckets: the parameters of a model, grouped so that each group is reduced as one flat tensor.

Gradients become ready in about the reverse of the order in which parameters were registered, so buckets are filled in
that order, and the first can be sent while the backward pass still runs. The plan follows from the model alone, never
from measurements: an all-reduce may add in an order that depends on the position in the tensor, so a plan that depends
on history would give different bits after a restart.

The last bucket carries the metadata of the step: how many samples each rank had, how large its buffers are, and which
parameters it used. These are known only when the backward pass ends, and there they cost no extra call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument, ModelMismatch

__all__ = [
    "MODEL_CHANGED",
    "SHADOW",
    "Bucket",
    "BucketPlan",
    "FlatTensors",
    "StepMetadata",
    "check_all_ranks_changed",
    "check_buffer_sizes",
    "plan_buckets",
]

SHADOW = -1.0  # instead of a number of samples: this rank has no more data
MODEL_CHANGED = -2.0  # instead of a number of samples: the buckets no longer fit this rank's model


class FlatTensors:
    """Layout of a list of tensors in one flat tensor per dtype. Equal tensors on two sides have equal layouts."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        self._groups: dict[torch.dtype, list[int]] = {}
        for place, tensor in enumerate(tensors):
            self._groups.setdefault(tensor.dtype, []).append(place)

    def pack(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """Copy the tensors into flat tensors on the CPU; None becomes zeros."""
        flats = []
        for dtype, places in self._groups.items():
            chunks = []
            for place in places:
                tensor = tensors[place]
                if tensor is None:
                    chunks.append(torch.zeros(self._shapes[place].numel(), dtype=dtype))
                else:
                    chunks.append(tensor.detach().to("cpu", dtype).reshape(-1))
            flats.append(torch.cat(chunks))
        return flats

    def views(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return the tensors as views of flat ones; InvalidArgument if those have another layout."""
        self._check(flats)
        views: list[Tensor | None] = [None] * len(self._shapes)
        for flat, places in zip(flats, self._groups.values(), strict=True):
            chunks = flat.split([self._shapes[place].numel() for place in places])
            for place, chunk in zip(places, chunks, strict=True):
                views[place] = chunk.view(self._shapes[place])
        return [view for view in views if view is not None]

    def unpack(self, flats: Sequence[Tensor], into: Sequence[Tensor]) -> None:
        """Copy the values of flat tensors into `into`, on any device."""
        with torch.no_grad():
            for target, value in zip(into, self.views(flats), strict=True):
                target.copy_(value)

    def _check(self, flats: Sequence[Tensor]) -> None:
        wanted = [(dtype, sum(self._shapes[p].numel() for p in places)) for dtype, places in self._groups.items()]
        given = [(getattr(flat, "dtype", None), getattr(flat, "shape", None)) for flat in flats]
        if given != [(dtype, torch.Size([count])) for dtype, count in wanted]:
            raise InvalidArgument(f"expected flat tensors of {wanted}, got {given}")


_EXACT = (torch.float32, torch.float64)  # represent sample counts exactly, up to 2**24
# Gradients times samples, summed over ranks, are more than float16 can hold.
_PACKED_AS = {torch.float16: torch.float32}
_LARGEST = 1 << 24  # largest count that float32 represents; larger sizes are compared modulo this


@dataclass
class Bucket:
    """Gradients of some parameters in one flat tensor.

    Attributes
    ----------
    index : int
        Position in the order of sending.
    names, parameters : list
        Parameters whose gradients the bucket has.
    places : list of int
        Index of each of them in `BucketPlan.parameters`.
    flat : Tensor
        All elements, including the metadata of the last bucket.
    values : Tensor
        View of `flat` without the metadata.
    views : list of Tensor
        Gradient of each parameter within `flat`, with the parameter's strides, and its dtype except for float16.
    array : ndarray or None
        `flat` as a NumPy array over the same memory, if it is CPU memory and NumPy has the dtype.
    nbytes : int
        Size of `flat` in bytes.
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
    """Buckets of a model in the order of sending.

    Attributes
    ----------
    names, parameters : list
        Trained parameters in order of registration.
    buckets : list of Bucket
        The last one carries the metadata.
    bucket_of : list of int
        Index of the bucket of each parameter.
    weights, sizes, used : Tensor
        Metadata: samples of each rank, buffer bytes of each rank, and for each parameter how many ranks used it.
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
    separate_metadata: bool,
) -> BucketPlan:
    """Group `parameters`, in order of registration, into buckets for `size` ranks.

    The first bucket is closed at `first_bytes`, the others at `bucket_bytes`. A bucket has one dtype and one device.
    With `separate_metadata`, or if the last bucket's dtype cannot count exactly, the metadata gets its own bucket.
    """
    places = _grouped([parameter for _, parameter in parameters], first_bytes, bucket_bytes)
    words = 2 * size + len(parameters)
    last = parameters[places[-1][0]][1] if places else None
    if separate_metadata or last is None or _PACKED_AS.get(last.dtype, last.dtype) not in _EXACT:
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
    """Return the indices of the parameters, bucket by bucket, in the order in which the buckets become full."""
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
    # The remaining buckets are in the order of their last parameter, so the last one becomes ready last.
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
    """Return the view of `flat` for a parameter, with its strides if they are dense (channels_last, for example)."""
    if _is_dense(parameter):
        return flat.as_strided(parameter.shape, parameter.stride(), start)
    return flat[start : start + parameter.numel()].view(parameter.shape)


def _is_dense(tensor: Tensor) -> bool:
    """Return True if the elements of a tensor fill memory without gaps or overlaps."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return bool(tensor.numel() > 0)


class StepMetadata:
    """Metadata of a step at the end of the last bucket. Each rank writes its own entries; the all-reduce merges them.

    `used` has a byte for each parameter: 1 if this rank has used it when `write` is called.
    """

    def __init__(self, plan: BucketPlan, rank: int, used: bytearray) -> None:
        self._rank = rank
        self._mine = used
        self._size = plan.weights.numel()
        tail = plan.buckets[-1]
        words = tail.flat[tail.values.numel() :]
        # The usual content: nothing for other ranks, and every parameter used.
        usual = torch.zeros_like(words)
        usual[2 * self._size :] = 1
        # Memoryviews, because with cold caches NumPy's and torch's call overhead exceeds the work.
        self._metadata: Any = words if tail.array is None else memoryview(words.numpy().data)
        self._usual: Any = usual if tail.array is None else memoryview(usual.numpy().data)
        self._samples: Any = self._metadata[: self._size]
        self._sizes: Any = self._metadata[self._size : 2 * self._size]
        self._used: Any = self._metadata[2 * self._size :]

    def write(self, samples: float, buffer_bytes: int) -> None:
        """Write this rank's number of samples (or SHADOW, MODEL_CHANGED) and the bytes of its buffers."""
        self._metadata[:] = self._usual
        self._samples[self._rank] = samples
        if buffer_bytes:
            self._sizes[self._rank] = float(buffer_bytes % _LARGEST)
        if 0 in self._mine:
            for place, is_used in enumerate(self._mine):
                if not is_used:
                    self._used[place] = 0.0

    def samples(self) -> list[float]:
        """Return the number of samples of each rank."""
        answer: list[float] = self._samples.tolist()
        return answer

    def buffer_sizes(self) -> list[float]:
        """Return the buffer bytes of each rank, modulo 2**24."""
        answer: list[float] = self._sizes.tolist()
        return answer

    def used(self) -> list[float]:
        """Return the number of ranks that used each parameter."""
        answer: list[float] = self._used.tolist()
        return answer


def check_all_ranks_changed(samples: list[float], group: Communicator) -> None:
    """Raise ModelMismatch unless every rank reports MODEL_CHANGED."""
    changed = [group.ranks[rank] for rank, word in enumerate(samples) if word == MODEL_CHANGED]
    if len(changed) < len(samples):
        raise ModelMismatch(
            f"the trained parameters of the model changed on rank {', '.join(map(str, changed))} alone (a layer was "
            "frozen or unfrozen, the module moved, or a state assigned). Do the same on all ranks before the same step",
            rank=changed[0],
        )


def check_buffer_sizes(sizes: list[float]) -> None:
    """Raise ModelMismatch unless the buffers of all ranks have the same size."""
    other = next((rank for rank, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise ModelMismatch(
            f"the buffers of the model have {sizes[0]:.0f} bytes on the first rank and {sizes[other]:.0f} on rank "
            f"{other} of the group, so they cannot be synchronized. Use DataParallel(..., buffers='keep') to keep "
            "separate buffers on each rank",
            rank=other,
        )
