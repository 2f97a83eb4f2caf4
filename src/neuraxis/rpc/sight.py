"""Who of a mesh is in sight, who was, and who is gone for good.

That a node is no longer seen means that it left, died, was stopped, or that a link is gone. Who leaves says so. A
process of this machine can be looked at: the return of one that is stopped is waited for. Any other that is not seen
gets a few seconds; and as long as this node is itself cut off from its router, nobody counts as dead.
"""

from __future__ import annotations

import itertools
import socket
import threading
import time
from pathlib import Path

from neuraxis.comm.liveness import ProcessIdentity, ProcessWatch
from neuraxis.mesh import Node, Peer
from neuraxis.rpc.transport import Party

__all__ = ["Sight"]

_RETURN_S = 3.0  # how long a node elsewhere may be out of sight until it counts as dead
_FORGET_S = 60.0  # after which nothing is known any more of one that is gone


class Sight:
    """What one node sees. It is told of joins and leaves by a thread of the node's, and asked by any."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._host = socket.gethostname()
        self._lock = threading.Lock()
        self._known: dict[Party, Peer] = {}  # all that were seen, but for those that are long gone
        self._arrivals: dict[Party, int] = {}  # of those that are in sight: the number of their coming
        self._unseen: dict[Party, float] = {}  # since when the others are not
        self._left: set[Party] = set()  # that have said good-bye
        self._coming = itertools.count(1)

    def __len__(self) -> int:
        """How many parties something is known of."""
        return len(self._known.keys() | self._unseen.keys() | self._left)

    # --- what happens -----------------------------------------------------------------------------------------

    def see(self, peer: Peer) -> Party:
        party = Party(peer.name, peer.incarnation)
        with self._lock:
            self._known[party] = peer
            self._arrivals[party] = next(self._coming)
            self._unseen.pop(party, None)
        return party

    def lose(self, peer: Peer) -> Party:
        party = Party(peer.name, peer.incarnation)
        with self._lock:
            self._arrivals.pop(party, None)
            self._unseen[party] = time.monotonic()
        self._forget()
        return party

    def left(self, party: Party) -> None:
        """A party has said good-bye."""
        with self._lock:
            self._left.add(party)
            if party not in self._arrivals:
                self._unseen.setdefault(party, time.monotonic())

    def meet(self, peer: Peer) -> Party:
        """A peer that is there, of which nobody may have told us yet."""
        party = Party(peer.name, peer.incarnation)
        with self._lock:
            self._known.setdefault(party, peer)
        return party

    def _forget(self) -> None:
        """Drop what is known of those that are gone for long."""
        old = time.monotonic() - _FORGET_S
        gone = [party for party, since in list(self._unseen.items()) if since < old and self.is_gone(party)]
        with self._lock:
            for party in gone:
                if party not in self._arrivals:
                    self._known.pop(party, None)
                    self._unseen.pop(party, None)
                    self._left.discard(party)

    # --- who is there -----------------------------------------------------------------------------------------

    def arrival(self, party: Party) -> int | None:
        """The number of a party's coming; None while it is out of sight."""
        return self._arrivals.get(party)

    def all_in_sight(self) -> list[Party]:
        return list(self._arrivals)

    def sees(self, party: Party) -> bool:
        return any(peer.incarnation == party.life for peer in self._node.lives(party.name))

    def is_gone(self, party: Party) -> bool:
        """Whether a party is dead or has left for good, as far as can be known."""
        if party in self._arrivals or self.sees(party):
            return False
        if self._node.closed or not self._node.connected:
            return False
        if party in self._left:
            return True
        peer = self._known.get(party)
        state = _state_of(peer.pid) if peer is not None and peer.host == self._host else ""
        if state in ("stopped", "dead"):
            return state == "dead"
        with self._lock:
            return time.monotonic() > self._unseen.setdefault(party, time.monotonic()) + _RETURN_S

    def may_return(self, name: str | None, role: str) -> Party | None:
        """One that was seen under a name, or with any (None) and a role, is out of sight, and is not gone."""
        with self._lock:
            known = list(self._known.items())
        for party, peer in reversed(known):
            if (name is None or peer.name == name) and peer.has_role(role):
                return None if self.is_gone(party) else party  # of several lives only the last one counts
        return None


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
