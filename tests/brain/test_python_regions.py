"""User-defined regions in a brain: ticks, events, answers and data, in one process and in two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from neuraxis.brain import Brain, BrainBuilder
from neuraxis.errors import CheckpointError, InvalidArgument, ShardFailed, SimulationClosed, SpecError
from neuraxis.simulation import read_spikes
from tests.brain import python_regions
from tests.brain.python_regions import Batches, Camera, Echo, Failing, Filter, Forgetful, Judge, NotARegion, Unmakable
from tests.brain.test_brain import small

PIXELS = 12
RUN_MS = 60.0


def watching(as_tensor: bool = False) -> BrainBuilder:
    """A camera whose pictures go through a filter to a judge, and whose spikes go to neurons and are echoed."""
    return (
        BrainBuilder("watching", seed=3)
        .region("thalamus", "thalamus", relay=PIXELS, groups=1)
        .python_region("camera", Camera, neurons=PIXELS, tick_ms=5.0, config={"pixels": PIXELS, "as_tensor": as_tensor})
        .python_region("filter", Filter, neurons=1, config={"pixels": PIXELS})
        .python_region("judge", Judge, neurons=3 + PIXELS)
        .python_region("echo", Echo, neurons=PIXELS, config={"after_ms": 1.5, "neurons": PIXELS})
        .python_region("batches", Batches, neurons=40)
        .pathway("camera", "thalamus", 2.0)
        .pathway("camera", "filter", 3.0)
        .pathway("filter", "judge", 4.0)
        .pathway("camera", "echo", 2.5)
        .pathway("thalamus", "batches", 2.0)
        .pathway("echo", "thalamus", 2.0)
    )


def pictures():
    return [np.random.default_rng([frame, PIXELS]).random(PIXELS) for frame in range(1, 100)]


class Seen:
    """The outcome of a run: spikes by region, in steps, and a fingerprint."""

    def __init__(self, brain):
        self.spikes = {}
        for name in brain.lowered.regions:
            times, ids = brain.spikes(name)
            self.spikes[name] = np.rint(times / 0.1).astype(int).tolist(), ids.tolist()
        self.fingerprint = brain.fingerprint()

    def of(self, region, last_id):
        """{step: ids} of a region's own cells, without the mark that goes with data."""
        found: dict[int, list[int]] = {}
        for step, neuron in zip(*self.spikes[region], strict=True):
            if neuron <= last_id:
                found.setdefault(step, []).append(neuron)
        return found

    def __eq__(self, other):
        return (self.spikes, self.fingerprint) == (other.spikes, other.fingerprint)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """The same run in one process and in two, with a state saved half way that continues in the other one."""
    found = {}
    folder = tmp_path_factory.mktemp("states")
    for workers in (1, 2):
        with Brain(watching().spec(), workers=workers, record=True) as brain:
            brain.run(RUN_MS / 2)
            brain.run(2.5)  # a picture is in flight to the filter
            brain.save(folder / str(workers))
            brain.run(RUN_MS / 2 - 2.5)
            found[workers] = Seen(brain)
            if workers == 2:
                brain.restore(folder / "1")
                brain.run(RUN_MS / 2 - 2.5)
                found["1 to 2"] = Seen(brain)
    with Brain(watching().spec(), record=True) as brain:
        brain.restore(folder / "2")
        brain.run(RUN_MS / 2 - 2.5)
        found["2 to 1"] = Seen(brain)
    return found


def test_one_process_and_two_give_the_same(seen):
    assert seen[1] == seen[2]
    assert all(len(steps) > 0 for steps, _ in seen[1].spikes.values())


def test_a_saved_state_goes_on_in_the_other_mode(seen):
    assert seen["1 to 2"].fingerprint == seen["2 to 1"].fingerprint == seen[1].fingerprint
    assert seen["1 to 2"] == seen["2 to 1"]
    assert seen["1 to 2"].of("judge", 2 + PIXELS)


def test_a_camera_spikes_in_the_step_after_each_tick(seen):
    expected = {50 * (n + 1) + 1: np.flatnonzero(picture > 0.7).tolist() for n, picture in enumerate(pictures()[:11])}
    assert seen[1].of("camera", PIXELS - 1) == {step: ids for step, ids in expected.items() if ids}


def test_spikes_are_answered_in_their_time(seen):
    # Emitted in a step, received 25 steps later, answered 15 steps after that.
    expected = {step + 40: ids for step, ids in seen[1].of("camera", PIXELS - 1).items() if step + 40 <= 600}
    assert seen[1].of("echo", PIXELS - 1) == expected


