"""Delivery by windows of delays: a ring of accumulators, a calendar, and the kernels that use them.

A segment of a windowed table holds the synapses of one source whose delays are in one window of 2**bits steps
(`engine/cpu/segments.py`). It is due in the step in which the first of them can arrive. Delivery adds each weight to
the *slot* of the ring for the step in which that synapse arrives, at most 2**bits - 1 steps later, so a slot for each
step of a window is enough. Before the neurons are updated, the slot of the present step is added to the accumulators
of the shard and set to zero. All sums are of integers, so this gives the same bits as delivery by delay.

In the ring, accumulators lie without the gaps that the blocks of small populations leave. The calendar is a list of
chunks for each step, so that its memory follows the segments in it, and not the fullest step. A spike finds its row by
the neuron's id, so the cost of a step does not grow with the number of populations.

The kernels are compiled, and loaded, only if a shard has such a table: `engine/cpu/advance.py` calls them by address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from neuraxis.compiled import compiled_c_function, inner_function
from neuraxis.compiled.atomics import prefetch
from neuraxis.engine import tables as w
from neuraxis.engine.codegen import BLOCK
from neuraxis.engine.cpu.static_tables import StaticTable
from neuraxis.engine.memory import array_of, i32, i64, u8, u32, u64
from neuraxis.engine.tables import CHUNK

__all__ = ["DelayRing", "window_kernels"]

_FIRST_CHUNKS = 256
_HUGE_PAGE = 1 << 21


class DelayRing:
    """The ring of accumulators of a shard, with the calendars of the tables that are delivered to it.

    Parameters
    ----------
    tables : sequence of StaticTable
        The windowed tables of the shard, at least one.
    accumulators : array of int32 or int64
        The accumulators of the shard.
    control : record
        The control block of the shard, complete but for what concerns the ring.
    """

    def __init__(self, tables: Sequence[StaticTable], accumulators: NDArray[Any], control: np.void) -> None:
        self.tables = tables
        self.bits = tables[0].window_bits
        self._lags = _int64s(int(control["lags"]), int(control["workers"]))
        pieces = list(dict.fromkeys(piece for table in tables for piece in table.pieces))
        shape = 1 << self.bits, max(piece.end for piece in pieces)
        # NumPy requests huge pages for an `empty` of 4 MB, not for `zeros`; access to the ring is random.
        size = shape[0] * shape[1] * accumulators.itemsize
        memory = np.empty(size + 2 * _HUGE_PAGE, np.uint8)
        memory = memory[-memory.ctypes.data % _HUGE_PAGE :][:size]
        self.sums: NDArray[Any] = memory.view(accumulators.dtype).reshape(shape)
        self.sums[:] = 0
        self.counts = np.zeros(1 << self.bits, np.int64)  # synaptic events by slot
        runs = [
            (accumulators.ctypes.data + accumulators.itemsize * there, here, n)
            for piece in pieces
            for there, here, n in piece.runs()
        ]
        self._runs = np.array(runs, w.WINDOW_RUN)
        self._rows = np.zeros(len(tables), w.WINDOW_TABLE)
        slots, neurons, populations = (int(control[name]) for name in ("slots", "neurons", "populations"))
        self._slots = slots
        first_ids = _int64s(int(control["first_ids"]), populations + 1)
        self._calendars = [_Calendar(row, slots) for row in self._rows]
        self._row_of, self._shift_of = [], []
        for row, table in zip(self._rows, tables, strict=True):
            row_of, shift_of = np.full(neurons, -1, np.int32), np.zeros(neurons, np.uint8)
            for p in np.flatnonzero(table.first_rows >= 0):
                first, last = first_ids[p], first_ids[p + 1]
                row_of[first:last] = table.first_rows[p] + np.arange(last - first)
                shift_of[first:last] = table.shifts[p]
            self._row_of.append(row_of)
            self._shift_of.append(shift_of)
            row["index"], row["words"] = table.index.ctypes.data, table.words.ctypes.data
            row["offsets"] = 0 if table.wide else table.offsets.ctypes.data
            row["weights"] = table.weights.ctypes.data if len(table.weights) else 0
            row["wide"], row["first"] = table.wide, table.first_accumulator
            row["windows"], row["starts"] = len(table.delays), table.delays.ctypes.data
            row["rows"], row["shifts"] = row_of.ctypes.data, shift_of.ctypes.data
        ring = self._ring = np.zeros(1, w.WINDOW_RING)
        ring["sums"], ring["counts"], ring["runs"] = (one.ctypes.data for one in (self.sums, self.counts, self._runs))
        ring["slot_bytes"], ring["run_count"] = self.sums.strides[0], len(runs)
        ring["bits"], ring["mask"] = self.bits, (1 << self.bits) - 1
        ring["wide_sums"] = self.sums.itemsize == 8
        ring["tables"], ring["table_count"] = self._rows.ctypes.data, len(tables)
        for name in (
            "workers",
            "slots",
            "populations",
            "neurons",
            "history_offsets",
            "history_ids",
            "history_first",
            "lags",
        ):
            ring[name] = control[name]
        schedule, deliver = window_kernels()
        control["window_ring"] = ring.ctypes.data
        control["window_schedule"], control["window_deliver"] = schedule.address, deliver.address

    def make_room(self, coming: int) -> None:
        """Let the calendars take the segments of `coming` spikes."""
        for calendar in self._calendars:
            calendar.make_room(coming, len(self._lags))

    def fill(self, now: int, spikes: Callable[[int], NDArray[np.int64]]) -> None:
        """Set the ring and the calendars to their content after step `now`.

        `spikes` returns the ids of the neurons whose spikes of a step were collected until then.
        """
        self.sums[:] = 0
        self.counts[:] = 0
        for calendar in self._calendars:
            calendar.clear()
        kept = {step: ids for step in range(max(1, now - self._slots + 1), now) if len(ids := spikes(step))}
        if not kept:
            return
        schedule = window_kernels()[0].ctypes
        most = max(len(ids) for ids in kept.values()) * len(self._lags)
        for step in range(max(1, min(kept)), now + 1):
            self.make_room(most)
            schedule(self._ring.ctypes.data, step, most, now)
        # Windows that have begun are not in the calendar any more.
        for table, row_of, shift_of in zip(self.tables, self._row_of, self._shift_of, strict=True):
            for window, start in enumerate(table.delays.tolist()):
                for step in range(now - start - (1 << self.bits) + 2, now - start + 1):
                    if step in kept:
                        ids = kept[step][row_of[kept[step]] >= 0]
                        self._add(table, window, step + start, now, row_of[ids].astype(np.int64), shift_of[ids])

    def _add(
        self, table: StaticTable, window: int, due: int, now: int, rows: NDArray[np.int64], shifts: NDArray[np.uint8]
    ) -> None:
        """Add the synapses of one window of some sources that arrive after step `now`."""
        segments = rows if table.wide else rows * len(table.delays) + window
        first, last = table.index[segments].astype(np.int64), table.index[segments + 1].astype(np.int64)
        sizes = last - first
        at = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
        words = table.words[at].astype(np.uint64)
        mask = (1 << self.bits) - 1
        if table.wide:
            delays = (words >> np.uint64(48)).astype(np.int64)
            inside = delays >> self.bits == window
            at, words, delays = at[inside], words[inside], delays[inside] & mask
            targets = (words >> np.uint64(32) & _TARGET).astype(np.int64)
            weights = table.weights[at] if len(table.weights) else words.astype(np.uint32).view(np.int32)
        else:
            delays = table.offsets[at].astype(np.int64)
            targets = (words & _TARGET).astype(np.int64)
            weights = (words.astype(np.uint32).view(np.int32) >> 16) << np.repeat(shifts, sizes).astype(np.int32)
        future = due + delays > now
        slots = (due + delays[future]) & mask
        np.add.at(
            self.sums, (slots, table.first_accumulator + targets[future]), weights[future].astype(self.sums.dtype)
        )
        np.add.at(self.counts, slots, 1)


class _Calendar:
    """The segments that are due in each step, in chunks; `row` is the WINDOW_TABLE that it belongs to."""

    def __init__(self, row: np.void, slots: int) -> None:
        self._row = row
        self._due, self._last = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        row["due"], row["last"] = self._due.ctypes.data, self._last.ctypes.data
        self._chunks = np.empty((0, CHUNK), np.uint64)
        self._before = self._free = np.empty(0, np.int64)
        self._grow(_FIRST_CHUNKS)

    def clear(self) -> None:
        self._due[:] = 0
        self._free[:] = np.arange(len(self._free))
        self._row["free_count"] = len(self._free)

    def make_room(self, coming: int, workers: int) -> None:
        needed = _needed(coming, workers, int(self._row["windows"]))
        if self._row["free_count"] < needed:
            self._grow(len(self._chunks) + needed)

    def _grow(self, more: int) -> None:
        """Add `more` chunks."""
        old, free = len(self._chunks), int(self._row["free_count"])
        # All are allocated before the first is used: if memory runs out, the old ones stay in use.
        chunks, before = np.empty((old + more, CHUNK), np.uint64), np.empty(old + more, np.int64)
        stack = np.empty(old + more, np.int64)
        chunks[:old], before[:old], stack[:free] = self._chunks, self._before, self._free[:free]
        stack[free : free + more] = np.arange(old, old + more)
        self._chunks, self._before, self._free = chunks, before, stack
        row = self._row
        row["chunks"], row["before"], row["free"] = chunks.ctypes.data, before.ctypes.data, stack.ctypes.data
        row["free_count"] = free + more


def _int64s(address: int, n: int) -> NDArray[np.int64]:
    """Return the n numbers at an address."""
    return np.ctypeslib.as_array((ctypes.c_int64 * n).from_address(address))


@cache
def window_kernels() -> tuple[Any, Any]:
    """Return the compiled kernels (schedule, deliver); each has an `address`."""
    kind = types.int64(*[types.int64] * 4)
    return compiled_c_function(kind, _schedule), compiled_c_function(kind, _deliver)


_rings_at, _runs_at, _tables_at = array_of(w.WINDOW_RING), array_of(w.WINDOW_RUN), array_of(w.WINDOW_TABLE)

_LINE = 64
_AHEAD = np.uint64(8)  # segments that are prefetched ahead
_LINES = 16  # cache lines of a segment that are prefetched at most
_ONE = np.uint64(1)

# As in `engine/cpu/advance.py`. A segment: 8 bits shift, 24 bits size, 32 bits start. A wide synapse: 16 bits delay
# (from the first of the table), 16 accumulator, 32 weight. A narrow one: 16 bits weight, 16 accumulator.
_LOW, _SIZE, _TARGET = np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFF), np.uint64(0xFFFF)


def _needed(coming: Any, workers: Any, windows: Any) -> Any:
    """Return how many chunks a calendar needs at most for a step: a list may need one more for its last segments."""
    return (coming * windows) // CHUNK + windows * workers + 1


_chunks_for = inner_function(_needed)


def _schedule(ring_at: Any, t: Any, coming: Any, after: Any) -> Any:
    """Enter the spikes that can arrive from step t on into the calendars, as far as they are due after step `after`.

    `coming` is their number at most. Return 1, without having done anything, if a calendar has not enough room.
    """
    ring = _rings_at(ring_at, 1)[0]
    tables = _tables_at(ring.tables, ring.table_count)
    for i in range(ring.table_count):
        if tables[i].free_count < _chunks_for(coming, ring.workers, tables[i].windows):
            return 1
    lags, firsts = i64(ring.lags, ring.workers), i64(ring.history_first, ring.workers)
    for worker in range(ring.workers):
        s = t - lags[worker]
        if s < 1 or s <= after - ring.slots:
            continue
        slot = s & (ring.slots - 1)
        at = ring.history_offsets + (slot * ring.workers + worker) * (ring.populations + 1) * 4
        n = np.int64(i32(at, ring.populations + 1)[ring.populations])
        if n > 0:
            ids = i32(ring.history_ids + (slot * ring.neurons + firsts[worker]) * 4, n)
            for i in range(ring.table_count):
                _enter(tables[i], ids, n, s, after, ring.bits, ring.slots - 1)
    return 0


@inner_function
def _enter(table: Any, ids: Any, n: Any, s: Any, after: Any, bits: Any, mask: Any) -> None:
    """Enter the segments of the spikes of step s into the calendar of a table."""
    rows, index = i32(table.rows, 1 << 40), u32(table.index, 1 << 40)
    starts = i64(table.starts, table.windows)
    windows = np.uint64(table.windows)
    columns = _ONE if table.wide else windows
    words, shifts = u64(table.words, 1 << 40), u8(table.shifts, 1 << 40)
    for i in range(np.uint64(n)):  # rows are spread over much memory: prefetch all before the first is read
        row = rows[np.uint64(ids[i])]
        if row >= 0:
            line = table.index + 4 * np.int64(row) * np.int64(columns)
            last = line + min(4 * np.int64(columns) + 4, _LINES * _LINE)
            while line < last:
                prefetch(line)
                line += _LINE
    if table.wide:
        for i in range(np.uint64(n)):
            row = rows[np.uint64(ids[i])]
            if row >= 0:
                prefetch(table.words + 8 * np.int64(index[np.uint64(row)]))
    for i in range(np.uint64(n)):
        row = rows[np.uint64(ids[i])]
        if row < 0:
            continue
        first = np.uint64(row) * columns
        start, end = np.uint64(index[first]), np.uint64(index[first + columns])
        if table.wide:
            window_bits = np.uint64(48 + bits)
            while start < end:
                c = words[start] >> window_bits
                stop = start + _ONE
                while stop < end and words[stop] >> window_bits == c:
                    stop += _ONE
                if s + starts[c] > after:
                    _append(table, (s + starts[c]) & mask, ((stop - start) << np.uint64(32)) | start)
                start = stop
        elif start < end:
            shift = np.uint64(shifts[np.uint64(ids[i])]) << np.uint64(56)
            for c in range(windows):
                stop = np.uint64(index[first + c + _ONE])
                if stop > start and s + starts[c] > after:
                    _append(table, (s + starts[c]) & mask, shift | ((stop - start) << np.uint64(32)) | start)
                start = stop


@inner_function
def _append(table: Any, slot: Any, segment: Any) -> None:
    due, last = u64(table.due, 1 << 40), u64(table.last, 1 << 40)
    at = np.uint64(slot)
    place = due[at] & np.uint64(CHUNK - 1)
    due[at] += _ONE
    if place == 0:
        table.free_count -= 1
        chunk = u64(table.free, 1 << 40)[np.uint64(table.free_count)]
        u64(table.before, 1 << 40)[chunk] = last[at]
        last[at] = chunk
    u64(table.chunks, 1 << 40)[last[at] * np.uint64(CHUNK) + place] = segment


def _deliver(ring_at: Any, t: Any, _unused: Any, _unused_too: Any) -> Any:
    """Deliver the segments that are due in step t, and move the ring's slot of that step to the accumulators.

    Return the number of synaptic events in step t.
    """
    ring = _rings_at(ring_at, 1)[0]
    tables = _tables_at(ring.tables, ring.table_count)
    slot = t & (ring.slots - 1)
    for i in range(ring.table_count):
        table = tables[i]
        left = i64(table.due, ring.slots)[slot]
        if left == 0:
            continue
        i64(table.due, ring.slots)[slot] = 0
        chunk = i64(table.last, ring.slots)[slot]
        n = ((left - 1) & (CHUNK - 1)) + 1
        while left > 0:
            before = i64(table.before, 1 << 40)[chunk]
            left -= n
            _deliver_chunk(ring, table, table.chunks + chunk * CHUNK * 8, n, t)
            i64(table.free, 1 << 40)[table.free_count] = chunk
            table.free_count += 1
            chunk, n = before, CHUNK
    return _move_slot(ring, t)


@inner_function
def _deliver_chunk(ring: Any, table: Any, segments_at: Any, n: Any, t: Any) -> None:
    """Add the synapses of n segments, which are due in step t, to the ring."""
    segments = u64(segments_at, n)
    counts = u64(ring.counts, ring.mask + 1)
    mask, step, size = np.uint64(ring.mask), np.uint64(t), np.uint64(n)
    words_at, offsets_at, bits = table.words, table.offsets, np.int64(3 if table.wide else 2)
    for i in range(min(_AHEAD, size)):
        _prefetch_segment(words_at, offsets_at, bits, segments[i])
    if table.weights:
        _deliver_int64(ring, table, segments, size, step)
    elif table.wide:
        words, stride = u64(words_at, 1 << 40), np.uint64(ring.slot_bytes >> 2)
        sums = i32(ring.sums + 4 * table.first, 1 << 40)
        for i in range(size):
            if i + _AHEAD < size:
                _prefetch_segment(words_at, offsets_at, bits, segments[i + _AHEAD])
            start = segments[i] & _LOW
            for k in range(start, start + ((segments[i] >> np.uint64(32)) & _SIZE)):
                word = words[k]
                slot = (step + (word >> np.uint64(48))) & mask
                sums[slot * stride + ((word >> np.uint64(32)) & _TARGET)] += np.int32(word & _LOW)
                counts[slot] += _ONE
    else:
        narrow, offsets = u32(words_at, 1 << 40), u8(offsets_at, 1 << 40)
        sums, stride = i32(ring.sums + 4 * table.first, 1 << 40), np.uint64(ring.slot_bytes >> 2)
        for i in range(size):
            if i + _AHEAD < size:
                _prefetch_segment(words_at, offsets_at, bits, segments[i + _AHEAD])
            start = segments[i] & _LOW
            shift = np.int32(segments[i] >> np.uint64(56))
            for k in range(start, start + ((segments[i] >> np.uint64(32)) & _SIZE)):
                word = narrow[k]
                slot = (step + np.uint64(offsets[k])) & mask
                place = slot * stride + np.uint64(word & np.uint32(0xFFFF))
                sums[place] += (np.int32(word) >> np.int32(16)) << shift
                counts[slot] += _ONE


@inner_function
def _deliver_int64(ring: Any, table: Any, segments: Any, n: Any, step: Any) -> None:
    """Add the 64-bit weights of segments to the ring."""
    counts = u64(ring.counts, ring.mask + 1)
    words, weights = u64(table.words, 1 << 40), i64(table.weights, 1 << 40)
    sums, stride, mask = (
        i64(ring.sums + 8 * table.first, 1 << 40),
        np.uint64(ring.slot_bytes >> 3),
        np.uint64(ring.mask),
    )
    for i in range(n):
        start = segments[i] & _LOW
        for k in range(start, start + ((segments[i] >> np.uint64(32)) & _SIZE)):
            slot = (step + (words[k] >> np.uint64(48))) & mask
            sums[slot * stride + ((words[k] >> np.uint64(32)) & _TARGET)] += weights[k]
            counts[slot] += _ONE


@inner_function
def _prefetch_segment(words: Any, offsets: Any, bits: Any, segment: Any) -> None:
    """Prefetch the first cache lines of a segment; the hardware prefetcher continues after them."""
    start, size = np.int64(segment & _LOW), np.int64((segment >> np.uint64(32)) & _SIZE)
    first = words + (start << bits)
    last = first + min(size << bits, _LINES * _LINE)
    while first < last:
        prefetch(first)
        first += _LINE
    if offsets:
        first = offsets + start
        last = first + min(size, _LINES * _LINE)
        while first < last:
            prefetch(first)
            first += _LINE


@inner_function
def _move_slot(ring: Any, t: Any) -> Any:
    """Add the slot of step t to the accumulators and set it to zero; return the number of its synaptic events."""
    slot = t & ring.mask
    counts = i64(ring.counts, ring.mask + 1)
    events = counts[slot]
    if events == 0:
        return np.int64(0)
    counts[slot] = 0
    runs = _runs_at(ring.runs, ring.run_count)
    row = ring.sums + slot * ring.slot_bytes
    for i in range(ring.run_count):
        n = np.uint64(runs[i].n)
        if ring.wide_sums:
            long_sums, long_part = i64(runs[i].accumulators, BLOCK), i64(row + 8 * runs[i].first, BLOCK)
            for k in range(n):
                long_sums[k] += long_part[k]
                long_part[k] = 0
        else:
            sums, part = i32(runs[i].accumulators, BLOCK), i32(row + 4 * runs[i].first, BLOCK)
            for k in range(n):
                sums[k] += part[k]
                part[k] = np.int32(0)
    return events
