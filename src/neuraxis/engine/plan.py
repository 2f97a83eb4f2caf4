"""The words of the tables that describe a shard to the kernels: which column of which table holds what.

Every table is a NumPy array of int64; what is not a number of something is an address. `engine/shard.py` fills them
and keeps the arrays alive, `engine/advance.py` reads them.
"""

from __future__ import annotations

from itertools import count
from typing import Final

_next = count()

# --- plan: one row for the shard ------------------------------------------------------------------
P_STEP: Final = next(_next)  # the last step that is complete
P_WORKERS: Final = next(_next)
P_ME: Final = next(_next)
P_SLOTS: Final = next(_next)  # slots of the history of spikes: a power of two, more than the longest delay
P_POPULATIONS: Final = next(_next)
P_NEURONS: Final = next(_next)  # of the whole network
P_FIRST_IDS: Final = next(_next)  # int64[populations + 1]
P_HISTORY_OFFSETS: Final = next(_next)  # int32[slots, workers, populations + 1]: within the worker's ids
P_HISTORY_IDS: Final = next(_next)  # int32[slots, neurons]: worker by worker
P_HISTORY_FIRST: Final = next(_next)  # int64[workers]: where a worker's ids start in a slot
P_OUTBOXES: Final = next(_next)  # int64[workers]: where each worker's outbox starts
P_OUTBOX_SLOTS: Final = next(_next)
P_OUTBOX_STRIDES: Final = next(_next)  # int64[workers]: bytes of a slot of each outbox
P_DONE: Final = next(_next)  # int64[workers]: addresses of the words with the last step that a worker published
P_LAGS: Final = next(_next)  # int64[workers]: step t needs the other's spikes of step t - lag, and none that is later
P_FLAGS: Final = next(_next)  # uint8[BLOCK + 8]
P_RECORD: Final = next(_next)  # uint64[record room]: step << 32 | id
P_RECORD_ROOM: Final = next(_next)
P_RECORDED: Final = next(_next)
P_LARGEST_STEP_RECORD: Final = next(_next)  # spikes that one step can record at most
P_SAMPLES: Final = next(_next)  # float32[sample room]
P_SAMPLE_ROOM: Final = next(_next)
P_SAMPLED: Final = next(_next)
P_LARGEST_STEP_SAMPLE: Final = next(_next)
P_SPIKES: Final = next(_next)  # int64[populations]: spikes of this shard's neurons so far
P_EVENTS: Final = next(_next)  # synaptic events so far
P_HASH: Final = next(_next)  # the sum of the hashes of the spikes so far
P_WAITED: Final = next(_next)  # ticks of the processor's clock spent waiting for others
P_COLLECTED: Final = next(_next)  # ... collecting spikes
P_DELIVERED: Final = next(_next)  # ... delivering them
P_UPDATED: Final = next(_next)  # ... updating neurons
P_EXCHANGED: Final = next(_next)  # ... of collecting, for the spikes of other workers
P_RECEIVED: Final = next(_next)  # spikes that came from other workers
P_SIGNALS: Final = next(_next)  # float32[signals]: neuromodulators, then rhythms, as models see them
P_RHYTHMS: Final = next(_next)  # int64[rhythms, Y_WORDS]
P_RHYTHM_COUNT: Final = next(_next)
P_COSINES: Final = next(_next)  # float32[CELLS]
P_TIES: Final = next(_next)  # int64[ties, 2]: the address of a constant that follows a signal, and the signal
P_TIE_COUNT: Final = next(_next)
P_WORDS: Final = next(_next)

