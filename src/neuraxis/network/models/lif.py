"""Leaky integrate-and-fire models, and the exact solution of their linear membrane over one step.

`lif_delta`, `lif_exp`, `lif_exp_two` and `lif_alpha` are linear between spikes. Their constants are the propagators of
one step (Rotter and Diesmann 1999), so that V is exact at every step, whatever the step is. `lif_cond_exp` is
integrated by the Runge-Kutta method of fourth order.

In all of them V stays at `v_reset_mv` for `refractory_ms` after a spike; the state `refractory` counts the steps that
are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp, float32
from neuraxis.network.grid import array_on_grid, array_to_steps, on_grid, to_steps
from neuraxis.network.neuron_model import neuron_model
from neuraxis.network.varying import Drawn

__all__ = [
    "alpha_propagators",
    "check",
    "check_below",
    "check_positive",
    "choose",
    "current_propagator",
    "leak_constants",
    "lif_alpha",
    "lif_cond_exp",
    "lif_delta",
    "lif_exp",
    "lif_exp_two",
    "meanings",
    "steps",
]

Parameters = Mapping[str, Any]

# Phrases for names that several models share.
_MEANINGS = {
    "tau_m_ms": "membrane time constant",
    "c_m_pf": "membrane capacitance",
    "g_leak_ns": "leak conductance",
    "e_rest_mv": "resting potential",
    "e_ex_mv": "excitatory reversal potential",
    "e_in_mv": "inhibitory reversal potential",
    "tau_syn_ms": "time constant of the synaptic current",
    "v_threshold_mv": "threshold of a spike",
    "v_peak_mv": "potential at which a spike is emitted",
    "v_reset_mv": "potential after a spike",
    "refractory_ms": "time after a spike for which the potential is held",
    "v_mv": "membrane potential",
    "i_syn_pa": "synaptic current",
    "i_ex_pa": "excitatory current",
    "i_in_pa": "inhibitory current",
    "g_ex_ns": "excitatory conductance",
    "g_in_ns": "inhibitory conductance",
    "refractory": "steps that are left of the refractory time",
    "input_mv": "added to the potential",
    "input_pa": "added to the synaptic current",
    "ex_pa": "excitatory synapses",
    "in_pa": "inhibitory synapses (weights below 0)",
    "ex_ns": "excitatory synapses",
    "in_ns": "inhibitory synapses (weights below 0)",
}


def meanings(*names: str, **others: str) -> dict[str, str]:
    """Return the phrases for `neuron_model(meanings=...)`: those that models share, by name, and `others`."""
    return {**{name: _MEANINGS[name] for name in names}, **others}


def leak_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    """Return the constants of a leaky membrane over one step.

    `decay` is the factor of V, `rest` what the leak towards the resting potential adds in mV, `per_pa` what a constant
    current of 1 pA adds in mV, and `refractory_steps` the refractory time. Parameters may be arrays with a value for
    each neuron, here and in the functions below; the constants that follow from them are arrays, too.
    """
    check_positive(p, "tau_m_ms")
    if "v_reset_mv" in p and "v_threshold_mv" in p:
        check_below(p, "v_reset_mv", "v_threshold_mv")
    decay = exp(-dt_ms / p["tau_m_ms"])
    constants: dict[str, Any] = {
        "decay": decay,
        # Computed from the decay in float32, as the kernel uses it, so that V settles at e_rest_mv.
        "rest": p["e_rest_mv"] * (1.0 - float32(decay)),
        "refractory_steps": steps(p, "refractory_ms", dt_ms),
    }
    if "c_m_pf" in p:
        check_positive(p, "c_m_pf")
        constants["per_pa"] = p["tau_m_ms"] / p["c_m_pf"] * (1.0 - decay)
    return constants


def current_propagator(p: Parameters, tau_syn_ms: Any, dt_ms: float) -> Any:
    """Return the mV that a synaptic current adds within one step, if it starts at 1 pA and decays with `tau_syn_ms`."""
    tau_m, c_m = p["tau_m_ms"], p["c_m_pf"]
    equal = abs(tau_m - tau_syn_ms) < 1e-9 * tau_m
    factor = tau_m * tau_syn_ms / (c_m * choose(equal, 1.0, tau_m - tau_syn_ms))
    membrane = exp(-dt_ms / tau_m)
    # The limit for equal time constants, or the general case.
    return choose(equal, dt_ms / c_m * membrane, factor * (membrane - exp(-dt_ms / tau_syn_ms)))


def alpha_propagators(p: Parameters, tau_syn_ms: Any, dt_ms: float) -> tuple[Any, Any]:
    """Return the mV that an alpha-shaped current adds within one step: per pA/ms of its slope, and per pA."""
    tau_m, c_m = p["tau_m_ms"], p["c_m_pf"]
    membrane, synapse = exp(-dt_ms / tau_m), exp(-dt_ms / tau_syn_ms)
    equal = abs(tau_m - tau_syn_ms) < 1e-9 * tau_m
    difference = choose(equal, 1.0, 1.0 / tau_syn_ms - 1.0 / tau_m)
    current = (membrane - synapse) / (c_m * difference)
    slope = (membrane - synapse * (1.0 + dt_ms * difference)) / (c_m * difference * difference)
    same_slope, same_current = dt_ms * dt_ms / (2.0 * c_m) * membrane, dt_ms / c_m * membrane
    return choose(equal, same_slope, slope), choose(equal, same_current, current)


def choose(test: Any, yes: Any, no: Any) -> Any:
    """Return one of two values, or for an array of tests an array of them."""
    if isinstance(test, np.ndarray):
        return np.where(test, yes, no)
    return yes if test else no


def steps(p: Parameters, name: str, dt_ms: float) -> Any:
    """Return a time parameter as a number of steps, rounded with a warning unless it was drawn."""
    check(p, name, p[name] >= 0, "a time cannot be negative")
    if not isinstance(p[name], np.ndarray):
        return to_steps(on_grid(float(p[name]), dt_ms, name), dt_ms, name)
    if isinstance(p[name], Drawn):
        return array_to_steps(p[name], dt_ms, name)
    return array_to_steps(array_on_grid(p[name], dt_ms, name), dt_ms, name)


def check_below(p: Parameters, reset: str, threshold: str) -> None:
    """Raise unless the reset is below the threshold in float32; else the neuron would never stop spiking."""
    check(p, reset, float32(p[reset]) < float32(p[threshold]), f"must be below {threshold}={p[threshold]!r}")


def check_positive(p: Parameters, *names: str) -> None:
    for name in names:
        check(p, name, p[name] > 0, "a number above 0 is expected")


def check(p: Parameters, name: str, fulfilled: Any, expected: str) -> None:
    """Raise unless the parameter fulfils this; for arrays, `network.population` finds out which neuron it is."""
    if not np.all(fulfilled):
        raise InvalidArgument(f"{name}={p[name]!r}: {expected}")


@neuron_model(
    states={"v_mv": -70.0, "refractory": 0},
    receptors=("input_mv",),
    parameters={
        "tau_m_ms": 10.0, "c_m_pf": 250.0, "e_rest_mv": -70.0, "v_threshold_mv": -55.0, "v_reset_mv": -70.0,
        "refractory_ms": 2.0,
    },
    constants=leak_constants,
    meanings=meanings(
        "tau_m_ms", "c_m_pf", "e_rest_mv", "v_threshold_mv", "v_reset_mv", "refractory_ms", "v_mv", "refractory",
        "input_mv",
    ),
)  # fmt: skip
def lif_delta(
    v_mv, refractory, input_mv, current_pa, decay, rest, per_pa, v_threshold_mv, v_reset_mv, refractory_steps
):
    """Leaky integrate-and-fire neuron; a spike moves the membrane at once by its weight in mV.

    Equations, with V (`v_mv`) and I (`current_pa`)::

        dV/dt = -(V - e_rest_mv) / tau_m_ms + I / c_m_pf
        V += weight                      when a spike arrives at input_mv; lost while the neuron is refractory
        V = v_reset_mv, and a spike      when V >= v_threshold_mv

    After a spike V stays at `v_reset_mv` for `refractory_ms`; `refractory` counts the steps that are left.

    Scheme: exact integration (Rotter and Diesmann 1999).

    Elsewhere: NEST iaf_psc_delta; Brian2 equations.
    """
    held = refractory > 0
    v = v_mv * decay + (rest + current_pa * per_pa) + input_mv
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    return spike, v_reset_mv if spike else v, refractory_steps if spike else left


def _lif_exp_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "tau_syn_ms")
    return {
        **leak_constants(p, dt_ms),
        "decay_syn": exp(-dt_ms / p["tau_syn_ms"]),
        "per_pa_syn": current_propagator(p, p["tau_syn_ms"], dt_ms),
    }


@neuron_model(
    states={"v_mv": -65.0, "i_syn_pa": 0.0, "refractory": 0},
    receptors=("input_pa",),
    parameters={
        "tau_m_ms": 10.0, "c_m_pf": 250.0, "tau_syn_ms": 0.5, "e_rest_mv": -65.0, "v_threshold_mv": -50.0,
        "v_reset_mv": -65.0, "refractory_ms": 2.0,
    },
    constants=_lif_exp_constants,
    meanings=meanings(
        "tau_m_ms", "c_m_pf", "tau_syn_ms", "e_rest_mv", "v_threshold_mv", "v_reset_mv", "refractory_ms", "v_mv",
        "i_syn_pa", "refractory", "input_pa",
    ),
)  # fmt: skip
def lif_exp(
    v_mv, i_syn_pa, refractory, input_pa, current_pa, decay, rest, per_pa, decay_syn, per_pa_syn, v_threshold_mv,
    v_reset_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire neuron with one exponentially decaying synaptic current (weights in pA of any sign).

    Equations, with V (`v_mv`), I_syn (`i_syn_pa`) and I (`current_pa`)::

        dV/dt     = -(V - e_rest_mv) / tau_m_ms + (I_syn + I) / c_m_pf
        dI_syn/dt = -I_syn / tau_syn_ms
        I_syn += weight                  when a spike arrives at input_pa
        V = v_reset_mv, and a spike      when V >= v_threshold_mv

    After a spike V stays at `v_reset_mv` for `refractory_ms`; `refractory` counts the steps that are left.

    Scheme: exact integration (Rotter and Diesmann 1999).

    Elsewhere: NEST iaf_psc_exp (with one receptor); Brian2 equations.
    """
    held = refractory > 0
    v = v_mv * decay + i_syn_pa * per_pa_syn + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_syn = i_syn_pa * decay_syn + input_pa
    return spike, v_reset_mv if spike else v, i_syn, refractory_steps if spike else left


