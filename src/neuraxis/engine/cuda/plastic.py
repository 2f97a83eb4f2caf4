"""The plastic synapses of a shard on a GPU: tables on the device, and their transfer to the host and back.

The device draws and holds the synapses: the tables that the CPU would have, divided among the blocks that hold the
targets. The host's table gets a copy only when it is read; the state of sources and targets is small and goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import tables as w
from neuraxis.engine.cpu.plastic_tables import PlasticTable, describe_plastic_table, plastic_onto
from neuraxis.engine.cpu.static_tables import BuildTally, class_of_delay
from neuraxis.engine.cpu.synapses import LARGEST_TABLE
from neuraxis.engine.cuda.description import signal_places
from neuraxis.engine.cuda.device import Device, Memory, Program
from neuraxis.engine.cuda.grid import Grid, first_places
from neuraxis.engine.cuda.synapses import DeviceBuildTally, Jobs, most_threads, usual_threads, wide_grid
from neuraxis.engine.cuda.tables import PLASTIC_TABLE
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.placement import Slice
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network

__all__ = ["Exchange", "PlasticOnDevice", "PlasticSynapses", "PlasticTables", "build_plastic_tables", "draw_plastic"]

# Arrays of segments, of which every block has an equal copy, and arrays of targets.
_OF_SEGMENTS = ("last", "applied", "trace", "resource")
_OF_TARGETS = ("post_count", "post_steps", "post_traces", "scale_count")


def build_plastic_tables(
    network: Network, parts: list[NeuronPart], grid: Grid, device: Device, program: Program,
    outside: Mapping[int, int], progress: Callable[[int], None], found: BuildTally,
) -> PlasticTables:  # fmt: skip
    """Build the tables of all plastic projections onto these neurons.

    `outside` gives the first row of each population on other shards.
    """
    first, here = first_places(parts), {part.part.population: part.part for part in parts}
    onto = plastic_onto(network)
    if not onto:
        return PlasticTables([], device)
    tables = []
    tally = DeviceBuildTally(network, found, device)
    for part in parts:
        for projection in onto.get(part.part.population, ()):
            pre = projection.pre.index
            held = here.get(pre, Slice(pre, 0, 0))
            sources = Sources(first.get(pre, 0), held.n, held.first, outside.get(pre, -1))
            table = describe_plastic_table(network, projection, part.accumulators)
            drawn = draw_plastic(network, table, parts, grid, device, program, tally)
            post, level = first[projection.post.index], signal_places(network).get(table.signal, 0)
            accumulator, _ = network.accumulator_of(projection)
            tables.append(PlasticOnDevice(table, drawn, grid, device, program, sources, post, accumulator, level))
            progress(table.synapses)
    tally.take()
    return PlasticTables(tables, device)


@dataclass(frozen=True)
class Sources:
    """The sources of a projection: in messages of this shard, and among spikes of other shards."""

    place: int  # position of the first local source among the shard's neurons
    n: int  # number of local sources
    first: int  # id of the first local source in its population
    outside: int  # first row of the population on other shards; -1 if all sources are local


class PlasticOnDevice:
    """One table on the device; `row` is its description for the kernels."""

    def __init__(
        self, table: PlasticTable, drawn: PlasticSynapses, grid: Grid, device: Device, program: Program,
        sources: Sources, post_place: int, accumulator: int, level: int,
    ) -> None:  # fmt: skip
        """Upload a table; `post_place` is the position of the first target, `accumulator` the row of accumulators."""
        self.table, self._grid, self._device = table, grid, device
        self.host_is_fresh = False
        table.synapses = drawn.synapses
        self._memory: dict[str, Memory] = {
            "index": drawn.index,
            "starts": drawn.starts,
            "cells": drawn.cells,
            "weights": drawn.weights,
            "eligibilities": device.zeros(4 * drawn.synapses if table.kind == w.REWARD else 4),
            "delays": device.put(table.delays),
            "parameters": device.put(table.parameters),
            "decay_plus": device.put(table.decays[0]),
            "decay_minus": device.put(table.decays[1]),
            "decay_facilitation": device.put(table.decays[2]),
            "flushed": device.zeros(8 * grid.blocks),
        }
        room = 1 << (4 * (grid.shape.lag + 6) - 1).bit_length()  # for spikes until all blocks have stopped
        if table.projection.pairing is not None and table.post_steps.shape[1] < room:
            table.set_capacity(room)
        numbers = {
            "kind": table.kind, "pre_place": sources.place, "pre_n": sources.n, "pre_first": sources.first,
            "pre_outside": sources.outside, "pre_all": table.projection.pre.n, "post_place": post_place,
            "post_n": table.accumulators.part.n, "segments": table.segments, "classes": len(table.delays),
            "receptor": accumulator,
            "every": table.every, "level": level, "scale_every": table.scale_every,
        }  # fmt: skip
        self.row = np.zeros((), PLASTIC_TABLE)
        for name, value in numbers.items():
            self.row[name] = value
        self._upload_state()
        self._exchange = Exchange(device, program, device.put(self.row), grid.blocks, table.segments, drawn.synapses)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._memory.values())

    def upload(self) -> None:
        """Copy everything that changes from the host's table to the device."""
        self._exchange.upload(self._memory["weights"], self.table.weights)
        if self.table.kind == w.REWARD:
            self._exchange.upload(self._memory["eligibilities"], self.table.eligibilities)
        self._upload_state()

    def download(self) -> None:
        """Copy it back to the host's table."""
        table, exchange = self.table, self._exchange
        if self.host_is_fresh:
            return
        if len(table.index) == 0:
            table.put_synapses(exchange.index(), exchange.targets(), np.empty(table.synapses, np.float32))
        table.weights[:] = exchange.download(self._memory["weights"])
        if table.kind == w.REWARD:
            table.eligibilities[:] = exchange.download(self._memory["eligibilities"])
        self._download_state()
        self.host_is_fresh = True

    def hash_weights(self) -> int:
        return self._exchange.hash(self._memory["weights"], self.table.salt, self.table.accumulators.part.first)

    def grow_history(self) -> None:
        """Double the capacity of the history of target spikes."""
        if self.table.projection.pairing is not None:
            self._download_state()
            self.table.set_capacity(2 * self.table.post_steps.shape[1])
            self._upload_state()

    def _upload_state(self) -> None:
        table, device, blocks = self.table, self._device, self._grid.blocks
        for name in _OF_SEGMENTS:
            array = getattr(table, name)
            memory = self._memory_for(name, array.nbytes * blocks if len(array) == table.segments else array.nbytes)
            for at in range(0, memory.nbytes, array.nbytes):
                device.write(memory, array, at)
        for name in _OF_TARGETS:
            array = getattr(table, name)
            device.write(self._memory_for(name, array.nbytes), array)
        device.write(self._memory["flushed"], np.full(blocks, int(table.row["flushed"]), np.int64))
        for name, memory in self._memory.items():
            self.row[name] = memory.address
        self.row["capacity"] = table.post_steps.shape[1]

    def _download_state(self) -> None:
        table, device = self.table, self._device
        for name in (*_OF_SEGMENTS, *_OF_TARGETS):  # all blocks have the same values of segments
            array = getattr(table, name)
            array[:] = device.read(self._memory[name], array.dtype, array.size).reshape(array.shape)
        table.row["flushed"] = device.read(self._memory["flushed"], np.int64, 1)[0]

    def _memory_for(self, name: str, nbytes: int) -> Memory:
        there = self._memory.get(name)
        if there is None or there.nbytes != nbytes:
            there = self._memory[name] = self._device.empty(nbytes)
        return there


