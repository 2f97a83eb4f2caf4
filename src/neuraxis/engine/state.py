"""Export and import of the complete state of a shard, independent of how the network is divided into shards.

Everything that belongs to a neuron (states, random stream, weights of its synapses, recent spikes for plasticity) is
ordered by the neurons of the population, and the synapses of a neuron by source and delay. The concatenated pieces of
several shards are therefore the same arrays for any number of shards. What is equal on all shards (traces of sources,
neuromodulators) is taken from one of them.

Static synapses are not part of the state: they are drawn again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import tables as w
from neuraxis.engine.cpu.plastic_tables import PlasticTable
from neuraxis.engine.cpu.rates import Outputs
from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.neurons import NeuronPart
from neuraxis.engine.random import GOLDEN

__all__ = [
    "COUNTS",
    "STREAM",
    "Piece",
    "Saved",
    "ShardState",
    "export_state",
    "install_state",
    "received_spikes",
    "state_hash",
]

Array = NDArray[np.generic]
STREAM = "random stream"
COUNTS = "spikes so far"


@dataclass
class Piece:
    """Arrays of the neurons `first` to `last` of a population, or of the synapses onto them."""

    first: int
    last: int
    arrays: dict[str, Array]


@dataclass
class ShardState:
    """The exported state of a shard.

    `spike_steps` and `spike_ids` are the spikes that are still in transit, `outputs` (by population) the outputs.
    """

    step: int
    populations: dict[int, Piece]
    projections: dict[int, Piece]
    sources: dict[int, dict[str, Array]]  # by projection: the state of its segments
    spike_steps: NDArray[np.int64]
    spike_ids: NDArray[np.int64]
    levels: NDArray[np.float32]
    spike_counts: NDArray[np.int64]
    events: int
    spike_hash: int
    pending_steps: NDArray[np.int64]  # injected spikes of future steps
    pending_ids: NDArray[np.int64]
    silent: NDArray[np.int64]  # populations
    frozen: NDArray[np.int64]  # projections
    outputs: dict[int, Outputs] = field(default_factory=dict)


class Saved(Protocol):
    """A saved state of the whole network."""

    step: int
    spike_steps: NDArray[np.int64]
    spike_ids: NDArray[np.int64]
    levels: NDArray[np.float32]
    spike_counts: NDArray[np.int64]  # of all shards together
    events: int
    spike_hash: int
    pending_steps: NDArray[np.int64]  # of all shards together
    pending_ids: NDArray[np.int64]
    silent: NDArray[np.int64]
    frozen: NDArray[np.int64]

    def neurons(self, population: int, first: int, last: int) -> Mapping[str, Array]:
        """Return the arrays of some neurons, one value (or row) for each."""

    def synapses(self, projection: int, first: int, last: int) -> Mapping[str, Array]:
        """Return the arrays of the synapses onto some neurons; `in_degrees` has one value for each neuron."""

    def sources(self, projection: int) -> Mapping[str, Array]:
        """Return the state of the segments of a projection."""

    def outputs(self, population: int) -> Sequence[Outputs]:
        """Return the outputs in transit that were saved of a population."""


def export_state(shard: Shard) -> ShardState:
    """Return a complete copy of the state of a shard."""
    shard.flush()
    steps, ids = _spikes_in_transit(shard)
    pending_steps, pending_ids = shard.pending_spikes()
    return ShardState(
        step=shard.step,
        populations={part.part.population: _export_part(part) for part in shard.parts},
        projections={table.projection.index: _export_table(table) for table in shard.plastic},
        sources={table.projection.index: _export_sources(table) for table in shard.plastic},
        spike_steps=steps,
        spike_ids=ids,
        levels=shard.known_levels(),
        spike_counts=shard.spike_counts.copy(),
        events=shard.events,
        spike_hash=shard.spike_hash,
        pending_steps=pending_steps,
        pending_ids=pending_ids,
        silent=np.array(sorted(shard.silent), np.int64),
        frozen=np.array(sorted(shard.frozen), np.int64),
        outputs=shard.rates.export(shard.step),
    )


def install_state(shard: Shard, saved: Saved, totals: bool | None = None) -> None:
    """Replace the state of a shard by a saved state of the same network.

    One shard must take over the totals (spikes, events, hash): with `totals` this one, by default shard 0.
    """
    shard.take_over(weights=True)
    for part in shard.parts:
        given = saved.neurons(part.part.population, part.part.first, part.part.last)
        for name in part.layout.states:
            part.put_state(name, given[name])
        if part.layout.stream is not None:
            part.put_streams(np.ascontiguousarray(given[STREAM], np.uint32).T)
        part.spike_counts[:] = given[COUNTS]
    for table in shard.plastic:
        _install_table(table, saved)
    shard.update_full_flags()
    shard.accumulators[:] = 0
    shard._levels[:] = saved.levels
    # The other shards count from zero.
    first = shard.me == 0 if totals is None else totals
    shard._spikes[:] = saved.spike_counts if first else 0
    shard.spikes_installed = int(shard._spikes.sum())
    shard.control["events"] = saved.events if first else 0
    shard.control["hash"] = np.uint64(saved.spike_hash if first else 0).astype(np.int64)
    shard.control["recorded"] = 0
    shard.control["sampled"] = 0
    _put_spikes_in_transit(shard, saved)
    shard.rates.install(saved)
    shard.schedule_again(saved.step)
    shard.forget_injected()
    shard.resume(saved.step)
    shard.inject(saved.pending_steps, saved.pending_ids)
    shard.silence(int(population) for population in saved.silent)
    shard.freeze(int(projection) for projection in saved.frozen)


def state_hash(shard: Shard) -> int:
    """Return a hash of the states and plastic weights; the sum over all shards modulo 2**64 is that of the network.

    It is a sum over neurons and synapses, so it does not depend on their order.
    """
    shard.flush()
    total = 0
    for part in shard.parts:
        piece = _export_part(part)
        del piece.arrays[COUNTS]  # covered by the hash of the spikes
        ids = (part.population.first_id + np.arange(piece.first, piece.last)).astype(np.uint64)
        for place, name in enumerate(sorted(piece.arrays)):
            values = np.ascontiguousarray(piece.arrays[name]).view(np.uint32).reshape(len(ids), -1)
            for column in range(values.shape[1]):
                total += _sum_of_hashes(ids, 2 * place + column + 1, values[:, column])
    for table in shard.plastic_held:
        total += shard.hash_weights(table)
    for place in range(len(shard._levels)):
        if shard.owns_level(place):  # levels that several shards track count once
            one = shard._levels[place : place + 1]
            total += _sum_of_hashes(np.array([place], np.uint64), 999, one.view(np.uint32))
    return total % 2**64


def _sum_of_hashes(keys: NDArray[np.uint64], salt: int, values: NDArray[np.uint32]) -> int:
    with np.errstate(over="ignore"):
        mixed = _mix(_mix(keys + GOLDEN * np.uint64(salt)) ^ values.astype(np.uint64))
        return int(mixed.sum(dtype=np.uint64))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _export_part(part: NeuronPart) -> Piece:
    arrays: dict[str, Array] = {name: part.state(name) for name in part.layout.states}
    arrays[COUNTS] = part.spike_counts.copy()
    if part.layout.stream is not None:
        arrays[STREAM] = np.ascontiguousarray(part.streams().T)
    return Piece(part.part.first, part.part.last, arrays)


def _export_table(table: PlasticTable) -> Piece:
    order = table.by_target()
    part = table.accumulators.part
    arrays: dict[str, Array] = {
        "weights": table.weights[order],
        "in_degrees": np.bincount(table.targets, minlength=part.n).astype(np.int64),
        "scale_count": table.scale_count.copy(),
    }
    if table.kind == w.REWARD:
        arrays["eligibilities"] = table.eligibilities[order]
    if table.projection.pairing is not None:
        steps, traces = table.last_post_spikes(table.post_steps.shape[1])
        arrays |= {
            "post_steps": steps,
            "post_traces": traces,
            "post_counts": np.minimum(table.post_count, steps.shape[1]),
        }
    return Piece(part.first, part.last, arrays)


def _export_sources(table: PlasticTable) -> dict[str, Array]:
    if table.kind == w.PLAIN:
        return {}
    return {
        "last": table.last.copy(),
        "applied": table.applied.copy(),
        "trace": table.trace.copy(),
        "resource": table.resource.copy(),
    }


def _install_table(table: PlasticTable, saved: Saved) -> None:
    part = table.accumulators.part
    given = saved.synapses(table.projection.index, part.first, part.last)
    order = table.by_target()
    table.weights[order] = given["weights"]
    table.scale_count[:] = given["scale_count"]
    if table.kind == w.REWARD:
        table.eligibilities[order] = given["eligibilities"]
    if table.projection.pairing is not None:
        steps, traces = given["post_steps"].astype(np.int32), given["post_traces"].astype(np.float32)
        while steps.shape[1] > table.post_steps.shape[1]:
            table.set_capacity(2 * table.post_steps.shape[1])
        table.put_post_spikes(steps, traces, given["post_counts"].astype(np.int32))
    if table.kind != w.PLAIN:
        sources = saved.sources(table.projection.index)
        table.last[:] = sources["last"]
        table.applied[:] = sources["applied"]
        table.trace[:] = sources["trace"]
        table.resource[:] = sources["resource"]
    table.row["flushed"] = saved.step


def _spikes_in_transit(shard: Shard) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (steps, ids) of the spikes of this shard's neurons that can still arrive somewhere."""
    now, me, populations = shard.step, shard.me, len(shard.network.populations)
    steps, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for s in range(max(1, now - shard.longest_delay + 1), now + 1):
        if s <= now - shard.lags[me]:
            slot, first = s % shard.slots, shard._history_first[me]
            found = shard._history_ids[slot, first : first + shard._history_offsets[slot, me, populations]]
        else:
            buffer = shard.spike_buffers.slot(me, s)
            found = buffer[populations + 1 : populations + 1 + int(buffer[populations])]
        ids.append(found.astype(np.int64))
        steps.append(np.full(len(found), s))
    return np.concatenate(steps), np.concatenate(ids)


