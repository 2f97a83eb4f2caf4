"""The kernel that runs a shard: steps of wait, collect, deliver, update, publish, with no Python in between.

The way of a spike: it is born in `_update_slices`, leaves in the shard's *outbox* (memory that the others can read), is
put into every shard's *history* by `_collect` when they need it, is entered into the *calendar* of each table of
synapses by `_schedule`, and delivered by `_deliver_static` and `_deliver_plastic` into the *accumulators* of its
targets, in the step in which it arrives. Delivery is deferred: a synapse with delay d is looked at d steps after the
spike, not when the spike comes in, so one accumulator for each neuron is enough and stays in the cache, where a ring
with a slot for each delay would not.

A step is complete or not begun: `advance` returns only between steps, so it can be left and entered again at any time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from neuraxis.comm.atomics import (
    bits_to_float32,
    cycles,
    load_acquire,
    prefetch,
    relax,
    store_release,
    yield_cpu,
)
from neuraxis.compiled import compiled
from neuraxis.engine.generated import BLOCK
from neuraxis.engine.learning import deliver_segment, note_post_spike, reward, scale_weights
from neuraxis.engine.memory import call_poisson, call_update, f32, f64_pairs, i32, i64, u8, u32, u64
from neuraxis.engine.plan import (
    B_BLOCK_BYTES,
    B_BLOCKS,
    B_COUNT,
    B_EVERY,
    B_IDS,
    B_ROW,
    C_BITS,
    C_START,
    C_STOP,
    C_VALUES,
    DONE,
    FULL,
    I_FUNCTION,
    I_RECEPTOR_BYTES,
    I_START,
    I_STOP,
    I_TABLE,
    I_WEIGHT,
    L_CLASSES,
    L_DELAYS,
    L_EVERY,
    L_FULL,
    L_LEARN_TICKS,
    L_LEVEL,
    L_PRE,
    L_SCALE_EVERY,
    L_TICKS,
    LONGEST_TICKS,
    M_BASELINE,
    M_DECAY,
    M_END,
    M_FIRST,
    M_HEARD,
    M_LEVEL,
    NO_CALENDAR_ROOM,
    NO_ROOM,
    P_COLLECTED,
    P_COSINES,
    P_DELIVERED,
    P_DONE,
    P_EVENTS,
    P_EXCHANGED,
    P_FIRST_IDS,
    P_FLAGS,
    P_HASH,
    P_HISTORY_FIRST,
    P_HISTORY_IDS,
    P_HISTORY_OFFSETS,
    P_LAGS,
    P_LARGEST_STEP_RECORD,
    P_LARGEST_STEP_SAMPLE,
    P_ME,
    P_NEURONS,
    P_OUTBOX_SLOTS,
    P_OUTBOX_STRIDES,
    P_OUTBOXES,
    P_POPULATIONS,
    P_RECEIVED,
    P_RECORD,
    P_RECORD_ROOM,
    P_RECORDED,
    P_RHYTHM_COUNT,
    P_RHYTHMS,
    P_SAMPLE_ROOM,
    P_SAMPLED,
    P_SAMPLES,
    P_SIGNALS,
    P_SLOTS,
    P_SPIKES,
    P_STEP,
    P_TIE_COUNT,
    P_TIES,
    P_UPDATED,
    P_WAITED,
    P_WORKERS,
    R_AMOUNT,
    R_DELAY,
    R_POPULATION,
    S_ACCUMULATOR_BYTES,
    S_ACCUMULATORS,
    S_BLOCK_BYTES,
    S_BLOCKS,
    S_CONSTANTS,
    S_COUNTS,
    S_CURRENT_ROW,
    S_FIRST_ID,
    S_INPUT,
    S_INPUT_COUNT,
    S_INPUT_POSITION,
    S_MASK,
    S_N,
    S_PLASTIC_END,
    S_PLASTIC_FIRST,
    S_POISSON_END,
    S_POISSON_FIRST,
    S_POPULATION,
    S_PULSE_END,
    S_PULSE_FIRST,
    S_RECORD,
    S_SILENT,
    S_STREAM_BYTES,
    S_TICKS,
    S_UPDATE,
    T_ACCUMULATORS,
    T_CALENDAR,
    T_CLASSES,
    T_DELAYS,
    T_DUE,
    T_FIRST_ROWS,
    T_INDEX,
    T_MOST,
    T_ROOM,
    T_SHIFTS,
    T_WIDE,
    T_WORDS_ADDRESS,
    TIMED_EVERY,
    WAITING,
    Y_FLOOR,
    Y_INCREMENT,
    Y_OFFSET,
    Y_WORDS,
)
from neuraxis.engine.random import mix
from neuraxis.network.rhythm import CELLS

__all__ = ["advance", "schedule_again", "set_currents"]

CELL_BITS = CELLS.bit_length() - 1

_LINE = 64
_AHEAD = np.uint64(8)  # segments that are asked for before their turn
_LINES = 5  # of each, at most

# A segment in the calendar: 8 bits shift, 24 bits size, 32 bits start.
_LOW = np.uint64(0xFFFFFFFF)
_SIZE = np.uint64(0xFFFFFF)

# A wide synapse: 16 bits delay class, 16 accumulator, 32 weight. (A narrow one: 16 bits weight, 16 accumulator.)
_TARGET = np.uint64(0xFFFF)


@compiled
def schedule_again(plan: Any, tables: Any, now: int) -> None:
    """Enter all spikes of the history into empty calendars, for the steps after `now`."""
    lags = i64(plan[P_LAGS], plan[P_WORKERS])
    for i in range(tables.shape[0]):
        for worker in range(plan[P_WORKERS]):
            for s in range(max(1, now - plan[P_SLOTS] + 1), now - lags[worker] + 1):
                _schedule(plan, tables[i], worker, s, now)


@compiled
def advance(
    plan: Any, slices: Any, poissons: Any, pulses: Any, tables: Any, plastic: Any, modulators: Any, releases: Any,
    probes: Any, until: int, spins: int, yields: int,
) -> int:  # fmt: skip
    """Run to step `until`; DONE, or why not yet (see `plan`)."""
    while plan[P_STEP] < until:
        t = plan[P_STEP] + 1
        if plan[P_RECORD_ROOM] - plan[P_RECORDED] < plan[P_LARGEST_STEP_RECORD]:
            return FULL
        if plan[P_SAMPLE_ROOM] - plan[P_SAMPLED] < plan[P_LARGEST_STEP_SAMPLE]:
            return FULL
        for i in range(plastic.shape[0]):
            if plastic[i, L_FULL]:
                return NO_ROOM
        clock = cycles()
        there = _others_are_there(plan, t, spins, yields)
        clock = _spent(plan, P_WAITED, clock)
        if not there:
            return WAITING
        coming, own = _collect(plan, t)
        for i in range(tables.shape[0]):
            # Each spike has one segment at most for each slot.
            if tables[i, T_MOST] + coming + 1 > tables[i, T_ROOM]:
                return NO_CALENDAR_ROOM  # nothing is changed that collecting again would not set alike
        plan[P_RECEIVED] += coming - own
        if coming > 0:
            lags = i64(plan[P_LAGS], plan[P_WORKERS])
            for i in range(tables.shape[0]):
                for worker in range(plan[P_WORKERS]):
                    _schedule(plan, tables[i], worker, t - lags[worker], t - 1)
        clock = _spent(plan, P_COLLECTED, clock)
        timed = t % TIMED_EVERY == 0
        for i in range(tables.shape[0]):
            _deliver_static(plan, tables[i], t)
        for i in range(plastic.shape[0]):
            begun = cycles() if timed else 0
            _deliver_plastic(plan, plastic[i], t)
            if timed:
                plastic[i, L_TICKS] += min(cycles() - begun, LONGEST_TICKS)
        clock = _spent(plan, P_DELIVERED, clock)
        _update_modulators(plan, modulators, releases, t)
        _update_signals(plan, modulators, t)
        _update_slices(plan, slices, poissons, pulses, plastic, t, timed)
        _learn(plastic, t)
        clock = _spent(plan, P_UPDATED, clock)
        for i in range(probes.shape[0]):
            if t % probes[i, B_EVERY] == 0:
                _sample(plan, probes[i])
        plan[P_STEP] = t
        store_release(i64(plan[P_DONE], plan[P_WORKERS])[plan[P_ME]], t)
    return DONE


@njit
def _spent(plan: Any, word: Any, since: Any) -> Any:
    """Count the time since a reading of the clock to a word of the plan; the clock now."""
    now = cycles()
    plan[word] += now - since
    return now


@njit
def _others_are_there(plan: Any, t: Any, spins: Any, yields: Any) -> Any:
    """Whether every other worker has come as far as step t needs; waits a little.

    All of their words are read before any is looked at: each comes from another core, and the readings overlap.
    """
    workers = plan[P_WORKERS]
    done = i64(plan[P_DONE], workers)
    lags = i64(plan[P_LAGS], workers)
    for turn in range(spins + yields + 1):
        missing = False
        for w in range(workers):
            missing |= load_acquire(done[w]) < t - lags[w]
        if not missing:
            return True
        if turn < spins:
            relax()
        else:
            yield_cpu()
    return False


@njit
def _collect(plan: Any, t: Any) -> Any:
    """Put everybody's spikes that can be felt from now on into the history, worker by worker; how many there are,
    and how many of them are this worker's own."""
    workers = plan[P_WORKERS]
    if workers > 1:
        outboxes = i64(plan[P_OUTBOXES], workers)
        strides = i64(plan[P_OUTBOX_STRIDES], workers)
        lags = i64(plan[P_LAGS], workers)
        for w in range(workers):
            prefetch(outboxes[w] + max(0, t - lags[w]) % plan[P_OUTBOX_SLOTS] * strides[w])
    own = _collect_from(plan, plan[P_ME], t)
    if workers == 1:
        return own, own
    clock = cycles()
    total = own
    for w in range(workers):
        if w != plan[P_ME]:
            total += _collect_from(plan, w, t)
    _spent(plan, P_EXCHANGED, clock)
    return total, own


