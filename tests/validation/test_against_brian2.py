"""Examples of Brian2, written with `neuraxis.network.equations`, against what Brian2 computes.

`brian2_results.json` has Brian2's half, which `brian2_examples.py` writes; Brian2 needs NumPy 1 and is not installed
here. Brian2 computes in float64 and neuraxis in float32, so a spike near the threshold can move by a step, and chaotic
networks differ after a while: each test says how much.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.validation.brian2_examples import EXAMPLES

RESULTS: dict[str, Any] = json.loads(Path(__file__).with_name("brian2_results.json").read_text())


# Spikes that may differ (by a step; in `Brette_2004` by up to 25, near a change of the pattern), and the largest and
# the median difference of the recorded state, in mV or without a unit.
EXACT = {
    "COBAHH": (0, 2e-3, 2e-5),
    "adaptive_threshold": (0, 5e-5, 1e-5),
    "IF_curve_Hodgkin_Huxley": (0, 0.2, 5e-4),
    "phase_locking": (4, None, None),
    "frompapers/Brette_2004": (60, None, None),
    "frompapers/Brette_Gerstner_2005": (0, 5e-3, 5e-5),
    "frompapers/Rothman_Manis_2003": (None, 5e-3, 1e-4),
    "frompapers/Hindmarsh_Rose_1984": (None, 5e-3, 2e-5),
    "frompapers/Morris_Lecar_1981": (None, 2e-3, 1e-4),
    "frompapers/Wang_Buszaki_1996": (None, 0.05, 2e-4),
}


@pytest.mark.parametrize("title", EXACT)
def test_spikes_and_traces(title: str) -> None:
    """The same spikes but for a few that move by a step, and the same traces."""
    moved, largest, median = EXACT[title]
    here, there = EXAMPLES[title]().neuraxis(), RESULTS[title]
    if moved is not None:
        assert len(here["steps"]) == len(there["steps"])
        others = sorted(pairs(there) - pairs(here))
        assert len(others) <= moved
        reach = range(-25, 26) if title == "frompapers/Brette_2004" else (-1, 1)
        assert all(pairs(here) & {(step + by, one) for by in reach} for step, one in others)
    if largest is not None:
        difference = np.abs(np.array(here["trace"]) - np.array(there["trace"]))
        assert difference.max() < largest
        assert np.median(difference) < median


def test_network_of_currents() -> None:
    """4,000 neurons in a chaotic network: every spike of the first 90 ms, then all but one in 100, by a step."""
    here, there = EXAMPLES["CUBA"]().neuraxis(), RESULTS["CUBA"]
    assert pairs(here, 900) == pairs(there, 900)
    assert len(pairs(there, 900)) >= 2000
    assert len(pairs(here) & pairs(there)) > 0.99 * len(pairs(there))
    assert abs(len(pairs(here)) - len(pairs(there))) < 0.005 * len(pairs(there))


def test_rates_of_a_thousand_parameters() -> None:
    counts = np.array(EXAMPLES["IF_curve_LIF"]().neuraxis()["counts"])
    assert np.abs(counts - RESULTS["IF_curve_LIF"]["counts"]).max() <= 1
    assert abs(counts.sum() - sum(RESULTS["IF_curve_LIF"]["counts"])) <= 10


def test_firing_patterns() -> None:
    """Six patterns spike for spike; the others are irregular bursts, with the same number of spikes within a tenth."""
    title = "frompapers/Naud_et_al_2008_adex_firing_patterns"
    here, there = (pairs(one) for one in (EXAMPLES[title]().neuraxis(), RESULTS[title]))
    irregular = (5, 7)
    assert {one for one in here if one[1] not in irregular} == {one for one in there if one[1] not in irregular}
    for number in irregular:
        a, b = (len([one for one in found if one[1] == number]) for found in (here, there))
        assert abs(a - b) <= 0.1 * b


def test_noise() -> None:
    """The intervals between spikes of 2,000 noisy neurons: mean and deviation, which random numbers move by less."""
    (n, mean, deviation), (m, other_mean, other_deviation) = (
        one["intervals"] for one in (EXAMPLES["non_reliability"]().neuraxis(), RESULTS["non_reliability"])
    )
    assert n == pytest.approx(m, rel=0.005)
    assert mean == pytest.approx(other_mean, rel=0.005)
    assert deviation == pytest.approx(other_deviation, rel=0.05)


def pairs(result: dict[str, Any], until: int | None = None) -> set[tuple[int, int]]:
    """Return (step, neuron) of each spike, up to a step."""
    found = zip(result["steps"], result["ids"], strict=True)
    return {(step, one) for step, one in found if until is None or step <= until}
