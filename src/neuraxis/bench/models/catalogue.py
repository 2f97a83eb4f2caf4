"""The cases of `neuraxis bench models`: every built-in model and three networks, as each simulator writes them.

A case gives the model's parameters in neuraxis, the range of the currents, and the same model in NEST (its name and
parameters) and in Brian2 (equations). Neurons have no synapses; each has a current of its own, from below the threshold
to well above it, so that neurons are in all phases of their dynamics. Brian2's equations have numbers without units, in
mV, pA, pF and nS; times are `names_ms`.
"""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["CASES", "NETWORKS", "Brian2", "Case", "Nest"]


class Nest(msgspec.Struct, frozen=True):
    """A model of NEST with its parameters."""

    model: str
    parameters: dict[str, Any] = {}


class Brian2(msgspec.Struct, frozen=True, kw_only=True):
    """A model as equations of Brian2; `synapses` are the effects of excitatory and inhibitory spikes."""

    equations: str
    threshold: str
    reset: str
    method: str
    refractory_ms: float = 0.0
    names: dict[str, float] = {}
    names_ms: dict[str, float] = {}
    initial: dict[str, str] = {}
    synapses: tuple[str, str] | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A model, or a network of `neuraxis.network.library`, and the same in other simulators."""

    name: str
    parameters: dict[str, Any] = {}
    current_pa: tuple[float, float] | None = None
    network: bool = False
    nest: Nest | None = None
    brian2: Brian2 | None = None


_LIF = {"C_m": 250.0, "tau_m": 10.0, "E_L": -70.0, "V_th": -55.0, "V_reset": -70.0, "t_ref": 2.0}
_COND = {"C_m": 250.0, "g_L": 16.6667, "E_L": -70.0, "V_th": -55.0, "V_reset": -60.0, "E_ex": 0.0, "E_in": -85.0}
_LIF_RANGE = (300.0, 700.0)
_TWO_RECEPTORS = {**_LIF, "tau_syn": [2.0, 2.0]}


def _leaky(currents: str, more: str, **names_ms: float) -> Brian2:
    """Return a leaky integrate-and-fire neuron whose synaptic currents have the equations `more`."""
    return Brian2(
        equations=f"dv/dt = -(v + 70) / tau_m + ({currents}I) / (250 * ms) : 1 (unless refractory)\nI : 1\n{more}",
        threshold="v >= -55",
        reset="v = -70",
        method="exact",
        refractory_ms=2.0,
        names_ms={"tau_m": 10.0, **names_ms},
        initial={"v": "-70"},
    )


def _alpha_current(kind: str) -> str:
    return f"di_{kind}/dt = s_{kind} / ms - i_{kind} / tau_{kind} : 1\nds_{kind}/dt = -s_{kind} / tau_{kind} : 1\n"


_IZHIKEVICH = Brian2(
    equations="dv/dt = (0.04 * v**2 + 5 * v + 140 - u + I) / ms : 1\ndu/dt = 0.02 * (0.2 * v - u) / ms : 1\nI : 1",
    threshold="v >= 30",
    reset="v = -65; u += 8",
    method="euler",
    initial={"v": "-65", "u": "-13"},
)
_CONDUCTANCE = """\
dv/dt = (16.6667 * (-70 - v) - g_ex * v - g_in * (v + 85) + I) / (250 * ms) : 1 (unless refractory)
dg_ex/dt = -g_ex / tau_ex : 1
dg_in/dt = -g_in / tau_in : 1
I : 1
"""
_ADEX = """\
dv/dt = (30 * (-70.6 - v) + 60 * exp((v + 50.4) / 2) - g_ex * v - g_in * (v + 85) - w + I) / (281 * ms) : 1
dw/dt = (4 * (v + 70.6) - w) / tau_w : 1
dg_ex/dt = -g_ex / tau_ex : 1
dg_in/dt = -g_in / tau_in : 1
I : 1
"""

# Brian2's COBAHH. Times are in ms, so a rate is a number divided by ms.
_HH = """\
dv/dt = (leak + channels + synapses + I) / (200 * ms) : 1
leak = 10 * (-60 - v) : 1
channels = 20000 * m**3 * h * (50 - v) + 6000 * n**4 * (-90 - v) : 1
synapses = g_ex * (0 - v) + g_in * (-80 - v) : 1
dm/dt = a_m * (1 - m) - b_m * m : 1
dn/dt = a_n * (1 - n) - b_n * n : 1
dh/dt = a_h * (1 - h) - b_h * h : 1
dg_ex/dt = -g_ex / tau_ex : 1
dg_in/dt = -g_in / tau_in : 1
a_m = 0.32 * 4 / exprel((-50 - v) / 4) / ms : Hz
b_m = 0.28 * 5 / exprel((v + 23) / 5) / ms : Hz
a_h = 0.128 * exp((-46 - v) / 18) / ms : Hz
b_h = 4 / (1 + exp((-23 - v) / 5)) / ms : Hz
a_n = 0.032 * 5 / exprel((-48 - v) / 5) / ms : Hz
b_n = 0.5 * exp((-53 - v) / 40) / ms : Hz
I : 1
"""


def _hodgkin_huxley(initial: dict[str, str], synapses: tuple[str, str] | None = None) -> Brian2:
    return Brian2(
        equations=_HH, threshold="v > -20", reset="", method="exponential_euler", refractory_ms=3.0,
        names_ms={"tau_ex": 5.0, "tau_in": 10.0}, initial=initial, synapses=synapses,
    )  # fmt: skip


CASES = (
    Case(name="lif_delta", current_pa=_LIF_RANGE, nest=Nest("iaf_psc_delta", _LIF), brian2=_leaky("", "")),
    Case(
        name="lif_exp",
        parameters={"tau_syn_ms": 2.0, "e_rest_mv": -70.0, "v_threshold_mv": -55.0, "v_reset_mv": -70.0},
        current_pa=_LIF_RANGE,
        brian2=_leaky("i_syn + ", "di_syn/dt = -i_syn / tau_syn : 1", tau_syn=2.0),
    ),
    Case(
        name="lif_exp_two",
        current_pa=_LIF_RANGE,
        nest=Nest("iaf_psc_exp", {**_LIF, "tau_syn_ex": 2.0, "tau_syn_in": 2.0}),
        brian2=_leaky(
            "i_ex + i_in + ",
            "di_ex/dt = -i_ex / tau_ex : 1\ndi_in/dt = -i_in / tau_in : 1",
            tau_ex=2.0, tau_in=2.001,  # SymPy's solution for equal ones is another
        ),
    ),
    Case(
        name="lif_alpha",
        current_pa=_LIF_RANGE,
        nest=Nest("iaf_psc_alpha", {**_LIF, "tau_syn_ex": 2.0, "tau_syn_in": 2.0}),
        brian2=_leaky("i_ex + i_in + ", _alpha_current("ex") + _alpha_current("in"), tau_ex=2.0, tau_in=2.001),
    ),
    Case(
        name="lif_cond_exp",
        current_pa=_LIF_RANGE,
        nest=Nest("iaf_cond_exp", {**_COND, "tau_syn_ex": 0.2, "tau_syn_in": 2.0, "t_ref": 2.0}),
        brian2=Brian2(
            equations=_CONDUCTANCE, threshold="v >= -55", reset="v = -60", method="rk4", refractory_ms=2.0,
            names_ms={"tau_ex": 0.2, "tau_in": 2.0}, initial={"v": "-70"},
        ),
    ),
    Case(
        name="adex",
        current_pa=(400.0, 1200.0),
        nest=Nest("aeif_cond_exp"),
        brian2=Brian2(
            equations=_ADEX, threshold="v >= -40.4", reset="v = -60; w += 80.5", method="euler",
            names_ms={"tau_w": 144.0, "tau_ex": 0.2, "tau_in": 2.0}, initial={"v": "-70.6"},
        ),
    ),
    Case(name="adex_cond_alpha", current_pa=(400.0, 1200.0), nest=Nest("aeif_cond_alpha")),
    Case(
        name="hh_cond_exp",
        current_pa=(100.0, 700.0),
        nest=Nest("hh_cond_exp_traub"),
        brian2=_hodgkin_huxley({"v": "-60", "m": "0.027", "h": "0.99", "n": "0.06"}),
    ),
    Case(name="hh_cond_exp_fine", current_pa=(100.0, 700.0), nest=Nest("hh_cond_exp_traub")),
    Case(name="hh_alpha", current_pa=(300.0, 1000.0), nest=Nest("hh_psc_alpha")),
    Case(name="lif_cond_alpha", current_pa=_LIF_RANGE, nest=Nest("iaf_cond_alpha", _COND)),
    Case(
        name="lif_cond_beta",
        current_pa=_LIF_RANGE,
        nest=Nest(
            "iaf_cond_beta",
            {**_COND, "tau_rise_ex": 0.2, "tau_decay_ex": 2.0, "tau_rise_in": 0.5, "tau_decay_in": 8.0},
        ),
    ),
    Case(name="lif_nmda", nest=Nest("iaf_bw_2001")),  # NEST injects no constant currents into this one and glif_psc
    Case(name="lif_exp_multi", current_pa=_LIF_RANGE, nest=Nest("iaf_psc_exp_multisynapse", _TWO_RECEPTORS)),
    Case(name="lif_alpha_multi", current_pa=_LIF_RANGE, nest=Nest("iaf_psc_alpha_multisynapse", _TWO_RECEPTORS)),
    Case(name="mat2", current_pa=(300.0, 700.0), nest=Nest("mat2_psc_exp")),
    Case(name="qif", current_pa=(50.0, 400.0)),
    *(
        Case(
            name=f"glif_{level}",
            nest=Nest(
                "glif_psc",
                {
                    "spike_dependent_threshold": level in (2, 4, 5),
                    "after_spike_currents": level >= 3,
                    "adapting_threshold": level == 5,
                },
            ),
        )
        for level in range(1, 6)
    ),
    Case(name="pp_delta", current_pa=(0.0, 500.0), nest=Nest("pp_psc_delta")),
    Case(name="izhikevich", current_pa=(2.0, 15.0), nest=Nest("izhikevich"), brian2=_IZHIKEVICH),
    Case(
        name="poisson_source",
        brian2=Brian2(equations="", threshold="rand() < 0.001", reset="", method="euler"),
    ),
    Case(name="gamma_source"),
    Case(name="parrot", nest=Nest("parrot_neuron")),
    Case(name="spike_source"),
    Case(name="rate_linear", nest=Nest("lin_rate_ipn", {"sigma": 0.0})),
    Case(name="rate_linear_output_noise", nest=Nest("lin_rate_opn", {"sigma": 0.0})),
    Case(name="rate_tanh", nest=Nest("tanh_rate_ipn", {"sigma": 0.0})),
    Case(name="rate_tanh_each", nest=Nest("tanh_rate_ipn", {"sigma": 0.0, "linear_summation": False})),
    Case(name="rate_threshold_linear", nest=Nest("threshold_lin_rate_ipn", {"sigma": 0.0})),
    Case(
        name="rate_threshold_linear_each",
        nest=Nest("threshold_lin_rate_ipn", {"sigma": 0.0, "linear_summation": False}),
    ),
)  # fmt: skip

NETWORKS = (
    Case(
        name="cuba",
        network=True,
        brian2=Brian2(
            equations="""\
