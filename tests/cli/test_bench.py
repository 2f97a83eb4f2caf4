"""`neuraxis bench collectives` as a user runs it: real contenders, tiny sizes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from neuraxis.bench.collectives.measure import Measurement, Plan, Results
from neuraxis.bench.collectives.patterns import PATTERNS, SIZES, Buffers, WrongResult, parse_patterns, parse_sizes
from neuraxis.bench.collectives.report import report, targets
from neuraxis.bench.harness import LeftOut, Table
from neuraxis.bench.machine import busy_line, machine_load
from neuraxis.imports import install_command
from tests.ranks.marked_processes import MARK, marked, run_marked

COMMAND = [sys.executable, "-m", "neuraxis", "bench", "collectives"]
LIMIT_S = 100


def bench(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_marked([*COMMAND, *words], LIMIT_S, **variables)


def site(folder: Path, text: str) -> dict[str, str]:
    """Variables with which each Python process runs `text` at its start."""
    (folder / "sitecustomize.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], bytes]:
    picture = tmp_path_factory.mktemp("bench") / "out.png"
    words = ("-n", "4", "--sizes", "32,4096", "--repeats", "1", "--quick", "--json")
    done = bench(*words, "--note", "other programs ran", "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert all("too busy" in line for line in done.stderr.splitlines())  # no progress where there is no terminal
    return json.loads(done.stdout), picture.read_bytes()


def test_every_pattern_of_every_contender_is_right_and_in_the_json(run: tuple[dict[str, Any], bytes]) -> None:
    """Each contender checks its first results itself; with several ranks a misrouted part shows."""
    data = run[0]
    assert data["failures"] == []
    found = {(m["contender"], m["pattern"], m["size"]) for m in data["measurements"]}
    contenders = {"shm", "gloo", "mpi"}
    if importlib.util.find_spec("neuraxis.torch") is not None:
        contenders.add("torch-shm")
    cells = {(pattern, size) for pattern in PATTERNS if pattern != "barrier" for size in (32, 4096)} | {("barrier", 0)}
    assert found == {(contender, *cell) for contender in contenders for cell in cells}
    for measured in data["measurements"]:
        assert len(measured["rounds_us"]) == 1
        assert measured["median_us"] == measured["rounds_us"][0] > 0
    ratio = next(r for r in data["ratios"] if (r["pattern"], r["peer"], r["ours"]) == ("barrier", "mpi", "shm"))
    times = {m["contender"]: m["median_us"] for m in data["measurements"] if m["pattern"] == "barrier"}
    assert ratio["ratio"] == pytest.approx(times["mpi"] / times["shm"])
    assert {"cpu", "cores", "memory", "kernel", "python", "numpy", "numba", "torch", "mpi"} <= set(data["machine"])
    assert {(t["pattern"], t["peer"]) for t in data["targets"]} == {(pattern, "gloo") for pattern in PATTERNS}


def test_json_says_when_and_by_which_command_it_was_made(run: tuple[dict[str, Any], bytes]) -> None:
    data = run[0]
    assert data["note"] == "other programs ran"
    assert data["command"].startswith("neuraxis bench collectives -n 4 --sizes 32,4096 --repeats 1")
    assert "--note" not in data["command"]
    assert "other" not in data["command"]
    age = datetime.now(UTC) - datetime.fromisoformat(data["date"])
    assert timedelta(0) <= age < timedelta(minutes=10)
    assert data["report"]["heading"] == list(report(msgspec.convert(data, Results)).heading)
    tables = {table["title"]: table for table in data["report"]["tables"]}
    assert list(tables) == list(PATTERNS)
    all_reduce = tables["all_reduce"]
    assert [row[0] for row in all_reduce["rows"]] == ["32 B", "4 KB"]
    assert len(all_reduce["rows"][0]) == len(all_reduce["headings"])


def test_the_plot_is_a_png(run: tuple[dict[str, Any], bytes]) -> None:
    assert run[1].startswith(b"\x89PNG\r\n")
    assert len(run[1]) > 10_000


def test_tables_of_a_run(run: tuple[dict[str, Any], bytes]) -> None:
    results = msgspec.convert(run[0], Results)
    text = report(results).as_text(targets=True)
    assert re.search(r"^all_reduce\n *size +shm µs .*gloo/shm +mpi/shm", text, re.M)
    assert re.search(r"^ *4 KB +[\d.,]+ ", text, re.M)
    assert "Targets" in text
    assert max(map(len, text.splitlines())) <= 110
    assert "### barrier\n\n|" in report(results).as_markdown()


def test_a_contender_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    broken = "import os, sys\nif os.environ.get('NEURAXIS_BENCH_CONTENDER') == 'gloo': sys.modules['torch'] = None\n"
    words = ("--patterns", "barrier", "--repeats", "1", "--peers", "gloo")
    done = bench(*words, **site(tmp_path, broken))
    assert done.returncode == 0, done.stderr
    assert "failed: gloo: MissingDependency: " in done.stdout
    assert re.search(r"^ *size +shm µs", done.stdout, re.M)


def test_a_peer_that_is_not_installed_is_left_out_with_the_line_that_installs_it(tmp_path: Path) -> None:
    absent = "import sys\nsys.modules.update(torch=None, mpi4py=None)\n"
    done = bench("--patterns", "barrier", "--repeats", "1", **site(tmp_path, absent))
    assert done.returncode == 0, done.stderr
    printed = " ".join(done.stdout.split())  # long lines are wrapped
    assert f"left out: torch-shm, gloo: torch is not installed: {install_command('torch')}" in printed
    assert f"left out: mpi: mpi4py is not installed: {install_command('bench')}" in printed


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_everything(number: int, status: int) -> None:
    mark = uuid.uuid4().hex
    words = ("--patterns", "barrier", "--repeats", "100000", "--peers", "mpi")
    process = subprocess.Popen(
        [*COMMAND, *words],
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        while len(marked(mark, "bench.collectives.rank")) < 4:
            assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == status
    assert not marked(mark)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--note", "busy"], "--note is kept only by --json"),
        (["--sizes", "4,tiny"], "'tiny' is not a size such as 4, 16KB or 64MB"),
        (["--sizes", "6"], "'6' is not a multiple of 4 bytes"),
        (["--patterns", "all_reduce,shout"], "'shout' is not one of all_reduce, broadcast"),
        (["--peers", "nccl"], "'nccl' is not one of gloo, mpi, none"),
        (["--repeats", "0"], "at least one round"),
        (["-n", "1"], "at least two ranks"),
        (["-n", "two"], "two"),
        (["--json", "--markdown"], "choose one"),
        (["--plot", "out.doc"], "must end in .png, .svg, .pdf"),
        (["--plot", "no/such/folder/out.png"], "there is no folder"),
    ],
)
def test_bad_arguments(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    from neuraxis.cli.bench import app

    with pytest.raises(SystemExit) as ended:
        app(["collectives", *words])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.out + captured.err).split())


def test_sizes_and_patterns_are_read() -> None:
    assert parse_sizes("64MB, 4, 1k,16 KB,4B") == (4, 1024, 16384, 64 * 2**20)
    assert parse_patterns("send/recv,all-reduce") == ("all_reduce", "send_recv")
    assert (SIZES[0], SIZES[-1], len(SIZES)) == (4, 64 * 2**20, 11)


def test_a_wrong_result_is_noticed() -> None:
    buffers = Buffers("all_gather", 8, ranks=2, rank=0)
    buffers.fill()
    buffers.target[:] = [1, 1, 2, 1]
    with pytest.raises(WrongResult, match="part 1"):
        buffers.check()
    buffers.target[3] = 2
    buffers.check()


def _results(times_us: dict[str, list[float]]) -> Results:
    """An all_reduce at 4 B and at 64 MB, with the same rounds at both."""
    plan = Plan(tuple(times_us), ("all_reduce",), (4, 64 * 2**20))
    measured = [Measurement("all_reduce", size, n, 1, us) for size in plan.sizes for n, us in times_us.items()]
    return Results(plan, measured, [LeftOut("mpi", "gone", "pip install it")], [], machine={"cpu": "abacus"})


def test_medians_ratios_and_targets() -> None:
    results = _results({"shm": [2.0, 1.0, 90.0], "gloo": [60.0, 80.0, 10.0]})
    assert results.ratio("all_reduce", 4, "gloo") == 30.0
    small, large = targets(results)
    assert (small.data["wanted"], small.data["reached"], small.met) == (50.0, 30.0, False)
    assert (large.data["wanted"], large.data["reached"], large.met) == (3.0, 30.0, True)
    assert str(small).endswith("30x as fast as gloo at 4 B, wanted 50x: missed by 40%")
    assert report(results).as_data()["ratios"][0]["ratio"] == 30.0
    text = report(results).as_text(targets=True)
    assert "1 of 2 met" in text
    assert "left out: mpi: gone: pip install it" in text


def test_targets_are_shown_on_request_only() -> None:
    found = report(_results({"shm": [2.0], "gloo": [60.0]}))
    assert "Targets" not in found.as_text() + found.as_markdown()
    assert "Targets (for 2 cores): 1 of 2 met." in found.as_text(targets=True)
    assert "- Targets (for 2 cores): 1 of 2 met." in found.as_markdown(targets=True)
    assert len(found.as_data()["targets"]) == 2


def test_a_busy_machine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr("neuraxis.bench.machine.usable_cores", lambda: 2)
    for load, processes, busy in ((0.3, 2, False), (0.6, 2, True), (0.6, 1, False), (1.2, 1, True), (0.4, 9, False)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert machine_load(processes) == (load, busy)
        assert bool(busy_line(processes)) == busy
    results = _results({"shm": [2.0]})
    assert "trust" not in report(results).as_text()
    results.load_before, results.busy = 1.7, True
    assert (
        "Load average before the start: 1.7: the machine was too busy to trust these figures."
        in report(results).as_text()
    )
    assert report(results).as_data()["busy"] is True


def test_a_table_renders_in_every_form() -> None:
    table = Table("title", ["name", "ms"], [["a", "1.0"], ["bc", "22.5"]], "what it means")
    assert table.as_text() == "title\nname    ms\n   a   1.0\n  bc  22.5\nwhat it means"
    assert table.as_markdown() == (
        "### title\n\n| name |   ms |\n|-----:|-----:|\n|    a |  1.0 |\n|   bc | 22.5 |\n\nwhat it means"
    )
