"""The five generalized leaky integrate-and-fire models of Teeter et al. (2018).

Each adds mechanisms to the one before: reset rules (R), after-spike currents (ASC) and a threshold that follows the
membrane (A). The text of a model is put together from the blocks of its mechanisms, which the models share.
"""

from __future__ import annotations

import textwrap
from typing import Any

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.lif import (
    Parameters,
    alpha_propagators,
    check,
    check_below,
    check_positive,
    choose,
    leak_constants,
    meanings,
)
from neuraxis.network.neuron_model import NeuronModel, neuron_model_from_source

__all__ = ["glif_1", "glif_2", "glif_3", "glif_4", "glif_5"]

_SYNAPSES = ("slope_ex", "i_ex_pa", "slope_in", "i_in_pa")
_SYNAPTIC_CONSTANTS = tuple(
    f"{name}_{kind}" for kind in ("ex", "in") for name in ("decay", "rise", "kick", "per_slope", "per_pa")
)
_ASC = ("asc_1_pa", "asc_2_pa")

_PARAMETERS = {
    "c_m_pf": 58.72, "g_leak_ns": 9.43, "e_rest_mv": -78.85, "v_threshold_mv": -51.68, "refractory_ms": 3.8,
    "tau_syn_ex_ms": 2.0, "tau_syn_in_ms": 2.0,
}  # fmt: skip
_RESET_PARAMETERS = {
    "th_spike_add_mv": 0.37, "th_spike_decay": 0.009, "v_reset_fraction": 0.2, "v_reset_add_mv": 18.51,
}  # fmt: skip
_ASC_PARAMETERS = {
    "asc_1_amp_pa": -9.18, "asc_1_decay": 0.003, "asc_1_r": 1.0, "asc_2_amp_pa": -198.94, "asc_2_decay": 0.1,
    "asc_2_r": 1.0,
}  # fmt: skip
_VOLTAGE_PARAMETERS = {"th_voltage_index": 0.005, "th_voltage_decay": 0.09}

_MEANINGS = meanings(
    "c_m_pf", "g_leak_ns", "e_rest_mv", "v_reset_mv", "refractory_ms", "v_mv", "i_ex_pa", "i_in_pa", "refractory",
    "ex_pa", "in_pa",
    v_threshold_mv="threshold at rest",
    tau_syn_ex_ms="time to the peak of an excitatory current",
    tau_syn_in_ms="time to the peak of an inhibitory current",
    slope_ex="rise of the excitatory current, in pA/ms",
    slope_in="rise of the inhibitory current, in pA/ms",
    th_spike_add_mv="increase of the threshold by a spike",
    th_spike_decay="rate at which that decays, in 1/ms",
    v_reset_fraction="part of the distance from rest that a spike leaves",
    v_reset_add_mv="added to it by a spike",
    asc_1_amp_pa="what a spike adds to the first after-spike current",
    asc_1_decay="rate at which it decays, in 1/ms",
    asc_1_r="part of it that outlasts a spike",
    asc_2_amp_pa="what a spike adds to the second after-spike current",
    asc_2_decay="rate at which it decays, in 1/ms",
    asc_2_r="part of it that outlasts a spike",
    th_voltage_index="how fast the threshold follows the membrane, in 1/ms",
    th_voltage_decay="rate at which it returns, in 1/ms",
    th_spike_mv="part of the threshold that spikes change",
    th_voltage_mv="part of the threshold that follows the membrane",
    asc_1_pa="first after-spike current",
    asc_2_pa="second after-spike current",
)  # fmt: skip


def _constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "c_m_pf", "g_leak_ns", "tau_syn_ex_ms", "tau_syn_in_ms")
    membrane = {**p, "tau_m_ms": p["c_m_pf"] / p["g_leak_ns"]}
    constants = leak_constants(membrane, dt_ms)
    for kind in ("ex", "in"):
        tau = p[f"tau_syn_{kind}_ms"]
        slope, current = alpha_propagators(membrane, tau, dt_ms)
        constants |= {
            f"decay_{kind}": exp(-dt_ms / tau),
            f"rise_{kind}": dt_ms * exp(-dt_ms / tau),
            f"kick_{kind}": exp(1.0) / tau,
            f"per_slope_{kind}": slope,
            f"per_pa_{kind}": current,
        }
    if "th_spike_decay" in p:
        constants |= _reset_constants(p, dt_ms)
    if "asc_1_decay" in p:
        constants |= _asc_constants(p, dt_ms)
    if "th_voltage_decay" in p:
        constants |= _voltage_constants(p, dt_ms)
    return constants


