"""Presence: joins and leaves of every kind are detected, names are unique, and no node is special."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest

from neuraxis.errors import MeshError, NodeGone
from neuraxis.mesh import Node, Peer, Router
from neuraxis.mesh import membership as peers
from neuraxis.mesh.keys import presence_key
from neuraxis.mesh.links import LinkMonitor, _Lost
from neuraxis.mesh.topology import seed_port, seed_ports
from tests.mesh.conftest import LIMIT_S, Child, client_of, meet, settle
from tests.mesh.raw import router_process, until

Join = Callable[..., Node]
Start = Callable[..., Child]

NODE = """
with Node(arguments, "arm", mesh=mesh) as node:
    node.publish("topic", 1)
    send("ready")
    receive()
"""


class Watch:
    """Joins and leaves that a node has seen, in order."""

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
    assert other.receive() == "ready"
    watch.wait(("join", "other"))
    if end == "kill":
        other.process.kill()
    elif end == "stop":
        other.stop()
    else:
        other.send()
    watch.wait(("join", "other"), ("leave", "other"))
    assert base.peer("other") is None
    with pytest.raises(NodeGone):
        base.request("other", "topic")
    if end == "stop":
        other.resume()
        watch.wait(("join", "other"), ("leave", "other"), ("join", "other"))


def test_attributes_of_a_peer(join: Join) -> None:
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


def test_an_unresponsive_peer_is_listed(join: Join, child: Start) -> None:
    base, other, stuck = join("base"), join("other"), child(NODE, "stuck")
    assert stuck.receive() == "ready"
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


def test_a_join_handler_may_query_the_new_node_and_wait_for_others(join: Join) -> None:
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


def test_tracebacks_of_handlers_are_limited_for_each_handler_and_event(
    join: Join, mesh: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that may declare tokens can make a handler raise arbitrarily often."""
    base, other = join("base"), join("other")
    meet(base, other)
    calls: Counter[str] = Counter()

    def fail(name: str) -> Callable[[Peer], None]:
        def handle(peer: Peer) -> None:
            if peer.name.startswith("fake"):
                calls[name] += 1
                raise ValueError(f"{name}: {peer.name}")

        return handle

    base.on_join(fail("first"))
    base.on_join(fail("second"))
    base.on_leave(fail("third"))
    for number in range(50):
        fake = Peer(f"fake/{number}", "", "nowhere", 1, number)
        other.session.liveliness().declare_token(peers.token_key(mesh, fake)).undeclare()
    until(lambda: calls == {"first": 50, "second": 50, "third": 50}, "all calls")

    def logged() -> list[tuple[str, str]]:
        found = [record for record in caplog.records if "raised for node fake" in record.getMessage()]
        return [(record.getMessage(), str(record.exc_info and record.exc_info[1])) for record in found]

    assert logged() == [
        ("membership: an on_join handler raised for node fake/0", "first: fake/0"),
        ("membership: an on_join handler raised for node fake/0", "second: fake/0"),
        ("membership: an on_leave handler raised for node fake/0", "third: fake/0"),
    ]
    for limit in base._membership._handler_errors.values():
        monkeypatch.setattr(limit, "_interval_s", 0.0)
    token = other.session.liveliness().declare_token(peers.token_key(mesh, Peer("fake/last", "", "nowhere", 1, 1)))
    until(lambda: len(logged()) == 5, "a line after the interval")
    assert logged()[-1][0] == "membership: an on_join handler raised for node fake/last (49 more since the last line)"
    token.undeclare()


def test_a_leave_is_never_reported_before_its_join(join: Join, mesh: str) -> None:
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
        assert other.receive() == "ready"
        assert base.wait_for(["other"], LIMIT_S) == []
        lives.append(base.peer("other"))
        other.process.kill()
    with_the_same_name = join("other")
    until(lambda: base.peer("other") is not None and base.peer("other").pid == os.getpid(), "the third life")
    assert len({one.incarnation for one in (*lives, with_the_same_name)}) == 3
    assert len(base.peers()) == 1


