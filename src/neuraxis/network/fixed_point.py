"""Fixed-point scales of the accumulators in which receptors sum weights.

The weights that arrive at a receptor in one step are summed in 32-bit integers, so that the sum does not depend on the
order of addition. A weight w is stored as the integer nearest to w / 2**exponent. The exponent must be small enough to
keep the precision of the smallest weights (at least 12 bits, at most 20 are needed), and large enough for the sum of
all weights that can arrive in one step to stay below 2**31 (below 2**30 where precision allows).

`choose_scales` tries the following, in this order:

1. one exponent that is safe if every synapse has the largest possible weight and all fire in one step
   (`largest * count`);
2. one exponent that is safe if all synapses fire in one step, with the sum of their weights bounded by Bernstein's
   inequality (`likely`), which a draw exceeds with a probability below e**-100. The engine sums the drawn weights when
   it builds the network, and raises if the bound is exceeded;
3. several accumulators with different exponents, which sources of similar weights share. The neuron adds them up. A
   source whose own weights need more range than one accumulator has (more than half a million equal weights) keeps
   fewer than 12 bits, but at least 8.

Networks in float64 sum in 64-bit integers, with 52 bits for the smallest weights (at least 32).

No sum can therefore overflow while a network runs, whichever neurons fire together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neuraxis.errors import InvalidArgument

__all__ = [
    "SUMS",
    "WIDE_SUMS",
    "Contribution",
    "FixedPoint",
    "Scales",
    "check_range",
    "choose_exponent",
    "choose_scales",
    "likely_sum",
    "poisson_count_bound",
]

FEWEST_BITS = 8  # for a source that has an accumulator of its own

# Per receptor. Four of them span more than the range of float32.
MOST_ACCUMULATORS = 4

# A sum exceeds `likely_sum` with probability exp(-UNLIKELY).
UNLIKELY = 100.0

# 2**exponent and weights divided by it must be float32 numbers.
HIGHEST_EXPONENT = 90


@dataclass(frozen=True)
class FixedPoint:
    """The integers in which weights are summed."""

    sum_bits: int  # of a sum, without sign
    lowest_bits: int  # of the smallest weights
    enough_bits: int
    lowest_exponent: int

    @property
    def limit(self) -> int:
        return 2**self.sum_bits  # type: ignore[no-any-return]

    @property
    def rounding(self) -> float:
        """Bound of the relative increase of a weight of `lowest_bits` by rounding (twice what is possible)."""
        return 2.0**-self.lowest_bits


SUMS = FixedPoint(sum_bits=31, lowest_bits=12, enough_bits=20, lowest_exponent=-100)
WIDE_SUMS = FixedPoint(sum_bits=62, lowest_bits=32, enough_bits=52, lowest_exponent=-120)  # of networks in float64


@dataclass(frozen=True)
class Contribution:
    """Largest contribution of one projection or input to a receptor of one neuron in one step.

    Weights are in the unit of the receptor.

    Parameters
    ----------
    source : str
        Name of the projection or input, for error messages.
    typical : float
        Mean magnitude of the weights.
    largest : float
        Largest possible magnitude of a weight.
    count : float
        Largest number of spikes in one step.
    likely : float
        Bound of the sum of magnitudes, exact or with overwhelming probability; infinity if only `largest * count` is
        known.

    Examples
    --------
    >>> Contribution("projection 'E->E'", typical=0.5, largest=1.0, count=100).most
    100.0
    """

    source: str
    typical: float
    largest: float
    count: float
    likely: float = math.inf

    @property
    def matters(self) -> bool:
        """True if anything other than 0 can arrive."""
        return self.largest > 0 and self.count > 0

    @property
    def most(self) -> float:
        """Largest possible sum: all synapses fire, each with the largest weight."""
        return self.largest * self.count


@dataclass(frozen=True)
class Scales:
    """The accumulators of a receptor.

    Attributes
    ----------
    exponents : tuple of int
        Exponent of each accumulator.
    places : tuple of int
        For each contribution, the index of its accumulator.
    proven : bool
        True if no sum can overflow, whatever is drawn; otherwise the engine must check the drawn weights.
    """

    exponents: tuple[int, ...]
    places: tuple[int, ...]
    proven: bool


def likely_sum(mean_count: float, typical: float, largest: float) -> float:
    """Return a bound that the sum of one neuron's weights exceeds with probability below e**-100.

    Bernstein's inequality for independent weights of mean magnitude `typical` and largest magnitude `largest`, with
    `mean_count` synapses on average. `typical` counts twice, because the mean of a limited distribution is known only
    roughly.
    """
    mean = mean_count * min(2 * typical, largest)
    return mean + math.sqrt(2 * UNLIKELY * mean * largest) + 2 * UNLIKELY * largest / 3


def choose_scales(contributions: Sequence[Contribution], sums: FixedPoint = SUMS) -> Scales:
    """Return the accumulators of a receptor; raise if no accumulators can represent the weights."""
    everywhere = (0,) * len(contributions)
    relevant = [place for place, one in enumerate(contributions) if one.matters]
    if not relevant:
        return Scales((0,), everywhere, True)
    for proven in (True, False):
        exponent = _exponent([contributions[place] for place in relevant], proven, sums)
        if exponent is not None:
            return Scales((exponent,), everywhere, proven)
    # Group the sources from the strongest to the weakest; a source that would lose precision starts a new group.
    relevant.sort(key=lambda place: (-contributions[place].typical, place))
    groups: list[list[int]] = []
    for place in relevant:
        grown = [*groups[-1], place] if groups else [place]
        if groups and _exponent([contributions[one] for one in grown], False, sums) is not None:
            groups[-1] = grown
        else:
            groups.append([place])
    if len(groups) > MOST_ACCUMULATORS:
        strongest, weakest = contributions[relevant[0]], contributions[relevant[-1]]
        raise InvalidArgument(
            f"{weakest.source}: weights of about {weakest.typical:g} and those of {strongest.source} of up to "
            f"{strongest.largest:g} are too far apart for one receptor; use another receptor for some of them"
        )
    exponents, places, proven = [], [0] * len(contributions), True
    for number, group in enumerate(groups):
        members = [contributions[one] for one in group]
        chosen = _exponent(members, False, sums)
        exponents.append(_coarse_exponent(members[0], sums) if chosen is None else chosen)
        rounding = 2.0**-FEWEST_BITS if chosen is None else sums.rounding
        largest_sum = (1 + rounding) * math.fsum(one.most for one in members)
        proven = proven and largest_sum < sums.limit * 2.0 ** exponents[-1]
        for one in group:
            places[one] = number
    return Scales(tuple(exponents), tuple(places), proven)


def choose_exponent(contributions: Iterable[Contribution]) -> int:
    """Return the exponent of a receptor's first accumulator.

    Parameters
    ----------
    contributions : iterable of Contribution
        All projections and inputs of the receptor.

    Returns
    -------
    int
        The exponent: weights are stored in units of 2**exponent. 0 if nothing contributes.

    Raises
    ------
    InvalidArgument
        No accumulators can represent the weights.

    Examples
    --------
    >>> choose_exponent([Contribution("projection 'E->E'", typical=1.0, largest=1.0, count=100)])
    -20
    """
    return choose_scales(list(contributions)).exponents[0]


def check_range(population: str, receptor: str, contributions: Sequence[Contribution], sums: FixedPoint = SUMS) -> None:
    """Raise if no accumulators can represent the weights that arrive at a receptor.

    Parameters
    ----------
    population, receptor : str
        Names for the error message.
    contributions : sequence of Contribution
        All projections and inputs of the receptor.
    sums : FixedPoint
        The integers in which weights are summed.

    Raises
    ------
    InvalidArgument
        The weights are too different, too many or beyond float32.

    Examples
    --------
    >>> check_range("E", "input_pa", [Contribution("projection 'E->E'", 1.0, 1.0, count=100)])
    """
    try:
        choose_scales(contributions, sums)
    except InvalidArgument as error:
        raise InvalidArgument(f"receptor {receptor!r} of population {population!r}: {error}") from None


def poisson_count_bound(rate_hz: float, dt_ms: float) -> float:
    """Return a number of spikes that a Poisson process practically never exceeds in one step."""
    mean = rate_hz * dt_ms / 1000
    return mean + 12 * math.sqrt(mean) + 30 if mean > 0 else 0.0


def _exponent(relevant: Sequence[Contribution], proven: bool, sums: FixedPoint) -> int | None:
    """Return the smallest safe exponent, or None; with `proven` it is safe whatever is drawn."""
    weakest = min(relevant, key=lambda one: one.typical)
    if weakest.typical <= 0:
        raise InvalidArgument(f"{weakest.source}: a typical weight of {weakest.typical}: must be above 0")
    total = (1 + sums.rounding) * math.fsum(one.most if proven else min(one.likely, one.most) for one in relevant)
    finest = _floor_log2(weakest.typical) - sums.enough_bits
    coarsest = finest + sums.enough_bits - sums.lowest_bits
    safe = _floor_log2(total) + 2 - sums.sum_bits  # the sum is below half of the limit
    exponent = max(finest, safe)
    if exponent - 1 == coarsest:
        exponent = coarsest  # the sum is below the limit
    return None if exponent > coarsest else _checked(exponent, weakest, sums)


def _coarse_exponent(one: Contribution, sums: FixedPoint) -> int:
    """Return the exponent of a source that needs an accumulator of its own and keeps as many bits as fit."""
    total = min(one.likely, one.most)
    exponent = _floor_log2((1 + 2.0**-FEWEST_BITS) * total) + 1 - sums.sum_bits
    if exponent > _floor_log2(one.typical) - FEWEST_BITS:
        raise InvalidArgument(
            f"{one.source}: {one.count:,.0f} spikes of weight {one.largest:g} can arrive in one step, beside which "
            f"weights of about {one.typical:g} are too small. Limit the weights with high=, or use fewer synapses."
        )
    return _checked(exponent, one, sums)


def _checked(exponent: int, weakest: Contribution, sums: FixedPoint) -> int:
    if not sums.lowest_exponent <= exponent <= HIGHEST_EXPONENT:
        raise InvalidArgument(
            f"{weakest.source}: weights of about {weakest.typical:g} are beyond float32; use another unit"
        )
    return exponent


def _floor_log2(value: float) -> int:
    if not math.isfinite(value):
        raise InvalidArgument(f"weights that sum up to {value}: too large")
    # The mean of a limited distribution can differ in the last bits between machines, and is often close to a power
    # of two. Rounded to six digits it is the same everywhere.
    return math.frexp(float(f"{value:.6g}"))[1] - 1
