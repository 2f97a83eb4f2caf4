"""Layout of the tables that describe a shard to the GPU kernels: a dtype and a C struct for the rows of each.

The dtypes are the definition: `declarations` writes the structs from them, and Python code fills the fields by name.
A field is a number or the address of an array on the device. The dtype of an address has the C type of the array's
elements as metadata, so that the kernels need no casts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from neuraxis.engine import tables as shared

__all__ = [
    "BINDING",
    "CURRENT",
    "JOB",
    "LAYOUT",
    "OUTSIDE_SPIKE",
    "PLASTIC_TABLE",
    "POISSON_INPUT",
    "POPULATION",
    "RATE_PART",
    "RATE_TABLE",
    "STATE_PROBE",
    "STRUCTS",
    "TALLY",
    "TICKS",
    "TOTALS",
    "TREE",
    "TREE_LEVEL",
    "declarations",
    "offset_of",
    "struct_source",
]

_NUMBER = np.int64
_UNSIGNED = np.uint64
_DOUBLE = np.float64


def _pointer(to: str) -> np.dtype[Any]:
    """Return the dtype of the address of an array on the device whose elements have this C type."""
    return np.dtype(np.int64, metadata={"points_to": to})


# A launch: sizes and addresses, in constant memory.
LAYOUT: Final = np.dtype(
    [
        ("blocks", _NUMBER),  # of the grid
        ("cells", _NUMBER),  # neurons of a block at most
        ("parts", _NUMBER),  # populations with neurons on this shard
        ("population_rows", _pointer("const Population")),  # [parts]
        ("population_of_cell", _pointer("const short")),  # [blocks, cells]: index among the parts, -1: no neuron
        ("place_of_cell", _pointer("const int")),  # [blocks, cells]: index of the neuron within its slice
        ("states", _pointer("u32")),  # [state rows, blocks, cells]
        ("constants", _pointer("const float")),
        ("constant_words", _NUMBER),
        ("poisson_inputs", _pointer("const PoissonInput")),
        ("poisson_tables", _pointer("const u32")),
        ("poisson_words", _NUMBER),
        ("pulses", _pointer("const Current")),
        ("inputs", _pointer("const u64")),  # given spikes by block: step << 32 | cell
        ("input_starts", _pointer("const i64")),  # [blocks + 1]
        # Static synapses, and the ring buffer of weights that will arrive.
        ("ring", _pointer("int")),  # [blocks, slots, accumulators]
        ("slots", _NUMBER),
        ("accumulators", _NUMBER),  # of a block, for one step
        ("rows", _NUMBER),  # sources: neurons of this shard, then those of others
        ("records", _pointer("const Record")),  # [blocks, rows]
        ("words", _pointer("const Word *const")),  # [blocks]: words that do not fit the records
        # Spikes between the blocks, and from other shards.
        ("messages", _pointer("u64")),  # [message slots, blocks, 2]
        ("long_messages", _pointer("u16")),  # [message slots, blocks, cells]
        ("message_mask", _NUMBER),
        ("lost", _pointer("int")),  # set if a block does not answer
        ("outside", _pointer("const OutsideSpike")),  # spikes of other shards, sorted by the step in which they enter
        ("outside_count", _NUMBER),
        ("past", _pointer("const u32")),  # rows of sources on other shards that spiked in the last steps
        ("past_starts", _pointer("const i64")),  # [past steps + 1]
        ("past_first", _NUMBER),  # the first of these steps
        ("past_steps", _NUMBER),
        # Output.
        ("spike_counts", _pointer("int")),  # [blocks, cells]
        ("population_spikes", _pointer("u64")),  # [blocks, parts]
        ("recorded_cells", _pointer("const u8")),  # [blocks, cells]: 1 if a probe records the neuron's spikes
        ("spike_record", _pointer("u64")),  # [blocks, record room]: step << 32 | id
        ("record_room", _NUMBER),
        ("recorded", _pointer("int")),  # [blocks]
        ("recent_spikes", _pointer("u64")),  # [blocks, recent room]: ring of the last spikes, step << 32 | id
        ("recent_room", _NUMBER),
        ("recent", _pointer("int")),  # [blocks]
        ("probes", _pointer("const StateProbe")),
        ("probe_count", _NUMBER),
        ("samples", _pointer("u32")),
        ("totals", _pointer("Totals")),
        ("ticks", _pointer("Ticks")),
        ("check_step", _NUMBER),  # one more step with a check of all states, the last of a run; 0: none
        # Signals.
        ("populations", _NUMBER),  # of the whole network
        ("population_of_row", _pointer("const u16")),  # [rows]
        ("population_counts", _pointer("int")),  # [blocks, count slots, populations]: spikes of the last steps
        ("count_slots", _NUMBER),
        ("modulators", _NUMBER),
        ("modulator_rows", _pointer("const Modulator")),
        ("releases", _pointer("const Release")),
        ("levels_before", _pointer("const float")),  # [modulators], at the start of a launch
        ("levels_after", _pointer("float")),  # ... at its end
        ("signals_before", _pointer("const float")),  # [modulators + rhythms]
        ("signals_after", _pointer("float")),
        ("rhythms", _pointer("const Rhythm")),
        ("rhythm_count", _NUMBER),
        ("cosines", _pointer("const float")),  # [2**cell bits]
        ("cell_bits", _NUMBER),
        ("bindings", _pointer("const Binding")),
        ("binding_count", _NUMBER),
        # Plastic synapses.
        ("plastic_tables", _pointer("const PlasticTable")),
        ("plastic_count", _NUMBER),
        ("full", _pointer("int")),  # [blocks]: 1 if a history of target spikes is full
        # Continuous connections.
        ("outputs", _pointer("float")),  # [output slots, output columns]: ring of the outputs of the last steps
        ("output_mask", _NUMBER),
        ("output_columns", _NUMBER),
        ("rate_parts", _pointer("const RatePart")),  # [parts]
        ("rate_tables", _pointer("const RateTable")),
    ]
)

# The output of a population with neurons on this shard, and the continuous connections onto it.
RATE_PART: Final = np.dtype(
    [
        ("output_row", _NUMBER),  # of the states; -1: no output is transmitted
        ("output_column", _NUMBER),  # of the shard's neuron 0, if the population began there
        ("first_id", _NUMBER),  # likewise
        ("first_table", _NUMBER),
        ("end_table", _NUMBER),
    ]
)

# The synapses of a continuous projection. WARP neighbouring cells of a block are a group; their k-th synapses are
# together.
RATE_TABLE: Final = np.dtype(
    [
        ("input", _NUMBER),  # index among the rate inputs of the model
        ("starts", _pointer("const i64")),  # [blocks, groups]
        ("counts", _pointer("const u32")),  # [blocks, cells]
        ("sources", _pointer("const u32")),  # columns of the ring
        ("classes", _pointer("const u16")),  # indices of lags
        ("weights", _pointer("const float")),
        ("lags", _pointer("const i64")),  # in steps
        ("lag_count", _NUMBER),
    ]
)

# A population with neurons on this shard.
POPULATION: Final = np.dtype(
    [
        ("model", _NUMBER),
        ("constants", _NUMBER),  # index of the first
        ("receptors", _NUMBER),
        ("silent", _NUMBER),
        ("own_current", _NUMBER),  # 1 if injected currents differ between neurons
        ("poisson_first", _NUMBER),
        ("poisson_end", _NUMBER),
        ("pulse_first", _NUMBER),
        ("pulse_end", _NUMBER),
        ("plastic_first", _NUMBER),
        ("plastic_end", _NUMBER),
        ("first_place", _NUMBER),  # position of its first neuron among the shard's neurons
        ("first_id", _NUMBER),
        ("record", _NUMBER),  # 0: record no spikes, 1: all, 2: those of `recorded_cells`
    ]
)

# A Poisson input.
POISSON_INPUT: Final = np.dtype(
    [
        ("thresholds", _NUMBER),  # their number; 0: the table has (exp(-mean), mean) of each neuron
        ("table", _pointer("const void")),  # int thresholds, or doubles
        ("table_place", _NUMBER),  # position in shared memory | receptor << 24; -2: not there
        ("weight", _NUMBER),
        ("receptor", _NUMBER),
        ("start", _NUMBER),  # active in steps start < t <= stop
        ("stop", _NUMBER),
    ]
)

# A probe of a state.
STATE_PROBE: Final = np.dtype(
    [
        ("row", _NUMBER),
        ("every", _NUMBER),  # steps between samples
        ("count", _NUMBER),
        ("starts", _pointer("const i64")),  # [blocks + 1]
        ("cells", _pointer("const i64")),  # [count], by block: cell | index within the probe << 32
    ]
)

# A constant of a model that follows a signal.
BINDING: Final = np.dtype([("constant", _NUMBER), ("signal", _NUMBER)])

# A spike of another shard.
OUTSIDE_SPIKE: Final = np.dtype(
    [
        ("step", _NUMBER),  # the step in which it enters
        ("row", np.uint32),  # of its source
        ("age", np.uint32),  # steps since its emission, when it enters
    ]
)

# Totals of a launch, zero before.
TOTALS: Final = np.dtype(
    [
        ("step", _NUMBER),
        ("sampled", _NUMBER),
        ("hash", _UNSIGNED),
        ("events", _UNSIGNED),
        ("pending", _UNSIGNED),
        ("recorded", _UNSIGNED),
        ("recent", _UNSIGNED),
        ("unstable", _UNSIGNED),  # the first state that is not finite, packed (neurons.cuh); 0: none
    ]
)

# Clock ticks of the parts of all steps of a launch.
TICKS: Final = np.dtype([("waiting", _NUMBER), ("updating", _NUMBER), ("publishing", _NUMBER), ("delivering", _NUMBER)])

# A projection to draw.
JOB: Final = np.dtype(
    [
        ("storing", _NUMBER),  # 0: count the synapses, 1: store them
        ("kind", _NUMBER),  # of the rule, see engine/encoding.py
        ("projection", _NUMBER),
        ("n_pre", _NUMBER),
        ("n_post", _NUMBER),
        ("no_self", _NUMBER),
        ("distinct", _NUMBER),
        ("share", _NUMBER),
        ("groups", _NUMBER),
        ("seed", _UNSIGNED),
        ("first", _NUMBER),  # targets
        ("last", _NUMBER),
        ("first_place", _NUMBER),
        ("counts", _pointer("const i64")),  # in-degree of each target, or 0
        ("degree", _NUMBER),  # in-degree of all targets, if there are no counts
        ("listed", _pointer("const int")),
        ("listed_first", _pointer("const i64")),
        ("listed_order", _pointer("const i64")),
        ("weight_kind", _NUMBER),
        ("weight", _DOUBLE, (5,)),
        ("weight_values", _pointer("const double")),
        ("delay_kind", _NUMBER),
        ("delay", _DOUBLE, (5,)),
        ("delay_values", _pointer("const double")),
        ("dt", _DOUBLE),
        ("longest", _NUMBER),
        ("urgent", _NUMBER),
        ("receptor", _NUMBER),
        ("inverse_lsb", _DOUBLE),
        ("largest", _DOUBLE),
        ("shift", _NUMBER),
        ("blocks", _NUMBER),
        ("cells", _NUMBER),
        ("normal_table", _pointer("const double")),
        ("tally", _pointer("Tally")),
        ("load", _pointer("u64")),  # [targets]: sums of absolute weights, or 0
        ("most", _UNSIGNED),  # the largest weight, if weights change
        # Static synapses.
        ("rows", _NUMBER),
        ("pre_first", _NUMBER),  # sources on this shard
        ("pre_last", _NUMBER),
        ("pre_place", _NUMBER),
        ("pre_outside", _NUMBER),  # row of source 0 among those of other shards
        ("segment_counts", _pointer("u64")),
        ("records", _pointer("Record")),
        ("words", _pointer("Word *const")),
        ("totals", _pointer("u64")),  # [blocks]
        ("synapses", _pointer("u64")),
        ("shift_of_row", _pointer("const u8")),
        # Plastic synapses.
        ("index", _pointer("u32")),
        ("starts", _pointer("const i64")),
        ("segments", _NUMBER),
        ("classes", _NUMBER),
        ("class_of_delay", _pointer("const int")),
        ("in_degrees", _pointer("u32")),
        ("target_cells", _pointer("u32")),
        ("drawn", _pointer("u32")),
    ]
)

# Counts of a projection while it is drawn, in the order of engine/cpu/synapses.py.
TALLY: Final = np.dtype([("clipped", _UNSIGNED), ("changed", _UNSIGNED), ("to_zero", _UNSIGNED)])

# A tree along which the in-degrees of a fixed total are drawn, and one level of all trees.
TREE: Final = np.dtype([("projection", _NUMBER), ("n_post", _NUMBER), ("total", _NUMBER), ("counts", _pointer("i64"))])
TREE_LEVEL: Final = np.dtype(
    [("level", _NUMBER), ("projections", _NUMBER), ("trees", _pointer("const Tree")), ("seed", _UNSIGNED)]
)

# A table of plastic synapses. Each block has its part of the arrays of segments and synapses.
PLASTIC_TABLE: Final = np.dtype(
    [
        ("kind", _NUMBER),
        ("pre_place", _NUMBER),  # position of the first local source among the shard's neurons
        ("pre_n", _NUMBER),
        ("pre_first", _NUMBER),  # index of the first local source in its population
        ("pre_outside", _NUMBER),  # row of source 0 among those of other shards, or -1
        ("pre_all", _NUMBER),
        ("post_place", _NUMBER),
        ("post_n", _NUMBER),
        ("receptor", _NUMBER),
        ("segments", _NUMBER),
        ("classes", _NUMBER),
        ("delays", _pointer("const i64")),  # [classes]
        ("index", _pointer("u32")),  # [blocks, segments + 1]
        ("starts", _pointer("const i64")),  # [blocks]
        ("cells", _pointer("u32")),
        ("weights", _pointer("float")),
        ("eligibilities", _pointer("float")),
        ("parameters", _pointer("const Parameters")),
        ("last", _pointer("int")),
        ("applied", _pointer("int")),
        ("trace", _pointer("float")),
        ("resource", _pointer("float")),
        ("decay_plus", _pointer("const float")),
        ("decay_minus", _pointer("const float")),
        ("decay_facilitation", _pointer("const float")),
        ("post_count", _pointer("int")),
        ("post_steps", _pointer("int")),
        ("post_traces", _pointer("float")),
        ("capacity", _NUMBER),  # of the history of a target
        ("flushed", _pointer("i64")),  # [blocks]
        ("every", _NUMBER),
        ("level", _NUMBER),  # index of the signal that modulates the changes
        ("scale_every", _NUMBER),
        ("scale_count", _pointer("int")),
        ("frozen", _NUMBER),
    ]
)


def _with_pointers(dtype: np.dtype[Any], **pointers: str) -> np.dtype[Any]:
    """Return a dtype of the CPU's tables with the C types of the arrays that some of its fields point to."""
    fields = _fields(dtype)
    return np.dtype([(name, _pointer(pointers[name]) if name in pointers else kind) for name, kind in fields.items()])


