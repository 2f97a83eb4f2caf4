"""Built-in neuron models, each written as a user would write one with `neuraxis.network.neuron_model`.

`help(lif_exp_two)` shows the equations of a model, its numerical scheme, its names in other simulators, and its
parameters, inputs and states with their units. `neuraxis models` lists all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Modules with the name of a model: on demand, the name could be that of the module.
from neuraxis.network.models.adex import adex, adex_cond_alpha
from neuraxis.network.models.izhikevich import izhikevich
from neuraxis.network.models.qif import qif

__all__ = [
    "adex",
    "adex_cond_alpha",
    "gamma_source",
    "glif_1",
    "glif_2",
    "glif_3",
    "glif_4",
    "glif_5",
    "hh_alpha",
    "hh_cond_exp",
    "hh_cond_exp_fine",
    "izhikevich",
    "lif_alpha",
    "lif_alpha_multi",
    "lif_cond_alpha",
    "lif_cond_beta",
    "lif_cond_exp",
    "lif_delta",
    "lif_exp",
    "lif_exp_multi",
    "lif_exp_two",
    "lif_nmda",
    "mat2",
    "parrot",
    "poisson_source",
    "pp_delta",
    "qif",
    "rate_linear",
    "rate_linear_output_noise",
    "rate_tanh",
    "rate_tanh_each",
    "rate_threshold_linear",
    "rate_threshold_linear_each",
    "spike_source",
]


if TYPE_CHECKING:
    from neuraxis.network.models.conductance import lif_cond_alpha, lif_cond_beta, lif_nmda
    from neuraxis.network.models.escape import pp_delta
    from neuraxis.network.models.glif import glif_1, glif_2, glif_3, glif_4, glif_5
    from neuraxis.network.models.hodgkin_huxley import hh_alpha, hh_cond_exp, hh_cond_exp_fine
    from neuraxis.network.models.lif import lif_alpha, lif_cond_exp, lif_delta, lif_exp, lif_exp_two
    from neuraxis.network.models.mat import mat2
    from neuraxis.network.models.multisynapse import lif_alpha_multi, lif_exp_multi
    from neuraxis.network.models.rates import (
        rate_linear,
        rate_linear_output_noise,
        rate_tanh,
        rate_tanh_each,
        rate_threshold_linear,
        rate_threshold_linear_each,
    )
    from neuraxis.network.models.sources import gamma_source, parrot, poisson_source, spike_source
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.network.models.conductance": ["lif_cond_alpha", "lif_cond_beta", "lif_nmda"],
            "neuraxis.network.models.escape": ["pp_delta"],
            "neuraxis.network.models.glif": ["glif_1", "glif_2", "glif_3", "glif_4", "glif_5"],
            "neuraxis.network.models.hodgkin_huxley": ["hh_alpha", "hh_cond_exp", "hh_cond_exp_fine"],
            "neuraxis.network.models.lif": ["lif_alpha", "lif_cond_exp", "lif_delta", "lif_exp", "lif_exp_two"],
            "neuraxis.network.models.mat": ["mat2"],
            "neuraxis.network.models.multisynapse": ["lif_alpha_multi", "lif_exp_multi"],
            "neuraxis.network.models.rates": [
                "rate_linear",
                "rate_linear_output_noise",
                "rate_tanh",
                "rate_tanh_each",
                "rate_threshold_linear",
                "rate_threshold_linear_each",
            ],
            "neuraxis.network.models.sources": ["gamma_source", "parrot", "poisson_source", "spike_source"],
        },
    )
