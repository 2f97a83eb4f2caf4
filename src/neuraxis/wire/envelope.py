"""The envelope of a message: its sender, the sender's incarnation, the sequence number, the step and the sending time.

An envelope travels as the attachment of a Zenoh sample. It begins with a magic number and a version. A node refuses the
envelopes of other versions; an attachment without the magic number belongs to a program that is not a node.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

__all__ = [
    "ENVELOPE_MAGIC",
    "LONGEST_ATTACHMENT",
    "LONGEST_NAME",
    "NO_STEP",
    "VERSION",
    "Envelope",
    "numbers_of",
    "open_envelope",
    "other_version",
    "seal_envelope",
    "sender_of",
]

LONGEST_NAME = 255  # bytes of a node's name

ENVELOPE_MAGIC = b"nx"
NO_STEP = -1
VERSION = 2
_HEAD = struct.Struct("<2sBBQQqq")
_NUMBERS = struct.Struct("<Qqq")
_NUMBERS_AT = 12
_NAME_AT = _HEAD.size
LONGEST_ATTACHMENT = 4096  # bytes, of programs that are not nodes; an envelope is shorter
_LONGEST_ENVELOPE = _HEAD.size + LONGEST_NAME
_FIRST_VERSION = struct.Struct("<BQQq")  # version 1 has no magic number


@dataclass(frozen=True, slots=True)
class Envelope:
    """The content of an envelope.

    Attributes
    ----------
    node : str
        The claimed name of the sender.
    incarnation : int
        Start time of the sender in ns; distinguishes a restarted node from its predecessor.
    sequence : int
        Number of the message, from 0 on each key.
    step : int
        Model time in steps, -1 for none.
    kind : int
        Index into `neuraxis.mesh.messages.KINDS`.
    sent_ns : int
        Time of sending in ns since the epoch, by the sender's clock.
    """

    node: str
    incarnation: int
    sequence: int
    step: int
    kind: int = 0
    sent_ns: int = 0


def seal_envelope(
    node: bytes, incarnation: int, sequence: int, step: int, kind: int = 0, sent_ns: int | None = None
) -> bytes:
    """Return the attachment of a message; the sending time is the current time unless given."""
    sent = time.time_ns() if sent_ns is None else sent_ns
    return _HEAD.pack(ENVELOPE_MAGIC, VERSION, kind, incarnation, sequence, step, sent) + node


def sender_of(attachment: bytes) -> bytes:
    """Return the part of an attachment that is equal for all messages of one incarnation on one key."""
    return attachment[:_NUMBERS_AT] + attachment[_NAME_AT:]


def numbers_of(attachment: bytes) -> tuple[int, int, int]:
    """Return sequence number, step and sending time (ns) of an attachment that `open_envelope` accepted."""
    return _NUMBERS.unpack_from(attachment, _NUMBERS_AT)


def open_envelope(attachment: bytes) -> Envelope | None:
    """Return the content of an attachment; None unless it is an envelope of this version."""
    if not _HEAD.size <= len(attachment) <= _LONGEST_ENVELOPE:
        return None
    if attachment[:2] != ENVELOPE_MAGIC or attachment[2] != VERSION:
        return None
    _, _, kind, incarnation, sequence, step, sent_ns = _HEAD.unpack_from(attachment)
    try:
        return Envelope(attachment[_NAME_AT:].decode(), incarnation, sequence, step, kind, sent_ns)
    except UnicodeDecodeError:
        return None


def other_version(attachment: bytes, key: str) -> int | None:
    """Return the version of an envelope that another release of neuraxis made for a key; otherwise None."""
    if attachment[:2] == ENVELOPE_MAGIC and len(attachment) > 2:
        return attachment[2] if attachment[2] != VERSION else None
    if len(attachment) > _FIRST_VERSION.size and attachment[0] == 1:
        name = attachment[_FIRST_VERSION.size :].decode(errors="replace")
        return 1 if key.startswith(f"{name}/") else None
    return None
