"""What carries calls: a transport moves bytes to a named party, brings bytes back, and tells who is there.

What the bytes mean, who may call what, and what a failure is called are not its affair; whether the other side was
there, died, or was too slow is, because only it can know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from neuraxis.rpc.frames import Frame
    from neuraxis.rpc.messages import Head
    from neuraxis.rpc.pool import Pool
    from neuraxis.rpc.server import Server

__all__ = ["Done", "Party", "Reply", "Request", "Transport"]


class Party(NamedTuple):
    """One process among those that call each other: its name, and which of those that had this name."""

    name: str
    life: int


class Request(NamedTuple):
    """A request that is to be sent.

    Attributes:
        is_control: whether it is done at once, by whoever reads it there.
        write: the bytes of the request, for the lane in which the reply is waited for.
        timeout: seconds until nobody waits for the reply any more.
    """

    to: Party
    number: int
    is_control: bool
    write: Callable[[int], Frame]
    timeout: float


Reply = tuple["Head", Any]
"""The head of a reply, and its frame: bytes, or what else holds them, that nobody else uses."""

Done = Callable[[Reply | None, BaseException | None], None]
"""Told, once, what came back, or why nothing did."""


class Transport(Protocol):
    """One party's end.

    Errors of `call`, and those that `start` tells: CalleeDied (it may or may not have run), CallTimeout, CallCancelled
    (this end was closed).
    """

    me: Party
    largest: int  # bytes that a message can have

    def serve(self, server: Server, pool: Pool, threads: int) -> None:
        """Begin to answer: `threads` calls at a time have places in the pool."""

    def place_given_back(self, more: bool) -> None:
        """A function that was called waits for another call, and its place is free; `more` wait than ever before."""

    def find(self, dst: int | str) -> Party:
        """Who a rank or a name is; CalleeGone where nobody of that name is here."""

    def call(self, request: Request) -> Reply:
        """Send a request and wait for the reply."""

    def start(self, request: Request, done: Done) -> None:
        """Send a request and return; `done` is called from a thread of the transport."""

    def is_gone(self, party: Party) -> bool:
        """Whether a party is dead or has left for good, as far as can be known."""

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        """Wait until parties are here; those that have not come in time."""

    def names(self) -> list[str]:
        """Who is here, this party included."""

    def refuse(self) -> None:
        """Begin nothing more: whatever is called from now on is refused."""

    def close(self) -> None:
        """Answer nothing more, end what is under way, and leave."""
