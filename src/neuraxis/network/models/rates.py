"""Rate neurons: units whose continuous output other neurons receive in every step (`Network.connect_rates`)."""

from __future__ import annotations

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp, expm1, tanh
from neuraxis.network.models.lif import Parameters
from neuraxis.network.neuron_model import neuron_model

__all__ = [
    "rate_linear",
    "rate_tanh",
    "rate_threshold_linear",
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


@neuron_model(
    states={"rate": 0.0},
    rate_inputs=("input",),
    output="rate",
    parameters=_SLOPE,
    constants=_propagators,
    meanings={name: _MEANINGS[name] for name in (*_SLOPE, "rate", "input")},
)
def rate_linear(rate, input, mean, gain, keep, take):
    """Rate neuron that sums its inputs.

    Equation, with t in ms::

        tau_ms drate/dt = -rate + mean + gain * sum(weight * rate of the source at t - delay)

    Each step is the exact solution for an input that stays as it was at its start. NEST calls it `lin_rate_ipn`.
    """
    return False, rate * keep + take * (mean + gain * input)


@neuron_model(
    states={"rate": 0.0},
    rate_inputs=("input",),
    output="rate",
    parameters=_CURVE,
    constants=_propagators,
    meanings={name: _MEANINGS[name] for name in (*_CURVE, "rate", "input")},
)
def rate_tanh(rate, input, mean, gain, theta, keep, take):
    """Rate neuron with the nonlinearity tanh, of the sum of its inputs.

    Equation, with t in ms::

        tau_ms drate/dt = -rate + mean + tanh(gain * (sum(weight * rate of the source at t - delay) - theta))

    Each step is the exact solution for an input that stays as it was at its start. NEST calls it `tanh_rate_ipn`, with
    `linear_summation=True`, its default.
    """
    return False, rate * keep + take * (mean + tanh(gain * (input - theta)))


@neuron_model(
    states={"rate": 0.0},
    rate_inputs=("input",),
    output="rate",
    parameters=_CURVE,
    constants=_propagators,
    meanings={name: _MEANINGS[name] for name in (*_CURVE, "rate", "input")},
)
def rate_threshold_linear(rate, input, mean, gain, theta, keep, take):
    """Rate neuron whose input acts above a threshold, of the sum of its inputs.

    Equation, with t in ms::

        tau_ms drate/dt = -rate + mean + gain * max(0, sum(weight * rate of the source at t - delay) - theta)

    Each step is the exact solution for an input that stays as it was at its start. NEST calls it
    `threshold_lin_rate_ipn`, with `linear_summation=True`, its default.
    """
    return False, rate * keep + take * (mean + gain * max(0.0, input - theta))
