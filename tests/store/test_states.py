"""One layout for every kind of state: complete or absent, and never read as something that it is not."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from neuraxis.errors import CheckpointError
from neuraxis.store import replacing, states
from neuraxis.store.states import Kind, SavedFolder
from tests.store.killing import killed_at_each

THING = Kind("thing", 2)


def save(folder: Path, value: float, shards: int = 2, metadata: Mapping[str, Any] | None = None) -> None:
    data = states.begin(folder)
    names = [states.shard_name(shard) for shard in range(shards)]
    for name in names:
        states.write_tensors(data / name, {"values": np.full(3, value)}, {})
    sums = {name: states.file_sum(data / name) for name in names}
    states.commit(data, THING, sums, {"value": value, **(metadata or {})}, {"seed": 1, "digest": "abc"})


def restored(folder: Path) -> float:
    found = SavedFolder.read(folder, THING)
    found.verify()
    values = np.concatenate([load_file(found.data / name)["values"] for name in found.files])
    assert set(values) == {found.metadata["value"]}
    return float(values[0])


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    save(tmp_path / "new", 1.5, metadata={"π": [None, 1e-300], "nested": {"a": [1, {"b": "\ud800"}]}})
    found = SavedFolder.read(tmp_path / "new", THING)
    assert found.metadata == {"value": 1.5, "π": [None, 1e-300], "nested": {"a": [1, {"b": "\ud800"}]}}
    assert found.identity == {"seed": 1, "digest": "abc"}
    assert restored(tmp_path / "new") == 1.5


@pytest.mark.parametrize("metadata", [{"a": {1: "x", "1": "y"}}, {"a": (1, 2)}, {"a": float("nan")}])
def test_metadata_that_json_changes_does_not_look_damaged(tmp_path: Path, metadata: dict[str, Any]) -> None:
    save(tmp_path, 1.0, metadata=metadata)
    assert restored(tmp_path) == 1.0


def test_metadata_that_cannot_be_saved_costs_nothing(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    with pytest.raises(TypeError):
        save(tmp_path, 2.0, metadata={"a": object()})
    assert restored(tmp_path) == 1.0


def test_a_manifest_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    os.truncate(tmp_path / states.MANIFEST, 2**40)  # sparse
    refused = r"manifest\.json: .*it has 1,099,511,627,776 bytes; a manifest has at most 268,435,456"
    with pytest.raises(CheckpointError, match=refused):
        SavedFolder.read(tmp_path, THING)
    with pytest.raises(CheckpointError, match=refused):
        states.check_replaceable(tmp_path, THING)


def test_a_manifest_that_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1.0)
    monkeypatch.setattr(states, "_LARGEST_MANIFEST", 2000)
    with pytest.raises(CheckpointError, match=r"would have 2,\d+ bytes, more than the 2,000 .* in tensors"):
        save(tmp_path, 2.0, metadata={"notes": "x" * 2000})
    assert restored(tmp_path) == 1.0


def test_a_process_killed_at_any_file_operation_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    base = tmp_path / "base"
    save(base, 1.0)
    (base / "notes.txt").write_text("mine")
    found = []
    for trial in killed_at_each(base, lambda trial: save(trial, 2.0)):
        found.append(restored(trial))
        save(trial, 3.0)
        assert restored(trial) == 3.0
        left = sorted(path.name for path in trial.iterdir())
        assert left == ["manifest.json", "notes.txt", SavedFolder.read(trial, THING).data.name]
    assert found == sorted(found)
    assert found.count(1.0) > 8
    assert found.count(2.0) > 2


def test_another_identity_is_named(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    found = SavedFolder.read(tmp_path, THING)
    found.require_identity({"seed": 1, "digest": "abc"}, "box", "its sides differ")
    with pytest.raises(CheckpointError, match=r"was saved from another box: seed was 1, here it is 2"):
        found.require_identity({"seed": 2, "digest": "x"}, "box", "its sides differ")
    with pytest.raises(CheckpointError, match=r"another box: its sides differ\. Restore it into the box it is from$"):
        found.require_identity({"seed": 1, "digest": "x"}, "box", "its sides differ")


def test_a_series_keeps_what_it_is_told_to_and_the_files_of_others(tmp_path: Path) -> None:
    for step in (5, 100_000_000, 20):
        save(states.step_folder(tmp_path, step), step)
    states.begin(states.step_folder(tmp_path, 30))  # of a save that was killed
    (tmp_path / "step-notes").mkdir()
    (states.step_folder(tmp_path, 5) / "notes.txt").write_text("mine")
    assert list(states.saved_steps(tmp_path)) == [5, 20, 100_000_000]
    states.prune(tmp_path, [20])
    assert list(states.saved_steps(tmp_path)) == [20]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005", "step-00000020", "step-notes"]
    assert [path.name for path in states.step_folder(tmp_path, 5).iterdir()] == ["notes.txt"]
    assert states.saved_steps(tmp_path / "nowhere") == {}


def test_a_data_folder_that_was_committed_is_not_discarded(tmp_path: Path) -> None:
    folder = states.step_folder(tmp_path, 1)
    save(folder, 1.0)
    states.discard(SavedFolder.read(folder, THING).data)
    assert restored(folder) == 1.0
    states.discard(states.begin(folder))
    assert len(list(folder.iterdir())) == 2
    states.discard(states.begin(states.step_folder(tmp_path, 2)))
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_a_file_is_replaced_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path):
        pass  # without writing a new file
    assert path.read_text() == "old"
    with replacing(path) as new:
        new.write_text(json.dumps("new"))
        assert path.read_text() == "old"
        assert new.suffix == ".json"
    assert os.listdir(tmp_path) == ["a.json"]
    assert json.loads(path.read_text()) == "new"
