"""Messages: the kinds of topics, and the checks between a Zenoh sample and a decoded `Message`.

The kind of a topic determines its transport and how many messages are queued for a slow subscriber:

- **stream**: spikes, sensors. Only the newest messages matter: sent with the highest priority, and dropped under
  congestion. A slow subscriber gets the newest: 10 are queued, and a handler or a loop over the messages skips those
  that have waited for more than 0.1 s if newer ones are there.
- **state**: modes, goals, limits. The publisher caches the last message, for subscribers that join late or missed it. A
  slow subscriber gets the newest.
- **event**: commands, answers. Every message matters: the publisher caches the last 1,000, and resends those that a
  subscriber missed. 1,000 are queued for a slow subscriber; an overflow is logged as an error.
- **bulk**: large values that must arrive whole and may take their time: the publisher blocks under congestion. 1,000
  are queued for a slow subscriber, as with events.

The numbers hold for each sender and key. Only "bulk" applies backpressure to the publisher. The oldest messages are
dropped first, and drops are counted.

A `Decoder` admits a sample by its envelope and sequence number, so that no message is delivered twice and losses are
counted, and then decodes it. Counts and limits hold for each sender (see `neuraxis.mesh.counts`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.mesh.counts import MAX_STREAMS, Counts, Ledger, SequenceTracker, streams_to_evict
from neuraxis.mesh.keys import LONGEST_KEY
from neuraxis.mesh.topology import LARGEST_MESSAGE
from neuraxis.wire.codecs import Undecodable, decode
from neuraxis.wire.envelope import (
    ENVELOPE_MAGIC,
    LONGEST_ATTACHMENT,
    NO_STEP,
    VERSION,
    Envelope,
    numbers_of,
    open_envelope,
    other_version,
    sender_of,
)

__all__ = [
    "CACHED",
    "DEPTHS",
    "KINDS",
    "STALE_AFTER_S",
    "Arrival",
    "Decoder",
    "Message",
    "Stream",
    "bounded_time",
    "check_kind",
    "declare_publisher",
    "declare_subscriber",
    "size_of",
]

KINDS = ("stream", "state", "event", "bulk")  # their order is part of the wire format
DEPTHS = {"stream": 10, "state": 1, "event": 1000, "bulk": 1000}  # messages queued for a slow subscriber
STALE_AFTER_S = 0.1  # a message of a stream that has waited longer is skipped if there is a newer one
CACHED = {"state": 1, "event": 1000}  # messages in the publisher's cache
_HEARTBEAT_S = 0.2  # how soon a subscriber notices that it missed the last message
_AHEAD_S = 1.0  # clocks synchronised by NTP differ by less
_OLDEST_S = 86_400.0


def check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise InvalidArgument(
            f"kind={kind!r}: one of {', '.join(KINDS)} is expected. A late subscriber gets the last message of a "
            '"state" topic, which is a latched or transient local one in ROS'
        )
    return kind


def declare_publisher(session: Any, key: str, kind: str) -> Any:
    import zenoh
    from zenoh import ext

    if kind == "stream":
        return session.declare_publisher(
            key,
            congestion_control=zenoh.CongestionControl.DROP,
            priority=zenoh.Priority.REAL_TIME,
            express=True,
            allowed_destination=zenoh.Locality.REMOTE,
        )
    if kind == "bulk":
        return session.declare_publisher(
            key,
            congestion_control=zenoh.CongestionControl.BLOCK,
            priority=zenoh.Priority.DATA_LOW,
            allowed_destination=zenoh.Locality.REMOTE,
        )
    return ext.declare_advanced_publisher(
        session,
        key,
        congestion_control=zenoh.CongestionControl.DROP,
        priority=zenoh.Priority.INTERACTIVE_HIGH,
        express=True,
        allowed_destination=zenoh.Locality.REMOTE,
        cache=ext.CacheConfig(CACHED[kind]),
        sample_miss_detection=ext.MissDetectionConfig(heartbeat=_HEARTBEAT_S, sporadic_heartbeat=None),
        publisher_detection=True,
    )


def declare_subscriber(session: Any, key: str, capacity: int, history: int, recover: bool) -> Any:
    """Declare a subscriber with a ring: for a slow reader the oldest samples are dropped, and no publisher blocks.

    `history` is 1 or more: Zenoh treats 0 as all that the publishers have cached.
    """
    import zenoh
    from zenoh import ext

    ring: Any = zenoh.handlers.RingChannel(capacity)
    if not recover:
        return session.declare_subscriber(key, ring, allowed_origin=zenoh.Locality.REMOTE)
    # With Zenoh's detection of late publishers, a subscriber would query a publisher that reconnects for `history`
    # messages only, and lose earlier ones. Without it, the publisher's heartbeat reveals all missing messages.
    earlier = ext.HistoryConfig(detect_late_publishers=False, max_samples=history)
    return ext.declare_advanced_subscriber(
        session,
        key,
        ring,
        allowed_origin=zenoh.Locality.REMOTE,
        history=earlier,
        recovery=ext.RecoveryConfig(periodic_queries=None, heartbeat=True),
    )


class Message(msgspec.Struct, frozen=True, gc=False):
    """A received value with its origin.

    Attributes
    ----------
    value : object
        The decoded value.
    key : str
        The key relative to the mesh, such as "vision/objects".
    node : str
        The sender's name, which the key contains; "" if the sender is not a node.
    incarnation, sequence : int
        The sender's start time in ns, and the number of the message on its key; -1 if unknown.
    step : int
        The model time that the value belongs to, in steps; -1 for none.
    encoding : str
        The encoding of the payload.
    lost : int
        Number of messages missing right before this one, lost in transit or dropped here.
    sent_at : float
        Time of sending in seconds since the epoch, by the sender's clock; the time of arrival if unknown. It is limited
        to the day before the arrival; times beyond that, or in the future, are counted as "skewed".

    Examples
    --------
    >>> message = Message({"cup": 0.9}, "vision/objects", "vision")
    >>> message.topic
    'objects'
    """

    value: Any
    key: str
    node: str = ""
    incarnation: int = -1
    sequence: int = -1
    step: int = NO_STEP
    encoding: str = ""
    lost: int = 0
    sent_at: float = 0.0

    @property
    def topic(self) -> str:
        """The key without the sender's name."""
        return self.key.removeprefix(f"{self.node}/") if self.node else self.key

    @property
    def age(self) -> float:
        """Seconds since the message was sent, never negative.

        It is exact on one host. Between hosts the difference of their clocks adds to it, so synchronise them (NTP,
        PTP). It is never less than the time since the message arrived.
        """
        return max(0.0, time.time() - self.sent_at)


