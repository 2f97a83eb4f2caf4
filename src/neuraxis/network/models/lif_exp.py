"""Leaky integrate-and-fire with exponentially decaying synaptic currents (weights in pA), integrated exactly."""

from __future__ import annotations

from neuraxis.network.arithmetic import exp
from neuraxis.network.models.membrane import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["lif_exp", "lif_exp_two"]


def _one(p: Parameters, dt_ms: float) -> dict[str, float | int]:
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
    constants=_one,
)  # fmt: skip
def lif_exp(
    v_mv, i_syn_pa, refractory, input_pa, current_pa, decay, rest, per_pa, decay_syn, per_pa_syn, v_threshold_mv,
    v_reset_mv, refractory_steps,
):  # fmt: skip
    """One synaptic time constant for all inputs, whatever their sign."""
    held = refractory > 0
    v = v_mv * decay + i_syn_pa * per_pa_syn + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_syn = i_syn_pa * decay_syn + input_pa
    return spike, v_reset_mv if spike else v, i_syn, refractory_steps if spike else left


def _two(p: Parameters, dt_ms: float) -> dict[str, float | int]:
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
    constants=_two,
)  # fmt: skip
def lif_exp_two(
    v_mv, i_ex_pa, i_in_pa, refractory, ex_pa, in_pa, current_pa, decay, rest, per_pa, decay_ex, decay_in, per_pa_ex,
    per_pa_in, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """Excitatory and inhibitory currents with time constants of their own."""
    held = refractory > 0
    v = v_mv * decay + i_ex_pa * per_pa_ex + i_in_pa * per_pa_in + (rest + current_pa * per_pa)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    i_ex = i_ex_pa * decay_ex + ex_pa
    i_in = i_in_pa * decay_in + in_pa
    return spike, v_reset_mv if spike else v, i_ex, i_in, refractory_steps if spike else left
