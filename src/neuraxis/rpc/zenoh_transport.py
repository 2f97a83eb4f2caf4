"""A link over the mesh, between nodes that join and leave.

Requests and replies are published messages, not Zenoh queries: a pair of messages takes two thirds of the time of a
query. What a query would report (no such node, the node has ended) is known from the nodes' presence tokens.

The key of every message names its sender, which a router's access rules tie to a certificate. A message that names
another sender in its content is counted and dropped before anything else in it is used.

A message that is published while a link is cut (a router is restarted) is lost. So a request is resent when a callee
that was unreachable returns; the callee deduplicates it by its number. A callee that was present, is unreachable and
may return can be called: the call waits for it.

A node becomes unreachable when it leaves, dies, is stopped, or a link is cut. A node that leaves announces it. The
state of a process on this machine can be inspected: a stopped one may return. Any other counts as dead after a few
seconds; but as long as this node itself is cut off from its router, no node counts as dead.
"""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from neuraxis.comm.failures import ProcessIdentity, ProcessWatch
from neuraxis.errors import CallCancelled, CalleeDied, CalleeGone, NeuraxisError, RouterLost
from neuraxis.mesh import Node, Peer, Topology
from neuraxis.mesh.keys import call_key, sender_of_key
from neuraxis.mesh.limits import Refusals
from neuraxis.mesh.topology import LARGEST_MESSAGE
from neuraxis.rpc.frames import Frame
from neuraxis.rpc.messages import Kind, claims_sender, pack_head
from neuraxis.rpc.transport import INBOX, Endpoint, ReplyChannel
from neuraxis.rpc.zenoh_channels import Publishers, ReplyChannels, SharedArrays

__all__ = ["PeerTracker", "ZenohLink"]

_log = logging.getLogger("neuraxis.rpc")
_ROLE = "rpc"
_RETURN_S = 3.0  # how long a node on another machine may be unreachable until it counts as dead
_FORGET_S = 60.0  # how long the state of a node that is gone is kept
_MAX_KEYS = 10_000  # keys whose senders are cached
_MAX_DECLARED = 1000  # keys that are declared to Zenoh
_WAIT_S = 0.02
_INBOX_MESSAGES = 10_000
_ENVELOPE = 4096  # bytes that the mesh adds to a message, at most


