"""The two-variable neuron of Izhikevich (2003)."""

from __future__ import annotations

from typing import Any

from neuraxis.network.models.lif import Parameters, check_below, meanings
from neuraxis.network.neuron_model import neuron_model

__all__ = ["izhikevich"]


def _checked(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_below(p, "c_mv", "v_peak_mv")
    return {}


@neuron_model(
    states={"v_mv": -65.0, "u_mv": -13.0},
    receptors=("input_mv",),
    parameters={"a": 0.02, "b": 0.2, "c_mv": -65.0, "d_mv": 8.0, "v_peak_mv": 30.0},
    constants=_checked,
    meanings=meanings(
        "v_peak_mv",
        "v_mv",
        "input_mv",
        a="rate of recovery of u, in 1/ms",
        b="sensitivity of u to v",
        c_mv="potential after a spike",
        d_mv="increase of u by a spike",
        u_mv="recovery",
    ),
)
def izhikevich(v_mv, u_mv, input_mv, current_pa, a, b, c_mv, d_mv, v_peak_mv, dt_ms):
    """Izhikevich neuron, which reproduces many firing patterns with two variables.

    Equations, with v and u in mV and t in ms::

        dv/dt = 0.04 v^2 + 5 v + 140 - u + I
        du/dt = a (b v - u)
        v += weight                        when a spike arrives
        v = c_mv, u += d_mv, and a spike   when v >= v_peak_mv

    I (`current_pa`) is the dimensionless current of the paper, a is in 1/ms and b has no unit. The defaults are those
    of a regular spiking cell.

    Scheme: one forward Euler step of both variables.

    Elsewhere: NEST izhikevich; PyNN Izhikevich; Brian2 equations.

    E. M. Izhikevich, IEEE Trans. Neural Netw. 14:1569 (2003).
    """
    v = v_mv + dt_ms * (0.04 * v_mv * v_mv + 5.0 * v_mv + 140.0 - u_mv + current_pa) + input_mv
    u = u_mv + dt_ms * (a * (b * v_mv - u_mv))
    spike = v >= v_peak_mv
    return spike, c_mv if spike else v, u + d_mv if spike else u
