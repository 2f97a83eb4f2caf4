"""Kernels of plastic synapses.

**Order of events.** The whole delay d of a synapse counts as dendritic, as in NEST: a spike that the source emits in
step s reaches the synapse at s and the soma at s + d, and a target spike of step q reaches the synapse at q + d.
Everything about a source spike is computed at once, when it arrives at the soma in step s + d:

1. each target spike q with last < q + d <= s potentiates, in the order of time, with the Kplus that the last source
   spike left (`last` is its step);
2. the source spike depresses with the Kminus of the target just before s - d (target spikes with q + d < s);
3. the resulting weight is delivered.

**Lazy evaluation.** A target spike only records its step and Kminus in the history of the target. The history is
bounded: `flush` applies item 1 to all synapses for all target spikes that no source spike in transit can precede
(q + d <= now - d), after which they can be dropped. Item 1 is applied in the order of time in any case, so flushing
earlier or later gives the same bits, and each worker may flush at any time.

**Frozen tables** record spikes but do not change weights. A table is flushed before it is frozen or unfrozen, so that
the effect does not depend on lazy evaluation.

Kplus, `last` and the rest belong to a *segment* (source, delay); every worker with a part of the segment computes the
same. The decay factors exp(-n dt / tau) come from a table of three times 256 numbers, so no exponential is computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.compiled import compiled_on_demand, inner_function
from neuraxis.compiled.atomics import cycles
from neuraxis.engine.arithmetic import power_of_positive
from neuraxis.engine.codegen import BLOCK
from neuraxis.engine.memory import array_of, call, f32, i32, i64, u32
from neuraxis.engine.tables import (
    CONTROL,
    DECAY_CELLS,
    PARAMETERS,
    PLAIN,
    PLASTIC_TABLE,
    REWARD,
    SHORT_TERM,
    STDP_BOUNDED,
)

__all__ = [
    "deliver_plastic",
    "flush_tables",
    "learn",
    "record_post_spikes",
    "update_full_flags",
]

_controls_at, _tables_at, _parameters_at = map(array_of, (CONTROL, PLASTIC_TABLE, PARAMETERS))

_f = np.float32
_ZERO, _ONE, _TINY = _f(0.0), _f(1.0), _f(1e-30)

# Unsigned indices and powers of two make the look-ups for each synapse faster.
_CELLS, _DIGIT, _DIGIT_BITS = (
    np.uint64(DECAY_CELLS),
    np.uint64(DECAY_CELLS - 1),
    np.uint64(DECAY_CELLS.bit_length() - 1),
)
_IN_BLOCK, _BLOCK_BITS = np.uint64(BLOCK - 1), np.uint64(BLOCK.bit_length() - 1)


@inner_function
def decayed(value: Any, table: Any, steps: Any) -> Any:
    """Return `value` after `steps` steps; the factor is a product of one number for each digit of the steps."""
    n = np.uint64(steps)
    low = table[n & _DIGIT] * table[_CELLS + ((n >> _DIGIT_BITS) & _DIGIT)]
    if n < _CELLS * _CELLS:
        return value * low
    return value * (low * table[_CELLS + _CELLS + min(n >> (_DIGIT_BITS + _DIGIT_BITS), _DIGIT)])


@inner_function
def _raised(x: Any, mu: Any) -> Any:
    """Return x^mu, with the two common cases free of rounding."""
    if mu == _ZERO:
        return _ONE
    if mu == _ONE:
        return x
    return power_of_positive(x, mu)


@inner_function
def _potentiated(kind: Any, w: Any, k: Any, p: Any) -> Any:
    w_max = p.w_max
    if kind == STDP_BOUNDED:
        x = w / w_max
        x = x + p.rate_plus * _raised(_ONE - x, p.mu_plus) * k
        return min(x, _ONE) * w_max
    return min(w + p.rate_plus * _raised(w, p.mu_plus) * k, w_max)


@inner_function
def _depressed(kind: Any, w: Any, k: Any, p: Any) -> Any:
    if kind == STDP_BOUNDED:
        w_max = p.w_max
        x = w / w_max
        x = x - p.rate_minus * _raised(x, p.mu_minus) * k
        return max(x, _ZERO) * w_max
    return max(w - p.rate_minus * w * k, _ZERO)


@inner_function
def _spikes_that_arrived(k: Any, delay: Any, until: Any, count: Any, steps: Any, capacity: Any) -> Any:
    """Return m such that the spikes 0 to m - 1 of target k have reached the synapse by step `until`."""
    base = k * np.uint64(capacity)
    mask = np.uint64(capacity - 1)
    m = np.int64(count[k])
    oldest = max(0, m - capacity)
    while m > oldest and steps[base + (np.uint64(m - 1) & mask)] + delay > until:
        m -= 1
    return m


@inner_function
def _after_post_spikes(
    kind: Any, value: Any, k: Any, m: Any, delay: Any, after: Any, last: Any, trace: Any, p: Any, decay: Any,
    count: Any, steps: Any, capacity: Any,
) -> Any:  # fmt: skip
    """Return `value` (weight or eligibility) after the spikes q < m of target k that arrived after step `after`."""
    base = k * np.uint64(capacity)
    mask = np.uint64(capacity - 1)
    oldest = max(0, np.int64(count[k]) - capacity)
    first = m
    while first > oldest and steps[base + (np.uint64(first - 1) & mask)] + delay > after:
        first -= 1
    for i in range(first, m):
        trace_then = decayed(trace, decay, steps[base + (np.uint64(i) & mask)] + delay - last)
        if kind == REWARD:
            value = value + p.rate_plus * trace_then
        else:
            value = _potentiated(kind, value, trace_then, p)
    return value


@inner_function
def _post_trace(k: Any, m: Any, before: Any, decay: Any, count: Any, steps: Any, traces: Any, capacity: Any) -> Any:
    """Return Kminus of target k at step `before`, from its first m spikes that are strictly earlier."""
    base = k * np.uint64(capacity)
    mask = np.uint64(capacity - 1)
    oldest = max(0, np.int64(count[k]) - capacity)
    if m > oldest and steps[base + (np.uint64(m - 1) & mask)] >= before:
        m -= 1
    if m <= oldest:
        return _ZERO
    place = base + (np.uint64(m - 1) & mask)
    return decayed(traces[place], decay, before - steps[place])


@inner_function
def _deliver_segment(table: Any, source: Any, c: Any, delay: Any, now: Any) -> Any:
    """Deliver a spike of `source` (its row) to the targets of delay class c; return the number of synapses."""
    kind = table.kind
    segments = table.rows * table.classes
    s = source * table.classes + c
    index = u32(table.index, segments + 2)
    start, end = np.uint64(index[s]), np.uint64(index[s + 1])
    p = _parameters_at(table.parameters, 1)[0]
    targets = u32(table.targets, table.synapses)
    weights = f32(table.weights, table.synapses)
    stride = np.uint64(table.accumulator_stride)
    accumulators, sums = i32(table.accumulators, 1 << 40), i64(table.accumulators, 1 << 40)
    wide_sums = table.wide_sums != 0
    inverse_lsb = p.inverse_lsb
    if kind == PLAIN or kind == SHORT_TERM:
        if kind == SHORT_TERM:
            inverse_lsb = inverse_lsb * _release(table, s, now - delay, segments, p)
        for j in range(start, end):
            k = np.uint64(targets[j])
            place = (k >> _BLOCK_BITS) * stride + (k & _IN_BLOCK)
            if wide_sums:
                sums[place] += np.int64(np.rint(weights[j] * inverse_lsb))
            else:
                accumulators[place] += np.int32(np.rint(weights[j] * inverse_lsb))
        return np.int64(end - start)

    emitted = now - delay
    last_steps = i32(table.last, segments)
    applied = i32(table.applied, segments)
    traces = f32(table.trace, segments)
    decay_plus = f32(table.decay_plus, 3 * DECAY_CELLS)
    decay_minus = f32(table.decay_minus, 3 * DECAY_CELLS)
    capacity = table.post_capacity
    post_count = i32(table.post_count, table.post_n)
    post_steps = i32(table.post_steps, table.post_n * capacity)
    post_traces = f32(table.post_traces, table.post_n * capacity)
    eligibilities = f32(table.eligibilities, table.synapses)
    last, trace, after = last_steps[s], traces[s], applied[s]
    frozen = table.frozen != 0
    for j in range(start, end):
        k = np.uint64(targets[j])
        place = (k >> _BLOCK_BITS) * stride + (k & _IN_BLOCK)
        if frozen:
            if wide_sums:
                sums[place] += np.int64(np.rint(weights[j] * inverse_lsb))
            else:
                accumulators[place] += np.int32(np.rint(weights[j] * inverse_lsb))
            continue
        value = eligibilities[j] if kind == REWARD else weights[j]
        m = _spikes_that_arrived(k, delay, emitted, post_count, post_steps, capacity)
        value = _after_post_spikes(
            kind, value, k, m, delay, after, last, trace, p, decay_plus, post_count, post_steps, capacity
        )
        post = _post_trace(k, m, emitted - delay, decay_minus, post_count, post_steps, post_traces, capacity)
        if kind == REWARD:
            eligibilities[j] = value - p.rate_minus * post
        else:
            weights[j] = _depressed(kind, value, post, p)
        if wide_sums:
            sums[place] += np.int64(np.rint(weights[j] * inverse_lsb))
        else:
            accumulators[place] += np.int32(np.rint(weights[j] * inverse_lsb))
    traces[s] = decayed(trace, decay_plus, emitted - last) + _ONE
    last_steps[s] = emitted
    applied[s] = emitted
    return np.int64(end - start)


@inner_function
def _release(table: Any, s: Any, emitted: Any, segments: Any, p: Any) -> Any:
    """Update short-term plasticity at a source spike; return the fraction of the weight that is transmitted."""
    last_steps = i32(table.last, segments)
    utilisation = f32(table.trace, segments)
    resource = f32(table.resource, segments)
    last = last_steps[s]
    u, x = utilisation[s], resource[s]
    if last > 0:  # not the first spike
        recovery = decayed(_ONE, f32(table.decay_plus, 3 * DECAY_CELLS), emitted - last)
        facilitation = decayed(_ONE, f32(table.decay_facilitation, 3 * DECAY_CELLS), emitted - last)
        x = _ONE + (x - x * u - _ONE) * recovery
        u = p.u + u * (_ONE - p.u) * facilitation
    utilisation[s], resource[s] = u, x
    last_steps[s] = emitted
    return u * x


@inner_function
def _record_post_spike(table: Any, target: Any, step: Any) -> None:
    """Record a spike of neuron `target` of the target slice in this step."""
    if table.scale_every > 0:
        i32(table.scale_count, table.post_n)[target] += 1
    if table.kind == PLAIN or table.kind == SHORT_TERM:
        return
    capacity = table.post_capacity
    mask = capacity - 1
    count = i32(table.post_count, table.post_n)
    steps = i32(table.post_steps, table.post_n * capacity)
    traces = f32(table.post_traces, table.post_n * capacity)
    n = np.int64(count[target])
    base = target * capacity
    trace = _ONE
    if n > 0:
        place = base + ((n - 1) & mask)
        trace = decayed(traces[place], f32(table.decay_minus, 3 * DECAY_CELLS), step - steps[place]) + _ONE
    steps[base + (n & mask)] = step
    traces[base + (n & mask)] = trace
    count[target] = n + 1
    if _is_history_full(table, n + 1, base, steps, capacity):
        table.full = 1


@inner_function
def _is_history_full(table: Any, n: Any, base: Any, steps: Any, capacity: Any) -> Any:
    """Return True if the history of a target with n spikes must be flushed or grow before two more spikes.

    A further spike overwrites the oldest entry, which must have been applied everywhere and must not be the one that
    Kminus is still read from. Both hold if the entry after it is old enough.
    """
    if n < capacity - 1:
        return False
    longest = i64(table.delays, table.classes)[table.classes - 1]
    second = steps[base + ((n + 2) & (capacity - 1))] if n + 2 >= capacity else 0
    return second + 2 * longest > table.flushed


@inner_function
def _update_full_flag(table: Any) -> None:
    """Set `full` to 1 if the history of a target is full."""
    table.full = 0
    if table.kind == PLAIN or table.kind == SHORT_TERM:
        return
    capacity = table.post_capacity
    count = i32(table.post_count, table.post_n)
    steps = i32(table.post_steps, table.post_n * capacity)
    for k in range(table.post_n):
        if _is_history_full(table, np.int64(count[k]), k * capacity, steps, capacity):
            table.full = 1


@inner_function
def _flush(table: Any, now: Any) -> None:
    """Apply all target spikes that can be applied after step `now` to all synapses."""
    table.flushed = now
    _update_full_flag(table)
    kind = table.kind
    if kind == PLAIN or kind == SHORT_TERM:
        return
    classes = table.classes
    segments = table.rows * classes
    index = u32(table.index, segments + 2)
    delays = i64(table.delays, classes)
    p = _parameters_at(table.parameters, 1)[0]
    targets = u32(table.targets, table.synapses)
    weights = f32(table.weights, table.synapses)
    eligibilities = f32(table.eligibilities, table.synapses)
    last_steps = i32(table.last, segments)
    applied = i32(table.applied, segments)
    traces = f32(table.trace, segments)
    decay_plus = f32(table.decay_plus, 3 * DECAY_CELLS)
    capacity = table.post_capacity
    post_count = i32(table.post_count, table.post_n)
    post_steps = i32(table.post_steps, table.post_n * capacity)
    for s in range(segments):
        delay = delays[s % classes]
        until = now - delay
        if until <= applied[s]:
            continue
        trace = traces[s]
        if trace > _ZERO and table.frozen == 0:  # the source has spiked
            already = applied[s] - delay
            for j in range(np.uint64(index[s]), np.uint64(index[s + 1])):
                k = np.uint64(targets[j])
                # Most targets have not spiked since then.
                newest = (np.uint64(post_count[k]) - np.uint64(1)) & np.uint64(capacity - 1)
                if post_steps[k * np.uint64(capacity) + newest] <= already:
                    continue
                value = eligibilities[j] if kind == REWARD else weights[j]
                m = _spikes_that_arrived(k, delay, until, post_count, post_steps, capacity)
                value = _after_post_spikes(
                    kind, value, k, m, delay, applied[s], last_steps[s], trace, p, decay_plus, post_count, post_steps,
                    capacity,
                )  # fmt: skip
                if kind == REWARD:
                    eligibilities[j] = value
                else:
                    weights[j] = value
        applied[s] = until


@inner_function
def _reward(table: Any, level: Any) -> None:
    """Apply the reward to all weights, after a flush: w += level * eligibility; then the eligibility decays."""
    p = _parameters_at(table.parameters, 1)[0]
    weights = f32(table.weights, table.synapses)
    eligibilities = f32(table.eligibilities, table.synapses)
    low, high, decay = p.w_min, p.w_max, p.eligibility_decay
    forget = p.forget
    if table.frozen:
        level, forget = _ZERO, _ONE
    if forget < _ONE:
        for j in range(table.synapses):
            weights[j] = low + (weights[j] - low) * forget
    for j in range(table.synapses):
        weights[j] = min(max(weights[j] + level * eligibilities[j], low), high)
        left = eligibilities[j] * decay
        eligibilities[j] = _ZERO if abs(left) < _TINY else left


@inner_function
def _scale_weights(table: Any) -> None:
    """Scale all weights, after a flush: those onto a target that spiked too little grow, and vice versa."""
    p = _parameters_at(table.parameters, 1)[0]
    weights = f32(table.weights, table.synapses)
    targets = u32(table.targets, table.synapses)
    count = i32(table.scale_count, table.post_n)
    strength, wanted = p.scale_strength, p.scale_target
    low, high = p.scale_w_min, p.scale_w_max
    for j in range(0 if table.frozen else table.synapses):
        factor = _ONE + strength * ((wanted - _f(count[np.int64(targets[j])])) / wanted)
        weights[j] = min(max(weights[j] * factor, low), high)
    for k in range(table.post_n):
        count[k] = 0


@compiled_on_demand
def deliver_plastic(control_at: int, table_at: int, t: int) -> None:
    """Deliver the spikes that arrive at plastic synapses in step t, which change these."""
    control, table = _controls_at(control_at, 1)[0], _tables_at(table_at, 1)[0]
    populations, workers = control.populations, control.workers
    p = table.pre
    first_id = i64(control.first_ids, populations + 1)[p]
    first = i64(control.history_first, workers)
    delays = i64(table.delays, table.classes)
    for c in range(table.classes):
        s = t - delays[c]
        if s < 1:
            break
        slot = s & (control.slots - 1)
        for w in range(workers):
            offsets = i32(control.history_offsets + (slot * workers + w) * (populations + 1) * 4, populations + 1)
            ids = i32(control.history_ids + (slot * control.neurons + first[w]) * 4, control.neurons)
            for i in range(np.int64(offsets[p]), np.int64(offsets[p + 1])):
                control.events += _deliver_segment(table, np.int64(ids[i]) - first_id, c, delays[c], t)


@compiled_on_demand
def record_post_spikes(table_at: int, ids_at: int, n: int, first_id: int, t: int) -> None:
    """Record the spikes of neurons of the target slice in step t."""
    table, ids = _tables_at(table_at, 1)[0], i32(ids_at, n)
    for k in range(n):
        _record_post_spike(table, np.int64(ids[k]) - first_id, t)


@compiled_on_demand
def learn(control_at: int, table_at: int, t: int) -> None:
    """Apply the periodic changes of all weights of a table that are due in step t."""
    control, table = _controls_at(control_at, 1)[0], _tables_at(table_at, 1)[0]
    rewarded = table.every > 0 and t % table.every == 0
    scaled = table.scale_every > 0 and t % table.scale_every == 0
    if not (rewarded or scaled):
        return
    begun = cycles()
    call(control.flush_tables, table_at, 1, t)
    if rewarded:
        _reward(table, f32(table.level, 1)[0])
    if scaled:
        _scale_weights(table)
    table.learn_ticks += cycles() - begun


@compiled_on_demand
def update_full_flags(tables_at: int, count: int) -> None:
    """Update `full` of every table, after histories were replaced."""
    tables = _tables_at(tables_at, count)
    for i in range(count):
        _update_full_flag(tables[i])


@compiled_on_demand
def flush_tables(tables_at: int, count: int, now: int) -> None:
    """Bring every plastic weight up to date, as far as step `now` allows."""
    tables = _tables_at(tables_at, count)
    for i in range(count):
        _flush(tables[i], now)
