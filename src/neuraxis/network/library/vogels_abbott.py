"""The networks of Vogels and Abbott (2005), with which simulators are compared (Brette et al. 2007).

4,000 neurons, of which four fifths are excitatory, connected at random with a probability of 2%. They fire irregularly
without any input. `cuba` has current-based synapses, `coba` conductance-based ones, and `cobahh` also Hodgkin-Huxley
neurons; parameters are those of Brian2's examples of these names.

T. P. Vogels and L. F. Abbott, J. Neurosci. 25:10786 (2005); R. Brette et al., J. Comput. Neurosci. 23:349 (2007).
"""

from __future__ import annotations

from neuraxis.errors import InvalidArgument
from neuraxis.network.distributions import Normal, Uniform
from neuraxis.network.models import hh_cond_exp, lif_cond_exp, lif_exp_two
from neuraxis.network.network import Network
from neuraxis.network.neuron_model import NeuronModel
from neuraxis.network.rules import PairwiseBernoulli

__all__ = ["coba", "cobahh", "cuba"]

PROBABILITY = 0.02
NEURONS = 4000


def cuba(neurons: int = NEURONS, dt_ms: float = 0.1, seed: int = 1) -> Network:
    """Return the network with current-based synapses: leaky integrate-and-fire neurons, exponential currents.

    Parameters
    ----------
    neurons : int
        Number of neurons, 10 or more. The probability of a connection grows as their number falls, so that a neuron
        keeps its 80 inputs.
    dt_ms : float
        Step in ms; it is also the delay of all synapses, and a spike takes effect in the next step.
    seed : int
        Seed of the network.

    Returns
    -------
    Network
        The network, with populations "E" and "I" and without probes.

    Raises
    ------
    InvalidArgument
        There are too few neurons.

    Examples
    --------
    >>> cuba()["I"]
    Population('I', 800 x lif_exp_two)
    """
    neuron = lif_exp_two(
        tau_m_ms=20.0, c_m_pf=200.0, tau_syn_ex_ms=5.0, tau_syn_in_ms=10.0, e_rest_mv=-49.0, v_threshold_mv=-50.0,
        v_reset_mv=-60.0, refractory_ms=5.0,
    )  # fmt: skip
    # A leak conductance of 10 nS turns the weights of 1.62 mV and -9 mV into currents.
    return _network(neuron, 16.2, -90.0, neurons, dt_ms, seed, v_mv=Uniform(-60.0, -50.0))


def coba(neurons: int = NEURONS, dt_ms: float = 0.1, seed: int = 1) -> Network:
    """Return the network with conductance-based synapses: leaky integrate-and-fire neurons, exponential conductances.

    Parameters
    ----------
    neurons : int
        Number of neurons, 10 or more. The probability of a connection grows as their number falls, so that a neuron
        keeps its 80 inputs.
    dt_ms : float
        Step in ms; it is also the delay of all synapses, and a spike takes effect in the next step.
    seed : int
        Seed of the network.

    Returns
    -------
    Network
        The network, with populations "E" and "I" and without probes.

    Raises
    ------
    InvalidArgument
        There are too few neurons.

    Examples
    --------
    >>> coba()["E"]
    Population('E', 3,200 x lif_cond_exp)
    """
    neuron = lif_cond_exp(
        c_m_pf=200.0, g_leak_ns=10.0, e_rest_mv=-60.0, e_ex_mv=0.0, e_in_mv=-80.0, tau_syn_ex_ms=5.0,
        tau_syn_in_ms=10.0, v_threshold_mv=-50.0, v_reset_mv=-60.0, refractory_ms=5.0,
    )  # fmt: skip
    return _network(
        neuron, 6.0, -67.0, neurons, dt_ms, seed,
        v_mv=Uniform(-60.0, -50.0), g_ex_ns=Normal(40.0, 15.0), g_in_ns=Normal(200.0, 120.0),
    )  # fmt: skip


def cobahh(neurons: int = NEURONS, dt_ms: float = 0.1, seed: int = 1) -> Network:
    """Return the network with conductance-based synapses and Hodgkin-Huxley neurons of Traub and Miles.

    Parameters
    ----------
    neurons : int
        Number of neurons, 10 or more. The probability of a connection grows as their number falls, so that a neuron
        keeps its 80 inputs.
    dt_ms : float
        Step in ms; it is also the delay of all synapses, and a spike takes effect in the next step.
    seed : int
        Seed of the network.

    Returns
    -------
    Network
        The network, with populations "E" and "I" and without probes.

    Raises
    ------
    InvalidArgument
        There are too few neurons.

    Examples
    --------
    >>> cobahh()["E"]
    Population('E', 3,200 x hh_cond_exp)
    """
    neuron = hh_cond_exp(refractory_ms=3.0)
    return _network(
        neuron, 6.0, -67.0, neurons, dt_ms, seed,
        v_mv=Normal(-65.0, 5.0), g_ex_ns=Normal(40.0, 15.0), g_in_ns=Normal(200.0, 120.0),
    )  # fmt: skip


def _network(
    neuron: NeuronModel, excitation: float, inhibition: float, neurons: int, dt_ms: float, seed: int, **initial: object
) -> Network:
    if neurons < 10:
        raise InvalidArgument(f"neurons={neurons}: at least 10 are expected")
    network = Network(dt_ms=dt_ms, seed=seed)
    excitatory = network.population("E", round(0.8 * neurons), neuron, **initial)
    inhibitory = network.population("I", neurons - excitatory.n, neuron, **initial)
    rule = PairwiseBernoulli(min(1.0, PROBABILITY * NEURONS / neurons))
    for target in (excitatory, inhibitory):
        network.connect(excitatory, target, rule, excitation, dt_ms)
        network.connect(inhibitory, target, rule, inhibition, dt_ms)
    return network
