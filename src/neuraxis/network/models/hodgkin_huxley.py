"""Neurons with the sodium and potassium currents of Hodgkin and Huxley.

With the gates m, h, n frozen, V relaxes exponentially; with V frozen, the gates do. All schemes here alternate the two
exact solutions, so that fast gates and large conductances cannot make them unstable, unlike Runge-Kutta.

`hh_cond_exp` does so once in a step, gates first, and is of second order: the fastest, for large networks.
`hh_cond_exp_fine` and `hh_alpha` take half a step of V, the gates and synapses, and half a step of V; once with the
step and once with three thirds of it, and combine both into a scheme of fourth order (Richardson). Their spikes are at
the times of much finer steps.
"""

from __future__ import annotations

from typing import Any

from neuraxis.network.arithmetic import exp, exprel
from neuraxis.network.models.lif import Parameters, check_positive, meanings, steps
from neuraxis.network.neuron_model import neuron_model

__all__ = ["hh_alpha", "hh_cond_exp", "hh_cond_exp_fine"]

PARTS = 3
EIGHTH = 1.0 / (PARTS * PARTS - 1)


def _relaxed(x, opening, closing, dt):
    """Advance a gate with constant rates."""
    total = opening + closing
    end = opening / total
    return end + (x - end) * exp(-dt * total)


def _driven(v, g, drive, rate):
    """Advance V with conductances `g` and the current `drive` at 0 mV; `rate` is time divided by capacitance."""
    end = drive / g
    return end + (v - end) * exp(-rate * g)


def _traub_gates(v, m, h, n, dt, v_t):
    """Advance the gates with V constant."""
    u = v - v_t
    m = _relaxed(m, 1.28 / exprel((13.0 - u) * 0.25), 1.4 / exprel((u - 40.0) * 0.2), dt)
    h = _relaxed(h, 0.128 * exp((17.0 - u) * (1.0 / 18.0)), 4.0 / (1.0 + exp((40.0 - u) * 0.2)), dt)
    n = _relaxed(n, 0.16 / exprel((15.0 - u) * 0.2), 0.5 * exp((10.0 - u) * 0.025), dt)
    return m, h, n


def _traub_step(
    v, m, h, n, ex, in_, end_ex, end_in, current, dt, half, g_leak, g_na, g_k, leak, e_na, e_k, e_ex, e_in, v_t
):
    """Advance V and the gates by a symmetric splitting; the conductances go from ex, in_ to end_ex, end_in."""
    na, k = g_na * (m * m * m * h), g_k * (n * n * n * n)
    drive = leak + na * e_na + k * e_k + ex * e_ex + in_ * e_in + current
    v = _driven(v, g_leak + na + k + ex + in_, drive, half)
    m, h, n = _traub_gates(v, m, h, n, dt, v_t)
    na, k = g_na * (m * m * m * h), g_k * (n * n * n * n)
    drive = leak + na * e_na + k * e_k + end_ex * e_ex + end_in * e_in + current
    return _driven(v, g_leak + na + k + end_ex + end_in, drive, half), m, h, n


def _traub_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "c_m_pf", "g_leak_ns", "tau_syn_ex_ms", "tau_syn_in_ms")
    return {
        "part_ms": dt_ms / PARTS,
        "half": 0.5 * dt_ms / p["c_m_pf"],
        "half_part": 0.5 * dt_ms / PARTS / p["c_m_pf"],
        "decay_ex": exp(-dt_ms / PARTS / p["tau_syn_ex_ms"]),
        "decay_in": exp(-dt_ms / PARTS / p["tau_syn_in_ms"]),
        "half_ex": exp(-0.5 * dt_ms / p["tau_syn_ex_ms"]),
        "half_in": exp(-0.5 * dt_ms / p["tau_syn_in_ms"]),
        "refractory_steps": steps(p, "refractory_ms", dt_ms),
    }