def _lif_exp_two_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "tau_syn_ex_ms", "tau_syn_in_ms")
    return {
        **leak_constants(p, dt_ms),
        "decay_ex": exp(-dt_ms / p["tau_syn_ex_ms"]),
        "decay_in": exp(-dt_ms / p["tau_syn_in_ms"]),
        "per_pa_ex": current_propagator(p, p["tau_syn_ex_ms"], dt_ms),
        "per_pa_in": current_propagator(p, p["tau_syn_in_ms"], dt_ms),
    }


@neuron_model(
    states={"v_mv": -70.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "refractory": 0},
    receptors=("ex_pa", "in_pa"),
    parameters={
        "tau_m_ms": 10.0, "c_m_pf": 250.0, "tau_syn_ex_ms": 2.0, "tau_syn_in_ms": 2.0, "e_rest_mv": -70.0,
        "v_threshold_mv": -55.0, "v_reset_mv": -70.0, "refractory_ms": 2.0,
    },
    constants=_lif_exp_two_constants,
    meanings=meanings(
        "tau_m_ms", "c_m_pf", "e_rest_mv", "v_threshold_mv", "v_reset_mv", "refractory_ms", "v_mv", "i_ex_pa",
        "i_in_pa", "refractory", "ex_pa", "in_pa",
        tau_syn_ex_ms="time constant of the excitatory current",
        tau_syn_in_ms="time constant of the inhibitory current",
    ),
)  # fmt: skip
def lif_exp_two(
    v_mv, i_ex_pa, i_in_pa, refractory, ex_pa, in_pa, current_pa, decay, rest, per_pa, decay_ex, decay_in, per_pa_ex,
    per_pa_in, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire neuron with exponentially decaying excitatory and inhibitory currents (weights in pA).

    Equations, with V (`v_mv`), I_ex (`i_ex_pa`), I_in (`i_in_pa`) and I (`current_pa`)::

        dV/dt    = -(V - e_rest_mv) / tau_m_ms + (I_ex + I_in + I) / c_m_pf
        dI_ex/dt = -I_ex / tau_syn_ex_ms,   I_ex += weight   when a spike arrives at ex_pa
        dI_in/dt = -I_in / tau_syn_in_ms,   I_in += weight   when a spike arrives at in_pa (weights below 0)
        V = v_reset_mv, and a spike                          when V >= v_threshold_mv

    After a spike V stays at `v_reset_mv` for `refractory_ms`; `refractory` counts the steps that are left.

    Scheme: exact integration (Rotter and Diesmann 1999).

    Elsewhere: NEST iaf_psc_exp; PyNN IF_curr_exp; Brian2 equations (example CUBA).
    """
    held = refractory > 0
    v = v_mv * decay + i_ex_pa * per_pa_ex + i_in_pa * per_pa_in + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + ex_pa
    i_in = i_in_pa * decay_in + in_pa
    return spike, v_reset_mv if spike else v, i_ex, i_in, refractory_steps if spike else left


def _lif_alpha_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "tau_syn_ex_ms", "tau_syn_in_ms")
    constants = leak_constants(p, dt_ms)
    for kind in ("ex", "in"):
        tau = p[f"tau_syn_{kind}_ms"]
        slope, current = alpha_propagators(p, tau, dt_ms)
        constants |= {
            f"decay_{kind}": exp(-dt_ms / tau),
            f"rise_{kind}": dt_ms * exp(-dt_ms / tau),
            f"kick_{kind}": exp(1.0) / tau,
            f"per_slope_{kind}": slope,
            f"per_pa_{kind}": current,
        }
    return constants


@neuron_model(
    states={
        "v_mv": -70.0, "slope_ex": 0.0, "i_ex_pa": 0.0, "slope_in": 0.0, "i_in_pa": 0.0, "refractory": 0,
    },
    receptors=("ex_pa", "in_pa"),
    parameters={
        "tau_m_ms": 10.0, "c_m_pf": 250.0, "tau_syn_ex_ms": 2.0, "tau_syn_in_ms": 2.0, "e_rest_mv": -70.0,
        "v_threshold_mv": -55.0, "v_reset_mv": -70.0, "refractory_ms": 2.0,
    },
    constants=_lif_alpha_constants,
    meanings=meanings(
        "tau_m_ms", "c_m_pf", "e_rest_mv", "v_threshold_mv", "v_reset_mv", "refractory_ms", "v_mv", "i_ex_pa",
        "i_in_pa", "refractory", "ex_pa", "in_pa",
        tau_syn_ex_ms="time to the peak of an excitatory current",
        tau_syn_in_ms="time to the peak of an inhibitory current",
        slope_ex="rise of the excitatory current, in pA/ms",
        slope_in="rise of the inhibitory current, in pA/ms",
    ),
)  # fmt: skip
def lif_alpha(
    v_mv, slope_ex, i_ex_pa, slope_in, i_in_pa, refractory, ex_pa, in_pa, current_pa, decay, rest, per_pa,
    decay_ex, rise_ex, kick_ex, per_slope_ex, per_pa_ex, decay_in, rise_in, kick_in, per_slope_in, per_pa_in,
    v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire neuron with alpha-shaped synaptic currents; a weight is the peak of a current in pA.

    Equations, with V (`v_mv`) and I (`current_pa`), and x = ex or in::

        dV/dt       = -(V - e_rest_mv) / tau_m_ms + (i_ex_pa + i_in_pa + I) / c_m_pf
        di_x_pa/dt  = slope_x - i_x_pa / tau_syn_x_ms
        dslope_x/dt = -slope_x / tau_syn_x_ms
        slope_x += weight e / tau_syn_x_ms      when a spike arrives at x_pa
        V = v_reset_mv, and a spike             when V >= v_threshold_mv

    A spike of weight w adds the current w (t / tau) exp(1 - t / tau), which peaks at w after t = tau. `slope_ex` and
    `slope_in` are in pA/ms. After a spike V stays at `v_reset_mv` for `refractory_ms`; `refractory` counts the steps
    that are left.

    Scheme: exact integration (Rotter and Diesmann 1999).

    Elsewhere: NEST iaf_psc_alpha; PyNN IF_curr_alpha; Brian2 equations.
    """
    held = refractory > 0
    synaptic = slope_ex * per_slope_ex + i_ex_pa * per_pa_ex + slope_in * per_slope_in + i_in_pa * per_pa_in
    v = v_mv * decay + synaptic + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + slope_ex * rise_ex
    i_in = i_in_pa * decay_in + slope_in * rise_in
    slope_ex = slope_ex * decay_ex + ex_pa * kick_ex
    slope_in = slope_in * decay_in + in_pa * kick_in
    return spike, v_reset_mv if spike else v, slope_ex, i_ex, slope_in, i_in, refractory_steps if spike else left


def _lif_cond_exp_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "c_m_pf", "g_leak_ns", "tau_syn_ex_ms", "tau_syn_in_ms")
    check_below(p, "v_reset_mv", "v_threshold_mv")
    return {
        "half_ex": exp(-0.5 * dt_ms / p["tau_syn_ex_ms"]),
        "half_in": exp(-0.5 * dt_ms / p["tau_syn_in_ms"]),
        "h": dt_ms / p["c_m_pf"],
        "refractory_steps": steps(p, "refractory_ms", dt_ms),
    }


