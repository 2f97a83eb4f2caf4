"""Interfaces between remote calls and what carries them.

A `Transport` sends a request to an endpoint, returns the reply, and knows which endpoints are present. It knows neither
the meaning of the bytes nor the functions that may be called. It distinguishes a callee that was absent from one that
died or was too slow, because only the transport can.

Most transports are a `MessageTransport` over a `Link`, which moves one message from endpoint to endpoint. Messages are
addressed to a *channel* of an endpoint. Channel 0 is the inbox, which the serving threads read. A thread that waits for
a reply has a *reply channel* of its own and reads it itself, so no other thread has to wake it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from neuraxis import request_reply
from neuraxis.comm.failures import ProcessWatch
from neuraxis.errors import CalleeGone, CallTimeout, InvalidArgument
from neuraxis.process.environment import detect_launch
from neuraxis.rpc.frames import Frame

if TYPE_CHECKING:
    from neuraxis.rpc.messages import Head
    from neuraxis.rpc.pool import Pool
    from neuraxis.rpc.server import Server

__all__ = [
    "INBOX",
    "ONLY_INCARNATION",
    "Done",
    "Endpoint",
    "FixedRanks",
    "Link",
    "Reply",
    "ReplyChannel",
    "Request",
    "Transport",
    "World",
    "find_world",
    "not_accepted",
]

INBOX = 0  # the channel that the serving threads read
ONLY_INCARNATION = 1  # the incarnation of every rank: ranks do not restart
_POLL_S = 2e-3  # how often processes are checked, which takes longer than looking a rank up


@dataclass(frozen=True)
class World:
    """The rank and size of a fixed world; both are -1 in an open world, whose nodes join and leave.

    `job` distinguishes the worlds of different launches.
    """

    rank: int
    size: int
    job: str

    @property
    def is_open(self) -> bool:
        return self.size < 0


def find_world(rank: int, size: int, init_method: str | None) -> World:
    """Return the world that the arguments and the launcher's variables describe."""
    if size == 0 or size < -1 or rank < -1:
        raise InvalidArgument(f"world_size={size}, rank={rank}: both must be given, or -1 to detect them")
    launch = detect_launch()
    place = init_method or ""
    if launch.launcher != "none":
        rank = launch.rank if rank < 0 else rank
        size = launch.world_size if size < 0 else size
        place = f"{launch.job} {launch.master_addr} {launch.master_port} {place}"
    if (rank < 0) != (size < 0):
        raise InvalidArgument(
            f"world_size={size} and rank={rank}: one of them is missing. Pass both, or start with `neuraxis launch`"
        )
    if size >= 0 and rank >= size:
        raise InvalidArgument(f"rank={rank} is not below world_size={size}")
    job = hashlib.sha256(place.encode()).hexdigest()[:12] if place else ""
    return World(rank, size, job)


class Endpoint(NamedTuple):
    """A process that makes or serves remote calls: its name, and its incarnation, which changes with a restart."""

    name: str
    incarnation: int


def not_accepted(to: Endpoint, timeout: float) -> CallTimeout:
    """Return the error for a message that an endpoint has not accepted in time."""
    return CallTimeout(
        f"{to.name!r} accepts no message within {timeout:g} s: it is stopped or overloaded. Look at that process, or "
        "give more time with timeout=",
        to.name,
    )


class Request(NamedTuple):
    """A request to send.

    Attributes
    ----------
    to : Endpoint
        The callee.
    number : int
        The number of the request.
    is_control : bool
        True if the callee's reading thread executes it immediately.
    write : callable
        Returns the frame of the request for a given reply channel.
    timeout : float
        Seconds to wait for the reply.
    """

    to: Endpoint
    number: int
    is_control: bool
    write: Callable[[int], Frame]
    timeout: float


Reply = tuple["Head", Any]
"""The head of a reply, and its frame: bytes, or another object with them, that has no other user."""

Done = request_reply.Done[Reply]


class Transport(Protocol):
    """Sends and serves calls for one endpoint.

    `call` raises, and `start` passes on: CalleeDied (the call may or may not have run), CallTimeout, CallCancelled
    (this transport was closed).
    """

    me: Endpoint
    largest: int  # maximum size of a message in bytes

    def serve(self, server: Server, pool: Pool, threads: int) -> None:
        """Start to serve calls, `threads` at a time."""

    def slot_released(self, more: bool) -> None:
        """Use the slot of a function that waits for a call; `more` if more functions wait than ever before."""

    def find(self, dst: int | str) -> Endpoint:
        """Return the endpoint of a rank or a name; raise CalleeGone if there is none."""

    def call(self, request: Request) -> Reply:
        """Send a request and wait for the reply."""

    def start(self, request: Request, done: Done) -> None:
        """Send a request and return; a thread of the transport calls `done`."""

    def is_gone(self, endpoint: Endpoint) -> bool:
        """Return True if an endpoint is known to be dead or to have left for good."""

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        """Wait until endpoints are present; return those still missing after `timeout` seconds."""

    def names(self) -> list[str]:
        """Return the names of all present endpoints, this one included."""

    def refuse(self) -> None:
        """Refuse all further calls."""

    def close(self) -> None:
        """Stop serving, cancel pending calls, and leave."""


