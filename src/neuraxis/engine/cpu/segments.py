"""The length of segments that a description leads to, and the choice of what a segment is.

A *segment* is what the calendar holds: synapses of one source that are delivered together. Each costs a lookup, an
entry in the calendar and an access to a random place in memory, so short ones are slow. If the synapses of a source
have one delay or few, a segment holds those with the same delay, and adds to the accumulators of the present step.
Where that would leave about one synapse to a segment, it holds the synapses of a *window* of delays (8 to 256 steps)
instead. Each synapse then stores its place in the window, and adds to a ring of accumulators with a slot for each of
these steps (`engine/cpu/windows.py`).

A shard decides for each source population and delay, from the expected number of other synapses in the segment of a
synapse. Results do not depend on it, so shards may decide differently.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.codegen import BLOCK
from neuraxis.network import Constant, LogNormal, Network, Normal, Projection, Uniform
from neuraxis.network.distributions import Distribution, Values

__all__ = ["BAND", "WindowChoice", "choose_windows", "has_several_delays"]

BAND = 65536  # accumulators, or positions of a ring, that the 16 bits of a synapse can address

SHORTEST_WINDOW_BITS, LONGEST_WINDOW_BITS = 3, 8  # a place in the window is one byte

# Measured costs in nanoseconds: a segment by delay; an entry of the index; the first synapses of a segment by window,
# which are fetched from a random place in memory, and all of a long one; and what each synapse costs more with a ring
# of at most so many bytes.
SEGMENT_NS, ENTRY_NS = 13.0, 2.0
FETCH_NS, LONG_SEGMENT_NS = 2.0, 60.0
RING_NS = ((1 << 20, 1.0), (1 << 21, 1.5), (1 << 22, 2.0), (1 << 25, 5.0), (1 << 62, 8.0))
# Windows are used where they make deliveries faster by at least this factor.
WORTHWHILE = 1.5
# A ring takes at most this many bytes, or as many for each synapse of the shard.
LARGEST_RING, RING_BYTES_A_SYNAPSE = 1 << 24, 4

_DRAWS = 4096


@dataclass(frozen=True)
class WindowChoice:
    """The projections of a shard that are delivered by windows of 2**bits delays."""

    bits: int
    projections: frozenset[int]  # indices


_NO_WINDOWS = WindowChoice(0, frozenset())


def has_several_delays(network: Network) -> bool:
    """Return True if static synapses of one population have several delays, so that a shard may use windows."""
    found: dict[int, tuple[int, int]] = {}
    for projection in network.projections:
        if not projection.plasticity:
            low, high = network.delay_bounds_steps(projection)
            if low != high or found.setdefault(projection.pre.index, (low, high)) != (low, high):
                return True
    return False


def choose_windows(network: Network, projections: Sequence[Projection], held: Mapping[int, int]) -> WindowChoice:
    """Choose the window of a shard, and the projections that use it.

    Parameters
    ----------
    network : Network
        The whole network.
    projections : sequence of Projection
        Its static projections.
    held : mapping of int to int
        The shard's number of neurons of each population (by index).
    """
    here = [p for p in projections if held.get(p.post.index) and p.expected_synapses > 0]
    if not here:
        return _NO_WINDOWS
    kinds: dict[tuple[object, ...], Distribution] = {}
    kind_of = np.empty(len(here), np.int64)
    places: dict[tuple[object, ...], int] = {}
    for i, projection in enumerate(here):
        key = _kind(projection.delay_ms, network.dt_ms)
        kinds.setdefault(key, projection.delay_ms)
        kind_of[i] = places.setdefault(key, len(places))
    steps = [_typical_steps(delay, network.dt_ms) for delay in kinds.values()]
    lowest, longest = min(int(one.min()) for one in steps), max(int(one.max()) for one in steps)
    if lowest == longest:
        return _NO_WINDOWS
    columns = longest - lowest + 1
    shares = np.stack([np.bincount(one - lowest, minlength=columns) / len(one) for one in steps])
    sources = {index: row for row, index in enumerate(sorted({p.pre.index for p in here}))}
    source_of = np.array([sources[p.pre.index] for p in here])
    synapses = np.array([p.expected_synapses * held[p.post.index] / p.post.n for p in here])
    events = np.zeros((len(sources), len(kinds)))  # synapses by source population and kind of delay
    np.add.at(events, (source_of, kind_of), synapses)
    sizes = np.array([network.populations[index].n for index in sources], float)
    density = events / sizes[:, None] @ shares  # synapses of a source by delay

    rows = {
        index: max(1, len(network.accumulators(network.populations[index]))) for index in {p.post.index for p in here}
    }
    positions = sum(held[index] * row for index, row in rows.items())
    in_blocks = sum(-(-held[index] // BLOCK) * BLOCK * row for index, row in rows.items())
    step_bytes = positions * (8 if network.is_wide else 4)
    most_bytes = max(LARGEST_RING, RING_BYTES_A_SYNAPSE * float(synapses.sum()))
    # The tables of each band of accumulators have an index of their own.
    entry = ENTRY_NS / np.maximum(density.sum(axis=1, keepdims=True), 1e-9)
    bands = -(-in_blocks // BAND)
    by_delay = SEGMENT_NS * _segments(density, shares)
    alone = by_delay + entry * np.count_nonzero(shares, axis=1) * bands  # if all other delays are delivered by window
    by_delay = by_delay + entry * np.count_nonzero(shares.sum(axis=0)) * bands
    best, chosen = float((events * by_delay).sum()) / WORTHWHILE, (0, by_delay < 0.0)
    for bits in range(SHORTEST_WINDOW_BITS, LONGEST_WINDOW_BITS + 1):
        ring_bytes = step_bytes << bits
        if ring_bytes > most_bytes:
            break
        starts = np.arange(0, columns, 1 << bits)
        widths = np.diff(np.append(starts, columns))
        windows = np.repeat(np.add.reduceat(density, starts, axis=1), widths, axis=1)
        segments = _segments(windows, shares)
        cost = np.minimum(LONG_SEGMENT_NS * segments, SEGMENT_NS * segments + FETCH_NS * (1.0 - segments))
        cost += entry * len(starts) * -(-positions // BAND) + next(ns for most, ns in RING_NS if ring_bytes <= most)
        worthwhile = (cost * WORTHWHILE < by_delay) & (alone * WORTHWHILE > cost)
        total = float((events * np.where(worthwhile, cost, by_delay)).sum())
        if total < best:
            best, chosen = total, (bits, worthwhile)
    bits, used = chosen
    if not bits:
        return _NO_WINDOWS
    return WindowChoice(bits, frozenset(np.array([p.index for p in here])[used[source_of, kind_of]].tolist()))


def _segments(density: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the expected number of segments for each synapse, by source population and kind of delay.

    A synapse shares its segment with a number of others whose distribution is about Poisson's.
    """
    others = np.maximum(density @ shares.T, 1e-9)
    segments: NDArray[np.float64] = -np.expm1(-others) / others
    return segments