class PlasticTables:
    """All tables of a shard, up to date on the device unless the host has taken them over."""

    def __init__(self, tables: Sequence[PlasticOnDevice], device: Device) -> None:
        self.tables, self._device = tables, device
        self.read_others = any(one.row["pre_outside"] >= 0 for one in tables)
        self.rows = device.empty(PLASTIC_TABLE.itemsize * len(tables))
        self._written = b""  # rows on the device
        self.device_is_fresh = True

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.tables)

    def to_host(self, table: PlasticTable | None = None) -> None:
        """Bring the host's tables, or one of them, up to date."""
        for one in self.tables:
            if table is None or one.table is table:
                one.download()

    def hash_weights(self, table: PlasticTable) -> int:
        """Return the hash that the host's table would have."""
        return next(one for one in self.tables if one.table is table).hash_weights()

    def take_over(self) -> None:
        """Bring the host's tables up to date, because they are about to be changed."""
        self.to_host()
        self.device_is_fresh = False

    def to_device(self) -> None:
        if not self.device_is_fresh:
            for one in self.tables:
                one.upload()
        for one in self.tables:
            one.row["frozen"] = one.table.row["frozen"]
        rows = np.array([one.row[()] for one in self.tables], PLASTIC_TABLE)
        if rows.tobytes() != self._written:
            self._device.write(self.rows, rows)
        self._written, self.device_is_fresh = rows.tobytes(), True

    def mark_changed(self) -> None:
        """Mark the host's tables as outdated, after a launch."""
        for one in self.tables:
            one.host_is_fresh = False

    def grow_history(self) -> None:
        for one in self.tables:
            one.grow_history()
        self.to_device()


@dataclass(frozen=True)
class PlasticSynapses:
    """Synapses ordered by block, then segment, then target as on the CPU (kernels/build_plastic.cuh)."""

    index: Memory  # uint32[blocks, segments + 1]: within the synapses of the block
    starts: Memory  # int64[blocks]: start of the synapses of each block
    cells: Memory  # uint32[synapses]
    weights: Memory  # float32[synapses]
    synapses: int


