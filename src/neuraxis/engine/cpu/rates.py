"""Continuous connections of a shard: a ring of recent outputs, and the synapses of each target that read it.

**Transport.** After step t every shard writes the outputs of its neurons to its spike buffer, behind the spikes of that
step (`engine/spikes.py`); so they are published, awaited, packed and cleared together. `collect_outputs` copies them to
the *ring* of every shard that reads them, with the lag of spikes. A column of the ring is a neuron whose population is
read or held here, a row one step.

**Input.** The update from step t - 1 to t is driven by outputs of step t - 1 - delay, and so of t - lag with
lag = delay + 1. `gather_inputs` sums them in float32 for each target: over projections in their order, sources by id,
and delays. Its owner sums all of a target's synapses, so the result does not depend on the number of shards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled_on_demand
from neuraxis.engine import tables as w
from neuraxis.engine.codegen import BLOCK
from neuraxis.engine.cpu.static_tables import Scan, class_of_delay, delay_classes
from neuraxis.engine.cpu.synapses import CLIPPED, COUNT, PLASTIC, TALLY_WORDS, count_to_starts
from neuraxis.engine.encoding import encode_rule, initial_values
from neuraxis.engine.memory import array_of, f32, i64, u16, u32
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.placement import Placement
from neuraxis.engine.random import GOLDEN, mix
from neuraxis.engine.spikes import SpikeBuffers, longest_rate_lag, rate_sources
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, RateProjection

__all__ = ["Outputs", "RateTable", "Rates", "collect_outputs", "gather_inputs", "publish_outputs"]

LARGEST_RING = 2**34  # bytes
_HASH_FACTOR = np.uint64(w.OUTPUT_FACTOR)

Array = NDArray[np.generic]

_controls_at, _slices_at = map(array_of, (w.CONTROL, w.SLICE))
_tables_at, _outputs_at, _copies_at = map(array_of, (w.RATE_TABLE, w.OUTPUT, w.OUTPUT_COPY))


@dataclass
class Outputs:
    """Recent outputs of the neurons `first` to `last` of a population: a row for each neuron, the newest step last."""

    first: int
    last: int
    values: NDArray[np.float32]


class Saved(Protocol):
    """A saved state with outputs."""

    step: int

    def outputs(self, population: int) -> Sequence[Outputs]:
        """Return what was saved of a population."""


@dataclass(frozen=True)
class RateTable:
    """The synapses of one rate projection onto one slice, ordered by target, then source, then delay."""

    projection: RateProjection
    part: NeuronPart
    starts: NDArray[np.int64]  # of each target
    sources: NDArray[np.uint32]  # column in the ring
    classes: NDArray[np.uint16]  # index of the delay; empty if there is one delay only
    weights: NDArray[np.float32]
    delays: NDArray[np.int64]  # in steps
    clipped: int  # delays that were clipped to the allowed range

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (self.starts, self.sources, self.classes, self.weights))


class Rates:
    """All continuous connections onto the neurons of a shard, and its part of the outputs that others receive.

    Parameters
    ----------
    network : Network
        The whole network.
    placement : Placement
        The slices of each shard.
    me : int
        Index of the shard.
    parts : sequence of NeuronPart
        Its neurons.
    buffers : SpikeBuffers
        Buffers of all shards.
    progress : callable
        Called with the number of synapses of each table.
    """

    def __init__(
        self,
        network: Network,
        placement: Placement,
        me: int,
        parts: Sequence[NeuronPart],
        buffers: SpikeBuffers,
        progress: Callable[[int], None],
    ) -> None:
        self._network, self._placement, self._me, self._buffers = network, placement, me, buffers
        self.depth = longest_rate_lag(network)
        sources = rate_sources(network)
        held = {part.part.population for part in parts}
        read = {one.pre.index for one in network.rate_projections if one.post.index in held}
        self.columns: dict[int, int] = {}  # of the first neuron, by population
        width = 0
        for population in sorted(sources & (held | read)):
            self.columns[population] = width
            width += network.populations[population].n
        self.slots = 1 << self.depth.bit_length() if self.depth else 0
        if 4 * self.slots * width > LARGEST_RING:
            raise InvalidArgument(
                f"continuous connections with delays of up to {self.depth - 1:,} steps from {width:,} neurons need "
                f"{4 * self.slots * width / 2**30:,.0f} GiB for values in transit. Shorten the delays."
            )
        self.ring = np.zeros((self.slots, width), np.float32)
        self.tables: list[RateTable] = []
        for part in parts:
            for projection in network.rate_projections:
                if projection.post.index == part.part.population:
                    self.tables.append(_table(network, projection, part, self.columns[projection.pre.index]))
                    progress(len(self.tables[-1].weights))
        self._describe(parts, sources)
        self._put_initial_outputs()

    @property
    def synapses(self) -> int:
        return sum(len(table.weights) for table in self.tables)

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.tables)

    @property
    def clipped(self) -> int:
        """Number of synapses whose delay was clipped to the allowed range."""
        return sum(table.clipped for table in self.tables)

    def _describe(self, parts: Sequence[NeuronPart], sources: frozenset[int]) -> None:
        self._table_rows = np.zeros(len(self.tables), w.RATE_TABLE)
        self._places = [np.zeros(len(table.delays), np.int64) for table in self.tables]
        self._lags = [table.delays + 1 for table in self.tables]
        begun: set[tuple[int, str]] = set()
        for row, table, places, lags in zip(self._table_rows, self.tables, self._places, self._lags, strict=True):
            key = (table.part.part.population, table.projection.receptor)
            row["blocks"], row["block_bytes"] = _blocks_of(table.part)
            layout = table.part.layout
            row["row"] = (layout.first_input + layout.inputs.index(table.projection.receptor)) * BLOCK * 4
            row["n"] = table.part.part.n
            row["adds"] = key in begun
            begun.add(key)
            row["starts"], row["sources"] = table.starts.ctypes.data, table.sources.ctypes.data
            row["classes"], row["weights"] = table.classes.ctypes.data, table.weights.ctypes.data
            row["lags"], row["places"], row["lag_count"] = lags.ctypes.data, places.ctypes.data, len(lags)
        outputs: list[tuple[int, ...]] = []
        place = int(self._buffers.output_places[self._me])
        for index, part in enumerate(parts):
            population = part.population
            if population.index in sources:
                blocks, block_bytes = _blocks_of(part)
                row_bytes = part.layout.states.index(str(population.model.output)) * BLOCK * 4
                first_id = population.first_id + part.part.first
                outputs.append((blocks, block_bytes, row_bytes, part.part.n, place, index, first_id))
                place += part.part.n
        self._output_rows = np.array(outputs, w.OUTPUT)
        copies: list[tuple[int, ...]] = []
        for worker, slices in enumerate(self._placement):
            place = int(self._buffers.output_places[worker])
            for one in slices:
                if one.population in self.columns:
                    copies.append((worker, one.population, place, self.columns[one.population] + one.first, one.n))
                if one.population in sources:
                    place += one.n
        self.copies = np.array(copies, w.OUTPUT_COPY)

    def describe(self, control: np.void) -> None:
        """Write the addresses of everything to the control block of the shard."""
        control["output_slots"], control["columns"] = self.slots, self.ring.shape[1]
        for name, rows in (
            ("rate_tables", self._table_rows),
            ("outputs", self._output_rows),
            ("output_copies", self.copies),
        ):
            control[name], control[f"{name}_count"] = rows.ctypes.data, len(rows)
        control["ring"] = self.ring.ctypes.data

    def _put_initial_outputs(self) -> None:
        """Set the outputs of step 0, of all neurons that are read: they are drawn, and never published."""
        for index, column in self.columns.items():
            population = self._network.populations[index]
            name = str(population.model.output)
            state = list(population.model.states).index(name)
            n = population.n
            self.ring[0, column : column + n] = initial_values(
                population.initial[name], self._network.seed, index, state, 0, n
            )
        for row in self.copies:
            if row["worker"] == self._me:
                self._own(row, 0)[:] = self.ring[0, row["column"] : row["column"] + row["n"]]

    def _own(self, copy: np.void, step: int) -> NDArray[np.float32]:
        """Return the outputs of a slice in this shard's buffer."""
        first = int(copy["place"]) - int(self._buffers.output_places[self._me])
        return self._buffers.outputs(self._me)[step % self._buffers.slots, first : first + int(copy["n"])]

    def arrived(self, copy: np.void, step: int, now: int) -> NDArray[np.float32] | None:
        """Return the outputs of a slice in one of the last steps; None if they are not here yet after step `now`."""
        if step < 0:
            return None
        worker, first = int(copy["worker"]), int(copy["column"])
        if step == 0 or step <= now - self._buffers.lags[self._me, worker]:
            found: NDArray[np.float32] = self.ring[step % self.slots, first : first + int(copy["n"])]
            return found
        return self._own(copy, step) if worker == self._me else None

    # --- saved states -----------------------------------------------------------------------------------------

    def export(self, now: int, *, received: bool = False) -> dict[int, Outputs]:
        """Return the outputs of this shard's neurons that can still arrive somewhere, by population.

        With `received` also those of whole populations of other shards, as far as they have arrived here.
        """
        found: dict[int, Outputs] = {}
        for row in self.copies:
            worker, population, first = int(row["worker"]), int(row["population"]), int(row["column"])
            if worker != self._me and not received:
                continue
            values = np.zeros((int(row["n"]), self.depth), np.float32)
            for k, step in enumerate(range(now - self.depth + 1, now + 1)):
                given = self.arrived(row, step, now)
                if given is not None:
                    values[:, k] = given
            begin = first - self.columns[population]
            found[population] = Outputs(begin, begin + int(row["n"]), values)
        return found

    def install(self, saved: Saved) -> None:
        """Replace all outputs in transit by saved ones."""
        self.ring[:] = 0
        now = saved.step
        oldest_read = now - int(self._buffers.lags[:, self._me].max(initial=1))
        given: dict[int, NDArray[np.float32]] = {}
        for index in self.columns:
            given[index] = np.zeros((self._network.populations[index].n, self.depth), np.float32)
            for one in saved.outputs(index):
                given[index][one.first : one.last] = one.values
        for row in self.copies:
            worker, first, n = int(row["worker"]), int(row["column"]), int(row["n"])
            population = int(row["population"])
            begin = first - self.columns[population]
            for k, step in enumerate(range(now - self.depth + 1, now + 1)):
                values = given[population][begin : begin + n, k]
                if step == 0 or 0 < step <= now - self._buffers.lags[self._me, worker]:
                    self.ring[step % self.slots, first : first + n] = values
                if worker == self._me and step > max(-1, oldest_read):
                    self._own(row, step)[:] = values

    def jump(self, step: int, parts: Sequence[NeuronPart]) -> None:
        """Continue after `step` as if all outputs had been 0 before; those of this shard's neurons are as they are."""
        self.ring[:] = 0
        for row in self._output_rows:
            part = parts[int(row["part"])]
            values = part.state(str(part.population.model.output))
            first = int(row["place"]) - int(self._buffers.output_places[self._me])
            buffer = self._buffers.outputs(self._me)
            buffer[:, first : first + len(values)] = 0
            buffer[step % self._buffers.slots, first : first + len(values)] = values

    # --- reading ----------------------------------------------------------------------------------------------

    def list_synapses(self, projection: RateProjection) -> dict[str, Array]:
        """Return pre, post (within their populations), delay_steps and weight of the synapses onto this shard."""
        for table in self.tables:
            if table.projection.index == projection.index:
                counts = np.diff(table.starts)
                classes = table.classes if len(table.classes) else np.zeros(len(table.weights), np.uint16)
                column = self.columns[projection.pre.index]
                return {
                    "pre": table.sources.astype(np.int64) - column,
                    "post": np.repeat(np.arange(len(counts)), counts) + table.part.part.first,
                    "delay_steps": table.delays[classes],
                    "weight": table.weights,
                }
        none = np.zeros(0, np.int64)
        return {"pre": none, "post": none, "delay_steps": none, "weight": np.zeros(0, np.float32)}