def _kind(delay: Distribution, dt_ms: float) -> tuple[object, ...]:
    """Return a key that is the same for delays that are about the same, to within 5 percent."""
    if isinstance(delay, Values):
        return (id(delay),)
    low, high = delay.bounds()
    spread = delay.sd if isinstance(delay, Normal) else high - low
    if isinstance(delay, Constant) or spread == 0:
        return (max(1, int(low / dt_ms + 0.5)),)
    return (type(delay), *(round(20 * math.log(max(one, dt_ms) / dt_ms)) for one in (low, delay.expected(), spread)))


def _typical_steps(delay: Distribution, dt_ms: float) -> NDArray[np.int64]:
    """Return delays in steps, spread as those of a distribution are."""
    low, high = delay.bounds()
    evenly, normal = _quantiles()
    if isinstance(delay, Values):
        drawn = delay.array[:: -(-len(delay) // _DRAWS)]
    elif isinstance(delay, Uniform):
        drawn = low + (high - low) * evenly
    elif isinstance(delay, Normal):
        drawn = delay.mean + delay.sd * normal
    elif isinstance(delay, LogNormal):
        drawn = np.exp(delay.mu + delay.sigma * normal)
    else:
        drawn = np.array([low])
    if getattr(delay, "outside", "") == "redraw":
        drawn = drawn[(drawn >= low) & (drawn <= high)]
    steps: NDArray[np.int64] = np.maximum((np.clip(drawn, low, high) / dt_ms + 0.5).astype(np.int64), 1)
    return steps


@cache
def _quantiles() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return quantiles of the uniform and of the normal distribution."""
    evenly = (np.arange(_DRAWS) + 0.5) / _DRAWS
    return evenly, np.array([NormalDist().inv_cdf(one) for one in evenly])
