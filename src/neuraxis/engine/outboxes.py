"""Where each shard's spikes of the last steps are, and how far apart two shards may run.

**Lags.** What shard b emits in step s is felt by shard a in step s + lag at the earliest, where lag is the shortest
delay from any population of b to any of a. So a may run step t as soon as b has completed step t - lag: shards that
hold regions far from each other wait once in many steps, whatever the delays within the regions are.

**Slots.** A shard writes its spikes of step t over those of step t - slots. By then a has seen that b completed step
t - lag(a, b), and b reads a's step s while it runs step s + lag(b, a); so all is read if
slots >= lag(a, b) + lag(b, a).
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.placement import LONGEST_LAG, Placement, Slice
from neuraxis.network import Network, RewardSTDP
from neuraxis.network.grid import to_steps

__all__ = ["LONGEST_LAG", "Listener", "Outboxes", "lags_between", "level_listeners", "links_between", "longest_delay"]

Lags = NDArray[np.int64]


@dataclass(frozen=True)
class Listener:
    """Somebody on a shard, other than its neurons, who hears a population `delay_steps` after its spikes.

    `depth_steps`: how long after them it may still ask for them.
    """

    shard: int
    population: int
    delay_steps: int
    depth_steps: int


def longest_delay(network: Network, listeners: Sequence[Listener] = ()) -> int:
    """The longest delay that anything in the network has, in steps."""
    longest = [network.delay_bounds_steps(projection)[1] for projection in network.projections]
    longest += [to_steps(one.delay_ms, network.dt_ms, "delay_ms") for one in network.modulations]
    longest += [one.depth_steps for one in listeners]
    return max(longest, default=1)


def level_listeners(network: Network, placement: Placement) -> list[frozenset[int]]:
    """For each neuromodulator, the shards that follow its level.

    All do where no spikes release it: nothing has to be known for that. Where spikes do, only those with neurons or
    synapses that it acts on: a level within a region does not tie far regions to each other.
    """
    everybody = frozenset(range(len(placement)))
    released = {one.modulator.name for one in network.modulations}
    found: list[frozenset[int]] = []
    for modulator in network.neuromodulators:
        moved = {one.index for one in network.populations if modulator.name in one.model.signals.values()}
        moved |= {
            one.post.index
            for one in network.projections
            if isinstance(one.pairing, RewardSTDP) and one.pairing.modulator == modulator.name
        }
        shards = frozenset(s for s, slices in enumerate(placement) if any(part.population in moved for part in slices))
        found.append(everybody if modulator.name not in released else shards or frozenset({0}))
    return found


def links_between(network: Network, placement: Placement, listeners: Sequence[Listener] = ()) -> Lags:
    """links[a, b]: the shortest delay with which anything on shard a hears anything of shard b; 0 if nothing does."""
    shards = len(placement)
    holders: list[set[int]] = [set() for _ in network.populations]
    for shard, slices in enumerate(placement):
        for part in slices:
            holders[part.population].add(shard)
    links = np.zeros((shards, shards), np.int64)

    def hears(listening: Collection[int], population: int, delay_steps: int) -> None:
        for a in listening:
            for b in holders[population]:
                links[a, b] = delay_steps if not links[a, b] else min(links[a, b], delay_steps)

    for projection in network.projections:
        hears(holders[projection.post.index], projection.pre.index, network.delay_bounds_steps(projection)[0])
    following = level_listeners(network, placement)
    for one in network.modulations:
        delay = to_steps(one.delay_ms, network.dt_ms, "delay_ms")
        hears(following[one.modulator.index], one.population.index, delay)
    for listener in listeners:
        hears({listener.shard}, listener.population, listener.delay_steps)
    return links


def lags_between(network: Network, placement: Placement, listeners: Sequence[Listener] = ()) -> Lags:
    """lags[a, b]: shard a can run step t when shard b has completed step t - lags[a, b]."""
    links = links_between(network, placement, listeners)
    lags: Lags = np.where(links == 0, LONGEST_LAG, np.minimum(links, LONGEST_LAG))
    return lags


@dataclass
class Outboxes:
    """Addresses of the outboxes and of the words of their shards' progress.

    A slot holds the spikes of one step: int32 offsets by population, then ids. `done` words are 64 bytes apart, so that
    no two workers write to one cache line.
    """

    outboxes: NDArray[np.int64]
    strides: NDArray[np.int64]
    done: NDArray[np.int64]
    lags: Lags
    slots: int
    keep: object = None  # what holds the memory

    def slot(self, shard: int, step: int) -> NDArray[np.int32]:
        """The slot of a shard's outbox that holds a step."""
        stride = int(self.strides[shard])
        address = int(self.outboxes[shard]) + (step % self.slots) * stride
        return np.ctypeslib.as_array((ctypes.c_int32 * (stride // 4)).from_address(address))

    @staticmethod
    def stride_for(network: Network, slices: tuple[Slice, ...]) -> int:
        size = 4 * (len(network.populations) + 1 + sum(part.n for part in slices))
        return -(-size // 64) * 64

    @classmethod
    def size_for(cls, network: Network, placement: Placement, lags: Lags) -> int:
        """Bytes that the outboxes of all shards take together."""
        return 64 * len(placement) + sum(_slots(lags) * cls.stride_for(network, slices) for slices in placement)

    @classmethod
    def at(cls, address: int, network: Network, placement: Placement, lags: Lags, keep: object = None) -> Outboxes:
        """The outboxes in a piece of memory of `size_for` bytes, all zero."""
        shards, slots = len(placement), _slots(lags)
        strides = np.array([cls.stride_for(network, slices) for slices in placement], np.int64)
        starts = address + 64 * shards + np.concatenate(([0], np.cumsum(slots * strides)[:-1]))
        done = address + 64 * np.arange(shards, dtype=np.int64)
        return cls(starts.astype(np.int64), strides, done, lags, slots, keep)

    @classmethod
    def private(cls, network: Network, placement: Placement, lags: Lags | None = None) -> Outboxes:
        """Outboxes in this process's own memory."""
        if lags is None:
            lags = lags_between(network, placement)
        memory = np.zeros(cls.size_for(network, placement, lags) + 64, np.uint8)
        address = -(-memory.ctypes.data // 64) * 64
        return cls.at(address, network, placement, lags, memory)


def _slots(lags: Lags) -> int:
    return int((lags + lags.T).max()) + 2
