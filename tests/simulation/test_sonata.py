"""Spike files: other tools read the appended spikes, and a failure keeps the older file."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import libsonata
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.formats import sonata
from neuraxis.formats.sonata import SpikeFile, read_spikes

POPULATIONS = (("L4E", 50), ("L23E", 30), ("silent", 7))


def integers(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that are full after a few spikes, so that few spikes cross all borders."""
    monkeypatch.setattr(sonata, "_BUFFERED_SPIKES", 5)
    monkeypatch.setattr(sonata, "_CHUNK_SPIKES", 3)


# --- what is in the file ---


def test_the_layout_is_that_of_the_specification(tmp_path: Path) -> None:
    with SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=0.1, seed=2**63) as file:
        file.append(integers(0, 3, 3, 12), integers(1, 0, 1, 1), integers(29, 4, 0, 29))
    with h5py.File(tmp_path / "spikes.h5") as stored:
        assert stored.attrs["magic"] == 0x0A7A
        assert stored.attrs["magic"].dtype == np.uint32
        assert stored.attrs["version"].tolist() == [0, 1]
        assert stored.attrs["version"].dtype == np.uint32
        assert stored.attrs["dt_ms"] == 0.1
        assert stored.attrs["seed"] == 2**63
        assert list(stored["spikes"]) == ["L4E", "L23E", "silent"]
        for name, n in POPULATIONS:
            group = stored["spikes"][name]
            sorting = group.attrs.get_id("sorting")
            assert h5py.check_enum_dtype(sorting.dtype) == {"none": 0, "by_id": 1, "by_time": 2}
            assert group.attrs["sorting"] == 2
            assert group.attrs["size"] == n
            assert group["timestamps"].dtype == np.dtype("<f8")
            assert group["timestamps"].attrs["units"] == "ms"
            assert group["node_ids"].dtype == np.dtype("<u8")
        assert stored["spikes/L23E/timestamps"][:].tolist() == [0.0, 3 * 0.1, 12 * 0.1]
        assert stored["spikes/L23E/node_ids"][:].tolist() == [29, 0, 29]
        assert stored["spikes/L4E/node_ids"][:].tolist() == [4]
        assert stored["spikes/silent/timestamps"].shape == (0,)
        assert stored["spikes/silent/node_ids"].shape == (0,)


def test_libsonata_reads_it(tmp_path: Path) -> None:
    with SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=0.5) as file:
        file.append(integers(2, 5, 9), 0, integers(7, 3, 7))
        file.append(integers(4), 1, integers(11))
    reader = libsonata.SpikeReader(tmp_path / "spikes.h5")
    assert sorted(reader.get_population_names()) == ["L23E", "L4E", "silent"]
    assert reader["L4E"].sorting == "by_time"
    assert reader["L4E"].time_units == "ms"
    assert reader["L4E"].get() == [(7, 1.0), (3, 2.5), (7, 4.5)]
    assert reader["L4E"].get(tstart=2.0, tstop=3.0) == [(3, 2.5)]
    assert reader["L4E"].get(node_ids=libsonata.Selection([7])) == [(7, 1.0), (7, 4.5)]
    assert reader["L23E"].get() == [(11, 2.0)]
    assert reader["silent"].get() == []


@settings(max_examples=40)
@given(
    chunks=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 6)), max_size=12), max_size=8
    ),
    flushed=st.sets(st.integers(0, 7)),
)
def test_a_file_reads_back_equal(
    chunks: list[list[tuple[int, int, int]]], flushed: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("given") / "spikes.h5"
    expected: list[list[tuple[float, int]]] = [[], [], []]
    step = 0
    with pytest.MonkeyPatch.context() as patch, SpikeFile(path, POPULATIONS, dt_ms=0.25) as file:
        patch.setattr(sonata, "_CHUNK_SPIKES", 3)
        for number, chunk in enumerate(chunks):
            steps = step + np.cumsum([wait for wait, _, _ in chunk], dtype=np.int64)
            step = int(steps[-1]) if chunk else step
            for time, (_, population, neuron) in zip(steps.tolist(), chunk, strict=True):
                expected[population].append((time * 0.25, neuron))
            file.append(steps, np.array([p for _, p, _ in chunk], int), np.array([i for _, _, i in chunk], np.uint32))
            if number in flushed:
                file.flush()
    read = read_spikes(path)
    assert list(read) == [name for name, _ in POPULATIONS]
    for (times_ms, node_ids), spikes in zip(read.values(), expected, strict=True):
        assert list(zip(times_ms.tolist(), node_ids.tolist(), strict=True)) == spikes
        assert (times_ms.dtype, node_ids.dtype) == (np.float64, np.uint64)


@pytest.mark.usefixtures("small_buffers")
def test_memory_is_bounded_and_one_call_may_bring_more_than_a_buffer(tmp_path: Path) -> None:
    steps = np.arange(1000)
    with SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=1.0) as file:
        file.append(steps[:3], 0, steps[:3] % 50)
        file.append(steps[3:999], 0, steps[3:999] % 50)
        # All but one buffer is flushed before a flush is requested.
        on_disk = file._file["spikes/L4E/timestamps"].shape[0]
        assert 999 - 5 <= on_disk < 999
        file.append(steps[999:], 0, steps[999:] % 50)
    times_ms, node_ids = read_spikes(tmp_path / "spikes.h5")["L4E"]
    assert times_ms.tolist() == steps.tolist()
    assert node_ids.tolist() == (steps % 50).tolist()


