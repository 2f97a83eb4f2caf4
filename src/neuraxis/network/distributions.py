"""Distributions of weights, delays and initial values.

A distribution draws nothing itself: the engine draws, from random streams that belong to the target neuron. Its
standard normal variate z is bounded, |z| <= LARGEST_NORMAL, so every distribution has hard bounds.

Every distribution has the methods `bounds()`, which returns the lowest and the highest possible value, `expected()`,
the mean of the values, and `expected_magnitude()`, the mean of their absolute values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from neuraxis.arguments import (
    Floats,
    HoldsArrays,
    ShortRepr,
    float_array,
    is_array,
    not_negative,
    number,
    one_of,
    set_fields,
)
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arithmetic import exp

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

LARGEST_NORMAL = 6.5  # largest magnitude of the engine's standard normal variate

# If less than this part of the draws falls into the interval, redrawing takes too long.
LOWEST_REDRAW_PROBABILITY = 1e-3

# The engine computes exp in float32: limits of its argument, and of the relative error of its result.
LARGEST_EXPONENT = 80.0
FLOAT32_ERROR = 1e-5

OUTSIDE = ("clip", "redraw")


@dataclass(frozen=True, repr=False)
class Constant(ShortRepr):
    """The same value for every synapse or neuron; a plain number means the same.

    Parameters
    ----------
    value : float
        The value, in the unit of what it is used for (weight: unit of the receptor; delay: ms).

    Examples
    --------
    >>> Constant(1.5).bounds()
    (1.5, 1.5)
    """

    value: float

    def __post_init__(self) -> None:
        set_fields(self, value=number(self.value, "Constant.value"))

    def bounds(self) -> tuple[float, float]:
        return self.value, self.value

    def expected(self) -> float:
        return self.value

    def expected_magnitude(self) -> float:
        return abs(self.value)


@dataclass(frozen=True, repr=False)
class Uniform(ShortRepr):
    """Uniform distribution from `low` to `high`.

    Parameters
    ----------
    low, high : float
        Bounds, in the unit of what is drawn.

    Examples
    --------
    >>> Uniform(0.5, 1.5).expected()
    1.0
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        set_fields(self, low=number(self.low, "Uniform.low"), high=number(self.high, "Uniform.high"))
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


@dataclass(frozen=True, repr=False)
class Normal(ShortRepr):
    """Normal distribution, optionally limited to an interval.

    Parameters
    ----------
    mean, sd : float
        Mean and standard deviation before values are limited, in the unit of what is drawn.
    low, high : float, optional
        Limits of the values.
    outside : {"clip", "redraw"}
        Treatment of values outside the limits: set them to the limit, or draw again.

    Raises
    ------
    InvalidArgument
        With "redraw": less than one draw in a thousand would fall between the limits.

    Examples
    --------
    >>> Normal(0.1, 0.01, low=0)
    Normal(mean=0.1, sd=0.01, low=0)
    >>> Normal(0.1, 0.01, low=0).bounds()
    (0.035, 0.165)
    """

    mean: float
    sd: float
    low: float | None = None
    high: float | None = None
    outside: str = "clip"

    def __post_init__(self) -> None:
        set_fields(self, mean=number(self.mean, "Normal.mean"), sd=not_negative(self.sd, "Normal.sd"))
        if not math.isfinite(abs(self.mean) + LARGEST_NORMAL * self.sd):
            raise InvalidArgument(f"Normal.mean={self.mean}, sd={self.sd}: too large")
        set_fields(self, **_cut("Normal", self.low, self.high, self.outside))
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
        # The mean of the folded normal distribution. Limits change it little, and a rough value is enough.
        folded = self.sd * 2 * _density(self.mean / self.sd) + self.mean * math.erf(self.mean / self.sd / math.sqrt(2))
        return min(folded, max(-low, high))

    def _probabilities(self) -> tuple[float, float]:
        return _outside_probabilities(self.low, self.high, self.mean, self.sd)


