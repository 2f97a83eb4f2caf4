"""Nodes that die, stop, hang or leave during a run: detected, recorded, and silent for the others.

What the others compute from then on is, to the bit, what they compute where that silence is real.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from neuraxis.errors import CheckpointError, ShardFailed
from neuraxis.network import FixedInDegree, Network
from neuraxis.network.models import lif_delta, spike_source
from neuraxis.simulation import Simulation
from neuraxis.simulation.mesh import Units
from neuraxis.simulation.python_populations import PythonPopulation
from tests.ranks.stopping import resume, stop
from tests.simulation.mesh.couriers import WHERE
from tests.simulation.mesh.fed import UNITS, alone, assert_was_silent_in, fed, silences_of, team_of
from tests.simulation.mesh.meshes import LIMIT_S, fresh_mesh, on_the_mesh, until

STEPS = 5000


@contextmanager
def when(simulation: Simulation, name: str, step: int, do: Callable[[], object]) -> Iterator[None]:
    """While entered, something is done as soon as a node has reached a step."""
    node, failures = team_of(simulation).node, []

    def wait() -> None:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            at = next((peer.step for peer in node.peers() if peer.name == name), None)
            if at is not None and at >= step:
                do()
                return
            time.sleep(0.005)
        failures.append(f"{name} has not reached step {step}")

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failures


def kill(simulation: Simulation, *names: str) -> None:
    for name in names:
        os.kill(team_of(simulation).pids[name], signal.SIGKILL)


def test_a_node_that_is_killed_in_mid_run_is_silence_from_then_on(tmp_path: Path) -> None:
    with on_the_mesh(fed(), UNITS) as simulation:
        with when(simulation, "source", 1000, lambda: kill(simulation, "source")):
            simulation.advance(STEPS)
        assert simulation.steps == STEPS
        assert list(team_of(simulation).lost) == ["source"]
        assert "SIGKILL" in team_of(simulation).lost["source"]
        (silence,) = silences_of(simulation)
        assert silence[0] > 1000 - 15
        assert silence[1] is None
        assert_was_silent_in(simulation, [silence], ("a", "b"))
        # What it would have answered is answered for it.
        assert not simulation.state("shadow", "v_mv").any()
        assert simulation.spike_counts("source").shape == (30,)
        assert len(simulation.weights("learned")) == 8 * 60
        assert simulation.status()[0].worker == 1
        with pytest.raises(CheckpointError, match="region 'source' is lost"):
            simulation.save(tmp_path)
        simulation.advance(500)
        assert_was_silent_in(simulation, [silence], ("a", "b"))
        assert simulation.fingerprint()


def test_a_leaving_region_is_detected_at_once() -> None:
    """With a timeout of a minute, and without waiting for it."""
    with on_the_mesh(fed(), UNITS, silence_timeout=60.0) as simulation:
        simulation.advance(700)
        team = team_of(simulation)
        team._teams["source"].send(0, None)
        until(lambda: not psutil.pid_exists(team.pids.get("source", -1)) or team.node.peer("source") is None, "it left")
        begun = time.monotonic()
        simulation.advance(800)
        assert time.monotonic() - begun < 50.0
        assert silences_of(simulation) == [(701, None)]
        assert why(simulation) == "left"
        assert list(team.lost) == ["source"]
        assert_was_silent_in(simulation, [(701, None)], ("a", "b"))


def why(simulation: Simulation, receiver: str = "a", name: str = "source") -> str:
    """Return the reason why a region was last reported missing."""
    return simulation._executor.statistics()[receiver]["upstream"][name]["silences"][-1][2]  # type: ignore[attr-defined]


def test_a_stopped_region_is_detected_and_recovers_when_it_resumes() -> None:
    with on_the_mesh(fed(), UNITS) as simulation:
        pid = team_of(simulation).pids["source"]
        with when(simulation, "source", 500, lambda: stop(pid)):
            try:
                simulation.advance(STEPS)
                (silence,) = silences_of(simulation)
                assert silence[1] is None
                assert "source" in team_of(simulation).lost
                assert_was_silent_in(simulation, [silence], ("a", "b"))
            finally:
                resume(pid)
        until(lambda: team_of(simulation).is_live("source"), "it is live again")
        simulation.advance(1500)
        (silence,) = silences_of(simulation)
        assert silence[1] is not None
        assert silence[0] - 1 <= silence[1] <= STEPS + 1500
        assert_was_silent_in(simulation, [silence])
        assert simulation.fingerprint()


# --- Python that fails ---


def with_python(
    at_ms: float, file: Path | None = None, until_step: int = 2**31
) -> tuple[Network, PythonPopulation, Units]:
    """A Python region in its own node, neurons that receive its spikes, and neurons that receive theirs."""
    network = Network(dt_ms=0.1, seed=3)
    own, mark = network.population("own", 1, spike_source), network.population("own.data", 1, spike_source)
    cells = network.population("cells", 40, lif_delta)
    more = network.population("more", 40, lif_delta)
    network.connect(own, cells, FixedInDegree(k=2), 2.0, delay_ms=1.0)
    network.connect(cells, more, FixedInDegree(k=8), 1.0, delay_ms=1.0)
    for population in (cells, more):
        network.poisson(population, rate_hz=1000.0, weight=1.5)
    for population in network.populations:
        network.record(population)
    config = {"at_ms": at_ms, "file": None if file is None else str(file), "until": until_step}
    python_population = PythonPopulation("own", f"{WHERE}:Unlucky", own.index, mark.index, config, tick_steps=5)
    return network, python_population, Units({"own": [0, 1], "cells": [2], "more": [3]})


def assert_heard_until(simulation: Simulation, step: int, steps: int) -> None:
    """Neurons got from the region what they get if it says nothing from a step on."""
    network, python_population, _ = with_python(1e6, until_step=step)
    with Simulation(network, python_populations=(python_population,)) as reference:
        reference.advance(steps)
        for name in ("cells", "more"):
            for found, expected in zip(simulation.spikes(name), reference.spikes(name), strict=True):
                assert np.array_equal(found, expected)
            assert np.array_equal(simulation.state(name, "v_mv"), reference.state(name, "v_mv"))


def test_python_that_raises_ends_its_node_with_its_traceback_and_no_other() -> None:
    network, python_population, units = with_python(60.0)
    with on_the_mesh(network, units, python_populations=(python_population,)) as simulation:
        simulation.advance(1500)
        lost = team_of(simulation).lost
        assert list(lost) == ["own"]
        for words in ("ZeroDivisionError: a scripted accident", "couriers.py", "region 'own' failed at 60 ms"):
            assert words in lost["own"]
        ((first, last),) = silences_of(simulation, "cells", "own")
        assert 590 <= first <= 601
        assert last is None
        assert_heard_until(simulation, first, 1500)


def test_python_that_is_stuck_is_noticed_although_its_process_lives_and_comes_back(tmp_path: Path) -> None:
    network, python_population, units = with_python(60.0, tmp_path / "go on")
    with on_the_mesh(network, units, python_populations=(python_population,)) as simulation:
        simulation.advance(1500)
        team = team_of(simulation)
        assert team.node.peer("own") is not None
        assert list(team.lost) == ["own"]
        assert why(simulation, "cells", "own") == "stuck"
        ((first, last),) = silences_of(simulation, "cells", "own")
        assert 590 <= first <= 601
        assert last is None
        assert_heard_until(simulation, first, 1500)
        (tmp_path / "go on").touch()
        until(lambda: team.is_live("own"), "it is live again")
        before = len(simulation.spikes("own")[0])
        simulation.advance(1000)
        ((_, last),) = silences_of(simulation, "cells", "own")
        assert last is not None
        assert last < 2500
        assert len(simulation.spikes("own")[0]) > before
        story = simulation._executor.statistics()["cells"]["upstream"]["own"]  # type: ignore[attr-defined]
        assert story["state"] == "live"
        assert story["heard"] == 2500


# --- more than one ---


def test_two_killed_at_once_and_the_last_one_goes_on() -> None:
    with on_the_mesh(fed(), UNITS) as simulation:
        with when(simulation, "a", 1000, lambda: kill(simulation, "source", "b")):
            simulation.advance(4000)
        assert sorted(team_of(simulation).lost) == ["b", "source"]
        assert [silence[1] for name in ("source", "b") for silence in silences_of(simulation, "a", name)] == [None] * 2
        times, _ = simulation.spikes("a")
        assert times.max() > 390.0
        kill(simulation, "a")
        with pytest.raises(ShardFailed, match="every node of this brain is lost"):
            simulation.advance(1000)
        assert simulation._executor.statistics() == {}  # type: ignore[attr-defined]


def test_where_a_loss_is_an_error_it_ends_the_simulation() -> None:
    with on_the_mesh(fed(), UNITS, on_loss="raise") as simulation:
        simulation.advance(300)
        pids = team_of(simulation).pids
        kill(simulation, "b")
        with pytest.raises(ShardFailed, match=r"region 'b' is lost: .*SIGKILL") as caught:
            simulation.advance(20_000)
        assert caught.value.shard == "b"
        assert not any(psutil.pid_exists(pid) for pid in pids.values())


# --- drivers ---

DRIVER = """
import sys
from neuraxis.simulation import Simulation
from neuraxis.simulation.mesh import MeshExecutor
from pathlib import Path
from tests.simulation.mesh.test_faults import with_python
if __name__ == "__main__":
    network, python_population, units = with_python(20.0, Path("/nowhere/to/be/found"))
    executor = MeshExecutor(units, mesh=sys.argv[1])
    with Simulation(network, executor=executor, python_populations=(python_population,)) as simulation:
        print(*executor.team.pids.values(), flush=True)
        simulation.advance(150)
        print("stuck next", flush=True)
        simulation.advance(10_000_000)
"""


def test_all_nodes_end_when_the_driver_is_killed() -> None:
    """Nor a node whose Python is stuck."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, fresh_mesh()], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    try:
        assert driver.stdout is not None
        nodes = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
        assert len(nodes) == 3
        assert driver.stdout.readline() == "stuck next\n"
        time.sleep(0.5)  # in which one of them is stuck; whether it is changes nothing below
    finally:
        driver.kill()
        driver.communicate()
    gone, alive = psutil.wait_procs(nodes, timeout=LIMIT_S)
    assert not alive
    assert len(gone) == 3


def test_reference_of_these_tests_is_alive() -> None:
    """Otherwise the comparisons above would compare little."""
    whole, without = alone(STEPS), alone(STEPS, ((1000, None),))
    assert all(len(whole[name][0]) > 300 for name in ("source", "shadow", "a", "b"))
    assert not np.array_equal(whole["a v"], without["a v"])
    assert not np.array_equal(whole["weights"], without["weights"])