def _reset_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "th_spike_decay")
    check_below(p, "e_rest_mv", "v_threshold_mv")
    _check_part(p, "v_reset_fraction")
    distance = p["v_threshold_mv"] - p["e_rest_mv"]
    after = p["v_reset_fraction"] * distance + p["v_reset_add_mv"]
    below = "a spike would leave V above its threshold, and the neuron would never stop spiking: lower it"
    check(p, "v_reset_add_mv", after < distance + p["th_spike_add_mv"], below)
    decay = p["th_spike_decay"]
    return {"decay_th": exp(-decay * dt_ms), "held_th": exp(-decay * p["refractory_ms"])}


def _asc_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    constants: dict[str, Any] = {}
    for k in (1, 2):
        check_positive(p, f"asc_{k}_decay")
        decay, part = p[f"asc_{k}_decay"], p[f"asc_{k}_r"]
        _check_part(p, f"asc_{k}_r")
        constants |= {
            f"decay_{k}": exp(-decay * dt_ms),
            f"mean_{k}": (1.0 - exp(-decay * dt_ms)) / (decay * dt_ms),
            f"held_{k}": part * exp(-decay * p["refractory_ms"]),
        }
    return constants


def _check_part(p: Parameters, name: str) -> None:
    check(p, name, (p[name] >= 0) & (p[name] <= 1), "must be within 0 to 1")


def _voltage_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "th_voltage_decay")
    index, decay, leak = p["th_voltage_index"], p["th_voltage_decay"], p["g_leak_ns"] / p["c_m_pf"]
    own = exp(-decay * dt_ms)
    equal = abs(decay - leak) < 1e-9 * leak
    moved = index * (exp(-leak * dt_ms) - own) / choose(equal, 1.0, decay - leak)
    moved = choose(equal, index * dt_ms * own, moved)  # the limit for equal rates
    return {
        "decay_thv": own,
        "per_mv": moved,
        "per_end_mv": index / decay * (1.0 - own),
        "mv_per_pa": 1.0 / p["g_leak_ns"],
    }


_ABOUT = (
    "Leaky integrate-and-fire neuron (GLIF 1)",
    "Leaky integrate-and-fire neuron with reset rules (GLIF 2)",
    "Leaky integrate-and-fire neuron with after-spike currents (GLIF 3)",
    "Leaky integrate-and-fire neuron with reset rules and after-spike currents (GLIF 4)",
    "Leaky integrate-and-fire neuron with reset rules, after-spike currents and an adapting threshold (GLIF 5)",
)
_EQUATIONS = """
        c_m_pf dV/dt = -g_leak_ns (V - e_rest_mv) + i_ex_pa + i_in_pa{asc} + I
        di_x_pa/dt   = slope_x - i_x_pa / tau_syn_x_ms
        dslope_x/dt  = -slope_x / tau_syn_x_ms,  slope_x += weight e / tau_syn_x_ms   when a spike arrives at x_pa"""
_RESET_EQUATIONS = """
        dS/dt        = -th_spike_decay S"""
_ASC_EQUATIONS = """
        dA1/dt       = -asc_1_decay A1,   dA2/dt = -asc_2_decay A2"""
_VOLTAGE_EQUATIONS = """
        dT/dt        = th_voltage_index (V - e_rest_mv) - th_voltage_decay T"""