def _fields(dtype: np.dtype[Any]) -> Mapping[str, np.dtype[Any]]:
    return {name: dtype[name] for name in dtype.names or ()}


# Tables of both engines.
CURRENT: Final = _with_pointers(shared.CURRENT, values="const float")

STRUCTS: Final = {
    "Totals": TOTALS,
    "Ticks": TICKS,
    "Tally": TALLY,
    "Parameters": shared.PARAMETERS,
    "Population": POPULATION,
    "PoissonInput": POISSON_INPUT,
    "Current": CURRENT,
    "StateProbe": STATE_PROBE,
    "Modulator": shared.MODULATOR,
    "Release": shared.RELEASE,
    "Rhythm": shared.RHYTHM,
    "Binding": BINDING,
    "OutsideSpike": OUTSIDE_SPIKE,
    "PlasticTable": PLASTIC_TABLE,
    "RatePart": RATE_PART,
    "RateTable": RATE_TABLE,
    "Tree": TREE,
    "TreeLevel": TREE_LEVEL,
    "Job": JOB,
    "Layout": LAYOUT,
}

_C_TYPES: Final = {
    np.dtype(np.int64): "i64",
    np.dtype(np.uint64): "u64",
    np.dtype(np.uint32): "u32",
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
}


def declarations() -> str:
    """Return the C structs of all tables."""
    return "\n".join(struct_source(name, dtype) for name, dtype in STRUCTS.items())


def offset_of(dtype: np.dtype[Any], field: str) -> int:
    """Return the offset of a field in bytes."""
    assert dtype.fields is not None
    return dtype.fields[field][1]


def struct_source(name: str, dtype: np.dtype[Any]) -> str:
    """Return a C struct with the layout of a structured dtype.

    The dtype has no padding. If the struct has the same size, which the C compiler checks, it has none either, and all
    its offsets are those of the dtype.
    """
    fields = _fields(dtype)
    assert dtype.itemsize == sum(kind.itemsize for kind in fields.values())
    lines = [f"    {_declaration(field, kind)};" for field, kind in fields.items()]
    check = f'static_assert(sizeof({name}) == {dtype.itemsize}, "{name} differs from its dtype");'
    return "\n".join([f"struct {name} {{", *lines, "};", check, ""])


def _declaration(name: str, dtype: np.dtype[Any]) -> str:
    if dtype.metadata is not None:
        return f"{dtype.metadata['points_to']} *{name}"
    length = "".join(f"[{n}]" for n in dtype.shape)
    return f"{_C_TYPES[dtype.base]} {name}{length}"
