"""`neuraxis router` and `neuraxis mesh` as a robot engineer uses them, and the files in deploy/ that call them."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

from neuraxis.brain import default_brain, read_spec, write_spec
from neuraxis.brain.mesh import sensor_keys
from neuraxis.cli.mesh import app as mesh_app
from tests.mesh.raw import Recorder, fence, publish_until_received, router_process, session, warm

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


@pytest.fixture(scope="module", autouse=True)
def warmed() -> None:
    warm()


def neuraxis(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neuraxis", *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def mesh(*words: object) -> int:
    """The exit status of `neuraxis mesh`."""
    with pytest.raises(SystemExit) as ended:
        mesh_app([*map(str, words)])
    return int(ended.value.code or 0)


@pytest.fixture
def brain(tmp_path: Path) -> Path:
    write_spec(default_brain(), tmp_path / "brain.toml")
    return tmp_path / "brain.toml"


# --- router ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_until_it_is_terminated(number: signal.Signals) -> None:
    with router_process("--listen", "tcp/127.0.0.1:0") as (endpoints, process):
        with session(endpoints) as one, session(endpoints) as other:
            recorder = Recorder(one, "neuraxis/**")
            fence(one)
            other.put("neuraxis/m/a/b", "hello")
            recorder.wait("hello")
        process.send_signal(number)
        out, error = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, out, error) == (0, "", "")


def test_it_prints_its_endpoints() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "neuraxis", "router", "--listen", "tcp/127.0.0.1:0", "--listen", "tcp/localhost:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        words = line.removeprefix("router at ").strip().split(", ")
        assert [word.rpartition(":")[0] for word in words] == ["tcp/127.0.0.1", "tcp/localhost"]
        for word in words:
            with session([word]):
                pass
    finally:
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, error) == (0, "", "press Ctrl-C to end it\n")


def test_keys_and_rules_from_the_command_line(tmp_path: Path, brain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys, acl = tmp_path / "keys", tmp_path / "acl.json5"
    assert mesh("keys", "init", keys, "--brain", brain, "--hosts", "robot.local,10.0.0.3") == 0
    assert mesh("acl", brain, "--out", acl, "--mesh-name", "m") == 0
    printed = capsys.readouterr()
    assert f"created {keys / 'cortex.pem'}" in printed.out
    assert f"wrote {acl}: " in printed.out
    assert printed.err == ""
    with router_process("--listen", "tls/127.0.0.1:0", "--tls", str(keys), "--acl", str(acl)) as (endpoints, _):
        ends = {
            role: session(endpoints, authority=keys / "ca.pem", keys=(keys, role)) for role in ("cortex", "observer")
        }
        with ends["observer"] as observer, ends["cortex"] as cortex:
            recorder = Recorder(observer, "neuraxis/m/**")
            fence(observer)
            cortex.put("neuraxis/m/hippocampus/spikes", "evil")
            cortex.put("neuraxis/m/cortex/spikes", "allowed")
            assert recorder.wait("allowed") == [("neuraxis/m/cortex/spikes", "allowed")]


def test_errors_are_one_line(tmp_path: Path) -> None:
    with router_process("--listen", "tcp/127.0.0.1:0") as (endpoints, _):
        for words, status, reason in (
            (["--listen", endpoints[0]], 1, "the address is in use"),
            (["--listen", "tcp/0.0.0.0:7447"], 2, "--insecure"),
            (["--listen", "tls/0.0.0.0:7447", "--tls", tmp_path], 1, "neuraxis mesh keys init"),
            (["--zenoh-config", tmp_path / "none.json5"], 1, "none.json5"),
        ):
            done = neuraxis("router", *words)
            assert (done.returncode, done.stdout) == (status, "")
            assert done.stderr.startswith("neuraxis router: ")
            assert done.stderr.count("\n") == 1
            assert reason in done.stderr


def test_routers_connect() -> None:
    with (
        router_process("--listen", "tcp/127.0.0.1:0") as (first, _),
        router_process("--listen", "tcp/127.0.0.1:0", "--connect", *first) as (second, _),
        session(first) as one,
        session(second) as other,
    ):
        recorder = Recorder(one, "neuraxis/**")
        publisher = other.declare_publisher("neuraxis/m/a/b")
        publish_until_received(publisher, recorder, "across")


# --- mesh ---


def test_keys_are_added_and_listed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    assert mesh("keys", "init", keys, "--roles", "vision, arm", "--json") == 0
    made = ["ca.pem", "router.pem", "vision.pem", "arm.pem"]
    assert json.loads(capsys.readouterr().out) == {"folder": str(keys), "made": made}
    assert mesh("keys", "init", keys, "--roles", "arm,leg", "--json") == 0
    assert json.loads(capsys.readouterr().out)["made"] == ["leg.pem"]
    assert mesh("keys", "init", keys, "--roles", "arm") == 0
    assert "nothing to create" in capsys.readouterr().out
    for words in (
        ["--roles", "a,,b"],
        ["--roles", "../a"],
        ["--days", "0"],
        ["--hosts", "a:1"],
        ["--brain", "none.toml"],
    ):
        assert mesh("keys", "init", keys, *words) == 2
        assert capsys.readouterr().err.startswith("neuraxis mesh keys init: ")
    assert mesh("keys", "init", keys, "--replace", "--json") == 0
    assert json.loads(capsys.readouterr().out)["made"] == ["ca.pem", "router.pem"]


def test_rules_are_shown_as_text_and_json(brain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mesh("acl", brain) == 0
    assert "\nobserver\n  nodes      observer\n  subscribes **\n" in capsys.readouterr().out
    assert mesh("acl", brain, "--json") == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["mesh"], reported["out"]) == ("default", None)
    assert {one["role"] for one in reported["roles"]} == {
        *default_brain().regions,
        *sensor_keys(default_brain()),
        "driver",
        "observer",
    }
    assert mesh("acl", "none.toml") == 2
    assert "neuraxis mesh acl: none.toml: there is no such file" in capsys.readouterr().err


def test_help_teaches() -> None:
    for words, taught in (
        (["router", "--help"], "neuraxis mesh acl brain.toml --out acl.json5"),
        (["mesh", "keys", "init", "--help"], "keep ca.key\naway from robots"),
        (["mesh", "acl", "--help"], "neuraxis router --listen"),
    ):
        done = neuraxis(*words)
        assert done.returncode == 0
        assert taught in done.stdout


# --- deploy/ ---


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    services: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "docker-compose.yml").read_text())["services"]
    return services


def unit_lines() -> list[list[str]]:
    """The commands of the systemd units, as systemd would call them."""
    folder = ROOT / "deploy" / "systemd"
    settings = [line for line in (folder / "neuraxis.env").read_text().splitlines() if line and line[0] != "#"]
    values = {"%i": "vision", "%d": "/run/credentials", "%S": "/var/lib"}
    for name, value in (line.split("=", 1) for line in settings):
        values |= {f"${{{name}}}": value, f"${name}": value}  # in braces as one word, without them as several
    found = []
    for unit in sorted(folder.glob("*.service")):
        (line,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
        for name, value in values.items():
            line = line.replace(name, value)
        assert "%" not in line
        assert "$" not in line
        words = shlex.split(line.removeprefix("ExecStart="))
        assert words[0].endswith("/bin/neuraxis")
        found.append(words[1:])
    return found


def takes(line: list[str]) -> bool:
    """Return True if the command accepts a command line; nothing is run."""
    from neuraxis.cli import app

    try:
        app.parse_args(line, exit_on_error=False, print_error=False)
    except CycloptsError:
        return False
    return True


def test_container_files_use_valid_command_lines() -> None:
    commands = [service["command"] for service in compose().values()]
    lines = [command if isinstance(command, list) else shlex.split(command) for command in commands]
    assert sorted(line[0] for line in lines) == ["node"] * (len(lines) - 1) + ["router"]
    assert all(map(takes, lines))
    assert not takes(["router", "--nonsense"])


def test_systemd_units_use_valid_command_lines() -> None:
    lines = unit_lines()
    assert sorted(line[0] for line in lines) == ["node", "router"]
    assert all(map(takes, lines))


def test_each_container_has_its_own_key_only() -> None:
    services = compose()
    robot = read_spec(ROOT / "examples" / "robot_brain" / "robot.toml")
    assert set(services) == {"router", *robot.regions}
    for name, service in services.items():
        mounts = [mount.split(":") for mount in service["volumes"]]
        kept = {mount[1] for mount in mounts if "keys" in mount[0]}
        assert kept == {"/keys/ca.pem", f"/keys/{name}.pem", f"/keys/{name}.key"}
        assert all(mount[2:] == ["ro"] for mount in mounts if mount[0].startswith("."))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_units(tmp_path: Path) -> None:
    for unit in (ROOT / "deploy" / "systemd").glob("*.service"):
        # What is installed on the robot is not installed here.
        text = unit.read_text().replace("/opt/neuraxis/bin/neuraxis", "/bin/true")
        (tmp_path / unit.name.replace("@", "@vision")).write_text(text)
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, timeout=LIMIT_S
    )
    reported = [line for line in done.stderr.splitlines() if "neuraxis" in line]
    assert reported == [], done.stderr
