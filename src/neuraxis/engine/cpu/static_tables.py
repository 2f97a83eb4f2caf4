"""The static synapses of a shard: packed words, ordered by source and delay.

Most synapses fit 4 bytes (*narrow*): 16 bits for the accumulator within a *band* of 65,536 accumulators, 16 bits for
the weight. Weights on the receptor's fixed-point scale may need more than 16 bits, so all weights of a source
population share a shift, which delivery applies. If its weights differ so much that the smallest would keep fewer than
12 bits, a projection is stored *wide*: 8 bytes with 32 bits for the weight. A projection whose sources have fewer
synapses than there are delays is also stored wide, because its index would be larger than the synapses: a wide word
contains the delay class, and the index has one entry per source. The form depends only on the description, so all
workers choose the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.codegen import BLOCK
from neuraxis.engine.cpu.synapses import COUNT, NARROW, TALLY_WORDS, WIDE, count_to_starts, scan_targets, sort_rows
from neuraxis.engine.encoding import EncodedDistribution, EncodedRule, encode_rule
from neuraxis.engine.placement import Slice
from neuraxis.engine.random import normal_table
from neuraxis.errors import AccumulatorOverflow, InvalidArgument
from neuraxis.network import Network, Projection, Values
from neuraxis.network.fixed_point import poisson_count_bound
from neuraxis.network.grid import array_to_steps
from neuraxis.network.network import Accumulator

__all__ = [
    "Accumulators",
    "BuildTally",
    "Scan",
    "StaticTable",
    "build_static_tables",
    "by_source",
    "class_of_delay",
    "delay_classes",
    "narrow_shifts",
]

BAND = 65536
_NO_LOAD = np.zeros(0, np.int64)
LARGEST_NARROW = 32767
LOWEST_BITS = 12
LARGEST_SEGMENT = 2**24


@dataclass(frozen=True)
class Accumulators:
    """Layout of the accumulators of a slice: by block, then by row, then by neuron.

    There is a row for each accumulator of `Network.accumulators`.
    """

    part: Slice
    first: int  # position of the first block among the shard's accumulators
    rows: int  # accumulators per neuron

    @property
    def stride(self) -> int:
        return max(1, self.rows) * BLOCK

    @property
    def blocks(self) -> int:
        return -(-self.part.n // BLOCK)

    @property
    def end(self) -> int:
        """Position after the last accumulator."""
        return self.first + self.blocks * self.stride

    def row(self, place: int) -> int:
        """Return the position of row `place` of the first block."""
        return self.first + place * BLOCK


@dataclass(frozen=True)
class StaticTable:
    """A table of synapses onto the accumulators from `first_accumulator` on."""

    index: NDArray[np.uint32]
    words: NDArray[np.uint32] | NDArray[np.uint64]
    wide: bool
    delays: NDArray[np.int64]
    first_accumulator: int
    first_rows: NDArray[np.int64]
    shifts: NDArray[np.int64]
    weights: NDArray[np.int64] = field(default_factory=lambda: _NO_LOAD)  # of networks in float64

    @property
    def synapses(self) -> int:
        return len(self.words)

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + self.words.nbytes + self.weights.nbytes


class BuildTally:
    """Counts and sums of weights that are collected while synapses are built.

    Attributes
    ----------
    tallies : array of int64, shape (projections, TALLY_WORDS)
        Clipped delays and changed weights of each projection; see `engine/cpu/synapses.py`.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self.tallies = np.zeros((len(network.projections), TALLY_WORDS), np.int64)
        self._loads: dict[tuple[int, int], tuple[Slice, NDArray[np.int64]]] = {}
        self._accumulators: dict[int, tuple[Accumulator, ...]] = {}  # by population

    def load_of(self, projection: Projection, part: Slice) -> NDArray[np.int64]:
        """Return the array for the sum of weights of each neuron of a slice; empty if no sum can overflow."""
        post = projection.post
        if post.index not in self._accumulators:
            self._accumulators[post.index] = self._network.accumulators(post)
        row, _ = self._network.accumulator_of(projection)
        if self._accumulators[post.index][row].proven:
            return _NO_LOAD
        return self._loads.setdefault((part.population, row), (part, np.zeros(part.n, np.int64)))[1]

    def check(self) -> None:
        """Raise if all synapses of a neuron together could overflow an accumulator in one step."""
        network = self._network
        for (index, row), (part, load) in self._loads.items():
            population = network.populations[index]
            total = load + sum(
                round(abs(one.weight) / 2.0 ** network.accumulator_of(one)[1])
                * math.ceil(poisson_count_bound(one.largest_rate_hz, network.dt_ms))
                for one in network.poisson_inputs
                if one.population.index == index and network.accumulator_of(one)[0] == row
            )
            worst = int(np.argmax(total))
            if total[worst] >= network.sum_limit:
                used = network.accumulators(population)[row]
                raise AccumulatorOverflow(
                    population.name, population.model.receptors[used.receptor], part.first + worst,
                    float(total[worst]) * 2.0**used.exponent, float(network.sum_limit) * 2.0**used.exponent,
                )  # fmt: skip


