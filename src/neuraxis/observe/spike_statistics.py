"""What spike trains are compared by: rates, regularity and correlations, neuron by neuron.

Two simulations of one network never need the same spikes to be equally right; they need the same distributions of
these three. `ks_distance` says how far two distributions are apart.

All functions take a population's spikes as `times_ms` and `ids` (one of each for every spike, in any order; ids from 0
to `n - 1`) and look at the spikes from `start_ms` on for `duration_ms`, so that a transient can be left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from neuraxis.errors import InvalidArgument, InvalidType

__all__ = ["SpikeSummary", "count_correlations", "isi_cv", "ks_distance", "rates_hz", "summary"]

# A time is a step times dt and may miss the number it stands for by its last bits: as near to an edge as this, it is
# taken to be on it.
_EDGE_MS = 1e-6

_Floats = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SpikeSummary:
    """One population's activity in a few numbers; NaN where there is nothing to take a mean of.

    Attributes:
        neurons: size of the population.
        spikes: number of spikes in the time that was looked at.
        rate_hz_mean: mean over all neurons, the silent ones too.
        rate_hz_sd: standard deviation over neurons.
        silent_share: share of neurons without a spike.
        isi_cv_mean: mean irregularity of the neurons with three spikes or more: 1 for a Poisson process, 0 for a clock.
        correlation_mean: mean correlation over the pairs of the sample.
        correlation_sd: standard deviation over pairs.
    """

    neurons: int
    spikes: int
    rate_hz_mean: float
    rate_hz_sd: float
    silent_share: float
    isi_cv_mean: float
    correlation_mean: float
    correlation_sd: float


def rates_hz(
    times_ms: npt.ArrayLike, ids: npt.ArrayLike, n: int, duration_ms: float, *, start_ms: float = 0.0
) -> _Floats:
    """The mean rate of each of `n` neurons."""
    _, ids = _window(times_ms, ids, n, duration_ms, start_ms)
    return np.bincount(ids, minlength=n) / (duration_ms / 1000.0)


def isi_cv(
    times_ms: npt.ArrayLike, ids: npt.ArrayLike, n: int, duration_ms: float, *, start_ms: float = 0.0
) -> _Floats:
    """The coefficient of variation of each neuron's intervals between spikes; NaN with fewer than three spikes.

    Standard deviation (of the intervals at hand: divided by their number) over mean.
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
    """Pearson's correlation of the spike counts of every pair among `n_sample` neurons.

    Neurons without a spike have no correlation and are left out before the sample is drawn (with `seed`; if fewer
    than `n_sample` are left, all are taken), as is one with the same count in every bin. An incomplete last bin
    is left out. The pairs come as the upper triangle of the matrix, row by row, neurons in the order of their ids.
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
    """The two-sample Kolmogorov-Smirnov distance: 0 for equal distributions, 1 for ones that do not overlap.

    It is the largest difference of the two cumulative distributions. NaNs (as of `isi_cv`) are left out.
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
    """A population's activity in a few numbers; the arguments are those of `count_correlations`."""
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
    """The spikes of the time that is looked at, after a check of all arguments."""
    times, numbers = np.asarray(times_ms, np.float64), np.asarray(ids)
    if n < 1:
        raise InvalidArgument(f"n is {n}: give the number of neurons, at least 1")
    if not (math.isfinite(duration_ms) and duration_ms > 0):
        raise InvalidArgument(f"duration_ms is {duration_ms}: give a time above 0")
    if times.ndim != 1 or times.shape != numbers.shape:
        raise InvalidArgument(f"times_ms has shape {times.shape} and ids {numbers.shape}: give one of each a spike")
    if len(numbers) == 0:
        return times, np.empty(0, np.int64)
    if numbers.dtype.kind not in "iu":
        raise InvalidType(f"ids has dtype {numbers.dtype}: give integers")
    if numbers.min() < 0 or numbers.max() >= n:
        wrong = numbers.min() if numbers.min() < 0 else numbers.max()
        raise InvalidArgument(f"ids has {wrong}: give numbers from 0 to n - 1, {n - 1}")
    # bincount wants signed integers, and the node ids of a spike file are not.
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
