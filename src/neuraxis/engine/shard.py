"""A shard: the neurons of some slices, their synapses and inputs, compiled to arrays and run by one kernel.

A shard knows nothing of processes. Its spikes leave in an outbox and the others' come from theirs: memory that whoever
runs the shards gives it (`Outboxes`), shared between processes or not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled
from neuraxis.engine import plan as w
from neuraxis.engine.advance import advance, schedule_again, set_currents
from neuraxis.engine.encoding import initial_values
from neuraxis.engine.generated import BLOCK, POISSON_SIZES, BlockLayout, poisson_function, update_function
from neuraxis.engine.learning import flush_tables, look_for_room_in
from neuraxis.engine.placement import Slice
from neuraxis.engine.plastic_tables import PlasticTable, build_plastic_table
from neuraxis.engine.random import PURPOSE_STREAM, key_of
from neuraxis.engine.static_tables import Accumulators, build_static_tables
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Population, Probe, Projection
from neuraxis.network.arithmetic import exp
from neuraxis.network.distributions import as_distribution
from neuraxis.network.grid import array_to_steps, to_steps

__all__ = ["NeuronPart", "Outboxes", "Shard", "lookahead"]

# More than this gains nothing, and every step of it takes room in everybody's outbox.
LONGEST_LOOKAHEAD = 64

RECORD_ROOM = 1 << 17
SAMPLE_ROOM = 1 << 18
FIRST_CALENDAR_ROOM = 1 << 10
FLUSH_EVERY = 5000
LARGEST_HISTORY = 2**34
FOR_EVER = 2**62


def lookahead(network: Network) -> int:
    """How many steps after a spike anybody can feel it, at the earliest."""
    shortest = [network.delay_bounds_steps(projection)[0] for projection in network.projections]
    shortest += [to_steps(one.delay_ms, network.dt_ms, "delay_ms") for one in network.modulations]
    return min([*shortest, LONGEST_LOOKAHEAD])


def longest_delay(network: Network) -> int:
    longest = [network.delay_bounds_steps(projection)[1] for projection in network.projections]
    longest += [to_steps(one.delay_ms, network.dt_ms, "delay_ms") for one in network.modulations]
    return max(longest, default=1)


@dataclass
class Outboxes:
    """Where each shard's spikes of the last steps are: addresses of the outboxes and of the words of their progress.

    A slot holds the spikes of one step: int32 offsets by population, then ids. `done` words are 64 bytes apart, so that
    no two workers write to one cache line.
    """

    outboxes: NDArray[np.int64]
    strides: NDArray[np.int64]
    done: NDArray[np.int64]
    slots: int
    keep: object = None  # what holds the memory

    def slot(self, shard: int, step: int) -> NDArray[np.int32]:
        """The slot of a shard's outbox that holds a step."""
        stride = int(self.strides[shard])
        address = int(self.outboxes[shard]) + (step % self.slots) * stride
        return np.ctypeslib.as_array((ctypes.c_int32 * (stride // 4)).from_address(address))

    @staticmethod
    def slots_for(network: Network) -> int:
        return 2 * lookahead(network) + 2

    @staticmethod
    def stride_for(network: Network, slices: tuple[Slice, ...]) -> int:
        size = 4 * (len(network.populations) + 1 + sum(part.n for part in slices))
        return -(-size // 64) * 64

    @classmethod
    def size_for(cls, network: Network, placement: tuple[tuple[Slice, ...], ...]) -> int:
        """Bytes that the outboxes of all shards take together."""
        slots = cls.slots_for(network)
        return 64 * len(placement) + sum(slots * cls.stride_for(network, slices) for slices in placement)

    @classmethod
    def at(cls, address: int, network: Network, placement: tuple[tuple[Slice, ...], ...], keep: object) -> Outboxes:
        """The outboxes in a piece of memory of `size_for` bytes, all zero."""
        shards = len(placement)
        slots = cls.slots_for(network)
        strides = np.array([cls.stride_for(network, slices) for slices in placement], np.int64)
        starts = address + 64 * shards + np.concatenate(([0], np.cumsum(slots * strides)[:-1]))
        done = address + 64 * np.arange(shards, dtype=np.int64)
        return cls(starts.astype(np.int64), strides, done, slots, keep)

    @classmethod
    def private(cls, network: Network, placement: tuple[tuple[Slice, ...], ...]) -> Outboxes:
        """Outboxes in this process's own memory."""
        memory = np.zeros(cls.size_for(network, placement) + 64, np.uint8)
        address = -(-memory.ctypes.data // 64) * 64
        return cls.at(address, network, placement, memory)


@dataclass
class NeuronPart:
    """The neurons of one slice."""

    part: Slice
    population: Population
    layout: BlockLayout
    blocks: NDArray[np.float32]  # (blocks, rows, BLOCK)
    constants: NDArray[np.float32]
    accumulators: Accumulators

    def row(self, row: int) -> NDArray[np.uint32]:
        """A copy of one row of all neurons, as bits."""
        return np.ascontiguousarray(self.blocks[:, row, :].view(np.uint32)).reshape(-1)[: self.part.n].copy()

    def put_row(self, row: int, bits: NDArray[np.uint32]) -> None:
        padded = np.zeros(self.blocks.shape[0] * BLOCK, np.uint32)
        padded[: self.part.n] = bits
        self.blocks[:, row, :] = padded.reshape(-1, BLOCK).view(np.float32)

    def state(self, name: str) -> NDArray[np.float32] | NDArray[np.int32]:
        """A state of all neurons of the slice."""
        place = self.layout.states.index(name)
        bits = self.row(place)
        return bits.view(np.int32) if self.layout.is_integer[place] else bits.view(np.float32)

    def put_state(self, name: str, values: NDArray[np.generic]) -> None:
        place = self.layout.states.index(name)
        kind = np.int32 if self.layout.is_integer[place] else np.float32
        self.put_row(place, np.ascontiguousarray(values, kind).view(np.uint32))


class Shard:
    """The part of a network that one worker runs."""

    def __init__(
        self,
        network: Network,
        placement: tuple[tuple[Slice, ...], ...],
        me: int,
        outboxes: Outboxes,
        progress: Callable[[int], None] = lambda synapses: None,
    ) -> None:
        self.network = network
        self.placement = placement
        self.me = me
        self.slices = placement[me]
        self.outboxes = outboxes
        self.clipped = np.zeros(2, np.int64)
        self._keep: list[object] = []
        self._calendars: list[NDArray[np.uint64]] = []
        self._due = np.zeros((0, 0), np.int64)
        self.parts = self._make_parts()
        size = max(
            (p.accumulators.first + p.accumulators.blocks * p.accumulators.stride for p in self.parts), default=1
        )
        self.accumulators = np.zeros(size, np.int32)
        self.static = build_static_tables(network, [p.accumulators for p in self.parts], progress, self.clipped)
        self.plastic = self._make_plastic(progress)
        self._make_plan()

    # --- to run -------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The last complete step."""
        return int(self.plan[w.P_STEP])

    def advance(self, until: int, spins: int, yields: int) -> int:
        """Run towards step `until`; DONE, WAITING, or FULL (then `take_recorded` and call again)."""
        while True:
            answer: int = advance(
                self.plan, self.slice_rows, self.poisson_rows, self.pulse_rows, self.table_rows, self.plastic_rows,
                self.modulator_rows, self.release_rows, self.probe_rows, until, spins, yields,
            )  # fmt: skip
            if answer == w.NO_ROOM:
                self._make_room()
            elif answer == w.NO_CALENDAR_ROOM:
                self._make_calendar_room()
            else:
                return answer

    def _make_room(self) -> None:
        """Let histories of post spikes forget what was applied; where that does not help for long, make them longer."""
        full = [table for table in self.plastic if table.row[w.L_FULL]]
        often = [table for table in full if int(table.row[w.L_FLUSHED]) > self.step - FLUSH_EVERY]
        flush_tables(self.plastic_rows, self.step)
        for table in full:
            # Going through all synapses every now and then is cheap, doing so all the time is not.
            if any(table is one for one in often) or table.row[w.L_FULL]:
                table.set_capacity(2 * table.post_steps.shape[1])
        look_for_room_in(self.plastic_rows)

    def _make_calendars(self, room: int) -> None:
        """Calendars for `room` segments in each step; what is in those that there are stays."""
        # Not a power of two apart, so that the slots' ends do not compete for the same places in the cache. All are
        # there before the kernels hear of one: where memory runs out, the old ones stay in use.
        calendars = [np.empty((self.slots, room + 24), np.uint64) for _ in self.table_rows]
        for i, (row, calendar) in enumerate(zip(self.table_rows, calendars, strict=True)):
            if self._calendars:
                for slot in np.flatnonzero(self._due[i]):
                    calendar[slot, : self._due[i, slot]] = self._calendars[i][slot, : self._due[i, slot]]
            row[w.T_CALENDAR], row[w.T_ROOM] = calendar.ctypes.data, calendar.shape[1]
            row[w.T_DUE] = self._due[i].ctypes.data
            row[w.T_MOST] = self._due[i].max(initial=0)
        self._calendars = calendars

    def _make_calendar_room(self) -> None:
        """See what the calendars really hold, and double them if that leaves too little."""
        slot = (self.step + 1 - self.lookahead) % self.slots
        coming = int(self._history_offsets[slot, -1]) + 1
        most = int(self._due.max(initial=0))
        room = self._calendars[0].shape[1]
        while most + coming > room // 2:
            room *= 2
        self._make_calendars(room)

    def schedule_again(self, now: int) -> None:
        """Set the calendars by the history alone, for the steps after `now`."""
        self._due[:] = 0
        needed = int(self._history_offsets[:, -1].sum()) + 2
        if self._calendars:
            self._make_calendars(max(needed, self._calendars[0].shape[1]))
        schedule_again(self.plan, self.table_rows, now)

    def look_for_room(self) -> None:
        """After histories of post spikes were replaced: see which have room."""
        look_for_room_in(self.plastic_rows)

    def flush(self) -> None:
        """Bring all plastic weights up to date. This changes no result."""
        flush_tables(self.plastic_rows, self.step)

    def take_recorded(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
        """(steps, global ids, samples) recorded since the last call."""
        n = int(self.plan[w.P_RECORDED])
        spikes = self._record[:n].copy()
        samples = self._samples[: int(self.plan[w.P_SAMPLED])].copy()
        self.plan[w.P_RECORDED] = 0
        self.plan[w.P_SAMPLED] = 0
        steps = (spikes >> np.uint64(32)).astype(np.int64)
        return steps, (spikes & np.uint64(0xFFFFFFFF)).astype(np.int64), samples

    # --- to look at ------------------------------------------------------------------------------------------

    @property
    def spike_counts(self) -> NDArray[np.int64]:
        """Spikes so far of this shard's neurons, by population."""
        return self._spikes

    @property
    def events(self) -> int:
        return int(self.plan[w.P_EVENTS])

    @property
    def spike_hash(self) -> int:
        return int(np.uint64(self.plan[w.P_HASH].astype(np.uint64)))

    @property
    def static_synapses(self) -> int:
        return sum(table.synapses for table in self.static)

    @property
    def plastic_synapses(self) -> int:
        return sum(table.synapses for table in self.plastic)

    @property
    def synapse_bytes(self) -> int:
        return sum(table.nbytes for table in self.static) + sum(table.nbytes for table in self.plastic)

    def list_synapses(self, projection: Projection) -> dict[str, NDArray[np.generic]]:
        """pre, post (within their populations), delay_steps and weight of the synapses onto this shard's neurons.

        Those of static projections are drawn again: the weights are what was drawn, not yet rounded to fixed point.
        Sorted by post, then pre, then delay.
        """
        part = next((one for one in self.parts if one.part.population == projection.post.index), None)
        if part is None:
            none = np.zeros(0, np.int64)
            return {"pre": none, "post": none, "delay_steps": none, "weight": np.zeros(0, np.float32)}
        table = next((one for one in self.plastic if one.projection.index == projection.index), None)
        if table is None:
            table = build_plastic_table(self.network, projection, part.accumulators, np.zeros(2, np.int64))
        else:
            self.flush()
        order = table.by_target()
        classes = len(table.delays)
        counts: NDArray[np.int64] = np.diff(table.index[:-1].astype(np.int64))  # type: ignore[assignment]
        segments = np.repeat(np.arange(projection.pre.n * classes), counts)[order]
        return {
            "pre": segments // classes,
            "post": table.targets[order].astype(np.int64) + part.part.first,
            "delay_steps": table.delays[segments % classes],
            "weight": table.weights[order],
        }

    def level(self, modulator: int) -> float:
        """A neuromodulator's level above its baseline."""
        return float(self._levels[modulator])

    def set_level(self, modulator: int, level: float) -> None:
        self._levels[modulator] = level

    # --- to build -------------------------------------------------------------------------------------------------

    def _make_parts(self) -> list[NeuronPart]:
        network, parts, first = self.network, [], 0
        driven = {one.population.index for one in network.poisson_inputs}
        own_current = {
            one.population.index for one in network.current_inputs if isinstance(one.amplitude_pa, np.ndarray)
        }
        for part in self.slices:
            population = network.populations[part.population]
            model = population.model
            layout = BlockLayout.of(model, poisson=part.population in driven, current=part.population in own_current)
            accumulators = Accumulators(part, first, model.receptors)
            first += accumulators.blocks * accumulators.stride
            values = model.values(network.dt_ms)
            constants = np.zeros(256, np.float32)
            for r, receptor in enumerate(model.receptors):
                constants[r] = 2.0 ** network.exponent(population, receptor)
            for place, value in enumerate(values.values(), start=len(model.receptors)):
                (constants.view(np.int32) if isinstance(value, int) else constants)[place] = value
            blocks = np.zeros((accumulators.blocks, max(1, layout.rows), BLOCK), np.float32)
            made = NeuronPart(part, population, layout, blocks, constants, accumulators)
            for place, (name, default) in enumerate(model.states.items()):
                distribution = population.initial.get(name, as_distribution(default, name))
                drawn = initial_values(distribution, network.seed, population.index, place, part.first, part.last)
                made.put_state(name, np.rint(drawn) if layout.is_integer[place] else drawn)
            if layout.stream is not None:
                streams = np.empty((2, part.n), np.uint32)
                _seed_streams(np.uint64(network.seed), population.index, part.first, streams)
                made.put_row(layout.stream, streams[0])
                made.put_row(layout.stream + 1, streams[1])
            parts.append(made)
        return parts

    def _make_plastic(self, progress: Callable[[int], None]) -> list[PlasticTable]:
        made = []
        for part in self.parts:
            for projection in self.network.projections:
                if projection.plasticity and projection.post.index == part.part.population:
                    made.append(build_plastic_table(self.network, projection, part.accumulators, self.clipped))
                    progress(made[-1].synapses)
        return made

    def _make_plan(self) -> None:
        network, dt_ms = self.network, self.network.dt_ms
        populations = len(network.populations)
        neurons = network.neuron_count
        slots = 1 << int(longest_delay(network) + 1).bit_length()
        self.slots = slots
        if slots * neurons * 4 > LARGEST_HISTORY:
            longest = max(network.projections, key=lambda p: network.delay_bounds_steps(p)[1])
            raise InvalidArgument(
                f"projection {longest.name!r}: delays of up to {longest_delay(network):,} steps in a network of "
                f"{neurons:,} neurons need {slots * neurons * 4 / 2**30:,.0f} GiB for spikes under way; shorten them"
            )
        self.lookahead = lookahead(network)
        self._first_ids = np.array([p.first_id for p in network.populations] + [neurons], np.int64)
        self._history_offsets = np.zeros((slots, populations + 1), np.int32)
        self._history_ids = np.zeros((slots, neurons), np.int32)
        workers = len(self.placement)
        self._lags = np.full(workers, min(self.lookahead, self.outboxes.slots - self.lookahead), np.int64)
        self._flags = np.zeros(BLOCK + 8, np.uint8)
        self._spikes = np.zeros(populations, np.int64)

        self.slice_rows = np.zeros((len(self.parts), w.S_WORDS), np.int64)
        poissons: list[list[int]] = []
        pulses: list[list[int]] = []
        recorded = 0
        for row, part in zip(self.slice_rows, self.parts, strict=True):
            recorded += self._describe_part(row, part, poissons, pulses)
        self.poisson_rows = np.array(poissons, np.int64).reshape(-1, w.I_WORDS)
        self.pulse_rows = np.array(pulses, np.int64).reshape(-1, w.C_WORDS)

        self.table_rows = np.zeros((len(self.static), w.T_WORDS), np.int64)
        for row, static in zip(self.table_rows, self.static, strict=True):
            row[w.T_INDEX] = static.index.ctypes.data
            row[w.T_WORDS_ADDRESS] = static.words.ctypes.data
            row[w.T_WIDE] = static.wide
            row[w.T_CLASSES] = len(static.delays)
            row[w.T_DELAYS] = static.delays.ctypes.data
            row[w.T_ACCUMULATORS] = self.accumulators.ctypes.data + 4 * static.first_accumulator
            row[w.T_FIRST_ROWS] = static.first_rows.ctypes.data
            row[w.T_SHIFTS] = static.shifts.ctypes.data
        self._due = np.zeros((len(self.static), slots), np.int64)
        self._make_calendars(FIRST_CALENDAR_ROOM)

        self.plastic_rows = np.zeros((len(self.plastic), w.L_WORDS), np.int64)
        for row, table in zip(self.plastic_rows, self.plastic, strict=True):
            table.describe(row, self.accumulators)

        self._levels = np.zeros(max(1, len(network.neuromodulators)), np.float32)
        self.modulator_rows = np.zeros((len(network.neuromodulators), w.M_WORDS), np.int64)
        releases: list[list[int]] = []
        for row, modulator in zip(self.modulator_rows, network.neuromodulators, strict=True):
            row[w.M_LEVEL] = self._levels.ctypes.data + 4 * modulator.index
            row[w.M_DECAY] = _bits(exp(-dt_ms / modulator.tau_ms))
            row[w.M_FIRST] = len(releases)
            for one in network.modulations:
                if one.modulator.name == modulator.name:
                    delay = to_steps(one.delay_ms, dt_ms, "delay_ms")
                    releases.append([one.population.index, delay, _bits(one.amount)])
            row[w.M_END] = len(releases)
        self.release_rows = np.array(releases, np.int64).reshape(-1, w.R_WORDS)

        sampled = self._describe_probes()
        self._record = np.zeros(RECORD_ROOM + recorded if recorded else 0, np.uint64)
        self._samples = np.zeros(SAMPLE_ROOM + sampled if sampled else 0, np.uint32)

        plan = self.plan = np.zeros(w.P_WORDS, np.int64)
        plan[w.P_WORKERS] = workers
        plan[w.P_ME] = self.me
        plan[w.P_LOOKAHEAD] = self.lookahead
        plan[w.P_SLOTS] = slots
        plan[w.P_POPULATIONS] = populations
        plan[w.P_NEURONS] = neurons
        plan[w.P_OUTBOX_SLOTS] = self.outboxes.slots
        plan[w.P_RECORD_ROOM], plan[w.P_LARGEST_STEP_RECORD] = len(self._record), recorded
        plan[w.P_SAMPLE_ROOM], plan[w.P_LARGEST_STEP_SAMPLE] = len(self._samples), sampled
        for column, array in (
            (w.P_FIRST_IDS, self._first_ids),
            (w.P_HISTORY_OFFSETS, self._history_offsets),
            (w.P_HISTORY_IDS, self._history_ids),
            (w.P_OUTBOXES, self.outboxes.outboxes),
            (w.P_OUTBOX_STRIDES, self.outboxes.strides),
            (w.P_DONE, self.outboxes.done),
            (w.P_LAGS, self._lags),
            (w.P_FLAGS, self._flags),
            (w.P_RECORD, self._record),
            (w.P_SAMPLES, self._samples),
            (w.P_SPIKES, self._spikes),
        ):
            plan[column] = array.ctypes.data

    def _describe_part(
        self, row: NDArray[np.int64], part: NeuronPart, poissons: list[list[int]], pulses: list[list[int]]
    ) -> int:
        """Describe a slice to the kernels; how many of its spikes one step can record."""
        network, dt_ms, population = self.network, self.network.dt_ms, part.population
        model, layout, first, last = population.model, part.layout, part.part.first, part.part.last
        update = update_function(model, layout, model.values(dt_ms))
        self._keep.append(update)
        row[w.S_UPDATE] = update.address
        row[w.S_BLOCKS] = part.blocks.ctypes.data
        row[w.S_BLOCK_BYTES] = part.blocks.shape[1] * BLOCK * 4
        row[w.S_N] = part.part.n
        row[w.S_ACCUMULATORS] = self.accumulators.ctypes.data + 4 * part.accumulators.first
        row[w.S_ACCUMULATOR_BYTES] = 4 * part.accumulators.stride
        row[w.S_FIRST_ID] = population.first_id + first
        row[w.S_POPULATION] = population.index
        row[w.S_CONSTANTS] = part.constants.ctypes.data
        row[w.S_STREAM_BYTES] = (layout.stream or 0) * BLOCK * 4
        row[w.S_CURRENT_ROW] = -1 if layout.current is None else layout.current * BLOCK * 4

        row[w.S_POISSON_FIRST] = len(poissons)
        for given in network.poisson_inputs:
            if given.population.index == population.index:
                lsb = 2.0 ** network.exponent(population, given.receptor)
                rate = given.rate_hz[first:last] if isinstance(given.rate_hz, np.ndarray) else given.rate_hz
                function, table = self._poisson_table(np.asarray(rate) * dt_ms * 1e-3, part.part.n)
                start, stop = _interval(given.start_ms, given.stop_ms, dt_ms)
                receptor = model.receptors.index(given.receptor) * BLOCK * 4
                weight = int(np.rint(given.weight / lsb))
                poissons.append([function, table.ctypes.data, weight, receptor, start, stop])
        row[w.S_POISSON_END] = len(poissons)

        row[w.S_PULSE_FIRST] = len(pulses)
        for current in network.current_inputs:
            if current.population.index == population.index:
                start, stop = _interval(current.start_ms, current.stop_ms, dt_ms)
                if isinstance(current.amplitude_pa, np.ndarray):
                    values = np.ascontiguousarray(current.amplitude_pa[first:last], np.float32)
                    self._keep.append(values)
                    pulses.append([start, stop, 0, values.ctypes.data])
                else:
                    pulses.append([start, stop, _bits(current.amplitude_pa), 0])
        row[w.S_PULSE_END] = len(pulses)

        given_spikes = [np.zeros(0, np.uint64)]
        for spikes in network.spike_inputs:
            if spikes.population.index == population.index:
                here = (spikes.ids >= first) & (spikes.ids < last)
                steps = array_to_steps(spikes.times_ms[here], dt_ms, "times_ms").astype(np.uint64)
                given_spikes.append(steps << np.uint64(32) | (spikes.ids[here] - first).astype(np.uint64))
        inputs = np.unique(np.concatenate(given_spikes))
        self._keep.append(inputs)
        row[w.S_INPUT], row[w.S_INPUT_COUNT] = inputs.ctypes.data, len(inputs)

        mask = np.zeros(part.part.n, np.uint8)
        for probe in network.probes:
            if probe.what == "spikes" and probe.population.index == population.index:
                if probe.subset is None:
                    mask[:] = 1
                else:
                    mask[probe.subset[(probe.subset >= first) & (probe.subset < last)] - first] = 1
        self._keep.append(mask)
        recorded = int(mask.sum())
        row[w.S_RECORD] = 0 if recorded == 0 else 1 if recorded == part.part.n else 2
        row[w.S_MASK] = mask.ctypes.data

        tied = [i for i, table in enumerate(self.plastic) if table.accumulators is part.accumulators]
        if tied:
            row[w.S_PLASTIC_FIRST], row[w.S_PLASTIC_END] = tied[0], tied[-1] + 1
        return recorded

    def _poisson_table(self, mean: NDArray[np.float64], n: int) -> tuple[int, NDArray[np.generic]]:
        """(the address of the function, or 0, and its table) for Poisson numbers with this mean in a step."""
        table: NDArray[np.generic]
        if mean.ndim == 0:
            thresholds = poisson_thresholds(float(mean))
            if thresholds is not None:
                # How many thresholds settle all but one in ten thousand draws, rounded up to have few kernels.
                usual = 2 + int(np.count_nonzero(thresholds < 2**31 - 2**32 * 1e-4))
                function = poisson_function(min(usual + usual % 2, len(thresholds)), len(thresholds))
                self._keep += [function, thresholds]
                return int(function.address), thresholds
            mean = np.full(n, float(mean))
        pairs = np.zeros((-(-n // BLOCK) * BLOCK, 2))
        decays = {float(m): exp(-float(m)) for m in np.unique(mean)}
        pairs[:n, 0] = [decays[float(m)] for m in mean]
        pairs[:n, 1] = mean
        table = pairs
        self._keep.append(table)
        return 0, table

    def _describe_probes(self) -> int:
        """Rows for the probes of states; how many samples one step can write."""
        rows, sampled = [], 0
        for probe, part, _, ids in self.sampled_parts():
            self._keep.append(ids)
            sampled += len(ids)
            every = to_steps(probe.every_ms or 0.0, self.network.dt_ms, "every_ms")
            rows.append(
                [
                    part.blocks.ctypes.data,
                    part.blocks.shape[1] * BLOCK * 4,
                    part.layout.states.index(probe.what),
                    every,
                    ids.ctypes.data,
                    len(ids),
                ]
            )
        self.probe_rows = np.array(rows, np.int64).reshape(-1, w.B_WORDS)
        return sampled

    def sampled_parts(self) -> Iterator[tuple[Probe, NeuronPart, NDArray[np.int64], NDArray[np.int64]]]:
        """(probe, part, places among the probe's neurons, neurons of the part) for the probes of states, in order."""
        for probe in self.network.probes:
            if probe.what == "spikes":
                continue
            for part in self.parts:
                if part.part.population != probe.population.index:
                    continue
                wanted = np.arange(probe.population.n) if probe.subset is None else probe.subset
                places = np.flatnonzero((wanted >= part.part.first) & (wanted < part.part.last))
                if len(places):
                    yield probe, part, places, np.ascontiguousarray(wanted[places] - part.part.first, np.int64)

    def publish(self) -> None:
        """Say to the others that this shard has completed its present step."""
        ctypes.c_int64.from_address(int(self.outboxes.done[self.me])).value = self.step

    def resume(self, step: int) -> None:
        """Go on after `step`: everything that is a function of the step is set to it."""
        self.plan[w.P_STEP] = step
        for row in self.slice_rows:
            count = int(row[w.S_INPUT_COUNT])
            inputs = np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(int(row[w.S_INPUT])))
            row[w.S_INPUT_POSITION] = np.searchsorted(inputs, np.uint64((step + 1) << 32))
            _set_currents(row, self.pulse_rows, step + 1)


def poisson_thresholds(mean: float) -> NDArray[np.int32] | None:
    """A 32-bit draw exceeds as many of these as the Poisson number is; None if that would take too many."""
    if mean > 30:
        return None
    probability = exp(-mean)
    reached = probability
    thresholds: list[int] = []
    while reached * 2.0**32 <= 2.0**32 - 1 and len(thresholds) <= POISSON_SIZES[-1]:
        thresholds.append(int(np.ceil(reached * 2.0**32)) - 2**31 - 1)
        probability *= mean / len(thresholds)
        reached += probability
        if probability < 1e-12 and reached > 0.5:
            break
    size = next((size for size in POISSON_SIZES if size >= len(thresholds)), None)
    if size is None:
        return None
    return np.array(thresholds + [2**31 - 1] * (size - len(thresholds)), np.int32)


def _interval(start_ms: float, stop_ms: float | None, dt_ms: float) -> tuple[int, int]:
    start = to_steps(start_ms, dt_ms, "start_ms")
    return start, FOR_EVER if stop_ms is None else to_steps(stop_ms, dt_ms, "stop_ms")


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@compiled
def _seed_streams(seed: np.uint64, population: int, first: int, streams: NDArray[np.uint32]) -> None:
    """The first states of the random streams of a population's neurons from `first` on; never zero."""
    for i in range(streams.shape[1]):
        key = key_of(seed, PURPOSE_STREAM, population, first + i)
        streams[0, i] = np.uint32(key & np.uint64(0xFFFFFFFF)) | np.uint32(1)
        streams[1, i] = np.uint32(key >> np.uint64(32))


@compiled
def _set_currents(part: NDArray[np.int64], pulses: NDArray[np.int64], t: int) -> None:
    set_currents(part, pulses, t)
