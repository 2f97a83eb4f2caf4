"""Thresholds of Poisson inputs as blocks of threads keep them at hand, with a guide by the first 8 bits of a draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.poisson import poisson_thresholds
from neuraxis.network import Network

__all__ = ["PoissonTables"]

MOST_WORDS = 4096
_GUIDE_WORDS = 64
_SLOW = -2  # as the kernels know it: an input whose table is not at hand


class PoissonTables:
    """The tables of all inputs of these populations with one rate for all neurons, as long as they fit."""

    def __init__(self, network: Network, parts: list[NeuronPart]) -> None:
        self._places: dict[bytes, int] = {}
        words: list[NDArray[np.uint32]] = [np.zeros(0, np.uint32)]
        used = 0
        here = {part.part.population for part in parts}
        for given in network.poisson_inputs:
            if given.population.index not in here or isinstance(given.rate_hz, np.ndarray):
                continue
            thresholds = poisson_thresholds(float(np.asarray(given.rate_hz) * network.dt_ms * 1e-3))
            if thresholds is None or thresholds.tobytes() in self._places:
                continue
            table = _with_guide(thresholds)
            if used + len(table) > MOST_WORDS:
                break
            self._places[thresholds.tobytes()] = used
            words.append(table)
            used += len(table)
        self.words = np.concatenate(words)

    def place(self, table: NDArray[np.generic], receptor: int) -> int:
        """Where a table of `engine/poisson.py` is, with the receptor; or that it is not at hand."""
        found = self._places.get(table.tobytes()) if table.dtype == np.int32 else None
        return _SLOW if found is None else found | receptor << 24


def _with_guide(thresholds: NDArray[np.int32]) -> NDArray[np.uint32]:
    """256 bytes: how many thresholds a draw with these first 8 bits exceeds at least; then the thresholds, unsigned."""
    unsigned = (thresholds.astype(np.int64) + 2**31).astype(np.uint32)
    guide = np.searchsorted(unsigned, np.arange(256, dtype=np.uint64) << np.uint64(24), side="left").astype(np.uint8)
    return np.concatenate([guide.view(np.uint32), unsigned, np.array([2**32 - 1], np.uint32)])
