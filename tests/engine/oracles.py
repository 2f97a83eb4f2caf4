"""Reference neuron models in plain float64 Python, one step at a time.

Each oracle is written from the equations, not from the compiled models: the order within a step is membrane (with the
synaptic currents as the step before left them), decay of the synapses, arrivals, threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from math import e, exp
from typing import Any

State = dict[str, Any]
# (state, positive arrivals, negative arrivals, current) -> whether it spikes; the state is changed in place.
Step = Callable[[State, float, float, float], bool]


def lif(p: dict[str, float], dt: float, kind: str) -> Step:
    """Leaky integrate-and-fire with delta, exponential ("exp", "exp_two") or alpha synapses."""
    decay = exp(-dt / p["tau_m_ms"])
    resistance = p["tau_m_ms"] / p["c_m_pf"]
    held_steps = round(p["refractory_ms"] / dt)
    taus = {"exp": ("tau_syn_ms",), "delta": ()}.get(kind, ("tau_syn_ex_ms", "tau_syn_in_ms"))
    # Per receptor: (time constant, mV for a pA of current, mV for a pA/ms of slope)
    synapses = [(p[tau], *_psc(p, p[tau], dt)) for tau in taus]

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        given = [positive + negative] if kind in ("exp", "delta") else [positive, negative]
        if s["refractory"] == 0:
            y = (s["v_mv"] - p["e_rest_mv"]) * decay + resistance * (1 - decay) * current
            for r, (_, per_pa, per_slope) in enumerate(synapses):
                y += s["i"][r] * per_pa + s["slope"][r] * per_slope
            s["v_mv"] = p["e_rest_mv"] + y + (given[0] if kind == "delta" else 0.0)
        else:
            s["refractory"] -= 1
        for r, (tau, _, _) in enumerate(synapses):
            d = exp(-dt / tau)
            s["i"][r] = s["i"][r] * d + dt * d * s["slope"][r]
            s["slope"][r] *= d
            if kind == "alpha":
                s["slope"][r] += e / tau * given[r]
            else:
                s["i"][r] += given[r]
        s["before_reset"] = s["v_mv"]
        if s["v_mv"] >= p["v_threshold_mv"]:
            s["v_mv"], s["refractory"] = p["v_reset_mv"], held_steps
            return True
        return False

    return step


def _psc(p: dict[str, float], tau: float, dt: float) -> tuple[float, float]:
    """mV at the end of a step for 1 pA of a decaying current, and for 1 pA/ms of an alpha function's slope."""
    b = 1 / tau - 1 / p["tau_m_ms"]
    m, s = exp(-dt / p["tau_m_ms"]), exp(-dt / tau)
    return (m - s) / (p["c_m_pf"] * b), (m - s * (1 + dt * b)) / (p["c_m_pf"] * b * b)


def lif_cond_exp(p: dict[str, float], dt: float, substeps: int) -> Step:
    """Conductance-based; the classical Runge-Kutta rule with dt / substeps."""
    held_steps = round(p["refractory_ms"] / dt)
    h = dt / substeps

    def slope(v: float, g_ex: float, g_in: float, current: float) -> float:
        leak = p["g_leak_ns"] * (p["e_rest_mv"] - v)
        return (leak + g_ex * (p["e_ex_mv"] - v) + g_in * (p["e_in_mv"] - v) + current) / p["c_m_pf"]

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        v, g, k = s["v_mv"], s["g_ex_ns"], s["g_in_ns"]
        for _ in range(substeps):
            half_g, half_k = g * exp(-h / 2 / p["tau_syn_ex_ms"]), k * exp(-h / 2 / p["tau_syn_in_ms"])
            end_g, end_k = g * exp(-h / p["tau_syn_ex_ms"]), k * exp(-h / p["tau_syn_in_ms"])
            a = slope(v, g, k, current)
            b = slope(v + h / 2 * a, half_g, half_k, current)
            c = slope(v + h / 2 * b, half_g, half_k, current)
            d = slope(v + h * c, end_g, end_k, current)
            if s["refractory"] == 0:
                v += h / 6 * (a + 2 * b + 2 * c + d)
            g, k = end_g, end_k
        s["v_mv"], s["g_ex_ns"], s["g_in_ns"] = v, g + positive, k - negative
        s["before_reset"] = v
        if s["refractory"] > 0:
            s["refractory"] -= 1
        elif v >= p["v_threshold_mv"]:
            s["v_mv"], s["refractory"] = p["v_reset_mv"], held_steps
            return True
        return False

    return step


def adex(p: dict[str, float], dt: float, substeps: int) -> Step:
    """Adaptive exponential; the classical Runge-Kutta rule with dt / substeps, reset at once at the peak."""
    held_steps = round(p["refractory_ms"] / dt)
    h = dt / substeps
    part_ex, part_in = exp(-h / p["tau_syn_ex_ms"]), exp(-h / p["tau_syn_in_ms"])
    half_ex, half_in = part_ex**0.5, part_in**0.5
    # Locals, because this runs a million times.
    c_m, leak, rest, v_t, delta, peak = (
        p[name] for name in ("c_m_pf", "g_leak_ns", "e_rest_mv", "v_t_mv", "delta_t_mv", "v_peak_mv")
    )
    e_ex, e_in, a_ns, tau_w = p["e_ex_mv"], p["e_in_mv"], p["a_ns"], p["tau_w_ms"]

    def slopes(v: float, w: float, g: float, k: float, current: float, held: bool) -> tuple[float, float]:
        if v > peak:
            v = peak
        flow = 0.0
        if not held:
            up = delta * exp((v - v_t) / delta)
            flow = (leak * (rest - v + up) + g * (e_ex - v) + k * (e_in - v) - w + current) / c_m
        return flow, (a_ns * (v - rest) - w) / tau_w

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        v, w, g, k = s["v_mv"], s["w_pa"], s["g_ex_ns"], s["g_in_ns"]
        spike, held = False, s["refractory"] > 0
        for _ in range(substeps):
            a, aw = slopes(v, w, g, k, current, held)
            b, bw = slopes(v + h / 2 * a, w + h / 2 * aw, g * half_ex, k * half_in, current, held)
            c, cw = slopes(v + h / 2 * b, w + h / 2 * bw, g * half_ex, k * half_in, current, held)
            d, dw = slopes(v + h * c, w + h * cw, g * part_ex, k * part_in, current, held)
            v += h / 6 * (a + 2 * b + 2 * c + d)
            w += h / 6 * (aw + 2 * bw + 2 * cw + dw)
            g, k = g * part_ex, k * part_in
            if v >= peak and not held:
                v, w, spike = p["v_reset_mv"], w + p["b_pa"], True
                held = held_steps > 0
        if spike:
            s["refractory"] = held_steps
        elif s["refractory"] > 0:
            s["refractory"] -= 1
        s["v_mv"], s["w_pa"], s["g_ex_ns"], s["g_in_ns"] = v, w, g + positive, k - negative
        return spike

    return step


def izhikevich(p: dict[str, float], dt: float) -> Step:
    """Euler's rule, both variables from the step's start."""

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        v, u = s["v_mv"], s["u_mv"]
        s["v_mv"] = v + dt * (0.04 * v * v + 5 * v + 140 - u + current) + positive + negative
        s["u_mv"] = u + dt * p["a"] * (p["b"] * v - u)
        s["before_reset"] = s["v_mv"]
        if s["v_mv"] >= p["v_peak_mv"]:
            s["v_mv"], s["u_mv"] = p["c_mv"], s["u_mv"] + p["d_mv"]
            return True
        return False

    return step
