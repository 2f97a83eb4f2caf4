"""Reference neuron models in plain float64 Python, one step at a time.

Each oracle is written from the equations, not from the compiled models: the order within a step is membrane (with the
synaptic currents as the step before left them), decay of the synapses, arrivals, threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from math import e, exp, expm1, log
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
    """Adaptive exponential with exponential conductances; Runge-Kutta with dt / substeps, reset at once at the peak.

    With `slope_ex` and `slope_in` in the state, the conductances are alpha functions.
    """
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
        d_ex, d_in = s.get("slope_ex", 0.0), s.get("slope_in", 0.0)
        spike, held = False, s["refractory"] > 0
        for _ in range(substeps):
            mid_g, mid_k = (g + h / 2 * d_ex) * half_ex, (k + h / 2 * d_in) * half_in
            end_g, end_k = (g + h * d_ex) * part_ex, (k + h * d_in) * part_in
            a, aw = slopes(v, w, g, k, current, held)
            b, bw = slopes(v + h / 2 * a, w + h / 2 * aw, mid_g, mid_k, current, held)
            c, cw = slopes(v + h / 2 * b, w + h / 2 * bw, mid_g, mid_k, current, held)
            d, dw = slopes(v + h * c, w + h * cw, end_g, end_k, current, held)
            v += h / 6 * (a + 2 * b + 2 * c + d)
            w += h / 6 * (aw + 2 * bw + 2 * cw + dw)
            g, k, d_ex, d_in = end_g, end_k, d_ex * part_ex, d_in * part_in
            if v >= peak and not held:
                v, w, spike = p["v_reset_mv"], w + p["b_pa"], True
                held = held_steps > 0
        if spike:
            s["refractory"] = held_steps
        elif s["refractory"] > 0:
            s["refractory"] -= 1
        s["v_mv"], s["w_pa"], s["g_ex_ns"], s["g_in_ns"] = v, w, g, k
        if "slope_ex" in s:
            s["slope_ex"] = d_ex + e / p["tau_syn_ex_ms"] * positive
            s["slope_in"] = d_in - e / p["tau_syn_in_ms"] * negative
        else:
            s["g_ex_ns"] += positive
            s["g_in_ns"] -= negative
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


def lif_cond_beta(p: dict[str, float], dt: float, substeps: int) -> Step:
    """Conductances that rise and decay (alpha functions with one time constant); Runge-Kutta with dt / substeps."""
    held_steps = round(p["refractory_ms"] / dt)
    h = dt / substeps
    taus, kicks = [], []
    for kind in ("ex", "in"):
        alpha = f"tau_syn_{kind}_ms"
        rise, decay = (p[alpha if alpha in p else f"tau_{what}_{kind}_ms"] for what in ("rise", "decay"))
        taus.append((rise, decay))
        if rise == decay:
            kicks.append(e / decay)
        else:
            peak = log(decay / rise) * rise * decay / (decay - rise)
            kicks.append((1 / rise - 1 / decay) / (exp(-peak / decay) - exp(-peak / rise)))
    (rise_ex, decay_ex), (rise_in, decay_in) = taus

    def slopes(y: list[float], current: float) -> list[float]:
        v, d_ex, g_ex, d_in, g_in = y
        leak = p["g_leak_ns"] * (p["e_rest_mv"] - v)
        flow = leak + g_ex * (p["e_ex_mv"] - v) + g_in * (p["e_in_mv"] - v) + current
        return [flow / p["c_m_pf"], -d_ex / decay_ex, d_ex - g_ex / rise_ex, -d_in / decay_in, d_in - g_in / rise_in]

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        y = [s["v_mv"], s["slope_ex"], s["g_ex_ns"], s["slope_in"], s["g_in_ns"]]
        held = s["refractory"] > 0
        for _ in range(substeps):
            y = runge_kutta(slopes, y, h, current)
            y[0] = s["v_mv"] if held else y[0]
        s["before_reset"] = y[0]
        s["v_mv"], s["slope_ex"], s["g_ex_ns"], s["slope_in"], s["g_in_ns"] = y
        s["slope_ex"] += kicks[0] * positive
        s["slope_in"] -= kicks[1] * negative
        return emitted(s, p, held, held_steps)

    return step


def lif_nmda(p: dict[str, float], dt: float, substeps: int) -> Step:
    """AMPA (positive arrivals) and GABA (negative ones); half of the positive arrivals go to NMDA receptors, too."""
    held_steps = round(p["refractory_ms"] / dt)
    h = dt / substeps
    rise, decay = p["tau_rise_nmda_ms"], p["tau_decay_nmda_ms"]
    peak = log(decay / rise) * rise * decay / (decay - rise)
    kick = 1 / (exp(-peak / decay) - exp(-peak / rise))

    def slopes(y: list[float], current: float) -> list[float]:
        v, ampa, gaba, slow, fast = y
        unblocked = 1 / (1 + p["mg_mm"] / p["mg_half_mm"] * exp(-p["mg_slope"] * v))
        flow = p["g_leak_ns"] * (p["e_rest_mv"] - v) + (ampa + (slow - fast) * unblocked) * (p["e_ex_mv"] - v)
        flow += gaba * (p["e_in_mv"] - v) + current
        return [flow / p["c_m_pf"], -ampa / p["tau_ampa_ms"], -gaba / p["tau_gaba_ms"], -slow / decay, -fast / rise]

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        y = [s["v_mv"], s["g_ampa_ns"], s["g_gaba_ns"], s["nmda_slow_ns"], s["nmda_fast_ns"]]
        held = s["refractory"] > 0
        for _ in range(substeps):
            y = runge_kutta(slopes, y, h, current)
            y[0] = s["v_mv"] if held else y[0]
        s["before_reset"] = y[0]
        s["v_mv"], s["g_ampa_ns"], s["g_gaba_ns"], s["nmda_slow_ns"], s["nmda_fast_ns"] = y
        s["g_ampa_ns"] += positive
        s["g_gaba_ns"] -= negative
        s["nmda_slow_ns"] += kick * positive / 2
        s["nmda_fast_ns"] += kick * positive / 2
        return emitted(s, p, held, held_steps)

    return step


def qif(p: dict[str, float], dt: float, substeps: int) -> Step:
    """Quadratic; Runge-Kutta with dt / substeps."""
    held_steps = round(p["refractory_ms"] / dt)
    h = dt / substeps

    def slopes(y: list[float], current: float) -> list[float]:
        v, i_ex, i_in = y
        flow = p["k"] * (v - p["e_rest_mv"]) * (v - p["v_t_mv"]) + i_ex + i_in + current
        return [flow / p["c_m_pf"], -i_ex / p["tau_syn_ex_ms"], -i_in / p["tau_syn_in_ms"]]

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        y = [s["v_mv"], s["i_ex_pa"], s["i_in_pa"]]
        held = s["refractory"] > 0
        for _ in range(substeps):
            y = runge_kutta(slopes, y, h, current)
            y[0] = s["v_mv"] if held else min(y[0], p["v_peak_mv"])
        s["before_reset"] = y[0]
        s["v_mv"], s["i_ex_pa"], s["i_in_pa"] = y
        s["i_ex_pa"] += positive
        s["i_in_pa"] += negative
        return emitted(s, {**p, "v_threshold_mv": p["v_peak_mv"]}, held, held_steps)

    return step


def hodgkin_huxley(p: dict[str, float], dt: float, substeps: int) -> Step:
    """The gates of Traub and Miles with conductances if there is `v_t_mv`, else those of 1952 with alpha currents."""
    silent_steps = round(p["refractory_ms"] / dt)
    h = dt / substeps
    traub = "v_t_mv" in p
    tau_ex, tau_in = p["tau_syn_ex_ms"], p["tau_syn_in_ms"]

    def rates(v: float) -> list[tuple[float, float]]:
        if traub:
            u = v - p["v_t_mv"]
            return [
                (0.32 * 4 / exprel((13 - u) / 4), 0.28 * 5 / exprel((u - 40) / 5)),
                (0.128 * exp((17 - u) / 18), 4 / (1 + exp((40 - u) / 5))),
                (0.032 * 5 / exprel((15 - u) / 5), 0.5 * exp((10 - u) / 40)),
            ]
        return [
            (1 / exprel(-(v + 40) / 10), 4 * exp(-(v + 65) / 18)),
            (0.07 * exp(-(v + 65) / 20), 1 / (1 + exp(-(v + 35) / 10))),
            (0.1 / exprel(-(v + 55) / 10), 0.125 * exp(-(v + 65) / 80)),
        ]

    def slopes(y: list[float], current: float) -> list[float]:
        v, m, inactive, n, d_ex, x_ex, d_in, x_in = y
        flow = p["g_leak_ns"] * (p["e_rest_mv"] - v) + p["g_na_ns"] * m**3 * inactive * (p["e_na_mv"] - v)
        flow += p["g_k_ns"] * n**4 * (p["e_k_mv"] - v) + current
        flow += x_ex * (p["e_ex_mv"] - v) + x_in * (p["e_in_mv"] - v) if traub else x_ex + x_in
        gates = [a * (1 - x) - b * x for (a, b), x in zip(rates(v), (m, inactive, n), strict=True)]
        return [
            flow / p["c_m_pf"], *gates, -d_ex / tau_ex, d_ex - x_ex / tau_ex, -d_in / tau_in, d_in - x_in / tau_in,
        ]  # fmt: skip

    names = ("v_mv", "m", "h", "n", "slope_ex", "x_ex", "slope_in", "x_in")

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        before = s["v_mv"]
        y = [s[name] for name in names]
        for _ in range(substeps):
            y = runge_kutta(slopes, y, h, current)
        s.update(zip(names, y, strict=True))
        if traub:
            s["x_ex"] += positive
            s["x_in"] -= negative
        else:
            s["slope_ex"] += e / tau_ex * positive
            s["slope_in"] += e / tau_in * negative
        peak = p["v_t_mv"] + 30 if traub else p["v_peak_mv"]
        spike = s["refractory"] == 0 and peak <= s["v_mv"] < before
        s["refractory"] = silent_steps if spike else max(0, s["refractory"] - 1)
        return bool(spike)

    return step


def mat2(p: dict[str, float], dt: float) -> Step:
    """No reset; a threshold that is the sum of its rest and two decaying parts."""
    silent_steps = round(p["refractory_ms"] / dt)
    membrane, resistance = exp(-dt / p["tau_m_ms"]), p["tau_m_ms"] / p["c_m_pf"]

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        v = p["e_rest_mv"] + (s["v_mv"] - p["e_rest_mv"]) * membrane + resistance * (1 - membrane) * current
        for name, tau in (("i_ex_pa", p["tau_syn_ex_ms"]), ("i_in_pa", p["tau_syn_in_ms"])):
            v += s[name] * _psc(p, tau, dt)[0]
            s[name] *= exp(-dt / tau)
        s["v_mv"] = v
        s["i_ex_pa"] += positive
        s["i_in_pa"] += negative
        s["threshold_1_mv"] *= exp(-dt / p["tau_1_ms"])
        s["threshold_2_mv"] *= exp(-dt / p["tau_2_ms"])
        threshold = p["omega_mv"] + s["threshold_1_mv"] + s["threshold_2_mv"]
        spike = s["refractory"] == 0 and v >= threshold
        s["margin"] = abs(v - threshold) if s["refractory"] == 0 else 1.0
        s["refractory"] = silent_steps if spike else max(0, s["refractory"] - 1)
        if spike:
            s["threshold_1_mv"] += p["alpha_1_mv"]
            s["threshold_2_mv"] += p["alpha_2_mv"]
        return bool(spike)

    return step


def glif(p: dict[str, float], dt: float) -> Step:
    """The mechanisms are those whose parameters there are; what decays within a step is integrated in closed form."""
    held_steps = round(p["refractory_ms"] / dt)
    q = {**p, "tau_m_ms": p["c_m_pf"] / p["g_leak_ns"]}
    membrane, resistance = exp(-dt / q["tau_m_ms"]), 1 / p["g_leak_ns"]
    resets, currents, adapts = "th_spike_decay" in p, "asc_1_decay" in p, "th_voltage_decay" in p

    def step(s: State, positive: float, negative: float, current: float) -> bool:
        spike, before = False, s["v_mv"]
        s["margin"] = 1.0
        if s["refractory"] > 0:
            s["refractory"] -= 1
        else:
            drive = current
            for k in (1, 2) if currents else ():
                rate = p[f"asc_{k}_decay"]
                drive += s[f"asc_{k}_pa"] * (1 - exp(-rate * dt)) / (rate * dt)
                s[f"asc_{k}_pa"] *= exp(-rate * dt)
            u = before - p["e_rest_mv"]
            v = p["e_rest_mv"] + u * membrane + resistance * (1 - membrane) * drive
            for kind in ("ex", "in"):
                per_pa, per_slope = _psc(q, p[f"tau_syn_{kind}_ms"], dt)
                v += s[f"i_{kind}_pa"] * per_pa + s[f"slope_{kind}"] * per_slope
            threshold = p["v_threshold_mv"]
            if resets:
                s["th_spike_mv"] *= exp(-p["th_spike_decay"] * dt)
                threshold += s["th_spike_mv"]
            if adapts:
                end, a, b, g = drive * resistance, p["th_voltage_index"], p["th_voltage_decay"], 1 / q["tau_m_ms"]
                moved = a / (b - g) * (u - end) * (exp(-g * dt) - exp(-b * dt)) + a / b * end * (1 - exp(-b * dt))
                s["th_voltage_mv"] = s["th_voltage_mv"] * exp(-b * dt) + moved
                threshold += s["th_voltage_mv"]
            s["margin"] = abs(v - threshold)
            spike = v > threshold
            s["v_mv"] = v
            if spike:
                s["refractory"] = held_steps
                s["v_mv"] = (
                    p["e_rest_mv"] + p["v_reset_fraction"] * u + p["v_reset_add_mv"] if resets else p["v_reset_mv"]
                )
                if resets:
                    s["th_spike_mv"] *= exp(-p["th_spike_decay"] * p["refractory_ms"])
                    s["th_spike_mv"] += p["th_spike_add_mv"]
                for k in (1, 2) if currents else ():
                    s[f"asc_{k}_pa"] *= p[f"asc_{k}_r"] * exp(-p[f"asc_{k}_decay"] * p["refractory_ms"])
                    s[f"asc_{k}_pa"] += p[f"asc_{k}_amp_pa"]
        for kind, arrived in (("ex", positive), ("in", negative)):
            tau = p[f"tau_syn_{kind}_ms"]
            s[f"i_{kind}_pa"] = exp(-dt / tau) * (s[f"i_{kind}_pa"] + dt * s[f"slope_{kind}"])
            s[f"slope_{kind}"] = exp(-dt / tau) * s[f"slope_{kind}"] + e / tau * arrived
        return spike

    return step


def exprel(x: float) -> float:
    return 1.0 if x == 0 else expm1(x) / x


def runge_kutta(
    slopes: Callable[[list[float], float], list[float]], y: list[float], h: float, current: float
) -> list[float]:
    a = slopes(y, current)
    b = slopes([x + h / 2 * s for x, s in zip(y, a, strict=True)], current)
    c = slopes([x + h / 2 * s for x, s in zip(y, b, strict=True)], current)
    d = slopes([x + h * s for x, s in zip(y, c, strict=True)], current)
    return [x + h / 6 * (p + 2 * q + 2 * r + s) for x, p, q, r, s in zip(y, a, b, c, d, strict=True)]


def emitted(s: State, p: dict[str, float], held: bool, held_steps: int) -> bool:
    """Reset a neuron that has reached its threshold, and count its refractory steps."""
    if held:
        s["refractory"] -= 1
        s["before_reset"] = -1e9
        return False
    if s["v_mv"] >= p["v_threshold_mv"]:
        s["v_mv"], s["refractory"] = p["v_reset_mv"], held_steps
        return True
    return False
