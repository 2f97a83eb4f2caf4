"""One process or many, moved, saved, damaged, killed: the brain stays the same, bit for bit.

Worker processes take a second each to start, so each number of workers is started once and goes through everything.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from neuraxis.brain import Brain, default_brain
from neuraxis.brain.tasks import CueActionTask, Timing
from neuraxis.engine.placement import place
from neuraxis.errors import CheckpointError, ShardFailed, SimulationClosed
from neuraxis.simulation import Simulation
from neuraxis.store.states import json_sum
from tests.brain.test_brain import small
from tests.simulation.long_run import worker_pids

SHORT = Timing(cue_ms=30.0, decision_ms=20.0, action_ms=15.0, outcome_ms=5.0, rest_ms=10.0)


def all_but_workers(brain):
    """Return all reports of a brain that do not depend on the number of workers."""
    reported = brain.diagnostics().as_json()
    assert len(reported.pop("workers")) == brain.workers
    plastic = [one.name for one in brain.lowered.network.projections if one.has_changing_weights]
    return {
        "fingerprint": brain.fingerprint(),
        "state": brain.state(),
        "diagnostics": reported,
        "spikes": brain.spike_totals(),
        "weights": {name: brain.weights(name).tobytes() for name in plastic},
    }


# --- a whole session, on 1, 2, 3 and 5 workers ---


class Course:
    """A session with everything in it that can happen to a brain: what was seen at each of its stages."""

    def __init__(self, brain, folder):
        self.brain = brain
        self.task = CueActionTask(brain, timing=SHORT, reverse_at=3)
        self.folder = folder
        self.seen = []

    def run(self, between=lambda: None):
        self.first_part()
        between()
        self.middle()
        between()
        self.brain.save(self.folder, self.task.save())
        self.last_part()

    def first_part(self):
        self.task.run_trial()
        self.task.run_trial()
        self.look()

    def middle(self):
        """Ends with a lesion, frozen learning, an action in progress and pending releases."""
        brain = self.brain
        brain.lesion("hippocampus")
        brain.freeze_learning()
        self.task.run_trial()
        brain.forward({"cue": [0, 0, 1, 0]}, 100)
        brain.select_action()
        brain.forward({"cue": [0, 0, 1, 0]}, 100)
        brain.deliver_reward(1.0)
        brain.step({"cue": [0, 0, 1, 0]}, 5)
        assert {what for _, what, _ in brain._session.schedule.as_json()} == {"release", "rest"}
        self.look()

    def last_part(self):
        """From the middle, as it was left or as it was loaded."""
        brain = self.brain
        assert brain.state()["lesions"] == ["hippocampus"]
        assert brain.state()["learning"] is False
        brain.run(30.0)
        self.look()
        brain.heal("hippocampus")
        brain.freeze_learning(False)
        self.task.run_trial()
        self.look()

    def look(self):
        self.seen.append((all_but_workers(self.brain), list(self.task.trials)))

    def continue_from(self, folder):
        """The last part, from a state that another brain saved; what was seen."""
        self.task.restore(self.brain.restore(folder))
        self.seen = []
        self.last_part()
        return self.seen


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The course in one process, and its brain."""
    with Brain(default_brain(seed=2)) as brain:
        course = Course(brain, tmp_path_factory.mktemp("alone"))
        course.run()
        yield course, list(course.seen)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_session_is_the_same_on_any_number_of_workers(alone, workers, tmp_path):
    course, expected = alone
    with Brain(default_brain(seed=2), workers=workers) as brain:
        assert brain.workers == workers
        other = Course(brain, tmp_path)
        homes = [brain.placement]

        def move():
            """First every population is cut, then regions are whole again or not, as the measured load says."""
            if len(homes) == 1:
                brain._simulation.move(place(brain.lowered.network, workers))
            else:
                brain.rebalance()
            homes.append(brain.placement)

        other.run(between=move)
        assert homes[0] != homes[1]
        for mine, theirs in zip(other.seen, expected, strict=True):
            assert mine == theirs
        # A state of one process continues in several, and theirs in one.
        assert other.continue_from(course.folder) == expected[2:]
        assert course.continue_from(tmp_path) == expected[2:]
        assert len(brain.load()) == len(brain.status()) == workers
        health = brain.diagnostics().workers
        assert [one.worker for one in health] == list(range(workers))
        assert {one.step for one in health} == {brain.steps}
        assert sum(one.spikes_in for one in health) > 0
        assert {region for one in health for region in one.regions} == set(brain.lowered.regions)


