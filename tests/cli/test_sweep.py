"""`neuraxis sweep`: a grid of brains on real workers, resumed after any interruption, and its table."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path

import dask
import msgspec
import pyarrow.parquet
import pytest
from distributed import Security
from matplotlib.figure import Figure

from neuraxis.brain import BrainBuilder, write_spec
from neuraxis.cli.run import run as run_app
from neuraxis.cli.sweep import _print
from neuraxis.cli.sweep import sweep as sweep_app
from neuraxis.cluster import DaskCluster
from neuraxis.cluster.worker import as_code
from neuraxis.engine.precompile import warm_up
from neuraxis.imports import install_command
from neuraxis.sweep.plan import Cell
from neuraxis.sweep.run import SweepRun, run_cell
from neuraxis.version import __version__
from tests.brain.test_brain import small
from tests.cluster.conftest import helpers_of_dask, keys_in, others_in  # noqa: F401 - the first is a fixture
from tests.ranks.fork_server import SEARCH_PATH

LIMIT_S = 60
NEURONS = "regions.cortex.config.neurons"
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Initialize resources that stay open: compiled kernels, matplotlib's fonts, a helper process of Python."""
    resource_tracker.ensure_running()
    warm_up()
    Figure().text(0, 0, "words").figure.savefig(io.BytesIO())


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a brain and a stimulus."""
    monkeypatch.chdir(tmp_path)
    write_spec(small().spec(), "brain.toml")
    Path("cues.csv").write_text("start_ms,stop_ms,sensor,group,value\n0,10,cue,2,1.0\n")
    return tmp_path


def call(app, *words):
    """The exit status."""
    with pytest.raises(SystemExit) as ended:
        app([*map(str, words)])
    return ended.value.code


def swept(capsys, *words, status=0):
    """Return the printed JSON of the command."""
    found = call(sweep_app, *words, "--json")
    printed = capsys.readouterr()
    assert found == status, printed.err
    return json.loads(printed.out)


def fingerprint(capsys, *words):
    """Return the fingerprint that `neuraxis run` prints."""
    assert call(run_app, *words, "--sequential", "--json") == 0
    return json.loads(capsys.readouterr().out)["fingerprint"]


# --- what it gives ---


def test_cells_equal_single_runs_and_are_not_repeated(here, capsys, monkeypatch):
    words = ["brain.toml", "--set", f"{NEURONS}=40,80", "--time-ms", 20, "--workers", 2, "--out", "grid.csv"]
    with monkeypatch.context() as terminal:
        terminal.setattr(sys.stderr, "isatty", lambda: True)
        assert call(sweep_app, *words, "--seeds", 2) == 0
    printed = capsys.readouterr()
    assert "sweeping" in printed.err
    assert "4/4 cells" in printed.err
    lines = printed.out.splitlines()
    assert lines[0].split()[:4] == ["cortex.neurons", "seeds", "cue", "(Hz)"]
    assert [line.split()[:2] for line in lines[1:3]] == [["40", "2"], ["80", "2"]]
    assert "4 cells: 4 run, 0 from an earlier run, 0 failed" in printed.out

    with open("grid.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row[NEURONS], row["seed"]) for row in rows] == [("40", "1"), ("40", "2"), ("80", "1"), ("80", "2")]
    assert len({row["fingerprint"] for row in rows}) == 4
    assert rows[3]["fingerprint"] == fingerprint(capsys, "brain.toml", "--time-ms", 20, "--seed", 2)
    write_spec(_with_neurons(40), "forty.toml")
    assert rows[0]["fingerprint"] == fingerprint(capsys, "forty.toml", "--time-ms", 20)
    assert {"rates_hz.cortex", "time_ms", "neurons", "real_time_factor", "wall_s", "error"} <= set(rows[0])
    assert Path("grid.png").read_bytes().startswith(PNG)
    assert not list(Path("grid.csv.cells").glob(".*.tmp*"))

    # The same again runs nothing, and a larger grid what is new.
    times = {path.name: path.stat().st_mtime_ns for path in Path("grid.csv.cells").glob("*.json")}
    again = swept(capsys, *words, "--seeds", 2)
    assert (again["cells"], again["ran"], again["failed"]) == (4, 0, [])
    larger = swept(capsys, *words[:2], f"{NEURONS}=40,80", *words[3:-2], "--seeds", "1,2,7", "--out", "grid.csv")
    assert (larger["cells"], larger["ran"]) == (6, 2)
    assert [row["seed"] for row in larger["rows"]] == [1, 2, 7, 1, 2, 7]
    for name, changed in times.items():
        assert Path("grid.csv.cells", name).stat().st_mtime_ns == changed
    # Stored results are removed only after the cluster has started.
    nowhere = ["--scheduler", "tcp://127.0.0.1:1", "--connect-timeout", 0.2]
    assert call(sweep_app, *words, "--seeds", 2, "--fresh", *nowhere) == 1
    assert times.keys() <= {path.name for path in Path("grid.csv.cells").glob("*.json")}


def _with_neurons(count):
    spec = small().spec()
    cortex = msgspec.structs.replace(spec.regions["cortex"], config={"neurons": count})
    return msgspec.structs.replace(spec, regions={**spec.regions, "cortex": cortex})


def test_a_task_two_threads_and_parquet(here, capsys):
    words = ["--task", "cue-action", "--trials", 1]
    varied = ["--set", "pathways[cortex.L5e->striatum].delay_ms=4,6.5", "--set", "reward.dopamine=2"]
    how = ["--workers", 1, "--threads", 2, "--out", "t.parquet", "--plot", "p.png"]
    found = swept(capsys, "brain.toml", *words, *varied, *how)
    table = pyarrow.parquet.read_table("t.parquet").to_pylist()
    assert table == found["rows"]
    assert [row["pathways[cortex.L5e->striatum].delay_ms"] for row in table] == [4, 6.5]
    assert table[0]["fingerprint"] == fingerprint(capsys, "brain.toml", *words)
    assert [row["accuracy"] in (0.0, 1.0) for row in table] == [True, True]
    assert table[0]["rates_hz.cortex"] > 0
    assert Path("p.png").read_bytes().startswith(PNG)


# --- what goes wrong ---

REGION = """
import os
import time
from pathlib import Path


