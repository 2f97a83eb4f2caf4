"""Populations that have no dynamics of their own and only emit spikes."""

from __future__ import annotations

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp
from neuraxis.network.models.membrane import Parameters
from neuraxis.network.neuron_model import neuron_model

__all__ = ["poisson_source", "spike_source"]


@neuron_model(states={})
def spike_source():
    """Emits what `Network.spikes` tells it to, and nothing else."""
    return (False,)


def _threshold(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    if p["rate_hz"] < 0:
        raise InvalidArgument(f"rate_hz={p['rate_hz']!r}: a rate cannot be negative")
    probability = 1.0 - exp(-p["rate_hz"] * dt_ms * 1e-3)
    return {"threshold": int(min(2**32 - 1, round(probability * 2**32)) - 2**31)}


@neuron_model(states={}, parameters={"rate_hz": 10.0}, constants=_threshold)
def poisson_source(uniform, threshold):
    """Independent Poisson spikes, at most one a step."""
    return (uniform < threshold,)
