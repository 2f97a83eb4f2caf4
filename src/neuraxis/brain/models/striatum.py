"""The medium spiny cell of the striatum: dopamine scales its excitation, fast-spiking cells divide it."""

from __future__ import annotations

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.membrane import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["medium_spiny"]


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    check_positive(p, "tau_ex_ms", "tau_in_ms")
    return {
        **leak_constants(p, dt_ms),
        "decay_ex": exp(-dt_ms / p["tau_ex_ms"]),
        "decay_in": exp(-dt_ms / p["tau_in_ms"]),
        "per_pa_ex": current_propagator(p, p["tau_ex_ms"], dt_ms),
        "per_pa_in": current_propagator(p, p["tau_in_ms"], dt_ms),
    }


@neuron_model(
    states={"v_mv": -80.0, "i_ex_pa": 0.0, "i_in_pa": 0.0, "shunt": 0.0, "refractory": 0},
    receptors=("ex_pa", "in_pa", "shunting"),
    parameters={
        "tau_m_ms": 20.0, "c_m_pf": 200.0, "tau_ex_ms": 5.0, "tau_in_ms": 10.0, "e_rest_mv": -80.0,
        "v_threshold_mv": -60.0, "v_reset_mv": -75.0, "refractory_ms": 5.0, "dopamine_gain": 0.0,
    },
    signals={"dopamine": 1.0},
    constants=_constants,
)  # fmt: skip
def medium_spiny(
    v_mv, i_ex_pa, i_in_pa, shunt, refractory, ex_pa, in_pa, shunting, current_pa, dopamine, decay, rest, per_pa,
    decay_ex, decay_in, per_pa_ex, per_pa_in, v_threshold_mv, v_reset_mv, refractory_steps, dopamine_gain,
):  # fmt: skip
    """Leaky integrate-and-fire; the excitatory current is scaled by 1 + dopamine_gain * (dopamine - 1) over 1 + shunt.

    dopamine_gain is above 0 in cells with D1 receptors and below 0 in those with D2 receptors; dopamine counts from 0
    to 2, so that the scale stays near 1. What arrives at `shunting` adds up to the shunt, a number without a unit that
    decays with tau_in_ms: inhibition that divides.
    """
    held = refractory > 0
    scale = (1.0 + dopamine_gain * (min(max(dopamine, 0.0), 2.0) - 1.0)) / (1.0 + shunt)
    v = v_mv * decay + scale * i_ex_pa * per_pa_ex + i_in_pa * per_pa_in + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + ex_pa
    i_in = i_in_pa * decay_in + in_pa
    shunt_next = shunt * decay_in + shunting
    return spike, v_reset_mv if spike else v, i_ex, i_in, shunt_next, refractory_steps if spike else left
