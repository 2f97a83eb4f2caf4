"""The whole network in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.factory import Place, device_names, on_cpu, parse_devices, require
from neuraxis.engine.outboxes import Outboxes, lags_between
from neuraxis.engine.placement import Placement, place
from neuraxis.engine.warm import warm_up
from neuraxis.errors import InvalidArgument
from neuraxis.execution.executor import BuildReport, Counters, Recorded, WorkerStatus
from neuraxis.execution.resident import INPUT, Resident, listeners
from neuraxis.execution.runner import ShardRunner
from neuraxis.execution.tensors import lowered
from neuraxis.network import Network

__all__ = ["SequentialExecutor"]

Value = TypeVar("Value")


class SequentialExecutor:
    """One shard, run by the process that asks."""

    workers = 1
    leads = True

    def __init__(self, device: Place = "cpu") -> None:
        """`device`: "cpu", or a GPU: "cuda", "cuda:1". The result is the same, to the bit."""
        (self._place,) = parse_devices((device,), 1)
        self.device = device_names((device,))
        self._runner: ShardRunner | None = None
        self.placement: Placement = ()

    def start(
        self, network: Network, progress: Callable[[int], None], residents: Sequence[Resident] = ()
    ) -> BuildReport:
        if self._runner is not None:
            raise InvalidArgument("executor: it runs a simulation already; make one for each")
        require((self._place,))
        if on_cpu(self._place):
            warm_up()
        self.placement = placement = place(network, 1)
        outboxes = Outboxes.private(
            network, placement, lags_between(network, placement, listeners(residents, placement))
        )
        self._runner = ShardRunner(network, placement, 0, outboxes, progress, (0, 0), residents, device=self._place)
        return self._runner.report()

    @property
    def _started(self) -> ShardRunner:
        assert self._runner is not None
        return self._runner

    def advance(self, until: int) -> Recorded:
        return self._started.advance(until)

    def counters(self) -> Counters:
        return self._started.counters()

    def status(self) -> list[WorkerStatus]:
        return [self._started.status()]

    def give(self, resident: str, data: Any, source: str = INPUT) -> None:
        self._started.give(resident, lowered(data), source)

    def state_hash(self) -> int:
        return self._started.state_hash()

    def read_state(self, population: int, name: str) -> NDArray[np.generic]:
        state = self._started.read_state(population, name)
        assert state is not None
        return state

    def read_synapses(self, projection: int) -> dict[str, NDArray[np.generic]]:
        return self._started.read_synapses(projection)

    def level(self, modulator: int) -> float:
        level = self._started.level(modulator)
        assert level is not None
        return level

    def set_level(self, modulator: int, level: float) -> None:
        self._started.set_level(modulator, level)

    def read_counts(self, populations: list[int]) -> list[NDArray[np.int64]]:
        return [counts for counts in self._started.read_counts(populations) if counts is not None]

    def write_state(self, population: int, name: str, values: NDArray[np.generic]) -> None:
        self._started.write_state(population, name, values)

    def inject(self, steps: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        self._started.inject(steps, ids)

    def silence(self, populations: list[int]) -> None:
        self._started.silence(populations)

    def freeze(self, projections: list[int]) -> None:
        self._started.freeze(projections)

    def save(self, folder: Path) -> list[str]:
        return [self._started.save(folder)]

    def restore(self, folder: Path, files: list[str]) -> None:
        self._started.restore(folder, files)
        self._started.publish()

    def agree(self, make: Callable[[], Value]) -> Value:
        return make()

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
