"""`neuraxis nodes`, `topics`, `echo`, `hz` and `pub` on a real mesh, as real commands."""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import math
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import time

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from neuraxis.mesh import Node, Router, Tls, Topology
from neuraxis.mesh.certificates import init_keys
from neuraxis.mesh.monitor import RateWindow
from neuraxis.report.mesh import age_text, as_json, as_text, printable, rate_text
from tests.mesh.raw import until

MESH = f"tools-{os.getpid()}"
END_S = 30.0

# vision: a stream of arrays and of dicts with their steps, a state, and bytes. Not vision: a program that sends what is
# no JSON, and one that leaves out every second number.
SPEAKER = """
import sys, threading, time
import numpy as np
from neuraxis.mesh import Node, Topology
from neuraxis.wire.envelope import seal_envelope
from neuraxis.mesh.topology import open_session

mesh = sys.argv[1]
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set())).start()
with Node("vision", role="camera", mesh=mesh) as node, open_session(Topology.local(), mesh) as foreign:
    node.publish("mode", {"on": True}, "state")
    print("ready", flush=True)
    for step in range(10**9):
        node.step = step
        node.publish("frame", np.arange(12, dtype=np.float32).reshape(3, 4) + step, step=step)
        node.publish("objects", {"cup": 0.5, "at": (1, 2), "name": "\\x1b[31mred"}, step=step)
        node.publish("raw", bytes(range(40)))
        foreign.put(f"neuraxis/{mesh}/ros/chatter", b"{oops", encoding="application/json")
        attachment = seal_envelope(b"gap", 1, 2 * step, -1)
        foreign.put(f"neuraxis/{mesh}/gap/x", b"5", encoding="application/json", attachment=attachment)
        if ended.wait(0.02):
            break
"""


@pytest.fixture(scope="module", autouse=True)
def zenoh_is_loaded():
    """Let Zenoh open the resources that it keeps until the process ends, so that the leak check ignores them."""
    with Node("first", mesh=f"{MESH}-first") as first, Node("second", mesh=f"{MESH}-first") as second:
        assert first.wait_for(["second"], END_S) == second.wait_for(["first"], END_S) == []
        assert second.peers(END_S)[0].topics == {}