def test_data_are_passed_on_from_region_to_region(seen):
    mean, expected = np.zeros(PIXELS), {}
    for n, picture in enumerate(pictures()[:11]):
        mean = 0.5 * mean + 0.5 * picture
        # Sent in step 1 after the tick, 3 ms to the filter, a step, 4 ms to the judge, a step.
        expected[50 * (n + 1) + 1 + 30 + 1 + 40 + 1] = [0, 3 + int(mean.argmax())]
    assert seen[1].of("judge", 2 + PIXELS) == {step: ids for step, ids in expected.items() if step <= 600}


def test_tensors_arrive_as_tensors(seen):
    with Brain(watching(as_tensor=True).spec(), record=True) as brain:
        brain.run(RUN_MS)
        found = Seen(brain).of("judge", 2 + PIXELS)
    expected = seen[1].of("judge", 2 + PIXELS)
    assert found == {step: [1, *ids[1:]] for step, ids in expected.items()}


def test_events_within_the_tolerance_come_in_one_call(seen):
    each = seen[1].of("batches", 39)
    assert {ids[0] for ids in each.values()} == {1}  # one time of arrival a call
    with Brain(watching().spec(), record=True, batch_tolerance_ms=1.0) as brain:
        brain.run(RUN_MS)
        together = Seen(brain)
    calls = together.of("batches", 39)
    assert max(ids[0] for ids in calls.values()) > 1
    assert len(calls) < len(each)
    assert all(step % 10 == 1 for step in calls)  # called at the end of each ms, answered in the next step
    # Neurons are not batched.
    assert together.of("camera", PIXELS - 1) == seen[1].of("camera", PIXELS - 1)


def test_the_tolerance_must_be_below_the_smallest_delay():
    with pytest.raises(InvalidArgument, match=r"batch_tolerance_ms=2: must be below the shortest delay.*which is 2 ms"):
        Brain(watching().spec(), batch_tolerance_ms=2.0)


# --- what a caller gives ---


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def judged(request):
    spec = small().python_region("judge", Judge, neurons=20).pathway("judge", "thalamus", 2.0).spec()
    with Brain(spec, workers=request.param, record=True) as brain:
        yield brain


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        (np.array([0.0, 2.0, 1.0]), [0, 4]),
        (torch.tensor([0.0, 0.0, 5.0], requires_grad=True), [1, 5]),
        (torch.tensor([0.0, 3.0], dtype=torch.bfloat16), [1, 4]),
        (torch.zeros((2, 3))[:, 1], [1, 3]),
        (np.array([[1.0]]), [0]),
        ({"a": torch.ones(2), "b": [1, "two"]}, [2]),
        ("text", [2]),
        (3.5, [2]),
    ],
    ids=["array", "tensor", "bfloat16", "view", "matrix", "dict", "text", "number"],
)
def test_input_to_a_region_arrives_in_the_next_step(judged, data, ids):
    first = judged.steps
    done = judged.forward({"judge": data, "cue": [1, 0, 0, 0]}, 5)
    times, found = judged.spikes("judge")
    steps = np.rint(times / 0.1).astype(int)
    assert found[steps > first].tolist() == ids
    assert set(steps[steps > first] - first) == {2}  # it is called at the end of the first step
    assert done.spikes["judge.cells"] == len(ids)


def test_input_is_not_repeated_in_later_runs(judged):
    judged.forward({"judge": np.ones(2)}, 3)
    assert judged.run(5.0).spikes["judge.cells"] == 0


def test_a_lesioned_region_is_not_called(judged):
    judged.lesion("judge")
    assert judged.forward({"judge": np.ones(2)}, 5).spikes["judge.cells"] == 0
    judged.heal("judge")
    judged.run(1.0)
    assert judged.forward({"judge": np.ones(2)}, 5).spikes["judge.cells"] == 2


# --- what goes wrong ---


@pytest.mark.parametrize("workers", [1, 2])
def test_a_region_that_raises_ends_the_run_and_one_that_cannot_be_moved_does_not(workers, monkeypatch):
    """The load is looked at after each of the first runs, and would be balanced."""
    monkeypatch.setattr("neuraxis.brain.brain._FIRST_BALANCE_CHECK_MS", 5.0)
    monkeypatch.setattr("neuraxis.brain.brain._IMBALANCE", 0.0)
    spec = (
        small()
        .python_region("lab", Failing, tick_ms=1.0, config={"at_ms": 53.0})
        .python_region("own", Forgetful, neurons=4, tick_ms=1.0)
        .spec()
    )
    with Brain(spec, workers=workers) as brain:
        assert [brain.forward([1, 0, 0, 0], 100).of("own") for _ in range(5)] == [9, 10, 10, 10, 10]
        with pytest.raises(ShardFailed, match="region 'lab' failed at 53 ms: ZeroDivisionError: a scripted") as caught:
            brain.run(10.0)
        assert (caught.value.shard, caught.value.step) == ("lab", 530)
        assert "python_regions.py" in caught.value.traceback
        with pytest.raises(SimulationClosed):
            brain.run(1.0)


