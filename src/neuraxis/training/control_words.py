"""What travels behind the gradients of the last bucket: each rank's samples and buffers, and what was used."""

from __future__ import annotations

import numpy as np
import torch

from neuraxis.training.buckets import BucketPlan

__all__ = ["SHADOW", "ControlWords"]

SHADOW = -1.0  # in place of a number of samples, by a rank that has no more data
_LARGEST = 1 << 24  # up to which float32 counts; of larger sizes the rest is compared


class ControlWords:
    """The control words of a plan. Each rank writes its own; their sum is everybody's.

    `used` has a byte for each parameter, which is 1 where this rank has used it when the words are written.
    """

    def __init__(self, plan: BucketPlan, rank: int, used: bytearray) -> None:
        self._rank = rank
        self._mine = np.frombuffer(used, np.uint8)
        self._size = plan.weights.numel()
        self._weights, self._sizes, self._used = plan.weights, plan.sizes, plan.used
        tail = plan.buckets[-1]
        self._array = None if tail.array is None else tail.array[tail.values.numel() :]

    def write(self, samples: float, buffer_bytes: int) -> None:
        """This rank had so many samples, and has buffers of so many bytes."""
        array, size = self._array, self._size
        if array is not None:
            array[: 2 * size] = 0.0
            array[self._rank] = samples
            array[size + self._rank] = buffer_bytes % _LARGEST
            array[2 * size :] = self._mine
        else:
            self._weights.zero_()
            self._weights[self._rank] = samples
            self._sizes.zero_()
            self._sizes[self._rank] = buffer_bytes % _LARGEST
            self._used.copy_(torch.from_numpy(self._mine))

    def read(self) -> tuple[list[float], list[float], list[float]]:
        """The samples of each rank, the sizes of their buffers, and by how many ranks each parameter was used."""
        if self._array is None:
            return self._weights.tolist(), self._sizes.tolist(), self._used.tolist()
        words: list[float] = self._array.tolist()
        return words[: self._size], words[self._size : 2 * self._size], words[2 * self._size :]
