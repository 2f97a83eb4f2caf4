"""The adaptive exponential integrate-and-fire neuron of Brette and Gerstner (2005), with two kinds of conductances."""

from __future__ import annotations

from typing import Any

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.lif import Parameters, check_below, check_positive, meanings, steps
from neuraxis.network.neuron_model import neuron_model

__all__ = ["adex", "adex_cond_alpha"]

SUBSTEPS = 8


def _constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "c_m_pf", "g_leak_ns", "tau_w_ms", "delta_t_mv", "tau_syn_ex_ms", "tau_syn_in_ms")
    check_below(p, "v_reset_mv", "v_peak_mv")
    part = dt_ms / SUBSTEPS
    return {
        "h": part / p["c_m_pf"],
        "h_w": part / p["tau_w_ms"],
        "part_ex": exp(-part / p["tau_syn_ex_ms"]),
        "part_in": exp(-part / p["tau_syn_in_ms"]),
        "inverse_delta": 1.0 / p["delta_t_mv"],
        "refractory_steps": steps(p, "refractory_ms", dt_ms),
    }


@neuron_model(
    states={"v_mv": -70.6, "w_pa": 0.0, "g_ex_ns": 0.0, "g_in_ns": 0.0, "refractory": 0},
    receptors=("ex_ns", "in_ns"),
    parameters={
        "c_m_pf": 281.0, "g_leak_ns": 30.0, "e_rest_mv": -70.6, "v_t_mv": -50.4, "delta_t_mv": 2.0, "tau_w_ms": 144.0,
        "a_ns": 4.0, "b_pa": 80.5, "v_reset_mv": -60.0, "v_peak_mv": 0.0, "e_ex_mv": 0.0, "e_in_mv": -85.0,
        "tau_syn_ex_ms": 0.2, "tau_syn_in_ms": 2.0, "refractory_ms": 0.0,
    },
    constants=_constants,
    meanings=meanings(
        "c_m_pf", "g_leak_ns", "e_rest_mv", "v_reset_mv", "v_peak_mv", "e_ex_mv", "e_in_mv", "refractory_ms", "v_mv",
        "g_ex_ns", "g_in_ns", "refractory", "ex_ns", "in_ns",
        v_t_mv="potential at which the upswing begins",
        delta_t_mv="sharpness of the upswing",
        tau_w_ms="time constant of the adaptation",
        a_ns="adaptation to the potential",
        b_pa="increase of the adaptation by a spike",
        w_pa="adaptation current",
        tau_syn_ex_ms="time constant of the excitatory conductance",
        tau_syn_in_ms="time constant of the inhibitory conductance",
    ),
)  # fmt: skip
def adex(
    v_mv, w_pa, g_ex_ns, g_in_ns, refractory, ex_ns, in_ns, current_pa, h, h_w, part_ex, part_in, inverse_delta,
    g_leak_ns, e_rest_mv, v_t_mv, delta_t_mv, a_ns, b_pa, v_reset_mv, v_peak_mv, e_ex_mv, e_in_mv, refractory_steps,
):  # fmt: skip
    """Adaptive exponential integrate-and-fire neuron with exponentially decaying conductances.

    Equations, with V (`v_mv`), w (`w_pa`), g_ex (`g_ex_ns`), g_in (`g_in_ns`) and I (`current_pa`)::

        c_m_pf dV/dt   = -g_leak_ns (V - e_rest_mv) + g_leak_ns delta_t_mv exp((V - v_t_mv) / delta_t_mv)
                         - g_ex (V - e_ex_mv) - g_in (V - e_in_mv) - w + I
        tau_w_ms dw/dt = a_ns (V - e_rest_mv) - w
        dg_ex/dt       = -g_ex / tau_syn_ex_ms,   g_ex += weight    when a spike arrives at ex_ns
        dg_in/dt       = -g_in / tau_syn_in_ms,   g_in += |weight|  when a spike arrives at in_ns (weights below 0)
        V = v_reset_mv, w += b_pa, and a spike                      when V >= v_peak_mv

    V stays at `v_reset_mv` for `refractory_ms` after a spike; `refractory` counts the steps that are left.

    Scheme: 8 substeps of Heun's method, because the exponential upswing is stiff, and exact conductances. A substep
    that reaches the peak ends in the reset, which bounds the exponent.

    Elsewhere: NEST aeif_cond_exp; PyNN EIF_cond_exp_isfa_ista; Brian2 equations.

    R. Brette and W. Gerstner, J. Neurophysiol. 94:3637 (2005).
    """
    held = refractory > 0
    v, w, g_ex, g_in = v_mv, w_pa, g_ex_ns, g_in_ns
    spike = False
    for _ in range(SUBSTEPS):
        upswing = g_leak_ns * delta_t_mv * exp((v - v_t_mv) * inverse_delta)
        slope = upswing - g_leak_ns * (v - e_rest_mv) - g_ex * (v - e_ex_mv) - g_in * (v - e_in_mv) - w + current_pa
        slope_w = a_ns * (v - e_rest_mv) - w
        g_ex, g_in = g_ex * part_ex, g_in * part_in
        v_end, w_end = min(v + h * slope, v_peak_mv), w + h_w * slope_w
        upswing = g_leak_ns * delta_t_mv * exp((v_end - v_t_mv) * inverse_delta)
        away = g_leak_ns * (v_end - e_rest_mv) + g_ex * (v_end - e_ex_mv) + g_in * (v_end - e_in_mv) + w_end
        v_new = v + 0.5 * h * (slope + upswing - away + current_pa)
        v_new = v if held else v_new
        w = w + 0.5 * h_w * (slope_w + a_ns * (v_end - e_rest_mv) - w_end)
        hit = v_new >= v_peak_mv
        spike = spike | hit
        w = w + b_pa if hit else w
        v = v_reset_mv if hit else v_new
        held = held | (hit & (refractory_steps > 0))
    left = refractory - 1 if refractory > 0 else 0
    return spike, v, w, g_ex + ex_ns, g_in - in_ns, refractory_steps if spike else left


