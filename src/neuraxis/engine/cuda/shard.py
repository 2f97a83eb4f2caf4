"""A shard whose steps run on a GPU.

It is a `Shard` like any other: its arrays on the host are what states, checkpoints and fingerprints are read from and
written to. They and the device take turns in being the ones that are up to date: `advance` carries everything to the
device if the host has it, and whoever asks for an array of the host brings everything back. Plastic synapses have
turns of their own, and no array on the host before somebody asks for one. Static synapses stay on the device, and what
is still to arrive at a neuron is computed anew from the spikes under way, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import plan as w
from neuraxis.engine.cuda.description import (
    given_spikes,
    poisson_rows,
    population_rows,
    probe_rows,
    pulse_rows,
    tie_rows,
)
from neuraxis.engine.cuda.device import Device, Memory, Program
from neuraxis.engine.cuda.drain import Drain
from neuraxis.engine.cuda.grid import first_places, lay_out
from neuraxis.engine.cuda.history import History
from neuraxis.engine.cuda.plastic import build_plastic_tables
from neuraxis.engine.cuda.poisson_tables import PoissonTables
from neuraxis.engine.cuda.program import FIRST_STATE_ROW, build_source, constant_words, model_key, steps_source
from neuraxis.engine.cuda.status import Status
from neuraxis.engine.cuda.synapses import Outside, StaticSynapses, draw_synapses
from neuraxis.engine.cuda.words import word
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.outboxes import Listener, Outboxes
from neuraxis.engine.placement import Slice
from neuraxis.engine.plastic_tables import PlasticTable
from neuraxis.engine.shard import SAMPLE_ROOM, Shard
from neuraxis.engine.static_tables import StaticTable
from neuraxis.errors import InvalidArgument, KernelFailed
from neuraxis.network import Network, Projection
from neuraxis.network.neuron_model import NeuronModel
from neuraxis.network.rhythm import CELLS, cosine_table

__all__ = ["CudaShard"]

RECORDED_EACH = 6  # spikes of a neuron, and the launch ends: so that most are taken away while the next one runs
LEAST_RECORDED = 1 << 12  # of a block
FEW_NOTES = 1 << 14
MOST_STEPS = 1 << 17  # of one launch
MOST_NOTES = (1 << 31) - 1  # of a block, in one launch
NOBODY = 1 << 40
MOST_MODELS, MOST_RECEPTORS, MOST_CONSTANTS = 1 << 7, 63, 4 << 16  # what the kernels' traits have room for


class CudaShard(Shard):
    """The part of a network that one GPU runs."""

    def __init__(
        self,
        network: Network,
        placement: tuple[tuple[Slice, ...], ...],
        me: int,
        outboxes: Outboxes,
        progress: Callable[[int], None] = lambda synapses: None,
        listeners: Sequence[Listener] = (),
        *,
        device: Device,
    ) -> None:
        self._device = device
        # Which of the two is up to date: both are after somebody has looked at the host's arrays.
        self._host_is_fresh, self._device_is_fresh = True, False
        self._memory: dict[str, Memory] = {}
        self._flushed = -1  # the step at which the device's plastic weights were, unless they have changed since
        self._emitted = 0  # synaptic events of the spikes that were collected, delivered yet or not
        self._samples_taken: list[NDArray[np.uint32]] = []
        self._changed = True  # what populations are told to do: inputs, silence
        self._torn = False  # an error has left the device at another step than the host
        super().__init__(network, placement, me, outboxes, progress, listeners)
        self._history = History(self)
        self._describe()

    # --- the host's arrays; whoever wants to change them calls `take_over` first -----------------------------

    def take_over(self, *, weights: bool = False) -> None:
        self._to_host()
        self._device_is_fresh = False
        if weights:
            self._tables_there.take_over()
            self._flushed = -1

    @property
    def parts(self) -> list[NeuronPart]:
        self._to_host()
        return self._parts

    @parts.setter
    def parts(self, parts: list[NeuronPart]) -> None:
        self._parts = parts

    @property
    def plastic(self) -> list[PlasticTable]:
        self._tables_there.to_host()
        return self.plastic_held

    @plastic.setter
    def plastic(self, tables: list[PlasticTable]) -> None:
        pass  # those that are held

    def _plastic_table(self, projection: Projection) -> PlasticTable:
        table = next(one for one in self.plastic_held if one.projection.index == projection.index)
        self._tables_there.to_host(table)
        return table

    def hash_weights(self, table: PlasticTable) -> int:
        there = self._tables_there
        return there.hash_weights(table) if there.device_is_fresh else super().hash_weights(table)

    @property
    def _levels(self) -> NDArray[np.float32]:
        self._to_host()
        return self._levels_kept

    @_levels.setter
    def _levels(self, levels: NDArray[np.float32]) -> None:
        self._levels_kept = levels

    @property
    def events(self) -> int:
        if self._host_is_fresh:
            return super().events
        self._check_is_whole()
        return self._emitted - self._pending(putting=False)

    @property
    def static_synapses(self) -> int:
        return self.synapses.synapses

    @property
    def synapse_bytes(self) -> int:
        return self.synapses.nbytes + self._tables_there.nbytes

    # --- to build ---------------------------------------------------------------------------------------------

    def _kernel_of(self, part: NeuronPart) -> int:
        return 0

    def _poisson_kernel(self, table: NDArray[np.generic]) -> int:
        return 0

    def _make_static(self, progress: Callable[[int], None]) -> list[StaticTable]:
        network, parts = self.network, self._parts
        self._lag = int(self.outboxes.lags[self.me, self.me])
        self._lengths = [constant_words(part.population.model, network.dt_ms) for part in parts]
        self._tables = PoissonTables(network, parts)
        outside = Outside.of(network, self.slices)
        plastic = any(one.plasticity for one in network.projections)
        alone = bool((np.delete(self.outboxes.lags[self.me], self.me) > 1).all())
        self.grid = lay_out(
            network, parts, self._lag, sum(self._lengths), len(self._tables.words), outside.rows,
            self._device, plastic, alone,
        )  # fmt: skip
        outside = Outside({p: first + self.grid.places for p, first in outside.first.items()}, outside.rows)
        self._outside = outside
        self._building = self._device.compile(build_source(self.grid.shape), resident=False)
        self.synapses: StaticSynapses = draw_synapses(
            network, parts, self.grid, outside, self._device, self._building, progress, self.clipped
        )
        return []

    def _make_plastic(self, progress: Callable[[int], None]) -> list[PlasticTable]:
        self._tables_there = build_plastic_tables(
            self.network,
            self._parts,
            self.grid,
            self._device,
            self._building,
            self._outside.first,
            progress,
            self.clipped,
        )
        return [one.table for one in self._tables_there.tables]

    def _describe(self) -> None:
        """Everything that does not change while the network runs."""
        grid, network, device = self.grid, self.network, self._device
        models: dict[tuple[object, ...], int] = {}
        kinds: list[tuple[NeuronModel, float]] = []
        self._model_of = []
        for part in self._parts:
            key = model_key(part.population.model, network.dt_ms)
            if key not in models:
                models[key] = len(kinds)
                kinds.append((part.population.model, network.dt_ms))
            self._model_of.append(models[key])
            if len(part.population.model.receptors) > MOST_RECEPTORS:
                raise InvalidArgument(
                    f"{part.population.name!r}: {MOST_RECEPTORS} receptors are the most on {device.name}; use "
                    "device='cpu'"
                )
        if len(kinds) > MOST_MODELS or sum(self._lengths) > MOST_CONSTANTS:
            raise InvalidArgument(
                f"{len(kinds)} different models with {sum(self._lengths):,} constants: {device.name} can have "
                f"{MOST_MODELS} with {MOST_CONSTANTS:,}; use device='cpu'"
            )
        self._kinds = kinds
        self._programs: dict[bool, Program] = {}
        self._program(False)  # errors of a model are told before anything runs

        sizes = [part.part.n for part in self._parts]
        self._first_places = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        every = np.arange(len(sizes))
        ids = [p.population.first_id + p.part.first + np.arange(p.part.n) for p in self._parts]
        self._ids = np.concatenate([*ids, np.zeros(0, np.int64)])  # of the shard's neurons, in the network
        self.longest_plastic_delay = max((int(table.delays[-1]) for table in self.plastic_held), default=0)
        slots = 1 << (self.longest_delay + 3).bit_length()
        self._count_slots = slots
        blocks, lines = grid.blocks, grid.lines
        # Beside those that end a launch, those of the steps until all blocks have heard of it.
        record_room = max(LEAST_RECORDED, RECORDED_EACH * grid.cells) + (grid.shape.lag + 4) * grid.cells
        self._kept_steps = max(self.slots, self.outboxes.slots)
        note_room = self._kept_steps * grid.cells
        recorded = np.concatenate([*self._masks, np.zeros(0, np.uint8)])
        first_place = first_places(self._parts)
        poissons, tables = poisson_rows(self.poisson_rows, self._poisson_tables, self._tables, device)
        pulses, values = pulse_rows(self.pulse_rows, self._pulse_values, device)
        probes, self._probes, sampled = probe_rows(self.sampled_parts(), first_place, grid, network.dt_ms, device)
        self._keep += [*tables, *values, *sampled]
        population_of_row = np.full(self.synapses.rows, 0, np.uint16)
        population_of_row[: grid.places] = grid.to_cells(
            np.repeat([p.part.population for p in self._parts], sizes).astype(np.uint16)
        )
        for population, first in self._outside.first.items():
            population_of_row[first : first + network.populations[population].n] = population
        places = np.concatenate([*[np.arange(n) for n in sizes], np.zeros(0, np.int64)])
        modulators, rhythms = len(network.neuromodulators), len(network.rhythms)
        arrays: dict[str, NDArray[Any]] = {
            "POPULATION_OF_ROW": population_of_row,
            "POPULATION_OF_CELL": grid.to_cells(np.repeat(every, sizes).astype(np.int16), -1),
            "PLACE_OF_CELL": grid.to_cells(places.astype(np.int32)),
            "RECORDED_CELLS": grid.to_cells(recorded),
            "POISSONS": poissons,
            "TABLES": self._tables.words,
            "PULSES": pulses,
            "MODULATOR_ROWS": self.modulator_rows,
            "RELEASES": self.release_rows,
            "RHYTHMS": self._rhythm_rows,
            "COSINES": cosine_table(),
            "TIES": tie_rows(network, self._parts, self._lengths),
            "PROBES": probes,
        }
        room: dict[str, int] = {
            "RING": 4 * blocks * grid.slots * grid.accumulators,
            "MAIL": 16 * blocks * lines,
            "MANY": 2 * blocks * lines * grid.cells,
            "POPULATION_ROWS": 8 * word("Q_WORDS") * max(1, len(sizes)),
            "POPULATION_COUNTS": 4 * blocks * slots * len(network.populations) if grid.shape.counts_populations else 0,
            "STATES": 4 * grid.shape.state_rows * grid.places,
            "SPIKE_COUNTS": 4 * grid.places,
            "SPIKE_RECORD": 8 * blocks * record_room if recorded.any() else 0,
            "RECORDED": 4 * blocks,
            "NOTES": 8 * blocks * note_room,
            "NOTED": 4 * blocks,
            "SAMPLES": 4 * len(self._samples),
            "CONSTANTS": 4 * sum(self._lengths),
            "LEVELS_BEFORE": 4 * modulators,
            "LEVELS_AFTER": 4 * modulators,
            "SIGNALS_BEFORE": 4 * (modulators + rhythms),
            "SIGNALS_AFTER": 4 * (modulators + rhythms),
            "FULL": 4 * blocks,
        }
        self._memory = {name: device.put(array) for name, array in arrays.items()}
        self._memory |= {name: device.zeros(nbytes) for name, nbytes in room.items()}
        self._status = Status(device, blocks, len(sizes))
        self._drain = Drain(device, blocks * record_room) if recorded.any() else None
        self._notes = device.empty(8 * blocks * note_room)
        numbers = {
            "BLOCKS": blocks, "CELLS": grid.cells, "SLOTS": grid.slots, "ACCUMULATORS": grid.accumulators,
            "ROWS": self.synapses.rows, "RECORDS": self.synapses.records.address, "WORDS": self.synapses.starts.address,
            "LINE_MASK": lines - 1, "POPULATIONS": len(network.populations), "COUNT_SLOTS": slots,
            "RECORD_ROOM": record_room if recorded.any() else NOBODY, "NOTE_ROOM": note_room,
            "CONSTANT_WORDS": sum(self._lengths), "MODULATORS": modulators, "RHYTHM_COUNT": rhythms,
            "PLASTICS": self._tables_there.rows.address, "PLASTIC_COUNT": len(self.plastic_held),
            "PARTS": len(sizes), "TABLE_WORDS": len(self._tables.words),
            "CELL_BITS": CELLS.bit_length() - 1, "TIE_COUNT": len(self._ties), "PROBE_COUNT": len(self._probes),
        }  # fmt: skip
        self._words = np.zeros(word("PLAN_WORDS"), np.int64)
        for name, value in numbers.items():
            self._words[word(f"P_{name}")] = value
        for name, memory in self._memory.items():
            self._words[word(f"P_{name}")] = memory.address
        for name, address in self._status.addresses.items():
            self._words[word(f"P_{name}")] = address

    def _program(self, acting: bool) -> Program:
        """The kernels; those that can force neurons to spike and keep populations silent take a little longer."""
        if acting not in self._programs:
            shape = replace(self.grid.shape, acting=acting)
            self._programs[acting] = self._device.compile(steps_source(shape, self._kinds), resident=True)
        return self._programs[acting]

    def _check_is_whole(self) -> None:
        if self._torn:
            raise KernelFailed(
                f"a launch on {self._device.name} was left in the middle by an error, and with it the state of the "
                "network; make a new simulation, and restore a saved state"
            )

    @contextmanager
    def _kernels(self, acting: bool = False) -> Iterator[Program]:
        """Kernels that know this shard; they have to end within. Others of the same source share their plan."""
        with self._device.turn:
            program = self._program(acting)
            program.set_plan(self._words)
            yield program

    # --- to run -------------------------------------------------------------------------------------------------

    def advance(self, until: int, spins: int, yields: int) -> int:
        while self.step < until:
            reach = self._history.reach(until)
            if reach <= self.step:
                return w.WAITING
            self._to_device()
            self._launch(min(reach, self._fits(until), self.step + min(MOST_STEPS, MOST_NOTES // self.grid.cells)))
        return w.DONE

    def _fits(self, until: int) -> int:
        """How far the samples of states fit the room for them, and no pulse of current begins or ends."""
        now = self.step
        for edge in self.pulse_rows[:, [w.C_START, w.C_STOP]].reshape(-1).tolist():
            until = edge if now < edge < until else until
        while until > now + 1 and sum(n * (until // every - now // every) for every, n in self._probes) > SAMPLE_ROOM:
            until = now + (until - now) // 2
        return until

    def _launch(self, until: int) -> None:
        device, memory, grid = self._device, self._memory, self.grid
        if self._changed:
            self._describe_changes()
        self._check_is_whole()
        self._torn = True
        outside = self._history.enter(until)
        self._words[word("P_OUTSIDE")], self._words[word("P_OUTSIDE_COUNT")] = outside
        if self._tables_there.hear_others:
            for name, value in self._history.past_of_others(until).items():
                self._words[word(f"P_{name}")] = value
        acting = bool(self.silent) or any(len(inputs) for inputs in self._inputs)
        before = self.step
        with self._kernels(acting) as kernels:
            self._host_is_fresh = False
            kernels.launch("advance_steps", grid.blocks, grid.shape.threads, grid.shared_bytes, [before, until])
            self._put_together(kernels, "NOTES", "NOTED", "NOTE_ROOM", self._kept_steps, self._notes.address)
            if self._drain is not None:
                self._put_together(kernels, "SPIKE_RECORD", "RECORDED", "RECORD_ROOM", NOBODY, self._drain.address)
                self._drain.settle()  # those of the launch before, while this one runs
            told = self._status.take()
        if told.lost:
            raise KernelFailed(
                f"the blocks of {device.name} lost each other after step {before}: one of them did not answer. "
                "The state before it is lost; restore a saved one"
            )
        if self._drain is not None:
            self._drain.send(told.total("RECORDED"))
        self.plan[w.P_STEP] = now = told.total("STEP")
        with np.errstate(over="ignore"):
            self.plan[w.P_HASH] += told.totals[word("TOTAL_HASH")]
        self._emitted += told.total("EVENTS")
        self.plan[w.P_WAITED] += told.ticks[word("TICKS_WAITING")]
        self.plan[w.P_DELIVERED] += told.ticks[word("TICKS_DELIVERING")]
        self.plan[w.P_UPDATED] += told.ticks[word("TICKS_UPDATING")] + told.ticks[word("TICKS_PUBLISHING")]
        self._spikes[[part.part.population for part in self._parts]] += told.spikes
        # What the kernel left in one place is what it begins with the next time.
        for name in ("LEVELS", "SIGNALS"):
            one, other = memory[f"{name}_BEFORE"], memory[f"{name}_AFTER"]
            memory[f"{name}_BEFORE"], memory[f"{name}_AFTER"] = other, one
            self._words[word(f"P_{name}_BEFORE")], self._words[word(f"P_{name}_AFTER")] = other.address, one.address
        if told.total("SAMPLED"):
            self._samples_taken.append(device.read(memory["SAMPLES"], np.uint32, told.total("SAMPLED")))
        self._tables_there.ran()
        self._flushed = -1
        self._history.note(before, now, self._sorted_notes(told.total("NOTED")))
        self._torn = False
        if self.plastic_held and device.read(memory["FULL"], np.int32, grid.blocks).any():
            self._make_room()

    def _make_room(self) -> None:
        """Let histories of post spikes forget what was applied; where that does not help, make them longer."""
        device, full = self._device, self._memory["FULL"]
        with self._kernels() as kernels:
            kernels.launch("flush_plastic", self.grid.blocks, self.grid.shape.threads, 0, [self.step])
            still = device.read(full, np.int32, self.grid.blocks).any()
        self._tables_there.ran()
        if still:
            self._tables_there.remember_more()
            device.clear(full)
        self._flushed = self.step

    def flush(self) -> None:
        if not self._tables_there.device_is_fresh:
            super().flush()
        elif self.plastic_held and self._flushed != self.step:
            self._tables_there.to_device()
            self._make_room()

    def _put_together(self, kernels: Program, entries: str, counts: str, room: str, steps: int, to: int) -> None:
        """Put what each block has of its last steps in one place; the status tells how many there are."""
        memory, size = self._memory, int(self._words[word(f"P_{room}")])
        kernels.launch(
            "put_together", self.grid.blocks, 128 if self._device.warp == 32 else self._device.warp, 64,
            [memory[entries].address, size, memory[counts].address, steps, to, self._status.address_of(counts)],
        )  # fmt: skip

    def _sorted_notes(self, n: int) -> NDArray[np.uint64]:
        if n <= FEW_NOTES:
            return np.sort(self._device.read(self._notes, np.uint64, n))
        self._device.sort(self._notes, n)
        return self._device.read(self._notes, np.uint64, n)

    def take_recorded(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
        nothing = np.zeros(0, np.int64)
        steps, ids = (nothing, nothing) if self._drain is None else self._drain.take()
        samples = np.concatenate([*self._samples_taken, np.zeros(0, np.uint32)])
        self._samples_taken = []
        return steps, ids, samples

    # --- between the two ------------------------------------------------------------------------------------

    def _to_device(self) -> None:
        self._tables_there.to_device()
        if self._device_is_fresh:
            return
        device, grid, memory, shape = self._device, self.grid, self._memory, self.grid.shape
        states = np.zeros((shape.state_rows, grid.places), np.uint32)
        rows = np.zeros((shape.state_rows, grid.neurons), np.uint32)
        for part, first in zip(self._parts, self._first_places, strict=False):
            here = slice(int(first), int(first) + part.part.n)
            for row in range(len(part.layout.states)):
                rows[FIRST_STATE_ROW + row, here] = part.row(row)
            if part.layout.stream is not None:
                rows[0, here], rows[1, here] = part.row(part.layout.stream), part.row(part.layout.stream + 1)
        for row in range(shape.state_rows):
            states[row] = grid.to_cells(rows[row])
        device.write(memory["STATES"], states)
        counts = np.concatenate([*[part.spike_counts for part in self._parts], np.zeros(0, np.int32)])
        device.write(memory["SPIKE_COUNTS"], grid.to_cells(counts))
        constants = [part.constants[:n] for part, n in zip(self._parts, self._lengths, strict=True)]
        device.write(memory["CONSTANTS"], np.concatenate([*constants, np.zeros(0, np.float32)]))
        device.write(memory["LEVELS_BEFORE"], self._levels_kept[: len(self.network.neuromodulators)])
        device.write(memory["SIGNALS_BEFORE"], self._signals[: memory["SIGNALS_BEFORE"].nbytes // 4])
        device.clear(memory["RING"])
        device.clear(memory["FULL"])
        self._history.put_on_device()
        self._emitted = int(self.plan[w.P_EVENTS]) + self._pending(putting=True)
        self._device_is_fresh = True

    def _to_host(self) -> None:
        if self._host_is_fresh:
            return
        self._check_is_whole()
        device, grid, memory, shape = self._device, self.grid, self._memory, self.grid.shape
        self.plan[w.P_EVENTS] = self._emitted - self._pending(putting=False)
        states = device.read(memory["STATES"], np.uint32, shape.state_rows * grid.places).reshape(shape.state_rows, -1)
        rows = [grid.from_cells(one).view(np.uint32) for one in states]
        counts = grid.from_cells(device.read(memory["SPIKE_COUNTS"], np.int32, grid.places))
        for part, first in zip(self._parts, self._first_places, strict=False):
            here = slice(int(first), int(first) + part.part.n)
            for row in range(len(part.layout.states)):
                part.put_row(row, rows[FIRST_STATE_ROW + row][here])
            if part.layout.stream is not None:
                part.put_row(part.layout.stream, rows[0][here])
                part.put_row(part.layout.stream + 1, rows[1][here])
            part.spike_counts[:] = counts[here]
        modulators = len(self.network.neuromodulators)
        self._levels_kept[:modulators] = device.read(memory["LEVELS_BEFORE"], np.float32, modulators)
        signals = memory["SIGNALS_BEFORE"].nbytes // 4
        self._signals[:signals] = device.read(memory["SIGNALS_BEFORE"], np.float32, signals)
        self._host_is_fresh = True

    def _pending(self, *, putting: bool) -> int:
        """The synaptic events that spikes collected so far will still bring; `putting`: into the empty ring, too."""
        device, spikes = self._device, self._history.collected()
        given = device.put(spikes)
        threads = 512 if device.warp == 32 else 4 * device.warp
        with self._kernels() as kernels:
            arguments = [given.address, len(spikes), self.step, int(putting)]
            kernels.launch("gather_pending", self.grid.blocks, threads, 0, arguments)
            return self._status.take().total("PENDING")

    def _describe_changes(self) -> None:
        """What populations are told to do: who is silent, and who has to spike when."""
        device = self._device
        rows = population_rows(self._parts, self.slice_rows, self._model_of, self._lengths, self._first_places)
        device.write(self._memory["POPULATION_ROWS"], rows)
        given, starts = given_spikes(self._inputs, self._first_places, self.grid.blocks)
        for name, array in (("INPUTS", given), ("INPUT_STARTS", starts)):
            self._memory[name] = device.put(array)
            self._words[word(f"P_{name}")] = self._memory[name].address
        self._changed = False

    def _merge_inputs_of(self, i: int) -> None:
        super()._merge_inputs_of(i)
        self._changed = True

    def silence(self, populations: Iterable[int]) -> None:
        super().silence(populations)
        self._changed = True

    def resume(self, step: int) -> None:
        self.take_over()  # the step is the host's to set
        super().resume(step)

    def jump(self, step: int) -> None:
        self.take_over()
        super().jump(step)
