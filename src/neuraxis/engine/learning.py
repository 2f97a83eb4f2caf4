"""Kernels of plastic synapses.

**When things happen.** The whole delay d of a synapse counts as dendritic, as in NEST: a spike that the source emits at
step s reaches the synapse at s and the soma at s + d, and a spike of the target at q comes back to the synapse
at q + d. Everything about a source's spike is done in one go when it arrives at the soma, in step s + d:

1. each target spike q with last < q + d <= s facilitates, in the order of time, with Kplus as the source's last spike
   left it (`last` is that spike's step);
2. the source's spike depresses with the target's Kminus just before s - d (target spikes with q + d < s);
3. the weight that results is what is delivered.

**Why it can be lazy.** A target's spike only *adds work for later*: nothing is done at it but to note its step
and Kminus. How many notes are kept is bounded: `flush` applies step 1 to all synapses for all spikes that no source
spike still under way can come before (q + d <= now - d), after which they may be forgotten. Since step 1 is done in the
order of time in any case, flushing earlier or later gives the same bits; each worker may flush when it likes.

**Frozen** tables note what happens and change nothing. Whoever freezes a table, or lets it learn again, flushes it
first: then it does not depend on laziness which target spikes counted.

Kplus, `last` and the rest belong to a *segment* (source, delay): every worker that has a part of the segment
computes the same. The decay factors e^(-n dt / tau) come from a table of three times 256 numbers, so no exponential is
computed here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from neuraxis.compiled import compiled
from neuraxis.engine.arithmetic import power
from neuraxis.engine.generated import BLOCK
from neuraxis.engine.memory import f32, i32, i64, u32
from neuraxis.engine.plan import (
    DECAY_CELLS,
    F_ELIGIBILITY_DECAY,
    F_FORGET,
    F_INVERSE_LSB,
    F_MU_MINUS,
    F_MU_PLUS,
    F_RATE_MINUS,
    F_RATE_PLUS,
    F_SCALE_STRENGTH,
    F_SCALE_TARGET,
    F_SCALE_W_MAX,
    F_SCALE_W_MIN,
    F_U,
    F_W_MAX,
    F_W_MIN,
    F_WORDS,
    L_ACCUMULATOR_STRIDE,
    L_ACCUMULATORS,
    L_APPLIED,
    L_CLASSES,
    L_DECAY_FACILITATION,
    L_DECAY_MINUS,
    L_DECAY_PLUS,
    L_DELAYS,
    L_ELIGIBILITIES,
    L_FLUSHED,
    L_FROZEN,
    L_FULL,
    L_INDEX,
    L_KIND,
    L_LAST,
    L_PARAMETERS,
    L_POST_CAPACITY,
    L_POST_COUNT,
    L_POST_N,
    L_POST_STEPS,
    L_POST_TRACES,
    L_RESOURCE,
    L_ROWS,
    L_SCALE_COUNT,
    L_SCALE_EVERY,
    L_SYNAPSES,
    L_TARGETS,
    L_TRACE,
    L_WEIGHTS,
    PLAIN,
    REWARD,
    SHORT_TERM,
    STDP_BOUNDED,
)

__all__ = ["deliver_segment", "flush", "flush_tables", "look_for_room_in", "note_post_spike", "reward", "scale_weights"]

_f = np.float32
_ZERO, _ONE, _TINY = _f(0.0), _f(1.0), _f(1e-30)

# Unsigned places and powers of two: what is looked up for each synapse is worth it.
_CELLS, _DIGIT, _DIGIT_BITS = (
    np.uint64(DECAY_CELLS),
    np.uint64(DECAY_CELLS - 1),
    np.uint64(DECAY_CELLS.bit_length() - 1),
)
_IN_BLOCK, _BLOCK_BITS = np.uint64(BLOCK - 1), np.uint64(BLOCK.bit_length() - 1)


@njit
def decayed(value: Any, table: Any, steps: Any) -> Any:
    """`value` after `steps` steps: the factor is a product of one number for each digit of the steps."""
    n = np.uint64(steps)
    low = table[n & _DIGIT] * table[_CELLS + ((n >> _DIGIT_BITS) & _DIGIT)]
    if n < _CELLS * _CELLS:
        return value * low
    return value * (low * table[_CELLS + _CELLS + min(n >> (_DIGIT_BITS + _DIGIT_BITS), _DIGIT)])


@njit
def _raised(x: Any, mu: Any) -> Any:
    """x^mu, with the two common cases free of rounding."""
    if mu == _ZERO:
        return _ONE
    if mu == _ONE:
        return x
    return power(x, mu)


@njit
def _facilitated(kind: Any, w: Any, k: Any, p: Any) -> Any:
    w_max = p[F_W_MAX]
    if kind == STDP_BOUNDED:
        x = w / w_max
        x = x + p[F_RATE_PLUS] * _raised(_ONE - x, p[F_MU_PLUS]) * k
        return min(x, _ONE) * w_max
    return min(w + p[F_RATE_PLUS] * _raised(w, p[F_MU_PLUS]) * k, w_max)


@njit
def _depressed(kind: Any, w: Any, k: Any, p: Any) -> Any:
    if kind == STDP_BOUNDED:
        w_max = p[F_W_MAX]
        x = w / w_max
        x = x - p[F_RATE_MINUS] * _raised(x, p[F_MU_MINUS]) * k
        return max(x, _ZERO) * w_max
    return max(w - p[F_RATE_MINUS] * w * k, _ZERO)


@njit
def _spikes_that_arrived(k: Any, delay: Any, until: Any, count: Any, steps: Any, capacity: Any) -> Any:
    """How many of target k's spikes have come back to the synapse by `until`: those up to number m - 1."""
    base = k * np.uint64(capacity)
    mask = np.uint64(capacity - 1)
    m = np.int64(count[k])
    oldest = max(0, m - capacity)
    while m > oldest and steps[base + (np.uint64(m - 1) & mask)] + delay > until:
        m -= 1
    return m


