"""Saving and resuming a training, together: each rank writes its share, and any number of ranks can go on.

What all ranks have alike (parameters, optimizer) is cut into shares. What differs between ranks is written by each:
random states always, and any tensor whose sums are not equal (parameters between two averagings of local SGD,
residuals of compression, buffers that ranks keep for themselves). On the same number of ranks each gets its own back,
to the bit; on another one the floating ones become their mean, the others those of rank 0, and new ranks get new
random streams.

No rank goes on before all have written, and none believes in a state that another could not write: every phase ends
with an exchange of outcomes.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from neuraxis.comm import Communicator
from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType, NeuraxisError
from neuraxis.training import random_states, shard_files
from neuraxis.training.arguments import whole_number
from neuraxis.training.chosen_group import exchanged, group_or_world
from neuraxis.training.data_parallel import DataParallel
from neuraxis.training.shared_state import CollectedState, StoredState
from neuraxis.training.state_tree import flatten, tensor_names, unflatten
from neuraxis.training.whole_state import whole_parts

__all__ = ["Checkpointer", "Stateful"]

_STEP_STATE = " (by rank)"  # no part is called so: parts are keyword arguments


@runtime_checkable
class Stateful(Protocol):
    """What can be a part of a checkpoint. With `step_state_dict` and `load_step_state_dict` it has more, by rank."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class Checkpointer:
    """Saves the parts of a training in a folder that all ranks can see, and keeps the last few.

    `save` and `restore` are collective. In a script that may be started again:

        checkpointer = Checkpointer("states", model=model, optimizer=optimizer, loader=loader)
        step = checkpointer.restore() or 0

    Args:
        folder: made when it is needed.
        keep: how many states stay; older ones are removed after a newer one is complete.
        group: the ranks that save together; the world by default.
        parts: model, optimizer, scheduler, loader, scaler, ...: whatever has `state_dict` and `load_state_dict`. Of a
            `Pipeline` the whole module is saved, and with it in the same Checkpointer the optimizers of all its stages;
            every rank holds the whole state for that moment.
    """

    def __init__(
        self, folder: str | Path, *, keep: int = 3, group: Communicator | None = None, **parts: Stateful
    ) -> None:
        self.folder = Path(folder)
        self.keep = whole_number(keep, "Checkpointer: keep")
        self.parts: dict[str, Stateful] = {}
        self._group = group_or_world(group, "Checkpointer")
        self.add(**parts)

    def add(self, **parts: Stateful) -> None:
        """Save these as well."""
        for name, part in parts.items():
            if not isinstance(part, Stateful):
                raise InvalidType(
                    f"Checkpointer: {name} is a {type(part).__name__}, which has no state_dict and load_state_dict"
                )
        whole_parts({**self.parts, **parts})  # which says what cannot be saved together
        self.parts.update(parts)

    @property
    def _rank(self) -> int:
        return 0 if self._group is None else self._group.rank

    @property
    def _size(self) -> int:
        return 1 if self._group is None else self._group.size

    def steps(self) -> list[int]:
        """The steps of the states that are there, the one that was saved last at the end."""
        return [step for age, step in _by_age(self.folder) if age is not None]

    # --- saving ---

    def save(self, step: int) -> Path:
        """Save the state after `step`; its folder. A state of that step that is there already is replaced.

        A model that averages only now and then (`sync_every`) does so first, and counts its steps from here: a run that
        resumes here and one that went on are the same.

        Raises:
            CheckpointError: a rank could not write; on all ranks. What was saved before is intact.
            InvalidArgument: an accumulation is under way: the gradients of its blocks are in no state.
            InvalidType: a part has something in it that cannot be saved.
        """
        step = whole_number(step, "Checkpointer: step", least=0)
        folder = shard_files.step_folder(self.folder, step)
        token = secrets.token_hex(4)
        state = CollectedState({}, {})
        for part in self.parts.values():
            if hasattr(part, "step_state_dict") and hasattr(part, "synchronize"):
                part.synchronize()
        whole = {name: part.state_dict() for name, part in whole_parts(self.parts).items()}

        def collect() -> list[Any]:
            nonlocal state
            state = self._collect(whole)
            sums = state.tensor_sums() if self._size > 1 else []
            return [step, token, state.layout_sum(), state.trees_sum(), sums, random_states.capture()]

        steps, tokens, layouts, trees, sums, random = zip(*self._together(collect, folder), strict=True)
        if len(set(steps)) > 1:
            raise InvalidArgument(f"Checkpointer: ranks save different steps at the same time: {sorted(set(steps))}")
        if len(set(layouts)) > 1:
            self._complain_of_layouts(folder, state)
        token = tokens[0]
        differing = [name for name, *values in zip(state.tensors, *sums, strict=False) if len(set(values)) > 1]
        pieces = state.dealt(differing, self._size)
        all_trees = len(set(trees)) > 1  # else those of rank 0 say it all

        def write() -> list[Any]:
            file = state.write(folder, self._rank, self._size, token, pieces)
            return [list(file), state.trees if all_trees else None]

        written = self._together(write, folder, undo=lambda: self._discard(folder, token))
        files, trees = zip(*written, strict=True)
        content = {
            "step": step,
            "size": self._size,
            "files": {name: [size, crc] for name, size, crc in files},
            "tensors": {name: [one.dtype, one.shape, one.stride] for name, one in state.described.items()},
            "pieces": [[piece.tensor, piece.rank, piece.start, piece.stop, piece.own] for piece in pieces],
            "parts": list(trees) if all_trees else [state.trees],
            "random": list(random),
        }
        self._together(lambda: self._finish(folder, token, content) if self._rank == 0 else None, folder)
        return folder

    def _collect(self, whole: dict[str, Any]) -> CollectedState:
        """This rank's state; of the parts in `whole` that which all ranks have together."""
        trees: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for name, part in self.parts.items():
            if isinstance(part, DataParallel) and part.accumulating:
                raise InvalidArgument(
                    f"Checkpointer: {name} is in the middle of an accumulation, whose gradients no state has: "
                    "save after a complete block (`if micro.complete`)"
                )
            trees[name], found = flatten(whole[name] if name in whole else part.state_dict(), name)
            tensors |= found
            if hasattr(part, "step_state_dict"):
                key = name + _STEP_STATE
                trees[key], found = flatten(part.step_state_dict(), key)
                tensors |= found
        return CollectedState(trees, tensors)

    def _finish(self, folder: Path, token: str, content: dict[str, Any]) -> None:
        """Write the manifest, then remove what is older; on rank 0."""
        for name, (size, _) in content["files"].items():
            if not (folder / name).exists() or (folder / name).stat().st_size != size:
                raise CheckpointError(
                    f"{folder / name}: rank 0 does not see what another rank wrote: "
                    "the folder must be one that all hosts share"
                )
        # Which of two states is newer: a step may be saved again, and a training may go on from an older one.
        content["age"] = max((age for age, _ in _by_age(self.folder) if age is not None), default=0) + 1
        shard_files.write_manifest(folder, token, content)
        with suppress(OSError, CheckpointError):  # the state is saved; what is too much can go the next time
            readable = [step for age, step in _by_age(self.folder) if age is not None]
            shard_files.prune(self.folder, readable[-self.keep :])

    def _discard(self, folder: Path, token: str) -> None:
        """Remove what this rank wrote of a state that another one could not write."""
        with suppress(OSError):
            shard_files.remove_files(folder, [path.name for path in folder.glob(f"shard-{self._rank}-of-*-{token}.*")])
            folder.rmdir()  # which the last one can, if there is no older state of this step

    def _complain_of_layouts(self, folder: Path, state: CollectedState) -> None:
        """All ranks know that they differ; say in what."""
        layouts = exchanged(self._group, state.layout())
        for rank, layout in enumerate(layouts):
            if layout != layouts[0]:
                pairs = zip_longest(layout, layouts[0])
                theirs, first = next((theirs, first) for theirs, first in pairs if theirs != first)
                raise CheckpointError(
                    f"{folder}: not saved: rank {rank} has {_described(theirs)} where rank 0 has {_described(first)}"
                )

    # --- restoring ---

    def restore(self, step: int | None = None) -> int | None:
        """Bring all parts and random states back to a saved state, the newest by default; its step.

        None if there is none. A newest one that is damaged is passed over with a warning.

        Raises:
            CheckpointError: the step that was asked for, or every one that is there, is missing or damaged; or it
                does not fit the parts.
        """

        def newest_first() -> list[int]:
            if self._rank:
                return []  # rank 0 decides
            return [step] if step is not None else [step for _, step in reversed(_by_age(self.folder))]

        wanted = self._together(newest_first, self.folder)[0]
        reasons: list[str] = []
        for candidate in wanted:
            folder = shard_files.step_folder(self.folder, candidate)
            content, reason = self._checked(folder)
            if content is not None:
                self._together(lambda: self._apply(folder, content), folder)  # noqa: B023 - called at once
                if reasons and self._rank == 0:
                    warnings.warn(f"went back to step {candidate}: {'; '.join(reasons)}", stacklevel=2)
                return int(candidate)
            reasons.append(reason)
        if reasons:
            raise CheckpointError("; ".join(reasons))
        return None

    def _checked(self, folder: Path) -> tuple[dict[str, Any] | None, str]:
        """A manifest whose files are as they were written, or the reason why not; the same on all ranks."""
        content: dict[str, Any] | None = None
        reason = ""
        try:
            content = shard_files.read_manifest(folder)
            missing = [name for name in content["files"] if not (folder / name).exists()]
            if missing:
                raise CheckpointError(f"{folder / missing[0]}: is missing")
            for name in list(content["files"])[self._rank :: self._size]:  # each rank checks its share
                shard_files.check_file(folder / name, *content["files"][name])
        except CheckpointError as error:
            reason = str(error)
        everybody = exchanged(self._group, [content is not None, reason])
        unseen = [rank for rank, (sees, why) in enumerate(everybody) if not sees or why.endswith("is missing")]
        if 0 < len(unseen) < len(everybody):
            raise CheckpointError(
                f"rank {unseen[0]} does not see all of {folder} ({everybody[unseen[0]][1]}), other ranks do: "
                "the folder must be one that all hosts share"
            )
        reason = next((why for _, why in everybody if why), "")
        return (None if reason else content), reason

    def _apply(self, folder: Path, content: dict[str, Any]) -> None:
        size = int(content["size"])
        # Another number of ranks takes what rank 0 had where ranks differed, and means of tensors.
        mine = self._rank if size == self._size else None
        trees = content["parts"][(mine or 0) % len(content["parts"])]
        wanted = {name: part for name, part in self.parts.items() if name in trees}
        if absent := self.parts.keys() - wanted.keys():
            had = ", ".join(name for name in trees if not name.endswith(_STEP_STATE))
            raise CheckpointError(f"{folder}: has no part {sorted(absent)[0]!r}; it has {had}")
        steps = {
            name: trees[name + _STEP_STATE]
            for name, part in wanted.items()
            if name + _STEP_STATE in trees and hasattr(part, "load_step_state_dict")
        }
        needed = tensor_names([[trees[name] for name in wanted], list(steps.values())])
        tensors = StoredState(folder, content).read(needed, mine)
        whole = whole_parts(wanted)
        for name, part in wanted.items():
            try:
                whole.get(name, part).load_state_dict(unflatten(trees[name], tensors))
                if name in steps:
                    part.load_step_state_dict(unflatten(steps[name], tensors))  # type: ignore[attr-defined]
            except NeuraxisError:
                raise
            except Exception as error:
                raise CheckpointError(f"{folder}: does not fit {name!r} here: {error}") from error
        # At last: loading may draw.
        if self._rank < size:
            random_states.restore(content["random"][self._rank])
        else:
            random_states.derive(content["random"][0]["torch"], content["step"], self._rank)

    # --- together ---

    def _together(self, act: Callable[[], Any], where: Path, undo: Callable[[], None] = lambda: None) -> list[Any]:
        """Every rank's answer. If one raises, all do: that one its own error, the others one that names it.

        `undo` is called where all ranks know that one has failed. Not where one is lost: another may have heard of its
        success, and go on.
        """
        error: Exception | None = None
        answer: Any = None
        try:
            answer = act()
        except NeuraxisError as raised:
            error = raised
        except OSError as raised:
            error = CheckpointError(f"{raised.filename or where}: {raised.strerror or raised}")
            error.__cause__ = raised
        except Exception as raised:
            error = raised
        outcomes = exchanged(self._group, [f"{type(error).__name__}: {error}" if error is not None else "", answer])
        if any(reason for reason, _ in outcomes):
            undo()
        if error is not None:
            raise error
        for rank, (reason, _) in enumerate(outcomes):
            if reason:
                raise CheckpointError(f"{where}: rank {rank} failed: {reason}")
        return [answer for _, answer in outcomes]


def _by_age(folder: Path) -> list[tuple[int | None, int]]:
    """The age and the step of each state, the newest last. One whose manifest cannot be read is taken for a new one."""
    found: list[tuple[int | None, int]] = []
    for step in shard_files.complete_steps(folder):
        try:
            age = int(shard_files.read_manifest(shard_files.step_folder(folder, step))["age"])
        except (CheckpointError, KeyError, TypeError, ValueError):
            found.append((None, step))
        else:
            found.append((age, step))
    return sorted(found, key=lambda one: (float("inf") if one[0] is None else one[0], one[1]))


def _described(layout: list[Any] | None) -> str:
    """A tensor of a layout, in words."""
    return "nothing" if layout is None else f"{layout[0]!r}, {layout[1]} {tuple(layout[2])}"
