"""By the wall clock: steps follow it, spikes arrive, what is missing is silence, and how late all of it is is told."""

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

from neuraxis.execution.mesh import RegionSetup, Units
from neuraxis.execution.mesh.team import RegionTeam
from neuraxis.execution.mesh.wall_clock import WallClock
from neuraxis.mesh import Topology
from neuraxis.network import AllToAll, Network
from neuraxis.network.models import lif_delta
from tests.crew.stopping import go_on, stop
from tests.execution.mesh.meshes import LIMIT_S, fresh_mesh, until

UNITS = Units({"beat": [0], "ear": [1]})
STEPS_PER_S = 1000


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


def test_the_first_to_start_sets_the_epoch_and_nobody_after_it() -> None:
    clock = WallClock(1.0)
    clock.start()
    epoch = clock.epoch_ns
    assert abs(time.time_ns() - epoch) < LIMIT_S * 1e9
    clock.start()
    assert clock.epoch_ns == epoch


def test_windows_that_begin_later_than_a_window_after_their_time_are_missed() -> None:
    clock = clock_at(100.0)
    assert clock.note(100_000 + 10 * 3_600_000, 10) < 0  # hours early
    assert clock.missed == 0
    assert clock.note(99_000, 10) > 0.9
    assert (clock.missed, clock.windows) == (1, 2)
    told = clock.report()
    assert told["windows"] == 2
    assert told["missed_deadlines"] == 1
    assert told["jitter_ms"]["p50"] <= told["jitter_ms"]["p99"] <= told["jitter_ms"]["max"]
    assert told["jitter_ms"]["max"] > 900


def test_how_early_others_were_is_told_with_the_latest_as_the_least() -> None:
    clock = clock_at(100.0)
    for needed in (90_000, 200_000, 300_000):
        clock.note_arrival(needed)
    margins = clock.report()["margin_ms"]
    assert margins["min"] <= margins["p1"] <= margins["p50"]
    assert margins["min"] < -9_000
    assert 0 < margins["p50"] <= 100_000


def test_a_clock_with_nothing_to_tell() -> None:
    told = WallClock(0.1).report()
    assert told["margin_ms"] == {"p50": None, "p1": None, "min": None}
    assert told["jitter_ms"] == {"p50": 0.0, "p99": 0.0, "max": 0.0}
    assert (told["windows"], told["missed_deadlines"], told["skipped_steps"]) == (0, 0, 0)


@given(st.sampled_from([0.05, 0.1, 0.2, 1.0]), st.integers(0, 2**31 - 2))
def test_the_time_of_a_step_is_not_after_the_step_of_that_time(dt_ms: float, step: int) -> None:
    clock = WallClock(dt_ms, time.time_ns())
    assert int(clock.time_of(step) * 1000.0 / dt_ms + 1e-6) == step


def test_it_does_not_grow_with_time() -> None:
    clock = clock_at(1.0)
    for step in range(20_500):
        clock.note(step, 1)
        clock.note_arrival(step)
    assert clock.windows == 20_500
    assert len(clock._lateness_s) == len(clock._margins_s) == 10_000


# --- two regions ---


def beating() -> Network:
    """One region spikes by itself all the time; the other one only when it hears it."""
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
    return {name: told["step"] for name, told in team.ask("story").items()}


def spikes_of(team: RegionTeam, name: str) -> int:
    counts: np.ndarray = team.ask("read_counts", [UNITS.populations[name][0]])[name][0]
    return int(counts.sum())


def test_two_regions_follow_the_wall_clock_and_hear_each_other_and_one_is_killed() -> None:
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
        stories = team.ask("story")
        for told in stories.values():
            clock = told["clock"]
            assert clock["windows"] > 10
            assert 0 <= clock["missed_deadlines"] <= clock["windows"]
            assert clock["skipped_steps"] >= 0
            assert clock["margin_ms"]["p50"] is not None
            assert told["refused"] == 0
        heard = stories["ear"]["upstream"]["beat"]
        assert heard["state"] == "live"
        assert not heard["silences"]
        assert heard["heard"] > before["beat"]
        # One is killed: silence to the other one, which goes on by the clock.
        os.kill(team.pids["beat"], signal.SIGKILL)
        told = until(lambda: _missing(team), "its silence is noticed")
        assert told["silences"][-1][1] is None
        assert told["silences"][-1][2] in ("gone", "said nothing")
        until(lambda: steps_of(team)["ear"] > told["silences"][-1][0] + 2 * STEPS_PER_S, "the other one goes on")
        silent = spikes_of(team, "ear")
        step = steps_of(team)["ear"]
        until(lambda: steps_of(team)["ear"] > step + STEPS_PER_S, "it goes on")
        assert spikes_of(team, "ear") == silent
        # It comes back, at the step at which the clock is by now.
        team.start("beat")
        team.wait(LIMIT_S, ["beat"])
        until(lambda: spikes_of(team, "ear") > silent, "its spikes arrive again")
        told = team.ask("story")["ear"]["upstream"]["beat"]
        assert told["state"] == "live"
        assert told["silences"][-1][1] is not None
        assert steps_of(team)["beat"] > step


def _missing(team: RegionTeam) -> Any:
    told = team.ask("story")["ear"]["upstream"]["beat"]
    return told if told["state"] == "missing" else None


def test_they_end_at_their_time_and_what_came_late_is_counted() -> None:
    """One is stopped for a while: what it says then is late, or left out, and told."""
    with by_the_clock(until=4 * STEPS_PER_S) as team:
        until(lambda: min(steps_of(team).values()) > 500, "both run")
        stop(team.pids["beat"])
        try:
            until(lambda: steps_of(team).get("ear", 0) > 1200, "the other one goes on")
        finally:
            go_on(team.pids["beat"])
        end = 4 * STEPS_PER_S
        until(lambda: steps_of(team) == {"beat": end, "ear": end}, "both have come to the end")
        stories = team.ask("story")
        heard, clock = stories["ear"]["upstream"]["beat"], stories["beat"]["clock"]
        assert heard["late"] + heard["lost"] > 0 or heard["silences"]
        assert clock["missed_deadlines"] > 0 or clock["skipped_steps"] > 0
        assert clock["jitter_ms"]["max"] > 0
