"""What a spiking network is: populations, projections, inputs, probes and neuromodulators.

    from neuraxis.network import FixedInDegree, Network, Normal

    network = Network(dt_ms=0.1, seed=1)
    excitatory = network.population("E", 8000, model)
    network.connect(excitatory, excitatory, FixedInDegree(k=800), weight=Normal(0.1, 0.01, low=0), delay_ms=1.5)
    network.poisson(excitatory, rate_hz=15_000, weight=0.1)
    network.record(excitatory, "spikes")
    print(network)

This is a pure description. It holds no state and draws nothing; the engine does.
"""

from __future__ import annotations

from neuraxis.network.distributions import (
    LARGEST_NORMAL,
    Constant,
    Distribution,
    LogNormal,
    Normal,
    Uniform,
    Values,
    as_distribution,
)
from neuraxis.network.fixed_point import Contribution, check_range, choose_exponent
from neuraxis.network.grid import array_to_steps, to_steps
from neuraxis.network.inputs import CurrentInput, PoissonInput, SpikeInput
from neuraxis.network.network import Network
from neuraxis.network.neuromodulator import Modulation, Neuromodulator
from neuraxis.network.neuron_model import NeuronModel, neuron_model
from neuraxis.network.plasticity import STDP, HomeostaticScaling, PlasticityRule, RewardSTDP, TsodyksMarkram
from neuraxis.network.population import Population
from neuraxis.network.probes import Probe
from neuraxis.network.projection import Projection
from neuraxis.network.rhythm import Rhythm
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
    "LARGEST_NORMAL",
    "STDP",
    "AllToAll",
    "Constant",
    "Contribution",
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
    "RewardSTDP",
    "Rhythm",
    "Rule",
    "SpikeInput",
    "TsodyksMarkram",
    "Uniform",
    "Values",
    "array_to_steps",
    "as_distribution",
    "check_range",
    "choose_exponent",
    "neuron_model",
    "to_steps",
]
