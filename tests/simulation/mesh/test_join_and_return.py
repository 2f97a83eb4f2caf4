"""Regions that join late or rejoin from their last state; the outage is recorded."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from neuraxis.mesh import Topology
from neuraxis.simulation import Simulation
from neuraxis.simulation.mesh import RegionSetup
from neuraxis.simulation.mesh.executor import RegionTeam
from tests.simulation import test_acting
from tests.simulation.mesh.fed import UNITS, alone, assert_was_silent_in, fed, silences_of, team_of
from tests.simulation.mesh.meshes import LIMIT_S, fresh_mesh, on_the_mesh, until
from tests.simulation.mesh.test_faults import when
from tests.simulation.test_conformance import assert_same, look


def kill(simulation: Simulation, *names: str) -> None:
    """Kill nodes, and return when their processes have ended."""
    pids = [team_of(simulation).pids[name] for name in names]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        until(lambda pid=pid: not is_running(pid), f"{pid} ends")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def story(simulation: Simulation, receiver: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = simulation._executor.statistics()[receiver]["upstream"][name]  # type: ignore[attr-defined]
    return found


# --- rejoining ---


def test_a_lost_region_rejoins_from_its_last_state(tmp_path: Path) -> None:
    with on_the_mesh(fed(), UNITS, checkpoint=tmp_path, checkpoint_every=300) as simulation:
        simulation.advance(1500)
        team = team_of(simulation)
        kill(simulation, "source")
        simulation.advance(1000)
        assert list(team.lost) == ["source"]
        ((first, last),) = silences_of(simulation)
        assert (first, last) == (1501, None)
        assert max(int(one.name.removeprefix("step-")) for one in (tmp_path / "source").iterdir()) <= 1500
        team.start("source", resume=True)
        team.wait(LIMIT_S, ["source"])
        simulation.advance(1500)
        assert not team.lost
        ((first, last),) = silences_of(simulation)
        assert first == 1501
        assert last is not None
        assert 2500 - 15 <= last < 4000
        assert_was_silent_in(simulation, [(first, last)])
        assert (story(simulation, "a", "source")["state"], story(simulation, "a", "source")["heard"]) == ("live", 4000)
        # It has caught up, and has missed nothing itself.
        assert story(simulation, "source", "b")["heard"] == 4000
        assert not story(simulation, "source", "b")["silences"]
        assert story(simulation, "source", "b")["lost"] == 0
        # Its spikes are recorded once, and those since its return all.
        times, ids = simulation.spikes("source")
        steps = np.rint(times * 10).astype(int)
        expected, expected_ids = alone(4000)["source"]
        expected = np.rint(expected * 10).astype(int)
        assert np.array_equal(steps[steps > 2500], expected[expected > 2500])
        assert np.array_equal(ids[steps > 2500], expected_ids[expected > 2500])
        assert len(set(zip(steps.tolist(), ids.tolist(), strict=True))) == len(steps)
        # It can be lost again.
        kill(simulation, "source")
        simulation.advance(300)
        again = silences_of(simulation)
        assert again == [(first, last), (4001, None)]
        assert_was_silent_in(simulation, again, ("a", "b"))


def test_where_it_is_waited_for_its_death_leaves_no_trace(tmp_path: Path) -> None:
    """One, then two at once: killed in mid-run, started again while the others wait; the run is the undisturbed one."""
    steps = 9000
    network = fed()
    with Simulation(network) as reference:
        expected = reference.step(steps).fingerprint
    with on_the_mesh(network, UNITS, checkpoint=tmp_path, checkpoint_every=300, silence_timeout=50.0) as simulation:

        def kill_and_start(*names: str) -> None:
            kill(simulation, *names)
            for name in names:
                team_of(simulation).start(name, resume=True)

        with when(simulation, "source", 1000, lambda: kill_and_start("source")):
            simulation.advance(steps // 2)
        with when(simulation, "a", steps // 2 + 1000, lambda: kill_and_start("a", "b")):
            simulation.advance(steps - steps // 2)
        assert not team_of(simulation).lost
        for receiver, name in (("a", "source"), ("a", "b"), ("b", "a"), ("source", "b")):
            # A receiver does not wait for the last windows, which it needs only later.
            until(
                lambda receiver=receiver, name=name: story(simulation, receiver, name)["heard"] == steps,
                f"{receiver} hears the last of {name}",
            )
            reported = story(simulation, receiver, name)
            assert (reported["silences"], reported["lost"]) == ([], 0)
        assert_was_silent_in(simulation, [])
        for found, wanted in zip(simulation.spikes("source"), alone(steps)["source"], strict=True):
            assert np.array_equal(found, wanted)
        assert simulation.fingerprint() == expected


def test_one_without_a_state_yet_comes_back_as_new(tmp_path: Path) -> None:
    with on_the_mesh(fed(), UNITS, checkpoint=tmp_path, checkpoint_every=10_000) as simulation:
        simulation.advance(600)
        kill(simulation, "source")
        simulation.advance(400)
        team_of(simulation).start("source", resume=True)
        team_of(simulation).wait(LIMIT_S, ["source"])
        simulation.advance(1000)
        silences = silences_of(simulation)  # until it was seen again, and until the step at which it began
        assert silences[0][0] == 601
        assert all(last is not None and last < 2000 for _, last in silences)
        assert_was_silent_in(simulation, silences, ("a", "b"))
        assert story(simulation, "a", "source")["heard"] == 2000


def test_what_was_done_to_the_brain_since_its_last_state_is_done_to_one_that_comes_back(tmp_path: Path) -> None:
    """Spikes and states given, silence, frozen learning, a reward: all of it, at its step."""
    network, cut = test_acting.acted_upon(), 420
    with on_the_mesh(network, checkpoint=tmp_path, checkpoint_every=150, silence_timeout=50.0) as simulation:
        test_acting.act(simulation, cut)
        kill(simulation, "a", "scripted")
        for name in ("a", "scripted"):
            team_of(simulation).start(name, resume=True)
        team_of(simulation).wait(LIMIT_S, ["a", "scripted"])
        test_acting.act(simulation)
        assert_same(look(simulation), test_acting.reference())
        test_acting.assert_counts(simulation)


# --- late joiners ---


@contextmanager
def free(missing: tuple[str, ...], **options: Any) -> Iterator[RegionTeam]:
    """Start the nodes in lockstep without a driver, except some of them."""
    network, mesh = fed(), fresh_mesh()
    settings = {"driven": False, "start_timeout": 2.0, "silence_timeout": 2.0, "stays": True, **options}
    setups = {
        name: RegionSetup(name, UNITS, network, (), mesh, Topology.local().as_data(), **settings)
        for name in UNITS.names
    }
    with RegionTeam(setups, remote=missing) as team:
        team.wait(LIMIT_S, [name for name in UNITS.names if name not in missing])
        yield team


def test_regions_that_start_together_run_by_themselves_to_their_end() -> None:
    steps = 2000
    with free((), until=steps, start_timeout=LIMIT_S) as team:
        until(lambda: {one["step"] for one in team.ask("statistics").values()} == {steps}, "all have come to the end")
        expected = alone(steps)
        states = team.ask("read_state", 2, "v_mv")
        assert np.array_equal(states["a"], expected["a v"])
        assert np.array_equal(team.ask("read_state", 1, "v_mv")["source"], expected["shadow v"])
        assert np.array_equal(team.ask("read_counts", [3])["b"][0], expected["b counts"])
        stories = team.ask("statistics")
        assert not any(one["silences"] for reported in stories.values() for one in reported["upstream"].values())


def test_the_others_begin_without_one_that_does_not_come_and_it_is_heard_when_it_does() -> None:
    with free(("source",)) as team:
        begun = until(lambda: _step(team, "a") > 300, "the others begin without it")
        assert begun
        reported = team.ask("statistics")["a"]["upstream"]["source"]
        assert reported["state"] == "missing"
        assert reported["silences"][0] == [1, None, "never joined"]
        team.start("source")
        team.wait(LIMIT_S, ["source"])
        reported = until(lambda: _heard(team), "it is heard")
        first, _, why = reported["silences"][0]
        assert (first, why) == (1, "never joined")
        assert 300 - 15 <= reported["silences"][-1][1] < reported["heard"]
        assert reported["lost"] == 0
        # It joined during the run, and receives the others from then on.
        mine = team.ask("statistics")["source"]
        assert mine["step"] > 300
        assert mine["upstream"]["b"]["state"] == "live"
        assert mine["upstream"]["b"]["lost"] == 0
        until(lambda: team.ask("read_counts", [1])["source"][0].sum() > 100, "its neurons spike")
        assert not any(one["refused"] for one in team.ask("statistics").values())


def _step(team: RegionTeam, name: str) -> int:
    return int(team.ask("statistics").get(name, {"step": 0})["step"])


def _heard(team: RegionTeam) -> Any:
    stories = team.ask("statistics")
    if "a" not in stories:
        return None
    reported = stories["a"]["upstream"]["source"]
    last = reported["silences"][-1][1]
    return reported if reported["state"] == "live" and last is not None and reported["heard"] > last + 100 else None


def test_what_nobody_has_any_more_when_one_comes_back_is_recorded(tmp_path: Path) -> None:
    """With small replay logs, the region gets only the last windows of its absence, and reports the missing ones."""
    options: dict[str, Any] = {"checkpoint": str(tmp_path), "checkpoint_every": 500, "replay_log_bytes": 3000}
    with free((), start_timeout=LIMIT_S, **options) as team:
        until(lambda: (tmp_path / "source").is_dir() and _step(team, "source") > 1500, "it runs, and has kept a state")
        os.kill(team.pids["source"], signal.SIGKILL)
        at = until(lambda: _missing_since(team), "the others miss it")
        until(lambda: _step(team, "b") > at + 5000, "the others go on")
        team.start("source", resume=True)
        team.wait(LIMIT_S, ["source"])
        mine = until(lambda: _caught_up(team), "it has caught up")
        assert mine["lost"] > 0 or mine["silences"]
        assert mine["state"] == "live"
        reported = until(lambda: _heard(team), "it is heard again")
        assert reported["silences"][0][0] == at


def _missing_since(team: RegionTeam) -> int:
    reported = team.ask("statistics")["a"]["upstream"]["source"]
    return int(reported["silences"][-1][0]) if reported["state"] == "missing" else 0


def _caught_up(team: RegionTeam) -> Any:
    stories = team.ask("statistics")
    if not {"source", "b"} <= stories.keys() or stories["source"]["step"] < stories["b"]["step"] - 5000:
        return None
    reported = stories["source"]["upstream"]["b"]
    return reported if reported["heard"] > stories["source"]["step"] - 100 else None


def test_one_that_is_there_before_the_others_waits_for_them() -> None:
    with free(("a", "b"), start_timeout=LIMIT_S, until=1000) as team:
        assert [peer.step or 0 for peer in team.node.peers()] == [0]
        for name in ("a", "b"):
            team.start(name)
        until(lambda: {one["step"] for one in team.ask("statistics").values()} == {1000}, "all have come to the end")
        assert np.array_equal(team.ask("read_state", 2, "v_mv")["a"], alone(1000)["a v"])


def test_an_unknown_node_cannot_command_a_region() -> None:
    """Commands with paths need its own driver, invalid ones are refused, and the region continues in any case."""
    commands = ["save", "restore", "run", "close", "_do", "__class__", None, 5, ["advance"]]
    with free(("a", "b"), until=10, start_timeout=0.1) as team:
        for one in commands:
            with pytest.raises(Exception, match=r"unknown command|only the process that started|expected a command"):
                team.node.request("source", "command", [one, "/tmp/x"], timeout=10.0)
        for value in (None, 5, "advance", [], {}, ["advance"], ["advance", "x"], ["advance", -5], ["read_state"],
                      ["read_state", 999, "v_mv"], ["read_state", 1, 7], ["level", 5], ["inject", [1], [10**9]],
                      ["write_state", 1, "v_mv", "x"], ["give"], ["start"], ["freeze", [77]]):  # fmt: skip
            try:
                team.node.request("source", "command", value, timeout=10.0)
            except Exception as error:
                assert "no such node" not in str(error)  # noqa: PT017
        assert team.ask("statistics")["source"]["region"] == "source"
