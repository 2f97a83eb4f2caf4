"""Messages over the mesh, between nodes that come and go.

They are published, not asked as questions: a published message and one that answers it take two thirds of the time of a
question of Zenoh's. What a question would tell (nobody is there, it has ended) the presence of nodes tells as well.

What is published while a link is cut (a router is restarted) is lost. So when a callee that was out of sight is seen
again, what was asked is asked again; who answers knows its number, and runs it once. A callee that was here, is out of
sight and may come back can be called: the call waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from neuraxis.errors import CallCancelled, CalleeDied, CalleeGone, NeuraxisError
from neuraxis.mesh import Node, Peer, Topology
from neuraxis.mesh.keys import call_key
from neuraxis.mesh.topology import LARGEST_MESSAGE
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.lent_arrays import LentArrays
from neuraxis.rpc.line import INBOX, Lane
from neuraxis.rpc.messages import Kind, pack_head
from neuraxis.rpc.sight import Sight
from neuraxis.rpc.transport import Party
from neuraxis.rpc.zenoh_lanes import Lanes
from neuraxis.rpc.zenoh_outlets import Outlets

__all__ = ["ZenohLine"]

_ROLE = "rpc"
_WAIT_S = 0.02
_INBOX_MESSAGES = 10_000
_ENVELOPE = 4096  # room for what the mesh adds to a message


class ZenohLine:
    """A node of a mesh. `rank` is -1 where there are only names."""

    largest = LARGEST_MESSAGE - _ENVELOPE
    has_lanes = True
    quick_s = 5e-4  # a call with a megabyte takes 0.3 ms: to wake another thread for each costs more than it gains

    def __init__(self, name: str, mesh: str, topology: Topology | None, rank: int = -1) -> None:
        import zenoh

        roles = (_ROLE,) if rank < 0 else (_ROLE, _rank_role(rank))
        self._node = Node(name, role=_ROLE, mesh=mesh, topology=topology, roles=roles, announce=False)
        self.me = Party(self._node.name, self._node.incarnation)
        self._rank = rank
        self._mine = threading.local()
        self._sight = Sight(self._node)
        self._outlets = Outlets(self._publisher)
        self._lent = LentArrays(self.largest)
        self._found: dict[int | str, Party] = {}  # of those that are in sight
        self._lanes = Lanes(self._node.session, self._own_key, self._message)
        self._node.on_join(self._see)
        self._node.on_leave(self._lose)
        # Where it is full, the session is held up, and so are those that send: nothing of it may be dropped.
        channel: Any = zenoh.handlers.FifoChannel(_INBOX_MESSAGES)
        self._inbox = self._node.session.declare_subscriber(self._own_key(INBOX), channel)
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
        if peer is None:
            name, role = (dst, _ROLE) if isinstance(dst, str) else (None, _rank_role(dst))
            missing = self._sight.may_return(name, role)
            if missing is not None:
                return missing
        if peer is None or not peer.has_role(_ROLE):
            who = f"rank {dst}" if isinstance(dst, int) else f"{dst!r}"
            why = "there is no such node" if peer is None else "that node takes no calls"
            where = f"on the mesh {self._node.mesh!r} (here are {', '.join(self.names())})"
            raise CalleeGone(f"{who} cannot be called: {why} {where}", str(dst))
        party = self._sight.meet(peer)
        if self._sight.arrival(party) is not None:
            self._found[dst] = party
            if self._sight.arrival(party) is None:  # in between
                self._found.pop(dst, None)
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
        self._sight.see(peer)
        self._found.clear()

    def _lose(self, peer: Peer) -> None:
        party = self._sight.lose(peer)
        self._found.clear()
        self._outlets.drop(party)
        self._lent.drop(party)

    def is_gone(self, party: Party) -> bool:
        return party != self.me and self._sight.is_gone(party)

    def left(self, party: Party) -> None:
        self._sight.left(party)

    def mark(self, to: Party) -> int:
        """The number of its coming; 0: it is out of sight, and nothing that is sent now reaches it."""
        arrival = self._sight.arrival(to)
        return arrival if arrival is not None else -1 if self._sight.sees(to) else 0

    def look(self, to: Party, mark: int) -> bool:
        arrival = self._sight.arrival(to)
        if arrival is not None:
            return arrival != mark
        if (self._sight.is_gone(to) or self._node.lives(to.name)) and not self._sight.sees(to):
            if mark == 0:
                raise CalleeGone(f"{to.name!r} cannot be called: it was out of sight, and is gone", to.name)
            raise CalleeDied(
                f"{to.name!r} died, left or was cut off during the call: it may or may not have run", to.name
            )
        return False

    # --- messages ---------------------------------------------------------------------------------------------

    def detach(self, to: Party, frame: Frame) -> None:
        self._lent.detach(to, frame)

    def send(self, to: Party, lane: int, frame: Frame, timeout: float) -> None:
        try:
            note = self._lent.lend(to, frame)
            if self._outlets.must_not_wait(to, lane, frame.size, timeout):
                self._outlets.put_within(timeout, to, lane, frame.joined(), note)
            else:
                self._outlets.put(to, lane, self._payload(frame) if frame.pieces else frame.start, note)
        except NeuraxisError:
            raise
        except Exception as error:
            if self._node.closed:
                raise CallCancelled("this context was shut down during the call", to.name) from None
            raise CalleeDied(f"{to.name!r} cannot be reached: {error}", to.name) from error

    def _payload(self, frame: Frame) -> bytes | bytearray:
        """A message with arrays as Zenoh takes it, which copies it.

        Who waits for a reply is likely to ask again for as much: memory that is used again need not be taken from the
        system, page by page, which takes longer than to fill it. A reply may have to be sent again when the function
        that it comes from has changed its array.
        """
        if frame.start[0] == Kind.REPLY:
            return frame.joined()
        memory: bytearray | None = getattr(self._mine, "memory", None)
        if memory is None or len(memory) != len(frame):
            memory = self._mine.memory = bytearray(len(frame))
        frame.copy_to(memory)
        return memory

    def _publisher(self, to: Party, lane: int) -> Any:
        import zenoh

        return self._node.session.declare_publisher(
            call_key(self._node.mesh, to.name, lane),
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
            express=True,
        )

    def receive(self) -> Any:
        try:
            sample = self._receive()
        except Exception:  # undeclared, or the session is closed
            return None
        return self._message(sample)

    def _message(self, sample: Any) -> Any:
        note = sample.attachment
        content = sample.payload.to_bytes()
        return content if note is None else self._lent.received(content, note.to_bytes())

    def lane(self) -> Lane:
        return self._lanes.lane()

    def _own_key(self, lane: int) -> str:
        return call_key(self._node.mesh, self.me.name, lane)

    # --- to end -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        bye = pack_head(Kind.BYE, INBOX, 0, 0, 0, self.me, 0, 0)
        for party in self._sight.all_in_sight():
            try:
                self._node.session.put(call_key(self._node.mesh, party.name, INBOX), bye, express=True)
            except Exception:  # the session may be closed already
                break
        self._lanes.stop()
        try:
            self._inbox.undeclare()
        except Exception:  # the session may be closed already
            pass

    def close(self) -> None:
        with ExitStack() as last_first:
            last_first.callback(self._node.close)
            last_first.callback(self._drain)
            last_first.callback(self._lanes.close)
            last_first.callback(self._lent.close)
            last_first.callback(self._outlets.close)

    def _drain(self) -> None:
        """Let go a session that is held up by a full inbox, which nobody reads any more."""
        try:
            while self._inbox.handler.try_recv() is not None:
                pass
        except Exception:  # it is undeclared and empty
            pass


def _rank_role(rank: int) -> str:
    return f"rpc-rank-{rank}"