class Moody:
    stateless = True

    def process_events(self, now, events):
        return []


def create(config, device):
    if not Path(config["mark"]).exists():
        if config["word"] == "fails":
            raise RuntimeError("not in the mood")
        if config["word"] == "dies":
            # Not before the others' results are kept: what is not fetched when its worker dies is computed again.
            kept, until = Path(config["mark"]).parent / "sweep.csv.cells", time.monotonic() + 20
            while len(list(kept.glob("*.json"))) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            os._exit(1)
    return Moody()
"""


def test_a_change_of_the_code_of_a_region_runs_its_cells_again(here, capsys):
    (here / "gain.py").write_text("GAIN = 1\n")
    (here / "tuned.py").write_text(
        "import numpy as np\nfrom gain import GAIN\n\nclass Tuned:\n    def process_events(self, now_ms, events):\n"
        "        return np.arange(GAIN)\n\ndef create(config, device):\n    return Tuned()\n"
    )
    builder = BrainBuilder("tuned").sensor("cue", 4).python_region("tuned", "tuned:create", neurons=4, tick_ms=1.0)
    write_spec(builder.pathway("cue", "tuned", 1.0).spec(), "tuned.toml")
    words = ["tuned.toml", "--time-ms", 10, "--workers", 1]
    first = swept(capsys, *words)
    assert swept(capsys, *words)["ran"] == 0
    (here / "gain.py").write_text("GAIN = 2\n")
    second = swept(capsys, *words)
    assert second["ran"] == 1
    rates = [run["rows"][0]["rates_hz.tuned"] for run in (first, second)]
    assert rates[1] == 2 * rates[0] > 0


def test_failed_cells_are_reported_and_can_be_retried(here, capsys):
    (here / "moody.py").write_text(REGION)
    builder = BrainBuilder("moody").sensor("cue", 4).python_region("mood", "moody:create")
    write_spec(builder.pathway("cue", "mood", 1.0).spec(), "moody.toml")
    setting = f"regions.mood.config.mark={json.dumps(str(here / 'mark'))}"
    words = ["moody.toml", "--set", "regions.mood.config.word=fails,works,dies", "--set", setting, "--time-ms", 5]
    words += ["--workers", 1]
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):  # one worker that dies is enough
        assert call(sweep_app, *words) == 1
    printed = capsys.readouterr()
    assert "3 cells: 3 run, 0 from an earlier run, 2 failed" in printed.out
    fails, dies, remedy = printed.err.splitlines()
    assert fails.startswith("failed: regions.mood.config.word=fails, ")
    assert "RuntimeError: not in the mood" in fails
    assert "TaskLost: 1 worker died" in dies
    assert "--retry-failed" in remedy
    with open("sweep.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [bool(row["error"]) for row in rows] == [True, False, True]
    assert [bool(row["fingerprint"]) for row in rows] == [False, True, False]
    (kept,) = [one for one in Path("sweep.csv.cells").glob("*.json") if "in the mood" in one.read_text()]
    assert "moody.py" in json.loads(kept.read_text())["traceback"]
    # Without a word they stay as they are; the reason goes, and they are run.
    assert swept(capsys, *words, status=1)["ran"] == 0
    (here / "mark").touch()
    found = swept(capsys, *words, "--retry-failed")
    assert (found["ran"], found["failed"]) == (2, [])
    assert all(row["fingerprint"] for row in found["rows"])


def started(*words):
    """The command, as a process group of its own: what Ctrl-C on a terminal reaches."""
    return subprocess.Popen(
        [sys.executable, "-m", "neuraxis", "sweep", *map(str, words)],
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_cells(process, count):
    deadline = time.monotonic() + LIMIT_S
    while len(done := list(Path("sweep.csv.cells").glob("[!.]*.json"))) < count:
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return done


def test_it_continues_after_ctrl_c_and_kill(here, capsys):
    words = ["brain.toml", "--time-ms", 400, "--workers", 1, "--seeds"]
    with started(*words, 500) as process:
        wait_for_cells(process, 1)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, err
    first = wait_for_cells(process, 0)
    assert err == f"interrupted after {len(first)} of 500 cells; the same command continues from there\n"
    assert f"500 cells: {len(first)} run, 0 from an earlier run" in out
    with open("sweep.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(first)

    with started(*words, 500) as process:
        second = wait_for_cells(process, len(first) + 1)
        assert call(sweep_app, *words, 500) == 2  # one at a time
        assert "another sweep uses this folder" in capsys.readouterr().err
        process.kill()
        process.communicate(timeout=LIMIT_S)
    times = {path: path.stat().st_mtime_ns for path in second}
    Path("sweep.csv.cells", ".torn.tmp").write_text("{")
    found = swept(capsys, *words, len(second) + 1)
    assert found["ran"] <= 1  # the killed run may have stored one more, or have been about to
    assert [row["seed"] for row in found["rows"]] == list(range(1, len(second) + 2))
    assert all(path.stat().st_mtime_ns == changed for path, changed in times.items())
    assert not Path("sweep.csv.cells", ".torn.tmp").exists()


def test_on_a_cluster_of_others(here, capsys):
    words = ["brain.toml", "--stimulus", "cues.csv", "--seed", 3]
    with others_in(here) as others:
        scheduler = others.start_scheduler()
        others.start_worker()
        found = swept(capsys, *words, "--scheduler", others.address)
        assert all(process.poll() is None for process in others.processes)
        assert found["rows"][0]["fingerprint"] == fingerprint(capsys, *words)
        again = swept(capsys, *words, "--scheduler", others.address, "--fresh")
        assert (again["ran"], again["rows"][0]["fingerprint"]) == (1, found["rows"][0]["fingerprint"])
        # It dies in the middle.
        killer = threading.Thread(target=lambda: (wait_for_cells(scheduler, 2), scheduler.kill()))
        killer.start()
        assert call(sweep_app, *words, "--time-ms", 400, "--seeds", 500, "--scheduler", others.address) == 1
        killer.join()
        reported = capsys.readouterr().err
        kept = r"The results of \d+ of 500 cells are kept: the same command runs the others"
        assert re.search(rf"neuraxis sweep: the scheduler at {others.address} is gone.* {kept}", reported)
        assert len(wait_for_cells(None, 2)) < 500
    assert call(sweep_app, *words, "--fresh", "--scheduler", others.address, "--connect-timeout", 1) == 1
    assert "no Dask scheduler answers there within 1 s" in capsys.readouterr().err


def test_workers_unlike_this_program_are_named_and_none_is_waited_for_for_ever(here, capsys):
    keys = keys_in(here)
    Path("none").mkdir()
    Path("none", "neuraxis.py").write_text("raise ModuleNotFoundError(\"No module named 'neuraxis'\")\n")
    Path("old", "neuraxis").mkdir(parents=True)
    Path("old", "neuraxis", "__init__.py").touch()
    Path("old", "neuraxis", "version.py").write_text("__version__ = '0.0.1'\n")
    with others_in(here, keys) as others:
        others.start_scheduler()
        where = ["--scheduler", others.address, "--tls-ca", keys.ca, "--tls-cert", keys.certificate]
        words = ["brain.toml", "--time-ms", 20, *where, "--tls-key", keys.key]
        unlike = [others.start_worker(str(here / name)) for name in ("none", "old")]
        security = Security(require_encryption=True, tls_ca_file=str(keys.ca), tls_client_cert=str(keys.certificate),
                            tls_client_key=str(keys.key))  # fmt: skip
        with DaskCluster(scheduler_address=others.address, security=security) as cluster:
            cluster.client.wait_for_workers(2, timeout=LIMIT_S)
            address = {pid: address for address, pid in cluster.client.run(os.getpid).items()}
            none, old = (address[process.pid] for process in unlike)
            assert call(sweep_app, *words) == 1
            reported = capsys.readouterr().err
            assert f"of 2 workers of {others.address} some lack neuraxis {__version__}" in reported
            assert f"{none} has no neuraxis" in reported
            assert f"{old} has neuraxis 0.0.1" in reported
            # A worker that joins while cells run reports the mismatch as well, and continues.
            for worker, reason in ((none, "cannot import neuraxis"), (old, "has neuraxis 0.0.1, and this program")):
                with pytest.raises(ImportError, match=reason):
                    cluster.gather(cluster.submit(as_code(run_cell), {}, workers=[worker], pure=False), timeout=LIMIT_S)
            assert [process.poll() for process in unlike] == [None, None]
        for process in unlike:
            process.kill()
            process.wait()
        assert call(sweep_app, *words, "--no-workers-timeout", 1) == 1
        reported = capsys.readouterr().err
        assert f"the scheduler at {others.address} has had no workers for 1 s; start some and try again" in reported
        others.start_worker()
        assert swept(capsys, *words)["rows"][0]["fingerprint"] == fingerprint(capsys, *words[:3])
    assert call(sweep_app, "brain.toml", *where, "--tls-key", "my.key") == 2
    assert "--tls-key my.key: there is no such file" in capsys.readouterr().err


# --- what it refuses, before anything is started ---


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.toml"], "nowhere.toml: there is no such file"),
        (
            ["--set", "regions.kortex.config.neurons=1"],
            "regions.kortex: there is no 'kortex' here; did you mean 'cortex'?",
        ),
        (["--set", "region.cortex.config.neurons=1"], "region: there is no such field; did you mean 'regions'?"),
        (["--set", f"{NEURONS}s=80,160"], f"{NEURONS}s: there is no such field; did you mean 'neurons'?"),
        (["--set", "regions.cortex.neuron=1"], "regions.cortex.neuron: there is no such field; did you mean 'neurons'"),
        (["--set", "pathways[9].weight=1"], "pathways[9]: there is no such entry; "),
        (["--set", "pathways[thalamus->kortex].weight=1"], "pathways[thalamus->kortex]: there is no such entry; did"),
        (["--set", "dt_ms.x=1"], "dt_ms: is 0.1, which has no field 'x'"),
        (["--set", f"{NEURONS}=80,many"], f"{NEURONS}: Expected int, got str (with --set {NEURONS}=many)"),
        (["--set", f"{NEURONS}=80", "--set", f"{NEURONS}=160"], f"--set {NEURONS}: is given twice"),
        (["--set", f"{NEURONS}=80,80"], f"--set {NEURONS}=80,80: the value 80 is given twice"),
        (["--set", f"{NEURONS}"], f"--set {NEURONS}: a field and its values are expected"),
        (["--set", f"{NEURONS}="], f"--set {NEURONS}=: give a value after the ="),
        (["--set", "seed=1,2"], "--set seed: use --seeds"),
        (["--seeds", "none"], "--seeds none: a number of seeds is expected"),
        (["--seeds", "0"], "--seeds=0"),
        (["--seeds", "3,3"], "--seeds 3,3: a seed is given twice"),
        (["--seed", "-1"], "--seed=-1"),
        (["--task", "delayed", "--time-ms", "5"], "--task defines the length"),
        (["--trials", "0"], "--trials=0"),
        (["--stimulus", "no.csv"], "--stimulus"),
        (["--out", "sweep.xlsx"], "--out sweep.xlsx: a file name that ends in .csv or .parquet is expected"),
        (["--out", "no/such/sweep.csv"], "--out no/such/sweep.csv: the folder"),
        (["--plot", "sweep.pdf"], "--plot sweep.pdf: the name must end in .png"),
        (["--workers", "0"], "--workers=0"),
        (["--threads", "0"], "--threads=0"),
        (["--memory-limit", "much"], "memory_limit='much'"),
        (["--scheduler", "nowhere"], "scheduler_address='nowhere'"),
        (
            ["--scheduler", "tls://127.0.0.1:1"],
            "--scheduler tls://127.0.0.1:1: keys are missing; add --tls-ca",
        ),
        (["--no-workers-timeout", "0"], "--no-workers-timeout=0"),
        (["--set", "reward.dopamine=2026-01-31"], "2026-01-31 is a date or a time, which no field takes"),
        (["--tls-ca", "ca.pem"], "--tls-ca, --tls-cert and --tls-key are for a --scheduler with TLS"),
    ],
)
def test_errors_are_one_line(here, capsys, words, message):
    before = sorted(path.name for path in here.iterdir())
    file = [] if words == ["nowhere.toml"] else ["brain.toml"]
    assert call(sweep_app, *file, *words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert message in line
    assert line.startswith("neuraxis sweep: ")
    assert sorted(path.name for path in here.iterdir()) == before


def test_nan_and_infinity_are_null_in_json(capsys):
    cell = Cell({"a": math.inf}, 2**64 - 1, "", "k")
    _print(SweepRun([cell], [{"answer": {"accuracy": math.nan}}], 1, False), Path("t.csv"), Path("t.png"), True)

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["rows"] == [{"a": None, "seed": 2**64 - 1, "accuracy": None, "error": None}]


def test_without_dask_it_prints_an_install_command(here, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask", None)
    monkeypatch.delattr("neuraxis.cluster.DaskCluster", raising=False)  # a name that was used stays
    assert call(sweep_app, "brain.toml") == 1
    assert install_command("dask") in capsys.readouterr().err
