"""`neuraxis bench training` as a user runs it, on three ranks; and the targets of its figures."""

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
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuraxis.bench.harness import LeftOut, marks, write_between
from neuraxis.bench.training.measure import METHODS, MODELS, Entry, Plan, Results, left_out_methods, parse_models
from neuraxis.bench.training.report import report, targets
from neuraxis.errors import InvalidArgument
from tests.ranks.marked_processes import MARK, marked, run_marked

COMMAND = [sys.executable, "-m", "neuraxis", "bench", "training"]
LIMIT_S = 280
RANKS = 3
TOGETHER = [name for name, method in METHODS.items() if method.group != "cuda"]

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="training needs torch")


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    done = run_marked([*COMMAND, "--quick", "--repeats", "1", "-n", str(RANKS), "--json"], LIMIT_S)
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    assert all("too busy" in line for line in done.stderr.splitlines())
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def of_mlp(run: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of the smallest model by method."""
    return {entry["way"]: entry for entry in run["entries"] if entry["model"] == "mlp"}


@needs_torch
@pytest.mark.timeout(300)
def test_every_way_is_measured_and_equal_ways_are_equal(run: dict[str, Any]) -> None:
    assert run["failures"] == run["disagreements"] == []
    measured = [method for method in METHODS if method not in left_out_methods()]
    assert [(entry["model"], entry["way"]) for entry in run["entries"]] == [
        (model, method) for model in MODELS for method in measured
    ]
    assert all(len(entry["rounds_us"]) == 1 for entry in run["entries"])
    entries = of_mlp(run)
    for method in TOGETHER:
        entry = entries[method]
        assert entry["step_us"] > 0
        assert entry["samples_per_s"] == pytest.approx(RANKS * 32 / entry["step_us"] * 1e6)
        assert entry["overhead_us"] == pytest.approx(entry["rounds_us"][0] - entries["one"]["rounds_us"][0])
    # Each rank has its own data, so a module alone reaches other parameters than with the others.
    assert abs(entries["one"]["along"] - entries["shm"]["along"]) > 0.01 * entries["shm"]["moved"]


@needs_torch
@pytest.mark.timeout(300)
def test_compression_sends_fewer_bytes_and_tells_its_error(run: dict[str, Any]) -> None:
    entries = of_mlp(run)
    gradients = 4 * (64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10)
    assert entries["ddp-gloo"]["bytes"] == gradients
    # In addition to the gradients: the samples and sizes of all ranks, and a flag for each of six parameters.
    assert entries["shm"]["bytes"] == entries["gloo"]["bytes"] == gradients + 4 * (2 * RANKS + 6)
    assert entries["unsent"]["bytes"] == entries["one"]["bytes"] == 0
    assert gradients / 2 <= entries["shm-fp16"]["bytes"] < 0.51 * gradients
    assert entries["shm-topk"]["bytes"] < 0.03 * gradients
    assert 0 < entries["shm-fp16"]["error"] < 2**-10
    assert 0 < entries["shm-topk"]["error"] < 1
    assert entries["shm"]["error"] == 0


@needs_torch
@pytest.mark.timeout(300)
def test_tables_of_a_run(run: dict[str, Any], tmp_path: Path) -> None:
    results = msgspec.convert(run, Results)
    assert results.sound
    text = report(results).as_text(targets=True)
    assert re.search(
        r"^ *method +step ms +fastest +samples/s +overhead µs +of ddp-gloo's +bytes a step +error$", text, re.M
    )
    assert re.search(r"^ *ddp-gloo +[\d.]+ +[\d.]+ +[\d,]+ +-?[\d,]+ +(1\.00|-) +104,488 +-$", text, re.M)
    assert re.search(r"^ *mlp, shm +[\d.]+ +[\d.]+ +[\d.]+ +one bucket$", text, re.M)
    assert "shm, gloo, ddp-gloo, ddp-shm, shm-late, gloo-late gave the same parameters." in text
    begin, end = marks("training")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n")
    write_between(page, "training", report(results).as_markdown())
    write_between(page, "training", report(results).as_markdown())
    written = page.read_text()
    assert written.startswith(f"before\n{begin}\n")
    assert written.endswith(f"{end}\nafter\n")
    assert "old" not in written
    assert written.count(report(results).as_markdown()) == 1


@needs_torch
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_it_is_ended_early(number: int) -> None:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        COMMAND,
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(marked(mark)) >= 5)  # the command and two ranks each over shm and gloo
        process.send_signal(number)
        assert process.wait(60) != 0
        wait_until(lambda: not marked(mark))
    finally:
        process.kill()
        process.wait()


def wait_until(condition: Any, limit_s: float = 90.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


# --- figures, without a run ---


def results_of(times_us: dict[str, list[float]], model: str = "mlp", size: float = 1e5) -> Results:
    entries = [Entry(model, method, 10, size, 0.0, 2.0, 0.5, rounds) for method, rounds in times_us.items()]
    plan = Plan((model,), tuple(times_us))
    gone = [LeftOut("cuda-one", "gone", "buy one")]
    return Results(plan, entries, gone, [], machine={"cpu": "abacus"}, load_before=0.5)


def test_medians_overheads_and_targets() -> None:
    # The machine was busy in the second round, and all were slower; in the third something met shm alone.
    results = results_of(
        {"one": [400.0, 4000.0, 500.0], "shm": [800.0, 4390.0, 9000.0], "ddp-gloo": [2400.0, 6100.0, 2500.0]}
    )
    assert results.step_us("mlp", "shm") == 4390.0
    assert results.overhead_us("mlp", "shm") == 400.0
    assert results.overhead_ratio("mlp", "shm") == 400.0 / 2000.0
    assert results.step_ratio("mlp", "shm") == 4390 / 6100
    assert results.samples_per_s("mlp", "shm") == pytest.approx(64 / 4390e-6)
    assert list(map(str, targets(results))) == [
        "mlp: overhead over shm 0.200 of ddp-gloo's, wanted 0.333 at most: met",
        "mlp: a step over shm takes 0.720 of ddp-gloo's time, wanted 1 at most: met",
    ]
    data = report(results).as_data()
    assert [target["met"] for target in data["targets"]] == [True, True]
    assert data["entries"][1]["overhead_by_ddp_gloo"] == 0.2


def test_targets_are_missed_where_they_are() -> None:
    results = results_of({"one": [400.0], "shm": [2700.0], "ddp-gloo": [2600.0]})
    assert [row.met for row in targets(results)] == [False, False]
    assert "Targets: 0 of 2 met." in report(results).as_text(targets=True)
    # Without an overhead to compare with, only the whole times are compared.
    even = results_of({"one": [400.0], "shm": [390.0], "ddp-gloo": [400.0]})
    assert even.overhead_ratio("mlp", "shm") is None
    assert [row.met for row in targets(even)] == [True]
    # Training together is never faster than apart: such a figure is noise, and meets no target.
    busy = results_of({"one": [500.0], "shm": [400.0], "ddp-gloo": [900.0]})
    assert [row.met for row in targets(busy)] == [False, True]
    assert "below zero" in report(busy).as_text(targets=True)
    # The target of a third of the overhead applies to the small model only.
    assert len(targets(results_of({"one": [4.0], "shm": [9.0], "ddp-gloo": [9.0]}, "conv"))) == 1
    assert targets(results_of({"one": [400.0], "shm": [390.0]})) == []


def test_hidden_communication_time() -> None:
    times = {"shm": [13.0], "shm-late": [20.0], "unsent": [10.0]}
    assert results_of(times, "transformer", 3e6).hidden("transformer", "shm") == pytest.approx(0.7)
    assert results_of(times, "transformer", 3e6).hidden("transformer", "gloo") is None  # not measured
    assert results_of(times, "transformer", 1e6).hidden("transformer", "shm") is None  # one bucket
    times["shm-late"] = [10.4]
    assert results_of(times, "transformer", 3e6).hidden("transformer", "shm") is None  # too little to hide
    assert "too little to tell" in report(results_of(times, "transformer", 3e6)).as_text(targets=True)


def test_different_parameters_and_failures_are_reported() -> None:
    results = results_of({"shm": [1.0], "gloo": [1.0], "shm-topk": [1.0]})
    results.entries[2].along = 0.4  # compression is no method that must be equal
    assert results.disagreements == []
    results.entries[1].along += 0.003
    assert "NOT SOUND: parameters differ" in report(results).as_text(targets=True)
    assert results.disagreements == [
        "mlp: gloo has moved by 2 (0.503 in one direction), shm by 2 (0.5)",
    ]
    broken = results_of({"shm": [1.0]})
    broken.failures.append("gloo: it broke")
    assert not broken.sound
    text = report(broken).as_text(targets=True)
    assert "failed: gloo: it broke" in text
    assert "left out: cuda-one: gone: buy one" in text


def test_models_are_read_in_their_own_order() -> None:
    assert parse_models("conv, mlp") == ("mlp", "conv")
    with pytest.raises(InvalidArgument, match="'rnn' is not one of mlp, conv, transformer"):
        parse_models("mlp,rnn")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--models", "huge"], "--models: 'huge' is not one of mlp, conv, transformer"),
        (["--repeats", "0"], "--repeats 0: at least one round is needed"),
        (["-n", "1"], "-n 1: at least two ranks are needed to train together"),
        (["--json", "--markdown"], "choose one"),
        (["--into", "no/such.md"], "--into no/such.md: cannot be read: No such file or directory"),
    ],
)
def test_bad_arguments(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from neuraxis.cli.bench import app

    with pytest.raises(SystemExit) as ended:
        app(["training", *words])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).split())


def test_into_wants_a_file_with_marks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from neuraxis.cli.bench import app

    begin, end = marks("training")
    page = tmp_path / "page.md"
    page.write_text(f"{begin}\n")
    with pytest.raises(SystemExit):
        app(["training", "--into", str(page)])
    assert f"it needs the lines {begin} and {end}" in capsys.readouterr().err
    assert page.read_text() == f"{begin}\n"
