"""What executors with several shards have in common: every shard does the same, and the answers become one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.placement import Placement
from neuraxis.execution.executor import BuildReport, Counters, Recorded, WorkerStatus, merge_recorded
from neuraxis.execution.resident import INPUT
from neuraxis.execution.tensors import lowered

__all__ = ["ShardsTogether", "merge_reports"]

Value = TypeVar("Value")


class ShardsTogether:
    """Answers for all shards; who inherits says how to ask them."""

    workers: int
    placement: Placement
    leads = True
    device = "cpu"

    def ask(self, command: str, *arguments: Any) -> list[Any]:
        """Let every shard's runner do the same; the answers, in the order of shards."""
        raise NotImplementedError

    def advance(self, until: int) -> Recorded:
        return merge_recorded(self.ask("advance", until))

    def counters(self) -> Counters:
        answers: list[Counters] = self.ask("counters")
        return Counters(
            answers[0].step,
            np.sum([one.spike_counts for one in answers], axis=0),
            sum(one.events for one in answers),
            sum(one.hash for one in answers) % 2**64,
            sum(one.peak_memory_bytes for one in answers),
        )

    def status(self) -> list[WorkerStatus]:
        return self.ask("status")

    def give(self, resident: str, data: Any, source: str = INPUT) -> None:
        self.ask("give", resident, lowered(data), source)

    def state_hash(self) -> int:
        return int(sum(self.ask("state_hash")) % 2**64)

    def read_state(self, population: int, name: str) -> NDArray[np.generic]:
        return np.concatenate([piece for piece in self.ask("read_state", population, name) if piece is not None])

    def read_synapses(self, projection: int) -> dict[str, NDArray[np.generic]]:
        pieces = self.ask("read_synapses", projection)
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def level(self, modulator: int) -> float:
        return float(next(level for level in self.ask("level", modulator) if level is not None))

    def set_level(self, modulator: int, level: float) -> None:
        self.ask("set_level", modulator, level)

    def read_counts(self, populations: list[int]) -> list[NDArray[np.int64]]:
        answers = self.ask("read_counts", populations)
        return [
            np.concatenate([pieces[place] for pieces in answers if pieces[place] is not None])
            for place in range(len(populations))
        ]

    def write_state(self, population: int, name: str, values: NDArray[np.generic]) -> None:
        self.ask("write_state", population, name, values)

    def inject(self, steps: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        self.ask("inject", steps, ids)

    def silence(self, populations: list[int]) -> None:
        self.ask("silence", populations)

    def freeze(self, projections: list[int]) -> None:
        self.ask("freeze", projections)

    def save(self, folder: Path) -> list[str]:
        return list(self.ask("save", str(folder)))

    def restore(self, folder: Path, files: list[str]) -> None:
        self.ask("restore", str(folder), files)
        # Every outbox is filled now; only then may anybody see how far the others are.
        self.ask("publish")

    def agree(self, make: Callable[[], Value]) -> Value:
        return make()


def merge_reports(reports: list[BuildReport]) -> BuildReport:
    """What several shards built, as one."""
    return BuildReport(
        sum(one.static_synapses for one in reports),
        sum(one.plastic_synapses for one in reports),
        sum(one.synapse_bytes for one in reports),
        sum(one.clipped_delays for one in reports),
    )