class PeerTracker:
    """The failure detector of one node: which endpoints are reachable, may return, or are gone for good.

    A thread of the node reports joins and leaves; any thread may query.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._host = socket.gethostname()
        self._lock = threading.Lock()
        self._known: dict[Endpoint, Peer] = {}  # all that have been present, except those long gone
        self._arrivals: dict[Endpoint, int] = {}  # number of the join, of reachable ones
        self._unreachable: dict[Endpoint, float] = {}  # since when
        self._left: set[Endpoint] = set()  # have announced that they leave
        self._joins = itertools.count(1)

    def __len__(self) -> int:
        """Return the number of tracked endpoints."""
        return len(self._known.keys() | self._unreachable.keys() | self._left)

    # --- events -----------------------------------------------------------------------------------------------

    def joined(self, peer: Peer) -> Endpoint:
        """Record that a peer has joined the mesh."""
        endpoint = Endpoint(peer.name, peer.incarnation)
        with self._lock:
            self._known[endpoint] = peer
            self._arrivals[endpoint] = next(self._joins)
            self._unreachable.pop(endpoint, None)
        return endpoint

    def lost(self, peer: Peer) -> Endpoint:
        """Record that a peer has left the mesh, for whatever reason."""
        endpoint = Endpoint(peer.name, peer.incarnation)
        with self._lock:
            self._arrivals.pop(endpoint, None)
            self._unreachable[endpoint] = time.monotonic()
        self._forget()
        return endpoint

    def announced_leave(self, endpoint: Endpoint) -> None:
        """Record that an endpoint has announced that it leaves; ignore one that was never present."""
        with self._lock:
            if endpoint not in self._known:
                return
            self._left.add(endpoint)
            if endpoint not in self._arrivals:
                self._unreachable.setdefault(endpoint, time.monotonic())

    def found(self, peer: Peer) -> Endpoint:
        """Record a present peer whose join may not have been reported yet."""
        endpoint = Endpoint(peer.name, peer.incarnation)
        with self._lock:
            self._known.setdefault(endpoint, peer)
        return endpoint

    def _forget(self) -> None:
        """Drop the state of endpoints that are long gone."""
        old = time.monotonic() - _FORGET_S
        gone = [
            endpoint for endpoint, since in list(self._unreachable.items()) if since < old and self.is_gone(endpoint)
        ]
        with self._lock:
            for endpoint in gone:
                if endpoint not in self._arrivals:
                    self._known.pop(endpoint, None)
                    self._unreachable.pop(endpoint, None)
                    self._left.discard(endpoint)

    # --- queries ----------------------------------------------------------------------------------------------

    def arrival(self, endpoint: Endpoint) -> int | None:
        """Return the number of an endpoint's join; None while it is unreachable."""
        return self._arrivals.get(endpoint)

    def reachable(self) -> list[Endpoint]:
        """Return all reachable endpoints."""
        return list(self._arrivals)

    def is_present(self, endpoint: Endpoint) -> bool:
        """Return True if the node sees the endpoint, even if its join was not reported yet."""
        return any(peer.incarnation == endpoint.incarnation for peer in self._node.incarnations(endpoint.name))

    def is_gone(self, endpoint: Endpoint) -> bool:
        """Return True if an endpoint is known to be dead or to have left for good."""
        if endpoint in self._arrivals or self.is_present(endpoint):
            return False
        if self._node.closed or not self._node.connected:
            return False
        if endpoint in self._left:
            return True
        peer = self._known.get(endpoint)
        state = _state_of(peer.pid) if peer is not None and peer.host == self._host else ""
        if state in ("stopped", "dead"):
            return state == "dead"
        with self._lock:
            return time.monotonic() > self._unreachable.setdefault(endpoint, time.monotonic()) + _RETURN_S

    def may_return(self, name: str | None, role: str) -> Endpoint | None:
        """Return an unreachable endpoint of a name (None: any) and a role that is not gone; None if there is none."""
        with self._lock:
            known = list(self._known.items())
        for endpoint, peer in reversed(known):
            if (name is None or peer.name == name) and peer.has_role(role):
                return None if self.is_gone(endpoint) else endpoint  # the latest incarnation only
        return None


def _state_of(pid: int) -> str:
    """Return the state of a process on this machine: "dead", "stopped" or "" (neither, or unknown)."""
    watch = ProcessWatch({0: ProcessIdentity(pid, 0)})
    try:
        if watch.ended():  # a zombie counts as well
            return "dead"
    finally:
        watch.close()
    try:
        return "stopped" if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt" else ""
    except (OSError, IndexError):
        return ""


