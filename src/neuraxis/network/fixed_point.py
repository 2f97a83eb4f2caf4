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

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neuraxis.errors import InvalidArgument

__all__ = [
    "SUMS",
    "WIDE_SUMS",
    "Contribution",
    "FixedPoint",
    "Origin",
    "ReceptorInputs",
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

LARGEST_ACCUMULATORS = 63  # per neuron; limited by the layout of the synapse tables

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


@dataclass(frozen=True, slots=True)
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
    everything = _Group()
    for one in contributions:
        everything = everything.with_one(one)
    exponents, proven = everything.one_accumulator(sums)
    if exponents:
        return Scales(exponents, (0,) * len(contributions), proven)
    return _several_accumulators(contributions, sums)


Origin = tuple[str, int]
"""The source of a contribution: ("projection" or "poisson", index)."""


class ReceptorInputs:
    """Everything that can arrive at one receptor, and the accumulators that it needs.

    Adding takes the same time for any number of contributions, as long as one accumulator holds them.

    Parameters
    ----------
    sums : FixedPoint
        The integers in which weights are summed.

    Examples
    --------
    >>> inputs = ReceptorInputs()
    >>> inputs.add(("projection", 0), Contribution("projection 'E->E'", typical=1.0, largest=1.0, count=100))
    >>> inputs.exponents, inputs.accumulator_of(("projection", 0))
    ((-20,), 0)
    """

    def __init__(self, sums: FixedPoint = SUMS) -> None:
        self._sums = sums
        self._contributions: list[Contribution] = []
        self._positions: dict[Origin, int] = {}
        self._everything = _Group()
        self._scales = Scales((0,), (), True)  # with one accumulator, the places are left out

    @property
    def exponents(self) -> tuple[int, ...]:
        """Exponent of each accumulator."""
        return self._scales.exponents

    @property
    def proven(self) -> bool:
        """True if no sum can overflow, whatever is drawn."""
        return self._scales.proven

    def copy(self) -> ReceptorInputs:
        """Return an independent copy."""
        other = copy.copy(self)
        other._contributions, other._positions = list(self._contributions), dict(self._positions)
        return other

    def accumulator_of(self, origin: Origin) -> int:
        """Return the index of the accumulator of a contribution; 0 if nothing arrives from there."""
        if len(self._scales.exponents) == 1 or origin not in self._positions:
            return 0
        return self._scales.places[self._positions[origin]]

    def add(self, origin: Origin, contribution: Contribution, taken: int = 0) -> None:
        """Add a contribution.

        Parameters
        ----------
        origin : tuple of (str, int)
            Where it comes from.
        contribution : Contribution
            What can arrive.
        taken : int
            Accumulators of the other receptors of a neuron.

        Raises
        ------
        InvalidArgument
            No accumulators can represent the weights, or too many would be needed. Nothing is added.
        """
        everything = self._everything.with_one(contribution)
        exponents, proven = everything.one_accumulator(self._sums)
        if exponents:
            scales = Scales(exponents, (), proven)
        else:
            scales = _several_accumulators([*self._contributions, contribution], self._sums)
        needed = taken + len(scales.exponents)
        if needed > LARGEST_ACCUMULATORS:
            raise InvalidArgument(
                f"with {contribution.source} a neuron needs {needed} accumulators, and {LARGEST_ACCUMULATORS} are the "
                "most. Use weights closer to each other."
            )
        self._everything, self._scales = everything, scales
        self._positions[origin] = len(self._contributions)
        self._contributions.append(contribution)


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


@dataclass(frozen=True, slots=True)
class _Group:
    """Contributions that share an accumulator: the weakest of them, and the exact sums of what can arrive."""

    weakest: Contribution | None = None
    most: tuple[float, ...] = ()  # summands of the largest possible sum, see `_added`
    likely: tuple[float, ...] = ()  # ... of the largest likely sum

    def with_one(self, one: Contribution) -> _Group:
        """Return the group with one more; what delivers nothing does not count."""
        if not one.matters:
            return self
        weakest = one if self.weakest is None or one.typical < self.weakest.typical else self.weakest
        return _Group(weakest, _added(self.most, one.most), _added(self.likely, min(one.likely, one.most)))

    def one_accumulator(self, sums: FixedPoint) -> tuple[tuple[int, ...], bool]:
        """Return the exponent and if it is safe whatever is drawn; no exponent if one accumulator is not enough."""
        if self.weakest is None:
            return (0,), True
        for proven in (True, False):
            exponent = self.exponent(proven, sums)
            if exponent is not None:
                return (exponent,), proven
        return (), False

    def exponent(self, proven: bool, sums: FixedPoint) -> int | None:
        """Return the smallest safe exponent, or None; with `proven` it is safe whatever is drawn."""
        weakest = self.weakest
        assert weakest is not None
        if weakest.typical <= 0:
            raise InvalidArgument(f"{weakest.source}: a typical weight of {weakest.typical}: must be above 0")
        total = (1 + sums.rounding) * math.fsum(self.most if proven else self.likely)
        finest = _floor_log2(weakest.typical) - sums.enough_bits
        coarsest = finest + sums.enough_bits - sums.lowest_bits
        safe = _floor_log2(total) + 2 - sums.sum_bits  # the sum is below half of the limit
        exponent = max(finest, safe)
        if exponent - 1 == coarsest:
            exponent = coarsest  # the sum is below the limit
        return None if exponent > coarsest else _checked(exponent, weakest, sums)


def _added(summands: tuple[float, ...], value: float) -> tuple[float, ...]:
    """Return summands with the same exact sum as the given ones and `value`, usually one or two (Shewchuk 1997)."""
    kept = []
    for other in summands:
        if abs(value) < abs(other):
            value, other = other, value
        total = value + other
        rest = other - (total - value)
        if rest:
            kept.append(rest)
        value = total
    return (*kept, value) if math.isfinite(value) else (math.inf,)


def _several_accumulators(contributions: Sequence[Contribution], sums: FixedPoint) -> Scales:
    """Return accumulators with different exponents, shared by sources of similar weights."""
    # Group the sources from the strongest to the weakest; a source that would lose precision starts a new group.
    relevant = [place for place, one in enumerate(contributions) if one.matters]
    relevant.sort(key=lambda place: (-contributions[place].typical, place))
    groups: list[_Group] = []
    places = [0] * len(contributions)
    for place in relevant:
        one = contributions[place]
        if groups and (grown := groups[-1].with_one(one)).exponent(False, sums) is not None:
            groups[-1] = grown
        else:
            groups.append(_Group().with_one(one))
        places[place] = len(groups) - 1
    if len(groups) > MOST_ACCUMULATORS:
        strongest, weakest = contributions[relevant[0]], contributions[relevant[-1]]
        raise InvalidArgument(
            f"{weakest.source}: weights of about {weakest.typical:g} and those of {strongest.source} of up to "
            f"{strongest.largest:g} are too far apart for one receptor; use another receptor for some of them"
        )
    exponents, proven = [], True
    for group in groups:
        assert group.weakest is not None
        chosen = group.exponent(False, sums)
        exponents.append(_coarse_exponent(group.weakest, sums) if chosen is None else chosen)
        rounding = 2.0**-FEWEST_BITS if chosen is None else sums.rounding
        largest_sum = (1 + rounding) * math.fsum(group.most)
        proven = proven and largest_sum < sums.limit * 2.0 ** exponents[-1]
    return Scales(tuple(exponents), tuple(places), proven)


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
