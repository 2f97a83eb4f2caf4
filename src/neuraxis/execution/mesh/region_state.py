"""States that a region's node saves by itself, to come back from after its process has died.

Such a state is that of one region: its neurons, its synapses, and the spikes of others that it had taken in. What the
others said since is asked of them when the region comes back. The last two are kept, each whole or not there.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from neuraxis.engine.state import export_state, install_state, spikes_heard
from neuraxis.errors import CheckpointError
from neuraxis.execution.checkpoint import SavedState, write_shard
from neuraxis.execution.mesh.setup import RegionSetup
from neuraxis.execution.runner import ShardRunner

__all__ = ["RegionStates"]

_KEPT = 2


class RegionStates:
    """The folder of a region's states: `<checkpoint>/<region>/step-<n>/`."""

    def __init__(self, setup: RegionSetup, digest: int) -> None:
        self.every = setup.checkpoint_every if setup.checkpoint is not None else 0
        self._folder = None if setup.checkpoint is None else Path(setup.checkpoint) / setup.name
        self._digest = digest
        self._saved = -1
        self._not_before = 0
        self._fresh = True  # nothing in the folder is of this run yet
        if setup.resume and self._folder is None:
            raise CheckpointError("resume: say from which folder (checkpoint)")

    def is_due(self, step: int, always: bool = False) -> bool:
        if self._folder is None or step <= self._saved or (step < self._not_before and not always):
            return False
        if always:
            return True
        return step // self.every > max(0, self._saved) // self.every

    def put_off(self, step: int) -> None:
        """It cannot be saved now: try again after a while."""
        self._not_before = step + max(1, self.every // 10)

    def begin_again(self) -> None:
        """Another past begins: the states so far are of the one before, and go when there is a new one."""
        self._saved, self._fresh = -1, True

    def save(self, runner: ShardRunner, timeline: int = 0) -> None:
        """Write the state; it has its name only when all of it is on the disk."""
        assert self._folder is not None
        step = runner.shard.step
        part = self._folder / f".step-{step}.partial"
        try:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            state = export_state(runner.shard)
            steps, ids = spikes_heard(runner.shard)
            state = replace(
                state,
                spike_steps=np.concatenate([state.spike_steps, steps]),
                spike_ids=np.concatenate([state.spike_ids, ids]),
                levels=np.nan_to_num(state.levels),
            )
            name = write_shard(part, state, runner.shard.me, runner.residents.export(heard=True))
            checksum = zlib.crc32((part / name).read_bytes())
            note = {"step": step, "digest": self._digest, "timeline": timeline, "file": name, "checksum": checksum}
            with open(part / "region.json", "w") as file:
                file.write(json.dumps(note))
                file.flush()
                os.fsync(file.fileno())
            whole = self._folder / f"step-{step}"
            shutil.rmtree(whole, ignore_errors=True)
            os.replace(part, whole)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise CheckpointError(f"{self._folder}: cannot be written: {error}") from error
        self._saved = step
        others = [one for one in self._states() if one.name != f"step-{step}"]
        for old in others if self._fresh else others[: 1 - _KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        self._fresh = False

    def resume(self, runner: ShardRunner) -> tuple[int, int]:
        """Take the last state that is whole; the step it is of (0 if there is none yet), and its timeline."""
        assert self._folder is not None
        problems = []
        for folder in reversed(self._states()):
            try:
                timeline = self._take(folder, runner)
            except CheckpointError as error:
                problems.append(str(error))
                continue
            self._saved, self._fresh = runner.shard.step, False
            return runner.shard.step, timeline
        if problems:
            raise CheckpointError("; ".join(problems))
        return 0, 0

    def _take(self, folder: Path, runner: ShardRunner) -> int:
        try:
            note: dict[str, Any] = json.loads((folder / "region.json").read_text())
            name, timeline = str(note["file"]), int(note["timeline"])
            content = (folder / name).read_bytes() if Path(name).name == name else b""
            if zlib.crc32(content) != note["checksum"]:
                raise CheckpointError(f"{folder}: damaged: its checksum is another")
            if note["digest"] != self._digest:
                raise CheckpointError(f"{folder}: was saved from another brain")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder}: damaged: {error!r}") from error
        with SavedState(folder, [name]) as saved:
            install_state(runner.shard, saved, totals=True)
            runner.residents.install(saved.residents())
        runner.taken_up()
        return timeline

    def _states(self) -> list[Path]:
        """The states that there are, the oldest first."""
        if self._folder is None or not self._folder.is_dir():
            return []
        found = [one for one in self._folder.iterdir() if one.name.startswith("step-") and one.name[5:].isdigit()]
        return sorted(found, key=lambda one: int(one.name[5:]))