def draw_plastic(
    network: Network, table: PlasticTable, parts: list[NeuronPart], grid: Grid, device: Device, program: Program,
    tally: DeviceBuildTally,
) -> PlasticSynapses:  # fmt: skip
    """Draw the synapses of a table's projection onto its slice."""
    part = next(one for one in parts if one.part.population == table.projection.post.index)
    jobs = Jobs(network, parts, grid, device, program)
    classes = class_of_delay(table.delays)
    index = device.zeros(4 * grid.blocks * (table.segments + 1))
    totals, in_degrees = device.zeros(8 * grid.blocks), device.empty(4 * part.part.n)
    inverse_lsb = 2.0 ** -network.accumulator_of(table.projection)[1]
    words = {
        "longest": len(classes) - 1, "class_of_delay": jobs.put(classes), "classes": len(table.delays),
        "segments": table.segments, "index": index.address, "in_degrees": in_degrees.address,
        "totals": totals.address, "inverse_lsb": inverse_lsb, **tally.fields(table.projection, part.part),
    }  # fmt: skip
    jobs.add(table.projection, part, words)
    jobs.draw_in_degrees()
    described = jobs.describe({})
    threads = most_threads(device)
    program.launch("count_plastic", wide_grid(device), usual_threads(device), 0, [described])
    program.launch("index_plastic", grid.blocks, threads, 8 * (threads + 1), [described])
    sizes = device.read(totals, np.uint64, grid.blocks).astype(np.int64)
    synapses = int(sizes.sum())
    if synapses > LARGEST_TABLE:
        raise InvalidArgument(
            f"projection {table.projection.name!r}: {synapses:,} plastic synapses on {device.name}: "
            f"{LARGEST_TABLE:,} are the most. Use more devices."
        )
    starts = device.put(np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64))
    cells, weights = device.empty(4 * synapses), device.empty(4 * synapses)
    described = jobs.describe({"starts": starts.address, "target_cells": cells.address, "drawn": weights.address})
    program.launch("store_plastic", grid.blocks, threads, 0, [described])
    program.launch("set_plastic_weights", wide_grid(device), usual_threads(device), 0, [described])
    return PlasticSynapses(index, starts, cells, weights, synapses)


# Modes of the kernel `exchange_with_cpu`.
TO_CPU, FROM_CPU, TARGETS_TO_CPU = range(3)


@dataclass(frozen=True)
class Exchange:
    """Transfer of values of single synapses between the order of the blocks and that of the CPU.

    `row` is the table's description on the device. Positions are looked up each time, which needs no further memory
    for each synapse.
    """

    device: Device
    program: Program
    row: Memory
    blocks: int
    segments: int
    synapses: int

    def index(self) -> NDArray[np.uint32]:
        """Return the index in the order of the CPU."""
        joined = self.device.read(self._joined(), np.uint32, self.segments + 1)
        return np.concatenate((joined, joined[-1:]))

    def targets(self) -> NDArray[np.uint32]:
        room = self.device.empty(4 * self.synapses)
        self._launch(TARGETS_TO_CPU, 0, room)
        return self.device.read(room, np.uint32, self.synapses).copy()  # the array may be in pinned memory

    def download(self, memory: Memory) -> NDArray[np.float32]:
        room = self.device.empty(4 * self.synapses)
        self._launch(TO_CPU, memory.address, room)
        return self.device.read(room, np.float32, self.synapses)

    def upload(self, memory: Memory, values: NDArray[np.float32]) -> None:
        self._launch(FROM_CPU, memory.address, self.device.put(values))

    def hash(self, memory: Memory, salt: int, first_target: int) -> int:
        """Return `PlasticTable.hash_weights`, which does not depend on the order."""
        total = self.device.zeros(8)
        self.program.launch(
            "hash_plastic", wide_grid(self.device), usual_threads(self.device), 0,
            [self.row.address, self.blocks, memory.address, first_target, salt, total.address],
        )  # fmt: skip
        return int(self.device.read(total, np.uint64, 1)[0])

    def _joined(self) -> Memory:
        joined = self.device.empty(4 * (self.segments + 1))
        self.program.launch(
            "join_segments", wide_grid(self.device), usual_threads(self.device), 0,
            [self.row.address, self.blocks, joined.address],
        )  # fmt: skip
        return joined

    def _launch(self, what: int, there: int, cpu: Memory) -> None:
        index = self._joined()
        self.program.launch(
            "exchange_with_cpu", wide_grid(self.device), usual_threads(self.device), 0,
            [self.row.address, self.blocks, index.address, there, cpu.address, what],
        )  # fmt: skip
