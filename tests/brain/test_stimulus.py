"""Stimuli for a brain: from arrays, from a table in a file, from spikes in a file."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from neuraxis.brain import Brain
from neuraxis.brain.stimulus import as_stimulus
from neuraxis.brain.stimulus_file import StimulusFile, read_stimulus
from neuraxis.errors import InvalidArgument, RoundingWarning, SpecError
from neuraxis.simulation import SpikeFile
from tests.brain.test_brain import small

SPEC = small().sensor("ear", 6, groups=2, rate_hz=200.0, background_hz=20.0).pathway("ear", "thalamus", 2.0).spec()
HEADER = "start_ms,stop_ms,sensor,group,value\n"


# --- as given ---


def test_rates_are_between_background_and_full():
    found = as_stimulus(SPEC, [], {"ear": [0.0, 0.5], "cue": np.linspace(0, 1, 40)}, 10)
    assert found.rates_hz["ear"].tolist() == [20.0, 20.0, 20.0, 110.0, 110.0, 110.0]
    assert found.rates_hz["cue"] == pytest.approx(60.0 * np.linspace(0, 1, 40))
    assert not found.spikes
    assert as_stimulus(SPEC, [], {"ear": [2.0, 1.0]}, 10).rates_hz["ear"].tolist() == [380.0] * 3 + [200.0] * 3


def test_spikes_come_without_the_background():
    given = np.zeros((4, 6))
    given[[0, 3, 3], [5, 0, 1]] = 1
    found = as_stimulus(SPEC, [], {"ear": given}, 4)
    assert found.rates_hz["ear"].tolist() == [0.0] * 6
    steps, ids = found.spikes["ear"]
    assert (steps.tolist(), ids.tolist()) == ([0, 3, 3], [5, 0, 1])
    assert found.rates_hz["cue"].tolist() == [0.0] * 40


def test_data_for_regions_are_kept_apart():
    data = object()
    found = as_stimulus(SPEC, ["camera"], {"camera": data}, 4)
    assert found.data == {"camera": data}
    assert found.rates_hz["ear"].tolist() == [20.0] * 6


def test_nothing_is_the_background():
    found = as_stimulus(SPEC, [], None, 4)
    assert (found.rates_hz["ear"] == 20.0).all()
    assert (found.rates_hz["cue"] == 0.0).all()
    assert (found.spikes, found.data) == ({}, {})


# --- a table ---


def table(tmp_path, rows, header=HEADER):
    path = tmp_path / "shown.csv"
    path.write_text(header + rows)
    return path


class Watched:
    """A fake brain that records inputs, their durations, and rewards."""

    spec = SPEC

    def __init__(self):
        self.done = []

    def step(self, given, steps):
        shown = {name: np.asarray(values) for name, values in given.items()}
        self.done.append((steps, {name: values.tolist() for name, values in shown.items() if values.ndim == 1}))
        self.tables = {name: values for name, values in shown.items() if values.ndim == 2}

    def deliver_reward(self, value):
        self.done.append(("reward", value))


def played(stimulus, *stops):
    brain = Watched()
    for first, last in pairwise(stops):
        stimulus.play(brain, first, last)
    return brain.done


def test_rows_become_stretches_in_which_nothing_changes(tmp_path):
    path = table(tmp_path, "5,10,cue,1,0.5\n0,8,cue,1,0.25\n6,12,ear,,1\n7,,reward,,-1\n2,3,cue,0,1\n")
    stimulus = read_stimulus(path, SPEC)
    assert stimulus.steps == 120
    assert played(stimulus, 0, 120) == [
        (20, {"cue": [0, 0.25, 0, 0]}),
        (10, {"cue": [1, 0.25, 0, 0]}),
        (20, {"cue": [0, 0.25, 0, 0]}),
        (10, {"cue": [0, 0.75, 0, 0]}),
        (10, {"cue": [0, 0.75, 0, 0], "ear": [1, 1]}),
        ("reward", -1.0),
        (10, {"cue": [0, 0.75, 0, 0], "ear": [1, 1]}),
        (20, {"cue": [0, 0.5, 0, 0], "ear": [1, 1]}),
        (20, {"ear": [1, 1]}),
    ]


def test_pieces_of_a_stimulus_are_as_good_as_the_whole(tmp_path):
    stimulus = read_stimulus(table(tmp_path, "0,4,cue,1,1\n2,,reward,,1\n4,,reward,,2\n3,6,ear,0,1\n"), SPEC)
    rewards = [entry for entry in played(stimulus, 0, 10, 20, 25, 40, 50, 60) if entry[0] == "reward"]
    assert rewards == [("reward", 1.0), ("reward", 2.0)]
    by_step = {}
    for stops in ((0, 60), (0, 10, 20, 25, 40, 50, 60), (0, 33, 60)):
        shown = []
        for entry in played(stimulus, *stops):
            shown += [entry[1]] * (entry[0] if entry[0] != "reward" else 1)
        by_step[stops] = shown
    assert by_step[0, 60] == by_step[0, 33, 60] == by_step[0, 10, 20, 25, 40, 50, 60]


def test_after_its_end_a_stimulus_shows_nothing(tmp_path):
    stimulus = read_stimulus(table(tmp_path, "0,1,cue,0,1\n"), SPEC)
    assert played(stimulus, 0, 30) == [(10, {"cue": [1, 0, 0, 0]}), (20, {})]
    assert played(StimulusFile(), 0, 30) == [(30, {})]
    assert StimulusFile().steps == 0


def test_a_reward_at_the_end_is_delivered(tmp_path):
    """The example of the module: a cue, and a reward at its end."""
    stimulus = read_stimulus(table(tmp_path, "0,2,cue,2,1.0\n3,,reward,,1\n"), SPEC)
    for stops in ((0, stimulus.steps), (0, 10, 20, stimulus.steps), (0, 30, 60), (0, stimulus.steps, 60)):
        assert [entry for entry in played(stimulus, *stops) if entry[0] == "reward"] == [("reward", 1.0)]


def test_a_sensor_may_be_called_reward(tmp_path):
    spec = small().sensor("reward", 4).spec()
    stimulus = read_stimulus(table(tmp_path, "0,2,reward,0,0.5\n"), spec)
    assert not stimulus.rewards
    assert stimulus.shown[0].sensor == "reward"


@pytest.mark.parametrize(
    ("rows", "line", "reason"),
    [
        ("0,5,cue,0,1\n0,5,nose,0,1\n", 3, "no sensor 'nose'"),
        ("0,5,cue,4,1\n", 2, "group '4': from 0 to 3"),
        ("0,5,cue,-1,1\n", 2, "group '-1'"),
        ("0,5,cue,first,1\n", 2, "group 'first'"),
        ("0,5,cue,0,bright\n", 2, "bright"),
        ("0,,cue,0,1\n", 2, ""),
        ("soon,5,cue,0,1\n", 2, "soon"),
        ("5,5,cue,0,1\n", 2, "start_ms before stop_ms"),
        ("-1,5,cue,0,1\n", 2, ""),
        ("0,5,cue,0,-1\n", 2, "a value of 0 or more"),
        ("0,5,cue,0,nan\n", 2, ""),
        ("0,inf,cue,0,1\n", 2, ""),
        ("0,5,cue,0\n", 2, "columns"),
        ("0,5,cue,0,1,9\n", 2, "columns"),
        ("0,5,cue,0,1\n\n\n0,5,cue,9,1\n", 5, "group '9'"),  # lines are counted as an editor does
        ("0,,reward,,nan\n", 2, ""),
        ("0,,reward,,inf\n", 2, ""),
        ("0,,reward,,much\n", 2, "much"),
        ("-5,,reward,,1\n", 2, ""),
    ],
)
def test_errors_in_a_table_name_file_and_line(tmp_path, rows, line, reason):
    path = table(tmp_path, rows)
    with pytest.raises(SpecError) as caught:
        read_stimulus(path, SPEC)
    assert str(caught.value).startswith(f"{path}: line {line}: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "header", ["", "a,b\n", "start_ms,stop_ms,sensor,value\n", "when,stop_ms,sensor,group,value\n"]
)
def test_a_table_without_its_header_is_refused(tmp_path, header):
    with pytest.raises(SpecError, match="start_ms, stop_ms, sensor, group, value"):
        read_stimulus(table(tmp_path, "", header), SPEC)


def test_a_table_that_cannot_be_read(tmp_path):
    with pytest.raises(SpecError, match=r"nowhere\.csv: cannot be read"):
        read_stimulus(tmp_path / "nowhere.csv", SPEC)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"binary\.csv: cannot be read"):
        read_stimulus(tmp_path / "binary.csv", SPEC)


# --- spikes ---


def spike_file(path, name, steps, ids, n, dt_ms=0.1):
    with SpikeFile(path, [(name, n)], dt_ms) as file:
        file.append(np.array(steps), 0, np.array(ids))
    return path


@pytest.mark.parametrize("name", ["ear", "ear.cells"])
def test_spikes_of_a_file_come_in_their_steps(tmp_path, name):
    stimulus = read_stimulus(spike_file(tmp_path / "spikes.h5", name, [1, 1, 7, 30], [0, 5, 2, 3], 6), SPEC)
    assert stimulus.steps == 30
    brain = Watched()
    found = []
    for first, last in ((0, 7), (7, 30)):
        stimulus.play(brain, first, last)
        steps, ids = np.nonzero(brain.tables["ear"])
        found += zip((steps + first + 1).tolist(), ids.tolist(), strict=True)
    assert found == [(1, 0), (1, 5), (7, 2), (30, 3)]


def test_a_recording_can_be_replayed(tmp_path):
    """With the sensor's spikes of a recording the rest of the brain does what it did."""
    with Brain(small().spec(), record_to=tmp_path / "first.h5") as brain:
        brain.forward([0, 1, 0, 0], 400)
        brain.forward([1, 0, 0, 0.5], 400)
        totals = brain.spike_totals()
        steps = brain.steps
    stimulus = read_stimulus(tmp_path / "first.h5", small().spec())
    assert steps - 50 < stimulus.steps <= steps
    with Brain(small().spec()) as brain:
        stimulus.play(brain, 0, 300)
        stimulus.play(brain, 300, steps)
        assert brain.spike_totals() == totals


