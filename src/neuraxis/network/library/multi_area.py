"""The multi-area model of Schmidt et al. (2018): 32 areas of the macaque's visual cortex, 4.13 million neurons.

M. Schmidt, R. Bakker, K. Shen, G. Bezgin, M. Diesmann and S. J. van Albada, PLOS Comput. Biol. 14(10):e1006359 (2018).
Every area is a microcircuit under 1 mm^2 of cortex (eight populations, or six if it has no layer 4), and areas are
connected by excitatory neurons with delays that grow with their distance.

The published numbers of neurons and synapses have a licence that does not permit to include them here, so they are read
from a file that a user makes (`MultiAreaParameters.load`). Without a file, `MultiAreaParameters.generated` draws areas
of the same numbers and sizes at random; its activity is not that of the published model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.errors import InvalidArgument
from neuraxis.network.distributions import Normal
from neuraxis.network.library.microcircuit import (
    EXTERNAL_INPUTS,
    FULL_RATES_HZ,
    INHIBITION,
    POPULATIONS,
    PSP_MV,
    SIZES,
    pa_per_mv,
    synapse_counts,
)
from neuraxis.network.models import lif_exp
from neuraxis.network.network import Network
from neuraxis.network.rules import FixedTotalNumber

__all__ = ["MultiAreaParameters", "multi_area"]

DT_MS, TAU_SYN_MS = 0.1, 0.5
EXTERNAL_RATE_HZ = 10.0
WEIGHT_SD = 0.1  # of the mean
DELAY_SD = 0.5  # of the mean
DELAY_MS = {"E": 1.5, "I": 0.75}  # within an area
SPEED_MM_PER_MS = 3.5  # of spikes between areas
V0_MV = (-100.0, 50.0)  # mean and standard deviation of the membrane potentials at the start
# chi > 1 makes inputs from other areas stronger by chi, and those of inhibitory neurons by twice as much.
CHI_INHIBITORY = 2.0

# The generated areas: numbers of the published model, from its article.
AREAS, NEURONS, INPUTS, SHARE_WITHIN = 32, 4_130_000, 5843.0, 0.815
SHARE_OF_PAIRS = 0.66  # of areas that are connected
SPREAD_OF_SIZES, SPREAD_OF_PATHS, RANGE_MM, RADIUS_MM = 0.35, 1.5, 9.0, 20.0


@dataclass(frozen=True, eq=False)
class MultiAreaParameters:
    """Sizes, in-degrees and weights of a model of several areas, as arrays.

    Parameters
    ----------
    names : sequence of str
        Name of each of P populations, "area/population". Those that end in "E" are excitatory, in "I" inhibitory.
    N : array, [P]
        Neurons of each population.
    K : array, [P, P + 1]
        Mean number of synapses of a neuron of population i (row) from population j (column). The last column has the
        number of inputs from outside, each a Poisson process of 10 Hz.
    W : array, [P, P + 1]
        Mean weights in pA, in the same order; negative for inhibitory sources.
    distances : array, [A, A]
        Distances in mm between areas, in the order in which areas first appear in `names`.
    rates_hz : array, [P], optional
        Rates of the full network, by which a smaller one gets the mean of its missing inputs as a current. By default
        0.5 Hz for excitatory and 3 Hz for inhibitory populations.

    Raises
    ------
    InvalidArgument
        The arrays do not fit together, or have values that are not possible.

    Examples
    --------
    >>> parameters = MultiAreaParameters.generated(areas=2)
    >>> parameters.K.shape
    (14, 15)
    """

    names: tuple[str, ...]
    N: NDArray[np.float64]
    K: NDArray[np.float64]
    W: NDArray[np.float64]
    distances: NDArray[np.float64]
    rates_hz: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(str(name) for name in self.names))
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value is not None:
                object.__setattr__(self, field.name, np.array(value, np.float64))
        if self.rates_hz is None:
            object.__setattr__(self, "rates_hz", np.where(self.excitatory, 0.5, 3.0))
        self._check()

    def _check(self) -> None:
        wrong = [name for name in self.names if name.count("/") != 1 or name[-1] not in "EI"]
        if wrong or len(set(self.names)) != len(self.names) or not self.names:
            shown = f"{wrong[0]!r} is not one" if wrong else "there are none, or two are equal"
            raise InvalidArgument(f'names: names such as "V1/23E" or "V1/4I" are expected, all different; {shown}')
        populations, areas = len(self.names), len(self.areas)
        shapes = {
            "N": (populations,), "K": (populations, populations + 1), "W": (populations, populations + 1),
            "distances": (areas, areas), "rates_hz": (populations,),
        }  # fmt: skip
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape:
                raise InvalidArgument(
                    f"{name}: shape {array.shape} instead of {shape}, with {populations} populations in {areas} areas"
                )
            if not np.isfinite(array).all() or (name != "W" and (array < 0).any()):
                raise InvalidArgument(
                    f"{name}: every value must be a number{'' if name == 'W' else ', and not negative'}"
                )
        sources = self.W[:, :-1]
        wrong_sign = (self.K[:, :-1] > 0) & np.where(self.excitatory, sources < 0, sources > 0)
        if wrong_sign.any():
            i, j = np.argwhere(wrong_sign)[0]
            raise InvalidArgument(
                f"W[{i}, {j}] is {self.W[i, j]:g} pA: excitatory populations have positive weights and inhibitory ones "
                f"negative weights, and {self.names[j]!r} is one of {'E' if self.excitatory[j] else 'I'}"
            )

    @property
    def areas(self) -> tuple[str, ...]:
        """Names of the areas, in the order of `distances`."""
        return tuple(dict.fromkeys(name.partition("/")[0] for name in self.names))

    @property
    def excitatory(self) -> NDArray[np.bool_]:
        """True for each population that is excitatory, in the order of `names`."""
        return np.array([name.endswith("E") for name in self.names])

    @property
    def area_of(self) -> NDArray[np.intp]:
        """Index of each population's area."""
        areas = self.areas
        return np.array([areas.index(name.partition("/")[0]) for name in self.names])

    @classmethod
    def load(cls, path: str | Path) -> MultiAreaParameters:
        """Read the arrays `names`, `N`, `K`, `W`, `distances` and, if there, `rates_hz` from an .npz file.

        Parameters
        ----------
        path : path
            The file.

        Returns
        -------
        MultiAreaParameters
            The parameters.

        Raises
        ------
        InvalidArgument
            The file cannot be read, lacks an array, or its arrays do not fit together.
        """
        expected = [field.name for field in fields(cls)]
        try:
            with np.load(path, allow_pickle=False) as file:
                found: dict[str, Any] = {name: file[name] for name in expected if name in file}
        except (OSError, ValueError, AttributeError, KeyError) as error:
            raise InvalidArgument(f"{path}: not an .npz file of arrays: {error}") from error
        missing = [name for name in expected if name not in found and name != "rates_hz"]
        if missing:
            raise InvalidArgument(f"{path}: no array {', '.join(missing)}; {', '.join(expected)} are read")
        return cls(**found)

    def save(self, path: str | Path) -> None:
        """Write the arrays to an .npz file, which `load` reads.

        Parameters
        ----------
        path : path
            The file.
        """
        arrays: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        np.savez_compressed(path, **(arrays | {"names": np.array(self.names)}))

    @classmethod
    def generated(cls, seed: int = 1, areas: int = AREAS) -> MultiAreaParameters:
        """Draw areas at random: as many neurons and synapses as the published model, other areas and paths.

        An area is a microcircuit of random size; the last area has no layer 4. Two thirds of the pairs of areas are
        connected, with strengths that fall with the distance and are spread over orders of magnitude.

        Parameters
        ----------
        seed : int
            Seed of the areas and paths; that of the network is another.
        areas : int
            Number of areas, at least 2.

        Returns
        -------
        MultiAreaParameters
            The parameters.

        Examples
        --------
        >>> parameters = MultiAreaParameters.generated()
        >>> len(parameters.names), round(parameters.N.sum(), -4)
        (254, np.float64(4130000.0))
        """
        if areas < 2:
            raise InvalidArgument(f"areas={areas!r}: at least 2 are expected")
        random = np.random.RandomState(seed)  # whose numbers are the same in every version of NumPy
        kinds = [(a, p) for a in range(areas) for p in range(8) if a < areas - 1 or p not in (2, 3)]
        names = tuple(f"A{a + 1:02}/{POPULATIONS[p][1:]}" for a, p in kinds)
        area, kind = np.array(kinds).T
        sizes = np.exp(SPREAD_OF_SIZES * random.standard_normal(areas))[area] * np.array(SIZES)[kind]
        neurons = np.round(sizes * (NEURONS * areas / AREAS / sizes.sum()))
        points = random.standard_normal((areas, 3))
        points *= RADIUS_MM / np.linalg.norm(points, axis=1, keepdims=True)
        distances = np.linalg.norm(points[:, None] - points, axis=2)
        inputs = np.zeros((len(names), len(names) + 1))
        inside = np.array(synapse_counts(), float) / np.array(SIZES, float)[:, None]
        within = np.where(area[:, None] == area, inside[kind[:, None], kind], 0.0)
        inputs[:, :-1] = within * (SHARE_WITHIN * INPUTS * neurons.sum() / (within.sum(1) @ neurons))
        between = _paths(random, area, kind, neurons, distances)
        inputs[:, :-1] += between * ((1.0 - SHARE_WITHIN) * INPUTS * neurons.sum() / (between.sum(1) @ neurons))
        inputs[:, -1] = np.array(EXTERNAL_INPUTS)[kind]
        return cls(names, neurons, inputs, _weights(area, kind), distances, np.array(FULL_RATES_HZ)[kind])


