"""Saved states: a failed save keeps the older one, and mismatched states are refused."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from neuraxis.errors import CheckpointError
from neuraxis.network import STDP, Explicit, FixedInDegree, HomeostaticScaling, Network, Normal, OneToOne, Uniform
from neuraxis.network.models import lif_cond_exp, lif_delta, lif_exp, spike_source
from neuraxis.simulation import Simulation
from neuraxis.simulation.checkpoint import describe_network
from neuraxis.store.states import json_sum
from tests.simulation.by_turns import ByTurns
from tests.simulation.long_run import next_line, started
from tests.simulation.networks import NETWORKS, driven
from tests.simulation.save_loop import NEURONS


def small(seed: int = 1) -> Network:
    return driven(seed, n=NEURONS)


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with Simulation(small()) as simulation:
        yield simulation


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a state of two shards at step 50."""
    with Simulation(small(), executor=ByTurns(2)) as simulation:
        simulation.step(50)
        simulation.save(tmp_path / "saved")
    return tmp_path / "saved"


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


def state_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("state-*/*"))


def fingerprint_at(folder: Path, network: Network) -> tuple[int, str]:
    """The folder of a saved state, and its fingerprint."""
    with Simulation(network) as simulation:
        simulation.restore(folder)
        return simulation.steps, simulation.fingerprint()


def fingerprint_after(steps: int) -> tuple[int, str]:
    with Simulation(small()) as simulation:
        simulation.step(steps)
        return steps, simulation.fingerprint()


# --- what a folder holds ---


def test_a_manifest_describes_the_saved_state(saved: Path) -> None:
    found = manifest(saved)
    assert (found["kind"], found["metadata"]["step"], found["metadata"]["time_ms"]) == ("simulation", 50, 5.0)
    assert found["metadata"]["fingerprint"] == fingerprint_after(50)[1]
    assert found["identity"]["populations"] == {"cells": NEURONS}
    assert {path.name: path.stat().st_size for path in state_files(saved)} == {
        name: size for name, (size, _) in found["files"].items()
    }
    assert list(found["files"]) == ["shard-0.safetensors", "shard-1.safetensors"]
    assert sorted(path.name for path in saved.iterdir()) == ["manifest.json", found["data"]]


def test_only_the_last_state_is_kept(simulation: Simulation, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "new folder"
    for _ in range(3):
        simulation.step(10)
        simulation.save(str(folder))
    assert len(list(folder.iterdir())) == 2
    assert fingerprint_at(folder, small()) == fingerprint_after(30)


def test_saving_changes_nothing(simulation: Simulation, tmp_path: Path) -> None:
    for _ in range(5):
        simulation.step(10)
        simulation.save(tmp_path)
    assert simulation.fingerprint() == fingerprint_after(50)[1]


def test_other_files_in_the_folder_are_left_alone(simulation: Simulation, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "results").mkdir()
    simulation.save(tmp_path)
    simulation.save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "results").is_dir()


