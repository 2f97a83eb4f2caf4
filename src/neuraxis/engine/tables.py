"""Layout of the tables that describe a shard to the CPU kernels: a structured dtype for the rows of each.

A field is a number or the address of an array, whose type and shape a comment gives. `engine/cpu/shard.py` fills the
tables and keeps the arrays alive, `engine/cpu/advance.py` reads them.
"""

from __future__ import annotations

from typing import Final

import numpy as np

_NUMBER = _ADDRESS = np.int64
_FLOAT = np.float32

# The shard: one record.
CONTROL: Final = np.dtype(
    [
        ("step", _NUMBER),  # the last completed step
        ("workers", _NUMBER),
        ("me", _NUMBER),
        ("slots", _NUMBER),  # slots of the spike history: a power of two above the longest delay
        ("populations", _NUMBER),
        ("neurons", _NUMBER),  # of the whole network
        ("first_ids", _ADDRESS),  # int64[populations + 1]
        ("history_offsets", _ADDRESS),  # int32[slots, workers, populations + 1]: within the worker's ids
        ("history_ids", _ADDRESS),  # int32[slots, neurons]: ordered by worker
        ("history_first", _ADDRESS),  # int64[workers]: start of a worker's ids in a slot
        ("buffers", _ADDRESS),  # int64[workers]: addresses of the spike buffers
        ("buffer_slots", _NUMBER),
        ("buffer_strides", _ADDRESS),  # int64[workers]: bytes of a slot of each buffer
        ("done", _ADDRESS),  # int64[workers]: addresses of the last step that each worker published
        ("lags", _ADDRESS),  # int64[workers]: step t needs the spikes of a worker up to step t - lag
        ("flags", _ADDRESS),  # uint8[BLOCK + 8]
        ("wide", _NUMBER),  # 1: a network in float64: 64-bit blocks, accumulators, constants and samples
        ("poisson_counts", _ADDRESS),  # int32[BLOCK], zero between uses; of networks in float64
        ("record", _ADDRESS),  # uint64[record room]: step << 32 | id
        ("record_room", _NUMBER),
        ("recorded", _NUMBER),
        ("largest_step_record", _NUMBER),  # most spikes that one step can record
        ("samples", _ADDRESS),  # uint32[sample room]: a word, or two, for each sample
        ("sample_room", _NUMBER),
        ("sampled", _NUMBER),
        ("largest_step_sample", _NUMBER),
        ("spikes", _ADDRESS),  # int64[populations]: spikes of this shard's neurons so far
        ("events", _NUMBER),  # synaptic events so far
        ("hash", _NUMBER),  # sum of the hashes of the spikes so far
        ("waited", _NUMBER),  # clock ticks spent waiting for other workers
        ("collected", _NUMBER),  # ... collecting spikes
        ("delivered", _NUMBER),  # ... delivering them
        ("updated", _NUMBER),  # ... updating neurons
        ("exchanged", _NUMBER),  # ... collecting spikes of other workers (part of the above)
        ("received", _NUMBER),  # spikes received from other workers
        ("signals", _ADDRESS),  # float32[signals]: values of neuromodulators, then rhythms
        ("rhythms", _ADDRESS),  # RHYTHM[rhythms]
        ("rhythm_count", _NUMBER),
        ("cosines", _ADDRESS),  # float32[CELLS]
        (
            "bindings",
            _ADDRESS,
        ),  # int64[bindings, 2]: address of a model constant that follows a signal, index of the signal
        ("binding_count", _NUMBER),
        ("checks", _NUMBER),  # 1 if states are checked for infinity and NaN
        ("check_step", _NUMBER),  # one more step with a check, the last of a run; 0: none
        ("unstable_step", _NUMBER),  # step of the first check of a run that found one; 0: none
        ("unstable_part", _NUMBER),  # slice of the first such neuron
        ("unstable_neuron", _NUMBER),  # the neuron, within its slice
        ("unstable_state", _NUMBER),  # its first such state
        ("unstable_bits", _NUMBER),  # bits of the state
        ("ring", _ADDRESS),  # float32[output slots, columns]: recent outputs, for continuous connections
        ("output_slots", _NUMBER),  # a power of two above the longest lag; 0: no continuous connections
        ("columns", _NUMBER),
        ("rate_tables", _ADDRESS),  # RATE_TABLE[rate_tables_count]
        ("rate_tables_count", _NUMBER),
        ("outputs", _ADDRESS),  # OUTPUT[outputs_count]
        ("outputs_count", _NUMBER),
        ("output_copies", _ADDRESS),  # OUTPUT_COPY[output_copies_count]
        ("output_copies_count", _NUMBER),
        # Kernels that only some networks need: addresses of functions, 0 in the others.
        *((name, _ADDRESS) for name in (
            "collect_outputs", "gather_inputs", "publish_outputs",  # continuous connections
            "deliver_plastic", "record_post_spikes", "learn", "flush_tables",  # plastic synapses
            "deliver_wide", "add_counts", "check_wide",  # float64
            "set_currents",  # injected currents that differ between neurons
        )),
    ]
)  # fmt: skip

