"""Python populations for tests, importable by workers: they store all events that they receive, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from neuraxis.engine import tables as plan
from neuraxis.engine.placement import Slice
from neuraxis.engine.spikes import SpikeBuffers, lags_between
from neuraxis.network import Network
from neuraxis.simulation import Simulation
from neuraxis.simulation.checkpoint import SavedState, find_state
from neuraxis.simulation.executor import BuildReport, Recorded, merge_recorded, merge_reports
from neuraxis.simulation.python_populations import Event, LocalPayloads, PythonPopulation, listeners
from neuraxis.simulation.runner import ShardRunner
from tests.simulation.by_turns import ByTurns

__all__ = ["PythonPopulationsByTurns", "Scribe", "remembered"]

WHERE = "tests.simulation.python_regions"


class Scribe:
    """Remembers a row for each event: step of the call, step of the event, source, number of ids, sums of ids and data.

    config: `sources`, whose places are written; `echo`: the ids heard spike in the next step; `later_ms`: it spikes so
    long after each call; `data`: each call with spikes or data answers data, from one buffer that it uses again.
    """

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.config, self.device = config, device
        self.rows: list[list[float]] = []
        self.buffer = np.zeros(3)

    def process_events(self, now_ms: float, events: list[Event]) -> list[Event]:
        step = round(now_ms / 0.1)
        sources = ["input", *self.config.get("sources", ())]
        for event in events:
            assert event.time_ms is not None
            data = total(event.data)
            ids = np.asarray(event.ids)
            weighted = float((ids * np.arange(1, len(ids) + 1)).sum())
            row = [step, round(event.time_ms / 0.1), sources.index(event.source), len(ids), weighted, data]
            self.rows.append([float(value) for value in row])
        if not events:
            self.rows.append([float(step), -1.0, -1.0, 0.0, 0.0, 0.0])
        answer = []
        if self.config.get("echo"):
            answer += [Event(ids=np.unique(np.asarray(e.ids) % self.config["echo"])) for e in events if len(e.ids)]
        if self.config.get("later_ms") and events:
            answer.append(Event(time_ms=now_ms + self.config["later_ms"], ids=[len(self.rows) % 3]))
        if self.config.get("data") and events:
            self.buffer[:] = len(self.rows), step, sum(row[5] for row in self.rows[-3:]) % 1000
            answer.append(Event(time_ms=now_ms + self.config.get("data_after_ms", 0.0), data=self.buffer))
        return answer

    def get_state(self) -> dict[str, Any]:
        return {"rows": np.array(self.rows, np.float64).reshape(-1, 6)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.rows = np.asarray(state["rows"]).tolist()


def total(data: Any) -> float:
    """The sum of all numbers in it."""
    if isinstance(data, dict | list):
        return sum(map(total, data.values() if isinstance(data, dict) else data))
    return 0.0 if data is None else float(np.sum(data))


class Answers:
    """Answers in the call that data were given with: what the configuration says."""

    stateless = True

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.answer = config["answer"]

    def process_events(self, now_ms: float, events: list[Event]) -> Any:
        if not any(event.source == "input" for event in events):
            return None
        if isinstance(self.answer, str) and self.answer == "raise":
            raise RuntimeError("a scripted accident")
        if isinstance(self.answer, dict):
            return Event(**self.answer)
        return self.answer


class Unsaved:
    """Has a state but no `get_state`."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        pass

    def process_events(self, now_ms: float, events: list[Event]) -> None:
        pass


class Wordy(Unsaved):
    """Returns a state that contains text."""

    def get_state(self) -> dict[str, Any]:
        return {"words": "three words here"}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Deaf:
    def __init__(self, config: dict[str, Any], device: str) -> None:
        pass


class Unmade:
    def __init__(self, config: dict[str, Any], device: str) -> None:
        raise KeyError("a part is missing")


NOT_CALLABLE = 3


def remembered(simulation: Simulation, folder: Path) -> dict[str, np.ndarray]:
    """The rows of all scribes, by name, wherever they live."""
    simulation.save(folder)
    state = find_state(folder, simulation.network)
    with SavedState(state.data, list(state.files)) as saved:
        found = saved.python_populations().items()
        return {key.removesuffix("/rows"): np.asarray(value) for key, value in found if key.endswith("/rows")}


class PythonPopulationsByTurns(ByTurns):
    """Shards with Python populations in one process, which run by turns; population i is on shard i % workers."""

    def start(
        self, network: Network, progress: Callable[[int], None], python_populations: Sequence[PythonPopulation] = ()
    ) -> BuildReport:
        homes = {p: i % self.workers for i, one in enumerate(python_populations) for p in (one.population, one.marker)}
        cut = [[part for part in slices if part.population not in homes] for slices in self._cut(network)]
        for population, home in homes.items():
            cut[home].append(Slice(population, 0, network.populations[population].n))
        placement = tuple(tuple(sorted(slices, key=lambda part: part.population)) for slices in cut)
        self.placement = placement
        lags = lags_between(network, placement, listeners(python_populations, placement))
        outboxes, mail = SpikeBuffers.private(network, placement, lags), LocalPayloads()
        self._runners = [
            ShardRunner(network, placement, me, outboxes, progress, (0, 0), python_populations, mail)
            for me in range(self.workers)
        ]
        return merge_reports([runner.report() for runner in self._runners])

    def advance(self, until: int, check_last: bool = False) -> Recorded:
        pieces: list[Recorded] = []
        idle_rounds = 0
        while any(runner.shard.step < until for runner in self._runners):
            before = [runner.shard.step for runner in self._runners]
            for me in self._random.permutation(self.workers):
                runner = self._runners[me]
                stop = runner.python_populations.next_stop(until)
                target = int(self._random.integers(runner.shard.step, stop, endpoint=True))
                if runner.shard.advance(target, 0, 0) != plan.WAITING:
                    pieces.append(runner._take())
                if runner.shard.step == stop:
                    runner.python_populations.call_due()
            idle_rounds = idle_rounds + 1 if before == [runner.shard.step for runner in self._runners] else 0
            assert idle_rounds < 1000, f"no shard can go on; they are at {before} on the way to {until}"
        for runner in self._runners:
            runner.python_populations.discard_delivered()
            pieces.append(runner._take())
        return merge_recorded(pieces)