def test_two_nodes_with_one_name_that_meet_late_get_an_error(join: Join, caplog: pytest.LogCaptureFixture) -> None:
    """Both start on routers that nothing connects."""
    with Router(["tcp/127.0.0.1:0"]) as left, Router(["tcp/127.0.0.1:0"]) as right:
        first = join("node", topology=client_of(left.endpoints[0]))
        second = join("node", topology=client_of(right.endpoints[0]))
        with Router(["tcp/127.0.0.1:0"], connect=[left.endpoints[0], right.endpoints[0]]):
            until(lambda: names(first) == names(second) == ["node"], "them to see each other")
            until(lambda: sum("another node called 'node'" in text for text in caplog.messages) == 2, "the warnings")


# --- the seed ---


def test_no_node_is_special(join: Join, child: Start, mesh: str) -> None:
    """The holder of the seed port dies, ten times: the others still see each other, and new nodes find all of them."""
    seed = child(NODE, "seed")
    assert seed.receive() == "ready"
    steady = [join("steady-1"), join("steady-2")]
    meet(*steady)
    seed.process.kill()
    for one in steady:
        until(lambda one=one: len(names(one)) == 1, "the end of the seed")
    for number in range(10):
        # Each new node takes the free seed port, and must find nodes that joined through an earlier one.
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


def test_membership_survives_the_death_of_the_seed_node(join: Join, child: Start) -> None:
    seed = child(NODE, "seed")
    assert seed.receive() == "ready"
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


def test_malformed_presence_tokens_are_ignored(join: Join, mesh: str, caplog: pytest.LogCaptureFixture) -> None:
    base, other = join("base"), join("other")
    meet(base, other)
    watch = Watch(base)
    odd = [presence_key(mesh, one) for one in ("x", "x/y", "x/!!", "x/gA", "%x/gA", f"x/{'g' * 10_000}")]
    tokens = [other.session.liveliness().declare_token(key) for key in odd]
    third = join("third")
    watch.wait(("join", "other"), ("join", "third"))
    for token in tokens:
        token.undeclare()
    third.close()
    watch.wait(("join", "other"), ("join", "third"), ("leave", "third"))
    assert base._membership.malformed == 2 * len(odd), "they are counted, when they come and when they go"
    logged = [text for text in caplog.messages if "are malformed" in text]
    assert len(logged) <= 3, "each of the three nodes logs them once per interval"


def test_more_tokens_than_are_kept(
    join: Join, mesh: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "MAX_PEERS", 20)
    base, other = join("base"), join("other")
    meet(base, other)
    fakes = [Peer(f"fake/{number}", "", "nowhere", 1, number) for number in range(50)]
    tokens = [other.session.liveliness().declare_token(peers.token_key(mesh, fake)) for fake in fakes]
    until(lambda: base._membership.surplus == 31, "all to be looked at")
    assert len(names(base)) == 20
    assert sum("more than 20 nodes" in text for text in caplog.messages) == 2, "each of the two nodes warns once"
    for token in tokens[:40]:
        token.undeclare()
    until(lambda: names(base) == sorted(["other", *(fake.name for fake in fakes[40:])]), "the rest to be seen")
    until(lambda: sum("all 11 nodes are tracked again" in text for text in caplog.messages) == 1, "the log line")
    for token in tokens[40:]:
        token.undeclare()
    until(lambda: names(base) == ["other"], "them to be gone")


def test_many_lives_of_one_name(join: Join, mesh: str) -> None:
    base, other = join("base"), join("other")
    meet(base, other)
    fakes = [Peer("fake", "", "nowhere", 1, number) for number in range(30)]
    tokens = [other.session.liveliness().declare_token(peers.token_key(mesh, fake)) for fake in fakes]
    until(lambda: base._membership.surplus == 14, "all to be looked at")
    assert base.peer("fake") == fakes[15]
    asked = Asked(base.session)
    base._membership._session = asked
    for _ in range(10):
        base._membership.recover()
    assert asked.times == 0, "there is no room for them, so they are not asked for"
    for token in tokens[:16]:
        token.undeclare()
    until(lambda: base.peer("fake") == fakes[29], "those to be seen that found no room")
    for _ in range(10):
        base._membership.recover()
    assert 1 <= asked.times <= 4
    for token in tokens[16:]:
        token.undeclare()
    until(lambda: names(base) == ["other"], "them to be gone")


