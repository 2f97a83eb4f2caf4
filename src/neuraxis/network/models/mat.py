"""The multi-timescale adaptive threshold neuron of Kobayashi, Tsubo and Shinomoto (2009)."""

from __future__ import annotations

from typing import Any

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.lif import Parameters, check, check_positive, current_propagator, leak_constants, meanings
from neuraxis.network.neuron_model import neuron_model

__all__ = ["mat2"]


def _constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "tau_syn_ex_ms", "tau_syn_in_ms", "tau_1_ms", "tau_2_ms")
    constants = leak_constants(p, dt_ms)
    # V is not reset.
    check(p, "refractory_ms", constants["refractory_steps"] >= 1, "a refractory time of a step or more is expected")
    return {
        **constants,
        "decay_ex": exp(-dt_ms / p["tau_syn_ex_ms"]),
        "decay_in": exp(-dt_ms / p["tau_syn_in_ms"]),
        "per_pa_ex": current_propagator(p, p["tau_syn_ex_ms"], dt_ms),
        "per_pa_in": current_propagator(p, p["tau_syn_in_ms"], dt_ms),
        "decay_1": exp(-dt_ms / p["tau_1_ms"]),
        "decay_2": exp(-dt_ms / p["tau_2_ms"]),
    }


@neuron_model(
    states={
        "v_mv": -70.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "threshold_1_mv": 0.0, "threshold_2_mv": 0.0, "refractory": 0,
    },
    receptors=("ex_pa", "in_pa"),
    parameters={
        "tau_m_ms": 5.0, "c_m_pf": 100.0, "tau_syn_ex_ms": 1.0, "tau_syn_in_ms": 3.0, "e_rest_mv": -70.0,
        "omega_mv": -51.0, "alpha_1_mv": 37.0, "tau_1_ms": 10.0, "alpha_2_mv": 2.0, "tau_2_ms": 200.0,
        "refractory_ms": 2.0,
    },
    constants=_constants,
    meanings=meanings(
        "tau_m_ms", "c_m_pf", "e_rest_mv", "v_mv", "i_ex_pa", "i_in_pa", "ex_pa", "in_pa",
        tau_syn_ex_ms="time constant of the excitatory current",
        tau_syn_in_ms="time constant of the inhibitory current",
        omega_mv="threshold at rest",
        alpha_1_mv="increase of the fast part of the threshold by a spike",
        tau_1_ms="time constant of the fast part",
        alpha_2_mv="increase of the slow part of the threshold by a spike",
        tau_2_ms="time constant of the slow part",
        refractory_ms="time after a spike in which no other is emitted",
        threshold_1_mv="fast part of the threshold",
        threshold_2_mv="slow part of the threshold",
        refractory="steps in which no other spike is emitted",
    ),
)  # fmt: skip
def mat2(
    v_mv, i_ex_pa, i_in_pa, threshold_1_mv, threshold_2_mv, refractory, ex_pa, in_pa, current_pa, decay, rest, per_pa,
    decay_ex, decay_in, per_pa_ex, per_pa_in, decay_1, decay_2, omega_mv, alpha_1_mv, alpha_2_mv, refractory_steps,
):  # fmt: skip
    """Leaky neuron with a threshold that adapts on two time scales, and no reset (weights in pA).

    Equations, with V (`v_mv`), I_ex (`i_ex_pa`), I_in (`i_in_pa`), I (`current_pa`) and the parts T1 and T2 of the
    threshold (`threshold_1_mv`, `threshold_2_mv`)::

        dV/dt    = -(V - e_rest_mv) / tau_m_ms + (I_ex + I_in + I) / c_m_pf
        dI_ex/dt = -I_ex / tau_syn_ex_ms,   I_ex += weight   when a spike arrives at ex_pa
        dI_in/dt = -I_in / tau_syn_in_ms,   I_in += weight   when a spike arrives at in_pa (weights below 0)
        dT1/dt   = -T1 / tau_1_ms
        dT2/dt   = -T2 / tau_2_ms
        T1 += alpha_1_mv, T2 += alpha_2_mv, and a spike      when V >= omega_mv + T1 + T2

    V is not reset. After a spike no other is emitted for `refractory_ms`; `refractory` counts the steps that are left.

    Scheme: exact integration (Rotter and Diesmann 1999).

    Elsewhere: NEST mat2_psc_exp; Brian2 equations (example Kobayashi_et_al_2009).

    R. Kobayashi, Y. Tsubo and S. Shinomoto, Front. Comput. Neurosci. 3:9 (2009).
    """
    v = v_mv * decay + i_ex_pa * per_pa_ex + i_in_pa * per_pa_in + (rest + current_pa * per_pa)
    first, second = threshold_1_mv * decay_1, threshold_2_mv * decay_2
    spike = (v >= omega_mv + first + second) & (refractory <= 0)
    first = first + alpha_1_mv if spike else first
    second = second + alpha_2_mv if spike else second
    left = refractory - 1 if refractory > 0 else 0
    i_ex, i_in = i_ex_pa * decay_ex + ex_pa, i_in_pa * decay_in + in_pa
    return spike, v, i_ex, i_in, first, second, refractory_steps if spike else left
