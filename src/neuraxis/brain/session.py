"""State of a running brain that its own process keeps, in addition to what the workers hold.

It consists of the scheduled events (pending neuromodulator releases, ends of actions), the last choice, the
input that is set, and a hash of actions and rewards. `Session.as_json` is part of every checkpoint; the keys there are
part of the file format.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.network.arithmetic import exp

__all__ = ["END_ACTION", "RELEASE", "Choice", "Schedule", "Session", "by_group", "choose", "uniform"]

# Kinds of scheduled events, as checkpoints name them.
RELEASE = "release"  # arguments: neuromodulator, amount
END_ACTION = "rest"  # argument: effector

_MASK = 2**64 - 1


@dataclass
class Session:
    """State of a running brain.

    Attributes
    ----------
    schedule : Schedule
        Events of later steps.
    inputs : dict of str to array
        Firing thresholds that are set in the neurons of each sensor and effector.
    choices : int
        Number of choices so far; selects the next random number.
    choice : Choice or None
        The last choice.
    window : dict of int to array
        Spike counts of the watched neurons before the last run, by index of their population.
    window_steps : int
        Number of steps of the last run.
    lesions : set of str
        Silenced regions.
    learning : bool
        True while weights may change.
    history : str
        Hash of all actions and rewards.
    """

    schedule: Schedule = field(default_factory=lambda: Schedule())
    inputs: dict[str, NDArray[np.int32]] = field(default_factory=dict)
    choices: int = 0
    choice: Choice | None = None
    window: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    window_steps: int = 0
    lesions: set[str] = field(default_factory=set)
    learning: bool = True
    history: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "agenda": self.schedule.as_json(),
            "inputs": {name: rates.tolist() for name, rates in self.inputs.items()},
            "choices": self.choices,
            "choice": None if self.choice is None else self.choice.as_json(),
            "window": {str(index): counts.tolist() for index, counts in self.window.items()},
            "window_steps": self.window_steps,
            "lesions": sorted(self.lesions),
            "learning": self.learning,
            "history": self.history,
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Session:
        """Return the saved session; KeyError, TypeError or ValueError if it is damaged."""
        choice = saved["choice"]
        return cls(
            schedule=Schedule(saved["agenda"]),
            inputs={str(name): np.array(rates, np.int32) for name, rates in saved["inputs"].items()},
            choices=int(saved["choices"]),
            choice=None
            if choice is None
            else Choice(int(choice["action"]), tuple(map(float, choice["values"])), float(choice["expected_reward"])),
            window={int(index): np.array(counts, np.int64) for index, counts in saved["window"].items()},
            window_steps=int(saved["window_steps"]),
            lesions={str(region) for region in saved["lesions"]},
            learning=bool(saved["learning"]),
            history=str(saved["history"]),
        )


class Schedule:
    """Events to apply at later steps; events of the same step keep the order in which they were added."""

    def __init__(self, entries: list[list[Any]] | None = None) -> None:
        self._entries: list[tuple[int, int, str, list[Any]]] = []
        self._number = 0
        for step, event, arguments in entries or []:
            self.add(int(step), str(event), *arguments)

    def add(self, step: int, event: str, *arguments: Any) -> None:
        heapq.heappush(self._entries, (step, self._number, event, list(arguments)))
        self._number += 1

    def remove(self, event: str, *arguments: Any) -> None:
        """Remove the events of a kind whose first arguments are these."""
        n = len(arguments)
        self._entries = [entry for entry in self._entries if entry[2] != event or entry[3][:n] != list(arguments)]
        heapq.heapify(self._entries)

    def next_step(self) -> int | None:
        return self._entries[0][0] if self._entries else None

    def pop_due(self, step: int) -> list[tuple[str, list[Any]]]:
        """Remove and return the events of all steps up to this one, in order."""
        due = []
        while self._entries and self._entries[0][0] <= step:
            _, _, event, arguments = heapq.heappop(self._entries)
            due.append((event, arguments))
        return due

    def as_json(self) -> list[list[Any]]:
        return [[step, event, arguments] for step, _, event, arguments in sorted(self._entries)]


@dataclass(frozen=True)
class Choice:
    """A chosen action, the value of each action in Hz, and the reward that was expected."""

    action: int
    values: tuple[float, ...]
    expected_reward: float

    def as_json(self) -> dict[str, Any]:
        return {"action": self.action, "values": list(self.values), "expected_reward": self.expected_reward}


def choose(values: NDArray[np.float64], temperature: float, random: float) -> int:
    """Return an action drawn from the softmax of `values / temperature`.

    `random` is a uniform number from 0 to 1. The arithmetic is the same on every machine.
    """
    best = float(values.max())
    weights = [exp((float(value) - best) / temperature) for value in values]
    target = random * sum(weights)
    reached = 0.0
    for action, weight in enumerate(weights):
        reached += weight
        if target < reached:
            return action
    return int(values.argmax())


def uniform(seed: int, number: int) -> float:
    """Return random number `number` of the stream of a seed, from 0 to below 1 (counter-based)."""
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 0x2545F4914F6CDD1D) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & _MASK
    return ((x ^ (x >> 31)) >> 11) / 2**53


def by_group(rates: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """Return the mean rate of each of `groups` equal parts."""
    ends = [len(rates) * group // groups for group in range(groups + 1)]
    return np.array([rates[ends[g] : ends[g + 1]].mean() for g in range(groups)], np.float64)
