"""Python populations for tests of the mesh; nodes must be able to import them."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from neuraxis.simulation.python_populations import Event

WHERE = "tests.simulation.mesh.couriers"


class Courier:
    """Record all received data, and answer each call with data or spikes by data of the configured kind.

    config: `kind`: array, dict or tensor; `sources`, whose places are written; `torch`: whether it will need that.
    """

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.kind, self.sources = config["kind"], ["input", *config["sources"]]
        self.rows: list[list[float]] = []
        if config["torch"]:
            importlib.import_module("torch")

    def process_events(self, now_ms: float, events: list[Event]) -> list[Event]:
        step = round(now_ms / 0.1)
        for event in events:
            row = [step, self.sources.index(event.source), len(event.ids), kind_of(event.data), total(event.data)]
            self.rows.append([float(one) for one in row])
        return [Event(ids=[len(self.rows) % 4], data=self._make(step))] if events else []

    def _make(self, step: int) -> Any:
        values = np.array([len(self.rows), step, sum(row[4] for row in self.rows[-3:]) % 1000.0])
        if self.kind == "array":
            return values
        if self.kind == "dict":
            return {"step": step, "seen": values, "words": ["on", {"the": "way"}]}
        import torch

        return torch.from_numpy(values)

    def get_state(self) -> dict[str, Any]:
        return {"rows": np.array(self.rows, np.float64).reshape(-1, 5)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.rows = np.asarray(state["rows"]).tolist()


def kind_of(data: Any) -> int:
    """0: none, 1: an array, 2: a dict, 3: a tensor, 4: something else."""
    if data is None:
        return 0
    if isinstance(data, np.ndarray):
        return 1
    if isinstance(data, dict):
        return 2
    return 3 if type(data).__module__.split(".")[0] == "torch" else 4


def total(data: Any) -> float:
    """The sum of all numbers in it."""
    if isinstance(data, dict):
        return sum(map(total, data.values()))
    if data is None or isinstance(data, str):
        return 0.0
    return sum(map(total, data)) if isinstance(data, list) else float(np.asarray(data).sum())


class Unlucky:
    """Spikes after each tick, before step `until`. At a time (`at_ms`) it raises, or is stuck until a `file` is."""

    stateless = True

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.at_ms, self.file, self.until = config["at_ms"], config["file"], config["until"]

    def process_events(self, now_ms: float, events: list[Event]) -> np.ndarray:
        if abs(now_ms - self.at_ms) < 1e-6:
            if self.file is None:
                raise ZeroDivisionError("a scripted accident")
            while not Path(self.file).exists():
                time.sleep(0.01)
        return np.array([0] if round(now_ms / 0.1) + 1 < self.until else [], np.int64)