@njit
def _collect_from(plan: Any, w: Any, t: Any) -> Any:
    """The same for one worker."""
    populations, workers = plan[P_POPULATIONS], plan[P_WORKERS]
    s = t - i64(plan[P_LAGS], workers)[w]
    slot = s & (plan[P_SLOTS] - 1)
    offsets = i32(plan[P_HISTORY_OFFSETS] + (slot * workers + w) * (populations + 1) * 4, populations + 1)
    if s < 1:
        for p in range(populations + 1):
            offsets[p] = 0
        return np.int64(0)
    first = i64(plan[P_HISTORY_FIRST], workers)[w]
    ids = i32(plan[P_HISTORY_IDS] + (slot * plan[P_NEURONS] + first) * 4, plan[P_NEURONS])
    stride = i64(plan[P_OUTBOX_STRIDES], workers)[w]
    box = i32(i64(plan[P_OUTBOXES], workers)[w] + s % plan[P_OUTBOX_SLOTS] * stride, 1 << 30)
    for p in range(populations + 1):
        offsets[p] = box[p]
    n = np.int64(box[populations])
    for i in range(n):
        ids[i] = box[populations + 1 + i]
    return n


@njit
def _schedule(plan: Any, table: Any, worker: Any, s: Any, after: Any) -> None:
    """Enter the segments of a worker's spikes of step s into the calendar, for the steps after `after` they are due in.

    Everything about a spike is looked up here once, in one sweep over its row of the index. Looking up each segment
    when it is due would go to another place in memory for each of the thousands of spikes that are under way.
    """
    populations, workers = plan[P_POPULATIONS], plan[P_WORKERS]
    slot = s & (plan[P_SLOTS] - 1)
    offsets = i32(plan[P_HISTORY_OFFSETS] + (slot * workers + worker) * (populations + 1) * 4, populations + 1)
    if offsets[populations] == 0:
        return
    start = i64(plan[P_HISTORY_FIRST], workers)[worker]
    ids = i32(plan[P_HISTORY_IDS] + (slot * plan[P_NEURONS] + start) * 4, plan[P_NEURONS])
    first_ids = i64(plan[P_FIRST_IDS], populations + 1)
    first_rows = i64(table[T_FIRST_ROWS], populations)
    shifts = i64(table[T_SHIFTS], populations)
    row_bytes = 4 * (1 if table[T_WIDE] else table[T_CLASSES])
    for p in range(populations):
        if first_rows[p] >= 0:  # all rows are asked for before the first is read
            for i in range(np.uint64(offsets[p]), np.uint64(offsets[p + 1])):
                row_at = table[T_INDEX] + (first_rows[p] + np.int64(ids[i]) - first_ids[p]) * row_bytes
                for line in range(0, min(row_bytes + 4, _LINES * _LINE), _LINE):
                    prefetch(row_at + line)
    for p in range(populations):
        if first_rows[p] < 0:
            continue
        shift = np.uint64(shifts[p]) << np.uint64(56)
        for i in range(np.uint64(offsets[p]), np.uint64(offsets[p + 1])):
            row = np.uint64(first_rows[p] + np.int64(ids[i]) - first_ids[p])
            if table[T_WIDE]:
                _schedule_wide(plan, table, s, after, row)
            else:
                _schedule_narrow(plan, table, s, after, row, shift)


