"""Kernels that draw the synapses of a projection and build tables of them, ordered by source and delay.

**Drawing.** All random numbers belong to the target: the j-th synapse of target t in projection p takes its numbers
from the key (seed, p, t) at position j. Each worker draws the synapses of its own neurons only, and the result does not
depend on the placement. Rules that do not count by target (a fixed out-degree, a total number of distinct pairs) are
listed first (`engine/encoding.py`) and read here row by row.

**Tables.** A table is two arrays. `index` has an entry for each *segment*, the synapses of one source with one delay:
segment s = row of the source * classes + class of the delay holds the synapses from index[s] to index[s + 1]. The
*classes* are the delays that occur, in ascending order. A *wide* table has one entry of the index for each source, and
the class in each word. A table is built in two passes over the targets, which draw the same numbers: the first counts
the synapses of each segment, the second stores them. Nothing is sorted and no synapse is stored twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from neuraxis.compiled import compiled, inner_function
from neuraxis.compiled.atomics import prefetch
from neuraxis.engine.arithmetic import exp
from neuraxis.engine.codegen import BLOCK
from neuraxis.engine.memory import u64
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
from neuraxis.errors import InvalidArgument

__all__ = [
    "ALL_TO_ALL",
    "BERNOULLI",
    "CHANGED",
    "CLIPPED",
    "CONSTANT",
    "COUNT",
    "IN_DEGREE",
    "LIST",
    "LISTED",
    "LOG_NORMAL",
    "MUCH",
    "NARROW",
    "NORMAL",
    "ONE_TO_ONE",
    "PLASTIC",
    "TALLY_WORDS",
    "TO_ZERO",
    "UNIFORM",
    "VALUES",
    "WIDE",
    "count_to_starts",
    "distinct",
    "draw_row",
    "scan_targets",
    "sort_rows",
    "value",
]

ONE_TO_ONE, ALL_TO_ALL, BERNOULLI, IN_DEGREE, LISTED = 0, 1, 2, 3, 4
CONSTANT, UNIFORM, NORMAL, LOG_NORMAL, VALUES = 0, 1, 2, 3, 4

_u = np.uint64


@inner_function
def draw_row(rule: Any, seed: Any, target: Any, count: Any, listed: Any, first: Any, sources: Any) -> Any:
    """Write the sources of `target` to `sources` and return their number.

    `rule` is (kind, projection, n_pre, no autapses, distinct, probability * 2**32, groups, n_post). `count` is the
    in-degree of rules that have one; listed rules read `count` sources from `listed` at `first`.
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
    # Sources are in the same group as the target.
    group = ((target + 1) * groups - 1) // n_post
    start = group * n_pre // groups
    itself = target - start  # with no_self, the groups of sources and targets are the same
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
    """Return the j-th element of a random permutation of the numbers below n.

    A keyed permutation (a Feistel network over the bits of n) is applied until the result is below n (cycle walking).
    Few bits need more rounds until neighbours are not drawn together more often than others.
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


@inner_function
def value(kind: Any, p: Any, bits: Any, key: Any, j: Any, table: Any) -> Any:
    """Draw a float64 from the distribution with the parameters p = (a, b, low, high, redraw).

    `bits` are the first 32 random bits; redrawing takes more from the key.
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


LARGEST_TABLE = 2**32 - 1
_LONG_ROW, _ROWS_AT_ONCE = 16, 1 << 14  # of `sort_rows`

# Modes of `scan_targets`. LIST is PLASTIC with the rounded weight that a static synapse delivers.
COUNT, NARROW, WIDE, PLASTIC, LIST = range(5)

# Counts of a projection while it is built: clipped delays, weights that fixed-point rounding changes by a fraction of
# more than MUCH, and those of them that become zero.
CLIPPED, CHANGED, TO_ZERO, TALLY_WORDS = range(4)
MUCH = 0.01