def _blocks_of(part: NeuronPart) -> tuple[int, int]:
    return part.blocks.ctypes.data, part.blocks.shape[1] * BLOCK * 4


def _table(network: Network, projection: RateProjection, part: NeuronPart, column: int) -> RateTable:
    """Draw the synapses of a rate projection onto a slice."""
    here = part.part
    delays = delay_classes(network, [projection])
    classes = len(delays)
    if classes > 1 << 16:
        raise InvalidArgument(f"projection {projection.name!r}: {classes:,} different delays; {1 << 16:,} are the most")
    index = np.zeros(projection.pre.n * classes + 2, np.uint32)
    tally = np.zeros(TALLY_WORDS, np.int64)
    scan = Scan(
        network,
        projection,
        rule=encode_rule(projection, here, network.seed),
        targets=(here.first, here.last),
        slice_first=here.first,
        class_of_delay=class_of_delay(delays),
        index=index,
        index_classes=classes,
        tally=tally,
        inverse_lsb=1.0,
        block_stride=BLOCK,
    )
    no_words = np.empty(0, np.uint32)
    scan.run(COUNT, no_words, (np.empty(0, np.uint32), np.empty(0, np.float32)))
    synapses = count_to_starts(index)
    targets, weights = np.empty(synapses, np.uint32), np.empty(synapses, np.float32)
    scan.run(PLASTIC, no_words, (targets, weights))
    order = np.argsort(targets, kind="stable")
    counts: NDArray[np.int64] = np.diff(index[:-1].astype(np.int64))  # type: ignore[assignment]
    segments = np.repeat(np.arange(len(counts)), counts)[order]
    starts = np.zeros(here.n + 1, np.int64)
    np.cumsum(np.bincount(targets, minlength=here.n), out=starts[1:])
    return RateTable(
        projection,
        part,
        starts,
        (column + segments // classes).astype(np.uint32),
        (segments % classes).astype(np.uint16) if classes > 1 else np.zeros(0, np.uint16),
        np.ascontiguousarray(weights[order]),
        delays,
        int(tally[CLIPPED]),
    )


@compiled_on_demand
def collect_outputs(control_at: int, t: int) -> None:
    """Copy the outputs that can arrive from step t on to the ring."""
    control = _controls_at(control_at, 1)[0]
    workers, slots = control.workers, control.output_slots
    lags = i64(control.lags, workers)
    buffers, strides = i64(control.buffers, workers), i64(control.buffer_strides, workers)
    copies = _copies_at(control.output_copies, control.output_copies_count)
    for i in range(control.output_copies_count):
        worker, n = copies[i].worker, copies[i].n
        s = t - lags[worker]
        if s < 1:
            continue  # outputs of step 0 are there from the beginning
        slot = buffers[worker] + s % control.buffer_slots * strides[worker]
        given = f32(slot + copies[i].place * 4, n)
        ring = f32(control.ring + ((s & (slots - 1)) * control.columns + copies[i].column) * 4, n)
        for k in range(np.uint64(n)):
            ring[k] = given[k]


@compiled_on_demand
def gather_inputs(control_at: int, t: int) -> None:
    """Sum weight x output over the synapses of each target of this shard, for the update of step t."""
    control = _controls_at(control_at, 1)[0]
    tables = _tables_at(control.rate_tables, control.rate_tables_count)
    for i in range(control.rate_tables_count):
        table = tables[i]
        lags, places = i64(table.lags, table.lag_count), i64(table.places, table.lag_count)
        for c in range(table.lag_count):
            places[c] = ((t - lags[c]) & (control.output_slots - 1)) * control.columns
        starts = i64(table.starts, table.n + 1)
        sources, weights = u32(table.sources, 1 << 40), f32(table.weights, 1 << 40)
        for b in range((table.n + BLOCK - 1) // BLOCK):
            inputs = f32(table.blocks + b * table.block_bytes + table.row, BLOCK)
            if table.lag_count == 1:
                ring = f32(control.ring + places[0] * 4, control.columns)
                for k in range(np.uint64(min(BLOCK, table.n - b * BLOCK))):
                    total = inputs[k] if table.adds else np.float32(0.0)
                    target = np.uint64(b * BLOCK) + k
                    for j in range(np.uint64(starts[target]), np.uint64(starts[target + np.uint64(1)])):
                        total += weights[j] * ring[np.uint64(sources[j])]
                    inputs[k] = total
                continue
            ring = f32(control.ring, control.output_slots * control.columns)
            classes = u16(table.classes, 1 << 40)
            for k in range(np.uint64(min(BLOCK, table.n - b * BLOCK))):
                total = inputs[k] if table.adds else np.float32(0.0)
                target = np.uint64(b * BLOCK) + k
                for j in range(np.uint64(starts[target]), np.uint64(starts[target + np.uint64(1)])):
                    place = np.uint64(places[np.uint64(classes[j])]) + np.uint64(sources[j])
                    total += weights[j] * ring[place]
                inputs[k] = total


@compiled_on_demand
def publish_outputs(control_at: int, slices_at: int, t: int) -> None:
    """Write the outputs of this shard's neurons after step t to its buffer, and add them to the hash of the run.

    Silenced populations have the output 0.
    """
    control = _controls_at(control_at, 1)[0]
    workers, me = control.workers, control.me
    slot = i64(control.buffers, workers)[me] + t % control.buffer_slots * i64(control.buffer_strides, workers)[me]
    rows = _outputs_at(control.outputs, control.outputs_count)
    total = np.uint64(control.hash)
    for i in range(control.outputs_count):
        row = rows[i]
        silent = _slices_at(slices_at, row.part + 1)[row.part].silent != 0
        for b in range((row.n + BLOCK - 1) // BLOCK):
            size = min(BLOCK, row.n - b * BLOCK)
            given = u32(row.blocks + b * row.block_bytes + row.row, BLOCK)
            out = u32(slot + (row.place + b * BLOCK) * 4, BLOCK)
            first = (np.uint64(t) << np.uint64(32)) ^ np.uint64(row.first_id + b * BLOCK)
            for k in range(np.uint64(size)):
                bits = np.uint32(0) if silent else given[k]
                out[k] = bits
                total += mix((first + k) * GOLDEN + np.uint64(bits) * _HASH_FACTOR)
    control.hash = np.int64(total)