@njit
def _schedule_narrow(plan: Any, table: Any, s: Any, after: Any, source: Any, shift: Any) -> None:
    """The segments of one source, found by the index."""
    mask, room = plan[P_SLOTS] - 1, np.uint64(table[T_ROOM])
    classes = np.uint64(table[T_CLASSES])
    delays = i64(table[T_DELAYS], table[T_CLASSES])
    index = u32(table[T_INDEX], 1 << 40)
    calendar = u64(table[T_CALENDAR], 1 << 40)
    due = i64(table[T_DUE], plan[P_SLOTS])
    row = source * classes
    most = table[T_MOST]
    start = np.uint64(index[row])
    for c in range(classes):
        end = np.uint64(index[row + c + np.uint64(1)])
        t = s + delays[c]
        at = np.uint64(t & mask)
        n = due[at]
        calendar[at * room + np.uint64(n)] = shift | ((end - start) << np.uint64(32)) | start
        n += np.int64(end > start and t > after)  # else it is written over
        due[at] = n
        most = max(most, n)
        start = end
    table[T_MOST] = most


@njit
def _schedule_wide(plan: Any, table: Any, s: Any, after: Any, source: Any) -> None:
    """The segments of one source, found by the classes in its words."""
    mask, room = plan[P_SLOTS] - 1, np.uint64(table[T_ROOM])
    delays = i64(table[T_DELAYS], table[T_CLASSES])
    index = u32(table[T_INDEX], 1 << 40)
    words = u64(table[T_WORDS_ADDRESS], 1 << 40)
    calendar = u64(table[T_CALENDAR], 1 << 40)
    due = i64(table[T_DUE], plan[P_SLOTS])
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
            table[T_MOST] = max(table[T_MOST], due[at])
        start = next_start


