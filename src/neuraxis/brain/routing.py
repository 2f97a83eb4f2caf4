"""Routing by entropy: where a thought goes, surely where one target stands out, and tentatively where none does.

Scores become probabilities (softmax); their entropy H says how undecided they are, from 0 to H_max = ln n.
alpha = cos²(πH / 2H_max) falls from 1 (decided) to 0 (all the same), and 1/(alpha + epsilon) is the temperature at
which a target is drawn: near 1 the scores decide, near 1/epsilon all targets are about as likely, so that what nobody
is good at is tried by everybody. Only targets that are there are drawn; where none is, the fallback gets it.
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
    """Where something goes, and why.

    Attributes:
        target: None if no target is there and there is no fallback.
        is_fallback: whether none of the targets was there.
        entropy: of the scores, from 0 to `largest_entropy`, over all targets, whether they are there or not.
        alpha: how decided that is, from 0 to 1.
        temperature: at which the target was drawn.
        probabilities: with which each target that is there was drawn.
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
    """Draw one of the targets that are `live`, by their scores.

    `random` is from 0 to below 1 (see `choice.uniform`), and the targets are gone through in the order of their names:
    the same scores and the same number give the same target, in whatever order the scores came. The fallback is not
    asked whether it is there: whoever sends to it finds out.
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
    """Probabilities in proportion to e^(score / temperature)."""
    if not scores:
        return {}
    best = max(scores.values())
    weights = {name: exp((score - best) / temperature) for name, score in scores.items()}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _entropy(probabilities: Mapping[str, float]) -> float:
    """In nats."""
    return max(0.0, -sum(p * log(p) for p in probabilities.values() if p > 0))


def _squared_cosine(x: float) -> float:
    """cos²(πx / 2) for x from 0 to 1, as (1 + cos πx) / 2.

    By a sum of fixed length, since a library's cosine may differ from another's in its last bit, and a draw with it.
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
