"""Training resumes where it was saved, on any number of ranks; a failure keeps the older state."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from neuraxis.comm import DistributedContext
from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType, PeerLost
from neuraxis.store.states import json_sum
from neuraxis.training import Checkpointer, DataParallel, shard
from neuraxis.training.checkpoint.pieces import LARGE_BYTES, assign_pieces
from neuraxis.training.checkpoint.tree import flatten, tensor_names, unflatten
from tests.ranks import RankGroup
from tests.ranks.processes import Ranks, run_ranks
from tests.store.killing import kill_at, killed_at_each

TIMEOUT_S = 30.0


class Box:
    """A part that holds any state."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class BoxWithSteps(Box):
    """A part that has something of its own on each rank."""

    def __init__(self, state: Any = None, own: Any = None) -> None:
        super().__init__(state)
        self.own = own

    def step_state_dict(self) -> Any:
        return self.own

    def load_step_state_dict(self, state: Any) -> None:
        self.own = state


def restored(folder: Path, step: int | None = None) -> tuple[int | None, Any]:
    box = Box()
    found = Checkpointer(folder, box=box).restore(step)
    return found, box.state


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- a training ---


class Training:
    """All that a training has: dropout, AdamW, a scheduler with a Counter in it, a scaler, a loader."""

    def __init__(self, folder: Path) -> None:
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4])
        self.loader = shard([torch.full((4,), float(i)) for i in range(12)], 2, seed=3)
        self.checkpointer = Checkpointer(
            folder,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            loader=self.loader,
            scaler=torch.amp.GradScaler("cpu"),
        )

    def run(self, steps: int) -> list[float]:
        """Return the results of each step; the random streams of NumPy and Python contribute to them."""
        results = []
        while len(results) < steps:
            for batch in self.loader:
                noise = float(np.random.rand()) + random.random()
                loss = (self.model(batch) + noise).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                results.append(loss.item())
                if len(results) == steps:
                    break
        return results


def test_training_resumes_bit_for_bit(tmp_path: Path) -> None:
    undisturbed = Training(tmp_path / "unused").run(10)
    training = Training(tmp_path)
    assert training.run(4) == undisturbed[:4]
    training.checkpointer.save(4)
    training.run(3)
    again = Training(tmp_path)
    assert again.checkpointer.restore() == 4
    assert again.run(6) == undisturbed[4:]


# --- states ---

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.sampled_from(
        [torch.float16, torch.device("cpu"), torch.tensor(3), torch.ones(2, 3).t(), torch.zeros(0, 4), np.float64(2.5)]
    ),
    st.sampled_from([np.arange(4.0), np.array(True), torch.tensor([1 + 2j]), torch.ones(2, dtype=torch.bfloat16)]),
)
STATES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner),
        st.dictionaries(st.text(), inner).map(OrderedDict),
    ),
)


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor):
        return mine.dtype == theirs.dtype and mine.stride() == theirs.stride() and torch.equal(mine, theirs)
    if isinstance(mine, np.ndarray | np.generic):
        return type(mine) is type(theirs) and mine.dtype == theirs.dtype and np.array_equal(mine, theirs)
    if isinstance(mine, dict):
        return (
            type(mine) is type(theirs)
            and list(mine) == list(theirs)
            and [*map(type, mine)] == [*map(type, theirs)]
            and all(same(mine[key], theirs[key]) for key in mine)
        )
    if isinstance(mine, list | tuple):
        return type(mine) is type(theirs) and len(mine) == len(theirs) and all(map(same, mine, theirs))
    return type(mine) is type(theirs) and bool(mine == theirs)


@settings(max_examples=40)
@given(STATES)
def test_any_state_becomes_json_and_tensors_and_back(state: Any) -> None:
    tree, tensors = flatten(state, "part")
    assert tensor_names(tree) == tensors.keys()
    assert same(unflatten(json.loads(json.dumps(tree, allow_nan=False)), tensors), state)


DTYPES = (
    *(torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float16, torch.float64),
    *(torch.complex64, torch.complex128, torch.uint16, torch.float8_e5m2),
)