def test_a_folder_can_be_moved(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert fingerprint_at(Path("moved"), small()) == fingerprint_after(50)


# --- a save that fails ---


def test_a_manifest_that_cannot_be_put_in_its_place(
    simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation.step(10)
    simulation.save(tmp_path)
    simulation.step(10)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(CheckpointError, match=r"No space left"):
        simulation.save(tmp_path)
    monkeypatch.undo()
    assert fingerprint_at(tmp_path, small()) == fingerprint_after(10)
    assert len(list(tmp_path.iterdir())) == 2  # what was begun has been removed
    simulation.save(tmp_path)
    assert fingerprint_at(tmp_path, small()) == fingerprint_after(20)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """Limit the size of the files that this process, and those it starts, may write."""
    old_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write fails with EFBIG
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, old_limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, old_limits)
    signal.signal(signal.SIGXFSZ, old_handler)


@pytest.mark.parametrize("size", [0, 100, 1000])
def test_a_disk_that_is_full(
    simulation: Simulation, tmp_path: Path, small_disk: Callable[[int], None], size: int
) -> None:
    simulation.step(10)
    simulation.save(tmp_path)
    assert max(path.stat().st_size for path in state_files(tmp_path)) > 1000
    simulation.step(10)
    small_disk(size)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        simulation.save(tmp_path)
    small_disk(1 << 30)
    assert fingerprint_at(tmp_path, small()) == fingerprint_after(10)
    simulation.step(10)  # the simulation itself is none the worse
    simulation.save(tmp_path)
    assert fingerprint_at(tmp_path, small()) == fingerprint_after(30)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_disk_that_is_full_for_workers(tmp_path: Path, small_disk: Callable[[int], None]) -> None:
    """Workers have the limit from the start, so it must be above what their other files need."""
    network = driven(n=400)
    network.connect(
        "cells", "cells", FixedInDegree(k=2000), 0.0, plasticity=HomeostaticScaling(5.0, w_max=1.0), name="large"
    )
    with Simulation(network) as simulation:
        simulation.save(tmp_path)
        expected = simulation.fingerprint()
    small_disk(1 << 20)
    with Simulation(network, workers=2) as simulation:
        simulation.step(10)
        with pytest.raises(CheckpointError, match=r"shard-[01]"):
            simulation.save(tmp_path)
        simulation.step(10)
        assert simulation.steps == 20
    small_disk(1 << 30)
    assert fingerprint_at(tmp_path, network) == (0, expected)


def test_a_folder_that_cannot_be_made(simulation: Simulation, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"file"):
        simulation.save(tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"file/state"):
        simulation.save(tmp_path / "file" / "state")


def test_a_process_killed_while_it_saves_leaves_a_state(tmp_path: Path) -> None:
    for saves in (3, 5):
        with started(tmp_path, module="tests.simulation.save_loop") as process:
            for _ in range(saves):
                step = next_line(process)
            process.kill()
        found, fingerprint = fingerprint_at(tmp_path, small())
        assert found >= step
        assert (found, fingerprint) == fingerprint_after(found)
    with Simulation(small()) as simulation:
        simulation.save(tmp_path)
    assert len(list(tmp_path.glob("state-*"))) == 1


# --- what is not restored ---


def change(folder: Path, **fields: Any) -> None:
    """Change fields of the manifest, and its checksum with them."""
    body = {**manifest(folder), **fields}
    del body["crc32"]
    (folder / "manifest.json").write_text(json.dumps({**body, "crc32": json_sum(body)}))


def refused(simulation: Simulation, folder: Path, match: str) -> str:
    """The error of a restore, which must have left the simulation as it was."""
    simulation.step(7)
    before = simulation.fingerprint()
    times = simulation.spikes("cells")[0]
    with pytest.raises(CheckpointError, match=match) as caught:
        simulation.restore(folder)
    assert simulation.fingerprint() == before
    assert np.array_equal(simulation.spikes("cells")[0], times)
    return str(caught.value)


def test_a_folder_without_a_state(simulation: Simulation, tmp_path: Path) -> None:
    refused(simulation, tmp_path, r"holds no saved state")
    refused(simulation, tmp_path / "nowhere", r"nowhere: holds no saved state")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "7", '"text"', "{}", '{"network": null, "state": "state-1", "files": ["a"], "format": 2}',
     '{"network": {}, "state": 5, "files": 7, "format": 2}', '{"network": {}, "state": "s", "files": ["a"]}',
     "\x00\x01", '{"network": "text", "state": "state-1", "files": ["a"], "format": 2}',
     '{"format": "neuraxis saved state"}', '{"format": "neuraxis saved state", "version": 3}',
     '{"format": "neuraxis saved state", "version": 3, "crc32": 5, "files": {}}'],
)  # fmt: skip
def test_invalid_manifests_are_refused(simulation: Simulation, tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    refused(simulation, tmp_path, r"manifest\.json")


def test_a_manifest_of_bytes_that_are_no_text(simulation: Simulation, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(b"\xff\xfe\x00")
    refused(simulation, tmp_path, r"manifest\.json")


def test_a_manifest_of_the_future(simulation: Simulation, saved: Path) -> None:
    change(saved, version=4, written_by="neuraxis 9.1")
    refused(simulation, saved, r"manifest\.json: version 4 of the layout.*written by neuraxis 9\.1.*reads version 3")
    change(saved, version=3, content=5)
    refused(simulation, saved, r"version 5 of the state of a simulation, written by neuraxis 9\.1.*reads version 2")


def test_a_manifest_with_another_checksum(simulation: Simulation, saved: Path) -> None:
    (saved / "manifest.json").write_text((saved / "manifest.json").read_text().replace('"step": 50', '"step": 51'))
    refused(simulation, saved, r"manifest\.json: damaged.*checksum")


def test_the_state_of_something_else(simulation: Simulation, saved: Path) -> None:
    change(saved, kind="training")
    refused(simulation, saved, r"holds the state of a training, not of a simulation")
    with pytest.raises(CheckpointError, match=r"exists and is not the manifest of a simulation's state"):
        simulation.save(saved)
    assert manifest(saved)["kind"] == "training"


@pytest.mark.parametrize("data", ["..", ".", "../saved", "/tmp", "a/../..", "state-x/../../other", "state-\ud800"])
def test_a_manifest_that_leads_out_of_its_folder(
    simulation: Simulation, saved: Path, tmp_path: Path, data: str
) -> None:
    for name in ("shard-0.safetensors", "shard-1.safetensors"):
        for place in (tmp_path, saved):
            shutil.copy(state_files(saved)[0], place / name)
    change(saved, data=data)
    refused(simulation, saved, r"manifest\.json: damaged: it names files outside its folder")


@pytest.mark.parametrize("files", [["../../a"], ["/etc/passwd"], ["a/b"], [".."], ["."], [""], []])
def test_files_that_lead_out_of_their_folder(simulation: Simulation, saved: Path, files: list[str]) -> None:
    change(saved, files={name: [1, 2] for name in files})
    refused(simulation, saved, r"manifest\.json")


def other_networks() -> dict[str, Network]:
    changed: dict[str, Network] = {"seed": small(seed=2), "size": driven(n=NEURONS + 1)}
    changed["more"] = small()
    changed["more"].population("more", 3, lif_delta)
    changed["projection"] = small()
    changed["projection"].connect("cells", "cells", FixedInDegree(k=1), weight=1.0)
    for name, dt_ms, model, weight, rate_hz in (
        ("dt_ms", 0.2, lif_exp, Normal(60.0, 20.0), 8000.0),
        ("model", 0.1, lif_exp(tau_m_ms=11.0), Normal(60.0, 20.0), 8000.0),
        ("weight", 0.1, lif_exp, Normal(60.0, 19.0), 8000.0),
        ("rate", 0.1, lif_exp, Normal(60.0, 20.0), 8001.0),
    ):
        network = Network(dt_ms=dt_ms, seed=1)
        cells = network.population("cells", NEURONS, model, v_mv=Normal(-58.0, 5.0))
        network.connect(cells, cells, FixedInDegree(k=20), weight=weight, delay_ms=Uniform(0.2, 2.0))
        network.poisson(cells, rate_hz=rate_hz, weight=90.0)
        network.record(cells)
        changed[name] = network
    for name in ("current", "spikes", "neuromodulator"):
        changed[name] = small()
    changed["current"].current("cells", 1.0)
    changed["spikes"].spikes("cells", [1.0], [0])
    changed["neuromodulator"].neuromodulator("dopamine")
    return changed


@pytest.mark.parametrize("name", other_networks())
def test_a_state_of_another_network(saved: Path, name: str) -> None:
    with Simulation(other_networks()[name]) as simulation:
        refused(simulation, saved, r"was saved from another network")


def with_values(values: Any) -> Network:
    network = Network(seed=1)
    source = network.population("source", 3000, spike_source)
    cells = network.population("cells", 3000, lif_exp)
    network.connect(source, cells, OneToOne(), weight=values)
    network.record("cells")
    return network


def test_a_long_array_of_weights_with_one_other_value(tmp_path: Path) -> None:
    """Arrays are compared as a whole, not by their first and last values."""
    weights = np.ones(3000)
    with Simulation(with_values(weights)) as simulation:
        simulation.save(tmp_path)
    weights[1500] = 2.0
    with Simulation(with_values(weights)) as simulation:
        refused(simulation, tmp_path, r"was saved from another network")


@pytest.mark.parametrize(
    ("here", "match"),
    [
        ({"tau_m_ms": 11.0}, r"tau_m_ms was 10 to 12 \(sha256 \w+\), here it is 11\.0"),
        ({"tau_m_ms": [10.0, 12.0, 12.0]}, r"tau_m_ms was 10 to 12 \(sha256 \w+\), here it is 10 to 12 \(sha256 \w+\)"),
        ({"v_threshold_mv": -54.0}, r"v_threshold_mv was -55\.0, here it is -54\.0"),
    ],
)
def test_parameters_of_single_neurons_are_part_of_a_network(tmp_path: Path, here: dict[str, Any], match: str) -> None:
    """The error names the first population and parameter that differ."""

    def network(**given: Any) -> Network:
        made = Network(seed=1)
        made.population("others", 2, lif_delta)
        made.population("cells", 3, lif_exp(**{"tau_m_ms": [10.0, 11.0, 12.0], "v_threshold_mv": -55.0, **given}))
        made.record("cells")
        return made

    with Simulation(network()) as simulation:
        simulation.step(5)
        simulation.save(tmp_path)
    with Simulation(network(**here)) as simulation:
        refused(simulation, tmp_path, f"population 'cells': parameter {match}")
    with Simulation(network(tau_m_ms=np.array([10.0, 11.0, 12.0]))) as simulation:
        simulation.restore(tmp_path)
        assert simulation.steps == 5


def test_a_state_with_other_metadata_does_not_name_a_parameter(saved: Path) -> None:
    """As release 0.1 has none."""
    with Simulation(other_networks()["model"]) as simulation:
        refused(
            simulation, saved, r"another network: population 'cells': parameter tau_m_ms was 10\.0, here it is 11\.0"
        )
        for given in ({}, {"cells": 1}, {"cells": {}}, [], "text"):
            change(saved, metadata={**manifest(saved)["metadata"], "parameters": given})
            refused(simulation, saved, r"another network: precision, models, initial values, inputs")


def test_lif_cond_exp_of_release_0_1_is_the_same_network() -> None:
    """Its factor 0.16666667 has become 1.0 / 6.0, which is the same float32."""
    source = lif_cond_exp.source.replace("1.0 / 6.0", "0.16666667").replace("(0.16666667)", "0.16666667")
    assert source != lif_cond_exp.source
    then = replace(lif_cond_exp, source=source, definition=None)
    found = {}
    for precision in ("float32", "float64"):
        for model in (lif_cond_exp, then):
            network = Network(seed=1, precision=precision)
            cells = network.population("cells", 3, model, v_mv=Uniform(-70.0, -56.0))
            network.poisson(cells, rate_hz=9000.0, weight=3.0)
            with Simulation(network) as simulation:
                simulation.step(300)
                found[precision, model is then] = simulation.state("cells", "v_mv").tobytes()
            found[precision, "digest", model is then] = describe_network(network)["digest"]
    assert found["float32", True] == found["float32", False]
    assert found["float32", "digest", True] == found["float32", "digest", False]
    assert found["float64", True] != found["float64", False]
    assert found["float64", "digest", True] != found["float64", "digest", False]


def test_other_probes_make_no_other_network(saved: Path) -> None:
    network = small()
    network.record("cells", "refractory")
    assert fingerprint_at(saved, network) == fingerprint_after(50)


def damaged(saved: Path) -> dict[str, Callable[[], object]]:
    """Damage the second file of a state."""
    path = state_files(saved)[1]
    content = path.read_bytes()
    arrays = load_file(path)
    totals = {"step": "50", "events": "0", "spike_hash": "0"}
    return {
        "removed": path.unlink,
        "empty": lambda: path.write_bytes(b""),
        "cut": lambda: path.write_bytes(content[:-1]),
        "cut in half": lambda: path.write_bytes(content[: len(content) // 2]),
        "foreign": lambda: path.write_bytes(b"not a file of arrays" * 100),
        "without totals": lambda: save_file(arrays, path),
        "totals that are no numbers": lambda: save_file(arrays, path, metadata={**totals, "step": "soon"}),
        "another step": lambda: save_file(arrays, path, metadata={**totals, "step": "49"}),
        "without arrays": lambda: save_file({}, path, metadata=totals),
        "without one array": lambda: save_file(
            {k: v for k, v in arrays.items() if not k.endswith("v_mv")}, path, metadata=totals
        ),
        "shorter arrays": lambda: save_file({k: v[:-1] for k, v in arrays.items()}, path, metadata=totals),
        "strange names": lambda: save_file({**arrays, "population/x": arrays["levels"]}, path, metadata=totals),
        "a folder": lambda: (path.unlink(), path.mkdir()),
        "a copy of the first": lambda: shutil.copy(state_files(saved)[0], path),
    }


@pytest.mark.parametrize(
    "damage",
    ["removed", "empty", "cut", "cut in half", "foreign", "a folder", "without totals", "totals that are no numbers",
     "strange names"],
)  # fmt: skip
def test_a_file_that_was_damaged(simulation: Simulation, saved: Path, damage: str) -> None:
    damaged(saved)[damage]()
    refused(simulation, saved, r"shard-1\.safetensors")


@pytest.mark.parametrize(
    "damage", ["another step", "without arrays", "without one array", "shorter arrays", "a copy of the first"]
)
def test_files_that_do_not_go_together(simulation: Simulation, saved: Path, damage: str) -> None:
    damaged(saved)[damage]()
    refused(simulation, saved, str(saved))


def test_a_file_that_is_missing_from_the_list(simulation: Simulation, saved: Path) -> None:
    change(saved, files={"shard-0.safetensors": manifest(saved)["files"]["shard-0.safetensors"]})
    refused(simulation, saved, str(saved))


def test_files_in_another_order(saved: Path) -> None:
    change(saved, files=dict(reversed(manifest(saved)["files"].items())))
    assert fingerprint_at(saved, small()) == fingerprint_after(50)


def test_workers_survive_a_damaged_state(saved: Path) -> None:
    damaged(saved)["cut in half"]()
    with Simulation(small(), workers=2) as simulation:
        refused(simulation, saved, r"shard-1")
        simulation.step(43)
        assert simulation.fingerprint() == fingerprint_after(50)[1]


def test_no_pickle_is_read(saved: Path) -> None:
    """Nothing in a saved state can be executed: numbers and names only."""
    for path in state_files(saved):
        header_size = int.from_bytes(path.read_bytes()[:8], "little")
        assert json.loads(path.read_bytes()[8 : 8 + header_size])


def test_a_level_of_a_neuromodulator_is_part_of_the_state(tmp_path: Path) -> None:
    case = NETWORKS["reward and fatigue"]
    with Simulation(case.make(1)) as simulation:
        simulation.step(100)
        simulation.release("dopamine", 0.5)
        level = simulation.level("dopamine")
        simulation.save(tmp_path)
        simulation.step(50)
        expected = simulation.fingerprint()
    with Simulation(case.make(1), executor=ByTurns(3)) as simulation:
        simulation.restore(tmp_path)
        assert simulation.level("dopamine") == level
        simulation.step(50)
        assert simulation.fingerprint() == expected
        simulation.restore(tmp_path)
        simulation.release("dopamine", 1e-3)
        simulation.step(50)
        assert simulation.fingerprint() != expected


def test_a_state_with_shards_that_no_plastic_synapse_reaches(tmp_path: Path) -> None:
    network = Network(seed=3)
    cells = network.population("cells", 40, lif_delta, v_mv=-65.0)
    network.poisson(cells, 9000.0, 1.0)
    first = Explicit(np.arange(10), np.zeros(10, np.int64))  # all onto neuron 0
    network.connect(cells, cells, first, 0.5, 1.0, plasticity=STDP.additive(w_max=2.0))
    fingerprints = set()
    for shards, others in ((1, 4), (4, 1), (4, 7)):
        with Simulation(network, executor=ByTurns(shards, seed=shards)) as simulation:
            simulation.advance(300)
            simulation.save(tmp_path / f"{shards}")
        with Simulation(network, executor=ByTurns(others, seed=others)) as simulation:
            simulation.restore(tmp_path / f"{shards}")
            simulation.advance(300)
            fingerprints.add(simulation.fingerprint())
    assert len(fingerprints) == 1
