"""Reports of states: other tools read the appended frames, and a file equals a recording in memory."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import libsonata
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument, InvalidType, ShardFailed
from neuraxis.formats import sonata as report_file
from neuraxis.formats.sonata import ReportFile, read_report
from neuraxis.network import Network
from neuraxis.network.models import lif_delta, lif_exp
from neuraxis.simulation import Simulation, read_spikes
from neuraxis.simulation.executor import Recorded, Samples
from neuraxis.simulation.recording import Recording
from tests.simulation.long_run import worker_pids
from tests.simulation.networks import driven

IDS = (7, 0, 3)


def make(path: Path, every_steps: int = 1, dt_ms: float = 0.5, **options: Any) -> ReportFile:
    return ReportFile(path, "cells", np.array(IDS), dt_ms, every_steps, "v_mv", "mV", **options)


def frames(first: int, count: int, n: int = 3) -> npt.NDArray[np.float32]:
    """Return values that identify their frame and column."""
    return (np.arange(first, first + count)[:, None] * 100 + np.arange(n)).astype(np.float32)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of two frames and buffers of four, so that a few frames cross all borders."""
    monkeypatch.setattr(report_file, "_CHUNK_VALUES", 6)
    monkeypatch.setattr(report_file, "_BUFFERED_VALUES", 12)


# --- what is in the file ---


def test_the_layout_is_that_of_the_specification(tmp_path: Path) -> None:
    with make(tmp_path / "v.h5", every_steps=4) as file:
        file.append(np.array([8, 12]), frames(0, 2))
    with h5py.File(tmp_path / "v.h5") as stored:
        assert stored.attrs["magic"] == 0x0A7A
        assert stored.attrs["magic"].dtype == np.uint32
        assert stored.attrs["version"].tolist() == [0, 1]
        assert list(stored["report"]) == ["cells"]
        data, mapping = stored["report/cells/data"], stored["report/cells/mapping"]
        assert data.dtype == np.dtype("<f4")
        assert data[:].tolist() == [[0, 1, 2], [100, 101, 102]]
        assert (data.attrs["units"], data.attrs["state"]) == ("mV", "v_mv")
        assert sorted(mapping) == ["element_ids", "index_pointers", "node_ids", "time"]
        assert mapping["node_ids"][:].tolist() == [7, 0, 3]
        assert mapping["node_ids"].attrs["sorted"] == 0
        assert mapping["index_pointers"][:].tolist() == [0, 1, 2, 3]
        assert mapping["element_ids"][:].tolist() == [0, 0, 0]
        assert {mapping[name].dtype.str for name in ("node_ids", "index_pointers")} == {"<u8"}
        assert mapping["time"][:].tolist() == [4.0, 8.0, 2.0]
        assert mapping["time"].attrs["units"] == "ms"


def test_libsonata_reads_it(tmp_path: Path) -> None:
    with make(tmp_path / "v.h5", every_steps=4) as file:
        file.append(np.array([8, 12, 16]), frames(0, 3))
    report = libsonata.ElementReportReader(tmp_path / "v.h5")["cells"]
    assert report.times == (4.0, 10.0, 2.0)
    assert (report.time_units, report.data_units, report.sorted) == ("ms", "mV", False)
    assert report.get_node_ids() == [7, 0, 3]
    whole = report.get()
    assert whole.ids.tolist() == [[7, 0], [0, 0], [3, 0]]
    assert whole.times.tolist() == [4.0, 6.0, 8.0]
    assert whole.data.tolist() == frames(0, 3).tolist()
    part = report.get(node_ids=libsonata.Selection([3]), tstart=5.0, tstop=6.5)
    assert (part.times.tolist(), part.data.tolist()) == ([6.0], [[102.0]])


def test_sorted_node_ids_are_marked_as_sorted(tmp_path: Path) -> None:
    with ReportFile(tmp_path / "v.h5", "cells", np.arange(4), 0.1, 1, "refractory", "") as file:
        file.append(np.array([1]), frames(0, 1, n=4))
    report = libsonata.ElementReportReader(tmp_path / "v.h5")["cells"]
    assert report.sorted
    assert report.data_units == ""


