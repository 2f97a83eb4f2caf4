"""Kernels of networks in float64, whose blocks, accumulators and weights have 64 bits.

A kernel that all networks use calls them where numbers of 32 bits would not do (`engine/cpu/advance.py`).
"""

from __future__ import annotations

import numpy as np

from neuraxis.compiled import compiled_on_demand
from neuraxis.engine.codegen import BLOCK
from neuraxis.engine.memory import array_of, i32, i64, u64
from neuraxis.engine.tables import CONTROL, NOT_FINITE_64, SLICE, STATIC_TABLE

__all__ = ["add_counts", "check_wide", "deliver_wide"]

_controls_at, _slices_at, _tables_at = map(array_of, (CONTROL, SLICE, STATIC_TABLE))

# Of a segment in the calendar and of a wide synapse: see `engine/cpu/advance.py`.
_LOW, _SIZE, _TARGET = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFF), np.uint64(0xFFFF)

_WITHOUT_SIGN = np.uint64(0x7FFFFFFFFFFFFFFF)


@compiled_on_demand
def deliver_wide(control_at: int, table_at: int, segments_at: int, n: int) -> None:
    """Add the 64-bit weights of n segments to int64 accumulators."""
    control, table = _controls_at(control_at, 1)[0], _tables_at(table_at, 1)[0]
    segments = u64(segments_at, n)
    accumulators = i64(table.accumulators, 1 << 40)
    wide, weights = u64(table.words_address, 1 << 40), i64(table.weights, 1 << 40)
    events = np.int64(0)
    for i in range(n):
        start = segments[i] & _LOW
        size = (segments[i] >> np.uint64(32)) & _SIZE
        for k in range(start, start + size):
            accumulators[(wide[k] >> np.uint64(32)) & _TARGET] += weights[k]
        events += np.int64(size)
    control.events += events


@compiled_on_demand
def add_counts(counts_at: int, accumulators_at: int, n: int, weight: int) -> None:
    """Add a weight to the accumulators of n neurons, as often as each count says, and set the counts to 0."""
    counts, accumulators = i32(counts_at, BLOCK), i64(accumulators_at, BLOCK)
    for k in range(n):
        accumulators[k] += counts[k] * weight
        counts[k] = 0


@compiled_on_demand
def check_wide(control_at: int, part_at: int, place: int, block: int, first: int, size: int, t: int) -> None:
    """Record the first neuron of a block with a state that is infinite or NaN, if there is one."""
    control, part = _controls_at(control_at, 1)[0], _slices_at(part_at, 1)[0]
    rows = i64(part.floats, part.float_count)
    highest = np.uint64(0)
    for j in range(part.float_count):
        row = u64(block + rows[j] * BLOCK * 8, BLOCK)
        for k in range(size):
            highest = max(highest, row[k] & _WITHOUT_SIGN)
    if highest < np.uint64(NOT_FINITE_64):
        return
    for k in range(size):
        for j in range(part.float_count):
            bits = u64(block + rows[j] * BLOCK * 8, BLOCK)[k]
            if bits & _WITHOUT_SIGN >= np.uint64(NOT_FINITE_64):
                control.unstable_step = t
                control.unstable_part = place
                control.unstable_neuron = first + k
                control.unstable_state = rows[j]
                control.unstable_bits = np.int64(bits)
                return