def test_states_of_all_sorts_go_to_disk_and_back(tmp_path: Path) -> None:
    state = {
        0: Counter({30: 1}),
        "strange": [float("inf"), -0.0, 2**100, "π"],
        "dtypes": [torch.arange(6).to(dtype) for dtype in DTYPES],
        "orders": [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.arange(10)[::3]],
        "alike": {"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}},
    }
    Checkpointer(tmp_path, box=Box(state)).save(1)
    found = restored(tmp_path)[1]
    state["orders"][1] = state["orders"][1].contiguous()  # what has gaps comes back without them
    assert same(found, state), found
    assert np.isnan(restored_value(tmp_path, float("nan")))


def restored_value(folder: Path, value: Any) -> Any:
    Checkpointer(folder, box=Box([value])).save(2)
    return restored(folder, 2)[1][0]


@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"a": [1, object()]}, r"box/a/1: a builtins.object"),
        ({"f": print}, r"box/f: "),
        ({1.5: 2}, r"the key 1.5"),
        ({"sparse": torch.eye(2).to_sparse()}, r"box/sparse: a torch.sparse_coo"),
        ({"s": {1, 2}}, r"box/s: a builtins.set"),
    ],
)
def test_unsupported_values_are_refused_with_their_path(tmp_path: Path, state: Any, path: str) -> None:
    checkpointer = Checkpointer(tmp_path, box=Box({"x": torch.ones(2)}))
    checkpointer.save(1)
    checkpointer.parts["box"].state = state  # type: ignore[attr-defined]
    with pytest.raises(InvalidType, match=path):
        checkpointer.save(2)
    assert checkpointer.steps() == [1]


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 300, bias=False))
    model[1].weight = model[0].weight
    folder = Checkpointer(tmp_path, model=model).save(1)
    assert sum(path.stat().st_size for path in folder.glob("*/*.safetensors")) < 2 * 300 * 300 * 4
    other = nn.Sequential(nn.Linear(300, 300, bias=False), nn.Linear(300, 300, bias=False))
    Checkpointer(tmp_path, model=other).restore()
    assert torch.equal(other[1].weight, model[0].weight)


@given(
    st.dictionaries(st.text(), st.tuples(st.integers(0, 3 * LARGE_BYTES), st.booleans()), max_size=12),
    st.integers(1, 6),
)
def test_ranks_share_the_writing(tensors: dict[str, tuple[int, bool]], size: int) -> None:
    elements = {name: count for name, (count, _) in tensors.items()}
    differing = {name for name, (_, differs) in tensors.items() if differs}
    pieces = assign_pieces(elements, elements, differing, size)
    shared = dict.fromkeys(range(size), 0)
    for name, count in elements.items():
        mine = sorted((piece for piece in pieces if piece.tensor == name), key=lambda piece: (piece.start, piece.rank))
        if name in differing:
            assert [(piece.rank, piece.start, piece.stop) for piece in mine] == [(r, 0, count) for r in range(size)]
            continue
        assert [piece.start for piece in mine] == [0, *(piece.stop for piece in mine[:-1])]
        assert mine[-1].stop == count
        for piece in mine:
            shared[piece.rank] += piece.stop - piece.start
    assert max(shared.values()) - min(shared.values()) <= LARGE_BYTES + len(elements)


# --- which states there are ---


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, keep=2, box=Box({"step": 0}))
    (tmp_path / "notes.txt").write_text("mine")
    assert checkpointer.restore() is None
    assert checkpointer.steps() == []
    for step in (5, 10, 200_000_000, 15):
        checkpointer.parts["box"].state = {"step": step}  # type: ignore[attr-defined]
        assert checkpointer.save(step).is_dir()
    assert checkpointer.steps() == [200_000_000, 15]
    assert names(tmp_path) == ["notes.txt", "step-00000015", "step-200000000"]
    assert restored(tmp_path) == (15, {"step": 15})
    assert restored(tmp_path, 200_000_000) == (200_000_000, {"step": 200_000_000})
    with pytest.raises(CheckpointError, match=r"step-00000010: holds no saved state"):
        restored(tmp_path, 10)


def test_continuing_from_an_older_state_keeps_its_new_states(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, keep=2, box=Box(1))
    for step in (1, 2, 3):
        checkpointer.save(step)
    assert checkpointer.restore(2) == 2
    checkpointer.parts["box"].state = "anew"  # type: ignore[attr-defined]
    checkpointer.save(3)
    assert restored(tmp_path) == (3, "anew")
    assert checkpointer.restore(2) == 2
    checkpointer.save(1)
    assert checkpointer.steps() == [3, 1]
    assert len(names(tmp_path / "step-00000003")) == 2


def test_saving_during_gradient_accumulation_is_refused(tmp_path: Path) -> None:
    model = DataParallel(nn.Linear(3, 1))
    checkpointer = Checkpointer(tmp_path, model=model)
    for block in range(2):
        with model.accumulate(2):
            model(torch.ones(2, 3)).mean().backward()
        if block == 0:
            with pytest.raises(InvalidArgument, match=r"model is in the middle of an accumulation.*complete block"):
                checkpointer.save(1)
            assert checkpointer.steps() == []
    checkpointer.save(1)
    assert checkpointer.steps() == [1]