def test_many_frames_end_where_libsonata_expects_it(tmp_path: Path) -> None:
    """Its times are multiples of 0.1 ms, which no float holds exactly: one frame too many would be an error there."""
    count = 40_001
    with make(tmp_path / "v.h5", every_steps=3, dt_ms=0.1) as file:
        file.append(3 * np.arange(1, count + 1), frames(0, count))
    found = libsonata.ElementReportReader(tmp_path / "v.h5")["cells"].get()
    assert len(found.times) == len(found.data) == count
    times_ms, _, _ = read_report(tmp_path / "v.h5")
    assert np.array_equal(times_ms, 3 * np.arange(1, count + 1) * 0.1)  # to the bit


def test_whole_numbers_stay_whole_numbers(tmp_path: Path) -> None:
    values = np.array([[2**31 - 1, -5, 2**24 + 1]], np.int32)
    with make(tmp_path / "r.h5", dtype=np.int32) as file:
        file.append(np.array([1]), values)
        with pytest.raises(InvalidType, match="values has dtype float32: this report holds int32"):
            file.append(np.array([2]), frames(0, 1))
    _, read, _ = read_report(tmp_path / "r.h5")
    assert read.dtype == np.int32
    assert np.array_equal(read, values)


@settings(max_examples=30)
@given(counts=st.lists(st.integers(0, 9), max_size=8), flushed=st.sets(st.integers(0, 7)), n=st.integers(1, 20))
def test_a_file_reads_back_equal(
    counts: list[int], flushed: set[int], n: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("given") / "v.h5"
    total = sum(counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_file, "_CHUNK_VALUES", 6)
        patch.setattr(report_file, "_BUFFERED_VALUES", 12)
        with ReportFile(path, "cells", np.arange(n)[::-1], 0.25, 2, "v_mv", "mV") as file:
            done = 0
            for number, count in enumerate(counts):
                file.append(10 + 2 * np.arange(done, done + count), frames(done, count, n))
                done += count
                assert file.next_step == (10 + 2 * done if done else None)
                if number in flushed:
                    file.flush()
    times_ms, values, node_ids = read_report(path)
    assert np.array_equal(times_ms, (10 + 2 * np.arange(total)) * 0.25)
    assert np.array_equal(values, frames(0, total, n))
    assert node_ids.tolist() == list(range(n))[::-1]
    assert (times_ms.dtype, values.dtype, node_ids.dtype) == (np.float64, np.float32, np.uint64)


@pytest.mark.usefixtures("small_buffers")
def test_memory_is_bounded_and_one_call_may_bring_more_than_a_buffer(tmp_path: Path) -> None:
    with make(tmp_path / "v.h5") as file:
        assert file._buffer.shape == (4, 3)
        file.append(np.arange(3), frames(0, 3))
        file.append(np.arange(3, 99), frames(3, 96))
        # All but one buffer is flushed before a flush is requested.
        assert 99 - 4 <= file._data.shape[0] < 99
    assert np.array_equal(read_report(tmp_path / "v.h5")[1], frames(0, 99))


def test_a_frame_wider_than_a_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_file, "_CHUNK_VALUES", 6)
    monkeypatch.setattr(report_file, "_BUFFERED_VALUES", 12)
    with ReportFile(tmp_path / "v.h5", "cells", np.arange(20), 1.0, 1, "v_mv", "mV") as file:
        assert (file._chunk, file._buffer.shape) == ((1, 5), (1, 20))
        file.append(np.arange(5), frames(0, 5, 20))
    assert np.array_equal(read_report(tmp_path / "v.h5")[1], frames(0, 5, 20))