@pytest.fixture(scope="module")
def speaker():
    process = subprocess.Popen(
        [sys.executable, "-c", SPEAKER, MESH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    yield process
    process.communicate(timeout=END_S)
    assert process.returncode == 0


def call(command, *words):
    """The exit status of a command, in this process."""
    module = {"topics": "nodes", "hz": "echo"}.get(command, command)
    app = getattr(importlib.import_module(f"neuraxis.cli.{module}"), command)
    with pytest.raises(SystemExit) as ended:
        app([*map(str, words)])
    return ended.value.code


def printed(capsys, command, *words, status=0):
    """Return the output of a command."""
    found = call(command, *words, "--mesh-name", MESH)
    printed = capsys.readouterr()
    assert (found, printed.err) == (status, "")
    return printed.out


def printed_json(capsys, command, *words, status=0):
    return [json.loads(line) for line in printed(capsys, command, *words, "--json", status=status).splitlines()]


class Started(subprocess.Popen):
    """A command that does not outlive its test: one that did not end as it should is not waited for."""

    def __exit__(self, *error):
        if self.poll() is None:
            self.kill()
        super().__exit__(*error)


def start(command, *words, mesh=MESH, **options):
    words = [sys.executable, "-m", "neuraxis", command, *map(str, words), "--mesh-name", mesh]
    return Started(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def end(process, number):
    """The rest that a command prints, its errors, and its exit status."""
    process.send_signal(number)
    out, err = process.communicate(timeout=END_S)
    return out, err, process.returncode


# --- presence ---


def test_nodes_prints_a_table_of_present_nodes(speaker, capsys):
    heading, row = printed(capsys, "nodes").splitlines()
    assert heading.split() == ["name", "role", "host", "pid", "since", "sees", "step"]
    name, role, host, pid, *_, step = row.split()
    assert (name, role, host, int(pid)) == ("vision", "camera", socket.gethostname(), speaker.pid)
    (node,) = json.loads(printed(capsys, "nodes", "--json"))
    assert (node["name"], node["role"], node["pid"], node["answers"]) == ("vision", "camera", speaker.pid, True)
    assert node["topics"] == {"mode": "state", "frame": "stream", "objects": "stream", "raw": "stream"}
    assert node["step"] > int(step) >= 0
    assert node["since"] + node["age_s"] == pytest.approx(time.time(), abs=5)


def test_an_empty_mesh_has_no_nodes(capsys):
    assert call("nodes", "--mesh-name", f"{MESH}-empty") == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("no nodes: the mesh ")
    assert call("nodes", "--mesh-name", f"{MESH}-empty", "--json") == 0
    assert capsys.readouterr() == ("[]\n", "")


def test_watch_reports_joins_and_leaves(speaker):
    with start("nodes", "--watch") as lines, start("nodes", "--watch", "--json") as objects:
        assert lines.stdout.readline().split()[:3] == ["join", "vision", "camera"]
        assert json.loads(objects.stdout.readline())["name"] == "vision"
        with Node("sensor/thermal", mesh=MESH):
            assert lines.stdout.readline().split()[:3] == ["join", "sensor/thermal", "-"]
            found = json.loads(objects.stdout.readline())
            assert (found["event"], found["name"], found["pid"]) == ("join", "sensor/thermal", os.getpid())
        assert lines.stdout.readline().split()[:2] == ["leave", "sensor/thermal"]
        assert json.loads(objects.stdout.readline())["event"] == "leave"
        assert end(lines, signal.SIGINT) == ("", "", 0)
        assert end(objects, signal.SIGTERM) == ("", "", 143)


def test_watch_draws_on_a_terminal_and_gives_it_back(speaker):
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    before = termios.tcgetattr(follower)
    environment = {**os.environ, "TERM": "xterm-256color"}
    words = [sys.executable, "-m", "neuraxis", "nodes", "--watch", "--mesh-name", MESH]
    # In a session of its own, Ctrl-C on its terminal is a signal to it.
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *words], stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    try:
        assert "vision" in read_until(leader, "camera")
        with Node("late", mesh=MESH):
            read_until(leader, "late")
        os.write(leader, b"\x03")
        shown = read_until(leader, "\x1b[?25h")  # the cursor is back
        assert process.wait(END_S) == 0
        assert "Traceback" not in shown
        assert termios.tcgetattr(follower) == before
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(leader)
        os.close(follower)


def read_until(descriptor, text):
    """Return the output of a terminal up to a text."""
    shown, deadline = "", time.monotonic() + END_S
    while text not in shown:
        assert select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0], shown
        shown += os.read(descriptor, 65536).decode(errors="replace")
    return shown


# --- messages ---


def test_topics_lists_declared_and_observed_topics(speaker, capsys):
    text = printed(capsys, "topics", "--seconds", 0.5)
    assert text.splitlines()[0].split() == ["key", "kind", "node", "encoding", "Hz", "B/s", "lost"]
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines()[1:]}
    assert rows["vision/frame"][:3] == ["stream", "vision", "array"]
    assert rows["vision/mode"] == ["state", "vision", "-", "0.0", "0", "0"]
    assert rows["ros/chatter"][:3] == ["-", "-", "json"]
    (*_, found) = (json.loads(printed(capsys, "topics", "--seconds", 0.5, "--json")),)
    by_key = {one["key"]: one for one in found}
    assert list(by_key) == sorted(rows) == ["gap/x", "ros/chatter", *(f"vision/{t}" for t in TOPICS)]
    frame, gap, chatter = (by_key[key] for key in ("vision/frame", "gap/x", "ros/chatter"))
    assert frame["messages"] > 0
    assert frame["rate_hz"] == pytest.approx(frame["messages"] / 0.5)
    assert frame["bytes_per_s"] == pytest.approx(frame["rate_hz"] * 112)
    assert (frame["lost"], frame["nodes"], frame["encodings"]) == (0, ["vision"], ["application/x-neuraxis-array"])
    assert (gap["nodes"], gap["lost"]) == (["gap"], pytest.approx(gap["messages"], abs=1))
    assert (chatter["kind"], chatter["nodes"], chatter["lost"]) == (None, [], 0)


