"""The static synapses of a shard: packed words, sorted by source and delay.

Most synapses fit 4 bytes (*narrow*): 16 bits name the accumulator within a *band* of 65,536 of them, 16 bits hold the
weight. The receptor's fixed-point scale leaves a weight more than 16 bits, so all weights of a source share a shift by
which they are scaled up on delivery. Where the weights of a source population differ so much that the smallest would
keep fewer than 12 bits, the projection is stored *wide*: 8 bytes, with 32 bits for the weight. So is one whose sources
have fewer synapses than there are delays, because its index would be larger than the synapses: a wide word holds
its delay class, too, and the index has one entry for each source. Which form a projection takes depends on the
description alone, so every worker decides alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.encoding import Drawn, EncodedRule, encode_rule
from neuraxis.engine.generated import BLOCK
from neuraxis.engine.placement import Slice
from neuraxis.engine.random import normal_table
from neuraxis.engine.synapses import COUNT, NARROW, WIDE, count_to_starts, scan_targets, sort_rows
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Projection, Values
from neuraxis.network.grid import array_to_steps

__all__ = ["Accumulators", "StaticTable", "build_static_tables", "delay_classes", "narrow_shifts", "scan"]

BAND = 65536
LARGEST_NARROW = 32767
LOWEST_BITS = 12
LARGEST_SEGMENT = 2**24


@dataclass(frozen=True)
class Accumulators:
    """Where the accumulators of a slice lie: block after block, and in a block receptor after receptor."""

    part: Slice
    first: int  # the place of the first block's first receptor among the shard's accumulators
    receptors: tuple[str, ...]

    @property
    def stride(self) -> int:
        return max(1, len(self.receptors)) * BLOCK

    @property
    def blocks(self) -> int:
        return -(-self.part.n // BLOCK)

    @property
    def end(self) -> int:
        """The place after the last accumulator."""
        return self.first + self.blocks * self.stride

    def receptor(self, name: str) -> int:
        """Where the first block's accumulators of a receptor start."""
        return self.first + self.receptors.index(name) * BLOCK


@dataclass(frozen=True)
class StaticTable:
    """Synapses onto the accumulators from `first_accumulator` on."""

    index: NDArray[np.uint32]
    words: NDArray[np.uint32] | NDArray[np.uint64]
    wide: bool
    delays: NDArray[np.int64]
    first_accumulator: int
    first_rows: NDArray[np.int64]
    shifts: NDArray[np.int64]

    @property
    def synapses(self) -> int:
        return len(self.words)

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + self.words.nbytes


def build_static_tables(
    network: Network, accumulators: Sequence[Accumulators], progress: Callable[[int], None], clipped: NDArray[np.int64]
) -> list[StaticTable]:
    """The tables of all projections without plasticity onto these slices. `clipped` counts the delays that were."""
    static = [projection for projection in network.projections if not projection.plasticity]
    shifts = narrow_shifts(network)
    narrow = [p for p in static if p.index in shifts]
    wide = [p for p in static if p.index not in shifts]
    tables = []
    for band in _bands(accumulators):
        tables.append(_build(network, narrow, band, False, shifts, progress, clipped))
        tables.append(_build(network, wide, band, True, shifts, progress, clipped))
    return [table for table in tables if table is not None]


def narrow_shifts(network: Network) -> dict[int, int]:
    """For each static projection (by index) that can be stored narrow: the shift of its weights."""
    needed: dict[int, int] = {}
    allowed: dict[int, int] = {}
    for projection in network.projections:
        if projection.plasticity:
            continue
        lsb = 2.0 ** network.exponent(projection.post, projection.receptor)
        contribution = projection.contribution()
        largest, typical = contribution.largest / lsb, contribution.typical / lsb
        if isinstance(projection.weight, Values):
            # Given weights may span many orders of magnitude, and each of them counts.
            given = np.abs(projection.weight.array[projection.weight.array != 0])
            typical = float(given.min()) / lsb if given.size else 0.0
        needed[projection.index] = (
            max(0, math.ceil(round(math.log2(largest / LARGEST_NARROW), 6))) if largest > 0 else 0
        )
        allowed[projection.index] = math.floor(round(math.log2(typical), 6)) - LOWEST_BITS + 1 if typical > 0 else 31
    shifts: dict[int, int] = {}
    for population in network.populations:
        own = [p.index for p in network.projections if p.pre.index == population.index and p.index in needed]
        own = [i for i in own if needed[i] <= allowed[i]]
        chosen = [network.projections[i] for i in own]
        synapses = sum(p.expected_synapses for p in chosen) / population.n
        if own and len(delay_classes(network, chosen)) > synapses:
            continue
        # The strongest projections that go together decide; those too weak for their shift are stored wide.
        shift = max((needed[i] for i in own), default=0)
        shifts |= {i: shift for i in own if allowed[i] >= shift}
    return shifts


def _log2(value: float) -> float:
    """Rounded, so that the last bit of a C library's functions does not decide what is stored how."""
    return round(math.log2(value), 6)


def delay_classes(network: Network, projections: Sequence[Projection]) -> NDArray[np.int64]:
    """Every delay in steps that synapses of these projections can have."""
    steps: set[int] = set()
    for projection in projections:
        drawn = Drawn.of(projection.delay_ms)
        if len(drawn.values):
            steps |= {max(1, int(s)) for s in np.unique(array_to_steps(drawn.values, network.dt_ms, "delay_ms"))}
        else:
            low, high = network.delay_bounds_steps(projection)
            steps |= set(range(low, high + 1))
    return np.array(sorted(steps), np.int64)


