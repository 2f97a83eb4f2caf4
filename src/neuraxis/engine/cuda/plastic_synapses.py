"""Draw plastic synapses on the GPU: the tables that the CPU would have, cut by the blocks that hold their targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.device import Device, Memory, Program
from neuraxis.engine.cuda.grid import Grid
from neuraxis.engine.cuda.jobs import Jobs, most_threads, usual_threads, wide_grid
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.plastic_tables import PlasticTable
from neuraxis.engine.synapses import LARGEST_TABLE
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network

__all__ = ["Exchange", "PlasticSynapses", "draw_plastic"]


@dataclass(frozen=True)
class PlasticSynapses:
    """Block by block, in each by segment, and in each of these by target as on the CPU (kernels/build_plastic.cuh)."""

    index: Memory  # uint32[blocks, segments + 1]: within the block's
    starts: Memory  # int64[blocks]: where a block's synapses start among all
    cells: Memory  # uint32[synapses]
    weights: Memory  # float32[synapses]
    synapses: int


def draw_plastic(
    network: Network, table: PlasticTable, parts: list[NeuronPart], grid: Grid, device: Device, program: Program,
    clipped: NDArray[np.int64],
) -> PlasticSynapses:  # fmt: skip
    """The synapses of a table's projection onto its slice. `clipped` counts the delays that were."""
    part = next(one for one in parts if one.part.population == table.projection.post.index)
    jobs = Jobs(network, parts, grid, device, program)
    class_of_delay = np.full(int(table.delays.max()) + 1, -1, np.int32)
    class_of_delay[table.delays] = np.arange(len(table.delays))
    index = device.zeros(4 * grid.blocks * (table.segments + 1))
    totals, clips, in_degrees = device.zeros(8 * grid.blocks), device.zeros(8), device.empty(4 * part.part.n)
    words = {
        "LONGEST": len(class_of_delay) - 1, "CLASS_OF_DELAY": jobs.put(class_of_delay), "CLASSES": len(table.delays),
        "SEGMENTS": table.segments, "INDEX": index.address, "IN_DEGREES": in_degrees.address,
        "TOTALS": totals.address, "CLIPPED": clips.address,
    }  # fmt: skip
    jobs.add(table.projection, part, words)
    jobs.draw_in_degrees()
    described = jobs.describe({})
    threads = most_threads(device)
    program.launch("count_plastic", wide_grid(device), usual_threads(device), 0, described)
    program.launch("start_plastic", grid.blocks, threads, 8 * (threads + 1), described)
    sizes = device.read(totals, np.uint64, grid.blocks).astype(np.int64)
    synapses = int(sizes.sum())
    if synapses > LARGEST_TABLE:
        raise InvalidArgument(
            f"projection {table.projection.name!r}: {synapses:,} plastic synapses on {device.name}: "
            f"{LARGEST_TABLE:,} are the most; use more devices"
        )
    starts = device.put(np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64))
    cells, weights = device.empty(4 * synapses), device.empty(4 * synapses)
    described = jobs.describe({"STARTS": starts.address, "TARGET_CELLS": cells.address, "DRAWN": weights.address})
    program.launch("place_plastic", grid.blocks, threads, 0, described)
    program.launch("weigh_plastic", wide_grid(device), usual_threads(device), 0, described)
    clipped[0] += device.read(clips, np.int64, 1)[0]
    return PlasticSynapses(index, starts, cells, weights, synapses)


# What the kernel `exchange_with_cpu` is asked for.
TO_CPU, FROM_CPU, TARGETS_TO_CPU = range(3)


@dataclass(frozen=True)
class Exchange:
    """Values of a table's single synapses, between the order of the blocks and the CPU's.

    `row` is the table's description for the kernels, on the device. The places are looked up anew each time, so that
    nothing of the size of the synapses has to be kept for it.
    """

    device: Device
    program: Program
    row: Memory
    blocks: int
    segments: int
    synapses: int

    def index(self) -> NDArray[np.uint32]:
        """The CPU's index."""
        joined = self.device.read(self._joined(), np.uint32, self.segments + 1)
        return np.concatenate((joined, joined[-1:]))

    def targets(self) -> NDArray[np.uint32]:
        room = self.device.empty(4 * self.synapses)
        self._launch(TARGETS_TO_CPU, 0, room)
        return self.device.read(room, np.uint32, self.synapses).copy()  # what was read may lie in memory of the card's

    def take(self, memory: Memory) -> NDArray[np.float32]:
        room = self.device.empty(4 * self.synapses)
        self._launch(TO_CPU, memory.address, room)
        return self.device.read(room, np.float32, self.synapses)

    def put(self, memory: Memory, values: NDArray[np.float32]) -> None:
        self._launch(FROM_CPU, memory.address, self.device.put(values))

    def hash(self, memory: Memory, salt: int, first_target: int) -> int:
        """See `PlasticTable.hash_weights`, which takes no order."""
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