TOPICS = ("frame", "mode", "objects", "raw")


def test_a_mesh_without_topics(capsys):
    assert call("topics", "--mesh-name", f"{MESH}-empty", "--seconds", 0.1) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("no topics on the mesh")


def test_echo_prints_a_line_for_each_message(speaker, capsys):
    lines = printed(capsys, "echo", "**", "--count", 40).splitlines()
    assert len(lines) == 40
    by_key = {line.split()[0]: line for line in lines}
    assert by_key["vision/mode"] == "vision/mode  step -  #0  {'on': True}"
    key, _, step, number, *value = by_key["vision/frame"].split()
    assert (key, number) == ("vision/frame", f"#{step}")
    assert value == ["<float32", "3x4", *(str(int(step) + n) for n in range(5)), "…>"]
    # What would be obeyed by a terminal is written out.
    assert by_key["vision/objects"].endswith(r"{'cup': 0.5, 'at': (1, 2), 'name': '\x1b[31mred'}")
    assert by_key["vision/raw"].endswith("  <40 bytes 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f …>")
    assert by_key["ros/chatter"].startswith("ros/chatter  step -  #-  malformed (application/json): ")
    assert by_key["ros/chatter"].endswith(": <5 bytes 7b 6f 6f 70 73>")
    assert "  (1 lost before)  5" in by_key["gap/x"]
    (line,) = printed(capsys, "echo", "vision/frame", "--count", 1, "--raw").splitlines()
    step = float(line.split()[2])
    assert line.endswith(f"<float32 3x4 {(np.arange(12.0).reshape(3, 4) + step).tolist()}>")


def test_echo_gives_objects_to_programs(speaker, capsys):
    found = {one["key"]: one for one in printed_json(capsys, "echo", "**", "--count", 40)}
    frame = found["vision/frame"]
    assert (frame["node"], frame["bytes"], frame["lost"]) == ("vision", 112, 0)
    assert frame["sequence"] == frame["step"]
    assert frame["value"] == (np.arange(12.0).reshape(3, 4) + frame["step"]).tolist()
    assert found["vision/objects"]["value"] == {"cup": 0.5, "at": [1, 2], "name": "\x1b[31mred"}
    assert base64.b64decode(found["vision/raw"]["value"]) == bytes(range(40))
    chatter = found["ros/chatter"]
    assert "value" not in chatter
    assert chatter["malformed"]
    assert base64.b64decode(chatter["payload"]) == b"{oops"
    assert (chatter["node"], chatter["sequence"], chatter["step"]) == (None, None, None)
    assert printed_json(capsys, "echo", "vision/nothing", "--seconds", 0.3, status=1) == []


def test_hz_measures(speaker, capsys):
    heading, *lines = printed(capsys, "hz", "vision/*", "--seconds", 1.2, "--window", 1).splitlines()
    assert heading.split()[0] == "Hz"
    assert [line.split()[-1] for line in lines[-3:]] == ["vision/frame", "vision/objects", "vision/raw"]
    (found,) = printed_json(capsys, "hz", "gap/x", "--seconds", 0.6)
    assert found["key"] == "gap/x"
    assert found["messages"] > 1
    assert 0 < found["min_ms"] <= found["mean_ms"] <= found["max_ms"]
    assert found["rate_hz"] <= 1001 / found["mean_ms"]
    assert found["bytes_per_s"] == pytest.approx(found["rate_hz"])
    assert found["lost"] == found["messages"] - 1
    (nothing,) = printed_json(capsys, "hz", "vision/nothing", "--seconds", 0.2, status=1)
    assert (nothing["messages"], nothing["rate_hz"], nothing["mean_ms"]) == (0, 0.0, None)


# --- to say something ---


