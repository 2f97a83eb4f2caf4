"""Values of distributions for the neurons of a population, drawn when it is described.

The numbers are those of `neuraxis.engine.random`, computed by NumPy: the i-th number of a key is a hash of both, and a
key is made of (seed, purpose, population and parameter, neuron). So a neuron's value depends on nothing else, and is
the same on every machine. The table of normal variates is that of the engine, too.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from neuraxis.arguments import Floats
from neuraxis.network.arithmetic import exp, log
from neuraxis.network.distributions import Constant, Distribution, LogNormal, Normal, Uniform, Values

__all__ = ["NORMAL_CELLS", "draw", "normal_table"]

Words = NDArray[np.uint64]

PURPOSE_PARAMETER = 16  # the engine's purposes are smaller
PARAMETERS_OF_A_POPULATION = 2**16

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_OCTAVES = 32
NORMAL_CELLS = _CELLS = 64


def draw(distribution: Distribution, n: int, seed: int, population: int, parameter: int) -> Floats:
    """Return the values of a parameter (its index in the model) for the n neurons of a population.

    Parameters
    ----------
    distribution : Distribution
        What to draw from; `Values` has n of them.
    n : int
        Number of neurons.
    seed : int
        Seed of the network.
    population, parameter : int
        Index of the population in the network, and of the parameter in its model.

    Returns
    -------
    array of float64, shape (n,)

    Examples
    --------
    >>> draw(Uniform(0.0, 1.0), 3, seed=1, population=0, parameter=0).round(3)
    array([0.687, 0.402, 0.339])
    """
    if isinstance(distribution, Values):
        return distribution.array
    if isinstance(distribution, Constant):
        return np.full(n, distribution.value)
    owner = population * PARAMETERS_OF_A_POPULATION + parameter
    keys = _keys(seed, PURPOSE_PARAMETER, owner, n)
    bits = _numbers(keys)
    if isinstance(distribution, Uniform):
        return distribution.low + (distribution.high - distribution.low) * (bits.astype(np.float64) * 2.0**-32)
    low = -np.inf if distribution.low is None else distribution.low
    high = np.inf if distribution.high is None else distribution.high
    values = _of_normal(distribution, bits)
    attempt = 0
    while distribution.outside == "redraw" and (again := np.flatnonzero((values < low) | (values > high))).size:
        attempt += 1
        values[again] = _of_normal(distribution, _numbers(_mixed(keys[again] + np.uint64(attempt))))
    return np.clip(values, low, high)


def _of_normal(distribution: Normal | LogNormal, bits: NDArray[np.uint32]) -> Floats:
    if isinstance(distribution, Normal):
        return distribution.mean + distribution.sd * _normal(bits)
    return exp(distribution.mu + distribution.sigma * _normal(bits))


def _normal(bits: NDArray[np.uint32]) -> Floats:
    """Return standard normal variates, as `neuraxis.engine.random.normal`."""
    v = (bits & np.uint32(0x7FFFFFFF)) | np.uint32(1)
    octave = 31 - np.frexp(v.astype(np.float64))[1].astype(np.int64)
    mantissa = (v << (octave + 1).astype(np.uint32)) & np.uint32(0x7FFFFFFF)
    start, change = normal_table()[octave * _CELLS + (mantissa >> np.uint32(25)).astype(np.int64)].T
    z = start + (mantissa & np.uint32(0x1FFFFFF)).astype(np.float64) * 2.0**-25 * change
    signed: Floats = np.where(bits >> np.uint32(31), -z, z)
    return signed


def _keys(seed: int, purpose: int, owner: int, n: int) -> Words:
    """Return the keys of n neurons, as `neuraxis.engine.random.key_of`."""
    key = _mixed_number((seed + _GOLDEN * purpose) & _MASK)
    key = _mixed_number(((key ^ owner) + _GOLDEN) & _MASK)
    return _mixed((np.arange(n, dtype=np.uint64) ^ np.uint64(key)) + np.uint64(_GOLDEN))


def _numbers(keys: Words) -> NDArray[np.uint32]:
    """Return the upper half of the first number of each key."""
    return (_mixed(keys + np.uint64(_GOLDEN)) >> np.uint64(32)).astype(np.uint32)


def _mixed(x: Words) -> Words:
    """Permute 64-bit integers, as `neuraxis.engine.random.mix`."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mixed_number(x: int) -> int:
    return int(_mixed(np.array([x], np.uint64))[0])


@cache
def normal_table() -> NDArray[np.float64]:
    """Return (value at the start, change over the cell) for each cell of tail probabilities.

    Cell c of an octave starts at the tail probability 2**-(octave + 2) * (1 + c / 64). The octave of p in (0, 1/2] is
    the number of leading zeros of 2p, so the relative width of cells is the same everywhere in the tail.
    """
    log_2 = log(2.0)
    logs = [log(1.0 + cell / _CELLS) for cell in range(_CELLS)]
    edges = np.empty((_OCTAVES, _CELLS + 1))
    for octave in range(_OCTAVES):
        for cell in range(_CELLS):
            p = 2.0 ** -(octave + 2) * (1.0 + cell / _CELLS)
            edges[octave, cell] = -_normal_quantile(p, logs[cell] - (octave + 2) * log_2)
        edges[octave, _CELLS] = edges[octave - 1, 0] if octave else 0.0
    table = np.empty((_OCTAVES * _CELLS, 2))
    table[:, 0] = edges[:, :-1].ravel()
    table[:, 1] = np.diff(edges, axis=1).ravel()
    table.flags.writeable = False
    return table


# Wichura's rational approximation (AS 241, PPND16): relative error about 1e-16.
_CENTRE = (
    (3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
     45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727),
    (1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
     21213.794301586595867, 39307.895800092710610, 28729.085735721942674, 5226.4952788528545610),
)  # fmt: skip
_NEAR = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
     1.27045825245236838258, 0.241780725177450611770, 0.0227238449892691845833, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
     0.148103976427480074590, 0.0151986665636164571966, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_FAR = (
    (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 0.296560571828504891230,
     0.0265321895265761230930, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 0.599832206555887937690, 0.136929880922735805310, 0.0148753612908506148525,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)  # fmt: skip


def _normal_quantile(p: float, log_p: float) -> float:
    """Return the normal quantile of p <= 1/2, given its correctly rounded logarithm."""
    q = p - 0.5
    if abs(q) <= 0.425:
        return q * _ratio(_CENTRE, 0.180625 - q * q)
    r = math.sqrt(-log_p)
    return -(_ratio(_NEAR, r - 1.6) if r <= 5.0 else _ratio(_FAR, r - 5.0))


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: float) -> float:
    above, below = 0.0, 0.0
    for a, b in zip(reversed(coefficients[0]), reversed(coefficients[1]), strict=True):
        above, below = above * x + a, below * x + b
    return above / below