# --- slices: a row for each part of a population that lives here ----------------------------------
_next = count()
S_UPDATE: Final = next(_next)
S_BLOCKS: Final = next(_next)
S_BLOCK_BYTES: Final = next(_next)
S_N: Final = next(_next)
S_ACCUMULATORS: Final = next(_next)
S_ACCUMULATOR_BYTES: Final = next(_next)  # from one block's to the next's
S_FIRST_ID: Final = next(_next)
S_POPULATION: Final = next(_next)
S_CONSTANTS: Final = next(_next)
S_STREAM_BYTES: Final = next(_next)  # where the random stream starts in a block
S_POISSON_FIRST: Final = next(_next)
S_POISSON_END: Final = next(_next)
S_PULSE_FIRST: Final = next(_next)
S_PULSE_END: Final = next(_next)
S_CURRENT_ROW: Final = next(_next)  # bytes into a block, or -1
S_INPUT: Final = next(_next)  # uint64[input count]: step << 32 | local neuron, sorted
S_INPUT_COUNT: Final = next(_next)
S_INPUT_POSITION: Final = next(_next)
S_RECORD: Final = next(_next)  # 0: no spikes are recorded, 1: all, 2: those in the mask
S_MASK: Final = next(_next)  # uint8[n]
S_PLASTIC_FIRST: Final = next(_next)  # the tables that learn from this slice's spikes
S_PLASTIC_END: Final = next(_next)
S_COUNTS: Final = next(_next)  # int32[n]: spikes of each neuron so far
S_SILENT: Final = next(_next)  # neither updated nor heard
S_TICKS: Final = next(_next)  # of the processor's clock, in the steps that are timed
S_WORDS: Final = next(_next)

# --- Poisson inputs -------------------------------------------------------------------------------
_next = count()
I_FUNCTION: Final = next(_next)  # 0: rates differ between neurons
I_TABLE: Final = next(_next)  # int32 thresholds, or float64 means
I_WEIGHT: Final = next(_next)
I_RECEPTOR_BYTES: Final = next(_next)
I_START: Final = next(_next)  # steps start < t <= stop have input
I_STOP: Final = next(_next)
I_WORDS: Final = next(_next)

# --- pulses of current ----------------------------------------------------------------------------
_next = count()
C_START: Final = next(_next)
C_STOP: Final = next(_next)
C_BITS: Final = next(_next)  # the amplitude's float32 bits, where it is one for all
C_VALUES: Final = next(_next)  # float32[n] where it differs between neurons, else 0
C_WORDS: Final = next(_next)

# --- tables of static synapses --------------------------------------------------------------------
_next = count()
T_INDEX: Final = next(_next)  # uint32
T_WORDS_ADDRESS: Final = next(_next)
T_WIDE: Final = next(_next)
T_CLASSES: Final = next(_next)
T_DELAYS: Final = next(_next)  # int64[classes]
T_ACCUMULATORS: Final = next(_next)
T_FIRST_ROWS: Final = next(_next)  # int64[populations]: the row of the population's neuron 0, or -1
T_SHIFTS: Final = next(_next)  # int64[populations]
T_CALENDAR: Final = next(_next)  # uint64[slots, room]: segments to deliver, by the step in which they are due
T_DUE: Final = next(_next)  # int64[slots]: how many there are
T_ROOM: Final = next(_next)
T_MOST: Final = next(_next)  # no slot has more
T_WORDS: Final = next(_next)

# --- tables of plastic synapses: one for each plastic projection ----------------------------------
_next = count()
L_KIND: Final = next(_next)
L_PRE: Final = next(_next)  # population
L_ROWS: Final = next(_next)
L_CLASSES: Final = next(_next)
L_DELAYS: Final = next(_next)
L_INDEX: Final = next(_next)
L_TARGETS: Final = next(_next)
L_WEIGHTS: Final = next(_next)
L_ELIGIBILITIES: Final = next(_next)
L_SYNAPSES: Final = next(_next)
L_ACCUMULATORS: Final = next(_next)  # of the receptor, for the post slice's first block
L_ACCUMULATOR_STRIDE: Final = next(_next)  # accumulators from one block to the next
L_PARAMETERS: Final = next(_next)  # float32
L_LAST: Final = next(_next)  # int32[segments]: step of the last spike of the source that arrived
L_APPLIED: Final = next(_next)  # int32[segments]: post spikes up to here have been applied
L_TRACE: Final = next(_next)  # float32[segments]: Kplus just after the last spike, or u of short-term plasticity
L_RESOURCE: Final = next(_next)  # float32[segments]: x of short-term plasticity
L_DECAY_PLUS: Final = next(_next)  # float32[3, DECAY_CELLS]
L_DECAY_MINUS: Final = next(_next)
L_DECAY_FACILITATION: Final = next(_next)
L_POST_N: Final = next(_next)
L_POST_COUNT: Final = next(_next)  # int32[post n]: spikes of each target so far
L_POST_STEPS: Final = next(_next)  # int32[post n, capacity]
L_POST_TRACES: Final = next(_next)  # float32[post n, capacity]: Kminus just after the spike
L_POST_CAPACITY: Final = next(_next)
L_FLUSHED: Final = next(_next)  # everything was applied that could be at this step
L_EVERY: Final = next(_next)  # steps between modulated changes of the weights, or 0
L_LEVEL: Final = next(_next)  # float32: what modulates them
L_SCALE_EVERY: Final = next(_next)  # steps between homeostatic changes, or 0
L_SCALE_COUNT: Final = next(_next)  # int32[post n]: spikes since the last one
L_FULL: Final = next(_next)  # a target's history of spikes has no room left
L_FROZEN: Final = next(_next)  # weights stay as they are
L_TICKS: Final = next(_next)  # of the processor's clock, for deliveries in the steps that are timed
L_LEARN_TICKS: Final = next(_next)  # ... for what changes all weights, whenever it does
L_WORDS: Final = next(_next)