@njit
def _after_post_spikes(
    kind: Any, value: Any, k: Any, m: Any, delay: Any, after: Any, last: Any, trace: Any, p: Any, decay: Any,
    count: Any, steps: Any, capacity: Any,
) -> Any:  # fmt: skip
    """`value` (weight, or eligibility) after target k's spikes q up to number m - 1 with q + delay > after."""
    base = k * np.uint64(capacity)
    mask = np.uint64(capacity - 1)
    oldest = max(0, np.int64(count[k]) - capacity)
    first = m
    while first > oldest and steps[base + (np.uint64(first - 1) & mask)] + delay > after:
        first -= 1
    for i in range(first, m):
        trace_then = decayed(trace, decay, steps[base + (np.uint64(i) & mask)] + delay - last)
        if kind == REWARD:
            value = value + p[F_RATE_PLUS] * trace_then
        else:
            value = _facilitated(kind, value, trace_then, p)
    return value


@njit
def _post_trace(k: Any, m: Any, before: Any, decay: Any, count: Any, steps: Any, traces: Any, capacity: Any) -> Any:
    """Target k's Kminus at step `before`, of its spikes up to number m - 1 that are strictly before that."""
    base = k * np.uint64(capacity)
    mask = np.uint64(capacity - 1)
    oldest = max(0, np.int64(count[k]) - capacity)
    if m > oldest and steps[base + (np.uint64(m - 1) & mask)] >= before:
        m -= 1
    if m <= oldest:
        return _ZERO
    place = base + (np.uint64(m - 1) & mask)
    return decayed(traces[place], decay, before - steps[place])


