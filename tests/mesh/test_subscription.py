"""Subscriptions: messages in order, none twice, missing ones counted; a slow handler blocks no other one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from neuraxis.errors import MeshClosed, NodeGone
from neuraxis.mesh import Node, topology
from neuraxis.mesh.counts import REPEATED, Counts, Ledger
from neuraxis.mesh.messages import Message
from neuraxis.wire.envelope import Envelope, open_envelope, other_version, seal_envelope
from tests.mesh.conftest import LIMIT_S, Child, meet, settle
from tests.mesh.raw import until

Join = Callable[..., Node]
Start = Callable[..., Child]


class Command(msgspec.Struct):
    joint: str
    angle: float


class Slow:
    """A handler that blocks until it is released."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.stands = threading.Event()
        self.resume = threading.Event()

    def __call__(self, message: Message) -> None:
        self.got.append(message)
        self.stands.set()
        assert self.resume.wait(LIMIT_S)


# --- handlers and channels ---


def test_typed_messages_have_the_requested_type(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/command", type=Command)
    meet(sender, receiver)
    for value in (Command("elbow", 1.5), {"joint": "elbow"}, {"joint": 1, "angle": 2.0}, "elbow", b"\xff", None):
        sender.publish("command", value)
    sender.publish("command", {"joint": "wrist", "angle": 2})
    assert [channel.get(LIMIT_S).value for _ in range(2)] == [Command("elbow", 1.5), Command("wrist", 2.0)]
    assert channel.counts() == Counts(received=2, malformed=5)


def test_a_handler_that_raises_is_counted_and_called_again(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    got: list[int] = []

    def handle(message: Message) -> None:
        got.append(message.value)
        if message.value == 1:
            raise ValueError("at 1")
        if message.value == 2:
            raise SystemExit(2)

    subscription = receiver.subscribe("sender/*", handle)
    meet(sender, receiver)
    for value in range(4):
        sender.publish("number", value)
    until(lambda: len(got) == 4, "all four")
    assert got == [0, 1, 2, 3]
    assert subscription.counts() == Counts(received=4, handler_errors=2)


def test_an_error_of_a_handler_is_logged_once(join: Join, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = join("sender"), join("receiver")
    subscription = receiver.subscribe("sender/*", lambda message: 1 / 0)
    meet(sender, receiver)
    sender.publish("number", 1)
    until(lambda: subscription.counts().handler_errors == 1, "it")
    (record,) = [one for one in caplog.records if "sender/number" in one.getMessage()]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_a_handler_that_always_raises_logs_one_traceback(join: Join, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = join("sender"), join("receiver")
    subscription = receiver.subscribe("sender/*", lambda message: 1 / 0, depth=1000)
    meet(sender, receiver)
    for value in range(50):
        sender.publish("number", value)
    until(lambda: subscription.counts().handler_errors == 50, "all")
    assert sum(record.exc_info is not None for record in caplog.records) == 1


def test_threads_survive_errors_of_handlers(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    sender, receiver = join("sender"), join("receiver")
    got: list[int] = []
    channel = receiver.subscribe("sender/*")
    unopened = receiver.subscribe("sender/*")
    subscription = receiver.subscribe("sender/*", lambda message: got.append(message.value))

    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    waits = threading.Event()

    def wait_and_fail() -> None:
        waits.set()
        fail()

    monkeypatch.setattr(receiver._drainer, "wake", fail)
    channel._add_waiter(wait_and_fail)
    push = unopened._push
    monkeypatch.setattr(unopened, "_push", fail)
    meet(sender, receiver)
    sender.publish("number", 1)
    assert channel.get(LIMIT_S).value == 1
    assert waits.wait(LIMIT_S)
    until(lambda: got == [1], "the handler to be called")
    until(lambda: unopened.counts().received == 1, "what cannot be kept")
    monkeypatch.setattr(unopened, "_push", push)
    sender.publish("number", 2)
    assert channel.get(LIMIT_S).value == 2
    assert unopened.get(LIMIT_S).value == 2
    until(lambda: got == [1, 2], "the handler to be called again")
    assert not subscription.closed


def test_a_loop_over_a_channel_ends_when_it_is_closed(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/*")
    meet(sender, receiver)
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
    assert receiver.counts() == {"sender/number": Counts(received=3)}


def test_messages_received_before_closing_can_still_be_read(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    with receiver.subscribe("sender/*") as channel:
        meet(sender, receiver)
        for value in range(3):
            sender.publish("number", value)
        until(lambda: channel.counts().received == 3, "three")
    assert [message.value for message in channel] == [0, 1, 2]


def test_counts_outlive_their_subscription(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    for value in range(3):
        with receiver.subscribe("sender/number", recover=False) as channel:
            meet(sender, receiver)
            sender.publish("number", value)
            assert channel.get(LIMIT_S).value == value
        until(lambda: not sender._publisher("number", None).publisher.matching_status.matching, "nobody hears")
    assert receiver.counts() == {"sender/number": Counts(received=3)}


def test_a_handler_may_close_its_own_subscription_and_another(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    other = receiver.subscribe("sender/*", depth=100)
    got: list[int] = []

    def handle(message: Message) -> None:
        got.append(message.value)
        other.close()
        one.close()

    one = receiver.subscribe("sender/*", handle, depth=100)
    meet(sender, receiver)
    for value in range(10):
        sender.publish("number", value)
    until(lambda: not any(thread.is_alive() for thread in (*one._threads, *other._threads)), "the end of both")
    assert got == [0]


# --- the slow and the stuck ---


def test_a_slow_handler_drops_the_oldest_and_blocks_no_one_else(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    slow, quick = Slow(), receiver.subscribe("sender/*", depth=2000)
    subscription, after = receiver.subscribe("sender/*", slow, depth=10), receiver.subscribe("sender/after/all")
    meet(sender, receiver)
    sender.publish("number", 0)
    assert slow.stands.wait(LIMIT_S)
    assert quick.get(LIMIT_S).value == 0
    # All are published, and received by the fast handler, while the slow one still has its first.
    for value in range(1, 501):
        sender.publish("number", value)
        assert quick.get(LIMIT_S).value == value
    sender.publish("after/all", None)  # all earlier messages have arrived everywhere
    after.get(LIMIT_S)
    assert len(slow.got) == 1
    slow.resume.set()
    until(lambda: slow.got[-1].value == 500, "the last")
    assert [one.value for one in slow.got] == [0, *range(491, 501)]
    assert [one.lost for one in slow.got] == [0, 490, *[0] * 9]
    assert subscription.counts() == Counts(received=11, dropped=490)
    assert quick.counts() == Counts(received=501)


def test_an_unread_channel_drops_the_oldest(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    with pytest.warns(DeprecationWarning, match="depth="):  # its former name
        full = receiver.subscribe("sender/*", capacity=3)
    witness = receiver.subscribe("sender/*")
    meet(sender, receiver)
    for value in range(20):
        sender.publish("odd" if value % 2 else "even", value)
        witness.get(LIMIT_S)
        until(lambda value=value: full.counts().received + full.counts().dropped == value + 1, "it to come")
    assert full.counts_by_key() == {"sender/even": Counts(3, dropped=7), "sender/odd": Counts(3, dropped=7)}
    got = [full.get(LIMIT_S) for _ in range(6)]
    assert sorted((one.value, one.lost) for one in got) == [(14, 7), (15, 7), (16, 0), (17, 0), (18, 0), (19, 0)]
    sender.publish("even", 20)
    assert full.get(LIMIT_S).lost == 0


@pytest.mark.parametrize("kind", ["stream", "state"])
def test_a_stopped_subscriber_does_not_block_the_publisher(
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
    topology.LEASE_MS = 60_000  # long enough that it does not count as dead
    with Node("stuck", mesh=mesh, announce=False) as node:
        got = []
        subscription = node.subscribe("sender/*", lambda message: got.append(message.value[0]), depth=100000)
        node.serve("got", lambda message: [got == sorted(set(got)), got[-1] if got else None])
        node.announce()
        send("ready")
        receive()
    """
    stuck = child(script)
    sender, receiver = join("sender"), join("receiver")
    quick = receiver.subscribe("sender/*", depth=10_000)
    assert stuck.receive() == "ready"
    assert sender.wait_for(["stuck", "receiver"], LIMIT_S) == []
    settle(receiver)
    sender.publish("number", [0], kind)
    quick.get(LIMIT_S)
    stuck.stop()
    # 40 MB fill every buffer to the stopped process; each message is received before the next is sent.
    begun = time.monotonic()
    for value in range(1, 2001):
        sender.publish("number", [value, b"x" * 20_000], kind)
        assert quick.get(LIMIT_S).value[0] == value
        assert time.monotonic() - begun < 2 * LIMIT_S
    assert sender.peer("stuck") is not None
    stuck.resume()

    def has_caught_up() -> bool:
        try:
            return bool(sender.request("stuck", "got", timeout=LIMIT_S) == [True, 2000])
        except NodeGone:  # on a slow machine it finds itself disconnected when it resumes, and reconnects
            return False

    if kind == "state":
        until(has_caught_up, "it to have caught up")
    assert quick.counts() == Counts(received=2001)


# --- numbers ---


def test_gaps_are_counted(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/number")
    meet(sender, receiver)
    for value in range(3):
        sender.publish("number", value)
    with sender._publishers["number"].lock:
        sender._publishers["number"].sent += 4  # four lost messages
    sender.publish("number", 7)
    assert [channel.get(LIMIT_S).lost for _ in range(4)] == [0, 0, 0, 4]
    assert channel.counts() == Counts(received=4, lost=4)
    with sender._publishers["number"].lock:
        sender._publishers["number"].sent -= 3  # three repeated messages
    for value in (5, 6, 7, 8):
        sender.publish("number", value)
    # Two of the missing messages arrive late, and earlier ones are not delivered twice.
    assert [channel.get(LIMIT_S).value for _ in range(3)] == [5, 6, 8]
    assert channel.counts() == Counts(received=7, lost=2, repeated=1, late=1)


@pytest.mark.parametrize("kind", ["stream", "event"])
def test_a_new_life_of_a_node_is_no_gap(join: Join, kind: str) -> None:
    receiver = join("receiver")
    channel = receiver.subscribe("sender/number")
    lives = []
    for life in range(3):
        sender = join("sender")
        meet(sender, receiver)
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
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/number", depth=10_000)
    meet(sender, receiver)

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
    for envelope in (Envelope("sensor/thermal", 2**63, 2**64 - 1, -1, 3, 2**60), Envelope("", 0, 0, 2**62, 0, -1)):
        sealed = seal_envelope(
            envelope.node.encode(), envelope.incarnation, envelope.sequence, envelope.step, envelope.kind,
            envelope.sent_ns,
        )  # fmt: skip
        assert open_envelope(sealed) == envelope
        assert other_version(sealed, f"{envelope.node}/topic") is None
    for strange in (b"", b"nx", bytes(40), sealed[:35], sealed + b"\xff", b"x" + sealed[1:], b"nx\x03" + sealed[3:]):
        assert open_envelope(strange) is None
    assert other_version(b"nx\x03" + sealed[3:], "a/b") == 3
    first_version = b"\x01" + bytes(24) + b"sensor/thermal"
    assert other_version(first_version, "sensor/thermal/data") == 1
    assert other_version(first_version, "camera/frame") is None


def test_the_counts_stay_bounded_for_any_senders(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger("subscription")
    ledger.follow("known", Envelope("me", 1, 0, -1))
    ledger.follow("calm/number", Envelope("calm", 1, 0, -1))
    for number in range(10_000):
        ledger.follow(f"key-{number % 3}/{number}", Envelope("node", number, number, -1))
        ledger.note(f"key-{number}", "malformed")
        assert ledger.follow("known", Envelope("me", 1, number + 1, -1)) == 0
    assert len(ledger.by_key) <= 1001
    assert len(ledger._trackers) <= 4000
    assert ledger.follow("calm/number", Envelope("calm", 1, 0, -1)) == REPEATED, (
        "the owner of the most streams loses one"
    )
    assert ledger.total().malformed == 10_000
    assert 1 <= len(caplog.records) <= 20, "however many keys there are"
    caplog.clear()
    ledger = Ledger("subscription")
    for _ in range(10_000):
        ledger.note("key-1", "malformed")
    assert 1 <= len(caplog.records) < 20


def test_the_sender_of_a_message_is_taken_from_its_key(join: Join) -> None:
    sensor, receiver = join("sensor/thermal"), join("receiver")
    channel = receiver.subscribe("**")
    meet(sensor, receiver)
    for claim in (b"driver", b"sensor", b"sensor/thermal/heat", b"", b"sensor/thermal"):
        sensor._name_bytes = claim
        sensor.publish("heat", claim.decode())
    sensor.session.put(f"neuraxis/{sensor.mesh}/sensor/thermal/heat", b"1", encoding="application/json")
    claims: list[Any] = [channel.get(LIMIT_S) for _ in range(2)]
    assert [(one.value, one.node, one.topic) for one in claims] == [
        ("sensor/thermal", "sensor/thermal", "heat"),
        (1, "", "sensor/thermal/heat"),
    ]
    assert channel.counts() == Counts(received=2, malformed=4)


def test_a_topic_of_several_parts_belongs_to_its_node(join: Join) -> None:
    sensor, receiver = join("sensor"), join("receiver")
    channel = receiver.subscribe("**")
    meet(sensor, receiver)
    sensor.publish("thermal/heat", 1)
    message = channel.get(LIMIT_S)
    assert (message.node, message.topic) == ("sensor", "thermal/heat")


# --- polled ---


def test_polled_messages_wait_in_the_queue(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    polled = receiver.poll("sender/number", type=int)
    meet(sender, receiver)
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
    assert receiver.counts()["sender/number"] == Counts(received=2, malformed=1)
    polled.close()
    with pytest.raises(MeshClosed, match="sender/number"):
        polled.take()


def test_the_former_name_of_depth_is_accepted(join: Join) -> None:
    receiver = join("receiver")
    with pytest.warns(DeprecationWarning, match="depth="):
        polled = receiver.poll("sender/number", capacity=4)
    assert polled._depth == 4
    assert receiver.poll("sender/number")._depth == 10


def test_unpolled_messages_are_dropped_and_counted(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    polled = receiver.poll("sender/number", depth=4)
    channel = receiver.subscribe("sender/number", depth=100)
    meet(sender, receiver)
    sender.publish("number", 0)
    until(lambda: (first := polled.take()) is not None and first.value == 0, "the first message")
    for value in range(1, 21):
        sender.publish("number", value, "stream")
    while channel.get(LIMIT_S).value != 20:
        pass
    left = [one for one in iter(polled.take, None) if one is not None]
    assert [one.value for one in left] == [17, 18, 19, 20]
    assert left[0].lost == 16
    assert polled.counts() == Counts(received=5, dropped=16)


def test_polls_end_with_their_node(join: Join) -> None:
    receiver = join("receiver")
    polled = receiver.poll("sender/**")
    receiver.close()
    with pytest.raises(MeshClosed):
        polled.take()
    with pytest.raises(MeshClosed):
        receiver.poll("sender/**")


def _take_into(got: list[Message], take: Callable[[], Message | None]) -> None:
    if (message := take()) is not None:
        got.append(message)
