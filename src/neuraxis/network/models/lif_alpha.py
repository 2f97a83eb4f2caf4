"""Leaky integrate-and-fire with alpha-shaped synaptic currents (weight: the peak in pA), integrated exactly."""

from __future__ import annotations

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.membrane import Parameters, alpha_propagators, check_positive, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["lif_alpha"]


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    check_positive(p, "tau_syn_ex_ms", "tau_syn_in_ms")
    constants = leak_constants(p, dt_ms)
    for kind in ("ex", "in"):
        tau = p[f"tau_syn_{kind}_ms"]
        slope, current = alpha_propagators(p, tau, dt_ms)
        constants |= {
            f"decay_{kind}": exp(-dt_ms / tau),
            f"rise_{kind}": float(dt_ms * exp(-dt_ms / tau)),
            f"kick_{kind}": float(exp(1.0) / tau),
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
    constants=_constants,
)  # fmt: skip
def lif_alpha(
    v_mv, slope_ex, i_ex_pa, slope_in, i_in_pa, refractory, ex_pa, in_pa, current_pa, decay, rest, per_pa,
    decay_ex, rise_ex, kick_ex, per_slope_ex, per_pa_ex, decay_in, rise_in, kick_in, per_slope_in, per_pa_in,
    v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
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