@compiled
def scan_targets(
    mode: int,
    rule: Any,  # int64: see draw_row
    seed: np.uint64,
    first_target: int,  # of the population
    last_target: int,
    counts: Any,  # int64: in-degree of each target of the slice, if the rule has one
    listed: Any,  # int32: sources of listed rules, ordered by target
    listed_first: Any,  # int64: start of the row of each target of the slice
    listed_order: Any,  # int64: index of each listed synapse in the given values
    slice_first: int,  # first neuron of the slice, within the population
    weight_kind: int,
    weight: Any,  # float64 parameters
    weight_values: Any,
    delay_kind: int,
    delay: Any,
    delay_values: Any,
    dt_ms: float,
    class_of_delay: Any,  # int32 by delay in steps; -1 for delays that do not occur
    index_classes: int,  # entries of the index for each source: one per class, or one (wide)
    first_row: int,  # row of source 0
    receptor_offset: int,  # accumulator of the slice's neuron 0, relative to that of the table
    block_stride: int,  # accumulators between consecutive blocks of the slice
    inverse_lsb: float,
    largest: float,
    index: Any,  # uint32
    words: Any,  # uint32: target and weight packed, one word (narrow) or two (wide) for each synapse
    targets: Any,  # uint32 of plastic synapses
    weights: Any,  # float32 of plastic synapses
    table: Any,
    sources: Any,  # int64 scratch
    segments: Any,  # int64 scratch
    classes: Any,  # int64 scratch
    tally: Any,  # int64[TALLY_WORDS]
    load: Any,  # int64 by neuron of the slice: sum of its weights in the accumulator's unit; empty: not needed
    shift: int,  # from the unit of the words to that of the accumulator
    most: int,  # largest value of a plastic weight in the accumulator's unit; 0: static
    wide_weights: Any,  # int64 by synapse: weights beyond 32 bits, whose place is stored with the target; or empty
) -> None:
    kind, projection, n_pre = rule[0], rule[1], rule[2]
    longest = len(class_of_delay) - 1
    index_address = np.int64(index.ctypes.data)
    place_address, place_bytes = np.int64(words.ctypes.data), np.int64(8 if mode == WIDE else 4)
    wide_words = u64(place_address, len(words) // 2)
    if mode == PLASTIC or mode == LIST:
        place_address, place_bytes = np.int64(weights.ctypes.data), np.int64(4)
    for target in range(first_target, last_target):
        local = target - slice_first
        count, first = 0, 0
        if len(counts) > 0:
            count = counts[local]
        if kind == LISTED:
            first = listed_first[local]
            count = listed_first[local + 1] - first
        k = draw_row(rule, seed, target, count, listed, first, sources)
        # Draw delays; source and delay determine the segment of a synapse.
        if delay_kind == CONSTANT:
            constant_class = class_of_delay[np.int64(delay[0] / dt_ms + 0.5)]
            for j in range(k):
                classes[j] = constant_class
        else:
            key = key_of(seed, PURPOSE_CONNECT, projection, target)
            for j in range(k):
                if delay_kind == VALUES:
                    place = target
                    if kind == LISTED:
                        place = listed_order[first + j]
                    elif kind == ALL_TO_ALL:
                        place = target * n_pre + sources[j]
                    drawn = delay_values[place]
                else:
                    drawn = value(delay_kind, delay, np.uint32(number(key, j) & _u(0xFFFFFFFF)), key, j, table)
                    if drawn < delay[2] or drawn > delay[3]:
                        tally[CLIPPED] += mode == COUNT
                        drawn = min(max(drawn, delay[2]), delay[3])
                steps = min(max(np.int64(drawn / dt_ms + 0.5), 1), longest)  # as network.grid.to_steps
                classes[j] = class_of_delay[steps]
        for j in range(k):
            segments[j] = (first_row + sources[j]) * index_classes + (classes[j] if index_classes > 1 else 0)
        if mode == COUNT:
            for j in range(k):
                index[segments[j] + 2] += np.uint32(1)
            continue
        accumulator = receptor_offset + (local // BLOCK) * block_stride + local % BLOCK
        key = key_of(seed, PURPOSE_WEIGHT, projection, target)
        # Segments are spread over gigabytes: prefetch all positions of a row before writing the first.
        for j in range(k):
            prefetch(index_address + 4 * (segments[j] + 1))
        for j in range(k):
            position = np.int64(index[segments[j] + 1])
            index[segments[j] + 1] = np.uint32(position + 1)
            segments[j] = position
            prefetch(place_address + place_bytes * position)
        for j in range(k):
            if weight_kind == CONSTANT:
                drawn = weight[0]
            elif weight_kind == VALUES:
                place = target
                if kind == LISTED:
                    place = listed_order[first + j]
                elif kind == ALL_TO_ALL:
                    place = target * n_pre + sources[j]
                drawn = weight_values[place]
            else:
                drawn = value(weight_kind, weight, np.uint32(number(key, j) >> _u(32)), key, j, table)
                drawn = min(max(drawn, weight[2]), weight[3])
            position = segments[j]
            if mode == PLASTIC:
                drawn = np.float64(np.float32(drawn))
            scaled = drawn * inverse_lsb
            rounded = min(max(np.rint(scaled), -largest), largest)
            if abs(rounded - scaled) > MUCH * abs(scaled):
                tally[CHANGED] += 1
                tally[TO_ZERO] += rounded == 0.0
            if len(load) > 0:
                load[local] += most if most > 0 else np.int64(abs(rounded)) << shift
            if mode == PLASTIC or mode == LIST:
                targets[position] = np.uint32(accumulator)
                weights[position] = np.float32(drawn if mode == PLASTIC else rounded / inverse_lsb)
            else:
                fixed = np.int64(rounded)
                if mode == NARROW:
                    words[position] = np.uint32((fixed & 0xFFFF) << 16 | accumulator)
                else:
                    if len(wide_weights) > 0:
                        wide_weights[position] = fixed
                        fixed = position
                    wide_words[position] = _u(classes[j]) << _u(48) | _u(accumulator << 32 | (fixed & 0xFFFFFFFF))


def sort_rows(index: NDArray[np.uint32], words: NDArray[Any]) -> None:
    """Sort the wide words of each source by class, then target."""
    starts, sizes = index[:-2].astype(np.int64), np.diff(index[:-1])
    # With many sources most rows are short: those of one size are sorted together, as the rows of a matrix.
    for size in range(2, _LONG_ROW):
        rows = starts[sizes == size]
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            places = rows[first : first + _ROWS_AT_ONCE, None] + np.arange(size)
            words[places] = np.sort(words[places], axis=1)
    for row in np.flatnonzero(sizes >= _LONG_ROW).tolist():
        words[index[row] : index[row + 1]].sort()


def count_to_starts(index: Any) -> int:
    """Turn the counts into starts: index[s + 1] becomes the start of segment s; return the number of synapses."""
    total = int(_sum_up(index))
    if total > LARGEST_TABLE:
        raise InvalidArgument(f"{total:,} synapses in one shard: {LARGEST_TABLE:,} are the most. Use more workers.")
    return total


@compiled
def _sum_up(index: Any) -> int:
    total = 0
    for s in range(2, len(index)):
        total += index[s]
        index[s] = np.uint32(total)
    return total
