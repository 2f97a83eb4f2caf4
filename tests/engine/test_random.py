"""Random numbers: their distributions, and their independence of the process that draws them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numba import njit

from neuraxis.engine.cpu.synapses import distinct
from neuraxis.engine.random import binomial, key_of, mix, normal, normal_table, number
from neuraxis.network.distributions import LARGEST_NORMAL

from .statistics import binomial_probabilities, chi_square_fits, ks_distance_to_normal, normal_cumulative, uniform_fits

Array = np.ndarray[Any, Any]


@njit
def numbers_of(key: Any, n: int) -> Array:
    out = np.empty(n, np.uint64)
    for i in range(n):
        out[i] = number(key, i)
    return out


@njit
def normals_of(bits: Array, table: Array) -> Array:
    out = np.empty(len(bits))
    for i in range(len(bits)):
        out[i] = normal(bits[i], table)
    return out


@njit
def binomials_of(n: int, share: int, seed: int, draws: int) -> Array:
    out = np.empty(draws, np.int64)
    for i in range(draws):
        out[i] = binomial(n, share, key_of(seed, 4, 0, i))
    return out


@njit
def order_of(key: Any, n: int) -> Array:
    out = np.empty(n, np.int64)
    for j in range(n):
        out[j] = distinct(key, j, n)
    return out


@njit
def keys_of(seed: Any, purpose: int, owner: int, n: int) -> Array:
    out = np.empty(n, np.uint64)
    for i in range(n):
        out[i] = key_of(seed, purpose, owner, i)
    return out


# --- keys ---


def plain_mix(x: int) -> int:
    """SplitMix64's finaliser in Python's integers."""
    mask = 2**64 - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


def test_the_hash_is_splitmix64() -> None:
    """The generator's first outputs for seed 1234567, as published with it."""
    golden, published = 0x9E3779B97F4A7C15, [6457827717110365317, 3203168211198807973, 9817491932198370423]
    state = 1234567
    for expected in published:
        state = (state + golden) % 2**64
        assert plain_mix(state) == expected
        assert int(mix(np.uint64(state))) == expected
    found = numbers_of(np.uint64(1234567), 3)
    assert found.tolist() == published


def test_numbers_are_uniform_in_every_byte() -> None:
    found = numbers_of(np.uint64(99), 100_000)
    for shift in range(0, 64, 8):
        assert uniform_fits(np.bincount(((found >> np.uint64(shift)) & np.uint64(255)).astype(int), minlength=256))


def test_neighbouring_keys_have_nothing_in_common() -> None:
    """Seeds, purposes, owners and indices one apart: other keys, half of the bits changed, no key twice."""
    base = int(key_of(np.uint64(5), 3, 2, 1))
    near = [
        int(key_of(np.uint64(6), 3, 2, 1)), int(key_of(np.uint64(5), 4, 2, 1)),
        int(key_of(np.uint64(5), 3, 3, 1)), int(key_of(np.uint64(5), 3, 2, 0)),
        int(key_of(np.uint64(5), 2, 3, 1)), int(key_of(np.uint64(5), 3, 1, 2)),
    ]  # fmt: skip
    assert len({base, *near}) == 7
    assert all(12 < bin(base ^ other).count("1") < 52 for other in near)
    firsts = np.concatenate(
        [keys_of(np.uint64(seed), p, owner, 500) for seed in (0, 1) for p in (1, 2) for owner in (0, 1)]
    )
    assert np.unique(firsts).size == firsts.size
    assert uniform_fits(np.bincount((firsts >> np.uint64(58)).astype(int), minlength=64))


def test_large_seeds_are_not_cut() -> None:
    seeds = [0, 1, 2**32, 2**63, 2**64 - 1]
    assert len({int(key_of(np.uint64(seed), 1, 0, 0)) for seed in seeds}) == len(seeds)


# --- normal ---


def test_normal_numbers_are_normal() -> None:
    n = 200_000
    bits = (numbers_of(np.uint64(3), n) >> np.uint64(32)).astype(np.uint32)
    z = normals_of(bits, normal_table())
    assert abs(z.mean()) < 4 / math.sqrt(n)
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs((z**3).mean()) < 4 * math.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 4 * math.sqrt(96 / n)
    assert ks_distance_to_normal(z[:50_000]) < 1.95 / math.sqrt(50_000)
    edges = [-math.inf, *np.linspace(-3.5, 3.5, 57).tolist(), math.inf]
    expected = [n * (normal_cumulative(b) - normal_cumulative(a)) for a, b in pairwise(edges)]
    assert chi_square_fits(np.histogram(z, edges)[0].tolist(), expected)


