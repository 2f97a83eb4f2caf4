"""Models without a membrane, which emit spikes or repeat them."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp
from neuraxis.network.models.lif import Parameters, check
from neuraxis.network.neuron_model import neuron_model

__all__ = ["gamma_source", "parrot", "poisson_source", "spike_source"]

LARGEST_SHAPE = 1000


@neuron_model(states={})
def spike_source():
    """Neuron that spikes exactly at the times given to `Network.spikes`.

    Elsewhere: NEST spike_generator; PyNN SpikeSourceArray; Brian2 SpikeGeneratorGroup.
    """
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

    Scheme: one draw in each step.

    Elsewhere: NEST poisson_generator; PyNN SpikeSourcePoisson; Brian2 PoissonGroup.
    """
    return (uniform < threshold,)


def _gamma_threshold(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check(p, "rate_hz", p["rate_hz"] >= 0, "a rate cannot be negative")
    within = (p["shape"] >= 1) & (p["shape"] <= LARGEST_SHAPE)
    check(p, "shape", within, f"a whole number within 1 to {LARGEST_SHAPE} is expected")
    probability = p["shape"] * p["rate_hz"] * dt_ms * 1e-3
    few = f"shape * rate_hz cannot exceed {0.5e3 / dt_ms:g} with steps of {dt_ms:g} ms: lower one, or shorten the steps"
    check(p, "rate_hz", probability <= 0.5, few)
    threshold = np.rint(probability * 2.0**32) - 2**31
    return {"threshold": threshold.astype(np.int64) if threshold.ndim else int(threshold)}


@neuron_model(
    states={"stage": -1},
    parameters={"rate_hz": 10.0, "shape": 2},
    constants=_gamma_threshold,
    meanings={
        "rate_hz": "mean rate of the spikes",
        "shape": "order of the gamma distribution of intervals; 1: a Poisson process",
        "stage": "stages of the present interval that are over; -1 before the first step",
    },
)
def gamma_source(stage, uniform, threshold, shape):
    """Neuron that spikes as a renewal process with gamma-distributed intervals, independently of all others.

    An interval consists of `shape` stages, each of which ends with the same probability p in each step of length dt::

        p     = shape rate_hz dt
        stage += 1                  with the probability p
        stage = 0, and a spike      when stage = shape

    So intervals have the mean 1 / rate_hz and the coefficient of variation sqrt((1 - p) / shape), which for short steps
    is that of the gamma distribution of this order. The first step, which has no spike, draws the stage that the
    process is in, so that the rate is the same from the beginning.

    Scheme: one draw in each step.

    Elsewhere: NEST gamma_sup_generator with n_proc = 1; PyNN SpikeSourceGamma; Brian2 equations.
    """
    begins = stage < 0
    advances = uniform < threshold
    drawn = int((uniform * 2.3283064365386963e-10 + 0.5) * shape)
    reached = stage + 1 if advances else stage
    spike = (reached >= shape) & (stage >= 0)
    reached = 0 if spike else reached
    return spike, drawn if begins else reached


@neuron_model(
    states={"surplus": 0.0},
    receptors=("input",),
    meanings={
        "input": "synapses; the weight 1 is a spike",
        "surplus": "weights beyond 1 that arrived in one step with others, and were not repeated",
    },
)
def parrot(surplus, input):
    """Neuron that repeats every spike it gets, in the step in which the spike arrives.

    It spikes when the weights that arrive in a step sum to 1 or more: connect it with the weight 1. As any neuron it
    spikes at most once in a step; two spikes that arrive in the same step come out as one. `surplus` counts what was
    not repeated: the sum of the weights beyond 1. A sum below 1 has no effect, and is not kept for later steps.

    Elsewhere: NEST parrot_neuron (which ignores weights, and sends one spike with a multiplicity).
    """
    return input >= 1.0, surplus + max(input - 1.0, 0.0)
