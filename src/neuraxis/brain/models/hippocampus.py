"""A cell whose afferent and associative inputs are let through in opposite phases of a rhythm."""

from __future__ import annotations

from neuraxis.network.arguments import positive
from neuraxis.network.arithmetic import exp, log
from neuraxis.network.models.membrane import Parameters, check_positive, current_propagator, leak_constants
from neuraxis.network.neuron_model import neuron_model

__all__ = ["potential_height", "septal_cell", "theta_cell"]


def _constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    kinds = ("afferent", "associative", "in")
    check_positive(p, "tau_m_ms", *(f"tau_{kind}_ms" for kind in kinds))
    unit = {**p, "e_rest_mv": 0.0, "c_m_pf": 1.0}
    constants = leak_constants(unit, dt_ms)
    for kind in kinds:
        tau = p[f"tau_{kind}_ms"]
        constants[f"decay_{kind}"] = exp(-dt_ms / tau)
        constants[f"per_{kind}"] = float(current_propagator(unit, tau, dt_ms) / potential_height(p["tau_m_ms"], tau))
    return constants


def potential_height(tau_m_ms: float, tau_syn_ms: float) -> float:
    """The largest depolarisation by a current that starts at 1 and decays, for a capacity of 1."""
    if abs(tau_m_ms - tau_syn_ms) < 1e-9 * tau_m_ms:
        return tau_m_ms * exp(-1.0)
    when = log(tau_m_ms / tau_syn_ms) * tau_m_ms * tau_syn_ms / (tau_m_ms - tau_syn_ms)
    return tau_syn_ms * tau_m_ms / (tau_m_ms - tau_syn_ms) * (exp(-when / tau_m_ms) - exp(-when / tau_syn_ms))


@neuron_model(
    states={"v_mv": 0.0, "afferent": 0.0, "inhibition": 0.0, "associative": 0.0, "fatigue_mv": 0.0, "refractory": 0},
    receptors=("afferent_mv", "in_mv", "associative_mv"),
    parameters={
        "tau_m_ms": 20.0, "tau_afferent_ms": 3.0, "tau_in_ms": 8.0, "tau_associative_ms": 5.0, "v_threshold_mv": 15.0,
        "v_reset_mv": 0.0, "v_lowest_mv": -10.0, "refractory_ms": 3.0, "depth_afferent": 0.0, "depth_associative": 0.0,
        "fatigue_step_mv": 0.0, "tau_fatigue_ms": 50.0,
    },
    signals={"theta": 0.0},
    constants=lambda p, dt_ms: {**_constants(p, dt_ms), "decay_fatigue": exp(-dt_ms / p["tau_fatigue_ms"])},
)  # fmt: skip
def theta_cell(
    v_mv, afferent, inhibition, associative, fatigue_mv, refractory, afferent_mv, in_mv, associative_mv, theta, decay,
    decay_afferent, decay_in, decay_associative, decay_fatigue, per_afferent, per_in, per_associative, depth_afferent,
    depth_associative, v_threshold_mv, v_reset_mv, v_lowest_mv, fatigue_step_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire relative to rest; a weight is the height in mV of the potential that one spike causes.

    At theta's trough (-1) afferent spikes count fully and associative ones by 1 - depth_associative; at its peak (1)
    associative spikes count fully and afferent ones by 1 - depth_afferent. Each own spike raises the threshold by
    `fatigue_step_mv` for a while.
    """
    held = refractory > 0
    v = v_mv * decay + afferent * per_afferent + associative * per_associative + inhibition * per_in
    v = v_mv if held else max(v, v_lowest_mv)
    spike = v >= v_threshold_mv + fatigue_mv
    left = refractory - 1 if held else 0
    afferent = afferent * decay_afferent + afferent_mv * (1.0 - depth_afferent * 0.5 * (1.0 + theta))
    associative = associative * decay_associative + associative_mv * (1.0 - depth_associative * 0.5 * (1.0 - theta))
    inhibition = inhibition * decay_in + in_mv
    fatigue = fatigue_step_mv if spike else fatigue_mv * decay_fatigue
    v = v_reset_mv if spike else v
    return spike, v, afferent, inhibition, associative, fatigue, refractory_steps if spike else left


@neuron_model(
    states={"due": 0.0, "present": 0.0, "familiar": 0.0},
    receptors=("input", "recalled"),
    parameters={"highest_hz": 100.0, "tau_ms": 80.0},
    signals={"theta": 0.0},
    constants=lambda p, dt_ms: {
        "per_step": p["highest_hz"] * dt_ms * 1e-3, "decay": exp(-dt_ms / positive(p["tau_ms"], "tau_ms"))
    },
)  # fmt: skip
def septal_cell(due, present, familiar, input, recalled, theta, per_step, decay):
    """Fires in the lower half of theta if, in the upper half before, there was input that nothing was recalled for.

    What arrived in the upper half is summed and decays with `tau_ms`; a sum of 1 is full input, or full recall.
    """
    due = due + per_step * max(-theta, 0.0) * max(min(present, 1.0) - familiar, 0.0)
    spike = due >= 1.0
    upper = max(theta, 0.0)
    present = present * decay + input * upper
    familiar = familiar * decay + recalled * upper
    return spike, due - 1.0 if spike else due, present, familiar
