"""Rate neurons: units whose continuous output other neurons receive in every step (`Network.connect_rates`)."""

from __future__ import annotations

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp, expm1, tanh
from neuraxis.network.models.lif import Parameters
from neuraxis.network.neuron_model import neuron_model

__all__ = [
    "rate_linear",
    "rate_tanh",
    "rate_tanh_each",
    "rate_threshold_linear",
    "rate_threshold_linear_each",
]

_MEANINGS = {
    "tau_ms": "time constant",
    "mean": "mean drive",
    "gain": "slope of the nonlinearity",
    "theta": "input at which the nonlinearity begins",
    "rate": "rate, which has no unit",
    "input": "sum of weight x rate of the sources",
}
_SLOPE = {"tau_ms": 10.0, "mean": 0.0, "gain": 1.0}
_CURVE = {**_SLOPE, "theta": 0.0}


def _propagators(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    """Return the factors of the exact solution of tau dx/dt = -x + drive for one step of constant drive."""
    if p["tau_ms"] <= 0:
        raise InvalidArgument(f"tau_ms={p['tau_ms']:g}: a time above 0 is expected")
    return {"keep": exp(-dt_ms / p["tau_ms"]), "take": -expm1(-dt_ms / p["tau_ms"])}
