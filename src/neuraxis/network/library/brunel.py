"""The sparsely connected network of Brunel (2000), as in NEST's example brunel_delta.

N. Brunel, J. Comput. Neurosci. 8:183 (2000). With these parameters (g = 5, eta = 2) it fires asynchronously
and irregularly. NEST's example resets to 0 mV, the paper to 10 mV.
"""

from __future__ import annotations

from neuraxis.errors import InvalidArgument
from neuraxis.network.models import lif_delta
from neuraxis.network.network import Network
from neuraxis.network.rules import FixedInDegree

__all__ = ["brunel"]

THRESHOLD_MV = 20.0
TAU_M_MS = 20.0
WEIGHT_MV = 0.1
DELAY_MS = 1.5


def brunel(order: int = 2500, g: float = 5.0, eta: float = 2.0, epsilon: float = 0.1, seed: int = 1) -> Network:
    """Return Brunel's network of excitatory and inhibitory leaky integrate-and-fire neurons.

    The number of inputs of a neuron is proportional to the size of the network. Smaller networks have larger weights,
    so that the drive stays the same.

    Parameters
    ----------
    order : int
        Number of inhibitory neurons, 10 or more; there are four times as many excitatory ones.
    g : float
        Strength of inhibition relative to excitation.
    eta : float
        Rate of the external input relative to the rate that just reaches threshold.
    epsilon : float
        Connection probability.
    seed : int
        Seed of the network.

    Returns
    -------
    Network
        The network, with populations "E" and "I" and without probes.

    Raises
    ------
    InvalidArgument
        The order is below 10.

    Examples
    --------
    >>> brunel(order=100)["E"]
    Population('E', 400 x lif_delta)
    """
    if order < 10:
        raise InvalidArgument(f"order={order}: at least 10 is expected")
    network = Network(dt_ms=0.1, seed=seed)
    neuron = lif_delta(
        tau_m_ms=TAU_M_MS, c_m_pf=1.0, e_rest_mv=0.0, v_threshold_mv=THRESHOLD_MV, v_reset_mv=0.0, refractory_ms=2.0
    )
    excitatory = network.population("E", 4 * order, neuron, v_mv=0.0)
    inhibitory = network.population("I", order, neuron, v_mv=0.0)
    inputs_e, inputs_i = round(epsilon * excitatory.n), round(epsilon * inhibitory.n)
    weight = WEIGHT_MV * 2500 / order
    threshold_rate_hz = 1000.0 * THRESHOLD_MV / (weight * inputs_e * TAU_M_MS)
    for target in (excitatory, inhibitory):
        network.connect(excitatory, target, FixedInDegree(inputs_e), weight, DELAY_MS)
        network.connect(inhibitory, target, FixedInDegree(inputs_i), -g * weight, DELAY_MS)
        network.poisson(target, eta * threshold_rate_hz * inputs_e, weight)
    return network