def scan(
    mode: int,
    network: Network,
    projection: Projection,
    rule: EncodedRule,
    targets: tuple[int, int],  # of the population
    slice_first: int,
    delays: NDArray[np.int64],
    index_classes: int,
    first_row: int,
    receptor_offset: int,
    block_stride: int,
    inverse_lsb: float,
    index: NDArray[np.uint32],
    words: NDArray[np.uint32] | NDArray[np.uint64],
    plastic: tuple[NDArray[np.uint32], NDArray[np.float32]],
    clipped: NDArray[np.int64],
) -> None:
    """Count, or put in place, the synapses of a projection onto some targets: `synapses.scan_targets`, from objects."""
    weight, delay = Drawn.of(projection.weight), Drawn.of(projection.delay_ms)
    class_of_delay = np.full(int(delays.max()) + 1, -1, np.int32)
    class_of_delay[delays] = np.arange(len(delays))
    room = max(1, rule.longest_row)
    scan_targets(
        mode, rule.words, np.uint64(network.seed), *targets, rule.counts, rule.listed, rule.listed_first,
        rule.listed_order, slice_first, weight.kind, weight.parameters, weight.values, delay.kind, delay.parameters,
        delay.values, network.dt_ms, class_of_delay, index_classes, first_row, receptor_offset, block_stride,
        inverse_lsb, float(LARGEST_NARROW if mode == NARROW else 2**31 - 1), index, words, *plastic, normal_table(),
        np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64), clipped,
    )  # fmt: skip


_NOT_PLASTIC = (np.empty(0, np.uint32), np.empty(0, np.float32))

# A slice with the first and the last (exclusive) of its blocks that are meant.
Blocks = tuple[Accumulators, int, int]


def _bands(accumulators: Sequence[Accumulators]) -> list[list[Blocks]]:
    """The accumulators cut into bands, at block boundaries."""
    bands: list[list[Blocks]] = []
    room = 0
    for one in accumulators:
        first = 0
        while first < one.blocks:
            if room < one.stride:
                bands.append([])
                room = BAND
            last = min(one.blocks, first + room // one.stride)
            bands[-1].append((one, first, last))
            room -= (last - first) * one.stride
            first = last
    return bands


def _build(
    network: Network, projections: Sequence[Projection], band: Sequence[Blocks], wide: bool, shifts: dict[int, int],
    progress: Callable[[int], None], clipped: NDArray[np.int64],
) -> StaticTable | None:  # fmt: skip
    """One table, or None if no synapse can be in it."""
    posts = {blocks[0].part.population for blocks in band}
    projections = [p for p in projections if p.post.index in posts and p.expected_synapses > 0]
    if not projections or not band:
        return None
    delays = delay_classes(network, projections)
    first_rows = np.full(len(network.populations), -1, np.int64)
    pop_shifts = np.zeros(len(network.populations), np.int64)
    rows = 0
    for population in network.populations:
        own = [p for p in projections if p.pre.index == population.index]
        if own:
            first_rows[population.index] = rows
            rows += population.n
            pop_shifts[population.index] = 0 if wide else shifts[own[0].index]
    # NumPy asks for huge pages for a large `empty`, not for `zeros`, and this is written all over the place.
    index_classes = 1 if wide else len(delays)
    index = np.empty(rows * index_classes + 2, np.uint32)
    index[:] = 0
    first_accumulator = band[0][0].first + band[0][1] * band[0][0].stride
    work = [
        (projection, one, first, last, encode_rule(projection, one.part, network.seed))
        for projection in projections
        for one, first, last in band
        if one.part.population == projection.post.index
    ]

    def run(mode: int, words: NDArray[np.uint32] | NDArray[np.uint64]) -> None:
        for projection, one, first, last, rule in work:
            shift = 0 if wide else shifts[projection.index]
            part = one.part
            scan(
                mode, network, projection, rule,
                (part.first + first * BLOCK, min(part.first + last * BLOCK, part.last)), part.first, delays,
                index_classes, int(first_rows[projection.pre.index]),
                one.receptor(projection.receptor) - first_accumulator, one.stride,
                2.0 ** -(network.exponent(projection.post, projection.receptor) + shift), index, words,
                _NOT_PLASTIC, clipped,
            )  # fmt: skip
            if mode != COUNT:
                progress(round(projection.expected_synapses * (last - first) / max(1, one.blocks)))

    run(COUNT, _words(0, wide))
    words = _words(count_to_starts(index), wide)
    if len(index) > 2 and int(np.diff(index[1:]).max()) >= LARGEST_SEGMENT:
        raise InvalidArgument(
            f"a neuron of {' or '.join({p.pre.name: 0 for p in projections})} has {LARGEST_SEGMENT:,} synapses "
            "or more with one delay in one shard; use more workers, or more delays"
        )
    run(WIDE if wide else NARROW, words)
    if wide:
        sort_rows(index, words)
    return StaticTable(index, words, wide, delays, first_accumulator, first_rows, pop_shifts)


def _words(n: int, wide: bool) -> NDArray[np.uint32] | NDArray[np.uint64]:
    return np.empty(n, np.uint64) if wide else np.empty(n, np.uint32)
