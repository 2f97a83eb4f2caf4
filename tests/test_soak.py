"""A minute of the soak, and that it would notice what must not be."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak

    return soak


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_a_minute_of_kills_is_accounted_for_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "soak.py"), "--minutes", "1", "--json"],
        stdout=subprocess.PIPE,
        timeout=230,
    )
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert done.returncode == 0
    assert found["kills"] == 5
    assert found["brain"]["kills"] >= 2
    assert len(found["accounts"]) == 2 * 2 * (2 + 6)  # hearers, topics, lives of speakers
    assert sum(one["received"] for one in found["accounts"]) > 100_000


@pytest.mark.parametrize(
    ("heard", "was_killed", "fault"),
    [
        ([0, 99, 90, 10, 0], False, None),
        ([0, 95, 90, 6, 0], True, None),  # four had not left when it was killed
        ([0, 95, 90, 6, 0], False, "the last 4 were never heard"),
        ([0, 99, 90, 9, 0], False, "90 received and 9 lost are not the 100 up to the last"),
        ([3, 99, 97, 0, 0], False, "the first 3 were never heard"),
        ([0, 100, 101, 0, 0], True, "1 more than were sent"),
        ([0, 99, 100, 0, 1], False, "1 out of order"),
        (None, False, "the last 100 were never heard"),
    ],
)
def test_a_gap_that_nobody_counted_is_noticed(
    soak: ModuleType, heard: list[int] | None, was_killed: bool, fault: str | None
) -> None:
    account = soak._account("hearer", "speaker", "tick", 100, 100, heard, was_killed=was_killed)
    assert account["faults"] == ([] if fault is None else [fault])


@pytest.mark.parametrize(
    ("grown", "fault"),
    [
        (lambda t: (100 * 2**20 + (t % 5) * 2**21, 12 + t % 3, 20 + t % 2), None),
        (lambda t: ((130 if t > 30 else 100) * 2**20, 12, 20), None),  # a busy moment
        (lambda t: ((133 if t > 30 else 100) * 2**20, 12, 20), "33.0 MiB more memory"),
        (lambda t: (100 * 2**20 + t * 2**19, 12, 20), "memory grows, by 20.0 MiB so far"),
        (lambda t: (100 * 2**20, 12 + t // 10, 20), "4 more threads"),
        (lambda t: (100 * 2**20, 12, 20 + t // 15), "3 more descriptors"),
    ],
)
def test_what_grows_is_noticed(
    soak: ModuleType, grown: Callable[[int], tuple[int, int, int]], fault: str | None
) -> None:
    samples = [(t, *grown(t)) for t in range(1, 61)]
    assert soak.usage("one", samples, 10.0)["faults"] == ([] if fault is None else [fault])


def brain(**changes: Any) -> dict[str, Any]:
    heard = {"state": "live", "lost": 0, "silences": [[11, 20, "gone"], [31, 40, "gone"]]} | changes
    return {"kills": 2, "whole": True, "stories": {"thalamus": {"upstream": {"cortex": heard}}}}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, ""),
        ({"silences": [[11, 20, "gone"]]}, "recorded 1 absences"),
        ({"silences": [[11, 20, "gone"], [31, None, "gone"]]}, "not in order"),
        ({"silences": [[11, 32, "gone"], [31, 40, "gone"]]}, "not in order"),
        ({"lost": 3}, "3 steps of cortex are lost"),
    ],
)
def test_an_absence_that_nobody_recorded_is_noticed(soak: ModuleType, changes: dict[str, Any], fault: str) -> None:
    faults = soak.check_brain(brain(**changes))
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)
