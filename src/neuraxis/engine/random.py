"""Counter-based random numbers, which do not depend on the worker that draws them.

Everything random has a key made of (seed, purpose, owner, index), and the i-th number of a key is a hash of both. A
worker can therefore draw the inputs of one neuron without those of others, in any order, and gets the same numbers as
any other worker. The hash is the finaliser of SplitMix64, an integer permutation that is the same on every machine.

Normal variates are interpolated linearly in a table of the quantile function (`normal_table`), with equal cells in each
binary octave of the tail probability. This needs no logarithm or cosine, and |z| <= LARGEST_NORMAL by construction,
which bounds weights before anything is drawn. Poisson variates are compared with tables of thresholds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import intrinsic
from numpy.typing import NDArray

from neuraxis.engine.codegen import BLOCK, POISSON_SIZES, Generated, generated_poisson
from neuraxis.network.arithmetic import exp
from neuraxis.network.drawing import NORMAL_CELLS, normal_table

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
    "poisson_kernel",
    "poisson_table",
    "poisson_thresholds",
]

_u = np.uint64
GOLDEN = _u(0x9E3779B97F4A7C15)

# No literals: Numba would compile `key_of` for each of them.
PURPOSE_STREAM, PURPOSE_INITIAL, PURPOSE_CONNECT, PURPOSE_COUNT, PURPOSE_WEIGHT = map(_u, range(1, 6))


@njit
def mix(x: Any) -> Any:
    """Permute the 64-bit integers pseudo-randomly (the finaliser of SplitMix64)."""
    x = (x ^ (x >> _u(30))) * _u(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _u(27))) * _u(0x94D049BB133111EB)
    return x ^ (x >> _u(31))


@njit
def key_of(seed: Any, purpose: Any, owner: Any, index: Any) -> Any:
    """Return a key, for example of the inputs of neuron `index` in projection `owner`."""
    key = mix(_u(seed) + GOLDEN * _u(purpose))
    key = mix((key ^ _u(owner)) + GOLDEN)
    return mix((key ^ _u(index)) + GOLDEN)


@njit
def number(key: Any, i: Any) -> Any:
    """Return the i-th 64-bit number of a key."""
    return mix(key + GOLDEN * _u(i + 1))


@njit
def normal(bits: Any, table: Any) -> Any:
    """Return a standard normal variate (float64) from 32 random bits (uint32)."""
    v = (bits & np.uint32(0x7FFFFFFF)) | np.uint32(1)  # 31 bits of a tail probability in (0, 1), never 0
    octave = _leading_zeros(v) - 1
    scaled = v << np.uint32(octave + 1)  # the leading one is at bit 31
    mantissa = scaled & np.uint32(0x7FFFFFFF)
    cell = octave * NORMAL_CELLS + np.int64(mantissa >> np.uint32(25))
    fraction = np.float64(mantissa & np.uint32(0x1FFFFFF)) * 2.0**-25
    z = table[cell, 0] + fraction * table[cell, 1]
    # Multiply by the sign: a branch on a random bit would be mispredicted every other time.
    return z * np.float64(1 - 2 * np.int64(bits >> np.uint32(31)))


@njit
def binomial(n: Any, share: Any, key: Any) -> Any:
    """Return an exact binomial variate: n trials with success probability share / 2**32.

    Each trial compares a random fraction with the share, bit by bit from the top; each bit decides half of the trials.
    The number of m undecided trials whose next bit is 1 is the number of ones in m random bits, so a draw takes about
    n / 32 words and no logarithm.
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
            successes += undecided - ones  # a 0 where the share has a 1: below the share
            undecided = ones
        else:
            undecided -= ones
    return successes


def poisson_kernel(table: NDArray[Any]) -> Generated | None:
    """Return the function for a table of thresholds, not compiled yet; None for a table of means."""
    if table.dtype != np.int32:
        return None
    # The number of thresholds that suffices for all but one in ten thousand draws, rounded up to limit the kernels.
    usual = 2 + int(np.count_nonzero(table < 2**31 - 2**32 * 1e-4))
    return generated_poisson(min(usual + usual % 2, len(table)), len(table))


def poisson_table(mean: NDArray[np.float64], n: int) -> NDArray[np.generic]:
    """Return int32 thresholds if n neurons share a mean that needs few; else (exp(-mean), mean) for each neuron."""
    if mean.ndim == 0:
        thresholds = poisson_thresholds(float(mean))
        if thresholds is not None:
            return thresholds
        mean = np.full(n, float(mean))
    pairs = np.zeros((-(-n // BLOCK) * BLOCK, 2))
    decays = {float(m): exp(-float(m)) for m in np.unique(mean)}
    pairs[:n, 0] = [decays[float(m)] for m in mean]
    pairs[:n, 1] = mean
    return pairs


def poisson_thresholds(mean: float) -> NDArray[np.int32] | None:
    """Return thresholds such that the number exceeded by a 32-bit draw is Poisson distributed; None if too many."""
    if mean > 30:
        return None
    probability = exp(-mean)
    reached = probability
    thresholds: list[int] = []
    while reached * 2.0**32 <= 2.0**32 - 1 and len(thresholds) <= POISSON_SIZES[-1]:
        thresholds.append(int(np.ceil(reached * 2.0**32)) - 2**31 - 1)
        probability *= mean / len(thresholds)
        reached += probability
        if probability < 1e-12 and reached > 0.5:
            break
    size = next((size for size in POISSON_SIZES if size >= len(thresholds)), None)
    if size is None:
        return None
    return np.array(thresholds + [2**31 - 1] * (size - len(thresholds)), np.int32)


@intrinsic
def _ones(typingctx: Any, value: Any) -> Any:
    """Count the ones of a 64-bit integer."""
    from numba import types

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def _leading_zeros(typingctx: Any, value: Any) -> Any:
    """Count the leading zeros of a 32-bit integer other than 0."""
    from llvmlite import ir
    from numba import types

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))
        return builder.zext(zeros, ir.IntType(64))

    return types.int64(types.uint32), codegen
