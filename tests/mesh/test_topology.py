"""Topologies: validation, options passed to Zenoh, and isolation of meshes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from neuraxis.errors import InvalidArgument, MeshError
from neuraxis.mesh import Node, Router, Tls, Topology
from neuraxis.mesh.keys import check_expression, check_mesh, check_name, message_key, relative
from neuraxis.mesh.topology import is_loopback, open_session, seed_port, session_config
from tests.mesh.conftest import LIMIT_S, Child, client_of, meet, settle
from tests.mesh.raw import until

Join = Callable[..., Node]
Start = Callable[..., Child]
KEYS = Tls(Path("ca.pem"), Path("arm.pem"), Path("arm.key"))


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp/127.0.0.1:{server.getsockname()[1]}"


# --- what is refused ---


@pytest.mark.parametrize(
    ("endpoint", "word"),
    [
        ("tcp/0.0.0.0:7447", "--insecure"),
        ("tcp/[::]:7447", "--insecure"),
        ("tcp/robot:7447", "--insecure"),
        ("udp/10.0.0.3:7447", "--insecure"),
        ("tcp/127.0.0.1.evil.org:7447", "--insecure"),
        ("tcp/evil.org:7447?127.0.0.1:1", "--insecure"),
        ("tls/robot:7447", "keys"),
        ("quic/127.0.0.1:7447", "keys"),
        ("7447", "an address such as"),
        ("http/127.0.0.1:7447", "an address such as"),
        ("tcp/", "an address such as"),
        ("", "an address such as"),
        ("tcp/127.0.0.1", "a host and a port"),
        ("tcp/127.0.0.1:http", "a host and a port"),
        ("tcp/127.0.0.1:70000", "a host and a port"),
    ],
)
def test_addresses_that_are_refused(endpoint: str, word: str) -> None:
    for mode, listen, connect in (("peer", (endpoint,), ()), ("client", (), ("tcp/localhost:1", endpoint))):
        with pytest.raises(InvalidArgument, match=word):
            Topology(mode, listen=listen, connect=connect)


def test_a_local_topology_refuses_a_router_instead_of_ignoring_it() -> None:
    with pytest.raises(InvalidArgument, match='mode="client"'):
        Topology(connect=("tcp/127.0.0.1:7447",))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"mode": "star"}, "local, client, peer, router"),
        ({"mode": "client"}, "the address of a router"),
        ({"mode": "client", "connect": "tcp/127.0.0.1:7447"}, "a tuple of"),
        ({"mode": "peer", "listen": (7447,)}, "a tuple of"),
        ({"zenoh_config": Path("a.json5"), "tls": KEYS}, "cannot be combined"),
        ({"zenoh_config": Path("a.json5"), "acl": Path("acl.json5")}, "cannot be combined"),
        ({"zenoh_config": Path("a.json5"), "connect": ("tcp/127.0.0.1:1",)}, "cannot be combined"),
        ({"mode": "client", "connect": ("tcp/127.0.0.1:1",), "connect_timeout": 0}, "seconds"),
    ],
)
def test_topologies_that_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidArgument, match=word):
        Topology(**options)


def test_addresses_that_are_accepted() -> None:
    Topology("peer", listen=("tcp/0.0.0.0:7447",), insecure=True)
    Topology("peer", listen=("tls/0.0.0.0:7447", "quic/[::]:7447"), tls=KEYS)
    Topology(
        "peer", listen=("tcp/[::1]:0", "tcp/localhost:7447", "udp/127.1.2.3:7447#iface=lo", "unixsock-stream/a.sock")
    )
    with pytest.raises(InvalidArgument, match="--insecure"):
        Topology("peer", listen=("tcp/0.0.0.0:7447",), tls=KEYS)
    assert is_loopback("tcp/127.0.0.1:1")
    assert not is_loopback("tcp/128.0.0.1:1")
    assert not is_loopback("tcp/127.0.0.1")


def test_names_and_expressions() -> None:
    for name in ("a", "sensor/thermal", "a.b-c_d/1"):
        assert check_name(name, "name") == name
    for name in ("", "/a", "a/", "a//b", "*", "a/**", "@a", "a b", "ä", "a#", "a?", "a\n", 7, None):
        with pytest.raises(InvalidArgument, match="name="):
            check_name(name, "name")
    assert check_mesh("default") == "default"
    with pytest.raises(InvalidArgument, match="one part"):
        check_mesh("a/b")
    for expression in ("a", "a/*", "**", "a/**/b", "*/objects"):
        assert check_expression(expression) == expression
    for expression in ("", "/a", "a/", "a//b", "a/***", 7):
        with pytest.raises(InvalidArgument, match="key_expression="):
            check_expression(expression)
    for name in ("a" * 255, "a/" * 127 + "a"):
        assert check_name(name, "name") == name
    assert check_expression("a" * 1024) == "a" * 1024
    for expression in ("a$*", "a#", "a?b", "a\n", "a\0", "\ud800"):
        with pytest.raises(InvalidArgument, match="special meaning"):
            check_expression(expression)
    assert message_key("mesh", "a/b", "c") == "neuraxis/mesh/a/b/c"
    assert relative("mesh", "neuraxis/mesh/a/b/c") == "a/b/c"


def test_too_long_keys_are_refused(join: Join) -> None:
    """Zenoh panics at keys of 65,536 bytes and more."""
    node, long = join("node"), "a" * 70_000
    refused: list[Callable[[], Any]] = [
        lambda: Node(long),
        lambda: Node("a", mesh=long),
        lambda: Node("a", role=long),
        lambda: Node("a", roles=[long]),
        lambda: Node("a", roles=["b" * 200] * 100),
        lambda: node.publish(long, 1),
        lambda: node.subscribe(long),
        lambda: node.subscribe("*/" * 1000 + "a"),
        lambda: node.poll(long),
        lambda: node.serve(long, print),
        lambda: node.request(long, "topic"),
        lambda: node.request("node", long),
        lambda: node.wait_for_subscribers(long, 0.1),
    ]
    for call in refused:
        with pytest.raises(InvalidArgument, match="Use ") as caught:
            call()
        assert len(str(caught.value)) < 300
    assert node.peers() == []


def test_rules_of_access_are_read_as_zenoh_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "acl.json5"
    topology = Topology("router", listen=("tcp/127.0.0.1:0",), acl=path)
    with pytest.raises(MeshError, match="cannot be read"):
        session_config(topology, "mesh")
    path.write_text("{access_control: {enabled: true, default_permission: 'deny', /* nobody */ rules: []}}")
    assert session_config(topology, "mesh")["access_control"]["default_permission"] == "deny"
    for content in ("{}", "{access_control: {enabled: false}}", "{mode: 'router'}"):
        path.write_text(content)
        with pytest.raises(MeshError, match="access_control is missing or not enabled"):
            session_config(topology, "mesh")
    for content in ("{access_control: {enabled: tr", '{"rules": []}'):
        path.write_text(content)
        with pytest.raises(MeshError, match="cannot be read"):
            session_config(topology, "mesh")


# --- what is passed on ---


@pytest.mark.parametrize(
    "topology",
    [
        Topology.local(),
        Topology.local(18001),
        Topology("client", ("tcp/127.0.0.1:1", "tls/robot:2"), tls=KEYS, connect_timeout=3.5),
        Topology("peer", listen=("tcp/0.0.0.0:7447",), insecure=True),
        Topology("router", listen=("tls/0.0.0.0:7447",), tls=KEYS, acl=Path("acl.json5")),
        Topology(zenoh_config=Path("robot.json5")),
    ],
)
def test_a_topology_travels_as_plain_data(topology: Topology) -> None:
    assert Topology.from_data(json.loads(json.dumps(topology.as_data()))) == topology


def test_options_select_the_topology() -> None:
    assert Topology.from_options() == Topology.local() == Topology()
    assert Topology.from_options(["tcp/127.0.0.1:1"]).mode == "client"
    assert Topology.from_options(["tcp/127.0.0.1:1"], ["tcp/127.0.0.1:2"]).mode == "peer"
    assert Topology.from_options(zenoh_config="a.json5").zenoh_config == Path("a.json5")
    with pytest.raises(InvalidArgument, match="lists"):
        Topology.from_options("tcp/127.0.0.1:1")


def test_a_native_configuration_is_used_as_it_is(join: Join, tmp_path: Path) -> None:
    path, endpoint = tmp_path / "robot.json5", free_endpoint()
    path.write_text(
        "{ // a peer that others reach\n"
        f" id: '1234567890abcdef', mode: 'peer', listen: {{endpoints: ['{endpoint}']}},\n"
        " scouting: {multicast: {enabled: false}}, timestamping: {enabled: true},"
        " transport: {shared_memory: {enabled: false}}}"
    )
    native = join("native", topology=Topology(zenoh_config=path))
    assert str(native.session.info.zid()) == "1234567890abcdef"
    other = join("other", topology=Topology("peer", connect=(endpoint,), listen=("tcp/127.0.0.1:0",)))
    channel = other.subscribe("native/*")
    meet(native, other)
    native.publish("number", 1, "state")
    assert channel.get(LIMIT_S).value == 1
    path.write_text("{mode: 'star'}")
    with pytest.raises(MeshError, match=r"robot\.json5.*cannot read"):
        open_session(Topology(zenoh_config=path), "mesh")
    with pytest.raises(MeshError, match=r"nowhere\.json5"):
        open_session(Topology(zenoh_config=tmp_path / "nowhere.json5"), "mesh")


def test_local_meshes_are_on_loopback_only(join: Join) -> None:
    node, other = join("node"), join("other")
    meet(node, other)
    listening = {one.laddr for one in psutil.Process().net_connections() if one.status == "LISTEN" or one.type == 2}
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert seed_port(node.mesh) in {address.port for address in listening}


# --- missing routers, and separate meshes ---


def test_a_client_without_a_router_raises(mesh: str) -> None:
    begun = time.monotonic()
    with pytest.raises(MeshError, match=r"no router answered at tcp/127\.0\.0\.1:\d+ within 0\.5 s"):
        Node("node", mesh=mesh, topology=client_of(free_endpoint(), connect_timeout=0.5))
    assert 0.4 < time.monotonic() - begun < LIMIT_S / 2


def test_a_client_waits_for_a_router_that_comes(child: Start, mesh: str) -> None:
    endpoint = free_endpoint()
    waits = child(
        """
        send("waits")
        with Node("node", mesh=mesh, topology=Topology("client", (arguments,), connect_timeout=20.0)) as node:
            send(node.connected)
        """,
        endpoint,
    )
    assert waits.receive() == "waits"
    with Router([endpoint]):
        assert waits.receive() is True


def test_a_used_port_raises(mesh: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"tcp/127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(MeshError, match="cannot be opened"):
            Node("node", mesh=mesh, topology=Topology("peer", listen=(taken,)))


def test_two_meshes_on_one_router_are_separate(join: Join, mesh: str) -> None:
    with Router(["tcp/127.0.0.1:0"]) as router:
        topology = client_of(router.endpoints[0])
        nodes = {}
        for which in (mesh, f"{mesh}-2"):
            nodes[which] = join("one", mesh=which, topology=topology), join("two", mesh=which, topology=topology)
        channels = {which: two.subscribe("**") for which, (_, two) in nodes.items()}
        for which, (one, two) in nodes.items():
            one.serve("which", lambda message, which=which: which)
            settle(one, two)
            meet(one, two)
        for kind in ("stream", "state", "bulk"):
            for which, (one, _) in nodes.items():
                one.publish(kind, which, kind)
        for which, channel in channels.items():
            assert [channel.get(LIMIT_S).value for _ in range(3)] == [which] * 3
        for which, (_, two) in nodes.items():
            assert [peer.name for peer in two.peers()] == ["one"]
            assert two.request("one", "which") == which
            with pytest.raises(TimeoutError):
                channels[which].get(0.05)
        for pair in nodes.values():
            for node in pair:
                node.close()


def test_a_client_fails_over_to_its_second_router(join: Join) -> None:
    with Router(["tcp/127.0.0.1:0"]) as second:
        first = Router(["tcp/127.0.0.1:0"], connect=[second.endpoints[0]])
        try:
            both = (first.endpoints[0], second.endpoints[0])
            one = join("one", topology=Topology("client", both))
            two = join("two", topology=Topology("client", both[::-1]))
            channel = two.subscribe("one/*")
            meet(one, two)
            one.publish("mode", 0, "event")
            assert channel.get(LIMIT_S).value == 0
        finally:
            first.close()
        one.publish("mode", 1)
        one.publish("mode", 2)
        assert [channel.get(LIMIT_S).value for _ in range(2)] == [1, 2]
        assert two.wait_for(["one"], LIMIT_S) == []
        one.close()
        two.close()


def test_peers_by_hand(join: Join) -> None:
    endpoint = free_endpoint()
    left = join("left", topology=Topology("peer", listen=(endpoint,)))
    right = join("right", topology=Topology("peer", (endpoint,), ("tcp/127.0.0.1:0",)))
    third = join("third", topology=Topology("peer", (endpoint,), ("tcp/127.0.0.1:0",)))
    meet(left, right, third)
    right.serve("echo", lambda message: message.value)
    settle(right)
    assert third.request("right", "echo", 7) == 7
    left.close()
    until(lambda: [peer.name for peer in third.peers(ask=False)] == ["right"], "the end of the one in between")
    assert third.request("right", "echo", 8) == 8


def test_a_node_knows_its_links_when_it_is_ready(join: Join) -> None:
    """A link that is lost in the first moments is restored only if the node knew it by then."""
    first = join("first")
    second = join("second")
    known = [*first._links._known.values(), *second._links._known.values()]  # type: ignore[union-attr]
    assert known, "neither side remembers the link that it opened"
