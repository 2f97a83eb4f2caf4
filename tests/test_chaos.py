"""Two minutes of fault injection, and a check that its harness detects violations."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.storm import PARTS, ROOT, Room, Scenario, run_storm

SECONDS = 120


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_two_minutes_of_faults(tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    command = [sys.executable, "-m", "tests.chaos", "--seconds", str(SECONDS), "--seed", "17", "--json-to", str(counts)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=590)
    assert done.returncode == 0, done.stdout[-8000:]
    found = json.loads(counts.read_text())
    assert found["failures"] == []
    assert set(found["rounds_of"]) == set(PARTS)
    assert all(faults for faults in found["faults"].values())


def _storm(function, tmp_path: Path, seconds: float = 0.0):  # type: ignore[no-untyped-def]
    reported: list[str] = []
    scenarios = [Scenario("mesh", "one", function)]
    return run_storm(5, seconds, scenarios=scenarios, isolated=False, tell=reported.append), reported


def test_a_round_that_fails_is_reported_with_the_command_to_repeat_it(tmp_path: Path) -> None:
    def one(room: Room, chance: random.Random) -> None:
        room.fault("kill")
        raise AssertionError("the survivors hung")

    report, reported = _storm(one, tmp_path)
    assert len(report.failures) == 1
    assert report.failures[0]["again"] == "python -m tests.chaos --seed 5 --only one:0"
    assert "the survivors hung" in report.failures[0]["problem"]
    assert report.faults["mesh"] == {"kill": 1}
    assert "FAILED" in reported[0]


def test_a_process_that_is_left_is_noticed_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.chaos.storm.LEAVE_S", 0.5)
    sleeper = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"

    def one(room: Room, chance: random.Random) -> None:
        command = [sys.executable, "-c", sleeper]
        subprocess.run(command, env=room.environment(), check=True, timeout=60, start_new_session=True)

    report, _ = _storm(one, tmp_path)
    assert len(report.failures) == 1
    assert "left behind:\nprocess" in report.failures[0]["problem"]
    assert "time.sleep(600)" in report.failures[0]["problem"]


def test_the_same_seed_draws_the_same_faults(tmp_path: Path) -> None:
    drawn: list[float] = []

    def one(room: Room, chance: random.Random) -> None:
        drawn.append(chance.random())

    _storm(one, tmp_path)
    _storm(one, tmp_path)
    assert drawn[0] == drawn[1]
