"""Gradient compression with a measured error.

A codec replaces the all-reduce of a bucket. It sends an approximation and measures it: `relative_error` is the norm of
the difference divided by the norm of the exact value, for the last step of this rank.

- `Half` rounds to 16 bits. Each rank's contribution is off by at most 2**-11 (bfloat16: 2**-8) of each value, and the
  sum is rounded once more. Nothing is carried to the next step.
- `TopK` sends the largest values with their indices. The rest is the residual, which is added to the gradients of the
  next step (error feedback), so `sent + residual == gradient + previous residual`, bit for bit. The relative error of a
  step is not bounded: with 1 % of the values it is near 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import torch
from torch import Tensor

from neuraxis.arguments import is_number
from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument
from neuraxis.training.parallel.buckets import Bucket, BucketPlan

__all__ = ["Codec", "Half", "TopK", "Traffic", "codec_for"]

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Half:
    """Compression to 16 bits: half the bytes of float32.

    fp16 has a relative error of at most 2**-11, loses digits of mean gradients below 6e-5, and rounds those below 3e-8
    to 0. bf16 has a relative error of at most 2**-8 over the range of float32.

    Parameters
    ----------
    dtype : {"fp16", "bf16"}
        Type that is sent.

    Raises
    ------
    InvalidArgument
        If `dtype` is unknown.

    Examples
    --------
    >>> from neuraxis.training import Half
    >>> Half("bf16")
    Half(dtype='bf16')
    """

    dtype: Literal["fp16", "bf16"] = "fp16"

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise InvalidArgument(f"Half: dtype={self.dtype!r} is not one of {', '.join(_DTYPES)}")


@dataclass(frozen=True)
class TopK:
    """Compression to the largest gradients, with error feedback.

    Finding the largest values takes longer than sending everything over shared memory; it pays on a slow network.

    Parameters
    ----------
    fraction : float
        Fraction of the values of each bucket that is sent, in (0, 1].

    Raises
    ------
    InvalidArgument
        If `fraction` is out of range.

    Examples
    --------
    >>> from neuraxis.training import TopK
    >>> TopK(0.05)
    TopK(fraction=0.05)
    """

    fraction: float = 0.01

    def __post_init__(self) -> None:
        if not is_number(self.fraction) or not 0 < self.fraction <= 1:
            raise InvalidArgument(f"TopK: fraction={self.fraction!r} must be a number above 0 and at most 1")


class Traffic(msgspec.Struct, frozen=True):
    """Bytes that one rank has sent for its gradients since the start, as `DataParallel.traffic` returns.

    Attributes
    ----------
    steps : int
        Number of gradient exchanges.
    bytes_sent : int
        Bytes that this rank has sent.
    bytes_uncompressed : int
        Bytes that it would have sent without compression.
    relative_error : float
        ‖sent - exact‖ / ‖exact‖ of this rank's gradients in the last step; 0 without compression, NaN if a gradient was
        not finite.

    Examples
    --------
    >>> from neuraxis.training import Traffic
    >>> Traffic(steps=10, bytes_sent=50, bytes_uncompressed=200, relative_error=0.1).saved
    0.75
    """

    steps: int
    bytes_sent: int
    bytes_uncompressed: int
    relative_error: float

    @property
    def saved(self) -> float:
        """Fraction of the bytes that compression has saved."""
        return 1.0 - self.bytes_sent / self.bytes_uncompressed if self.bytes_uncompressed else 0.0

    def __str__(self) -> str:
        return (
            f"{self.steps} steps, {self.bytes_sent:,} bytes sent instead of {self.bytes_uncompressed:,} "
            f"({self.saved:.1%} saved), relative error of the last step {self.relative_error:.2g}"
        )


class Codec(Protocol):
    """Lossy all-reduce of buckets. One codec per model, called for each bucket of a step in order of index."""

    def exchange(self, bucket: Bucket, group: Communicator, weight: float, scale_exponent: int) -> None:
        """Replace `bucket.values` by the sum over the ranks of what each has sent.

        `bucket.values` are this rank's gradients times `weight`. The sum will be divided by about 2**`scale_exponent`,
        which is equal on all ranks.
        """

    def sent_bytes(self) -> int:
        """Return the bytes that this rank has sent since the start."""

    def relative_error(self) -> float:
        """Return ‖sent - exact‖ / ‖exact‖ of this rank's last step."""

    def follow(self, before: BucketPlan, now: BucketPlan) -> None:
        """Move per-parameter state, by name, from the buckets `before` to those of `now`."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what the next step needs of the earlier ones."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def codec_for(compress: str | TopK | Half | None) -> Codec | None:
    """Return the codec for the `compress` option; None for no compression."""
    if compress is None:
        return None
    if isinstance(compress, str) and compress in _DTYPES:
        return _HalfCodec(_DTYPES[compress])
    if isinstance(compress, Half):
        return _HalfCodec(_DTYPES[compress.dtype])
    if isinstance(compress, TopK):
        return _TopKCodec(compress.fraction)
    raise InvalidArgument(f"compress={compress!r} is not one of 'fp16', 'bf16', Half(...), TopK(...) and None")


class _ErrorMeter:
    """Bytes sent and error of the last step."""

    def __init__(self) -> None:
        self.bytes = 0
        self._exact_squares = 0.0
        self._missed_squares = 0.0

    def add(self, bucket: Bucket, sent_bytes: int, exact: Tensor, missed: Tensor) -> None:
        if bucket.index == 0:  # a new step
            self._exact_squares = self._missed_squares = 0.0
        self.bytes += sent_bytes
        self._exact_squares += _squares(exact)
        self._missed_squares += _squares(missed)

    def relative_error(self) -> float:
        if not math.isfinite(self._exact_squares) or not math.isfinite(self._missed_squares):
            return math.nan
        return math.sqrt(self._missed_squares / self._exact_squares) if self._exact_squares else 0.0


class _HalfCodec:
    """All-reduce in 16 bits.

    The sum over a global batch is divided by its size only afterwards, so it can exceed the range of float16. So values
    are first divided by about that size, by a power of two, which costs no digits. A finite value stays finite: it is
    clamped to its share of the range, and the error shows that. Infinities and NaN stay so on all ranks, as loss
    scaling requires.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._meter = _ErrorMeter()

    def exchange(self, bucket: Bucket, group: Communicator, weight: float, scale_exponent: int) -> None:
        values = _real(bucket.values)
        scaled = values * 2.0**-scale_exponent
        # The maximum divided by a power of two, so that the values of all ranks cannot add up to more than it.
        limit = torch.finfo(self._dtype).max / 2.0 ** math.ceil(math.log2(group.size))
        sent = torch.where(scaled.isfinite(), scaled.clamp(-limit, limit), scaled).to(self._dtype)
        self._meter.add(bucket, sent.numel() * sent.element_size(), scaled, sent.to(scaled.dtype) - scaled)
        group.all_reduce(_array(sent))
        values.copy_(sent).mul_(2.0**scale_exponent)

    def sent_bytes(self) -> int:
        return self._meter.bytes

    def relative_error(self) -> float:
        return self._meter.relative_error()

    def follow(self, before: BucketPlan, now: BucketPlan) -> None:
        pass  # no state between steps

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class _TopKCodec:
    """All-gather of the largest values of a bucket with their indices; the rest is the residual.

    The residual is kept per unit of weight, because batches differ in size: the residual of a large batch must not
    count many times as much when it is added to a small one.
    """

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._residuals: dict[int, Tensor] = {}
        self._meter = _ErrorMeter()

    def exchange(self, bucket: Bucket, group: Communicator, weight: float, scale_exponent: int) -> None:
        values = _real(bucket.values)
        if values.numel() == 0:
            return
        residual = self._residual_of(bucket.index, values)
        if weight:
            exact = torch.add(values, residual, alpha=weight)
        else:
            exact = torch.zeros_like(values)  # a rank without data keeps its residual
        count = math.ceil(self._fraction * values.numel())
        # topk ranks NaN first, then infinities, so all ranks skip a step with one.
        places = torch.topk(exact.abs(), count, sorted=False).indices
        sent = exact[places]
        message = torch.cat([sent.view(torch.uint8), places.int().view(torch.uint8)])
        if group.backend_name != "nccl":
            message = message.cpu()
        everything = message.new_empty(group.size * message.numel())
        group.all_gather_into_tensor(_array(everything), _array(message))
        missed = exact.index_fill(0, places, 0)
        self._meter.add(bucket, message.numel(), exact, missed)
        if weight:
            # An infinity that was not sent is dropped: its step is skipped.
            residual.copy_(torch.nan_to_num(missed / weight, 0.0, 0.0, 0.0))
        values.zero_()
        for theirs in everything.to(values.device).split(message.numel()):
            their_values, their_places = theirs.split([count * values.element_size(), count * 4])
            # Cloned, because a view of another dtype must be aligned for it.
            values.index_add_(0, their_places.clone().view(torch.int32), their_values.clone().view(values.dtype))

    def _residual_of(self, index: int, values: Tensor) -> Tensor:
        residual = self._residuals.get(index)
        if residual is None or residual.numel() != values.numel():
            residual = torch.zeros_like(values)
        self._residuals[index] = residual = residual.to(values)
        return residual

    def sent_bytes(self) -> int:
        return self._meter.bytes

    def relative_error(self) -> float:
        return self._meter.relative_error()

    def follow(self, before: BucketPlan, now: BucketPlan) -> None:
        residuals: dict[str, Tensor] = {}
        for bucket in before.buckets:
            if bucket.index in self._residuals:
                residuals |= zip(bucket.names, self._residuals[bucket.index].split(_lengths(bucket)), strict=True)
        self._residuals = {
            bucket.index: torch.cat(
                [
                    residuals[name].to(bucket.flat.device) if name in residuals else bucket.flat.real.new_zeros(length)
                    for name, length in zip(bucket.names, _lengths(bucket), strict=True)
                ]
            )
            for bucket in now.buckets
            if any(name in residuals for name in bucket.names)
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return the residuals of all buckets, per unit of weight."""
        return {f"residual.{index}": residual.clone() for index, residual in sorted(self._residuals.items())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._residuals = {
            int(name.removeprefix("residual.")): residual.clone()
            for name, residual in state.items()
            if name.startswith("residual.")
        }


def _real(values: Tensor) -> Tensor:
    """Return complex values as twice as many real ones, in the same memory."""
    return torch.view_as_real(values).view(-1) if values.is_complex() else values


def _lengths(bucket: Bucket) -> list[int]:
    """Return the number of real values of each parameter of a bucket."""
    return [_real(view.reshape(-1)).numel() for view in bucket.views]


def _squares(values: Tensor) -> float:
    """Return the squared norm, in float64 to avoid overflow."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


def _array(tensor: Tensor) -> Any:
    """Return CPU memory as a NumPy array if NumPy has the dtype, for which groups have a fast path."""
    return tensor.numpy() if tensor.is_cpu and tensor.dtype is not torch.bfloat16 else tensor
