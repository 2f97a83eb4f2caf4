"""The cell of the reticular nucleus: leaky integrate-and-fire with a drive that follows a rhythm."""

from __future__ import annotations

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.membrane import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["reticular_cell"]


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    check_positive(p, "tau_syn_ex_ms", "tau_syn_in_ms")
    leak = leak_constants(p, dt_ms)
    return {
        **leak,
        "decay_ex": exp(-dt_ms / p["tau_syn_ex_ms"]),
        "decay_in": exp(-dt_ms / p["tau_syn_in_ms"]),
        "per_pa_ex": current_propagator(p, p["tau_syn_ex_ms"], dt_ms),
        "per_pa_in": current_propagator(p, p["tau_syn_in_ms"], dt_ms),
        "per_rhythm": float(p["rhythm_pa"] * leak["per_pa"]),
    }


@neuron_model(
    states={"v_mv": -70.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "refractory": 0},
    receptors=("ex_pa", "in_pa"),
    parameters={
        "tau_m_ms": 10.0, "c_m_pf": 250.0, "tau_syn_ex_ms": 2.0, "tau_syn_in_ms": 2.0, "e_rest_mv": -70.0,
        "v_threshold_mv": -55.0, "v_reset_mv": -70.0, "refractory_ms": 2.0, "rhythm_pa": 0.0,
    },
    signals={"rhythm": 0.0},
    constants=_constants,
)  # fmt: skip
def reticular_cell(
    v_mv, i_ex_pa, i_in_pa, refractory, ex_pa, in_pa, current_pa, rhythm, decay, rest, per_pa, decay_ex, decay_in,
    per_pa_ex, per_pa_in, per_rhythm, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """`lif_exp_two` with a current of `rhythm_pa` times the part of the rhythm that is above zero."""
    held = refractory > 0
    driven = rest + current_pa * per_pa + max(rhythm, 0.0) * per_rhythm
    v = v_mv * decay + i_ex_pa * per_pa_ex + i_in_pa * per_pa_in + driven
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + ex_pa
    i_in = i_in_pa * decay_in + in_pa
    return spike, v_reset_mv if spike else v, i_ex, i_in, refractory_steps if spike else left