_STATES = {
    "v_mv": -60.0,
    "m": 0.0268633,
    "h": 0.991306,
    "n": 0.060434,
    "g_ex_ns": 0.0,
    "g_in_ns": 0.0,
    "refractory": 0,
}
_PARAMETERS = {
    "c_m_pf": 200.0, "g_leak_ns": 10.0, "g_na_ns": 20000.0, "g_k_ns": 6000.0, "e_rest_mv": -60.0, "e_na_mv": 50.0,
    "e_k_mv": -90.0, "v_t_mv": -63.0, "e_ex_mv": 0.0, "e_in_mv": -80.0, "tau_syn_ex_ms": 5.0, "tau_syn_in_ms": 10.0,
    "refractory_ms": 2.0,
}  # fmt: skip
_MEANINGS = meanings(
    "c_m_pf", "g_leak_ns", "e_ex_mv", "e_in_mv", "v_mv", "g_ex_ns", "g_in_ns", "ex_ns", "in_ns",
    e_rest_mv="reversal potential of the leak",
    g_na_ns="largest sodium conductance",
    g_k_ns="largest potassium conductance",
    e_na_mv="reversal potential of sodium",
    e_k_mv="reversal potential of potassium",
    v_t_mv="potential that the rates of the gates refer to; the threshold is about 13 mV above",
    tau_syn_ex_ms="time constant of the excitatory conductance",
    tau_syn_in_ms="time constant of the inhibitory conductance",
    refractory_ms="time after a spike in which no other is emitted",
    m="activation of sodium",
    h="inactivation of sodium",
    n="activation of potassium",
    refractory="steps in which no other spike is emitted",
)  # fmt: skip


@neuron_model(
    states=_STATES,
    receptors=("ex_ns", "in_ns"),
    parameters=_PARAMETERS,
    constants=_traub_constants,
    meanings=_MEANINGS,
)
def hh_cond_exp(
    v_mv, m, h, n, g_ex_ns, g_in_ns, refractory, ex_ns, in_ns, current_pa, dt_ms, half, half_ex, half_in, g_leak_ns,
    g_na_ns, g_k_ns, e_rest_mv, e_na_mv, e_k_mv, v_t_mv, e_ex_mv, e_in_mv, refractory_steps,
):  # fmt: skip
    """Hodgkin-Huxley neuron of Traub and Miles (1991) with exponentially decaying conductances (weights in nS).

    Equations, with V (`v_mv`), I (`current_pa`), U = V - v_t_mv and x = m, h or n::

        c_m_pf dV/dt = -g_leak_ns (V - e_rest_mv) - g_na_ns m^3 h (V - e_na_mv) - g_k_ns n^4 (V - e_k_mv)
                       - g_ex_ns (V - e_ex_mv) - g_in_ns (V - e_in_mv) + I
        dx/dt        = alpha_x (1 - x) - beta_x x
        alpha_m      = 0.32 (13 - U) / (exp((13 - U) / 4) - 1),  beta_m = 0.28 (U - 40) / (exp((U - 40) / 5) - 1)
        alpha_h      = 0.128 exp((17 - U) / 18),                 beta_h = 4 / (1 + exp((40 - U) / 5))
        alpha_n      = 0.032 (15 - U) / (exp((15 - U) / 5) - 1), beta_n = 0.5 exp((10 - U) / 40)
        dg_ex_ns/dt  = -g_ex_ns / tau_syn_ex_ms,   g_ex_ns += weight    when a spike arrives at ex_ns
        dg_in_ns/dt  = -g_in_ns / tau_syn_in_ms,   g_in_ns += |weight|  when a spike arrives at in_ns (weights below 0)
        a spike                                    when V >= v_t_mv + 30 and V begins to fall

    Nothing is reset. After a spike no other is emitted for `refractory_ms`; `refractory` counts the steps that are
    left. With the defaults it is the neuron of the COBAHH benchmark (Brette et al. 2007).

    Spikes drift from those of an adaptive solution, as NEST's: by some milliseconds in a second of random input, and
    a spike that nearly fails may be missing or added. Compare single spikes with `hh_cond_exp_fine`, which has the same
    equations and a scheme of fourth order, and takes about four times as long.

    Scheme: the gates over a step with V of its beginning, then V with these gates, both exactly (second order).

    Elsewhere: NEST hh_cond_exp_traub; PyNN HH_cond_exp; Brian2 equations (example COBAHH).

    R. D. Traub and R. Miles, Neuronal Networks of the Hippocampus, Cambridge (1991).
    """
    m, h, n = _traub_gates(v_mv, m, h, n, dt_ms, v_t_mv)
    mid_ex, mid_in = g_ex_ns * half_ex, g_in_ns * half_in
    na, k = g_na_ns * (m * m * m * h), g_k_ns * (n * n * n * n)
    drive = g_leak_ns * e_rest_mv + na * e_na_mv + k * e_k_mv + mid_ex * e_ex_mv + mid_in * e_in_mv + current_pa
    v = _driven(v_mv, g_leak_ns + na + k + mid_ex + mid_in, drive, 2.0 * half)
    spike = (v >= v_t_mv + 30.0) & (v < v_mv) & (refractory <= 0)
    left = refractory - 1 if refractory > 0 else 0
    g_ex, g_in = mid_ex * half_ex + ex_ns, mid_in * half_in - in_ns
    return spike, v, m, h, n, g_ex, g_in, refractory_steps if spike else left