class ZenohLink:
    """A link of a node of a mesh. `rank` is -1 in an open world."""

    largest = LARGEST_MESSAGE - _ENVELOPE
    has_reply_channels = True
    quick_s = 5e-4  # a call with a megabyte takes 0.3 ms: waking another thread for each costs more than it gains

    def __init__(self, name: str, mesh: str, topology: Topology | None, rank: int = -1) -> None:
        import zenoh

        roles = (_ROLE,) if rank < 0 else (_ROLE, _rank_role(rank))
        self._node = Node(name, role=_ROLE, mesh=mesh, topology=topology, roles=roles, announce=False)
        self.me = Endpoint(self._node.name, self._node.incarnation)
        self._rank = rank
        self._thread_local = threading.local()
        self._tracker = PeerTracker(self._node)
        self._publishers = Publishers(self._declare_publisher)
        self._shared = SharedArrays(self.largest)
        self._found: dict[int | str, Endpoint] = {}  # reachable ones
        self._senders: dict[str, bytes] = {}  # by key
        self._declaring = threading.Lock()
        self._declared_keys: dict[str, dict[str, Any]] = {}  # declarations to Zenoh, by sender and key
        self._refusals = Refusals(_log, f"calls to {self._node.name!r}")
        self._reply_channels = ReplyChannels(self._node.session, self._own_key, self._node.name, self._message)
        self._node.on_join(self._on_join)
        self._node.on_leave(self._on_leave)
        # A FIFO applies backpressure: when it is full, the session and thereby the senders block, and nothing is lost.
        fifo: Any = zenoh.handlers.FifoChannel(_INBOX_MESSAGES)
        self._inbox = self._node.session.declare_subscriber(self._own_key(INBOX), fifo)
        self._receive = self._inbox.handler.recv

    def open(self) -> None:
        self._node.announce()

    # --- membership -------------------------------------------------------------------------------------------

    def find(self, dst: int | str) -> Endpoint:
        found = self._found.get(dst)
        return found if found is not None else self._find(dst)

    def _find(self, dst: int | str) -> Endpoint:
        if dst == self.me.name or (dst == self._rank and self._rank >= 0):
            return self.me
        peer = self._look_up(dst)
        if peer is None:
            name, role = (dst, _ROLE) if isinstance(dst, str) else (None, _rank_role(dst))
            missing = self._tracker.may_return(name, role)
            if missing is not None:
                return missing
        if peer is None or not peer.has_role(_ROLE):
            who = f"rank {dst}" if isinstance(dst, int) else f"{dst!r}"
            if peer is None and (trouble := self.trouble()):
                raise CalleeGone(f"{who} cannot be called: {trouble}", str(dst))
            why = "there is no such node" if peer is None else "that node does not serve calls"
            where = f"on the mesh {self._node.mesh!r} (present are {', '.join(self.names())})"
            raise CalleeGone(f"{who} cannot be called: {why} {where}", str(dst))
        endpoint = self._tracker.found(peer)
        if self._tracker.arrival(endpoint) is not None:
            self._found[dst] = endpoint
            if self._tracker.arrival(endpoint) is None:  # it left in between
                self._found.pop(dst, None)
        return endpoint

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

    def _on_join(self, peer: Peer) -> None:
        self._tracker.joined(peer)
        self._found.clear()
        self._senders.clear()  # it may have called before its join was reported

    def _on_leave(self, peer: Peer) -> None:
        endpoint = self._tracker.lost(peer)
        self._found.clear()
        self._publishers.drop(endpoint)
        self._shared.drop(endpoint)
        self._undeclare_keys(endpoint.name)

    def trouble(self) -> str:
        try:
            self._node.check_connected()
        except RouterLost as error:
            return str(error)
        return ""

    def is_gone(self, endpoint: Endpoint) -> bool:
        return endpoint != self.me and self._tracker.is_gone(endpoint)

    def peer_left(self, endpoint: Endpoint) -> None:
        self._tracker.announced_leave(endpoint)

    def epoch(self, to: Endpoint) -> int:
        """Return the number of its join; 0 if it is unreachable, so that nothing sent now arrives."""
        arrival = self._tracker.arrival(to)
        return arrival if arrival is not None else -1 if self._tracker.is_present(to) else 0

    def must_resend(self, to: Endpoint, epoch: int) -> bool:
        arrival = self._tracker.arrival(to)
        if arrival is not None:
            return arrival != epoch
        if (self._tracker.is_gone(to) or self._node.incarnations(to.name)) and not self._tracker.is_present(to):
            if epoch == 0:
                raise CalleeGone(f"{to.name!r} cannot be called: it was unreachable, and is gone", to.name)
            raise CalleeDied(
                f"{to.name!r} died, left or was cut off during the call: it may or may not have run", to.name
            )
        return False

    # --- messages ---------------------------------------------------------------------------------------------

    def detach(self, to: Endpoint, frame: Frame) -> None:
        self._shared.detach(to, frame)

    def send(self, to: Endpoint, channel: int, frame: Frame, timeout: float) -> None:
        try:
            attachment = self._shared.share(to, frame)
            if self._publishers.must_not_wait(to, channel, frame.size, timeout):
                self._publishers.put_within(timeout, to, channel, frame.joined(), attachment)
            else:
                self._publishers.put(to, channel, self._payload(frame) if frame.pieces else frame.start, attachment)
        except NeuraxisError:
            raise
        except Exception as error:
            if self._node.closed:
                raise CallCancelled("this context was closed during the call", to.name) from None
            raise CalleeDied(f"{to.name!r} cannot be reached: {error}", to.name) from error

    def _payload(self, frame: Frame) -> bytes | bytearray:
        """Return a message with arrays as one buffer, which Zenoh copies.

        A thread that sends a request often sends one of the same size next, so its buffer is reused: faulting in new
        pages takes longer than filling them. A reply needs a buffer of its own, because it may be resent after the
        function has changed its array.
        """
        if frame.start[0] == Kind.REPLY:
            return frame.joined()
        memory: bytearray | None = getattr(self._thread_local, "memory", None)
        if memory is None or len(memory) != len(frame):
            memory = self._thread_local.memory = bytearray(len(frame))
        frame.copy_to(memory)
        return memory

    def _declare_publisher(self, to: Endpoint, channel: int) -> Any:
        import zenoh

        return self._node.session.declare_publisher(
            call_key(self._node.mesh, to.name, channel, self.me.name),
            congestion_control=zenoh.CongestionControl.BLOCK,
            reliability=zenoh.Reliability.RELIABLE,
            express=True,
        )

    def receive(self) -> Any:
        while True:
            try:
                sample = self._receive()
            except MemoryError as error:
                self._refusals.add("a frame that could not be received", repr(error))
                continue
            except Exception:  # undeclared, or the session is closed
                return None
            message = self._message(sample)
            if message is not None:
                return message

    def _message(self, sample: Any) -> Any:
        """Return the content of a sample; None, and count it, if it is refused. Never raises."""
        try:
            return self._checked(sample)
        except Exception as error:
            self._refusals.add("a frame that could not be received", repr(error))
            return None

    def _checked(self, sample: Any) -> Any:
        key = str(sample.key_expr)
        nbytes = len(sample.payload)
        if nbytes > self.largest:  # before it is copied
            self._refusals.add("a frame that is too large", f"{nbytes:,} bytes on {key}; {self.largest:,} are accepted")
            return None
        sender = self._senders.get(key) or self._sender(key)
        content = sample.payload.to_bytes()
        if not sender or not claims_sender(content, sender):
            self._refusals.add("a frame whose content and key name different senders", f"on {key}")
            return None
        attachment = sample.attachment
        return content if attachment is None else self._shared.received(content, attachment.to_bytes())

    def _sender(self, key: str) -> bytes:
        """Return the sender that a key names, and cache it."""
        name = sender_of_key(key)
        if len(self._senders) >= _MAX_KEYS:
            self._senders.clear()
        if name:
            self._senders[key] = name.encode()
            self._declare_key(key, name)
        return name.encode()

    def _declare_key(self, key: str, name: str) -> None:
        """Declare a present sender's key to Zenoh, which then matches its messages by a number.

        Otherwise Zenoh compares the text of the key with every subscription, which takes 5 to 10 microseconds.
        """
        if self._node.peer(name) is None:
            return
        with self._declaring:
            keys = self._declared_keys.setdefault(name, {})
            if key in keys or sum(map(len, self._declared_keys.values())) >= _MAX_DECLARED:
                return
            try:
                keys[key] = self._node.session.declare_keyexpr(key)
            except Exception:  # the session is closed, or there are too many: without it is only slower
                keys[key] = None

    def _undeclare_keys(self, name: str) -> None:
        with self._declaring:
            keys = self._declared_keys.pop(name, {})
        for key, declared in keys.items():
            self._senders.pop(key, None)
            try:
                if declared is not None:
                    self._node.session.undeclare(declared)
            except Exception:  # the session is closed
                return

    def open_reply_channel(self) -> ReplyChannel:
        return self._reply_channels.open()

    def _own_key(self, channel: int, sender: str = "**") -> str:
        return call_key(self._node.mesh, self.me.name, channel, sender)

    def stop(self) -> None:
        bye = pack_head(Kind.BYE, INBOX, 0, 0, 0, self.me)
        for endpoint in self._tracker.reachable():
            try:
                key = call_key(self._node.mesh, endpoint.name, INBOX, self.me.name)
                self._node.session.put(key, bye, express=True)
            except Exception:  # the session may be closed already
                break
        self._reply_channels.stop()
        try:
            self._inbox.undeclare()
        except Exception:  # the session may be closed already
            pass

    def close(self) -> None:
        with ExitStack() as last_first:
            last_first.callback(self._node.close)
            last_first.callback(self._drain)
            last_first.callback(self._reply_channels.close)
            last_first.callback(self._shared.close)
            last_first.callback(self._publishers.close)

    def _drain(self) -> None:
        """Empty the inbox, since a full one would block the session."""
        try:
            while self._inbox.handler.try_recv() is not None:
                pass
        except Exception:  # it is undeclared and empty
            pass


def _rank_role(rank: int) -> str:
    return f"rpc-rank-{rank}"
