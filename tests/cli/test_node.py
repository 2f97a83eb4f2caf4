"""`neuraxis node`, and `--mesh` of `run` and `demo`: regions as processes, bit for bit equal to one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neuraxis.brain import Brain, write_spec
from neuraxis.engine.precompile import warm_up
from neuraxis.mesh import Node
from tests.brain.test_brain import small
from tests.mesh.conftest import initialized_zenoh
from tests.simulation.mesh.meshes import LIMIT_S, fresh_mesh, until

__all__ = ["initialized_zenoh"]

REGIONS = ("thalamus", "cortex", "striatum")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The first run on a machine says that it compiles, which is not what these tests look for."""
    warm_up()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a brain."""
    monkeypatch.chdir(tmp_path)
    write_spec(small().spec(), "brain.toml")
    return tmp_path


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `neuraxis ...`; what still runs after the test is killed."""
    made: list[subprocess.Popen[str]] = []

    def begin(*words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "neuraxis", *map(str, words)]
        made.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def printed_json(process: subprocess.Popen[str]) -> Any:
    """Wait for a successful exit and return the printed JSON."""
    status, out, err = ended(process)
    assert status == 0, err
    return json.loads(out)


def node(*words: object) -> int:
    """`neuraxis node` in this process; its exit status."""
    from neuraxis.cli.node import node as app

    with pytest.raises(SystemExit) as caught:
        app([*map(str, words)])
    code = caught.value.code
    assert isinstance(code, int)
    return code


# --- run and demo ---


def test_a_run_over_the_mesh_equals_one_process(here: Path, start: Start) -> None:
    words = ["run", "brain.toml", "--time-ms", 120, "--json"]
    over = start(*words, "--mesh", "--mesh-name", fresh_mesh())
    alone = printed_json(start(*words, "--sequential"))
    found = printed_json(over)
    assert found["fingerprint"] == alone["fingerprint"]
    assert found["rates_hz"] == alone["rates_hz"]
    assert found["workers"] == len(REGIONS)