def test_a_published_message_is_received(speaker, capsys):
    with Node("listener", mesh=MESH) as listener, listener.subscribe("**") as all_messages:
        joined = []
        listener.on_join(lambda peer: joined.append(peer.name))

        def heard(key):
            while (message := all_messages.get(10)).key != key:
                pass
            return message

        assert printed(capsys, "pub", "a/number", "-2.5") == "published 1 message on a/number; there was a subscriber\n"
        message = heard("a/number")
        assert (message.value, message.node, message.encoding) == (-2.5, "a", "application/msgpack")
        assert "a" in joined
        printed(capsys, "pub", "sensor/thermal/celsius", '{"value": [1, 2]}', "--codec", "json", "--kind", "state")
        message = heard("sensor/thermal/celsius")
        assert (message.value, message.node, message.encoding) == (
            {"value": [1, 2]}, "sensor/thermal", "application/json",
        )  # fmt: skip
        printed(capsys, "pub", "a/word", "halt now")
        assert heard("a/word").value == "halt now"
        printed(capsys, "pub", "a/bytes", "[1]", "--codec", "bytes", "--kind", "bulk")
        assert heard("a/bytes").value == b"[1]"
        (found,) = printed_json(capsys, "pub", "a/many", "7", "--rate", 200, "--count", 5)
        assert found == {"key": "a/many", "node": "a", "messages": 5, "heard": True}
        assert [heard("a/many").sequence for _ in range(5)] == [0, 1, 2, 3, 4]
        # On the key of a node that is present, which is not disturbed; the topic has two parts.
        printed(capsys, "pub", "vision/from/hand", "true")
        message = heard("vision/from/hand")
        assert (message.value, message.node, message.topic) == (True, "vision", "from/hand")
        assert joined.count("vision") == 1
        assert all_messages.counts_by_key()["vision/frame"].lost == 0


def test_publishing_without_subscribers(speaker, capsys):
    for kind in ("stream", "state"):
        text = printed(capsys, "pub", "a/number", "1", "--timeout", 0.1, "--kind", kind, status=1)
        assert text == "published 1 message on a/number; there was no subscriber\n"


# --- how they are reached ---


def test_through_a_router_with_keys(speaker, tmp_path, capsys):
    init_keys(tmp_path, ["vision", "observer", "guest"])
    with Router(["tls/127.0.0.1:0"], tls=Tls.from_folder(tmp_path, "router")) as router:
        (endpoint,) = router.endpoints
        topology = Topology.from_options([endpoint], tls=Tls.from_folder(tmp_path, "vision"))
        words = ["--connect", endpoint, "--tls", tmp_path, "--json"]
        with Node("eye", mesh=MESH, topology=topology) as node:
            for role in ([], ["--role", "guest"]):
                (found,) = json.loads(printed(capsys, "nodes", *words, *role))
                assert found["name"] == "eye"
            node.publish("mode", "on", "state")
            assert json.loads(printed(capsys, "echo", "eye/**", *words, "--count", 1))["value"] == "on"


def test_a_router_that_is_lost_is_not_an_empty_mesh():
    with (
        Router(["tcp/127.0.0.1:0"]) as router,
        start("topics", "--seconds", 3, "--connect", *router.endpoints) as listing,
    ):
        until(lambda: router.peer_count() == 1, "the command to be connected", END_S)
        router.close()
        output, error = listing.communicate(timeout=END_S)
    assert (output, listing.returncode) == ("", 1)
    assert error.startswith("neuraxis topics: node 'observer' has lost its connection to the router (tcp/127.0.0.1:")


