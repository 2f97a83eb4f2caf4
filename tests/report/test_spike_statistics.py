"""Statistics of spikes: known answers, and the same numbers as the definitions written out neuron by neuron."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.report.spike_statistics import SpikeSummary, count_correlations, isi_cv, ks_distance, rates_hz, summary

# Neuron 0: a clock. 1: intervals 10 and 30. 2: two spikes. 3: silent.
TIMES_MS = np.array([0.0, 5.0, 20.0, 15.0, 40.0, 45.0, 60.0, 7.0, 9.0])
IDS = np.array([0, 1, 0, 1, 0, 1, 0, 2, 2], np.uint64)


def poisson(
    random: np.random.Generator, n: int, duration_ms: float, rate_hz: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    counts = random.poisson(rate_hz * duration_ms / 1000, n)
    ids = np.repeat(np.arange(n), counts)
    return random.random(len(ids)) * duration_ms, ids


# --- rates ---


def test_rates() -> None:
    assert rates_hz(TIMES_MS, IDS, 4, 200.0).tolist() == [20, 15, 10, 0]


def test_the_window_starts_inclusive_and_ends_exclusive() -> None:
    assert rates_hz([2.0, 3.0, 6.9, 7.0], [0, 1, 2, 3], 4, 4.0, start_ms=3.0).tolist() == [0, 250, 250, 0]
    # The same for times that miss the edge by the last bit of a computation.
    below = np.nextafter([3.0, 7.0], 0.0)
    above = np.nextafter([3.0, 7.0], 9.0)
    assert rates_hz(below, [0, 1], 2, 4.0, start_ms=3.0).tolist() == [250, 0]
    assert rates_hz(above, [0, 1], 2, 4.0, start_ms=3.0).tolist() == [250, 0]


# --- intervals ---


def test_isi_cv() -> None:
    cv = isi_cv(TIMES_MS, IDS, 4, 200.0)
    assert cv[:2].tolist() == [0.0, 0.5]  # intervals 10 and 30: mean 20, standard deviation 10
    assert np.isnan(cv[2:]).all()


def test_isi_cv_sees_only_the_window() -> None:
    assert isi_cv(TIMES_MS, IDS, 4, 50.0)[0] == 0.0  # three spikes are left
    assert np.isnan(isi_cv(TIMES_MS, IDS, 4, 30.0)[0])
    assert np.isnan(isi_cv(TIMES_MS, IDS, 4, 200.0, start_ms=6.0)[1])


def test_isi_cv_of_spikes_at_one_time_is_not_a_number() -> None:
    assert np.isnan(isi_cv([3.0, 3.0, 3.0], [0, 0, 0], 1, 10.0)).all()


def test_isi_cv_of_poisson_trains_is_one() -> None:
    times_ms, ids = poisson(np.random.default_rng(4), 200, 20_000.0, 20.0)
    assert np.nanmean(isi_cv(times_ms, ids, 200, 20_000.0)) == pytest.approx(1.0, abs=0.02)


@given(spikes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4)), max_size=60, unique=True))
def test_isi_cv_is_its_definition(spikes: list[tuple[int, int]]) -> None:
    cv = isi_cv([0.25 * step for step, _ in spikes], np.array([i for _, i in spikes], int), 5, 200.0)
    for neuron in range(5):
        intervals = np.diff(sorted(0.25 * step for step, i in spikes if i == neuron))
        if len(intervals) < 2:
            assert np.isnan(cv[neuron])
        else:
            assert cv[neuron] == pytest.approx(np.std(intervals) / np.mean(intervals), abs=1e-12)


# --- correlations ---


def test_correlations_of_trains_that_are_equal_opposite_and_unrelated() -> None:
    bins = {0: [0, 1, 4, 5], 2: [0, 1, 4, 5], 3: [2, 3, 6, 7], 5: [0, 2, 4, 6]}
    times_ms = [2.0 * b + 0.7 for spikes in bins.values() for b in spikes]
    ids = [neuron for neuron, spikes in bins.items() for _ in spikes]
    found = count_correlations(times_ms, ids, 7, 16.0)
    # Pairs (0,2) (0,3) (0,5) (2,3) (2,5) (3,5): the silent neurons 1, 4 and 6 are not there.
    assert found == pytest.approx([1, -1, 0, -1, 0, 0])


def test_a_spike_on_the_edge_of_a_bin_belongs_to_the_later_one() -> None:
    # Also a spike that is not quite on the edge because its time was computed.
    times_ms = [3.0, np.nextafter(9.0, 0.0), 5.0, 11.0]
    assert count_correlations(times_ms, [0, 0, 1, 1], 2, 12.0, bin_ms=3.0) == pytest.approx([1.0])


def test_an_incomplete_last_bin_is_left_out() -> None:
    # Ten milliseconds hold three bins of three; the neurons differ only in the tenth.
    times_ms = [1.0, 1.0, 9.5]
    assert count_correlations(times_ms, [0, 1, 1], 2, 10.0, bin_ms=3.0) == pytest.approx([1.0])


def test_a_neuron_with_the_same_count_in_every_bin_is_left_out() -> None:
    times_ms = [0.5, 1.5, 2.5, 0.5, 1.5, 0.5]
    ids = [0, 0, 0, 1, 1, 2]
    assert count_correlations(times_ms, ids, 3, 3.0, bin_ms=1.0) == pytest.approx([0.5])
    assert count_correlations([0.5], [0], 3, 3.0, bin_ms=1.0).tolist() == []
    assert count_correlations([], [], 3, 3.0, bin_ms=1.0).tolist() == []


def test_a_sample_is_drawn_by_its_seed_among_the_neurons_that_fire() -> None:
    times_ms, ids = poisson(np.random.default_rng(1), 60, 5_000.0, 8.0)
    ids = ids * 2  # every second neuron is silent
    everything = count_correlations(times_ms, ids, 120, 5_000.0)
    assert len(everything) == 60 * 59 // 2
    samples = [count_correlations(times_ms, ids, 120, 5_000.0, n_sample=10, seed=seed) for seed in (3, 3, 4)]
    assert [len(sample) for sample in samples] == [45, 45, 45]
    assert samples[0].tolist() == samples[1].tolist()
    assert samples[0].tolist() != samples[2].tolist()
    assert np.isin(samples[0].round(12), everything.round(12)).all()


def test_a_common_source_shows_in_the_mean() -> None:
    random = np.random.default_rng(2)
    own = poisson(random, 100, 20_000.0, 6.0)
    source = random.random(80) * 20_000.0  # 4 Hz that all share, on top of 6 Hz of their own
    times_ms = np.concatenate([own[0], np.tile(source, 100)])
    ids = np.concatenate([own[1], np.repeat(np.arange(100), len(source))])
    assert count_correlations(times_ms, ids, 100, 20_000.0).mean() == pytest.approx(0.4, abs=0.02)
    assert count_correlations(*own, 100, 20_000.0).mean() == pytest.approx(0.0, abs=0.002)


# --- distance ---


def test_ks_distance_of_known_samples() -> None:
    assert ks_distance([1, 2, 3], [1, 2, 3]) == 0
    assert ks_distance([1, 2, 3], [4, 5]) == 1
    assert ks_distance([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert ks_distance([0, 0, 0, 1], [0, 1, 1, 1]) == 0.5
    assert ks_distance([1, 2], [1, 2, math.nan]) == 0
    assert ks_distance([2.0], [1.0, 2.0, 3.0]) == pytest.approx(1 / 3)


@given(a=st.lists(st.integers(-5, 5), min_size=1, max_size=30), b=st.lists(st.integers(-5, 5), min_size=1, max_size=30))
def test_ks_distance_is_its_definition(a: list[int], b: list[int]) -> None:
    expected = max(abs(sum(v <= x for v in a) / len(a) - sum(v <= x for v in b) / len(b)) for x in range(-6, 7))
    assert ks_distance(a, b) == pytest.approx(expected)
    assert ks_distance(b, a) == ks_distance(a, b)


# --- all together ---


def test_summary() -> None:
    found = summary(TIMES_MS, IDS, 4, 200.0)
    correlations = count_correlations(TIMES_MS, IDS, 4, 200.0)
    assert found == SpikeSummary(
        neurons=4,
        spikes=9,
        rate_hz_mean=11.25,
        rate_hz_sd=pytest.approx(math.sqrt(54.6875)),
        silent_share=0.25,
        isi_cv_mean=0.25,
        correlation_mean=pytest.approx(correlations.mean()),
        correlation_sd=pytest.approx(correlations.std()),
    )


def test_summary_of_the_part_after_a_transient() -> None:
    found = summary(TIMES_MS, IDS, 4, 100.0, start_ms=10.0)
    assert (found.spikes, found.silent_share) == (5, 0.5)


def test_summary_of_silence() -> None:
    found = summary([], [], 3, 100.0)
    assert (found.spikes, found.rate_hz_mean, found.silent_share) == (0, 0.0, 1.0)
    assert math.isnan(found.isi_cv_mean)
    assert math.isnan(found.correlation_mean)


# --- what cannot be ---


def test_arguments_that_cannot_be() -> None:
    with pytest.raises(InvalidArgument, match="ids has 4: give numbers from 0 to n - 1, 3"):
        rates_hz([1.0], [4], 4, 10.0)
    with pytest.raises(InvalidArgument, match="ids has -1"):
        rates_hz([1.0], [-1], 4, 10.0)
    with pytest.raises(InvalidArgument, match=r"times_ms has shape \(2,\) and ids \(1,\)"):
        isi_cv([1.0, 2.0], [0], 4, 10.0)
    with pytest.raises(InvalidType, match="ids has dtype float64"):
        isi_cv([1.0], [0.5], 4, 10.0)
    with pytest.raises(InvalidArgument, match="n is 0"):
        rates_hz([], [], 0, 10.0)
    with pytest.raises(InvalidArgument, match="duration_ms is 0"):
        rates_hz([], [], 1, 0.0)
    with pytest.raises(InvalidArgument, match="bin_ms is 20"):
        count_correlations([], [], 1, 10.0, bin_ms=20.0)
    with pytest.raises(InvalidArgument, match="n_sample is 1"):
        count_correlations([], [], 1, 10.0, n_sample=1)
    with pytest.raises(InvalidArgument, match="b has no values"):
        ks_distance([1.0], [math.nan])
