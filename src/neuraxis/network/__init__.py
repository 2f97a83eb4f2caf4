"""Descriptions of spiking networks: populations, projections, inputs, probes, plasticity and neuromodulators.

    >>> from neuraxis.network import FixedInDegree, Network, Normal
    >>> from neuraxis.network.models import lif_delta
    >>> network = Network(dt_ms=0.1, seed=1)
    >>> cells = network.population("E", 8000, lif_delta)
    >>> _ = network.connect(cells, cells, FixedInDegree(k=800), weight=Normal(0.1, 0.01, low=0), delay_ms=1.5)
    >>> _ = network.poisson(cells, rate_hz=15_000, weight=0.1)
    >>> _ = network.record(cells, "spikes")
    >>> print(network)  # doctest: +ELLIPSIS
    Network: 8,000 neurons in 1 population, about 6,400,000 synapses in 1 projection; dt 0.1 ms, seed 1
    ...

A description holds no state and draws no random numbers; the engine does both. `neuraxis.network.models` has neuron
models, `neuraxis.network.arithmetic` has the functions that a model may call, `neuraxis.network.library` has networks
from the literature, and `neuraxis.simulation` runs a network.

`Rule`, `Distribution` and `PlasticityRule` are the unions of the classes for connections, random values and learning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraxis.network.devices import CurrentInput, PoissonInput, Probe, SpikeInput
from neuraxis.network.distributions import Constant, Distribution, LogNormal, Normal, Uniform, Values
from neuraxis.network.modulation import Modulation, Neuromodulator, Rhythm
from neuraxis.network.network import Network
from neuraxis.network.neuron_model import NeuronModel, neuron_model, neuron_model_from_source
from neuraxis.network.plasticity import (
    STDP,
    HomeostaticScaling,
    PlasticityRule,
    RewardSTDP,
    TsodyksMarkram,
    nmda_saturation,
)
from neuraxis.network.population import Population
from neuraxis.network.projection import Projection, RateProjection
from neuraxis.network.rules import (
    AllToAll,
    Explicit,
    FixedInDegree,
    FixedOutDegree,
    FixedTotalNumber,
    OneToOne,
    PairwiseBernoulli,
    Rule,
)

__all__ = [
    "STDP",
    "AllToAll",
    "Constant",
    "CurrentInput",
    "Distribution",
    "Explicit",
    "FixedInDegree",
    "FixedOutDegree",
    "FixedTotalNumber",
    "HomeostaticScaling",
    "LogNormal",
    "Modulation",
    "Network",
    "Neuromodulator",
    "NeuronModel",
    "Normal",
    "OneToOne",
    "PairwiseBernoulli",
    "PlasticityRule",
    "PoissonInput",
    "Population",
    "Probe",
    "Projection",
    "RateProjection",
    "RewardSTDP",
    "Rhythm",
    "Rule",
    "SpikeInput",
    "TsodyksMarkram",
    "Uniform",
    "Values",
    "arithmetic",
    "equations",
    "library",
    "models",
    "neuron_model",
    "neuron_model_from_source",
    "nmda_saturation",
    "with_noise_current",
]

if TYPE_CHECKING:
    from neuraxis.network import arithmetic, library, models
    from neuraxis.network.noise_current import with_noise_current
    from neuraxis.network.symbolic.model import equations
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.network.noise_current": ["with_noise_current"],
            "neuraxis.network.symbolic.model": ["equations"],
        },
        modules=["arithmetic", "library", "models"],
        deprecated={
            "Contribution": "neuraxis.network.fixed_point",
            "LARGEST_NORMAL": "neuraxis.network.distributions",
            "array_to_steps": "neuraxis.network.grid",
            "as_distribution": "neuraxis.network.distributions",
            "check_range": "neuraxis.network.fixed_point",
            "choose_exponent": "neuraxis.network.fixed_point",
            "to_steps": "neuraxis.network.grid",
        },
    )
