"""`neuraxis bench rpc` as a user runs it, with one size; and the targets of its figures."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from neuraxis.bench.harness import LeftOut, marks, write_between
from neuraxis.bench.rpc import measure as bench_rpc_plan
from neuraxis.bench.rpc.measure import METHODS, OURS, PEERS, Entry, Plan, Results, left_out_methods, parse_methods
from neuraxis.bench.rpc.report import report, targets
from neuraxis.errors import InvalidArgument
from neuraxis.imports import install_command
from tests.ranks.marked_processes import MARK, marked, run_marked

COMMAND = [sys.executable, "-m", "neuraxis", "bench", "rpc"]
SIZE = 4096
WITHOUT_TORCH = ["zenoh", "shm", "raw-zenoh", "managers"]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="some methods need torch")


def run_bench(*words: str, limit_s: float = 100) -> dict[str, Any]:
    done = run_marked([*COMMAND, "--quick", "--repeats", "1", "--json", *words], limit_s)
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    assert all("too busy" in line for line in done.stderr.splitlines())
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def check_run(run: dict[str, Any], methods: list[str], sizes: list[int]) -> None:
    assert run["failures"] == []
    assert run["sound"]
    assert [(entry["size"], entry["way"]) for entry in run["entries"]] == [
        (s, method) for s in sizes for method in methods
    ]
    for entry in run["entries"]:
        assert entry["calls"] >= 100
        assert 0 < entry["p50_us"][0] <= entry["p99_us"][0]
        # Half of the calls take the median or longer, so there are fewer than two in that time.
        assert 0 < entry["per_s"][0] < 2e6 / entry["p50_us"][0]
        assert len(entry["many_per_s"]) == (1 if METHODS[entry["way"]].many else 0)
        assert entry["medians"]["p50_us"] == entry["p50_us"][0]
    medians = {(entry["size"], entry["way"]): entry["medians"] for entry in run["entries"]}
    expected = [
        (s, method, peer) for s in sizes for method in OURS for peer in PEERS if method in methods and peer in methods
    ]
    assert [(one["size"], one["way"], one["peer"]) for one in run["ratios"]] == expected
    for one in run["ratios"]:
        ours, theirs = medians[one["size"], one["way"]], medians[one["size"], one["peer"]]
        assert one["time"] == pytest.approx(ours["p50_us"] / theirs["p50_us"])
        if METHODS[one["peer"]].many:
            assert one["many_per_s"] == pytest.approx(ours["many_per_s"] / theirs["many_per_s"])
        else:
            assert one["many_per_s"] is None


@pytest.mark.timeout(300)
def test_a_run_measures_and_compares_all_methods_and_sizes() -> None:
    run = run_bench(limit_s=280)
    methods = list(METHODS) if importlib.util.find_spec("torch") is not None else WITHOUT_TORCH
    check_run(run, methods, [64, SIZE, 1 << 20])
    assert len(run["targets"]) == (6 if len(methods) == len(METHODS) else 3)
    assert "4 KB over zenoh" in [re.sub(r": .*", "", target["text"]) for target in run["targets"]]
    text = report(msgspec.convert(run, Results)).as_text(targets=True)
    peers = [peer for peer in PEERS if peer in methods]
    headings = " +".join(f"by {peer}" for peer in peers)
    assert re.search(rf"^ *method +p50 µs +p99 µs +calls/s +32 concurrent +{headings}$", text, re.M)
    ratios = r" +[\d.]+" * len(peers)
    assert re.search(rf"^ *zenoh +[\d,]+ +[\d,]+ +[\d,]+ +[\d,]+{ratios}$", text, re.M)
    assert re.search(rf"^ *managers +[\d,]+ +[\d,]+ +[\d,]+ +-{ratios}$", text, re.M)


@needs_torch
@pytest.mark.timeout(200)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_survives_an_interrupted_run(number: int) -> None:
    """Also when processes are paused, and when the command itself is killed."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*COMMAND, "--methods", "managers,torch-rpc"],
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: sum(is_stopped(one) for one in marked(mark)) == 2)
        process.send_signal(number)
        assert process.wait(60) != 0
        wait_until(lambda: not marked(mark))
    finally:
        process.kill()
        process.wait()


def is_stopped(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == "stopped")
    except psutil.NoSuchProcess:
        return False  # it ended in between


