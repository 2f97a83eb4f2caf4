"""Leaky integrate-and-fire with exponentially decaying conductances (weights in nS; inhibitory ones negative).

The conductances decay exactly; the membrane, linear with coefficients that change within the step, is advanced by the
classical Runge-Kutta rule of fourth order with the step dt.
"""

from __future__ import annotations

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.membrane import Parameters, check_positive, steps
from neuraxis.network.neuron_model import neuron_model

__all__ = ["lif_cond_exp"]


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    check_positive(p, "c_m_pf", "g_leak_ns", "tau_syn_ex_ms", "tau_syn_in_ms")
    return {
        "half_ex": exp(-0.5 * dt_ms / p["tau_syn_ex_ms"]),
        "half_in": exp(-0.5 * dt_ms / p["tau_syn_in_ms"]),
        "h": float(dt_ms / p["c_m_pf"]),
        "refractory_steps": steps(p, "refractory_ms", dt_ms),
    }


@neuron_model(
    states={"v_mv": -70.0, "g_ex_ns": 0.0, "g_in_ns": 0.0, "refractory": 0},
    receptors=("ex_ns", "in_ns"),
    parameters={
        "c_m_pf": 250.0, "g_leak_ns": 16.6667, "e_rest_mv": -70.0, "e_ex_mv": 0.0, "e_in_mv": -85.0,
        "tau_syn_ex_ms": 0.2, "tau_syn_in_ms": 2.0, "v_threshold_mv": -55.0, "v_reset_mv": -60.0, "refractory_ms": 2.0,
    },
    constants=_constants,
)  # fmt: skip
def lif_cond_exp(
    v_mv, g_ex_ns, g_in_ns, refractory, ex_ns, in_ns, current_pa, h, half_ex, half_in, g_leak_ns, e_rest_mv, e_ex_mv,
    e_in_mv, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    held = refractory > 0
    mid_ex, mid_in = g_ex_ns * half_ex, g_in_ns * half_in
    end_ex, end_in = mid_ex * half_ex, mid_in * half_in
    drive = g_leak_ns * e_rest_mv + current_pa
    a = drive + g_ex_ns * e_ex_mv + g_in_ns * e_in_mv - (g_leak_ns + g_ex_ns + g_in_ns) * v_mv
    mid_drive, mid_g = drive + mid_ex * e_ex_mv + mid_in * e_in_mv, g_leak_ns + mid_ex + mid_in
    b = mid_drive - mid_g * (v_mv + 0.5 * h * a)
    c = mid_drive - mid_g * (v_mv + 0.5 * h * b)
    d = drive + end_ex * e_ex_mv + end_in * e_in_mv - (g_leak_ns + end_ex + end_in) * (v_mv + h * c)
    v = v_mv + h * 0.16666667 * (a + 2.0 * (b + c) + d)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    return spike, v_reset_mv if spike else v, end_ex + ex_ns, end_in - in_ns, refractory_steps if spike else left
