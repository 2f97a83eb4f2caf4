"""What travels beside a value: who sent it, in which life of that node, its number on its key, and its step."""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ["NO_STEP", "Envelope", "numbers_of", "open_envelope", "seal_envelope", "sender_of"]

NO_STEP = -1
_HEAD = struct.Struct("<BQQq")
_NUMBERS = struct.Struct("<Qq")
_LIFE = 9  # bytes, after which the numbers come
_NAME_AT = _HEAD.size
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """`incarnation` tells the lives of a node apart (the time it started, in ns); `sequence` counts from 0 on a key."""

    node: str
    incarnation: int
    sequence: int
    step: int


def seal_envelope(node: bytes, incarnation: int, sequence: int, step: int) -> bytes:
    """The attachment of a message."""
    return _HEAD.pack(_VERSION, incarnation, sequence, step) + node


def sender_of(attachment: bytes) -> bytes:
    """What is the same in all attachments of one life of a node."""
    return attachment[:_LIFE] + attachment[_NAME_AT:]


def numbers_of(attachment: bytes) -> tuple[int, int]:
    """The sequence number and the step in an attachment that could be opened."""
    return _NUMBERS.unpack_from(attachment, _LIFE)


def open_envelope(attachment: bytes) -> Envelope | None:
    """What an attachment says; None where it is not one of ours."""
    if len(attachment) < _HEAD.size:
        return None
    version, incarnation, sequence, step = _HEAD.unpack_from(attachment)
    if version != _VERSION:
        return None
    try:
        return Envelope(attachment[_NAME_AT:].decode(), incarnation, sequence, step)
    except UnicodeDecodeError:
        return None
