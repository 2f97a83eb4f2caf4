"""An executor for tests: several shards in one process, which run in turns in a seeded random order.

It has the same shards as the ParallelExecutor and none of its processes, so that many ways to cut a network
can be tried in little time, uneven ones and shards that run far ahead of others among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from neuraxis.engine import tables as plan
from neuraxis.engine.placement import Slice
from neuraxis.engine.shards import Place, device_names
from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.network import Network
from neuraxis.simulation.executor import BuildReport, Recorded, ShardedExecutor, merge_recorded, merge_reports
from neuraxis.simulation.python_populations import PythonPopulation
from neuraxis.simulation.runner import ShardRunner

__all__ = ["ByTurns"]


class ByTurns(ShardedExecutor):
    """`workers` shards with parts of populations of random sizes, also empty ones."""

    def __init__(self, workers: int, seed: int = 0, devices: Sequence[Place] = ()) -> None:
        self.workers = workers
        self._places = tuple(devices) or ("cpu",) * workers
        self.device = device_names(self._places)
        self._random = np.random.default_rng(seed)
        self._runners: list[ShardRunner] = []

    def start(
        self, network: Network, progress: Callable[[int], None], python_populations: Sequence[PythonPopulation] = ()
    ) -> BuildReport:
        self.placement = placement = self._cut(network)
        outboxes = SpikeBuffers.private(network, placement)
        self._runners = [
            ShardRunner(network, placement, me, outboxes, progress, (0, 0), device=self._places[me])
            for me in range(self.workers)
        ]
        return merge_reports([runner.report() for runner in self._runners])

    def advance(self, until: int, check_last: bool = False) -> Recorded:
        pieces: list[list[Recorded]] = [[] for _ in self._runners]
        idle_rounds = 0
        while any(runner.shard.step < until for runner in self._runners):
            before = [runner.shard.step for runner in self._runners]
            for me in self._random.permutation(self.workers):
                runner = self._runners[me]
                # Not always as far as it can: the others then find it anywhere.
                target = int(self._random.integers(runner.shard.step, until, endpoint=True))
                if runner.shard.advance(target, 0, 0) != plan.WAITING:
                    pieces[me].append(runner._take())
            idle_rounds = idle_rounds + 1 if before == [runner.shard.step for runner in self._runners] else 0
            assert idle_rounds < 1000, f"no shard can go on; they are at {before} on the way to {until}"
        for runner, own in zip(self._runners, pieces, strict=True):
            own.append(runner._take())
        return merge_recorded([piece for own in pieces for piece in own])

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        return [getattr(runner, command)(*arguments) for runner in self._runners]

    def level(self, modulator: int) -> float:
        levels = {level for level in self.ask("level", modulator) if level is not None}
        assert len(levels) == 1
        return levels.pop()

    def close(self) -> None:
        for runner in self._runners:
            runner.close()
        self._runners = []

    def _cut(self, network: Network) -> tuple[tuple[Slice, ...], ...]:
        held: list[list[Slice]] = [[] for _ in range(self.workers)]
        for population in network.populations:
            cuts = np.sort(self._random.integers(0, population.n, self.workers - 1, endpoint=True))
            borders = [0, *cuts.tolist(), population.n]
            for shard, (first, last) in enumerate(pairwise(borders)):
                if last > first:
                    held[shard].append(Slice(population.index, first, last))
        return tuple(map(tuple, held))
