"""A node: delivery of its messages to all kinds of nodes, and clean exits."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from neuraxis.errors import InvalidArgument, InvalidType, MeshClosed
from neuraxis.mesh import Node, Peer, Router, Subscription, Tls, Topology
from neuraxis.mesh.declarations import Declaration
from tests.mesh.conftest import LIMIT_S, Child, meet
from tests.mesh.raw import until
from tests.test_reprs import HOSTILE, text_of

Join = Callable[..., Node]
Start = Callable[..., Child]


def take(subscription: Subscription, count: int) -> list[Any]:
    return [subscription.get(LIMIT_S).value for _ in range(count)]


# --- to publish and to hear ---


def test_messages_are_routed_by_key(join: Join) -> None:
    vision, thermal, receiver = join("vision"), join("sensor/thermal"), join("receiver")
    channels = {
        expression: receiver.subscribe(expression)
        for expression in (
            "vision/*",
            "vision/objects",
            "sensor/**",
            "sensor/*/far/left",
            "**",
            "*/objects",
            "nobody/*",
        )
    }
    meet(vision, thermal, receiver)
    vision.publish("objects", "cup")
    vision.publish("edges", "line")
    vision.publish("far/left", "dot")
    thermal.publish("heat", 300)
    thermal.publish("far/left", 301)
    for node in (vision, thermal):
        node.publish("end", "end")

    def heard(expression: str, ends: int) -> set[tuple[str, Any]]:
        got: list[tuple[str, Any]] = []
        while sum(value == "end" for _, value in got) < ends:
            message = channels[expression].get(LIMIT_S)
            got.append((message.key, message.value))
        return {one for one in got if one[1] != "end"}

    of_thermal = {("sensor/thermal/heat", 300), ("sensor/thermal/far/left", 301)}
    of_vision = {("vision/objects", "cup"), ("vision/edges", "line"), ("vision/far/left", "dot")}
    assert heard("**", 2) == of_vision | of_thermal
    assert heard("vision/*", 1) == {("vision/objects", "cup"), ("vision/edges", "line")}
    assert heard("sensor/**", 1) == of_thermal
    assert take(channels["vision/objects"], 1) == take(channels["*/objects"], 1) == ["cup"]
    assert take(channels["sensor/*/far/left"], 1) == [301]
    for expression in ("vision/objects", "*/objects", "sensor/*/far/left", "nobody/*"):
        with pytest.raises(TimeoutError, match="no message arrived"):
            channels[expression].get(0.01)


def test_a_message_has_its_sender(join: Join) -> None:
    sender, receiver = join("sensor/thermal"), join("receiver")
    channel = receiver.subscribe("sensor/thermal/*")
    meet(sender, receiver)
    sender.publish("heat", [1, 2], step=70)
    sender.publish("heat", b"raw")
    first, second = channel.get(LIMIT_S), channel.get(LIMIT_S)
    assert (first.key, first.node, first.topic) == ("sensor/thermal/heat", "sensor/thermal", "heat")
    assert (first.incarnation, first.sequence, first.step, first.lost) == (sender.incarnation, 0, 70, 0)
    assert first.encoding == "application/msgpack"
    assert (second.sequence, second.step, second.encoding) == (1, -1, "zenoh/bytes")
    assert sender.sent() == {"heat": 2}
    assert receiver.counts()["sensor/thermal/heat"].received == 2


@pytest.mark.parametrize("kind", ["stream", "state", "event", "bulk"])
def test_values_of_all_kinds_arrive_as_they_were(join: Join, kind: str) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/values", depth=100)
    meet(sender, receiver)
    values = [None, True, -7, 1.5, "text", b"\x00\xff", [1, [2]], {"a": (1, 2)}, {1, 2}, 2**80]
    for value in values:
        sender.publish("values", value, kind)
    assert take(channel, len(values)) == values
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    sender.publish("values", array)
    sender.publish("values", {"spikes": array[0], "step": 3})
    alone, within = take(channel, 2)
    assert alone.dtype == array.dtype
    assert (alone == array).all()
    assert (within["spikes"] == array[0]).all()
    assert within["step"] == 3


def test_a_node_does_not_receive_its_own_messages(join: Join) -> None:
    one, other = join("one"), join("other")
    mine, theirs = one.subscribe("**"), other.subscribe("**")
    meet(one, other)
    for kind in ("stream", "state", "bulk"):
        one.publish(kind, "of one", kind)
        other.publish(kind, "of other", kind)
    assert take(mine, 3) == ["of other"] * 3
    assert take(theirs, 3) == ["of one"] * 3
    # Nor its own earlier messages: late subscribers recover the last states, but not their own.
    late = one.subscribe("*/state")
    assert take(late, 1) == ["of other"]
    other.publish("state", "once more")
    assert take(late, 1) == ["once more"]
    assert one.subscribe("one/**").counts().received == 0


def test_invalid_arguments_are_refused(join: Join) -> None:
    node = join("node")
    node.publish("topic", 1, "state")
    refused: list[Callable[[], Any]] = [
        lambda: Node("@me"),
        lambda: Node("a//b"),
        lambda: Node("me", role="a b"),
        lambda: Node("me", mesh="one/two"),
        lambda: node.publish("*", 1),
        lambda: node.publish("topic", 1, "stream"),
        lambda: node.publish("other", 1, "letter"),
        lambda: node.publish("topic", 1, step=1.5),  # type: ignore[arg-type]
        lambda: node.publish("topic", 1, step=2**80),
        lambda: node.publish("topic", bytes(64 * 2**20 + 1)),
        lambda: node.subscribe("a//b"),
        lambda: node.subscribe(""),
        lambda: node.subscribe("a"),
        lambda: node.subscribe("*"),
        lambda: node.subscribe("a/b", depth=0),
        lambda: node.subscribe("a/b", history=0),
        lambda: node.subscribe("a/b", handler="print"),  # type: ignore[arg-type]
        lambda: node.serve("a", print, threads=0),
        lambda: node.serve("a", None),  # type: ignore[arg-type]
        lambda: node.serve("a/*", print),
        lambda: node.request("a", "*"),
        lambda: node.request("a", "b", timeout=0),
        lambda: node.request("a", "b", again=-1),
    ]
    for call in refused:
        with pytest.raises(InvalidArgument):
            call()
    assert node.sent() == {"topic": 1}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Node(7), "name=7: a name is expected, which is text, not int"),
        (lambda: Node("a", mesh=7), "mesh=7: a name is expected"),
        (lambda: Node("a", mesh=None), "mesh=None: a name is expected"),
        (lambda: Node("a", role=7), "role=7: a name is expected"),
        (lambda: Node("a", role=None), "role=None: a name is expected"),
        (lambda: Node("a", topology="local"), "topology='local': a Topology is expected"),
        (lambda: Node("a", topology=Topology.local), "topology=<bound method"),
        (lambda: Node("a", topology=0), "topology=0: a Topology"),
        (lambda: Node("a", roles="camera"), "roles='camera': a list of names"),
        (lambda: Node("a", roles=7), "roles=7: a list of names"),
        (lambda: Node("a", roles=["b", 7]), "roles=7: a name is expected"),
        (lambda: Node("a", visible="no"), "visible='no': True or False"),
        (lambda: Node("a", announce=3), "announce=3: True or False"),
        (lambda: Topology(7), "mode=7: one of local"),
        (lambda: Topology("client", 7), "connect=7: a tuple of addresses"),
        (lambda: Topology("peer", listen=None), "listen=None: a tuple of addresses"),
        (lambda: Topology("client", ("tls/h:1",), tls="keys"), "tls='keys': a Tls is expected"),
        (lambda: Topology("client", ("tcp/h:1",), insecure="yes"), "insecure='yes': True or False"),
        (lambda: Topology("router", acl=7), "acl=7: the path of a file"),
        (lambda: Topology(zenoh_config=7), "zenoh_config=7: the path of a file"),
        (lambda: Topology(seed_port="x"), "seed_port='x': a whole number"),
        (lambda: Topology(seed_port=70000), "seed_port=70000: must be 65535 or less"),
        (lambda: Topology(connect_timeout="1"), "connect_timeout='1': a number of seconds"),
        (lambda: Topology(connect_timeout=None), "connect_timeout=None: a number of seconds"),
        (lambda: Tls("ca.pem", 7, "key"), "certificate=7: the path of a file"),
        (lambda: Tls.from_folder(7, "arm"), "folder=7: the path of a file"),
        (lambda: Router(7), "listen=7: a list of addresses"),
        (lambda: Router(connect=7), "connect=7: a list of addresses"),
        (lambda: Router(acl=7), "acl=7: the path of a file"),
        (lambda: Router(revoked=7), "revoked=7: the path of a file"),
        (lambda: Router(zenoh_config=7), "zenoh_config=7: the path of a file"),
    ],
)
def test_arguments_of_a_wrong_type_are_named(call: Callable[[], Any], text: str) -> None:
    with pytest.raises((InvalidArgument, InvalidType)) as caught:
        call()
    assert str(caught.value).startswith(text)


def test_paths_may_be_text_and_addresses_a_list() -> None:
    tls = Tls("ca.pem", "arm.pem", Path("arm.key"))
    topology = Topology("client", ["tls/robot:7447"], tls=tls, acl="rules.json5")
    assert topology == Topology("client", ("tls/robot:7447",), tls=tls, acl=Path("rules.json5"))
    assert tls.authority == Path("ca.pem")
    assert Topology.from_data(topology.as_data()) == topology


def test_times_and_handlers_of_a_wrong_type_are_named(join: Join) -> None:
    node: Any = join("node")
    for call, text in (
        (lambda: node.wait_for(7, 1.0), "names=7: the name of a node"),
        (lambda: node.wait_for("b", "1"), "timeout='1': a number of seconds"),
        (lambda: node.wait_for("b", None), "timeout=None: a number of seconds"),
        (lambda: node.wait_for_subscribers("b", "1"), "timeout='1': a number of seconds"),
        (lambda: node.peers("1"), "timeout='1': a number of seconds"),
        (lambda: node.on_join(7), "handler=7: a function"),
        (lambda: node.on_leave(None), "handler=None: a function"),
    ):
        with pytest.raises((InvalidArgument, InvalidType)) as caught:
            call()
        assert str(caught.value).startswith(text)
    assert node.wait_for("b", 0) == ["b"]


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (lambda node: node.publish("/scan", 1), "Leave out the slash at its start or end: 'scan'"),
        (lambda node: node.subscribe("/camera/scan", print), "Leave out the slash at its start or end: 'camera/scan'"),
        (lambda node: node.subscribe("scan", print), "Put the name of the node before the topic"),
        (lambda node: node.publish("map", 1, "latched"), 'gets the last message of a "state" topic'),
    ],
)
def test_what_users_of_ros_write_first_is_answered_with_what_works(
    join: Callable[..., Node], given: Callable[[Node], Any], hint: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(hint)):
        given(join("node"))


def test_a_large_message_arrives_whole(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/*")
    meet(sender, receiver)
    largest = bytes(range(256)) * (64 * 2**20 // 256)
    sender.publish("bulk", largest, "bulk")
    sender.publish("bulk", np.arange(2**20))
    first, second = take(channel, 2)
    assert first == largest
    assert (second == np.arange(2**20)).all()


# --- to end ---


def test_a_closed_node_raises(join: Join) -> None:
    node = join("node")
    channel = node.subscribe("**")
    node.close()
    node.close()
    uses: list[Callable[[], Any]] = [
        lambda: node.publish("topic", 1),
        lambda: node.subscribe("**"),
        lambda: node.serve("topic", print),
        lambda: node.request("other", "topic"),
        lambda: node.peers(),
        lambda: node.wait_for(["other"], 1),
        lambda: node.on_join(print),
        lambda: channel.get(1),
        lambda: node.session,
    ]
    for use in uses:
        with pytest.raises(MeshClosed):
            use()
    assert list(channel) == []
    assert "closed" in repr(node)


def _close_in_handler(node: Node, other: Node, done: threading.Event) -> None:
    def handle(message: Any) -> None:
        node.close()
        done.set()

    node.subscribe("other/topic", handle)
    meet(node, other)
    other.publish("topic", 1)


def _close_in_service(node: Node, other: Node, done: threading.Event) -> None:
    def handle(message: Any) -> None:
        node.close()
        done.set()

    node.serve("end", handle)
    meet(node, other)
    with pytest.raises(ConnectionError):
        other.request("node", "end", timeout=LIMIT_S)


def _close_in_join(node: Node, other: Node, done: threading.Event) -> None:
    def handle(peer: Any) -> None:
        node.close()
        done.set()

    node.on_join(handle)


@pytest.mark.parametrize("close", [_close_in_handler, _close_in_service, _close_in_join])
def test_a_node_may_be_closed_by_its_own_handlers(join: Join, close: Callable[..., None]) -> None:
    node, other = join("node"), join("other")
    node.serve("more", print)
    node.subscribe("**", print)
    done = threading.Event()
    close(node, other, done)
    assert done.wait(LIMIT_S)
    until(lambda: other.peers(ask=False) == [], "the other to see that it has left")


def test_a_part_that_cannot_be_stopped_keeps_no_other_from_it(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    class Token:
        def undeclare(self) -> None:
            raise ValueError("the token")

    def fail() -> None:
        raise ValueError("the links")

    node = join("closing")
    subscription = node.subscribe("*/x", print)
    node.serve("echo", lambda message: message.value)
    links = node._links
    assert links is not None
    stop = links._stop
    monkeypatch.setattr(links, "_stop", fail)
    monkeypatch.setattr(node, "_token", Token())
    with pytest.raises(ValueError, match="the links"):
        node.close()
    stop()
    assert subscription.closed
    assert node._membership.closed
    assert node._session.is_closed()
    node.close()


def test_a_node_closes_once_from_many_threads_that_use_it(join: Join) -> None:
    node, other = join("node"), join("other")
    node.serve("echo", lambda message: message.value)
    heard = other.subscribe("node/count")
    meet(node, other)
    odd: list[BaseException] = []

    def use(call: Callable[[], Any]) -> None:
        try:
            while True:
                call()
        except MeshClosed:
            pass
        except BaseException as error:
            odd.append(error)

    calls: list[Callable[[], Any]] = [
        lambda: node.publish("count", 1),
        lambda: node.publish("state", 1, "state"),
        lambda: node.subscribe("other/*").close(),
        lambda: node.serve("short", print).close(),
        lambda: node.peers(),
        lambda: node.request("node", "echo"),
    ]
    threads = [threading.Thread(target=use, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    take(heard, 20)
    closers = [threading.Thread(target=node.close) for _ in range(3)]
    for thread in closers:
        thread.start()
    for thread in (*closers, *threads):
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert odd == []
    until(lambda: other.peers(ask=False) == [], "the other to see that it has left")


def test_repeated_declarations_leak_no_memory(join: Join, mesh: str) -> None:
    base = join("base")
    me = psutil.Process()

    def round_of(count: int) -> tuple[int, int]:
        for number in range(count):
            with Node(f"node-{number}", mesh=mesh) as node:
                for one in range(5):
                    base.subscribe(f"node-{number}/{one}", print).close()
                    base.serve(f"topic-{one}", print, threads=2).close()
                node.publish("topic", 1, "state")
        return me.num_threads(), me.num_fds()

    round_of(5)
    before = round_of(10)
    after = round_of(20)
    # The number of Zenoh's own threads varies by one or two.
    assert after[0] <= before[0] + 4
    assert after[1] <= before[1] + 4
    assert len(base._subscriptions) <= 1
    assert len(base._services) <= 1


def test_closing_before_the_threads_run_is_silent(
    join: Join, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    node, gate = join("node"), threading.Event()

    def start_late(one: Declaration, name: str, target: Callable[[], None], *threads: int) -> None:
        start(one, name, lambda: (gate.wait(LIMIT_S), target())[1], *threads)

    start = Declaration._start
    monkeypatch.setattr(Declaration, "_start", start_late)
    ones: list[Declaration] = [node.subscribe("node/topic", print), node.serve("topic", print, threads=2)]
    for one in ones:
        one._stop()
    gate.set()
    until(lambda: not any(thread.is_alive() for one in ones for thread in one._threads), "their threads to end")
    assert capfd.readouterr() == ("", "")


_LEFT_OPEN = """
node, other = Node("node", mesh=mesh), Node("other", mesh=mesh, visible=False)
for one in (node, other):
    one.subscribe("**", lambda message: None)
    one.subscribe("*/state")
    one.serve("topic", lambda message: None)
    one.on_join(lambda peer: None)
    one.publish("topic", 1)
    one.publish("state", 1, "state")
