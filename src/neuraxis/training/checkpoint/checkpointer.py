"""Checkpoints of a training run: each rank writes its shard, and any number of ranks can resume.

State that is equal on all ranks (parameters, optimizer) is split over the shards. State that differs is written by each
rank: random states always, and any tensor whose checksums are not equal (parameters between two averages of local SGD,
residuals of compression, buffers that ranks keep separate). On the same number of ranks each one gets its own state
back, bit for bit. On another number, floating-point tensors become the mean, others those of rank 0, and additional
ranks get new random streams.

No rank continues before all have written, and no rank trusts a checkpoint that another could not write: every phase
ends with an exchange of its outcome.
"""

from __future__ import annotations

import base64
import random
import secrets
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from neuraxis.arguments import whole
from neuraxis.comm import Communicator
from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType, NeuraxisError
from neuraxis.store import states
from neuraxis.store.states import Kind, SavedFolder
from neuraxis.training.checkpoint.shared_state import CollectedState, StoredState, pipeline_states
from neuraxis.training.checkpoint.tree import flatten, tensor_names, unflatten
from neuraxis.training.data.sampler import mixed_seed
from neuraxis.training.parallel.data_parallel import DataParallel
from neuraxis.training.parallel.group import gather_objects, group_or_world

__all__ = ["Checkpointer", "Stateful"]

KIND = Kind("training", 1)
_STEP_STATE = " (by rank)"  # suffix of per-rank state; cannot clash, because objects are keyword arguments


