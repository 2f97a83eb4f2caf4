"""Tables that describe a shard to the GPU kernels: populations, inputs, given spikes, signals and probes.

`engine/cuda/tables.py` has the fields of each table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.codegen import BLOCK
from neuraxis.engine.cuda.device import Device, Memory
from neuraxis.engine.cuda.grid import Grid
from neuraxis.engine.cuda.program import FIRST_STATE_ROW
from neuraxis.engine.cuda.tables import BINDING, POISSON_INPUT, POPULATION, STATE_PROBE
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.random import poisson_table
from neuraxis.network import Network, Probe
from neuraxis.network.grid import to_steps

__all__ = [
    "PoissonTables",
    "binding_rows",
    "given_spikes",
    "poisson_rows",
    "population_rows",
    "probe_rows",
    "pulse_rows",
    "signal_places",
]

Rows = NDArray[np.void]

MOST_WORDS = 4096
_UNSIGNED = 1 << 23  # TABLE_IS_UNSIGNED of the kernels
_SLOW = -2  # SLOW_POISSON of the kernels: an input whose table is not in shared memory


class PoissonTables:
    """Tables of Poisson thresholds in shared memory, for inputs with one rate for all neurons, as long as they fit.

    Each table starts with a guide: the counts between which a draw lies, for each value of its first 8 bits. Means that
    are too high for the thresholds of `engine/random.py` have one, too; it gives the numbers that inverting the
    cumulative distribution gives (`engine/cpu/advance.py`).
    """

    def __init__(self, network: Network, parts: list[NeuronPart]) -> None:
        self._places: dict[bytes, int] = {}
        words: list[NDArray[np.uint32]] = [np.zeros(0, np.uint32)]
        used = 0
        here = {part.part.population for part in parts}
        for given in network.poisson_inputs:
            if given.population.index not in here or isinstance(given.rate_hz, np.ndarray):
                continue
            table = poisson_table(np.asarray(given.rate_hz) * network.dt_ms * 1e-3, 1)
            if _key(table) in self._places:
                continue
            is_signed = table.dtype == np.int32
            thresholds = (table.astype(np.int64) + 2**31).astype(np.uint32) if is_signed else _inverted(*table[0])
            added = np.concatenate([_guide(thresholds), thresholds])
            if used + len(added) > MOST_WORDS:
                break
            self._places[_key(table)] = used | (0 if is_signed else _UNSIGNED)
            words.append(added)
            used += len(added)
        self.words = np.concatenate(words)

    def place(self, table: NDArray[np.generic], receptor: int) -> int:
        """Return the position of a table of `engine/random.py`, combined with the receptor; or _SLOW."""
        found = self._places.get(_key(table))
        return _SLOW if found is None else found | receptor << 24


def _key(table: NDArray[Any]) -> bytes:
    """Return the same for tables that give the same numbers to all neurons, however many neurons they are for."""
    if table.dtype == np.int32:
        return table.tobytes()
    given = table[table[:, 0] > 0.0]  # the rest is padding
    return given[0].tobytes() if len(given) and np.all(given == given[0]) else table.tobytes()


def _inverted(probability: float, mean: float) -> NDArray[np.uint32]:
    """Return thresholds for unsigned draws, from exp(-mean) and the mean: the count is the number of those exceeded.

    Inverting compares draw * 2**-32 with the cumulative probabilities, all as float64.
    """
    reached, thresholds = float(probability), list[int]()
    while reached * 2.0**32 <= 2.0**32 - 1 and probability > 0.0:
        thresholds.append(max(0, ceil(reached * 2.0**32) - 1))
        probability = probability * mean / len(thresholds)
        reached += probability
    return np.array(thresholds, np.uint32)


def _guide(thresholds: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return how many thresholds each multiple of 2**24 exceeds, 16 bits each."""
    multiples = np.arange(257, dtype=np.uint64) << np.uint64(24)
    counts = np.searchsorted(thresholds.astype(np.uint64), multiples, side="left")
    return np.concatenate([counts, [0]]).astype(np.uint16).view(np.uint32)


# Fields of a population that are also fields of the CPU's slices.
_SAME_AS_ON_CPU = (
    "silent", "poisson_first", "poisson_end", "pulse_first", "pulse_end", "plastic_first", "plastic_end", "first_id",
    "record",
)  # fmt: skip


