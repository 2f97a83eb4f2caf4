"""Leaky integrate-and-fire models with any number of receptors, each with a time constant of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arithmetic import exp
from neuraxis.network.models.lif import (
    Parameters,
    alpha_propagators,
    check_positive,
    current_propagator,
    leak_constants,
    meanings,
)
from neuraxis.network.neuron_model import LARGEST_RECEPTORS, NeuronModel, neuron_model_from_source

__all__ = ["lif_alpha_multi", "lif_exp_multi"]

_MEMBRANE = {
    "tau_m_ms": 10.0, "c_m_pf": 250.0, "e_rest_mv": -70.0, "v_threshold_mv": -55.0, "v_reset_mv": -70.0,
    "refractory_ms": 2.0,
}  # fmt: skip

_EXP = '''
def lif_exp_multi({arguments}):
    """Leaky integrate-and-fire neuron with {n} exponentially decaying currents (weights in pA of any sign).

    Equations, with V (`v_mv`), I (`current_pa`) and k = 1 to {n}::

        dV/dt       = -(V - e_rest_mv) / tau_m_ms + (sum of i_k_pa + I) / c_m_pf
        di_k_pa/dt  = -i_k_pa / tau_syn_k_ms
        i_k_pa += weight                 when a spike arrives at input_k_pa
        V = v_reset_mv, and a spike      when V >= v_threshold_mv

    Choose the receptor with `Network.connect(..., synapse="input_2_pa")`. After a spike V stays at `v_reset_mv` for
    `refractory_ms`; `refractory` counts the steps that are left.

    Scheme: exact integration (Rotter and Diesmann 1999).

    Elsewhere: NEST iaf_psc_exp_multisynapse; Brian2 equations.
    """
    held = refractory > 0
    v = v_mv * decay + ({synaptic}) + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    return spike, v_reset_mv if spike else v, {after}, refractory_steps if spike else left
'''

_ALPHA = '''
def lif_alpha_multi({arguments}):
    """Leaky integrate-and-fire neuron with {n} alpha-shaped currents; a weight is the peak of a current in pA.

    Equations, with V (`v_mv`), I (`current_pa`) and k = 1 to {n}::

        dV/dt       = -(V - e_rest_mv) / tau_m_ms + (sum of i_k_pa + I) / c_m_pf
        di_k_pa/dt  = slope_k - i_k_pa / tau_syn_k_ms
        dslope_k/dt = -slope_k / tau_syn_k_ms
        slope_k += weight e / tau_syn_k_ms   when a spike arrives at input_k_pa
        V = v_reset_mv, and a spike          when V >= v_threshold_mv

    Choose the receptor with `Network.connect(..., synapse="input_2_pa")`. After a spike V stays at `v_reset_mv` for
    `refractory_ms`; `refractory` counts the steps that are left.

    Scheme: exact integration (Rotter and Diesmann 1999).

    Elsewhere: NEST iaf_psc_alpha_multisynapse; Brian2 equations.
    """
    held = refractory > 0
    v = v_mv * decay + ({synaptic}) + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    return spike, v_reset_mv if spike else v, {after}, refractory_steps if spike else left
'''


def lif_exp_multi(receptors: int = 2) -> NeuronModel:
    """Return a leaky integrate-and-fire model with several exponentially decaying currents.

    Parameters
    ----------
    receptors : int, optional
        Number of receptors, 1 to 32. Receptor k is `input_k_pa`, with the time constant `tau_syn_k_ms`.

    Returns
    -------
    NeuronModel
        The model, with time constants of 2 ms; call it to change parameters. `help` of it shows the equations.

    Raises
    ------
    InvalidArgument
        The number of receptors is not within 1 to 32.

    Examples
    --------
    >>> from neuraxis.network.models import lif_exp_multi
    >>> model = lif_exp_multi(3)(tau_syn_1_ms=0.5, tau_syn_2_ms=5.0, tau_syn_3_ms=100.0)
    >>> model.receptors
    ('input_1_pa', 'input_2_pa', 'input_3_pa')
    """
    return _exp_model(_checked(receptors))


def lif_alpha_multi(receptors: int = 2) -> NeuronModel:
    """Return a leaky integrate-and-fire model with several alpha-shaped currents.

    Parameters
    ----------
    receptors : int, optional
        Number of receptors, 1 to 32. Receptor k is `input_k_pa`, whose currents peak after `tau_syn_k_ms`.

    Returns
    -------
    NeuronModel
        The model, with time constants of 2 ms; call it to change parameters. `help` of it shows the equations.

    Raises
    ------
    InvalidArgument
        The number of receptors is not within 1 to 32.

    Examples
    --------
    >>> from neuraxis.network.models import lif_alpha_multi
    >>> lif_alpha_multi(2)(tau_syn_2_ms=10.0).parameters["tau_syn_2_ms"]
    10.0
    """
    return _alpha_model(_checked(receptors))


def _checked(receptors: int) -> int:
    if isinstance(receptors, bool) or not isinstance(receptors, int):
        raise InvalidType(f"receptors={receptors!r}: a whole number is expected")
    if not 1 <= receptors <= LARGEST_RECEPTORS:
        raise InvalidArgument(f"receptors={receptors}: must be within 1 to {LARGEST_RECEPTORS}")
    return receptors


@cache
def _exp_model(n: int) -> NeuronModel:
    def constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
        values = leak_constants(p, dt_ms)
        for k in range(1, n + 1):
            tau = _tau(p, k)
            values |= {f"decay_{k}": exp(-dt_ms / tau), f"per_pa_{k}": current_propagator(p, tau, dt_ms)}
        return values

    return _model(
        _EXP,
        n,
        constants,
        states=("i_{k}_pa",),
        constant_names=("decay_{k}", "per_pa_{k}"),
        synaptic="i_{k}_pa * per_pa_{k}",
        after=("i_{k}_pa * decay_{k} + input_{k}_pa",),
        meaning={"i_{k}_pa": "current of receptor {k}", "tau_syn_{k}_ms": "time constant of receptor {k}"},
    )


@cache
def _alpha_model(n: int) -> NeuronModel:
    def constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
        values = leak_constants(p, dt_ms)
        for k in range(1, n + 1):
            tau = _tau(p, k)
            slope, current = alpha_propagators(p, tau, dt_ms)
            values |= {
                f"decay_{k}": exp(-dt_ms / tau),
                f"rise_{k}": dt_ms * exp(-dt_ms / tau),
                f"kick_{k}": exp(1.0) / tau,
                f"per_slope_{k}": slope,
                f"per_pa_{k}": current,
            }
        return values

    return _model(
        _ALPHA,
        n,
        constants,
        states=("slope_{k}", "i_{k}_pa"),
        constant_names=("decay_{k}", "rise_{k}", "kick_{k}", "per_slope_{k}", "per_pa_{k}"),
        synaptic="slope_{k} * per_slope_{k} + i_{k}_pa * per_pa_{k}",
        after=("slope_{k} * decay_{k} + input_{k}_pa * kick_{k}", "i_{k}_pa * decay_{k} + slope_{k} * rise_{k}"),
        meaning={
            "slope_{k}": "rise of the current of receptor {k}, in pA/ms",
            "i_{k}_pa": "current of receptor {k}",
            "tau_syn_{k}_ms": "time to the peak of the current of receptor {k}",
        },
    )


def _tau(p: Parameters, k: int) -> Any:
    check_positive(p, f"tau_syn_{k}_ms")
    return p[f"tau_syn_{k}_ms"]


def _model(
    text: str,
    n: int,
    constants: Callable[[Parameters, float], dict[str, Any]],
    *,
    states: tuple[str, ...],
    constant_names: tuple[str, ...],
    synaptic: str,
    after: tuple[str, ...],
    meaning: dict[str, str],
) -> NeuronModel:
    """Return the model of a text; `{k}` in names and expressions stands for the number of a receptor."""

    def each(*patterns: str) -> list[str]:
        return [pattern.format(k=k) for k in range(1, n + 1) for pattern in patterns]

    inputs = each("input_{k}_pa")
    arguments = [
        "v_mv", *each(*states), "refractory", *inputs, "current_pa", "decay", "rest", "per_pa", *each(*constant_names),
        "v_threshold_mv", "v_reset_mv", "refractory_steps",
    ]  # fmt: skip
    filled = text.format(
        n=n, arguments=", ".join(arguments), synaptic=" + ".join(each(synaptic)), after=", ".join(each(*after))
    )
    phrases = {
        name.format(k=k): phrase.format(k=k)
        for k in range(1, n + 1)
        for name, phrase in {**meaning, "input_{k}_pa": "synapses of receptor {k}"}.items()
    }
    return neuron_model_from_source(
        filled,
        states={"v_mv": -70.0, **dict.fromkeys(each(*states), 0.0), "refractory": 0},
        receptors=inputs,
        parameters={**_MEMBRANE, **dict.fromkeys(each("tau_syn_{k}_ms"), 2.0)},
        constants=constants,
        meanings=meanings(*_MEMBRANE, "v_mv", "refractory", **phrases),
        filename=f"<{text.split('(')[0].split()[-1]} with {n} receptors>",
    )
