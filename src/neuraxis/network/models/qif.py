"""The quadratic integrate-and-fire neuron."""

from __future__ import annotations

from typing import Any

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.lif import Parameters, check_below, check_positive, meanings, steps
from neuraxis.network.neuron_model import neuron_model

__all__ = ["qif"]

SIXTH = 1.0 / 6.0
PARTS = 2


def _constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "c_m_pf", "k", "tau_syn_ex_ms", "tau_syn_in_ms")
    check_below(p, "v_reset_mv", "v_peak_mv")
    part = dt_ms / PARTS
    return {
        "h": part / p["c_m_pf"],
        "half_ex": exp(-0.5 * part / p["tau_syn_ex_ms"]),
        "half_in": exp(-0.5 * part / p["tau_syn_in_ms"]),
        "refractory_steps": steps(p, "refractory_ms", dt_ms),
    }


@neuron_model(
    states={"v_mv": -60.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "refractory": 0},
    receptors=("ex_pa", "in_pa"),
    parameters={
        "c_m_pf": 100.0, "k": 0.7, "e_rest_mv": -60.0, "v_t_mv": -40.0, "v_reset_mv": -50.0, "v_peak_mv": 35.0,
        "tau_syn_ex_ms": 2.0, "tau_syn_in_ms": 2.0, "refractory_ms": 0.0,
    },
    constants=_constants,
    meanings=meanings(
        "c_m_pf", "e_rest_mv", "v_reset_mv", "v_peak_mv", "refractory_ms", "v_mv", "i_ex_pa", "i_in_pa", "refractory",
        "ex_pa", "in_pa",
        k="curvature, in nS/mV",
        v_t_mv="unstable potential: above it V runs away",
        tau_syn_ex_ms="time constant of the excitatory current",
        tau_syn_in_ms="time constant of the inhibitory current",
    ),
)  # fmt: skip
def qif(
    v_mv, i_ex_pa, i_in_pa, refractory, ex_pa, in_pa, current_pa, h, half_ex, half_in, k, e_rest_mv, v_t_mv, v_reset_mv,
    v_peak_mv, refractory_steps,
):  # fmt: skip
    """Quadratic integrate-and-fire neuron with exponentially decaying currents (weights in pA).

    Equations, with V (`v_mv`), I_ex (`i_ex_pa`), I_in (`i_in_pa`) and I (`current_pa`)::

        c_m_pf dV/dt = k (V - e_rest_mv) (V - v_t_mv) + I_ex + I_in + I
        dI_ex/dt     = -I_ex / tau_syn_ex_ms,   I_ex += weight   when a spike arrives at ex_pa
        dI_in/dt     = -I_in / tau_syn_in_ms,   I_in += weight   when a spike arrives at in_pa (weights below 0)
        V = v_reset_mv, and a spike                              when V >= v_peak_mv

    It is the normal form of a neuron whose firing begins at any low rate (a saddle-node bifurcation), and the neuron of
    Izhikevich without recovery. V stays at `v_reset_mv` for `refractory_ms` after a spike; `refractory` counts the
    steps that are left.

    Scheme: two steps of the Runge-Kutta method of fourth order for V in each step, and exact currents.

    Elsewhere: NEST izhikevich with a = 0; PyNN Izhikevich with a = 0; Brian2 equations.

    P. E. Latham et al., J. Neurophysiol. 83:808 (2000).
    """
    held = refractory > 0
    v, i_ex, i_in = v_mv, i_ex_pa, i_in_pa
    for _ in range(PARTS):
        i = i_ex + i_in + current_pa
        i_ex, i_in = i_ex * half_ex, i_in * half_in
        middle = i_ex + i_in + current_pa
        i_ex, i_in = i_ex * half_ex, i_in * half_in
        end = i_ex + i_in + current_pa
        a = k * (v - e_rest_mv) * (v - v_t_mv) + i
        b = v + 0.5 * h * a
        b = k * (b - e_rest_mv) * (b - v_t_mv) + middle
        c = v + 0.5 * h * b
        c = k * (c - e_rest_mv) * (c - v_t_mv) + middle
        d = v + h * c
        d = k * (d - e_rest_mv) * (d - v_t_mv) + end
        # Held at the peak, beyond which the second part would run away.
        v = min(v + h * SIXTH * (a + 2.0 * (b + c) + d), v_peak_mv)
    v = v_mv if held else v
    spike = v >= v_peak_mv
    left = refractory - 1 if held else 0
    return spike, v_reset_mv if spike else v, i_ex + ex_pa, i_in + in_pa, refractory_steps if spike else left
