"""A neuron that spikes at random, at a rate that depends on its membrane (escape noise)."""

from __future__ import annotations

from typing import Any

from neuraxis.network.arithmetic import exp, expm1
from neuraxis.network.models.lif import Parameters, check, check_positive, meanings, steps
from neuraxis.network.neuron_model import neuron_model

__all__ = ["pp_delta"]


def _constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "tau_m_ms", "c_m_pf", "tau_sfa_ms")
    for name in ("c_3", "q_sfa_mv"):
        check(p, name, p[name] >= 0, "cannot be negative")
    decay = exp(-dt_ms / p["tau_m_ms"])
    return {
        "decay": decay,
        "per_pa": p["tau_m_ms"] / p["c_m_pf"] * (1.0 - decay),
        "decay_sfa": exp(-dt_ms / p["tau_sfa_ms"]),
        "per_hz": dt_ms * 1e-3,
        "dead_steps": steps(p, "dead_time_ms", dt_ms),
    }


@neuron_model(
    states={"v_mv": 0.0, "e_sfa_mv": 0.0, "dead": 0},
    receptors=("input_mv",),
    parameters={
        "tau_m_ms": 10.0, "c_m_pf": 250.0, "dead_time_ms": 1.0, "with_reset": 1, "c_1": 0.0, "c_2": 1.238, "c_3": 0.25,
        "q_sfa_mv": 0.0, "tau_sfa_ms": 34.0,
    },
    constants=_constants,
    meanings=meanings(
        "tau_m_ms", "c_m_pf", "input_mv",
        dead_time_ms="time after a spike in which no other is emitted",
        with_reset="1: a spike sets V to 0; 0: V goes on",
        c_1="linear part of the rate, in Hz/mV",
        c_2="exponential part of the rate, in Hz",
        c_3="exponent of the rate, in 1/mV",
        q_sfa_mv="increase of the adaptive threshold by a spike",
        tau_sfa_ms="time constant of the adaptive threshold",
        v_mv="membrane potential above rest",
        e_sfa_mv="adaptive threshold",
        dead="steps in which no other spike is emitted",
    ),
)  # fmt: skip
def pp_delta(
    v_mv, e_sfa_mv, dead, input_mv, current_pa, uniform, decay, per_pa, decay_sfa, per_hz, dead_steps, with_reset, c_1,
    c_2, c_3, q_sfa_mv,
):  # fmt: skip
    """Point process neuron: it spikes at random, at a rate that depends on its membrane and its last spikes.

    Equations, with V (`v_mv`), E (`e_sfa_mv`) and I (`current_pa`)::

        dV/dt = -V / tau_m_ms + I / c_m_pf
        dE/dt = -E / tau_sfa_ms
        V += weight                                      when a spike arrives at input_mv
        rate  = c_1 (V - E) + c_2 exp(c_3 (V - E))       in Hz; none below 0
        P(spike in a step) = 1 - exp(-rate dt)           0 for dead_time_ms after a spike
        E += q_sfa_mv, and V = 0 if with_reset is 1      at a spike

    V is relative to rest. A neuron spikes at most once in a step, whatever its rate is; `dead` counts the steps that
    are left of the dead time.

    Scheme: exact integration; the rate at the end of a step decides about a spike in it.

    Elsewhere: NEST pp_psc_delta (with one adaptive threshold, without random dead times); Brian2 equations with
    threshold="rand() < rate * dt".

    R. Jolivet et al., J. Neurophysiol. 92:959 (2004); M. Deger et al., Phys. Rev. E 82:021129 (2010).
    """
    v = v_mv * decay + current_pa * per_pa + input_mv
    e_sfa = e_sfa_mv * decay_sfa
    effective = v - e_sfa
    rate = max(c_1 * effective + c_2 * exp(c_3 * effective), 0.0)
    drawn = uniform * 2.3283064365386963e-10 + 0.5  # in float64: small probabilities need all 32 bits
    spike = (drawn < -expm1(-rate * per_hz)) & (dead <= 0)
    left = dead - 1 if dead > 0 else 0
    after = 0.0 if with_reset > 0 else v
    return spike, after if spike else v, e_sfa + q_sfa_mv if spike else e_sfa, dead_steps if spike else left