@pytest.mark.parametrize(
    ("create", "message"),
    [
        ("nowhere.at_all:Thing", "region 'own': create='nowhere.at_all:Thing' cannot be imported: No module"),
        ("tests.brain.python_regions:Thing", "cannot be imported: .*has no attribute 'Thing'"),
        ("tests.brain.python_regions:np", "is a module and cannot be called"),
        (NotARegion, r"returned a NotARegion without process_events\(now, events\)"),
        (Unmakable, "region 'own'.*RuntimeError.*no lens"),
    ],
    ids=["no module", "no name", "not callable", "no region", "raises"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_region_that_cannot_be_made_is_refused(create, message, workers):
    with pytest.raises(InvalidArgument, match=message):
        Brain(small().python_region("own", create).spec(), workers=workers)


def test_creators_that_no_other_process_finds_are_refused_at_once():
    with pytest.raises(InvalidArgument, match="is a lambda"):
        small().python_region("own", lambda config, device: None)

    class Local:
        pass

    with pytest.raises(InvalidArgument, match="is defined within a function"):
        small().python_region("own", Local)
    with pytest.raises(SpecError, match="is not of the form"):
        small().python_region("own", "nowhere")


def test_a_region_that_cannot_be_saved_names_the_missing_methods(tmp_path):
    spec = small().python_region("own", Forgetful, neurons=4, tick_ms=1.0).spec()
    with Brain(spec) as brain:
        brain.run(5.0)
        fingerprint = brain.fingerprint()
        with pytest.raises(CheckpointError, match=r"region 'own' cannot be saved\. Give Forgetful the methods"):
            brain.save(tmp_path / "state")
        assert brain.fingerprint() == fingerprint
        assert not list((tmp_path / "state").glob("*"))
        assert brain.run(5.0).of("own") == 5


def test_spikes_of_python_regions_are_recorded_in_files(tmp_path):
    with Brain(watching().spec(), record_to=tmp_path / "spikes.h5") as brain:
        brain.run(12.0)
    found = read_spikes(tmp_path / "spikes.h5")
    assert len(found["camera.cells"][0]) > 0
    assert found["filter.data"][0] == pytest.approx(
        [8.2]
    )  # sent at 5.1 ms, received 3 ms later, forwarded a step later


# --- programs with regions of their own ---

PROGRAM = """
import sys
import numpy as np
from neuraxis.brain import Brain, BrainBuilder


class Clock:
    stateless = True

    def __init__(self, config, device):
        pass

    def process_events(self, now, events):
        return np.array([0])


def main():
    spec = (
        BrainBuilder("b")
        .region("thalamus", "thalamus", relay=4, groups=1)
        .python_region("clock", Clock, neurons=1, tick_ms=1.0)
        .pathway("clock", "thalamus", 2.0)
        .spec()
    )
    for workers in map(int, sys.argv[1:]):
        with Brain(spec, workers=workers) as brain:
            print(brain.run(5.0).of("clock"), brain.fingerprint())


{guard}
"""


def run_program(path: Path, guard: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path.write_text(PROGRAM.format(guard=guard))
    return subprocess.run(
        [sys.executable, str(path), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_program_with_the_guard_has_its_own_regions_in_workers(tmp_path):
    done = run_program(tmp_path / "program.py", 'if __name__ == "__main__":\n    main()', "1", "2")
    assert (done.returncode, done.stderr) == (0, "")
    alone, together = done.stdout.splitlines()
    assert alone == together
    assert alone.startswith("4 ")  # ticks at 1, 2, 3, 4 and 5 ms, the last of which is answered after the end


def test_a_program_without_the_guard_ends_with_one_clear_line(tmp_path):
    done = run_program(tmp_path / "program.py", "main()", "2")
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.rstrip().splitlines()[-1]
    assert 'Put the call under `if __name__ == "__main__":`' in last
    assert done.stderr.count("Traceback") == 1  # that of the program itself
    assert done.stderr.count("Put the call under") == 1


def test_the_example_regions_can_be_imported_by_name():
    assert all(
        getattr(python_regions, kind.__name__) is kind for kind in (Camera, Echo, Filter, Judge, Failing, Forgetful)
    )