PLAIN, STDP_BOUNDED, STDP_POWER, REWARD, SHORT_TERM = range(5)

# --- float32 parameters of a plastic table --------------------------------------------------------
_next = count()
F_INVERSE_LSB: Final = next(_next)
F_RATE_PLUS: Final = next(_next)
F_RATE_MINUS: Final = next(_next)
F_MU_PLUS: Final = next(_next)
F_MU_MINUS: Final = next(_next)
F_W_MIN: Final = next(_next)
F_W_MAX: Final = next(_next)
F_ELIGIBILITY_DECAY: Final = next(_next)
F_FORGET: Final = next(_next)  # what is left of a weight after an interval; 1: all
F_U: Final = next(_next)
F_SCALE_STRENGTH: Final = next(_next)
F_SCALE_TARGET: Final = next(_next)  # spikes in an interval
F_SCALE_W_MIN: Final = next(_next)
F_SCALE_W_MAX: Final = next(_next)
F_WORDS: Final = next(_next)

# --- neuromodulators ------------------------------------------------------------------------------
_next = count()
M_LEVEL: Final = next(_next)  # address of the level (float32) above the baseline
M_HEARD: Final = next(_next)  # whether this shard follows the level
M_BASELINE: Final = next(_next)  # bits of a float32
M_DECAY: Final = next(_next)  # bits of the float32 factor of one step
M_FIRST: Final = next(_next)
M_END: Final = next(_next)
M_WORDS: Final = next(_next)

_next = count()
R_POPULATION: Final = next(_next)  # whose spikes release it
R_DELAY: Final = next(_next)
R_AMOUNT: Final = next(_next)  # bits of a float32
R_WORDS: Final = next(_next)

# --- rhythms --------------------------------------------------------------------------------------
_next = count()
Y_INCREMENT: Final = next(_next)  # of the phase in a step; a turn is 2^64
Y_OFFSET: Final = next(_next)
Y_FLOOR: Final = next(_next)  # bits of a float32
Y_WORDS: Final = next(_next)

# --- state probes ---------------------------------------------------------------------------------
_next = count()
B_BLOCKS: Final = next(_next)
B_BLOCK_BYTES: Final = next(_next)
B_ROW: Final = next(_next)
B_EVERY: Final = next(_next)
B_IDS: Final = next(_next)  # int64[count]: neurons of the slice
B_COUNT: Final = next(_next)
B_WORDS: Final = next(_next)

DECAY_CELLS: Final = 256

# Which parts of a shard take how long is measured in one of this many steps.
TIMED_EVERY: Final = 32

# What takes longer than this was interrupted, and says nothing of the work.
LONGEST_TICKS: Final = 200_000

# What `advance` answers.
DONE: Final = 0  # the steps asked for are complete
WAITING: Final = 1  # another worker has not come so far yet
FULL: Final = 2  # what was recorded must be taken away first
NO_ROOM: Final = 3  # a history of post spikes must grow first
NO_CALENDAR_ROOM: Final = 4  # so must a table's calendar
