"""Shards of a network in one process, some on a GPU or on its emulation, which run in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import tables as plan
from neuraxis.engine.cpu.shard import Shard
from neuraxis.engine.cuda.device import Device
from neuraxis.engine.placement import Placement, place
from neuraxis.engine.shards import make_shard
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.engine.state import state_hash
from neuraxis.network import Network
from tests.engine.cuda.twin import TwinDevice

__all__ = ["Together", "run_together"]


@dataclass
class Together:
    """The results of shards, equal for any number of shards on any devices."""

    spikes: NDArray[np.int64]  # (step, id), in order
    counts: list[int]
    events: list[int]  # at each stop
    states: list[int]
    spike_hash: int
    synapses: int
    tallies: list[list[int]]
    received: list[int] = field(compare=False)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Together)
        assert self.spikes.tolist() == other.spikes.tolist()
        mine, theirs = (
            {k: v for k, v in vars(one).items() if k not in ("spikes", "received")} for one in (self, other)
        )
        assert mine == theirs
        return True


def run_together(
    network: Network,
    kinds: str,
    stops: Sequence[int],
    placement: Placement | None = None,
    look: bool = True,
    first: int = 0,
    device: Callable[[], Device] = TwinDevice,
) -> Together:
    """Run shards ("g": on a GPU or its twin, "c": on the CPU) to each of the stops.

    `look`: compare states at each stop, which brings everything to the host. `first`: whose turn it is at first.
    """
    placement = placement or place(network, len(kinds))
    spike_buffers = SpikeBuffers.private(network, placement)
    shards: list[Shard] = []
    for me, kind in enumerate(kinds):
        one = device() if kind == "g" else None
        shards.append(make_shard(network, placement, me, spike_buffers, lambda n: None, (), one))
    found: list[NDArray[np.int64]] = []
    events, states = [], []
    for stop in stops:
        turn = first
        while any(shard.step < stop for shard in shards):
            before = [shard.step for shard in shards]
            for _ in shards:
                shard = shards[turn % len(shards)]
                turn += 1
                answer = shard.advance(stop, 0, 0)
                assert answer in (plan.DONE, plan.WAITING, plan.FULL)
                steps, ids, _ = shard.take_recorded()
                found.append(np.stack([steps, ids], axis=1))
            assert [shard.step for shard in shards] != before, "all shards wait for each other"
        events.append(sum(shard.events for shard in shards))
        if look or stop == stops[-1]:
            states.append(sum(state_hash(shard) for shard in shards) % 2**64)
    spikes = np.concatenate(found)
    return Together(
        spikes=spikes[np.lexsort((spikes[:, 1], spikes[:, 0]))],
        counts=[int(n) for n in sum(shard.spike_counts for shard in shards)],  # type: ignore[arg-type, union-attr]
        events=events,
        states=states,
        spike_hash=sum(shard.spike_hash for shard in shards) % 2**64,
        synapses=sum(shard.static_synapses for shard in shards),
        tallies=sum(shard.found.tallies for shard in shards).tolist(),
        received=[int(shard.control["received"]) for shard in shards],
    )
