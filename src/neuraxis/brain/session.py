"""What the process that has a brain knows of its course, and the workers do not: it is part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.brain.agenda import Agenda
from neuraxis.brain.choice import Choice

__all__ = ["Session"]


@dataclass
class Session:
    """The course of a brain so far.

    Attributes:
        agenda: what is to happen at steps to come.
        inputs: what the cells of sensors and effectors were set to.
        choices: how many there were; the next random number depends on it.
        choice: the last one.
        window: the spikes of cells that are watched, before the last run; its steps are `window_steps`.
        lesions: silenced regions.
        learning: whether weights may change.
        history: a hash of all actions and rewards.
    """

    agenda: Agenda = field(default_factory=Agenda)
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
            "agenda": self.agenda.as_json(),
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
    def from_json(cls, kept: Mapping[str, Any]) -> Session:
        """The session that was kept; KeyError, TypeError or ValueError if it is damaged."""
        choice = kept["choice"]
        return cls(
            agenda=Agenda(kept["agenda"]),
            inputs={str(name): np.array(rates, np.int32) for name, rates in kept["inputs"].items()},
            choices=int(kept["choices"]),
            choice=None
            if choice is None
            else Choice(int(choice["action"]), tuple(map(float, choice["values"])), float(choice["expected_reward"])),
            window={int(index): np.array(counts, np.int64) for index, counts in kept["window"].items()},
            window_steps=int(kept["window_steps"]),
            lesions={str(region) for region in kept["lesions"]},
            learning=bool(kept["learning"]),
            history=str(kept["history"]),
        )