@dataclass(slots=True, eq=False)
class Stream:
    """The messages of one incarnation of a node on one key, with those that are queued for the reader.

    `skipped`: messages dropped since the last one that the reader took. `owner`: the first part of the key.
    """

    key: str
    node: str
    incarnation: int
    counts: Counts
    kind: str
    is_own: bool = False
    owner: str = ""
    skipped: int = 0
    tracker: SequenceTracker = field(default_factory=SequenceTracker)
    waiting: deque[Any] = field(default_factory=deque)


# An admitted sample: its stream, the sample, number, step, time of sending (s), number of messages missing before it.
Arrival = tuple[Stream, Any, int, int, float, int]


class Decoder:
    """Deduplicates, counts and decodes the samples of one subscription, for one thread at a time."""

    def __init__(
        self,
        expression: str,
        prefix: str,
        *,
        type: Any = None,
        allow_pickle: bool = False,
        own: tuple[str, int] | None = None,
        largest: int = LARGEST_MESSAGE,
        is_present: Callable[[str], object] | None = None,
    ) -> None:
        import zenoh

        self.ledger = Ledger(f"subscription {expression!r}")
        self._put = zenoh.SampleKind.PUT
        self._prefix = prefix
        self._only_key = "" if set("*$?") & set(expression) else prefix + expression
        self._type = type
        self._allow_pickle = allow_pickle
        self._largest = largest
        self._own = own
        self._is_present = is_present
        self._streams: dict[tuple[str, bytes], Stream] = {}

    def admit(self, sample: Any, ring_was_full: bool = False) -> Arrival | None:
        """Return a sample with the content of its envelope; None, and count it, if it is refused. Never raises.

        `ring_was_full`: count missing messages as dropped here rather than lost in transit.
        """
        # The hot path: every message passes here under the interpreter lock. Known senders take the shortest branch.
        try:
            attachment = sample.attachment
            name = self._only_key or str(sample.key_expr)
            if attachment is None:
                head = b""
            elif len(attachment) > LONGEST_ATTACHMENT:  # before it is copied
                self._refuse(name, "oversized", f"an attachment of {len(attachment):,} bytes")
                return None
            else:
                head = attachment.to_bytes()
            stream = self._streams.get((name, sender_of(head)))
            if stream is None:
                stream = self._add_stream(name, head)
            if stream is None or stream.is_own:
                return None  # refused, or sent by this node: Zenoh's history includes its own states
            now = time.time()
            missing, sequence, step, sent_at = 0, -1, NO_STEP, now
            if stream.node:
                sequence, step, sent_ns = numbers_of(head)
                sent_at = sent_ns * 1e-9
                if not now - _OLDEST_S < sent_at < now:
                    sent_at = self._bound_time(stream, sent_at, now)
                tracker = stream.tracker
                if sequence == tracker.expected and sequence + 1 != tracker.end:
                    tracker.expected, tracker.at = sequence + 1, now
                else:
                    counted_as = "dropped" if ring_was_full else "lost"
                    missing = self.ledger.take(stream.key, tracker, sequence, now, counted_as)
                    if missing < 0:
                        return None
            return stream, sample, sequence, step, sent_at, missing
        except Exception as error:
            self.ledger.note("?", "malformed", why=repr(error))
            return None

    def decode(self, arrival: Arrival) -> Message | None:
        """Decode an admitted sample; return None, and count it, if it is malformed. Never raises."""
        try:
            stream, sample, sequence, step, sent_at, missing = arrival
            payload = sample.payload.to_bytes()
            if not payload and sample.kind != self._put:
                self.ledger.note(stream.key, "malformed", why="it is a deletion")
                return None
            if len(payload) > self._largest:
                why = f"{len(payload):,} bytes; {self._largest:,} are accepted"
                self.ledger.note(stream.key, "oversized", why=why)
                return None
            encoding = str(sample.encoding)
            try:
                value = decode(payload, encoding, type=self._type, allow_pickle=self._allow_pickle)
            except Undecodable as error:
                self.ledger.note(stream.key, "malformed", why=error)
                return None
            stream.counts.received += 1
            return Message(
                value, stream.key, stream.node, stream.incarnation, sequence, step, encoding, missing, sent_at
            )
        except Exception as error:
            self.ledger.note("?", "malformed", why=repr(error))
            return None

    def _refuse(self, name: str, what: str, why: str) -> None:
        """Count a message that is refused for its key or attachment."""
        key = name.removeprefix(self._prefix)
        self.ledger.note(key if len(key) <= LONGEST_KEY else "?", what, why=why)

    def _bound_time(self, stream: Stream, sent_at: float, now: float) -> float:
        """Limit a sending time to the day before the arrival, and count it if it is far off."""
        if not now - _OLDEST_S < sent_at < now + _AHEAD_S:
            why = f"sent {sent_at - now:+.0f} s from now by the clock of {stream.node!r}. Synchronise the clocks"
            self.ledger.note(stream.key, "skewed", why=why)
        return bounded_time(sent_at, now)

    def _add_stream(self, name: str, head: bytes) -> Stream | None:
        """Start to track one incarnation of a node on a key; return None, and count it, if the message is refused."""
        key = name.removeprefix(self._prefix)
        envelope = open_envelope(head) if head else None
        why = self._why_refused(key, head, envelope)
        if why:
            self._refuse(name, "malformed", why)
            return None
        # Attachments of other programs may contain counters or times, so they do not identify senders.
        sender = (name, b"" if envelope is None else sender_of(head))
        known = self._streams.get(sender)
        if known is not None:
            return known
        stream = Stream(key, "", -1, self.ledger.counts_of(key), KINDS[0], owner=key.partition("/")[0])
        if envelope is not None:
            stream.node, stream.incarnation, stream.kind = envelope.node, envelope.incarnation, KINDS[envelope.kind]
            stream.is_own = (envelope.node, envelope.incarnation) == self._own
        if len(self._streams) >= MAX_STREAMS:
            for one in streams_to_evict((one, old.key, old.node, old.tracker.at) for one, old in self._streams.items()):
                del self._streams[one]
        self._streams[sender] = stream
        return stream

    def _why_refused(self, key: str, head: bytes, envelope: Envelope | None) -> str:
        """Return the reason to refuse messages with this key and attachment; "" to accept them.

        Access rules verify the key, but not the name in the envelope. So the key has to begin with that name, and not
        with the longer name of another present node: a node "a/b" could otherwise claim to be "a".
        """
        if len(key) > LONGEST_KEY:
            return f"its key has {len(key):,} characters; {LONGEST_KEY:,} are accepted"
        if envelope is None:
            if (version := other_version(head, key)) is not None:
                return f"its envelope has version {version}, not {VERSION}. Run the same release everywhere"
            return "its envelope is malformed" if head[:2] == ENVELOPE_MAGIC and len(head) > 2 else ""
        if envelope.kind >= len(KINDS):
            return f"its envelope has the unknown kind {envelope.kind}"
        if not envelope.node or not key.startswith(f"{envelope.node}/"):
            return f"its envelope names the node {envelope.node!r}, but its key does not"
        end = key.find("/", len(envelope.node) + 1)
        while self._is_present is not None and end >= 0:
            if self._is_present(key[:end]) or (self._own is not None and self._own[0] == key[:end]):
                return (
                    f"its envelope names the node {envelope.node!r}, but its key belongs to the node {key[:end]!r}. "
                    "Give the topic or the node another name"
                )
            end = key.find("/", end + 1)
        return ""


def bounded_time(sent_at: float, now: float) -> float:
    """Limit a sending time (seconds since the epoch) to the day before `now`."""
    return min(now, max(now - _OLDEST_S, sent_at))


def size_of(sample: Any) -> int:
    """Return the size of a sample in bytes, payload and attachment."""
    attachment = sample.attachment
    return len(sample.payload) + (0 if attachment is None else len(attachment))
