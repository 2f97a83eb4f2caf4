"""States that a region saves itself: the last complete one is loaded, and none of another brain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from neuraxis.engine.spikes import SpikeBuffers
from neuraxis.errors import CheckpointError
from neuraxis.network import Network
from neuraxis.simulation.mesh import RegionSetup
from neuraxis.simulation.mesh.region_state import RegionStates
from neuraxis.simulation.runner import ShardRunner
from neuraxis.store.states import json_sum
from tests.simulation.mesh.meshes import one_each
from tests.simulation.networks import driven

DIGEST = 77


def runner_of(network: Network) -> ShardRunner:
    placement = one_each(network).placement(network)
    return ShardRunner(network, placement, 0, SpikeBuffers.private(network, placement), lambda synapses: None, (0, 0))


def states_in(folder: Path, every: int = 100, digest: int = DIGEST) -> RegionStates:
    network = driven(n=20)
    setup = RegionSetup(
        "cells", one_each(network), network, (), "m", {}, checkpoint=str(folder), checkpoint_every=every
    )
    return RegionStates(setup, digest)


def names(folder: Path) -> set[str]:
    return {one.name for one in (folder / "cells").iterdir()}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, np.ndarray]]:
    """A folder in which states of the steps 100, 250 and 400 were saved, and what the potentials were."""
    folder = tmp_path_factory.mktemp("states")
    states, runner, seen = states_in(folder), runner_of(driven(n=20)), {}
    for step in (100, 250, 400):
        runner.advance(step)
        states.save(runner, timeline=3)
        seen[step] = runner.read_state(0, "v_mv")
    return folder, seen


def copy_of(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def resumed(folder: Path, digest: int = DIGEST) -> tuple[int, np.ndarray]:
    runner = runner_of(driven(n=20))
    step, timeline = states_in(folder, digest=digest).restore(runner)
    assert runner.shard.step == step
    assert timeline == (3 if step else 0)
    values = runner.read_state(0, "v_mv")
    assert values is not None
    return step, values


def test_the_last_two_are_kept_and_the_last_is_taken(kept: tuple[Path, dict[int, np.ndarray]]) -> None:
    folder, seen = kept
    assert names(folder) == {"step-00000250", "step-00000400"}
    step, values = resumed(folder)
    assert step == 400
    assert np.array_equal(values, seen[400])


def test_a_restored_region_equals_an_uninterrupted_one(kept: tuple[Path, dict]) -> None:
    runner, other = runner_of(driven(n=20)), runner_of(driven(n=20))
    assert states_in(kept[0]).restore(runner) == (400, 3)
    runner.shard.publish()
    recorded = runner.advance(900)
    other.advance(400)
    expected = other.advance(900)
    assert np.array_equal(recorded.steps, expected.steps)
    assert np.array_equal(recorded.ids, expected.ids)
    assert runner.counters().hash == other.counters().hash
    assert runner.state_hash() == other.state_hash()


@pytest.mark.parametrize("what", ["cut", "flipped", "no note", "a note that is none", "a note without a file", "empty"])
def test_a_damaged_state_is_skipped_for_the_previous_one(
    kept: tuple[Path, dict[int, np.ndarray]], tmp_path: Path, what: str
) -> None:
    folder = copy_of(kept[0], tmp_path)
    last = folder / "cells" / "step-00000400"
    (data,) = last.glob("state-*/shard-0.safetensors")
    manifest = last / "manifest.json"
    content = data.read_bytes()
    if what == "cut":
        data.write_bytes(content[:-10])
    elif what == "flipped":
        data.write_bytes(content[:-10] + bytes([content[-10] ^ 1]) + content[-9:])
    elif what == "no note":
        manifest.unlink()
    elif what == "a note that is none":
        manifest.write_text("[1, 2")
    elif what == "a note without a file":
        body = json.loads(manifest.read_text())
        del body["crc32"]
        body["data"] = f"../step-00000250/{data.parent.name}"
        manifest.write_text(json.dumps({**body, "crc32": json_sum(body)}))
    else:
        data.unlink()
    step, values = resumed(folder)
    assert step == 250
    assert np.array_equal(values, kept[1][250])


def test_damaged_states_raise_and_without_states_the_region_starts_new(kept: tuple, tmp_path: Path) -> None:
    folder = copy_of(kept[0], tmp_path)
    for one in (folder / "cells").iterdir():
        (one / "manifest.json").write_text("")
    with pytest.raises(CheckpointError, match=r"step-00000400.*damaged.*step-00000250.*damaged"):
        resumed(folder)
    assert resumed(tmp_path / "nothing")[0] == 0


def test_one_of_another_brain_is_refused(kept: tuple) -> None:
    with pytest.raises(CheckpointError, match="another brain"):
        resumed(kept[0], digest=DIGEST + 1)


def test_an_unfinished_state_is_ignored(kept: tuple, tmp_path: Path) -> None:
    folder = copy_of(kept[0], tmp_path)
    (folder / "cells" / "step-00000400").rename(folder / "cells" / "unfinished")
    (folder / "cells" / "step-x").mkdir()
    (folder / "cells" / "notes.txt").write_text("mine")
    assert resumed(folder)[0] == 250


def test_when_one_is_due(tmp_path: Path) -> None:
    states, runner = states_in(tmp_path, every=100), runner_of(driven(n=20))
    assert not states.is_due(99)
    assert states.is_due(100)
    runner.advance(130)
    assert states.is_due(130)
    states.save(runner)
    assert not states.is_due(130, always=True)
    assert not states.is_due(199)
    assert states.is_due(131, always=True)
    assert states.is_due(200)
    network = driven(n=20)
    never = RegionStates(RegionSetup("cells", one_each(network), network, (), "m", {}), DIGEST)
    assert not never.is_due(10**6, always=True)


def test_where_one_could_not_be_saved_it_is_tried_again_after_a_while(tmp_path: Path) -> None:
    states = states_in(tmp_path, every=100)
    states.postpone(130)
    assert not states.is_due(131)
    assert states.is_due(140)
    assert states.is_due(131, always=True)


def test_states_of_an_earlier_run_go_when_there_is_one_of_this(kept: tuple, tmp_path: Path) -> None:
    """Otherwise one of them, of a later step, would be taken for the last one of this run."""
    folder, runner = copy_of(kept[0], tmp_path), runner_of(driven(n=20))
    states = states_in(folder)
    runner.advance(120)
    states.save(runner)
    assert names(folder) == {"step-00000120"}


def test_an_unwritable_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("in the way")
    runner = runner_of(driven(n=20))
    runner.advance(10)
    with pytest.raises(CheckpointError, match="cannot be written"):
        states_in(tmp_path).save(runner)


def test_to_resume_a_folder_is_needed() -> None:
    network = driven(n=20)
    with pytest.raises(CheckpointError, match="needs a folder"):
        RegionStates(RegionSetup("cells", one_each(network), network, (), "m", {}, resume=True), DIGEST)