def test_files_of_others_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["spikes/all/timestamps"] = np.array([3.5, 0.25], np.float32)  # neither sorted nor with units
        other["spikes/all/node_ids"] = np.array([4, 2], np.int32)
    times_ms, node_ids = read_spikes(tmp_path / "other.h5")["all"]
    assert (times_ms.tolist(), node_ids.tolist()) == ([3.5, 0.25], [4, 2])
    assert (times_ms.dtype, node_ids.dtype) == (np.float64, np.uint64)

    for units in ("milliseconds", np.bytes_("ms"), "s"):
        with h5py.File(tmp_path / "other.h5", "r+") as other:
            other["spikes/all/timestamps"].attrs["units"] = units
        if units != "s":
            assert read_spikes(tmp_path / "other.h5")["all"][0].tolist() == [3.5, 0.25]
    with pytest.raises(InvalidArgument, match="'s', only ms"):
        read_spikes(tmp_path / "other.h5")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["spikes/all/timestamps"] = np.zeros(3)
        other["spikes/all/node_ids"] = np.zeros(2, np.uint64)
    with pytest.raises(InvalidArgument, match="3 timestamps but 2 node_ids"):
        read_spikes(tmp_path / "other.h5")
    with h5py.File(tmp_path / "other.h5", "w"):
        pass
    with pytest.raises(InvalidArgument, match="no group /spikes"):
        read_spikes(tmp_path / "other.h5")


# --- what append refuses ---


@pytest.mark.parametrize(
    ("steps", "population_index", "local_ids", "error", "message"),
    [
        (integers(8), 0, integers(1), InvalidArgument, "8 after step 9 in population 'L4E'"),
        (integers(10, 12, 11), integers(0, 0, 0), integers(1, 1, 1), InvalidArgument, "11 after 12"),
        (integers(-1), 1, integers(1), InvalidArgument, "steps has -1"),
        (integers(10), 0, integers(50), InvalidArgument, "local_ids has 50: population 'L4E' has 50 neurons"),
        (integers(10), 0, integers(-1), InvalidArgument, "local_ids has -1"),
        (integers(10), 3, integers(0), InvalidArgument, "population_index is 3: there are 3"),
        (integers(10), integers(-1), integers(0), InvalidArgument, "population_index is -1"),
        (integers(10, 11), 0, integers(0), InvalidArgument, r"steps has shape \(2,\) and local_ids \(1,\)"),
        (integers(10, 11), integers(0), integers(0, 1), InvalidArgument, "population_index has shape"),
        (np.array([10.0]), 0, integers(0), InvalidType, "steps has dtype float64"),
        # The first spike is good, the second is not: neither is taken.
        (integers(10, 10), integers(1, 0), integers(0, 99), InvalidArgument, "local_ids has 99"),
    ],
)
def test_invalid_spikes_are_refused_as_a_whole(
    tmp_path: Path,
    steps: npt.NDArray[np.int64],
    population_index: int | npt.NDArray[np.int64],
    local_ids: npt.NDArray[np.int64],
    error: type[Exception],
    message: str,
) -> None:
    with SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=1.0) as file:
        file.append(integers(9), 0, integers(2))
        with pytest.raises(error, match=message):
            file.append(steps, population_index, local_ids)
        file.append(integers(9), 0, integers(3))  # the same step again is in order
    read = read_spikes(tmp_path / "spikes.h5")
    assert [(times.tolist(), ids.tolist()) for times, ids in read.values()] == [([9, 9], [2, 3]), ([], []), ([], [])]


