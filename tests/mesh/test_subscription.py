"""What is heard: in order, none twice, what is missing counted; and nobody waits for a slow one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from neuraxis.errors import MeshClosed, NodeGone
from neuraxis.mesh import Node, topology
from neuraxis.mesh.counts import Counts, Ledger
from neuraxis.mesh.envelope import Envelope, open_envelope, seal_envelope
from neuraxis.mesh.messages import Message
from tests.mesh.conftest import LIMIT_S, Child, meet, settle
from tests.mesh.raw import until

Join = Callable[..., Node]
Start = Callable[..., Child]


class Command(msgspec.Struct):
    joint: str
    angle: float


class Slow:
    """A handler that stands still until it may go on."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.stands = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, message: Message) -> None:
        self.got.append(message)
        self.stands.set()
        assert self.go_on.wait(LIMIT_S)


# --- handlers and channels ---


def test_typed_messages_are_what_was_asked_for(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    channel = hearer.subscribe("sender/command", type=Command)
    meet(sender, hearer)
    for value in (Command("elbow", 1.5), {"joint": "elbow"}, {"joint": 1, "angle": 2.0}, "elbow", b"\xff", None):
        sender.publish("command", value)
    sender.publish("command", {"joint": "wrist", "angle": 2})
    assert [channel.get(LIMIT_S).value for _ in range(2)] == [Command("elbow", 1.5), Command("wrist", 2.0)]
    assert channel.counts() == Counts(received=2, malformed=5)


def test_a_handler_that_raises_is_counted_and_called_again(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    got: list[int] = []

    def handle(message: Message) -> None:
        got.append(message.value)
        if message.value == 1:
            raise ValueError("at 1")
        if message.value == 2:
            raise SystemExit(2)

    subscription = hearer.subscribe("sender/*", handle)
    meet(sender, hearer)
    for value in range(4):
        sender.publish("number", value)
    until(lambda: len(got) == 4, "all four")
    assert got == [0, 1, 2, 3]
    assert subscription.counts() == Counts(received=4, handler_errors=2)


def test_a_loop_over_a_channel_ends_when_it_is_closed(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    channel = hearer.subscribe("sender/*")
    meet(sender, hearer)
    got: list[int] = []

    def loop() -> None:
        for message in channel:
            got.append(message.value)

    thread = threading.Thread(target=loop)
    thread.start()
    for value in range(3):
        sender.publish("number", value)
    until(lambda: got == [0, 1, 2], "three")
    channel.close()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    sender.publish("number", 3)
    settle(sender)
    with pytest.raises(MeshClosed):
        channel.get()
    assert got == [0, 1, 2]
    assert hearer.counts() == {"sender/number": Counts(received=3)}


def test_what_was_heard_before_the_end_can_still_be_read(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    with hearer.subscribe("sender/*") as channel:
        meet(sender, hearer)
        for value in range(3):
            sender.publish("number", value)
        until(lambda: channel.counts().received == 3, "three")
    assert [message.value for message in channel] == [0, 1, 2]


def test_counts_outlive_their_subscription(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    for value in range(3):
        with hearer.subscribe("sender/number", recover=False) as channel:
            meet(sender, hearer)
            sender.publish("number", value)
            assert channel.get(LIMIT_S).value == value
        until(lambda: not sender._publisher("number", None).declared.matching_status.matching, "nobody hears")
    assert hearer.counts() == {"sender/number": Counts(received=3)}


def test_a_handler_may_close_its_own_subscription_and_another(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    other = hearer.subscribe("sender/*")
    got: list[int] = []

    def handle(message: Message) -> None:
        got.append(message.value)
        other.close()
        one.close()

    one = hearer.subscribe("sender/*", handle)
    meet(sender, hearer)
    for value in range(10):
        sender.publish("number", value)
    until(lambda: not any(thread.is_alive() for thread in (*one._threads, *other._threads)), "the end of both")
    assert got == [0]


# --- the slow and the stuck ---


def test_a_slow_handler_loses_the_oldest_and_slows_nobody(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    slow, quick = Slow(), hearer.subscribe("sender/*", capacity=2000)
    subscription, after = hearer.subscribe("sender/*", slow, capacity=10), hearer.subscribe("sender/after/all")
    meet(sender, hearer)
    sender.publish("number", 0)
    assert slow.stands.wait(LIMIT_S)
    assert quick.get(LIMIT_S).value == 0
    # All of these are published, and heard by the quick one, while the slow one still has its first.
    for value in range(1, 501):
        sender.publish("number", value)
        assert quick.get(LIMIT_S).value == value
    sender.publish("after/all", None)  # what came before it has come to all
    after.get(LIMIT_S)
    assert len(slow.got) == 1
    slow.go_on.set()
    until(lambda: slow.got[-1].value == 500, "the last")
    assert [one.value for one in slow.got] == [0, *range(491, 501)]
    assert [one.lost for one in slow.got] == [0, 490, *[0] * 9]
    assert subscription.counts() == Counts(received=11, lost=490)
    assert quick.counts() == Counts(received=501)


def test_a_channel_that_nobody_reads_drops_the_oldest(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    full, witness = hearer.subscribe("sender/*", capacity=5), hearer.subscribe("sender/*")
    meet(sender, hearer)
    for value in range(20):
        sender.publish("odd" if value % 2 else "even", value)
        witness.get(LIMIT_S)
        until(lambda value=value: sum(full.counts_by_key()[key].received + full.counts_by_key()[key].lost
                                      for key in full.counts_by_key()) == value + 1, "it to come")  # fmt: skip
    assert full.counts_by_key() == {"sender/even": Counts(2, lost=8), "sender/odd": Counts(3, lost=7)}
    got = [full.get(LIMIT_S) for _ in range(5)]
    assert [(one.value, one.lost) for one in got] == [(15, 7), (16, 8), (17, 0), (18, 0), (19, 0)]
    sender.publish("even", 20)
    assert full.get(LIMIT_S).lost == 0


@pytest.mark.parametrize("kind", ["stream", "state"])
def test_a_process_that_stands_still_blocks_no_publisher(
    join: Join, child: Start, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure = topology.session_config

    def patient(*arguments: Any) -> dict[str, Any]:
        """A publisher that waited would wait for a minute, and not close the link after a second."""
        config = configure(*arguments)
        config["transport"]["link"]["tx"]["queue"]["congestion_control"]["block"]["wait_before_close"] = 60_000_000
        return config

    monkeypatch.setattr(topology, "session_config", patient)
    script = """
    from neuraxis.mesh import topology
    topology.LEASE_MS = 60_000  # nobody takes it for dead, so that it can be in the way
    with Node("stuck", mesh=mesh, announce=False) as node:
        got = []
        subscription = node.subscribe("sender/*", lambda message: got.append(message.value[0]), capacity=100000)
        node.serve("got", lambda message: [got == sorted(set(got)), got[-1]])
        node.announce()
        say("ready")
        hear()
    """
    stuck = child(script)
    sender, hearer = join("sender"), join("hearer")
    quick = hearer.subscribe("sender/*", capacity=10_000)
    assert stuck.said() == "ready"
    assert sender.wait_for(["stuck", "hearer"], LIMIT_S) == []
    settle(hearer)
    sender.publish("number", [0], kind)
    quick.get(LIMIT_S)
    stuck.stop()
    # 40 MB fill every buffer on the way to the one that stands still; each is heard before the next is sent.
    begun = time.monotonic()
    for value in range(1, 2001):
        sender.publish("number", [value, b"x" * 20_000], kind)
        assert quick.get(LIMIT_S).value[0] == value
        assert time.monotonic() - begun < 2 * LIMIT_S
    assert sender.peer("stuck") is not None
    stuck.go_on()

    def has_caught_up() -> bool:
        try:
            return bool(sender.request("stuck", "got", timeout=LIMIT_S) == [True, 2000])
        except NodeGone:  # where all is slow, it takes itself for cut off when it goes on, and comes back
            return False

    if kind == "state":
        until(has_caught_up, "it to have caught up")
    assert quick.counts() == Counts(received=2001)


# --- numbers ---


def test_gaps_are_counted(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    channel = hearer.subscribe("sender/number")
    meet(sender, hearer)
    for value in range(3):
        sender.publish("number", value)
    with sender._publishers["number"].lock:
        sender._publishers["number"].sent += 4  # four that got lost on the way
    sender.publish("number", 7)
    assert [channel.get(LIMIT_S).lost for _ in range(4)] == [0, 0, 0, 4]
    assert channel.counts() == Counts(received=4, lost=4)
    with sender._publishers["number"].lock:
        sender._publishers["number"].sent -= 3  # three that come once more
    for value in (5, 6, 7, 8):
        sender.publish("number", value)
    assert channel.get(LIMIT_S).value == 8
    assert channel.counts() == Counts(received=5, lost=4, repeated=3)


@pytest.mark.parametrize("kind", ["stream", "state"])
def test_a_new_life_of_a_node_is_no_gap(join: Join, kind: str) -> None:
    hearer = join("hearer")
    channel = hearer.subscribe("sender/number")
    lives = []
    for life in range(3):
        sender = join("sender")
        meet(sender, hearer)
        for value in range(5 - life):
            sender.publish("number", [life, value], kind)
        got = [channel.get(LIMIT_S) for _ in range(5 - life)]
        assert [one.value for one in got] == [[life, value] for value in range(5 - life)]
        lives.append({one.incarnation for one in got})
        sender.close()
    assert [len(one) for one in lives] == [1, 1, 1]
    assert len(set.union(*lives)) == 3
    assert channel.counts() == Counts(received=12)


def test_two_threads_that_publish_are_numbered_in_order(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    channel = hearer.subscribe("sender/number", capacity=10_000)
    meet(sender, hearer)

    def publish() -> None:
        for _ in range(200):
            sender.publish("number", 0, "bulk")

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [channel.get(LIMIT_S).sequence for _ in range(800)] == list(range(800))
    assert channel.counts() == Counts(received=800)


def test_an_envelope_comes_back() -> None:
    for envelope in (Envelope("sensor/thermal", 2**63, 2**64 - 1, -1), Envelope("", 0, 0, 2**62)):
        sealed = seal_envelope(envelope.node.encode(), envelope.incarnation, envelope.sequence, envelope.step)
        assert open_envelope(sealed) == envelope
    for strange in (b"", b"\x01", bytes(40), b"\x01" + bytes(24) + b"\xff", b"\x02" + sealed[1:]):
        assert open_envelope(strange) is None


def test_a_ledger_stays_small_whatever_strangers_invent(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger("subscription")
    assert ledger.follow("known", Envelope("me", 1, 0, -1)) == 0
    for number in range(10_000):
        ledger.follow(f"key-{number}", Envelope("node", number, number, -1))
        ledger.note(f"key-{number}", "malformed")
        assert ledger.follow("known", Envelope("me", 1, number + 1, -1)) == 0
    assert len(ledger.by_key) <= 1001
    assert len(ledger._next) <= 4000
    assert ledger.total().malformed == 10_000
    caplog.clear()
    for _ in range(10_000):
        ledger.note("key-1", "malformed")
    assert 1 <= len(caplog.records) < 20


def test_who_a_message_is_from_is_what_its_key_says(join: Join) -> None:
    sensor, hearer = join("sensor/thermal"), join("hearer")
    channel = hearer.subscribe("**")
    meet(sensor, hearer)
    sensor._name_bytes = b"driver"
    sensor.publish("heat", 1)
    sensor._name_bytes = b"sensor"
    sensor.publish("heat", 2)
    claims: list[Any] = [channel.get(LIMIT_S) for _ in range(2)]
    assert [(one.value, one.node, one.topic) for one in claims] == [
        (1, "", "sensor/thermal/heat"),
        (2, "sensor", "thermal/heat"),
    ]


# --- polled ---


def test_what_is_polled_lies_ready_until_it_is_taken(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    polled = hearer.poll("sender/number", type=int)
    meet(sender, hearer)
    assert polled.take() is None
    for value in (0, "one", 2):
        sender.publish("number", value, step=value if isinstance(value, int) else -1)
    got: list[Message] = []
    until(lambda: _take_into(got, polled.take) or len(got) == 2, "both messages")
    assert [(one.value, one.node, one.key, one.sequence, one.step) for one in got] == [
        (0, "sender", "sender/number", 0, 0),
        (2, "sender", "sender/number", 2, 2),
    ]
    assert polled.counts() == Counts(received=2, malformed=1)
    assert hearer.counts()["sender/number"] == Counts(received=2, malformed=1)
    polled.close()
    with pytest.raises(MeshClosed, match="sender/number"):
        polled.take()


def test_what_nobody_polls_makes_room_and_is_counted(join: Join) -> None:
    sender, hearer = join("sender"), join("hearer")
    polled = hearer.poll("sender/number", capacity=4)
    channel = hearer.subscribe("sender/number", capacity=100)
    meet(sender, hearer)
    sender.publish("number", 0)
    until(lambda: (first := polled.take()) is not None and first.value == 0, "the first message")
    for value in range(1, 21):
        sender.publish("number", value, "stream")
    while channel.get(LIMIT_S).value != 20:
        pass
    left = [one for one in iter(polled.take, None) if one is not None]
    assert [one.value for one in left] == [17, 18, 19, 20]
    assert left[0].lost == 16
    assert polled.counts() == Counts(received=5, lost=16)


def test_polls_end_with_their_node(join: Join) -> None:
    hearer = join("hearer")
    polled = hearer.poll("sender/**")
    hearer.close()
    with pytest.raises(MeshClosed):
        polled.take()
    with pytest.raises(MeshClosed):
        hearer.poll("sender/**")


def _take_into(got: list[Message], take: Callable[[], Message | None]) -> None:
    if (message := take()) is not None:
        got.append(message)
