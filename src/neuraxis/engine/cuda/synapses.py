"""Draw the static synapses of a shard on the GPU: the same ones as on the CPU, ordered by block and source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cpu.static_tables import LARGEST_NARROW, BuildTally, narrow_shifts
from neuraxis.engine.cuda.device import Device, Memory, Program
from neuraxis.engine.cuda.grid import HEAD_BYTES, Grid, first_places
from neuraxis.engine.cuda.tables import JOB, TALLY, TREE, TREE_LEVEL
from neuraxis.engine.encoding import EncodedDistribution, encode_rule
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.placement import Slice
from neuraxis.engine.random import normal_table
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Projection
from neuraxis.network.rules import FixedInDegree, FixedTotalNumber

__all__ = [
    "DeviceBuildTally",
    "Jobs",
    "Outside",
    "StaticSynapses",
    "draw_synapses",
    "most_threads",
    "usual_threads",
    "wide_grid",
]

LARGEST_BLOCK = 2**32 - 1
_THREADS = 256
_BLOCKS_FOR_EACH_MULTIPROCESSOR = 8
_FIRST_ROOM, _LARGEST_ROOM, _ALIGNED = 1 << 12, 1 << 20, 16  # bytes, for small arrays that are copied together


@dataclass(frozen=True)
class Outside:
    """Rows of source neurons on other shards: neuron i of population p has row first[p] + i."""

    first: dict[int, int]
    rows: int

    @classmethod
    def of(cls, network: Network, slices: Sequence[Slice]) -> Outside:
        """Return the rows of populations that project to these slices and are not complete in them, from row 0."""
        here = {part.population: part.n for part in slices}
        read = {one.pre.index for one in network.projections if one.post.index in here}
        read |= {one.population.index for one in network.modulations}
        first, rows = {}, 0
        for population in network.populations:
            if population.index in read and here.get(population.index, 0) < population.n:
                first[population.index] = rows
                rows += population.n
        return cls(first, rows)


@dataclass(frozen=True)
class StaticSynapses:
    records: Memory
    words: Memory
    starts: Memory  # addresses of the words of each block
    rows: int
    synapses: int
    nbytes: int


def draw_synapses(
    network: Network, parts: list[NeuronPart], grid: Grid, outside: Outside, device: Device, program: Program,
    progress: Callable[[int], None], found: BuildTally,
) -> StaticSynapses:  # fmt: skip
    """Draw the synapses of all static projections onto these neurons."""
    rows = grid.places + outside.rows
    record_bytes = HEAD_BYTES + grid.shape.inline * (8 if grid.shape.wide else 4)
    jobs = Jobs(network, parts, grid, device, program)
    tally = DeviceBuildTally(network, found, device)
    layout = _Layout(network, parts, grid, outside)
    expected = 0
    part_of = {part.part.population: part for part in parts}
    for projection in network.projections:
        part = part_of.get(projection.post.index)
        if projection.plasticity or part is None or projection.expected_synapses <= 0:
            continue
        jobs.add(projection, part, layout.fields(projection, part) | tally.fields(projection, part.part))
        expected += round(projection.expected_synapses * part.part.n / projection.post.n)
    jobs.draw_in_degrees()
    counts = device.zeros(8 * grid.blocks * rows)
    records = device.empty(record_bytes * grid.blocks * rows)
    totals = device.zeros(8 * grid.blocks)
    counted = device.zeros(8)
    shift_of_row = device.put(layout.shift_of_row(rows))
    common = {
        "segment_counts": counts.address, "records": records.address, "totals": totals.address, "rows": rows,
        "synapses": counted.address, "shift_of_row": shift_of_row.address,
    }  # fmt: skip
    described = jobs.describe(common)
    jobs.scan(described)
    threads = most_threads(device)
    program.launch("place_segments", grid.blocks, threads, 8 * (threads + 1), [described])
    sizes = device.read(totals, np.uint64, grid.blocks).astype(np.int64)
    if sizes.max(initial=0) > LARGEST_BLOCK:
        raise InvalidArgument(f"{int(sizes.sum()):,} synapses are too many for {device.name}. Use more devices.")
    word_bytes = 8 if grid.shape.wide else 4
    words = device.empty(word_bytes * int(sizes.sum()))
    first = words.address + word_bytes * np.concatenate(([0], np.cumsum(sizes)[:-1]))
    starts = device.put(first.astype(np.int64))
    device.clear(counts)
    jobs.scan(jobs.describe(common | {"words": starts.address, "storing": 1}))
    device.synchronize()
    progress(expected)
    tally.take()
    drawn = int(device.read(counted, np.int64, 1)[0])
    return StaticSynapses(records, words, starts, rows, drawn, records.nbytes + words.nbytes)


class _Layout:
    """Packing of static synapses, and the rows of their sources."""

    def __init__(self, network: Network, parts: list[NeuronPart], grid: Grid, outside: Outside) -> None:
        self._network, self._grid, self._outside = network, grid, outside
        self._first_places = first_places(parts)
        self._part_of = {part.part.population: part for part in parts}
        self._shifts = narrow_shifts(network)

    def fields(self, projection: Projection, part: NeuronPart) -> dict[str, Any]:
        pre = self._part_of.get(projection.pre.index)
        row, exponent = self._network.accumulator_of(projection)
        shift = self._shifts.get(projection.index, 0)
        narrow = projection.index in self._shifts
        own = (pre.part.first, pre.part.last) if pre is not None else (0, 0)
        return {
            "urgent": int(self._grid.shape.urgent),
            "receptor": row,
            "inverse_lsb": 2.0 ** -(exponent + shift),
            "largest": LARGEST_NARROW if narrow else 2**31 - 1, "shift": shift,
            "pre_first": own[0], "pre_last": own[1], "pre_place": self._first_places.get(projection.pre.index, 0),
            "pre_outside": self._outside.first.get(projection.pre.index, 0),
        }  # fmt: skip

    def shift_of_row(self, rows: int) -> NDArray[np.uint8]:
        shifts = np.zeros(rows, np.uint8)
        projections = self._network.projections
        # All projections from one population share the shift.
        shift_of = {projections[index].pre.index: shift for index, shift in self._shifts.items()}
        for source, shift in shift_of.items():
            part = self._part_of.get(source)
            if part is not None:
                q = self._first_places[source] + np.arange(part.part.n)
                shifts[self._grid.row_of(q)] = shift
            if source in self._outside.first:
                first = self._outside.first[source]
                shifts[first : first + self._network.populations[source].n] = shift
        return shifts


def usual_threads(device: Device) -> int:
    return _THREADS if device.warp == 32 else 4 * device.warp


def most_threads(device: Device) -> int:
    """Return the threads for kernels that run one thread block per block of the grid."""
    return 1024 if device.warp == 32 else 4 * device.warp


def wide_grid(device: Device) -> int:
    return device.multiprocessors * _BLOCKS_FOR_EACH_MULTIPROCESSOR


class Jobs:
    """Projections to draw, as rows for the kernels; owns the memory that the rows point to."""

    def __init__(self, network: Network, parts: list[NeuronPart], grid: Grid, device: Device, program: Program) -> None:
        self.device, self.program = device, program
        self._network, self._grid = network, grid
        self._first_places = first_places(parts)
        self._kept: list[Memory] = []
        # Arrays that are copied together, and the memory that waits for them.
        self._room, self._used, self._next_room = np.zeros(0, np.uint8), 0, _FIRST_ROOM
        self._collected: Memory | None = None
        self._jobs: list[dict[str, Any]] = []
        self._trees: list[tuple[Projection, dict[str, Any]]] = []  # fixed totals, and their rows in `_jobs`
        self._in_degrees: Memory | None = None
        self._normal = self.put(normal_table())

    def add(self, projection: Projection, part: NeuronPart, fields: dict[str, Any]) -> None:
        """Add a projection onto the neurons of a part; `fields` are further ones, for specific kernels."""
        self._jobs.append(self._drawing_fields(projection, part) | fields)
        if isinstance(projection.rule, FixedTotalNumber) and projection.rule.multapses:
            self._trees.append((projection, self._jobs[-1]))

    def put(self, array: NDArray[Any]) -> int:
        """Return the address of an array on the device, which `flush` copies there; 0 for an empty array."""
        if array.size == 0:
            return 0
        if array.nbytes > _LARGEST_ROOM:
            self._kept.append(self.device.put(array))
            return self._kept[-1].address
        if self._collected is None or self._used + array.nbytes > len(self._room):
            self.flush()
            self._room = np.empty(max(array.nbytes, self._next_room), np.uint8)
            self._next_room = min(2 * self._next_room, _LARGEST_ROOM)
            self._collected = self.device.empty(len(self._room))
            self._kept.append(self._collected)
        at = self._used
        self._room[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._used = -(-(at + array.nbytes) // _ALIGNED) * _ALIGNED
        return self._collected.address + at

    def flush(self) -> None:
        """Copy to the device what was put since the last time."""
        if self._collected is not None:
            self.device.write(self._collected, self._room[: self._used])
        self._collected, self._used = None, 0

    def describe(self, common: dict[str, Any]) -> int:
        """Return the address of the rows, with common fields added; one empty row if there are no projections."""
        table = np.zeros(max(1, len(self._jobs)), JOB)
        for name in self._jobs[0] if self._jobs else ():
            table[name] = [one[name] for one in self._jobs]
        for name, value in common.items():
            table[name] = value
        address = self.put(table)
        self.flush()
        return address

    def scan(self, described: int) -> None:
        """Count or store the synapses of all projections, in one launch."""
        if self._jobs:
            ends = self.put(np.cumsum([one["last"] - one["first"] for one in self._jobs]))
            self.flush()
            grid, threads = wide_grid(self.device), usual_threads(self.device)
            self.program.launch("scan_projections", grid, threads, 0, [described, ends, len(self._jobs)])

    def draw_in_degrees(self) -> None:
        """Draw the in-degrees of fixed totals, level by level of their trees."""
        if not self._trees:
            return
        device = self.device
        sizes = np.array([one.post.n for one, _ in self._trees])
        counts = device.zeros(8 * int(sizes.sum()))
        self._in_degrees = counts  # kept until the synapses are drawn
        table = np.zeros(len(self._trees), TREE)
        table["projection"] = [one.index for one, _ in self._trees]
        table["n_post"] = sizes
        table["total"] = [one.rule.n for one, _ in self._trees if isinstance(one.rule, FixedTotalNumber)]
        table["counts"] = counts.address + 8 * (np.cumsum(sizes) - sizes)
        for (_, fields), address in zip(self._trees, table["counts"].tolist(), strict=True):
            fields["counts"] = address + 8 * fields["first"]
        trees = device.put(table)
        threads = usual_threads(device)
        job = device.empty(TREE_LEVEL.itemsize)
        for level in range(int(table["n_post"].max()).bit_length()):
            device.write(job, np.array((level, len(table), trees.address, self._network.seed), TREE_LEVEL))
            warps = len(table) << level
            blocks = min(device.multiprocessors * 16, -(-warps * device.warp // threads))
            self.program.launch("split_nodes", blocks, threads, 8 * threads, [job.address])

    def _drawing_fields(self, projection: Projection, part: NeuronPart) -> dict[str, Any]:
        """Return the fields that all kernels that draw synapses read."""
        network = self._network
        rule = encode_rule(projection, part.part, network.seed, totals=False)
        kind, index, n_pre, no_self, distinct, share, groups, n_post = (int(one) for one in rule.words)
        weight, delay = EncodedDistribution.of(projection.weight), EncodedDistribution.of(projection.delay_ms)
        degree = projection.rule.k if isinstance(projection.rule, FixedInDegree) else 0
        return {
            "kind": kind, "projection": index, "n_pre": n_pre, "n_post": n_post, "no_self": no_self,
            "distinct": distinct, "share": share, "groups": groups, "seed": network.seed,
            "first": part.part.first, "last": part.part.last, "first_place": self._first_places[part.part.population],
            "counts": 0, "degree": degree, "listed": self.put(rule.listed), "listed_first": self.put(rule.listed_first),
            "listed_order": self.put(rule.listed_order), "weight_kind": weight.kind, "weight": weight.parameters,
            "weight_values": self.put(weight.values), "delay_kind": delay.kind,
            "delay": delay.parameters, "delay_values": self.put(delay.values),
            "dt": network.dt_ms, "longest": network.delay_bounds_steps(projection)[1],
            "blocks": self._grid.blocks, "cells": self._grid.cells, "normal_table": self._normal,
        }  # fmt: skip


class DeviceBuildTally:
    """The part of a `BuildTally` that kernels count on the device."""

    def __init__(self, network: Network, found: BuildTally, device: Device) -> None:
        self._network, self._found, self._device = network, found, device
        self._tallies = device.zeros(TALLY.itemsize * max(1, len(network.projections)))
        self._loads: list[tuple[NDArray[np.int64], Memory]] = []

    def fields(self, projection: Projection, part: Slice) -> dict[str, Any]:
        """Return the fields of a projection with the addresses of its counts."""
        load, most = self._found.load_of(projection, part), 0
        if projection.has_changing_weights:
            most = round(projection.largest_weight * 2.0 ** -self._network.accumulator_of(projection)[1])
        if load.size:
            self._loads.append((load, self._device.zeros(load.nbytes)))
        tally_address = self._tallies.address + TALLY.itemsize * projection.index
        return {"tally": tally_address, "load": self._loads[-1][1].address if load.size else 0, "most": most}

    def take(self) -> None:
        """Add the counts of the device to the tally."""
        tallies = self._found.tallies
        tallies += self._device.read(self._tallies, np.int64, tallies.size).reshape(tallies.shape)
        for load, memory in self._loads:
            load += self._device.read(memory, np.int64, load.size)