def test_each_population_has_its_own_order_of_time(tmp_path: Path) -> None:
    with SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=1.0) as file:
        file.append(integers(9), 0, integers(2))
        file.append(integers(5), 1, integers(3))
        file.append([], [], [])
        file.append(integers(), 2, integers())
    assert read_spikes(tmp_path / "spikes.h5")["L23E"][0].tolist() == [5]


def test_a_closed_file_refuses_spikes(tmp_path: Path) -> None:
    file = SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=1.0)
    assert "open" in repr(file)
    file.close()
    file.close()
    assert "closed" in repr(file)
    for call in (file.flush, lambda: file.append(integers(1), 0, integers(1))):
        with pytest.raises(InvalidArgument, match="is closed"):
            call()


# --- where and how it can be made ---


@pytest.mark.parametrize(
    ("populations", "dt_ms", "seed", "error", "message"),
    [
        ([("L2/3E", 5)], 0.1, None, InvalidArgument, "'L2/3E'"),
        ([("", 5)], 0.1, None, InvalidArgument, "the name ''"),
        ([(".", 5)], 0.1, None, InvalidArgument, "the name '.'"),
        ([("a", 5), ("a", 6)], 0.1, None, InvalidArgument, "'a' twice"),
        ([("a", -1)], 0.1, None, InvalidArgument, "-1 neurons for 'a'"),
        ([("a", 1.5)], 0.1, None, InvalidType, "1.5 neurons for 'a'"),
        ([(4, 1)], 0.1, None, InvalidType, "the name 4"),
        ([("a", 5)], 0.0, None, InvalidArgument, "dt_ms is 0.0"),
        ([("a", 5)], float("nan"), None, InvalidArgument, "dt_ms is nan"),
        ([("a", 5)], 0.1, -1, InvalidArgument, "seed is -1"),
        ([("a", 5)], 0.1, 2**64, InvalidArgument, "seed is 1844"),
    ],
)
def test_arguments_that_cannot_be(
    tmp_path: Path,
    populations: list[tuple[str, int]],
    dt_ms: float,
    seed: int | None,
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        SpikeFile(tmp_path / "spikes.h5", populations, dt_ms, seed=seed)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_is_known_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"nowhere' does not exist"):
        SpikeFile(tmp_path / "nowhere" / "spikes.h5", POPULATIONS, dt_ms=0.1)
    with pytest.raises(InvalidArgument, match="that is a folder"):
        SpikeFile(tmp_path, POPULATIONS, dt_ms=0.1)
    with pytest.raises(OSError, match="cannot make a spike file: File name too long"):
        SpikeFile(tmp_path / ("x" * 250), POPULATIONS, dt_ms=0.1)


@pytest.fixture
def without_privilege(tmp_path: Path) -> Iterator[None]:
    """Run as an unprivileged user for a while: root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_no_permission_is_known_at_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tmp_path.chmod(0o555)
    request.getfixturevalue("without_privilege")
    with pytest.raises(PermissionError, match="cannot make a spike file") as caught:
        SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=0.1)
    assert caught.value.filename == str(tmp_path / "spikes.h5.partial")


def test_two_cannot_write_to_one_file(tmp_path: Path) -> None:
    with SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=1.0) as file:
        file.append(integers(1), 0, integers(2))
        file.flush()
        with pytest.raises(InvalidArgument, match="another SpikeFile is writing to it"):
            SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=1.0)
        file.append(integers(2), 0, integers(3))
    assert read_spikes(tmp_path / "spikes.h5")["L4E"][1].tolist() == [2, 3]


# --- accidents ---


def test_an_older_file_is_replaced_only_at_close(tmp_path: Path) -> None:
    path = tmp_path / "spikes.h5"
    path.write_text("older")
    file = SpikeFile(path, POPULATIONS, dt_ms=1.0)
    file.append(integers(4), 0, integers(2))
    file.flush()
    assert path.read_text() == "older"
    file.close()
    assert read_spikes(path)["L4E"][0].tolist() == [4]
    assert [entry.name for entry in tmp_path.iterdir()] == ["spikes.h5"]


def test_a_block_that_raises_leaves_the_older_file_and_all_spikes_in_the_partial_one(tmp_path: Path) -> None:
    path = tmp_path / "spikes.h5"
    path.write_text("older")
    with pytest.raises(KeyboardInterrupt), SpikeFile(path, POPULATIONS, dt_ms=1.0) as file:  # noqa: PT012
        file.append(integers(4), 0, integers(2))
        raise KeyboardInterrupt
    assert path.read_text() == "older"
    assert read_spikes(tmp_path / "spikes.h5.partial")["L4E"][0].tolist() == [4]
    # The next run overwrites the partial file.
    with SpikeFile(path, POPULATIONS, dt_ms=1.0) as file:
        file.append(integers(5), 0, integers(2))
    assert read_spikes(path)["L4E"][0].tolist() == [5]


KILLED = """
import os, signal, sys
import numpy as np
from neuraxis.formats.sonata import SpikeFile
file = SpikeFile(sys.argv[1], [("a", 100), ("b", 100)], dt_ms=1.0)
file.append(np.arange(20_000), np.arange(20_000) % 2, np.arange(20_000) % 100)
file.flush()
file.append(np.arange(20_000, 20_010), 0, np.arange(10))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_flushed_spikes_survive_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "spikes.h5"
    ended = subprocess.run([sys.executable, "-c", KILLED, path], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert not path.exists()
    partial = tmp_path / "spikes.h5.partial"
    for name, first in (("a", 0), ("b", 1)):
        times_ms, node_ids = read_spikes(partial)[name]
        assert times_ms.tolist() == list(range(first, 20_000, 2))
        assert node_ids.tolist() == [step % 100 for step in range(first, 20_000, 2)]
    assert len(libsonata.SpikeReader(partial)["a"].get()) == 10_000


@pytest.mark.parametrize("torn", ["unwritten timestamps", "more node ids", "a fall in time"])
def test_of_a_torn_file_the_complete_beginning_is_read(tmp_path: Path, torn: str) -> None:
    file = SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=1.0)
    file.append(integers(4, 6, 6), 0, integers(2, 3, 5))
    file.abandon()
    with h5py.File(tmp_path / "spikes.h5.partial", "r+") as stored:
        group = stored["spikes/L4E"]
        group["node_ids"].resize((9,))
        if torn != "more node ids":
            group["timestamps"].resize((9,))
        if torn == "a fall in time":
            group["timestamps"][3:] = 1.0
    times_ms, node_ids = read_spikes(tmp_path / "spikes.h5.partial")["L4E"]
    assert (times_ms.tolist(), node_ids.tolist()) == ([4, 6, 6], [2, 3, 5])


