"""Neurons whose rate can be set while the brain runs, for sensors and effectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp
from neuraxis.network.neuron_model import neuron_model

__all__ = ["rate_source", "thresholds"]


@neuron_model(states={"threshold": -(2**31) + 1})
def rate_source(threshold, uniform):
    """Poisson source, with at most one spike in a step; `thresholds` converts rates to its state."""
    return uniform < threshold, threshold


def thresholds(rates_hz: NDArray[np.float64], dt_ms: float) -> NDArray[np.int32]:
    """Return the state of `rate_source` for rates in Hz."""
    rates = np.asarray(rates_hz, np.float64)
    if rates.size and not (np.isfinite(rates).all() and rates.min() >= 0):
        raise InvalidArgument("rates_hz: finite numbers, 0 or more, are expected")
    known: dict[float, int] = {}
    for rate in np.unique(rates):
        probability = 1.0 - exp(-float(rate) * dt_ms * 1e-3)
        known[float(rate)] = max(min(2**32 - 1, round(probability * 2**32)) - 2**31, -(2**31) + 1)
    return np.array([known[float(rate)] for rate in rates.ravel()], np.int32).reshape(rates.shape)
