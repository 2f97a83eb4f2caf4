"""Messages as they come from Zenoh: opened, put in order by their numbers, and counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from neuraxis.mesh.codecs import Undecodable, decode
from neuraxis.mesh.counts import Counts, Ledger
from neuraxis.mesh.envelope import NO_STEP, numbers_of, open_envelope, sender_of
from neuraxis.mesh.topology import LARGEST_MESSAGE

__all__ = ["MOST_STREAMS", "Message", "Opener"]

MOST_STREAMS = 4000  # of senders and keys that are followed at a time


class Message(msgspec.Struct, frozen=True, gc=False):
    """A value and where it came from.

    Attributes:
        key: relative to the mesh: "vision/objects".
        node: who sent it; "" where a program that is no node of ours did. Of a question it is what the asker says.
        incarnation, sequence: which life of that node, and the number of the message on its key; -1 if not told.
        step: the model time it belongs to, in steps; -1 if it belongs to none.
        encoding: how it was encoded.
        lost: how many messages right before this one are missing.
    """

    value: Any
    key: str
    node: str = ""
    incarnation: int = -1
    sequence: int = -1
    step: int = NO_STEP
    encoding: str = ""
    lost: int = 0

    @property
    def topic(self) -> str:
        return self.key.removeprefix(f"{self.node}/") if self.node else self.key


@dataclass(slots=True)
class _Stream:
    """What is known of the messages of one life of a node on a key; `next` is the number expected, -1 at first."""

    key: str
    node: str
    incarnation: int
    counts: Counts
    is_own: bool = False
    next: int = -1


class Opener:
    """Makes messages of what comes on some keys, for one thread at a time.

    The messages of a node on a key come in the order in which they were sent, none twice; what is missing is counted.
    """

    def __init__(
        self,
        expression: str,
        prefix: str,
        *,
        type: Any = None,
        allow_pickle: bool = False,
        own: tuple[str, int] | None = None,
        largest: int = LARGEST_MESSAGE,
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
        self._streams: dict[tuple[str, bytes], _Stream] = {}

    def open(self, sample: Any) -> Message | None:
        """A message from what came; None, and counted, where it is none. It raises nothing, whatever came."""
        # This is the way of every message: while it is opened, no other thread of Python runs. So what is known of its
        # sender is looked up, not worked out again, and what can be left out for most of them is.
        try:
            attachment = sample.attachment
            head = b"" if attachment is None else attachment.to_bytes()
            name = self._only_key or str(sample.key_expr)
            sender = (name, sender_of(head))
            stream = self._streams.get(sender)
            if stream is None:
                stream = self._meet(sender, head)
            if stream.is_own:
                return None  # what Zenoh gives again to who comes later, it also gives to who said it
            missing, sequence, step = 0, -1, NO_STEP
            if stream.node:
                sequence, step = numbers_of(head)
                if sequence != stream.next:
                    missing = self._find_gap(stream, sequence)
                    if missing < 0:
                        return None
                stream.next = sequence + 1
            payload = sample.payload.to_bytes()
            if (not payload and sample.kind != self._put) or len(payload) > self._largest:
                self._refuse(stream, payload)
                return None
            encoding = str(sample.encoding)
            try:
                value = decode(payload, encoding, type=self._type, allow_pickle=self._allow_pickle)
            except Undecodable as error:
                self.ledger.note(stream.key, "malformed", why=error)
                return None
            stream.counts.received += 1
            return Message(value, stream.key, stream.node, stream.incarnation, sequence, step, encoding, missing)
        except Exception as error:
            self.ledger.note("?", "malformed", why=repr(error))
            return None

    def _refuse(self, stream: _Stream, payload: bytes) -> None:
        if payload:
            self.ledger.note(stream.key, "oversized", why=f"{len(payload):,} bytes")
        else:
            self.ledger.note(stream.key, "malformed", why="it deletes the key")

    def _meet(self, sender: tuple[str, bytes], head: bytes) -> _Stream:
        """The first message of one life of a node on a key."""
        key = sender[0].removeprefix(self._prefix)
        envelope = open_envelope(head) if head else None
        if envelope is not None and not key.startswith(f"{envelope.node}/"):
            envelope = None  # where access is controlled, a key is proven, and what a sender says of itself never is
        counts = self.ledger.counts_of(key)
        if envelope is None:
            stream = _Stream(key, "", -1, counts)
        else:
            is_own = (envelope.node, envelope.incarnation) == self._own
            stream = _Stream(key, envelope.node, envelope.incarnation, counts, is_own)
        if len(self._streams) >= MOST_STREAMS:
            del self._streams[next(iter(self._streams))]  # too many to follow: the one met first begins anew
        self._streams[sender] = stream
        return stream

    def _find_gap(self, stream: _Stream, sequence: int) -> int:
        """How many messages are missing before one that is not the next, and -1 if it came before."""
        if stream.next < 0:
            return 0
        if sequence < stream.next:
            self.ledger.note(stream.key, "repeated")
            return -1
        self.ledger.note(stream.key, "lost", sequence - stream.next)
        return sequence - stream.next
