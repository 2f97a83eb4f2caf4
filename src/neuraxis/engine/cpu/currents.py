"""Kernels of networks with injected currents that differ between neurons: a row of each block holds their sum."""

from __future__ import annotations

import numpy as np

from neuraxis.compiled import compiled_on_demand
from neuraxis.engine.codegen import BLOCK
from neuraxis.engine.memory import array_of, f32, f64
from neuraxis.engine.tables import CURRENT, SLICE

__all__ = ["set_currents", "set_wide_currents"]

_slices_at, _currents_at = map(array_of, (SLICE, CURRENT))


@compiled_on_demand
def set_currents(part_at: int, currents_at: int, t: int) -> None:
    """Set the row of currents that differ between neurons to the sum of those active in step t."""
    part = _slices_at(part_at, 1)[0]
    currents = _currents_at(currents_at, part.pulse_end)
    for b in range((part.n + BLOCK - 1) // BLOCK):
        row = f32(part.blocks + b * part.block_bytes + part.current_row, BLOCK)
        for k in range(min(BLOCK, part.n - b * BLOCK)):
            total = np.float32(0.0)
            for i in range(part.pulse_first, part.pulse_end):
                if currents[i].values != 0 and currents[i].start < t and t <= currents[i].stop:
                    total += f32(currents[i].values, part.n)[b * BLOCK + k]
            row[k] = total


@compiled_on_demand
def set_wide_currents(part_at: int, currents_at: int, t: int) -> None:
    """Do the same in a network in float64."""
    part = _slices_at(part_at, 1)[0]
    currents = _currents_at(currents_at, part.pulse_end)
    for b in range((part.n + BLOCK - 1) // BLOCK):
        row = f64(part.blocks + b * part.block_bytes + part.current_row, BLOCK)
        for k in range(min(BLOCK, part.n - b * BLOCK)):
            total = 0.0
            for i in range(part.pulse_first, part.pulse_end):
                if currents[i].values != 0 and currents[i].start < t and t <= currents[i].stop:
                    total += f64(currents[i].values, part.n)[b * BLOCK + k]
            row[k] = total
