"""Constants that the leaky integrate-and-fire models share: the exact solution of a linear membrane over one step."""

from __future__ import annotations

from collections.abc import Mapping

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp, float32

__all__ = ["alpha_propagators", "check_positive", "current_propagator", "leak_constants", "steps"]

Parameters = Mapping[str, float | int]


def leak_constants(p: Parameters, dt_ms: float) -> dict[str, float | int]:
    """decay (of the membrane), rest (what the leak adds in a step) and per_pa (mV for a constant pA over a step)."""
    check_positive(p, "tau_m_ms")
    decay = exp(-dt_ms / p["tau_m_ms"])
    constants: dict[str, float | int] = {
        "decay": decay,
        # With the decay as the kernel has it, so that the rest is where it should be.
        "rest": float(p["e_rest_mv"] * (1.0 - float32(decay))),
        "refractory_steps": steps(p, "refractory_ms", dt_ms),
    }
    if "c_m_pf" in p:
        check_positive(p, "c_m_pf")
        constants["per_pa"] = float(p["tau_m_ms"] / p["c_m_pf"] * (1.0 - decay))
    return constants


def current_propagator(p: Parameters, tau_syn_ms: float, dt_ms: float) -> float:
    """mV that 1 pA of a synaptic current, decaying with `tau_syn_ms` from the step's start, adds by its end."""
    tau_m, c_m = p["tau_m_ms"], p["c_m_pf"]
    if abs(tau_m - tau_syn_ms) < 1e-9 * tau_m:  # the limit of equal time constants
        return float(dt_ms / c_m * exp(-dt_ms / tau_m))
    factor = tau_m * tau_syn_ms / (c_m * (tau_m - tau_syn_ms))
    return float(factor * (exp(-dt_ms / tau_m) - exp(-dt_ms / tau_syn_ms)))


def alpha_propagators(p: Parameters, tau_syn_ms: float, dt_ms: float) -> tuple[float, float]:
    """mV by the end of a step from (1 pA/ms of a current's slope variable, 1 pA of the current), alpha-shaped."""
    tau_m, c_m = p["tau_m_ms"], p["c_m_pf"]
    membrane, synapse = exp(-dt_ms / tau_m), exp(-dt_ms / tau_syn_ms)
    if abs(tau_m - tau_syn_ms) < 1e-9 * tau_m:
        return float(dt_ms * dt_ms / (2.0 * c_m) * membrane), float(dt_ms / c_m * membrane)
    difference = 1.0 / tau_syn_ms - 1.0 / tau_m
    current = (membrane - synapse) / (c_m * difference)
    slope = (membrane - synapse * (1.0 + dt_ms * difference)) / (c_m * difference * difference)
    return float(slope), float(current)


def steps(p: Parameters, name: str, dt_ms: float) -> int:
    """A time as a number of steps."""
    if p[name] < 0:
        raise InvalidArgument(f"{name}={p[name]!r}: a time cannot be negative")
    return round(p[name] / dt_ms)


def check_positive(p: Parameters, *names: str) -> None:
    for name in names:
        if not p[name] > 0:
            raise InvalidArgument(f"{name}={p[name]!r}: a number above 0 is expected")
