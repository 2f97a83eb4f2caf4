"""The plastic synapses of a shard: one table for each plastic projection, with the state of its rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled
from neuraxis.engine import tables as w
from neuraxis.engine.codegen import BLOCK
from neuraxis.engine.cpu.static_tables import (
    Accumulators,
    BuildTally,
    Scan,
    class_of_delay,
    delay_classes,
    narrow_shifts,
)
from neuraxis.engine.cpu.synapses import COUNT, LIST, PLASTIC, count_to_starts
from neuraxis.engine.encoding import encode_rule
from neuraxis.engine.random import GOLDEN, mix
from neuraxis.engine.tables import DECAY_CELLS
from neuraxis.network import STDP, Network, Projection, RewardSTDP
from neuraxis.network.arithmetic import exp, power
from neuraxis.network.grid import to_steps

__all__ = [
    "PlasticTable",
    "build_plastic_table",
    "compile_hashes",
    "decay_table",
    "describe_plastic_table",
    "list_static",
    "plastic_onto",
]

FIRST_CAPACITY = 16  # capacities are powers of two

Array = NDArray[np.generic]


@dataclass
class PlasticTable:
    """The arrays of a plastic projection; `row` describes them to the kernels (see `engine/tables.py`).

    The arrays of synapses are empty until `put_synapses`: if a GPU holds the synapses, the host may never need them.
    """

    projection: Projection
    accumulators: Accumulators
    delays: NDArray[np.int64]
    last: NDArray[np.int32]
    applied: NDArray[np.int32]
    trace: NDArray[np.float32]
    resource: NDArray[np.float32]
    post_count: NDArray[np.int32]
    post_steps: NDArray[np.int32]  # (post neurons, capacity)
    post_traces: NDArray[np.float32]
    scale_count: NDArray[np.int32]
    parameters: NDArray[np.void]  # one record of w.PARAMETERS
    decays: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
    kind: int
    every: int
    signal: str  # the signal that modulates the weights
    scale_every: int
    synapses: int = 0
    index: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    targets: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))  # neuron within the slice
    weights: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    eligibilities: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    row: np.void = field(default_factory=lambda: np.zeros(1, w.PLASTIC_TABLE)[0])

    @property
    def segments(self) -> int:
        return self.projection.pre.n * len(self.delays)

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (self.index, self.targets, self.weights, self.eligibilities)) + sum(
            a.nbytes for a in (self.last, self.applied, self.trace, self.resource)
        )

    def put_synapses(
        self, index: NDArray[np.uint32], targets: NDArray[np.uint32], weights: NDArray[np.float32]
    ) -> None:
        """Set the synapses of the table."""
        self.synapses = len(weights)
        self.index, self.targets, self.weights = index, targets, weights
        self.eligibilities = np.zeros(self.synapses if self.kind == w.REWARD else 1, np.float32)
        self.describe_arrays()

    def describe(self, row: np.void, accumulators: NDArray[Any], place: int) -> None:
        """Write the description of the table to `row`, which the kernels read from now on.

        Weights are added to accumulator number `place` of the targets.
        """
        self.row = row
        projection = self.projection
        row["kind"] = self.kind
        row["pre"] = projection.pre.index
        row["rows"] = projection.pre.n
        row["classes"] = len(self.delays)
        row["synapses"] = self.synapses
        row["accumulators"] = accumulators.ctypes.data + accumulators.itemsize * self.accumulators.row(place)
        row["wide_sums"] = accumulators.itemsize == 8
        row["accumulator_stride"] = self.accumulators.stride
        row["post_n"] = self.accumulators.part.n
        row["every"] = self.every
        row["scale_every"] = self.scale_every
        self.describe_arrays()

    def describe_arrays(self) -> None:
        """Update the addresses after an array was replaced."""
        row = self.row
        for column, array in (
            ("delays", self.delays),
            ("index", self.index),
            ("targets", self.targets),
            ("weights", self.weights),
            ("eligibilities", self.eligibilities),
            ("parameters", self.parameters),
            ("last", self.last),
            ("applied", self.applied),
            ("trace", self.trace),
            ("resource", self.resource),
            ("decay_plus", self.decays[0]),
            ("decay_minus", self.decays[1]),
            ("decay_facilitation", self.decays[2]),
            ("post_count", self.post_count),
            ("post_steps", self.post_steps),
            ("post_traces", self.post_traces),
            ("scale_count", self.scale_count),
        ):
            row[column] = array.ctypes.data
        row["post_capacity"] = self.post_steps.shape[1]

    def set_capacity(self, capacity: int) -> None:
        """Change the capacity of the spike history of each target, keeping the latest spikes."""
        steps, traces = self.last_post_spikes(min(capacity, self.post_steps.shape[1]))
        kept = steps.shape[1]
        shape = (len(self.post_count), capacity)
        self.post_steps, self.post_traces = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        self.put_post_spikes(steps, traces, np.minimum(self.post_count, kept))
        self.describe_arrays()

    def last_post_spikes(self, most: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the last `most` spikes of each target as (steps, traces), newest last, padded with 0 in front."""
        capacity = self.post_steps.shape[1]
        places = self.post_count[:, None] - most + np.arange(most)
        there = (places >= 0) & (places >= self.post_count[:, None] - capacity)
        rows = np.arange(len(self.post_count))[:, None]
        steps = np.where(there, self.post_steps[rows, places % capacity], 0).astype(np.int32)
        traces = np.where(there, self.post_traces[rows, places % capacity], 0).astype(np.float32)
        return steps, traces

    def put_post_spikes(self, steps: NDArray[np.int32], traces: NDArray[np.float32], counts: NDArray[np.int32]) -> None:
        """Set the spike history of each target to the last `counts` of the given spikes, from position 0 on."""
        capacity, given = self.post_steps.shape[1], steps.shape[1]
        counts = np.minimum(counts, capacity).astype(np.int32)
        for back in range(min(given, capacity)):
            has = counts > back
            self.post_steps[has, counts[has] - 1 - back] = steps[has, given - 1 - back]
            self.post_traces[has, counts[has] - 1 - back] = traces[has, given - 1 - back]
        self.post_count[:] = counts

    def weights_in_use(self) -> NDArray[np.float32]:
        """Return the weight that a spike delivers at each synapse, rounded to the accumulator's scale."""
        inverse_lsb = self.parameters["inverse_lsb"][0]
        rounded: NDArray[np.float32] = np.rint(self.weights * inverse_lsb) / inverse_lsb
        return rounded

    @property
    def salt(self) -> int:
        """Salt of the hashes of this projection's weights."""
        return 1000 + self.projection.index

    def hash_weights(self) -> int:
        """Return the sum of the hashes of (synapse, weight) modulo 2**64, which does not depend on the order."""
        first, weights = np.uint64(self.accumulators.part.first), self.weights.view(np.uint32)
        return int(_sum_of_hashes(self.index, self.targets, weights, first, np.uint64(self.salt)))

    def by_target(self) -> NDArray[np.int64]:
        """Return the order of the synapses by target, then source, then delay, which does not depend on the shards."""
        return np.argsort(self.targets, kind="stable")


