"""Models without dynamics that only emit spikes."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp
from neuraxis.network.models.lif import Parameters
from neuraxis.network.neuron_model import neuron_model

__all__ = ["poisson_source", "spike_source"]


@neuron_model(states={})
def spike_source():
    """Neuron that spikes exactly at the times given to `Network.spikes`."""
    return (False,)


def _threshold(p: Parameters, dt_ms: float) -> dict[str, Any]:
    if np.any(p["rate_hz"] < 0):
        raise InvalidArgument(f"rate_hz={p['rate_hz']!r}: a rate cannot be negative")
    if np.any(p["rate_hz"] * dt_ms > 1000):
        raise InvalidArgument(
            f"rate_hz={p['rate_hz']!r}: more than one spike in a step of {dt_ms:g} ms cannot be emitted. Use several "
            "neurons, or network.poisson()."
        )
    probability = 1.0 - exp(-p["rate_hz"] * dt_ms * 1e-3)
    threshold = np.minimum(2**32 - 1, np.rint(probability * 2.0**32)) - 2**31
    return {"threshold": threshold.astype(np.int64) if threshold.ndim else int(threshold)}


@neuron_model(
    states={}, parameters={"rate_hz": 10.0}, constants=_threshold, meanings={"rate_hz": "mean rate of the spikes"}
)
def poisson_source(uniform, threshold):
    """Neuron that spikes at random with `rate_hz`, independently of all others.

    In each step of length dt it spikes with probability 1 - exp(-rate_hz dt), at most once::

        P(spike in a step) = 1 - exp(-rate_hz * dt_ms / 1000)
    """
    return (uniform < threshold,)