def build_static_tables(
    network: Network, accumulators: Sequence[Accumulators], progress: Callable[[int], None], found: BuildTally
) -> list[StaticTable]:
    """Return the tables of all static projections onto these slices."""
    shifts = narrow_shifts(network)
    tables = []
    onto: tuple[dict[int, list[Projection]], dict[int, list[Projection]]] = ({}, {})  # narrow and wide, by target
    for projection in network.projections:
        if not projection.plasticity and projection.expected_synapses > 0:
            onto[projection.index not in shifts].setdefault(projection.post.index, []).append(projection)
    for band in _bands(accumulators):
        for wide in (False, True):
            here = [one for blocks in band for one in onto[wide].get(blocks[0].part.population, ())]
            if here:
                here.sort(key=lambda one: one.index)
                tables.append(_build(network, here, band, wide, shifts, progress, found))
    return tables


def narrow_shifts(network: Network) -> dict[int, int]:
    """Return the shift of the weights of each static projection (by index) that can be stored narrow."""
    if network.is_wide:
        return {}
    needed: dict[int, int] = {}
    allowed: dict[int, int] = {}
    static = [projection for projection in network.projections if not projection.plasticity]
    for projection in static:
        lsb = 2.0 ** network.accumulator_of(projection)[1]
        largest, typical = (size / lsb for size in (projection.largest_weight, projection.typical_weight))
        if isinstance(projection.weight, Values):
            # Given weights may span many orders of magnitude, and the smallest must keep its precision.
            given = np.abs(projection.weight.array[projection.weight.array != 0])
            typical = float(given.min()) / lsb if given.size else 0.0
        needed[projection.index] = (
            max(0, math.ceil(round(math.log2(largest / LARGEST_NARROW), 6))) if largest > 0 else 0
        )
        allowed[projection.index] = math.floor(round(math.log2(typical), 6)) - LOWEST_BITS + 1 if typical > 0 else 31
    shifts: dict[int, int] = {}
    for chosen in by_source([p for p in static if needed[p.index] <= allowed[p.index]]).values():
        synapses = sum(p.expected_synapses for p in chosen) / chosen[0].pre.n
        if len(delay_classes(network, chosen)) > synapses:
            continue
        # The strongest projection determines the shift; projections that are too weak for it are stored wide.
        shift = max(needed[p.index] for p in chosen)
        shifts |= {p.index: shift for p in chosen if allowed[p.index] >= shift}
    return shifts


def by_source(projections: Iterable[Projection]) -> dict[int, list[Projection]]:
    """Return the projections from each population (its index) that is a source, in order."""
    found: dict[int, list[Projection]] = {}
    for projection in projections:
        found.setdefault(projection.pre.index, []).append(projection)
    return dict(sorted(found.items()))


def delay_classes(network: Network, projections: Sequence[Projection]) -> NDArray[np.int64]:
    """Return all delays in steps that synapses of these projections can have."""
    steps: set[int] = set()
    bounds: set[tuple[int, int]] = set()
    for projection in projections:
        delay = projection.delay_ms
        if isinstance(delay, Values) and len(delay):
            steps |= {max(1, int(s)) for s in np.unique(array_to_steps(delay.array, network.dt_ms, "delay_ms"))}
        else:
            bounds.add(network.delay_bounds_steps(projection))
    for low, high in bounds:
        steps |= set(range(low, high + 1))
    return np.array(sorted(steps), np.int64)