def _paths(
    random: np.random.RandomState,
    area: NDArray[np.intp],
    kind: NDArray[np.intp],
    neurons: NDArray[np.float64],
    distances: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return relative in-degrees of all populations from those of other areas.

    Each path has a direction in the hierarchy: forward, from layer 2/3 to layer 4; backward, from layers 5 and 6 to all
    layers but 4; or both.
    """
    areas = len(distances)
    strengths = np.exp(SPREAD_OF_PATHS * random.standard_normal((areas, areas)) - distances / RANGE_MM)
    strengths *= (random.random_sample((areas, areas)) < SHARE_OF_PAIRS) & ~np.eye(areas, dtype=bool)
    forward = random.random_sample((areas, areas))  # share of a path that comes from layer 2/3
    found = np.zeros((len(area), len(area)))
    layer, excitatory = kind // 2, kind % 2 == 0
    for target, source in np.argwhere(strengths):
        share = forward[target, source]
        above = (area == source) & excitatory & (layer == 0)
        below = (area == source) & excitatory & (layer >= 2)
        middle, outside = (area == target) & (layer == 1), (area == target) & (layer != 1)
        for sources, part in ((above, share), (below, 1.0 - share)):
            if part < 0.35:  # such a path is forward only, or backward only
                continue
            targets = middle if sources is above and share > 0.65 and middle.any() else outside
            among = neurons * sources / (neurons * sources).sum()
            found += strengths[target, source] * part * targets[:, None] * among
    return found


def _weights(area: NDArray[np.intp], kind: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return mean weights in pA: inhibition is stronger, and L4E -> L23E within an area is doubled."""
    weight_pa = PSP_MV * pa_per_mv()
    weights = np.full((len(area), len(area) + 1), weight_pa)
    weights[:, :-1][:, kind % 2 == 1] *= INHIBITION
    doubled = (area[:, None] == area) & (kind[:, None] == 0) & (kind == 2)
    weights[:, :-1][doubled] *= 2.0
    return weights


def multi_area(
    parameters: MultiAreaParameters | str | Path | None = None, scale: float = 1.0, chi: float = 1.0, seed: int = 1
) -> Network:
    """Return the multi-area model of Schmidt et al. (2018), or a network of its form with other areas.

    A smaller network keeps the mean and the variance of the inputs: weights grow by 1 / sqrt(scale), and a constant
    current replaces the mean of the missing inputs.

    Parameters
    ----------
    parameters : MultiAreaParameters or path, optional
        Sizes, in-degrees and weights, or the .npz file that has them. By default `MultiAreaParameters.generated()`.
    scale : float
        Factor of both the sizes of populations and the numbers of inputs, above 0 and at most 1.
    chi : float
        Factor of the weights between areas: 1.0 is the published ground state and 1.9 its metastable state. Other
        values than 1 make inputs of inhibitory neurons stronger by twice the factor.
    seed : int
        Seed of the network.

    Returns
    -------
    Network
        The network. A population's name is that of its area, "_" and that in the area: "V1_23E". Without probes.

    Raises
    ------
    InvalidArgument
        The parameters, the scale or chi are not possible.

    Examples
    --------
    >>> network = multi_area(scale=0.002)
    >>> len(network.populations), network["A01_23E"].model.name
    (254, 'lif_exp')
    """
    if not 0 < scale <= 1:
        raise InvalidArgument(f"scale={scale!r}: above 0 and at most 1 is expected")
    if not 0 <= chi < math.inf:
        raise InvalidArgument(f"chi={chi!r}: a number that is not negative is expected")
    if parameters is None:
        parameters = MultiAreaParameters.generated()
    elif not isinstance(parameters, MultiAreaParameters):
        parameters = MultiAreaParameters.load(parameters)
    network = Network(dt_ms=DT_MS, seed=seed)
    neuron = lif_exp(
        tau_m_ms=10.0, c_m_pf=250.0, tau_syn_ms=TAU_SYN_MS, e_rest_mv=-65.0, v_threshold_mv=-50.0, v_reset_mv=-65.0,
        refractory_ms=2.0,
    )  # fmt: skip
    sizes = [max(1, round(size * scale)) for size in parameters.N.tolist()]
    populations = [
        network.population(name.replace("/", "_"), size, neuron, v_mv=Normal(*V0_MV))
        for name, size in zip(parameters.names, sizes, strict=True)
    ]
    weights_pa, area, excitatory = _with_chi(parameters, chi), parameters.area_of, parameters.excitatory
    assert parameters.rates_hz is not None
    rates_hz = parameters.rates_hz.tolist()
    for t, target in enumerate(populations):
        external = (float(parameters.K[t, -1]), float(weights_pa[t, -1]))
        current_pa = external[0] * external[1] * EXTERNAL_RATE_HZ
        for s in np.flatnonzero(parameters.K[t, :-1]).tolist():
            inputs, mean = float(parameters.K[t, s]), float(weights_pa[t, s])
            current_pa += mean * inputs * rates_hz[s]
            synapses = round(inputs * scale * sizes[t])
            if synapses and mean:
                scaled = mean / math.sqrt(scale)
                sign = {"low": 0.0} if scaled > 0 else {"high": 0.0}
                if area[s] == area[t]:
                    delay_ms = DELAY_MS["E" if excitatory[s] else "I"]
                else:
                    delay_ms = max(DT_MS, float(parameters.distances[area[t], area[s]]) / SPEED_MM_PER_MS)
                network.connect(
                    populations[s], target, FixedTotalNumber(synapses),
                    Normal(scaled, WEIGHT_SD * abs(scaled), outside="redraw", **sign),
                    Normal(delay_ms, DELAY_SD * delay_ms, low=DT_MS, outside="redraw"),
                )  # fmt: skip
        if external[0]:
            network.poisson(target, external[0] * scale * EXTERNAL_RATE_HZ, external[1] / math.sqrt(scale))
        if missing_pa := 1e-3 * TAU_SYN_MS * (1.0 - math.sqrt(scale)) * current_pa:
            network.current(target, missing_pa)
    return network


def _with_chi(parameters: MultiAreaParameters, chi: float) -> NDArray[np.float64]:
    """Return the weights with those between areas times chi, and twice chi to inhibitory neurons if chi is not 1."""
    weights, area = parameters.W.copy(), parameters.area_of
    factors = np.full(len(area), chi)
    if chi != 1.0:
        factors[~parameters.excitatory] *= CHI_INHIBITORY
    weights[:, :-1] = np.where(area[:, None] != area, weights[:, :-1] * factors[:, None], weights[:, :-1])
    return weights