def build_plastic_table(
    network: Network, projection: Projection, accumulators: Accumulators, found: BuildTally
) -> PlasticTable:
    """Draw the synapses of a plastic projection onto a slice."""
    return _build(network, projection, accumulators, found, PLASTIC, 0, False)


def plastic_onto(network: Network) -> dict[int, list[Projection]]:
    """Return the plastic projections onto each population (its index) that has any, in order."""
    found: dict[int, list[Projection]] = {}
    for projection in network.projections:
        if projection.plasticity:
            found.setdefault(projection.post.index, []).append(projection)
    return found


def list_static(network: Network, projection: Projection, accumulators: Accumulators) -> PlasticTable:
    """Draw the synapses of a static projection onto a slice again, with the weights that they deliver."""
    shift = narrow_shifts(network).get(projection.index)
    return _build(network, projection, accumulators, BuildTally(network), LIST, shift or 0, shift is not None)


def _build(
    network: Network, projection: Projection, accumulators: Accumulators, found: BuildTally, mode: int, shift: int,
    narrow: bool,
) -> PlasticTable:  # fmt: skip
    part = accumulators.part
    table = describe_plastic_table(network, projection, accumulators)
    index = np.zeros(table.segments + 2, np.uint32)
    job = Scan(
        network,
        projection,
        rule=encode_rule(projection, part, network.seed),
        targets=(part.first, part.last),
        slice_first=part.first,
        class_of_delay=class_of_delay(table.delays),
        index=index,
        index_classes=len(table.delays),
        tally=found.tallies[projection.index],
        inverse_lsb=2.0 ** -(network.accumulator_of(projection)[1] + shift),
        block_stride=BLOCK,
        shift=shift,
        narrow=narrow,
    )
    no_words = np.empty(0, np.uint32)
    job.run(COUNT, no_words, (np.empty(0, np.uint32), np.empty(0, np.float32)))
    synapses = count_to_starts(index)
    targets, weights = np.empty(synapses, np.uint32), np.empty(synapses, np.float32)
    job.run(mode, no_words, (targets, weights), found.load_of(projection, part))
    table.put_synapses(index, targets, weights)
    return table