def _model(level: int) -> NeuronModel:
    """Return the model of a level from 1 to 5, whose text is made of the blocks of its mechanisms."""
    resets, asc, adapts = level in (2, 4, 5), level >= 3, level == 5
    states = ["v_mv", *_SYNAPSES]
    names = ["decay", "rest", "per_pa", "refractory_steps", "v_threshold_mv", *_SYNAPTIC_CONSTANTS]
    parameters = dict(_PARAMETERS)
    lines = ["held = refractory > 0", "drive = current_pa"]
    threshold, after = "v_threshold_mv", "v_reset_mv"
    equations, letters, at_spike = [_EQUATIONS.format(asc=" + A1 + A2" if asc else "")], [], []
    if asc:
        # The mean over the step of what decays within it.
        lines.append("drive = current_pa + (asc_1_pa * mean_1 + asc_2_pa * mean_2)")
    lines.append(
        "synaptic = slope_ex * per_slope_ex + i_ex_pa * per_pa_ex + slope_in * per_slope_in + i_in_pa * per_pa_in"
    )
    lines.append("v = v_mv * decay + synaptic + (rest + drive * per_pa)")
    if resets:
        states.append("th_spike_mv")
        names += ["decay_th", "held_th", "e_rest_mv", "th_spike_add_mv", "v_reset_fraction", "v_reset_add_mv"]
        parameters |= _RESET_PARAMETERS
        lines.append("th_spike = th_spike_mv * decay_th")
        threshold += " + th_spike"
        after = "e_rest_mv + v_reset_fraction * (v_mv - e_rest_mv) + v_reset_add_mv"
        equations.append(_RESET_EQUATIONS)
        letters.append("S (`th_spike_mv`)")
        at_spike += [
            "V = e_rest_mv + v_reset_fraction (V_before - e_rest_mv) + v_reset_add_mv",
            "S = S exp(-th_spike_decay refractory_ms) + th_spike_add_mv",
        ]
    else:
        names.append("v_reset_mv")
        parameters["v_reset_mv"] = _PARAMETERS["e_rest_mv"]
        at_spike.append("V = v_reset_mv")
    if asc:
        states += _ASC
        names += [f"{name}_{k}" for k in (1, 2) for name in ("decay", "mean", "held")] + [
            "asc_1_amp_pa",
            "asc_2_amp_pa",
        ]
        parameters |= _ASC_PARAMETERS
        equations.append(_ASC_EQUATIONS)
        letters.append("A1, A2 (`asc_1_pa`, `asc_2_pa`)")
        at_spike.append("Ak = Ak asc_k_r exp(-asc_k_decay refractory_ms) + asc_k_amp_pa")
    if adapts:
        states.append("th_voltage_mv")
        names += ["decay_thv", "per_mv", "per_end_mv", "mv_per_pa"]
        parameters |= _VOLTAGE_PARAMETERS
        lines += [
            "end = drive * mv_per_pa",
            "th_voltage = th_voltage_mv * decay_thv + per_mv * (v_mv - e_rest_mv - end) + per_end_mv * end",
        ]
        threshold += " + th_voltage"
        equations.append(_VOLTAGE_EQUATIONS)
        letters.append("T (`th_voltage_mv`)")
    lines += [
        f"spike = (v > {threshold}) & (refractory <= 0)",
        "v = v_mv if held else v",
        f"v = {after} if spike else v",
    ]
    if resets:
        lines += [
            "later = th_spike * held_th + th_spike_add_mv",
            "th_spike = later if spike else (th_spike_mv if held else th_spike)",
        ]
    for k in (1, 2) if asc else ():
        lines += [
            f"asc_{k} = asc_{k}_pa * decay_{k}",
            f"later = asc_{k}_amp_pa + asc_{k} * held_{k}",
            f"asc_{k} = later if spike else (asc_{k}_pa if held else asc_{k})",
        ]
    if adapts:
        lines.append("th_voltage = th_voltage_mv if held else th_voltage")
    lines.append("left = refractory - 1 if held else 0")
    returned = [
        "v",
        "slope_ex * decay_ex + ex_pa * kick_ex",
        "i_ex_pa * decay_ex + slope_ex * rise_ex",
        "slope_in * decay_in + in_pa * kick_in",
        "i_in_pa * decay_in + slope_in * rise_in",
        *(["th_spike"] if resets else []),
        *(["asc_1", "asc_2"] if asc else []),
        *(["th_voltage"] if adapts else []),
    ]
    lines.append(f"return spike, {', '.join(returned)}, refractory_steps if spike else left")
    sum_of = " + ".join(["v_threshold_mv", *(["S"] if resets else []), *(["T"] if adapts else [])])
    stay = ["V", *(["S"] if resets else []), *(["A1", "A2"] if asc else []), *(["T"] if adapts else [])]
    held = f"{', '.join(stay)} {'stay as they are' if len(stay) > 1 else 'stays as it is'}"
    before = " V_before is V one step before the spike." if resets else ""
    about = f"""A weight is the peak of a current in pA.{before} After a spike {held} for `refractory_ms`; `refractory`
    counts the steps that are left. The defaults are those of cell 490626718 of the Allen Cell Types Database."""
    about = textwrap.fill(" ".join(about.split()), 120, initial_indent="    ", subsequent_indent="    ")
    description = f'''"""{_ABOUT[level - 1]}, with alpha-shaped currents.

    Equations, with {", ".join(["V (`v_mv`)", *letters])} and I (`current_pa`), and x = ex or in::
{"".join(equations)}
        when V > {sum_of}: a spike, and
{"".join(f"            {line}{chr(10)}" for line in at_spike)}
{about}

    Scheme: exact integration{"; V takes the mean of A1 + A2 over the step" if asc else ""}.

    Elsewhere: NEST glif_psc (GLIF model {level}); Brian2 equations.

    C. Teeter et al., Nature Communications 9:709 (2018).
    """'''
    arguments = [*states, "refractory", "ex_pa", "in_pa", "current_pa", *names]
    text = "\n    ".join([f"def glif_{level}({', '.join(arguments)}):", description, *lines])
    return neuron_model_from_source(
        text,
        states={**{name: _PARAMETERS["e_rest_mv"] if name == "v_mv" else 0.0 for name in states}, "refractory": 0},
        receptors=("ex_pa", "in_pa"),
        parameters=parameters,
        constants=_constants,
        meanings={
            name: phrase for name, phrase in _MEANINGS.items()
            if name in (*states, *parameters, "refractory", "ex_pa", "in_pa")
        },
        filename=f"<glif_{level}>",
    )  # fmt: skip


glif_1, glif_2, glif_3, glif_4, glif_5 = (_model(level) for level in range(1, 6))