def class_of_delay(delays: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the class of each delay in steps, from 0 to the longest; -1 for delays that do not occur."""
    classes = np.full(int(delays.max()) + 1, -1, np.int32)
    classes[delays] = np.arange(len(delays))
    return classes


@dataclass(slots=True)
class Scan:
    """A pass over the synapses of a projection onto some targets of a slice."""

    network: Network
    projection: Projection
    rule: EncodedRule
    targets: tuple[int, int]  # first and last (exclusive), within the population
    slice_first: int
    class_of_delay: NDArray[np.int32]  # see `class_of_delay`
    index: NDArray[np.uint32]
    index_classes: int
    tally: NDArray[np.int64]  # of this projection
    inverse_lsb: float
    block_stride: int
    first_row: int = 0
    receptor_offset: int = 0
    shift: int = 0
    narrow: bool = False

    def run(
        self,
        mode: int,
        words: NDArray[np.uint32] | NDArray[np.uint64],
        plastic: tuple[NDArray[np.uint32], NDArray[np.float32]],
        load: NDArray[np.int64] = _NO_LOAD,
        wide_weights: NDArray[np.int64] = _NO_LOAD,
    ) -> None:
        """Count or store the synapses: call `synapses.scan_targets`."""
        projection, rule, dt_ms = self.projection, self.rule, self.network.dt_ms
        weight, delay = EncodedDistribution.of(projection.weight), EncodedDistribution.of(projection.delay_ms)
        room = max(1, rule.longest_row)
        scan_targets(
            mode, rule.words, np.uint64(self.network.seed), *self.targets, rule.counts, rule.listed, rule.listed_first,
            rule.listed_order, self.slice_first, weight.kind, weight.parameters, weight.values, delay.kind,
            delay.parameters, delay.values, dt_ms, self.class_of_delay, self.index_classes, self.first_row,
            self.receptor_offset, self.block_stride, self.inverse_lsb,
            float(LARGEST_NARROW if self.narrow else self.network.sum_limit - 1), self.index, words.view(np.uint32),
            *plastic, normal_table(),
            np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64), self.tally, load, self.shift,
            round(projection.largest_weight * self.inverse_lsb) if projection.has_changing_weights else 0, wide_weights,
        )  # fmt: skip


_NOT_PLASTIC = (np.empty(0, np.uint32), np.empty(0, np.float32))

# A slice with the first and the last (exclusive) of some of its blocks.
Blocks = tuple[Accumulators, int, int]


def _bands(accumulators: Sequence[Accumulators]) -> list[list[Blocks]]:
    """Cut the accumulators into bands, at block boundaries."""
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
    progress: Callable[[int], None], found: BuildTally,
) -> StaticTable:  # fmt: skip
    """Return the table of some projections onto a band."""
    delays = delay_classes(network, projections)
    classes = class_of_delay(delays)
    first_rows = np.full(len(network.populations), -1, np.int64)
    pop_shifts = np.zeros(len(network.populations), np.int64)
    rows = 0
    for source, own in by_source(projections).items():
        first_rows[source] = rows
        rows += own[0].pre.n
        pop_shifts[source] = 0 if wide else shifts[own[0].index]
    # NumPy requests huge pages for a large `empty`, not for `zeros`; access to the index is random.
    index_classes = 1 if wide else len(delays)
    index = np.empty(rows * index_classes + 2, np.uint32)
    index[:] = 0
    first_accumulator = band[0][0].first + band[0][1] * band[0][0].stride
    blocks_of = {blocks[0].part.population: blocks for blocks in band}
    work: list[tuple[Scan, Blocks]] = []
    for projection in projections:
        row, exponent = network.accumulator_of(projection)
        shift = 0 if wide else shifts[projection.index]
        blocks = blocks_of[projection.post.index]
        one, first, last = blocks
        part = one.part
        job = Scan(
            network,
            projection,
            rule=encode_rule(projection, part, network.seed),
            targets=(part.first + first * BLOCK, min(part.first + last * BLOCK, part.last)),
            slice_first=part.first,
            class_of_delay=classes,
            index=index,
            index_classes=index_classes,
            tally=found.tallies[projection.index],
            inverse_lsb=2.0 ** -(exponent + shift),
            block_stride=one.stride,
            first_row=int(first_rows[projection.pre.index]),
            receptor_offset=one.row(row) - first_accumulator,
            shift=shift,
            narrow=not wide,
        )
        work.append((job, blocks))

    def run(mode: int, words: NDArray[np.uint32] | NDArray[np.uint64]) -> None:
        for job, (one, first, last) in work:
            load = _NO_LOAD if mode == COUNT else found.load_of(job.projection, one.part)
            job.run(mode, words, _NOT_PLASTIC, load, wide_weights)
            if mode != COUNT:
                progress(round(job.projection.expected_synapses * (last - first) / max(1, one.blocks)))

    wide_weights = _NO_LOAD
    run(COUNT, _words(0, wide))
    words = _words(count_to_starts(index), wide)
    if network.is_wide:
        wide_weights = np.zeros(len(words), np.int64)
    if len(index) > 2 and int(np.diff(index[1:]).max()) >= LARGEST_SEGMENT:
        raise InvalidArgument(
            f"a neuron of {' or '.join({p.pre.name: 0 for p in projections})} has {LARGEST_SEGMENT:,} synapses "
            "or more with one delay in one shard. Use more workers, or more delays."
        )
    run(WIDE if wide else NARROW, words)
    if wide:
        sort_rows(index, words)
    if network.is_wide:  # until now, the words have the places of the weights
        wide_weights = wide_weights[words & np.uint64(0xFFFFFFFF)]
    return StaticTable(index, words, wide, delays, first_accumulator, first_rows, pop_shifts, wide_weights)


def _words(n: int, wide: bool) -> NDArray[np.uint32] | NDArray[np.uint64]:
    return np.empty(n, np.uint64) if wide else np.empty(n, np.uint32)
