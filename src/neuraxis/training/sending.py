"""How packed buckets get to the other ranks: in order, the early ones in a thread, the last one in the caller's."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from neuraxis.comm import Communicator
from neuraxis.training.buckets import Bucket

if TYPE_CHECKING:
    from neuraxis.training.compression import Codec

__all__ = ["Sender"]


class Sender:
    """Sums buckets over the ranks of `group`; does nothing where there is none.

    Args:
        codec: takes the place of the sum of all buckets but the last, which has the control words.
        overlap: whether buckets travel while the caller goes on.
        divided: whether sums will be divided by the number of samples, which codecs want to know about.
        loss_scale: what the loss, and so every gradient, is multiplied by now. It changes from step to step, and what a
            codec keeps for later steps must not.

    Attributes:
        bytes_plain: what was sent without a codec, since the beginning.
        bytes_wanted: what would have been sent without a codec, since the beginning.
        exponent: about the logarithm (base 2) of what sums are divided by; None if that is not known yet. All ranks
            have the same.
    """

    def __init__(
        self,
        group: Communicator | None,
        codec: Codec | None,
        overlap: bool,
        divided: bool,
        loss_scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.group = group
        self._loss_scale = loss_scale
        self.codec = codec
        self.overlap = overlap
        self.bytes_plain = 0
        self.bytes_wanted = 0
        self.exponent: int | None = None if divided else 0
        self._under_way: list[Any] = []
        self._thread: ThreadPoolExecutor | None = None

    def start(self, bucket: Bucket, weight: float) -> None:
        """Begin to sum a bucket, whose values are gradients times `weight`; done when `finish` returns."""
        group = self.group
        if group is None:
            return
        _in_order_of_streams(bucket)
        self.bytes_wanted += bucket.nbytes
        if self.codec is None:
            self.bytes_plain += bucket.nbytes
            array = bucket.flat if bucket.array is None else bucket.array
            work = group.all_reduce(array, async_op=self.overlap)
            if work is not None:
                self._under_way.append(work.wait)
        elif self.overlap:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "neuraxis-gradients")
            self._under_way.append(self._thread.submit(self._compressed, bucket, weight).result)
        else:
            self._compressed(bucket, weight)

    def finish(self, tail: Bucket) -> None:
        """Sum the last bucket, and return when all buckets are summed."""
        group = self.group
        if group is None:
            return
        if self._under_way:
            for wait in self._under_way:
                wait()
            self._under_way.clear()
        self.bytes_plain += tail.nbytes
        self.bytes_wanted += tail.nbytes
        group.all_reduce(tail.flat if tail.array is None else tail.array)

    def divided_by(self, samples: float) -> None:
        """What the sums of a step were divided by: a good guess for the next."""
        if samples > 0:
            self.exponent = math.ceil(math.log2(samples))

    def forget(self) -> None:
        """Wait no longer for what is under way."""
        self._under_way.clear()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _compressed(self, bucket: Bucket, weight: float) -> None:
        assert self.group is not None
        assert self.codec is not None
        with torch.no_grad():
            if self.exponent is None:  # in the first step only: later ones go by the one before
                samples = np.array([weight])
                self.group.all_reduce(samples)
                self.exponent = math.ceil(math.log2(samples[0])) if samples[0] > 0 else 0
            self.codec.exchange(bucket, self.group, weight * self._loss_scale(), self.exponent)


def _in_order_of_streams(bucket: Bucket) -> None:
    """Whoever sends uses the default stream of the GPU: let it wait for the stream that packs."""
    if bucket.flat.is_cuda:
        mine, default = torch.cuda.current_stream(bucket.flat.device), torch.cuda.default_stream(bucket.flat.device)
        if mine != default:
            default.wait_stream(mine)