@neuron_model(
    states=_STATES,
    receptors=("ex_ns", "in_ns"),
    parameters=_PARAMETERS,
    constants=_traub_constants,
    meanings=_MEANINGS,
)
def hh_cond_exp_fine(
    v_mv, m, h, n, g_ex_ns, g_in_ns, refractory, ex_ns, in_ns, current_pa, dt_ms, part_ms, half, half_part, decay_ex,
    decay_in, g_leak_ns, g_na_ns, g_k_ns, e_rest_mv, e_na_mv, e_k_mv, v_t_mv, e_ex_mv, e_in_mv, refractory_steps,
):  # fmt: skip
    """Hodgkin-Huxley neuron of Traub and Miles (1991) by a scheme of fourth order, for comparisons with NEST.

    Equations, with V (`v_mv`), I (`current_pa`), U = V - v_t_mv and x = m, h or n::

        c_m_pf dV/dt = -g_leak_ns (V - e_rest_mv) - g_na_ns m^3 h (V - e_na_mv) - g_k_ns n^4 (V - e_k_mv)
                       - g_ex_ns (V - e_ex_mv) - g_in_ns (V - e_in_mv) + I
        dx/dt        = alpha_x (1 - x) - beta_x x
        alpha_m      = 0.32 (13 - U) / (exp((13 - U) / 4) - 1),  beta_m = 0.28 (U - 40) / (exp((U - 40) / 5) - 1)
        alpha_h      = 0.128 exp((17 - U) / 18),                 beta_h = 4 / (1 + exp((40 - U) / 5))
        alpha_n      = 0.032 (15 - U) / (exp((15 - U) / 5) - 1), beta_n = 0.5 exp((10 - U) / 40)
        dg_ex_ns/dt  = -g_ex_ns / tau_syn_ex_ms,   g_ex_ns += weight    when a spike arrives at ex_ns
        dg_in_ns/dt  = -g_in_ns / tau_syn_in_ms,   g_in_ns += |weight|  when a spike arrives at in_ns (weights below 0)
        a spike                                    when V >= v_t_mv + 30 and V begins to fall

    Nothing is reset. After a spike no other is emitted for `refractory_ms`; `refractory` counts the steps that are
    left. With the defaults it is the neuron of the COBAHH benchmark (Brette et al. 2007). `hh_cond_exp` has the same
    equations and takes a quarter of the time, with a scheme of second order.

    Scheme: Strang splitting into V and gates, both exact, extrapolated from one step and three thirds of it (fourth
    order).

    Elsewhere: NEST hh_cond_exp_traub; PyNN HH_cond_exp; Brian2 equations (example COBAHH).

    R. D. Traub and R. Miles, Neuronal Networks of the Hippocampus, Cambridge (1991).
    """
    leak = g_leak_ns * e_rest_mv
    v1, m1, h1, n1, ex, in_ = v_mv, m, h, n, g_ex_ns, g_in_ns
    for _ in range(PARTS):
        end_ex, end_in = ex * decay_ex, in_ * decay_in
        v1, m1, h1, n1 = _traub_step(
            v1, m1, h1, n1, ex, in_, end_ex, end_in, current_pa, part_ms, half_part, g_leak_ns, g_na_ns, g_k_ns, leak,
            e_na_mv, e_k_mv, e_ex_mv, e_in_mv, v_t_mv,
        )  # fmt: skip
        ex, in_ = end_ex, end_in
    v, m, h, n = _traub_step(
        v_mv, m, h, n, g_ex_ns, g_in_ns, ex, in_, current_pa, dt_ms, half, g_leak_ns, g_na_ns, g_k_ns, leak, e_na_mv,
        e_k_mv, e_ex_mv, e_in_mv, v_t_mv,
    )  # fmt: skip
    v = v1 + (v1 - v) * EIGHTH
    m, h, n = m1 + (m1 - m) * EIGHTH, h1 + (h1 - h) * EIGHTH, n1 + (n1 - n) * EIGHTH
    spike = (v >= v_t_mv + 30.0) & (v < v_mv) & (refractory <= 0)
    left = refractory - 1 if refractory > 0 else 0
    return spike, v, m, h, n, ex + ex_ns, in_ - in_ns, refractory_steps if spike else left