@runtime_checkable
class Stateful(Protocol):
    """Object that a `Checkpointer` can save; `step_state_dict` and `load_step_state_dict` may add per-rank state."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class Checkpointer:
    """Save and restore the objects of a training run in a shared folder.

    `save` and `restore` are collectives. The folder must be visible to all ranks.

    Parameters
    ----------
    folder : str or Path
        Folder of the checkpoints; created when needed.
    keep : int
        Number of checkpoints to keep. Older ones are removed after a newer one is complete.
    group : Communicator, optional
        Ranks that save together; the world by default.
    **parts : Stateful
        Objects with `state_dict` and `load_state_dict` by name: model, optimizer, scheduler, loader, scaler, ... Of a
        `Pipeline` the state of the whole module is saved, and with it that of the optimizers of all stages; every rank
        holds the whole state while saving.

    Attributes
    ----------
    folder : Path
        Folder of the checkpoints.
    parts : dict of str to Stateful
        Objects to save.

    Raises
    ------
    InvalidArgument
        If `keep` is below 1, or an optimizer has parameters of a pipeline and others.
    InvalidType
        If an object has no `state_dict` and `load_state_dict`.

    Examples
    --------
    >>> import tempfile
    >>> import torch
    >>> from neuraxis.training import Checkpointer
    >>> model = torch.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpointer = Checkpointer(folder, model=model)
    ...     first = checkpointer.restore() or 0
    ...     path = checkpointer.save(first + 1)
    ...     print(first, path.name, checkpointer.steps(), checkpointer.restore())
    0 step-00000001 [1] 1
    """

    def __init__(
        self, folder: str | Path, *, keep: int = 3, group: Communicator | None = None, **parts: Stateful
    ) -> None:
        self.folder = Path(folder)
        self.keep = whole(keep, "Checkpointer: keep", 1)
        self.parts: dict[str, Stateful] = {}
        self._group = group_or_world(group, "Checkpointer")
        self.add(**parts)

    def add(self, **parts: Stateful) -> None:
        """Add objects to save.

        Parameters
        ----------
        **parts
            Objects with `state_dict` and `load_state_dict`, by name.

        Raises
        ------
        InvalidType
            An object lacks these methods.
        """
        for name, part in parts.items():
            if not isinstance(part, Stateful):
                raise InvalidType(
                    f"Checkpointer: {name} is a {type(part).__name__}, which has no state_dict and load_state_dict"
                )
        pipeline_states({**self.parts, **parts})  # raises for an invalid combination
        self.parts.update(parts)

    @property
    def _rank(self) -> int:
        return 0 if self._group is None else self._group.rank

    @property
    def _size(self) -> int:
        return 1 if self._group is None else self._group.size

    def steps(self) -> list[int]:
        """Return the steps of all readable checkpoints, in the order in which they were saved."""
        return [step for age, step in _by_age(self.folder) if age is not None]

    # --- saving ---

    def save(self, step: int) -> Path:
        """Save the state after `step` and return its folder. Collective.

        A checkpoint of the same step is replaced. A model with ``sync_every > 1`` averages first and counts its steps
        from here, so that a resumed run equals an uninterrupted one.

        Parameters
        ----------
        step : int
            Number of the step; a checkpoint of the same step is replaced.

        Returns
        -------
        Path
            Folder of the checkpoint.

        Raises
        ------
        CheckpointError
            On all ranks, if a rank could not write. Earlier checkpoints are intact.
        InvalidArgument
            During a gradient accumulation, whose gradients no checkpoint has; or if ranks save different steps.
        InvalidType
            If the state of an object contains something that cannot be saved.
        """
        step = whole(step, "Checkpointer: step", 0)
        folder = states.step_folder(self.folder, step)
        token = secrets.token_hex(4)
        state = CollectedState({}, {})
        for part in self.parts.values():
            if hasattr(part, "step_state_dict") and hasattr(part, "synchronize"):
                part.synchronize()
        complete = {name: part.state_dict() for name, part in pipeline_states(self.parts).items()}

        def collect() -> list[Any]:
            nonlocal state
            state = self._collect(complete)
            sums = state.tensor_sums() if self._size > 1 else []
            return [step, token, state.layout_sum(), state.trees_sum(), sums, _capture_rng()]

        steps, tokens, layouts, trees, sums, random = zip(*self._on_all_ranks(collect, folder), strict=True)
        if len(set(steps)) > 1:
            raise InvalidArgument(f"Checkpointer: ranks save different steps at the same time: {sorted(set(steps))}")
        if len(set(layouts)) > 1:
            self._raise_layout_mismatch(folder, state)
        token = tokens[0]
        data = states.data_folder(folder, token)
        differing = [name for name, *values in zip(state.tensors, *sums, strict=False) if len(set(values)) > 1]
        pieces = state.assigned(differing, self._size)
        all_trees = len(set(trees)) > 1  # else those of rank 0 hold for all

        def write() -> list[Any]:
            file = state.write(states.begin(folder, token), self._rank, pieces)
            return [list(file), state.trees if all_trees else None]

        written = self._on_all_ranks(write, folder, undo=lambda: states.discard(data))
        files, trees = zip(*written, strict=True)
        written_files = {name: (size, crc) for name, size, crc in files}
        metadata = {
            "step": step,
            "size": self._size,
            "tensors": {name: [one.dtype, one.shape, one.stride] for name, one in state.described.items()},
            "pieces": [[piece.tensor, piece.rank, piece.start, piece.stop, piece.own] for piece in pieces],
            "parts": list(trees) if all_trees else [state.trees],
            "random": list(random),
        }
        self._on_all_ranks(lambda: self._finish(data, written_files, metadata) if self._rank == 0 else None, folder)
        return folder

    def _collect(self, whole: dict[str, Any]) -> CollectedState:
        """Return this rank's state; `whole` has the states of objects that are saved as one over all ranks."""
        trees: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for name, part in self.parts.items():
            if isinstance(part, DataParallel) and part.accumulating:
                raise InvalidArgument(
                    f"Checkpointer: {name} is in the middle of an accumulation, whose gradients no checkpoint has. "
                    "Save after a complete block (`if micro.complete`)"
                )
            trees[name], found = flatten(whole[name] if name in whole else part.state_dict(), name)
            tensors |= found
            if hasattr(part, "step_state_dict"):
                key = name + _STEP_STATE
                trees[key], found = flatten(part.step_state_dict(), key)
                tensors |= found
        return CollectedState(trees, tensors)

    def _finish(self, data: Path, sums: dict[str, tuple[int, int]], metadata: dict[str, Any]) -> None:
        """Write the manifest, then remove old checkpoints; on rank 0."""
        for name, (size, _) in sums.items():
            if not (data / name).exists() or (data / name).stat().st_size != size:
                raise CheckpointError(
                    f"{data / name}: rank 0 does not see the file that another rank wrote. "
                    "The folder must be one that all hosts share"
                )
        # The age orders checkpoints, since a step may be saved again, and a run may resume from an older one.
        metadata["age"] = max((age for age, _ in _by_age(self.folder) if age is not None), default=0) + 1
        states.commit(data, KIND, sums, metadata)
        with suppress(OSError):  # the state is saved; pruning is tried again next time
            readable = [step for age, step in _by_age(self.folder) if age is not None]
            states.prune(self.folder, readable[-self.keep :])

    def _raise_layout_mismatch(self, folder: Path, state: CollectedState) -> None:
        """Raise CheckpointError with the first difference between the ranks' layouts. Collective."""
        layouts = gather_objects(self._group, state.layout())
        for rank, layout in enumerate(layouts):
            if layout != layouts[0]:
                pairs = zip_longest(layout, layouts[0])
                theirs, first = next((theirs, first) for theirs, first in pairs if theirs != first)
                raise CheckpointError(
                    f"{folder}: not saved: rank {rank} has {_described(theirs)} where rank 0 has {_described(first)}. "
                    "All ranks must have the same model and optimizer"
                )

    # --- restoring ---

    def restore(self, step: int | None = None) -> int | None:
        """Restore all objects and random states, from the newest checkpoint by default. Collective.

        Parameters
        ----------
        step : int, optional
            Step of the checkpoint. By default the newest is used; a damaged one is skipped with a warning.

        Returns
        -------
        int or None
            Step of the restored checkpoint; None if there is none.

        Raises
        ------
        CheckpointError
            If the requested checkpoint, or every existing one, is missing or damaged, or does not fit the objects.
        """

        def newest_first() -> list[int]:
            if self._rank:
                return []  # rank 0 decides
            return [step] if step is not None else [step for _, step in reversed(_by_age(self.folder))]

        wanted = self._on_all_ranks(newest_first, self.folder)[0]
        reasons: list[str] = []
        for candidate in wanted:
            folder = states.step_folder(self.folder, candidate)
            saved, reason = self._verified(folder)
            if saved is not None:
                self._on_all_ranks(lambda: self._apply_verified(saved), folder)  # noqa: B023 - called at once
                if reasons and self._rank == 0:
                    warnings.warn(f"went back to step {candidate}: {'; '.join(reasons)}", stacklevel=2)
                return int(candidate)
            reasons.append(reason)
        if reasons:
            raise CheckpointError("; ".join(reasons))
        return None

    def _verified(self, folder: Path) -> tuple[SavedFolder | None, str]:
        """Return a state whose files have the right checksums, or None and the reason; equal on all ranks."""
        saved: SavedFolder | None = None
        reason = ""
        try:
            saved = SavedFolder.read(folder, KIND)
            missing = [name for name in saved.files if not (saved.data / name).exists()]
            if missing:
                raise CheckpointError(f"{saved.data / missing[0]}: is missing")
            saved.verify(list(saved.files)[self._rank :: self._size])  # each rank checks its share
        except CheckpointError as error:
            saved, reason = None, str(error)
        outcomes = gather_objects(self._group, [saved is not None, reason])
        unseen = [rank for rank, (sees, why) in enumerate(outcomes) if not sees or why.endswith("is missing")]
        if 0 < len(unseen) < len(outcomes):
            raise CheckpointError(
                f"rank {unseen[0]} does not see all of {folder} ({outcomes[unseen[0]][1]}), other ranks do. "
                "The folder must be one that all hosts share"
            )
        reason = next((why for _, why in outcomes if why), "")
        return (None if reason else saved), reason

    def _apply_verified(self, saved: SavedFolder) -> None:
        """Apply a state; a manifest with valid checksums may still have invalid content."""
        try:
            self._apply(saved)
        except (NeuraxisError, OSError):
            raise
        except Exception as error:
            raise CheckpointError(f"{saved.folder}: damaged, or written by another version: {error!r}") from error

    def _apply(self, saved: SavedFolder) -> None:
        folder, content = saved.folder, saved.metadata
        size = int(content["size"])
        # Another number of ranks takes rank 0's state where ranks differed, and means of tensors.
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
        tensors = StoredState(saved).read(needed, mine)
        whole = pipeline_states(wanted)
        for name, part in wanted.items():
            try:
                whole.get(name, part).load_state_dict(unflatten(trees[name], tensors))
                if name in steps:
                    part.load_step_state_dict(unflatten(steps[name], tensors))  # type: ignore[attr-defined]
            except NeuraxisError:
                raise
            except Exception as error:
                raise CheckpointError(f"{folder}: does not fit {name!r} here: {error}") from error
        # Last, because loading may draw random numbers.
        if self._rank < size:
            _restore_rng(content["random"][self._rank])
        else:
            _derive_rng(content["random"][0]["torch"], content["step"], self._rank)

    # --- errors on all ranks ---

    def _on_all_ranks(self, act: Callable[[], Any], where: Path, undo: Callable[[], None] = lambda: None) -> list[Any]:
        """Run `act` and return the result of every rank. If one rank raises, all do.

        The failed rank raises its own error, the others a CheckpointError that names it. `undo` runs when all ranks
        know of the failure. It does not run if a rank is lost: another rank may have received its success and continue.
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
        failure = "" if error is None else f"{type(error).__name__}: {error}"
        outcomes = gather_objects(self._group, [failure, answer])
        if any(reason for reason, _ in outcomes):
            undo()
        if error is not None:
            raise error
        for rank, (reason, _) in enumerate(outcomes):
            if reason:
                raise CheckpointError(f"{where}: rank {rank} failed: {reason}")
        return [answer for _, answer in outcomes]


def _by_age(folder: Path) -> list[tuple[int | None, int]]:
    """Return age and step of each checkpoint, the newest last. One with an unreadable manifest counts as new."""
    found: list[tuple[int | None, int]] = []
    for step, path in states.saved_steps(folder).items():
        try:
            age = int(SavedFolder.read(path, KIND).metadata["age"])
        except (CheckpointError, KeyError, TypeError, ValueError):
            found.append((None, step))
        else:
            found.append((age, step))
    return sorted(found, key=lambda one: (float("inf") if one[0] is None else one[0], one[1]))


def _described(layout: list[Any] | None) -> str:
    """Return name, dtype and shape of a tensor of a layout."""
    return "nothing" if layout is None else f"{layout[0]!r}, {layout[1]} {tuple(layout[2])}"


def _capture_rng() -> dict[str, Any]:
    """Return the states of torch's, this rank's GPU's, NumPy's and Python's global random generators, as plain data."""
    version, words, next_gauss = random.getstate()
    kind, keys, place, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": _encode(torch.get_rng_state().numpy()),
        "numpy": [str(kind), _encode(np.asarray(keys)), int(place), int(has_gauss), float(gauss)],
        "python": [version, _encode(np.array(words, np.uint32)), next_gauss],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = _encode(torch.cuda.get_rng_state().numpy())
    return state


def _restore_rng(state: Mapping[str, Any]) -> None:
    """Restore the states of all random generators."""
    torch.set_rng_state(_decode_tensor(state["torch"]))
    kind, keys, place, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, _decode(keys), place, has_gauss, gauss))
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(_decode(words).tolist()), next_gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(_decode_tensor(state["cuda"]))


def _derive_rng(*parts: object) -> None:
    """Seed all random generators from `parts`, for a rank without a saved state."""
    seed = mixed_seed(*parts)
    torch.manual_seed(seed)  # seeds the GPU too
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _encode(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _decode(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint32)


def _decode_tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
