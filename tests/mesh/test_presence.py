"""Who is here: joins and leaves of every sort are noticed, names are taken once, and no node is special."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from neuraxis.errors import MeshError, NodeGone
from neuraxis.mesh import Node, Peer, Router
from neuraxis.mesh.keys import presence_key
from neuraxis.mesh.topology import seed_port
from tests.mesh.conftest import LIMIT_S, Child, client_of, meet, settle
from tests.mesh.raw import until

Join = Callable[..., Node]
Start = Callable[..., Child]

NODE = """
with Node(arguments, "arm", mesh=mesh) as node:
    node.publish("topic", 1)
    say("ready")
    hear()
"""


class Watch:
    """What a node saw come and go, in order."""

    def __init__(self, node: Node) -> None:
        self.seen: list[tuple[str, str]] = []
        node.on_join(lambda peer: self.seen.append(("join", peer.name)))
        node.on_leave(lambda peer: self.seen.append(("leave", peer.name)))

    def wait(self, *expected: tuple[str, str]) -> None:
        until(lambda: len(self.seen) >= len(expected), f"to see {expected}; seen {self.seen}")
        assert self.seen == list(expected)


def names(node: Node) -> list[str]:
    return [peer.name for peer in node.peers(ask=False)]


# --- joins and leaves ---


def test_joins_and_leaves_are_seen(join: Join) -> None:
    base, early = join("base"), join("early")
    meet(base, early)
    watch = Watch(base)
    watch.wait(("join", "early"))
    late = join("late")
    watch.wait(("join", "early"), ("join", "late"))
    early.close()
    late.close()
    watch.wait(("join", "early"), ("join", "late"), ("leave", "early"), ("leave", "late"))
    assert base.peers() == []


@pytest.mark.parametrize("end", ["kill", "stop", "close"])
def test_the_end_of_a_process_is_noticed(join: Join, child: Start, end: str) -> None:
    base, other = join("base"), child(NODE, "other")
    watch = Watch(base)
    assert other.said() == "ready"
    watch.wait(("join", "other"))
    if end == "kill":
        other.process.kill()
    elif end == "stop":
        other.stop()
    else:
        other.tell()
    watch.wait(("join", "other"), ("leave", "other"))
    assert base.peer("other") is None
    with pytest.raises(NodeGone):
        base.request("other", "topic")
    if end == "stop":
        other.go_on()
        watch.wait(("join", "other"), ("leave", "other"), ("join", "other"))


def test_what_is_known_of_a_peer(join: Join) -> None:
    begun = time.time()
    base, arm, camera = (
        join("base", "driver"),
        join("arm/left", "arm", roles=("camera", "spare")),
        join("eye", "camera"),
    )
    meet(base, arm, camera)
    arm.publish("angle", 1.0)
    arm.publish("mode", "rest", "state")
    arm.step = 70
    first, second = base.peers(LIMIT_S)
    assert first == Peer(
        "arm/left", "arm", socket.gethostname(), os.getpid(), arm.incarnation, ("camera", "spare"),
        70, {"angle": "stream", "mode": "state"},
    )  # fmt: skip
    assert (second.name, second.step, second.topics) == ("eye", None, {})
    assert begun - 1 <= first.since <= time.time() + 1
    assert base.peer("eye") == Peer("eye", "camera", socket.gethostname(), os.getpid(), camera.incarnation)
    assert [peer.name for peer in base.with_role("camera")] == ["arm/left", "eye"]
    assert [peer.name for peer in arm.with_role("driver")] == ["base"]
    assert base.with_role("cook") == []


def test_a_peer_that_does_not_answer_is_told_of_all_the_same(join: Join, child: Start) -> None:
    base, other, stuck = join("base"), join("other"), child(NODE, "stuck")
    assert stuck.said() == "ready"
    meet(base, other)
    assert base.wait_for(["stuck"], LIMIT_S) == []
    stuck.stop()
    asked = base.peers(0.2)
    assert [(peer.name, peer.topics) for peer in asked] == [("other", {}), ("stuck", None)]


def test_an_invisible_node_sees_and_is_not_seen(join: Join, mesh: str) -> None:
    base = join("base")
    base.serve("echo", lambda message: message.value)
    watch = Watch(base)
    with Node("base", mesh=mesh, visible=False) as looker:
        channel = looker.subscribe("base/*")
        assert looker.wait_for(["base"], LIMIT_S) == []
        settle(looker)
        base.publish("number", 1)
        assert channel.get(LIMIT_S).value == 1
        assert looker.request("base", "echo", 2) == 2
        assert looker.peers(LIMIT_S)[0].topics == {"number": "stream"}
        assert base.peers() == []
    last = join("last")
    meet(base, last)
    watch.wait(("join", "last"))


def test_a_node_that_is_announced_later_is_seen_later(join: Join) -> None:
    base, shy = join("base"), join("shy", announce=False)
    watch = Watch(base)
    shy.serve("echo", lambda message: message.value)
    assert shy.wait_for(["base"], LIMIT_S) == []
    settle(shy)
    assert names(base) == []
    shy.announce()
    shy.announce()
    watch.wait(("join", "shy"))
    assert base.request("shy", "echo", 1) == 1


def test_waiting_for_nodes(join: Join) -> None:
    base = join("base")
    assert base.wait_for(["one", "two"], 0.05) == ["one", "two"]
    join("one")
    assert base.wait_for(["one"], LIMIT_S) == []
    assert base.wait_for(["two", "one"], 0.05) == ["two"]
    assert base.wait_for([], 0) == []


# --- handlers ---


def test_a_handler_of_joins_may_ask_who_comes_and_wait_for_others(join: Join) -> None:
    base = join("base")
    answers: list[Any] = []

    def meet_one(peer: Peer) -> None:
        if peer.name == "first":
            answers.append(base.wait_for(["second"], LIMIT_S))
            answers.append(base.request("first", "echo", "answer", timeout=LIMIT_S))
            first.close()
            until(lambda: base.peer("first") is None, "to see the leave while the join is being handled")
        raise ValueError("a handler that raises is called again")

    base.on_join(meet_one)
    watch = Watch(base)
    first = join("first", announce=False)
    first.serve("echo", lambda message: message.value)
    first.announce()
    join("second")
    watch.wait(("join", "first"), ("join", "second"), ("leave", "first"))
    assert answers == [[], "answer"]


def test_a_leave_is_never_told_before_its_join(join: Join, mesh: str) -> None:
    base = join("base")
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            Node("other", mesh=mesh).close()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    watches = []
    for _ in range(20):
        watches.append(Watch(base))
        time.sleep(0.01)  # so that some begin while it is here, and some while it is not
    stop.set()
    thread.join(LIMIT_S)
    until(lambda: names(base) == [], "it to be gone for good")
    end = join("end")
    for watch in watches:
        until(lambda watch=watch: ("join", "end") in watch.seen, "the end")
        of_other = [what for what, name in watch.seen if name == "other"]
        # A watch whose two handlers were registered around a leave may begin with it.
        pairs = of_other[1:] if of_other[:1] == ["leave"] else of_other
        assert pairs == ["join", "leave"] * (len(pairs) // 2)
    end.close()


# --- names ---


def test_a_name_is_taken_once(join: Join, mesh: str) -> None:
    first = join("sensor/thermal")
    with pytest.raises(MeshError, match=rf"'sensor/thermal' is on the mesh .* already \(process {os.getpid()} on"):
        Node("sensor/thermal", mesh=mesh)
    inner, outer = join("sensor/thermal/left"), join("sensor")
    meet(first, inner, outer)
    with Node("sensor/thermal", mesh=mesh + "-other") as other:
        assert other.peers() == []


def test_a_node_that_died_is_replaced_at_once(join: Join, child: Start) -> None:
    base = join("base")
    lives = []
    for _ in range(2):
        other = child(NODE, "other")
        assert other.said() == "ready"
        assert base.wait_for(["other"], LIMIT_S) == []
        lives.append(base.peer("other"))
        other.process.kill()
    with_the_same_name = join("other")
    until(lambda: base.peer("other") is not None and base.peer("other").pid == os.getpid(), "the third life")
    assert len({one.incarnation for one in (*lives, with_the_same_name)}) == 3
    assert len(base.peers()) == 1


def test_two_that_reach_each_other_late_are_told_that_they_share_a_name(
    join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    """They begin on routers that nothing connects."""
    with Router(["tcp/127.0.0.1:0"]) as left, Router(["tcp/127.0.0.1:0"]) as right:
        first = join("node", topology=client_of(left.endpoints[0]))
        second = join("node", topology=client_of(right.endpoints[0]))
        with Router(["tcp/127.0.0.1:0"], connect=[left.endpoints[0], right.endpoints[0]]):
            until(lambda: names(first) == names(second) == ["node"], "them to see each other")
            until(lambda: sum("another node called 'node'" in text for text in caplog.messages) == 2, "the warnings")


# --- the seed ---


def test_no_node_is_special(join: Join, child: Start, mesh: str) -> None:
    """Whoever has the seed port dies, ten times: the others still see each other, and who comes finds all of them."""
    seed = child(NODE, "seed")
    assert seed.said() == "ready"
    steady = [join("steady-1"), join("steady-2")]
    meet(*steady)
    seed.process.kill()
    for one in steady:
        until(lambda one=one: len(names(one)) == 1, "the end of the seed")
    for number in range(10):
        # Each newcomer takes the seed port, for nobody has it, and must find those that came by an earlier one.
        newcomer = join("newcomer")
        assert _listens(seed_port(mesh)), "the newcomer has the port"
        assert newcomer.wait_for(["steady-1", "steady-2"], LIMIT_S) == [], f"in round {number}"
        for one in steady:
            assert one.wait_for(["newcomer"], LIMIT_S) == []
        second = join("second")
        assert second.wait_for(["steady-1", "steady-2", "newcomer"], LIMIT_S) == []
        channel = second.subscribe("steady-1/*")
        settle(second)
        steady[0].publish("number", number)
        assert channel.get(LIMIT_S).value == number
        newcomer.close()
        second.close()
        for one in steady:
            until(lambda one=one: len(names(one)) == 1, "both to be gone")


def test_who_is_here_stays_when_the_seed_is_killed(join: Join, child: Start) -> None:
    seed = child(NODE, "seed")
    assert seed.said() == "ready"
    others = [join(f"other-{number}") for number in range(3)]
    meet(*others)
    channel = others[1].subscribe("other-0/*")
    settle(others[1])
    watch = Watch(others[2])
    until(lambda: len(watch.seen) == 3, "the three")
    seed.process.kill()
    until(lambda: ("leave", "seed") in watch.seen, "its end")
    others[0].publish("number", 1)
    assert channel.get(LIMIT_S).value == 1
    assert [seen for seen in watch.seen if seen[0] == "leave"] == [("leave", "seed")]
    newcomer = join("newcomer")
    assert newcomer.wait_for([one.name for one in others], LIMIT_S) == []
    meet(newcomer, *others)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# --- strangers ---


def test_odd_tokens_are_nobody(join: Join, mesh: str) -> None:
    base, other = join("base"), join("other")
    meet(base, other)
    watch = Watch(base)
    odd = [presence_key(mesh, one) for one in ("x", "x/y", "x/!!", "x/gA", "@x/gA", "%x/gA")]
    tokens = [other.session.liveliness().declare_token(key) for key in odd]
    third = join("third")
    watch.wait(("join", "other"), ("join", "third"))
    for token in tokens:
        token.undeclare()
    third.close()
    watch.wait(("join", "other"), ("join", "third"), ("leave", "third"))


def test_a_port_that_somebody_else_has_is_told(join: Join, mesh: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", seed_port(mesh))):
        node = join("node")
        assert f"port, {seed_port(mesh)}, does not answer as a node" in caplog.text
        assert node.peers() == []
