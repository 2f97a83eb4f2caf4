"""Realtime mode: steps follow the wall clock, missing spikes count as silence, and lateness is reported."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuraxis.errors import MeshError
from neuraxis.launch import Team
from neuraxis.mesh import Peer, Topology
from neuraxis.network import AllToAll, Network
from neuraxis.network.models import lif_delta
from neuraxis.simulation.mesh import RegionSetup, Units, region_node
from neuraxis.simulation.mesh.executor import RegionTeam
from neuraxis.simulation.mesh.region_node import RegionNode
from neuraxis.simulation.mesh.wall_clock import SharedEpoch, WallClock
from neuraxis.simulation.mesh.worker import serve_region
from tests.ranks.stopping import resume, stop
from tests.simulation.mesh.meshes import LIMIT_S, fresh_mesh, until

UNITS = Units({"beat": [0], "ear": [1]})
STEPS_PER_S = 1000
HOURS_5_NS = 5 * 3600 * 10**9
NOW_NS = 1_800_000_000 * 10**9


# --- the clock alone ---


def clock_at(seconds: float, dt_ms: float = 1.0) -> WallClock:
    """A clock whose epoch was so long ago."""
    return WallClock(dt_ms, time.time_ns() - int(seconds * 1e9))


def test_steps_follow_the_time_since_the_epoch() -> None:
    clock = clock_at(2.5, dt_ms=0.5)
    assert 5000 <= clock.step_now() <= 5000 + 2 * 1000 * LIMIT_S
    assert clock.time_of(5000) == pytest.approx(2.5)
    assert 2.5 <= clock.now() < 2.5 + LIMIT_S


def test_before_its_epoch_it_is_step_0() -> None:
    assert clock_at(-5.0).step_now() == 0


def test_the_first_region_sets_the_epoch() -> None:
    clock = WallClock(1.0)
    clock.start()
    epoch = clock.epoch_ns
    assert abs(time.time_ns() - epoch) < LIMIT_S * 1e9
    clock.start()
    assert clock.epoch_ns == epoch


def test_windows_that_start_more_than_one_window_late_are_counted_as_missed() -> None:
    clock = clock_at(100.0)
    assert clock.record_start(100_000 + 10 * 3_600_000, 10) < 0  # hours early
    assert clock.missed == 0
    assert clock.record_start(99_000, 10) > 0.9
    assert (clock.missed, clock.windows) == (1, 2)
    report = clock.report()
    assert report["windows"] == 2
    assert report["missed_deadlines"] == 1
    assert report["jitter_ms"]["p50"] <= report["jitter_ms"]["p99"] <= report["jitter_ms"]["max"]
    assert report["jitter_ms"]["max"] > 900


def test_the_margin_of_upstream_regions_is_reported() -> None:
    clock = clock_at(100.0)
    for needed in (90_000, 200_000, 300_000):
        clock.record_arrival(needed)
    margins = clock.report()["margin_ms"]
    assert margins["min"] <= margins["p1"] <= margins["p50"]
    assert margins["min"] < -9_000
    assert 0 < margins["p50"] <= 100_000


def test_the_report_of_an_unused_clock() -> None:
    report = WallClock(0.1).report()
    assert report["margin_ms"] == {"p50": None, "p1": None, "min": None}
    assert report["jitter_ms"] == {"p50": 0.0, "p99": 0.0, "max": 0.0}
    assert (report["windows"], report["missed_deadlines"], report["skipped_steps"]) == (0, 0, 0)


@given(st.sampled_from([0.05, 0.1, 0.2, 1.0]), st.integers(0, 2**31 - 2))
def test_the_time_of_a_step_is_not_after_the_step_of_that_time(dt_ms: float, step: int) -> None:
    clock = WallClock(dt_ms, time.time_ns())
    assert int(clock.time_of(step) * 1000.0 / dt_ms + 1e-6) == step


def test_it_does_not_grow_with_time() -> None:
    clock = clock_at(1.0)
    for step in range(20_500):
        clock.record_start(step, 1)
        clock.record_arrival(step)
    assert clock.windows == 20_500
    assert len(clock._lateness_s) == len(clock._margins_s) == 10_000


# --- two regions ---


def beating() -> Network:
    """One region spikes spontaneously; the other one only when it receives these spikes."""
    network = Network(dt_ms=1.0, seed=2)
    beat = network.population("beat", 5, lif_delta)
    ear = network.population("ear", 5, lif_delta)
    network.current(beat, 1500.0)
    network.connect(beat, ear, AllToAll(), 30.0, delay_ms=100.0)
    network.connect(ear, beat, AllToAll(), 0.0, delay_ms=100.0)
    return network


@contextmanager
def by_the_clock(**options: Any) -> Iterator[RegionTeam]:
    network, mesh = beating(), fresh_mesh()
    topology = Topology.local().as_data()
    settings = {"clock": "realtime", "driven": False, "stays": True, **options}
    setups = {name: RegionSetup(name, UNITS, network, (), mesh, topology, **settings) for name in UNITS.names}
    with RegionTeam(setups) as team:
        team.wait(LIMIT_S)
        yield team


def steps_of(team: RegionTeam) -> dict[str, int]:
    return {name: report["step"] for name, report in team.ask("statistics").items()}


def spikes_of(team: RegionTeam, name: str) -> int:
    counts: np.ndarray = team.ask("read_counts", [UNITS.populations[name][0]])[name][0]
    return int(counts.sum())


def test_two_regions_follow_the_wall_clock_and_one_is_killed() -> None:
    with by_the_clock() as team:
        before, begun = (
            until(lambda: min(steps_of(team).values()) > 100 and steps_of(team), "both run"),
            time.monotonic(),
        )
        until(lambda: min(steps_of(team).values()) > max(before.values()) + 2 * STEPS_PER_S, "two seconds of it")
        took = time.monotonic() - begun
        assert took > 1.5  # it does not run ahead of the clock
        steps = steps_of(team)
        assert abs(steps["beat"] - steps["ear"]) < LIMIT_S * STEPS_PER_S
        until(lambda: spikes_of(team, "ear") > 0, "spikes arrive")
        stories = team.ask("statistics")
        for report in stories.values():
            clock = report["clock"]
            assert clock["windows"] > 10
            assert 0 <= clock["missed_deadlines"] <= clock["windows"]
            assert clock["skipped_steps"] >= 0
            assert clock["margin_ms"]["p50"] is not None
            assert report["refused"] == 0
        heard = stories["ear"]["upstream"]["beat"]
        assert heard["state"] == "live"
        assert not heard["silences"]
        assert heard["heard"] > before["beat"]
        # One is killed: the other records silence and continues by the clock.
        os.kill(team.pids["beat"], signal.SIGKILL)
        report = until(lambda: _missing(team), "its silence is noticed")
        assert report["silences"][-1][1] is None
        assert report["silences"][-1][2] in ("gone", "no sign of life")
        until(lambda: steps_of(team)["ear"] > report["silences"][-1][0] + 2 * STEPS_PER_S, "the other one goes on")
        silent = spikes_of(team, "ear")
        step = steps_of(team)["ear"]
        until(lambda: steps_of(team)["ear"] > step + STEPS_PER_S, "it goes on")
        assert spikes_of(team, "ear") == silent
        # It rejoins at the current step of the clock.
        team.start("beat")
        team.wait(LIMIT_S, ["beat"])
        until(lambda: spikes_of(team, "ear") > silent, "its spikes arrive again")
        report = team.ask("statistics")["ear"]["upstream"]["beat"]
        assert report["state"] == "live"
        assert report["silences"][-1][1] is not None
        assert steps_of(team)["beat"] > step


def test_a_clock_five_hours_behind_does_not_move_the_epoch_and_both_warn() -> None:
    with by_the_clock(silence_timeout=10.0) as team:
        until(lambda: min(steps_of(team).values()) > 100, "both run")
        team.kill("beat")
        begun, before_step = time.monotonic(), steps_of(team)["ear"]
        behind = Team(serve_region_behind, 1, grace=1.0)
        team._teams["beat"] = behind
        behind.send(0, {})  # no objects of a notebook
        behind.send(0, team._setups["beat"])
        team.wait(LIMIT_S, ["beat"])
        until(lambda: all(team.ask("statistics")[name]["clock_refused"] for name in UNITS.names), "both to refuse it")
        for name, report in team.ask("statistics").items():
            assert report["step"] < before_step + (time.monotonic() - begun + LIMIT_S) * STEPS_PER_S, name
            assert "whose clock does not agree" in str(report["clock_refused"])
        with pytest.raises(MeshError, match=r"'beat': its clock is 1[78],... s behind"):
            team.epochs_ns()


def serve_region_behind(line: Any) -> None:
    """A region in a process whose clock is five hours behind."""
    right = time.time_ns
    time.time_ns = lambda: right() - HOURS_5_NS
    serve_region(line)


# --- whose time counts ---


def ago(seconds: float) -> int:
    return NOW_NS - int(seconds * 1e9)


def shared(started_ago_s: float, **heard: float) -> SharedEpoch:
    """A region that was started so long ago, with neighbours that say the brain began so long ago."""
    epoch = SharedEpoch("me", WallClock(1.0, ago(started_ago_s)))
    for name, seconds in heard.items():
        epoch.receive(name, ago(seconds), int(seconds * STEPS_PER_S), NOW_NS)
    return epoch


def test_a_newcomer_adopts_the_start_of_a_brain_that_runs_since_long() -> None:
    epoch = shared(1.0)
    assert epoch.receive("old", ago(18_000), 18_000 * STEPS_PER_S, NOW_NS)
    assert (epoch.clock.epoch_ns, epoch.adopted, epoch.refusals.counts()) == (ago(18_000), 1, {})


@pytest.mark.parametrize("off_s", [-18_000, -11, 11, 18_000])
def test_a_wrong_clock_does_not_move_the_epoch(off_s: float) -> None:
    epoch = shared(100.0)
    for age in (0, 50, 3600):  # whenever it was started
        assert not epoch.receive("off", ago(off_s + age), age * STEPS_PER_S, NOW_NS)
    assert epoch.clock.epoch_ns == ago(100.0)
    assert sum(epoch.refusals.counts().values()) == 3
    assert epoch.received == {}


def test_a_large_move_of_the_epoch_needs_a_majority() -> None:
    epoch = shared(100.0, a=100.0, b=100.0)
    for name in ("forger", "second"):
        assert not epoch.receive(name, ago(5000), 5000 * STEPS_PER_S, NOW_NS)
    assert epoch.clock.epoch_ns == ago(100.0)
    assert sum(epoch.refusals.counts().values()) == 2
    epoch.forget("b")  # it left: now two say it, and one does not
    assert epoch.receive("second", ago(5000), 5000 * STEPS_PER_S, NOW_NS)
    assert epoch.clock.epoch_ns == ago(5000)
    # Regions that were started one after the other meet without a vote; no epoch moves further than a day.
    epoch = shared(100.0, a=100.0, b=100.0)
    assert epoch.receive("c", ago(130), 130 * STEPS_PER_S, NOW_NS)
    assert not shared(1.0).receive("c", ago(90_000), 90_000 * STEPS_PER_S, NOW_NS)
    assert not shared(100.0).receive("c", ago(50), 50 * STEPS_PER_S, NOW_NS)  # it adopts ours
    assert not shared(100.0).receive("c", 0, 50, NOW_NS)


def test_one_neighbour_cannot_walk_the_clock_by_small_steps(caplog: pytest.LogCaptureFixture) -> None:
    epoch = shared(100.0, a=100.0, b=100.0)
    for number in range(1, 300):
        seconds = 100 + 59 * number
        assert epoch.receive("forger", ago(seconds), seconds * STEPS_PER_S, NOW_NS) is (number == 1)
        for name in ("a", "b"):
            epoch.receive(name, ago(100), 100 * STEPS_PER_S, NOW_NS)
    assert epoch.clock.epoch_ns == ago(159)
    # A majority moves it, and from there one neighbour may again say a little.
    epoch.forget("forger")
    assert not epoch.receive("a", ago(5000), 5000 * STEPS_PER_S, NOW_NS)
    assert epoch.receive("b", ago(5000), 5000 * STEPS_PER_S, NOW_NS)
    assert epoch.receive("forger", ago(5050), 5050 * STEPS_PER_S, NOW_NS)
    assert not epoch.receive("forger", ago(5100), 5100 * STEPS_PER_S, NOW_NS)
    assert sum("moves by" in text for text in caplog.messages) == 1, "the line is logged once per interval"
    # Where there is only one neighbour it is believed, but no further than a day in all.
    epoch = shared(100.0)
    moved = [epoch.receive("c", ago(age), age * STEPS_PER_S, NOW_NS) for age in range(50_000, 500_000, 50_000)]
    assert moved == [True] + 8 * [False]


def test_a_driver_is_admitted_while_the_token_of_another_one_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mesh:
        """A node that sees a driver that died, and the new one from the third look on."""

        looks = 0

        def with_role(self, role: str) -> list[Peer]:
            self.looks += 1
            names = ["dead", "new"] if self.looks > 2 else ["dead"]
            return [Peer(name, role, "here", 1, 1) for name in names]

    region = RegionNode.__new__(RegionNode)
    region.node = Mesh()  # type: ignore[assignment]
    assert region._may_drive("new")
    monkeypatch.setattr(region_node, "_DRIVER_S", 0.05)
    assert not region._may_drive("stranger")


def test_a_restored_clock_continues_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = WallClock(1.0)
    clock.start(step=500)
    assert clock.follow_setting() == 0.0
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() + HOURS_5_NS)
    assert clock.step_now() > 17_000_000
    assert clock.follow_setting() == pytest.approx(18_000, abs=LIMIT_S)
    assert 500 <= clock.step_now() < 500 + 1000 * LIMIT_S
    assert clock.follow_setting() == 0.0


def _missing(team: RegionTeam) -> Any:
    report = team.ask("statistics")["ear"]["upstream"]["beat"]
    return report if report["state"] == "missing" else None


def test_they_end_at_their_time_and_what_came_late_is_counted() -> None:
    """One region is stopped for a while: its windows are late or skipped, and reported."""
    with by_the_clock(until=4 * STEPS_PER_S) as team:
        until(lambda: min(steps_of(team).values()) > 500, "both run")
        stop(team.pids["beat"])
        try:
            until(lambda: steps_of(team).get("ear", 0) > 1200, "the other one goes on")
        finally:
            resume(team.pids["beat"])
        end = 4 * STEPS_PER_S
        until(lambda: steps_of(team) == {"beat": end, "ear": end}, "both have come to the end")
        stories = team.ask("statistics")
        heard, clock = stories["ear"]["upstream"]["beat"], stories["beat"]["clock"]
        assert heard["late"] + heard["lost"] > 0 or heard["silences"]
        assert clock["missed_deadlines"] > 0 or clock["skipped_steps"] > 0
        assert clock["jitter_ms"]["max"] > 0