UNSTABLE: Final = ["unstable_step", "unstable_part", "unstable_neuron", "unstable_state", "unstable_bits"]

# A slice of a population on this shard.
SLICE: Final = np.dtype(
    [
        ("update", _ADDRESS),
        ("blocks", _ADDRESS),
        ("block_bytes", _NUMBER),
        ("n", _NUMBER),
        ("accumulators", _ADDRESS),
        ("accumulator_bytes", _NUMBER),  # between consecutive blocks
        ("first_id", _NUMBER),
        ("population", _NUMBER),
        ("constants", _ADDRESS),
        ("stream_bytes", _NUMBER),  # offset of the random stream in a block
        ("poisson_first", _NUMBER),
        ("poisson_end", _NUMBER),
        ("pulse_first", _NUMBER),
        ("pulse_end", _NUMBER),
        ("current_row", _NUMBER),  # offset in a block, or -1
        ("input", _ADDRESS),  # uint64[input count]: step << 32 | local neuron, sorted
        ("input_count", _NUMBER),
        ("input_position", _NUMBER),
        ("record", _NUMBER),  # 0: record no spikes, 1: all, 2: those in the mask
        ("mask", _ADDRESS),  # uint8[n]
        ("plastic_first", _NUMBER),  # the plastic tables with targets in this slice
        ("plastic_end", _NUMBER),
        ("counts", _ADDRESS),  # int32[n]: spikes of each neuron so far
        ("silent", _NUMBER),  # 1: neurons are not updated and do not spike
        ("ticks", _NUMBER),  # clock ticks in timed steps
        ("floats", _ADDRESS),  # int64[float count]: rows of states that are floats
        ("float_count", _NUMBER),
    ]
)

# A Poisson input.
POISSON_INPUT: Final = np.dtype(
    [
        ("function", _ADDRESS),  # 0: rates differ between neurons
        ("table", _ADDRESS),  # int32 thresholds, or float64 means
        ("weight", _NUMBER),
        ("receptor_bytes", _NUMBER),
        ("start", _NUMBER),  # active in steps start < t <= stop
        ("stop", _NUMBER),
    ]
)

# An injected current.
CURRENT: Final = np.dtype(
    [
        ("start", _NUMBER),
        ("stop", _NUMBER),
        ("bits", _NUMBER),  # float32 bits of an amplitude for all neurons; in float64 the address of a float64
        ("values", _ADDRESS),  # float32[n] (float64[n]) for amplitudes that differ, else 0
    ]
)

