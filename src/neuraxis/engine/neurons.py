"""The neurons of a shard: states, constants and random streams of each slice, in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled
from neuraxis.engine.codegen import BLOCK, CONSTANTS, BlockLayout
from neuraxis.engine.cpu.static_tables import Accumulators
from neuraxis.engine.encoding import initial_values
from neuraxis.engine.placement import Slice
from neuraxis.engine.random import PURPOSE_STREAM, key_of
from neuraxis.network import Network, Population
from neuraxis.network.distributions import as_distribution

__all__ = ["NeuronPart", "make_parts"]


@dataclass
class NeuronPart:
    """The neurons of one slice."""

    part: Slice
    population: Population
    layout: BlockLayout
    blocks: NDArray[np.float32] | NDArray[np.float64]  # (blocks, rows, BLOCK)
    constants: NDArray[np.float32] | NDArray[np.float64]
    accumulators: Accumulators
    spike_counts: NDArray[np.int32]  # spikes of each neuron so far
    extra: tuple[int, ...] = ()  # receptors of the additional accumulators (see `Network.accumulators`)

    @property
    def _word(self) -> type[np.uint32] | type[np.uint64]:
        return np.uint64 if self.layout.is_wide else np.uint32

    def row(self, row: int) -> NDArray[np.uint32] | NDArray[np.uint64]:
        """Return a copy of one row for all neurons, as bits."""
        words = np.ascontiguousarray(self.blocks[:, row, :].view(self._word))
        return words.reshape(-1)[: self.part.n].copy()

    def put_row(self, row: int, bits: NDArray[np.generic]) -> None:
        padded = np.zeros(self.blocks.shape[0] * BLOCK, self._word)
        padded[: self.part.n] = bits
        self.blocks[:, row, :] = padded.reshape(-1, BLOCK).view(self.blocks.dtype)

    def state(self, name: str) -> NDArray[np.generic]:
        """Return a state of all neurons of the slice: float32, in networks in float64 float64, or int32."""
        place = self.layout.states.index(name)
        bits = self.row(place)
        return bits.astype(np.uint32).view(np.int32) if self.layout.is_integer[place] else bits.view(self.blocks.dtype)

    def put_state(self, name: str, values: NDArray[np.generic]) -> None:
        place = self.layout.states.index(name)
        self._put_values(place, values, self.layout.is_integer[place])

    def put_parameters(self) -> None:
        """Fill the rows of the constants that differ between neurons."""
        rows = self.population.model.rows.values()
        for place, one in enumerate(rows, start=self.layout.first_parameter):
            self._put_values(place, one.array[self.part.first : self.part.last], one.is_integer)

    def _put_values(self, row: int, values: NDArray[np.generic], whole: bool) -> None:
        kind = (np.int64 if self.layout.is_wide else np.int32) if whole else self.blocks.dtype
        self.put_row(row, np.ascontiguousarray(values).astype(kind).view(self._word))

    def streams(self) -> NDArray[np.uint32]:
        """Return the random streams as an array of shape (2, n)."""
        assert self.layout.stream is not None
        if self.layout.is_wide:
            both = self.blocks[:, self.layout.stream, :].view(np.uint32).reshape(-1, 2, BLOCK)
        else:
            both = self.blocks[:, self.layout.stream : self.layout.stream + 2, :].view(np.uint32)
        return both.transpose(1, 0, 2).reshape(2, -1)[:, : self.part.n].copy()

    def put_streams(self, streams: NDArray[np.uint32]) -> None:
        assert self.layout.stream is not None
        padded = np.zeros((2, self.blocks.shape[0] * BLOCK), np.uint32)
        padded[:, : self.part.n] = streams
        both = np.ascontiguousarray(padded.reshape(2, -1, BLOCK).transpose(1, 0, 2))
        if self.layout.is_wide:
            self.blocks[:, self.layout.stream, :] = both.reshape(len(both), -1).view(np.float64)
        else:
            self.blocks[:, self.layout.stream : self.layout.stream + 2, :] = both.view(np.float32)

    def signal_places(self) -> dict[int, str]:
        """Return the positions in `constants` that follow a signal, with the name of the rhythm or neuromodulator."""
        model = self.population.model
        first = len(model.receptors) + len(self.extra) + len(model.values(model.dt_ms or 0.0))
        return {first + place: name for place, name in enumerate(model.signals.values()) if isinstance(name, str)}


def make_parts(network: Network, slices: tuple[Slice, ...]) -> list[NeuronPart]:
    """Return the neurons of each slice as they are before the first step."""
    parts, first = [], 0
    driven = {one.population.index for one in network.poisson_inputs}
    own_current = {one.population.index for one in network.current_inputs if isinstance(one.amplitude_pa, np.ndarray)}
    for part in slices:
        population = network.populations[part.population]
        model = population.model
        layout = BlockLayout.of(model, poisson=part.population in driven, current=part.population in own_current)
        rows = network.accumulators(population)
        accumulators = Accumulators(part, first, len(rows))
        first += accumulators.blocks * accumulators.stride
        dtype = np.float64 if layout.is_wide else np.float32
        blocks = np.zeros((accumulators.blocks, max(1, layout.rows), BLOCK), dtype)
        made = NeuronPart(
            part, population, layout, blocks, _constants(network, population), accumulators, np.zeros(part.n, np.int32),
            tuple(row.receptor for row in rows[len(model.receptors) :]),
        )  # fmt: skip
        for place, (name, default) in enumerate(model.states.items()):
            distribution = population.initial.get(name, as_distribution(default, name))
            drawn = initial_values(distribution, network.seed, population.index, place, part.first, part.last)
            made.put_state(name, np.rint(drawn) if layout.is_integer[place] else drawn)
        made.put_parameters()
        if layout.stream is not None:
            streams = np.empty((2, part.n), np.uint32)
            _seed_streams(np.uint64(network.seed), population.index, part.first, streams)
            made.put_streams(streams)
        parts.append(made)
    return parts


def _constants(network: Network, population: Population) -> NDArray[np.float32] | NDArray[np.float64]:
    """Return what `codegen.update_function` reads: a scale for each accumulator, the constants, the signals."""
    model = population.model
    constants: NDArray[Any] = np.zeros(CONSTANTS, np.float64 if network.is_wide else np.float32)
    whole = constants.view(np.int64 if network.is_wide else np.int32)
    rows = network.accumulators(population)
    constants[: len(rows)] = [2.0**row.exponent for row in rows]
    values = [*model.values(network.dt_ms).values()]
    values += [0.0 if isinstance(signal, str) else signal for signal in model.signals.values()]
    for place, value in enumerate(values, start=len(rows)):
        (whole if isinstance(value, int) else constants)[place] = value
    return constants


@compiled
def _seed_streams(seed: np.uint64, population: int, first: int, streams: NDArray[np.uint32]) -> None:
    """Initialise the random streams of a population's neurons from `first` on; no state is zero."""
    for i in range(streams.shape[1]):
        key = key_of(seed, PURPOSE_STREAM, population, first + i)
        streams[0, i] = np.uint32(key & np.uint64(0xFFFFFFFF)) | np.uint32(1)
        streams[1, i] = np.uint32(key >> np.uint64(32))
