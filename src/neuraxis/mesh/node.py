"""A node: one Zenoh session, and everything that was declared on it.

with Node("vision", role="camera") as node:
    node.subscribe("pfc/control", lambda message: print(message.value))
    node.serve("look", lambda message: find(message.value))
    node.publish("objects", {"cup": 0.9})
    answer = node.request("lang", "parse", "take the cup", timeout=1.0)
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from neuraxis.errors import InvalidArgument, MeshClosed, NameTaken
from neuraxis.mesh.codecs import encode
from neuraxis.mesh.counts import Counts, Ledger
from neuraxis.mesh.envelope import NO_STEP, seal_envelope
from neuraxis.mesh.keys import (
    ROOT,
    check_expression,
    check_mesh,
    check_name,
    message_key,
    presence_key,
    serve_key,
    status_key,
)
from neuraxis.mesh.kinds import check_kind, declare_publisher, declare_subscriber
from neuraxis.mesh.messages import Message, Opener
from neuraxis.mesh.peers import Peer, Presence, token_key
from neuraxis.mesh.questions import Questions
from neuraxis.mesh.services import MOST_WAITING, Service, check_threads
from neuraxis.mesh.sessions import Owned
from neuraxis.mesh.subscription import Polled, Subscription
from neuraxis.mesh.topology import LARGEST_MESSAGE, Topology, open_session, others_here, seed_port, wait_for_links

__all__ = ["Node"]

_Heard = TypeVar("_Heard", Subscription, Polled)

_log = logging.getLogger("neuraxis.mesh")

_OPEN: set[Node] = set()
_END_S = 2.0  # handlers that are at work when a node closes are waited for so long, all together
_TAKEN_WAIT_S = 2.5  # a node that died a moment ago may still be seen
_LINK_WAIT_S = 2.0


class _Publisher:
    """A topic that this node publishes, and how many messages it has sent there."""

    def __init__(self, declared: Any, kind: str) -> None:
        self.declared = declared
        self.put = declared.put
        self.kind = kind
        self.sent = 0
        self.lock = threading.Lock()


class Node:
    """A node on a mesh.

    Args:
        name: its name, which no other node of the mesh has; several parts are joined by "/" ("sensor/thermal").
        role: what it is for ("camera"); `roles`: what else it can stand in for.
        mesh: nodes of one mesh see each other.
        topology: how to reach the others; by default peers on this machine.
        visible: whether others see it. One that only looks need not be seen, and needs no name of its own.
        announce: whether it is seen at once; else when `announce` is called, with all that it serves in place.
    """

    def __init__(
        self,
        name: str,
        role: str = "",
        mesh: str = "default",
        *,
        topology: Topology | None = None,
        roles: Sequence[str] = (),
        visible: bool = True,
        announce: bool = True,
    ) -> None:
        self.name = check_name(name, "name")
        self.role = check_name(role, "role") if role else ""
        self.mesh = check_mesh(mesh)
        self.topology = topology or Topology.local()
        self.step: int | None = None  # the last step that is told to who asks
        self.incarnation = time.time_ns()
        self._pid = os.getpid()
        self._name_bytes = self.name.encode()
        self._prefix = f"{ROOT}/{mesh}/"
        self._lock = threading.RLock()
        self._publishers: dict[str, _Publisher] = {}
        self._subscriptions: list[Subscription | Polled] = []
        self._services: list[Service] = []
        self._past = Ledger("closed subscriptions")
        self._ended = threading.Event()
        self._status: Service | None = None
        self._token: Any = None
        self.me = me = Peer(self.name, self.role, socket.gethostname(), self._pid, self.incarnation, tuple(roles))
        others = others_here(self.topology, mesh)
        self._session = open_session(self.topology, mesh)
        self._owned = Owned(self._session, self.name)
        _OPEN.add(self)
        try:
            if others and not wait_for_links(self._session, _LINK_WAIT_S):
                _log.warning(
                    "node %r: what has the mesh's port, %d, does not answer as a node: others may not be found",
                    self.name, self.topology.seed_port or seed_port(mesh),
                )  # fmt: skip
            self._presence = Presence(self._session, mesh, me if visible else None)
            self._questions = Questions(self._owned, self._presence, mesh, me)
            if visible:
                self._status = Service(
                    self._queryable(status_key(mesh, self.name)), "@status", self._prefix, self._say_status,
                    type=None, threads=1, for_many=True,
                )  # fmt: skip
                self._refuse_second(me)
                if announce:
                    self.announce()
        except BaseException:
            self.close()
            raise

    def announce(self) -> None:
        """Let the others see this node."""
        self._owned.check()
        with self._lock:
            if self._token is None:
                with self._owned:
                    self._token = self._session.liveliness().declare_token(token_key(self.mesh, self.me))

    # --- to say -----------------------------------------------------------------------------------------------

    def publish(
        self, topic: str, value: Any, kind: str | None = None, *, step: int = NO_STEP, codec: str | None = None
    ) -> None:
        """Send a value to whoever has subscribed to `<name>/<topic>`.

        `kind` ("stream", "state", "bulk"; see `neuraxis.mesh.kinds`) is said the first time, and "stream" if not.
        """
        publisher = self._publishers.get(topic)
        if publisher is None or (kind is not None and kind != publisher.kind):
            publisher = self._publisher(topic, kind)
        payload, encoding = encode(value, codec)
        if len(payload) > LARGEST_MESSAGE:
            raise InvalidArgument(f"{topic}: {len(payload):,} bytes; a message has {LARGEST_MESSAGE:,} at most")
        self._owned.check()
        with publisher.lock:  # numbers go out in their order
            try:
                attachment = seal_envelope(self._name_bytes, self.incarnation, publisher.sent, step)
            except struct.error:
                raise InvalidArgument(f"step={step!r}: a number of steps is expected") from None
            publisher.sent += 1
            try:
                publisher.put(payload, encoding=encoding, attachment=attachment)
            except Exception as error:
                self._owned.raise_ours(error)
                raise

    def wait_for_subscribers(self, topic: str, timeout: float, kind: str | None = None) -> bool:
        """Wait until somebody has subscribed to a topic of this node: what is published earlier, nobody hears."""
        publisher = self._publisher(topic, kind)
        if publisher.kind == "state":
            return True  # who comes later gets the last one
        deadline = time.monotonic() + timeout
        while not publisher.declared.matching_status.matching:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.002)
            self._owned.check()
        return True

    # --- to hear ----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        key_expression: str,
        handler: Callable[[Message], Any] | None = None,
        *,
        type: Any = None,
        capacity: int = 1000,
        history: int = 1,
        recover: bool = True,
        allow_pickle: bool = False,
    ) -> Subscription:
        """Hear what is published on keys such as "vision/objects", "vision/*" or "sensor/**".

        Args:
            handler: called with each `Message`, in a thread of the subscription; without one, use it as a channel.
            type: a msgspec.Struct (or Protobuf message) that values must be; others are counted and dropped.
            capacity: how many messages may wait; the oldest make room, and are counted as lost.
            history: how many of a "state" topic's last messages are heard that were sent before, 1 or more. From a node
                that is reached only later, all are heard that it has kept.
            recover: whether missed messages of "state" topics are asked for again.
            allow_pickle: whether pickled messages on these keys are opened: then who can send can run code here.
        """
        if handler is not None and not callable(handler):
            raise InvalidArgument(f"handler={handler!r}: a function of a message is expected")
        declared, opener = self._hear(key_expression, type, capacity, history, recover, allow_pickle)
        return self._own(Subscription(key_expression, declared, opener, handler, capacity))

    def poll(
        self, key_expression: str, *, type: Any = None, capacity: int = 1000, allow_pickle: bool = False
    ) -> Polled:
        """Hear what is published on keys, by `take()`, which never waits: for loops that look at it often.

        No thread reads it, so nothing wakes up for a message; where more than `capacity` wait, the oldest make room,
        and are counted as lost.
        """
        return self._own(Polled(key_expression, *self._hear(key_expression, type, capacity, 1, False, allow_pickle)))

    def _hear(
        self, key_expression: str, type: Any, capacity: int, history: int, recover: bool, allow_pickle: bool
    ) -> tuple[Any, Opener]:
        self._owned.check()
        check_expression(key_expression)
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise InvalidArgument(f"capacity={capacity!r}: a number of messages, 1 or more, is expected")
        if isinstance(history, bool) or not isinstance(history, int) or history < 1:
            raise InvalidArgument(
                f"history={history!r}: a number of messages, 1 or more, is expected; for none at all, say recover=False"
            )
        own = (self.name, self.incarnation)
        opener = Opener(key_expression, self._prefix, type=type, allow_pickle=allow_pickle, own=own)
        with self._owned as session:
            declared = declare_subscriber(session, self._prefix + key_expression, capacity, history, recover)
        return declared, opener

    def _own(self, made: _Heard) -> _Heard:
        """Keep a subscription, to end it with the node."""
        with self._lock:
            for one in [one for one in self._subscriptions if one.closed]:
                self._subscriptions.remove(one)
                self._past.add(one.counts_by_key())
            if not self._owned.closed:
                self._subscriptions.append(made)
                return made
        made.close()
        raise MeshClosed(f"node {self.name!r} has been closed")

    # --- to ask and to answer -----------------------------------------------------------------------------------

    def serve(self, topic: str, handler: Callable[[Message], Any], *, type: Any = None, threads: int = 4) -> Service:
        """Answer questions: `handler(message)` returns the answer. `threads` of them are answered at the same time."""
        self._owned.check()
        check_threads(threads)
        if not callable(handler):
            raise InvalidArgument(f"handler={handler!r}: a function of a message is expected")
        key = serve_key(self.mesh, self.name, check_name(topic, "topic"))
        made = Service(self._queryable(key), topic, self._prefix, handler, type=type, threads=threads)
        with self._lock:
            self._services = [one for one in self._services if not one.closed]
            if not self._owned.closed:
                self._services.append(made)
                return made
        made.close()
        raise MeshClosed(f"node {self.name!r} has been closed")

    def request(
        self,
        node: str,
        topic: str,
        value: Any = None,
        timeout: float = 2.0,
        *,
        type: Any = None,
        again: int | None = None,
    ) -> Any:
        """Ask a node, and return its answer.

        Raises NodeGone if it is not there or leaves meanwhile, NobodyServes if it does not serve the topic,
        RequestTimeout if it takes too long, RequestFailed if its handler raised. `again` is the number of a question
        (`next_question`) that may have been asked before: it is not carried out twice by the same service.
        """
        return self._questions.ask(node, topic, value, timeout, type, again)

    def next_question(self) -> int:
        """A number for a question that may have to be asked again."""
        return self._questions.next_number()

    # --- who is here --------------------------------------------------------------------------------------------

    def peers(self, timeout: float = 0.5, *, ask: bool = True) -> list[Peer]:
        """The other nodes, by name, with the last step each has reached.

        `ask` them for that (and for what they publish); one that does not answer in time has None.
        """
        self._owned.check()
        here = self._presence.peers()
        if not ask or not here:
            return here
        said = self._questions.ask_status({peer.name for peer in here}, timeout)
        return [_with_status(peer, said.get((peer.name, peer.incarnation))) for peer in here]

    def peer(self, name: str) -> Peer | None:
        """The node of a name if it is here, without asking it."""
        self._owned.check()
        return self._presence.get(name)

    def lives(self, name: str) -> list[Peer]:
        """All nodes of a name that are here: more than one only while one takes another's place."""
        return [peer for peer in self._presence.peers() if peer.name == name]

    def with_role(self, role: str) -> list[Peer]:
        """The nodes that declare a role, in the order in which they came."""
        self._owned.check()
        return self._presence.with_role(role)

    def on_join(self, handler: Callable[[Peer], Any]) -> None:
        """Call `handler(peer)` for every other node that is here or comes.

        A thread of the node calls all handlers of joins and leaves, one after the other, in the order of events.
        """
        self._owned.check()
        self._presence.on_join(handler)

    def on_leave(self, handler: Callable[[Peer], Any]) -> None:
        """Call `handler(peer)` for every node that closes, dies, is stopped or cut off."""
        self._owned.check()
        self._presence.on_leave(handler)

    def wait_for(self, names: Iterable[str], timeout: float) -> list[str]:
        """Wait until nodes are here; the names of those that have not come in time."""
        self._owned.check()
        return self._presence.wait_for(names, timeout)

    @property
    def session(self) -> Any:
        """The Zenoh session, for what a node does not offer. It is closed with the node."""
        self._owned.check()
        return self._session

    @property
    def connected(self) -> bool:
        """Whether this node reaches anybody: a client its router; peers always do, in principle."""
        if self.topology.mode_in_use != "client":
            return True
        return len(list(self._session.info.routers_zid())) > 0

    def counts(self) -> dict[str, Counts]:
        """What came and what did not, by key, over all subscriptions of this node."""
        together = Ledger(self.name)
        with self._lock:
            for one in (self._past, *(one._ledger for one in self._subscriptions)):
                together.add(one.copy())
        return together.by_key

    def sent(self) -> dict[str, int]:
        """How many messages this node has published, by topic."""
        return {topic: one.sent for topic, one in list(self._publishers.items())}

    # --- to end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the mesh. A second call does nothing.

        Handlers that are at work are waited for, a few seconds at most; one that closes its own node is not.
        """
        if os.getpid() != self._pid:
            return  # the session is that of the process we were forked from
        with self._lock:
            first = not self._owned.closed
            self._owned.closed = True
        running = [self._status, getattr(self, "_presence", None), *self._subscriptions, *self._services]
        parts = [one for one in running if one is not None]
        if not first:
            if not any(one.runs_here() for one in parts):
                self._ended.wait(2 * _END_S)
            return
        try:
            # Its presence goes first: whoever sees that knows that nothing follows.
            if self._token is not None:
                self._token.undeclare()
            for one in parts:
                one.stop()
            deadline = time.monotonic() + _END_S
            for one in parts:
                one.wait_for_end(deadline)
        finally:
            self._session.close()
            _OPEN.discard(self)
            self._ended.set()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._owned.closed

    def __repr__(self) -> str:
        return f"<Node {self.name!r} on mesh {self.mesh!r}{', closed' * self._owned.closed}>"

    # --- helpers ------------------------------------------------------------------------------------------------

    def _publisher(self, topic: str, kind: str | None) -> _Publisher:
        self._owned.check()
        with self._lock:
            known = self._publishers.get(topic)
            if known is None:
                check_name(topic, "topic")
                kind = check_kind(kind or "stream")
                with self._owned:
                    declared = declare_publisher(self._session, message_key(self.mesh, self.name, topic), kind)
                known = self._publishers[topic] = _Publisher(declared, kind)
            elif kind is not None and kind != known.kind:
                raise InvalidArgument(f"kind={kind!r}: the topic {topic!r} of this node is of kind {known.kind!r}")
            return known

    def _queryable(self, key: str) -> Any:
        import zenoh

        # A ring: where too many questions wait, the oldest ends without an answer, and the session is not held up.
        with self._owned:
            return self._session.declare_queryable(key, zenoh.handlers.RingChannel(MOST_WAITING), complete=True)

    def _say_status(self, message: Message) -> dict[str, Any]:
        topics = {topic: one.kind for topic, one in list(self._publishers.items())}
        return {"incarnation": self.incarnation, "step": self.step, "topics": topics}

    def _refuse_second(self, me: Peer) -> None:
        """Two nodes of one name would speak on the same keys; one that has just died is waited for."""
        deadline = time.monotonic() + _TAKEN_WAIT_S
        while True:
            replies = self._session.liveliness().get(presence_key(self.mesh, f"{self.name}/*"), timeout=1.0)
            taken = any(reply.ok is not None for reply in replies)
            if not taken:
                return
            if time.monotonic() > deadline:
                other = self._presence.get(self.name)
                who = "" if other is None else f" (process {other.pid} on {other.host})"
                raise NameTaken(f"a node called {self.name!r} is on the mesh {self.mesh!r} already{who}")
            time.sleep(0.1)


def _with_status(peer: Peer, said: dict[str, Any] | None) -> Peer:
    if said is None:
        return peer
    step, topics = said.get("step"), said.get("topics")
    return replace(
        peer,
        step=step if isinstance(step, int) else None,
        topics={str(topic): str(kind) for topic, kind in topics.items()} if isinstance(topics, dict) else None,
    )


@atexit.register
def _close_all() -> None:
    """A session that is left open would keep threads in a process that is about to end."""
    for node in list(_OPEN):
        node.close()
