"""What travels behind the gradients of the last bucket: each rank's samples, and which parameters were used."""

from __future__ import annotations

import numpy as np
import torch

from neuraxis.training.buckets import BucketPlan

__all__ = ["SHADOW", "ControlWords"]

SHADOW = -1.0  # in place of a number of samples, by a rank that has no more data


class ControlWords:
    """The control words of a plan. Each rank writes its own; their sum is everybody's.

    `used` has a byte for each parameter, which is 1 where this rank has used it when the words are written.
    """

    def __init__(self, plan: BucketPlan, rank: int, used: bytearray) -> None:
        self._rank = rank
        self._mine = np.frombuffer(used, np.uint8)
        self._size = plan.weights.numel()
        self._weights, self._used = plan.weights, plan.used
        tail = plan.buckets[-1]
        self._array = None if tail.array is None else tail.array[tail.values.numel() :]

    def write(self, samples: float) -> None:
        """This rank had so many samples."""
        array = self._array
        if array is not None:
            array[: self._size] = 0.0
            array[self._rank] = samples
            array[self._size :] = self._mine
        else:
            self._weights.zero_()
            self._weights[self._rank] = samples
            self._used.copy_(torch.from_numpy(self._mine))

    def read(self) -> tuple[list[float], list[float]]:
        """The samples of each rank, and by how many ranks each parameter was used."""
        if self._array is None:
            return self._weights.tolist(), self._used.tolist()
        words: list[float] = self._array.tolist()
        return words[: self._size], words[self._size :]
