"""Delivery of each kind of message: late subscribers, interrupted connections, and large messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from neuraxis.errors import InvalidArgument
from neuraxis.mesh import Node, Subscription
from neuraxis.mesh.counts import Counts
from neuraxis.mesh.messages import CACHED, KINDS, check_kind
from tests.mesh.conftest import LIMIT_S, ROUTER, Child, client_of, free_endpoint, meet, settle
from tests.mesh.raw import until

Join = Callable[..., Node]
Start = Callable[..., Child]


def take(subscription: Subscription, count: int) -> list[Any]:
    return [subscription.get(LIMIT_S).value for _ in range(count)]


def test_kinds_are_four() -> None:
    assert [check_kind(kind) for kind in ("stream", "state", "event", "bulk")] == list(KINDS)
    with pytest.raises(InvalidArgument, match="stream, state, event, bulk"):
        check_kind("letter")


@pytest.mark.parametrize(("history", "expected"), [(1, [9]), (3, [7, 8, 9]), (1000, list(range(10)))])
def test_a_late_subscriber_receives_the_last_events(join: Join, history: int, expected: list[int]) -> None:
    sender = join("sender")
    for value in range(10):
        sender.publish("mode", value, "event")
        sender.publish("stream", value)
    late = join("late")
    channel = late.subscribe("sender/*", history=history)
    assert take(channel, len(expected)) == expected
    settle(late)
    sender.publish("mode", 10)
    assert channel.get(LIMIT_S).value == 10
    assert channel.counts() == Counts(received=len(expected) + 1)


def test_without_recovery_a_subscriber_receives_new_events_only(join: Join) -> None:
    sender, late = join("sender"), join("late")
    sender.publish("mode", 1, "state")
    channel = late.subscribe("sender/*", recover=False)
    meet(sender, late)
    sender.publish("mode", 2)
    assert channel.get(LIMIT_S).value == 2


def test_an_event_published_before_the_connection_is_received(join: Join, child: Start) -> None:
    """Both connect to a router that starts after the event was published."""
    first, second = free_endpoint(), free_endpoint()
    routers = [child(ROUTER, first), child(ROUTER, second)]
    assert [one.receive() for one in routers] == ["ready", "ready"]
    receiver = join("receiver", topology=client_of(first))
    sender = join("sender", topology=client_of(second))
    channel = receiver.subscribe("sender/mode")
    for value in range(5):
        sender.publish("mode", value, "event")
    assert receiver.peers(ask=False) == []
    bridge = """
    import zenoh
    config = {"mode": "router", "connect": {"endpoints": arguments}, "listen": {"endpoints": []}}
    config["scouting"] = {"multicast": {"enabled": False}}
    with zenoh.open(zenoh.Config.from_json5(json.dumps(config))) as session:
        send("ready")
        receive()
    """
    assert child(bridge, [first, second]).receive() == "ready"
    assert receiver.wait_for(["sender"], LIMIT_S) == []
    assert take(channel, 5) == [0, 1, 2, 3, 4]


def test_events_are_recovered_after_the_router_was_killed(join: Join, child: Start) -> None:
    endpoint = free_endpoint()
    router = child(ROUTER, endpoint)
    assert router.receive() == "ready"
    sender, receiver = (join(name, topology=client_of(endpoint)) for name in ("sender", "receiver"))
    channel = receiver.subscribe("sender/mode")
    other = receiver.subscribe("sender/**", depth=5000)
    meet(sender, receiver)
    for value in range(10):
        sender.publish("mode", value, "event")
    assert take(channel, 10) == list(range(10))
    router.kill()
    until(lambda: not sender.connected and not receiver.connected, "both to see that the router is gone")
    until(lambda: receiver.peers(ask=False) == [], "the sender to be unreachable")
    for value in range(10, 300):
        sender.publish("mode", value)
    assert child(ROUTER, endpoint).receive() == "ready"
    # Nothing more is published: the sender's heartbeat shows the missed messages.
    assert take(channel, 290) == list(range(10, 300))
    sender.publish("mode", 300)
    assert take(channel, 1) == [300]
    assert take(other, 301) == list(range(301))
    assert channel.counts() == other.counts() == Counts(received=301)
    assert receiver.wait_for(["sender"], LIMIT_S) == []


def test_more_events_than_are_kept_are_counted_as_lost(join: Join, child: Start) -> None:
    endpoint = free_endpoint()
    router = child(ROUTER, endpoint)
    assert router.receive() == "ready"
    sender, receiver = (join(name, topology=client_of(endpoint)) for name in ("sender", "receiver"))
    channel = receiver.subscribe("sender/mode", depth=5000)
    meet(sender, receiver)
    sender.publish("mode", 0, "event")
    assert take(channel, 1) == [0]
    router.kill()
    until(lambda: not sender.connected and not receiver.connected, "both to see that the router is gone")
    for value in range(1, CACHED["event"] + 501):
        sender.publish("mode", value)
    assert child(ROUTER, endpoint).receive() == "ready"
    first = channel.get(LIMIT_S)
    assert (first.value, first.lost) == (501, 500)
    assert take(channel, CACHED["event"] - 1) == list(range(502, CACHED["event"] + 501))
    assert channel.counts() == Counts(received=CACHED["event"] + 1, lost=500)


def test_bulk_waits_for_room(join: Join, child: Start) -> None:
    script = """
    with Node("receiver", mesh=mesh, announce=False) as node:
        got = []
        node.subscribe("sender/*", lambda message: got.append(message.value[0] * len(message.value)), depth=1000)
        node.serve("got", lambda message: got)
        node.announce()
        send("ready")
        receive()
    """
    receiver, sender = child(script), join("sender")
    assert receiver.receive() == "ready"
    assert sender.wait_for(["receiver"], LIMIT_S) == []
    assert sender.wait_for_subscribers("large", LIMIT_S, "bulk")
    size = 4 * 2**20
    for value in range(20):
        sender.publish("large", bytes([value]) * size)
    until(lambda: len(sender.request("receiver", "got", timeout=LIMIT_S)) == 20, "all of them")
    assert sender.request("receiver", "got", timeout=LIMIT_S) == [value * size for value in range(20)]


def test_waiting_for_subscribers(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    meet(sender, receiver)
    assert not sender.wait_for_subscribers("number", 0.05)
    receiver.subscribe("sender/other")
    receiver.subscribe("sender/number")
    assert sender.wait_for_subscribers("number", LIMIT_S)
    assert sender.wait_for_subscribers("mode", LIMIT_S, "state")


def test_waiting_for_subscribers_of_events(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    meet(sender, receiver)
    assert not sender.wait_for_subscribers("stop", 0.05, "event")
    channel = receiver.subscribe("sender/stop")
    assert sender.wait_for_subscribers("stop", LIMIT_S, "event")
    for value in range(3):
        sender.publish("stop", value)
    assert take(channel, 3) == [0, 1, 2]
