"""Recurrent networks in NEST and here: the same connections, delays and inputs, and the same spikes.

Where NEST has the exact solution or the same rule for a step, every spike is in the same step. Where it integrates
adaptively, every neuron has as many spikes, each within a step or two of NEST's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from neuraxis.network import NeuronModel
from neuraxis.network.models import (
    adex,
    adex_cond_alpha,
    glif_1,
    glif_2,
    glif_3,
    glif_4,
    glif_5,
    hh_alpha,
    hh_cond_exp,
    hh_cond_exp_fine,
    izhikevich,
    lif_alpha_multi,
    lif_cond_alpha,
    lif_cond_beta,
    lif_cond_exp,
    lif_exp,
    lif_exp_multi,
    lif_nmda,
    mat2,
)
from tests.validation.recurrent import LEAKY, Array, Recurrent, Spikes

MULTI = {"tau_syn_1_ms": 0.5, "tau_syn_2_ms": 3.0, "tau_syn_3_ms": 20.0}


def glif(level: int, model: NeuronModel, seed: int, weight: float, current: float, **options: Any) -> Recurrent:
    """NEST has the five models as one with switches, whose currents come from generators."""
    switches = {
        "spike_dependent_threshold": level in (2, 4, 5),
        "after_spike_currents": level >= 3,
        "adapting_threshold": level == 5,
    }
    return Recurrent(
        model(tau_syn_in_ms=3.0), "glif_psc", {"t_ref": 3.8, "tau_syn": [2.0, 3.0], **switches}, seed, weight, current,
        ports="sign", has_current=False, **options,
    )  # fmt: skip


EXACT = {
    **LEAKY,
    "lif_exp": Recurrent(
        lif_exp, "iaf_psc_exp",
        {"tau_syn_ex": 0.5, "tau_syn_in": 0.5, "E_L": -65.0, "V_th": -50.0, "V_reset": -65.0, "V_m": -65.0},
        3, 160.0, 400.0,
    ),
    "lif_exp_multi": Recurrent(
        lif_exp_multi(3)(**MULTI), "iaf_psc_exp_multisynapse", {"tau_syn": [0.5, 3.0, 20.0]}, 2, 30.0, 400.0,
        ports="any",
    ),
    "lif_alpha_multi": Recurrent(
        lif_alpha_multi(3)(**MULTI), "iaf_psc_alpha_multisynapse", {"tau_syn": [0.5, 3.0, 20.0]}, 1, 20.0, 400.0,
        ports="any",
    ),
    "mat2": Recurrent(mat2, "mat2_psc_exp", {}, 7, 80.0, 450.0, n=100, steps=3000, in_degree=15),
    "glif_1": glif(1, glif_1, 3, 20.0, 300.0),
    "glif_2": glif(2, glif_2, 3, 20.0, 300.0),
    "glif_3": glif(3, glif_3, 3, 20.0, 300.0),
    "glif_4": glif(4, glif_4, 3, 20.0, 300.0),
    "glif_5": glif(5, glif_5, 3, 20.0, 300.0, n=100, steps=3000, in_degree=15),
    # Forward Euler steps in both.
    "izhikevich": Recurrent(izhikevich, "izhikevich", {}, 1, 1.0, 6.0),
}  # fmt: skip
ADAPTIVE = {
    # NEST's Runge-Kutta-Fehlberg method of fourth and fifth order, with an absolute tolerance of 1e-3 mV or less.
    "lif_cond_exp": Recurrent(lif_cond_exp, "iaf_cond_exp", {}, 3, 15.0, 350.0),
    "lif_cond_alpha": Recurrent(lif_cond_alpha, "iaf_cond_alpha", {}, 4, 8.0, 350.0, late=1),
    "lif_cond_beta": Recurrent(
        lif_cond_beta, "iaf_cond_beta",
        {"tau_rise_ex": 0.2, "tau_decay_ex": 2.0, "tau_rise_in": 0.5, "tau_decay_in": 8.0}, 1, 3.0, 350.0,
    ),
    "lif_nmda": Recurrent(
        lif_nmda(tau_rise_nmda_ms=0.0, v_threshold_mv=-55.0, v_reset_mv=-60.0), "iaf_bw_2001", {}, 1, 1.0, 400.0,
        steps=4000, ports="nmda", has_current=False,
    ),
    # Their spikes grow out of a step, and these networks amplify a shift of one step.
    "adex": Recurrent(
        adex, "aeif_cond_exp", {"gsl_error_tol": 1e-9}, 2, 4.0, 1000.0, in_degree=5, steps=1500, late=10
    ),
    "adex_cond_alpha": Recurrent(
        adex_cond_alpha, "aeif_cond_alpha", {"gsl_error_tol": 1e-9}, 1, 2.0, 1000.0, in_degree=5, steps=1500, late=10
    ),
    "hh_alpha": Recurrent(hh_alpha, "hh_psc_alpha", {}, 2, 30.0, 800.0, late=2),
    "hh_cond_exp_fine": Recurrent(hh_cond_exp_fine, "hh_cond_exp_traub", {}, 1, 1.0, 300.0, steps=1000, late=3),
}  # fmt: skip
# Of second order: its spikes drift, so that only their number is compared in the end.
FAST = Recurrent(hh_cond_exp, "hh_cond_exp_traub", {}, 1, 1.0, 300.0, steps=1000)
JOBS = {**EXACT, **ADAPTIVE, "hh_cond_exp": FAST}


@pytest.mark.parametrize("name", EXACT)
def test_every_spike_in_the_same_step(name: str, nest_results: dict[str, Any]) -> None:
    network = EXACT[name]
    assert len(network.spikes) > 200
    assert len({neuron for _, neuron in network.spikes}) > 0.8 * network.n
    assert network.spikes == nest_results[name]


@pytest.mark.parametrize("name", ADAPTIVE)
def test_as_many_spikes_at_nearly_the_same_times(name: str, nest_results: dict[str, Any]) -> None:
    network = ADAPTIVE[name]
    here, there = (trains_of(spikes, network.n) for spikes in (network.spikes, nest_results[name]))
    assert sum(map(len, there)) > 200
    assert sum(len(train) > 0 for train in there) > 0.8 * network.n
    assert [len(train) for train in here] == [len(train) for train in there]
    apart = np.abs(np.concatenate(here) - np.concatenate(there))
    assert apart.max() <= network.late
    assert np.mean(apart <= 1) > 0.8


def test_the_fast_hodgkin_huxley_neuron_drifts(nest_results: dict[str, Any]) -> None:
    """The first spikes within 0.3 ms, and the number of all within three percent."""
    here, there = (trains_of(spikes, FAST.n) for spikes in (FAST.spikes, nest_results["hh_cond_exp"]))
    first = [train[0] for train in here], [train[0] for train in there]
    assert np.abs(np.subtract(*first)).max() <= 3
    assert abs(sum(map(len, here)) - sum(map(len, there))) < 0.03 * sum(map(len, there))


def trains_of(spikes: Spikes, n: int) -> list[Array]:
    """The steps in which each neuron spiked."""
    return [np.array([step for step, neuron in spikes if neuron == one], int) for one in range(n)]