class FixedRanks:
    """Membership of a fixed world: ranks by name and number, none of which returns after its end.

    `watch` detects the end of processes on this host.
    """

    def __init__(self, names: Sequence[str], rank: int, watch: ProcessWatch) -> None:
        self._names = list(names)
        self._ranks = {name: rank for rank, name in enumerate(self._names)}
        self._rank = rank
        self._watch = watch
        self._left: set[int] = set()  # ranks that have announced that they leave, or are known to be lost
        self._ended: Collection[int] = ()  # ranks that had ended at the last check
        self._checked_at = 0.0
        self.me = Endpoint(self._names[rank], ONLY_INCARNATION)

    def find(self, dst: int | str) -> Endpoint:
        rank = self._ranks.get(dst) if isinstance(dst, str) else dst if 0 <= dst < len(self._names) else None
        if rank is None:
            raise CalleeGone(f"{dst!r} cannot be called: the endpoints are {', '.join(self._names)}", str(dst))
        if rank != self._rank and self._is_lost(rank):
            raise CalleeGone(
                f"{self._names[rank]!r} cannot be called: it has left, or died. Start all ranks again",
                self._names[rank],
            )
        return Endpoint(self._names[rank], ONLY_INCARNATION)

    def names(self) -> list[str]:
        return sorted(name for rank, name in enumerate(self._names) if rank == self._rank or not self._is_lost(rank))

    def is_gone(self, endpoint: Endpoint) -> bool:
        rank = self._ranks.get(endpoint.name)
        return rank is None or (rank != self._rank and self._is_lost(rank))

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        return [name for name in names if isinstance(name, str) and name not in self._ranks]

    def _is_lost(self, rank: int) -> bool:
        if rank in self._left:
            return True
        now = time.monotonic()
        if now > self._checked_at + _POLL_S:
            self._ended, self._checked_at = self._watch.ended().keys(), now
        return rank in self._ended


class ReplyChannel(Protocol):
    """A channel on which one thread waits for replies."""

    number: int

    def receive(self, source: Endpoint, timeout: float) -> Any:
        """Return the next message, without other users; None after `timeout` seconds, or earlier.

        Raises CalleeDied if no message will arrive.
        """


class Link(Protocol):
    """Sends and receives messages for one endpoint."""

    me: Endpoint
    largest: int  # maximum size of a message in bytes
    quick_s: float  # if calls take longer on average, another thread reads the inbox meanwhile
    has_reply_channels: bool  # False if there is only the inbox

    def detach(self, to: Endpoint, frame: Frame) -> None:
        """Copy the user's arrays in a frame, so that later changes do not affect it."""

    def send(self, to: Endpoint, channel: int, frame: Frame, timeout: float) -> None:
        """Send a message. Raises CalleeDied if the endpoint is gone, CallTimeout if it could not be sent in time."""

    def receive(self) -> Any:
        """Return the next message of the inbox, for one thread at a time; None when nothing more arrives."""

    def open_reply_channel(self) -> ReplyChannel:
        """Return a reply channel with a new number."""

    def epoch(self, to: Endpoint) -> int:
        """Return the current epoch of the connection to an endpoint, for `must_resend`."""

    def must_resend(self, to: Endpoint, epoch: int) -> bool:
        """Return True if messages sent in an epoch may be lost and must be resent. Raises CalleeDied if it is gone."""

    def trouble(self) -> str:
        """Return the reason why this endpoint cannot reach any other; "" if there is none."""

    def find(self, dst: int | str) -> Endpoint:
        """See `Transport`."""

    def names(self) -> list[str]:
        """See `Transport`."""

    def is_gone(self, endpoint: Endpoint) -> bool:
        """See `Transport`."""

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        """See `Transport`."""

    def peer_left(self, endpoint: Endpoint) -> None:
        """Note that an endpoint has announced that it leaves."""

    def open(self) -> None:
        """Become visible to others: this endpoint reads its inbox."""

    def stop(self) -> None:
        """Stop receiving, and wake the threads that receive."""

    def close(self) -> None:
        """Free everything, after the receiving threads have ended."""
