"""Spike buffers: ring buffers through which shards read each other's spikes, and the lags between shards.

**Lags.** A spike that shard b emits in step s affects shard a in step s + lag at the earliest; lag is the shortest
delay from any population of b to any of a. Shard a may therefore run step t as soon as b has completed step t - lag.
Shards that hold distant regions synchronise once in many steps, whatever the delays within the regions are.

**Slots.** A shard overwrites its spikes of step t - slots with those of step t. By then a has seen that b completed
step t - lag(a, b), and b reads step s of a while it runs step s + lag(b, a). Everything has been read if
slots >= lag(a, b) + lag(b, a).

**Outputs.** Behind the spikes of a step a slot holds the outputs of the shard's neurons that continuous connections
transmit (`engine/cpu/rates.py`), of all slices whose population is a source, in their order.

**Packing.** `pack_steps` and `unpack_steps` carry spikes where no memory is shared. Received spikes are not trusted: an
id of a neuron that the sender does not hold would index beyond its tables, so `spikes_are_valid` checks every number
before anything is written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.compiled import compiled, inner_function
from neuraxis.engine.memory import i32
from neuraxis.engine.placement import LONGEST_LAG, Placement, Slice, place
from neuraxis.network import Network, RewardSTDP
from neuraxis.network.grid import to_steps
from neuraxis.network.models import lif_delta

__all__ = [
    "LONGEST_LAG",
    "Listener",
    "SpikeBuffers",
    "clear_steps",
    "lags_between",
    "level_listeners",
    "links_between",
    "longest_delay",
    "longest_rate_lag",
    "pack_outputs",
    "pack_steps",
    "rate_sources",
    "spikes_are_valid",
    "unpack_outputs",
    "unpack_steps",
    "warm_up_packing",
]

Lags = NDArray[np.int64]


@dataclass(frozen=True)
class Listener:
    """A reader of a population's spikes on a shard, other than its neurons (a Python population, say).

    Attributes
    ----------
    shard, population : int
        The shard that reads, and the index of the population that is read.
    delay_steps : int
        Steps after which it needs the spikes.
    depth_steps : int
        Steps for which it may still read them.
    """

    shard: int
    population: int
    delay_steps: int
    depth_steps: int


def longest_delay(network: Network, listeners: Sequence[Listener] = ()) -> int:
    """Return the longest delay of all synapses, modulations and listeners, in steps."""
    longest = [network.delay_bounds_steps(projection)[1] for projection in network.projections]
    longest += [to_steps(one.delay_ms, network.dt_ms, "delay_ms") for one in network.modulations]
    longest += [one.depth_steps for one in listeners]
    return max(longest, default=1)


def rate_sources(network: Network) -> frozenset[int]:
    """Return the populations (indices) whose outputs continuous connections transmit."""
    return frozenset(projection.pre.index for projection in network.rate_projections)


def longest_rate_lag(network: Network) -> int:
    """Return the longest lag of all continuous connections in steps; 0 if there are none.

    The update to step t reads outputs of step t - lag. It begins at step t - 1, so the lag is one more than the delay.
    """
    return max((1 + network.delay_bounds_steps(projection)[1] for projection in network.rate_projections), default=0)


def level_listeners(network: Network, placement: Placement) -> list[frozenset[int]]:
    """Return for each neuromodulator the shards that track its level.

    If no spikes change the level, all shards track it. Otherwise only the shards with neurons or synapses that depend
    on it do, so that a neuromodulator of one region does not synchronise distant regions.
    """
    all_shards = frozenset(range(len(placement)))
    released = {one.modulator.name for one in network.modulations}
    found: list[frozenset[int]] = []
    for modulator in network.neuromodulators:
        dependent = {one.index for one in network.populations if modulator.name in one.model.signals.values()}
        dependent |= {
            one.post.index
            for one in network.projections
            if isinstance(one.pairing, RewardSTDP) and one.pairing.modulator == modulator.name
        }
        shards = frozenset(
            s for s, slices in enumerate(placement) if any(part.population in dependent for part in slices)
        )
        found.append(all_shards if modulator.name not in released else shards or frozenset({0}))
    return found


def links_between(network: Network, placement: Placement, listeners: Sequence[Listener] = ()) -> Lags:
    """Return links[a, b]: the shortest delay in steps from shard b to shard a; 0 if nothing on a depends on b."""
    shards = len(placement)
    holders: list[set[int]] = [set() for _ in network.populations]
    for shard, slices in enumerate(placement):
        for part in slices:
            holders[part.population].add(shard)
    links = np.zeros((shards, shards), np.int64)

    def link(readers: Collection[int], population: int, delay_steps: int) -> None:
        for a in readers:
            for b in holders[population]:
                links[a, b] = delay_steps if not links[a, b] else min(links[a, b], delay_steps)

    for projection in network.projections:
        link(holders[projection.post.index], projection.pre.index, network.delay_bounds_steps(projection)[0])
    for rates in network.rate_projections:
        link(holders[rates.post.index], rates.pre.index, 1 + network.delay_bounds_steps(rates)[0])
    trackers = level_listeners(network, placement)
    for one in network.modulations:
        delay = to_steps(one.delay_ms, network.dt_ms, "delay_ms")
        link(trackers[one.modulator.index], one.population.index, delay)
    for listener in listeners:
        link({listener.shard}, listener.population, listener.delay_steps)
    return links


def lags_between(network: Network, placement: Placement, listeners: Sequence[Listener] = ()) -> Lags:
    """Return lags[a, b]: shard a can run step t when shard b has completed step t - lags[a, b]."""
    links = links_between(network, placement, listeners)
    lags: Lags = np.where(links == 0, LONGEST_LAG, np.minimum(links, LONGEST_LAG))
    return lags


@dataclass
class SpikeBuffers:
    """The spike buffers of all shards: addresses in memory that shards may share.

    A slot holds the spikes of one step, int32 offsets by population and ids, then the float32 outputs.

    Attributes
    ----------
    addresses, strides : array of int64, shape (shards,)
        Address of each buffer, and bytes of one of its slots.
    done : array of int64, shape (shards,)
        Addresses of int64 words with the last completed step of each shard, in separate cache lines.
    lags : array of int64, shape (shards, shards)
        See `lags_between`.
    slots : int
        Slots of each buffer.
    output_places, output_counts : array of int64, shape (shards,)
        Position of the outputs in a slot of each buffer, in words of 4 bytes, and their number.
    keep : object
        The owner of the memory, kept alive.
    """

    addresses: NDArray[np.int64]
    strides: NDArray[np.int64]
    done: NDArray[np.int64]
    lags: Lags
    slots: int
    output_places: NDArray[np.int64]
    output_counts: NDArray[np.int64]
    keep: object = None

    def slot(self, shard: int, step: int) -> NDArray[np.int32]:
        """Return the slot of a shard's buffer that holds a step."""
        stride = int(self.strides[shard])
        address = int(self.addresses[shard]) + (step % self.slots) * stride
        return np.ctypeslib.as_array((ctypes.c_int32 * (stride // 4)).from_address(address))

    def outputs(self, shard: int) -> NDArray[np.float32]:
        """Return the outputs in all slots of a shard's buffer, of shape (slots, outputs)."""
        words = int(self.strides[shard]) // 4
        memory = (ctypes.c_float * (self.slots * words)).from_address(int(self.addresses[shard]))
        first = int(self.output_places[shard])
        slots: NDArray[np.float32] = np.ctypeslib.as_array(memory).reshape(self.slots, words)
        return slots[:, first : first + int(self.output_counts[shard])]

    @staticmethod
    def stride_for(network: Network, slices: tuple[Slice, ...]) -> int:
        size = 4 * (_output_place(network, slices) + _output_count(network, slices))
        return -(-size // 64) * 64

    @classmethod
    def size_for(cls, network: Network, placement: Placement, lags: Lags) -> int:
        """Return the bytes that the buffers of all shards need."""
        return 64 * len(placement) + sum(_slots(lags) * cls.stride_for(network, slices) for slices in placement)

    @classmethod
    def at(cls, address: int, network: Network, placement: Placement, lags: Lags, keep: object = None) -> SpikeBuffers:
        """Return buffers in zeroed memory of `size_for` bytes at an address."""
        shards, slots = len(placement), _slots(lags)
        strides = np.array([cls.stride_for(network, slices) for slices in placement], np.int64)
        starts = address + 64 * shards + np.concatenate(([0], np.cumsum(slots * strides)[:-1]))
        done = address + 64 * np.arange(shards, dtype=np.int64)
        places = np.array([_output_place(network, slices) for slices in placement], np.int64)
        counts = np.array([_output_count(network, slices) for slices in placement], np.int64)
        return cls(starts.astype(np.int64), strides, done, lags, slots, places, counts, keep)

    @classmethod
    def private(cls, network: Network, placement: Placement, lags: Lags | None = None) -> SpikeBuffers:
        """Return buffers in private memory of this process."""
        if lags is None:
            lags = lags_between(network, placement)
        memory = np.zeros(cls.size_for(network, placement, lags) + 64, np.uint8)
        address = -(-memory.ctypes.data // 64) * 64
        return cls.at(address, network, placement, lags, memory)


def _slots(lags: Lags) -> int:
    return int((lags + lags.T).max()) + 2


def _output_place(network: Network, slices: tuple[Slice, ...]) -> int:
    return len(network.populations) + 1 + sum(part.n for part in slices)


def _output_count(network: Network, slices: tuple[Slice, ...]) -> int:
    sources = rate_sources(network)
    return sum(part.n for part in slices if part.population in sources)


def pack_steps(
    buffers: SpikeBuffers, shard: int, populations: int, first: int, last: int
) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Return a shard's spikes in the steps first..last as (step - first, id), ordered by step and id."""
    address, stride = int(buffers.addresses[shard]), int(buffers.strides[shard])
    n = _count(address, stride, buffers.slots, populations, first, last)
    after, ids = np.empty(n, np.uint16), np.empty(n, np.int32)
    _pack(address, stride, buffers.slots, populations, first, last, after, ids)
    return after, ids


def pack_outputs(buffers: SpikeBuffers, shard: int, first: int, last: int) -> NDArray[np.float32]:
    """Return a shard's outputs in the steps first..last, one after the other; empty if it has none."""
    if not buffers.output_counts[shard]:
        return np.zeros(0, np.float32)
    return buffers.outputs(shard)[np.arange(first, last + 1) % buffers.slots].reshape(-1)


def unpack_outputs(
    buffers: SpikeBuffers, shard: int, first: int, last: int, values: NDArray[np.float32], earliest: int
) -> None:
    """Write the outputs of the steps first..last, from `earliest` on, to the buffer of a shard; 0 if there are none."""
    if not buffers.output_counts[shard] or last < earliest:
        return
    begin = max(first, earliest)
    given = values.reshape(last - first + 1, -1)[begin - first :] if values.size else np.float32(0.0)
    buffers.outputs(shard)[np.arange(begin, last + 1) % buffers.slots] = given


def spikes_are_valid(after: NDArray[np.uint16], ids: NDArray[np.int32], steps: int, held: NDArray[np.int64]) -> bool:
    """Return True if all steps and ids are in range, ordered, and of neurons that the shard holds.

    `held` has a row (first id, last id + 1) for each slice of the shard, in order.
    """
    return after.shape == ids.shape and bool(_are_valid(after, ids, steps, held))


def unpack_steps(
    buffers: SpikeBuffers, shard: int, first_ids: NDArray[np.int64], first: int, last: int,
    after: NDArray[np.uint16], ids: NDArray[np.int32], earliest: int,
) -> None:  # fmt: skip
    """Write the spikes of the steps first..last, from `earliest` on, to the buffer of a shard; they must be valid."""
    _unpack(
        int(buffers.addresses[shard]),
        int(buffers.strides[shard]),
        buffers.slots,
        first_ids,
        first,
        last,
        after,
        ids,
        earliest,
    )


def clear_steps(buffers: SpikeBuffers, shard: int, populations: int, first: int, last: int) -> None:
    """Write empty steps first..last to the buffer of a shard, without spikes and with outputs of 0."""
    unpack_outputs(buffers, shard, first, last, np.zeros(0, np.float32), first)
    _clear(int(buffers.addresses[shard]), int(buffers.strides[shard]), buffers.slots, populations, first, last)


def warm_up_packing() -> None:
    """Compile or load the kernels of this module."""
    network = Network()
    network.population("warm", 2, lif_delta)
    buffers = SpikeBuffers.private(network, place(network, 1))
    after, ids = pack_steps(buffers, 0, 1, 1, 2)
    held = np.array([[0, 2]], np.int64)
    spikes_are_valid(after, ids, 2, held)
    unpack_steps(buffers, 0, np.array([0, 2], np.int64), 1, 2, after, ids, 1)
    frozen = (
        np.frombuffer(b"", np.uint16),
        np.frombuffer(b"", np.int32),
    )  # received arrays are read-only, which is another Numba type
    spikes_are_valid(*frozen, 2, held)
    unpack_steps(buffers, 0, np.array([0, 2], np.int64), 1, 2, *frozen, 1)
    clear_steps(buffers, 0, 1, 1, 2)


@inner_function
def _slot(address: Any, stride: Any, slots: Any, step: Any) -> Any:
    return i32(address + step % slots * stride, stride // 4)


@compiled
def _count(address: Any, stride: Any, slots: Any, populations: Any, first: Any, last: Any) -> Any:
    n = 0
    for step in range(first, last + 1):
        n += _slot(address, stride, slots, step)[populations]
    return n


@compiled
def _pack(address: Any, stride: Any, slots: Any, populations: Any, first: Any, last: Any, after: Any, ids: Any) -> None:
    n = 0
    for step in range(first, last + 1):
        buffer = _slot(address, stride, slots, step)
        for i in range(buffer[populations]):
            after[n] = step - first
            ids[n] = buffer[populations + 1 + i]
            n += 1


@compiled
def _are_valid(after: Any, ids: Any, steps: Any, held: Any) -> Any:
    part = 0
    for i in range(ids.shape[0]):
        if np.int64(after[i]) >= steps:
            return False
        if i == 0 or after[i] != after[i - 1]:
            if i > 0 and after[i] < after[i - 1]:
                return False
            part = 0
        elif ids[i] <= ids[i - 1]:
            return False
        while part < held.shape[0] and ids[i] >= held[part, 1]:
            part += 1
        if part == held.shape[0] or ids[i] < held[part, 0]:
            return False
    return True


@compiled
def _unpack(
    address: Any, stride: Any, slots: Any, first_ids: Any, first: Any, last: Any, after: Any, ids: Any, earliest: Any
) -> None:
    populations = first_ids.shape[0] - 1
    i = 0
    for step in range(first, last + 1):
        begin = i
        while i < ids.shape[0] and first + np.int64(after[i]) == step:
            i += 1
        if step < earliest:
            continue
        buffer = _slot(address, stride, slots, step)
        n = 0
        for p in range(populations):
            buffer[p] = n
            while begin + n < i and ids[begin + n] < first_ids[p + 1]:
                buffer[populations + 1 + n] = ids[begin + n]
                n += 1
        buffer[populations] = n


@compiled
def _clear(address: Any, stride: Any, slots: Any, populations: Any, first: Any, last: Any) -> None:
    for step in range(first, last + 1):
        buffer = _slot(address, stride, slots, step)
        for p in range(populations + 1):
            buffer[p] = 0