def test_missing_and_mismatched_parts_raise(tmp_path: Path) -> None:
    Checkpointer(tmp_path, model=Box(1), optimizer=Box(2)).save(1)
    only = Box()
    assert Checkpointer(tmp_path, model=only).restore() == 1
    assert only.state == 1
    with pytest.raises(CheckpointError, match=r"has no part 'scheduler'; it has model, optimizer"):
        Checkpointer(tmp_path, scheduler=Box()).restore()
    Checkpointer(tmp_path, model=nn.Linear(2, 2)).save(2)
    with pytest.raises(CheckpointError, match=r"(?s)does not fit 'model' here.*size mismatch for weight"):
        Checkpointer(tmp_path, model=nn.Linear(3, 2)).restore()
    with pytest.raises(InvalidType, match="model is a int"):
        Checkpointer(tmp_path, model=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="keep=0"):
        Checkpointer(tmp_path, keep=0)
    with pytest.raises(InvalidArgument, match="step=-1: must be 0 or more"):
        Checkpointer(tmp_path).save(-1)
    with pytest.raises(InvalidType, match="step='a': a whole number"):
        Checkpointer(tmp_path).save("a")  # type: ignore[arg-type]


# --- damage ---


def two_states(folder: Path) -> Path:
    """Saved at steps 1 and 2; the folder of the newer."""
    for step in (1, 2):
        newest = Checkpointer(folder, box=Box({"values": torch.full((50,), float(step))})).save(step)
    return newest