def test_a_session_has_right_and_wrong_in_it(alone):
    """Otherwise the comparisons above would show little."""
    _, expected = alone
    trials = expected[-1][1]
    assert len(trials) == 4
    assert len({trial.surprise for trial in trials}) > 1
    assert expected[0][0]["weights"] != expected[-1][0]["weights"]
    assert all(expected[-1][0]["spikes"][f"{name}.cells"] > 0 for name in ("cue", "motor"))


def test_the_tolerance_of_batches_changes_nothing_where_there_is_no_python():
    fingerprints = set()
    for tolerance in (0.1, 1.9):
        with Brain(small().spec(), batch_tolerance_ms=tolerance) as brain:
            CueActionTask(brain, timing=SHORT).run_trial()
            fingerprints.add(brain.fingerprint())
    assert len(fingerprints) == 1


# --- saved states that are not what they should be ---


@pytest.fixture(scope="module")
def resting(tmp_path_factory):
    """A brain, a folder with an early state of it, and one with a state in the middle of something."""
    early, now = tmp_path_factory.mktemp("early"), tmp_path_factory.mktemp("now")
    with Brain(small().spec()) as brain:
        brain.forward([1, 0, 0, 0], 500)
        brain.select_action()
        brain.save(early, {"trials": 3})
        brain.lesion("thalamus")
        brain.deliver_reward(1.0)
        brain.step([0, 1, 0, 0], 7)
        brain.save(now)
        yield brain, early, now


@pytest.fixture
def standing(resting):
    """The brain in the middle of something, and the folder with its early state."""
    brain, early, now = resting
    brain.restore(now)
    return brain, early


def shard_file(folder):
    return next(folder.glob("state-*/shard-0.safetensors"))


