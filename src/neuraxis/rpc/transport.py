"""What carries calls: a transport moves bytes to a named party, brings bytes back, and tells who is there.

What the bytes mean, who may call what, and what a failure is called are not its affair; whether the other side was
there, died, or was too slow is, because only it can know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

__all__ = ["Answer", "Done", "Party", "Transport"]


class Party(NamedTuple):
    """One process among those that call each other: its name, and which of those that had this name."""

    name: str
    life: int


Answer = Callable[[Any], bytes]
"""Called with what was asked: gives back the reply, and raises nothing."""

Done = Callable[[Any, BaseException | None], None]
"""Told, once, what came back, or why nothing did."""


class Transport(Protocol):
    """One party's end.

    Errors of `call` and `control`, and those that `start` tells: CalleeDied (it may or may not have run), CallTimeout,
    CallRefused, CallCancelled (this end was closed).
    """

    me: Party
    largest: int  # bytes that a message can have
    repeats: bool  # whether it may bring a request twice

    def serve(self, answer: Answer, control: Answer, threads: int) -> None:
        """Begin to answer, with `threads` at least; `control` never waits for anybody, and is not kept waiting."""

    def need_thread(self) -> None:
        """A thread that answers is about to wait for another call: see that there is one in its place."""

    def find(self, dst: int | str) -> Party:
        """Who a rank or a name is; CalleeGone where nobody of that name is here."""

    def call(self, to: Party, frame: bytes, timeout: float) -> Any:
        """Send a call and wait for its reply, which is bytes or an array of bytes that nobody else uses."""

    def start(self, to: Party, frame: bytes, timeout: float, done: Done) -> None:
        """Send a call and return; `done` is called from a thread of the transport."""

    def control(self, to: Party, frame: bytes, timeout: float) -> Any:
        """As `call`, for what is answered by `control`."""

    def is_gone(self, party: Party) -> bool:
        """Whether a party is dead or has left for good, as far as can be known."""

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        """Wait until parties are here; those that have not come in time."""

    def names(self) -> list[str]:
        """Who is here, this party included."""

    def close(self) -> None:
        """Answer nothing more, end what is under way, and leave."""