def test_a_lost_router_is_reported_while_they_run():
    with Router(["tcp/127.0.0.1:0"]) as router:
        endpoints = router.endpoints
        commands = [
            ["echo", "a/**"], ["hz", "a/**", "--json"], ["nodes", "--watch"],
            ["pub", "a/b", "1", "--rate", 1],
        ]  # fmt: skip
        processes = [start(*words, "--connect", *endpoints) for words in commands]
        with contextlib.ExitStack() as stack:
            for process in processes:
                stack.enter_context(process)
            for process, beginning in zip(processes, ("a/b", '{"key": "a/b"', "join   a"), strict=False):
                until(lambda process=process, text=beginning: process.stdout.readline().startswith(text), beginning)
            router.close()
            errors = {words[0]: process.stderr for words, process in zip(commands, processes, strict=True)}
            lost = f"the connection to the router ({endpoints[0]}) is lost; it is retried, start the router again"
            for command, lines in errors.items():
                assert lines.readline() == f"neuraxis {command}: {lost}\n"
            with Router(endpoints):
                for command, lines in errors.items():
                    assert lines.readline() == f"neuraxis {command}: connected to the router again\n"
                for process in processes:
                    _, error, status = end(process, signal.SIGINT)
                    assert (error, status) == ("", 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nodes", "--connect", "somewhere"], "'somewhere': an address such as"),
        (["nodes", "--connect", "tcp/10.0.0.1:7447"], "tcp/10.0.0.1:7447: anyone on the network could read"),
        (["nodes", "--connect", "tls/10.0.0.1:7447"], "tls/10.0.0.1:7447: TLS needs keys"),
        (["nodes", "--tls", "nowhere"], "nowhere/ca.pem: there is no such file"),
        (["nodes", "--role", "guest"], "--role guest: the keys are missing"),
        (["nodes", "--zenoh-config", "no.json5"], "--zenoh-config no.json5: there is no such file"),
        (["nodes", "--zenoh-config", "no.json5", "--insecure"], "--zenoh-config is used unchanged"),
        (["nodes", "--mesh-name", "my mesh"], "mesh='my mesh'"),
        (["topics", "--seconds", "0"], "--seconds=0.0"),
        (["echo", "vision//x"], "KEY='vision//x'"),
        (["echo", "chatter"], "KEY='chatter': no message has such a key"),
        (["echo", "x/y", "--count", "0"], "--count=0"),
        (["echo", "x/y", "--seconds", "nan"], "--seconds=nan"),
        (["hz", "", "--seconds", "1"], "KEY=''"),
        (["hz", "x/y", "--window", "-1"], "--window=-1.0"),
        (["pub", "word", "1"], "KEY='word': no topic; give NODE/TOPIC"),
        (["pub", "a/*", "1"], "KEY='a/*'"),
        (["pub", "a/b", "1", "--rate", "0"], "--rate=0.0"),
        (["pub", "a/b", "1", "--count", "0"], "--count=0"),
        (["pub", "a/b", "1", "--timeout", "-1"], "--timeout=-1.0"),
    ],
)
def test_errors_are_one_line(capsys, words, message):
    assert call(*words) == (1 if "--tls" in words else 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"neuraxis {words[0]}: {message}")


# --- how they end ---


def test_ctrl_c_is_how_they_end(speaker):
    with (
        Node("listener", mesh=MESH) as listener,
        listener.subscribe("a/forever") as forever,
        listener.subscribe("a/some") as some,
        start("echo", "vision/frame") as echo,
        start("hz", "vision/frame", "--json") as hz,
        start("pub", "a/forever", "1", "--rate", 50) as endless,
        start("pub", "a/some", "1", "--rate", 50, "--count", 10**6) as counted,
    ):
        assert echo.stdout.readline().startswith("vision/frame  step ")
        assert json.loads(hz.stdout.readline())["key"] == "vision/frame"
        forever.get(END_S)
        some.get(END_S)
        for process, number, status in (
            (echo, signal.SIGINT, 0),
            (hz, signal.SIGTERM, 143),
            (endless, signal.SIGINT, 0),
            (counted, signal.SIGINT, 130),
        ):
            out, err, found = end(process, number)
            assert (found, err) == (status, "")
            if process in (endless, counted):
                assert out.startswith("published ")
                assert out.endswith("; there was a subscriber\n")


def test_ctrl_c_while_a_router_is_looked_for():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(END_S)
        address = f"tcp/127.0.0.1:{server.getsockname()[1]}"
        with start("nodes", "--watch", "--connect", address) as process:
            connection, _ = server.accept()  # and nothing is printed
            connection.close()
            assert end(process, signal.SIGINT) == ("", "", 0)


def test_a_person_who_waits_for_a_topic_that_nobody_publishes_is_told_so():
    terminal, inner = os.openpty()
    words = [sys.executable, "-m", "neuraxis", "echo", "talker/chatter", "--mesh-name", f"silent-{os.getpid()}"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=inner) as process:
        os.close(inner)
        try:
            line = os.read(terminal, 4096).decode()
            assert line.startswith("neuraxis echo: no message on 'talker/chatter' so far. List what is published with:")
        finally:
            process.send_signal(signal.SIGINT)
            os.close(terminal)
        assert process.wait(END_S) == 0


