"""Delivery to slow subscribers, ages of messages, and forged numbers, clocks and sizes."""

from __future__ import annotations

import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import psutil
import pytest
import zenoh

from neuraxis.errors import InvalidArgument, RequestFailed
from neuraxis.mesh import Node, Router, Subscription
from neuraxis.mesh import subscription as subscription_module
from neuraxis.mesh.counts import IMPOSSIBLE, REPEATED, Counts, SequenceTracker
from neuraxis.mesh.messages import KINDS, Message
from neuraxis.mesh.monitor import Monitor
from neuraxis.mesh.topology import LARGEST_MESSAGE
from neuraxis.wire.envelope import VERSION, seal_envelope
from tests.mesh.conftest import LIMIT_S, ROUTER, Child, client_of, free_endpoint, meet, settle
from tests.mesh.raw import fence, until

Join = Callable[..., Node]
Start = Callable[..., Child]


class Stalls(threading.Thread):
    """Times in which this process did not get to run: what a thread that sleeps a hundredth of a second oversleeps."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found: list[tuple[float, float]] = []  # from when to when, in seconds since 1970
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        due = time.time() + 0.01
        while not self._ended.wait(max(0.0, due - time.time())):
            now = time.time()
            if now > due + 0.005:
                self.found.append((due, now))
            due = now + 0.01

    def end(self) -> list[tuple[float, float]]:
        self._ended.set()
        self.join()
        return self.found


CAMERA = f"""
{inspect.getsource(Stalls)}
import numpy as np
frame = np.zeros((960, 720, 3), np.uint8)
with Node("camera", mesh=mesh) as node:
    assert node.wait_for_subscribers("frame", 20)
    stalls = Stalls()
    for number in range(arguments):
        frame[0, 0, 0] = number % 256
        node.publish("frame", frame)
        time.sleep(1 / 30)
    send(arguments)
    receive()
    send(stalls.end())
"""


class Gate:
    """A handler that waits at each message until it is let through."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.resume = threading.Semaphore(0)

    def __call__(self, message: Message) -> None:
        self.got.append(message)
        assert self.resume.acquire(timeout=LIMIT_S)


# --- the newest ---