def _hodgkin_step(v, m, h, n, i, end_i, dt, half, g_leak, g_na, g_k, leak, e_na, e_k):
    """Advance V and the gates by a symmetric splitting; the current goes from i to end_i."""
    na, k = g_na * (m * m * m * h), g_k * (n * n * n * n)
    v = _driven(v, g_leak + na + k, leak + na * e_na + k * e_k + i, half)
    m = _relaxed(m, 1.0 / exprel((v + 40.0) * -0.1), 4.0 * exp((v + 65.0) * (-1.0 / 18.0)), dt)
    h = _relaxed(h, 0.07 * exp((v + 65.0) * -0.05), 1.0 / (1.0 + exp((v + 35.0) * -0.1)), dt)
    n = _relaxed(n, 0.1 / exprel((v + 55.0) * -0.1), 0.125 * exp((v + 65.0) * -0.0125), dt)
    na, k = g_na * (m * m * m * h), g_k * (n * n * n * n)
    return _driven(v, g_leak + na + k, leak + na * e_na + k * e_k + end_i, half), m, h, n


def _alpha_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "c_m_pf", "g_leak_ns", "tau_syn_ex_ms", "tau_syn_in_ms")
    constants: dict[str, Any] = {
        "part_ms": dt_ms / PARTS,
        "half": 0.5 * dt_ms / p["c_m_pf"],
        "half_part": 0.5 * dt_ms / PARTS / p["c_m_pf"],
        "refractory_steps": steps(p, "refractory_ms", dt_ms),
    }
    for kind in ("ex", "in"):
        tau = p[f"tau_syn_{kind}_ms"]
        decay = exp(-dt_ms / PARTS / tau)
        constants |= {
            f"decay_{kind}": decay,
            f"rise_{kind}": dt_ms / PARTS * decay,
            f"kick_{kind}": exp(1.0) / tau,
        }
    return constants


