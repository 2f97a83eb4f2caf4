"""Saved states of one region's node, from which it resumes after its process died.

A state holds the neurons and synapses of the region, and the spikes and outputs that it had received. Those since then
are replayed by the other regions on resume. The last two states are kept, as a series in the layout of
`neuraxis.store.states`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from neuraxis.engine.state import export_state, install_state, received_spikes
from neuraxis.errors import CheckpointError
from neuraxis.simulation.checkpoint import SavedState, write_shard
from neuraxis.simulation.mesh.setup import RegionSetup
from neuraxis.simulation.runner import ShardRunner
from neuraxis.store.states import (
    Kind,
    SavedFolder,
    begin,
    commit,
    damaged,
    discard,
    file_sum,
    prune,
    saved_steps,
    step_folder,
)

__all__ = ["RegionStates"]

KIND = Kind("region", 1)
_KEPT = 2


class RegionStates:
    """The saved states of a region: `<checkpoint>/<region>/step-<step>/`."""

    def __init__(self, setup: RegionSetup, digest: int) -> None:
        self.every = setup.checkpoint_every if setup.checkpoint is not None else 0
        self._folder = None if setup.checkpoint is None else Path(setup.checkpoint) / setup.name
        self._digest = digest
        self._saved = -1
        self._not_before = 0
        self._fresh = True  # True while the folder holds no state of this run
        if setup.resume and self._folder is None:
            raise CheckpointError("resume needs a folder with saved states. Set checkpoint")

    def is_due(self, step: int, always: bool = False) -> bool:
        if self._folder is None or step <= self._saved or (step < self._not_before and not always):
            return False
        if always:
            return True
        return step // self.every > max(0, self._saved) // self.every

    def postpone(self, step: int) -> None:
        """Try to save again a tenth of the interval later."""
        self._not_before = step + max(1, self.every // 10)

    def begin_again(self) -> None:
        """Start a new timeline: the next save removes the states of the previous one."""
        self._saved, self._fresh = -1, True

    def save(self, runner: ShardRunner, timeline: int = 0) -> None:
        """Write the state, and remove states before the previous one."""
        assert self._folder is not None
        step = runner.shard.step
        state = export_state(runner.shard)
        steps, ids = received_spikes(runner.shard)
        state = replace(
            state,
            spike_steps=np.concatenate([state.spike_steps, steps]),
            spike_ids=np.concatenate([state.spike_ids, ids]),
            levels=np.nan_to_num(state.levels),
            outputs=runner.shard.rates.export(step, received=True),
        )
        data = begin(step_folder(self._folder, step))
        try:
            name = write_shard(data, state, runner.shard.me, runner.python_populations.export(received=True))
            metadata = {"step": step, "timeline": timeline}
            commit(data, KIND, {name: file_sum(data / name)}, metadata, {"digest": self._digest})
        except BaseException:
            discard(data)
            raise
        self._saved = step
        with suppress(OSError):  # the state is saved; older ones are removed next time
            earlier = [one for one in saved_steps(self._folder) if one < step]
            prune(self._folder, [step] if self._fresh else [*earlier[1 - _KEPT :], step])
        self._fresh = False

    def restore(self, runner: ShardRunner) -> tuple[int, int]:
        """Restore the last valid state; return its step (0 if there is none) and its timeline."""
        assert self._folder is not None
        problems = []
        for folder in reversed(saved_steps(self._folder).values()):
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
        found = SavedFolder.read(folder, KIND)
        found.verify()
        found.require_identity({"digest": self._digest}, "brain", "the descriptions differ")
        try:
            timeline = int(found.metadata["timeline"])
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            raise damaged(folder, f"{error!r:.300}") from error
        with SavedState(found.data, list(found.files)) as saved:
            install_state(runner.shard, saved, totals=True)
            runner.python_populations.install(saved.python_populations())
        runner.discard_samples()
        return timeline
