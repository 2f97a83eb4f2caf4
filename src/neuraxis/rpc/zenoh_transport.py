"""Calls over the mesh: questions to nodes that come and go.

A call that ends without an answer (a router was restarted, a link was cut) is asked again when its callee is seen
again; who answers knows its number, and runs it once.

That a node is no longer seen means that it died, was stopped, or that a link is gone. A process of this machine can be
looked at: while it lives, its return is waited for until the call's deadline. One elsewhere gets a few seconds, and as
long as this node is itself cut off from its router, nobody counts as dead.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import Any

from neuraxis.comm.liveness import ProcessIdentity, ProcessWatch
from neuraxis.errors import CallCancelled, CalleeDied, CalleeGone, CallRefused, CallTimeout, MeshError, RequestTimeout
from neuraxis.mesh import Node, Peer, Topology
from neuraxis.mesh.keys import serve_key
from neuraxis.mesh.topology import LARGEST_MESSAGE
from neuraxis.rpc.askers import Askers
from neuraxis.rpc.transport import Answer, Done, Party
from neuraxis.rpc.zenoh_answering import Answering

__all__ = ["ZenohTransport"]

_ROLE = "rpc"
_CALLS, _CONTROL = "rpc/call", "rpc/control"
_POLL_S = 2e-4  # quick answers come within this, and to wake a thread takes about as long
_RETURN_S = 3.0  # how long a node elsewhere may be out of sight until it counts as dead
_GONE_WAIT_S = 0.3  # the end of a question and the end of a presence come by two ways
_REFUSALS = 3  # questions that end without an answer while the callee is in sight, before a call is given up
_LOOK_S = 0.02
_CLOSE_S = 2.0
_ENVELOPE = 4096  # room for what the mesh adds to a message


class ZenohTransport:
    """A node of a mesh that calls and is called. `rank` is -1 where there are only names.

    `timeout` is the one that most calls have: what can be prepared for them is.
    """

    largest = LARGEST_MESSAGE - _ENVELOPE
    repeats = True

    def __init__(self, name: str, mesh: str, topology: Topology | None, timeout: float, rank: int = -1) -> None:
        roles = (_ROLE,) if rank < 0 else (_ROLE, _rank_role(rank))
        self._node = Node(name, role=_ROLE, mesh=mesh, topology=topology, roles=roles, announce=False)
        self.me = Party(self._node.name, self._node.incarnation)
        self._rank = rank
        self._timeout = timeout
        self._answering: Answering | None = None
        self._askers = Askers("neuraxis rpc call")
        self._queriers: dict[Party, Any] = {}
        self._known: dict[Party, Peer] = {}  # all that were ever seen and are not known to be dead
        self._unseen: dict[Party, float] = {}  # since when they are out of sight

    # --- to answer --------------------------------------------------------------------------------------------

    def serve(self, answer: Answer, control: Answer, threads: int) -> None:
        self._node.on_join(self._see)
        self._node.on_leave(self._lose)
        self._node.serve(_CONTROL, lambda message: control(message.value), type=bytes, threads=1)
        key = serve_key(self._node.mesh, self.me.name, _CALLS)
        self._answering = Answering(self._node.session, key, answer, threads)
        self._node.announce()

    def need_thread(self) -> None:
        if self._answering is not None:
            self._answering.add_thread()

    # --- who is here ------------------------------------------------------------------------------------------

    def find(self, dst: int | str) -> Party:
        if dst in (self.me.name, self._rank) and dst != -1:
            return self.me
        peer = self._look_up(dst)
        if peer is None or not peer.has_role(_ROLE):
            who = f"rank {dst}" if isinstance(dst, int) else f"{dst!r}"
            why = "there is no such node" if peer is None else "that node takes no calls"
            where = f"on the mesh {self._node.mesh!r} (here are {', '.join(self.names())})"
            raise CalleeGone(f"{who} cannot be called: {why} {where}", str(dst))
        return Party(peer.name, peer.incarnation)

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
            time.sleep(_LOOK_S)
        return missing

    def is_gone(self, party: Party) -> bool:
        if party == self.me or self._sees(party):
            self._unseen.pop(party, None)
            return False
        gone = self._is_dead(party, self._unseen.setdefault(party, time.monotonic()))
        if gone:
            self._unseen.pop(party, None)
            self._known.pop(party, None)
        return gone

    def _sees(self, party: Party) -> bool:
        return any(peer.incarnation == party.life for peer in self._node.lives(party.name))

    def _see(self, peer: Peer) -> None:
        self._known[Party(peer.name, peer.incarnation)] = peer

    def _lose(self, peer: Peer) -> None:
        party = Party(peer.name, peer.incarnation)
        self._unseen.setdefault(party, time.monotonic())
        querier = self._queriers.pop(party, None)
        if querier is not None:
            querier.undeclare()

    def _is_dead(self, party: Party, unseen_since: float) -> bool:
        """Whether a party that is out of sight has died: see the module's words."""
        if not self._node.connected:
            return False
        peer = self._known.get(party)
        if peer is not None and peer.host == socket.gethostname():
            return not _lives(peer.pid)
        return time.monotonic() > unseen_since + _RETURN_S

    # --- to call ----------------------------------------------------------------------------------------------

    def call(self, to: Party, frame: bytes, timeout: float) -> Any:
        return self._call(to, frame, timeout, _POLL_S)

    def start(self, to: Party, frame: bytes, timeout: float, done: Done) -> None:
        deadline = time.monotonic() + timeout

        def ask() -> None:
            try:
                reply = self._call(to, frame, max(1e-3, deadline - time.monotonic()), 0.0)
            except BaseException as error:
                done(None, error)
            else:
                done(reply, None)

        self._askers.run(ask)

    def control(self, to: Party, frame: bytes, timeout: float) -> Any:
        try:
            return self._node.request(to.name, _CONTROL, frame, timeout, type=bytes, again=self._node.next_question())
        except RequestTimeout:
            raise self._late(to, timeout) from None
        except MeshError as error:
            raise CalleeDied(f"{to.name!r} cannot be told: {error}", to.name) from None

    def _call(self, to: Party, frame: bytes, timeout: float, poll_s: float) -> Any:
        reply = self._ask(to, frame, timeout, poll_s)
        if reply is None:
            reply = self._ask_again(to, frame, timeout, time.monotonic() + timeout)
        answer = reply.ok
        if answer is not None:
            return answer.payload.to_bytes()
        said = reply.err.payload.to_bytes()
        if said == b"Timeout":  # Zenoh's own word for the end of a question's time
            raise self._late(to, timeout)
        raise CallRefused(f"{to.name!r} does not take this call: {said[:200]!r}", to.name)

    def _ask_again(self, to: Party, frame: bytes, timeout: float, deadline: float) -> Any:
        """The question has ended without an answer: ask again while the callee lives."""
        for _ in range(_REFUSALS):
            self._await_return(to, deadline, timeout)
            reply = self._ask(to, frame, max(1e-3, deadline - time.monotonic()), 0.0)
            if reply is not None:
                return reply
        raise CallRefused(f"{to.name!r} has too many calls waiting, or is shutting down", to.name)

    def _ask(self, to: Party, frame: bytes, timeout: float, poll_s: float) -> Any:
        """Send a question; the first reply, None where there is none."""
        import zenoh

        try:
            querier = self._querier(to) if timeout == self._timeout else None
            if querier is not None:
                replies = querier.get(handler=zenoh.handlers.FifoChannel(4), payload=frame)
            else:
                key = serve_key(self._node.mesh, to.name, _CALLS)
                replies = self._node.session.get(
                    key, zenoh.handlers.FifoChannel(4), payload=frame, timeout=timeout, **_how_to_ask()
                )
            poll_until = time.monotonic() + poll_s
            while time.monotonic() < poll_until:
                reply = replies.try_recv()
                if reply is not None:
                    return reply
                os.sched_yield()
            return replies.recv()
        except (zenoh.ZError, MeshError):
            if self._node.closed:
                raise CallCancelled("this context was shut down during the call", to.name) from None
            return None  # the question has ended without a reply

    def _querier(self, to: Party) -> Any:
        querier = self._queriers.get(to)
        if querier is None and to in self._known:
            key = serve_key(self._node.mesh, to.name, _CALLS)
            querier = self._node.session.declare_querier(key, timeout=self._timeout, **_how_to_ask())
            self._queriers[to] = querier
        return querier

    def _await_return(self, to: Party, deadline: float, timeout: float) -> None:
        """Return when a node is seen (again); raise when it will not be."""
        since = time.monotonic()
        lost = False
        while True:
            if self._node.closed:
                raise CallCancelled("this context was shut down during the call", to.name)
            now = time.monotonic()
            if self._sees(to):
                if lost or now > since + _GONE_WAIT_S:
                    return
            else:
                lost = True
                if self._node.lives(to.name) or self._is_dead(to, since):
                    raise CalleeDied(
                        f"{to.name!r} died, left or was cut off during the call: it may or may not have run", to.name
                    )
            if now > deadline:
                raise self._late(to, timeout)
            time.sleep(_LOOK_S)

    def _late(self, to: Party, timeout: float) -> CallTimeout:
        return CallTimeout(f"{to.name!r} has not answered within {timeout:g} s", to.name)

    # --- to end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self._answering is not None:
            self._answering.stop()
        self._node.close()
        if self._answering is not None:
            self._answering.wait_for_end(time.monotonic() + _CLOSE_S)
        self._askers.close(_CLOSE_S)


def _how_to_ask() -> dict[str, Any]:
    import zenoh

    return {
        "consolidation": zenoh.ConsolidationMode.NONE,
        "congestion_control": zenoh.CongestionControl.BLOCK,
        "express": True,
    }


def _rank_role(rank: int) -> str:
    return f"rpc-rank-{rank}"


def _lives(pid: int) -> bool:
    """Whether a process of this machine runs, or is stopped; one that has ended and was not yet buried does not."""
    watch = ProcessWatch({0: ProcessIdentity(pid, 0)})
    try:
        return not watch.ended()
    finally:
        watch.close()