def test_reports_of_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as other:
        for name in ("a", "b"):
            other[f"report/{name}/data"] = np.arange(6.0).reshape(2, 3)
            other[f"report/{name}/mapping/node_ids"] = np.array([5, 2], np.int32)
            other[f"report/{name}/mapping/index_pointers"] = np.array([0, 2, 3])  # two compartments, and one
            other[f"report/{name}/mapping/time"] = np.array([1.0, 1.5, 0.25])
    with pytest.raises(InvalidArgument, match=r"population_name is None: .* has a, b"):
        read_report(path)
    with pytest.raises(InvalidArgument, match="population_name is 'c'"):
        read_report(path, "c")
    times_ms, values, node_ids = read_report(path, "b")
    assert (times_ms.tolist(), values.tolist(), node_ids.tolist()) == ([1, 1.25], [[0, 1, 2], [3, 4, 5]], [5, 5, 2])
    with h5py.File(path, "r+") as other:
        other["report/a/mapping/time"].attrs["units"] = "s"
        del other["report/b/mapping/index_pointers"]
        other["report/b/mapping/index_pointers"] = np.array([0, 1, 2])
    with pytest.raises(InvalidArgument, match="'s', only ms"):
        read_report(path, "a")
    with pytest.raises(InvalidArgument, match="3 columns, but 2"):
        read_report(path, "b")
    with h5py.File(tmp_path / "empty.h5", "w"):
        pass
    with pytest.raises(InvalidArgument, match="no group /report"):
        read_report(tmp_path / "empty.h5")


# --- what is refused ---