@njit
def deliver_segment(table: Any, source: Any, c: Any, delay: Any, now: Any) -> Any:
    """A spike of `source` (its row) arrives at the targets of delay class c; how many synapses there are."""
    kind = table[L_KIND]
    segments = table[L_ROWS] * table[L_CLASSES]
    s = source * table[L_CLASSES] + c
    index = u32(table[L_INDEX], segments + 2)
    start, end = np.uint64(index[s]), np.uint64(index[s + 1])
    p = f32(table[L_PARAMETERS], F_WORDS)
    targets = u32(table[L_TARGETS], table[L_SYNAPSES])
    weights = f32(table[L_WEIGHTS], table[L_SYNAPSES])
    stride = np.uint64(table[L_ACCUMULATOR_STRIDE])
    accumulators = i32(table[L_ACCUMULATORS], 1 << 40)
    inverse_lsb = p[F_INVERSE_LSB]
    if kind == PLAIN or kind == SHORT_TERM:
        if kind == SHORT_TERM:
            inverse_lsb = inverse_lsb * _release(table, s, now - delay, segments, p)
        for j in range(start, end):
            k = np.uint64(targets[j])
            place = (k >> _BLOCK_BITS) * stride + (k & _IN_BLOCK)
            accumulators[place] += np.int32(np.rint(weights[j] * inverse_lsb))
        return np.int64(end - start)

    emitted = now - delay
    last_steps = i32(table[L_LAST], segments)
    applied = i32(table[L_APPLIED], segments)
    traces = f32(table[L_TRACE], segments)
    decay_plus = f32(table[L_DECAY_PLUS], 3 * DECAY_CELLS)
    decay_minus = f32(table[L_DECAY_MINUS], 3 * DECAY_CELLS)
    capacity = table[L_POST_CAPACITY]
    post_count = i32(table[L_POST_COUNT], table[L_POST_N])
    post_steps = i32(table[L_POST_STEPS], table[L_POST_N] * capacity)
    post_traces = f32(table[L_POST_TRACES], table[L_POST_N] * capacity)
    eligibilities = f32(table[L_ELIGIBILITIES], table[L_SYNAPSES])
    last, trace, after = last_steps[s], traces[s], applied[s]
    frozen = table[L_FROZEN] != 0
    for j in range(start, end):
        k = np.uint64(targets[j])
        place = (k >> _BLOCK_BITS) * stride + (k & _IN_BLOCK)
        if frozen:
            accumulators[place] += np.int32(np.rint(weights[j] * inverse_lsb))
            continue
        value = eligibilities[j] if kind == REWARD else weights[j]
        m = _spikes_that_arrived(k, delay, emitted, post_count, post_steps, capacity)
        value = _after_post_spikes(
            kind, value, k, m, delay, after, last, trace, p, decay_plus, post_count, post_steps, capacity
        )
        post = _post_trace(k, m, emitted - delay, decay_minus, post_count, post_steps, post_traces, capacity)
        if kind == REWARD:
            eligibilities[j] = value - p[F_RATE_MINUS] * post
        else:
            weights[j] = _depressed(kind, value, post, p)
        accumulators[place] += np.int32(np.rint(weights[j] * inverse_lsb))
    traces[s] = decayed(trace, decay_plus, emitted - last) + _ONE
    last_steps[s] = emitted
    applied[s] = emitted
    return np.int64(end - start)


@njit
def _release(table: Any, s: Any, emitted: Any, segments: Any, p: Any) -> Any:
    """Short-term plasticity at a source's spike: the share of the weight that is transmitted (Tsodyks and Markram)."""
    last_steps = i32(table[L_LAST], segments)
    utilisation = f32(table[L_TRACE], segments)
    resource = f32(table[L_RESOURCE], segments)
    last = last_steps[s]
    u, x = utilisation[s], resource[s]
    if last > 0:  # not the first spike
        recovery = decayed(_ONE, f32(table[L_DECAY_PLUS], 3 * DECAY_CELLS), emitted - last)
        facilitation = decayed(_ONE, f32(table[L_DECAY_FACILITATION], 3 * DECAY_CELLS), emitted - last)
        x = _ONE + (x - x * u - _ONE) * recovery
        u = p[F_U] + u * (_ONE - p[F_U]) * facilitation
    utilisation[s], resource[s] = u, x
    last_steps[s] = emitted
    return u * x


@njit
def note_post_spike(table: Any, target: Any, step: Any) -> None:
    """The neuron `target` of the post slice spikes in this step."""
    if table[L_SCALE_EVERY] > 0:
        i32(table[L_SCALE_COUNT], table[L_POST_N])[target] += 1
    if table[L_KIND] == PLAIN or table[L_KIND] == SHORT_TERM:
        return
    capacity = table[L_POST_CAPACITY]
    mask = capacity - 1
    count = i32(table[L_POST_COUNT], table[L_POST_N])
    steps = i32(table[L_POST_STEPS], table[L_POST_N] * capacity)
    traces = f32(table[L_POST_TRACES], table[L_POST_N] * capacity)
    n = np.int64(count[target])
    base = target * capacity
    trace = _ONE
    if n > 0:
        place = base + ((n - 1) & mask)
        trace = decayed(traces[place], f32(table[L_DECAY_MINUS], 3 * DECAY_CELLS), step - steps[place]) + _ONE
    steps[base + (n & mask)] = step
    traces[base + (n & mask)] = trace
    count[target] = n + 1
    if _has_no_room(table, n + 1, base, steps, capacity):
        table[L_FULL] = 1


@njit
def _has_no_room(table: Any, n: Any, base: Any, steps: Any, capacity: Any) -> Any:
    """Whether a target with n spikes so far must not spike twice more before its notes are flushed or get more room.

    A further spike takes the place of the oldest note. Has that been applied everywhere, and is it not the one that
    Kminus is still read from? The note after it must be old enough for both.
    """
    if n < capacity - 1:
        return False
    longest = i64(table[L_DELAYS], table[L_CLASSES])[table[L_CLASSES] - 1]
    second = steps[base + ((n + 2) & (capacity - 1))] if n + 2 >= capacity else 0
    return second + 2 * longest > table[L_FLUSHED]