def test_the_demo_over_the_mesh_gives_what_one_process_gives(here: Path, start: Start) -> None:
    words = ["demo", "--trials", 2, "--json"]
    over = start(*words, "--mesh", "--mesh-name", fresh_mesh(), "--html", "mesh.html")
    alone = printed_json(start(*words, "--sequential", "--html", "alone.html"))
    found = printed_json(over)
    assert found["fingerprint"] == alone["fingerprint"]
    assert found["accuracy"] == alone["accuracy"]
    assert (here / "mesh.html").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mesh", "--workers", "2"], "--mesh: nodes run the brain"),
        (["--mesh", "--sequential"], "--mesh: nodes run the brain"),
        (["--clock", "realtime"], "--clock realtime: this option is for nodes of the mesh"),
        (["--remote", "cortex"], "--remote: this option is for nodes of the mesh"),
        (["--region-states", "there"], "--region-states: this option is for nodes of the mesh"),
        (["--mesh", "--remote", "nobody"], "no region nobody"),
        (["--mesh", "--silence-timeout", "0"], "silence-timeout"),
        (["--mesh", "--on-worker-loss", "restart"], "--on-worker-loss restart: with --mesh"),
        (["--mesh", "--clock", "realtime", "--task", "cue-action"], "no process drives the regions"),
        (["--mesh", "--connect", "tcp/192.0.2.1:7447"], "--insecure"),
        (["--mesh", "--mesh-name", "a/b"], "mesh"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_invalid_options_are_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    from neuraxis.cli.run import run as app

    with pytest.raises(SystemExit) as caught:
        app(["brain.toml", *words])
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert message in printed.err
    assert printed.err.startswith("neuraxis run: ")
    assert printed.err.count("\n") == 1


# --- nodes by hand ---


def test_regions_that_are_started_one_by_one_run_together_and_one_comes_back(here: Path, start: Start) -> None:
    """Two that are driven by a third process which has the other region; one is killed, and started again."""
    mesh = fresh_mesh()
    words = ["--clock", "lockstep", "--mesh-name", mesh, "--silence-timeout", 50]
    with Brain(small().spec()) as brain:
        brain.run(400.0)
        expected = brain.fingerprint()

    def cortex(*more: object) -> subprocess.Popen[str]:
        keep = ["--checkpoint", "states", "--checkpoint-every-ms", 20]
        return start("node", "brain.toml", "--region", "cortex", *words, *keep, *more)

    first = cortex()
    thalamus = start("node", "brain.toml", "--region", "thalamus", *words, "--json")
    remote = ["--remote", "thalamus", "--remote", "cortex", "--silence-timeout", 50]
    driver = start("run", "brain.toml", "--mesh", "--mesh-name", mesh, "--time-ms", 400, "--json", *remote)
    with Node("watcher", mesh=mesh) as watcher:
        until(lambda: step_of(watcher, "cortex") > 600, "they run")
        first.kill()
        first.wait()
        second = cortex("--resume")
        assert printed_json(driver)["fingerprint"] == expected
        second.send_signal(signal.SIGINT)
        status, out, err = ended(second)
        assert (status, "from its last state" in err) == (0, True)
        assert "cortex: ended after step 4,000 (400 ms)" in out
        thalamus.send_signal(signal.SIGTERM)
        story = printed_json(thalamus)
        assert (story["region"], story["step"], story["refused"]) == ("thalamus", 4000, 0)


def step_of(watcher: Node, name: str) -> int:
    return next((peer.step or 0 for peer in watcher.peers() if peer.name == name), 0)


def test_by_the_clock_all_regions_of_a_brain_run_for_their_time(here: Path, start: Start) -> None:
    stories = printed_json(start("run", "brain.toml", "--mesh", "--clock", "realtime", "--time-ms", 500, "--json",
                         "--mesh-name", fresh_mesh()))  # fmt: skip
    assert list(stories) == list(REGIONS)
    for story in stories.values():
        assert story["clock"]["windows"] > 0
        assert story["step"] > 0


def test_a_single_region_ends_on_request(here: Path, start: Start) -> None:
    mesh = fresh_mesh()
    process = start(
        "node", "brain.toml", "--region", "striatum", "--mesh-name", mesh, "--start-timeout", 0.2, "--clock", "realtime"
    )
    with Node("watcher", mesh=mesh) as watcher:
        assert watcher.wait_for(["striatum"], LIMIT_S) == []
        until(lambda: step_of(watcher, "striatum") > 0, "it runs")
        os.kill(process.pid, signal.SIGINT)
        status, out, err = ended(process)
        assert status == 0
        assert err.startswith("striatum: ")
        assert "by the wall clock, on mesh" in err
        assert "Traceback" not in err
        assert out.startswith("striatum: ended after step ")
        assert "cortex: received to step 0" in out
        until(lambda: watcher.peer("striatum") is None, "it is gone")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--region", "cortx"], "--region cortx"),
        (["--region", "cortex", "--resume"], "--resume: the folder is missing; name it with --checkpoint"),
        (["--region", "cortex", "--time-ms", "-5"], "--time-ms"),
        (["--region", "cortex", "--silence-timeout", "0"], "--silence-timeout"),
        (["--region", "cortex", "--reconnect-timeout", "nan"], "--reconnect-timeout"),
        (["--region", "cortex", "--start-timeout", "-1"], "--start-timeout"),
        (["--region", "cortex", "--checkpoint-every-ms", "0"], "--checkpoint-every-ms"),
        (["--region", "cortex", "--seed", "-1"], "--seed"),
        (["--region", "cortex", "--mesh-name", "a/b"], "mesh"),
        (["--region", "cortex", "--connect", "tcp/192.0.2.1:7447"], "--insecure"),
        (["--region", "cortex", "--listen", "tcp/0.0.0.0:0"], "--insecure"),
        (["--region", "cortex", "--role", "x"], "--role x"),
    ],
    ids=lambda words: " ".join(words[2:]) if isinstance(words, list) else "",
)
def test_a_node_that_makes_no_sense_is_refused_in_a_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert node("brain.toml", *words) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("neuraxis node: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_missing_or_invalid_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert node("nothing.toml", "--region", "cortex") == 2
    assert "nothing.toml" in capsys.readouterr().err
    Path("wrong.toml").write_text("[regions.a]\nkind = 5\n")
    assert node("wrong.toml", "--region", "a") == 2
    assert "wrong.toml" in capsys.readouterr().err


def test_states_of_another_brain_are_refused(here: Path, start: Start) -> None:
    mesh = fresh_mesh()
    keep = ["--region", "striatum", "--checkpoint", "states", "--clock", "lockstep", "--mesh-name", mesh]
    alone = [*keep, "--time-ms", 20, "--start-timeout", 0.2, "--silence-timeout", 0.2]
    status, _, err = ended(start("node", "brain.toml", *alone))
    assert status == 0, err
    status, out, err = ended(start("node", "brain.toml", *alone, "--resume", "--seed", 9))
    assert (status, out) == (1, "")
    assert "another brain" in err
    status, out, err = ended(start("node", "brain.toml", *alone, "--resume", "--json"))
    assert (status, json.loads(out)["step"]) == (0, 200)