@pytest.mark.parametrize(
    ("steps", "values", "error", "message"),
    [
        ([9], frames(0, 1), InvalidArgument, "steps has 9 where 12 comes next"),
        ([15], frames(0, 1), InvalidArgument, "steps has 15 where 12 comes next"),
        ([12, 15, 16], frames(0, 3), InvalidArgument, "steps has 16 where 18 comes next"),
        ([12, 15], frames(0, 1), InvalidArgument, r"steps has shape \(2,\) and values \(1, 3\)"),
        ([12], frames(0, 1, n=2), InvalidArgument, "3 values for every frame"),
        ([12.0], frames(0, 1), InvalidType, "steps has dtype float64"),
        ([12], frames(0, 1).astype(complex), InvalidType, "values has dtype complex128"),
    ],
)
def test_invalid_frames_are_refused_as_a_whole(
    tmp_path: Path, steps: list[float], values: npt.NDArray[Any], error: type[Exception], message: str
) -> None:
    with make(tmp_path / "v.h5", every_steps=3) as file:
        with pytest.raises(InvalidArgument, match="steps has -3"):
            file.append(np.array([-3]), frames(0, 1))
        file.append(np.array([9]), frames(0, 1))
        with pytest.raises(error, match=message):
            file.append(np.array(steps), values)
        file.append(np.array([12]), frames(1, 1))
        file.append([], np.zeros((0, 3)))
    times_ms, read, _ = read_report(tmp_path / "v.h5")
    assert (times_ms.tolist(), read.tolist()) == ([4.5, 6.0], frames(0, 2).tolist())


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"population_name": "L2/3E"}, InvalidArgument, "population_name is 'L2/3E'"),
        ({"population_name": 4}, InvalidType, "population_name is 4"),
        ({"node_ids": np.zeros(0, int)}, InvalidArgument, "node_ids has shape"),
        ({"node_ids": np.array([1, -2])}, InvalidArgument, "node_ids has -2"),
        ({"node_ids": np.array([1, 1])}, InvalidArgument, "more than once"),
        ({"node_ids": np.array([1.0])}, InvalidType, "node_ids has dtype float64"),
        ({"dt_ms": 0.0}, InvalidArgument, r"dt_ms is 0\.0"),
        ({"every_steps": 0}, InvalidArgument, "every_steps is 0"),
        ({"dtype": np.float64}, InvalidType, "dtype is float64"),
    ],
)
def test_arguments_that_cannot_be(
    tmp_path: Path, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    good: dict[str, Any] = {
        "population_name": "a", "node_ids": np.arange(2), "dt_ms": 0.1, "every_steps": 1, "state": "v_mv", "unit": "mV"
    }  # fmt: skip
    with pytest.raises(error, match=message):
        ReportFile(tmp_path / "v.h5", **{**good, **changed})
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_one_writer_and_a_closed_file_refuses_frames(tmp_path: Path) -> None:
    with make(tmp_path / "v.h5") as file:
        file.append(np.array([1]), frames(0, 1))
        with pytest.raises(InvalidArgument, match="another ReportFile is writing to it"):
            make(tmp_path / "v.h5")
        assert repr(file).endswith("v_mv of 3 neurons, open>")
    assert repr(file).endswith("closed>")
    for call in (file.flush, lambda: file.append(np.array([2]), frames(1, 1))):
        with pytest.raises(InvalidArgument, match=r"the report .* is closed. Make a new ReportFile"):
            call()
    assert len(read_report(tmp_path / "v.h5")[1]) == 1


# --- accidents ---


def test_a_block_that_raises_leaves_the_older_file_and_all_frames_in_the_partial_one(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    path.write_text("older")
    with pytest.raises(KeyboardInterrupt), make(path) as file:  # noqa: PT012
        file.append(np.array([4]), frames(0, 1))
        raise KeyboardInterrupt
    assert path.read_text() == "older"
    assert read_report(tmp_path / "v.h5.partial")[0].tolist() == [2.0]
    # The next run overwrites the partial file.
    with make(path) as file:
        file.append(np.array([5]), frames(0, 1))
    assert read_report(path)[0].tolist() == [2.5]
    assert [entry.name for entry in tmp_path.iterdir()] == ["v.h5"]


KILLED = """
import os, signal, sys
import numpy as np
from neuraxis.formats.sonata import ReportFile
file = ReportFile(sys.argv[1], "cells", np.array([7, 0, 3]), 0.5, 1, "v_mv", "mV")
values = np.arange(30_000, dtype=np.float32).reshape(10_000, 3)
file.append(np.arange(8_000), values[:8_000])
file.flush()
file.append(np.arange(8_000, 10_000), values[8_000:])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_flushed_frames_survive_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "v.h5"
    ended = subprocess.run([sys.executable, "-c", KILLED, path], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not path.exists()
    times_ms, values, _ = read_report(tmp_path / "v.h5.partial")
    assert np.array_equal(times_ms, np.arange(8_000) * 0.5)
    assert np.array_equal(values, np.arange(24_000).reshape(8_000, 3))
    assert len(libsonata.ElementReportReader(tmp_path / "v.h5.partial")["cells"].get().times) == 8_000


def test_of_a_torn_file_the_complete_beginning_is_read(tmp_path: Path) -> None:
    file = make(tmp_path / "v.h5")
    file.append(np.arange(5), frames(0, 5))
    file.abandon()
    with h5py.File(tmp_path / "v.h5.partial", "r+") as stored:
        stored["report/cells/data"].resize(9, axis=0)  # incomplete frames
    assert np.array_equal(read_report(tmp_path / "v.h5.partial")[1], frames(0, 5))


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("kibibytes", [1, 20, 30])
def test_a_full_disk_is_an_error_that_keeps_the_older_file(tmp_path: Path, kibibytes: int) -> None:
    path = tmp_path / "v.h5"
    path.write_text("older")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    flushed = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (kibibytes * 1024, limits[1]))
    try:
        with pytest.raises(OSError, match="cannot write samples: File too large") as caught, make(path) as file:  # noqa: PT012
            for step in range(10_000):
                file.append(np.array([step]), frames(step, 1))
                file.flush()
                flushed = step + 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "v.h5.partial")
    assert path.read_text() == "older"
    if kibibytes > 1:  # less is no HDF5 file at all
        _, values, _ = read_report(tmp_path / "v.h5.partial")
        assert len(values) >= flushed > 0
        assert np.array_equal(values, frames(0, len(values)))


def test_a_temporarily_full_disk_loses_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with make(tmp_path / "v.h5") as file:
        file.append(np.arange(10), frames(0, 10))
        file.flush()
        file.append(np.arange(10, 20_000), frames(10, 19_990))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 * 1024, limits[1]))
        try:
            for _ in range(2):
                with pytest.raises(OSError, match="cannot write samples"):
                    file.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert np.array_equal(read_report(tmp_path / "v.h5")[1], frames(0, 20_000))


# --- how a recording puts frames together ---


def test_pieces_of_several_shards_and_stretches_become_frames(tmp_path: Path) -> None:
    network = Network(dt_ms=0.5)
    cells = network.population("cells", 9, lif_exp)
    network.record(cells, "v_mv", every_ms=1.0, subset=[8, 1, 4, 0])
    recording = Recording(network, tmp_path / "out.h5")
    none = np.zeros(0, np.int64)

    def piece(places: list[int], steps: list[int]) -> Samples:
        values = np.array([[step * 10 + place for place in places] for step in steps], np.float32)
        return Samples(0, np.array(places), np.array(steps), values)

    first = [piece([3, 1], [2]), piece([3, 1], [4, 6]), piece([0, 2], [2, 4]), piece([0, 2], [6])]
    recording.add(Recorded(none, none, first))
    recording.add(Recorded(none, none, []))
    recording.add(Recorded(none, none, [piece([0, 2], [8]), piece([3, 1], [8])]))
    recording.close()
    times_ms, values, node_ids = read_report(tmp_path / "out.cells.v_mv.h5")
    assert times_ms.tolist() == [1, 2, 3, 4]
    assert values.tolist() == [[step * 10 + place for place in range(4)] for step in (2, 4, 6, 8)]
    assert node_ids.tolist() == [8, 1, 4, 0]


# --- what a simulation streams ---


def states_of(network: Network, steps: int) -> dict[tuple[str, str], tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    with Simulation(network) as simulation:
        simulation.step(steps)
        return {
            (probe.population.name, probe.what): simulation.samples(probe.population, probe.what)
            for probe in network.probes
            if probe.what != "spikes"
        }


def several_states() -> Network:
    """A state of each kind and unit, all neurons and some, often and seldom."""
    network = driven(n=60)
    network.record("cells", "i_syn_pa", every_ms=0.3)
    network.record("cells", "refractory", subset=slice(50, 60))
    quiet = network.population("quiet", 5, lif_delta)
    network.record(quiet, "v_mv", every_ms=0.7)
    return network


@pytest.fixture(scope="module")
def expected() -> dict[tuple[str, str], tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
    """The recordings of `several_states` in memory, after 503 steps."""
    return states_of(several_states(), 503)


def check(path: Path, times_ms: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
    read_times, read_values, _ = read_report(path)
    assert np.array_equal(read_times, times_ms)
    assert np.array_equal(read_values, values)
    assert read_values.dtype == values.dtype


def test_files_equal_recordings_in_memory(tmp_path: Path, expected: dict[tuple[str, str], Any]) -> None:
    with Simulation(several_states(), record_to=tmp_path / "out.h5") as simulation:
        simulation.step(250)
        simulation.step(253)
        assert {entry.suffix for entry in tmp_path.iterdir()} == {".partial"}
        with pytest.raises(InvalidArgument, match=r"out\.cells\.i_syn_pa\.h5. Read it with .*read_report"):
            simulation.samples("cells", "i_syn_pa")
    names = ["out.cells.i_syn_pa.h5", "out.cells.refractory.h5", "out.cells.v_mv.h5", "out.h5", "out.quiet.v_mv.h5"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == names
    units = {}
    for (population, state), (times_ms, values) in expected.items():
        path = tmp_path / f"out.{population}.{state}.h5"
        check(path, times_ms, values)
        with h5py.File(path) as stored:
            units[state] = stored[f"report/{population}/data"].attrs["units"]
    assert units == {"v_mv": "mV", "i_syn_pa": "pA", "refractory": ""}
    assert read_report(tmp_path / "out.cells.v_mv.h5")[2].tolist() == [59, 0, 3]
    assert read_report(tmp_path / "out.cells.refractory.h5")[2].tolist() == list(range(50, 60))
    assert read_report(tmp_path / "out.quiet.v_mv.h5")[2].tolist() == list(range(5))
    assert expected["cells", "v_mv"][1].std() > 1


def test_several_workers_write_the_same_and_one_that_dies_leaves_it_unfinished_and_readable(
    tmp_path: Path, expected: dict[tuple[str, str], Any]
) -> None:
    (tmp_path / "out.cells.v_mv.h5").write_text("an older file")
    with Simulation(several_states(), 2, record_to=tmp_path / "out.h5") as simulation:
        simulation.step(503)
        os.kill(worker_pids(simulation)[1], signal.SIGKILL)
        with pytest.raises(ShardFailed):
            simulation.step(300)
    assert (tmp_path / "out.cells.v_mv.h5").read_text() == "an older file"
    assert not (tmp_path / "out.h5").exists()
    for (population, state), (times_ms, values) in expected.items():
        check(tmp_path / f"out.{population}.{state}.h5.partial", times_ms, values)
    assert len(read_spikes(tmp_path / "out.h5.partial")["cells"][0]) > 0


def only_states(every_ms: float = 1.0) -> Network:
    network = Network(dt_ms=0.1)
    cells = network.population("cells", 4, lif_exp)
    network.current(cells, 300.0)
    network.record(cells, "v_mv", every_ms=every_ms)
    return network


def test_only_states_make_no_file_of_spikes(tmp_path: Path) -> None:
    with Simulation(only_states(), record_to=tmp_path / "out") as simulation:
        simulation.step(25)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.cells.v_mv"]
    assert read_report(tmp_path / "out.cells.v_mv")[0].tolist() == [1.0, 2.0]


def test_a_run_too_short_for_a_sample_leaves_an_empty_report(tmp_path: Path) -> None:
    with Simulation(only_states(), record_to=tmp_path / "out.h5") as simulation:
        simulation.step(3)
    times_ms, values, node_ids = read_report(tmp_path / "out.cells.v_mv.h5")
    assert (times_ms.shape, values.shape, node_ids.tolist()) == ((0,), (0, 4), [0, 1, 2, 3])


def test_where_samples_cannot_go(tmp_path: Path) -> None:
    twice = only_states()
    twice.record("cells", "v_mv", subset=[2])
    with pytest.raises(InvalidArgument, match=r"record_to=.*two probes record 'v_mv' of 'cells'"):
        Simulation(twice, record_to=tmp_path / "out.h5")
    slashed = Network()
    slashed.record(slashed.population("L2/3E", 3, lif_exp), "v_mv")
    with pytest.raises(InvalidArgument, match=r"record_to=.*'L2/3E'"):
        Simulation(slashed, record_to=tmp_path / "out.h5")
    with pytest.raises(InvalidArgument, match=r"record_to=.*that is a folder"):
        Simulation(only_states(), record_to=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_made_keeps_no_other_file_open(tmp_path: Path) -> None:
    """The leak check sees a descriptor that stays open; the lock of the file of spikes must be free again, too."""
    (tmp_path / "out.cells.v_mv.h5").mkdir()
    with pytest.raises(InvalidArgument, match=r"out\.cells\.v_mv\.h5': that is a folder"):
        Simulation(driven(n=40), record_to=tmp_path / "out.h5")
    (tmp_path / "out.cells.v_mv.h5").rmdir()
    with Simulation(driven(n=40), record_to=tmp_path / "out.h5") as simulation:
        simulation.step(100)
    assert len(read_report(tmp_path / "out.cells.v_mv.h5")[0]) == 10


def test_a_report_goes_on_only_from_its_last_sample(tmp_path: Path) -> None:
    expected = states_of(only_states(), 80)["cells", "v_mv"]
    with Simulation(only_states(), record_to=tmp_path / "out.h5") as simulation:
        simulation.step(15)
        simulation.save(tmp_path / "early")
        simulation.step(17)
        simulation.save(tmp_path / "same sample")
        simulation.step(6)
        simulation.restore(tmp_path / "same sample")  # both are after the sample of step 30
        with pytest.raises(InvalidArgument, match=r"out\.cells\.v_mv\.h5 holds samples up to step 30, .* step 15"):
            simulation.restore(tmp_path / "early")
        assert simulation.steps == 32
        simulation.step(48)
        simulation.save(tmp_path / "late")
    times_ms, values, _ = read_report(tmp_path / "out.cells.v_mv.h5")
    assert np.array_equal(times_ms, expected[0])
    assert np.array_equal(values, expected[1])
    with Simulation(only_states(), record_to=tmp_path / "later.h5") as simulation:
        simulation.restore(tmp_path / "early")  # nothing is in the file yet
        simulation.step(10)
        with pytest.raises(InvalidArgument, match=r"holds samples up to step 20, .* step 80"):
            simulation.restore(tmp_path / "late")  # the samples between would be missing
    times_ms, values, _ = read_report(tmp_path / "later.cells.v_mv.h5")
    assert np.array_equal(times_ms, expected[0][1:2])
    assert np.array_equal(values, expected[1][1:2])
