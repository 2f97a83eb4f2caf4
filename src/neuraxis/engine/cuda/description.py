"""A shard described to the kernels, as rows: its populations, inputs, given spikes, signals and probes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import plan as w
from neuraxis.engine.cuda.device import Device, Memory
from neuraxis.engine.cuda.grid import Grid
from neuraxis.engine.cuda.poisson_tables import PoissonTables
from neuraxis.engine.cuda.program import FIRST_STATE_ROW
from neuraxis.engine.cuda.words import word
from neuraxis.engine.generated import BLOCK
from neuraxis.engine.neurons import NeuronPart
from neuraxis.network import Network, Probe
from neuraxis.network.grid import to_steps

__all__ = [
    "given_spikes",
    "poisson_rows",
    "population_rows",
    "probe_rows",
    "pulse_rows",
    "signal_places",
    "tie_rows",
]

Rows = NDArray[np.int64]


def population_rows(
    parts: Sequence[NeuronPart], given: Rows, models: Sequence[int], lengths: Sequence[int], first_places: Rows
) -> Rows:
    """Populations, from the CPU's rows: their models by number, and so many constants of each, one after the other."""
    rows = np.zeros((len(parts), word("Q_WORDS")), np.int64)
    first = 0
    for i, (row, part, one) in enumerate(zip(rows, parts, given, strict=True)):
        row[word("Q_MODEL")], row[word("Q_CONSTANTS")] = models[i], first
        row[word("Q_RECEPTORS")] = len(part.population.model.receptors)
        row[word("Q_SILENT")], row[word("Q_OWN_CURRENT")] = one[w.S_SILENT], part.layout.current is not None
        row[word("Q_POISSON_FIRST")], row[word("Q_POISSON_END")] = one[w.S_POISSON_FIRST], one[w.S_POISSON_END]
        row[word("Q_PULSE_FIRST")], row[word("Q_PULSE_END")] = one[w.S_PULSE_FIRST], one[w.S_PULSE_END]
        row[word("Q_FIRST_PLACE")] = first_places[i]
        row[word("Q_FIRST_ID")], row[word("Q_RECORD")] = one[w.S_FIRST_ID], one[w.S_RECORD]
        row[word("Q_PLASTIC_FIRST")], row[word("Q_PLASTIC_END")] = one[w.S_PLASTIC_FIRST], one[w.S_PLASTIC_END]
        first += lengths[i]
    return rows


def given_spikes(
    inputs: Sequence[NDArray[np.uint64]], first_places: Rows, blocks: int
) -> tuple[NDArray[np.uint64], Rows]:
    """Who has to spike when (step << 32 | cell), block by block, from the CPU's arrays; and where a block's begin."""
    entries, homes = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for one, start in zip(inputs, first_places, strict=False):
        q = (one & np.uint64(0xFFFFFFFF)).astype(np.int64) + int(start)
        entries.append(one >> np.uint64(32) << np.uint64(32) | (q // blocks).astype(np.uint64))
        homes.append(q % blocks)
    entry, block = np.concatenate(entries), np.concatenate(homes)
    order = np.lexsort((entry, block))
    return entry[order], np.searchsorted(block[order], np.arange(blocks + 1)).astype(np.int64)


def poisson_rows(
    given: Rows, tables: Sequence[NDArray[np.generic]], at_hand: PoissonTables, device: Device
) -> tuple[Rows, list[Memory]]:
    """Poisson inputs, from the CPU's rows and what these point to; and the memory that the new ones point to."""
    kept = [device.put(table) for table in tables]
    rows = np.zeros((len(tables), word("G_WORDS")), np.int64)
    for row, one, table, memory in zip(rows, given, tables, kept, strict=True):
        receptor = int(one[w.I_RECEPTOR_BYTES]) // (4 * BLOCK)
        row[word("G_THRESHOLDS")] = len(table) if table.dtype == np.int32 else 0
        row[word("G_TABLE")], row[word("G_TABLE_PLACE")] = memory.address, at_hand.place(table, receptor)
        row[word("G_WEIGHT")], row[word("G_RECEPTOR")] = one[w.I_WEIGHT], receptor
        row[word("G_START")], row[word("G_STOP")] = one[w.I_START], one[w.I_STOP]
    return rows, kept


def pulse_rows(
    given: Rows, values: Sequence[NDArray[np.float32] | None], device: Device
) -> tuple[Rows, list[Memory | None]]:
    """Pulses of current, in the same way."""
    kept = [None if one is None else device.put(one) for one in values]
    rows = np.zeros((len(values), word("U_WORDS")), np.int64)
    for row, one, memory in zip(rows, given, kept, strict=True):
        row[word("U_START")], row[word("U_STOP")] = one[w.C_START], one[w.C_STOP]
        row[word("U_BITS")], row[word("U_VALUES")] = one[w.C_BITS], 0 if memory is None else memory.address
    return rows, kept


def signal_places(network: Network) -> dict[str, int]:
    """Where the kernels keep the value of each neuromodulator and rhythm."""
    places = {one.name: one.index for one in network.neuromodulators}
    return places | {one.name: len(places) + one.index for one in network.rhythms}


def tie_rows(network: Network, parts: Sequence[NeuronPart], lengths: Sequence[int]) -> Rows:
    """Which word of all constants follows which signal; `lengths` are the words of each part's constants."""
    ties, first, places = [], 0, signal_places(network)
    for part, length in zip(parts, lengths, strict=True):
        ties += [[first + at, places[signal]] for at, signal in part.signal_places().items()]
        first += length
    return np.array(ties, np.int64).reshape(-1, 2)


def probe_rows(
    sampled: Iterable[tuple[Probe, NeuronPart, NDArray[np.int64], NDArray[np.int64]]],
    first_place: dict[int, int],
    grid: Grid,
    dt_ms: float,
    device: Device,
) -> tuple[Rows, list[tuple[int, int]], list[Memory]]:
    """The probes of states, each with its neurons block by block; (steps between samples, neurons) of each."""
    rows, numbers, kept = [], [], []
    for probe, part, _, ids in sampled:
        q = first_place[part.part.population] + ids
        cells = q // grid.blocks | np.arange(len(q)) << 32
        order = np.argsort(q % grid.blocks, kind="stable")
        starts = np.searchsorted((q % grid.blocks)[order], np.arange(grid.blocks + 1))
        memory = [device.put(starts.astype(np.int64)), device.put(cells[order].astype(np.int64))]
        every = to_steps(probe.every_ms or 0.0, dt_ms, "every_ms")
        row = FIRST_STATE_ROW + part.layout.states.index(probe.what)
        rows.append([row, every, len(q), memory[0].address, memory[1].address])
        numbers.append((every, len(q)))
        kept += memory
    return np.array(rows, np.int64).reshape(-1, word("B_WORDS")), numbers, kept