@pytest.mark.parametrize("size", [0, 15, 4040])
def test_a_damaged_heap_of_strings_is_refused(tmp_path: Path, size: int) -> None:
    """HDF5 itself loops for ever over a free object of size 0."""
    path = tmp_path / "spikes.h5"
    with SpikeFile(path, [("cells", 2)], dt_ms=0.1) as file:
        file.append(np.array([1, 2]), 0, np.array([0, 1]))
    data = bytearray(path.read_bytes())
    free = data.index(b"GCOL") + 16
    while data[free : free + 2] != b"\0\0":  # an object of 2 bytes, padded
        free += 16 + 8
    assert int.from_bytes(data[free + 8 : free + 16], "little") > 3000
    data[free + 8 : free + 16] = size.to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(InvalidArgument, match="heap of strings"):
        read_spikes(path)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("kibibytes", [1, 30, 60])
def test_a_full_disk_is_an_error_that_keeps_the_older_file(tmp_path: Path, kibibytes: int) -> None:
    path = tmp_path / "spikes.h5"
    path.write_text("older")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    flushed = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (kibibytes * 1024, limits[1]))
    try:
        with (  # noqa: PT012
            pytest.raises(OSError, match="cannot write spikes: File too large") as caught,
            SpikeFile(path, POPULATIONS, dt_ms=1.0) as file,
        ):
            for step in range(10_000):
                file.append(np.full(7, step), 0, np.arange(7))
                file.flush()
                flushed = 7 * (step + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(tmp_path / "spikes.h5.partial")
    assert path.read_text() == "older"
    if kibibytes > 1:  # less is no HDF5 file at all
        times_ms, node_ids = read_spikes(tmp_path / "spikes.h5.partial")["L4E"]
        assert flushed > 0
        assert len(times_ms) == len(node_ids) >= flushed
        assert node_ids.tolist() == [index % 7 for index in range(len(node_ids))]


def test_a_temporarily_full_disk_loses_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with SpikeFile(tmp_path / "spikes.h5", POPULATIONS, dt_ms=1.0) as file:
        file.append(integers(1), 0, integers(4))
        file.flush()
        file.append(np.arange(1, 30_001), 0, np.arange(30_000) % 50)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200 * 1024, limits[1]))
        try:
            for _ in range(2):
                with pytest.raises(OSError, match="cannot write spikes"):
                    file.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    times_ms, node_ids = read_spikes(tmp_path / "spikes.h5")["L4E"]
    assert times_ms.tolist() == [1, *range(1, 30_001)]
    assert node_ids.tolist() == [4, *(index % 50 for index in range(30_000))]
