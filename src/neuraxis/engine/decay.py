"""Tables of e^(-n dt / tau): one number for each of the three digits of n to the base DECAY_CELLS."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.plan import DECAY_CELLS
from neuraxis.network.arithmetic import exp

__all__ = ["decay_table"]


@lru_cache(maxsize=64)
def decay_table(dt_ms: float, tau_ms: float) -> NDArray[np.float32]:
    """float32[3 * DECAY_CELLS]; a time constant of 0 decays at once."""
    if tau_ms == 0:
        return np.zeros(3 * DECAY_CELLS, np.float32)
    digits = [
        [exp(-n * unit * dt_ms / tau_ms) for n in range(DECAY_CELLS)] for unit in (1, DECAY_CELLS, DECAY_CELLS**2)
    ]
    table = np.array(digits, np.float32).reshape(-1)
    table.flags.writeable = False
    return table
