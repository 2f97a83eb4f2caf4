"""Draw the synapses of one target neuron: its sources, delays and weights.

Everything belongs to the target: the j-th synapse of target t in projection p takes its numbers from the key
(seed, p, t) at position j. So each worker draws the synapses of its own neurons and of nobody else's, and the same
ones come out however the neurons are spread. Rules that do not count by target (a fixed out-degree, a total number of
distinct pairs) are listed first (`engine/listing.py`) and read here row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from neuraxis.engine.arithmetic import exp
from neuraxis.engine.random import (
    GOLDEN,
    PURPOSE_CONNECT,
    PURPOSE_COUNT,
    PURPOSE_WEIGHT,
    binomial,
    key_of,
    mix,
    normal,
    number,
)

__all__ = [
    "ALL_TO_ALL",
    "BERNOULLI",
    "CONSTANT",
    "IN_DEGREE",
    "LISTED",
    "LOG_NORMAL",
    "NORMAL",
    "ONE_TO_ONE",
    "UNIFORM",
    "VALUES",
    "distinct",
    "draw_row",
    "value",
]

ONE_TO_ONE, ALL_TO_ALL, BERNOULLI, IN_DEGREE, LISTED = 0, 1, 2, 3, 4
CONSTANT, UNIFORM, NORMAL, LOG_NORMAL, VALUES = 0, 1, 2, 3, 4

_u = np.uint64


@njit
def draw_row(rule: Any, seed: Any, target: Any, count: Any, listed: Any, first: Any, sources: Any) -> Any:
    """Write the sources of `target` to `sources`; how many there are.

    `rule` = (kind, projection, n_pre, without itself, distinct, share of 2^32, groups, n_post); `count` is its
    in-degree where the rule has one; listed rules read `count` sources from `listed` at `first`.
    """
    kind, projection, n_pre, no_self, all_distinct, share = rule[0], rule[1], rule[2], rule[3], rule[4], rule[5]
    groups, n_post = rule[6], rule[7]
    if kind == ONE_TO_ONE:
        sources[0] = target
        return 1
    if kind == LISTED:
        for j in range(count):
            sources[j] = listed[first + j]
        return count
    # The sources are those of the target's group: with one group, all.
    group = ((target + 1) * groups - 1) // n_post
    start = group * n_pre // groups
    itself = target - start  # where no_self matters, the groups of sources and targets are the same
    n = (group + 1) * n_pre // groups - start - no_self
    if kind == ALL_TO_ALL:
        for j in range(n):
            sources[j] = start + j + (no_self != 0 and j >= itself)
        return n
    key = key_of(seed, PURPOSE_CONNECT, projection, target)
    if kind == BERNOULLI:
        if share >= 1 << 32:
            count = n
        else:
            count = binomial(n, share, key_of(seed, PURPOSE_COUNT, projection, target))
    if all_distinct:
        for j in range(count):
            sources[j] = start + distinct(key, j, n)
    else:
        for j in range(count):
            sources[j] = start + np.int64(((number(key, j) >> _u(32)) * _u(n)) >> _u(32))
    if no_self:
        for j in range(count):
            sources[j] += sources[j] >= target
    return count


@njit
def distinct(key: Any, j: Any, n: Any) -> Any:
    """The j-th of the numbers below n in a random order: j < n gives each number once.

    A keyed permutation (a Feistel network over the bits that n needs), walked until it falls below n. The fewer the
    bits, the more rounds it takes until neighbours are no longer drawn together more often than others.
    """
    bits = 1
    while (np.int64(1) << bits) < n:
        bits += 1
    low = bits // 2
    high = bits - low
    turns = 4 if bits > 6 else 12
    x = _u(j)
    while True:
        left = x >> _u(low)
        right = x & ((_u(1) << _u(low)) - _u(1))
        for turn in range(turns):
            left ^= mix(key + GOLDEN * (right * _u(32) + _u(2 * turn + 1))) >> _u(64 - high)
            if low:
                right ^= mix(key + GOLDEN * (left * _u(32) + _u(2 * turn + 2))) >> _u(64 - low)
        x = (left << _u(low)) | right
        if x < _u(n):
            return np.int64(x)


@njit
def value(kind: Any, p: Any, bits: Any, key: Any, j: Any, table: Any) -> Any:
    """A number (float64) from the distribution with the parameters p = (a, b, low, high, redraw).

    `bits` are the first 32 random bits; drawing again takes more from the key.
    """
    if kind == CONSTANT:
        return p[0]
    if kind == UNIFORM:
        return p[0] + (p[1] - p[0]) * (np.float64(bits) * 2.0**-32)
    drawn = p[0] + p[1] * normal(bits, table)
    if kind == LOG_NORMAL:
        drawn = np.float64(exp(np.float32(drawn)))
    attempt = 0
    while p[4] != 0.0 and (drawn < p[2] or drawn > p[3]):
        attempt += 1
        bits = np.uint32(number(mix(key + _u(attempt)), j) >> _u(32))
        drawn = p[0] + p[1] * normal(bits, table)
        if kind == LOG_NORMAL:
            drawn = np.float64(exp(np.float32(drawn)))
    return drawn


@njit
def weight_key(seed: Any, projection: Any, target: Any) -> Any:
    return key_of(seed, PURPOSE_WEIGHT, projection, target)