def received_spikes(shard: Shard) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (steps, ids) of the spikes received from other shards that can still arrive at this one."""
    now, populations = shard.step, len(shard.network.populations)
    steps, ids = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for worker, first in enumerate(shard._history_first):
        if worker == shard.me:
            continue
        for s in range(max(1, now - shard.longest_delay + 1), now - int(shard.lags[worker]) + 1):
            slot = s % shard.slots
            found = shard._history_ids[slot, first : first + shard._history_offsets[slot, worker, populations]]
            ids.append(found.astype(np.int64))
            steps.append(np.full(len(found), s))
    return np.concatenate(steps), np.concatenate(ids)


def _put_spikes_in_transit(shard: Shard, saved: Saved) -> None:
    now, me, populations = saved.step, shard.me, len(shard.network.populations)
    shard._history_offsets[:] = 0
    holder = np.empty(shard.network.neuron_count, np.int64)  # shard of each neuron
    for worker, slices in enumerate(shard.placement):
        for part in slices:
            first = shard.network.populations[part.population].first_id
            holder[first + part.first : first + part.last] = worker
    # Other shards read this shard's spikes from its buffer, each as far back as its lag.
    oldest_read = now - int(shard.spike_buffers.lags[:, me].max())
    for s in range(max(1, now - shard.longest_delay + 1), now + 1):
        ids = np.sort(saved.spike_ids[saved.spike_steps == s])
        for worker in range(len(shard.placement)):
            theirs = ids[holder[ids] == worker]
            offsets = np.searchsorted(theirs, shard._first_ids)
            if s <= now - shard.lags[worker]:
                slot, first = s % shard.slots, shard._history_first[worker]
                shard._history_ids[slot, first : first + len(theirs)] = theirs
                shard._history_offsets[slot, worker] = offsets
            if worker == me and s > oldest_read:
                buffer = shard.spike_buffers.slot(me, s)
                buffer[: populations + 1] = offsets
                buffer[populations + 1 : populations + 1 + len(theirs)] = theirs