@njit
def _deliver_static(plan: Any, table: Any, t: Any) -> None:
    """Add the weights of all static synapses at which a spike arrives in step t.

    The segments lie anywhere in gigabytes, so each is asked for from memory a few turns before it is walked. Places
    are unsigned: for a signed one Numba would ask at each access whether it counts from the end.
    """
    slot = t & (plan[P_SLOTS] - 1)
    due = i64(table[T_DUE], plan[P_SLOTS])
    n = np.uint64(due[slot])
    if n == 0:
        return
    due[slot] = 0
    segments = u64(table[T_CALENDAR] + slot * table[T_ROOM] * 8, table[T_ROOM])
    address = table[T_WORDS_ADDRESS]
    accumulators = i32(table[T_ACCUMULATORS], 1 << 40)
    events = np.uint64(0)
    for i in range(min(_AHEAD, n)):
        _ask_for(address, table[T_WIDE], segments[i])
    if table[T_WIDE]:
        wide = u64(address, 1 << 40)
        for i in range(n):
            if i + _AHEAD < n:
                _ask_for(address, 1, segments[i + _AHEAD])
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
                _ask_for(address, 0, segments[i + _AHEAD])
            start = segments[i] & _LOW
            size = (segments[i] >> np.uint64(32)) & _SIZE
            shift = np.int32(segments[i] >> np.uint64(56))
            for k in range(start, start + size):
                word = narrow[k]
                accumulators[np.uint64(word & np.uint32(0xFFFF))] += (np.int32(word) >> np.int32(16)) << shift
            events += size
    plan[P_EVENTS] += np.int64(events)


