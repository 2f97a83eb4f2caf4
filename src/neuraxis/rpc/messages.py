"""What callers and callees say to each other, as plain values that `values` turns into bytes.

A request is a list, because the shortest way to bytes is wanted here; it is checked field by field when it is read.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from neuraxis.comm.objects import Unreadable
from neuraxis.rpc.transport import Party

__all__ = ["Operation", "Request", "read_reply", "read_request"]


class Operation(enum.IntEnum):
    """What is asked for."""

    CALL = 1  # a function, by name
    MAKE = 2  # an object, by a factory's name
    METHOD = 3  # of an object: `args[0]` is its number
    HOLD = 4  # count one more holder of an object: number, name, life
    RELEASE = 5  # one less
    CANCEL = 6  # do not begin a call that has not begun: its number
    DONE = 7  # this rank has no more calls to make


class Request(NamedTuple):
    """One request.

    Attributes:
        number: of this caller's requests; none has two.
        life: which process of the callee's name is meant: a later one must not run it.
        name: of the function, factory or method; "" where there is none.
    """

    number: int
    caller: Party
    life: int
    operation: int
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


_TYPES = [int, str, int, int, int, str, list, dict]


def read_request(value: Any) -> Request:
    """A request, from what came; Unreadable if it is none."""
    if value.__class__ is list and [item.__class__ for item in value] == _TYPES:
        number, caller, caller_life, *rest = value
        return Request(number, Party(caller, caller_life), *rest)
    raise Unreadable("what came is not a request: is another version of neuraxis at work?")


def read_reply(value: Any) -> tuple[bool, Any]:
    """Whether a call succeeded, and its result or failure."""
    if value.__class__ is list and len(value) == 2 and value[0].__class__ is bool:
        return value[0], value[1]
    raise Unreadable("what came is not a reply: is another version of neuraxis at work?")
