"""The cortical microcircuit of Potjans and Diesmann (2014): four layers under 1 mm^2 of cortex, 77,169 neurons.

T. C. Potjans and M. Diesmann, Cereb. Cortex 24:785 (2014). Numbers as in NEST's and INM-6's PyNEST implementations;
initial membrane potentials are the "optimized" ones of the latter, which avoid a burst at the start.
"""

from __future__ import annotations

import math
from typing import Literal

from neuraxis.errors import InvalidArgument
from neuraxis.network.arithmetic import exp, log
from neuraxis.network.distributions import Normal
from neuraxis.network.models import lif_exp
from neuraxis.network.network import Network
from neuraxis.network.rules import FixedTotalNumber

__all__ = ["POPULATIONS", "microcircuit", "synapse_counts"]

POPULATIONS = ("L23E", "L23I", "L4E", "L4I", "L5E", "L5I", "L6E", "L6I")
SIZES = (20683, 5834, 21915, 5479, 4850, 1065, 14395, 2948)
EXTERNAL_INPUTS = (1600, 1500, 2100, 1900, 2000, 1900, 2900, 2100)
V0_MEAN_MV = (-68.28, -63.16, -63.33, -63.45, -63.11, -61.66, -66.72, -61.43)
V0_SD_MV = (5.36, 4.57, 4.74, 4.94, 4.94, 4.55, 5.46, 4.48)
# Rates of the full-scale network; a smaller one gets the mean of its missing inputs as a current.
FULL_RATES_HZ = (0.903, 2.965, 4.414, 5.876, 7.569, 8.633, 1.105, 7.829)
# The probability that two neurons are connected at least once, by target (row) and source (column).
PROBABILITIES = (
    (0.1009, 0.1689, 0.0437, 0.0818, 0.0323, 0.0, 0.0076, 0.0),
    (0.1346, 0.1371, 0.0316, 0.0515, 0.0755, 0.0, 0.0042, 0.0),
    (0.0077, 0.0059, 0.0497, 0.135, 0.0067, 0.0003, 0.0453, 0.0),
    (0.0691, 0.0029, 0.0794, 0.1597, 0.0033, 0.0, 0.1057, 0.0),
    (0.1004, 0.0622, 0.0505, 0.0057, 0.0831, 0.3726, 0.0204, 0.0),
    (0.0548, 0.0269, 0.0257, 0.0022, 0.06, 0.3158, 0.0086, 0.0),
    (0.0156, 0.0066, 0.0211, 0.0166, 0.0572, 0.0197, 0.0396, 0.2252),
    (0.0364, 0.001, 0.0034, 0.0005, 0.0277, 0.008, 0.0658, 0.1443),
)

TAU_M_MS, C_M_PF, TAU_SYN_MS = 10.0, 250.0, 0.5
PSP_MV = 0.15
INHIBITION = -4.0
WEIGHT_SD = 0.1  # of the mean
EXTERNAL_RATE_HZ = 8.0
DT_MS = 0.1


def microcircuit(scale: float = 1.0, drive: Literal["poisson", "dc"] = "poisson", seed: int = 1) -> Network:
    """Return the cortical microcircuit of Potjans and Diesmann.

    A smaller network keeps the mean and the variance of the inputs: weights grow by 1 / sqrt(scale), and a constant
    current replaces the mean of the missing inputs.

    Parameters
    ----------
    scale : float
        Factor of both the sizes of populations and the numbers of inputs, above 0 and at most 1.
    drive : {"poisson", "dc"}
        External input: Poisson spikes, or their mean as a constant current.
    seed : int
        Seed of the network.

    Returns
    -------
    Network
        The network, with the eight populations `POPULATIONS` and without probes.

    Raises
    ------
    InvalidArgument
        The scale or the drive is not possible.

    Examples
    --------
    >>> microcircuit(scale=0.01)["L4E"]
    Population('L4E', 219 x lif_exp)
    """
    if not 0 < scale <= 1:
        raise InvalidArgument(f"scale={scale!r}: above 0 and at most 1 is expected")
    if drive not in ("poisson", "dc"):
        raise InvalidArgument(f"drive={drive!r}: 'poisson' or 'dc' is expected")
    network = Network(dt_ms=DT_MS, seed=seed)
    neuron = lif_exp(
        tau_m_ms=TAU_M_MS, c_m_pf=C_M_PF, tau_syn_ms=TAU_SYN_MS, e_rest_mv=-65.0, v_threshold_mv=-50.0,
        v_reset_mv=-65.0, refractory_ms=2.0,
    )  # fmt: skip
    sizes = [round(size * scale) for size in SIZES]
    populations = [
        network.population(name, size, neuron, v_mv=Normal(mean, sd))
        for name, size, mean, sd in zip(POPULATIONS, sizes, V0_MEAN_MV, V0_SD_MV, strict=True)
    ]
    full_weight = PSP_MV * pa_per_mv()
    counts = synapse_counts()
    for t, target in enumerate(populations):
        current_pa = 0.0
        for s, source in enumerate(populations):
            mean = full_weight * _strength(t, s)
            current_pa += mean * counts[t][s] / SIZES[t] * FULL_RATES_HZ[s]
            if counts[t][s]:
                scaled = mean / math.sqrt(scale)
                weight = Normal(scaled, WEIGHT_SD * abs(scaled), outside="redraw", **_sign(scaled))
                delay = (1.5, 0.75) if s % 2 == 0 else (0.75, 0.375)
                network.connect(
                    source, target, FixedTotalNumber(round(counts[t][s] * scale * scale)), weight,
                    Normal(*delay, low=DT_MS, outside="redraw"),
                )  # fmt: skip
        inputs = EXTERNAL_INPUTS[t]
        external_pa = full_weight * inputs * EXTERNAL_RATE_HZ
        if drive == "poisson":
            network.poisson(target, round(inputs * scale) * EXTERNAL_RATE_HZ, full_weight / math.sqrt(scale))
            current_pa += external_pa
        missing_pa = 1e-3 * TAU_SYN_MS * (1.0 - math.sqrt(scale)) * current_pa
        if drive == "dc":
            missing_pa += 1e-3 * TAU_SYN_MS * external_pa
        if missing_pa:
            network.current(target, missing_pa)
    return network


def synapse_counts() -> list[list[int]]:
    """Return the number of synapses of each projection at full scale, by target and source.

    This many pairs, drawn with replacement, connect two neurons at least once with the given probability.
    """
    return [
        [
            round(log(1.0 - p) / log((n_t * n_s - 1.0) / (n_t * n_s))) if p else 0
            for p, n_s in zip(row, SIZES, strict=True)
        ]
        for row, n_t in zip(PROBABILITIES, SIZES, strict=True)
    ]


def _strength(target: int, source: int) -> float:
    """Return the mean weight relative to the standard one: inhibition is stronger, L4E -> L23E is doubled."""
    if source % 2:
        return INHIBITION
    return 2.0 if (target, source) == (0, 2) else 1.0


def _sign(weight: float) -> dict[str, float]:
    return {"low": 0.0} if weight > 0 else {"high": 0.0}


def pa_per_mv() -> float:
    """Return the weight in pA whose postsynaptic potential peaks at 1 mV."""
    ratio = TAU_SYN_MS / TAU_M_MS
    peak = exp(log(ratio) / (1.0 / ratio - 1.0)) - exp(log(ratio) / (1.0 - ratio))
    return C_M_PF * (TAU_M_MS - TAU_SYN_MS) / (TAU_M_MS * TAU_SYN_MS * peak)
