"""How an action is chosen: by what speaks for it, at random where that is nearly the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.network.arithmetic import exp

__all__ = ["Choice", "by_group", "choose", "uniform"]

_MASK = 2**64 - 1


@dataclass(frozen=True)
class Choice:
    """A choice: which action, what spoke for each, and which reward was expected of it."""

    action: int
    values: tuple[float, ...]
    expected_reward: float

    def as_json(self) -> dict[str, Any]:
        return {"action": self.action, "values": list(self.values), "expected_reward": self.expected_reward}


def choose(values: NDArray[np.float64], temperature: float, random: float) -> int:
    """An action with a probability that grows by e for each `temperature` that its value is ahead.

    `random` is from 0 to 1; the arithmetic is the same on every machine.
    """
    best = float(values.max())
    weights = [exp((float(value) - best) / temperature) for value in values]
    target = random * sum(weights)
    reached = 0.0
    for action, weight in enumerate(weights):
        reached += weight
        if target < reached:
            return action
    return int(values.argmax())


def uniform(seed: int, number: int) -> float:
    """The number-th random number of a seed, from 0 to below 1: always the same."""
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 0x2545F4914F6CDD1D) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return ((x ^ (x >> 31)) >> 11) / 2**53


def by_group(rates: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """The mean of each of `groups` equal parts."""
    ends = [len(rates) * group // groups for group in range(groups + 1)]
    return np.array([rates[ends[g] : ends[g + 1]].mean() for g in range(groups)], np.float64)
