"""The plastic synapses of a shard on a GPU: each table there, and how it goes to the host and back.

The device draws the synapses and has them. The host's table gets its own only when somebody asks for them; what is
remembered of sources and targets is small, and goes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import plan as w
from neuraxis.engine.cuda.description import signal_places
from neuraxis.engine.cuda.device import Device, Memory, Program
from neuraxis.engine.cuda.grid import Grid, first_places
from neuraxis.engine.cuda.plastic_synapses import Exchange, PlasticSynapses, draw_plastic
from neuraxis.engine.cuda.words import word
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.placement import Slice
from neuraxis.engine.plastic_tables import PlasticTable, describe_plastic_table
from neuraxis.network import Network

__all__ = ["PlasticOnDevice", "PlasticTables", "build_plastic_tables"]

# What every block keeps of each segment alike, and what belongs to single targets.
_OF_SEGMENTS = ("last", "applied", "trace", "resource")
_OF_TARGETS = ("post_count", "post_steps", "post_traces", "scale_count")


def build_plastic_tables(
    network: Network, parts: list[NeuronPart], grid: Grid, device: Device, program: Program,
    outside: Mapping[int, int], progress: Callable[[int], None], clipped: NDArray[np.int64],
) -> PlasticTables:  # fmt: skip
    """The tables of all plastic projections onto these neurons.

    `outside`: by population, its first row among those that come from other shards. `clipped` counts the delays that
    were.
    """
    first, here = first_places(parts), {part.part.population: part.part for part in parts}
    tables = []
    for part in parts:
        for projection in network.projections:
            if not projection.plasticity or projection.post.index != part.part.population:
                continue
            pre = projection.pre.index
            held = here.get(pre, Slice(pre, 0, 0))
            sources = Sources(first.get(pre, 0), held.n, held.first, outside.get(pre, -1))
            table = describe_plastic_table(network, projection, part.accumulators)
            drawn = draw_plastic(network, table, parts, grid, device, program, clipped)
            post, level = first[projection.post.index], signal_places(network).get(table.signal, 0)
            tables.append(PlasticOnDevice(table, drawn, grid, device, program, sources, post, level))
            progress(table.synapses)
    return PlasticTables(tables, device)


@dataclass(frozen=True)
class Sources:
    """Where the kernels find the spikes of a projection's sources: in the mail, and among those of other shards."""

    place: int  # of the first that is here, among the shard's neurons
    n: int  # that are here
    first: int  # the number of the first that is here, in the population
    outside: int  # the row of the population among those that come from outside; -1 where all are here


