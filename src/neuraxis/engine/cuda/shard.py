"""A shard whose steps run on a GPU.

It is a `Shard`: states, checkpoints and fingerprints are read from and written to its host arrays. Either the host or
the device is up to date (or both): `advance` copies everything to the device if necessary, and reading a host array
copies everything back. Plastic synapses are copied separately, and only when they are read. Static synapses stay on the
device, and the weights that will arrive at a neuron are recomputed from the spikes in transit, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import tables as w
from neuraxis.engine.codegen import model_key
from neuraxis.engine.cpu.plastic_tables import PlasticTable
from neuraxis.engine.cpu.rates import Rates
from neuraxis.engine.cpu.shard import SAMPLE_ROOM, Shard
from neuraxis.engine.cpu.static_tables import StaticTable
from neuraxis.engine.cuda.description import (
    PoissonTables,
    binding_rows,
    given_spikes,
    poisson_rows,
    population_rows,
    probe_rows,
    pulse_rows,
)
from neuraxis.engine.cuda.device import Device, Memory, Program
from neuraxis.engine.cuda.grid import first_places, lay_out
from neuraxis.engine.cuda.history import History
from neuraxis.engine.cuda.plastic import build_plastic_tables
from neuraxis.engine.cuda.program import FIRST_STATE_ROW, build_source, constant_words, steps_source
from neuraxis.engine.cuda.rates import DeviceRates
from neuraxis.engine.cuda.synapses import Outside, StaticSynapses, draw_synapses
from neuraxis.engine.cuda.tables import LAYOUT, POPULATION, TICKS, TOTALS, offset_of
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.placement import Slice
from neuraxis.engine.spikes import Listener, SpikeBuffers
from neuraxis.errors import InvalidArgument, KernelFailed
from neuraxis.network import Network, Projection
from neuraxis.network.modulation import CELLS, cosine_table
from neuraxis.network.neuron_model import NeuronModel

__all__ = ["CudaShard", "LaunchResult", "LaunchStatus", "SpikeDownload"]

RECORDED_EACH = 6  # spikes per neuron, then the launch ends; most are copied while the next one runs
LEAST_RECORDED = 1 << 12  # per block
FEW_SPIKES = 1 << 14
MOST_STEPS = 1 << 17  # of one launch
MOST_SPIKES = (1 << 31) - 1  # of a block in one launch
UNLIMITED = 1 << 40
MOST_MODELS, MOST_RECEPTORS, MOST_CONSTANTS = 1 << 7, 63, 4 << 16  # limits of the packed traits in the kernels
_FIRST_ROOM = 1 << 16


class CudaShard(Shard):
    """The part of a network that one GPU runs."""

    def __init__(
        self,
        network: Network,
        placement: tuple[tuple[Slice, ...], ...],
        me: int,
        spike_buffers: SpikeBuffers,
        progress: Callable[[int], None] = lambda synapses: None,
        listeners: Sequence[Listener] = (),
        *,
        device: Device,
    ) -> None:
        if network.is_wide:
            raise InvalidArgument(
                f'precision="float64" runs on CPUs only: the kernels of {device.name} compute in float32. Use '
                'device="cpu", or Network(precision="float32").'
            )
        self._device = device
        # Which side is up to date; both are after the host's arrays were read.
        self._host_is_fresh, self._device_is_fresh = True, False
        self._memory: dict[str, Memory] = {}
        self._flushed = -1  # step of the last flush on the device; -1 if weights have changed since
        self._emitted = 0  # synaptic events of all collected spikes, delivered or not
        self._samples_taken: list[NDArray[np.uint32]] = []
        self._changed = True  # inputs or silence of populations have changed
        self._inconsistent = False  # an error has left device and host at different steps
        super().__init__(network, placement, me, spike_buffers, progress, listeners)
        self._history = History(self)
        self._device_rates = DeviceRates(self._host_rates, network, self._parts, self.grid, device, spike_buffers, me)
        self._describe()

    # --- host arrays; call `take_over` before changing them ---------------------------------------------------

    def take_over(self, *, weights: bool = False) -> None:
        self._to_host()
        self._device_is_fresh = False
        if weights:
            self._device_tables.take_over()
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
        self._device_tables.to_host()
        return self.plastic_held

    @plastic.setter
    def plastic(self, tables: list[PlasticTable]) -> None:
        pass  # `plastic_held` has them

    @property
    def rates(self) -> Rates:
        self._to_host()
        return self._host_rates

    @rates.setter
    def rates(self, rates: Rates) -> None:
        self._host_rates = rates

    def _plastic_table(self, projection: Projection) -> PlasticTable:
        table = next(one for one in self.plastic_held if one.projection.index == projection.index)
        self._device_tables.to_host(table)
        return table

    def hash_weights(self, table: PlasticTable) -> int:
        there = self._device_tables
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
        self._check_consistent()
        return self._emitted - self._pending(deliver=False)

    @property
    def static_synapses(self) -> int:
        return self.synapses.synapses

    @property
    def synapse_bytes(self) -> int:
        return self.synapses.nbytes + self._device_tables.nbytes

    # --- construction -----------------------------------------------------------------------------------------

    def _kernel_of(self, part: NeuronPart) -> int:
        return 0

    def _poisson_kernel(self, table: NDArray[np.generic]) -> int:
        return 0

    def _make_static(self, progress: Callable[[int], None]) -> list[StaticTable]:
        network, parts = self.network, self._parts
        self._lag = int(self.spike_buffers.lags[self.me, self.me])
        self._lengths = [constant_words(part.population.model, network.dt_ms, part.extra) for part in parts]
        self._tables = PoissonTables(network, parts)
        outside = Outside.of(network, self.slices)
        plastic = any(one.plasticity for one in network.projections)
        alone = bool((np.delete(self.spike_buffers.lags[self.me], self.me) > 1).all())
        self.grid = lay_out(
            network, parts, self._lag, sum(self._lengths), len(self._tables.words), outside.rows,
            self._device, plastic, alone,
        )  # fmt: skip
        outside = Outside({p: first + self.grid.places for p, first in outside.first.items()}, outside.rows)
        self._outside = outside
        self._building = self._device.compile(build_source(self.grid.shape), resident=False)
        self.synapses: StaticSynapses = draw_synapses(
            network, parts, self.grid, outside, self._device, self._building, progress, self.found
        )
        return []

    def _make_plastic(self, progress: Callable[[int], None]) -> list[PlasticTable]:
        self._device_tables = build_plastic_tables(
            self.network,
            self._parts,
            self.grid,
            self._device,
            self._building,
            self._outside.first,
            progress,
            self.found,
        )
        return [one.table for one in self._device_tables.tables]

    def _describe(self) -> None:
        """Upload everything that does not change while the network runs, and fill the layout."""
        grid, network, device = self.grid, self.network, self._device
        models: dict[tuple[object, ...], int] = {}
        kinds: list[tuple[NeuronModel, float, tuple[int, ...]]] = []
        self._model_of = []
        for part in self._parts:
            model = part.population.model
            key = (*model_key(model, model.values(network.dt_ms)), part.extra)
            if key not in models:
                models[key] = len(kinds)
                kinds.append((part.population.model, network.dt_ms, part.extra))
            self._model_of.append(models[key])
            if part.accumulators.rows > MOST_RECEPTORS:
                raise InvalidArgument(
                    f"{part.population.name!r}: {MOST_RECEPTORS} receptors (and accumulators where weights are far "
                    f"apart) are the most on {device.name}. Use device='cpu'."
                )
        if len(kinds) > MOST_MODELS or sum(self._lengths) > MOST_CONSTANTS:
            raise InvalidArgument(
                f"{len(kinds)} different models with {sum(self._lengths):,} constants: {device.name} can have "
                f"{MOST_MODELS} with {MOST_CONSTANTS:,}. Use device='cpu'."
            )
        self._kinds = kinds
        self._programs: dict[bool, Program] = {}
        self._program(False)  # report errors of a model before anything runs

        sizes = [part.part.n for part in self._parts]
        self._first_places = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        every = np.arange(len(sizes))
        ids = [p.population.first_id + p.part.first + np.arange(p.part.n) for p in self._parts]
        self._ids = np.concatenate([*ids, np.zeros(0, np.int64)])  # of the shard's neurons, in the network
        self.longest_plastic_delay = max((int(table.delays[-1]) for table in self.plastic_held), default=0)
        slots = 1 << (self.longest_delay + 3).bit_length()
        self._count_slots = slots
        blocks, message_slots = grid.blocks, grid.message_slots
        # Spikes that end a launch, and those of the steps until all blocks have stopped.
        record_room = max(LEAST_RECORDED, RECORDED_EACH * grid.cells) + (grid.shape.lag + 4) * grid.cells
        self._kept_steps = max(self.slots, self.spike_buffers.slots)
        recent_room = self._kept_steps * grid.cells
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
            "population_of_row": population_of_row,
            "population_of_cell": grid.to_cells(np.repeat(every, sizes).astype(np.int16), -1),
            "place_of_cell": grid.to_cells(places.astype(np.int32)),
            "recorded_cells": grid.to_cells(recorded),
            "poisson_inputs": poissons,
            "poisson_tables": self._tables.words,
            "pulses": pulses,
            "modulator_rows": self.modulator_rows,
            "releases": self.release_rows,
            "rhythms": self._rhythm_rows,
            "cosines": cosine_table(),
            "bindings": binding_rows(network, self._parts, self._lengths),
            "probes": probes,
        }
        room: dict[str, int] = {
            "ring": 4 * blocks * grid.slots * grid.accumulators,
            "messages": 16 * blocks * message_slots,
            "long_messages": 2 * blocks * message_slots * grid.cells,
            "population_rows": POPULATION.itemsize * max(1, len(sizes)),
            "population_counts": 4 * blocks * slots * len(network.populations) if grid.shape.counts_populations else 0,
            "states": 4 * grid.shape.state_rows * grid.places,
            "spike_counts": 4 * grid.places,
            "spike_record": 8 * blocks * record_room if recorded.any() else 0,
            "recorded": 4 * blocks,
            "recent_spikes": 8 * blocks * recent_room,
            "recent": 4 * blocks,
            "samples": 4 * len(self._samples),
            "constants": 4 * sum(self._lengths),
            "levels_before": 4 * modulators,
            "levels_after": 4 * modulators,
            "signals_before": 4 * (modulators + rhythms),
            "signals_after": 4 * (modulators + rhythms),
            "full": 4 * blocks,
        }
        self._memory = {name: device.put(array) for name, array in arrays.items()}
        self._memory |= {name: device.zeros(nbytes) for name, nbytes in room.items()}
        self._status = LaunchStatus(device, blocks, len(sizes))
        self._download = SpikeDownload(device, blocks * record_room) if recorded.any() else None
        self._recent = device.empty(8 * blocks * recent_room)
        numbers = {
            "blocks": blocks, "cells": grid.cells, "slots": grid.slots, "accumulators": grid.accumulators,
            "rows": self.synapses.rows, "records": self.synapses.records.address, "words": self.synapses.starts.address,
            "message_mask": message_slots - 1, "populations": len(network.populations), "count_slots": slots,
            "record_room": record_room if recorded.any() else UNLIMITED, "recent_room": recent_room,
            "constant_words": sum(self._lengths), "modulators": modulators, "rhythm_count": rhythms,
            "plastic_tables": self._device_tables.rows.address, "plastic_count": len(self.plastic_held),
            "parts": len(sizes), "poisson_words": len(self._tables.words),
            "cell_bits": CELLS.bit_length() - 1, "binding_count": len(self._bindings), "probe_count": len(self._probes),
        }  # fmt: skip
        self._layout = np.zeros((), LAYOUT)
        for name, value in numbers.items():
            self._layout[name] = value
        for name, memory in self._memory.items():
            self._layout[name] = memory.address
        for name, address in (*self._status.addresses.items(), *self._device_rates.layout().items()):
            self._layout[name] = address

    def _program(self, interventions: bool) -> Program:
        """Return the kernels; those with `interventions` can force spikes and silence populations, and are slower."""
        if interventions not in self._programs:
            shape = replace(self.grid.shape, interventions=interventions, checked=self.network.checks_finite)
            self._programs[interventions] = self._device.compile(steps_source(shape, self._kinds), resident=True)
        return self._programs[interventions]

    def _check_consistent(self) -> None:
        if self._inconsistent:
            raise KernelFailed(
                f"a launch on {self._device.name} was left in the middle by an error, and the state is lost. "
                "Make a new simulation and restore a saved state."
            )

    @contextmanager
    def _kernels(self, interventions: bool = False) -> Iterator[Program]:
        """Yield kernels with this shard's layout, which must finish within: equal sources share one layout."""
        with self._device.lock:
            program = self._program(interventions)
            program.set_layout(self._layout)
            yield program

    # --- running ------------------------------------------------------------------------------------------------

    def advance(self, until: int, spins: int, yields: int) -> int:
        while self.step < until:
            reach = self._device_rates.reach(self.step, self._history.reach(until))
            if reach <= self.step:
                return w.WAITING
            self._to_device()
            self._launch(min(reach, self._fits(until), self.step + min(MOST_STEPS, MOST_SPIKES // self.grid.cells)))
        return w.DONE

    def _fits(self, until: int) -> int:
        """Return the step up to which samples fit their memory and no injected current starts or stops."""
        now = self.step
        for edge in (*self.pulse_rows["start"].tolist(), *self.pulse_rows["stop"].tolist()):
            until = edge if now < edge < until else until
        while until > now + 1 and sum(n * (until // every - now // every) for every, n in self._probes) > SAMPLE_ROOM:
            until = now + (until - now) // 2
        return until

    def _launch(self, until: int) -> None:
        device, memory, grid = self._device, self._memory, self.grid
        if self._changed:
            self._describe_changes()
        self._check_consistent()
        self._inconsistent = True
        outside = self._history.enter(until)
        self._layout["outside"], self._layout["outside_count"] = outside
        self._device_rates.enter(until)
        if self._device_tables.read_others:
            for name, value in self._history.past_of_others(until).items():
                self._layout[name] = value
        self._layout["check_step"] = self.control["check_step"]
        interventions = bool(self.silent) or any(len(inputs) for inputs in self._inputs)
        before = self.step
        with self._kernels(interventions) as kernels:
            self._host_is_fresh = False
            kernels.launch("advance_steps", grid.blocks, grid.shape.threads, grid.shared_bytes, [before, until])
            self._compact(kernels, "recent_spikes", "recent", "recent_room", self._kept_steps, self._recent.address)
            if self._download is not None:
                self._compact(kernels, "spike_record", "recorded", "record_room", UNLIMITED, self._download.address)
                self._download.receive()  # those of the previous launch, while this one runs
            result = self._status.take()
        if result.lost:
            raise KernelFailed(
                f"the blocks of {device.name} lost each other after step {before}: one of them did not answer. "
                "The state is lost; restore a saved one."
            )
        if self._download is not None:
            self._download.send(result.total("recorded"))
        self.control["step"] = now = result.total("step")
        with np.errstate(over="ignore"):
            self.control["hash"] += result.totals["hash"].view(np.int64)
        self._note_instability(result.total("unstable"))
        self._emitted += result.total("events")
        self.control["waited"] += result.ticks["waiting"]
        self.control["delivered"] += result.ticks["delivering"]
        self.control["updated"] += result.ticks["updating"] + result.ticks["publishing"]
        self._spikes[[part.part.population for part in self._parts]] += result.spikes
        # The output of this launch is the input of the next.
        for name in ("levels", "signals"):
            one, other = memory[f"{name}_before"], memory[f"{name}_after"]
            memory[f"{name}_before"], memory[f"{name}_after"] = other, one
            self._layout[f"{name}_before"], self._layout[f"{name}_after"] = other.address, one.address
        if result.total("sampled"):
            self._samples_taken.append(device.read(memory["samples"], np.uint32, result.total("sampled")))
        self._device_tables.mark_changed()
        self._flushed = -1
        self._device_rates.publish(before, now)
        self._history.add(before, now, self._sorted_recent(result.total("recent")))
        self._inconsistent = False
        if self.plastic_held and device.read(memory["full"], np.int32, grid.blocks).any():
            self._make_room()

    def _note_instability(self, result: int) -> None:
        """Unpack the first state that was not finite (see neurons.cuh)."""
        if result == 0 or self.control["unstable_step"]:
            return
        packed = ~result % 2**64
        place, state, kind = packed >> 9 & 0xFFFFFF, packed >> 2 & 0x7F, packed & 3
        part = int(np.searchsorted(self._first_places, place, side="right")) - 1
        bits = np.array([np.nan, np.inf, -np.inf], np.float32)[kind].view(np.uint32)
        neuron = place - int(self._first_places[part])
        for name, value in zip(w.UNSTABLE, (packed >> 33, part, neuron, state, int(bits)), strict=True):
            self.control[name] = value

    def _put_kernels(self) -> None:
        """Leave the addresses of kernels out: the GPU has its own."""

    def _make_room(self) -> None:
        """Flush full histories of target spikes; if that does not help, double their capacity."""
        device, full = self._device, self._memory["full"]
        with self._kernels() as kernels:
            kernels.launch("flush_plastic", self.grid.blocks, self.grid.shape.threads, 0, [self.step])
            still = device.read(full, np.int32, self.grid.blocks).any()
        self._device_tables.mark_changed()
        if still:
            self._device_tables.grow_history()
            device.clear(full)
        self._flushed = self.step

    def flush(self) -> None:
        if not self._device_tables.device_is_fresh:
            super().flush()
        elif self.plastic_held and self._flushed != self.step:
            self._device_tables.to_device()
            self._make_room()

    def _compact(self, kernels: Program, entries: str, counts: str, room: str, steps: int, to: int) -> None:
        """Concatenate the entries of all blocks of the last steps; the status has their number."""
        memory, size = self._memory, int(self._layout[room])
        kernels.launch(
            "compact", self.grid.blocks, 128 if self._device.warp == 32 else self._device.warp, 64,
            [memory[entries].address, size, memory[counts].address, steps, to, self._status.address_of(counts)],
        )  # fmt: skip

    def _sorted_recent(self, n: int) -> NDArray[np.uint64]:
        if n <= FEW_SPIKES:
            return np.sort(self._device.read(self._recent, np.uint64, n))
        self._device.sort(self._recent, n)
        return self._device.read(self._recent, np.uint64, n)

    def take_recorded(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
        nothing = np.zeros(0, np.int64)
        steps, ids = (nothing, nothing) if self._download is None else self._download.take()
        samples = np.concatenate([*self._samples_taken, np.zeros(0, np.uint32)])
        self._samples_taken = []
        return steps, ids, samples

    # --- transfer between host and device -------------------------------------------------------------------

    def _to_device(self) -> None:
        self._device_tables.to_device()
        if self._device_is_fresh:
            return
        device, grid, memory, shape = self._device, self.grid, self._memory, self.grid.shape
        states = np.zeros((shape.state_rows, grid.places), np.uint32)
        rows = np.zeros((shape.state_rows, grid.neurons), np.uint32)
        for part, first in zip(self._parts, self._first_places, strict=False):
            here = slice(int(first), int(first) + part.part.n)
            for row in range(len(part.layout.states)):
                rows[FIRST_STATE_ROW + row, here] = part.row(row)
            first_own = FIRST_STATE_ROW + len(part.layout.states)
            for row in range(len(part.layout.parameters)):
                rows[first_own + row, here] = part.row(part.layout.first_parameter + row)
            if part.layout.stream is not None:
                rows[0, here], rows[1, here] = part.row(part.layout.stream), part.row(part.layout.stream + 1)
        for row in range(shape.state_rows):
            states[row] = grid.to_cells(rows[row])
        device.write(memory["states"], states)
        counts = np.concatenate([*[part.spike_counts for part in self._parts], np.zeros(0, np.int32)])
        device.write(memory["spike_counts"], grid.to_cells(counts))
        constants = [part.constants[:n] for part, n in zip(self._parts, self._lengths, strict=True)]
        device.write(memory["constants"], np.concatenate([*constants, np.zeros(0, np.float32)]))
        device.write(memory["levels_before"], self._levels_kept[: len(self.network.neuromodulators)])
        device.write(memory["signals_before"], self._signals[: memory["signals_before"].nbytes // 4])
        device.clear(memory["ring"])
        device.clear(memory["full"])
        self._history.put_on_device()
        self._device_rates.to_device(self.step)
        self._emitted = int(self.control["events"]) + self._pending(deliver=True)
        self._device_is_fresh = True

    def _to_host(self) -> None:
        if self._host_is_fresh:
            return
        self._check_consistent()
        device, grid, memory, shape = self._device, self.grid, self._memory, self.grid.shape
        self.control["events"] = self._emitted - self._pending(deliver=False)
        states = device.read(memory["states"], np.uint32, shape.state_rows * grid.places).reshape(shape.state_rows, -1)
        rows = [grid.from_cells(one).view(np.uint32) for one in states]
        counts = grid.from_cells(device.read(memory["spike_counts"], np.int32, grid.places))
        for part, first in zip(self._parts, self._first_places, strict=False):
            here = slice(int(first), int(first) + part.part.n)
            for row in range(len(part.layout.states)):
                part.put_row(row, rows[FIRST_STATE_ROW + row][here])
            if part.layout.stream is not None:
                part.put_row(part.layout.stream, rows[0][here])
                part.put_row(part.layout.stream + 1, rows[1][here])
            part.spike_counts[:] = counts[here]
        modulators = len(self.network.neuromodulators)
        self._levels_kept[:modulators] = device.read(memory["levels_before"], np.float32, modulators)
        signals = memory["signals_before"].nbytes // 4
        self._signals[:signals] = device.read(memory["signals_before"], np.float32, signals)
        self._device_rates.to_host(self.step)
        self._host_is_fresh = True

    def _pending(self, *, deliver: bool) -> int:
        """Count the future synaptic events of collected spikes; with `deliver`, also fill the ring with them."""
        device, spikes = self._device, self._history.collected()
        given = device.put(spikes)
        threads = 512 if device.warp == 32 else 4 * device.warp
        with self._kernels() as kernels:
            arguments = [given.address, len(spikes), self.step, int(deliver)]
            kernels.launch("gather_pending", self.grid.blocks, threads, 0, arguments)
            return self._status.take().total("pending")

    def _describe_changes(self) -> None:
        """Upload the silence of populations and the given spikes."""
        device = self._device
        rows = population_rows(self._parts, self.slice_rows, self._model_of, self._lengths, self._first_places)
        device.write(self._memory["population_rows"], rows)
        given, starts = given_spikes(self._inputs, self._first_places, self.grid.blocks)
        for name, array in (("inputs", given), ("input_starts", starts)):
            self._memory[name] = device.put(array)
            self._layout[name] = self._memory[name].address
        self._changed = False

    def _merge_inputs_of(self, i: int) -> None:
        super()._merge_inputs_of(i)
        self._changed = True

    def silence(self, populations: Iterable[int]) -> None:
        super().silence(populations)
        self._changed = True

    def resume(self, step: int) -> None:
        self.take_over()  # the step is set on the host
        super().resume(step)

    def jump(self, step: int) -> None:
        self.take_over()
        super().jump(step)


@dataclass(frozen=True)
class LaunchResult:
    """Totals of a launch."""

    totals: NDArray[np.void]  # one record of TOTALS
    ticks: NDArray[np.void]  # one record of TICKS
    lost: bool  # a block timed out waiting for another
    spikes: NDArray[np.int64]  # of each population with neurons on this shard

    def total(self, name: str) -> int:
        return int(self.totals[name])


class LaunchStatus:
    """Memory on the device for the totals of a launch, read in one transfer; zero before each launch."""

    def __init__(self, device: Device, blocks: int, parts: int) -> None:
        self._device = device
        self._parts = parts
        fields = [("totals", TOTALS), ("ticks", TICKS), ("lost", np.int64)]
        self._dtype = np.dtype([*fields, ("population_spikes", np.int64, (blocks, max(1, parts)))])
        self._memory = device.zeros(self._dtype.itemsize)
        self.addresses = {name: self._memory.address + offset_of(self._dtype, name) for name in self._dtype.names or ()}

    def address_of(self, total: str) -> int:
        """Return the address of one of the totals."""
        return self.addresses["totals"] + offset_of(TOTALS, total)

    def take(self) -> LaunchResult:
        """Wait for the launch, return its totals and set them to zero for the next."""
        status = self._device.read(self._memory, self._dtype, 1)[0]
        self._device.clear(self._memory)
        spikes = status["population_spikes"].sum(axis=0)[: self._parts]
        return LaunchResult(status["totals"], status["ticks"], bool(status["lost"]), spikes)


class SpikeDownload:
    """Double buffer for recorded spikes: a launch fills one buffer while the other is copied to the host.

    `most` is the largest number of spikes of a launch.
    """

    def __init__(self, device: Device, most: int) -> None:
        self._device = device
        self._buffers = [device.outbound(8 * most) for _ in range(2)]
        self._filling = 0
        self._copying = False
        self._n, self._room = 0, _FIRST_ROOM
        self._make_arrays()

    @property
    def address(self) -> int:
        """Address for the spikes (step << 32 | id) of the next launch, in any order."""
        return self._buffers[self._filling].memory.address

    def send(self, count: int) -> None:
        """Sort `count` spikes and start to copy them to the host; the next launch may start at once."""
        self.receive()
        buffer = self._buffers[self._filling]
        self._device.sort(buffer.memory, count)
        buffer.send(8 * count)
        self._copying, self._filling = True, 1 - self._filling

    def receive(self) -> None:
        """Unpack the copied spikes; this costs no time while a launch runs."""
        if not self._copying:
            return
        self._copying = False
        came = self._buffers[1 - self._filling].wait().view(np.int64)
        end = self._n + len(came)
        if end > self._room:
            old_steps, old_ids = self._steps, self._ids
            self._room = max(end, 2 * self._room)
            self._make_arrays()
            self._steps[: self._n], self._ids[: self._n] = old_steps[: self._n], old_ids[: self._n]
        np.right_shift(came, 32, out=self._steps[self._n : end])
        np.bitwise_and(came, 0xFFFFFFFF, out=self._ids[self._n : end])
        self._n = end

    def take(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the steps and ids of all spikes recorded since the last call, in order."""
        self.receive()
        taken = self._steps[: self._n], self._ids[: self._n]
        self._n = 0
        self._make_arrays()
        return taken

    def _make_arrays(self) -> None:
        # Pages that are never written to use no physical memory.
        self._steps, self._ids = np.empty(self._room, np.int64), np.empty(self._room, np.int64)
