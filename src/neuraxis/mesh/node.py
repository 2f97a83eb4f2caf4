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
from typing import Any

from neuraxis.errors import (
    ForkedProcess,
    InvalidArgument,
    MeshClosed,
    MeshError,
    NameTaken,
    NobodyServes,
    NodeGone,
    RequestTimeout,
)
from neuraxis.mesh.codecs import Undecodable, decode, encode
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
from neuraxis.mesh.peers import Peer, Presence, token_key
from neuraxis.mesh.services import UNNUMBERED, Service, check_threads, raise_failure
from neuraxis.mesh.subscription import Message, Subscription
from neuraxis.mesh.topology import LARGEST_MESSAGE, Topology, open_session, others_here, seed_port, wait_for_links

__all__ = ["Node"]

_log = logging.getLogger("neuraxis.mesh")

_OPEN: set[Node] = set()
_END_S = 2.0  # handlers that are at work when a node closes are waited for so long, all together
_TAKEN_WAIT_S = 2.5  # a node that died a moment ago may still be seen
_GONE_WAIT_S = 0.3  # the end of a question and the end of a presence come by two ways
_MOST_WAITING = 1000
_LINK_WAIT_S = 2.0


class _Publisher:
    """A topic that this node publishes, and how many messages it has sent there."""

    def __init__(self, declared: Any, kind: str) -> None:
        self.declared = declared
        self.kind = kind
        self.sent = 0
        self.lock = threading.Lock()


