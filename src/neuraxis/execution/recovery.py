"""How a simulation outlives its workers: states saved on the way, and a journal of what was done since.

A simulation is a function of its network and of what it was told at which step. So after a worker was lost, the last
saved state is restored into new workers, and what was told since then is told again, each at its step: the result is
that of a run in which nothing happened.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuraxis.errors import ShardFailed
from neuraxis.execution.executor import Executor

__all__ = ["ACTIONS", "Recovery"]

# What changes the course of a simulation, and so must be told again.
ACTIONS = frozenset({"set_level", "write_state", "inject", "silence", "freeze", "give"})

# Losing workers over and over, without getting any further, is no accident.
_MOST_RESTARTS = 3


@dataclass
class Recovery:
    """The last saved state and what happened since.

    Attributes:
        every_steps: how much model time there is between two saved states, at least.
        every_s: how much time.
    """

    every_steps: int
    every_s: float = 10.0
    _journal: list[tuple[int, str, tuple[Any, ...]]] = field(default_factory=list)
    _folder: Path | None = None
    _files: list[str] = field(default_factory=list)
    _saved_step: int = 0
    _saved_at: float = field(default_factory=time.monotonic)
    _lost_at: int = -1
    _restarts: int = 0

    def note(self, step: int, action: str, arguments: tuple[Any, ...]) -> None:
        """Something was told to the simulation after a step."""
        self._journal.append((step, action, arguments))

    def is_due(self, step: int) -> bool:
        return step - self._saved_step >= self.every_steps and time.monotonic() - self._saved_at >= self.every_s

    def save(self, executor: Executor, step: int) -> None:
        """Save the state; what was saved before goes when it is complete."""
        folder = Path(tempfile.mkdtemp(prefix="neuraxis-recovery-"))
        try:
            files = executor.save(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        old, self._folder, self._files = self._folder, folder, files
        self._saved_step, self._saved_at = step, time.monotonic()
        self._journal.clear()
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)

    def put_off(self) -> None:
        """Try again later."""
        self._saved_at = time.monotonic()

    def count_loss(self, error: ShardFailed, step: int) -> None:
        """A worker was lost while the simulation was at a step; raises the error where starting again is no use."""
        self._restarts = self._restarts + 1 if step == self._lost_at else 1
        self._lost_at = step
        if self._restarts > _MOST_RESTARTS:
            raise error

    @property
    def saved_step(self) -> int:
        return self._saved_step

    def replay(self, executor: Executor, until: int) -> None:
        """Bring a newly started executor to where the lost one was; what it records on the way is known already."""
        if self._folder is not None:
            executor.restore(self._folder, self._files)
        for step, action, arguments in self._journal:
            executor.advance(step)
            getattr(executor, action)(*arguments)
        executor.advance(until)

    def close(self) -> None:
        """Remove what was saved."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
