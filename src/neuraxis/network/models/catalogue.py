"""The built-in models by name, what their descriptions say about schemes, and names of other simulators.

Devices and synapses of NEST, PyNN and Brian2 are methods of `Network` here: `counterpart` has them by their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from neuraxis.network.neuron_model import NeuronModel

__all__ = ["ModelText", "built_in_models", "counterpart", "model_called", "names_elsewhere", "text_of"]

_SIMULATORS = ("NEST", "PyNN", "Brian2")

_NOISE = (
    "with_noise_current(model) of neuraxis.network adds a noise current to a model that takes current_pa. In a model "
    "of your own, use normal() in a function, or xi in equations."
)
_POISSON = (
    "network.poisson(population, rate_hz=, weight=) delivers independent Poisson spikes to each neuron. Neurons of the "
    "model poisson_source are sources that can be connected and recorded."
)
_CURRENT = (
    "network.current(population, amplitude_pa, start_ms=, stop_ms=) injects a current, one for all neurons or one for "
    "each; call it once for each amplitude."
)
_GIVEN_SPIKES = (
    "neurons of the model spike_source emit the spikes of network.spikes(population, times_ms, ids), which can also "
    "make neurons of any other model spike."
)
_OWN_TIME = "a function with the argument t_ms, or equations with t, of neuraxis.network: "
_SPIKES = 'network.record(population, "spikes"), then simulation.spikes(population).'
_STATES = (
    'network.record(population, "v_mv", every_ms=1.0) records a state, then simulation.samples(population, "v_mv"); '
    'network.record(population, "spikes") records spikes.'
)
_CONNECT = "network.connect(sources, targets, rule, weight=, delay_ms=), with a rule such as AllToAll()."
_STDP = "network.connect(..., plasticity=STDP.additive(...)), or .multiplicative, .power_law, of neuraxis.network."
_SHORT_TERM = "network.connect(..., plasticity=TsodyksMarkram(...)), of neuraxis.network."

# Devices and synapses that have a name of their own in other simulators, and their counterpart here.
_COUNTERPARTS = {
    "noise_generator": _NOISE, "NoisyCurrentSource": _NOISE, "xi": _NOISE,
    "poisson_generator": _POISSON, "poisson_generator_ps": _POISSON, "PoissonGroup": _POISSON,
    "PoissonInput": _POISSON, "SpikeSourcePoisson": _POISSON,
    "inhomogeneous_poisson_generator": (
        "network.poisson(population, rate_hz=, weight=, start_ms=, stop_ms=), once for each interval with its rate."
    ),
    "sinusoidal_poisson_generator": (
        f"{_OWN_TIME}it spikes if random() is below the rate at this time, multiplied by the length of a step."
    ),
    "ac_generator": f"{_OWN_TIME}add the sine to current_pa.", "ACSource": f"{_OWN_TIME}add the sine to current_pa.",
    "dc_generator": _CURRENT, "DCSource": _CURRENT, "step_current_generator": _CURRENT, "StepCurrentSource": _CURRENT,
    "TimedArray": f"{_CURRENT} In a model, read a table by the time: TABLE[int(t_ms / 50.0)].",
    "spike_generator": _GIVEN_SPIKES, "SpikeSourceArray": _GIVEN_SPIKES, "SpikeGeneratorGroup": _GIVEN_SPIKES,
    "pulsepacket_generator": f"draw the times with NumPy; {_GIVEN_SPIKES}",
    "spike_recorder": _SPIKES, "spike_detector": _SPIKES, "SpikeMonitor": _SPIKES,
    "voltmeter": _STATES, "multimeter": _STATES, "StateMonitor": _STATES,
    "PopulationRateMonitor": "simulation.run(...).rates_hz, or a histogram of simulation.spikes(population).",
    "weight_recorder": "simulation.weights(projection), between two calls of simulation.run.",
    "volume_transmitter": "network.neuromodulator(name), and network.modulate(population, name, amount).",
    "NeuronGroup": "network.population(name, n, model), with a built-in model or one that equations(...) makes.",
    "Population": "network.population(name, n, model).",
    "Synapses": _CONNECT, "Projection": _CONNECT, "static_synapse": _CONNECT, "StaticSynapse": _CONNECT,
    "stdp_synapse": _STDP, "stdp_synapse_hom": _STDP, "stdp_pl_synapse_hom": _STDP, "STDPMechanism": _STDP,
    "stdp_dopamine_synapse": (
        "network.connect(..., plasticity=RewardSTDP(...)), of neuraxis.network; the equations differ."
    ),
    "tsodyks2_synapse": _SHORT_TERM, "tsodyks_synapse": _SHORT_TERM, "TsodyksMarkramSynapse": _SHORT_TERM,
    "rate_connection_delayed": "network.connect_rates(sources, targets, rule, weight=, delay_ms=).",
}  # fmt: skip
_COUNTERPARTS_BY_LOWER = {name.lower(): text for name, text in _COUNTERPARTS.items()}
_PRECISE = "_ps"  # ends the names of NEST's models whose spikes are between the steps
_ON_GRID = "the model below, with spikes at steps; neuraxis has no times between steps."


def built_in_models() -> dict[str, NeuronModel]:
    """Return all built-in models by name; those with any number of receptors with two.

    Returns
    -------
    dict of str to NeuronModel
        Models by name, in alphabetical order.

    Examples
    --------
    >>> from neuraxis.network.models.catalogue import built_in_models
    >>> [name for name in built_in_models() if name.startswith("hh")]
    ['hh_alpha', 'hh_cond_exp', 'hh_cond_exp_fine']
    """
    from neuraxis.network import models

    found = {}
    for name in models.__all__:
        one = getattr(models, name)
        found[name] = one if isinstance(one, NeuronModel) else one()
    return found


@dataclass(frozen=True)
class ModelText:
    """The parts of a model's description.

    Parameters
    ----------
    summary : str
        The first line.
    equations : str
        What follows: equations, and what to know about them.
    scheme : str
        How a step is computed.
    elsewhere : dict of str to str
        Names of the model in other simulators, by simulator.
    papers : str
        References.
    """

    summary: str
    equations: str
    scheme: str
    elsewhere: dict[str, str]
    papers: str


def text_of(model: NeuronModel) -> ModelText:
    """Return the parts of the description of a built-in model."""
    summary, *paragraphs = model.description.split("\n\n")
    equations, scheme, elsewhere, papers = [], "", "", []
    for paragraph in paragraphs:
        one_line = " ".join(paragraph.split())
        if one_line.startswith("Scheme: "):
            scheme = one_line.removeprefix("Scheme: ")
        elif one_line.startswith("Elsewhere: "):
            elsewhere = one_line.removeprefix("Elsewhere: ")
        elif elsewhere:
            papers.append(one_line)
        else:
            equations.append(paragraph)
    names = {}
    for part in re.split(r"; ", elsewhere.rstrip(".")):
        simulator, _, name = part.partition(" ")
        if simulator in _SIMULATORS:
            names[simulator] = name
    return ModelText(" ".join(summary.split()), "\n\n".join(equations), scheme, names, " ".join(papers))


def names_elsewhere(model: NeuronModel) -> list[str]:
    """Return the names of a built-in model in NEST, PyNN and Brian2, with what they say about differences."""
    return [name for name in text_of(model).elsewhere.values() if not name.startswith("equations")]


def counterpart(name: str) -> str | None:
    """Return what does here what a device or synapse of NEST, PyNN or Brian2 does there; None for other names.

    Parameters
    ----------
    name : str
        Name in the other simulator; upper and lower case are alike.

    Examples
    --------
    >>> from neuraxis.network.models.catalogue import counterpart
    >>> counterpart("spike_recorder")
    'network.record(population, "spikes"), then simulation.spikes(population).'
    >>> counterpart("iaf_psc_exp") is None  # a neuron model
    True
    """
    known = _COUNTERPARTS_BY_LOWER.get(name.lower())
    return _ON_GRID if known is None and name.lower().endswith(_PRECISE) and model_called(name) else known


def model_called(name: str) -> NeuronModel | None:
    """Return the built-in model of a name here, or in NEST, PyNN or Brian2; None if there is none.

    Parameters
    ----------
    name : str
        Name of a model; upper and lower case are alike.

    Examples
    --------
    >>> from neuraxis.network.models.catalogue import model_called
    >>> model_called("iaf_psc_exp").name, model_called("IF_cond_exp").name
    ('lif_exp_two', 'lif_cond_exp')
    """
    found = built_in_models()
    lower = name.lower()
    if lower in found:
        return found[lower]
    # "iaf_psc_exp" before "iaf_psc_exp (with one receptor)".
    elsewhere = sorted(
        (len(given), one.name) for one in found.values() for given in names_elsewhere(one)
        if given.split()[0].lower() in (lower, lower.removesuffix(_PRECISE))
    )  # fmt: skip
    return found[elsewhere[0][1]] if elsewhere else None
