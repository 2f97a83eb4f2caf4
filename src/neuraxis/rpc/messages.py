"""The wire format of calls and replies.

A frame consists of a head of fixed layout, the sender's name, the numbers of requests that are still open, the value in
msgpack, and the elements of its large arrays (see `values`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from neuraxis.errors import CalleeDied
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.transport import Endpoint
from neuraxis.wire.objects import Unreadable

__all__ = [
    "CONTROL_OPERATIONS",
    "Head",
    "Kind",
    "Operation",
    "claims_sender",
    "pack_head",
    "read_head",
    "read_reply",
    "read_request",
    "unreadable",
]

_HEAD = struct.Struct("<BBHHIIQQQQ")
_LENGTH = struct.Struct("<H")
_NAME_LENGTH = slice(2, 4)  # position of the length of the sender's name


class Kind(enum.IntEnum):
    """The kind of a message."""

    CALL = 1  # runs a function, which may take long
    CONTROL = 2  # executed immediately by the thread that reads it
    REPLY = 3
    BYE = 4  # the sender leaves, and sends nothing more


class Operation(enum.IntEnum):
    """The operation of a request."""

    CALL = 1  # call a function by name
    MAKE = 2  # create an object by the name of its factory
    METHOD = 3  # call a method of an object: `args[0]` is its number
    RETAIN = 4  # add a reference to an object: number, name and incarnation of the holder
    RELEASE = 5  # remove one: number, name and incarnation of the holder
    CANCEL = 6  # do not start a call that has not started: its number
    DONE = 7  # this rank has no more calls to make


CONTROL_OPERATIONS = frozenset({Operation.RETAIN, Operation.RELEASE, Operation.CANCEL, Operation.DONE})


class Head(NamedTuple):
    """The head of a message.

    Attributes
    ----------
    kind : int
        See `Kind`.
    channel : int
        The caller's channel for the reply.
    number : int
        The number of the request, and of its reply; a caller uses each number once, in ascending order.
    settled : int
        The caller waits for no reply to requests with lower numbers, except `still_open`.
    incarnation : int
        The incarnation of the receiver: a later one must not run the call.
    sender : Endpoint
        The sender.
    body, end : int
        Offsets in the frame of the value and of the arrays.
    still_open : tuple of int
        Numbers below `settled` in ascending order.
    """

    kind: int
    channel: int
    number: int
    settled: int
    incarnation: int
    sender: Endpoint
    body: int
    end: int
    still_open: tuple[int, ...] = ()


def pack_head(
    kind: int,
    channel: int,
    number: int,
    settled: int,
    incarnation: int,
    sender: Endpoint,
    body_bytes: int = 0,
    still_open: Sequence[int] = (),
) -> bytes:
    name = sender.name.encode()
    count = len(still_open)
    head = _HEAD.pack(kind, 0, len(name), count, channel, body_bytes, number, settled, incarnation, sender.incarnation)
    return head + name + struct.pack(f"<{count}Q", *still_open) if count else head + name


def claims_sender(frame: bytes, name: bytes) -> bool:
    """Return True if a frame names this sender. It costs less than reading the head."""
    return frame[_NAME_LENGTH] == _LENGTH.pack(len(name)) and frame[_HEAD.size : _HEAD.size + len(name)] == name


@lru_cache(maxsize=256)
def _endpoint(name: bytes, incarnation: int) -> Endpoint:
    return Endpoint(name.decode(), incarnation)


def read_head(frame: Any) -> Head:
    """Return the head of a frame; raise Unreadable if it is malformed."""
    if frame.__class__ is Frame:
        frame = frame.start
    try:
        kind, _, name_bytes, count, channel, body_bytes, number, settled, incarnation, sent_by = _HEAD.unpack_from(
            frame
        )
        name_end = _HEAD.size + name_bytes
        sender = _endpoint(bytes(frame[_HEAD.size : name_end]), sent_by)
        still_open = struct.unpack_from(f"<{count}Q", frame, name_end) if count else ()
    except (struct.error, UnicodeDecodeError, TypeError) as error:
        raise Unreadable(f"the frame is not a message: {error}") from None
    body = name_end + 8 * count
    if body + body_bytes > len(frame):
        raise Unreadable(f"the frame has {len(frame)} bytes instead of at least {body + body_bytes}")
    return Head(kind, channel, number, settled, incarnation, sender, body, body + body_bytes, still_open)


_REQUEST = [int, str, list, dict]


def read_request(value: Any) -> tuple[int, str, list[Any], dict[str, Any]]:
    """Return operation, name, arguments and keyword arguments; raise Unreadable if the value is not a request."""
    if value.__class__ is list and [item.__class__ for item in value] == _REQUEST:
        return value[0], value[1], value[2], value[3]
    raise Unreadable("the message is not a request. Run the same version of neuraxis everywhere")


def read_reply(value: Any) -> tuple[bool, Any]:
    """Return True and the result of a call, or False and its error."""
    if value.__class__ is list and len(value) == 2 and value[0].__class__ is bool:
        return value[0], value[1]
    raise Unreadable("the message is not a reply. Run the same version of neuraxis everywhere")


def unreadable(callee: str, error: Unreadable) -> CalleeDied:
    """Return the error for a malformed reply."""
    return CalleeDied(f"the reply of {callee!r} cannot be decoded: {error}", callee)