@njit
def look_for_room(table: Any) -> None:
    """Set L_FULL anew."""
    table[L_FULL] = 0
    if table[L_KIND] == PLAIN or table[L_KIND] == SHORT_TERM:
        return
    capacity = table[L_POST_CAPACITY]
    count = i32(table[L_POST_COUNT], table[L_POST_N])
    steps = i32(table[L_POST_STEPS], table[L_POST_N] * capacity)
    for k in range(table[L_POST_N]):
        if _has_no_room(table, np.int64(count[k]), k * capacity, steps, capacity):
            table[L_FULL] = 1


@njit
def flush(table: Any, now: Any) -> None:
    """Apply to all synapses every target spike that can be applied after step `now`."""
    table[L_FLUSHED] = now
    look_for_room(table)
    kind = table[L_KIND]
    if kind == PLAIN or kind == SHORT_TERM:
        return
    classes = table[L_CLASSES]
    segments = table[L_ROWS] * classes
    index = u32(table[L_INDEX], segments + 2)
    delays = i64(table[L_DELAYS], classes)
    p = f32(table[L_PARAMETERS], F_WORDS)
    targets = u32(table[L_TARGETS], table[L_SYNAPSES])
    weights = f32(table[L_WEIGHTS], table[L_SYNAPSES])
    eligibilities = f32(table[L_ELIGIBILITIES], table[L_SYNAPSES])
    last_steps = i32(table[L_LAST], segments)
    applied = i32(table[L_APPLIED], segments)
    traces = f32(table[L_TRACE], segments)
    decay_plus = f32(table[L_DECAY_PLUS], 3 * DECAY_CELLS)
    capacity = table[L_POST_CAPACITY]
    post_count = i32(table[L_POST_COUNT], table[L_POST_N])
    post_steps = i32(table[L_POST_STEPS], table[L_POST_N] * capacity)
    for s in range(segments):
        delay = delays[s % classes]
        until = now - delay
        if until <= applied[s]:
            continue
        trace = traces[s]
        if trace > _ZERO and table[L_FROZEN] == 0:  # the source has spiked
            already = applied[s] - delay
            for j in range(np.uint64(index[s]), np.uint64(index[s + 1])):
                k = np.uint64(targets[j])
                # Most targets have not spiked since the last time: nothing to look up for these.
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


@njit
def reward(table: Any, now: Any, level: Any) -> None:
    """The modulated change of all weights: w += level * eligibility, which then decays."""
    flush(table, now)
    p = f32(table[L_PARAMETERS], F_WORDS)
    weights = f32(table[L_WEIGHTS], table[L_SYNAPSES])
    eligibilities = f32(table[L_ELIGIBILITIES], table[L_SYNAPSES])
    low, high, decay = p[F_W_MIN], p[F_W_MAX], p[F_ELIGIBILITY_DECAY]
    forget = p[F_FORGET]
    if table[L_FROZEN]:
        level, forget = _ZERO, _ONE
    if forget < _ONE:
        for j in range(table[L_SYNAPSES]):
            weights[j] = low + (weights[j] - low) * forget
    for j in range(table[L_SYNAPSES]):
        weights[j] = min(max(weights[j] + level * eligibilities[j], low), high)
        left = eligibilities[j] * decay
        eligibilities[j] = _ZERO if abs(left) < _TINY else left


@njit
def scale_weights(table: Any, now: Any) -> None:
    """The homeostatic change: the weights onto a target that spiked too little grow, and the other way round."""
    flush(table, now)
    p = f32(table[L_PARAMETERS], F_WORDS)
    weights = f32(table[L_WEIGHTS], table[L_SYNAPSES])
    targets = u32(table[L_TARGETS], table[L_SYNAPSES])
    count = i32(table[L_SCALE_COUNT], table[L_POST_N])
    strength, wanted = p[F_SCALE_STRENGTH], p[F_SCALE_TARGET]
    low, high = p[F_SCALE_W_MIN], p[F_SCALE_W_MAX]
    for j in range(0 if table[L_FROZEN] else table[L_SYNAPSES]):
        factor = _ONE + strength * ((wanted - _f(count[np.int64(targets[j])])) / wanted)
        weights[j] = min(max(weights[j] * factor, low), high)
    for k in range(table[L_POST_N]):
        count[k] = 0


@compiled
def look_for_room_in(plastic: Any) -> None:
    """Set L_FULL of every table anew, after its history was replaced."""
    for i in range(plastic.shape[0]):
        look_for_room(plastic[i])


@compiled
def flush_tables(plastic: Any, now: int) -> None:
    """Bring every plastic weight up to date, as far as step `now` allows."""
    for i in range(plastic.shape[0]):
        flush(plastic[i], now)
