"""Build a table of synapses, sorted by source and delay, from a projection's description.

A table is two arrays. `index` has one entry for each *segment*, the synapses of one source with one delay: segment
s = row of the source * classes + class of the delay holds the synapses from index[s] to index[s + 1]. Delays are sorted
into *classes* (the delays that occur, in rising order), so a table whose delays are all alike has one class. A *wide*
table has one entry of the index for each source, and the class in each word.

It is built in two passes over the targets, which draw the same numbers twice: the first counts the synapses of
each segment, the second puts each synapse in its place. Nothing is sorted and no synapse is kept twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.comm.atomics import prefetch
from neuraxis.compiled import compiled
from neuraxis.engine.drawing import (
    ALL_TO_ALL,
    CONSTANT,
    LISTED,
    VALUES,
    draw_row,
    value,
    weight_key,
)
from neuraxis.engine.generated import BLOCK
from neuraxis.engine.random import PURPOSE_CONNECT, key_of, number
from neuraxis.errors import InvalidArgument

__all__ = ["COUNT", "NARROW", "PLASTIC", "WIDE", "count_to_starts", "scan_targets", "sort_rows"]

LARGEST_TABLE = 2**32 - 1

# What `scan_targets` does with a synapse.
COUNT, NARROW, WIDE, PLASTIC = 0, 1, 2, 3

_u = np.uint64


@compiled
def scan_targets(
    mode: int,
    rule: Any,  # int64: see draw_row
    seed: np.uint64,
    first_target: int,  # of the population
    last_target: int,
    counts: Any,  # int64: the in-degree of each target of the slice, where the rule has one
    listed: Any,  # int32: sources of listed rules, target by target
    listed_first: Any,  # int64: where the row of each target of the slice starts
    listed_order: Any,  # int64: the place of each listed synapse in the given values
    slice_first: int,  # the population's neuron at which the slice starts
    weight_kind: int,
    weight: Any,  # float64 parameters
    weight_values: Any,
    delay_kind: int,
    delay: Any,
    delay_values: Any,
    dt_ms: float,
    class_of_delay: Any,  # int32 by delay in steps, -1 where there is none
    index_classes: int,  # entries of the index for each source: one for each class, or one (wide)
    first_row: int,  # the row of source 0
    receptor_offset: int,  # accumulator of the slice's neuron 0, relative to the table's
    block_stride: int,  # accumulators from one block of the slice to the next
    inverse_lsb: float,
    largest: float,
    index: Any,  # uint32
    words: Any,  # uint32 (narrow) or uint64 (wide): target and weight packed
    targets: Any,  # uint32 of plastic synapses
    weights: Any,  # float32 of plastic synapses
    table: Any,
    sources: Any,  # int64 scratch
    segments: Any,  # int64 scratch
    classes: Any,  # int64 scratch
    clipped: Any,  # int64[2]: delays clipped, weights clipped
) -> None:
    kind, projection, n_pre = rule[0], rule[1], rule[2]
    longest = len(class_of_delay) - 1
    index_address = np.int64(index.ctypes.data)
    place_address, place_bytes = np.int64(words.ctypes.data), np.int64(words.itemsize)
    if mode == PLASTIC:
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
        # Delays, and with the source the segment that each synapse belongs to.
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
                        clipped[0] += mode == COUNT
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
        key = weight_key(seed, projection, target)
        # Segments lie anywhere in gigabytes: all places of a row are asked for before the first is written.
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
                targets[position] = np.uint32(accumulator)
                weights[position] = np.float32(drawn)
            else:
                fixed = np.int64(min(max(np.rint(drawn * inverse_lsb), -largest), largest))
                if mode == NARROW:
                    words[position] = np.uint32((fixed & 0xFFFF) << 16 | accumulator)
                else:
                    words[position] = _u(classes[j]) << _u(48) | _u(accumulator << 32 | (fixed & 0xFFFFFFFF))


@compiled
def sort_rows(index: Any, words: Any) -> None:
    """Sort the wide words of each source by class, then target."""
    for row in range(len(index) - 2):
        start, end = np.int64(index[row]), np.int64(index[row + 1])
        if end > start + 1:
            words[start:end].sort()


def count_to_starts(index: Any) -> int:
    """After counting: index[s + 1] becomes the place of segment s's first synapse; the number of synapses."""
    total = int(_sum_up(index))
    if total > LARGEST_TABLE:
        raise InvalidArgument(f"{total:,} synapses in one shard: {LARGEST_TABLE:,} are the most; use more workers")
    return total


@compiled
def _sum_up(index: Any) -> int:
    total = 0
    for s in range(2, len(index)):
        total += index[s]
        index[s] = np.uint32(total)
    return total
