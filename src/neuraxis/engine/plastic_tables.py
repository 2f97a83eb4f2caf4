"""The plastic synapses of a shard: one table for each plastic projection, with what its rule remembers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled
from neuraxis.engine import plan as w
from neuraxis.engine.decay import decay_table
from neuraxis.engine.encoding import encode_rule
from neuraxis.engine.generated import BLOCK
from neuraxis.engine.random import GOLDEN, mix
from neuraxis.engine.static_tables import Accumulators, delay_classes, scan
from neuraxis.engine.synapses import COUNT, PLASTIC, count_to_starts
from neuraxis.network import STDP, Network, Projection, RewardSTDP
from neuraxis.network.arithmetic import exp, power
from neuraxis.network.grid import to_steps

__all__ = ["PlasticTable", "build_plastic_table", "describe_plastic_table"]

FIRST_CAPACITY = 16  # capacities are powers of two

Array = NDArray[np.generic]


@dataclass
class PlasticTable:
    """Arrays of a plastic projection; `row` is their description for the kernels (see `plan`).

    Those of its synapses are empty until `put_synapses`: where a GPU has the synapses, they may never be asked for.
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
    parameters: NDArray[np.float32]
    decays: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]
    kind: int
    every: int
    signal: str  # what modulates the weights
    scale_every: int
    synapses: int = 0
    index: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    targets: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))  # neuron within the slice
    weights: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    eligibilities: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    row: NDArray[np.int64] = field(default_factory=lambda: np.zeros(w.L_WORDS, np.int64))

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
        """Give the table its synapses."""
        self.synapses = len(weights)
        self.index, self.targets, self.weights = index, targets, weights
        self.eligibilities = np.zeros(self.synapses if self.kind == w.REWARD else 1, np.float32)
        self.describe_arrays()

    def describe(self, row: NDArray[np.int64], accumulators: NDArray[np.int32]) -> None:
        """Write the description of the table to `row`, which the kernels read from then on."""
        self.row = row
        projection = self.projection
        row[w.L_KIND] = self.kind
        row[w.L_PRE] = projection.pre.index
        row[w.L_ROWS] = projection.pre.n
        row[w.L_CLASSES] = len(self.delays)
        row[w.L_SYNAPSES] = self.synapses
        row[w.L_ACCUMULATORS] = accumulators.ctypes.data + 4 * self.accumulators.receptor(projection.receptor)
        row[w.L_ACCUMULATOR_STRIDE] = self.accumulators.stride
        row[w.L_POST_N] = self.accumulators.part.n
        row[w.L_EVERY] = self.every
        row[w.L_SCALE_EVERY] = self.scale_every
        self.describe_arrays()

    def describe_arrays(self) -> None:
        """Write the addresses anew, after an array was replaced."""
        row = self.row
        for column, array in (
            (w.L_DELAYS, self.delays),
            (w.L_INDEX, self.index),
            (w.L_TARGETS, self.targets),
            (w.L_WEIGHTS, self.weights),
            (w.L_ELIGIBILITIES, self.eligibilities),
            (w.L_PARAMETERS, self.parameters),
            (w.L_LAST, self.last),
            (w.L_APPLIED, self.applied),
            (w.L_TRACE, self.trace),
            (w.L_RESOURCE, self.resource),
            (w.L_DECAY_PLUS, self.decays[0]),
            (w.L_DECAY_MINUS, self.decays[1]),
            (w.L_DECAY_FACILITATION, self.decays[2]),
            (w.L_POST_COUNT, self.post_count),
            (w.L_POST_STEPS, self.post_steps),
            (w.L_POST_TRACES, self.post_traces),
            (w.L_SCALE_COUNT, self.scale_count),
        ):
            row[column] = array.ctypes.data
        row[w.L_POST_CAPACITY] = self.post_steps.shape[1]

    def set_capacity(self, capacity: int) -> None:
        """Keep up to `capacity` spikes of each target; those kept so far stay."""
        steps, traces = self.kept_post_spikes(min(capacity, self.post_steps.shape[1]))
        kept = steps.shape[1]
        shape = (len(self.post_count), capacity)
        self.post_steps, self.post_traces = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
        self.put_post_spikes(steps, traces, np.minimum(self.post_count, kept))
        self.describe_arrays()

    def kept_post_spikes(self, most: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The last `most` spikes of each target, newest last; (0, 0) where there were fewer."""
        capacity = self.post_steps.shape[1]
        places = self.post_count[:, None] - most + np.arange(most)
        there = (places >= 0) & (places >= self.post_count[:, None] - capacity)
        rows = np.arange(len(self.post_count))[:, None]
        steps = np.where(there, self.post_steps[rows, places % capacity], 0).astype(np.int32)
        traces = np.where(there, self.post_traces[rows, places % capacity], 0).astype(np.float32)
        return steps, traces

    def put_post_spikes(self, steps: NDArray[np.int32], traces: NDArray[np.float32], counts: NDArray[np.int32]) -> None:
        """Set each target's notes to the last `counts` of the given ones; they become numbers 0 to counts - 1."""
        capacity, given = self.post_steps.shape[1], steps.shape[1]
        counts = np.minimum(counts, capacity).astype(np.int32)
        for back in range(min(given, capacity)):
            has = counts > back
            self.post_steps[has, counts[has] - 1 - back] = steps[has, given - 1 - back]
            self.post_traces[has, counts[has] - 1 - back] = traces[has, given - 1 - back]
        self.post_count[:] = counts

    @property
    def salt(self) -> int:
        """What makes the hashes of this projection's weights differ from others'."""
        return 1000 + self.projection.index

    def hash_weights(self) -> int:
        """The sum of the hashes of all weights, each with its place, modulo 2^64: it does not depend on their order."""
        first, weights = np.uint64(self.accumulators.part.first), self.weights.view(np.uint32)
        return int(_sum_of_hashes(self.index, self.targets, weights, first, np.uint64(self.salt)))

    def by_target(self) -> NDArray[np.int64]:
        """The order of the synapses by target, then source, then delay: the same for any number of shards."""
        return np.argsort(self.targets, kind="stable")


def build_plastic_table(
    network: Network, projection: Projection, accumulators: Accumulators, clipped: NDArray[np.int64]
) -> PlasticTable:
    """The table of the synapses that a plastic projection makes onto a slice."""
    part = accumulators.part
    table = describe_plastic_table(network, projection, accumulators)
    index = np.zeros(table.segments + 2, np.uint32)
    rule = encode_rule(projection, part, network.seed)

    def run(mode: int, targets: NDArray[np.uint32], weights: NDArray[np.float32]) -> None:
        scan(
            mode, network, projection, rule, (part.first, part.last), part.first, table.delays, len(table.delays), 0, 0,
            BLOCK, 1.0, index,
            np.empty(0, np.uint32), (targets, weights), clipped,
        )  # fmt: skip

    run(COUNT, np.empty(0, np.uint32), np.empty(0, np.float32))
    synapses = count_to_starts(index)
    targets, weights = np.empty(synapses, np.uint32), np.empty(synapses, np.float32)
    run(PLASTIC, targets, weights)
    table.put_synapses(index, targets, weights)
    return table


def describe_plastic_table(network: Network, projection: Projection, accumulators: Accumulators) -> PlasticTable:
    """The table of a projection onto a slice with what its rule knows and remembers, and no synapse."""
    dt_ms, part = network.dt_ms, accumulators.part
    delays = delay_classes(network, [projection])
    pairing, scaling, short_term = projection.pairing, projection.scaling, projection.short_term
    segments = projection.pre.n * len(delays)
    p = np.zeros(w.F_WORDS, np.float32)
    p[w.F_INVERSE_LSB] = 2.0 ** -network.exponent(projection.post, projection.receptor)
    kind, every, signal, scale_every = w.PLAIN, 0, "", 0
    plus = minus = facilitation = decay_table(dt_ms, 0.0)
    trace_at_first, noting = 0.0, 1
    if isinstance(pairing, STDP):
        kind = w.STDP_POWER if pairing.form == "power_law" else w.STDP_BOUNDED
        p[w.F_RATE_PLUS] = pairing.learning_rate
        if kind == w.STDP_POWER:
            p[w.F_RATE_PLUS] = pairing.learning_rate * power(pairing.w0, 1.0 - pairing.mu_plus)
        p[w.F_RATE_MINUS] = pairing.learning_rate * pairing.alpha
        p[w.F_MU_PLUS], p[w.F_MU_MINUS] = pairing.mu_plus, pairing.mu_minus
        p[w.F_W_MAX] = pairing.w_max
    elif isinstance(pairing, RewardSTDP):
        kind = w.REWARD
        every = to_steps(pairing.every_ms, dt_ms, "every_ms")
        signal = pairing.modulator
        p[w.F_RATE_PLUS], p[w.F_RATE_MINUS] = pairing.a_plus, pairing.a_minus
        p[w.F_W_MIN], p[w.F_W_MAX] = pairing.w_min, pairing.w_max
        forgets = pairing.tau_forget_ms
        p[w.F_FORGET] = 1.0 if forgets is None else exp(-every * dt_ms / forgets)
        p[w.F_ELIGIBILITY_DECAY] = exp(-every * dt_ms / pairing.tau_eligibility_ms)
    if pairing is not None:
        plus, minus = decay_table(dt_ms, pairing.tau_plus_ms), decay_table(dt_ms, pairing.tau_minus_ms)
        noting = FIRST_CAPACITY
    if short_term is not None:
        kind = w.SHORT_TERM
        p[w.F_U] = trace_at_first = short_term.u
        plus = decay_table(dt_ms, short_term.tau_recovery_ms)
        facilitation = decay_table(dt_ms, short_term.tau_facilitation_ms)
    if scaling is not None:
        scale_every = to_steps(scaling.every_ms, dt_ms, "every_ms")
        p[w.F_SCALE_STRENGTH] = scaling.strength
        p[w.F_SCALE_TARGET] = scaling.target_rate_hz * scale_every * dt_ms * 1e-3
        p[w.F_SCALE_W_MIN], p[w.F_SCALE_W_MAX] = scaling.w_min, scaling.w_max
    remembering = segments if kind != w.PLAIN else 1
    return PlasticTable(
        projection=projection,
        accumulators=accumulators,
        delays=delays,
        last=np.zeros(remembering, np.int32),
        applied=np.zeros(remembering, np.int32),
        trace=np.full(remembering, trace_at_first, np.float32),
        resource=np.ones(segments if kind == w.SHORT_TERM else 1, np.float32),
        post_count=np.zeros(part.n, np.int32),
        post_steps=np.zeros((part.n, noting), np.int32),
        post_traces=np.zeros((part.n, noting), np.float32),
        scale_count=np.zeros(part.n, np.int32),
        parameters=p,
        decays=(plus, minus, facilitation),
        kind=kind,
        every=every,
        signal=signal,
        scale_every=scale_every,
    )


@compiled
def _sum_of_hashes(index: Any, targets: Any, weights: Any, first_target: np.uint64, salt: np.uint64) -> np.uint64:
    total = np.uint64(0)
    for segment in range(len(index) - 2):
        for j in range(np.uint64(index[segment]), np.uint64(index[segment + 1])):
            key = (np.uint64(segment) << np.uint64(32)) | (np.uint64(targets[j]) + first_target)
            total += mix(mix(key + GOLDEN * salt) ^ np.uint64(weights[j]))
    return total