def test_a_slow_handler_of_large_frames_gets_fresh_ones_and_memory_stays_level(
    join: Join, child: Start, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[tuple[float, float]] = []  # when each frame was sent and handled
    memory: list[int] = []

    def detect(message: Message) -> None:
        handled.append((message.sent_at, message.sent_at + message.age))
        memory.append(psutil.Process().memory_info().rss)
        time.sleep(0.2)  # the detector's work

    detector = join("detector")
    subscription = detector.subscribe("camera/frame", detect)
    stalls = Stalls()
    camera = child(CAMERA, 90)
    assert camera.receive() == 90
    until(lambda: (one := subscription.counts()).received + one.dropped + one.lost >= 90, "the last frame")
    counts = subscription.counts()
    assert counts.received + counts.dropped + counts.lost == 90
    camera.send()
    stalled = [(float(begin), float(end)) for begin, end in camera.receive()] + stalls.end()
    # Without a bound the last of 90 frames would be 12 s old, and 150 MB would wait. On an idle machine it is 0.2 s.
    # Frames cannot be handled while one of the two processes does not get to run.
    for sent, seen in handled:
        excused = sum(max(0.0, min(seen, end) - max(sent, begin)) for begin, end in stalled)
        assert seen - sent < 0.5 + excused, (sent, seen, excused)
    assert max(memory) - memory[0] < 100 * 2**20
    reports = [record.getMessage() for record in caplog.records if "falls behind" in record.getMessage()]
    assert len(reports) == 1
    assert "arrive per second, and the handler takes" in reports[0]


@pytest.mark.parametrize(
    ("kind", "first", "level"),
    [("stream", 91, logging.WARNING), ("state", 100, None), ("event", 1, None), ("bulk", 1, None)],
)
def test_each_kind_of_topic_keeps_its_guarantee(
    join: Join, kind: str, first: int, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel, witness = receiver.subscribe("sender/number"), receiver.subscribe("sender/number", depth=1000)
    meet(sender, receiver)
    for value in range(1, 101):
        sender.publish("number", value, kind)
    assert [witness.get(LIMIT_S).value for _ in range(100)] == list(range(1, 101))
    until(lambda: sum((channel.counts().received, channel.counts().dropped)) == 100, "all")
    got = [channel.get(LIMIT_S) for _ in range(first, 101)]
    assert [one.value for one in got] == list(range(first, 101))
    assert [one.lost for one in got] == [first - 1] + [0] * (100 - first)
    assert channel.counts() == Counts(received=101 - first, dropped=first - 1)
    receiver.close()
    assert [record.levelno for record in caplog.records if "falls behind" in record.getMessage()] == [level][
        : bool(level)
    ]


def test_messages_before_the_first_that_is_read_are_not_counted(join: Join) -> None:
    """Nothing says whether they were sent before the subscription; afterwards the ring's drops are counted."""
    sender, receiver = join("sender"), join("receiver")
    polled, ends = receiver.poll("sender/number", depth=10), receiver.subscribe("sender/end")
    meet(sender, receiver)
    for first, lost, counts in ((0, 0, Counts(received=10)), (30, 20, Counts(received=20, dropped=20))):
        for value in range(first, first + 30):
            sender.publish("number", value, "bulk")
        sender.publish("end", first, "bulk")  # arrives after them
        assert ends.get(LIMIT_S).value == first
        got = [message for _ in range(10) if (message := polled.take()) is not None]
        assert [one.value for one in got] == list(range(first + 20, first + 30))
        assert got[0].lost == lost
        assert polled.counts() == counts
    assert sender.sent() == {"number": 60, "end": 2}


@pytest.mark.parametrize("routed", [False, True], ids=["peers", "router"])
def test_messages_that_overtake_each_other_all_arrive(join: Join, routed: bool) -> None:
    """A stream is faster than a bulk message that was sent before it; a subscription of both gets both."""
    with Router(["tcp/127.0.0.1:0"]) if routed else nullcontext() as router:
        options = {"topology": client_of(*router.endpoints)} if router is not None else {}
        senders, receiver = [join("a", **options), join("b", **options)], join("receiver", **options)
        subscription = receiver.subscribe("*/*", depth=10_000)
        meet(*senders, receiver)
        assert all(sender.wait_for_subscribers("large", LIMIT_S, "bulk") for sender in senders)
        ended = threading.Event()

        def beat(sender: Node) -> None:
            while not ended.wait(0.001):
                sender.publish("beat", 1)

        threads = [threading.Thread(target=beat, args=(sender,)) for sender in senders]
        for thread in threads:
            thread.start()
        large = np.zeros(5_000, np.float32)  # not so much that a busy machine keeps the router waiting
        for _ in range(50):
            for sender in senders:
                sender.publish("large", large, "bulk")
        ended.set()
        for thread in threads:
            thread.join()
        for sender in senders:  # bulk arrives in order: when this is there, so is all before it
            sender.publish("large", "the last", "bulk")
        last = [f"{sender.name}/large" for sender in senders]
        deadline = time.monotonic() + LIMIT_S
        while (found := {key: counts_of(subscription, key) for key in last}) != dict.fromkeys(last, Counts(51)):
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        receiver.close()


def test_a_forged_time_of_zenoh_mutes_nobody(join: Join, mesh: str) -> None:
    """Zenoh's own times are outside of the envelope. Nodes send none, so that no forged one is newer than theirs."""
    sender, receiver, stranger = join("sender"), join("receiver"), join("stranger")
    subscription = receiver.subscribe("*/value")
    times: list[object] = []
    stranger.session.declare_subscriber(f"neuraxis/{mesh}/sender/value", lambda sample: times.append(sample.timestamp))
    meet(sender, receiver, stranger)
    sender.publish("value", 1)
    assert subscription.get(LIMIT_S).value == 1
    until(lambda: times == [None], "the message at the stranger")
    name = bytes.fromhex(str(sender.session.info.zid()).zfill(32))[::-1]  # what the sender's own times would carry
    future = zenoh.Timestamp(datetime.now(UTC) + timedelta(days=1), name)
    stranger.session.put(f"neuraxis/{mesh}/stranger/value", b"\x02", encoding="application/msgpack", timestamp=future)
    assert subscription.get(LIMIT_S).value == 2
    sender.publish("value", 3)
    assert subscription.get(LIMIT_S).value == 3


def counts_of(subscription: Subscription, key: str) -> Counts:
    return subscription.counts_by_key().get(key, Counts())


def test_events_that_find_no_room_are_an_error(join: Join, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/number", depth=10)
    meet(sender, receiver)
    for value in range(30):
        sender.publish("number", value, "event")
    until(lambda: channel.counts() == Counts(received=10, dropped=20), "all")
    channel.close()
    assert [record.levelno for record in caplog.records if "falls behind" in record.getMessage()] == [logging.ERROR]


def test_a_handler_at_work_leaves_no_room_for_one_loud_sender_only(join: Join) -> None:
    """Each sender and key has a depth of its own, so one cannot push out the others."""
    loud, calm, receiver = join("loud"), join("calm"), join("receiver")
    gate = Gate()
    subscription = receiver.subscribe("*/number", gate, depth=2)
    witness = receiver.subscribe("*/number", depth=5000)
    meet(loud, calm, receiver)
    loud.publish("number", -1)
    until(lambda: len(gate.got) == 1, "the handler is at work")
    calm.publish("number", 0)
    for value in range(2000):
        loud.publish("number", value, "stream")
        if value % 100 == 0:
            settle(loud)
    calm.publish("number", 1)
    until(lambda: witness.counts().received == 2003, "all")
    until(lambda: subscription.counts().dropped == 1998, "only the newest wait")
    for _ in range(5):
        gate.resume.release()
    until(lambda: len(gate.got) == 5, "the newest")
    values = [(one.node, one.value) for one in gate.got]
    assert sorted(values) == [("calm", 0), ("calm", 1), ("loud", -1), ("loud", 1998), ("loud", 1999)]
    assert subscription.counts() == Counts(received=5, dropped=1998)


# --- time ---


def test_messages_know_their_age(join: Join) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/*")
    sender.serve("age", lambda message: [message.age, message.sent_at])
    meet(sender, receiver)
    before = time.time()
    sender.publish("number", 1)
    message = channel.get(LIMIT_S)
    assert before <= message.sent_at <= time.time()
    assert 0 <= message.age <= time.time() - before
    age, sent_at = receiver.request("sender", "age", timeout=LIMIT_S)
    assert 0 <= age < LIMIT_S
    assert before <= sent_at <= time.time()


@pytest.mark.parametrize(
    ("sent_ns", "age_s", "skewed"),
    [(10**18 * 4, 0.0, 1), (-(2**63), 86_400.0, 1), (None, 0.0, 0)],
    ids=["future", "past", "now"],
)
def test_a_wrong_clock_is_bounded_and_counted(
    join: Join, mesh: str, sent_ns: int | None, age_s: float, skewed: int
) -> None:
    receiver, stranger = join("receiver"), join("stranger")
    channel = receiver.subscribe("stranger/*")
    meet(receiver, stranger)
    with forging(stranger, mesh) as forge:
        forge("topic", 1, seal_envelope(b"stranger", 1, 0, -1, 0, sent_ns))
        message = channel.get(LIMIT_S)
    assert age_s <= message.age < age_s + LIMIT_S
    assert channel.counts() == Counts(received=1, skewed=skewed)


# --- numbers ---


@contextmanager
def forging(node: Node, mesh: str) -> Iterator[Callable[[str, int, bytes], None]]:
    """Send what a node would not: a number with any attachment, on any key of any node."""

    def forge(topic: str, value: int, attachment: bytes) -> None:
        key = f"neuraxis/{mesh}/{node.name}/{topic}"
        block = zenoh.CongestionControl.BLOCK
        node.session.put(
            key, bytes([value]), encoding="application/msgpack", attachment=attachment, congestion_control=block
        )

    yield forge


@pytest.mark.parametrize("numbers", [[2**63], [2**64 - 1], [40], [12, 13, 14], list(range(20, 2000, 7))])
def test_a_forged_number_harms_at_most_itself(join: Join, mesh: str, numbers: list[int]) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/number", depth=5000, recover=False)
    meet(sender, receiver)
    for value in range(10):
        sender.publish("number", value, "bulk")
    assert [channel.get(LIMIT_S).value for _ in range(10)] == list(range(10))
    with forging(sender, mesh) as forge:
        for number in numbers:
            forge("number", 100, seal_envelope(b"sender", sender.incarnation, number, -1, KINDS.index("bulk")))
    forged = [number for number in numbers if number < 2**32]
    assert [channel.get(LIMIT_S).value for _ in forged] == [100] * len(forged)
    until(lambda: channel.counts().misnumbered == len(numbers) - len(forged), "the impossible ones to be refused")
    for value in range(10, 2100):
        sender.publish("number", value)
    until(lambda: (counts := channel.counts()).received + counts.repeated == 2100 + len(forged), "all")
    got = [channel.get(LIMIT_S).value for _ in range(channel.counts().received - 10 - len(forged))]
    assert set(range(10, 2100)) - set(got) <= set(numbers)
    assert channel.counts().lost == 0
    assert channel.counts().misnumbered + channel.counts().late >= 1


def test_forged_first_messages_and_other_identities_change_nothing(join: Join, mesh: str) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/number", depth=100, recover=False)
    meet(sender, receiver)
    with forging(sender, mesh) as forge:
        forge("number", 100, seal_envelope(b"sender", sender.incarnation, 2**62, -1))
        forge("number", 100, seal_envelope(b"sender", 2**64 - 1, 5, -1))
    assert [channel.get(LIMIT_S).value for _ in range(2)] == [100, 100]
    for value in range(50):
        sender.publish("number", value)
    assert [channel.get(LIMIT_S).value for _ in range(50)] == list(range(50))
    assert channel.counts() == Counts(received=52, late=1)


def test_an_impossible_number_stays_impossible_after_a_forged_one() -> None:
    """A number that is far ahead, but possible, opens a gap behind it. A second one must not skip within that gap."""
    tracker = SequenceTracker()
    for number in range(10):
        assert tracker.follow(number, 0.0) == 0
    assert tracker.follow(100_000, 0.0) == 99_990
    assert tracker.follow(10, 0.0) == 0  # the real sender goes on
    for number in (2**40, 2**62, 2**64 - 1):
        assert tracker.follow(number, 1.0) == IMPOSSIBLE
    assert tracker.follow(100_001, 1.0) == 99_989
    assert tracker.follow(11, 1.0) == 0
    assert tracker.follow(500_000, 1.0) == 399_998 + 99_988


def test_a_tracker_agrees_with_a_set_of_numbers() -> None:
    """For any sequence: no number is accepted twice, and no new number is refused."""
    for seed in range(30):
        source, tracker = random.Random(seed), SequenceTracker()
        seen: set[int] = set()
        line = source.randrange(1000)
        for _ in range(400):
            line += source.choice([1, 1, 1, 1, 2])
            number = source.choice([line, line, line, line, max(0, line - source.randrange(50))])
            found = tracker.follow(number, 0.0)
            assert found != IMPOSSIBLE
            if number not in seen and len(tracker._gaps) < 16:
                assert found != REPEATED
            if found != REPEATED:
                line = max(line, number)
            seen.add(number)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_received_and_lost_are_all_that_were_sent(share: float) -> None:
    """For any number of gaps: beyond its limit, a tracker still knows how many numbers are missing."""
    for seed in range(30):
        source, tracker = random.Random(seed), SequenceTracker()
        came = [number for number in range(500) if source.random() > share]
        assert all(tracker.follow(number, 0.0) >= 0 for number in came)
        assert len(came) + tracker.lost == came[-1] - came[0] + 1


# --- sizes and versions ---


def test_oversized_messages_are_refused_by_the_sender_and_counted_by_the_receiver(join: Join, mesh: str) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/*")
    sender.serve("large", lambda message: bytes(LARGEST_MESSAGE + 1))
    meet(sender, receiver)
    large = bytes(LARGEST_MESSAGE + 1)
    with pytest.raises(InvalidArgument, match="67,108,8"):
        sender.publish("data", np.frombuffer(large, np.uint8))
    block = zenoh.CongestionControl.BLOCK
    sender.session.put(f"neuraxis/{mesh}/sender/data", large, congestion_control=block)
    until(lambda: channel.counts().oversized == 1, "it to be counted")
    with pytest.raises(RequestFailed, match="an answer of 67,108,8"):
        receiver.request("sender", "large", timeout=LIMIT_S)


def test_attachments_are_bounded_and_count_towards_the_queue(
    join: Join, mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "_MAX_BYTES", 20_000)
    sender, receiver = join("sender"), join("receiver")
    gate = Gate()
    handled = receiver.subscribe("sender/*", gate, depth=100)
    polled = receiver.poll("sender/*", depth=100)
    channel = receiver.subscribe("sender/*", depth=100)
    meet(sender, receiver)
    with forging(sender, mesh) as forge:
        forge("data", 0, b"")
        until(lambda: gate.got, "the handler is at work")
        for number in range(3):
            forge("data", 1, bytes([number]) * 2**16)
            forge("data", 1, seal_envelope(b"sender" * 100, 1, number, -1))
        for number in range(20):
            forge("data", 2, b"%4000d" % number)
    assert channel.get(LIMIT_S).value == 0
    until(lambda: channel.counts().received == 21, "all")
    assert channel.counts() == Counts(received=21, oversized=3, malformed=3)
    assert len(channel._decoder._streams) == 1
    until(lambda: handled.counts().dropped == 16, "only 20,000 bytes wait")
    assert polled.take() is not None
    assert polled.counts() == Counts(received=1, oversized=3, malformed=3, dropped=17)
    for _ in range(5):
        gate.resume.release()
    until(lambda: handled.counts() == Counts(received=5, oversized=3, malformed=3, dropped=16), "the others")


def test_programs_that_count_in_their_attachments_are_one_stream(join: Join, mesh: str) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/*")
    meet(sender, receiver)
    with forging(sender, mesh) as forge:
        for number in range(100):
            forge("data", number, b"frame %d" % number)
    until(lambda: channel.counts() == Counts(received=10, dropped=90), "ten wait")
    assert [channel.get(LIMIT_S).value for _ in range(10)] == list(range(90, 100))


def test_one_sender_cannot_evict_the_counts_of_another(join: Join, mesh: str) -> None:
    calm, loud, receiver = join("calm"), join("loud"), join("receiver")
    channel = receiver.subscribe("**", depth=10_000, recover=False)
    meet(calm, loud, receiver)
    with forging(calm, mesh) as forge_calm, forging(loud, mesh) as forge:
        ours = seal_envelope(b"calm", calm.incarnation, 0, -1)
        forge_calm("number", 1, ours)
        assert channel.get(LIMIT_S).value == 1
        for number in range(4200):
            forge(f"number/{number % 7}", 2, seal_envelope(b"loud", number, 0, -1))
            if number % 500 == 0:
                settle(loud)
        until(lambda: channel.counts().received == 4201, "all")
        assert len(channel._decoder._streams) <= 4000
        forge_calm("number", 1, ours)
        until(lambda: channel.counts() == Counts(received=4201, repeated=1), "it to be recognised")


def test_queued_messages_of_one_sender_cannot_evict_those_of_others(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "_MAX_MESSAGES", 1000)
    calm, loud, receiver = join("calm"), join("loud"), join("receiver")
    channel = receiver.subscribe("**", depth=1000)
    meet(calm, loud, receiver)
    for value in range(5):
        calm.publish("number", value, "bulk")
    for topic in "abc":  # what a full ring drops of a publisher that has not been heard yet cannot be counted
        loud.publish(topic, -1, "bulk")
    until(lambda: channel.counts().received == 8, "those of the calm one, and the first of the loud one")
    for value in range(400):
        for topic in "abc":
            loud.publish(topic, value, "bulk")
    until(lambda: (counts := channel.counts()).received + counts.dropped == 1208, "all")
    assert channel.counts() == Counts(received=1000, dropped=208)
    got = [channel.get(LIMIT_S) for _ in range(1000)]
    assert [one.value for one in got if one.node == "calm"] == list(range(5))


def test_envelopes_of_other_versions_are_refused(join: Join, mesh: str, caplog: pytest.LogCaptureFixture) -> None:
    sender, receiver = join("sender"), join("receiver")
    channel = receiver.subscribe("sender/*")
    meet(sender, receiver)
    ours = seal_envelope(b"sender", 1, 0, -1)
    with forging(sender, mesh) as forge:
        forge("data", 1, ours[:2] + bytes([VERSION + 1]) + ours[3:])
        forge("data", 1, b"\x01" + bytes(24) + b"sender")
        forge("data", 7, ours)
    assert channel.get(LIMIT_S).value == 7
    assert channel.counts() == Counts(received=1, malformed=2)
    reported = " ".join(record.getMessage() for record in caplog.records)
    assert f"version {VERSION + 1}, not {VERSION}" in reported


def test_depths_that_cannot_be(join: Join) -> None:
    node = join("node")
    wrong: list[Any] = [0, -1, True, 2.5, "10"]
    for depth in wrong:
        with pytest.raises(InvalidArgument, match="depth"):
            node.subscribe("a/b", depth=depth)
        with pytest.raises(InvalidArgument, match="depth"):
            node.poll("a/b", depth=depth)


def test_a_listener_trusts_keys_and_survives_unreadable_messages(
    join: Join, mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = join("sender"), join("receiver")
    with Monitor(receiver, "**") as listener:
        meet(sender, receiver)
        with forging(sender, mesh) as forge:
            forge("data", 1, seal_envelope(b"sender", 1, 0, -1))
            forge("data", 1, seal_envelope(b"driver", 1, 0, -1))
            forge("data", 1, seal_envelope(b"sender" * 2**10, 1, 0, -1))
            heard = [listener.get(LIMIT_S) for _ in range(3)]
            assert [one.node for one in heard if one is not None] == ["sender", "", ""]
            total = listener._ledger.total()
            assert (total.malformed, total.oversized) == (1, 1)

            def fail(*_: Any) -> None:
                raise ValueError("unexpected")

            with monkeypatch.context() as patch:
                patch.setattr(listener, "_envelope", fail)
                forge("data", 1, b"")
                until(lambda: listener._ledger.total().malformed == 2, "it to be counted")
            forge("data", 1, b"")
            assert listener.get(LIMIT_S) is not None


# --- recovery ---


class Impostor:
    """Send on keys below one's own what looks to Zenoh like messages, heartbeats and replies of another publisher."""

    def __init__(self, node: Node, mesh: str, source: Any) -> None:
        self._session = node.session
        self.key = f"neuraxis/{mesh}/{node.name}/value"
        self._source = source
        self.cache = f"{self.key}/@adv/pub/{source.zid}/{source.eid}/_"
        self._cache = self._session.declare_queryable(f"{self.key}/@adv/**", self._reply)

    def _reply(self, query: Any) -> None:
        query.reply(self.key, b"\x08", encoding="application/msgpack")

    def forge(self, *numbers: int) -> None:
        block = zenoh.CongestionControl.BLOCK
        for number in numbers:
            info = zenoh.SourceInfo(self._source, number)
            self._session.put(
                self.key, b"\x07", encoding="application/msgpack", source_info=info, congestion_control=block
            )
        self._session.put(self.cache, (2**31).to_bytes(4, "little"))


def source_of(sender: Node, witness: Node, kind: str) -> Any:
    """Publish 0, and return the identity of the publisher, as anyone sees it who gets its messages."""
    observed: list[Any] = []
    key = f"neuraxis/{sender.mesh}/{sender.name}/value"
    subscriber = witness.session.declare_subscriber(key, observed.append)
    settle(witness)
    sender.publish("value", 0, kind)
    until(lambda: observed, "the message at the witness")
    subscriber.undeclare()
    return observed[0].source_info.source_id


@pytest.mark.parametrize("kind", ["state", "event"])
def test_a_forged_publisher_mutes_nobody(join: Join, mesh: str, kind: str) -> None:
    """A program that may publish on one key of a subscription forges the publisher of another key."""
    sender, receiver, stranger = join("sender"), join("receiver"), join("stranger")
    handled: list[Message] = []
    subscription = receiver.subscribe("*/value", depth=100)
    receiver.subscribe("**", handled.append, depth=100)
    meet(sender, receiver, stranger)
    impostor = Impostor(stranger, mesh, source_of(sender, stranger, kind))
    impostor.forge(1, 2, 10, 2**20, 2**31)
    for value in range(1, 11):
        sender.publish("value", value)
    settle(stranger, sender)

    def mine() -> list[Any]:
        return [one.value for one in handled if one.node == "sender"]

    until(lambda: mine() == list(range(11)), "all at the handler")
    until(lambda: counts_of(subscription, "sender/value").received == 11, "all in the channel")
    assert counts_of(subscription, "sender/value") == Counts(received=11)
    # The forged ones are what their key says: messages of the stranger.
    until(lambda: counts_of(subscription, "stranger/value").received >= 5, "those of the stranger")


def test_events_are_recovered_despite_a_forged_publisher(join: Join, child: Start, mesh: str) -> None:
    endpoint = free_endpoint()
    router = child(ROUTER, endpoint)
    assert router.receive() == "ready"
    sender, receiver, stranger = (
        join(name, topology=client_of(endpoint)) for name in ("sender", "receiver", "stranger")
    )
    handled: list[Message] = []
    channel = receiver.subscribe("*/value", depth=5000)
    receiver.subscribe("*/value", handled.append, depth=5000)
    meet(sender, receiver, stranger)
    impostor = Impostor(stranger, mesh, source_of(sender, stranger, "event"))
    impostor.forge(1, 5, 400, 2**31)
    fence(stranger.session)
    router.kill()
    until(lambda: not sender.connected and not receiver.connected, "both to see that the router is gone")
    for value in range(1, 301):
        sender.publish("value", value)
    assert child(ROUTER, endpoint).receive() == "ready"
    # Nothing more is published: the sender's heartbeat shows the missed messages.
    until(lambda: counts_of(channel, "sender/value") == Counts(received=301), "all in the channel")
    until(lambda: [one.value for one in handled if one.node == "sender"] == list(range(301)), "all at the handler")
    assert (receiver.counts()["sender/value"]) == Counts(received=602)


def test_what_waits_for_recovery_is_bounded(join: Join, mesh: str) -> None:
    """A sender with gaps, with a cache that never answers, and with more identities than are followed."""
    sender, receiver, stranger = join("sender"), join("receiver"), join("stranger")
    channel = receiver.subscribe("*/value", depth=20_000)
    meet(sender, receiver, stranger)
    sender.publish("value", 0, "event")
    assert channel.get(LIMIT_S).value == 0
    recovery = channel._recovery
    assert recovery is not None
    publisher = stranger.session.declare_publisher(f"neuraxis/{mesh}/stranger/value")
    questions: list[Any] = []  # a query ends when nothing refers to it
    cache = stranger.session.declare_queryable(f"neuraxis/{mesh}/stranger/value/@adv/**", questions.append)
    settle(stranger)
    block = zenoh.CongestionControl.BLOCK

    def forge(source: Any, number: int) -> None:
        stranger.session.put(
            f"neuraxis/{mesh}/stranger/value", b"\x07", encoding="application/msgpack",
            source_info=zenoh.SourceInfo(source, number), congestion_control=block,
        )  # fmt: skip

    forge(publisher.id, 0)
    for number in range(2, 2103):
        forge(publisher.id, number)
        if number % 500 == 0:
            settle(stranger)
    until(lambda: channel.counts().received == 2103, "the messages after the gap")
    assert questions
    for _ in range(100):  # more than are asked at a time
        with stranger.session.declare_publisher(f"neuraxis/{mesh}/stranger/value") as other:
            forge(other.id, 5)
    until(lambda: questions.clear() or channel.counts().received == 2203, "those after the gaps of many")
    cache.undeclare()
    forge(publisher.id, 2**32 - 1)
    for number in range(3):  # Zenoh's numbers have 32 bits
        forge(publisher.id, number)
    until(lambda: channel.counts().received == 2207, "those after the highest number")
    assert not recovery._waiting
    for number in range(4200):
        with stranger.session.declare_publisher(f"neuraxis/{mesh}/stranger/value") as other:
            forge(other.id, 0)
        if number % 500 == 0:
            settle(stranger)
    until(lambda: channel.counts().received == 2207 + 4200, "one of each identity")
    assert len(recovery._sources) <= 4000
    assert any(key.endswith("/sender/value") for key, _ in recovery._sources)
    sender.publish("value", 1)
    until(lambda: counts_of(channel, "sender/value") == Counts(received=2), "the next one of the sender")
