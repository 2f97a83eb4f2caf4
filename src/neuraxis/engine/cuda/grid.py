"""Layout of a shard on a GPU: the assignment of neurons to blocks of a grid, and the use of registers and shared
memory.

Neuron number q of the shard (counted over all its populations) is cell q // blocks of block q % blocks, so that every
block has a share of every population. If states fit into registers and the ring buffer of arriving weights into shared
memory, neurons do not access global memory between two steps; otherwise both are in global memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cpu.static_tables import narrow_shifts
from neuraxis.engine.cuda.device import Device
from neuraxis.engine.cuda.program import FIRST_STATE_ROW, Shape, has_lookahead
from neuraxis.engine.cuda.tables import POPULATION
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.spikes import rate_sources
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Projection

__all__ = ["Grid", "first_places", "lay_out"]

MOST_THREADS = 1024
USUAL_THREADS = 768
MOST_PER_THREAD = 2  # neurons of a thread whose states stay in registers
BATCH = 2  # neurons that a thread updates at once if their states are in global memory
MOST_ROWS = 24  # of such a neuron
NEURONS_OF_A_BLOCK = 64  # at least, in small networks
MOST_CELLS = 0x7FFF
LIST, LONGEST_LIST = 1024, 8192
LARGEST_RING = 1 << 25  # bytes, of all blocks, to which weights are added without queues
QUEUE_SHARE = 4  # synapses of a block for each that its queues have room for
LEAST_QUEUE = 256
PREFETCHED = 2
FEW_SEGMENTS = 1 << 20  # of networks whose records stay in the L2 cache
SPARSE = 3  # words of a record for each that is used
CONTROL_BYTES = 256
RECORD_SIZES, HEAD_BYTES = (64, 128, 256), 16
LONGEST_AGE = 63
LARGEST_ROWS = 1 << 26


@dataclass(frozen=True)
class Grid:
    """Sizes of a shard on a GPU, and the shape that the kernels are compiled for."""

    blocks: int
    cells: int  # neurons of a block at most
    neurons: int
    accumulators: int  # of a block, for one step
    slots: int
    message_slots: int
    shape: Shape
    shared_bytes: int
    queue_room: int  # weights of a queue
    first_delay: int  # the shortest delay of a static synapse

    @property
    def places(self) -> int:
        return self.blocks * self.cells

    def to_cells(self, values: NDArray[np.generic], empty: int = 0) -> NDArray[np.generic]:
        """Reorder values of the shard's neurons to the order of the cells of all blocks."""
        padded = np.full(self.places, empty, values.dtype)
        padded[: self.neurons] = values
        return np.ascontiguousarray(padded.reshape(self.cells, self.blocks).T).reshape(-1)

    def from_cells(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.ascontiguousarray(values.reshape(self.blocks, self.cells).T).reshape(-1)[: self.neurons]

    def row_of(self, q: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index among the cells of all blocks of neurons of the shard; it is also their row of records."""
        rows: NDArray[np.int64] = q % self.blocks * self.cells + q // self.blocks
        return rows


def first_places(parts: Sequence[NeuronPart]) -> dict[int, int]:
    """Return for each population the position of its first neuron among the shard's neurons."""
    ends = np.cumsum([part.part.n for part in parts])
    return {part.part.population: int(end) - part.part.n for part, end in zip(parts, ends, strict=True)}


def lay_out(
    network: Network, parts: list[NeuronPart], own_lag: int, constants: int, tables: int, outside: int, device: Device,
    plastic: bool, other_lags: Sequence[int],
) -> Grid:  # fmt: skip
    """Choose the sizes for a shard.

    `own_lag` is the shortest delay between neurons of the shard in steps; `constants` and `tables` are the words of
    constants and Poisson tables in shared memory; `outside` is the number of neurons of other shards that project here;
    `other_lags` are the shortest delays from each of the other shards.
    """
    neurons = sum(part.part.n for part in parts)
    receptors = max((part.accumulators.rows for part in parts), default=1) or 1
    models = [part.population.model for part in parts]
    rows = FIRST_STATE_ROW + max((len(model.states) + len(model.rows) for model in models), default=0)
    blocks = max(1, min(device.multiprocessors, -(-neurons // NEURONS_OF_A_BLOCK)))
    cells = -(-max(1, neurons) // blocks)
    if cells > MOST_CELLS:
        raise InvalidArgument(
            f"{neurons:,} neurons on {device.name}: {blocks * MOST_CELLS:,} are the most. Use device='cpu' and workers."
        )
    if blocks * cells + outside >= LARGEST_ROWS:
        raise InvalidArgument(
            f"{neurons + outside:,} neurons: {LARGEST_ROWS:,} are the most whose spikes a GPU can receive"
        )
    threads = min(MOST_THREADS, max(device.warp * 4, -(-cells // device.warp) * device.warp))
    if device.warp == 32:
        threads = max(threads, USUAL_THREADS)  # deliveries need warps, too
    per_thread = -(-cells // threads)
    registers = per_thread <= MOST_PER_THREAD and rows <= MOST_ROWS

    # If spikes arrive in the very next step, the exchange between blocks is on the critical path. With lookahead spikes
    # are published one step ahead; otherwise synapses that take effect at once are delivered first.
    rate_inputs = max((len(model.rate_inputs) for model in models), default=0)
    rates = rate_inputs > 0 or any(part.population.index in rate_sources(network) for part in parts)
    alone = all(lag > 1 for lag in other_lags)
    can_look = own_lag == 1 and alone and not rates
    lookahead = can_look and all(has_lookahead(part.population.model, network.dt_ms) for part in parts)
    urgent = (own_lag == 1 or not alone) and not lookahead
    lag = 0 if lookahead else min(LONGEST_AGE, max(1, own_lag - 1))
    static = [one for one in network.projections if not one.plasticity]
    delays = [network.delay_bounds_steps(one) for one in static]
    shortest, longest = min((low for low, _ in delays), default=1), max((high for _, high in delays), default=1)
    # Spikes are delivered some steps after their emission, to a ring of the steps in which they can arrive then.
    youngest = min([lag, *(max(1, other - 1) for other in other_lags)])
    slots = 1 << max(0, longest - youngest - (0 if urgent else 1)).bit_length()
    accumulators = receptors * cells
    target_bits = max(1, (accumulators - 1).bit_length())
    delay_bits = (longest - shortest).bit_length()
    shifts = narrow_shifts(network)
    wide = target_bits + delay_bits > 16 or any(one.index not in shifts for one in static)
    if target_bits + delay_bits > 32 or slots * accumulators >= 2**31:
        raise InvalidArgument(
            f"delays of up to {longest:,} steps onto {neurons:,} neurons do not fit a synapse on a GPU. Shorten them, "
            "or use device='cpu'."
        )
    modulators, rhythms = len(network.neuromodulators), len(network.rhythms)
    fixed = (
        16 * blocks + CONTROL_BYTES + 8 * LIST + 8 * (-(-(cells + 3) // 8) * 8) + _padded(-(-cells // 32) * 8)
        + _padded(POPULATION.itemsize * len(parts)) + 16 * len(parts) + _padded(4 * blocks) + _padded(4 * tables)
        + _padded(4 * constants)
        + _padded(4 * modulators) + _padded(4 * (modulators + rhythms))
    )  # fmt: skip
    if plastic:
        fixed += 8 * LIST
    word_bytes = 8 if wide else 4
    usual = _usual_segment(static, blocks)
    inline = _inlined(static, blocks, word_bytes)
    many = blocks * (blocks * cells + outside) > FEW_SEGMENTS
    compact = not urgent and (not registers or (many and SPARSE * usual < inline))
    inline = 0 if compact else inline
    ring = 4 * slots * accumulators
    stages = PREFETCHED * (threads // device.warp) * (HEAD_BYTES + word_bytes * inline)
    ring_in_shared = fixed + ring <= device.shared_bytes
    staged = registers and ring_in_shared and not (urgent or compact) and fixed + ring + stages <= device.shared_bytes
    if fixed > device.shared_bytes:
        raise InvalidArgument(f"{len(network.populations):,} populations have too many constants for {device.name}")
    fixed += (ring if ring_in_shared else 0) + (stages if staged else 0)
    of_queues = _padded(4 * (accumulators + slots))
    queued = (
        compact and not ring_in_shared and blocks * ring > LARGEST_RING and fixed + of_queues <= device.shared_bytes
    )
    fixed += of_queues if queued else 0
    room = max(LEAST_QUEUE, round(sum(one.expected_synapses for one in static) / (blocks * slots * QUEUE_SHARE)))
    listed = LIST
    while compact and listed < min(LONGEST_LIST, neurons) and fixed + 8 * listed <= device.shared_bytes:
        fixed += 8 * listed
        listed *= 2
    lanes, at_once, words_at_once = _delivery(usual, device.warp) if compact else (_lanes(usual, device.warp), 1, 4)
    shape = Shape(
        threads=threads, neurons_per_thread=per_thread if registers else min(BATCH, per_thread), receptors=receptors,
        state_rows=rows, lag=lag,
        urgent=urgent, lookahead=lookahead,
        random=any(bool(part.population.model.draws) for part in parts), wide=wide,
        target_bits=target_bits,
        inline=inline, prefetched=PREFETCHED if staged else 0,
        compact=compact, shifted=not wide and any(shifts[one.index] for one in static),
        queued=queued, one_slot=slots == 1, list=listed,
        segment_lanes=lanes, segments_at_once=at_once, words_at_once=words_at_once,
        ring_in_shared=ring_in_shared, states_in_registers=registers,
        counts_populations=bool(network.modulations), signals=bool(modulators or rhythms), plastic=plastic,
        pulses=bool(network.current_inputs), probes=any(one.what != "spikes" for one in network.probes),
        outside=outside > 0, rates=rates, rate_inputs=rate_inputs, warp=device.warp,
    )  # fmt: skip
    # Messages are kept as long as spikes can arrive at plastic synapses.
    plastic_delays = [network.delay_bounds_steps(one)[1] for one in network.projections if one.plasticity]
    message_slots = 1 << (2 * lag + 4 + max(plastic_delays, default=0)).bit_length()
    return Grid(
        blocks,
        cells,
        neurons,
        accumulators,
        slots,
        message_slots,
        shape,
        fixed,
        room if queued else 0,
        shortest,
    )


def _inlined(static: Sequence[Projection], blocks: int, word_bytes: int) -> int:
    """Return the number of words of a record, chosen so that most segments fit and need no second memory access."""
    by_source: dict[int, float] = {}
    for one in static:
        by_source[one.pre.index] = by_source.get(one.pre.index, 0.0) + one.expected_synapses / one.pre.n / blocks
    usual = max(by_source.values(), default=0.0)
    wanted = HEAD_BYTES + word_bytes * (usual + 1.5 * usual**0.5)
    nbytes = next((size for size in RECORD_SIZES if size >= wanted), RECORD_SIZES[0])
    return (nbytes - HEAD_BYTES) // word_bytes


def _usual_segment(static: Sequence[Projection], blocks: int) -> float:
    """Return the mean number of synapses of a source onto the neurons of a block."""
    sources = {one.pre.index: one.pre.n for one in static}
    return sum(one.expected_synapses for one in static) / max(1, sum(sources.values())) / blocks


def _lanes(usual: float, warp: int) -> int:
    """Return a power of two of about half the synapses of a segment, at most a warp."""
    lanes = 1
    while 4 * lanes <= usual and lanes < warp:
        lanes *= 2
    return lanes


def _delivery(usual: float, warp: int) -> tuple[int, int, int]:
    """Return the lanes that deliver a segment, how many segments they deliver at once, and how many words of each."""
    if usual < 3:
        return 1, 4, 2
    if usual < 32:
        return min(2, warp), 4, 4
    return min(4, warp), 1, 16


def _padded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16