# A table of static synapses.
STATIC_TABLE: Final = np.dtype(
    [
        ("index", _ADDRESS),  # uint32
        ("words_address", _ADDRESS),
        ("weights", _ADDRESS),  # int64[synapses]: in networks in float64 the weights, which the words lack; else 0
        ("wide", _NUMBER),
        ("classes", _NUMBER),
        ("delays", _ADDRESS),  # int64[classes]
        ("accumulators", _ADDRESS),
        ("first_rows", _ADDRESS),  # int64[populations]: row of the population's neuron 0, or -1
        ("shifts", _ADDRESS),  # int64[populations]
        ("calendar", _ADDRESS),  # uint64[slots, room]: segments to deliver, by the step in which they arrive
        ("due", _ADDRESS),  # int64[slots]: number of segments in each slot
        ("room", _NUMBER),
        ("most", _NUMBER),  # upper bound of `due`
    ]
)

# The continuous connections of one projection onto a slice, ordered by target, source and delay.
RATE_TABLE: Final = np.dtype(
    [
        ("blocks", _ADDRESS),  # of the targets
        ("block_bytes", _NUMBER),
        ("row", _NUMBER),  # offset of the input in a block
        ("n", _NUMBER),
        ("adds", _NUMBER),  # 1: an earlier table has begun the sums of this input
        ("starts", _ADDRESS),  # int64[n + 1]
        ("sources", _ADDRESS),  # uint32[synapses]: column in the ring
        ("classes", _ADDRESS),  # uint16[synapses]: index of the lag, if there are several
        ("weights", _ADDRESS),  # float32[synapses]
        ("lags", _ADDRESS),  # int64[lag count]: step t reads the outputs of step t - lag
        ("places", _ADDRESS),  # int64[lag count], scratch: position of that row in the ring
        ("lag_count", _NUMBER),
    ]
)

# A slice whose outputs are published.
OUTPUT: Final = np.dtype(
    [
        ("blocks", _ADDRESS),
        ("block_bytes", _NUMBER),
        ("row", _NUMBER),  # offset of the state in a block
        ("n", _NUMBER),
        ("place", _NUMBER),  # position in a slot of the spike buffer, in words
        ("part", _NUMBER),  # index of the slice
        ("first_id", _NUMBER),
    ]
)

# Outputs of a slice of any shard that are copied to the ring.
OUTPUT_COPY: Final = np.dtype(
    [
        ("worker", _NUMBER),
        ("population", _NUMBER),
        ("place", _NUMBER),  # position in a slot of the worker's spike buffer, in words
        ("column", _NUMBER),
        ("n", _NUMBER),
    ]
)

# A plastic projection onto a slice.
PLASTIC_TABLE: Final = np.dtype(
    [
        ("kind", _NUMBER),
        ("pre", _NUMBER),  # population
        ("rows", _NUMBER),
        ("classes", _NUMBER),
        ("delays", _ADDRESS),
        ("index", _ADDRESS),
        ("targets", _ADDRESS),
        ("weights", _ADDRESS),
        ("eligibilities", _ADDRESS),
        ("synapses", _NUMBER),
        ("accumulators", _ADDRESS),  # of the receptor, for the first block of the target slice
        ("accumulator_stride", _NUMBER),  # accumulators between consecutive blocks
        ("wide_sums", _NUMBER),  # 1: accumulators are int64
        ("parameters", _ADDRESS),  # float32
        ("last", _ADDRESS),  # int32[segments]: step of the last source spike that arrived
        ("applied", _ADDRESS),  # int32[segments]: target spikes up to this step have been applied
        ("trace", _ADDRESS),  # float32[segments]: Kplus just after the last spike, or U of short-term plasticity
        ("resource", _ADDRESS),  # float32[segments]: x of short-term plasticity
        ("decay_plus", _ADDRESS),  # float32[3, DECAY_CELLS]
        ("decay_minus", _ADDRESS),
        ("decay_facilitation", _ADDRESS),
        ("post_n", _NUMBER),
        ("post_count", _ADDRESS),  # int32[post n]: spikes of each target so far
        ("post_steps", _ADDRESS),  # int32[post n, capacity]
        ("post_traces", _ADDRESS),  # float32[post n, capacity]: Kminus just after the spike
        ("post_capacity", _NUMBER),
        ("flushed", _NUMBER),  # the last step for which all synapses were flushed
        ("every", _NUMBER),  # steps between modulated changes of the weights, or 0
        ("level", _ADDRESS),  # float32: the signal that modulates them
        ("scale_every", _NUMBER),  # steps between homeostatic changes, or 0
        ("scale_count", _ADDRESS),  # int32[post n]: spikes since the last one
        ("full", _NUMBER),  # 1: the spike history of a target is full
        ("frozen", _NUMBER),  # 1: weights do not change
        ("ticks", _NUMBER),  # clock ticks of deliveries in timed steps
        ("learn_ticks", _NUMBER),  # ... of periodic changes of all weights, in all steps
    ]
)

