"""Izhikevich's two-variable neuron (2003); a spike moves the membrane at once by its weight in mV."""

from __future__ import annotations

from neuraxis.network.neuron_model import neuron_model

__all__ = ["izhikevich"]


@neuron_model(
    states={"v_mv": -65.0, "u_mv": -13.0},
    receptors=("input_mv",),
    parameters={"a": 0.02, "b": 0.2, "c_mv": -65.0, "d_mv": 8.0, "v_peak_mv": 30.0},
)
def izhikevich(v_mv, u_mv, input_mv, current_pa, a, b, c_mv, d_mv, v_peak_mv, dt_ms):
    """`current_pa` is the dimensionless current of the paper. Euler's rule, both variables from the step's start."""
    v = v_mv + dt_ms * (0.04 * v_mv * v_mv + 5.0 * v_mv + 140.0 - u_mv + current_pa) + input_mv
    u = u_mv + dt_ms * (a * (b * v_mv - u_mv))
    spike = v >= v_peak_mv
    return spike, c_mv if spike else v, u + d_mv if spike else u
