"""Tables of e^(-n dt / tau): one number for the low and one for the high digit of n, to the base DECAY_CELLS."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.plan import DECAY_CELLS
from neuraxis.network.arithmetic import exp

__all__ = ["decay_table"]


@lru_cache(maxsize=64)
def decay_table(dt_ms: float, tau_ms: float) -> NDArray[np.float32]:
    """float32[2 * DECAY_CELLS]; a time constant of 0 decays at once."""
    if tau_ms == 0:
        return np.zeros(2 * DECAY_CELLS, np.float32)
    low = [exp(-n * dt_ms / tau_ms) for n in range(DECAY_CELLS)]
    high = [exp(-n * DECAY_CELLS * dt_ms / tau_ms) for n in range(DECAY_CELLS)]
    table = np.array(low + high, np.float32)
    table.flags.writeable = False
    return table