class Asked:
    """A session that counts the queries for all tokens."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.times = 0

    def liveliness(self) -> Any:
        return self

    def get(self, *arguments: Any, **options: Any) -> Any:
        self.times += 1
        return self.session.liveliness().get(*arguments, **options)


def test_slow_handlers_of_joins_and_leaves_do_not_pile_up_calls(
    join: Join, mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MAX_PEERS", 20)
    base, other = join("base"), join("other")
    meet(base, other)
    reported: list[tuple[str, str, int]] = []
    may_go_on = threading.Event()

    def joined(peer: Peer) -> None:
        may_go_on.wait(LIMIT_S)
        reported.append(("join", peer.name, peer.incarnation))

    base.on_leave(lambda peer: reported.append(("leave", peer.name, peer.incarnation)))
    base.on_join(joined)
    steady = other.session.liveliness().declare_token(peers.token_key(mesh, Peer("steady", "", "nowhere", 1, 1)))
    for number in range(200):
        fake = Peer(f"fake/{number}", "", "nowhere", 1, number)
        other.session.liveliness().declare_token(peers.token_key(mesh, fake)).undeclare()
    steady.undeclare()
    last = other.session.liveliness().declare_token(peers.token_key(mesh, Peer("last", "", "nowhere", 1, 1)))
    assert base.wait_for(["last"], LIMIT_S) == []
    may_go_on.set()
    until(lambda: ("join", "last", 1) in reported, "the last one to be reported")
    assert len(reported) < 100
    here = set()
    for what, name, life in reported:
        assert ((name, life) in here) == (what == "leave"), reported
        (here.add if what == "join" else here.remove)((name, life))
    last.undeclare()


def test_a_node_whose_token_was_dropped_is_seen_again_when_it_renews_the_token(join: Join, mesh: str) -> None:
    """Zenoh drops the token of a node on one side of a restored link; the other nodes see no leave."""
    one, two, three = join("one"), join("two"), join("three")
    meet(one, two, three)
    watches = [Watch(node) for node in (two, three)]
    for watch in watches:
        until(lambda watch=watch: len(watch.seen) == 2, "the joins to be reported")  # type: ignore[misc]
        watch.seen.clear()
    two._membership._handle_token(peers.token_key(mesh, one.me), False)
    watches[0].wait(("leave", "one"))
    assert names(two) == ["three"]
    one._renew_token()
    watches[0].wait(("leave", "one"), ("join", "one"))
    one._renew_token()
    newer = presence_key(mesh, "one/*")
    until(lambda: two._membership._tokens["one", one.incarnation] == {2}, f"only the newest of {newer}")
    until(lambda: three._membership._tokens["one", one.incarnation] == {2}, f"only the newest of {newer}")
    assert watches[1].seen == []
    assert names(three) == ["one", "two"]


def instructions(function: Callable[[], Any]) -> int:
    """Return how many of Python's instructions a call takes."""
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal counted
        frame.f_trace_opcodes = True
        counted += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        function()
    finally:
        sys.settrace(before)
    return counted