def change_manifest(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    del manifest["crc32"]
    path.write_text(json.dumps({**manifest, "crc32": json_sum(manifest)}))


def cut(folder):
    file = shard_file(folder)
    file.write_bytes(file.read_bytes()[:-1000])


def flip_a_bit_of_a_weight(folder):
    """In the middle of the weights of a plastic projection."""
    file = shard_file(folder)
    content = bytearray(file.read_bytes())
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_bytes])
    name = next(name for name in header if name.startswith("projection/") and name.endswith("/weights"))
    first, last = header[name]["data_offsets"]
    content[8 + header_bytes + (first + last) // 2] ^= 0x10
    file.write_bytes(content)


def save_network(folder):
    shutil.rmtree(folder)
    with Brain(small().spec()) as brain, Simulation(brain.lowered.network) as simulation:
        simulation.step(3)
        simulation.save(folder)


def save_another(spec):
    def save(folder):
        shutil.rmtree(folder)
        with Brain(spec) as brain:
            brain.run(1.0)
            brain.save(folder)

    return save


DAMAGES = {
    "nothing there": (shutil.rmtree, "holds no saved state"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), "holds no saved state"),
    "no JSON": (lambda folder: (folder / "manifest.json").write_text("{"), "not a saved state"),
    "no file": (lambda folder: shard_file(folder).unlink(), "cannot be read"),
    "a file cut short": (cut, "shard-0"),
    "a bit flipped": (flip_a_bit_of_a_weight, "damaged"),
    "another format": (lambda folder: change_manifest(folder, lambda m: m.update(content=1)), "version 1"),
    "no agenda": (
        lambda folder: change_manifest(folder, lambda m: m["metadata"]["note"]["brain"].pop("agenda")),
        "damaged",
    ),
    "a wrong agenda": (
        lambda folder: change_manifest(folder, lambda m: m["metadata"]["note"]["brain"].update(agenda=[[1]])),
        "damaged",
    ),
    "a network's": (save_network, "is a checkpoint of a network, not of a brain"),
    "another seed": (save_another(small(seed=2).spec()), "another network: seed was 2, here it is 1"),
    "more cells": (save_another(small().sensor("ear", 4).spec()), "another network: populations"),
    "another reward": (save_another(small().reward(dopamine=9.0).spec()), "another"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_state_that_cannot_be_used_is_refused_and_nothing_is_lost(standing, tmp_path, damage):
    brain, saved = standing
    folder = tmp_path / "state"
    shutil.copytree(saved, folder)
    spoil, reason = DAMAGES[damage]
    spoil(folder)
    before, schedule = all_but_workers(brain), brain._session.schedule.as_json()
    with pytest.raises(CheckpointError, match=reason) as caught:
        brain.restore(folder)
    assert str(folder) in str(caught.value)
    assert all_but_workers(brain) == before
    assert brain._session.schedule.as_json() == schedule


def test_a_state_that_can_be_used_brings_back_all(standing, tmp_path):
    brain, saved = standing
    shutil.copytree(saved, tmp_path / "state")
    brain.save(tmp_path / "now")
    now = all_but_workers(brain)
    assert brain.restore(tmp_path / "state") == {"trials": 3}
    assert brain.steps == 500
    assert brain.state()["lesions"] == []
    assert brain.restore(tmp_path / "now") == {}
    assert all_but_workers(brain) == now
    assert brain.state()["lesions"] == ["thalamus"]


def test_a_save_that_fails_leaves_the_older_state(standing, tmp_path, monkeypatch):
    brain, saved = standing
    folder = tmp_path / "state"
    shutil.copytree(saved, folder)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    before = all_but_workers(brain)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(CheckpointError, match="No space left"):
            brain.save(folder)
    assert all_but_workers(brain) == before
    with Brain(small().spec()) as other:
        assert other.restore(folder) == {"trials": 3}
        assert other.steps == 500


# --- workers that are lost ---


@contextmanager
def kill_at(brain, worker, step):
    """Kill a worker as soon as it is at a step, while the brain runs."""
    executor = brain._simulation._executor
    pid = worker_pids(brain._simulation)[worker]
    over = threading.Event()

    def watch():
        while executor._spike_buffers is not None and executor._last_step(worker) < step:
            if over.wait(0.0005):
                return
        if executor._spike_buffers is not None:
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_losing_workers_in_a_trial_does_not_change_the_result():
    def session(brain, accident=nullcontext):
        task = CueActionTask(brain, timing=SHORT)
        task.run_trial()
        brain.forward([0, 0, 1, 0], 500)
        brain.select_action()
        brain.forward([0, 0, 1, 0], 200)
        brain.deliver_reward(1.0)
        with accident():
            brain.forward([0, 0, 1, 0], 10_000)
        brain.select_action()
        task.run_trial()
        spikes = {name: [part.tobytes() for part in brain.spikes(name)] for name in brain.lowered.regions}
        return all_but_workers(brain), task.trials, spikes

    with Brain(small().spec(), record=True) as brain:
        expected = session(brain)
    with Brain(small().spec(), record=True, workers=2, on_worker_loss="restart", checkpoint_every_ms=20.0) as brain:
        first_pids = worker_pids(brain._simulation)
        assert session(brain, lambda: kill_at(brain, 0, brain.steps + 1500)) == expected
        assert not set(first_pids) & set(worker_pids(brain._simulation))
    assert all(len(times) > 0 for times, _ in expected[2].values())


def test_the_error_of_a_lost_worker_has_all_known_facts():
    with Brain(small().spec(), workers=2) as brain:
        brain.run(10.0)
        held = {part.population for part in brain.placement[1]}
        regions = {
            name
            for name, region in brain.lowered.regions.items()
            if any(one.index in held for one in region.populations.values())
        }
        assert regions
        with kill_at(brain, 1, 300), pytest.raises(ShardFailed) as caught:
            brain.run(1_000_000.0)
        error = caught.value
        assert (error.worker, error.signal, error.exit_code) == (1, signal.SIGKILL, None)
        assert error.step >= 300
        assert error.memory_bytes > 2**20
        text = str(error)
        for part in (*regions, "SIGKILL", f"step {error.step}", "MiB", "next: "):
            assert part in text
        assert "restore" in text
        with pytest.raises(SimulationClosed):
            brain.run(1.0)


def test_the_folder_of_a_state_can_be_a_text_or_a_path(standing, tmp_path):
    brain, _ = standing
    brain.save(str(tmp_path / "text"))
    brain.restore(str(tmp_path / "text"))
    assert Path(tmp_path / "text" / "manifest.json").exists()


def test_the_names_of_release_0_1_still_work(standing, tmp_path):
    brain, _ = standing
    with pytest.warns(DeprecationWarning, match=r"Use Brain\.save\.$"):
        brain.save_checkpoint(tmp_path, CueActionTask(brain).save())
    with pytest.warns(DeprecationWarning, match=r"Use Brain\.restore\.$"):
        kept = brain.load_checkpoint(tmp_path)
    with pytest.warns(DeprecationWarning, match=r"Use CueActionTask\.save\.$"):
        assert kept == CueActionTask(brain).state()
