"""What a weight, a delay or an initial value is drawn from.

A distribution only says what is drawn; the engine draws, from streams that belong to the target neuron. Its standard
normal draw z is bounded, |z| <= LARGEST_NORMAL, so that every distribution has hard bounds.

Every distribution answers `bounds()`, the lowest and the highest value there can be, `expected()`, the mean of the
values, and `expected_magnitude()`, the mean of the values without their signs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arguments import float_array, is_array, not_negative, number, one_of, settle
from neuraxis.network.arithmetic import exp
from neuraxis.network.arrays import Floats, HoldsArrays

__all__ = [
    "LARGEST_NORMAL",
    "Constant",
    "Distribution",
    "LogNormal",
    "Normal",
    "Uniform",
    "Values",
    "as_distribution",
]

LARGEST_NORMAL = 6.5

# Below this probability of the allowed interval, redrawing would take too long.
LOWEST_REDRAW_PROBABILITY = 1e-3

# The engine computes exp in float32: its argument must not overflow there, and its result is a little off.
LARGEST_EXPONENT = 80.0
FLOAT32_ERROR = 1e-5

OUTSIDE = ("clip", "redraw")


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float

    def __post_init__(self) -> None:
        settle(self, value=number(self.value, "Constant.value"))

    def bounds(self) -> tuple[float, float]:
        return self.value, self.value

    def expected(self) -> float:
        return self.value

    def expected_magnitude(self) -> float:
        return abs(self.value)


@dataclass(frozen=True)
class Uniform:
    """Any value from `low` to `high`, all alike."""

    low: float
    high: float

    def __post_init__(self) -> None:
        settle(self, low=number(self.low, "Uniform.low"), high=number(self.high, "Uniform.high"))
        if self.low > self.high:
            raise InvalidArgument(f"Uniform.low={self.low}: must not be above high={self.high}")
        if not math.isfinite(self.high - self.low):
            raise InvalidArgument(f"Uniform.low={self.low}, high={self.high}: too far apart")

    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def expected(self) -> float:
        return self.low + (self.high - self.low) / 2

    def expected_magnitude(self) -> float:
        if self.low < 0 < self.high:
            width = self.high - self.low
            return self.low / width * self.low / 2 + self.high / width * self.high / 2
        return abs(self.expected())


@dataclass(frozen=True)
class Normal:
    """`mean + sd * z`; what falls below `low` or above `high` is clipped to it or drawn again."""

    mean: float
    sd: float
    low: float | None = None
    high: float | None = None
    outside: str = "clip"

    def __post_init__(self) -> None:
        settle(self, mean=number(self.mean, "Normal.mean"), sd=not_negative(self.sd, "Normal.sd"))
        if not math.isfinite(abs(self.mean) + LARGEST_NORMAL * self.sd):
            raise InvalidArgument(f"Normal.mean={self.mean}, sd={self.sd}: too large")
        settle(self, **_cut("Normal", self.low, self.high, self.outside))
        _check_redraw("Normal", self, *self._probabilities())

    def bounds(self) -> tuple[float, float]:
        reach = LARGEST_NORMAL * self.sd
        return _clipped(self.mean - reach, self.low, self.high), _clipped(self.mean + reach, self.low, self.high)

    def expected(self) -> float:
        if self.sd == 0:
            return _clipped(self.mean, self.low, self.high)
        below, above = self._probabilities()
        inside = 1 - below - above
        a, b = _standard(self.low, self.mean, self.sd, -math.inf), _standard(self.high, self.mean, self.sd, math.inf)
        middle = self.mean * inside - self.sd * (_density(b) - _density(a))
        if self.outside == "redraw":
            return middle / inside
        return middle + below * (self.low or 0.0) + above * (self.high or 0.0)

    def expected_magnitude(self) -> float:
        low, high = self.bounds()
        if low >= 0 or high <= 0:
            return abs(self.expected())
        # The folded normal; the cut tails change little of it, and it is only needed roughly.
        folded = self.sd * 2 * _density(self.mean / self.sd) + self.mean * math.erf(self.mean / self.sd / math.sqrt(2))
        return min(folded, max(-low, high))

    def _probabilities(self) -> tuple[float, float]:
        return _outside_probabilities(self.low, self.high, self.mean, self.sd)


@dataclass(frozen=True)
class LogNormal:
    """`exp(mu + sigma * z)`; what falls below `low` or above `high` is clipped to it or drawn again.

    `mu` and `sigma` are the mean and the standard deviation of the logarithm, not of the values.
    """

    mu: float
    sigma: float
    low: float | None = None
    high: float | None = None
    outside: str = "clip"

    def __post_init__(self) -> None:
        settle(self, mu=number(self.mu, "LogNormal.mu"), sigma=not_negative(self.sigma, "LogNormal.sigma"))
        if abs(self.mu) + LARGEST_NORMAL * self.sigma > LARGEST_EXPONENT:
            raise InvalidArgument(f"LogNormal.mu={self.mu}, sigma={self.sigma}: too large; both are of the logarithm")
        settle(self, **_cut("LogNormal", self.low, self.high, self.outside))
        if self.high is not None and self.high <= 0:
            raise InvalidArgument(f"LogNormal.high={self.high}: must be above 0, as the values are")
        _check_redraw("LogNormal", self, *self._probabilities())

    def bounds(self) -> tuple[float, float]:
        reach = LARGEST_NORMAL * self.sigma
        lowest, highest = exp(self.mu - reach) * (1 - FLOAT32_ERROR), exp(self.mu + reach) * (1 + FLOAT32_ERROR)
        return _clipped(lowest, self.low, self.high), _clipped(highest, self.low, self.high)

    def expected(self) -> float:
        if self.sigma == 0:
            return _clipped(math.exp(self.mu), self.low, self.high)
        below, above = self._probabilities()
        a = _standard(_log(self.low), self.mu, self.sigma, -math.inf)
        b = _standard(_log(self.high), self.mu, self.sigma, math.inf)
        middle = math.exp(self.mu + self.sigma**2 / 2) * (_cumulative(b - self.sigma) - _cumulative(a - self.sigma))
        if self.outside == "redraw":
            return middle / (1 - below - above)
        return middle + below * (self.low or 0.0) + above * (self.high or 0.0)

    def expected_magnitude(self) -> float:
        return abs(self.expected())

    def _probabilities(self) -> tuple[float, float]:
        return _outside_probabilities(_log(self.low), _log(self.high), self.mu, self.sigma)


@dataclass(frozen=True, eq=False, repr=False)
class Values(HoldsArrays):
    """Given values, one for each synapse (in the order that the rule says) or one for each neuron."""

    array: Floats

    def __post_init__(self) -> None:
        settle(self, array=float_array(self.array, "Values.array"))

    def __len__(self) -> int:
        return int(self.array.size)

    def __repr__(self) -> str:
        low, high = self.bounds()
        return f"Values({len(self):,} from {low:g} to {high:g})"

    def bounds(self) -> tuple[float, float]:
        if not self.array.size:
            return 0.0, 0.0
        return float(self.array.min()), float(self.array.max())

    def expected(self) -> float:
        return float(self.array.mean()) if self.array.size else 0.0

    def expected_magnitude(self) -> float:
        """The mean magnitude of the values that are not zero."""
        values = np.abs(self.array[self.array != 0])
        return float(values.mean()) if values.size else 0.0


Distribution = Constant | Uniform | Normal | LogNormal | Values


def as_distribution(value: Any, name: str) -> Distribution:
    """A number as a Constant, a list or array as Values, a distribution as it is; `name` is for errors."""
    if isinstance(value, Distribution):
        return value
    if is_array(value):
        return Values(float_array(value, name))
    if isinstance(value, type) or value is None or isinstance(value, str):
        raise InvalidType(f"{name}={value!r}: a number, an array or a distribution is expected")
    return Constant(number(value, name))


def _cut(kind: str, low: object, high: object, outside: object) -> dict[str, object]:
    """The fields `low`, `high` and `outside`, checked."""
    lowest = None if low is None else number(low, f"{kind}.low")
    highest = None if high is None else number(high, f"{kind}.high")
    if lowest is not None and highest is not None and lowest > highest:
        raise InvalidArgument(f"{kind}.low={lowest}: must not be above high={highest}")
    return {"low": lowest, "high": highest, "outside": one_of(outside, f"{kind}.outside", OUTSIDE)}


def _check_redraw(kind: str, distribution: Normal | LogNormal, below: float, above: float) -> None:
    inside = 1 - below - above
    if distribution.outside == "redraw" and inside <= LOWEST_REDRAW_PROBABILITY:
        raise InvalidArgument(
            f"{kind}.low={distribution.low}, high={distribution.high}: only {inside:.2g} of the draws would be kept; "
            'widen the interval or say outside="clip"'
        )


def _clipped(value: float, low: float | None, high: float | None) -> float:
    if low is not None:
        value = max(value, low)
    return value if high is None else min(value, high)


def _outside_probabilities(low: float | None, high: float | None, mean: float, sd: float) -> tuple[float, float]:
    """The probabilities of a normal draw below `low` and above `high`."""
    below = _cumulative(_standard(low, mean, sd, -math.inf))
    above = _cumulative(-_standard(high, mean, sd, math.inf))
    return below, above


def _standard(value: float | None, mean: float, sd: float, unlimited: float) -> float:
    """How many standard deviations a limit is from the mean; `unlimited` if there is no limit."""
    if value is None:
        return unlimited
    if sd == 0:
        return unlimited if value == mean else math.copysign(math.inf, value - mean)
    return (value - mean) / sd


def _log(value: float | None) -> float | None:
    """The logarithm of a limit of positive values."""
    if value is None:
        return None
    return math.log(value) if value > 0 else -math.inf


def _cumulative(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
