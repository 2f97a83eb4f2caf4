"""Rate neurons: their continuous output reaches other neurons in every step (`Network.connect_rates`).

All of them follow tau_ms dx/dt = -x + mean + f(input) + noise. A step is the exact solution for an input that stays as
it was at the start of the step. The noise of a step is sigma / sqrt(2) times sqrt(1 - exp(-2 dt / tau_ms)) times a
standard normal number: without input x is an Ornstein-Uhlenbeck process with the standard deviation sigma / sqrt(2),
whatever the step is. These are the definitions of NEST's rate neurons.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp, sqrt, tanh
from neuraxis.network.models.lif import Parameters, check_positive
from neuraxis.network.neuron_model import neuron_model

__all__ = [
    "rate_linear",
    "rate_linear_output_noise",
    "rate_tanh",
    "rate_tanh_each",
    "rate_threshold_linear",
    "rate_threshold_linear_each",
]

_SLOPE = {"tau_ms": 10.0, "mean": 0.0, "sigma": 0.0, "gain": 1.0}
_CURVE = {**_SLOPE, "theta": 0.0}
_MEANINGS = {
    "tau_ms": "time constant",
    "mean": "constant drive",
    "sigma": "strength of the noise",
    "gain": "factor of the input",
    "theta": "threshold of the input",
    "rate": "rate, without a unit",
    "input": "sum of weight x output of the sources",
}


def _meanings(*names: str, **others: str) -> dict[str, str]:
    return {name: _MEANINGS[name] for name in (*names, "rate", "input")} | others


def _propagators(p: Parameters, dt_ms: float) -> dict[str, Any]:
    """Return the factors of x, of the drive and of the noise in one step."""
    check_positive(p, "tau_ms")
    if not np.all(np.asarray(p["sigma"]) >= 0.0):
        raise InvalidArgument(f"sigma={p['sigma']!r}: 0 or more is expected")
    keep = exp(-dt_ms / p["tau_ms"])
    return {"keep": keep, "take": 1.0 - keep, "noise": p["sigma"] * sqrt(0.5 * (1.0 - keep * keep))}


def _output_noise(p: Parameters, dt_ms: float) -> dict[str, Any]:
    found = _propagators(p, dt_ms)
    return {**found, "noise": p["sigma"] * sqrt(p["tau_ms"] / dt_ms)}


@neuron_model(
    states={"rate": 0.0},
    rate_inputs=("input",),
    output="rate",
    parameters=_SLOPE,
    constants=_propagators,
    meanings=_meanings(*_SLOPE),
)
def rate_linear(rate, input, normal, mean, gain, keep, take, noise):
    """Rate neuron that is driven by the sum of its inputs.

    Equations, with the rate R, t in ms and white noise xi::

        tau_ms dR/dt = -R + mean + gain * S + sqrt(tau_ms) * sigma * xi
        S = sum(weight * output of the source at t - delay)

    Scheme: exact for an input that stays as it was at the start of the step.

    Elsewhere: NEST lin_rate_ipn.
    """
    return False, rate * keep + take * (mean + gain * input) + noise * normal


@neuron_model(
    states={"noisy_rate": 0.0, "rate": 0.0},
    rate_inputs=("input",),
    output="noisy_rate",
    parameters=_SLOPE,
    constants=_output_noise,
    meanings=_meanings(*_SLOPE, noisy_rate="rate with noise, the output"),
)
def rate_linear_output_noise(noisy_rate, rate, input, normal, mean, gain, keep, take, noise):
    """Rate neuron that is driven by the sum of its inputs, with noise on its output.

    Equations, with the rate R, t in ms and white noise xi::

        tau_ms dR/dt = -R + mean + gain * S
        noisy_rate = R + sqrt(tau_ms) * sigma * xi
        S = sum(weight * output of the source at t - delay)

    The output is `noisy_rate`, whose noise has the standard deviation sigma * sqrt(tau_ms / dt_ms); it begins with its
    initial value.

    Scheme: exact for an input that stays as it was at the start of the step.

    Elsewhere: NEST lin_rate_opn.
    """
    new = rate * keep + take * (mean + gain * input)
    return False, new + noise * normal, new


@neuron_model(
    states={"rate": 0.0},
    rate_inputs=("input",),
    output="rate",
    parameters=_CURVE,
    constants=_propagators,
    meanings=_meanings(*_CURVE),
)
def rate_tanh(rate, input, normal, mean, gain, theta, keep, take, noise):
    """Rate neuron with the nonlinearity tanh of the sum of its inputs.

    Equations, with the rate R, t in ms and white noise xi::

        tau_ms dR/dt = -R + mean + tanh(gain * (S - theta)) + sqrt(tau_ms) * sigma * xi
        S = sum(weight * output of the source at t - delay)

    `rate_tanh_each` has the nonlinearity of each input.

    Scheme: exact for an input that stays as it was at the start of the step.

    Elsewhere: NEST tanh_rate_ipn with linear_summation=True (the default).
    """
    return False, rate * keep + take * (mean + tanh(gain * (input - theta))) + noise * normal


@neuron_model(
    states={"activity": 0.0, "rate": 0.0},
    rate_inputs=("input",),
    output="activity",
    parameters=_CURVE,
    constants=_propagators,
    meanings=_meanings(*_CURVE, activity="tanh(gain * (rate - theta)), the output"),
)
def rate_tanh_each(activity, rate, input, normal, mean, gain, theta, keep, take, noise):
    """Rate neuron with the nonlinearity tanh of each input.

    Equations, with the rate R, t in ms and white noise xi::

        tau_ms dR/dt = -R + mean + S + sqrt(tau_ms) * sigma * xi
        S = sum(weight * activity of the source at t - delay)
        activity = tanh(gain * (R - theta))

    The output is `activity`, so gain and theta are those of the source. Give its initial value together with that of
    `rate`.

    Scheme: exact for an input that stays as it was at the start of the step.

    Elsewhere: NEST tanh_rate_ipn with linear_summation=False and equal gain and theta.
    """
    new = rate * keep + take * (mean + input) + noise * normal
    return False, tanh(gain * (new - theta)), new


@neuron_model(
    states={"rate": 0.0},
    rate_inputs=("input",),
    output="rate",
    parameters=_CURVE,
    constants=_propagators,
    meanings=_meanings(*_CURVE),
)
def rate_threshold_linear(rate, input, normal, mean, gain, theta, keep, take, noise):
    """Rate neuron with a threshold for the sum of its inputs.

    Equations, with the rate R, t in ms and white noise xi::

        tau_ms dR/dt = -R + mean + gain * max(0, S - theta) + sqrt(tau_ms) * sigma * xi
        S = sum(weight * output of the source at t - delay)

    `rate_threshold_linear_each` has the nonlinearity of each input.

    Scheme: exact for an input that stays as it was at the start of the step.

    Elsewhere: NEST threshold_lin_rate_ipn with linear_summation=True (the default).
    """
    return False, rate * keep + take * (mean + gain * max(0.0, input - theta)) + noise * normal


@neuron_model(
    states={"activity": 0.0, "rate": 0.0},
    rate_inputs=("input",),
    output="activity",
    parameters=_CURVE,
    constants=_propagators,
    meanings=_meanings(*_CURVE, activity="gain * max(0, rate - theta), the output"),
)
def rate_threshold_linear_each(activity, rate, input, normal, mean, gain, theta, keep, take, noise):
    """Rate neuron with a threshold for each input.

    Equations, with the rate R, t in ms and white noise xi::

        tau_ms dR/dt = -R + mean + S + sqrt(tau_ms) * sigma * xi
        S = sum(weight * activity of the source at t - delay)
        activity = gain * max(0, R - theta)

    The output is `activity`, so gain and theta are those of the source. Give its initial value together with that of
    `rate`.

    Scheme: exact for an input that stays as it was at the start of the step.

    Elsewhere: NEST threshold_lin_rate_ipn with linear_summation=False and equal gain and theta.
    """
    new = rate * keep + take * (mean + input) + noise * normal
    return False, gain * max(0.0, new - theta), new
