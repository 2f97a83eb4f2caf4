"""What a transport of messages stands on: a line moves one message from party to party.

A line has *lanes*, each with a number. Lane 0 is the inbox: everything that nobody waits for in particular comes there,
and is read by the threads that serve. A thread that waits for a reply has a lane of its own, and reads it itself: no
other thread has to be woken, and then to wake it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from neuraxis.rpc.frames import Frame
from neuraxis.rpc.transport import Party

__all__ = ["INBOX", "Lane", "Line"]

INBOX = 0


class Lane(Protocol):
    """Where one thread waits for replies."""

    number: int

    def receive(self, source: Party, timeout: float) -> Any:
        """The next message, bytes that nobody else uses; None where none came in time, or soon enough to look about.

        CalleeDied where none will come.
        """


class Line(Protocol):
    """One party's end."""

    me: Party
    largest: int
    quick_s: float  # calls that take longer as a rule are run while another thread reads the inbox
    has_lanes: bool  # whether there are others than the inbox

    def detach(self, to: Party, frame: Frame) -> None:
        """What the user does with arrays from now on is not to change a frame, which is sent soon."""

    def send(self, to: Party, lane: int, frame: Frame, timeout: float) -> None:
        """Send a message. CalleeDied if the party is known to be gone, CallTimeout if it could not be sent."""

    def receive(self) -> Any:
        """The next message of the inbox, read by one thread at a time; None when nothing more comes."""

    def lane(self) -> Lane:
        """A lane with a number of its own."""

    def mark(self, to: Party) -> int:
        """A mark of this moment, for `look`."""

    def look(self, to: Party, mark: int) -> bool:
        """Whether what was sent since the mark may be lost, and can be sent again. CalleeDied if it is gone."""

    def find(self, dst: int | str) -> Party:
        """See `Transport`."""

    def names(self) -> list[str]:
        """See `Transport`."""

    def is_gone(self, party: Party) -> bool:
        """See `Transport`."""

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        """See `Transport`."""

    def left(self, party: Party) -> None:
        """A party has said that it leaves."""

    def open(self) -> None:
        """Be seen by others: this party reads its inbox."""

    def stop(self) -> None:
        """Receive nothing more: those that do are woken."""

    def close(self) -> None:
        """Free everything, after its readers have ended."""