@njit
def _ask_for(address: Any, wide: Any, segment: Any) -> None:
    """Ask for the first cache lines of a segment; the processor itself sees what comes after them."""
    first = address + (np.int64(segment & _LOW) << (2 + wide))
    size = np.int64((segment >> np.uint64(32)) & _SIZE) << (2 + wide)
    last = first + min(size, _LINES * _LINE)
    while first < last:
        prefetch(first)
        first += _LINE


@njit
def _deliver_plastic(plan: Any, table: Any, t: Any) -> None:
    """The same for plastic synapses, which change when a spike arrives."""
    populations, workers = plan[P_POPULATIONS], plan[P_WORKERS]
    p = table[L_PRE]
    first_id = i64(plan[P_FIRST_IDS], populations + 1)[p]
    first = i64(plan[P_HISTORY_FIRST], workers)
    delays = i64(table[L_DELAYS], table[L_CLASSES])
    for c in range(table[L_CLASSES]):
        s = t - delays[c]
        if s < 1:
            break
        slot = s & (plan[P_SLOTS] - 1)
        for w in range(workers):
            offsets = i32(plan[P_HISTORY_OFFSETS] + (slot * workers + w) * (populations + 1) * 4, populations + 1)
            ids = i32(plan[P_HISTORY_IDS] + (slot * plan[P_NEURONS] + first[w]) * 4, plan[P_NEURONS])
            for i in range(np.int64(offsets[p]), np.int64(offsets[p + 1])):
                plan[P_EVENTS] += deliver_segment(table, np.int64(ids[i]) - first_id, c, delays[c], t)


@njit
def _update_modulators(plan: Any, modulators: Any, releases: Any, t: Any) -> None:
    """Every neuromodulator decays, and takes what the spikes release that arrive in step t."""
    populations, workers = plan[P_POPULATIONS], plan[P_WORKERS]
    for m in range(modulators.shape[0]):
        if modulators[m, M_HEARD] == 0:
            continue
        level = f32(modulators[m, M_LEVEL], 1)
        value = level[0] * bits_to_float32(np.uint32(modulators[m, M_DECAY]))
        for r in range(modulators[m, M_FIRST], modulators[m, M_END]):
            s = t - releases[r, R_DELAY]
            if s < 1:
                continue
            slot = s & (plan[P_SLOTS] - 1)
            p = releases[r, R_POPULATION]
            count = np.int64(0)
            for w in range(workers):
                offsets = i32(plan[P_HISTORY_OFFSETS] + (slot * workers + w) * (populations + 1) * 4, populations + 1)
                count += np.int64(offsets[p + 1]) - np.int64(offsets[p])
            value = value + bits_to_float32(np.uint32(releases[r, R_AMOUNT])) * np.float32(count)
        level[0] = value


@njit
def _update_signals(plan: Any, modulators: Any, t: Any) -> None:
    """Set what models see of neuromodulators and rhythms to its value in step t."""
    rhythms = plan[P_RHYTHM_COUNT]
    signals = f32(plan[P_SIGNALS], modulators.shape[0] + rhythms)
    for m in range(modulators.shape[0]):
        level = f32(modulators[m, M_LEVEL], 1)[0]
        signals[m] = bits_to_float32(np.uint32(modulators[m, M_BASELINE])) + level
    cosines = f32(plan[P_COSINES], CELLS)
    rows = i64(plan[P_RHYTHMS], rhythms * Y_WORDS)
    for r in range(rhythms):
        phase = np.uint64(t) * np.uint64(rows[r * Y_WORDS + Y_INCREMENT]) + np.uint64(rows[r * Y_WORDS + Y_OFFSET])
        cosine = cosines[phase >> np.uint64(64 - CELL_BITS)]
        signals[modulators.shape[0] + r] = max(cosine, bits_to_float32(np.uint32(rows[r * Y_WORDS + Y_FLOOR])))
    ties = i64(plan[P_TIES], 2 * plan[P_TIE_COUNT])
    for i in range(plan[P_TIE_COUNT]):
        f32(ties[2 * i], 1)[0] = signals[ties[2 * i + 1]]