def test_spikes_between_two_steps_are_rounded_with_a_warning(tmp_path):
    path = spike_file(tmp_path / "finer.h5", "ear", [4, 2_000_001, 4_000_000], [0, 5, 2], 6, dt_ms=0.025)
    with pytest.warns(RoundingWarning, match=r"finer.h5: sensor 'ear': times_ms: 1 of 3 times .*\[1\]=50000\.025"):
        stimulus = read_stimulus(path, SPEC)
    assert [(steps + 1).tolist() for _, steps, _ in stimulus.spikes] == [[1, 500_000, 1_000_000]]


def test_spikes_before_the_first_step_are_refused(tmp_path):
    path = spike_file(tmp_path / "early.h5", "ear", [0, 3], [0, 5], 6)
    with pytest.raises(SpecError, match=r"early.h5: sensor 'ear': times_ms \(its lowest\)=0: must be one step"):
        read_stimulus(path, SPEC)


def test_spike_files_that_do_not_fit(tmp_path):
    with pytest.raises(SpecError, match="neuron 6: sensor 'ear' has 6"):
        read_stimulus(spike_file(tmp_path / "more.h5", "ear", [3], [6], 9), SPEC)
    with pytest.raises(InvalidArgument, match="has no spikes of a sensor of the brain; its populations are: nose"):
        read_stimulus(spike_file(tmp_path / "other.h5", "nose", [3], [6], 9), SPEC)
    (tmp_path / "no.h5").write_text("no")
    with pytest.raises(SpecError, match=r"no\.h5: cannot be read"):
        read_stimulus(tmp_path / "no.h5", SPEC)