@dataclass(frozen=True, repr=False)
class LogNormal(ShortRepr):
    """Log-normal distribution, exp(mu + sigma z), optionally limited to an interval.

    Parameters
    ----------
    mu, sigma : float
        Mean and standard deviation of the logarithm of the values.
    low, high : float, optional
        Limits of the values, in the unit of what is drawn.
    outside : {"clip", "redraw"}
        Treatment of values outside the limits: set them to the limit, or draw again.

    Raises
    ------
    InvalidArgument
        With "redraw": less than one draw in a thousand would fall between the limits.

    Examples
    --------
    >>> LogNormal(0.0, 0.5, high=5.0)
    LogNormal(mu=0, sigma=0.5, high=5)
    """

    mu: float
    sigma: float
    low: float | None = None
    high: float | None = None
    outside: str = "clip"

    def __post_init__(self) -> None:
        set_fields(self, mu=number(self.mu, "LogNormal.mu"), sigma=not_negative(self.sigma, "LogNormal.sigma"))
        if abs(self.mu) + LARGEST_NORMAL * self.sigma > LARGEST_EXPONENT:
            raise InvalidArgument(f"LogNormal.mu={self.mu}, sigma={self.sigma}: too large; both are of the logarithm")
        set_fields(self, **_cut("LogNormal", self.low, self.high, self.outside))
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
    """Given values, one for each neuron or synapse; a list or array means the same.

    Parameters
    ----------
    array : array_like of float, shape (n,)
        One value for each neuron, or one for each synapse in the order that the connection rule documents.

    Examples
    --------
    >>> Values([0.5, 1.0, 2.0])
    Values(3 from 0.5 to 2)
    """

    array: Floats

    def __post_init__(self) -> None:
        set_fields(self, array=float_array(self.array, "Values.array"))

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
        """Return the mean absolute value of the values other than 0."""
        values = np.abs(self.array[self.array != 0])
        return float(values.mean()) if values.size else 0.0


Distribution = Constant | Uniform | Normal | LogNormal | Values
"""Any of the distributions of this module."""


def as_distribution(value: Any, name: str) -> Distribution:
    """Convert a number to a `Constant`, a list or array to `Values`; return a distribution unchanged.

    Parameters
    ----------
    value : float, array_like or Distribution
        The value to convert.
    name : str
        Name of the argument, for error messages.

    Returns
    -------
    Distribution

    Raises
    ------
    InvalidType
        The value is none of these.

    Examples
    --------
    >>> as_distribution(2, "weight")
    Constant(value=2)
    """
    if isinstance(value, Distribution):
        return value
    if is_array(value):
        return Values(float_array(value, name))
    if isinstance(value, type) or value is None or isinstance(value, str):
        raise InvalidType(f"{name}={value!r}: a number, an array or a distribution is expected")
    checked = number(value, name)
    return _constant(checked) if checked else Constant(checked)  # 0.0 equals -0.0, but has other bits


@lru_cache(maxsize=1024)
def _constant(value: float) -> Constant:
    """Return a constant that descriptions can share: large networks have the same number in many places."""
    return Constant(value)


def _cut(kind: str, low: object, high: object, outside: object) -> dict[str, object]:
    """Check the fields `low`, `high` and `outside`."""
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
            'widen the interval or pass outside="clip"'
        )


def _clipped(value: float, low: float | None, high: float | None) -> float:
    if low is not None:
        value = max(value, low)
    return value if high is None else min(value, high)


def _outside_probabilities(low: float | None, high: float | None, mean: float, sd: float) -> tuple[float, float]:
    """Return the probabilities of a normal variate below `low` and above `high`."""
    below = _cumulative(_standard(low, mean, sd, -math.inf))
    above = _cumulative(-_standard(high, mean, sd, math.inf))
    return below, above


def _standard(value: float | None, mean: float, sd: float, unlimited: float) -> float:
    """Return the distance of a limit from the mean in standard deviations; `unlimited` if there is no limit."""
    if value is None:
        return unlimited
    if sd == 0:
        return unlimited if value == mean else math.copysign(math.inf, value - mean)
    return (value - mean) / sd


def _log(value: float | None) -> float | None:
    """Return the logarithm of a limit of positive values."""
    if value is None:
        return None
    return math.log(value) if value > 0 else -math.inf


def _cumulative(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _density(z: float) -> float:
    return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