# Parameters of a plastic projection.
PARAMETERS: Final = np.dtype(
    [
        ("inverse_lsb", _FLOAT),
        ("rate_plus", _FLOAT),
        ("rate_minus", _FLOAT),
        ("mu_plus", _FLOAT),
        ("mu_minus", _FLOAT),
        ("w_min", _FLOAT),
        ("w_max", _FLOAT),
        ("eligibility_decay", _FLOAT),
        ("forget", _FLOAT),  # fraction of a weight that is left after an interval
        ("u", _FLOAT),
        ("scale_strength", _FLOAT),
        ("scale_target", _FLOAT),  # target spikes in an interval
        ("scale_w_min", _FLOAT),
        ("scale_w_max", _FLOAT),
    ]
)

# A neuromodulator.
MODULATOR: Final = np.dtype(
    [
        ("level", _ADDRESS),  # address of the level (float32) relative to the baseline
        ("tracked", _NUMBER),  # 1 if this shard tracks the level
        ("baseline", _NUMBER),  # bits of a float32
        ("decay", _NUMBER),  # bits of the float32 factor of one step
        ("first", _NUMBER),
        ("end", _NUMBER),
    ]
)

# Spikes of a population that change the level of a neuromodulator.
RELEASE: Final = np.dtype(
    [
        ("population", _NUMBER),  # the population whose spikes change the level
        ("delay", _NUMBER),
        ("amount", _NUMBER),  # bits of a float32
    ]
)

# A rhythm.
RHYTHM: Final = np.dtype(
    [
        ("increment", np.uint64),  # of the phase per step; a cycle is 2**64
        ("offset", np.uint64),
        ("floor", _NUMBER),  # bits of a float32
    ]
)

# A probe of a state.
STATE_PROBE: Final = np.dtype(
    [
        ("blocks", _ADDRESS),
        ("block_bytes", _NUMBER),
        ("row", _NUMBER),
        ("every", _NUMBER),
        ("ids", _ADDRESS),  # int64[count]: neurons within the slice
        ("count", _NUMBER),
    ]
)

# Kinds of plastic projections.
PLAIN, STDP_BOUNDED, STDP_POWER, REWARD, SHORT_TERM = range(5)

DECAY_CELLS: Final = 256

# States are checked in one step of every 2**CHECK_BITS. Its position among them is the top bits of a multiple of their
# number (by the golden ratio, which avoids periods that a model could share).
CHECK_BITS: Final = 4
CHECK_FACTOR: Final = 0x9E3779B1

# An output that continuous connections transmit enters the hash of a run multiplied by this.
OUTPUT_FACTOR: Final = 0xD6E8FEB86659FD93

# A float32 is infinite or NaN if its bits without the sign are at least this.
NOT_FINITE: Final = 0x7F800000
NOT_FINITE_64: Final = 0x7FF0000000000000

# The time of each part of a step is measured in one of this many steps.
TIMED_EVERY: Final = 32

# Longer measurements were interrupted and are cut.
LONGEST_TICKS: Final = 200_000

# Return values of `advance`.
DONE: Final = 0  # all steps are complete
WAITING: Final = 1  # another worker is not far enough yet
FULL: Final = 2  # recorded spikes and samples must be taken first
HISTORY_FULL: Final = 3  # a history of target spikes must grow first
CALENDAR_FULL: Final = 4  # the calendar of a table must grow first
