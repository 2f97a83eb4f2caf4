"""The neuron models that come with neuraxis, each written as a user would write one."""

from __future__ import annotations

from neuraxis.network.models.adex import adex
from neuraxis.network.models.izhikevich import izhikevich
from neuraxis.network.models.lif_alpha import lif_alpha
from neuraxis.network.models.lif_cond_exp import lif_cond_exp
from neuraxis.network.models.lif_delta import lif_delta
from neuraxis.network.models.lif_exp import lif_exp, lif_exp_two
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
    "spike_source",
]
