"""User-defined regions for tests: the neurons that each makes spike identify the events that it received."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis.brain import Event


class Camera:
    """Sees a new picture at every tick: spikes for its bright pixels, and the picture itself as data."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.pixels = config["pixels"]
        self.as_tensor = config.get("as_tensor", False)
        self.frame = 0

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        assert not events
        self.frame += 1
        picture = np.random.default_rng([self.frame, self.pixels]).random(self.pixels)
        data: Any = picture
        if self.as_tensor:
            import torch

            data = torch.from_numpy(picture)
        return [Event(ids=np.flatnonzero(picture > 0.7), data=data)]

    def get_state(self) -> dict[str, Any]:
        return {"frame": np.array(self.frame)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.frame = int(state["frame"])


class Echo:
    """Answer every received spike, after a delay, with the neuron of the same number."""

    stateless = True

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.after_ms = config["after_ms"]
        self.neurons = config["neurons"]

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        return [Event(time_ms=one.time_ms + self.after_ms, ids=np.unique(one.ids) % self.neurons) for one in events]


class Filter:
    """Passes pictures on, smoothed; a tensor stays a tensor and an array an array."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.mean = np.zeros(config["pixels"])

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        answers = []
        for event in events:
            if event.data is not None:
                self.mean = 0.5 * self.mean + 0.5 * np.asarray(event.data)
                answers.append(Event(data=type(event.data)(self.mean) if _is_tensor(event.data) else self.mean))
        return answers

    def get_state(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def set_state(self, state: dict[str, Any]) -> None:
        self.mean = state["mean"]


class Judge:
    """Spikes for what it is given: neuron 0 for an array, 1 for a tensor on the CPU, 2 for anything else.

    With a picture, neuron 3 + n says that pixel n was the brightest.
    """

    stateless = True

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.device = device

    def process_events(self, now: float, events: list[Event]) -> list[Event]:
        answers = []
        for event in events:
            if event.data is None:
                continue
            kind = 2
            if isinstance(event.data, np.ndarray):
                kind = 0
            elif _is_tensor(event.data) and event.data.device.type == self.device == "cpu":
                kind = 1
            ids = [kind]
            if kind < 2 and event.data.ndim == 1 and len(event.data) > 1:
                ids.append(3 + int(event.data.argmax()))
            answers.append(Event(ids=np.array(ids)))
        return answers


class Failing:
    """Raise at a given time."""

    stateless = True

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.at_ms = config["at_ms"]

    def process_events(self, now: float, events: list[Event]) -> None:
        if now >= self.at_ms - 1e-9:
            raise ZeroDivisionError("a scripted accident")


class Forgetful:
    """Has a state but no `get_state`, so it cannot be saved. Answers every tick with the next neuron."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.calls = 0

    def process_events(self, now: float, events: list[Event]) -> np.ndarray:
        self.calls += 1
        return np.array([self.calls % 4])


class Unmakable:
    """Cannot be made."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        raise RuntimeError("no lens")


class Batches:
    """Answers how many times of arrival there were in a call, and how many calls there were before."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.calls = 0

    def process_events(self, now: float, events: list[Event]) -> np.ndarray:
        self.calls += 1
        return np.array([min(len({one.time_ms for one in events}), 19), 20 + self.calls % 20])

    def get_state(self) -> dict[str, Any]:
        return {"calls": np.array(self.calls)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.calls = int(state["calls"])


class Log:
    """Record for each payload the step of the call, the source and the sum; spike once for each."""

    SOURCES = ("input", "sensor/thermal", "sensor/touch/left", "sensor/touch")

    def __init__(self, config: dict[str, Any], device: str) -> None:
        self.rows: list[list[float]] = []

    def process_events(self, now: float, events: list[Event]) -> np.ndarray:
        for event in events:
            assert event.time_ms is not None
            assert abs(event.time_ms - now) < 0.01
            data = event.data["heat"] if isinstance(event.data, dict) else event.data
            self.rows.append([round(now / 0.1), self.SOURCES.index(event.source), float(np.sum(data))])
        return np.arange(len(events)) % 20

    def get_state(self) -> dict[str, Any]:
        return {"rows": np.array(self.rows, float).reshape(-1, 3)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.rows = np.asarray(state["rows"]).tolist()


class NotARegion:
    """Has no process_events."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        pass


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch"
