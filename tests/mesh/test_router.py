"""A router in this process, two connected routers, errors of a router that cannot start, and its loss."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from neuraxis.errors import InvalidArgument, MeshError, NodeGone, RouterLost
from neuraxis.mesh import Message, Node
from neuraxis.mesh.certificates import init_keys
from neuraxis.mesh.router import Router
from neuraxis.mesh.topology import Tls, Topology
from tests.mesh.raw import LIMIT_S, Recorder, fence, publish_until_received, session, until, warm


@pytest.fixture(scope="module", autouse=True)
def warmed() -> None:
    warm()


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def test_clients_meet_at_a_router() -> None:
    with (
        Router(["tcp/127.0.0.1:0"]) as router,
        session(router.endpoints) as one,
        session(router.endpoints) as other,
    ):
        assert port_of(router.endpoints[0]) > 0
        recorder = Recorder(one, "neuraxis/m/**")
        fence(one)
        other.put("neuraxis/m/a/b", "hello")
        assert recorder.wait("hello") == [("neuraxis/m/a/b", "hello")]
        assert router.peer_count() == 2


def test_it_listens_at_several_places_and_each_has_its_port() -> None:
    with Router(["tcp/127.0.0.1:0", "tcp/localhost:0"]) as router:
        assert len({port_of(endpoint) for endpoint in router.endpoints}) == 2
        for endpoint in router.endpoints:
            with session([endpoint]):
                pass


def test_by_default_it_is_on_this_machine_only() -> None:
    with socket.socket() as holder:
        # The address is in use, by this test or by a router that runs here.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("127.0.0.1", 7447))
            holder.listen()
        except OSError:
            pass
        with pytest.raises(MeshError, match=r"cannot listen at tcp/127\.0\.0\.1:7447: the address is in use"):
            Router()


def test_closing_frees_the_port() -> None:
    router = Router(["tcp/127.0.0.1:0"])
    again = list(router.endpoints)
    with pytest.raises(MeshError, match=r"cannot listen at tcp/127\.0\.0\.1:\d+: the address is in use"):
        Router(again)
    router.close()
    router.close()
    assert router.peer_count() == 0
    assert "closed" in repr(router)
    with Router(again) as router:
        assert list(router.endpoints) == again


@pytest.mark.parametrize("secured", [False, True])
def test_two_routers_pass_messages_on(tmp_path: Path, secured: bool) -> None:
    """In either order of starting: a client of one receives messages of a client of the other."""
    tls = None
    if secured:
        init_keys(tmp_path, ["vision"])
        tls = Tls.from_folder(tmp_path, "router")
    keys = {"authority": tmp_path / "ca.pem", "keys": (tmp_path, "vision")} if secured else {}
    protocol = "tls" if secured else "tcp"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        later = f"{protocol}/127.0.0.1:{probe.getsockname()[1]}"
    with Router([f"{protocol}/127.0.0.1:0"], [later], tls) as first:
        with (
            Router([later], tls=tls) as second,
            session(first.endpoints, **keys) as one,
            session(second.endpoints, **keys) as other,
        ):
            until(lambda: first.peer_count() == second.peer_count() == 2, "the routers to meet")
            recorder = Recorder(one, "neuraxis/m/**")
            publisher = other.declare_publisher("neuraxis/m/a/b")
            publish_until_received(publisher, recorder, "across")
            assert set(recorder.received) == {("neuraxis/m/a/b", "across")}
        # A router that is gone is waited for.
        with Router([later], tls=tls) as second:
            until(lambda: second.peer_count() == 1, "the routers to meet again")


def test_beyond_loopback_keys_are_needed_or_an_explicit_opt_out(tmp_path: Path) -> None:
    for endpoint in ("tcp/0.0.0.0:0", "tcp/[::]:0", "udp/0.0.0.0:0", "tcp/192.0.2.1:7447", "tcp/robot.invalid:7447"):
        with pytest.raises(InvalidArgument, match="--insecure"):
            Router([endpoint])
        with pytest.raises(InvalidArgument, match="--insecure"):
            Router(["tcp/127.0.0.1:0"], connect=[endpoint])
    with pytest.raises(InvalidArgument, match="TLS needs keys"):
        Router(["tls/0.0.0.0:0"])
    with Router(["tcp/0.0.0.0:0"], insecure=True) as router, session([f"tcp/127.0.0.1:{port_of(router.endpoints[0])}"]):
        pass
    init_keys(tmp_path)
    tls = Tls.from_folder(tmp_path, "router")
    with pytest.raises(InvalidArgument, match="--insecure"):
        Router(["tcp/0.0.0.0:0"], tls=tls)
    with (
        Router(["tls/0.0.0.0:0"], tls=tls) as router,
        session([f"tls/localhost:{port_of(router.endpoints[0])}"], authority=tls.authority, keys=(tmp_path, "router")),
    ):
        pass


def test_addresses_that_cannot_be() -> None:
    for endpoint, reason in (
        ("tcp/192.0.2.1:7447", "cannot listen at tcp/192.0.2.1:7447"),
        ("tcp/192.0.2.1:0", "cannot listen at tcp/192.0.2.1:0"),
        ("tcp/robot.invalid:0", "cannot listen at tcp/robot.invalid:0"),
    ):
        with pytest.raises(MeshError, match=reason):
            Router([endpoint], insecure=True)
    for wrong in (
        "tcp/127.0.0.1:0",
        [],
        ["nonsense"],
        ["carrier/pigeon:1"],
        ["tcp/127.0.0.1"],
        ["tcp/127.0.0.1:99999"],
    ):
        with pytest.raises(InvalidArgument):
            Router(wrong)


def test_rules_need_keys_and_a_file_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="Pass the keys as well"):
        Router(["tcp/127.0.0.1:0"], acl=tmp_path / "acl.json5")
    init_keys(tmp_path)
    tls = Tls.from_folder(tmp_path, "router")
    with pytest.raises(MeshError, match=r"acl\.json5"):
        Router(["tls/127.0.0.1:0"], tls=tls, acl=tmp_path / "acl.json5")
    for text in ("}{", '{"access_control": {"enabled": "perhaps"}}', '{"access_control": {"enabled": true}}'):
        (tmp_path / "acl.json5").write_text(text)
        with pytest.raises(MeshError):
            Router(["tls/127.0.0.1:0"], tls=tls, acl=tmp_path / "acl.json5")


def test_a_native_configuration_is_used_as_it_is(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"tcp/127.0.0.1:{probe.getsockname()[1]}"
    file = tmp_path / "zenoh.json5"
    quiet = "scouting: {multicast: {enabled: false}}, transport: {shared_memory: {enabled: false}}"
    for listen in (json.dumps([endpoint]), json.dumps({"router": [endpoint], "peer": []})):
        file.write_text(f'{{mode: "router", {quiet}, /* ours */ listen: {{endpoints: {listen}}}}}')
        with Router(zenoh_config=file) as router, session([endpoint]):
            assert router.endpoints == (endpoint,)
            until(lambda router=router: router.peer_count() == 1, "the client to be seen")
    for text, reason in (("{}", 'mode: "router"'), ('{mode: "peer"}', "its mode is peer"), ("}{", "cannot read it")):
        file.write_text(text)
        with pytest.raises(MeshError, match=reason):
            Router(zenoh_config=file)
    with pytest.raises(MeshError, match="cannot read it"):
        Router(zenoh_config=tmp_path / "none.json5")
    # What protects must not be passed over in silence.
    for options in ({"listen": [endpoint]}, {"connect": [endpoint]}, {"insecure": True}, {"acl": file}):
        with pytest.raises(InvalidArgument, match="cannot be combined with other options"):
            Router(zenoh_config=file, **options)


# --- nodes that lose their router ---------------------------------------------------------------------------------


def test_a_request_without_a_router_does_not_take_the_other_node_for_gone() -> None:
    with Router(["tcp/127.0.0.1:0"]) as router:
        topology = Topology("client", router.endpoints)
        with Node("a", mesh="m", topology=topology) as a, Node("b", mesh="m", topology=topology) as b:
            b.serve("echo", lambda message: message.value)
            assert a.wait_for(["b"], LIMIT_S) == []
            assert a.request("b", "echo", 1, timeout=LIMIT_S) == 1
            a.check_connected()
            router.close()
            until(lambda: not a.connected, "the link to be gone")
            expected = r"'a' has lost its connection to the router \(tcp/127.*Start the router again"
            with pytest.raises(RouterLost, match=f"request to 'echo' of node 'b': node {expected}") as lost:
                a.request("b", "echo", 1, timeout=1.0)
            assert not isinstance(lost.value, NodeGone)
            assert lost.value.routers == router.endpoints
            with pytest.raises(RouterLost, match=expected):
                asyncio.run(a.arequest("b", "echo", 1, timeout=1.0))
            with pytest.raises(RouterLost, match=f"^node {expected}"):
                a.check_connected()


def test_a_router_that_restarts_during_a_request_is_named_by_the_error() -> None:
    """The requesting node is connected again when the request ends, before the other one is."""
    entered, leave = threading.Event(), threading.Event()

    def wait(message: Message) -> None:
        entered.set()
        assert leave.wait(LIMIT_S)

    with Router(["tcp/127.0.0.1:0"]) as router, ThreadPoolExecutor(1) as pool:
        topology = Topology("client", router.endpoints)
        with Node("a", mesh="m", topology=topology) as a, Node("b", mesh="m", topology=topology) as b:
            b.serve("wait", wait)
            assert a.wait_for(["b"], LIMIT_S) == []
            asked = pool.submit(a.request, "b", "wait", timeout=LIMIT_S)
            assert entered.wait(LIMIT_S)
            begun = time.monotonic()
            assert a._links is not None
            assert not a._links.lost_router_since(begun)
            router.close()
            with Router(router.endpoints):
                error = asked.exception(LIMIT_S)
                leave.set()
                assert isinstance(error, RouterLost), error
                until(lambda: a.connected, "the node to be connected again")
                assert a._links.lost_router_since(begun)
                a.check_connected()
                with pytest.raises(RouterLost, match="lost its connection to the router for a moment"):
                    a._check_router("", begun)
                assert a.wait_for(["b"], LIMIT_S) == []
                b.close()
                until(lambda: a.peer("b") is None, "the other node to be gone")
                until(lambda: not a._links.lost_router_since(time.monotonic() - 2.0), "the loss to be long ago")
                with pytest.raises(NodeGone):
                    a.request("b", "wait", timeout=LIMIT_S)


def test_a_peer_has_no_router_to_lose() -> None:
    with Node("a", mesh="no-router") as a:
        a.check_connected()
        with pytest.raises(NodeGone):
            a.request("b", "echo", timeout=1.0)