class PlasticOnDevice:
    """One table; `row` is its description for the kernels."""

    def __init__(
        self, table: PlasticTable, drawn: PlasticSynapses, grid: Grid, device: Device, program: Program,
        sources: Sources, post_place: int, level: int,
    ) -> None:  # fmt: skip
        """`post_place`: of the first target among the shard's neurons."""
        self.table, self._grid, self._device = table, grid, device
        self.host_is_fresh = False
        table.synapses = drawn.synapses
        self._memory: dict[str, Memory] = {
            "INDEX": drawn.index,
            "STARTS": drawn.starts,
            "CELLS": drawn.cells,
            "WEIGHTS": drawn.weights,
            "ELIGIBILITIES": device.zeros(4 * drawn.synapses if table.kind == w.REWARD else 4),
            "DELAYS": device.put(table.delays),
            "PARAMETERS": device.put(table.parameters),
            "DECAY_PLUS": device.put(table.decays[0]),
            "DECAY_MINUS": device.put(table.decays[1]),
            "DECAY_FACILITATION": device.put(table.decays[2]),
            "FLUSHED": device.zeros(8 * grid.blocks),
        }
        room = 1 << (4 * (grid.shape.lag + 6) - 1).bit_length()  # for what may come until all blocks have stopped
        if table.projection.pairing is not None and table.post_steps.shape[1] < room:
            table.set_capacity(room)
        numbers = {
            "KIND": table.kind, "PRE_PLACE": sources.place, "PRE_N": sources.n, "PRE_FIRST": sources.first,
            "PRE_OUTSIDE": sources.outside, "PRE_ALL": table.projection.pre.n, "POST_PLACE": post_place,
            "POST_N": table.accumulators.part.n, "SEGMENTS": table.segments, "CLASSES": len(table.delays),
            "RECEPTOR": table.projection.post.model.receptors.index(table.projection.receptor),
            "EVERY": table.every, "LEVEL": level, "SCALE_EVERY": table.scale_every,
        }  # fmt: skip
        self.row = np.zeros(word("T_WORDS"), np.int64)
        for name, value in numbers.items():
            self.row[word(f"T_{name}")] = value
        self._put_remembered()
        self._exchange = Exchange(device, program, device.put(self.row), grid.blocks, table.segments, drawn.synapses)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._memory.values())

    def put(self) -> None:
        """All that changes, from the host's table."""
        self._exchange.put(self._memory["WEIGHTS"], self.table.weights)
        if self.table.kind == w.REWARD:
            self._exchange.put(self._memory["ELIGIBILITIES"], self.table.eligibilities)
        self._put_remembered()

    def take(self) -> None:
        """The same back."""
        table, exchange = self.table, self._exchange
        if self.host_is_fresh:
            return
        if len(table.index) == 0:
            table.put_synapses(exchange.index(), exchange.targets(), np.empty(table.synapses, np.float32))
        table.weights[:] = exchange.take(self._memory["WEIGHTS"])
        if table.kind == w.REWARD:
            table.eligibilities[:] = exchange.take(self._memory["ELIGIBILITIES"])
        self._take_remembered()
        self.host_is_fresh = True

    def hash_weights(self) -> int:
        return self._exchange.hash(self._memory["WEIGHTS"], self.table.salt, self.table.accumulators.part.first)

    def remember_more(self) -> None:
        """Keep twice as many spikes of each target."""
        if self.table.projection.pairing is not None:
            self._take_remembered()
            self.table.set_capacity(2 * self.table.post_steps.shape[1])
            self._put_remembered()

    def _put_remembered(self) -> None:
        table, device, blocks = self.table, self._device, self._grid.blocks
        for name in _OF_SEGMENTS:
            array = getattr(table, name)
            memory = self._room(name, array.nbytes * blocks if len(array) == table.segments else array.nbytes)
            for at in range(0, memory.nbytes, array.nbytes):
                device.write(memory, array, at)
        for name in _OF_TARGETS:
            array = getattr(table, name)
            device.write(self._room(name, array.nbytes), array)
        device.write(self._memory["FLUSHED"], np.full(blocks, int(table.row[w.L_FLUSHED]), np.int64))
        for name, memory in self._memory.items():
            self.row[word(f"T_{name}")] = memory.address
        self.row[word("T_CAPACITY")] = table.post_steps.shape[1]

    def _take_remembered(self) -> None:
        table, device = self.table, self._device
        for name in (*_OF_SEGMENTS, *_OF_TARGETS):  # of segments, every block has the same
            array = getattr(table, name)
            array[:] = device.read(self._memory[name.upper()], array.dtype, array.size).reshape(array.shape)
        table.row[w.L_FLUSHED] = device.read(self._memory["FLUSHED"], np.int64, 1)[0]

    def _room(self, name: str, nbytes: int) -> Memory:
        there = self._memory.get(name.upper())
        if there is None or there.nbytes != nbytes:
            there = self._memory[name.upper()] = self._device.empty(nbytes)
        return there


class PlasticTables:
    """All tables of a shard, which are up to date on the device unless the host has taken them over."""

    def __init__(self, tables: Sequence[PlasticOnDevice], device: Device) -> None:
        self.tables, self._device = tables, device
        self.hear_others = any(one.row[word("T_PRE_OUTSIDE")] >= 0 for one in tables)
        self.rows = device.empty(8 * word("T_WORDS") * len(tables))
        self._written: list[list[int]] = []  # to there
        self.device_is_fresh = True

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.tables)

    def to_host(self, table: PlasticTable | None = None) -> None:
        """Have the host's tables, or one of them, up to date as well."""
        for one in self.tables:
            if table is None or one.table is table:
                one.take()

    def hash_weights(self, table: PlasticTable) -> int:
        """As the host's table would say it."""
        return next(one for one in self.tables if one.table is table).hash_weights()

    def take_over(self) -> None:
        """The host's tables are about to be changed."""
        self.to_host()
        self.device_is_fresh = False

    def to_device(self) -> None:
        if not self.device_is_fresh:
            for one in self.tables:
                one.put()
        for one in self.tables:
            one.row[word("T_FROZEN")] = one.table.row[w.L_FROZEN]
        rows = [one.row.tolist() for one in self.tables]
        if rows != self._written:
            self._device.write(self.rows, np.array(rows, np.int64))
        self._written, self.device_is_fresh = rows, True

    def ran(self) -> None:
        """The device's tables have changed."""
        for one in self.tables:
            one.host_is_fresh = False

    def remember_more(self) -> None:
        for one in self.tables:
            one.remember_more()
        self.to_device()