def population_rows(
    parts: Sequence[NeuronPart],
    given: NDArray[np.void],
    models: Sequence[int],
    lengths: Sequence[int],
    first_places: NDArray[np.int64],
) -> Rows:
    """Return the rows of populations, from those of the CPU, with the number of the model and the constants of each."""
    rows = np.zeros(len(parts), POPULATION)
    for name in _SAME_AS_ON_CPU:
        rows[name] = given[name]
    rows["model"] = models
    rows["constants"] = np.cumsum([0, *lengths])[:-1]
    rows["receptors"] = [part.accumulators.rows for part in parts]
    rows["own_current"] = [part.layout.current is not None for part in parts]
    rows["first_place"] = first_places[: len(parts)]
    return rows


def given_spikes(
    inputs: Sequence[NDArray[np.uint64]], first_places: NDArray[np.int64], blocks: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the given spikes (step << 32 | cell) ordered by block, and the start of each block."""
    entries, homes = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for one, start in zip(inputs, first_places, strict=False):
        q = (one & np.uint64(0xFFFFFFFF)).astype(np.int64) + int(start)
        entries.append(one >> np.uint64(32) << np.uint64(32) | (q // blocks).astype(np.uint64))
        homes.append(q % blocks)
    entry, block = np.concatenate(entries), np.concatenate(homes)
    order = np.lexsort((entry, block))
    return entry[order], np.searchsorted(block[order], np.arange(blocks + 1)).astype(np.int64)


def poisson_rows(
    given: NDArray[np.void], tables: Sequence[NDArray[np.generic]], shared: PoissonTables, device: Device
) -> tuple[Rows, list[Memory]]:
    """Return the rows of Poisson inputs, from those of the CPU, and the device memory that they point to."""
    kept = [device.put(table) for table in tables]
    rows = np.zeros(len(tables), POISSON_INPUT)
    for name in ("weight", "start", "stop"):
        rows[name] = given[name]
    rows["receptor"] = given["receptor_bytes"] // (4 * BLOCK)
    for row, table, memory in zip(rows, tables, kept, strict=True):
        row["thresholds"] = len(table) if table.dtype == np.int32 else 0
        row["table"], row["table_place"] = memory.address, shared.place(table, int(row["receptor"]))
    return rows, kept


def pulse_rows(
    given: NDArray[np.void], values: Sequence[NDArray[np.float32] | None], device: Device
) -> tuple[Rows, list[Memory | None]]:
    """Return the rows of injected currents, from those of the CPU, and the device memory that they point to."""
    kept = [None if one is None else device.put(one) for one in values]
    rows = given.copy()
    rows["values"] = [0 if memory is None else memory.address for memory in kept]
    return rows, kept


def signal_places(network: Network) -> dict[str, int]:
    """Return the index of each neuromodulator and rhythm among the signals."""
    places = {one.name: one.index for one in network.neuromodulators}
    return places | {one.name: len(places) + one.index for one in network.rhythms}


def binding_rows(network: Network, parts: Sequence[NeuronPart], lengths: Sequence[int]) -> Rows:
    """Return the rows of constants that follow a signal; `lengths` are the numbers of constants of the parts."""
    bindings, first, places = [], 0, signal_places(network)
    for part, length in zip(parts, lengths, strict=True):
        bindings += [(first + at, places[signal]) for at, signal in part.signal_places().items()]
        first += length
    return np.array(bindings, BINDING)


def probe_rows(
    sampled: Iterable[tuple[Probe, NeuronPart, NDArray[np.int64], NDArray[np.int64]]],
    first_place: dict[int, int],
    grid: Grid,
    dt_ms: float,
    device: Device,
) -> tuple[Rows, list[tuple[int, int]], list[Memory]]:
    """Return the rows of state probes, (steps between samples, neurons) of each, and the memory that they point to."""
    rows, numbers, kept = [], [], []
    for probe, part, _, ids in sampled:
        q = first_place[part.part.population] + ids
        cells = q // grid.blocks | np.arange(len(q)) << 32
        order = np.argsort(q % grid.blocks, kind="stable")
        starts = np.searchsorted((q % grid.blocks)[order], np.arange(grid.blocks + 1))
        memory = [device.put(starts.astype(np.int64)), device.put(cells[order].astype(np.int64))]
        every = to_steps(probe.every_ms or 0.0, dt_ms, "every_ms")
        row = FIRST_STATE_ROW + part.layout.states.index(probe.what)
        rows.append((row, every, len(q), memory[0].address, memory[1].address))
        numbers.append((every, len(q)))
        kept += memory
    return np.array(rows, STATE_PROBE), numbers, kept