def flipped(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


SHARD = "state-*/shard-*.safetensors"
DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit of a number": lambda folder: flipped(next(folder.glob(SHARD)), -1),
    "a bit of a name": lambda folder: flipped(next(folder.glob(SHARD)), 20),
    "cut": lambda folder: os.truncate(next(folder.glob(SHARD)), 100),
    "longer": lambda folder: os.truncate(next(folder.glob(SHARD)), 1 << 16),
    "removed": lambda folder: next(folder.glob(SHARD)).unlink(),
    "a bit of the manifest": lambda folder: flipped(
        folder / "manifest.json", (folder / "manifest.json").read_text().index('"step"') + 8
    ),
    "a manifest of nothing": lambda folder: (folder / "manifest.json").write_text(""),
    "a foreign manifest": lambda folder: (folder / "manifest.json").write_text('{"content": [], "crc32": 0}'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_state_is_skipped_with_a_warning(tmp_path: Path, damage: str) -> None:
    DAMAGES[damage](two_states(tmp_path))
    with pytest.raises(CheckpointError, match="step-00000002"):
        restored(tmp_path, 2)
    with pytest.warns(UserWarning, match=r"went back to step 1: .*step-00000002"):
        step, state = restored(tmp_path)
    assert step == 1
    assert torch.equal(state["values"], torch.ones(50))
    Checkpointer(tmp_path, box=Box(3)).save(2)  # which takes its place
    assert restored(tmp_path) == (2, 3)
    assert len(names(tmp_path / "step-00000002")) == 2


def test_only_damaged_states_is_an_error(tmp_path: Path) -> None:
    two_states(tmp_path)
    for step in (1, 2):
        DAMAGES["cut"](tmp_path / f"step-0000000{step}")
    with pytest.raises(CheckpointError, match=r"step-00000002.*step-00000001"):
        restored(tmp_path)


def test_a_manifest_of_the_future_and_one_that_leads_elsewhere(tmp_path: Path) -> None:
    manifest = two_states(tmp_path) / "manifest.json"
    body = json.loads(manifest.read_text())
    del body["crc32"]
    for change, reason in (
        ({"content": 2}, "version 2 of the state of a training.*reads version 1"),
        ({"version": 4}, "version 4 of the layout.*reads version 3"),
        ({"kind": "simulation"}, "holds the state of a simulation, not of a training"),
        ({"files": {"../../shard-0.safetensors": [0, 0]}}, "names files outside its folder"),
    ):
        changed = {**body, **change}
        manifest.write_text(json.dumps({**changed, "crc32": json_sum(changed)}))
        with pytest.raises(CheckpointError, match=reason):
            restored(tmp_path, 2)


# --- killed while it saves ---


def test_a_process_killed_at_any_file_operation_leaves_a_complete_state(tmp_path: Path) -> None:
    [steps] = run_ranks(_killed_everywhere, 1, str(tmp_path), torch=True)
    assert steps.count(1) > 8
    assert steps.count(2) > 8
    assert steps == sorted(steps)


def _killed_everywhere(folder: str) -> list[int | None]:
    """The steps that are found, the later it was killed."""
    old, new = Box({"values": torch.zeros(40)}), Box({"values": torch.ones(40)})
    base = Path(folder, "states")
    Checkpointer(base, keep=1, box=old).save(1)
    found = []
    for trial in killed_at_each(base, lambda trial: Checkpointer(trial, keep=1, box=new).save(2)):
        step, state = restored(trial)
        assert (step, state["values"].tolist()) in ((1, [0.0] * 40), (2, [1.0] * 40)), trial
        found.append(step)
        Checkpointer(trial, keep=1, box=new).save(3)  # which removes what was left
        assert names(trial) == ["step-00000003"], trial
        assert len(names(trial / "step-00000003")) == 2
    return found


def test_partial_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    run_ranks(_killed_in_a_shard, 1, str(tmp_path), torch=True)


def _killed_in_a_shard(folder: str) -> None:
    box = Box({"values": torch.ones(100_000)})
    checkpointer = Checkpointer(folder, keep=2, box=box)
    checkpointer.save(1)
    for step in (1, 2):  # once beside a state that is kept, once where there is none
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel kills a process that writes beyond the limit
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            checkpointer.save(step)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGXFSZ
        assert list(Path(folder, f"step-{step:08d}").glob("state-*/.tmp*"))
    old = os.umask(0o022)
    checkpointer.save(3)
    os.umask(old)
    assert names(Path(folder)) == ["step-00000001", "step-00000003"]
    for path in Path(folder).glob("step-*"):
        assert len(names(path)) == 2, names(path)
    files = [path for path in Path(folder, "step-00000003").rglob("*") if path.is_file()]
    modes = {path.name: path.stat().st_mode & 0o777 for path in files}
    assert set(modes.values()) == {0o644}, modes


def test_a_state_that_is_saved_again_is_there_at_any_time(tmp_path: Path) -> None:
    [states] = run_ranks(_killed_saving_again, 1, str(tmp_path), torch=True)
    assert set(states) == {"old", "new"}
    assert states == sorted(states, reverse=True)


def _killed_saving_again(folder: str) -> list[str]:
    """The same step, and it is the only one."""
    base = Path(folder, "states")
    Checkpointer(base, keep=1, box=Box("old")).save(1)
    states = []
    for trial in killed_at_each(base, lambda trial: Checkpointer(trial, keep=1, box=Box("new")).save(1)):
        step, state = restored(trial)
        assert step == 1
        states.append(state)
    return states


@pytest.mark.parametrize(("victim", "operation"), [(0, 1), (0, 3), (0, 5), (1, 1), (1, 2), (1, 3)])
def test_a_rank_killed_while_all_save(tmp_path: Path, victim: int, operation: int) -> None:
    with Ranks(_save_with_a_victim, 2, str(tmp_path), victim, operation, torch=True) as ranks:
        outcomes = ranks.outcomes()
    assert outcomes[victim].status == -signal.SIGKILL
    assert isinstance(outcomes[1 - victim].error, PeerLost), outcomes[1 - victim].output
    assert restored(tmp_path) == (1, "old")


def _save_with_a_victim(folder: str, victim: int, operation: int) -> None:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        box = Box("old")
        checkpointer = Checkpointer(folder, keep=1, box=box)
        checkpointer.save(1)
        box.state = "new"
        if context.rank == victim:
            kill_at(operation, folder)
        checkpointer.save(2)


# --- several ranks ---


def test_every_backend_saves_and_restores(rank_group: RankGroup, tmp_path: Path) -> None:
    assert rank_group.run(_save_and_restore, str(tmp_path)) == [[0.0, 1.0, rank] for rank in range(rank_group.size)]


def _save_and_restore(context: DistributedContext, folder: str) -> list[float]:
    box = _parts(context.rank)
    checkpointer = Checkpointer(folder, box=box)
    assert checkpointer.restore() is None
    checkpointer.save(1)
    box.state = None
    assert checkpointer.restore() == 1
    return [box.state["large"][0].item(), box.state["small"][0].item(), box.own["count"].item()]


def test_a_state_resumes_on_another_number_of_ranks(tmp_path: Path) -> None:
    drawn = run_ranks(_save_by_ranks, 3, str(tmp_path), torch=True)
    folder = tmp_path / "step-00000007"
    sizes = [path.stat().st_size for path in folder.glob("*/*.safetensors")]
    assert len(sizes) == 3
    assert max(sizes) < 1.1 * min(sizes)
    same_size = run_ranks(_restore_by_ranks, 3, str(tmp_path), torch=True)
    assert [one["drawn"] for one in same_size] == drawn
    assert [one["own"] for one in same_size] == [0.0, 1.0, 2.0]
    assert [one["residual"] for one in same_size] == [10.0, 11.0, 12.0]
    assert [one["tree"] for one in same_size] == [0, 1, 2]
    for size in (1, 2, 5):
        found = run_ranks(_restore_by_ranks, size, str(tmp_path), torch=True)
        assert [one["own"] for one in found] == [1.0] * size  # the mean
        assert [one["residual"] for one in found] == [11.0] * size
        assert [one["count"] for one in found] == [0] * size  # an integer: that of rank 0
        assert [one["drawn"] for one in found][:3] == drawn[:size]
        assert len({one["drawn"] for one in found}) == size
        assert all(one["sum"] == same_size[0]["sum"] for one in found)


def _parts(rank: int) -> BoxWithSteps:
    large = torch.arange(1_000_003, dtype=torch.float32)  # cut in parts of unequal lengths
    state = {"large": large, "small": torch.ones(3), "own": torch.tensor([float(rank)]), "rank": rank}
    return BoxWithSteps(state, {"residual": torch.tensor([10.0 + rank]), "count": torch.tensor(rank)})


def _save_by_ranks(folder: str) -> float:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        torch.manual_seed(context.rank)
        Checkpointer(folder, box=_parts(context.rank)).save(7)
        return float(torch.rand(()))


def _restore_by_ranks(folder: str) -> dict[str, Any]:
    with DistributedContext("shm", timeout=TIMEOUT_S):
        box = BoxWithSteps()
        assert Checkpointer(folder, box=box).restore() == 7
        assert torch.equal(box.state["large"], torch.arange(1_000_003, dtype=torch.float32))
        return {
            "own": box.state["own"].item(),
            "tree": box.state["rank"],
            "residual": box.own["residual"].item(),
            "count": box.own["count"].item(),
            "sum": box.state["large"].double().sum().item(),
            "drawn": float(torch.rand(())),
        }


def test_a_disk_that_is_full_on_one_rank_is_everybodys_error(tmp_path: Path) -> None:
    found = run_ranks(_full_disk, 2, str(tmp_path), torch=True)
    assert "rank 1 failed: CheckpointError" in found[0]
    assert "shard-1.safetensors" in found[1]
    assert names(tmp_path) == ["step-00000001", "step-00000003"]  # what was begun has been removed
    assert restored(tmp_path, 1)[0] == 1


def _full_disk(folder: str) -> str:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        checkpointer = Checkpointer(folder, box=Box([torch.ones(500), torch.ones(500)]))
        checkpointer.save(1)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if context.rank == 1:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        with pytest.raises(CheckpointError) as caught:
            checkpointer.save(2)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert checkpointer.restore() == 1
        checkpointer.save(3)
        return str(caught.value)


def test_inconsistent_ranks_raise(tmp_path: Path) -> None:
    run_ranks(_disagreeing, 2, str(tmp_path), torch=True)


def _disagreeing(folder: str) -> None:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        rank = context.rank
        with pytest.raises(CheckpointError, match=r"rank 1 has 'box/0', float32 \(3,\) where rank 0 has .*\(2,\)"):
            Checkpointer(folder, box=Box([torch.ones(2 + rank)])).save(1)
        with pytest.raises(InvalidType if rank else CheckpointError, match=r"box/0: a builtins.object"):
            Checkpointer(folder, box=Box([object() if rank else 1])).save(1)
        with pytest.raises(InvalidArgument, match=r"different steps at the same time: \[1, 2\]"):
            Checkpointer(folder, box=Box(1)).save(1 + rank)
        # A folder of each host's own, as on a cluster without a shared disk.
        own = Path(folder, f"host-{rank}")
        with pytest.raises(CheckpointError, match=r"must be one that all hosts share"):
            Checkpointer(own, box=Box([torch.ones(2), torch.ones(2)])).save(1)
        context.world.barrier()
        shared = Path(folder, "shared")
        Checkpointer(shared, box=Box(1)).save(1)
        if rank == 0:
            shutil.copytree(shared, own, dirs_exist_ok=True)
        context.world.barrier()
        with pytest.raises(CheckpointError, match=r"rank 1 does not see all of .*share"):
            Checkpointer(own, box=Box()).restore(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Checkpointer(shared, box=Box()).restore() == 1