def _alpha_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    part = dt_ms / SUBSTEPS
    constants = _constants(p, dt_ms)
    for kind in ("ex", "in"):
        tau = p[f"tau_syn_{kind}_ms"]
        constants |= {f"rise_{kind}": part * exp(-part / tau), f"kick_{kind}": exp(1.0) / tau}
    return constants


@neuron_model(
    states={
        "v_mv": -70.6, "w_pa": 0.0, "slope_ex": 0.0, "g_ex_ns": 0.0, "slope_in": 0.0, "g_in_ns": 0.0, "refractory": 0,
    },
    receptors=("ex_ns", "in_ns"),
    parameters={
        "c_m_pf": 281.0, "g_leak_ns": 30.0, "e_rest_mv": -70.6, "v_t_mv": -50.4, "delta_t_mv": 2.0, "tau_w_ms": 144.0,
        "a_ns": 4.0, "b_pa": 80.5, "v_reset_mv": -60.0, "v_peak_mv": 0.0, "e_ex_mv": 0.0, "e_in_mv": -85.0,
        "tau_syn_ex_ms": 0.2, "tau_syn_in_ms": 2.0, "refractory_ms": 0.0,
    },
    constants=_alpha_constants,
    meanings=meanings(
        "c_m_pf", "g_leak_ns", "e_rest_mv", "v_reset_mv", "v_peak_mv", "e_ex_mv", "e_in_mv", "refractory_ms", "v_mv",
        "g_ex_ns", "g_in_ns", "refractory", "ex_ns", "in_ns",
        v_t_mv="potential at which the upswing begins",
        delta_t_mv="sharpness of the upswing",
        tau_w_ms="time constant of the adaptation",
        a_ns="adaptation to the potential",
        b_pa="increase of the adaptation by a spike",
        w_pa="adaptation current",
        tau_syn_ex_ms="time to the peak of an excitatory conductance",
        tau_syn_in_ms="time to the peak of an inhibitory conductance",
        slope_ex="rise of the excitatory conductance, in nS/ms",
        slope_in="rise of the inhibitory conductance, in nS/ms",
    ),
)  # fmt: skip
def adex_cond_alpha(
    v_mv, w_pa, slope_ex, g_ex_ns, slope_in, g_in_ns, refractory, ex_ns, in_ns, current_pa, h, h_w, part_ex, rise_ex,
    kick_ex, part_in, rise_in, kick_in, inverse_delta, g_leak_ns, e_rest_mv, v_t_mv, delta_t_mv, a_ns, b_pa, v_reset_mv,
    v_peak_mv, e_ex_mv, e_in_mv, refractory_steps,
):  # fmt: skip
    """Adaptive exponential integrate-and-fire neuron with alpha-shaped conductances; a weight is the peak in nS.

    Equations, with V (`v_mv`), w (`w_pa`) and I (`current_pa`), and x = ex or in::

        c_m_pf dV/dt   = -g_leak_ns (V - e_rest_mv) + g_leak_ns delta_t_mv exp((V - v_t_mv) / delta_t_mv)
                         - g_ex_ns (V - e_ex_mv) - g_in_ns (V - e_in_mv) - w + I
        tau_w_ms dw/dt = a_ns (V - e_rest_mv) - w
        dg_x_ns/dt     = slope_x - g_x_ns / tau_syn_x_ms
        dslope_x/dt    = -slope_x / tau_syn_x_ms
        slope_x += |weight| e / tau_syn_x_ms          when a spike arrives at x_ns (weights at in_ns are below 0)
        V = v_reset_mv, w += b_pa, and a spike        when V >= v_peak_mv

    V stays at `v_reset_mv` for `refractory_ms` after a spike; `refractory` counts the steps that are left.

    Scheme: 8 substeps of Heun's method, and exact conductances. A substep that reaches the peak ends in the reset,
    which bounds the exponent.

    Elsewhere: NEST aeif_cond_alpha; PyNN EIF_cond_alpha_isfa_ista; Brian2 equations.

    R. Brette and W. Gerstner, J. Neurophysiol. 94:3637 (2005).
    """
    held = refractory > 0
    v, w, d_ex, g_ex, d_in, g_in = v_mv, w_pa, slope_ex, g_ex_ns, slope_in, g_in_ns
    spike = False
    for _ in range(SUBSTEPS):
        upswing = g_leak_ns * delta_t_mv * exp((v - v_t_mv) * inverse_delta)
        slope = upswing - g_leak_ns * (v - e_rest_mv) - g_ex * (v - e_ex_mv) - g_in * (v - e_in_mv) - w + current_pa
        slope_w = a_ns * (v - e_rest_mv) - w
        g_ex, g_in = g_ex * part_ex + d_ex * rise_ex, g_in * part_in + d_in * rise_in
        d_ex, d_in = d_ex * part_ex, d_in * part_in
        v_end, w_end = min(v + h * slope, v_peak_mv), w + h_w * slope_w
        upswing = g_leak_ns * delta_t_mv * exp((v_end - v_t_mv) * inverse_delta)
        away = g_leak_ns * (v_end - e_rest_mv) + g_ex * (v_end - e_ex_mv) + g_in * (v_end - e_in_mv) + w_end
        v_new = v + 0.5 * h * (slope + upswing - away + current_pa)
        v_new = v if held else v_new
        w = w + 0.5 * h_w * (slope_w + a_ns * (v_end - e_rest_mv) - w_end)
        hit = v_new >= v_peak_mv
        spike = spike | hit
        w = w + b_pa if hit else w
        v = v_reset_mv if hit else v_new
        held = held | (hit & (refractory_steps > 0))
    left = refractory - 1 if refractory > 0 else 0
    left = refractory_steps if spike else left
    return spike, v, w, d_ex + ex_ns * kick_ex, g_ex, d_in - in_ns * kick_in, g_in, left
