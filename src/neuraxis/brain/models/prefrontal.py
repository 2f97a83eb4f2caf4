"""The memory cell of the prefrontal cortex: slow recurrent excitation under dopamine, cleared by noradrenaline."""

from __future__ import annotations

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.membrane import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["memory_cell"]


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    names = ("tau_ex_ms", "tau_in_ms", "tau_nmda_ms", "tau_gate_ms", "tau_reset_ms", "saturation_pa", "full_gate")
    check_positive(p, *names)
    return {
        **leak_constants(p, dt_ms),
        "decay_ex": exp(-dt_ms / p["tau_ex_ms"]),
        "decay_in": exp(-dt_ms / p["tau_in_ms"]),
        "decay_nmda": exp(-dt_ms / p["tau_nmda_ms"]),
        "per_pa_ex": current_propagator(p, p["tau_ex_ms"], dt_ms),
        "per_pa_in": current_propagator(p, p["tau_in_ms"], dt_ms),
        "follow_gate": 1.0 - exp(-dt_ms / p["tau_gate_ms"]),
        "clear_by_reset": dt_ms / p["tau_reset_ms"],
        "per_saturation": 1.0 / p["saturation_pa"],
        "per_full_gate": 1.0 / p["full_gate"],
    }


@neuron_model(
    states={"v_mv": -70.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "i_nmda_pa": 0.0, "d1": 1.0, "refractory": 0},
    receptors=("ex_pa", "in_pa", "nmda_pa"),
    parameters={
        "tau_m_ms": 20.0, "c_m_pf": 200.0, "tau_ex_ms": 5.0, "tau_in_ms": 10.0, "tau_nmda_ms": 100.0,
        "e_rest_mv": -70.0, "v_threshold_mv": -55.0, "v_reset_mv": -65.0, "refractory_ms": 5.0,
        "saturation_pa": 400.0, "tau_gate_ms": 500.0, "full_gate": 0.6, "tau_reset_ms": 8.0,
    },
    signals={"gate": 1.0, "reset": 0.0},
    constants=_constants,
)  # fmt: skip
def memory_cell(
    v_mv, i_ex_pa, i_in_pa, i_nmda_pa, d1, refractory, ex_pa, in_pa, nmda_pa, current_pa, gate, reset, decay, rest,
    per_pa, decay_ex, decay_in, decay_nmda, per_pa_ex, per_pa_in, follow_gate, clear_by_reset, per_saturation,
    per_full_gate, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire with fast excitation, inhibition and a slow current that saturates.

    The slow current is multiplied by d1 / full_gate, at most 1, where d1 follows the signal `gate` (dopamine) with
    tau_gate_ms: D1 receptors act over their second messenger and saturate, so that a burst adds nothing and a dip is
    too short to take much away. The signal `reset` (noradrenaline) makes the slow current decay faster: with
    tau_reset_ms at a level of 1.
    """
    held = refractory > 0
    open_gate = min(max(d1 * per_full_gate, 0.0), 1.0)
    slow_pa = open_gate * i_nmda_pa / (1.0 + i_nmda_pa * per_saturation)
    v = v_mv * decay + i_ex_pa * per_pa_ex + i_in_pa * per_pa_in + (rest + (current_pa + slow_pa) * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + ex_pa
    i_in = i_in_pa * decay_in + in_pa
    kept = 1.0 - min(max(reset * clear_by_reset, 0.0), 1.0)
    i_nmda = i_nmda_pa * decay_nmda * kept + nmda_pa
    d1_next = d1 + (gate - d1) * follow_gate
    return spike, v_reset_mv if spike else v, i_ex, i_in, i_nmda, d1_next, refractory_steps if spike else left