class _InSession:
    """Zenoh's errors in here are MeshClosed where the node has been closed meanwhile, and MeshError else."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import zenoh

        if isinstance(error, zenoh.ZError):
            self._node._check()
            raise MeshError(f"node {self._node.name!r}: {error}") from None


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
        self._subscriptions: list[Subscription] = []
        self._services: list[Service] = []
        self._past = Ledger("closed subscriptions")
        self._questions = 0
        self._closed = False
        self._ended = threading.Event()
        self._status: Service | None = None
        self._token: Any = None
        self.me = me = Peer(self.name, self.role, socket.gethostname(), self._pid, self.incarnation, tuple(roles))
        others = others_here(self.topology, mesh)
        self._session = open_session(self.topology, mesh)
        _OPEN.add(self)
        try:
            if others and not wait_for_links(self._session, _LINK_WAIT_S):
                _log.warning(
                    "node %r: what has the mesh's port, %d, does not answer as a node: others may not be found",
                    self.name, self.topology.seed_port or seed_port(mesh),
                )  # fmt: skip
            self._presence = Presence(self._session, mesh, me if visible else None)
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
        self._check()
        with self._lock:
            if self._token is None:
                with self._in_session():
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
        self._check()
        with publisher.lock:  # numbers go out in their order
            try:
                attachment = seal_envelope(self._name_bytes, self.incarnation, publisher.sent, step)
            except struct.error:
                raise InvalidArgument(f"step={step!r}: a number of steps is expected") from None
            publisher.sent += 1
            with self._in_session():
                publisher.declared.put(payload, encoding=encoding, attachment=attachment)

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
            self._check()
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
        self._check()
        check_expression(key_expression)
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise InvalidArgument(f"capacity={capacity!r}: a number of messages, 1 or more, is expected")
        if isinstance(history, bool) or not isinstance(history, int) or history < 1:
            raise InvalidArgument(
                f"history={history!r}: a number of messages, 1 or more, is expected; for none at all, say recover=False"
            )
        if handler is not None and not callable(handler):
            raise InvalidArgument(f"handler={handler!r}: a function of a message is expected")
        with self._in_session():
            declared = declare_subscriber(self._session, self._prefix + key_expression, capacity, history, recover)
        made = Subscription(
            declared, key_expression, self._prefix, handler, type=type, capacity=capacity, allow_pickle=allow_pickle,
            own=(self.name, self.incarnation),
        )  # fmt: skip
        with self._lock:
            for one in [one for one in self._subscriptions if one._closed]:
                self._subscriptions.remove(one)
                self._past.add(one.counts_by_key())
            if not self._closed:
                self._subscriptions.append(made)
                return made
        made.close()
        raise MeshClosed(f"node {self.name!r} has been closed")

    # --- to ask and to answer -----------------------------------------------------------------------------------

    def serve(self, topic: str, handler: Callable[[Message], Any], *, type: Any = None, threads: int = 4) -> Service:
        """Answer questions: `handler(message)` returns the answer. `threads` of them are answered at the same time."""
        self._check()
        check_threads(threads)
        if not callable(handler):
            raise InvalidArgument(f"handler={handler!r}: a function of a message is expected")
        key = serve_key(self.mesh, self.name, check_name(topic, "topic"))
        made = Service(self._queryable(key), topic, self._prefix, handler, type=type, threads=threads)
        with self._lock:
            self._services = [one for one in self._services if not one._closed]
            if not self._closed:
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
        check_name(node, "node")
        check_name(topic, "topic")
        if not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
            raise InvalidArgument(f"timeout={timeout!r}: a number of seconds is expected")
        if again is not None and (isinstance(again, bool) or not isinstance(again, int) or not 0 < again < 2**63):
            raise InvalidArgument(f"again={again!r}: a number that `next_question` gave is expected")
        self._check()
        where = f"{topic!r} of node {node!r}"
        asked_before = False
        deadline = time.monotonic() + timeout
        while True:
            begun, before = time.monotonic(), self._presence.stay(node)
            reply = self._ask(serve_key(self.mesh, node, topic), value, deadline - begun, again or UNNUMBERED)
            late = reply is not None and _is_timeout(reply)
            if reply is not None and not late:
                if reply.ok is None:
                    raise_failure(bytes(reply.err.payload), where)
                try:
                    return decode(bytes(reply.ok.payload), str(reply.ok.encoding), type=type)
                except Undecodable as error:
                    raise MeshError(f"the answer of {where} cannot be read: {error}") from None
            self._check()
            late = late or time.monotonic() > deadline - 0.1 * timeout
            if not self._stays(node, before, 0.0 if late else _GONE_WAIT_S / 3 if asked_before else _GONE_WAIT_S):
                raise NodeGone(f"{where} was asked, and no such node is on the mesh {self.mesh!r} (any more)", node)
            if late:
                raise RequestTimeout(f"{where} was asked, and did not answer within {timeout:g} s")
            if asked_before or time.monotonic() > deadline - 0.1 * timeout:
                raise NobodyServes(
                    f"node {node!r} is there, but does not serve {topic!r} (or has {_MOST_WAITING:,} others to answer)"
                )
            # What a service is asked, it answers. So nobody was asked: perhaps what it serves was not yet known here.
            asked_before = True

    def next_question(self) -> int:
        """A number for a question that may have to be asked again."""
        with self._lock:
            self._questions += 1
            return self._questions

    # --- who is here --------------------------------------------------------------------------------------------

    def peers(self, timeout: float = 0.5, *, ask: bool = True) -> list[Peer]:
        """The other nodes, by name, with the last step each has reached.

        `ask` them for that (and for what they publish); one that does not answer in time has None.
        """
        self._check()
        here = self._presence.peers()
        if not ask or not here:
            return here
        names = {peer.name for peer in here}
        begun = time.monotonic()
        said = self._ask_all_status(timeout, names)
        # Those that came this moment may be known before their answers can be asked for.
        while names - {name for name, _ in said} and time.monotonic() < begun + min(timeout, _GONE_WAIT_S):
            time.sleep(0.01)
            said |= self._ask_all_status(max(0.01, begun + timeout - time.monotonic()), names)
        return [_with_status(peer, said.get((peer.name, peer.incarnation))) for peer in here]

    def peer(self, name: str) -> Peer | None:
        """The node of a name if it is here, without asking it."""
        self._check()
        return self._presence.get(name)

    def lives(self, name: str) -> list[Peer]:
        """All nodes of a name that are here: more than one only while one takes another's place."""
        return [peer for peer in self._presence.peers() if peer.name == name]

    def with_role(self, role: str) -> list[Peer]:
        """The nodes that declare a role, in the order in which they came."""
        self._check()
        return self._presence.with_role(role)

    def on_join(self, handler: Callable[[Peer], Any]) -> None:
        """Call `handler(peer)` for every other node that is here or comes.

        A thread of the node calls all handlers of joins and leaves, one after the other, in the order of events.
        """
        self._check()
        self._presence.on_join(handler)

    def on_leave(self, handler: Callable[[Peer], Any]) -> None:
        """Call `handler(peer)` for every node that closes, dies, is stopped or cut off."""
        self._check()
        self._presence.on_leave(handler)

    def wait_for(self, names: Iterable[str], timeout: float) -> list[str]:
        """Wait until nodes are here; the names of those that have not come in time."""
        self._check()
        return self._presence.wait_for(names, timeout)

    @property
    def session(self) -> Any:
        """The Zenoh session, for what a node does not offer. It is closed with the node."""
        self._check()
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
            first = not self._closed
            self._closed = True
        running = [self._status, getattr(self, "_presence", None), *self._subscriptions, *self._services]
        parts = [one for one in running if one is not None]
        if not first:
            if not any(one._runs_here() for one in parts):
                self._ended.wait(2 * _END_S)
            return
        try:
            # Its presence goes first: whoever sees that knows that nothing follows.
            if self._token is not None:
                self._token.undeclare()
            for one in parts:
                one._stop()
            deadline = time.monotonic() + _END_S
            for one in parts:
                one._wait_for_end(deadline)
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

    def __repr__(self) -> str:
        return f"<Node {self.name!r} on mesh {self.mesh!r}{', closed' * self._closed}>"

    # --- helpers ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcess(f"node {self.name!r} belongs to the process that made it; make one in this process")
        if self._closed:
            raise MeshClosed(f"node {self.name!r} has been closed")

    def _in_session(self) -> _InSession:
        return _InSession(self)

    def _publisher(self, topic: str, kind: str | None) -> _Publisher:
        self._check()
        with self._lock:
            known = self._publishers.get(topic)
            if known is None:
                check_name(topic, "topic")
                kind = check_kind(kind or "stream")
                with self._in_session():
                    declared = declare_publisher(self._session, message_key(self.mesh, self.name, topic), kind)
                known = self._publishers[topic] = _Publisher(declared, kind)
            elif kind is not None and kind != known.kind:
                raise InvalidArgument(f"kind={kind!r}: the topic {topic!r} of this node is of kind {known.kind!r}")
            return known

    def _queryable(self, key: str) -> Any:
        import zenoh

        # A ring: where too many questions wait, the oldest ends without an answer, and the session is not held up.
        with self._in_session():
            return self._session.declare_queryable(key, zenoh.handlers.RingChannel(_MOST_WAITING), complete=True)

    def _ask(self, key: str, value: Any, timeout: float, number: int) -> Any:
        """Send a question; the first reply, None where there is none."""
        import zenoh

        self._check()
        payload, encoding = encode(value)
        if len(payload) > LARGEST_MESSAGE:
            raise InvalidArgument(f"{key}: {len(payload):,} bytes; a question has {LARGEST_MESSAGE:,} at most")
        with self._in_session():
            replies = self._session.get(
                key,
                zenoh.handlers.FifoChannel(4),
                payload=payload,
                encoding=encoding,
                attachment=seal_envelope(self._name_bytes, self.incarnation, number, NO_STEP),
                timeout=timeout,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                express=True,
            )
        try:
            return replies.recv()
        except zenoh.ZError:
            return None  # the query has ended without a reply

    def _stays(self, node: str, before: Any, wait_s: float) -> bool:
        """Whether a node is here, and has been since. A presence that is being withdrawn is seen a moment later."""
        deadline = time.monotonic() + wait_s
        while True:
            now = self._presence.stay(node)
            if node != self.name and (now is None or (before is not None and now != before)):
                return False
            if time.monotonic() >= deadline:
                return True
            time.sleep(0.01)

    def _ask_all_status(self, timeout: float, names: set[str]) -> dict[tuple[str, int], dict[str, Any]]:
        import zenoh

        with self._in_session():
            replies = self._session.get(
                status_key(self.mesh),
                zenoh.handlers.FifoChannel(len(names) + 100),
                timeout=timeout,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
            )
        said: dict[tuple[str, int], dict[str, Any]] = {}
        while names - {name for name, _ in said}:
            try:
                reply = replies.recv()
            except zenoh.ZError:
                break  # all have answered, or the time is over
            try:
                # The name is that of the key, which others cannot use where access is controlled.
                name = str(reply.ok.key_expr).removeprefix(status_key(self.mesh, ""))
                status = decode(bytes(reply.ok.payload), str(reply.ok.encoding))
                said[name, int(status["incarnation"])] = status
            except (Undecodable, AttributeError, KeyError, TypeError, ValueError):
                continue
        return said

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


def _is_timeout(reply: Any) -> bool:
    """Whether a reply is Zenoh's own word for the end of a question's time."""
    return reply.ok is None and bytes(reply.err.payload) == b"Timeout"


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
