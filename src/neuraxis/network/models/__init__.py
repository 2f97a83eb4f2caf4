"""Built-in neuron models, each written as a user would write one with `neuraxis.network.neuron_model`.

`help(lif_exp_two)` shows the equations of a model, and its parameters, inputs and states with their units.
"""

from __future__ import annotations

from neuraxis.network.models.adex import adex
from neuraxis.network.models.izhikevich import izhikevich
from neuraxis.network.models.lif import lif_alpha, lif_cond_exp, lif_delta, lif_exp, lif_exp_two
from neuraxis.network.models.rates import (
    rate_linear,
    rate_linear_output_noise,
    rate_tanh,
    rate_tanh_each,
    rate_threshold_linear,
    rate_threshold_linear_each,
)
from neuraxis.network.models.sources import poisson_source, spike_source

__all__ = [
    "adex",
    "izhikevich",
    "lif_alpha",
    "lif_cond_exp",
    "lif_delta",
    "lif_exp",
    "lif_exp_two",
    "poisson_source",
    "rate_linear",
    "rate_linear_output_noise",
    "rate_tanh",
    "rate_tanh_each",
    "rate_threshold_linear",
    "rate_threshold_linear_each",
    "spike_source",
]


def __dir__() -> list[str]:
    return __all__
