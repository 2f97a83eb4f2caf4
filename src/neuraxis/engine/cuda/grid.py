"""How a shard is laid out on a GPU: its neurons on the blocks of a grid, and what fits where.

Neuron number q of the shard (its populations one after the other) is cell q // blocks of block q % blocks, so that
every block has its share of every population. With state in registers and the ring of what is still to arrive in
shared memory, nothing of a neuron touches the card's memory between two steps; where that does not fit, both lie in
the card's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.device import Device
from neuraxis.engine.cuda.program import FIRST_STATE_ROW, Shape, foresees
from neuraxis.engine.cuda.words import word
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.static_tables import narrow_shifts
from neuraxis.errors import InvalidArgument
from neuraxis.network import Network, Projection

__all__ = ["Grid", "first_places", "lay_out"]

MOST_THREADS = 1024
USUAL_THREADS = 768
MOST_EACH = 2  # neurons of a thread whose states stay in registers
MOST_ROWS = 24  # of such a neuron
NEURONS_OF_A_BLOCK = 64  # at least, where there are few
MOST_CELLS = 0x7FFF
LIST = 1024
AT_ONCE = 2
DESK_BYTES = 256
RECORD_SIZES, HEAD_BYTES = (64, 128, 256), 16
LONGEST_AGE = 63
LARGEST_ROWS = 1 << 26


@dataclass(frozen=True)
class Grid:
    """Numbers of things, and what the kernels are compiled for."""

    blocks: int
    cells: int  # places for neurons in a block
    neurons: int
    accumulators: int  # of a block, for one step
    slots: int
    lines: int
    shape: Shape
    shared_bytes: int

    @property
    def places(self) -> int:
        return self.blocks * self.cells

    def to_cells(self, values: NDArray[np.generic], empty: int = 0) -> NDArray[np.generic]:
        """Values of the shard's neurons, in the order of the cells of all blocks."""
        padded = np.full(self.places, empty, values.dtype)
        padded[: self.neurons] = values
        return np.ascontiguousarray(padded.reshape(self.cells, self.blocks).T).reshape(-1)

    def from_cells(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.ascontiguousarray(values.reshape(self.blocks, self.cells).T).reshape(-1)[: self.neurons]

    def row_of(self, q: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of records, and the cell among all, of neurons of the shard."""
        rows: NDArray[np.int64] = q % self.blocks * self.cells + q // self.blocks
        return rows


def first_places(parts: Sequence[NeuronPart]) -> dict[int, int]:
    """By population: the number among the shard's neurons of its first one."""
    ends = np.cumsum([part.part.n for part in parts])
    return {part.part.population: int(end) - part.part.n for part, end in zip(parts, ends, strict=True)}


def lay_out(
    network: Network, parts: list[NeuronPart], own_lag: int, constants: int, tables: int, outside: int, device: Device,
    plastic: bool, alone: bool,
) -> Grid:  # fmt: skip
    """Choose the numbers for a shard.

    `own_lag`: the shortest delay between the shard's own neurons; `constants` and `tables`: words of them that all
    blocks keep at hand; `outside`: neurons of other shards that are heard here; `alone`: none is felt in the next step.
    """
    neurons = sum(part.part.n for part in parts)
    receptors = max((len(part.population.model.receptors) for part in parts), default=1) or 1
    rows = FIRST_STATE_ROW + max((len(part.population.model.states) for part in parts), default=0)
    blocks = max(1, min(device.multiprocessors, -(-neurons // NEURONS_OF_A_BLOCK)))
    cells = -(-max(1, neurons) // blocks)
    if cells > MOST_CELLS:
        raise InvalidArgument(
            f"{neurons:,} neurons on {device.name}: {blocks * MOST_CELLS:,} are the most; use device='cpu' with workers"
        )
    if blocks * cells + outside >= LARGEST_ROWS:
        raise InvalidArgument(f"{neurons + outside:,} neurons: {LARGEST_ROWS:,} are the most that a GPU can hear")
    threads = min(MOST_THREADS, max(device.warp * 4, -(-cells // device.warp) * device.warp))
    if device.warp == 32:
        threads = max(threads, USUAL_THREADS)  # deliveries want warps, too
    each = -(-cells // threads)
    registers = each <= MOST_EACH and rows <= MOST_ROWS

    longest = max([network.delay_bounds_steps(one)[1] for one in network.projections if not one.plasticity], default=1)
    slots = max(2, 1 << max(0, longest - 1).bit_length())
    accumulators = receptors * cells
    target_bits = max(1, (accumulators - 1).bit_length())
    delay_bits = max(0, longest - 1).bit_length()
    static = [one for one in network.projections if not one.plasticity]
    shifts = narrow_shifts(network)
    wide = target_bits + delay_bits > 16 or any(one.index not in shifts for one in static)
    if target_bits + delay_bits > 32 or slots * accumulators >= 2**31:
        raise InvalidArgument(
            f"delays of up to {longest:,} steps onto {neurons:,} neurons do not fit a synapse on a GPU; shorten them, "
            "or use device='cpu'"
        )
    # Where spikes are felt in the very next step, the mail is on the critical path. If every model knows its spikes one
    # step ahead, they are told of then; else what is felt at once is delivered first.
    foresight = own_lag == 1 and alone and registers and all(foresees(p.population.model, network.dt_ms) for p in parts)
    urgent = (own_lag == 1 or not alone) and not foresight
    lag = 0 if foresight else min(LONGEST_AGE, max(1, own_lag - 1))
    modulators, rhythms = len(network.neuromodulators), len(network.rhythms)
    fixed = (
        16 * blocks + DESK_BYTES + 8 * LIST + 8 * (-(-(cells + 3) // 8) * 8) + _padded(-(-cells // 32) * 8)
        + _padded(8 * word("Q_WORDS") * len(parts)) + _padded(4 * tables) + _padded(4 * constants)
        + _padded(4 * modulators) + _padded(4 * (modulators + rhythms))
    )  # fmt: skip
    if plastic:
        fixed += 8 * LIST
    word_bytes = 8 if wide else 4
    inline = _inlined(static, blocks, word_bytes) if registers or urgent else 0
    ring = 4 * slots * accumulators
    stages = AT_ONCE * (threads // device.warp) * (HEAD_BYTES + word_bytes * inline)
    ring_in_shared = fixed + ring <= device.shared_bytes
    staged = registers and ring_in_shared and not urgent and fixed + ring + stages <= device.shared_bytes
    if fixed > device.shared_bytes:
        raise InvalidArgument(f"{len(network.populations):,} populations have too many constants for {device.name}")
    shape = Shape(
        threads=threads, each=each, receptors=receptors, state_rows=rows, lag=lag, urgent=urgent, foresight=foresight,
        random=any(part.population.model.takes_uniform for part in parts), wide=wide,
        target_bits=target_bits,
        inline=inline, at_once=AT_ONCE if staged else 0,
        segment_lanes=_lanes(static, blocks, device.warp),
        ring_in_shared=ring_in_shared, states_in_registers=registers,
        counts_populations=bool(network.modulations), signals=bool(modulators or rhythms), plastic=plastic,
        pulses=bool(network.current_inputs), probes=any(one.what != "spikes" for one in network.probes),
        outside=outside > 0, warp=device.warp,
    )  # fmt: skip
    # The mail is kept as long as plastic synapses may look for it.
    plastic_delays = [network.delay_bounds_steps(one)[1] for one in network.projections if one.plasticity]
    lines = 1 << (2 * lag + 4 + max(plastic_delays, default=0)).bit_length()
    return Grid(
        blocks,
        cells,
        neurons,
        accumulators,
        slots,
        lines,
        shape,
        fixed + (ring if ring_in_shared else 0) + (stages if staged else 0),
    )


def _inlined(static: Sequence[Projection], blocks: int, word_bytes: int) -> int:
    """How many words a record has room for: so many that most segments need no second look into memory."""
    by_source: dict[int, float] = {}
    for one in static:
        by_source[one.pre.index] = by_source.get(one.pre.index, 0.0) + one.expected_synapses / one.pre.n / blocks
    usual = max(by_source.values(), default=0.0)
    wanted = HEAD_BYTES + word_bytes * (usual + 1.5 * usual**0.5)
    nbytes = next((size for size in RECORD_SIZES if size >= wanted), RECORD_SIZES[0])
    return (nbytes - HEAD_BYTES) // word_bytes


def _lanes(static: Sequence[Projection], blocks: int, warp: int) -> int:
    """About half as many lanes as a segment has synapses: a power of two, and a warp at most."""
    sources = {one.pre.index: one.pre.n for one in static}
    usual = sum(one.expected_synapses for one in static) / max(1, sum(sources.values())) / blocks
    lanes = 1
    while 4 * lanes <= usual and lanes < warp:
        lanes *= 2
    return lanes


def _padded(nbytes: int) -> int:
    return -(-nbytes // 16) * 16
