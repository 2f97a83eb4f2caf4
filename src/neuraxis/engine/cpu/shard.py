"""A shard on the CPU: the neurons of some slices, their synapses and inputs, as arrays that one kernel advances.

A shard knows nothing of processes. It exchanges spikes with other shards through `SpikeBuffers`, memory that the caller
provides and may share between processes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import tables as w
from neuraxis.engine.codegen import BLOCK, update_function
from neuraxis.engine.cpu import optional
from neuraxis.engine.cpu.advance import advance, schedule_again
from neuraxis.engine.cpu.currents import set_currents, set_wide_currents
from neuraxis.engine.cpu.learning import flush_tables, update_full_flags
from neuraxis.engine.cpu.plastic_tables import PlasticTable, build_plastic_table, list_static, plastic_onto
from neuraxis.engine.cpu.rates import Rates
from neuraxis.engine.cpu.static_tables import BuildTally, StaticTable, build_static_tables
from neuraxis.engine.neurons import NeuronPart, make_parts
from neuraxis.engine.placement import Slice
from neuraxis.engine.random import poisson_kernel, poisson_table
from neuraxis.engine.spikes import Listener, SpikeBuffers, level_listeners, longest_delay
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Probe, Projection, RateProjection
from neuraxis.network.arithmetic import exp
from neuraxis.network.grid import array_to_steps, to_steps
from neuraxis.network.modulation import cosine_table

__all__ = ["Shard"]

RECORD_ROOM = 1 << 17
SAMPLE_ROOM = 1 << 18
FIRST_CALENDAR_ROOM = 1 << 10
FLUSH_EVERY = 5000
LARGEST_HISTORY = 2**34
FOR_EVER = 2**62


class Shard:
    """The part of a network that one worker runs.

    Parameters
    ----------
    network : Network
        The whole network.
    placement : Placement
        The slices of each shard.
    me : int
        Index of this shard.
    spike_buffers : SpikeBuffers
        Buffers of all shards.
    progress : callable
        Called with the number of synapses after each part of the construction.
    listeners : sequence of Listener
        Further readers of spikes, which need a longer history.
    """

    def __init__(
        self,
        network: Network,
        placement: tuple[tuple[Slice, ...], ...],
        me: int,
        spike_buffers: SpikeBuffers,
        progress: Callable[[int], None] = lambda synapses: None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.network = network
        self.longest_delay = longest_delay(network, listeners)
        self.placement = placement
        self.me = me
        self.slices = placement[me]
        self.spike_buffers = spike_buffers
        self.found = BuildTally(network)
        self._keep: list[object] = []
        # Spikes that each slice must emit: from the description, injected during the run, and both.
        self._described: list[NDArray[np.uint64]] = []
        self._injected: list[NDArray[np.uint64]] = []
        self._inputs: list[NDArray[np.uint64]] = []
        self._calendars: list[NDArray[np.uint64]] = []
        # Arrays that the rows of Poisson inputs, currents and slices point to.
        self._poisson_tables: list[NDArray[np.generic]] = []
        self._pulse_values: list[Any] = []  # NDArray or None
        self._masks: list[NDArray[np.uint8]] = []
        self._due = np.zeros((0, 0), np.int64)
        self.parts = make_parts(network, self.slices)
        self.held = self.parts  # the same, for readers of sizes and ids only (a GPU need not copy states for them)
        size = max(
            (p.accumulators.first + p.accumulators.blocks * p.accumulators.stride for p in self.parts), default=1
        )
        self.accumulators: NDArray[Any] = np.zeros(size, np.int64 if network.is_wide else np.int32)
        self.static = self._make_static(progress)
        self.plastic_held = self._make_plastic(progress)  # for readers that need no single synapse
        self.plastic = self.plastic_held
        self.found.check()
        self.rates = Rates(network, placement, me, self.held, spike_buffers, progress)
        self.spikes_installed = 0  # number of counted spikes that a restored state brought
        self.silent: frozenset[int] = frozenset()
        self.frozen: frozenset[int] = frozenset()
        self._make_control_block()
        self._put_kernels()
        self._merge_inputs()

    # --- running ------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The last completed step."""
        return int(self.control["step"])

    def advance(self, until: int, spins: int, yields: int) -> int:
        """Run towards step `until`; return DONE, WAITING, or FULL (then call `take_recorded` and `advance` again)."""
        while True:
            answer: int = advance(
                self.control, self.slice_rows, self.poisson_rows, self.pulse_rows, self.table_rows, self.plastic_rows,
                self.modulator_rows, self.release_rows, self.probe_rows, until, spins, yields,
            )  # fmt: skip
            if answer == w.HISTORY_FULL:
                self._make_room()
            elif answer == w.CALENDAR_FULL:
                self._make_calendar_room()
            else:
                return answer

    def _make_room(self) -> None:
        """Flush full histories of target spikes, and double the capacity of those that fill up often."""
        full = [table for table in self.plastic if table.row["full"]]
        often = [table for table in full if int(table.row["flushed"]) > self.step - FLUSH_EVERY]
        self._flush_tables()
        for table in full:
            # An occasional pass over all synapses is cheap; frequent ones are not.
            if any(table is one for one in often) or table.row["full"]:
                table.set_capacity(2 * table.post_steps.shape[1])
        self.update_full_flags()

    def _make_calendars(self, room: int) -> None:
        """Allocate calendars for `room` segments in each step, and copy the content of the old ones."""
        # Slots are not a power of two apart, so that their ends do not map to the same cache sets. All are allocated
        # before the first is used: if memory runs out, the old ones stay in use.
        calendars = [np.empty((self.slots, room + 24), np.uint64) for _ in self.table_rows]
        for i, (row, calendar) in enumerate(zip(self.table_rows, calendars, strict=True)):
            if self._calendars:
                for slot in np.flatnonzero(self._due[i]):
                    calendar[slot, : self._due[i, slot]] = self._calendars[i][slot, : self._due[i, slot]]
            row["calendar"], row["room"] = calendar.ctypes.data, calendar.shape[1]
            row["due"] = self._due[i].ctypes.data
            row["most"] = self._due[i].max(initial=0)
        self._calendars = calendars

    def _make_calendar_room(self) -> None:
        """Measure the actual occupation of the calendars, and double them if they are more than half full."""
        workers = np.arange(len(self.lags))
        coming = int(self._history_offsets[(self.step + 1 - self.lags) % self.slots, workers, -1].sum()) + 1
        most = int(self._due.max(initial=0))
        room = self._calendars[0].shape[1]
        while most + coming > room // 2:
            room *= 2
        self._make_calendars(room)

    def schedule_again(self, now: int) -> None:
        """Rebuild the calendars from the history, for the steps after `now`."""
        self._due[:] = 0
        needed = int(self._history_offsets[:, :, -1].sum()) + 2
        if self._calendars:
            self._make_calendars(max(needed, self._calendars[0].shape[1]))
        schedule_again(self.control, self.table_rows, now)

    def update_full_flags(self) -> None:
        """Check which histories of target spikes are full, after they were replaced."""
        if len(self.plastic_rows):
            update_full_flags(self.plastic_rows.ctypes.data, len(self.plastic_rows))

    def take_over(self, *, weights: bool = False) -> None:
        """Announce changes of states or levels, and with `weights` of plastic synapses (for shards on a GPU)."""

    def flush(self) -> None:
        """Bring all plastic weights up to date. This does not change results."""
        self._flush_tables()

    def _flush_tables(self) -> None:
        if len(self.plastic_rows):
            flush_tables(self.plastic_rows.ctypes.data, len(self.plastic_rows), self.step)

    def take_recorded(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]:
        """Return (steps, global ids, samples) recorded since the last call."""
        n = int(self.control["recorded"])
        spikes = self._record[:n].copy()
        samples = self._samples[: int(self.control["sampled"])].copy()
        self.control["recorded"] = 0
        self.control["sampled"] = 0
        steps = (spikes >> np.uint64(32)).astype(np.int64)
        return steps, (spikes & np.uint64(0xFFFFFFFF)).astype(np.int64), samples

    # --- reading ---------------------------------------------------------------------------------------------

    @property
    def spike_counts(self) -> NDArray[np.int64]:
        """Number of spikes of this shard's neurons so far, by population."""
        return self._spikes

    @property
    def events(self) -> int:
        """Number of synaptic events so far."""
        return int(self.control["events"])

    @property
    def spike_hash(self) -> int:
        """Sum of the hashes of all spikes so far, modulo 2**64."""
        return int(np.uint64(self.control["hash"].astype(np.uint64)))

    def begin_check(self, check_step: int = 0) -> None:
        """Check states for infinity and NaN from the next step on; in step `check_step` in any case."""
        self.control["unstable_step"] = 0
        self.control["check_step"] = check_step

    @property
    def unstable(self) -> list[float]:
        """The first state since `begin_check` that was not finite: step, population, neuron, state, value.

        The neuron is an id within its population. Empty if all states were finite, or are not checked.
        """
        step, place, neuron, state, bits = (int(one) for one in self.control[w.UNSTABLE])
        if not step:
            return []
        part = self.held[place].part
        if self.network.is_wide:
            value = float(np.array(bits, np.int64).view(np.float64))
        else:
            value = float(np.array(bits, np.uint32).view(np.float32))
        return [step, part.population, part.first + neuron, state, value]

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
        """Return pre, post (within their populations), delay_steps and weight of the synapses onto this shard.

        Weights are those in use: what a spike that arrives now adds, rounded to the accumulator's scale, without the
        factor of short-term plasticity. Static synapses are drawn again. Sorted by post, then pre, then delay.
        """
        if isinstance(projection, RateProjection):
            return self.rates.list_synapses(projection)
        part = next((one for one in self.held if one.part.population == projection.post.index), None)
        if part is None:
            none = np.zeros(0, np.int64)
            return {"pre": none, "post": none, "delay_steps": none, "weight": np.zeros(0, np.float32)}
        if projection.plasticity:
            self.flush()
            table = self._plastic_table(projection)
            weights = table.weights_in_use()
        else:
            table = list_static(self.network, projection, part.accumulators)
            weights = table.weights
        order = table.by_target()
        classes = len(table.delays)
        counts: NDArray[np.int64] = np.diff(table.index[:-1].astype(np.int64))  # type: ignore[assignment]
        segments = np.repeat(np.arange(table.segments), counts)[order]
        return {
            "pre": segments // classes,
            "post": table.targets[order].astype(np.int64) + part.part.first,
            "delay_steps": table.delays[segments % classes],
            "weight": weights[order],
        }

    def _plastic_table(self, projection: Projection) -> PlasticTable:
        """Return the table of a plastic projection onto this shard's neurons, with its synapses."""
        return next(one for one in self.plastic if one.projection.index == projection.index)

    def hash_weights(self, table: PlasticTable) -> int:
        """Return the hash of the weights of one plastic table."""
        return table.hash_weights()

    def level(self, modulator: int) -> float | None:
        """Return the level of a neuromodulator relative to its baseline; None if this shard does not track it."""
        return float(self._levels[modulator]) if self.me in self._level_listeners[modulator] else None

    def known_levels(self) -> NDArray[np.float32]:
        """Return all levels relative to their baselines; NaN for levels that this shard does not track."""
        levels = self._levels.copy()
        for modulator, listeners in enumerate(self._level_listeners):
            if self.me not in listeners:
                levels[modulator] = np.nan
        return levels

    def owns_level(self, modulator: int) -> bool:
        """Return True for the first of the shards that track a level."""
        if modulator >= len(self._level_listeners):
            return self.me == 0
        return self.me == min(self._level_listeners[modulator])

    def set_level(self, modulator: int, level: float) -> None:
        self.take_over()
        self._levels[modulator] = level

    # --- construction ---------------------------------------------------------------------------------------------

    def _make_static(self, progress: Callable[[int], None]) -> list[StaticTable]:
        return build_static_tables(self.network, [p.accumulators for p in self.parts], progress, self.found)

    def _kernel_of(self, part: NeuronPart) -> int:
        """Return the address of the compiled update of a slice's model."""
        model = part.population.model
        update = update_function(model, part.layout, model.values(self.network.dt_ms), part.extra)
        self._keep.append(update)
        return int(update.address)

    def _poisson_kernel(self, table: NDArray[np.generic]) -> int:
        """Return the address of the compiled Poisson input; 0 for a table of means."""
        generated = poisson_kernel(table)
        if generated is None:
            return 0
        function = generated.compiled()
        self._keep.append(function)
        return int(function.address)

    def _make_plastic(self, progress: Callable[[int], None]) -> list[PlasticTable]:
        made = []
        onto = plastic_onto(self.network)
        for part in self.parts:
            for projection in onto.get(part.part.population, ()):
                made.append(build_plastic_table(self.network, projection, part.accumulators, self.found))
                progress(made[-1].synapses)
        return made

    def _make_control_block(self) -> None:
        network = self.network
        populations = len(network.populations)
        neurons = network.neuron_count
        slots = 1 << int(self.longest_delay + 1).bit_length()
        self.slots = slots
        if slots * neurons * 4 > LARGEST_HISTORY:
            longest = max(network.projections, key=lambda p: network.delay_bounds_steps(p)[1])
            raise InvalidArgument(
                f"projection {longest.name!r}: delays of up to {self.longest_delay:,} steps in a network of "
                f"{neurons:,} neurons need {slots * neurons * 4 / 2**30:,.0f} GiB for spikes in transit. "
                "Shorten the delays."
            )
        self.lags = np.ascontiguousarray(self.spike_buffers.lags[self.me])
        self._first_ids = np.array([p.first_id for p in network.populations] + [neurons], np.int64)
        workers = len(self.placement)
        held = [sum(part.n for part in slices) for slices in self.placement]
        self._history_offsets = np.zeros((slots, workers, populations + 1), np.int32)
        self._history_ids = np.zeros((slots, neurons), np.int32)
        self._history_first = np.concatenate(([0], np.cumsum(held)[:-1])).astype(np.int64)
        self._flags = np.zeros(BLOCK + 8, np.uint8)
        self._poisson_counts = np.zeros(BLOCK, np.int32)
        self._spikes = np.zeros(populations, np.int64)

        self.slice_rows = np.zeros(len(self.parts), w.SLICE)
        poissons: list[tuple[int, ...]] = []
        pulses: list[tuple[int, ...]] = []
        recorded = 0
        for row, part in zip(self.slice_rows, self.parts, strict=True):
            recorded += self._describe_part(row, part, poissons, pulses)
        self.poisson_rows = np.array(poissons, w.POISSON_INPUT)
        self.pulse_rows = np.array(pulses, w.CURRENT)

        self.table_rows = np.zeros(len(self.static), w.STATIC_TABLE)
        for row, static in zip(self.table_rows, self.static, strict=True):
            row["index"] = static.index.ctypes.data
            row["words_address"] = static.words.ctypes.data
            row["wide"] = static.wide
            row["classes"] = len(static.delays)
            row["delays"] = static.delays.ctypes.data
            row["accumulators"] = self.accumulators.ctypes.data + self.accumulators.itemsize * static.first_accumulator
            row["weights"] = static.weights.ctypes.data if network.is_wide else 0
            row["first_rows"] = static.first_rows.ctypes.data
            row["shifts"] = static.shifts.ctypes.data
        self._due = np.zeros((len(self.static), slots), np.int64)
        self._make_calendars(FIRST_CALENDAR_ROOM)

        self.plastic_rows = np.zeros(len(self.plastic_held), w.PLASTIC_TABLE)
        for row, table in zip(self.plastic_rows, self.plastic_held, strict=True):
            table.describe(row, self.accumulators, network.accumulator_of(table.projection)[0])

        self._describe_signals()
        sampled = self._describe_probes()
        self._record = np.zeros(RECORD_ROOM + recorded if recorded else 0, np.uint64)
        self._samples = np.zeros(SAMPLE_ROOM + sampled if sampled else 0, np.uint32)

        control = self.control = np.zeros(1, w.CONTROL)[0]
        control["workers"] = workers
        control["me"] = self.me
        control["slots"] = slots
        control["populations"] = populations
        control["neurons"] = neurons
        control["buffer_slots"] = self.spike_buffers.slots
        control["checks"] = network.checks_finite
        control["wide"] = network.is_wide
        control["rhythm_count"], control["binding_count"] = len(network.rhythms), len(self._bindings)
        control["record_room"], control["largest_step_record"] = len(self._record), recorded
        control["sample_room"], control["largest_step_sample"] = len(self._samples), sampled
        for column, array in (
            ("first_ids", self._first_ids),
            ("history_offsets", self._history_offsets),
            ("history_ids", self._history_ids),
            ("buffers", self.spike_buffers.addresses),
            ("buffer_strides", self.spike_buffers.strides),
            ("done", self.spike_buffers.done),
            ("lags", self.lags),
            ("history_first", self._history_first),
            ("signals", self._signals),
            ("rhythms", self._rhythm_rows),
            ("cosines", cosine_table()),
            ("bindings", self._bindings),
            ("flags", self._flags),
            ("poisson_counts", self._poisson_counts),
            ("record", self._record),
            ("samples", self._samples),
            ("spikes", self._spikes),
        ):
            control[column] = array.ctypes.data
        self.rates.describe(control)

    def _put_kernels(self) -> None:
        """Write the addresses of the kernels that only some networks need to the control block."""
        for group in optional.needed_by(self.network):
            for name, kernel in group.kernels.items():
                self.control[name] = kernel.address

    def _describe_signals(self) -> None:
        """Fill the tables of neuromodulators, rhythms and the constants bound to them."""
        network, dt_ms = self.network, self.network.dt_ms
        modulators = len(network.neuromodulators)
        self._levels = np.zeros(max(1, modulators), np.float32)
        self._level_listeners = level_listeners(network, self.placement)
        self._signals = np.zeros(max(1, modulators + len(network.rhythms)), np.float32)
        self.modulator_rows = np.zeros(modulators, w.MODULATOR)
        releases: list[tuple[int, ...]] = []
        for row, modulator in zip(self.modulator_rows, network.neuromodulators, strict=True):
            row["level"] = self._levels.ctypes.data + 4 * modulator.index
            row["decay"] = _bits(exp(-dt_ms / modulator.tau_ms))
            row["tracked"] = self.me in self._level_listeners[modulator.index]
            row["baseline"] = _bits(modulator.baseline)
            row["first"] = len(releases)
            for one in network.modulations:
                if one.modulator.name == modulator.name:
                    delay = to_steps(one.delay_ms, dt_ms, "delay_ms")
                    releases.append((one.population.index, delay, _bits(one.amount)))
            row["end"] = len(releases)
        self.release_rows = np.array(releases, w.RELEASE)
        rhythms = [(one.increment(dt_ms), one.offset, _bits(one.floor)) for one in network.rhythms]
        self._rhythm_rows = np.array(rhythms, w.RHYTHM)
        places = {one.name: one.index for one in network.neuromodulators}
        places |= {one.name: modulators + one.index for one in network.rhythms}
        self._bindings = np.array(
            [
                [part.constants.ctypes.data + part.constants.itemsize * word, places[signal]]
                for part in self.parts
                for word, signal in part.signal_places().items()
            ],
            np.int64,
        ).reshape(-1, 2)
        for table in self.plastic_held:
            # Reward uses the level of a neuromodulator relative to its baseline, or the value of a rhythm.
            if table.signal in places:
                place = places[table.signal]
                levels = self._levels if place < modulators else self._signals
                table.row["level"] = levels.ctypes.data + 4 * place

    def _describe_part(
        self, row: np.void, part: NeuronPart, poissons: list[tuple[int, ...]], pulses: list[tuple[int, ...]]
    ) -> int:
        """Fill the row of a slice; return the most spikes that one step can record of it."""
        network, dt_ms, population = self.network, self.network.dt_ms, part.population
        layout, first, last = part.layout, part.part.first, part.part.last
        row["update"] = self._kernel_of(part)
        row["blocks"] = part.blocks.ctypes.data
        row["block_bytes"] = part.blocks.shape[1] * layout.row_bytes
        row["n"] = part.part.n
        row["accumulators"] = self.accumulators.ctypes.data + self.accumulators.itemsize * part.accumulators.first
        row["accumulator_bytes"] = self.accumulators.itemsize * part.accumulators.stride
        row["first_id"] = population.first_id + first
        row["population"] = population.index
        row["constants"] = part.constants.ctypes.data
        row["stream_bytes"] = (layout.stream or 0) * layout.row_bytes
        row["counts"] = part.spike_counts.ctypes.data
        floats = np.flatnonzero(~np.array(layout.is_integer, bool)).astype(np.int64)
        self._keep.append(floats)
        row["floats"], row["float_count"] = floats.ctypes.data, len(floats)
        row["current_row"] = -1 if layout.current is None else layout.current * layout.row_bytes

        row["poisson_first"] = len(poissons)
        for given in network.poisson_inputs:
            if given.population.index == population.index:
                place, exponent = network.accumulator_of(given)
                rate = given.rate_hz[first:last] if isinstance(given.rate_hz, np.ndarray) else given.rate_hz
                table = poisson_table(np.asarray(rate) * dt_ms * 1e-3, part.part.n)
                self._poisson_tables.append(table)
                start, stop = _interval(given.start_ms, given.stop_ms, dt_ms)
                weight = int(np.rint(given.weight / 2.0**exponent))
                row_bytes = place * BLOCK * self.accumulators.itemsize
                poissons.append((self._poisson_kernel(table), table.ctypes.data, weight, row_bytes, start, stop))
        row["poisson_end"] = len(poissons)

        row["pulse_first"] = len(pulses)
        for current in network.current_inputs:
            if current.population.index == population.index:
                start, stop = _interval(current.start_ms, current.stop_ms, dt_ms)
                if isinstance(current.amplitude_pa, np.ndarray):
                    values = np.ascontiguousarray(current.amplitude_pa[first:last], part.blocks.dtype)
                    self._pulse_values.append(values)
                    pulses.append((start, stop, 0, values.ctypes.data))
                elif network.is_wide:
                    self._pulse_values.append(np.array([current.amplitude_pa]))
                    pulses.append((start, stop, self._pulse_values[-1].ctypes.data, 0))
                else:
                    self._pulse_values.append(None)
                    pulses.append((start, stop, _bits(current.amplitude_pa), 0))
        row["pulse_end"] = len(pulses)

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
        row["record"] = 0 if recorded == 0 else 1 if recorded == part.part.n else 2
        row["mask"] = mask.ctypes.data

        onto = [i for i, table in enumerate(self.plastic_held) if table.accumulators is part.accumulators]
        if onto:
            row["plastic_first"], row["plastic_end"] = onto[0], onto[-1] + 1
        return recorded

    def _describe_probes(self) -> int:
        """Fill the rows of state probes; return the most samples that one step can write."""
        rows, sampled = [], 0
        for probe, part, _, ids in self.sampled_parts():
            self._keep.append(ids)
            sampled += len(ids) * (2 if self.network.is_wide else 1)
            every = to_steps(probe.every_ms or 0.0, self.network.dt_ms, "every_ms")
            rows.append(
                (
                    part.blocks.ctypes.data,
                    part.blocks.shape[1] * part.layout.row_bytes,
                    part.layout.states.index(probe.what),
                    every,
                    ids.ctypes.data,
                    len(ids),
                )
            )
        self.probe_rows = np.array(rows, w.STATE_PROBE)
        return sampled

    def sampled_parts(self) -> Iterator[tuple[Probe, NeuronPart, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (probe, part, indices within the probe, neurons of the part) for the probes of states, in order."""
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
        """Publish the current step as completed to the other shards."""
        ctypes.c_int64.from_address(int(self.spike_buffers.done[self.me])).value = self.step

    def resume(self, step: int) -> None:
        """Continue after `step`: update everything that is a function of the step."""
        self.control["step"] = step
        self._merge_inputs()
        for place in range(len(self.slice_rows)):
            self._set_currents(place)

    def _set_currents(self, place: int) -> None:
        """Set the currents of a slice that differ between its neurons to those of the next step."""
        rows = self.slice_rows
        if rows["current_row"][place] >= 0:
            kernel = set_wide_currents if self.network.is_wide else set_currents
            kernel(rows.ctypes.data + place * rows.itemsize, self.pulse_rows.ctypes.data, self.step + 1)

    def jump(self, step: int) -> None:
        """Continue after `step` with unchanged neurons, as if none had spiked in the skipped steps."""
        self._history_offsets[:] = 0
        self.rates.jump(step, self.parts)
        self.schedule_again(step)
        self.resume(step)

    # --- interventions ----------------------------------------------------------------------------------------

    def inject(self, steps: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Make neurons (ids in the network) spike in future steps; ids of other shards are ignored."""
        for i, part in enumerate(self.held):
            first = part.population.first_id + part.part.first
            here = (ids >= first) & (ids < first + part.part.n)
            if here.any():
                self._injected[i] = np.union1d(self._injected[i], _packed(steps[here], ids[here] - first))
                self._merge_inputs_of(i)

    def spikes_of(self, population: int, step: int) -> NDArray[np.int64]:
        """Return the neurons of a population (ids within it) that spiked in a step, in ascending order.

        Only for steps in the history: not after now - lag of the shard that holds them, nor before the longest delay.
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
        """Return (steps, ids in the network) of the injected spikes of future steps."""
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
        """Update the spikes that each slice must emit from the next step on."""
        for i in range(len(self.held)):
            self._merge_inputs_of(i)

    def _merge_inputs_of(self, i: int) -> None:
        next_step = np.uint64((self.step + 1) << 32)
        self._injected[i] = self._injected[i][self._injected[i] >= next_step]
        described = self._described[i][np.searchsorted(self._described[i], next_step) :]
        self._inputs[i] = np.union1d(described, self._injected[i])
        row = self.slice_rows[i]
        row["input"], row["input_count"] = self._inputs[i].ctypes.data, len(self._inputs[i])
        row["input_position"] = 0

    def silence(self, populations: Iterable[int]) -> None:
        """Silence exactly these populations from the next step on: their neurons are not updated and do not spike."""
        silent = set(populations)
        for place, (row, part) in enumerate(zip(self.slice_rows, self.held, strict=True)):
            if row["silent"] and part.part.population not in silent:
                size = part.accumulators.blocks * part.accumulators.stride
                self.accumulators[part.accumulators.first : part.accumulators.first + size] = 0
                # A current may have started or stopped meanwhile.
                self._set_currents(place)
            row["silent"] = part.part.population in silent
        self.silent = frozenset(silent)

    def freeze(self, projections: Iterable[int]) -> None:
        """Freeze the weights of exactly these projections from the next step on."""
        self.frozen = frozenset(projections)
        self.flush()
        for table in self.plastic_held:
            table.row["frozen"] = table.projection.index in self.frozen


def _interval(start_ms: float, stop_ms: float | None, dt_ms: float) -> tuple[int, int]:
    start = to_steps(start_ms, dt_ms, "start_ms")
    return start, FOR_EVER if stop_ms is None else to_steps(stop_ms, dt_ms, "stop_ms")


def _packed(steps: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.uint64]:
    return steps.astype(np.uint64) << np.uint64(32) | places.astype(np.uint64)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))