@neuron_model(
    states={"v_mv": -70.0, "g_ex_ns": 0.0, "g_in_ns": 0.0, "refractory": 0},
    receptors=("ex_ns", "in_ns"),
    parameters={
        "c_m_pf": 250.0, "g_leak_ns": 16.6667, "e_rest_mv": -70.0, "e_ex_mv": 0.0, "e_in_mv": -85.0,
        "tau_syn_ex_ms": 0.2, "tau_syn_in_ms": 2.0, "v_threshold_mv": -55.0, "v_reset_mv": -60.0, "refractory_ms": 2.0,
    },
    constants=_lif_cond_exp_constants,
    meanings=meanings(
        "c_m_pf", "g_leak_ns", "e_rest_mv", "e_ex_mv", "e_in_mv", "v_threshold_mv", "v_reset_mv", "refractory_ms",
        "v_mv", "g_ex_ns", "g_in_ns", "refractory", "ex_ns", "in_ns",
        tau_syn_ex_ms="time constant of the excitatory conductance",
        tau_syn_in_ms="time constant of the inhibitory conductance",
    ),
)  # fmt: skip
def lif_cond_exp(
    v_mv, g_ex_ns, g_in_ns, refractory, ex_ns, in_ns, current_pa, h, half_ex, half_in, g_leak_ns, e_rest_mv, e_ex_mv,
    e_in_mv, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire neuron with exponentially decaying conductances (weights in nS).

    Equations, with V (`v_mv`), g_ex (`g_ex_ns`), g_in (`g_in_ns`) and I (`current_pa`)::

        c_m_pf dV/dt = -g_leak_ns (V - e_rest_mv) - g_ex (V - e_ex_mv) - g_in (V - e_in_mv) + I
        dg_ex/dt     = -g_ex / tau_syn_ex_ms,   g_ex += weight    when a spike arrives at ex_ns
        dg_in/dt     = -g_in / tau_syn_in_ms,   g_in += |weight|  when a spike arrives at in_ns (weights below 0)
        V = v_reset_mv, and a spike                               when V >= v_threshold_mv

    After a spike V stays at `v_reset_mv` for `refractory_ms`; `refractory` counts the steps that are left.

    Scheme: exact conductances; one step of the Runge-Kutta method of fourth order for V.

    Elsewhere: NEST iaf_cond_exp; PyNN IF_cond_exp; Brian2 equations (example COBA).
    """
    held = refractory > 0
    mid_ex, mid_in = g_ex_ns * half_ex, g_in_ns * half_in
    end_ex, end_in = mid_ex * half_ex, mid_in * half_in
    drive = g_leak_ns * e_rest_mv + current_pa
    a = drive + g_ex_ns * e_ex_mv + g_in_ns * e_in_mv - (g_leak_ns + g_ex_ns + g_in_ns) * v_mv
    mid_drive, mid_g = drive + mid_ex * e_ex_mv + mid_in * e_in_mv, g_leak_ns + mid_ex + mid_in
    b = mid_drive - mid_g * (v_mv + 0.5 * h * a)
    c = mid_drive - mid_g * (v_mv + 0.5 * h * b)
    d = drive + end_ex * e_ex_mv + end_in * e_in_mv - (g_leak_ns + end_ex + end_in) * (v_mv + h * c)
    v = v_mv + h * (1.0 / 6.0) * (a + 2.0 * (b + c) + d)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    return spike, v_reset_mv if spike else v, end_ex + ex_ns, end_in - in_ns, refractory_steps if spike else left
