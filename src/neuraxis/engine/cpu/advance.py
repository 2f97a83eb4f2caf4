"""The kernel that runs a shard: each step waits, collects, delivers, updates and publishes, without Python in between.

The path of a spike: `_update_slices` writes it to the *spike buffer* of its shard (`engine/spikes.py`), `_collect`
copies it to the *history* of every shard, `_schedule` enters its segments into the *calendar* of each table of
synapses, and `_deliver_static` and `_deliver_plastic` add the weights to the *accumulators* of its targets in the step
in which it arrives. Delivery is deferred: a synapse with delay d is processed d steps after the spike, not when the
spike is collected. One accumulator per neuron and receptor is therefore enough and stays in the cache; a ring buffer
with a slot for each delay would not.

`advance` returns only between complete steps, so it can be called again at any time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.compiled import compiled, inner_function
from neuraxis.compiled.atomics import (
    bits_to_float32,
    cycles,
    load_acquire,
    prefetch,
    relax,
    store_release,
    yield_cpu,
)
from neuraxis.engine.codegen import BLOCK, CONSTANTS
from neuraxis.engine.memory import (
    address_of,
    array_of,
    call,
    call_poisson,
    call_update,
    f32,
    f64,
    i32,
    i64,
    u8,
    u32,
    u64,
)
from neuraxis.engine.random import mix
from neuraxis.engine.tables import (
    CALENDAR_FULL,
    CHECK_BITS,
    CHECK_FACTOR,
    DONE,
    FULL,
    HISTORY_FULL,
    LONGEST_TICKS,
    NOT_FINITE,
    RHYTHM,
    TIMED_EVERY,
    WAITING,
)
from neuraxis.network.modulation import CELLS

__all__ = ["advance", "is_check_step", "schedule_again"]

CELL_BITS = CELLS.bit_length() - 1

_rhythms_at = array_of(RHYTHM)

_LINE = 64
_AHEAD = np.uint64(8)  # segments that are prefetched ahead
_LINES = 5  # cache lines of a segment that are prefetched at most
_NARROW_BITS, _WIDE_BITS = np.int64(2), np.int64(3)  # log2 of the bytes of a synapse

# A segment in the calendar: 8 bits shift, 24 bits size, 32 bits start.
_LOW = np.uint64(0xFFFFFFFF)
_SIZE = np.uint64(0xFFFFFF)

# A wide synapse: 16 bits delay class, 16 accumulator, 32 weight. (A narrow one: 16 bits weight, 16 accumulator.)
_TARGET = np.uint64(0xFFFF)


@compiled
def schedule_again(control: Any, tables: Any, now: int) -> None:
    """Enter all spikes of the history into empty calendars, for the steps after `now`."""
    lags = i64(control.lags, control.workers)
    for i in range(tables.shape[0]):
        for worker in range(control.workers):
            for s in range(max(1, now - control.slots + 1), now - lags[worker] + 1):
                _schedule(control, tables[i], worker, s, now)


@compiled
def advance(
    control: Any, slices: Any, poissons: Any, pulses: Any, tables: Any, plastic: Any, modulators: Any, releases: Any,
    probes: Any, until: int, spins: int, yields: int,
) -> int:  # fmt: skip
    """Run to step `until`; return DONE or the reason to stop earlier (see `engine/tables.py`)."""
    while control.step < until:
        t = control.step + 1
        if control.record_room - control.recorded < control.largest_step_record:
            return FULL
        if control.sample_room - control.sampled < control.largest_step_sample:
            return FULL
        for i in range(plastic.shape[0]):
            if plastic[i].full:
                return HISTORY_FULL
        clock = cycles()
        there = _others_have_arrived(control, t, spins, yields)
        clock, spent = _lap(clock)
        control.waited += spent
        if not there:
            return WAITING
        coming, own = _collect(control, t)
        if control.output_slots > 0:
            call(control.collect_outputs, address_of(control), t)
        for i in range(tables.shape[0]):
            # A spike has at most one segment in each slot.
            if tables[i].most + coming + 1 > tables[i].room:
                return CALENDAR_FULL  # collecting again after that gives the same history
        control.received += coming - own
        if coming > 0:
            lags = i64(control.lags, control.workers)
            for i in range(tables.shape[0]):
                for worker in range(control.workers):
                    _schedule(control, tables[i], worker, t - lags[worker], t - 1)
        clock, spent = _lap(clock)
        control.collected += spent
        timed = t % TIMED_EVERY == 0
        for i in range(tables.shape[0]):
            _deliver_static(control, tables[i], t)
        for i in range(plastic.shape[0]):
            begun = cycles() if timed else 0
            call(control.deliver_plastic, address_of(control), address_of(plastic[i]), t)
            if timed:
                plastic[i].ticks += min(cycles() - begun, LONGEST_TICKS)
        if control.output_slots > 0:
            call(control.gather_inputs, address_of(control), t)
        clock, spent = _lap(clock)
        control.delivered += spent
        _update_modulators(control, modulators, releases, t)
        _update_signals(control, modulators, t)
        _update_slices(control, slices, poissons, pulses, plastic, t, timed)
        if control.output_slots > 0:
            call(control.publish_outputs, address_of(control), slices.ctypes.data, t)
        for i in range(plastic.shape[0]):
            if plastic[i].every > 0 or plastic[i].scale_every > 0:
                call(control.learn, address_of(control), address_of(plastic[i]), t)
        clock, spent = _lap(clock)
        control.updated += spent
        for i in range(probes.shape[0]):
            if t % probes[i].every == 0:
                _sample(control, probes[i])
        control.step = t
        store_release(i64(control.done, control.workers)[control.me], t)
    return DONE


@inner_function
def _lap(since: Any) -> Any:
    """Return the time now and the time since `since`, in clock ticks."""
    now = cycles()
    return now, now - since


@inner_function
def _others_have_arrived(control: Any, t: Any, spins: Any, yields: Any) -> Any:
    """Return True if every other worker has completed the step that step t needs, after spinning for a while.

    All progress counters are loaded before any is compared: each comes from another core, and the loads overlap.
    """
    workers = control.workers
    done = i64(control.done, workers)
    lags = i64(control.lags, workers)
    for attempt in range(spins + yields + 1):
        missing = False
        for w in range(workers):
            missing |= load_acquire(done[w]) < t - lags[w]
        if not missing:
            return True
        if attempt < spins:
            relax()
        else:
            yield_cpu()
    return False


@inner_function
def _collect(control: Any, t: Any) -> Any:
    """Copy the spikes that can arrive from step t on to the history; return their number, and that of own spikes."""
    workers = control.workers
    if workers > 1:
        spike_buffers = i64(control.buffers, workers)
        strides = i64(control.buffer_strides, workers)
        lags = i64(control.lags, workers)
        for w in range(workers):
            prefetch(spike_buffers[w] + max(0, t - lags[w]) % control.buffer_slots * strides[w])
    own = _collect_from(control, control.me, t)
    if workers == 1:
        return own, own
    clock = cycles()
    total = own
    for w in range(workers):
        if w != control.me:
            total += _collect_from(control, w, t)
    control.exchanged += cycles() - clock
    return total, own


@inner_function
def _collect_from(control: Any, w: Any, t: Any) -> Any:
    """Copy the spikes of one worker to the history; return their number."""
    populations, workers = control.populations, control.workers
    s = t - i64(control.lags, workers)[w]
    slot = s & (control.slots - 1)
    offsets = i32(control.history_offsets + (slot * workers + w) * (populations + 1) * 4, populations + 1)
    if s < 1:
        for p in range(populations + 1):
            offsets[p] = 0
        return np.int64(0)
    first = i64(control.history_first, workers)[w]
    ids = i32(control.history_ids + (slot * control.neurons + first) * 4, control.neurons)
    stride = i64(control.buffer_strides, workers)[w]
    buffer = i32(i64(control.buffers, workers)[w] + s % control.buffer_slots * stride, 1 << 30)
    for p in range(populations + 1):
        offsets[p] = buffer[p]
    n = np.int64(buffer[populations])
    for i in range(n):
        ids[i] = buffer[populations + 1 + i]
    return n


@inner_function
def _schedule(control: Any, table: Any, worker: Any, s: Any, after: Any) -> None:
    """Enter the segments of a worker's spikes of step s into the calendar, for arrivals after step `after`.

    This looks up everything about a spike at once, in one pass over its row of the index. Looking up each segment when
    it arrives would access random memory for each of the thousands of spikes in transit.
    """
    populations, workers = control.populations, control.workers
    slot = s & (control.slots - 1)
    offsets = i32(control.history_offsets + (slot * workers + worker) * (populations + 1) * 4, populations + 1)
    if offsets[populations] == 0:
        return
    start = i64(control.history_first, workers)[worker]
    ids = i32(control.history_ids + (slot * control.neurons + start) * 4, control.neurons)
    first_ids = i64(control.first_ids, populations + 1)
    first_rows = i64(table.first_rows, populations)
    shifts = i64(table.shifts, populations)
    row_bytes = 4 * (1 if table.wide else table.classes)
    for p in range(populations):
        if first_rows[p] >= 0:  # prefetch all rows before the first is read
            for i in range(np.uint64(offsets[p]), np.uint64(offsets[p + 1])):
                row_at = table.index + (first_rows[p] + np.int64(ids[i]) - first_ids[p]) * row_bytes
                for line in range(0, min(row_bytes + 4, _LINES * _LINE), _LINE):
                    prefetch(row_at + line)
    for p in range(populations):
        if first_rows[p] < 0:
            continue
        shift = np.uint64(shifts[p]) << np.uint64(56)
        for i in range(np.uint64(offsets[p]), np.uint64(offsets[p + 1])):
            row = np.uint64(first_rows[p] + np.int64(ids[i]) - first_ids[p])
            if table.wide:
                _schedule_wide(control, table, s, after, row)
            else:
                _schedule_narrow(control, table, s, after, row, shift)


@inner_function
def _schedule_narrow(control: Any, table: Any, s: Any, after: Any, source: Any, shift: Any) -> None:
    """Enter the segments of one source, found by the index."""
    mask, room = control.slots - 1, np.uint64(table.room)
    classes = np.uint64(table.classes)
    delays = i64(table.delays, table.classes)
    index = u32(table.index, 1 << 40)
    calendar = u64(table.calendar, 1 << 40)
    due = i64(table.due, control.slots)
    row = source * classes
    most = table.most
    start = np.uint64(index[row])
    for c in range(classes):
        end = np.uint64(index[row + c + np.uint64(1)])
        t = s + delays[c]
        at = np.uint64(t & mask)
        n = due[at]
        calendar[at * room + np.uint64(n)] = shift | ((end - start) << np.uint64(32)) | start
        n += np.int64(end > start and t > after)  # else the next one overwrites it
        due[at] = n
        most = max(most, n)
        start = end
    table.most = most


@inner_function
def _schedule_wide(control: Any, table: Any, s: Any, after: Any, source: Any) -> None:
    """Enter the segments of one source, found by the delay classes in its words."""
    mask, room = control.slots - 1, np.uint64(table.room)
    delays = i64(table.delays, table.classes)
    index = u32(table.index, 1 << 40)
    words = u64(table.words_address, 1 << 40)
    calendar = u64(table.calendar, 1 << 40)
    due = i64(table.due, control.slots)
    start, end = np.uint64(index[source]), np.uint64(index[source + np.uint64(1)])
    while start < end:
        c = words[start] >> np.uint64(48)
        next_start = start + np.uint64(1)
        while next_start < end and words[next_start] >> np.uint64(48) == c:
            next_start += np.uint64(1)
        t = s + delays[c]
        if t > after:
            at = np.uint64(t & mask)
            calendar[at * room + np.uint64(due[at])] = ((next_start - start) << np.uint64(32)) | start
            due[at] += 1
            table.most = max(table.most, due[at])
        start = next_start


@inner_function
def _deliver_static(control: Any, table: Any, t: Any) -> None:
    """Add the weights of all static synapses at which a spike arrives in step t.

    Segments are spread over gigabytes, so each is prefetched a few iterations ahead. Indices are unsigned: for signed
    ones Numba would check at each access whether they count from the end.
    """
    slot = t & (control.slots - 1)
    due = i64(table.due, control.slots)
    n = np.uint64(due[slot])
    if n == 0:
        return
    due[slot] = 0
    segments = u64(table.calendar + slot * table.room * 8, table.room)
    address = table.words_address
    if table.weights:
        call(control.deliver_wide, address_of(control), address_of(table), table.calendar + slot * table.room * 8, n)
        return
    accumulators = i32(table.accumulators, 1 << 40)
    events = np.uint64(0)
    for i in range(min(_AHEAD, n)):
        _prefetch_segment(address, _WIDE_BITS if table.wide else _NARROW_BITS, segments[i])
    if table.wide:
        wide = u64(address, 1 << 40)
        for i in range(n):
            if i + _AHEAD < n:
                _prefetch_segment(address, _WIDE_BITS, segments[i + _AHEAD])
            start = segments[i] & _LOW
            size = (segments[i] >> np.uint64(32)) & _SIZE
            for k in range(start, start + size):
                word = wide[k]
                accumulators[(word >> np.uint64(32)) & _TARGET] += np.int32(word & _LOW)
            events += size
    else:
        narrow = u32(address, 1 << 40)
        for i in range(n):
            if i + _AHEAD < n:
                _prefetch_segment(address, _NARROW_BITS, segments[i + _AHEAD])
            start = segments[i] & _LOW
            size = (segments[i] >> np.uint64(32)) & _SIZE
            shift = np.int32(segments[i] >> np.uint64(56))
            for k in range(start, start + size):
                word = narrow[k]
                accumulators[np.uint64(word & np.uint32(0xFFFF))] += (np.int32(word) >> np.int32(16)) << shift
            events += size
    control.events += np.int64(events)


@inner_function
def _prefetch_segment(address: Any, bits: Any, segment: Any) -> None:
    """Prefetch the first cache lines of a segment; the hardware prefetcher continues after them."""
    first = address + (np.int64(segment & _LOW) << bits)
    size = np.int64((segment >> np.uint64(32)) & _SIZE) << bits
    last = first + min(size, _LINES * _LINE)
    while first < last:
        prefetch(first)
        first += _LINE


@inner_function
def _update_modulators(control: Any, modulators: Any, releases: Any, t: Any) -> None:
    """Let every neuromodulator decay, and add the changes by spikes that arrive in step t."""
    populations, workers = control.populations, control.workers
    for m in range(modulators.shape[0]):
        if modulators[m].tracked == 0:
            continue
        level = f32(modulators[m].level, 1)
        value = level[0] * bits_to_float32(np.uint32(modulators[m].decay))
        for r in range(modulators[m].first, modulators[m].end):
            s = t - releases[r].delay
            if s < 1:
                continue
            slot = s & (control.slots - 1)
            p = releases[r].population
            count = np.int64(0)
            for w in range(workers):
                offsets = i32(control.history_offsets + (slot * workers + w) * (populations + 1) * 4, populations + 1)
                count += np.int64(offsets[p + 1]) - np.int64(offsets[p])
            value = value + bits_to_float32(np.uint32(releases[r].amount)) * np.float32(count)
        level[0] = value


@inner_function
def _update_signals(control: Any, modulators: Any, t: Any) -> None:
    """Set the values of neuromodulators and rhythms, and of the constants bound to them, to those of step t."""
    rhythms = control.rhythm_count
    signals = f32(control.signals, modulators.shape[0] + rhythms)
    for m in range(modulators.shape[0]):
        level = f32(modulators[m].level, 1)[0]
        signals[m] = bits_to_float32(np.uint32(modulators[m].baseline)) + level
    cosines = f32(control.cosines, CELLS)
    rows = _rhythms_at(control.rhythms, rhythms)
    for r in range(rhythms):
        phase = np.uint64(t) * np.uint64(rows[r].increment) + np.uint64(rows[r].offset)
        cosine = cosines[phase >> np.uint64(64 - CELL_BITS)]
        signals[modulators.shape[0] + r] = max(cosine, bits_to_float32(np.uint32(rows[r].floor)))
    bindings = i64(control.bindings, 2 * control.binding_count)
    for i in range(control.binding_count):
        if control.wide:
            f64(bindings[2 * i], 1)[0] = signals[bindings[2 * i + 1]]
        else:
            f32(bindings[2 * i], 1)[0] = signals[bindings[2 * i + 1]]


@inner_function
def _update_slices(control: Any, slices: Any, poissons: Any, pulses: Any, plastic: Any, t: Any, timed: Any) -> None:
    """Advance every neuron of the shard by one step, and write the spikes to the spike buffer."""
    populations, me = control.populations, control.me
    at = i64(control.buffers, control.workers)[me]
    at += (t % control.buffer_slots) * i64(control.buffer_strides, control.workers)[me]
    buffer = i32(at, 1 << 30)
    spikes = i64(control.spikes, populations)
    n = np.int64(0)  # a literal 0 would compile `_update_slice` once more
    p = 0
    for i in range(slices.shape[0]):
        part = slices[i]
        while p <= part.population:
            buffer[p] = n
            p += 1
        before = n
        begun = cycles() if timed else 0
        if part.silent == 0:
            n = _update_slice(control, part, i, poissons, pulses, buffer, n, t)
        if n > before:
            for table in range(part.plastic_first, part.plastic_end):
                ids = at + (populations + 1 + before) * 4
                call(control.record_post_spikes, address_of(plastic[table]), ids, n - before, part.first_id, t)
        spikes[part.population] += n - before
        if timed:
            part.ticks += min(cycles() - begun, LONGEST_TICKS)
    while p <= populations:
        buffer[p] = n
        p += 1
    total = np.uint64(control.hash)
    for k in range(n):
        total += mix((np.uint64(t) << np.uint64(32)) ^ np.uint64(buffer[populations + 1 + k]))
    control.hash = np.int64(total)


@inner_function
def _update_slice(control: Any, part: Any, place: Any, poissons: Any, pulses: Any, buffer: Any, n: Any, t: Any) -> Any:
    populations = control.populations
    flags = control.flags
    checks = control.checks != 0 and (is_check_step(t) or t == control.check_step)
    each_flag = u8(flags, BLOCK)
    eight_flags = u64(flags, BLOCK // 8)
    current = np.float32(0.0)
    wide_current = 0.0
    for i in range(part.pulse_first, part.pulse_end):
        if pulses[i].values == 0:
            if pulses[i].start < t and t <= pulses[i].stop:
                if control.wide:
                    wide_current += f64(pulses[i].bits, 1)[0]
                else:
                    current += bits_to_float32(np.uint32(pulses[i].bits))
        elif t == pulses[i].start + 1 or t == pulses[i].stop + 1:
            call(control.set_currents, address_of(part), pulses.ctypes.data, t)
    if control.wide:
        f64(part.constants, CONSTANTS)[CONSTANTS - 1] = wide_current
    inputs = u64(part.input, part.input_count)
    counts = i32(part.counts, part.n)
    for b in range((part.n + BLOCK - 1) // BLOCK):
        block = part.blocks + b * part.block_bytes
        accumulators = part.accumulators + b * part.accumulator_bytes
        size = min(BLOCK, part.n - b * BLOCK)
        for i in range(part.poisson_first, part.poisson_end):
            if poissons[i].start < t and t <= poissons[i].stop:
                _poisson(control, poissons[i], block + part.stream_bytes, accumulators, size, b)
        call_update(part.update, block, accumulators, flags, size, part.constants, current, t)
        if checks and control.unstable_step == 0:
            if control.wide:
                call(control.check_wide, address_of(control), address_of(part), place, block, b * BLOCK, size, t)
            elif _has_not_finite(part, block, size):
                _record_instability(control, part, place, block, b * BLOCK, size, t)
        while part.input_position < part.input_count:
            due = np.int64(inputs[part.input_position])
            neuron = (due & 0xFFFFFFFF) - b * BLOCK
            if due >> 32 > t or (due >> 32 == t and neuron >= size):
                break  # older entries are skipped: the slice was silent
            if due >> 32 == t:
                each_flag[neuron] = 1
            part.input_position += 1
        any_flag = np.uint64(0)
        for word in range((size + 7) // 8):  # vectorises, and most blocks are silent in a step
            any_flag |= eight_flags[word]
        for word in range((size + 7) // 8 if any_flag else 0):
            if eight_flags[word] == 0:
                continue
            for k in range(8 * word, min(8 * word + 8, size)):
                if each_flag[k]:
                    local = b * BLOCK + k
                    buffer[populations + 1 + n] = np.int32(part.first_id + local)
                    n += 1
                    counts[local] += 1
                    if part.record and (part.record == 1 or u8(part.mask, part.n)[local]):
                        record = u64(control.record, control.record_room)
                        record[control.recorded] = (np.uint64(t) << np.uint64(32)) | np.uint64(part.first_id + local)
                        control.recorded += 1
    return n


@inner_function
def is_check_step(t: Any) -> Any:
    """Return True if states are checked in step t: a function of the step alone, and the same on GPUs."""
    stretch = (np.uint64(t) >> np.uint64(CHECK_BITS)) + np.uint64(1)
    place = ((stretch * np.uint64(CHECK_FACTOR)) & np.uint64(0xFFFFFFFF)) >> np.uint64(32 - CHECK_BITS)
    return np.uint64(t) & np.uint64((1 << CHECK_BITS) - 1) == place


@inner_function
def _has_not_finite(part: Any, block: Any, size: Any) -> Any:
    """Return True if a state of a block is infinite or NaN; the loop vectorises, and the block is in the cache."""
    rows = i64(part.floats, part.float_count)
    largest = np.uint32(0)
    for j in range(part.float_count):
        row = u32(block + rows[j] * BLOCK * 4, BLOCK)
        for k in range(np.uint64(size)):
            largest = max(largest, np.uint32(row[k] & np.uint32(0x7FFFFFFF)))
    return largest >= np.uint32(NOT_FINITE)


@inner_function
def _record_instability(control: Any, part: Any, place: Any, block: Any, first: Any, size: Any, t: Any) -> None:
    """Record the first neuron of a block with a state that is not finite.

    The run continues to its end, because other shards may be at an earlier step and find one there.
    """
    rows = i64(part.floats, part.float_count)
    for k in range(size):
        for j in range(part.float_count):
            bits = u32(block + rows[j] * BLOCK * 4, BLOCK)[k]
            if bits & np.uint32(0x7FFFFFFF) >= np.uint32(NOT_FINITE):
                control.unstable_step = t
                control.unstable_part = place
                control.unstable_neuron = first + k
                control.unstable_state = rows[j]
                control.unstable_bits = np.int64(bits)
                return


@inner_function
def _poisson(control: Any, given: Any, stream: Any, accumulators: Any, n: Any, b: Any) -> None:
    target, weight = accumulators + given.receptor_bytes, np.int32(given.weight)
    if control.wide:  # count first
        target, weight = control.poisson_counts, np.int32(1)
    if given.function:
        call_poisson(given.function, stream, target, n, given.table, weight)
    else:
        # Rates that differ between neurons or are too high for thresholds: invert the cumulative distribution. The
        # table holds exp(-mean) and the mean of each neuron, as float64.
        u = u32(stream, 2 * BLOCK)
        a = i32(target, BLOCK)
        table = f64(given.table + b * BLOCK * 16, 2 * BLOCK)
        for k in range(n):
            s0, s1 = u[k], u[BLOCK + k]
            drawn = np.float64(np.uint32(s0 * np.uint32(0x9E3779BB))) * 2.0**-32
            s1 ^= s0
            u[k] = ((s0 << np.uint32(26)) | (s0 >> np.uint32(6))) ^ s1 ^ (s1 << np.uint32(9))
            u[BLOCK + k] = (s1 << np.uint32(13)) | (s1 >> np.uint32(19))
            probability, mean = table[2 * k], table[2 * k + 1]
            reached = probability
            count = 0
            while drawn >= reached and probability > 0.0:
                count += 1
                probability = probability * mean / count
                reached += probability
            a[k] += np.int32(count * weight)
    if control.wide:
        call(control.add_counts, control.poisson_counts, accumulators + given.receptor_bytes, n, given.weight)


@inner_function
def _sample(control: Any, probe: Any) -> None:
    """Append a state of the probed neurons to the samples, one word for each or two."""
    samples = u32(control.samples, control.sample_room)
    ids = i64(probe.ids, probe.count)
    words = 2 if control.wide else 1
    n = control.sampled
    for i in range(probe.count):
        k = ids[i]
        row = u32(probe.blocks + (k // BLOCK) * probe.block_bytes + probe.row * BLOCK * 4 * words, BLOCK * words)
        for word in range(words):
            samples[n] = row[(k % BLOCK) * words + word]
            n += 1
    control.sampled = n
