"""The command line of a script that runs a network: one-line errors, and the message after Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import App

from neuraxis.cli import network_command
from neuraxis.cli.network_command import RunOptions, network_app, run_and_report
from neuraxis.network import Network
from neuraxis.network.library import brunel
from neuraxis.network.models import spike_source
from neuraxis.report.plots import figure
from neuraxis.simulation import read_spikes

LIMIT_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    """matplotlib keeps the font files open that it once used: that is no leak of a test."""
    figure({"source": ([1.0], [0], 1)}, {"source": 1.0}).canvas.draw()


def spikes_at(*times_ms: float) -> Network:
    network = Network(seed=1)
    source = network.population("source", 3, spike_source)
    network.spikes(source, list(times_ms), [1] * len(times_ms))
    return network


def small_app() -> App:
    """Like the examples: the network is described within the function."""
    app = network_app("A network for tests.")

    @app.default
    def main(*, order: int = 20, run: RunOptions = RunOptions()) -> None:  # noqa: B008
        run_and_report(spikes_at(2.0, 5.0) if order == 20 else brunel(order, seed=run.seed), run)

    return app


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a simulation was made")

    monkeypatch.setattr(network_command, "Simulation", refuse)


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that the command ends with."""
    with pytest.raises(SystemExit) as ended:
        small_app()(words)
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{Path(sys.argv[0]).name}: ")
    assert err.count("\n") == 1
    return err.strip()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--order", "3"], "order"),
        (["--workers", "0"], "workers=0: expected a number of processes, 1 or more"),
        (["--time-ms", "-1"], "time_ms=-1.0: a time cannot be negative"),
        (["--time-ms", "0.05"], "a whole number of steps"),
    ],
)
def test_errors_of_the_network_and_the_run_are_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in complaint(capsys, *words)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--plot", "no/out.png"], "--plot no/out.png: there is no folder no"),
        (["--record", "no/out.h5"], "--record no/out.h5: there is no folder no"),
        (["--plot", "out.doc"], "--plot out.doc: its ending must be one of "),
        (["--plot", "out"], "--plot out: its ending must be one of "),
        (["--plot", "a.png"], "--plot a.png: this is a folder"),
        (["--record", "a.png"], "--record a.png: this is a folder"),
        (["--plot", "file/out.png"], "--plot file/out.png: there is no folder file"),
        (["--record", "/proc/out.h5"], "--record /proc/out.h5: no file can be made in /proc: "),
        (["--plot", "out.png", "--record", "./out.png"], "--plot out.png: --record writes to the same file"),
    ],
)
def test_files_are_checked_before_anything_runs(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").mkdir()
    (tmp_path / "file").touch()
    assert message in complaint(capsys, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "file"]


def test_a_run_prints_draws_and_records(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot, record = tmp_path / "out.PNG", tmp_path / "out.h5"
    small_app()(["--time-ms", "10", "--json", "--plot", str(plot), "--record", str(record)])
    out, err = capsys.readouterr()
    assert json.loads(out)["spikes"] == 2
    assert err == f"raster: {plot}\n"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert read_spikes(record)["source"][0].tolist() == [2.0, 5.0]


def test_ctrl_c_while_the_network_is_built(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(network_command, "Simulation", interrupted)
    with pytest.raises(SystemExit) as ended:
        small_app()(["--record", str(tmp_path / "out.h5")])
    assert ended.value.code == 130
    assert capsys.readouterr() == ("", "interrupted before the run started: nothing was recorded\n")


# It says when it runs: first for 10 ms, and then for long.
PROGRAM = """
import sys
from neuraxis.simulation import Simulation
from tests.cli.test_network_command import small_app
run = Simulation.run
Simulation.run = lambda self, time_ms: print("running", flush=True) or run(self, time_ms)
small_app()(sys.argv[1:])
"""


def test_ctrl_c_reports_the_progress_and_the_spike_file(tmp_path: Path) -> None:
    record = tmp_path / "out.h5"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--discard-ms", "10", "--time-ms", "1e8", "--record", str(record)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert lines == ["running\n"] * 2, err
    assert process.returncode == 130, err
    assert out == ""
    reported = re.fullmatch(r"interrupted at ([0-9,.]+) of 100,000,010.0 ms of model time; (.+)\n", err)
    assert reported, err
    assert float(reported[1].replace(",", "")) >= 10.0
    assert reported[2] == f"recorded so far: {record}"
    assert read_spikes(record)["source"][0].tolist() == [2.0, 5.0]
    assert [path.name for path in tmp_path.iterdir()] == ["out.h5"]
