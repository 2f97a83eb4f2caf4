"""Means over all samples of all ranks, however unevenly they were dealt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from neuraxis.comm import Communicator
from neuraxis.training.chosen_group import group_or_world

__all__ = ["Mean", "compute_means"]


class Mean:
    """A mean of values that each stand for some samples. `update` is local, `compute` is collective.

    A value that stands for no sample does not count, whatever it is: the mean loss of an empty batch is NaN.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0.0

    def update(self, value: Any, n: float = 1) -> None:
        """Count `value` (a number, or a tensor of one) as that of `n` samples."""
        if n:
            self.total += float(value) * n
            self.count += n

    def local(self) -> float:
        """The mean of this rank; NaN without a sample."""
        return self.total / self.count if self.count else float("nan")

    def compute(self, group: Communicator | None = None) -> float:
        """The mean over all ranks (of the world by default); NaN where no rank has a sample."""
        return compute_means({"": self}, group)[""]

    def reset(self) -> None:
        self.total = self.count = 0.0


def compute_means(means: Mapping[str, Mean], group: Communicator | None = None) -> dict[str, float]:
    """Several means over all ranks, in one exchange. All ranks have the same ones in the same order."""
    members = group_or_world(group, "Mean")
    sums = np.array([(mean.total, mean.count) for mean in means.values()], np.float64).reshape(-1, 2)
    if members is not None and sums.size:
        members.all_reduce(sums)
    return {
        name: float(total / count) if count else float("nan") for name, (total, count) in zip(means, sums, strict=True)
    }
