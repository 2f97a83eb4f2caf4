"""What callers and callees say to each other: a head of fixed form, by which a message finds its way, and a value.

A frame is the head, the sender's name, the numbers of requests that are still open, a table of the arrays that lie
beside, the value in msgpack, and the arrays' bytes (see `values`).
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from neuraxis.comm.objects import Unreadable
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.transport import Party

__all__ = [
    "CONTROL_OPERATIONS",
    "Head",
    "Kind",
    "Operation",
    "pack_head",
    "read_head",
    "read_reply",
    "read_request",
]

_HEAD = struct.Struct("<BBHHIIIQQQQ")


class Kind(enum.IntEnum):
    """What a message is."""

    CALL = 1  # runs a function, which may take its time
    CONTROL = 2  # is done at once
    REPLY = 3
    BYE = 4  # the sender leaves, and says no more


class Operation(enum.IntEnum):
    """What is asked for."""

    CALL = 1  # a function, by name
    MAKE = 2  # an object, by a factory's name
    METHOD = 3  # of an object: `args[0]` is its number
    HOLD = 4  # count one more holder of an object: number, name, life
    RELEASE = 5  # one less: number, name, life
    CANCEL = 6  # do not begin a call that has not begun: its number
    DONE = 7  # this rank has no more calls to make


CONTROL_OPERATIONS = frozenset({Operation.HOLD, Operation.RELEASE, Operation.CANCEL, Operation.DONE})


class Head(NamedTuple):
    """The head of a message.

    Attributes:
        lane: where the reply is waited for: a number of the caller's.
        number: of the request, and of its reply; a caller gives each number once, in rising order.
        settled: the caller waits for no reply to a request of a lower number any more, but for `still_open`.
        life: which process of the receiver's name is meant: a later one must not run it.
        sender: who says it.
        table, body, end: where in the frame the table begins, the value, and what lies beside.
        still_open: numbers below `settled`, in rising order.
    """

    kind: int
    lane: int
    number: int
    settled: int
    life: int
    sender: Party
    table: int
    body: int
    end: int
    still_open: tuple[int, ...] = ()


def pack_head(
    kind: int,
    lane: int,
    number: int,
    settled: int,
    life: int,
    sender: Party,
    table_bytes: int,
    body_bytes: int,
    still_open: Sequence[int] = (),
) -> bytes:
    name = sender.name.encode()
    count = len(still_open)
    head = _HEAD.pack(kind, 0, len(name), count, lane, table_bytes, body_bytes, number, settled, life, sender.life)
    return head + name + struct.pack(f"<{count}Q", *still_open) if count else head + name


@lru_cache(maxsize=256)
def _party(name: bytes, life: int) -> Party:
    return Party(name.decode(), life)


def read_head(frame: Any) -> Head:
    """The head of a frame; Unreadable if it has none."""
    if frame.__class__ is Frame:
        frame = frame.start
    try:
        kind, _, name_bytes, count, lane, table_bytes, body_bytes, number, settled, life, sender_life = (
            _HEAD.unpack_from(frame)
        )
        name_end = _HEAD.size + name_bytes
        sender = _party(bytes(frame[_HEAD.size : name_end]), sender_life)
        still_open = struct.unpack_from(f"<{count}Q", frame, name_end) if count else ()
    except (struct.error, UnicodeDecodeError, TypeError) as error:
        raise Unreadable(f"what came is not a message: {error}") from None
    table = name_end + 8 * count
    body = table + table_bytes
    if body + body_bytes > len(frame):
        raise Unreadable(f"a frame has {len(frame)} bytes, and should have {body + body_bytes} at least")
    return Head(kind, lane, number, settled, life, sender, table, body, body + body_bytes, still_open)


_REQUEST = [int, str, list, dict]


def read_request(value: Any) -> tuple[int, str, list[Any], dict[str, Any]]:
    """Operation, name, arguments and named arguments; Unreadable if it is no request."""
    if value.__class__ is list and [item.__class__ for item in value] == _REQUEST:
        return value[0], value[1], value[2], value[3]
    raise Unreadable("what came is not a request: is another version of neuraxis at work?")


def read_reply(value: Any) -> tuple[bool, Any]:
    """Whether a call succeeded, and its result or failure."""
    if value.__class__ is list and len(value) == 2 and value[0].__class__ is bool:
        return value[0], value[1]
    raise Unreadable("what came is not a reply: is another version of neuraxis at work?")