def test_the_cost_of_a_token_does_not_depend_on_their_number(join: Join, mesh: str) -> None:
    """Counted in Python's instructions, for a token that is declared and withdrawn."""
    base = join("base")

    def come_and_go(number: int) -> int:
        """Return the fewest of several counts: a thread that waits for a change adds its wake-up to one of them."""
        key = peers.token_key(mesh, Peer(f"one/{number:05d}", "", "nowhere", 1, 10_000 + number))
        handle = base._membership._handle_token
        return min(instructions(lambda: (handle(key, True), handle(key, False))) for _ in range(20))

    come_and_go(0)  # Python 3.12 counts instructions from the second `sys.settrace` on
    few, few_listed = come_and_go(1), instructions(base._membership.peers)
    for number in range(2000):
        base._membership._handle_token(peers.token_key(mesh, Peer(f"fake/{number}", "", "nowhere", 1, number)), True)
    assert len(names(base)) == 2000
    assert instructions(base._membership.peers) > few_listed + 2000, "the count shows what depends on their number"
    assert come_and_go(2) == few > 0


# --- ports ---


def look(mesh: str, *words: str) -> tuple[int, list[str], str]:
    """Exit status, names and errors of `neuraxis nodes`."""
    command = [sys.executable, "-m", "neuraxis", "nodes", "--json", "--mesh-name", mesh, *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return ended.returncode, [one["name"] for one in json.loads(ended.stdout or "[]")], ended.stderr


def test_nodes_meet_where_another_program_has_the_first_port(
    join: Join, child: Start, mesh: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = seed_ports(mesh)
    with socket.create_server(("127.0.0.1", first)):
        status, found, errors = look(mesh)
        assert (status, found) == (1, []), "an empty mesh is not claimed"
        assert f"something listens on port {first}" in errors
        one, two = join("one"), child(NODE, "two")
        assert one.silent_ports == (first,)
        assert f"port {first} that does not answer as a node" in caplog.text
        assert f"the next port, {second}" in caplog.text
        assert two.receive() == "ready"
        assert one.wait_for(["two"], LIMIT_S) == []
        status, found, errors = look(mesh)
        assert (status, found) == (0, ["one", "two"])
        assert f"something listens on port {first}" in errors
        begun = time.monotonic()
        one.close()
        assert time.monotonic() - begun < 5, "an attempt to connect ends soon"
    # A new node takes the first port, and the nodes that met at the second find it.
    three = join("three")
    assert three.silent_ports == ()
    assert three.wait_for(["two"], LIMIT_S) == []


def test_all_ports_are_taken(mesh: str) -> None:
    with ExitStack() as stack:
        for port in seed_ports(mesh):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        with pytest.raises(MeshError, match=rf"{seed_ports(mesh)[2]}\) are taken by programs.*another mesh name"):
            Node("node", mesh=mesh)
        status, _, errors = look(mesh)
        assert status == 1
        assert "are taken by programs that do not answer as nodes" in errors


def test_nodes_meet_while_the_holder_of_the_port_is_stopped(join: Join, child: Start) -> None:
    holder = child(NODE, "holder")
    assert holder.receive() == "ready"
    early = join("early")
    assert early.wait_for(["holder"], LIMIT_S) == []
    holder.stop()
    until(lambda: names(early) == [], "it to be missed")
    late = join("late")
    assert late.wait_for(["early"], LIMIT_S) == []
    holder.resume()
    for node, others in ((early, ["holder", "late"]), (late, ["early", "holder"])):
        until(lambda node=node, others=others: names(node) == others, "all to see all", 5.0)


SEED = """
with Node("seed", mesh=mesh) as node:
    send("ready")
    while (name := receive()) is not None:
        while any(peer.name == name for peer in node.peers(ask=False)):
            time.sleep(0.01)
        send("gone")
"""


def test_two_that_never_had_a_link_meet_after_the_seed_was_killed(join: Join, child: Start) -> None:
    seed = child(SEED)
    assert seed.receive() == "ready"
    sleeper = child(NODE, "sleeper")
    assert sleeper.receive() == "ready"
    sleeper.stop()
    seed.send("sleeper")
    assert seed.receive() == "gone"
    others = [join("one"), join("two")]
    meet(*others)
    seed.kill()
    sleeper.resume()
    for node in others:
        assert node.wait_for(["sleeper"], LIMIT_S) == []
    held = [node._links._seed_listener for node in others if node._links is not None]
    assert sum(one is not None for one in held) <= 1, "one of them holds the port"
    newcomer = join("newcomer")
    assert newcomer.wait_for(["one", "two", "sleeper"], LIMIT_S) == []


def test_a_step_of_the_links_that_fails_holds_up_no_other(
    join: Join, child: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: object) -> None:
        tried.append(1)
        raise ValueError("a cause")

    tried: list[int] = []
    monkeypatch.setattr(LinkMonitor, "_watch_links", fail)
    monkeypatch.setattr(peers.Membership, "recover", fail)
    base = join("base")
    other = child(NODE, "other")
    assert base.wait_for(["other"], LIMIT_S) == []
    other.kill()
    until(lambda: base.alone, "the others to be counted")
    failures = [text for text in caplog.messages if "it is retried" in text]
    assert len(tried) > 4
    assert len(failures) == 2, "each step is logged once per interval"


def test_a_peer_on_another_machine_is_given_up_after_several_refusals() -> None:
    near, far = (_Lost(f"tcp/{host}:7447", 0.0, 0.0) for host in ("127.0.0.1", "192.0.2.1"))
    assert near.has_ended(False, 1.0)
    assert not any(far.has_ended(False, now) for now in (1.0, 1.1, 1.2, 1.3, 1.4))
    assert not far.has_ended(True, 2.0)
    assert not any(far.has_ended(False, now) for now in (3.0, 5.0, 7.0))
    assert far.has_ended(False, 9.0)
    assert far.has_ended(None, 4000.0)


def test_an_isolated_node_warns(join: Join, child: Start, caplog: pytest.LogCaptureFixture) -> None:
    base, other = join("base"), child(NODE, "other")
    assert other.receive() == "ready"
    assert base.wait_for(["other"], LIMIT_S) == []
    assert not base.alone
    other.process.kill()
    until(lambda: base.alone, "it to say so")
    until(lambda: any("'base' sees no other node" in text for text in caplog.messages), "the warning")
    join("third")
    until(lambda: not base.alone, "it to see another one")
    assert sum("sees no other node" in text for text in caplog.messages) == 1


def test_a_node_that_the_last_other_one_has_left_by_closing_does_not_warn(
    join: Join, child: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "neuraxis.mesh")
    base, killed, other = join("base"), child(NODE, "killed"), child(NODE, "other")
    assert (killed.receive(), other.receive()) == ("ready", "ready")
    assert base.wait_for(["killed", "other"], LIMIT_S) == []
    killed.process.kill()
    until(lambda: names(base) == ["other"], "it to be gone")
    until(lambda: base._links is not None and base._links._vanished == 1, "it to be counted")
    other.send("end")
    until(lambda: base.alone, "it to be alone")
    until(lambda: any("'base' sees no other node" in text for text in caplog.messages), "the line")
    lines = [record for record in caplog.records if "sees no other node" in record.getMessage()]
    assert [record.levelno for record in lines] == [logging.INFO]
    assert lines[0].getMessage().endswith("the last one has closed")
    assert base._membership._leaving == set()


@pytest.mark.parametrize("kind", ["local", "router"])
def test_idle_connections_do_not_block_new_nodes(child: Start, mesh: str, kind: str) -> None:
    """Connections that say nothing: Zenoh refuses all others while too many of them are in their handshake."""
    with ExitStack() as stack:
        if kind == "router":
            endpoints, _ = stack.enter_context(router_process("--listen", "tcp/127.0.0.1:0"))
            port, words = int(endpoints[0].rpartition(":")[2]), ["--connect", endpoints[0]]
        else:
            endpoints, port, words = [], seed_port(mesh), []
        node = child(IDLE, endpoints)
        assert node.receive() == "ready"
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S))
        assert look(mesh, *words) == (0, ["node"], "")


IDLE = """
topology = Topology("client", tuple(arguments)) if arguments else None
with Node("node", mesh=mesh, topology=topology) as node:
    send("ready")
    receive()
"""
