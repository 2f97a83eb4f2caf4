"""Cells of the cerebellum. Potentials are relative to rest; a weight is the height in mV that one spike causes."""

from __future__ import annotations

from neuraxis.brain.models.hippocampus import potential_height
from neuraxis.network.arithmetic import exp
from neuraxis.network.models.membrane import Parameters, check_positive, current_propagator, leak_constants, steps
from neuraxis.network.neuron_model import neuron_model

__all__ = ["cerebellar_cell", "olivary_cell", "pacemaker", "purkinje_cell"]


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    check_positive(p, "tau_m_ms", "tau_ex_ms", "tau_in_ms")
    unit = {**p, "e_rest_mv": p["drive_mv"], "c_m_pf": 1.0}
    constants = leak_constants(unit, dt_ms)
    for kind in ("ex", "in"):
        tau = p[f"tau_{kind}_ms"]
        constants[f"decay_{kind}"] = exp(-dt_ms / tau)
        constants[f"per_{kind}"] = float(current_propagator(unit, tau, dt_ms) / potential_height(p["tau_m_ms"], tau))
    return constants


@neuron_model(
    states={"v_mv": 0.0, "excitation": 0.0, "inhibition": 0.0, "refractory": 0},
    receptors=("ex_mv", "in_mv"),
    parameters={
        "tau_m_ms": 10.0, "tau_ex_ms": 3.0, "tau_in_ms": 8.0, "drive_mv": 0.0, "v_threshold_mv": 15.0,
        "v_reset_mv": 0.0, "v_lowest_mv": -10.0, "refractory_ms": 2.0,
    },
    constants=_constants,
)  # fmt: skip
def cerebellar_cell(
    v_mv, excitation, inhibition, refractory, ex_mv, in_mv, decay, rest, decay_ex, decay_in, per_ex, per_in,
    v_threshold_mv, v_reset_mv, v_lowest_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire; above the threshold, `drive_mv` makes it fire on its own."""
    held = refractory > 0
    v = v_mv * decay + rest + excitation * per_ex + inhibition * per_in
    v = v_mv if held else max(v, v_lowest_mv)
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    excitation = excitation * decay_ex + ex_mv
    inhibition = inhibition * decay_in + in_mv
    return spike, v_reset_mv if spike else v, excitation, inhibition, refractory_steps if spike else left


@neuron_model(
    states={"v_mv": 0.0, "excitation": 0.0, "inhibition": 0.0, "refractory": 0},
    receptors=("ex_mv", "in_mv", "climbing"),
    parameters={
        "tau_m_ms": 10.0, "tau_ex_ms": 3.0, "tau_in_ms": 8.0, "drive_mv": 0.0, "v_threshold_mv": 15.0,
        "v_reset_mv": 0.0, "v_lowest_mv": -10.0, "refractory_ms": 2.0, "pause_ms": 20.0,
    },
    constants=lambda p, dt_ms: {**_constants(p, dt_ms), "pause_steps": steps(p, "pause_ms", dt_ms)},
)  # fmt: skip
def purkinje_cell(
    v_mv, excitation, inhibition, refractory, ex_mv, in_mv, climbing, decay, rest, decay_ex, decay_in, per_ex, per_in,
    v_threshold_mv, v_reset_mv, v_lowest_mv, refractory_steps, pause_steps,
):  # fmt: skip
    """As `cerebellar_cell`; a spike on the climbing fibre is always a (complex) spike, and a pause follows."""
    held = refractory > 0
    v = v_mv * decay + rest + excitation * per_ex + inhibition * per_in
    v = v_mv if held else max(v, v_lowest_mv)
    complex_spike = climbing > 0.0
    spike = (v >= v_threshold_mv) | complex_spike
    left = refractory - 1 if held else 0
    left = refractory_steps if spike else left
    excitation = excitation * decay_ex + ex_mv
    inhibition = inhibition * decay_in + in_mv
    return spike, v_reset_mv if spike else v, excitation, inhibition, pause_steps if complex_spike else left


@neuron_model(
    states={"waiting": 0},
    parameters={"period_ms": 10.0},
    constants=lambda p, dt_ms: {"period_steps": max(1, steps(p, "period_ms", dt_ms))},
)
def pacemaker(waiting, period_steps):
    """A spike every `period_ms`."""
    spike = waiting + 1 >= period_steps
    return spike, 0 if spike else waiting + 1


@neuron_model(
    states={"left": 0.0},
    receptors=("heard",),
    parameters={"own_hz": 0.0},
    constants=lambda p, dt_ms: {"per_step": p["own_hz"] * dt_ms * 1e-3},
)
def olivary_cell(left, heard, per_step):
    """Passes on at once what it hears in whole spikes, and adds up what is less: in the mean, spikes are the sum."""
    total = max(left + heard + per_step, -2.0)
    spike = total >= 0.5
    return spike, total - 1.0 if spike else total