def wait_until(condition: Callable[[], bool], limit_s: float = 90.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


# --- figures, without a run ---


def results_of(times_us: dict[str, list[float]], size: int = SIZE) -> Results:
    entries = [
        Entry(size, method, 100, 100, us, [2 * one for one in us], [1e6 / one for one in us], [5e6 / one for one in us])
        for method, us in times_us.items()
    ]
    gone = [LeftOut("gloo", "gone", "buy one"), LeftOut("tensorpipe", "gone", "buy one")]
    return Results(Plan(tuple(times_us), (size,)), entries, gone, [], machine={"cpu": "abacus"}, load_before=0.5)


def test_ratios_are_those_of_rounds() -> None:
    # The machine was busy in the second round, and all were slower; in the third something met zenoh alone.
    results = results_of({"zenoh": [120.0, 1100.0, 900.0], "raw-zenoh": [100.0, 1000.0, 100.0]})
    assert results.ratio(SIZE, "zenoh", "raw-zenoh") == 1.2
    assert results.many_ratio(SIZE, "zenoh", "raw-zenoh") == pytest.approx(1 / 1.2)
    assert results.ratio(SIZE, "shm", "raw-zenoh") is None
    assert results.ratio(64, "zenoh", "raw-zenoh") is None
    data = report(results).as_data()
    assert data["entries"][0]["medians"]["p50_us"] == 900.0
    assert data["ratios"] == [
        {
            "size": SIZE,
            "way": "zenoh",
            "peer": "raw-zenoh",
            "time": 1.2,
            "many_per_s": results.many_ratio(SIZE, "zenoh", "raw-zenoh"),
        }
    ]
    # One that failed in the second round.
    results.entries[1].p50_us = [100.0]
    assert results.ratio(SIZE, "zenoh", "raw-zenoh") == 1.2


def test_targets() -> None:
    results = results_of(
        {"zenoh": [130.0], "shm": [90.0], "raw-zenoh": [100.0], "torch-rpc": [300.0], "torch-tensor": [100.0]}
    )
    assert list(map(str, targets(results))) == [
        "4 KB over zenoh: 1.30 times raw Zenoh, wanted 1.3 at most: met",
        "4 KB over shm: 0.90 times torch-tensor, wanted less than 1: met",  # the quicker of torch's two
    ]
    assert "Targets: 2 of 2 met." in report(results).as_text(targets=True)
    assert [target["met"] for target in report(results).as_data()["targets"]] == [True, True]


def test_targets_are_missed_where_they_are() -> None:
    results = results_of(
        {"zenoh": [300.0], "shm": [100.0], "raw-zenoh": [100.0], "raw-zenoh-tcp": [250.0], "torch-rpc": [100.0]}
    )
    zenoh, shm = map(str, targets(results))
    assert zenoh.startswith("4 KB over zenoh: 3.00 times raw Zenoh, wanted 1.3 at most")
    assert zenoh.endswith("(1.20 times Zenoh without shared memory): MISSED")
    assert shm == "4 KB over shm: 1.00 times torch-rpc, wanted less than 1: MISSED"
    assert "Targets: 0 of 2 met." in report(results).as_text(targets=True)
    alone = results_of({"zenoh": [300.0], "managers": [100.0]})
    assert targets(alone) == []
    assert "No target applies" in report(alone).as_text(targets=True)


def test_skipped_and_failed_methods_are_reported() -> None:
    results = results_of({"zenoh": [1.0]})
    assert results.sound
    results.failures.append("shm: it broke")
    assert not results.sound
    text = report(results).as_text(targets=True)
    assert "left out: gloo, tensorpipe: gone: buy one" in text
    assert "failed: shm: it broke" in text


def test_tables_go_between_the_marks(tmp_path: Path) -> None:
    results = results_of({"zenoh": [120.0], "raw-zenoh": [100.0], "managers": [60.0]})
    results.entries[2].many_per_s = []
    begin, end = marks("rpc")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    write_between(page, "rpc", report(results).as_markdown())
    write_between(page, "rpc", report(results).as_markdown())
    written = page.read_text()
    assert written.startswith(f"before\n{begin}\n")
    assert written.endswith(f"{end}\nafter\n")
    assert "old" not in written
    assert written.count(report(results).as_markdown()) == 1
    assert "|     zenoh |    120 |    240 |   8,333 |        41,667 |         1.20 |        2.00 |" in written
    assert "|  managers |     60 |    120 |  16,667 |             - |         0.60 |        1.00 |" in written


def test_without_torch_its_methods_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_rpc_plan, "installed", lambda name: False)
    gone = left_out_methods()
    assert list(gone) == ["gloo", "tensorpipe", "torch-rpc", "torch-tensor"]
    assert {one.remedy for one in gone.values()} == {install_command("torch")}


def test_methods_keep_their_canonical_order() -> None:
    assert parse_methods("managers, zenoh") == ("zenoh", "managers")
    assert Plan(("torch-rpc", "torch-tensor", "shm")).groups == ["torch-rpc", "shm"]
    with pytest.raises(InvalidArgument, match="'grpc' is not one of zenoh, shm, gloo"):
        parse_methods("zenoh,grpc")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "pigeons"], "--methods: 'pigeons' is not one of zenoh, shm"),
        (["--sizes", "many"], "--sizes: 'many' is not a size"),
        (["--repeats", "0"], "--repeats 0: at least one round is needed"),
        (["--json", "--markdown"], "choose one"),
        (["--into", "no/such.md"], "--into no/such.md: cannot be read: No such file or directory"),
    ],
)
def test_bad_arguments(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from neuraxis.cli.bench import app

    with pytest.raises(SystemExit) as ended:
        app(["rpc", *words])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).split())