@njit
def _update_slices(plan: Any, slices: Any, poissons: Any, pulses: Any, plastic: Any, t: Any, timed: Any) -> None:
    """Advance every neuron of the shard by one step, and write who spiked to the outbox."""
    populations, me = plan[P_POPULATIONS], plan[P_ME]
    at = i64(plan[P_OUTBOXES], plan[P_WORKERS])[me]
    at += (t % plan[P_OUTBOX_SLOTS]) * i64(plan[P_OUTBOX_STRIDES], plan[P_WORKERS])[me]
    box = i32(at, 1 << 30)
    spikes = i64(plan[P_SPIKES], populations)
    n = 0
    p = 0
    for i in range(slices.shape[0]):
        part = slices[i]
        while p <= part[S_POPULATION]:
            box[p] = n
            p += 1
        before = n
        begun = cycles() if timed else 0
        if part[S_SILENT] == 0:
            n = _update_slice(plan, part, poissons, pulses, box, n, t)
        for tied in range(part[S_PLASTIC_FIRST], part[S_PLASTIC_END]):
            for k in range(before, n):
                note_post_spike(plastic[tied], np.int64(box[populations + 1 + k]) - part[S_FIRST_ID], t)
        spikes[part[S_POPULATION]] += n - before
        if timed:
            part[S_TICKS] += min(cycles() - begun, LONGEST_TICKS)
    while p <= populations:
        box[p] = n
        p += 1
    total = np.uint64(plan[P_HASH])
    for k in range(n):
        total += mix((np.uint64(t) << np.uint64(32)) ^ np.uint64(box[populations + 1 + k]))
    plan[P_HASH] = np.int64(total)


