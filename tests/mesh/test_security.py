"""Attacks with plain Zenoh sessions on a router with keys and rules in another process.

That something does not arrive is shown without waiting for it: the router has handled what the intruder sent (see
`fence`), or something allowed came after it on the same way. Everything denied here is also seen to work for the role
that may do it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zenoh

from neuraxis.brain.mesh import grants_of, roles_of
from neuraxis.brain.spec import BrainSpec, PathwaySpec, RegionSpec
from neuraxis.errors import MeshError, NobodyServes
from neuraxis.mesh.access import write_access
from neuraxis.mesh.certificates import init_keys
from neuraxis.mesh.messages import declare_publisher, declare_subscriber
from neuraxis.mesh.node import Node
from neuraxis.mesh.recovery import RecoveringSubscriber
from neuraxis.mesh.router import Router
from neuraxis.mesh.topology import Tls, Topology, open_session
from tests.mesh.raw import Recorder, fence, router_process, session, until, warm

BRAIN = BrainSpec(
    name="robot",
    regions={name: RegionSpec(kind="python", create="a:b") for name in ("pfc", "vision", "lang", "motor")},
    pathways=(
        PathwaySpec(source="vision", target="pfc", delay_ms=1.0),
        PathwaySpec(source="lang", target="pfc", delay_ms=1.0),
        PathwaySpec(source="pfc", target="motor", delay_ms=1.0),
        PathwaySpec(source="sensor/thermal", target="lang", delay_ms=1.0),
    ),
)
ROOT = "neuraxis/m"
SENSOR = "sensor-thermal"
REFUSED_MS = 1500  # how long an intruder tries


@dataclass
class Guarded:
    """A router with access rules, the keys of all roles, and those of a guest without rules."""

    endpoints: list[str]
    keys: Path
    other: Path  # keys of the same names, by another authority

    @contextmanager
    def role(self, role: str, mode: str = "client") -> Iterator[Any]:
        with session(self.endpoints, mode=mode, authority=self.keys / "ca.pem", keys=(self.keys, role)) as opened:
            yield opened


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    warm()
    place = tmp_path_factory.mktemp("guarded")
    for name in ("keys", "other"):
        init_keys(place / name, [*roles_of(BRAIN), "guest"])
    write_access(place / "acl.json5", "m", grants_of(BRAIN))
    options = ("--tls", str(place / "keys"), "--acl", str(place / "acl.json5"))
    with router_process("--listen", "tls/127.0.0.1:0", *options) as (endpoints, _):
        yield Guarded(endpoints, place / "keys", place / "other")


@pytest.fixture
def roles(guarded: Guarded) -> Iterator[Callable[..., Any]]:
    """Sessions by role."""
    with ExitStack() as stack:
        yield lambda role, mode="client": stack.enter_context(guarded.role(role, mode))


def record(session: Any, expression: str) -> Recorder:
    """A subscription that the router knows of."""
    made = Recorder(session, f"{ROOT}/{expression}")
    fence(session)
    return made


# --- rejected connections ---


def refused(*arguments: Any, **options: Any) -> None:
    with (
        pytest.raises(zenoh.ZError, match="Unable to connect"),
        session(*arguments, connect_timeout_ms=REFUSED_MS, **options),
    ):
        pass


def test_no_certificate(guarded: Guarded, roles: Callable[..., Any]) -> None:
    recorder = record(roles("observer"), "**")
    refused(guarded.endpoints, authority=guarded.keys / "ca.pem")
    roles("vision").put(f"{ROOT}/vision/spikes", "by day")
    assert recorder.wait("by day") == [(f"{ROOT}/vision/spikes", "by day")]


def test_a_certificate_of_another_authority_with_the_same_name(guarded: Guarded) -> None:
    refused(guarded.endpoints, authority=guarded.keys / "ca.pem", keys=(guarded.other, "vision"))
    with guarded.role("vision"):
        pass


def test_plain_tcp_to_the_port_of_tls(guarded: Guarded) -> None:
    refused([endpoint.replace("tls/", "tcp/") for endpoint in guarded.endpoints])
    with guarded.role("vision"):
        pass


def test_the_handshake_itself_asks_for_a_certificate_of_ours(guarded: Guarded) -> None:
    host, port = guarded.endpoints[0].removeprefix("tls/").split(":")

    def is_let_in(folder: Path | None) -> bool:
        context = ssl.create_default_context(cafile=str(guarded.keys / "ca.pem"))
        if folder is not None:
            context.load_cert_chain(folder / "vision.pem", folder / "vision.key")
        with (
            socket.create_connection((host, int(port)), timeout=10) as line,
            context.wrap_socket(line, server_hostname=host) as secured,
        ):
            try:
                secured.recv(100)  # the router waits for us to speak, and gives up in good order
            except (ssl.SSLError, ConnectionResetError):
                return False
            return True

    assert [is_let_in(folder) for folder in (None, guarded.other, guarded.keys)] == [False, False, True]


def test_a_false_router_gets_no_client(guarded: Guarded) -> None:
    """One that has the name and the address, but not our authority."""
    mine = Tls.from_folder(guarded.keys, "vision")
    with Router(["tls/127.0.0.1:0"], tls=Tls.from_folder(guarded.other, "router")) as false:
        with pytest.raises(MeshError, match="no router answered"):
            open_session(Topology("client", false.endpoints, tls=mine, connect_timeout=REFUSED_MS / 1000), "m")
        assert false.peer_count() == 0
    with Router(["tls/127.0.0.1:0"], tls=Tls.from_folder(guarded.keys, "router")) as true:
        opened = open_session(Topology("client", true.endpoints, tls=mine), "m")
        until(lambda: true.peer_count() == 1, "the client to be seen")
        opened.close()


def test_a_role_cannot_pass_for_a_router_elsewhere(guarded: Guarded, tmp_path: Path) -> None:
    """Its certificate is valid for localhost only, and clients verify the name."""
    init_keys(tmp_path, ["vision"], ["router.invalid"])
    for role, fits in (("router", True), ("vision", False)):
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(tmp_path / f"{role}.pem", tmp_path / f"{role}.key")
        client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        assert shakes_hands(server, client, "router.invalid") == fits


def shakes_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bool:
    """A handshake in memory."""
    wires = [ssl.MemoryBIO() for _ in range(2)]
    ends = [
        client.wrap_bio(wires[0], wires[1], server_hostname=name),
        server.wrap_bio(wires[1], wires[0], server_side=True),
    ]
    done = [False, False]
    for _ in range(10):
        for index, end in enumerate(ends):
            if not done[index]:
                try:
                    end.do_handshake()
                    done[index] = True
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLCertVerificationError:
                    return False
    return all(done)


# --- denied publications ---


@pytest.mark.parametrize("mode", ["client", "peer", "router"])
@pytest.mark.parametrize("key", ["vision/spikes", "pfc/control", "driver/go", "x", "*/spikes", "**"])
def test_a_role_can_publish_its_own_keys_only(roles: Callable[..., Any], mode: str, key: str) -> None:
    recorder, motor = record(roles("observer"), "**"), record(roles("motor"), "pfc/**")
    intruder = roles(SENSOR, mode)
    intruder.put(f"{ROOT}/{key}", "evil")
    intruder.delete(f"{ROOT}/{key}")
    declared = intruder.declare_publisher(f"{ROOT}/{key}")
    declared.put("evil")
    intruder.put(f"{ROOT}/sensor/thermal", "allowed")  # on the same link, after it
    assert recorder.wait("allowed") == [(f"{ROOT}/sensor/thermal", "allowed")]
    roles("pfc").put(f"{ROOT}/pfc/control", "allowed, too")
    assert motor.wait("allowed, too") == [(f"{ROOT}/pfc/control", "allowed, too")]
    assert recorder.wait("allowed, too")[1:] == [(f"{ROOT}/pfc/control", "allowed, too")]
    declared.undeclare()


# --- denied subscriptions ---


def test_a_role_can_subscribe_to_its_inputs_only(roles: Callable[..., Any]) -> None:
    observer = record(roles("observer"), "**")
    motor = roles("motor")
    spying = [record(motor, key) for key in ("vision/**", "vision/spikes", "**", "*/spikes", "lang/*")]
    allowed = record(motor, "pfc/**")
    roles("vision").put(f"{ROOT}/vision/spikes", "secret")
    observer.wait("secret")  # the router has forwarded it
    roles("pfc").put(f"{ROOT}/pfc/control", "for motor")
    assert allowed.wait("for motor") == [(f"{ROOT}/pfc/control", "for motor")]
    for one in spying:  # a session delivers a message to all its subscriptions if one of them is allowed
        assert "secret" not in [text for _, text in one.received]


def test_a_sensor_can_subscribe_to_nothing(roles: Callable[..., Any]) -> None:
    observer, sensor = record(roles("observer"), "**"), roles(SENSOR)
    spying = [record(sensor, key) for key in ("**", "vision/**", "sensor/**", "pfc/control")]
    for role, key in (("vision", "vision/spikes"), ("pfc", "pfc/control")):
        roles(role).put(f"{ROOT}/{key}", f"secret of {role}")
        observer.wait(f"secret of {role}")
    fence(sensor)  # its reply uses the same link as the secret messages would
    assert [one.received for one in spying] == [[]] * 4


def test_recovered_messages_follow_the_same_rules(roles: Callable[..., Any]) -> None:
    """The history of a state: recovery asks the publisher, past the subscriptions."""
    vision = roles("vision")
    publisher = declare_publisher(vision, f"{ROOT}/vision/objects", "state")
    publisher.put("a cup")
    fence(vision)
    motor, sensor, pfc = roles("motor"), roles(SENSOR), roles("pfc")
    spying = [declare_subscriber(one, f"{ROOT}/vision/objects", 100, 100, True) for one in (motor, sensor)]
    asked = [list(one.get(f"{ROOT}/vision/objects/@adv/**?_anyke", timeout=5.0)) for one in (motor, sensor)]
    assert asked == [[], []]
    allowed = declare_subscriber(pfc, f"{ROOT}/vision/*", 100, 100, True)
    sample = until(allowed.try_recv, "the state from before")
    assert bytes(sample.payload) == b"a cup"
    assert [bytes(reply.ok.payload) for reply in pfc.get(f"{ROOT}/vision/objects/@adv/**?_anyke", timeout=5.0)] == [
        b"a cup"
    ]
    fence(motor)
    fence(sensor)
    assert [one.try_recv() for one in spying] == [None, None]
    recovered = RecoveringSubscriber(pfc, f"{ROOT}/", "vision/*", 100, 1)
    sample = until(lambda: recovered.wait() and recovered.collect(), "the state from before")[0]
    assert bytes(sample.payload) == b"a cup"
    recovered.undeclare()
    assert not recovered.wait()


def test_forged_recovered_messages_are_rejected(roles: Callable[..., Any]) -> None:
    sensor, pfc = roles(SENSOR), roles("pfc")
    false = declare_publisher(sensor, f"{ROOT}/vision/objects", "state")
    false.put("evil")
    true = declare_publisher(sensor, f"{ROOT}/sensor/thermal/x", "state")
    true.put("allowed")
    fence(sensor)
    heard = declare_subscriber(pfc, f"{ROOT}/vision/objects", 100, 100, True)
    watching = declare_subscriber(roles("observer"), f"{ROOT}/**", 100, 100, True)
    sample = until(watching.try_recv, "the state that is allowed")
    assert (str(sample.key_expr), bytes(sample.payload)) == (f"{ROOT}/sensor/thermal/x", b"allowed")
    fence(pfc)
    assert heard.try_recv() is None
    assert watching.try_recv() is None
    false.undeclare()
    true.undeclare()


# --- questions ---


def answers(session: Any, key: str) -> list[bytes]:
    replies = session.get(f"{ROOT}/{key}", target=zenoh.QueryTarget.ALL, timeout=10.0)
    return [bytes(reply.ok.payload) for reply in replies if reply.ok is not None]


def serve(session: Any, key: str, asked: list[str], answer: str) -> Any:
    def reply(query: Any) -> None:
        asked.append(str(query.key_expr))
        query.reply(query.key_expr, answer)

    made = session.declare_queryable(f"{ROOT}/{key}", reply)
    fence(session)
    return made


def test_commands_are_for_the_driver_to_give(roles: Callable[..., Any]) -> None:
    asked: list[str] = []
    served = serve(roles("vision"), "vision/@serve/command/@from/**", asked, "done")
    driver = roles("driver")
    until(lambda: answers(driver, "vision/@serve/command/@from/driver") == [b"done"], "the driver to be answered")
    asked.clear()
    for role in (SENSOR, "observer", "motor", "pfc", "guest"):
        for key in ("vision/@serve/command", "*/@serve/command", "**/@serve/**"):
            for sender in (role, "driver", "*", "**"):
                assert answers(roles(role), f"{key}/@from/{sender}") == []
    assert answers(driver, "vision/@serve/command/@from/driver") == [b"done"]
    assert asked == [f"{ROOT}/vision/@serve/command/@from/driver"]
    served.undeclare()


def test_a_neighbour_is_asked_and_a_stranger_is_not(roles: Callable[..., Any]) -> None:
    asked: list[str] = []
    served = serve(roles("vision"), "vision/@serve/replay/@from/**", asked, "spikes")
    until(
        lambda: answers(roles("pfc"), "vision/@serve/replay/@from/pfc") == [b"spikes"], "the neighbour to be answered"
    )
    asked.clear()
    for role in ("motor", SENSOR, "observer"):
        assert answers(roles(role), f"vision/@serve/replay/@from/{role}") == []
    for role in ("motor", SENSOR, "observer", "pfc"):  # in the name of one that may ask
        for sender in ("driver", "motor" if role == "pfc" else "pfc", "**"):
            assert answers(roles(role), f"vision/@serve/replay/@from/{sender}") == []
    assert asked == []
    served.undeclare()


def test_no_node_can_answer_for_another(roles: Callable[..., Any]) -> None:
    asked: list[str] = []
    false = [serve(roles(role), "vision/@serve/command/@from/**", asked, "evil") for role in ("motor", SENSOR, "guest")]
    driver = roles("driver")
    assert answers(driver, "vision/@serve/command/@from/driver") == []
    true = serve(roles("vision"), "vision/@serve/command/@from/**", [], "done")
    until(lambda: answers(driver, "vision/@serve/command/@from/driver") == [b"done"], "the right one to be asked")
    assert asked == []
    for one in (true, *false):
        one.undeclare()


# --- presence ---


def present(session: Any) -> list[str]:
    replies = session.liveliness().get(f"{ROOT}/@presence/**", timeout=5.0)
    return sorted(
        str(reply.ok.key_expr).removeprefix(f"{ROOT}/@presence/") for reply in replies if reply.ok is not None
    )


def test_a_role_is_present_under_its_own_name_only(roles: Callable[..., Any]) -> None:
    tokens = []
    for role, name in (
        (SENSOR, "vision/evil"),
        ("motor", "pfc/evil"),
        ("guest", "guest/evil"),
        ("guest", "vision/x"),
    ):
        intruder = roles(role)
        tokens.append(intruder.liveliness().declare_token(f"{ROOT}/@presence/{name}"))
        fence(intruder)
    tokens.append(roles("vision").liveliness().declare_token(f"{ROOT}/@presence/vision/facts"))
    for role in ("observer", "pfc", SENSOR, "driver"):
        looking = roles(role)
        until(lambda looking=looking: "vision/facts" in present(looking), f"{role} to see vision")
        assert present(looking) == ["vision/facts"]
    assert present(roles("guest")) == []
    for token in tokens:
        token.undeclare()


def test_presence_works_under_access_control(roles: Callable[..., Any]) -> None:
    watching = roles("motor")
    seen = watching.liveliness().declare_subscriber(
        f"{ROOT}/@presence/**", zenoh.handlers.FifoChannel(100), history=True
    )
    guest = roles("guest")
    spying = guest.liveliness().declare_subscriber(
        f"{ROOT}/@presence/**", zenoh.handlers.FifoChannel(100), history=True
    )
    token = roles("lang").liveliness().declare_token(f"{ROOT}/@presence/lang/facts")
    assert until(seen.try_recv, "a token").kind == zenoh.SampleKind.PUT
    token.undeclare()
    assert until(seen.try_recv, "its end").kind == zenoh.SampleKind.DELETE
    fence(guest)
    assert spying.try_recv() is None


# --- a certificate without a policy ---


def test_a_guest_of_our_authority_without_rules(roles: Callable[..., Any]) -> None:
    guest, observer = roles("guest"), record(roles("observer"), "**")
    assert len(list(guest.info.routers_zid())) == 1  # it is connected
    spying = [record(guest, key) for key in ("**", "vision/**", "guest/**")]
    for key in ("vision/spikes", "guest/x", "sensor/thermal/x", "**"):
        guest.put(f"{ROOT}/{key}", "evil")
    fence(guest)
    roles("vision").put(f"{ROOT}/vision/spikes", "secret")
    assert observer.wait("secret") == [(f"{ROOT}/vision/spikes", "secret")]
    fence(guest)
    assert [one.received for one in spying] == [[]] * 3


# --- our own nodes, which need all that they are granted ---


def test_nodes_do_all_that_the_graph_needs(guarded: Guarded) -> None:
    def node(name: str) -> Node:
        tls = Tls.from_folder(guarded.keys, name.replace("/", "-"))
        return Node(name, mesh="m", topology=Topology("client", tuple(guarded.endpoints), tls=tls))

    with node("vision") as vision, node("pfc") as pfc, node("driver") as driver, node("sensor/thermal") as sensor:
        vision.publish("objects", {"cup": 1}, "state")
        with node("observer") as observer:
            spikes, objects, all_of_it = (
                pfc.subscribe("vision/spikes"),
                pfc.subscribe("vision/*"),
                observer.subscribe("**"),
            )
            assert objects.get(20).value == {"cup": 1}
            assert all_of_it.get(20).value == {"cup": 1}
            assert vision.wait_for_subscribers("spikes", 20, "stream")
            vision.publish("spikes", b"1", "stream")
            assert spikes.get(20).value == b"1"
            assert sensor.wait_for_subscribers("frame", 20, "stream")
            sensor.publish("frame", 37.5)
            until(lambda: all_of_it.get(20).value == 37.5, "the observer to hear the sensor")
            with vision.serve("replay", lambda message: "again"), vision.serve("command", lambda message: "done"):
                until(lambda: vision.name in [peer.name for peer in pfc.peers(ask=False)], "vision to be seen")
                assert pfc.request("vision", "replay", timeout=20.0) == "again"
                assert driver.request("vision", "command", timeout=20.0) == "done"
                with pytest.raises(NobodyServes):
                    pfc.request("vision", "command", timeout=20.0)
            for one in (pfc, driver, observer, sensor):
                assert one.wait_for({"vision", "pfc", "driver", "sensor/thermal", "observer"} - {one.name}, 20) == []
            vision.step = 7
            until(lambda: [peer.step for peer in observer.peers() if peer.name == "vision"] == [7], "vision's step")
