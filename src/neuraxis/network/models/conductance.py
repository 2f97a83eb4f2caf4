"""Leaky integrate-and-fire models with conductances that rise and decay, and with NMDA receptors.

The conductances are linear and advance exactly. A step of V is one step of the Runge-Kutta method of fourth order, with
the exact conductances at the beginning, in the middle and at the end of the step.
"""

from __future__ import annotations

from typing import Any

from neuraxis.network.arithmetic import exp, power
from neuraxis.network.models.lif import Parameters, check, check_below, check_positive, choose, meanings, steps
from neuraxis.network.neuron_model import neuron_model

__all__ = ["beta_constants", "beta_kick", "lif_cond_alpha", "lif_cond_beta", "lif_nmda"]

SIXTH = 1.0 / 6.0


def beta_kick(tau_rise_ms: Any, tau_decay_ms: Any) -> Any:
    """Return the slope in 1/ms with which a conductance starts that rises and decays, and has a peak of 1.

    For equal time constants this is the alpha function, which starts with e / tau.
    """
    equal = abs(tau_rise_ms - tau_decay_ms) < 1e-6 * tau_decay_ms
    ratio = choose(equal, 0.5, tau_rise_ms / tau_decay_ms)
    # The two exponentials at the time of the peak.
    peak = power(ratio, ratio / (1.0 - ratio)) - power(ratio, 1.0 / (1.0 - ratio))
    return choose(equal, exp(1.0) / tau_decay_ms, (1.0 / tau_rise_ms - 1.0 / tau_decay_ms) / peak)


def beta_constants(kind: str, tau_rise_ms: Any, tau_decay_ms: Any, part_ms: float) -> dict[str, Any]:
    """Return the constants of a conductance g with g' = slope - g / tau_rise, slope' = -slope / tau_decay.

    For `kind` "ex": `kick_ex`, by how much a spike of weight 1 changes the slope; `fall_ex` and `slow_ex`, the factors
    of g and of the slope in a part of the step; `rise_ex`, what the slope adds to g in that part.
    """
    fall, slow = exp(-part_ms / tau_rise_ms), exp(-part_ms / tau_decay_ms)
    equal = abs(tau_rise_ms - tau_decay_ms) < 1e-6 * tau_decay_ms
    rise = (slow - fall) / choose(equal, 1.0, 1.0 / tau_rise_ms - 1.0 / tau_decay_ms)
    return {
        f"kick_{kind}": beta_kick(tau_rise_ms, tau_decay_ms),
        f"fall_{kind}": fall,
        f"slow_{kind}": slow,
        f"rise_{kind}": choose(equal, part_ms * slow, rise),
    }


def _membrane(v, h, drive, g_leak, e_ex, e_in, ex, in_, mid_ex, mid_in, end_ex, end_in):
    """Advance V by one step of Runge and Kutta; `h` is the step divided by the capacitance."""
    a = drive + ex * e_ex + in_ * e_in - (g_leak + ex + in_) * v
    mid_drive, mid_g = drive + mid_ex * e_ex + mid_in * e_in, g_leak + mid_ex + mid_in
    b = mid_drive - mid_g * (v + 0.5 * h * a)
    c = mid_drive - mid_g * (v + 0.5 * h * b)
    d = drive + end_ex * e_ex + end_in * e_in - (g_leak + end_ex + end_in) * (v + h * c)
    return v + h * SIXTH * (a + 2.0 * (b + c) + d)


def _conductance_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "c_m_pf", "g_leak_ns")
    check_below(p, "v_reset_mv", "v_threshold_mv")
    return {"h": dt_ms / p["c_m_pf"], "refractory_steps": steps(p, "refractory_ms", dt_ms)}


def _alpha_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "tau_syn_ex_ms", "tau_syn_in_ms")
    constants = _conductance_constants(p, dt_ms)
    for kind in ("ex", "in"):
        tau = p[f"tau_syn_{kind}_ms"]
        constants |= beta_constants(kind, tau, tau, dt_ms / 2)
    return constants


