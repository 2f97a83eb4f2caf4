"""`neuraxis bench mesh` as a user runs it: real processes, few repetitions, no leaks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuraxis.bench.harness import LeftOut, marks, write_between
from neuraxis.bench.mesh.brain import METHODS, BrainResults, Failure
from neuraxis.bench.mesh.measure import Plan, Results
from neuraxis.bench.mesh.report import report, targets
from neuraxis.bench.mesh.workloads import (
    Ticker,
    make_tick_file,
    make_workload,
    read_pid,
    read_ticks,
    region_names,
    tick_path,
)
from neuraxis.cli.bench import app
from tests.ranks.marked_processes import MARK, marked, run_marked

COMMAND = [sys.executable, "-m", "neuraxis", "bench", "mesh"]
LIMIT_S = 280
BEGIN, END = marks("mesh")

pytestmark = pytest.mark.timeout(300)  # half a minute on a machine that does nothing else


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    return run_marked([*COMMAND, *words], LIMIT_S)


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    done = bench("--quick", "--json")
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    assert all("too busy" in line for line in done.stderr.splitlines())
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_all_methods_give_the_same_result(run: dict[str, Any]) -> None:
    brain = run["brain"]
    assert run["sound"]
    assert brain["failures"] == brain["disagreements"] == brain["left_out"] == []
    assert [entry["way"] for entry in brain["entries"]] == list(METHODS)
    assert len({print for entry in brain["entries"] for print in entry["fingerprints"]}) == 1
    for entry in brain["entries"]:
        assert entry["brain"] == "pair"
        assert entry["processes"] == (1 if entry["way"] == "sequential" else 2)
        assert entry["steps_per_second"] > 0
        assert 0 < entry["window_p50_us"][0] <= entry["window_p99_us"][0]


def test_a_killed_process_ends_the_others_or_is_silence_to_them(run: dict[str, Any]) -> None:
    faults = {fault["way"]: fault for fault in run["brain"]["faults"]}
    assert set(faults) == {*METHODS, "shm-restart"}
    for method, fault in faults.items():
        goes_on = method.startswith("zenoh-") or method == "shm-restart"
        assert fault["outcome"] == ("goes on" if goes_on else "stops"), fault
        assert 0 < fault["noticed_s"] <= fault["all_s"]
        # Silence begins at the kill, give or take a window: it may have published more or less than it recorded.
        assert (fault["silent_from"] is not None) == method.startswith("zenoh-")
        if fault["silent_from"] is not None:
            assert abs(fault["silent_from"] - fault["at_step"]) <= 21
    assert faults["shm"]["error"].startswith("ShardFailed: worker 1")


def test_messages_and_load_are_measured(run: dict[str, Any]) -> None:
    assert [(one["what"], one["size"]) for one in run["messages"]] == [
        ("publish", 64), ("publish", 10_240), ("request", 64),
    ]  # fmt: skip
    for entry in run["messages"]:
        for contender in ("raw", "ours"):
            assert len(entry["p50_us"][contender]) == 3
            for p50, p99 in zip(entry["p50_us"][contender], entry["p99_us"][contender], strict=True):
                assert 0 < p50 <= p99
        assert entry["ratio"] > 0
    assert [load["contender"] for load in run["load"]] == ["raw", "ours"]
    for load in run["load"]:
        assert (load["nodes"], load["rate_hz"], load["size"]) == (5, 1000.0, 10_240)
        assert load["sent"] == load["expected"] == 2500
        assert load["received"] == 2500 - load["lost"] > 0
        assert 0 < load["p50_us"] <= load["p99_us"] <= load["longest_us"]
    assert len(run["targets"]) == 4
    assert run["window_trips"] > 0


def test_tables_of_a_run(run: dict[str, Any], tmp_path: Path) -> None:
    results = msgspec.convert(run, Results)
    text = report(results).as_text(targets=True)
    assert re.search(r"^ *method +processes +start s +steps/s .* one is killed$", text, re.M)
    assert re.search(r"^ *zenoh-router +2 .* same +others go on, [\d.]+ s$", text, re.M)
    assert re.search(r"^ *zenoh-peers +continue; silence from step [\d,]+", text, re.M)
    assert "All 7 methods gave the same result for every brain, to the bit." in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_between(page, "mesh", report(results).as_markdown())
    write_between(page, "mesh", report(results).as_markdown())
    written = page.read_text()
    assert written.startswith(f"before\n{BEGIN}\n")
    assert written.endswith(f"{END}\nafter\n")
    assert "old" not in written
    assert written.count(report(results).as_markdown()) == 1


def test_different_results_are_reported(run: dict[str, Any]) -> None:
    results = msgspec.convert(run, Results)
    assert results.sound
    results.brain.entries[2].fingerprints[0] = "0123"
    assert not results.sound
    assert "DIFFERS: 0123" in report(results).as_text(targets=True)
    assert report(results).as_data()["brain"]["disagreements"] == [
        f"pair: {METHODS[2]} gave 0123, sequential {results.brain.entries[0].fingerprints[0]}"
    ]


def test_skipped_and_failed_methods_are_reported() -> None:
    gone = LeftOut("lockstep-mpi", "mpi4py is not installed", "pip install 'neuraxis[bench]'")
    results = Results(Plan(), [], [], BrainResults([], [], [gone], [Failure("shm", "it broke")]))
    text = report(results).as_text(targets=True)
    assert "left out: lockstep-mpi: mpi4py is not installed: pip install 'neuraxis[bench]'" in text
    assert "failed: shm: it broke" in text
    assert not results.sound
    assert targets(results) == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--parts", "messages,none"), "--parts: 'none' is not one of messages, load, brain, faults"),
        (("--methods", "shm,nccl"), "--methods: 'nccl' is not one of sequential, shm,"),
        (("--brains", "huge"), "--brains: 'huge' is not one of pair, two, four, default"),
        (("--repeats", "0"), "--repeats 0: at least one round is needed"),
        (("--json", "--markdown"), "--json and --markdown cannot both be printed"),
        (("--into", "no/such.md"), "--into no/such.md: cannot be read: No such file or directory"),
    ],
)
def test_invalid_options_are_refused_at_once(
    words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["mesh", *words])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"neuraxis bench mesh: {complaint}")
    assert captured.out == ""


def test_into_wants_a_file_with_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n")
    done = bench("--into", str(page))
    assert done.returncode == 2
    assert f"it needs the lines {BEGIN} and {END}" in done.stderr
    assert page.read_text() == f"{BEGIN}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_process_survives_an_interrupted_run(number: int) -> None:
    mark = uuid.uuid4().hex
    words = ("--parts", "brain", "--brains", "pair", "--methods", "zenoh-router,lockstep-shm")
    process = subprocess.Popen(
        [*COMMAND, *words],
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(marked(mark)) >= 5)  # the command, its router, its driver, two nodes
        process.send_signal(number)
        assert process.wait(30) != 0
        wait_until(lambda: not marked(mark))
    finally:
        process.kill()
        process.wait()


def wait_until(condition: Any, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_ticks_are_read_as_they_were_noted(tmp_path: Path) -> None:
    path = tmp_path / "ticks"
    make_tick_file(path)
    assert read_pid(path) == 0
    assert len(read_ticks(path)[0]) == 0
    ticker = Ticker({"path": str(path), "dt_ms": 0.1}, "cpu")
    before = time.monotonic_ns()
    for step in (10, 20, 30):
        assert ticker.process_events(step * 0.1, []) == ()
    steps, times = read_ticks(path)
    assert read_pid(path) == os.getpid()
    assert steps.tolist() == [10, 20, 30]
    assert before <= times[0] <= times[1] <= times[2] <= time.monotonic_ns()


def test_the_newest_ticks_are_kept_where_there_are_many(tmp_path: Path) -> None:
    path = tmp_path / "ticks"
    make_tick_file(path)
    ticker = Ticker({"path": str(path), "dt_ms": 1.0}, "cpu")
    for step in range(1, 70_001):
        ticker.process_events(float(step), [])
    steps, _ = read_ticks(path)
    assert steps.tolist() == list(range(70_001 - 65_536, 70_001))


@pytest.mark.parametrize(("brain", "window_ms"), [("pair", 1.0), ("two", 5.0), ("four", 5.0), ("default", 3.0)])
def test_every_region_of_a_brain_has_its_notes_and_its_node(brain: str, window_ms: float, tmp_path: Path) -> None:
    load = make_workload(brain, tmp_path, 2, make_files=True)
    names = region_names(brain)
    assert list(load.units.names) == names
    assert load.window_steps * load.network.dt_ms == pytest.approx(window_ms)
    assert [one.tick_steps for one in load.python_populations] == [load.window_steps] * len(names)
    assert all(tick_path(tmp_path, name).stat().st_size > 0 for name in names)
    assert len(load.placement) == (4 if brain == "four" else 2)
    placed = sorted(part.population for parts in load.units.placement(load.network) for part in parts)
    assert placed == list(range(len(load.network.populations)))
