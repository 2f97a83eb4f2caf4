"""Messages over the mesh, between nodes that come and go.

They are published, not asked as questions: a published message and one that answers it take two thirds of the time of a
question of Zenoh's. What a question would tell (nobody is there, it has ended) the presence of nodes tells as well.

What is published while a link is cut (a router is restarted) is lost. So when a callee that was out of sight is seen
again, what was asked is asked again; who answers knows its number, and runs it once.

That a node is no longer seen means that it left, died, was stopped, or that a link is gone. Who leaves says so. A
process of this machine can be looked at: the return of one that is stopped is waited for until the call's deadline. Any
other that is not seen gets a few seconds; and as long as this node is itself cut off from its router, nobody counts as
dead.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neuraxis.comm.liveness import ProcessIdentity, ProcessWatch
from neuraxis.errors import CallCancelled, CalleeDied, CalleeGone
from neuraxis.mesh import Node, Peer, Topology
from neuraxis.mesh.keys import serve_key
from neuraxis.mesh.topology import LARGEST_MESSAGE
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.line import INBOX
from neuraxis.rpc.messages import Kind, pack_head
from neuraxis.rpc.transport import Party

__all__ = ["ZenohLine"]

_ROLE = "rpc"
_POLL_S = 2e-4  # quick answers come within this, and to wake a thread takes about as long
_LONGEST_NAP_S = 2e-3
_LOOK_S = 0.05  # how long a lane is read in a row
_RETURN_S = 3.0  # how long a node elsewhere may be out of sight until it counts as dead
_WAIT_S = 0.02
_INBOX_MESSAGES = 10_000
_MOST_PUBLISHERS = 1000
_ENVELOPE = 4096  # room for what the mesh adds to a message


class ZenohLine:
    """A node of a mesh. `rank` is -1 where there are only names."""

    largest = LARGEST_MESSAGE - _ENVELOPE
    has_lanes = True
    quick_s = 3e-4

    def __init__(self, name: str, mesh: str, topology: Topology | None, rank: int = -1) -> None:
        roles = (_ROLE,) if rank < 0 else (_ROLE, _rank_role(rank))
        self._node = Node(name, role=_ROLE, mesh=mesh, topology=topology, roles=roles, announce=False)
        self.me = Party(self._node.name, self._node.incarnation)
        self._rank = rank
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._publishers: dict[tuple[Party, int], Any] = {}
        self._found: dict[int | str, Party] = {}
        self._known: dict[Party, Peer] = {}  # all that were ever seen and are not known to be dead
        self._arrivals: dict[Party, int] = {}  # of those that are in sight: the number of their coming
        self._unseen: dict[Party, float] = {}  # since when the others are not
        self._left: set[Party] = set()  # that have said good-bye
        self._coming = itertools.count(1)
        self._lane_numbers = itertools.count(INBOX + 1)
        self._host = socket.gethostname()
        self._node.on_join(self._see)
        self._node.on_leave(self._lose)
        self._inbox = self._subscriber(INBOX, _INBOX_MESSAGES)
        self._receive = self._inbox.handler.recv

    def open(self) -> None:
        self._node.announce()

    # --- who is here ------------------------------------------------------------------------------------------

    def find(self, dst: int | str) -> Party:
        found = self._found.get(dst)
        return found if found is not None else self._find(dst)

    def _find(self, dst: int | str) -> Party:
        if dst == self.me.name or (dst == self._rank and self._rank >= 0):
            return self.me
        peer = self._look_up(dst)
        if peer is None or not peer.has_role(_ROLE):
            who = f"rank {dst}" if isinstance(dst, int) else f"{dst!r}"
            why = "there is no such node" if peer is None else "that node takes no calls"
            where = f"on the mesh {self._node.mesh!r} (here are {', '.join(self.names())})"
            raise CalleeGone(f"{who} cannot be called: {why} {where}", str(dst))
        party = Party(peer.name, peer.incarnation)
        with self._lock:
            self._known.setdefault(party, peer)
            if party in self._arrivals:
                self._found[dst] = party
        return party

    def _look_up(self, dst: int | str) -> Peer | None:
        if isinstance(dst, str):
            return self._node.peer(dst)
        peers = self._node.with_role(_rank_role(dst))
        return peers[-1] if peers else None

    def names(self) -> list[str]:
        return sorted({self.me.name, *(peer.name for peer in self._node.with_role(_ROLE))})

    def wait_for(self, names: Iterable[int | str], timeout: float) -> list[int | str]:
        deadline = time.monotonic() + timeout
        missing = [name for name in names if name not in (self.me.name, self._rank)]
        while missing := [name for name in missing if self._look_up(name) is None]:
            if time.monotonic() > deadline:
                break
            time.sleep(_WAIT_S)
        return missing

    def _see(self, peer: Peer) -> None:
        party = Party(peer.name, peer.incarnation)
        with self._lock:
            self._known[party] = peer
            self._arrivals[party] = next(self._coming)
            self._unseen.pop(party, None)
            self._found.clear()

    def _lose(self, peer: Peer) -> None:
        party = Party(peer.name, peer.incarnation)
        with self._lock:
            self._arrivals.pop(party, None)
            self._unseen[party] = time.monotonic()
            self._found.clear()
            past = [key for key in self._publishers if key[0] == party]
            publishers = [self._publishers.pop(key) for key in past]
        for publisher in publishers:
            publisher.undeclare()

    def is_gone(self, party: Party) -> bool:
        if party == self.me or party in self._arrivals or self._sees(party):
            return False
        if self._node.closed or not self._node.connected:
            return False
        if party in self._left:
            return True
        peer = self._known.get(party)
        state = _state_of(peer.pid) if peer is not None and peer.host == self._host else ""
        if state in ("stopped", "dead"):
            return state == "dead"
        return time.monotonic() > self._unseen.setdefault(party, time.monotonic()) + _RETURN_S

    def left(self, party: Party) -> None:
        self._left.add(party)

    def _sees(self, party: Party) -> bool:
        return any(peer.incarnation == party.life for peer in self._node.lives(party.name))

    def mark(self, to: Party) -> int:
        return self._arrivals.get(to, 0)

    def look(self, to: Party, mark: int) -> bool:
        arrival = self._arrivals.get(to)
        if arrival is not None:
            return arrival != mark
        if self.is_gone(to) or self._node.lives(to.name):
            if not self._sees(to):
                raise CalleeDied(
                    f"{to.name!r} died, left or was cut off during the call: it may or may not have run", to.name
                )
        return False

    # --- messages ---------------------------------------------------------------------------------------------

    def send(self, to: Party, lane: int, frame: Frame, timeout: float) -> None:
        publisher = self._publishers.get((to, lane))
        try:
            if publisher is None:
                publisher = self._publisher(to, lane)
            publisher.put(self._payload(frame) if lane == INBOX else frame.joined())
        except Exception as error:
            if self._node.closed:
                raise CallCancelled("this context was shut down during the call", to.name) from None
            if (to, lane) not in self._publishers:
                return  # it went out of sight this moment: see `look`
            raise CalleeDied(f"{to.name!r} cannot be reached: {error}", to.name) from error

    def _payload(self, frame: Frame) -> bytes | bytearray:
        """A request as Zenoh takes it, which copies it.

        Who waits for a reply is likely to ask again for as much: memory that is used again need not be taken from the
        system, page by page, which takes longer than to fill it.
        """
        if not frame.pieces:
            return frame.joined()
        memory: bytearray | None = getattr(self._mine, "memory", None)
        if memory is None or len(memory) != len(frame):
            memory = self._mine.memory = bytearray(len(frame))
        frame.copy_to(memory)
        return memory

    def _publisher(self, to: Party, lane: int) -> Any:
        import zenoh

        key = serve_key(self._node.mesh, to.name, f"rpc/{lane}")
        publisher = self._node.session.declare_publisher(
            key,
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
            express=True,
        )
        with self._lock:
            if len(self._publishers) >= _MOST_PUBLISHERS:
                self._publishers.pop(next(iter(self._publishers))).undeclare()
            return self._publishers.setdefault((to, lane), publisher)

    def receive(self) -> Any:
        try:
            return self._receive().payload.to_bytes()
        except Exception:  # undeclared, or the session is closed
            return None

    def lane(self) -> _ZenohLane:
        number = next(self._lane_numbers)
        return _ZenohLane(number, self._subscriber(number, 100))

    def _subscriber(self, lane: int, messages: int) -> Any:
        import zenoh

        key = serve_key(self._node.mesh, self.me.name, f"rpc/{lane}")
        # A ring: where nobody reads, the session is not held up.
        return self._node.session.declare_subscriber(key, zenoh.handlers.RingChannel(messages))

    # --- to end -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        bye = pack_head(Kind.BYE, INBOX, 0, 0, 0, self.me, 0, 0)
        for party in list(self._arrivals):
            try:
                self._node.session.put(serve_key(self._node.mesh, party.name, f"rpc/{INBOX}"), bye, express=True)
            except Exception:  # the session may be closed already
                break
        try:
            self._inbox.undeclare()
        except Exception:  # the session may be closed already
            pass

    def close(self) -> None:
        self._node.close()


class _ZenohLane:
    """A key of this node's, for replies to one thread at a time."""

    def __init__(self, number: int, subscriber: Any) -> None:
        self.number = number
        self._subscriber = subscriber  # which ends with its session
        self._receive = subscriber.handler.try_recv

    def receive(self, source: Party, timeout: float) -> Any:
        receive, monotonic, give_way = self._receive, time.monotonic, os.sched_yield
        try:
            sample = receive()
            begun = now = monotonic()
            while sample is None and now < begun + _POLL_S:
                give_way()
                sample = receive()
                now = monotonic()
            end = begun + min(timeout, _LOOK_S)
            while sample is None and now < end:
                time.sleep(min(_LONGEST_NAP_S, (now - begun) / 16))
                sample = receive()
                now = monotonic()
        except Exception:  # the session is closed
            return None
        return None if sample is None else sample.payload.to_bytes()


def _rank_role(rank: int) -> str:
    return f"rpc-rank-{rank}"


def _state_of(pid: int) -> str:
    """Whether a process of this machine is "dead", "stopped" or "" (neither, as far as can be seen)."""
    watch = ProcessWatch({0: ProcessIdentity(pid, 0)})
    try:
        if watch.ended():  # also one that has ended and was not yet buried
            return "dead"
    finally:
        watch.close()
    try:
        return "stopped" if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt" else ""
    except (OSError, IndexError):
        return ""
