"""A minute of the soak test, and a check that it detects violations."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soak

    return soak


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_a_minute_of_kills_is_fully_counted_and_leaks_nothing(tmp_path: Path) -> None:
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
    assert len(found["accounts"]) == 2 * 2 * (2 + 6)  # receivers, topics, lives of speakers
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
def test_an_uncounted_gap_is_detected(
    soak: ModuleType, heard: list[int] | None, was_killed: bool, fault: str | None
) -> None:
    account = soak._account("receiver", "speaker", "tick", 100, 100, heard, was_killed=was_killed)
    assert account["faults"] == ([] if fault is None else [fault])


@pytest.mark.parametrize(
    ("grown", "fault"),
    [
        (lambda t: (100 * 2**20 + (t % 5) * 2**21, 12 + t % 3, 20 + t % 2, 8 + t % 5, 4 + t % 3), None),
        (lambda t: ((130 if t > 30 else 100) * 2**20, 12, 20, 8, 4), None),  # a busy moment
        (lambda t: ((133 if t > 30 else 100) * 2**20, 12, 20, 8, 4), "33.0 MiB more memory"),
        (lambda t: (100 * 2**20 + t * 2**19, 12, 20, 8, 4), "memory grows, by 20.0 MiB so far"),
        (lambda t: (100 * 2**20, 12 + t // 10, 20, 8, 4), "4 more threads"),
        (lambda t: (100 * 2**20, 12, 20 + t // 15, 8, 4), "3 more descriptors"),
        (lambda t: (100 * 2**20, 12, 20 + 2 * (t > 55), 8, 4), "2 more descriptors"),
        (lambda t: (100 * 2**20, 12, 20, 8 + t // 3, 4), "14 more runtime threads"),
        (lambda t: (100 * 2**20, 12, 20, 8, 4 + 3 * (t > 40)), None),  # second connections to three peers
        (lambda t: (100 * 2**20, 12, 20, 8, 4 + t // 10), "5 more links"),
    ],
)
def test_growing_memory_is_detected(
    soak: ModuleType, grown: Callable[[int], tuple[int, ...]], fault: str | None
) -> None:
    samples = [(t, *grown(t)) for t in range(1, 61)]
    assert soak.usage("one", samples, 10.0)["faults"] == ([] if fault is None else [fault])


def test_retained_memory_is_separated_from_temporary_memory(soak: ModuleType) -> None:
    """Files, connections that stand and end, sockets that come and go, and threads by their owner's name."""
    me = psutil.Process()
    ended, leaving = threading.Event(), threading.Event()

    def come_and_go() -> None:
        while not leaving.is_set():
            with socket.socket(), socket.socket():
                ended.wait(0.001)

    with ExitStack() as stack:
        before = soak.sample([me], 0.0)[0]
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours = stack.enter_context(socket.create_connection(server.getsockname()))
        theirs = stack.enter_context(server.accept()[0])
        thread = threading.Thread(target=come_and_go)
        thread.start()
        stack.callback(thread.join)
        stack.callback(leaving.set)
        seconds, _, threads, descriptors, runtime, links = soak.sample([me], 1.0)[0]
        assert (seconds, threads, descriptors) == (1.0, before[2] + 1, before[3] + 1), (
            "one thread and one listening socket"
        )
        assert (runtime, links) == (before[4], before[5] + 2)
        theirs.close()
        _, _, _, descriptors, _, links = soak.sample([me], 2.0)[0]
        assert (descriptors, links) == (before[3] + 2, before[5]), "a connection whose other end is closed is a leak"
        ours.close()


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
def test_an_unrecorded_absence_is_detected(soak: ModuleType, changes: dict[str, Any], fault: str) -> None:
    faults = soak.check_brain(brain(**changes))
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)


@pytest.mark.parametrize(
    ("starved", "fault"),
    [
        ([], "recorded 3 absences of cortex, which had 2"),
        ([[0, 40, 0.1], [40, 60, 0.2]], "recorded 3 absences of cortex, which had 2"),
        ([[0, 15, 0.1], [15, 40, 0.1], [40, 60, 0.7]], ""),
        ([[0, 40, 0.1], [40, 49, 0.7], [49, 60, 0.1]], ""),  # in the look before
        ([[0, 2, 0.7], [2, 8, 0.1], [8, 40, 0.1], [40, 60, 0.1]], "recorded 3 absences"),  # long before
    ],
)
def test_an_absence_for_want_of_a_core_needs_the_kernels_word(
    soak: ModuleType, starved: list[list[float]], fault: str
) -> None:
    silences = [[11, 20, "gone"], [31, 40, "gone"], [51, 55, "gone"]]
    faults = soak.check_brain(brain(silences=silences) | {"starved": starved})
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)


@pytest.mark.usefixtures("soak")
def test_waiting_for_a_core_is_counted() -> None:
    """Two threads that want the same core wait for each other."""
    code = "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True)\nwhile 1: pass"
    with ExitStack() as stack:
        rivals = []
        for _ in range(2):
            rival = stack.enter_context(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
            stack.callback(rival.kill)
            assert rival.stdout is not None
            rival.stdout.readline()
            rivals.append(psutil.Process(rival.pid))
        starvation = importlib.import_module("soak_usage").Starvation(rivals)
        waited, deadline = 0.0, time.monotonic() + 20
        while waited < 0.2 and time.monotonic() < deadline:
            waited += starvation.worst_s()
        assert waited >= 0.2
