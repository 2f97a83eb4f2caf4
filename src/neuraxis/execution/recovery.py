"""How a simulation outlives its workers: states saved on the way, and a journal of what was done since.

A simulation is a function of its network and of what it was told at which step. So after a worker was lost, the last
saved state is restored into new workers, and what was told since then is told again, each at its step: the result is
that of a run in which nothing happened.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neuraxis.errors import CheckpointError, ShardFailed
from neuraxis.execution.executor import Executor

__all__ = ["ACTIONS", "Recovery", "private_folder"]

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
    _own: bool = False  # whether the folder is ours to remove
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
        folder = private_folder("recovery")
        try:
            files = executor.save(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._rebase(folder, files, step, own=True)

    def begin_at(self, folder: Path, files: list[str], step: int) -> None:
        """Another state was restored, from files that somebody else keeps: the course before it counts no more."""
        self._rebase(folder, files, step, own=False)

    def _rebase(self, folder: Path, files: list[str], step: int, *, own: bool) -> None:
        self.close()
        self._folder, self._files, self._own = folder, files, own
        self._saved_step, self._saved_at = step, time.monotonic()
        self._journal.clear()

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
        if self._folder is not None and self._own:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._own = None, False


_PRIVATE = re.compile(r"neuraxis-(recovery|move)-(\d+)-\w+")


def private_folder(what: str) -> Path:
    """A folder for files that nobody else needs. Those of processes that were killed are removed first."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"neuraxis-{what}-{os.getpid()}-"))
    except OSError as error:
        raise CheckpointError(f"{tempfile.gettempdir()}: no folder for temporary files can be made: {error}") from error
    with suppress(OSError):
        for other in folder.parent.iterdir():
            found = _PRIVATE.fullmatch(other.name)
            if found and not _is_alive(int(found[2])) and other.stat().st_uid == folder.stat().st_uid:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's
    return True
