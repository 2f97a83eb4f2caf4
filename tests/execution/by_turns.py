"""An executor for tests: several shards in one process, which run by turns in an order that a seed decides.

It has the same shards as the ParallelExecutor and none of its processes, so that many ways to cut a network
can be tried in little time, uneven ones and shards that run far ahead of others among them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine import plan
from neuraxis.engine.placement import Slice
from neuraxis.engine.shard import Outboxes
from neuraxis.execution.executor import BuildReport, Counters, Recorded, merge_recorded
from neuraxis.execution.runner import ShardRunner
from neuraxis.network import Network

__all__ = ["ByTurns"]


class ByTurns:
    """`workers` shards with parts of populations of random sizes, also empty ones."""

    def __init__(self, workers: int, seed: int = 0) -> None:
        self.workers = workers
        self._random = np.random.default_rng(seed)
        self._runners: list[ShardRunner] = []

    def start(self, network: Network, progress: Callable[[int], None]) -> BuildReport:
        placement = self._cut(network)
        outboxes = Outboxes.private(network, placement)
        self._runners = [ShardRunner(network, placement, me, outboxes, progress, (0, 0)) for me in range(self.workers)]
        reports = [runner.report() for runner in self._runners]
        return BuildReport(
            sum(one.static_synapses for one in reports),
            sum(one.plastic_synapses for one in reports),
            sum(one.synapse_bytes for one in reports),
            sum(one.clipped_delays for one in reports),
        )

    def advance(self, until: int) -> Recorded:
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

    def counters(self) -> Counters:
        answers = [runner.counters() for runner in self._runners]
        assert len({one.step for one in answers}) == 1
        return Counters(
            answers[0].step,
            np.sum([one.spike_counts for one in answers], axis=0),
            sum(one.events for one in answers),
            sum(one.hash for one in answers) % 2**64,
            answers[0].peak_memory_bytes,
        )

    def state_hash(self) -> int:
        return sum(runner.state_hash() for runner in self._runners) % 2**64

    def read_state(self, population: int, name: str) -> NDArray[np.generic]:
        pieces = [runner.read_state(population, name) for runner in self._runners]
        return np.concatenate([piece for piece in pieces if piece is not None])

    def read_synapses(self, projection: int) -> dict[str, NDArray[np.generic]]:
        pieces = [runner.read_synapses(projection) for runner in self._runners]
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def level(self, modulator: int) -> float:
        levels = {runner.level(modulator) for runner in self._runners}
        assert len(levels) == 1
        return levels.pop()

    def set_level(self, modulator: int, level: float) -> None:
        for runner in self._runners:
            runner.set_level(modulator, level)

    def save(self, folder: Path) -> list[str]:
        return [runner.save(folder) for runner in self._runners]

    def restore(self, folder: Path, files: list[str]) -> None:
        for runner in self._runners:
            runner.restore(folder, files)
        for runner in self._runners:
            runner.publish()

    def close(self) -> None:
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
