"""Random numbers that do not depend on who draws them.

Everything random has a key made of (seed, purpose, what it belongs to, index), and the i-th number of a key is a hash
of both. So a worker can draw the inputs of one neuron without drawing anybody else's, in any order, and get what every
other worker would have got. The hash is the finaliser of SplitMix64, an integer permutation, the same on every machine.

Normal numbers come from a table of the inverse distribution function (`normal_table`), binary octave by binary octave,
with linear interpolation: no logarithm, no cosine, and |z| <= LARGEST_NORMAL by construction, which bounds what a
weight can be before anything is drawn.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import njit
from numba.extending import intrinsic
from numpy.typing import NDArray

from neuraxis.network.arithmetic import log

__all__ = [
    "PURPOSE_CONNECT",
    "PURPOSE_COUNT",
    "PURPOSE_INITIAL",
    "PURPOSE_STREAM",
    "PURPOSE_WEIGHT",
    "binomial",
    "key_of",
    "mix",
    "normal",
    "normal_table",
    "number",
]

_u = np.uint64
GOLDEN = _u(0x9E3779B97F4A7C15)

PURPOSE_STREAM, PURPOSE_INITIAL, PURPOSE_CONNECT, PURPOSE_COUNT, PURPOSE_WEIGHT = 1, 2, 3, 4, 5

_OCTAVES = 32
_CELLS = 64


@njit
def mix(x: Any) -> Any:
    """A permutation of the 64-bit integers whose output looks random (the finaliser of SplitMix64)."""
    x = (x ^ (x >> _u(30))) * _u(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _u(27))) * _u(0x94D049BB133111EB)
    return x ^ (x >> _u(31))


@njit
def key_of(seed: Any, purpose: Any, owner: Any, index: Any) -> Any:
    """The key of one thing: e.g. of the inputs of neuron `index` in projection `owner`."""
    key = mix(_u(seed) + GOLDEN * _u(purpose))
    key = mix((key ^ _u(owner)) + GOLDEN)
    return mix((key ^ _u(index)) + GOLDEN)


@njit
def number(key: Any, i: Any) -> Any:
    """The i-th 64-bit number of a key."""
    return mix(key + GOLDEN * _u(i + 1))


@njit
def normal(bits: Any, table: Any) -> Any:
    """A standard normal number (float64) from 32 random bits (uint32)."""
    v = (bits & np.uint32(0x7FFFFFFF)) | np.uint32(1)  # 31 bits of a tail probability in (0, 1), never 0
    octave = _leading_zeros(v) - 1
    scaled = v << np.uint32(octave + 1)  # the leading one is at bit 31
    mantissa = scaled & np.uint32(0x7FFFFFFF)
    cell = octave * _CELLS + np.int64(mantissa >> np.uint32(25))
    fraction = np.float64(mantissa & np.uint32(0x1FFFFFF)) * 2.0**-25
    z = table[cell, 0] + fraction * table[cell, 1]
    # The sign is multiplied in: a branch on a random bit would be guessed wrong every other time.
    return z * np.float64(1 - 2 * np.int64(bits >> np.uint32(31)))


@njit
def binomial(n: Any, share: Any, key: Any) -> Any:
    """How many of n trials succeed, exactly, where one succeeds with the probability share / 2^32.

    Each trial compares a random fraction with the share, bit by bit from the top; half of the trials are decided at
    each bit. The number among m undecided ones whose next bit is 1 is the number of ones in m random bits, so a draw
    takes n / 32 words and no logarithm.
    """
    successes = np.int64(0)
    undecided = np.int64(n)
    drawn = np.int64(0)
    for position in range(31, -1, -1):
        if undecided == 0:
            break
        ones = np.int64(0)
        left = undecided
        while left >= 64:
            ones += _ones(number(key, drawn))
            drawn += 1
            left -= 64
        if left > 0:
            ones += _ones(number(key, drawn) & ((_u(1) << _u(left)) - _u(1)))
            drawn += 1
        if (share >> position) & 1:
            successes += undecided - ones  # a 0 below the share's 1: less than the share
            undecided = ones
        else:
            undecided -= ones
    return successes


@cache
def normal_table() -> NDArray[np.float64]:
    """(value at the cell's start, change over the cell) for tail probabilities 2^-(octave + 2) (1 + cell / 64) ...

    A tail probability p in (0, 1/2] has its octave (the number of leading zeros of 2p) and 64 cells in it, so that
    cells stay narrow, in proportion, however far out in the tail.
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
    """The normal quantile of p <= 1/2, whose logarithm is given (correctly rounded)."""
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


@intrinsic
def _ones(typingctx: Any, value: Any) -> Any:
    """The number of ones in a 64-bit integer."""
    from numba import types

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def _leading_zeros(typingctx: Any, value: Any) -> Any:
    """The number of leading zeros of a 32-bit integer that is not 0."""
    from llvmlite import ir
    from numba import types

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))
        return builder.zext(zeros, ir.IntType(64))

    return types.int64(types.uint32), codegen
