"""Gradients in fewer bytes, with the error stated.

A codec takes the place of the all-reduce of a bucket. Both of them send something else than what was wanted, and keep
the account: `relative_error` is the length of the difference by the length of what was wanted, for the last step of
this rank.

- `Half` rounds to 16 bits. Each rank's part is off by at most 2**-11 (bfloat16: 2**-8) of each value, and the sum is
  rounded once more. Nothing is owed to the next step.
- `TopK` sends the largest values with their places. What was not sent is not lost: it is added to what is wanted in
  the next step (error feedback), so `sent + residual == wanted`, to the bit. The relative error of a step is not
  bounded (with 1 % of the values it is near 1); it is what is still owed, compared with what was wanted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import torch
from torch import Tensor

from neuraxis.comm.communicator import Communicator
from neuraxis.errors import InvalidArgument
from neuraxis.training.buckets import Bucket, BucketPlan

__all__ = ["Codec", "Half", "TopK", "Traffic", "codec_for"]

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Half:
    """Send gradients in 16 bits: half the bytes of float32, off by at most 2**-11 (fp16) or 2**-8 (bf16) of a value.

    fp16 has few small numbers: mean gradients below 6e-5 lose digits, and below 3e-8 they become 0. bf16 keeps them,
    with fewer digits throughout.
    """

    dtype: Literal["fp16", "bf16"] = "fp16"

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise InvalidArgument(f"Half: dtype={self.dtype!r} is not one of {', '.join(_DTYPES)}")


@dataclass(frozen=True)
class TopK:
    """Send the largest `fraction` of the gradients, and owe the rest to the next step.

    To find them takes longer than shared memory takes to send everything; it pays where the network is slow.
    """

    fraction: float = 0.01

    def __post_init__(self) -> None:
        if not isinstance(self.fraction, int | float) or not 0 < self.fraction <= 1:
            raise InvalidArgument(f"TopK: fraction={self.fraction!r} must be a number above 0 and at most 1")


class Traffic(msgspec.Struct, frozen=True):
    """What one rank has sent for its gradients since the beginning.

    Attributes:
        steps: how often gradients were exchanged.
        bytes_sent: what this rank has handed over for it.
        bytes_uncompressed: what it would have handed over without compression.
        relative_error: of the last step, ‖sent - wanted‖ / ‖wanted‖ of this rank's gradients; 0 without compression,
            NaN where a gradient was not finite.
    """

    steps: int
    bytes_sent: int
    bytes_uncompressed: int
    relative_error: float

    @property
    def saved(self) -> float:
        """The share of bytes that compression has saved."""
        return 1.0 - self.bytes_sent / self.bytes_uncompressed if self.bytes_uncompressed else 0.0

    def __str__(self) -> str:
        return (
            f"{self.steps} steps, {self.bytes_sent:,} bytes sent instead of {self.bytes_uncompressed:,} "
            f"({self.saved:.1%} saved), relative error of the last step {self.relative_error:.2g}"
        )


class Codec(Protocol):
    """How buckets are summed over ranks. One for each model; called for each bucket of a step, in order of index."""

    def exchange(self, bucket: Bucket, group: Communicator, weight: float, scale_exponent: int) -> None:
        """Replace `bucket.values` by the sum over ranks of what each has sent of it.

        `bucket.values` are this rank's gradients times `weight`. About 2**`scale_exponent` is what the sum will be
        divided by; it must be the same on all ranks.
        """

    def sent_bytes(self) -> int:
        """The bytes that this rank has handed over since the beginning."""

    def relative_error(self) -> float:
        """‖sent - wanted‖ / ‖wanted‖ of this rank's last step."""

    def follow(self, before: BucketPlan, now: BucketPlan) -> None:
        """The buckets are others from now on; what belongs to a parameter goes with it, by its name."""

    def state_dict(self) -> dict[str, Tensor]:
        """What the next step needs of the earlier ones."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def codec_for(compress: str | TopK | Half | None) -> Codec | None:
    """The codec that was asked for; None for none."""
    if compress is None:
        return None
    if isinstance(compress, str) and compress in _DTYPES:
        return _HalfCodec(_DTYPES[compress])
    if isinstance(compress, Half):
        return _HalfCodec(_DTYPES[compress.dtype])
    if isinstance(compress, TopK):
        return _TopKCodec(compress.fraction)
    raise InvalidArgument(f"compress={compress!r} is not 'fp16', 'bf16', Half(...), TopK(...) or None")


class _Account:
    """What was sent, and how far it was off."""

    def __init__(self) -> None:
        self.bytes = 0
        self._wanted = 0.0
        self._missed = 0.0

    def add(self, bucket: Bucket, sent_bytes: int, wanted: Tensor, missed: Tensor) -> None:
        if bucket.index == 0:  # a new step
            self._wanted = self._missed = 0.0
        self.bytes += sent_bytes
        self._wanted += _squares(wanted)
        self._missed += _squares(missed)

    def relative_error(self) -> float:
        if not math.isfinite(self._wanted) or not math.isfinite(self._missed):
            return math.nan
        return math.sqrt(self._missed / self._wanted) if self._wanted else 0.0


class _HalfCodec:
    """Sums in 16 bits.

    The sum is that of a whole batch, and divided by its size only afterwards: more than float16 can hold. So values
    are divided by about that size before, by a power of two, which costs no digits. A finite value stays finite: what
    is too large for its share of the sum is cut off there (and the error shows it). What is not finite stays so, on
    all ranks, as loss scaling needs it.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._account = _Account()

    def exchange(self, bucket: Bucket, group: Communicator, weight: float, scale_exponent: int) -> None:
        values = _real(bucket.values)
        scaled = values * 2.0**-scale_exponent
        # A power of two below the largest number, so that as many as there are ranks never add up to more than it.
        limit = torch.finfo(self._dtype).max / 2.0 ** math.ceil(math.log2(group.size))
        sent = torch.where(scaled.isfinite(), scaled.clamp(-limit, limit), scaled).to(self._dtype)
        self._account.add(bucket, sent.numel() * sent.element_size(), scaled, sent.to(scaled.dtype) - scaled)
        group.all_reduce(_array(sent))
        values.copy_(sent).mul_(2.0**scale_exponent)

    def sent_bytes(self) -> int:
        return self._account.bytes

    def relative_error(self) -> float:
        return self._account.relative_error()

    def follow(self, before: BucketPlan, now: BucketPlan) -> None:
        pass  # nothing is kept from step to step

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class _TopKCodec:
    """Sends the largest values of a bucket with their places; the rest is the residual.

    The residual is kept per unit of weight. Batches differ in size, and what is owed to the mean of a large batch must
    not count many times as much when it is paid with a small one.
    """

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._residuals: dict[int, Tensor] = {}
        self._account = _Account()

    def exchange(self, bucket: Bucket, group: Communicator, weight: float, scale_exponent: int) -> None:
        values = _real(bucket.values)
        if values.numel() == 0:
            return
        residual = self._residual_of(bucket.index, values)
        if weight:
            wanted = torch.add(values, residual, alpha=weight)
        else:
            wanted = torch.zeros_like(values)  # a rank without data pays its debt when it has some again
        count = math.ceil(self._fraction * values.numel())
        # A NaN is the largest, then infinities: a step that must be skipped is skipped by all ranks.
        places = torch.topk(wanted.abs(), count, sorted=False).indices
        sent = wanted[places]
        message = torch.cat([sent.view(torch.uint8), places.int().view(torch.uint8)])
        if group.backend_name != "nccl":
            message = message.cpu()
        everything = message.new_empty(group.size * message.numel())
        group.all_gather_into_tensor(_array(everything), _array(message))
        missed = wanted.index_fill(0, places, 0)
        self._account.add(bucket, message.numel(), wanted, missed)
        if weight:
            # An infinity that was not sent is not owed: it belongs to a step that nobody can make.
            residual.copy_(torch.nan_to_num(missed / weight, 0.0, 0.0, 0.0))
        values.zero_()
        for theirs in everything.to(values.device).split(message.numel()):
            their_values, their_places = theirs.split([count * values.element_size(), count * 4])
            # Cloned, since a view of another dtype must begin where memory is aligned for it.
            values.index_add_(0, their_places.clone().view(torch.int32), their_values.clone().view(values.dtype))

    def _residual_of(self, index: int, values: Tensor) -> Tensor:
        residual = self._residuals.get(index)
        if residual is None or residual.numel() != values.numel():
            residual = torch.zeros_like(values)
        self._residuals[index] = residual = residual.to(values)
        return residual

    def sent_bytes(self) -> int:
        return self._account.bytes

    def relative_error(self) -> float:
        return self._account.relative_error()

    def follow(self, before: BucketPlan, now: BucketPlan) -> None:
        owed: dict[str, Tensor] = {}
        for bucket in before.buckets:
            if bucket.index in self._residuals:
                owed |= zip(bucket.names, self._residuals[bucket.index].split(_lengths(bucket)), strict=True)
        self._residuals = {
            bucket.index: torch.cat(
                [
                    owed[name].to(bucket.flat.device) if name in owed else bucket.flat.real.new_zeros(length)
                    for name, length in zip(bucket.names, _lengths(bucket), strict=True)
                ]
            )
            for bucket in now.buckets
            if any(name in owed for name in bucket.names)
        }

    def state_dict(self) -> dict[str, Tensor]:
        """What is owed, bucket by bucket, per unit of weight."""
        return {f"residual.{index}": residual.clone() for index, residual in sorted(self._residuals.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._residuals = {
            int(name.removeprefix("residual.")): residual.clone()
            for name, residual in state.items()
            if name.startswith("residual.")
        }


def _real(values: Tensor) -> Tensor:
    """Complex values as twice as many real ones, in the same memory."""
    return torch.view_as_real(values).view(-1) if values.is_complex() else values


def _lengths(bucket: Bucket) -> list[int]:
    """How many real numbers each parameter of a bucket has in it."""
    return [_real(view.reshape(-1)).numel() for view in bucket.views]


def _squares(values: Tensor) -> float:
    """The squared length, in float64, which does not overflow where the values do not."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


def _array(tensor: Tensor) -> Any:
    """For CPU memory the NumPy array over it, where NumPy has its dtype: groups have a shorter way for those."""
    return tensor.numpy() if tensor.is_cpu and tensor.dtype is not torch.bfloat16 else tensor