def describe_plastic_table(network: Network, projection: Projection, accumulators: Accumulators) -> PlasticTable:
    """Return the table of a projection onto a slice with the initial state of its rule and without synapses."""
    dt_ms, part = network.dt_ms, accumulators.part
    delays = delay_classes(network, [projection])
    pairing, scaling, short_term = projection.pairing, projection.scaling, projection.short_term
    segments = projection.pre.n * len(delays)
    parameters = np.zeros(1, w.PARAMETERS)
    p = parameters[0]
    p["inverse_lsb"] = 2.0 ** -network.accumulator_of(projection)[1]
    kind, every, signal, scale_every = w.PLAIN, 0, "", 0
    plus = minus = facilitation = decay_table(dt_ms, 0.0)
    initial_trace, capacity = 0.0, 1
    if isinstance(pairing, STDP):
        kind = w.STDP_POWER if pairing.form == "power_law" else w.STDP_BOUNDED
        p["rate_plus"] = pairing.learning_rate
        if kind == w.STDP_POWER:
            p["rate_plus"] = pairing.learning_rate * power(pairing.w0, 1.0 - pairing.mu_plus)
        p["rate_minus"] = pairing.learning_rate * pairing.alpha
        p["mu_plus"], p["mu_minus"] = pairing.mu_plus, pairing.mu_minus
        p["w_max"] = pairing.w_max
    elif isinstance(pairing, RewardSTDP):
        kind = w.REWARD
        every = to_steps(pairing.every_ms, dt_ms, "every_ms")
        signal = pairing.modulator
        p["rate_plus"], p["rate_minus"] = pairing.a_plus, pairing.a_minus
        p["w_min"], p["w_max"] = pairing.w_min, pairing.w_max
        forgets = pairing.tau_forget_ms
        p["forget"] = 1.0 if forgets is None else exp(-every * dt_ms / forgets)
        p["eligibility_decay"] = exp(-every * dt_ms / pairing.tau_eligibility_ms)
    if pairing is not None:
        plus, minus = decay_table(dt_ms, pairing.tau_plus_ms), decay_table(dt_ms, pairing.tau_minus_ms)
        capacity = FIRST_CAPACITY
    if short_term is not None:
        kind = w.SHORT_TERM
        p["u"] = initial_trace = short_term.u
        plus = decay_table(dt_ms, short_term.tau_recovery_ms)
        facilitation = decay_table(dt_ms, short_term.tau_facilitation_ms)
    if scaling is not None:
        scale_every = to_steps(scaling.every_ms, dt_ms, "every_ms")
        p["scale_strength"] = scaling.strength
        p["scale_target"] = scaling.target_rate_hz * scale_every * dt_ms * 1e-3
        p["scale_w_min"], p["scale_w_max"] = scaling.w_min, scaling.w_max
    with_state = segments if kind != w.PLAIN else 1
    return PlasticTable(
        projection=projection,
        accumulators=accumulators,
        delays=delays,
        last=np.zeros(with_state, np.int32),
        applied=np.zeros(with_state, np.int32),
        trace=np.full(with_state, initial_trace, np.float32),
        resource=np.ones(segments if kind == w.SHORT_TERM else 1, np.float32),
        post_count=np.zeros(part.n, np.int32),
        post_steps=np.zeros((part.n, capacity), np.int32),
        post_traces=np.zeros((part.n, capacity), np.float32),
        scale_count=np.zeros(part.n, np.int32),
        parameters=parameters,
        decays=(plus, minus, facilitation),
        kind=kind,
        every=every,
        signal=signal,
        scale_every=scale_every,
    )


@lru_cache(maxsize=64)
def decay_table(dt_ms: float, tau_ms: float) -> NDArray[np.float32]:
    """Return exp(-n dt / tau) as float32[3 * DECAY_CELLS]: a factor for each of three digits of n, base DECAY_CELLS.

    A time constant of 0 decays at once.
    """
    if tau_ms == 0:
        return np.zeros(3 * DECAY_CELLS, np.float32)
    digits = [
        [exp(-n * unit * dt_ms / tau_ms) for n in range(DECAY_CELLS)] for unit in (1, DECAY_CELLS, DECAY_CELLS**2)
    ]
    table = np.array(digits, np.float32).reshape(-1)
    table.flags.writeable = False
    return table


def compile_hashes() -> None:
    """Compile the hash of weights, or load it from the cache."""
    nothing = np.zeros(2, np.uint32)
    _sum_of_hashes(nothing, nothing, nothing, np.uint64(0), np.uint64(0))


@compiled
def _sum_of_hashes(index: Any, targets: Any, weights: Any, first_target: np.uint64, salt: np.uint64) -> np.uint64:
    total = np.uint64(0)
    for segment in range(len(index) - 2):
        for j in range(np.uint64(index[segment]), np.uint64(index[segment + 1])):
            key = (np.uint64(segment) << np.uint64(32)) | (np.uint64(targets[j]) + first_target)
            total += mix(mix(key + GOLDEN * salt) ^ np.uint64(weights[j]))
    return total
