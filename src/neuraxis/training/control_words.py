"""What travels behind the gradients of the last bucket: each rank's samples and buffers, and what was used."""

from __future__ import annotations

from typing import Any

import torch

from neuraxis.comm import Communicator
from neuraxis.errors import ModelMismatch
from neuraxis.training.buckets import BucketPlan

__all__ = ["CHANGED", "SHADOW", "ControlWords", "check_all_have_changed", "check_sizes_of_buffers"]

# In place of a number of samples:
SHADOW = -1.0  # by a rank that has no more data
CHANGED = -2.0  # by one whose model is no longer what the buckets were planned for
_LARGEST = 1 << 24  # up to which float32 counts; of larger sizes the rest is compared


class ControlWords:
    """The control words of a plan. Each rank writes its own; their sum is everybody's.

    `used` has a byte for each parameter, which is 1 where this rank has used it when the words are written.
    """

    def __init__(self, plan: BucketPlan, rank: int, used: bytearray) -> None:
        self._rank = rank
        self._mine = used
        self._size = plan.weights.numel()
        tail = plan.buckets[-1]
        words = tail.flat[tail.values.numel() :]
        # What most ranks have to say: nothing for the others, and that every parameter was used.
        usual = torch.zeros_like(words)
        usual[2 * self._size :] = 1
        # By Python's own means: to find NumPy's and torch's anew, where caches are cold, takes longer than their work.
        self._words: Any = words if tail.array is None else memoryview(words.numpy().data)
        self._usual: Any = usual if tail.array is None else memoryview(usual.numpy().data)
        self._samples: Any = self._words[: self._size]
        self._sizes: Any = self._words[self._size : 2 * self._size]
        self._used: Any = self._words[2 * self._size :]

    def write(self, samples: float, buffer_bytes: int) -> None:
        """This rank had so many samples, and has buffers of so many bytes."""
        self._words[:] = self._usual
        self._samples[self._rank] = samples
        if buffer_bytes:
            self._sizes[self._rank] = float(buffer_bytes % _LARGEST)
        if 0 in self._mine:
            for place, is_used in enumerate(self._mine):
                if not is_used:
                    self._used[place] = 0.0

    def samples(self) -> list[float]:
        """Those of each rank."""
        answer: list[float] = self._samples.tolist()
        return answer

    def buffer_sizes(self) -> list[float]:
        """The bytes of each rank's buffers; of large ones the rest, but the same for the same."""
        answer: list[float] = self._sizes.tolist()
        return answer

    def used(self) -> list[float]:
        """By how many ranks each parameter was used."""
        answer: list[float] = self._used.tolist()
        return answer


def check_all_have_changed(samples: list[float], group: Communicator) -> None:
    """ModelMismatch unless every rank says CHANGED in place of its samples."""
    changed = [group.ranks[rank] for rank, word in enumerate(samples) if word == CHANGED]
    if len(changed) < len(samples):
        raise ModelMismatch(
            f"what is trained of the model was changed on rank {', '.join(map(str, changed))} alone (a layer frozen or "
            "thawed, the module moved, a state assigned to it): do the same on all ranks, before the same step",
            rank=changed[0],
        )


def check_sizes_of_buffers(sizes: list[float]) -> None:
    """ModelMismatch unless all ranks' buffers have the same size."""
    other = next((rank for rank, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise ModelMismatch(
            f"the buffers of the model have {sizes[0]:.0f} bytes on the first rank and {sizes[other]:.0f} on rank "
            f"{other} of the group, so they cannot be made the same; DataParallel(..., buffers='keep') leaves each "
            "rank its own",
            rank=other,
        )
