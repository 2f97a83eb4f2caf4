"""What a rank sees of the others between two entries into a kernel, compiled: flags, headers, statuses.

The layout of the control blocks is in `kernels`.
"""

from __future__ import annotations

from numba import njit

from neuraxis.comm.atomics import fetch_add, load, load_acquire, load_ordered, store_ordered, wake_all
from neuraxis.comm.kernels import (
    CONTROL,
    CONTROL_STRIDE,
    COUNT,
    FLAG,
    LINE_BYTES,
    RANK,
    ROUND,
    SIGNATURE,
    SIZE,
    SLEEPERS,
    STATUS,
    lengths_address,
    line_address,
)
from neuraxis.compiled import compiled

__all__ = ["count_sleeper", "flag_of", "flag_word", "get_status", "header_of", "lengths_of", "set_status"]


@compiled
def flag_word(state: int, rank: int) -> int:
    """The address of the flag of `rank` that this round waits for."""
    return line_address(state, rank, load(state + 8 * ROUND) + 1) + FLAG


@compiled
def count_sleeper(state: int, rank: int, change: int) -> int:
    """Announce (+1) or withdraw (-1) that this rank sleeps on the flags of `rank`; the flag as it is then.

    Sequentially consistent, so that either the publisher sees the sleeper or the sleeper sees the flag.
    """
    fetch_add(load(state + 8 * CONTROL) + rank * load(state + 8 * CONTROL_STRIDE) + SLEEPERS, change)
    return load_ordered(flag_word(state, rank))


@njit
def _block(state: int, rank: int) -> int:
    return load(state + 8 * CONTROL) + rank * load(state + 8 * CONTROL_STRIDE)


@compiled
def flag_of(state: int, rank: int) -> int:
    """The round that `rank` has published, as far as the current one is concerned."""
    return load_acquire(flag_word(state, rank))


@compiled
def header_of(state: int, rank: int) -> tuple[int, int]:
    """Signature and count of the call that `rank` has published for the current round."""
    line = line_address(state, rank, load(state + 8 * ROUND) + 1)
    return load(line + SIGNATURE), load(line + COUNT)


@compiled
def lengths_of(state: int, rank: int) -> tuple[int, int]:
    """How many bytes `rank` sends to this rank in the current round's operation, and expects from it."""
    lengths = lengths_address(state, rank, load(state + 8 * ROUND) + 1)
    me = load(state + 8 * RANK)
    return load(lengths + 8 * me), load(lengths + 8 * (load(state + 8 * SIZE) + me))


@compiled
def get_status(state: int, rank: int) -> int:
    """What `rank` says of itself."""
    return load_acquire(_block(state, rank) + STATUS)


@compiled
def set_status(state: int, rank: int, status: int) -> None:
    """Say of this rank that it is present, has left or has failed, and wake those who wait for it."""
    block = _block(state, rank)
    store_ordered(block + STATUS, status)
    if load_ordered(block + SLEEPERS) != 0:
        wake_all(block + FLAG)
        wake_all(block + LINE_BYTES + FLAG)