def test_a_closed_pipe_is_no_error(speaker):
    with start("echo", "vision/*") as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(END_S) == 128 + signal.SIGPIPE
        assert process.stderr.read() == ""


# --- values and rates ---

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
    | st.just(np.float32(1.5)) | st.just(np.longdouble(1.5)) | st.just("\ud800")
    | st.just(np.arange(24).reshape(2, 3, 4)) | st.just(np.array(3.0)) | st.just(np.zeros(0, "i2"))
    | st.just(np.zeros(2, [("x", "f4"), ("y", "S3")])) | st.just(np.array(["2020-01-01"], "M8[s]"))
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
)


@given(values, st.booleans())
def test_any_value_is_a_line_and_json(value, whole):
    text = as_text(value, whole)
    assert printable(text).isprintable()
    json.loads(json.dumps(as_json(value), allow_nan=False).encode())


def test_values_are_cut_unless_they_are_wanted_whole():
    assert as_text(list(range(10))) == "[0, 1, 2, 3, 4, 5, 6, 7, … 2 more]"
    assert as_text(list(range(10)), True) == str(list(range(10)))
    assert as_text("x" * 300) == f"'{'x' * 200}'…"
    assert as_text("x" * 300, True) == f"'{'x' * 300}'"
    assert as_text(np.arange(3, dtype="i2")) == "<int16 3 0 1 2>"
    assert as_text(np.array(2.5)) == "<float64 scalar 2.5>"
    assert as_text(np.float32([0.1, np.nan])) == "<float32 2 0.1 nan>"
    assert as_text(b"") == "<0 bytes>"
    assert (as_text(1 << 20_000), as_json(1 << 20_000)) == ("(a number of 20001 bits)", hex(1 << 20_000))
    assert as_text({(1, 2): set()}) == "{(1, 2): {}}"
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert "…" in as_text(deep)
    assert as_text(deep, True) == "(nested too deeply to be shown)"
    while deep:  # freed level by level: all at once would be as deep
        deep = deep[0]


def test_tensors_are_shown_like_arrays():
    torch = pytest.importorskip("torch")
    assert as_text(torch.arange(3, dtype=torch.bfloat16)) == "<torch.bfloat16 3 0 1 2>"
    assert as_json(torch.tensor([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]


def test_values_without_a_json_form():
    assert as_json({"x": math.nan, "y": np.array([1.0, math.inf]), 3: b"ab", "z": 1 + 2j}) == {
        "x": None, "y": [1.0, None], "3": "YWI=", "z": [1.0, 2.0],
    }  # fmt: skip


def test_the_pace_of_messages():
    pace = RateWindow(10.0)
    assert pace.at(0.0)["rate_hz"] == 0
    pace.note(0.0, 100)
    assert (pace.at(1.0)["rate_hz"], pace.at(1.0)["mean_ms"]) == (0.1, None)
    for tenth in range(1, 11):
        pace.note(tenth / 10, 100)
    steady = pace.at(1.05)
    assert (steady["messages"], steady["rate_hz"]) == (11, pytest.approx(10.0))
    assert (steady["mean_ms"], steady["std_ms"]) == (pytest.approx(100.0), pytest.approx(0.0, abs=1e-9))
    assert steady["bytes_per_s"] == pytest.approx(1000.0)
    assert pace.at(5.1)["rate_hz"] == pytest.approx(2.0)  # it has stopped
    assert pace.at(10.55)["messages"] == 5
    assert pace.at(30.0)["messages"] == 0


def test_ages_and_sizes():
    assert [age_text(one) for one in (-3, 4.9, 60, 200, 18120, 3 * 86400 + 4 * 3600)] == [
        "0 s", "4 s", "1 min", "3 min 20 s", "5 h 2 min", "3 d 4 h",
    ]  # fmt: skip
    assert [rate_text(one) for one in (0, 999, 12_345, 4.5e6, 2e9)] == ["0", "999", "12.3k", "4.5M", "2.0G"]
