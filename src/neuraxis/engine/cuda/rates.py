"""Continuous connections of a shard on a GPU: copies of the host's synapses and outputs, and their exchange.

The host's `Rates` (engine/cpu/rates.py) draws the synapses, and has the outputs that are saved and published, as on the
CPU. The device has a ring of its own, with one column for each neuron of the host's ring. Its blocks write their
outputs to it (kernels/rates.cuh). Before a launch the host adds those of other shards that the launch may read, and
after it copies the last ones of this shard to its spike buffer.

Columns of the device are ordered by shard, those of this shard first and in the order of its buffer, so that the
outputs of one shard in one step are one copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cpu.rates import LARGEST_RING, Rates, RateTable
from neuraxis.engine.cuda.device import Device, Memory
from neuraxis.engine.cuda.grid import Grid, first_places
from neuraxis.engine.cuda.program import FIRST_STATE_ROW
from neuraxis.engine.cuda.tables import RATE_PART, RATE_TABLE
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.spikes import SpikeBuffers, rate_sources
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network

__all__ = ["DeviceRates"]


class DeviceRates:
    """The continuous connections of a shard in the memory of a device.

    Parameters
    ----------
    rates : Rates
        Those of the host.
    network : Network
        The whole network.
    parts : sequence of NeuronPart
        The neurons of the shard.
    grid : Grid
        Their places on the device.
    device : Device
        The device.
    buffers : SpikeBuffers
        Buffers of all shards.
    me : int
        Index of the shard.
    """

    def __init__(
        self,
        rates: Rates,
        network: Network,
        parts: Sequence[NeuronPart],
        grid: Grid,
        device: Device,
        buffers: SpikeBuffers,
        me: int,
    ) -> None:
        self._rates, self._device, self._me = rates, device, me
        self._lags = buffers.lags[me]
        self._buffer_slots = buffers.slots
        self._width = rates.ring.shape[1]
        # Blocks differ by LAG steps at most, and the last steps of a launch are copied to the spike buffer.
        kept = rates.depth + grid.shape.lag + buffers.slots + 1
        self._slots = 1 << kept.bit_length() if self._width else 0
        if 4 * self._slots * self._width > LARGEST_RING:
            raise InvalidArgument(
                f"continuous connections with delays of up to {rates.depth - 1:,} steps from {self._width:,} neurons "
                f"need {4 * self._slots * self._width / 2**30:,.0f} GiB on {device.name}. Shorten the delays, or use "
                "device='cpu'."
            )
        self._place_columns()
        self._published = {worker: buffers.outputs(worker) for worker in self._ranges}
        self._buffer_places = [int(row["place"] - buffers.output_places[row["worker"]]) for row in rates.copies]
        self._entered: dict[int, int] = {}  # by shard: the last step whose outputs the device has
        self._kept: list[Memory] = []
        self._ring = device.zeros(4 * self._slots * self._width)
        self._tables = device.put(self._describe_tables(parts, grid))
        self._parts = device.put(self._describe_parts(network, parts))

    def _place_columns(self) -> None:
        """Choose the columns of the device."""
        copies = self._rates.copies
        self._column_of = np.zeros(self._width, np.uint32)  # by column of the host's ring
        self._firsts = [0] * len(copies)  # the first column of each slice
        self._ranges: dict[int, tuple[int, int]] = {}  # columns of a shard
        column = 0
        workers = sorted({int(worker) for worker in copies["worker"]}, key=lambda worker: (worker != self._me, worker))
        for worker in workers:
            begin = column
            for i in np.flatnonzero(copies["worker"] == worker):
                first, n = int(copies[i]["column"]), int(copies[i]["n"])
                self._firsts[i] = column
                self._column_of[first : first + n] = np.arange(column, column + n)
                column += n
            self._ranges[worker] = (begin, column)

    def _describe_tables(self, parts: Sequence[NeuronPart], grid: Grid) -> NDArray[np.void]:
        """Upload the synapses, and return the rows of their tables, which are ordered by population."""
        places = first_places(parts)
        rows = np.zeros(len(self._rates.tables), RATE_TABLE)
        for row, table in zip(rows, self._rates.tables, strict=True):
            row["input"] = table.part.population.model.rate_inputs.index(table.projection.receptor)
            arrays = self._grouped(table, places[table.part.part.population], grid)
            for name, array in (*arrays.items(), ("lags", table.delays + 1)):
                self._kept.append(self._device.put(array))
                row[name] = self._kept[-1].address
            row["lag_count"] = len(table.delays)
        return rows

    def _grouped(self, table: RateTable, first_place: int, grid: Grid) -> dict[str, NDArray[np.generic]]:
        """Return the synapses so that threads of a warp, which work on neighbouring cells, read neighbouring words."""
        warp, n = self._device.warp, table.part.part.n
        q = first_place + np.arange(n)
        block, cell = q % grid.blocks, q // grid.blocks
        groups = -(-grid.cells // warp)
        group = block * groups + cell // warp
        synapses = np.diff(table.starts)
        counts = np.zeros((grid.blocks, grid.cells), np.uint32)
        counts[block, cell] = synapses
        longest = np.zeros(grid.blocks * groups, np.int64)
        np.maximum.at(longest, group, synapses)
        ends = np.cumsum(longest * warp)
        starts = ends - longest * warp
        target = np.repeat(np.arange(n), synapses)
        at = starts[group[target]] + (np.arange(len(target)) - table.starts[target]) * warp + cell[target] % warp
        size = int(ends[-1])
        sources, weights = np.zeros(size, np.uint32), np.zeros(size, np.float32)
        sources[at], weights[at] = self._column_of[table.sources], table.weights
        classes = np.zeros(size if len(table.classes) else 0, np.uint16)
        if len(classes):
            classes[at] = table.classes
        return {"starts": starts, "counts": counts, "sources": sources, "classes": classes, "weights": weights}

    def _describe_parts(self, network: Network, parts: Sequence[NeuronPart]) -> NDArray[np.void]:
        """Return a row for each population of the shard."""
        transmitting, places = rate_sources(network), first_places(parts)
        of_table = [table.part.part.population for table in self._rates.tables]
        rows = np.zeros(len(parts), RATE_PART)
        column = 0
        for row, part in zip(rows, parts, strict=True):
            population = part.population
            first_place = places[population.index]
            row["output_row"] = -1
            if population.index in transmitting:
                row["output_row"] = FIRST_STATE_ROW + part.layout.states.index(str(population.model.output))
                row["output_column"] = column - first_place
                row["first_id"] = population.first_id + part.part.first - first_place
                column += part.part.n
            if population.index in of_table:
                row["first_table"] = of_table.index(population.index)
                row["end_table"] = row["first_table"] + of_table.count(population.index)
        return rows

    def layout(self) -> dict[str, int]:
        """Return the fields of a launch that describe continuous connections."""
        return {
            "outputs": self._ring.address,
            "output_mask": self._slots - 1,
            "output_columns": self._width,
            "rate_parts": self._parts.address,
            "rate_tables": self._tables.address,
        }

    # --- outputs in transit -----------------------------------------------------------------------------------

    def reach(self, now: int, until: int) -> int:
        """Return the last step of a launch after step `now`, so that the outputs that it needs fit the ring."""
        return min(until, now + self._slots - self._rates.depth) if len(self._ranges) > 1 else until

    def to_device(self, now: int) -> None:
        """Replace the ring by the outputs that the host has after step `now`."""
        ring = np.zeros((self._slots, self._width), np.float32)
        for step in range(max(0, now - self._rates.depth + 1), now + 1):
            for row, first in zip(self._rates.copies, self._firsts, strict=True):
                given = self._rates.arrived(row, step, now)
                if given is not None:
                    ring[step % self._slots, first : first + len(given)] = given
        self._device.write(self._ring, ring)
        self._entered = {worker: now - int(self._lags[worker]) for worker in self._ranges}

    def to_host(self, now: int) -> None:
        """Copy the outputs of the last steps to the host's ring, as far as they arrive there up to step `now`."""
        if not self._width:
            return
        ring = self._device.read(self._ring, np.float32, self._slots * self._width).reshape(self._slots, self._width)
        host = self._rates
        for step in range(max(0, now - host.depth + 1), now + 1):
            for row, first in zip(host.copies, self._firsts, strict=True):
                if step == 0 or step <= now - self._lags[row["worker"]]:
                    column, n = int(row["column"]), int(row["n"])
                    host.ring[step % host.slots, column : column + n] = ring[step % self._slots, first : first + n]

    def enter(self, until: int) -> None:
        """Upload the published outputs of other shards that the steps up to `until` may read."""
        for worker, (begin, end) in self._ranges.items():
            if worker == self._me:
                continue
            places = [
                (self._buffer_places[i], int(self._rates.copies[i]["n"]))
                for i in np.flatnonzero(self._rates.copies["worker"] == worker)
            ]
            last = until - int(self._lags[worker])
            for step in range(max(1, self._entered[worker] + 1), last + 1):
                given = self._published[worker][step % self._buffer_slots]
                values = np.concatenate([given[place : place + n] for place, n in places])
                assert len(values) == end - begin
                self._device.write(self._ring, values, 4 * (step % self._slots * self._width + begin))
            self._entered[worker] = max(self._entered[worker], last)

    def publish(self, before: int, now: int) -> None:
        """Copy the outputs of this shard of the steps after `before` to its spike buffer, after a launch."""
        if self._me not in self._ranges:
            return
        _, n = self._ranges[self._me]
        for step in range(max(before, now - self._buffer_slots) + 1, now + 1):
            values = self._device.read(self._ring, np.float32, n, 4 * (step % self._slots * self._width))
            self._published[self._me][step % self._buffer_slots] = values
