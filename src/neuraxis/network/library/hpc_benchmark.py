"""NEST's hpc_benchmark: a balanced random network with plastic excitatory synapses, used to benchmark large machines.

As pynest/examples/hpc_benchmark.py: alpha-shaped currents, 11,250 inputs per neuron at every size of the network,
power-law STDP between excitatory neurons.
"""

from __future__ import annotations

from neuraxis.errors import InvalidArgument
from neuraxis.network.distributions import Normal
from neuraxis.network.models import lif_alpha
from neuraxis.network.network import Network
from neuraxis.network.plasticity import STDP
from neuraxis.network.rules import FixedInDegree

__all__ = ["hpc_benchmark"]

EXCITATORY, INHIBITORY = 9000, 2250
WEIGHT_PA = 45.6096  # 0.14 mV at the peak
INHIBITION = -5.0
EXTERNAL_HZ = 20856.04
DELAY_MS = 1.5
TAU_SYN_MS = 0.32582722403722841
# The rule has no bound; weights do not reach this one, which sizes the accumulators.
LARGEST_WEIGHT_PA = 30 * WEIGHT_PA


def hpc_benchmark(scale: float = 1.0, plastic: bool = True, seed: int = 1) -> Network:
    """Return a network of 11,250 * scale neurons with 11,250 inputs each, two thirds of them plastic.

    Parameters
    ----------
    scale : float
        Size, 0.01 or more; scale 1 has 126.6 million synapses. Below 1 the inputs of a neuron are reduced in
        proportion. Nothing compensates for that, so the rates change.
    plastic : bool
        Use STDP between excitatory neurons.
    seed : int
        Seed of the network.

    Returns
    -------
    Network
        The network, with populations "E" and "I" and without probes.

    Raises
    ------
    InvalidArgument
        The scale is below 0.01.

    Examples
    --------
    >>> hpc_benchmark(scale=0.02).neuron_count
    225
    """
    if not scale >= 0.01:
        raise InvalidArgument(f"scale={scale!r}: 0.01 or more is expected")
    network = Network(dt_ms=0.1, seed=seed)
    neuron = lif_alpha(
        tau_m_ms=10.0, c_m_pf=250.0, tau_syn_ex_ms=TAU_SYN_MS, tau_syn_in_ms=TAU_SYN_MS, e_rest_mv=0.0,
        v_threshold_mv=20.0, v_reset_mv=0.0, refractory_ms=0.5,
    )  # fmt: skip
    initial = Normal(5.7, 7.2)
    inputs_e, inputs_i = round(EXCITATORY * min(1.0, scale)), round(INHIBITORY * min(1.0, scale))
    excitatory = network.population("E", round(EXCITATORY * scale), neuron, v_mv=initial)
    inhibitory = network.population("I", round(INHIBITORY * scale), neuron, v_mv=initial)
    learning = STDP.power_law(
        w_max=LARGEST_WEIGHT_PA, tau_plus_ms=15.0, tau_minus_ms=30.0, learning_rate=0.1, alpha=0.0513, mu=0.4
    )
    for target in (excitatory, inhibitory):
        rule = learning if plastic and target is excitatory else None
        network.connect(
            excitatory, target, FixedInDegree(inputs_e, autapses=False), WEIGHT_PA, DELAY_MS, plasticity=rule
        )
        network.connect(inhibitory, target, FixedInDegree(inputs_i, autapses=False), INHIBITION * WEIGHT_PA, DELAY_MS)
        network.poisson(target, EXTERNAL_HZ, WEIGHT_PA)
    return network