@njit
def _update_slice(plan: Any, part: Any, poissons: Any, pulses: Any, box: Any, n: Any, t: Any) -> Any:
    populations = plan[P_POPULATIONS]
    flags = plan[P_FLAGS]
    each_flag = u8(flags, BLOCK)
    eight_flags = u64(flags, BLOCK // 8)
    current = np.float32(0.0)
    for i in range(part[S_PULSE_FIRST], part[S_PULSE_END]):
        if pulses[i, C_VALUES] == 0:
            if pulses[i, C_START] < t and t <= pulses[i, C_STOP]:
                current += bits_to_float32(np.uint32(pulses[i, C_BITS]))
        elif t == pulses[i, C_START] + 1 or t == pulses[i, C_STOP] + 1:
            set_currents(part, pulses, t)
    inputs = u64(part[S_INPUT], part[S_INPUT_COUNT])
    counts = i32(part[S_COUNTS], part[S_N])
    for b in range((part[S_N] + BLOCK - 1) // BLOCK):
        block = part[S_BLOCKS] + b * part[S_BLOCK_BYTES]
        accumulators = part[S_ACCUMULATORS] + b * part[S_ACCUMULATOR_BYTES]
        size = min(BLOCK, part[S_N] - b * BLOCK)
        for i in range(part[S_POISSON_FIRST], part[S_POISSON_END]):
            if poissons[i, I_START] < t and t <= poissons[i, I_STOP]:
                _poisson(poissons[i], block + part[S_STREAM_BYTES], accumulators, size, b)
        call_update(part[S_UPDATE], block, accumulators, flags, size, part[S_CONSTANTS], current)
        while part[S_INPUT_POSITION] < part[S_INPUT_COUNT]:
            due = np.int64(inputs[part[S_INPUT_POSITION]])
            neuron = (due & 0xFFFFFFFF) - b * BLOCK
            if due >> 32 > t or (due >> 32 == t and neuron >= size):
                break  # (what is older came while the slice was silent)
            if due >> 32 == t:
                each_flag[neuron] = 1
            part[S_INPUT_POSITION] += 1
        any_flag = np.uint64(0)
        for word in range((size + 7) // 8):  # vectorises, and most blocks are silent in a step
            any_flag |= eight_flags[word]
        for word in range((size + 7) // 8 if any_flag else 0):
            if eight_flags[word] == 0:
                continue
            for k in range(8 * word, min(8 * word + 8, size)):
                if each_flag[k]:
                    local = b * BLOCK + k
                    box[populations + 1 + n] = np.int32(part[S_FIRST_ID] + local)
                    n += 1
                    counts[local] += 1
                    if part[S_RECORD] and (part[S_RECORD] == 1 or u8(part[S_MASK], part[S_N])[local]):
                        record = u64(plan[P_RECORD], plan[P_RECORD_ROOM])
                        record[plan[P_RECORDED]] = (np.uint64(t) << np.uint64(32)) | np.uint64(part[S_FIRST_ID] + local)
                        plan[P_RECORDED] += 1
    return n


@njit
def _poisson(given: Any, stream: Any, accumulators: Any, n: Any, b: Any) -> None:
    target = accumulators + given[I_RECEPTOR_BYTES]
    if given[I_FUNCTION]:
        call_poisson(given[I_FUNCTION], stream, target, n, given[I_TABLE], np.int32(given[I_WEIGHT]))
        return
    # Rates that differ between neurons, or are too high for thresholds: count up until the draw is reached. The table
    # holds e^-mean and the mean of each neuron, as float64.
    u = u32(stream, 2 * BLOCK)
    a = i32(target, BLOCK)
    table = f64_pairs(given[I_TABLE] + b * BLOCK * 16, 2 * BLOCK)
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
        a[k] += np.int32(count * given[I_WEIGHT])


@njit
def set_currents(part: Any, pulses: Any, t: Any) -> None:
    """Set the row of currents that differ between neurons to the sum of those that flow in step t."""
    if part[S_CURRENT_ROW] < 0:
        return
    for b in range((part[S_N] + BLOCK - 1) // BLOCK):
        row = f32(part[S_BLOCKS] + b * part[S_BLOCK_BYTES] + part[S_CURRENT_ROW], BLOCK)
        for k in range(min(BLOCK, part[S_N] - b * BLOCK)):
            total = np.float32(0.0)
            for i in range(part[S_PULSE_FIRST], part[S_PULSE_END]):
                if pulses[i, C_VALUES] != 0 and pulses[i, C_START] < t and t <= pulses[i, C_STOP]:
                    total += f32(pulses[i, C_VALUES], part[S_N])[b * BLOCK + k]
            row[k] = total


@njit
def _learn(plastic: Any, t: Any) -> None:
    """What changes all weights of a table at set times."""
    for i in range(plastic.shape[0]):
        rewarded = plastic[i, L_EVERY] > 0 and t % plastic[i, L_EVERY] == 0
        scaled = plastic[i, L_SCALE_EVERY] > 0 and t % plastic[i, L_SCALE_EVERY] == 0
        if not (rewarded or scaled):
            continue
        begun = cycles()
        if rewarded:
            reward(plastic[i], t, f32(plastic[i, L_LEVEL], 1)[0])
        if scaled:
            scale_weights(plastic[i], t)
        plastic[i, L_LEARN_TICKS] += cycles() - begun


@njit
def _sample(plan: Any, probe: Any) -> None:
    """Write a state of some neurons to the samples."""
    samples = u32(plan[P_SAMPLES], plan[P_SAMPLE_ROOM])
    ids = i64(probe[B_IDS], probe[B_COUNT])
    n = plan[P_SAMPLED]
    for i in range(probe[B_COUNT]):
        k = ids[i]
        row = probe[B_BLOCKS] + (k // BLOCK) * probe[B_BLOCK_BYTES] + probe[B_ROW] * BLOCK * 4
        samples[n + i] = u32(row, BLOCK)[k % BLOCK]
    plan[P_SAMPLED] = n + probe[B_COUNT]