dv/dt = (g_ex + g_in - (v + 49)) / tau_m : 1 (unless refractory)
dg_ex/dt = -g_ex / tau_ex : 1
dg_in/dt = -g_in / tau_in : 1
""",
            threshold="v > -50", reset="v = -60", method="exact", refractory_ms=5.0,
            names_ms={"tau_m": 20.0, "tau_ex": 5.0, "tau_in": 10.0}, initial={"v": "-60 + rand() * 10"},
            synapses=("g_ex += 1.62", "g_in -= 9"),
        ),
    ),
    Case(
        name="coba",
        network=True,
        brian2=Brian2(
            equations="""\
dv/dt = (g_ex * (0 - v) + g_in * (-80 - v) - (v + 60)) / tau_m : 1 (unless refractory)
dg_ex/dt = -g_ex / tau_ex : 1
dg_in/dt = -g_in / tau_in : 1
""",
            threshold="v > -50", reset="v = -60", method="rk4", refractory_ms=5.0,
            names_ms={"tau_m": 20.0, "tau_ex": 5.0, "tau_in": 10.0},
            initial={"v": "-60 + rand() * 10", "g_ex": "4 + randn() * 1.5", "g_in": "20 + randn() * 12"},
            synapses=("g_ex += 0.6", "g_in += 6.7"),
        ),
    ),
    Case(
        name="cobahh",
        network=True,
        brian2=_hodgkin_huxley(
            {"v": "-65 + randn() * 5", "g_ex": "40 + randn() * 15", "g_in": "200 + randn() * 120"},
            ("g_ex += 6", "g_in += 67"),
        ),
    ),
)  # fmt: skip