def test_the_table_is_the_quantile_everywhere_also_in_the_tails() -> None:
    """Tail probabilities from 1/2 down to the last one there is."""
    half = (
        np.concatenate([np.arange(1, 4096, 2), np.geomspace(4097, 2**31 - 1, 4000).astype(np.int64)]).astype(np.uint32)
        | 1
    )
    z = normals_of(half, normal_table())
    for v, found in zip(half.tolist(), z.tolist(), strict=True):
        tail = v * 2.0**-32  # 31 bits of 2p
        assert 0.5 * math.erfc(found / math.sqrt(2)) == pytest.approx(tail, rel=5e-4), f"bits {v}"
    assert (np.diff(z[np.argsort(half)]) <= 0).all()


def test_normal_numbers_are_bounded_and_symmetric() -> None:
    extreme = np.array([0, 1, 2, 3, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF], np.uint32)
    z = normals_of(extreme, normal_table())
    assert np.abs(z).max() <= LARGEST_NORMAL
    assert np.abs(z).max() > 6.0
    bits = (numbers_of(np.uint64(8), 1000) >> np.uint64(33)).astype(np.uint32)
    mirrored = normals_of(bits | np.uint32(0x80000000), normal_table())
    assert np.array_equal(normals_of(bits, normal_table()), -mirrored)


# --- binomial ---


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (3, 0.25), (10, 0.1), (20, 0.7), (64, 0.5), (65, 1 / 3), (130, 0.02)])
def test_small_binomials_have_the_exact_distribution(n: int, p: float) -> None:
    draws = 20_000
    share = round(p * 2**32)
    found = np.bincount(binomials_of(n, share, 1, draws), minlength=n + 1)
    assert len(found) == n + 1
    assert chi_square_fits(found.tolist(), [draws * q for q in binomial_probabilities(n, share / 2**32)])


@pytest.mark.parametrize(("n", "p"), [(1000, 0.1), (1000, 0.9), (10_000, 0.5), (20_000, 1 / 3)])
def test_large_binomials_have_mean_and_variance(n: int, p: float) -> None:
    draws = 2000
    found = binomials_of(n, round(p * 2**32), 2, draws)
    variance = n * p * (1 - p)
    assert abs(found.mean() - n * p) < 4 * math.sqrt(variance / draws)
    assert abs(found.var(ddof=1) / variance - 1) < 4 * math.sqrt(2 / draws)


def test_binomials_without_chance() -> None:
    assert (binomials_of(100, 0, 3, 50) == 0).all()
    assert (binomials_of(0, 2**31, 3, 50) == 0).all()
    assert binomials_of(1000, 2**32 - 1, 3, 50).min() == 1000
    assert binomials_of(1000, 1, 3, 50).max() <= 1


# --- distinct ---


@pytest.mark.parametrize("n", [*range(1, 40), 63, 64, 65, 100, 255, 256, 257, 1000, 1023, 1024, 1025, 4097, 20_000])
def test_distinct_is_a_permutation(n: int) -> None:
    for key in (1, 12345, 2**64 - 5):
        assert np.array_equal(np.sort(order_of(np.uint64(key), n)), np.arange(n))


@njit
def first_pairs(keys: Array, n: int, one: int, other: int) -> Array:
    counts = np.zeros((n, n), np.int64)
    for key in keys:
        counts[distinct(key, one, n), distinct(key, other, n)] += 1
    return counts


def test_all_orders_of_three_come_alike() -> None:
    orders = np.array([order_of(key, 3) for key in keys_of(np.uint64(1), 3, 0, 6000)])
    names, counts = np.unique(orders @ [9, 3, 1], return_counts=True)
    assert len(names) == 6
    assert uniform_fits(counts)


@pytest.mark.parametrize("n", [4, 5, 8, 10, 16, 20, 50, 64, 100])
def test_all_pairs_of_distinct_numbers_come_alike(n: int) -> None:
    """Two synapses of a neuron must not choose neighbouring sources more often than others."""
    keys = keys_of(np.uint64(1), 3, 0, 20 * n * n)
    for one, other in ((0, 1), (0, 2), (n - 2, n - 1)):
        counts = first_pairs(keys, n, one, other)
        assert not counts.diagonal().any()
        assert uniform_fits(counts[~np.eye(n, dtype=bool)]), f"numbers {one} and {other} of {n}"


def test_the_first_of_many_distinct_numbers_is_uniform() -> None:
    keys = keys_of(np.uint64(2), 3, 0, 20_000)
    for place in (0, 1, 49):
        found = np.array([int(distinct(key, place, 50)) for key in keys])
        assert uniform_fits(np.bincount(found, minlength=50))
