"""How messages of each kind travel: who comes late, who was cut off, and what is large."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from neuraxis.errors import InvalidArgument
from neuraxis.mesh import Node, Subscription
from neuraxis.mesh.counts import Counts
from neuraxis.mesh.kinds import KEPT, check_kind
from tests.mesh.conftest import LIMIT_S, ROUTER, Child, client_of, meet, settle
from tests.mesh.raw import until

Join = Callable[..., Node]
Start = Callable[..., Child]


def take(subscription: Subscription, count: int) -> list[Any]:
    return [subscription.get(LIMIT_S).value for _ in range(count)]


def free_endpoint() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp/127.0.0.1:{server.getsockname()[1]}"


def test_kinds_are_three() -> None:
    assert [check_kind(kind) for kind in ("stream", "state", "bulk")] == ["stream", "state", "bulk"]
    with pytest.raises(InvalidArgument, match="stream, state, bulk"):
        check_kind("letter")


@pytest.mark.parametrize(("history", "expected"), [(1, [9]), (3, [7, 8, 9]), (1000, list(range(10)))])
def test_who_comes_late_hears_the_last_states(join: Join, history: int, expected: list[int]) -> None:
    sender = join("sender")
    for value in range(10):
        sender.publish("mode", value, "state")
        sender.publish("stream", value)
    late = join("late")
    channel = late.subscribe("sender/*", history=history)
    assert take(channel, len(expected)) == expected
    settle(late)
    sender.publish("mode", 10)
    assert channel.get(LIMIT_S).value == 10
    assert channel.counts() == Counts(received=len(expected) + 1)


def test_who_does_not_recover_hears_only_what_comes(join: Join) -> None:
    sender, late = join("sender"), join("late")
    sender.publish("mode", 1, "state")
    channel = late.subscribe("sender/*", recover=False)
    meet(sender, late)
    sender.publish("mode", 2)
    assert channel.get(LIMIT_S).value == 2


def test_a_state_that_was_published_before_its_sender_was_reached_is_heard(join: Join, child: Start) -> None:
    """The two are on a router that comes only after all was said."""
    first, second = free_endpoint(), free_endpoint()
    routers = [child(ROUTER, first), child(ROUTER, second)]
    assert [one.said() for one in routers] == ["ready", "ready"]
    hearer = join("hearer", topology=client_of(first))
    sender = join("sender", topology=client_of(second))
    channel = hearer.subscribe("sender/mode")
    for value in range(5):
        sender.publish("mode", value, "state")
    assert hearer.peers(ask=False) == []
    bridge = """
    import zenoh
    config = {"mode": "router", "connect": {"endpoints": arguments}, "listen": {"endpoints": []}}
    config["scouting"] = {"multicast": {"enabled": False}}
    with zenoh.open(zenoh.Config.from_json5(json.dumps(config))) as session:
        say("ready")
        hear()
    """
    assert child(bridge, [first, second]).said() == "ready"
    assert hearer.wait_for(["sender"], LIMIT_S) == []
    assert take(channel, 5) == [0, 1, 2, 3, 4]


def test_states_are_recovered_after_the_router_was_killed(join: Join, child: Start) -> None:
    endpoint = free_endpoint()
    router = child(ROUTER, endpoint)
    assert router.said() == "ready"
    sender, hearer = (join(name, topology=client_of(endpoint)) for name in ("sender", "hearer"))
    channel = hearer.subscribe("sender/mode")
    other = hearer.subscribe("sender/**", capacity=5000)
    meet(sender, hearer)
    for value in range(10):
        sender.publish("mode", value, "state")
    assert take(channel, 10) == list(range(10))
    router.kill()
    until(lambda: not sender.connected and not hearer.connected, "both to see that the router is gone")
    until(lambda: hearer.peers(ask=False) == [], "the sender to be out of sight")
    for value in range(10, 300):
        sender.publish("mode", value)
    assert child(ROUTER, endpoint).said() == "ready"
    # Nothing more is published: it is the sender's heartbeat that tells what was missed.
    assert take(channel, 290) == list(range(10, 300))
    sender.publish("mode", 300)
    assert take(channel, 1) == [300]
    assert take(other, 301) == list(range(301))
    assert channel.counts() == other.counts() == Counts(received=301)
    assert hearer.wait_for(["sender"], LIMIT_S) == []


def test_more_states_than_are_kept_are_counted_as_lost(join: Join, child: Start) -> None:
    endpoint = free_endpoint()
    router = child(ROUTER, endpoint)
    assert router.said() == "ready"
    sender, hearer = (join(name, topology=client_of(endpoint)) for name in ("sender", "hearer"))
    channel = hearer.subscribe("sender/mode", capacity=5000)
    meet(sender, hearer)
    sender.publish("mode", 0, "state")
    assert take(channel, 1) == [0]
    router.kill()
    until(lambda: not sender.connected and not hearer.connected, "both to see that the router is gone")
    for value in range(1, KEPT + 501):
        sender.publish("mode", value)
    assert child(ROUTER, endpoint).said() == "ready"
    first = channel.get(LIMIT_S)
    assert (first.value, first.lost) == (501, 500)
    assert take(channel, KEPT - 1) == list(range(502, KEPT + 501))
    assert channel.counts() == Counts(received=KEPT + 1, lost=500)


def test_bulk_waits_for_room(join: Join, child: Start) -> None:
    script = """
    with Node("hearer", mesh=mesh, announce=False) as node:
        got = []
        node.subscribe("sender/*", lambda message: got.append(message.value[0] * len(message.value)), capacity=1000)
        node.serve("got", lambda message: got)
        node.announce()
        say("ready")
        hear()
    """
    hearer, sender = child(script), join("sender")
    assert hearer.said() == "ready"
    assert sender.wait_for(["hearer"], LIMIT_S) == []
    assert sender.wait_for_subscribers("large", LIMIT_S, "bulk")
    size = 4 * 2**20
    for value in range(20):
        sender.publish("large", bytes([value]) * size)
    until(lambda: len(sender.request("hearer", "got", timeout=LIMIT_S)) == 20, "all of them")
    assert sender.request("hearer", "got", timeout=LIMIT_S) == [value * size for value in range(20)]


def test_waiting_for_subscribers(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    meet(sender, hearer)
    assert not sender.wait_for_subscribers("number", 0.05)
    hearer.subscribe("sender/other")
    hearer.subscribe("sender/number")
    assert sender.wait_for_subscribers("number", LIMIT_S)
    assert sender.wait_for_subscribers("mode", LIMIT_S, "state")
