"""Malformed messages of unknown programs are counted and dropped; no handler sees them, and the node continues."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import zenoh
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from neuraxis.errors import MeshError
from neuraxis.mesh import Node
from neuraxis.mesh.counts import Counts, SequenceTracker
from neuraxis.mesh.messages import Message
from neuraxis.mesh.topology import LARGEST_MESSAGE, seed_port
from neuraxis.wire.codecs import Undecodable, decode, encode
from neuraxis.wire.envelope import ENVELOPE_MAGIC, open_envelope, seal_envelope
from tests.mesh.conftest import LIMIT_S, meet, settle
from tests.mesh.raw import session, until

Join = Callable[..., Node]

MSGPACK = "application/msgpack"
ENCODINGS = [
    *(MSGPACK, "application/json", "text/json", "zenoh/bytes", "zenoh/string", "text/plain", "application/cbor"),
    *("application/x-neuraxis-array", "application/x-neuraxis-tensor", "application/python-serialized-object"),
    *("application/protobuf", "application/protobuf;google.protobuf.Struct", "", "nonsense", "é;\x00"),
]


class Command(msgspec.Struct):
    joint: str
    angle: float


payloads = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=50).map(str.encode),
    st.recursive(st.none() | st.integers(-5, 5) | st.text(max_size=3), lambda one: st.lists(one, max_size=3)).map(
        lambda value: encode(value)[0]
    ),
    st.builds(lambda angle: encode(Command("elbow", angle))[0], st.floats(allow_nan=False)),
)
encodings = st.sampled_from(ENCODINGS) | st.text(max_size=20)
numbers = st.integers(0, 20) | st.integers(0, 2**64 - 1)
attachments = st.one_of(
    st.none(),
    st.binary(max_size=60),
    st.builds(
        seal_envelope,
        st.sampled_from([b"stranger", b"node", b"", b"\xff", b"stranger/a"]) | st.binary(max_size=10),
        numbers,
        numbers,
        st.integers(-(2**63), 2**63 - 1),
    ),
)
fuzz = settings(max_examples=150, suppress_health_check=list(HealthCheck))


@contextmanager
def stranger_on(mesh: str) -> Iterator[Any]:
    """A Zenoh session without our code that is connected to a local mesh."""
    with session([f"tcp/127.0.0.1:{seed_port(mesh)}"], mode="peer") as stranger:
        until(lambda: list(stranger.info.peers_zid()), "a link")
        yield stranger


def readable(payload: bytes, encoding: str, type: Any = None) -> bool:
    try:
        decode(payload, str(zenoh.Encoding(encoding)), type=type)
    except Undecodable:
        return False
    return True


def test_messages_of_strangers(join: Join, mesh: str) -> None:
    node = join("node")
    handled: list[Message] = []
    typed: list[Message] = []
    everything = node.subscribe("stranger/**", handled.append, depth=1000)
    commands = node.subscribe("stranger/**", typed.append, type=Command, recover=False, depth=1000)
    sent = {"any": 0, "good": 0, "commands": 0}
    trackers: dict[Any, SequenceTracker] = defaultdict(SequenceTracker)

    with stranger_on(mesh) as stranger:
        publisher = stranger.declare_publisher(f"neuraxis/{mesh}/stranger/topic")
        until(lambda: publisher.matching_status.matching, "it to be heard")
        until(lambda: len(list(stranger.info.peers_zid())) == 1, "one link")

        @fuzz
        @given(payloads, encodings, attachments)
        @example(b"", MSGPACK, seal_envelope(b"stranger", 1, 2**64 - 1, 0))
        @example(b"\x01", MSGPACK, seal_envelope(b"stranger", 1, 0, 0))
        def send(payload: bytes, encoding: str, attachment: bytes | None) -> None:
            publisher.put(payload, encoding=encoding, attachment=attachment)
            sent["any"] += 1
            envelope = None if attachment is None else open_envelope(attachment)
            if attachment is not None and attachment[:2] == ENVELOPE_MAGIC and len(attachment) > 2:
                if envelope is None or envelope.node != "stranger":
                    return
                if trackers[envelope.incarnation].follow(envelope.sequence, time.time()) < 0:
                    return
            sent["good"] += readable(payload, encoding)
            sent["commands"] += readable(payload, encoding, Command)

        send()
        stranger.delete(f"neuraxis/{mesh}/stranger/topic")
        publisher.put(encode("end")[0], encoding=MSGPACK)
        for subscription in (everything, commands):
            until(lambda one=subscription: _all(one.counts()) == sent["any"] + 2, "all of them")
        assert everything.counts().received == len(handled) == sent["good"] + 1
        assert commands.counts().received == len(typed) == sent["commands"]
        assert everything.counts().lost == sum(tracker.lost for tracker in trackers.values())
        assert everything.counts().handler_errors == 0
        assert {type(message.value) for message in typed} <= {Command}
        assert {message.node for message in handled} <= {"", "stranger"}
    _still_works(node, join)


def _all(counts: Counts) -> int:
    return counts.received + counts.malformed + counts.oversized + counts.repeated + counts.misnumbered


def test_questions_of_strangers(join: Join, mesh: str) -> None:
    node = join("node")
    handled: list[Message] = []
    service = node.serve("act", lambda message: handled.append(message), type=Command)
    asked = {"any": 0, "good": 0}
    with stranger_on(mesh) as stranger:
        key = f"neuraxis/{mesh}/node/@serve/act/@from/stranger"
        until(lambda: list(stranger.get(key, timeout=LIMIT_S)), "it to be served")

        @fuzz
        @given(payloads, encodings, attachments)
        def ask(payload: bytes, encoding: str, attachment: bytes | None) -> None:
            asked["any"] += 1
            replies = list(
                stranger.get(key, payload=payload, encoding=encoding, attachment=attachment, timeout=LIMIT_S)
            )
            claim = None if attachment is None else open_envelope(attachment)
            if claim is not None and claim.node != "stranger":  # not the sender that the key names
                assert replies == []
                return
            assert len(replies) == 1
            asked["good"] += replies[0].ok is not None

        ask()
        # Also one without anything, and a question to all that there is.
        assert [reply.ok for reply in stranger.get(key, timeout=LIMIT_S)] == [None]
        for expression in (
            f"neuraxis/{mesh}/**",
            f"neuraxis/{mesh}/@status/**",
            f"neuraxis/{mesh}/*/@serve/**/@from/**",
        ):
            list(stranger.get(expression, payload=b"\xc1", encoding=MSGPACK, attachment=b"\x01", timeout=LIMIT_S))
        assert {type(message.value) for message in handled} <= {Command}
        counts = service.counts()
        assert counts.received == len(handled)
        assert counts.received + counts.repeated == asked["good"]
        assert counts.handler_errors == 0
    _still_works(node, join)


def test_answers_of_strangers(join: Join, mesh: str) -> None:
    """A stranger serves what a node asks for: its answers are values, or errors of the mesh, and nothing else."""
    node, other = join("node"), join("other")
    meet(node, other)
    with stranger_on(mesh) as stranger:
        answer: list[tuple[bytes, str, bool]] = []

        def reply(query: Any) -> None:
            payload, encoding, good = answer[0]
            with query:
                if good:
                    query.reply(
                        query.key_expr if "*" not in str(query.key_expr) else status, payload, encoding=encoding
                    )
                else:
                    query.reply_err(payload, encoding=encoding)

        status = f"neuraxis/{mesh}/@status/other"
        with (
            stranger.declare_queryable(f"neuraxis/{mesh}/other/@serve/ask/@from/**", reply),
            stranger.declare_queryable(status, reply),
        ):
            answer.append((encode("known")[0], MSGPACK, True))
            until(lambda: _ask(node) == "known", "the stranger's service")

            @settings(fuzz, max_examples=60)
            @given(payloads, encodings, st.booleans())
            @example(b"Timeout", "zenoh/string", False)
            def ask(payload: bytes, encoding: str, good: bool) -> None:
                answer[0] = payload, encoding, good
                try:
                    value = node.request("other", "ask", timeout=LIMIT_S)
                except MeshError:
                    assert not (good and readable(payload, encoding))
                else:
                    assert good
                    # A value that is not equal to itself is one, too.
                    assert repr(value) == repr(decode(payload, str(zenoh.Encoding(encoding))))
                assert [peer.name for peer in node.peers(LIMIT_S)] == ["other"]

            ask()
    other.close()
    _still_works(node, join)


def _ask(node: Node) -> Any:
    try:
        return node.request("other", "ask", timeout=1.0)
    except MeshError:
        return None


def test_messages_that_are_too_large(join: Join, mesh: str) -> None:
    node = join("node")
    handled: list[Message] = []
    subscription = node.subscribe("stranger/*", handled.append)
    service = node.serve("act", lambda message: handled.append(message))
    with stranger_on(mesh) as stranger:
        publisher = stranger.declare_publisher(
            f"neuraxis/{mesh}/stranger/topic", congestion_control=zenoh.CongestionControl.BLOCK
        )
        until(lambda: publisher.matching_status.matching, "it to be heard")
        until(
            lambda: list(stranger.get(f"neuraxis/{mesh}/node/@serve/act/@from/stranger", timeout=LIMIT_S)),
            "it to be served",
        )
        handled.clear()
        large = bytes(LARGEST_MESSAGE + 1)
        publisher.put(large, encoding="zenoh/bytes")
        until(lambda: subscription.counts().oversized == 1, "the first")
        (reply,) = stranger.get(f"neuraxis/{mesh}/node/@serve/act/@from/stranger", payload=large, timeout=LIMIT_S)
        assert b"are accepted" in bytes(reply.err.payload)
        assert service.counts().oversized == 1
        assert handled == []
    _still_works(node, join)


def test_messages_that_zenoh_itself_refuses(join: Join, mesh: str) -> None:
    node = join("node")
    subscription = node.subscribe("stranger/*")
    with stranger_on(mesh) as stranger:
        publisher = stranger.declare_publisher(
            f"neuraxis/{mesh}/stranger/topic", congestion_control=zenoh.CongestionControl.BLOCK
        )
        until(lambda: publisher.matching_status.matching, "it to be heard")
        publisher.put(bytes(LARGEST_MESSAGE + 4 * 2**20), encoding="zenoh/bytes")

        def heard() -> bool:
            publisher.put(b"small", encoding="zenoh/bytes")
            try:
                return subscription.get(0.1).value == b"small"
            except TimeoutError:
                return False

        until(heard, "the stranger to be heard again")
    _still_works(node, join)


def _still_works(node: Node, join: Join) -> None:
    witness = join("witness")
    channel = node.subscribe("witness/*")
    node.serve("echo", lambda message: message.value)
    meet(node, witness)
    settle(node)
    witness.publish("topic", "well")
    assert channel.get(LIMIT_S).value == "well"
    assert witness.request("node", "echo", "well", timeout=LIMIT_S) == "well"
    assert [peer.name for peer in node.peers(LIMIT_S)] == ["witness"]