@neuron_model(
    states={"v_mv": -70.0, "slope_ex": 0.0, "g_ex_ns": 0.0, "slope_in": 0.0, "g_in_ns": 0.0, "refractory": 0},
    receptors=("ex_ns", "in_ns"),
    parameters={
        "c_m_pf": 250.0, "g_leak_ns": 16.6667, "e_rest_mv": -70.0, "e_ex_mv": 0.0, "e_in_mv": -85.0,
        "tau_syn_ex_ms": 0.2, "tau_syn_in_ms": 2.0, "v_threshold_mv": -55.0, "v_reset_mv": -60.0, "refractory_ms": 2.0,
    },
    constants=_alpha_constants,
    meanings=meanings(
        "c_m_pf", "g_leak_ns", "e_rest_mv", "e_ex_mv", "e_in_mv", "v_threshold_mv", "v_reset_mv", "refractory_ms",
        "v_mv", "g_ex_ns", "g_in_ns", "refractory", "ex_ns", "in_ns",
        tau_syn_ex_ms="time to the peak of an excitatory conductance",
        tau_syn_in_ms="time to the peak of an inhibitory conductance",
        slope_ex="rise of the excitatory conductance, in nS/ms",
        slope_in="rise of the inhibitory conductance, in nS/ms",
    ),
)  # fmt: skip
def lif_cond_alpha(
    v_mv, slope_ex, g_ex_ns, slope_in, g_in_ns, refractory, ex_ns, in_ns, current_pa, h, kick_ex, slow_ex, rise_ex,
    kick_in, slow_in, rise_in, g_leak_ns, e_rest_mv, e_ex_mv, e_in_mv, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire neuron with alpha-shaped conductances; a weight is the peak of a conductance in nS.

    Equations, with V (`v_mv`) and I (`current_pa`), and x = ex or in::

        c_m_pf dV/dt = -g_leak_ns (V - e_rest_mv) - g_ex_ns (V - e_ex_mv) - g_in_ns (V - e_in_mv) + I
        dg_x_ns/dt   = slope_x - g_x_ns / tau_syn_x_ms
        dslope_x/dt  = -slope_x / tau_syn_x_ms
        slope_x += |weight| e / tau_syn_x_ms    when a spike arrives at x_ns (weights at in_ns are below 0)
        V = v_reset_mv, and a spike             when V >= v_threshold_mv

    A spike of weight w adds the conductance w (t / tau) exp(1 - t / tau), which peaks at w after t = tau. After a spike
    V stays at `v_reset_mv` for `refractory_ms`; `refractory` counts the steps that are left.

    Scheme: exact conductances; one step of the Runge-Kutta method of fourth order for V.

    Elsewhere: NEST iaf_cond_alpha; PyNN IF_cond_alpha; Brian2 equations.
    """
    held = refractory > 0
    mid_ex, mid_in = g_ex_ns * slow_ex + slope_ex * rise_ex, g_in_ns * slow_in + slope_in * rise_in
    mid_slope_ex, mid_slope_in = slope_ex * slow_ex, slope_in * slow_in
    end_ex, end_in = mid_ex * slow_ex + mid_slope_ex * rise_ex, mid_in * slow_in + mid_slope_in * rise_in
    drive = g_leak_ns * e_rest_mv + current_pa
    v = _membrane(v_mv, h, drive, g_leak_ns, e_ex_mv, e_in_mv, g_ex_ns, g_in_ns, mid_ex, mid_in, end_ex, end_in)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    slope_ex = mid_slope_ex * slow_ex + ex_ns * kick_ex
    slope_in = mid_slope_in * slow_in - in_ns * kick_in
    return spike, v_reset_mv if spike else v, slope_ex, end_ex, slope_in, end_in, refractory_steps if spike else left


def _beta_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "tau_rise_ex_ms", "tau_decay_ex_ms", "tau_rise_in_ms", "tau_decay_in_ms")
    constants = _conductance_constants(p, dt_ms)
    for kind in ("ex", "in"):
        constants |= beta_constants(kind, p[f"tau_rise_{kind}_ms"], p[f"tau_decay_{kind}_ms"], dt_ms / 2)
    return constants


@neuron_model(
    states={"v_mv": -70.0, "slope_ex": 0.0, "g_ex_ns": 0.0, "slope_in": 0.0, "g_in_ns": 0.0, "refractory": 0},
    receptors=("ex_ns", "in_ns"),
    parameters={
        "c_m_pf": 250.0, "g_leak_ns": 16.6667, "e_rest_mv": -70.0, "e_ex_mv": 0.0, "e_in_mv": -85.0,
        "tau_rise_ex_ms": 0.2, "tau_decay_ex_ms": 2.0, "tau_rise_in_ms": 0.5, "tau_decay_in_ms": 8.0,
        "v_threshold_mv": -55.0, "v_reset_mv": -60.0, "refractory_ms": 2.0,
    },
    constants=_beta_constants,
    meanings=meanings(
        "c_m_pf", "g_leak_ns", "e_rest_mv", "e_ex_mv", "e_in_mv", "v_threshold_mv", "v_reset_mv", "refractory_ms",
        "v_mv", "g_ex_ns", "g_in_ns", "refractory", "ex_ns", "in_ns",
        tau_rise_ex_ms="time constant with which an excitatory conductance rises",
        tau_decay_ex_ms="time constant with which an excitatory conductance decays",
        tau_rise_in_ms="time constant with which an inhibitory conductance rises",
        tau_decay_in_ms="time constant with which an inhibitory conductance decays",
        slope_ex="drive of the excitatory conductance, in nS/ms",
        slope_in="drive of the inhibitory conductance, in nS/ms",
    ),
)  # fmt: skip
def lif_cond_beta(
    v_mv, slope_ex, g_ex_ns, slope_in, g_in_ns, refractory, ex_ns, in_ns, current_pa, h, kick_ex, fall_ex, slow_ex,
    rise_ex, kick_in, fall_in, slow_in, rise_in, g_leak_ns, e_rest_mv, e_ex_mv, e_in_mv, v_threshold_mv, v_reset_mv,
    refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire neuron with conductances that rise and decay; a weight is the peak in nS.

    Equations, with V (`v_mv`) and I (`current_pa`), and x = ex or in::

        c_m_pf dV/dt = -g_leak_ns (V - e_rest_mv) - g_ex_ns (V - e_ex_mv) - g_in_ns (V - e_in_mv) + I
        dg_x_ns/dt   = slope_x - g_x_ns / tau_rise_x_ms
        dslope_x/dt  = -slope_x / tau_decay_x_ms
        slope_x += |weight| k_x                 when a spike arrives at x_ns (weights at in_ns are below 0)
        V = v_reset_mv, and a spike             when V >= v_threshold_mv

    k_x is such that a spike of weight w adds the difference of two exponentials with the peak w. The two time constants
    of a conductance may be equal: an alpha function. After a spike V stays at `v_reset_mv` for `refractory_ms`;
    `refractory` counts the steps that are left.

    Scheme: exact conductances; one step of the Runge-Kutta method of fourth order for V.

    Elsewhere: NEST iaf_cond_beta; Brian2 equations ("biexponential synapses").
    """
    held = refractory > 0
    mid_ex, mid_in = g_ex_ns * fall_ex + slope_ex * rise_ex, g_in_ns * fall_in + slope_in * rise_in
    mid_slope_ex, mid_slope_in = slope_ex * slow_ex, slope_in * slow_in
    end_ex, end_in = mid_ex * fall_ex + mid_slope_ex * rise_ex, mid_in * fall_in + mid_slope_in * rise_in
    drive = g_leak_ns * e_rest_mv + current_pa
    v = _membrane(v_mv, h, drive, g_leak_ns, e_ex_mv, e_in_mv, g_ex_ns, g_in_ns, mid_ex, mid_in, end_ex, end_in)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    slope_ex = mid_slope_ex * slow_ex + ex_ns * kick_ex
    slope_in = mid_slope_in * slow_in - in_ns * kick_in
    return spike, v_reset_mv if spike else v, slope_ex, end_ex, slope_in, end_in, refractory_steps if spike else left


def _nmda_constants(p: Parameters, dt_ms: float) -> dict[str, Any]:
    check_positive(p, "tau_ampa_ms", "tau_gaba_ms", "tau_decay_nmda_ms", "mg_half_mm")
    tau_rise, tau_decay = p["tau_rise_nmda_ms"], p["tau_decay_nmda_ms"]
    check(
        p,
        "tau_rise_nmda_ms",
        (tau_rise >= 0) & (tau_rise < tau_decay),
        "must be below tau_decay_nmda_ms, and not below 0",
    )
    check(p, "mg_mm", p["mg_mm"] >= 0, "a concentration cannot be negative")
    # The conductance is the difference of two exponentials, which start at `kick_nmda`; without a rise there is one.
    rises = tau_rise > 0
    some = choose(rises, tau_rise, 0.5 * tau_decay)
    kick = choose(rises, beta_kick(some, tau_decay) / (1.0 / some - 1.0 / tau_decay), 1.0)
    return {
        **_conductance_constants(p, dt_ms),
        "half_ampa": exp(-0.5 * dt_ms / p["tau_ampa_ms"]),
        "half_gaba": exp(-0.5 * dt_ms / p["tau_gaba_ms"]),
        "half_slow": exp(-0.5 * dt_ms / tau_decay),
        "half_fast": choose(rises, exp(-0.5 * dt_ms / some), 0.0),
        "kick_slow": kick,
        "kick_fast": choose(rises, kick, 0.0),
        "mg": p["mg_mm"] / p["mg_half_mm"],
    }


def _open(v, mg, mg_slope):
    """Return the part of NMDA receptors that magnesium does not block (Jahr and Stevens 1990)."""
    return 1.0 / (1.0 + mg * exp(-mg_slope * v))


@neuron_model(
    states={
        "v_mv": -70.0, "g_ampa_ns": 0.0, "g_gaba_ns": 0.0, "nmda_slow_ns": 0.0, "nmda_fast_ns": 0.0, "refractory": 0,
    },
    receptors=("ampa_ns", "gaba_ns", "nmda_ns"),
    parameters={
        "c_m_pf": 500.0, "g_leak_ns": 25.0, "e_rest_mv": -70.0, "e_ex_mv": 0.0, "e_in_mv": -70.0, "tau_ampa_ms": 2.0,
        "tau_gaba_ms": 5.0, "tau_rise_nmda_ms": 2.0, "tau_decay_nmda_ms": 100.0, "mg_mm": 1.0, "mg_half_mm": 3.57,
        "mg_slope": 0.062, "v_threshold_mv": -50.0, "v_reset_mv": -55.0, "refractory_ms": 2.0,
    },
    constants=_nmda_constants,
    meanings=meanings(
        "c_m_pf", "g_leak_ns", "e_rest_mv", "v_threshold_mv", "v_reset_mv", "refractory_ms", "v_mv", "refractory",
        e_ex_mv="reversal potential of AMPA and NMDA receptors",
        e_in_mv="reversal potential of GABA receptors",
        tau_ampa_ms="time constant of the AMPA conductance",
        tau_gaba_ms="time constant of the GABA conductance",
        tau_rise_nmda_ms="time constant with which the NMDA conductance rises; 0: at once",
        tau_decay_nmda_ms="time constant with which the NMDA conductance decays",
        mg_mm="concentration of magnesium, in mM; 0: no block",
        mg_half_mm="concentration that blocks half of the NMDA receptors at 0 mV, in mM",
        mg_slope="dependence of the block on the potential, in 1/mV",
        g_ampa_ns="AMPA conductance",
        g_gaba_ns="GABA conductance",
        nmda_slow_ns="NMDA conductance without block: the part that decays slowly",
        nmda_fast_ns="and the part to subtract, which decays with the time of the rise",
        ampa_ns="AMPA receptors",
        gaba_ns="GABA receptors (weights below 0)",
        nmda_ns="NMDA receptors",
    ),
)  # fmt: skip
def lif_nmda(
    v_mv, g_ampa_ns, g_gaba_ns, nmda_slow_ns, nmda_fast_ns, refractory, ampa_ns, gaba_ns, nmda_ns, current_pa, h,
    half_ampa, half_gaba, half_slow, half_fast, kick_slow, kick_fast, mg, mg_slope, g_leak_ns, e_rest_mv, e_ex_mv,
    e_in_mv, v_threshold_mv, v_reset_mv, refractory_steps,
):  # fmt: skip
    """Leaky integrate-and-fire neuron with AMPA, GABA and voltage-dependent NMDA receptors.

    Equations, with V (`v_mv`), the conductances A, G, N of the three receptors and I (`current_pa`)::

        c_m_pf dV/dt = -g_leak_ns (V - e_rest_mv) - (A + N B(V)) (V - e_ex_mv) - G (V - e_in_mv) + I
        B(V)         = 1 / (1 + mg_mm / mg_half_mm exp(-mg_slope V))
        dA/dt        = -A / tau_ampa_ms,           A += weight    when a spike arrives at ampa_ns
        dG/dt        = -G / tau_gaba_ms,           G += |weight|  when a spike arrives at gaba_ns (weights below 0)
        N            = slow - fast
        dslow/dt     = -slow / tau_decay_nmda_ms,  slow += k weight   when a spike arrives at nmda_ns
        dfast/dt     = -fast / tau_rise_nmda_ms,   fast += k weight   when a spike arrives at nmda_ns
        V = v_reset_mv, and a spike                               when V >= v_threshold_mv

    B is the part that magnesium does not block (Jahr and Stevens 1990). k is such that a spike of weight w adds an N
    with the peak w; with `tau_rise_nmda_ms=0` N jumps by w. After a spike V stays at `v_reset_mv` for `refractory_ms`;
    `refractory` counts the steps that are left.

    In the networks of Brunel and Wang (2001) and Wang (2002), the NMDA receptors of a source saturate. The projection
    does that here, with the rule of `neuraxis.network.nmda_saturation` and `tau_rise_nmda_ms=0`.

    Scheme: exact conductances; one step of the Runge-Kutta method of fourth order for V.

    Elsewhere: NEST iaf_bw_2001; Brian2 equations (example Wang_2002).

    C. E. Jahr and C. F. Stevens, J. Neurosci. 10:3178 (1990); N. Brunel and X.-J. Wang, J. Comput. Neurosci. 11:63
    (2001).
    """
    held = refractory > 0
    mid_ampa, mid_gaba = g_ampa_ns * half_ampa, g_gaba_ns * half_gaba
    mid_slow, mid_fast = nmda_slow_ns * half_slow, nmda_fast_ns * half_fast
    end_ampa, end_gaba = mid_ampa * half_ampa, mid_gaba * half_gaba
    end_slow, end_fast = mid_slow * half_slow, mid_fast * half_fast
    drive = g_leak_ns * e_rest_mv + current_pa
    g = g_ampa_ns + (nmda_slow_ns - nmda_fast_ns) * _open(v_mv, mg, mg_slope)
    a = drive + g * e_ex_mv + g_gaba_ns * e_in_mv - (g_leak_ns + g + g_gaba_ns) * v_mv
    v = v_mv + 0.5 * h * a
    g = mid_ampa + (mid_slow - mid_fast) * _open(v, mg, mg_slope)
    b = drive + g * e_ex_mv + mid_gaba * e_in_mv - (g_leak_ns + g + mid_gaba) * v
    v = v_mv + 0.5 * h * b
    g = mid_ampa + (mid_slow - mid_fast) * _open(v, mg, mg_slope)
    c = drive + g * e_ex_mv + mid_gaba * e_in_mv - (g_leak_ns + g + mid_gaba) * v
    v = v_mv + h * c
    g = end_ampa + (end_slow - end_fast) * _open(v, mg, mg_slope)
    d = drive + g * e_ex_mv + end_gaba * e_in_mv - (g_leak_ns + g + end_gaba) * v
    v = v_mv + h * SIXTH * (a + 2.0 * (b + c) + d)
    v = v_mv if held else v
    spike = v >= v_threshold_mv
    left = refractory - 1 if held else 0
    slow, fast = end_slow + nmda_ns * kick_slow, end_fast + nmda_ns * kick_fast
    v = v_reset_mv if spike else v
    return spike, v, end_ampa + ampa_ns, end_gaba - gaba_ns, slow, fast, refractory_steps if spike else left