@neuron_model(
    states={
        "v_mv": -65.0, "m": 0.0529325, "h": 0.596121, "n": 0.317677, "slope_ex": 0.0, "i_ex_pa": 0.0, "slope_in": 0.0,
        "i_in_pa": 0.0, "refractory": 0,
    },
    receptors=("ex_pa", "in_pa"),
    parameters={
        "c_m_pf": 100.0, "g_leak_ns": 30.0, "g_na_ns": 12000.0, "g_k_ns": 3600.0, "e_rest_mv": -54.402, "e_na_mv": 50.0,
        "e_k_mv": -77.0, "v_peak_mv": 0.0, "tau_syn_ex_ms": 0.2, "tau_syn_in_ms": 2.0, "refractory_ms": 2.0,
    },
    constants=_alpha_constants,
    meanings=meanings(
        "c_m_pf", "g_leak_ns", "v_mv", "i_ex_pa", "i_in_pa", "ex_pa", "in_pa",
        e_rest_mv="reversal potential of the leak",
        g_na_ns="largest sodium conductance",
        g_k_ns="largest potassium conductance",
        e_na_mv="reversal potential of sodium",
        e_k_mv="reversal potential of potassium",
        v_peak_mv="potential above which a maximum is a spike",
        tau_syn_ex_ms="time to the peak of an excitatory current",
        tau_syn_in_ms="time to the peak of an inhibitory current",
        refractory_ms="time after a spike in which no other is emitted",
        m="activation of sodium",
        h="inactivation of sodium",
        n="activation of potassium",
        slope_ex="rise of the excitatory current, in pA/ms",
        slope_in="rise of the inhibitory current, in pA/ms",
        refractory="steps in which no other spike is emitted",
    ),
)  # fmt: skip
def hh_alpha(
    v_mv, m, h, n, slope_ex, i_ex_pa, slope_in, i_in_pa, refractory, ex_pa, in_pa, current_pa, dt_ms, part_ms,
    half, half_part, decay_ex, rise_ex, kick_ex, decay_in, rise_in, kick_in, g_leak_ns, g_na_ns, g_k_ns, e_rest_mv,
    e_na_mv, e_k_mv, v_peak_mv, refractory_steps,
):  # fmt: skip
    """Neuron of Hodgkin and Huxley (1952) with alpha-shaped currents; a weight is the peak of a current in pA.

    Equations, with V (`v_mv`), I (`current_pa`), y = m, h or n, and x = ex or in::

        c_m_pf dV/dt = -g_leak_ns (V - e_rest_mv) - g_na_ns m^3 h (V - e_na_mv) - g_k_ns n^4 (V - e_k_mv)
                       + i_ex_pa + i_in_pa + I
        dy/dt        = alpha_y (1 - y) - beta_y y
        alpha_m      = 0.1 (V + 40) / (1 - exp(-(V + 40) / 10)),   beta_m = 4 exp(-(V + 65) / 18)
        alpha_h      = 0.07 exp(-(V + 65) / 20),                   beta_h = 1 / (1 + exp(-(V + 35) / 10))
        alpha_n      = 0.01 (V + 55) / (1 - exp(-(V + 55) / 10)),  beta_n = 0.125 exp(-(V + 65) / 80)
        di_x_pa/dt   = slope_x - i_x_pa / tau_syn_x_ms
        dslope_x/dt  = -slope_x / tau_syn_x_ms
        slope_x += weight e / tau_syn_x_ms    when a spike arrives at x_pa
        a spike                               when V >= v_peak_mv and V begins to fall

    Nothing is reset. After a spike no other is emitted for `refractory_ms`; `refractory` counts the steps that are
    left.

    Scheme: Strang splitting into V and gates, both exact, extrapolated from one step and three thirds of it (fourth
    order).

    Elsewhere: NEST hh_psc_alpha; Brian2 equations (example hodgkin_huxley_1952).

    A. L. Hodgkin and A. F. Huxley, J. Physiol. 117:500 (1952).
    """
    leak = g_leak_ns * e_rest_mv
    v1, m1, h1, n1, begin = v_mv, m, h, n, current_pa + i_ex_pa + i_in_pa
    d_ex, i_ex, d_in, i_in, i = slope_ex, i_ex_pa, slope_in, i_in_pa, begin
    for _ in range(PARTS):
        i_ex, i_in = i_ex * decay_ex + d_ex * rise_ex, i_in * decay_in + d_in * rise_in
        d_ex, d_in = d_ex * decay_ex, d_in * decay_in
        end = current_pa + i_ex + i_in
        v1, m1, h1, n1 = _hodgkin_step(
            v1, m1, h1, n1, i, end, part_ms, half_part, g_leak_ns, g_na_ns, g_k_ns, leak, e_na_mv, e_k_mv
        )
        i = end
    v, m, h, n = _hodgkin_step(v_mv, m, h, n, begin, i, dt_ms, half, g_leak_ns, g_na_ns, g_k_ns, leak, e_na_mv, e_k_mv)
    v = v1 + (v1 - v) * EIGHTH
    m, h, n = m1 + (m1 - m) * EIGHTH, h1 + (h1 - h) * EIGHTH, n1 + (n1 - n) * EIGHTH
    spike = (v >= v_peak_mv) & (v < v_mv) & (refractory <= 0)
    left = refractory - 1 if refractory > 0 else 0
    d_ex, d_in = d_ex + ex_pa * kick_ex, d_in + in_pa * kick_in
    return spike, v, m, h, n, d_ex, i_ex, d_in, i_in, refractory_steps if spike else left
