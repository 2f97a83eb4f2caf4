"""Shards of a network in one process, some of them on a GPU or the twin of one, run by turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import plan
from neuraxis.engine.cuda.device import Device
from neuraxis.engine.cuda.factory import make_shard
from neuraxis.engine.outboxes import Outboxes
from neuraxis.engine.placement import Placement, place
from neuraxis.engine.shard import Shard
from neuraxis.engine.state import state_hash
from neuraxis.network import Network
from tests.engine.cuda.twin import TwinDevice

__all__ = ["Together", "run_together"]


@dataclass
class Together:
    """What shards come to; all of it is the same for any number of them, wherever they run."""

    spikes: NDArray[np.int64]  # (step, id), in order
    counts: list[int]
    events: list[int]  # at each stop
    states: list[int]
    spike_hash: int
    synapses: int
    clipped: int
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
    outboxes = Outboxes.private(network, placement)
    shards: list[Shard] = []
    for me, kind in enumerate(kinds):
        one = device() if kind == "g" else None
        shards.append(make_shard(network, placement, me, outboxes, lambda n: None, (), one))
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
        clipped=sum(int(shard.clipped[0]) for shard in shards),
        received=[int(shard.plan[plan.P_RECEIVED]) for shard in shards],
    )
