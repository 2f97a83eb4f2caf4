"""A shard: the neurons of some slices, their synapses and inputs, compiled to arrays and run by one kernel.

A shard knows nothing of processes. Its spikes leave in an outbox and the others' come from theirs: memory that whoever
runs the shards gives it (`Outboxes`), shared between processes or not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled
from neuraxis.engine import plan as w
from neuraxis.engine.advance import advance, schedule_again, set_currents
from neuraxis.engine.generated import BLOCK, update_function
from neuraxis.engine.learning import flush_tables, look_for_room_in
from neuraxis.engine.neurons import NeuronPart, make_parts
from neuraxis.engine.outboxes import Listener, Outboxes, level_listeners, longest_delay
from neuraxis.engine.placement import Slice
from neuraxis.engine.plastic_tables import PlasticTable, build_plastic_table
from neuraxis.engine.poisson import poisson_kernel, poisson_table
from neuraxis.engine.static_tables import StaticTable, build_static_tables
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Probe, Projection
from neuraxis.network.arithmetic import exp
from neuraxis.network.grid import array_to_steps, to_steps
from neuraxis.network.rhythm import cosine_table

__all__ = ["Shard"]

RECORD_ROOM = 1 << 17
SAMPLE_ROOM = 1 << 18
FIRST_CALENDAR_ROOM = 1 << 10
FLUSH_EVERY = 5000
LARGEST_HISTORY = 2**34
FOR_EVER = 2**62


class Shard:
    """The part of a network that one worker runs."""

    def __init__(
        self,
        network: Network,
        placement: tuple[tuple[Slice, ...], ...],
        me: int,
        outboxes: Outboxes,
        progress: Callable[[int], None] = lambda synapses: None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.network = network
        self.longest_delay = longest_delay(network, listeners)
        self.placement = placement
        self.me = me
        self.slices = placement[me]
        self.outboxes = outboxes
        self.clipped = np.zeros(2, np.int64)
        self._keep: list[object] = []
        # Spikes that the neurons of each slice are told to emit: by the description, while running, and all.
        self._described: list[NDArray[np.uint64]] = []
        self._injected: list[NDArray[np.uint64]] = []
        self._inputs: list[NDArray[np.uint64]] = []
        self._calendars: list[NDArray[np.uint64]] = []
        # What the rows of Poisson inputs, pulses and slices point to.
        self._poisson_tables: list[NDArray[np.generic]] = []
        self._pulse_values: list[NDArray[np.float32] | None] = []
        self._masks: list[NDArray[np.uint8]] = []
        self._due = np.zeros((0, 0), np.int64)
        self.parts = make_parts(network, self.slices)
        self.held = self.parts  # the same for who only asks which neurons there are, and not for their states
        size = max(
            (p.accumulators.first + p.accumulators.blocks * p.accumulators.stride for p in self.parts), default=1
        )
        self.accumulators = np.zeros(size, np.int32)
        self.static = self._make_static(progress)
        self.plastic_held = self._make_plastic(progress)  # for who asks for nothing of single synapses
        self.plastic = self.plastic_held
        self.spikes_installed = 0  # of the counts, those that a restored state brought
        self.silent: frozenset[int] = frozenset()
        self.frozen: frozenset[int] = frozenset()
        self._make_plan()
        self._merge_inputs()

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
        workers = np.arange(len(self.lags))
        coming = int(self._history_offsets[(self.step + 1 - self.lags) % self.slots, workers, -1].sum()) + 1
        most = int(self._due.max(initial=0))
        room = self._calendars[0].shape[1]
        while most + coming > room // 2:
            room *= 2
        self._make_calendars(room)

    def schedule_again(self, now: int) -> None:
        """Set the calendars by the history alone, for the steps after `now`."""
        self._due[:] = 0
        needed = int(self._history_offsets[:, :, -1].sum()) + 2
        if self._calendars:
            self._make_calendars(max(needed, self._calendars[0].shape[1]))
        schedule_again(self.plan, self.table_rows, now)

    def look_for_room(self) -> None:
        """After histories of post spikes were replaced: see which have room."""
        look_for_room_in(self.plastic_rows)

    def take_over(self, *, weights: bool = False) -> None:
        """Somebody is about to change states or levels; `weights`: or plastic synapses. (A GPU may have them.)"""

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
        return sum(table.synapses for table in self.plastic_held)

    @property
    def synapse_bytes(self) -> int:
        return sum(table.nbytes for table in self.static) + sum(table.nbytes for table in self.plastic)

    def list_synapses(self, projection: Projection) -> dict[str, NDArray[np.generic]]:
        """pre, post (within their populations), delay_steps and weight of the synapses onto this shard's neurons.

        Those of static projections are drawn again: the weights are what was drawn, not yet rounded to fixed point.
        Sorted by post, then pre, then delay.
        """
        part = next((one for one in self.held if one.part.population == projection.post.index), None)
        if part is None:
            none = np.zeros(0, np.int64)
            return {"pre": none, "post": none, "delay_steps": none, "weight": np.zeros(0, np.float32)}
        if projection.plasticity:
            self.flush()
            table = self._plastic_table(projection)
        else:
            table = build_plastic_table(self.network, projection, part.accumulators, np.zeros(2, np.int64))
        order = table.by_target()
        classes = len(table.delays)
        counts: NDArray[np.int64] = np.diff(table.index[:-1].astype(np.int64))  # type: ignore[assignment]
        segments = np.repeat(np.arange(table.segments), counts)[order]
        return {
            "pre": segments // classes,
            "post": table.targets[order].astype(np.int64) + part.part.first,
            "delay_steps": table.delays[segments % classes],
            "weight": table.weights[order],
        }

    def _plastic_table(self, projection: Projection) -> PlasticTable:
        """The table of a plastic projection onto this shard's neurons, with its synapses."""
        return next(one for one in self.plastic if one.projection.index == projection.index)

    def hash_weights(self, table: PlasticTable) -> int:
        """Of the plastic synapses in one of the tables that are held."""
        return table.hash_weights()

    def level(self, modulator: int) -> float | None:
        """A neuromodulator's level above its baseline; None where this shard does not follow it."""
        return float(self._levels[modulator]) if self.me in self._level_listeners[modulator] else None

    def known_levels(self) -> NDArray[np.float32]:
        """All levels above the baseline; NaN where this shard does not follow one."""
        levels = self._levels.copy()
        for modulator, listeners in enumerate(self._level_listeners):
            if self.me not in listeners:
                levels[modulator] = np.nan
        return levels

    def speaks_for_level(self, modulator: int) -> bool:
        """Whether this is the first of the shards that follow a level."""
        if modulator >= len(self._level_listeners):
            return self.me == 0
        return self.me == min(self._level_listeners[modulator])

    def set_level(self, modulator: int, level: float) -> None:
        self.take_over()
        self._levels[modulator] = level

    # --- to build -------------------------------------------------------------------------------------------------

    def _make_static(self, progress: Callable[[int], None]) -> list[StaticTable]:
        return build_static_tables(self.network, [p.accumulators for p in self.parts], progress, self.clipped)

    def _kernel_of(self, part: NeuronPart) -> int:
        """The address of the compiled update of a slice's model."""
        model = part.population.model
        update = update_function(model, part.layout, model.values(self.network.dt_ms))
        self._keep.append(update)
        return int(update.address)

    def _poisson_kernel(self, table: NDArray[np.generic]) -> int:
        """The address of the compiled Poisson input; 0 where its table is one of means."""
        function = poisson_kernel(table)
        self._keep.append(function)
        return 0 if function is None else int(function.address)

    def _make_plastic(self, progress: Callable[[int], None]) -> list[PlasticTable]:
        made = []
        for part in self.parts:
            for projection in self.network.projections:
                if projection.plasticity and projection.post.index == part.part.population:
                    made.append(build_plastic_table(self.network, projection, part.accumulators, self.clipped))
                    progress(made[-1].synapses)
        return made

    def _make_plan(self) -> None:
        network = self.network
        populations = len(network.populations)
        neurons = network.neuron_count
        slots = 1 << int(self.longest_delay + 1).bit_length()
        self.slots = slots
        if slots * neurons * 4 > LARGEST_HISTORY:
            longest = max(network.projections, key=lambda p: network.delay_bounds_steps(p)[1])
            raise InvalidArgument(
                f"projection {longest.name!r}: delays of up to {self.longest_delay:,} steps in a network of "
                f"{neurons:,} neurons need {slots * neurons * 4 / 2**30:,.0f} GiB for spikes under way; shorten them"
            )
        self.lags = np.ascontiguousarray(self.outboxes.lags[self.me])
        self._first_ids = np.array([p.first_id for p in network.populations] + [neurons], np.int64)
        workers = len(self.placement)
        held = [sum(part.n for part in slices) for slices in self.placement]
        self._history_offsets = np.zeros((slots, workers, populations + 1), np.int32)
        self._history_ids = np.zeros((slots, neurons), np.int32)
        self._history_first = np.concatenate(([0], np.cumsum(held)[:-1])).astype(np.int64)
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

        self.plastic_rows = np.zeros((len(self.plastic_held), w.L_WORDS), np.int64)
        for row, table in zip(self.plastic_rows, self.plastic_held, strict=True):
            table.describe(row, self.accumulators)

        self._describe_signals()
        sampled = self._describe_probes()
        self._record = np.zeros(RECORD_ROOM + recorded if recorded else 0, np.uint64)
        self._samples = np.zeros(SAMPLE_ROOM + sampled if sampled else 0, np.uint32)

        plan = self.plan = np.zeros(w.P_WORDS, np.int64)
        plan[w.P_WORKERS] = workers
        plan[w.P_ME] = self.me
        plan[w.P_SLOTS] = slots
        plan[w.P_POPULATIONS] = populations
        plan[w.P_NEURONS] = neurons
        plan[w.P_OUTBOX_SLOTS] = self.outboxes.slots
        plan[w.P_RHYTHM_COUNT], plan[w.P_TIE_COUNT] = len(network.rhythms), len(self._ties)
        plan[w.P_RECORD_ROOM], plan[w.P_LARGEST_STEP_RECORD] = len(self._record), recorded
        plan[w.P_SAMPLE_ROOM], plan[w.P_LARGEST_STEP_SAMPLE] = len(self._samples), sampled
        for column, array in (
            (w.P_FIRST_IDS, self._first_ids),
            (w.P_HISTORY_OFFSETS, self._history_offsets),
            (w.P_HISTORY_IDS, self._history_ids),
            (w.P_OUTBOXES, self.outboxes.outboxes),
            (w.P_OUTBOX_STRIDES, self.outboxes.strides),
            (w.P_DONE, self.outboxes.done),
            (w.P_LAGS, self.lags),
            (w.P_HISTORY_FIRST, self._history_first),
            (w.P_SIGNALS, self._signals),
            (w.P_RHYTHMS, self._rhythm_rows),
            (w.P_COSINES, cosine_table()),
            (w.P_TIES, self._ties),
            (w.P_FLAGS, self._flags),
            (w.P_RECORD, self._record),
            (w.P_SAMPLES, self._samples),
            (w.P_SPIKES, self._spikes),
        ):
            plan[column] = array.ctypes.data

    def _describe_signals(self) -> None:
        """Neuromodulators and rhythms, and who follows them."""
        network, dt_ms = self.network, self.network.dt_ms
        modulators = len(network.neuromodulators)
        self._levels = np.zeros(max(1, modulators), np.float32)
        self._level_listeners = level_listeners(network, self.placement)
        self._signals = np.zeros(max(1, modulators + len(network.rhythms)), np.float32)
        self.modulator_rows = np.zeros((modulators, w.M_WORDS), np.int64)
        releases: list[list[int]] = []
        for row, modulator in zip(self.modulator_rows, network.neuromodulators, strict=True):
            row[w.M_LEVEL] = self._levels.ctypes.data + 4 * modulator.index
            row[w.M_DECAY] = _bits(exp(-dt_ms / modulator.tau_ms))
            row[w.M_HEARD] = self.me in self._level_listeners[modulator.index]
            row[w.M_BASELINE] = _bits(modulator.baseline)
            row[w.M_FIRST] = len(releases)
            for one in network.modulations:
                if one.modulator.name == modulator.name:
                    delay = to_steps(one.delay_ms, dt_ms, "delay_ms")
                    releases.append([one.population.index, delay, _bits(one.amount)])
            row[w.M_END] = len(releases)
        self.release_rows = np.array(releases, np.int64).reshape(-1, w.R_WORDS)
        rhythms = [[one.increment(dt_ms), one.offset, _bits(one.floor)] for one in network.rhythms]
        self._rhythm_rows = np.array(rhythms, np.uint64).reshape(-1, w.Y_WORDS).view(np.int64)
        places = {one.name: one.index for one in network.neuromodulators}
        places |= {one.name: modulators + one.index for one in network.rhythms}
        self._ties = np.array(
            [
                [part.constants.ctypes.data + 4 * word, places[signal]]
                for part in self.parts
                for word, signal in part.signal_places().items()
            ],
            np.int64,
        ).reshape(-1, 2)
        for table in self.plastic_held:
            # Learning follows a neuromodulator's level above its baseline, and a rhythm's value.
            if table.signal in places:
                place = places[table.signal]
                levels = self._levels if place < modulators else self._signals
                table.row[w.L_LEVEL] = levels.ctypes.data + 4 * place

    def _describe_part(
        self, row: NDArray[np.int64], part: NeuronPart, poissons: list[list[int]], pulses: list[list[int]]
    ) -> int:
        """Describe a slice to the kernels; how many of its spikes one step can record."""
        network, dt_ms, population = self.network, self.network.dt_ms, part.population
        model, layout, first, last = population.model, part.layout, part.part.first, part.part.last
        row[w.S_UPDATE] = self._kernel_of(part)
        row[w.S_BLOCKS] = part.blocks.ctypes.data
        row[w.S_BLOCK_BYTES] = part.blocks.shape[1] * BLOCK * 4
        row[w.S_N] = part.part.n
        row[w.S_ACCUMULATORS] = self.accumulators.ctypes.data + 4 * part.accumulators.first
        row[w.S_ACCUMULATOR_BYTES] = 4 * part.accumulators.stride
        row[w.S_FIRST_ID] = population.first_id + first
        row[w.S_POPULATION] = population.index
        row[w.S_CONSTANTS] = part.constants.ctypes.data
        row[w.S_STREAM_BYTES] = (layout.stream or 0) * BLOCK * 4
        row[w.S_COUNTS] = part.spike_counts.ctypes.data
        row[w.S_CURRENT_ROW] = -1 if layout.current is None else layout.current * BLOCK * 4

        row[w.S_POISSON_FIRST] = len(poissons)
        for given in network.poisson_inputs:
            if given.population.index == population.index:
                lsb = 2.0 ** network.exponent(population, given.receptor)
                rate = given.rate_hz[first:last] if isinstance(given.rate_hz, np.ndarray) else given.rate_hz
                table = poisson_table(np.asarray(rate) * dt_ms * 1e-3, part.part.n)
                self._poisson_tables.append(table)
                start, stop = _interval(given.start_ms, given.stop_ms, dt_ms)
                receptor = model.receptors.index(given.receptor) * BLOCK * 4
                weight = int(np.rint(given.weight / lsb))
                poissons.append([self._poisson_kernel(table), table.ctypes.data, weight, receptor, start, stop])
        row[w.S_POISSON_END] = len(poissons)

        row[w.S_PULSE_FIRST] = len(pulses)
        for current in network.current_inputs:
            if current.population.index == population.index:
                start, stop = _interval(current.start_ms, current.stop_ms, dt_ms)
                if isinstance(current.amplitude_pa, np.ndarray):
                    values = np.ascontiguousarray(current.amplitude_pa[first:last], np.float32)
                    self._pulse_values.append(values)
                    pulses.append([start, stop, 0, values.ctypes.data])
                else:
                    self._pulse_values.append(None)
                    pulses.append([start, stop, _bits(current.amplitude_pa), 0])
        row[w.S_PULSE_END] = len(pulses)

        given_spikes = [np.zeros(0, np.uint64)]
        for spikes in network.spike_inputs:
            if spikes.population.index == population.index:
                here = (spikes.ids >= first) & (spikes.ids < last)
                steps = array_to_steps(spikes.times_ms[here], dt_ms, "times_ms")
                given_spikes.append(_packed(steps, spikes.ids[here] - first))
        self._described.append(np.unique(np.concatenate(given_spikes)))
        self._injected.append(np.zeros(0, np.uint64))
        self._inputs.append(np.zeros(0, np.uint64))

        mask = np.zeros(part.part.n, np.uint8)
        for probe in network.probes:
            if probe.what == "spikes" and probe.population.index == population.index:
                if probe.subset is None:
                    mask[:] = 1
                else:
                    mask[probe.subset[(probe.subset >= first) & (probe.subset < last)] - first] = 1
        self._masks.append(mask)
        recorded = int(mask.sum())
        row[w.S_RECORD] = 0 if recorded == 0 else 1 if recorded == part.part.n else 2
        row[w.S_MASK] = mask.ctypes.data

        tied = [i for i, table in enumerate(self.plastic_held) if table.accumulators is part.accumulators]
        if tied:
            row[w.S_PLASTIC_FIRST], row[w.S_PLASTIC_END] = tied[0], tied[-1] + 1
        return recorded

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
            for part in self.held:
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
        self._merge_inputs()
        for row in self.slice_rows:
            _set_currents(row, self.pulse_rows, step + 1)

    def jump(self, step: int) -> None:
        """Go on after `step` with the neurons as they are: nothing was emitted in the steps that are left out."""
        self._history_offsets[:] = 0
        self.schedule_again(step)
        self.resume(step)

    # --- to act on while running ------------------------------------------------------------------------------

    def inject(self, steps: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Let neurons (ids in the network) emit spikes in steps to come; those of other shards are left to them."""
        for i, part in enumerate(self.held):
            first = part.population.first_id + part.part.first
            here = (ids >= first) & (ids < first + part.part.n)
            if here.any():
                self._injected[i] = np.union1d(self._injected[i], _packed(steps[here], ids[here] - first))
                self._merge_inputs_of(i)

    def spikes_of(self, population: int, step: int) -> NDArray[np.int64]:
        """The neurons of a population (within it) that spiked in a step, in order.

        Only for steps that are known here: not after now - lag of who has them, nor longer ago than the longest delay.
        """
        if step < 1:
            return np.zeros(0, np.int64)
        slot, found = step % self.slots, []
        for worker, first in enumerate(self._history_first):
            low, high = self._history_offsets[slot, worker, population : population + 2]
            if high > low:
                found.append(self._history_ids[slot, first + low : first + high])
        if not found:
            return np.zeros(0, np.int64)
        ids: NDArray[np.int64] = np.sort(np.concatenate(found)).astype(np.int64)
        return ids - int(self._first_ids[population])

    def pending_spikes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(steps, ids in the network) of the injected spikes that are still to come."""
        steps, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for part, injected in zip(self.held, self._injected, strict=True):
            left = injected[injected >= np.uint64((self.step + 1) << 32)]
            steps.append((left >> np.uint64(32)).astype(np.int64))
            local = (left & np.uint64(0xFFFFFFFF)).astype(np.int64)
            ids.append(local + part.population.first_id + part.part.first)
        return np.concatenate(steps), np.concatenate(ids)

    def forget_injected(self) -> None:
        self._injected = [np.zeros(0, np.uint64) for _ in self.held]

    def _merge_inputs(self) -> None:
        """Set what each slice is told to emit from the next step on."""
        for i in range(len(self.held)):
            self._merge_inputs_of(i)

    def _merge_inputs_of(self, i: int) -> None:
        next_step = np.uint64((self.step + 1) << 32)
        self._injected[i] = self._injected[i][self._injected[i] >= next_step]
        described = self._described[i][np.searchsorted(self._described[i], next_step) :]
        self._inputs[i] = np.union1d(described, self._injected[i])
        row = self.slice_rows[i]
        row[w.S_INPUT], row[w.S_INPUT_COUNT] = self._inputs[i].ctypes.data, len(self._inputs[i])
        row[w.S_INPUT_POSITION] = 0

    def silence(self, populations: Iterable[int]) -> None:
        """Have exactly these populations neither updated nor heard from the next step on."""
        silent = set(populations)
        for row, part in zip(self.slice_rows, self.held, strict=True):
            if row[w.S_SILENT] and part.part.population not in silent:
                size = part.accumulators.blocks * part.accumulators.stride
                self.accumulators[part.accumulators.first : part.accumulators.first + size] = 0
                _set_currents(row, self.pulse_rows, self.step + 1)  # one may have begun or ended meanwhile
            row[w.S_SILENT] = part.part.population in silent
        self.silent = frozenset(silent)

    def freeze(self, projections: Iterable[int]) -> None:
        """Have exactly these projections keep their weights as they are from the next step on."""
        self.frozen = frozenset(projections)
        self.flush()
        for table in self.plastic_held:
            table.row[w.L_FROZEN] = table.projection.index in self.frozen


def _interval(start_ms: float, stop_ms: float | None, dt_ms: float) -> tuple[int, int]:
    start = to_steps(start_ms, dt_ms, "start_ms")
    return start, FOR_EVER if stop_ms is None else to_steps(stop_ms, dt_ms, "stop_ms")


def _packed(steps: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.uint64]:
    return steps.astype(np.uint64) << np.uint64(32) | places.astype(np.uint64)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


@compiled
def _set_currents(part: NDArray[np.int64], pulses: NDArray[np.int64], t: int) -> None:
    set_currents(part, pulses, t)
