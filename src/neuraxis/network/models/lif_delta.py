"""Leaky integrate-and-fire; a spike moves the membrane at once by its weight in mV."""

from __future__ import annotations

from neuraxis.network.models.membrane import leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["lif_delta"]


@neuron_model(
    states={"v_mv": -70.0, "refractory": 0},
    receptors=("input_mv",),
    parameters={
        "tau_m_ms": 10.0, "c_m_pf": 250.0, "e_rest_mv": -70.0, "v_threshold_mv": -55.0, "v_reset_mv": -70.0,
        "refractory_ms": 2.0,
    },
    constants=leak_constants,
)  # fmt: skip
def lif_delta(
    v_mv, refractory, input_mv, current_pa, decay, rest, per_pa, v_threshold_mv, v_reset_mv, refractory_steps
):
    held = refractory > 0
    v = v_mv * decay + (rest + current_pa * per_pa) + input_mv
    v = v_mv if held else v  # what arrives in the refractory time is lost
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    return spike, v_reset_mv if spike else v, refractory_steps if spike else left
