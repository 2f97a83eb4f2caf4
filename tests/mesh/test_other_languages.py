"""Programs without neuraxis on the mesh: the clients of docs/reference/wire-formats.md against a real node."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neuraxis.mesh import Message, Node, Router, Topology
from neuraxis.mesh.keys import serve_key

from . import raw

CLIENTS = Path(__file__).parents[2] / "docs" / "reference" / "clients"
LIMIT_S = 30


@pytest.fixture
def router() -> Iterator[Router]:
    with Router(["tcp/127.0.0.1:0"]) as one:
        yield one


@pytest.fixture
def robot(router: Router) -> Iterator[Node]:
    with Node("robot", topology=Topology("client", tuple(router.endpoints))) as node:
        yield node


def python_client(_: Path) -> list[str]:
    return [sys.executable, str(CLIENTS / "client.py")]


def c_client(folder: Path) -> list[str]:
    """Compile the client in C; skip where zenoh-pico is not installed, which no distribution packages yet."""
    if not shutil.which("cc") or not shutil.which("pkg-config"):
        pytest.skip("needs a C compiler and pkg-config")
    found = subprocess.run(["pkg-config", "--cflags", "--libs", "zenohpico"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip("needs zenoh-pico: PKG_CONFIG_PATH=<prefix>/lib/pkgconfig of a build with CMake")
    library = subprocess.check_output(["pkg-config", "--variable=prefix", "zenohpico"], text=True).strip()
    program = folder / "client"
    flags = ["-std=gnu11", "-Wall", "-Werror", "-DZENOH_LINUX", f"-Wl,-rpath,{library}/lib"]
    subprocess.check_call(["cc", str(CLIENTS / "client.c"), "-o", str(program), *flags, *found.stdout.split()])
    return [str(program)]


@pytest.mark.parametrize("make", [python_client, c_client])
def test_a_client_announces_itself_publishes_subscribes_serves_and_requests(
    make: Any, robot: Node, router: Router, tmp_path: Path
) -> None:
    command = make(tmp_path)
    counts: list[Message] = []
    asked: list[Message] = []
    robot.serve("double", lambda message: asked.append(message) or 2 * message.value)  # type: ignore[func-returns-value]
    subscription = robot.subscribe("plain/count", counts.append)
    client = subprocess.Popen([*command, router.endpoints[0], "30"], stdout=subprocess.PIPE, text=True)
    try:
        assert robot.wait_for("plain", timeout=LIMIT_S) == []
        peer = robot.peer("plain")
        assert peer is not None
        assert (peer.pid, peer.role, peer.roles) == (client.pid, "", ())
        assert robot.request("plain", "add", b"[1, 2, 39]", timeout=LIMIT_S) == 42
        robot.publish("pose", {"x": 1.5}, "event", codec="json")
        printed, _ = client.communicate(timeout=LIMIT_S)
    finally:
        client.kill()
        client.wait()
    assert client.returncode == 0
    assert "answer 42" in printed
    assert '{"x":1.5}' in printed
    assert [(message.node, message.value) for message in asked] == [("plain", 21)]
    assert counts[-1].value == {"count": 29}
    assert {message.node for message in counts} == {"plain"}
    assert {message.incarnation for message in counts} == {peer.incarnation}
    assert [message.sequence for message in counts] == [message.value["count"] for message in counts]
    assert subscription.counts().malformed == 0
    assert subscription.counts().skewed == 0


def test_the_client_in_python_is_short_and_needs_only_zenoh() -> None:
    text = (CLIENTS / "client.py").read_text()
    assert len(text.splitlines()) <= 60
    names = {alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names}
    assert names - set(sys.stdlib_module_names) == {"zenoh"}
    assert "import neuraxis" not in text


# --- requests in JSON -------------------------------------------------------------------------------------


def ask(session: Any, topic: str, value: Any, encoding: str = "application/json") -> Any:
    key = serve_key("default", "robot", topic, "plain")
    (reply,) = session.get(key, payload=json.dumps(value), encoding=encoding, timeout=LIMIT_S)
    return reply


@pytest.fixture
def session(router: Router) -> Iterator[Any]:
    with raw.session(router.endpoints) as one:
        yield one


def test_a_request_in_json_is_answered_in_json(robot: Node, session: Any) -> None:
    robot.serve("pair", lambda message: {"both": (message.value, True)})
    answer = ask(session, "pair", [1]).ok
    assert str(answer.encoding) == "application/json"
    assert json.loads(answer.payload.to_bytes()) == {"both": [[1], True]}


def test_an_answer_that_json_cannot_hold_keeps_its_encoding(robot: Node, session: Any) -> None:
    robot.serve("bytes", lambda message: b"\xff")
    robot.serve("complex", lambda message: [1j])
    assert str(ask(session, "bytes", 1).ok.encoding) == "zenoh/bytes"
    assert str(ask(session, "complex", 1).ok.encoding) == "application/msgpack"


def test_a_failed_request_in_json_gets_its_error_in_json(robot: Node, session: Any) -> None:
    robot.serve("fails", lambda message: 1 // 0)
    error = ask(session, "fails", 1).err
    assert str(error.encoding) == "application/json"
    assert json.loads(error.payload.to_bytes())["name"] == "ZeroDivisionError"
