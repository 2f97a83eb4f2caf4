"""Statistics of spike trains: rates, irregularity and correlations.

Two simulators of one network need not produce the same spikes to be equally correct; the distributions of these three
must agree. `ks_distance` measures the distance of two distributions.

All functions take the spikes of a population as `times_ms` and `ids` (one of each for every spike, in any order; ids
from 0 to `n - 1`) and use the spikes from `start_ms` on for `duration_ms`, so that a transient can be left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.notebook import html_table

__all__ = ["SpikeSummary", "count_correlations", "isi_cv", "ks_distance", "rates_hz", "summary"]

# A spike time is a step times dt, with rounding errors: this close to an edge, it counts as on the edge.
_EDGE_MS = 1e-6

_Floats = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SpikeSummary:
    """Summary statistics of a population; NaN where there are no values to average.

    Attributes
    ----------
    neurons : int
        Size of the population.
    spikes : int
        Number of spikes.
    rate_hz_mean, rate_hz_sd : float
        Mean and standard deviation of the rate over all neurons, in Hz.
    silent_share : float
        Share of neurons without a spike, from 0 to 1.
    isi_cv_mean : float
        Mean coefficient of variation of the interspike intervals, over neurons with three spikes or more: 1 for a
        Poisson process, 0 for a regular one.
    correlation_mean, correlation_sd : float
        Mean and standard deviation of the correlation over the sampled pairs.

    Examples
    --------
    >>> summary([1.0, 11.0, 21.0, 5.0], [0, 0, 0, 1], 2, 100.0)
    <SpikeSummary of 2 neurons: 4 spikes, 20.00 ± 10.00 Hz, 0 % silent, CV 0.00, correlation -0.04>
    """

    neurons: int
    spikes: int
    rate_hz_mean: float
    rate_hz_sd: float
    silent_share: float
    isi_cv_mean: float
    correlation_mean: float
    correlation_sd: float

    def __repr__(self) -> str:
        return (
            f"<SpikeSummary of {self.neurons:,} neurons: {self.spikes:,} spikes, {self.rate_hz_mean:.2f} ± "
            f"{self.rate_hz_sd:.2f} Hz, {100 * self.silent_share:.0f} % silent, CV {self.isi_cv_mean:.2f}, "
            f"correlation {self.correlation_mean:.2f}>"
        )

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:,.4g}") for name, value in vars(self).items()]
        return html_table("SpikeSummary", ("statistic", "value"), rows)


def rates_hz(
    times_ms: npt.ArrayLike, ids: npt.ArrayLike, n: int, duration_ms: float, *, start_ms: float = 0.0
) -> _Floats:
    """Return the mean rate of each neuron.

    Parameters
    ----------
    times_ms : array, shape (spikes,)
        Spike times, in ms.
    ids : array of int, shape (spikes,)
        Neuron of each spike, from 0 to `n - 1`.
    n : int
        Number of neurons.
    duration_ms, start_ms : float
        Length and start of the time to use, in ms.

    Returns
    -------
    array of float64, shape (n,)
        Rates, in Hz.

    Raises
    ------
    InvalidArgument, InvalidType
        An id is out of range or not an integer, or the shapes or times do not fit.

    Examples
    --------
    >>> rates_hz([1.0, 11.0, 21.0, 5.0], [0, 0, 0, 1], n=2, duration_ms=100.0)
    array([30., 10.])
    """
    _, ids = _window(times_ms, ids, n, duration_ms, start_ms)
    return np.bincount(ids, minlength=n) / (duration_ms / 1000.0)


def isi_cv(
    times_ms: npt.ArrayLike, ids: npt.ArrayLike, n: int, duration_ms: float, *, start_ms: float = 0.0
) -> _Floats:
    """Return the coefficient of variation of each neuron's interspike intervals.

    It is the standard deviation (without Bessel's correction) divided by the mean.

    Parameters
    ----------
    times_ms, ids, n, duration_ms, start_ms
        See `rates_hz`.

    Returns
    -------
    array of float64, shape (n,)
        Coefficients; NaN for neurons with fewer than three spikes.

    Raises
    ------
    InvalidArgument, InvalidType
        See `rates_hz`.

    Examples
    --------
    >>> isi_cv([1.0, 11.0, 21.0, 5.0], [0, 0, 0, 1], n=2, duration_ms=100.0)
    array([ 0., nan])
    """
    times_ms, ids = _window(times_ms, ids, n, duration_ms, start_ms)
    order = np.lexsort((times_ms, ids))
    times_ms, ids = times_ms[order], ids[order]
    within = ids[1:] == ids[:-1]  # the next spike is of the same neuron
    owner = ids[1:][within]
    interval_ms = np.diff(times_ms)[within]
    count = np.bincount(owner, minlength=n)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_ms = np.bincount(owner, interval_ms, minlength=n) / count
        variance = np.bincount(owner, (interval_ms - mean_ms[owner]) ** 2, minlength=n) / count
        return np.where(count >= 2, np.sqrt(variance) / mean_ms, np.nan)


def count_correlations(
    times_ms: npt.ArrayLike,
    ids: npt.ArrayLike,
    n: int,
    duration_ms: float,
    *,
    bin_ms: float = 2.0,
    n_sample: int = 200,
    seed: int = 0,
    start_ms: float = 0.0,
) -> _Floats:
    """Return Pearson's correlation of the binned spike counts of every pair among `n_sample` neurons.

    Neurons without a spike are left out before the sample is drawn, and those with the same count in every bin after
    it: they have no correlation. An incomplete last bin is left out.

    Parameters
    ----------
    times_ms, ids, n, duration_ms, start_ms
        See `rates_hz`.
    bin_ms : float
        Length of a bin, in ms.
    n_sample : int
        Number of neurons to sample; all, if there are fewer with a spike.
    seed : int
        Seed of the sample.

    Returns
    -------
    array of float64, shape (pairs,)
        Upper triangle of the correlation matrix, row by row, neurons in the order of their ids.

    Raises
    ------
    InvalidArgument, InvalidType
        See `rates_hz`; or `bin_ms` or `n_sample` is out of range.

    Examples
    --------
    >>> count_correlations([1.0, 5.0, 1.5, 5.5], [0, 0, 1, 1], n=2, duration_ms=8.0)
    array([1.])
    """
    if not (math.isfinite(bin_ms) and 0 < bin_ms <= duration_ms):
        raise InvalidArgument(f"bin_ms is {bin_ms}: give a length above 0 and up to duration_ms, {duration_ms}")
    if n_sample < 2:
        raise InvalidArgument(f"n_sample is {n_sample}: a pair needs 2 neurons")
    bins = math.floor((duration_ms + _EDGE_MS) / bin_ms)
    times_ms, ids = _window(times_ms, ids, n, min(bins * bin_ms, duration_ms), start_ms)
    active = np.unique(ids)
    if len(active) > n_sample:
        active = np.sort(np.random.default_rng(seed).choice(active, n_sample, replace=False))
    row_of = np.full(n, -1)
    row_of[active] = np.arange(len(active))
    rows = row_of[ids]
    chosen = rows >= 0
    columns = np.floor((times_ms[chosen] - start_ms + _EDGE_MS) / bin_ms).astype(np.int64).clip(0, bins - 1)
    counts = np.bincount(rows[chosen] * bins + columns, minlength=len(active) * bins).reshape(len(active), bins)
    counts = counts[(counts != counts[:, :1]).any(axis=1)]
    if len(counts) < 2:
        return np.empty(0)
    matrix: _Floats = np.corrcoef(counts)
    return matrix[np.triu_indices(len(counts), k=1)]


def ks_distance(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the two-sample Kolmogorov-Smirnov distance: 0 for equal distributions, 1 for disjoint ones.

    It is the largest difference of the two cumulative distributions.

    Parameters
    ----------
    a, b : array
        Samples; NaNs (as of `isi_cv`) are left out.

    Returns
    -------
    float
        The distance, from 0 to 1.

    Raises
    ------
    InvalidArgument
        A sample has no values.

    Examples
    --------
    >>> ks_distance([1.0, 2.0, 3.0, 4.0], [3.0, 4.0, 5.0, 6.0])
    0.5
    """
    first, second = _sample("a", a), _sample("b", b)
    everywhere = np.concatenate([first, second])
    below_first = np.searchsorted(first, everywhere, side="right") / len(first)
    below_second = np.searchsorted(second, everywhere, side="right") / len(second)
    return float(np.abs(below_first - below_second).max())


def summary(
    times_ms: npt.ArrayLike,
    ids: npt.ArrayLike,
    n: int,
    duration_ms: float,
    *,
    bin_ms: float = 2.0,
    n_sample: int = 200,
    seed: int = 0,
    start_ms: float = 0.0,
) -> SpikeSummary:
    """Return the summary statistics of a population; the parameters are those of `count_correlations`."""
    times_ms, ids = _window(times_ms, ids, n, duration_ms, start_ms)
    rates = rates_hz(times_ms, ids, n, duration_ms, start_ms=start_ms)
    cv = isi_cv(times_ms, ids, n, duration_ms, start_ms=start_ms)
    cv = cv[~np.isnan(cv)]
    correlations = count_correlations(
        times_ms, ids, n, duration_ms, bin_ms=bin_ms, n_sample=n_sample, seed=seed, start_ms=start_ms
    )
    return SpikeSummary(
        neurons=n,
        spikes=len(ids),
        rate_hz_mean=float(rates.mean()),
        rate_hz_sd=float(rates.std()),
        silent_share=float((rates == 0).mean()),
        isi_cv_mean=float(cv.mean()) if len(cv) else math.nan,
        correlation_mean=float(correlations.mean()) if len(correlations) else math.nan,
        correlation_sd=float(correlations.std()) if len(correlations) else math.nan,
    )


def _window(
    times_ms: npt.ArrayLike, ids: npt.ArrayLike, n: int, duration_ms: float, start_ms: float
) -> tuple[_Floats, _Integers]:
    """Check the arguments and return the spikes of the time to use."""
    times, numbers = np.asarray(times_ms, np.float64), np.asarray(ids)
    if n < 1:
        raise InvalidArgument(f"n is {n}: give the number of neurons, at least 1")
    if not (math.isfinite(duration_ms) and duration_ms > 0):
        raise InvalidArgument(f"duration_ms is {duration_ms}: give a time above 0")
    if times.ndim != 1 or times.shape != numbers.shape:
        raise InvalidArgument(
            f"times_ms has shape {times.shape} and ids {numbers.shape}: give one of each for every spike"
        )
    if len(numbers) == 0:
        return times, np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu":
        raise InvalidType(f"ids has dtype {numbers.dtype}: give integers")
    if numbers.min() < 0 or numbers.max() >= n:
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise InvalidArgument(f"ids has {wrong}: give numbers from 0 to n - 1, {n - 1}")
    # bincount needs signed integers; the node ids of a spike file are unsigned.
    numbers = numbers.astype(np.int64, copy=False)
    since_ms = times - start_ms
    inside = (since_ms >= -_EDGE_MS) & (since_ms < duration_ms - _EDGE_MS)
    return (times, numbers) if inside.all() else (times[inside], numbers[inside])


def _sample(name: str, values: npt.ArrayLike) -> _Floats:
    sample = np.asarray(values, np.float64).ravel()
    sample = np.sort(sample[~np.isnan(sample)])
    if len(sample) == 0:
        raise InvalidArgument(f"{name} has no values: a distance needs at least one of each")
    return sample