"""


_STUCK = """
inside = threading.Event()
node.subscribe("other/stuck", lambda message: (inside.set(), time.sleep(60)))
other.wait_for_subscribers("stuck", 20)
other.publish("stuck", 1)
sys.exit(5 if inside.wait(20) else 6)
"""


@pytest.mark.parametrize(
    ("end", "status", "text"),
    [
        ("", 0, ""),
        ("raise ValueError('at the end')", 1, "ValueError: at the end\n"),
        ("sys.exit(7)", 7, ""),
        ("node.publish('topic', bytes(64 * 2**20 + 1))", 1, "at most\n"),
        (_STUCK, 5, ""),
    ],
    ids=["end", "raise", "exit", "refused", "stuck"],
)
def test_a_script_that_leaves_a_node_open_ends(child: Start, end: str, status: int, text: str) -> None:
    process = child(_LEFT_OPEN + end, stderr=subprocess.PIPE).process
    _, errors = process.communicate(timeout=1.5 * LIMIT_S)
    assert process.returncode == status, errors
    assert errors.decode().endswith(text)
    assert b"Traceback" in errors if status == 1 else errors == b""


def test_ctrl_c_interrupts_a_wait(child: Start) -> None:
    script = """
    def interrupted(wait):
        threading.Thread(target=send, args=("waits",)).start()
        try:
            wait()
        except KeyboardInterrupt:
            send("interrupted")

    with Node("node", mesh=mesh) as node, Node("other", mesh=mesh) as other:
        other.serve("never", lambda message: (threading.Event().wait(1), time.sleep(20)))
        channel = node.subscribe("**")
        interrupted(channel.get)
        interrupted(lambda: channel.get(60))
        interrupted(lambda: next(iter(channel)))
        interrupted(lambda: node.wait_for(["nobody"], 60))
        interrupted(lambda: node.request("other", "never", timeout=60))
        send("ends")
        os._exit(3)
    """
    process = child(script)
    for _ in range(5):
        assert process.receive() == "waits"
        time.sleep(0.2)  # until it really waits: an earlier signal would be noticed as well, and prove less
        begun = time.monotonic()
        process.process.send_signal(signal.SIGINT)
        assert process.receive() == "interrupted"
        assert time.monotonic() - begun < LIMIT_S / 2
    assert process.receive() == "ends"
    assert process.process.wait(LIMIT_S) == 3


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_use_in_a_forked_process_raises(mesh: str) -> None:
    script = """
    import os, sys
    from neuraxis.errors import ForkedProcess
    from neuraxis.mesh import Node
    node = Node("node", mesh=sys.argv[1])
    channel = node.subscribe("**")
    node.serve("topic", print)
    node.publish("topic", 1)
    if os.fork() == 0:
        uses = [
            lambda: node.publish("topic", 1), lambda: node.subscribe("a"), lambda: node.serve("b", print),
            lambda: node.request("a", "b"), node.peers, lambda: node.wait_for("b", 1), channel.get,
        ]
        refused = 0
        for use in uses:
            try:
                use()
            except ForkedProcess:
                refused += 1
        channel.close()
        sys.exit(refused)  # with all that runs at an exit
    _, status = os.wait()
    node.publish("topic", 2)
    print(os.waitstatus_to_exitcode(status), [peer.name for peer in node.peers()])
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), mesh],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("7 []\n", 0), done.stderr


# --- to show ---


def test_a_prompt_and_a_notebook_show_a_node_and_its_peers(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    node = join("looker")
    assert repr(node).startswith("<Node 'looker' on mesh ")
    assert "0 other nodes" in text_of(node)
    # The transport refuses such a name; if it did not, the page would still be a table.
    monkeypatch.setattr(node._membership, "peers", lambda: [Peer(HOSTILE, HOSTILE, HOSTILE, 1, 1)])
    text = text_of(node)
    assert "1 other node\n" in text
    assert text.count(HOSTILE) == 3
    node.close()
    assert repr(node).endswith(", closed>")
    assert "closed: 0 other nodes" in text_of(node)
