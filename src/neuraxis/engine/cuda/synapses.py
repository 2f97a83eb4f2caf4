"""Draw the static synapses of a shard on the GPU: the same ones that the CPU would draw, cut by block and source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.device import Device, Memory, Program
from neuraxis.engine.cuda.grid import HEAD_BYTES, Grid, first_places
from neuraxis.engine.cuda.jobs import Jobs, double, most_threads, usual_threads, wide_grid
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.placement import Slice
from neuraxis.engine.static_tables import LARGEST_NARROW, narrow_shifts
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Projection

__all__ = ["Outside", "StaticSynapses", "draw_synapses"]

LARGEST_BLOCK = 2**32 - 1


@dataclass(frozen=True)
class Outside:
    """The rows of sources that other shards hold: population p's neuron i is row first[p] + i."""

    first: dict[int, int]
    rows: int

    @classmethod
    def of(cls, network: Network, slices: Sequence[Slice]) -> Outside:
        """Of the populations that are not whole in these slices and project to them; numbered from 0."""
        here = {part.population: part.n for part in slices}
        first, rows = {}, 0
        for population in network.populations:
            hears = any(
                one.pre.index == population.index and one.post.index in here for one in network.projections
            ) or any(one.population.index == population.index for one in network.modulations)
            if hears and here.get(population.index, 0) < population.n:
                first[population.index] = rows
                rows += population.n
        return cls(first, rows)


@dataclass(frozen=True)
class StaticSynapses:
    records: Memory
    words: Memory
    starts: Memory  # the address of each block's words
    rows: int
    synapses: int
    nbytes: int


def draw_synapses(
    network: Network, parts: list[NeuronPart], grid: Grid, outside: Outside, device: Device, program: Program,
    progress: Callable[[int], None], clipped: NDArray[np.int64],
) -> StaticSynapses:  # fmt: skip
    """The synapses of all projections without plasticity onto these neurons. `clipped` counts the delays that were."""
    rows = grid.places + outside.rows
    record_bytes = HEAD_BYTES + grid.shape.inline * (8 if grid.shape.wide else 4)
    jobs = Jobs(network, parts, grid, device, program)
    layout = _Layout(network, parts, grid, outside)
    expected = []
    part_of = {part.part.population: part for part in parts}
    for projection in network.projections:
        part = part_of.get(projection.post.index)
        if projection.plasticity or part is None or projection.expected_synapses <= 0:
            continue
        jobs.add(projection, part, layout.words(projection, part))
        expected.append(round(projection.expected_synapses * part.part.n / projection.post.n))
    jobs.draw_in_degrees()
    counts = device.zeros(8 * grid.blocks * rows)
    records = device.empty(record_bytes * grid.blocks * rows)
    totals = device.zeros(8 * grid.blocks)
    counted = device.zeros(16)  # delays clipped, synapses
    shift_of_row = device.put(layout.shift_of_row(rows))
    common = {
        "SEGMENT_COUNTS": counts.address, "RECORDS": records.address, "TOTALS": totals.address, "ROWS": rows,
        "CLIPPED": counted.address, "SYNAPSES": counted.address + 8, "SHIFT_OF_ROW": shift_of_row.address,
    }  # fmt: skip
    described = jobs.describe(common)
    for job in described[: len(expected)]:
        program.launch("scan_projection", wide_grid(device), usual_threads(device), 0, [job])
    threads = most_threads(device)
    program.launch("place_segments", grid.blocks, threads, 8 * (threads + 1), described[:1])
    sizes = device.read(totals, np.uint64, grid.blocks).astype(np.int64)
    if sizes.max(initial=0) > LARGEST_BLOCK:
        raise InvalidArgument(f"{int(sizes.sum()):,} synapses are too many for {device.name}; use more devices")
    word_bytes = 8 if grid.shape.wide else 4
    words = device.empty(word_bytes * int(sizes.sum()))
    first = words.address + word_bytes * np.concatenate(([0], np.cumsum(sizes)[:-1]))
    starts = device.put(first.astype(np.int64))
    device.clear(counts)
    described = jobs.describe(common | {"WORDS": starts.address, "PLACING": 1})
    for job, synapses in zip(described, expected, strict=False):
        program.launch("scan_projection", wide_grid(device), usual_threads(device), 0, [job])
        progress(synapses)
    device.synchronize()
    clips, drawn = device.read(counted, np.int64, 2)
    clipped[0] += clips
    return StaticSynapses(records, words, starts, rows, int(drawn), records.nbytes + words.nbytes)


class _Layout:
    """How static synapses are packed, and the rows of their sources."""

    def __init__(self, network: Network, parts: list[NeuronPart], grid: Grid, outside: Outside) -> None:
        self._network, self._grid, self._outside = network, grid, outside
        self._first_places = first_places(parts)
        self._part_of = {part.part.population: part for part in parts}
        self._shifts = narrow_shifts(network)

    def words(self, projection: Projection, part: NeuronPart) -> dict[str, int]:
        network, pre = self._network, self._part_of.get(projection.pre.index)
        shift = self._shifts.get(projection.index, 0)
        narrow = projection.index in self._shifts
        own = (pre.part.first, pre.part.last) if pre is not None else (0, 0)
        return {
            "URGENT": int(self._grid.shape.urgent),
            "RECEPTOR": part.population.model.receptors.index(projection.receptor),
            "INVERSE_LSB": double(2.0 ** -(network.exponent(projection.post, projection.receptor) + shift)),
            "LARGEST": double(float(LARGEST_NARROW if narrow else 2**31 - 1)), "SHIFT": shift,
            "PRE_FIRST": own[0], "PRE_LAST": own[1], "PRE_PLACE": self._first_places.get(projection.pre.index, 0),
            "PRE_OUTSIDE": self._outside.first.get(projection.pre.index, 0),
        }  # fmt: skip

    def shift_of_row(self, rows: int) -> NDArray[np.uint8]:
        shifts = np.zeros(rows, np.uint8)
        for projection in self._network.projections:
            if projection.index not in self._shifts:
                continue
            pre, shift = projection.pre, self._shifts[projection.index]
            part = self._part_of.get(pre.index)
            if part is not None:
                q = self._first_places[pre.index] + np.arange(part.part.n)
                shifts[self._grid.row_of(q)] = shift
            if pre.index in self._outside.first:
                first = self._outside.first[pre.index]
                shifts[first : first + pre.n] = shift
        return shifts
