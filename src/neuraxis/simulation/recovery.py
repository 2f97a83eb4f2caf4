"""Recover a simulation from lost workers: regularly saved states, and a log of the actions since the last one.

A simulation is a deterministic function of its network and of the actions at each step. After a worker is lost, the
last saved state is restored into new workers and the logged actions are replayed, each at its step. The result is that
of a run without the failure.
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
from neuraxis.simulation.executor import Executor

__all__ = ["ACTIONS", "Recovery", "private_folder"]

# Executor operations that change the course of a simulation, and so must be replayed.
ACTIONS = frozenset({"set_level", "write_state", "inject", "silence", "freeze", "give"})

# Give up after so many losses without progress.
_MOST_RESTARTS = 3


@dataclass
class Recovery:
    """The last saved state and the actions since then.

    Attributes
    ----------
    every_steps, every_s : int, float
        Shortest model time (in steps) and shortest wall-clock time (in seconds) between two saved states.
    """

    every_steps: int
    every_s: float = 10.0
    _actions: list[tuple[int, str, tuple[Any, ...]]] = field(default_factory=list)
    _folder: Path | None = None
    _files: list[str] = field(default_factory=list)
    _own: bool = False  # True if the folder is temporary and must be removed
    _saved_step: int = 0
    _saved_at: float = field(default_factory=time.monotonic)
    _lost_at: int = -1
    _restarts: int = 0

    def log_action(self, step: int, action: str, arguments: tuple[Any, ...]) -> None:
        """Log an action that was applied after a step."""
        self._actions.append((step, action, arguments))

    def is_due(self, step: int) -> bool:
        return step - self._saved_step >= self.every_steps and time.monotonic() - self._saved_at >= self.every_s

    def save(self, executor: Executor, step: int) -> None:
        """Save the state; remove the previous one when the new one is complete."""
        folder = private_folder("recovery")
        try:
            files = executor.save(folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._rebase(folder, files, step, own=True)

    def begin_at(self, folder: Path, files: list[str], step: int) -> None:
        """Recover from this restored state, whose files the user keeps, instead of the last saved one."""
        self._rebase(folder, files, step, own=False)

    def _rebase(self, folder: Path, files: list[str], step: int, *, own: bool) -> None:
        self.close()
        self._folder, self._files, self._own = folder, files, own
        self._saved_step, self._saved_at = step, time.monotonic()
        self._actions.clear()

    def postpone(self) -> None:
        """Wait `every_s` before the next attempt to save."""
        self._saved_at = time.monotonic()

    def count_loss(self, error: ShardFailed, step: int) -> None:
        """Count a lost worker; raise `error` after too many losses at the same step."""
        self._restarts = self._restarts + 1 if step == self._lost_at else 1
        self._lost_at = step
        if self._restarts > _MOST_RESTARTS:
            raise error

    @property
    def saved_step(self) -> int:
        return self._saved_step

    def replay(self, executor: Executor, until: int) -> None:
        """Bring a newly started executor to step `until`; its recordings are already known and dropped."""
        if self._folder is not None:
            executor.restore(self._folder, self._files)
        for step, action, arguments in self._actions:
            executor.advance(step)
            getattr(executor, action)(*arguments)
        executor.advance(until)

    def close(self) -> None:
        """Remove the saved state."""
        if self._folder is not None and self._own:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._own = None, False


_PRIVATE = re.compile(r"neuraxis-(recovery|move)-(\d+)-\w+")


def private_folder(what: str) -> Path:
    """Make a temporary folder for this process, and remove those of processes that were killed."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"neuraxis-{what}-{os.getpid()}-"))
    except OSError as error:
        raise CheckpointError(f"{tempfile.gettempdir()}: cannot make a temporary folder: {error}") from error
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
        pass  # a process of another user
    return True
