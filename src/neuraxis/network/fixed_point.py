"""The scale of a receptor's accumulator.

What arrives at a receptor in one step is summed in 32-bit integers, so that the sum does not depend on the order. A
weight w is stored as the integer nearest to w / 2**exponent, with one exponent for each receptor of a population.
It must be small enough for the smallest weights to keep their precision (12 bits at least, 20 are enough) and
large enough for everything that can arrive in one step to stay below 2**31 (below 2**30 where that costs no
needed precision). Where no exponent does both, the network is refused when it is described, not when it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from neuraxis.errors import InvalidArgument

__all__ = ["Contribution", "check_range", "choose_exponent", "poisson_count_bound"]

LOWEST_BITS = 12
ENOUGH_BITS = 20
SUM_BITS = 31

# Rounding a weight that has 12 bits makes it larger by no more than this part (and half of it is to spare).
ROUNDING = 2.0**-LOWEST_BITS

# 2**exponent and weights divided by it are handled in float32.
LOWEST_EXPONENT, HIGHEST_EXPONENT = -100, 90


@dataclass(frozen=True)
class Contribution:
    """What one projection or input can add to a receptor in one step.

    Attributes:
        source: what to call it in an error.
        typical: the mean magnitude of its weights.
        largest: the largest magnitude that one can have.
        count: how many spikes can arrive at one neuron in one step.
    """

    source: str
    typical: float
    largest: float
    count: float

    @property
    def matters(self) -> bool:
        return self.largest > 0 and self.count > 0


def choose_exponent(contributions: Iterable[Contribution]) -> int:
    """The exponent of the finest scale that is safe; 0 if nothing contributes. Raises if there is none."""
    relevant = [contribution for contribution in contributions if contribution.matters]
    if not relevant:
        return 0
    weakest = min(relevant, key=lambda one: one.typical)
    if weakest.typical <= 0:
        raise InvalidArgument(f"{weakest.source}: a typical weight of {weakest.typical}: must be above 0")
    total = (1 + ROUNDING) * math.fsum(one.largest * one.count for one in relevant)
    finest = _floor_log2(weakest.typical) - ENOUGH_BITS
    coarsest = finest + ENOUGH_BITS - LOWEST_BITS
    safe = _floor_log2(total) + 2 - SUM_BITS  # the sum is below 2**30
    exponent = max(finest, safe)
    if exponent - 1 == coarsest:
        exponent = coarsest  # the sum is below 2**31
    if exponent > coarsest:
        strongest = max(relevant, key=lambda one: one.largest * one.count)
        raise InvalidArgument(
            f"{weakest.source}: weights of about {weakest.typical:g} are too small beside {strongest.source}, where "
            f"{strongest.count:,.0f} spikes of weight {strongest.largest:g} can arrive in one step; "
            "use weights nearer to each other, fewer synapses, or another receptor"
        )
    if not LOWEST_EXPONENT <= exponent <= HIGHEST_EXPONENT:
        raise InvalidArgument(
            f"{weakest.source}: weights of about {weakest.typical:g} are beyond float32; use another unit"
        )
    return exponent


def check_range(population: str, receptor: str, contributions: Iterable[Contribution]) -> None:
    """Raise, with the names of the population and the receptor, if `choose_exponent` finds none."""
    try:
        choose_exponent(contributions)
    except InvalidArgument as error:
        raise InvalidArgument(f"receptor {receptor!r} of population {population!r}: {error}") from None


def poisson_count_bound(rate_hz: float, dt_ms: float) -> float:
    """More spikes than a Poisson process of this rate gives in one step, beyond all likelihood."""
    mean = rate_hz * dt_ms / 1000
    return mean + 12 * math.sqrt(mean) + 30 if mean > 0 else 0.0


def _floor_log2(value: float) -> int:
    if not math.isfinite(value):
        raise InvalidArgument(f"weights that sum up to {value}: too large")
    # A mean of a cut distribution can differ in its last bits from machine to machine, and is often a power of two
    # but for these bits: rounded to six digits it is the same everywhere.
    return math.frexp(float(f"{value:.6g}"))[1] - 1
