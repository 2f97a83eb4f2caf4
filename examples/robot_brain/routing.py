"""Routing by entropy: choose the target that stands out, and explore where no target does.

The softmax of the scores gives probabilities; their entropy H, from 0 to H_max = ln n, measures how undecided they are.
alpha = cos²(πH / 2H_max) falls from 1 (decided) to 0 (uniform), and 1/(alpha + epsilon) is the temperature at which a
target is drawn: near 1 the scores decide, near 1/epsilon all targets are about equally likely. Only live targets are
drawn; if there is none, the fallback is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp, log

__all__ = ["EPSILON", "Route", "route", "softmax"]

EPSILON = 1e-3


@dataclass(frozen=True)
class Route:
    """The chosen target and the quantities that led to it.

    Attributes
    ----------
    target : str or None
        None if no target is live and there is no fallback.
    is_fallback : bool
        True if no target was live.
    entropy : float
        Entropy of the scores of all targets, live or not, in nats, from 0 to `largest_entropy`.
    alpha : float
        Decidedness, from 0 (uniform) to 1.
    temperature : float
        Temperature of the draw.
    probabilities : dict
        Probability of each live target.
    """

    target: str | None
    is_fallback: bool
    entropy: float
    largest_entropy: float
    alpha: float
    temperature: float
    probabilities: Mapping[str, float] = field(default_factory=dict)


def route(
    scores: Mapping[str, float],
    live: Collection[str],
    random: float,
    fallback: str | None = None,
    epsilon: float = EPSILON,
) -> Route:
    """Draw one of the `live` targets according to their scores.

    Targets are ordered by name, so the same scores and the same `random` number, 0 <= random < 1, give the same target
    whatever the order of `scores`. The fallback need not be live.

    >>> route({"ball": 5.0, "box": 0.0}, live={"ball", "box"}, random=0.2).target
    'ball'
    """
    if not 0 <= random < 1:
        raise InvalidArgument(f"random={random!r}: a number from 0 to below 1 is expected")
    if not 0 < epsilon < math.inf:
        raise InvalidArgument(f"epsilon={epsilon!r}: a number above 0 is expected")
    for name, score in scores.items():
        if not math.isfinite(score):
            raise InvalidArgument(f"scores[{name!r}]={score!r}: a finite number is expected")
    scores = dict(sorted(scores.items()))
    entropy = _entropy(softmax(scores))
    largest = log(len(scores)) if scores else 0.0
    alpha = _squared_cosine(min(1.0, entropy / largest)) if largest else 1.0
    temperature = 1 / (alpha + epsilon)
    probabilities = softmax({name: score for name, score in scores.items() if name in live}, temperature)
    target = _draw(probabilities, random) if probabilities else fallback
    return Route(target, not probabilities, entropy, largest, alpha, temperature, probabilities)


def softmax(scores: Mapping[str, float], temperature: float = 1.0) -> dict[str, float]:
    """Return probabilities in proportion to e^(score / temperature)."""
    if not scores:
        return {}
    best = max(scores.values())
    weights = {name: exp((score - best) / temperature) for name, score in scores.items()}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _entropy(probabilities: Mapping[str, float]) -> float:
    """Return the entropy in nats."""
    return max(0.0, -sum(p * log(p) for p in probabilities.values() if p > 0))


def _squared_cosine(x: float) -> float:
    """Return cos²(πx / 2) for x from 0 to 1, as (1 + cos πx) / 2.

    A sum of fixed length gives the same bits on every platform; library cosines may differ in the last one.
    """
    angle = math.pi * min(x, 1 - x)
    cosine = term = 1.0
    for k in range(2, 26, 2):
        term *= -angle * angle / (k * (k - 1))
        cosine += term
    return (1 + (cosine if x <= 0.5 else -cosine)) / 2


def _draw(probabilities: Mapping[str, float], random: float) -> str:
    reached = 0.0
    for name, probability in probabilities.items():
        reached += probability
        if random < reached:
            return name
    # Rounding may leave the sum a little below 1.
    return max(probabilities, key=lambda name: (probabilities[name], name))
