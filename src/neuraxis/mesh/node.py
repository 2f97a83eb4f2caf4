"""A node: one Zenoh session with its publishers, subscriptions, services and presence token.

Zenoh calls no Python callbacks here. Threads read from its channels instead: a slow handler then delays only its
own subscription, and a session that is left open does not keep a process from ending.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from neuraxis.arguments import flag, is_number, is_whole
from neuraxis.deprecation import renamed_arguments, renamed_members
from neuraxis.errors import InvalidArgument, InvalidType, MeshClosed, MeshError, NameTaken, RouterLost
from neuraxis.mesh.asynchronous import AsyncBridge, MessageStream, running_loop
from neuraxis.mesh.counts import Counts, Ledger
from neuraxis.mesh.declarations import GuardedSession
from neuraxis.mesh.keys import (
    ROOT,
    check_keys_of_nodes,
    check_mesh,
    check_name,
    message_key,
    presence_key,
    serve_key,
    status_key,
)
from neuraxis.mesh.links import LinkMonitor
from neuraxis.mesh.membership import LEAVING, Membership, Peer, is_token_of, token_key
from neuraxis.mesh.messages import (
    CACHED,
    DEPTHS,
    KINDS,
    Decoder,
    Message,
    check_kind,
    declare_publisher,
)
from neuraxis.mesh.recovery import subscribe
from neuraxis.mesh.services import MAX_QUEUED, Requests, Service, check_threads
from neuraxis.mesh.subscription import Drainer, Polled, Subscription, check_depth, ring_for
from neuraxis.mesh.topology import LARGEST_MESSAGE, SeedPorts, Topology, open_links, wait_for_links
from neuraxis.notebook import html_table
from neuraxis.request_reply import check_timeout
from neuraxis.wire.codecs import encode
from neuraxis.wire.envelope import NO_STEP, seal_envelope

__all__ = ["Node"]

_AnySubscription = TypeVar("_AnySubscription", Subscription, Polled)

_log = logging.getLogger("neuraxis.mesh")

_OPEN: set[Node] = set()
_END_S = 2.0  # how long `close` waits for all running handlers together
_TAKEN_WAIT_S = 2.5  # the presence token of a node that has just died may still be there
_LINK_WAIT_S = 2.0  # for the links to the nodes that answered at a seed port
_POLL_S = 0.2  # interval at which `spin` looks for signals and the end of the node


class _Publisher:
    """The Zenoh publisher of a topic, with the number of messages sent."""

    def __init__(self, publisher: Any, kind: str) -> None:
        self.publisher = publisher
        self.put = publisher.put
        self.kind = kind
        self.kind_index = KINDS.index(kind)
        self.sent = 0
        self.lock = threading.Lock()


@renamed_members(next_question="next_request_number", lives="incarnations")
class Node:
    """A node on a mesh: publishes, subscribes, serves and sends requests. A (sync and async) context manager.

    Parameters
    ----------
    name : str
        A name that is unique on the mesh; several parts are joined by "/" ("sensor/thermal").
    role : str
        The role of the node ("camera"), "" for none.
    mesh : str
        The name of the mesh. Nodes of one mesh see each other.
    topology : Topology, optional
        Connection to the other nodes; by default peers on this machine.
    roles : sequence of str
        Further roles that the node can stand in for.
    visible : bool
        If False, the node has no presence token: it observes, and its name need not be unique.
    announce : bool
        If False, the node becomes visible only when `announce` is called, after its services are set up.

    Raises
    ------
    NameTaken
        Another node of this name is on the mesh.
    MeshError
        The mesh cannot be reached.

    Examples
    --------
    Two nodes, which could run on two machines:

    >>> with Node("vision", mesh="example", role="camera") as vision, Node("motor", mesh="example") as motor:
    ...     motor.wait_for("vision", timeout=10.0)
    ...     _ = vision.serve("look", lambda message: message.value.upper())
    ...     motor.request("vision", "look", "cup", timeout=10.0)
    ...     objects = motor.subscribe("vision/objects")
    ...     vision.wait_for_subscribers("objects", timeout=10.0)
    ...     vision.publish("objects", {"cup": 0.9})
    ...     objects.get(timeout=10.0).value
    []
    'CUP'
    True
    {'cup': 0.9}
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
        self.role = check_name(role, "role") if role != "" else ""
        self.mesh = check_mesh(mesh)
        self.topology = Topology.local() if topology is None else topology
        if not isinstance(self.topology, Topology):
            raise InvalidType(f"topology={topology!r}: a Topology is expected, as Topology.local()")
        if isinstance(roles, str) or not isinstance(roles, Iterable):
            raise InvalidType(f'roles={roles!r}: a list of names is expected, as roles=["camera"]')
        flag(visible, "visible")
        flag(announce, "announce")
        self.step: int | None = None  # the last step, reported in the node's status
        self.incarnation = time.time_ns()
        self._pid = os.getpid()
        self._name_bytes = self.name.encode()
        self._prefix = f"{ROOT}/{mesh}/"
        self._lock = threading.RLock()
        self._publishers: dict[str, _Publisher] = {}
        self._subscriptions: list[Subscription | Polled] = []
        self._services: list[Service] = []
        self._serving = threading.RLock()  # one topic is declared at a time
        self._closed_counts = Ledger("closed subscriptions")
        self._drainer = Drainer(name)
        self._async = AsyncBridge(name)
        self._ended = threading.Event()
        self._status: Service | None = None
        self._token: Any = None
        self._renewed = 0  # how often the token was renewed
        self._silent_ports: tuple[int, ...] = ()
        also = tuple(check_name(one, "roles") for one in roles)
        self.me = me = Peer(self.name, self.role, socket.gethostname(), self._pid, self.incarnation, also)
        token_key(self.mesh, me, LEAVING)  # raises if it is too long, before anything is opened
        self._links: LinkMonitor | None = None
        opened = open_links(self.topology, mesh)
        self._session = opened.session
        self._guarded = GuardedSession(self._session, self.name)
        _OPEN.add(self)
        try:
            if opened.seeds is not None:
                self._wait_for_links(opened.seeds)
            self._membership = Membership(self._session, mesh, me if visible else None)
            self._links = LinkMonitor(self.name, mesh, self.topology, opened, self._membership, self._renew_token)
            self._requests = Requests(self._guarded, self._membership, mesh, me, self._check_router)
            if visible:
                self._status = Service(
                    self._queryable(status_key(mesh, self.name)), "@status", self._prefix, self._report_status,
                    type=None, threads=1, for_many=True,
                )  # fmt: skip
                self._check_name_free()
                if announce:
                    self.announce()
        except BaseException:
            self.close()
            raise

    def announce(self) -> None:
        """Declare the presence token, which makes this node visible. A second call does nothing."""
        self._guarded.check()
        with self._lock:
            if self._token is None:
                with self._guarded:
                    self._token = self._session.liveliness().declare_token(token_key(self.mesh, self.me))

    def _renew_token(self) -> None:
        """Replace the presence token by one with another key, which Zenoh sends to all nodes."""
        with self._lock:
            if self._token is None or self._guarded.closed:
                return
            old = self._token
            key = token_key(self.mesh, self.me, self._renewed + 1)
            self._token = self._session.liveliness().declare_token(key)
            self._renewed += 1
        old.undeclare()

    def _withdraw_token(self) -> None:
        """Withdraw the presence token, after one that tells the others that this node has not been cut off."""
        leaving = self._session.liveliness().declare_token(token_key(self.mesh, self.me, LEAVING))
        self._token.undeclare()
        leaving.undeclare()

    # --- publish ------------------------------------------------------------------------------------------------

    def publish(
        self, topic: str, value: Any, kind: str | None = None, *, step: int = NO_STEP, codec: str | None = None
    ) -> None:
        """Send a value to the subscribers of `<name>/<topic>`.

        Parameters
        ----------
        topic : str
            The topic, below this node's name.
        value : object
            Data, an array, a `msgspec.Struct` or a Protobuf message; see `neuraxis.wire.codecs`.
        kind : {"stream", "state", "event", "bulk"}, optional
            Transport of the topic's messages (`neuraxis.mesh.messages`), set by the first message; "stream" by default.
        step : int
            The model time that the value belongs to, in steps.
        codec : str, optional
            The encoding; by default chosen by the type of the value.

        Raises
        ------
        InvalidArgument
            The encoded value has more than 64 MiB, or the topic has another kind.
        NotSerializable
            No codec encodes the value.

        Examples
        --------
        ::

            node.publish("objects", {"cup": 0.9}, "state")
        """
        publisher = self._publishers.get(topic)
        if publisher is None or (kind is not None and kind != publisher.kind):
            publisher = self._publisher(topic, kind)
        payload, encoding = encode(value, codec)
        if len(payload) > LARGEST_MESSAGE:
            raise InvalidArgument(f"{topic}: {len(payload):,} bytes; a message has {LARGEST_MESSAGE:,} at most")
        self._guarded.check()
        with publisher.lock:  # messages are sent in the order of their numbers
            try:
                attachment = seal_envelope(
                    self._name_bytes, self.incarnation, publisher.sent, step, publisher.kind_index
                )
            except struct.error:
                raise InvalidArgument(f"step={step!r}: a number of steps is expected") from None
            publisher.sent += 1
            try:
                publisher.put(payload, encoding=encoding, attachment=attachment)
            except Exception as error:
                self._guarded.raise_mesh_error(error)
                raise

    def wait_for_subscribers(self, topic: str, timeout: float, kind: str | None = None) -> bool:
        """Wait for a subscriber of a topic.

        Messages of kind "stream" and "bulk" that are published earlier reach no subscriber, and those of kind "event"
        only as far as the subscriber's `history` goes. Kind "state" needs no waiting: late subscribers get the value.

        Parameters
        ----------
        topic : str
            Topic of this node.
        timeout : float
            Longest time to wait, in seconds.
        kind : {"stream", "event", "bulk", "state"}, optional
            Kind of the topic, "stream" by default; the first call of this method or `publish` sets it.

        Returns
        -------
        bool
            True if there is a subscriber.
        """
        seconds, publisher = _seconds(timeout), self._publisher(topic, kind)
        if publisher.kind == "state":
            return True
        matching, probe = publisher.publisher, None
        if publisher.kind in CACHED:  # Zenoh's advanced publishers do not tell whether they have subscribers
            with self._guarded:
                probe = matching = declare_publisher(self._session, message_key(self.mesh, self.name, topic), "stream")
        try:
            deadline = time.monotonic() + seconds
            while not matching.matching_status.matching:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.002)
                self._guarded.check()
            return True
        finally:
            if probe is not None and not self._guarded.closed:
                probe.undeclare()

    # --- subscribe ----------------------------------------------------------------------------------------------

    @renamed_arguments(capacity="depth")
    def subscribe(
        self,
        key_expression: str,
        handler: Callable[[Message], Any] | None = None,
        *,
        type: Any = None,
        depth: int | None = None,
        history: int = 1,
        recover: bool = True,
        allow_pickle: bool = False,
    ) -> Subscription:
        """Receive messages on keys such as `vision/objects`, `vision/*` or `sensor/**`.

        A node does not receive its own messages.

        Parameters
        ----------
        key_expression : str
            Keys relative to the mesh; `*` is any one part, `**` any number of parts.
        handler : callable, optional
            Called with each `Message` in turn, in a thread of the subscription. A coroutine function runs in the event
            loop in which `subscribe` is called, or else in a loop of the node. Without a handler, use the subscription
            as a channel.
        type : type, optional
            A `msgspec.Struct` or Protobuf message; values of other types are counted and dropped.
        depth : int, optional
            Number of messages of each sender and key to queue while the handler is busy; beyond that the oldest are
            dropped and counted. By default 10 for "stream" (stale after 0.1 s), 1 for "state", 1,000 for "event" and
            "bulk".
        history : int
            Number of earlier messages of an "event" topic to receive, 1 or more. From a node that connects later, all
            cached messages are received.
        recover : bool
            Query publishers for missed messages of "state" and "event" topics.
        allow_pickle : bool
            Unpickle messages. A sender can then run code in this process.

        Returns
        -------
        Subscription
            `close()` ends it, `counts()` returns the numbers of received, lost and dropped messages.

        Examples
        --------
        ::

            subscription = node.subscribe("vision/objects", lambda message: print(message.value, message.age))
        """
        if handler is not None and not callable(handler):
            raise InvalidArgument(f"handler={handler!r}: a function of a message is expected")
        ring = ring_for(check_depth(depth))
        declaration, decoder = self._declare_subscriber(key_expression, type, ring, history, recover, allow_pickle)
        plain = None if handler is None else self.synchronous(handler)
        return self._add(Subscription(key_expression, declaration, decoder, plain, depth, history, self._drainer))

    def stream(
        self,
        key_expression: str,
        *,
        type: Any = None,
        depth: int | None = None,
        history: int = 1,
        recover: bool = True,
        allow_pickle: bool = False,
    ) -> MessageStream:
        """Receive messages with `async for`; the parameters are those of `subscribe`.

        It subscribes immediately, and ends when the stream or the node is closed.

        Parameters
        ----------
        key_expression : str
            Keys relative to the mesh; `*` is any one part, `**` any number of parts.
        type : type, optional
            A `msgspec.Struct` or Protobuf message; values of other types are counted and dropped.
        depth : int, optional
            Number of messages of each sender and key to queue; see `subscribe`.
        history : int
            Number of earlier messages of an "event" topic to receive.
        recover : bool
            Query publishers for missed messages of "state" and "event" topics.
        allow_pickle : bool
            Unpickle messages. A sender can then run code in this process.

        Returns
        -------
        MessageStream
            An asynchronous iterator over messages.

        Examples
        --------
        ::

            async with node.stream("vision/objects") as messages:
                async for message in messages:
                    print(message.value)
        """
        return MessageStream(
            self.subscribe(
                key_expression, type=type, depth=depth, history=history, recover=recover, allow_pickle=allow_pickle
            )
        )

    @renamed_arguments(capacity="depth")
    def poll(
        self, key_expression: str, *, type: Any = None, depth: int | None = None, allow_pickle: bool = False
    ) -> Polled:
        """Receive messages by `take()`, which never blocks, for loops that poll often.

        No thread wakes up for a message. Of more than `depth` messages the oldest are dropped and counted.

        Parameters
        ----------
        key_expression : str
            Keys relative to the mesh; `*` is any one part, `**` any number of parts.
        type : type, optional
            A `msgspec.Struct` or Protobuf message; values of other types are counted and dropped.
        depth : int, optional
            Number of messages that are queued for all senders together, 10 by default.
        allow_pickle : bool
            Unpickle messages. A sender can then run code in this process.

        Returns
        -------
        Polled
            The subscription.
        """
        depth = check_depth(depth) or DEPTHS["stream"]
        declaration, decoder = self._declare_subscriber(key_expression, type, depth, 1, False, allow_pickle)
        return self._add(Polled(key_expression, declaration, decoder, depth))

    def _declare_subscriber(
        self, key_expression: str, type: Any, capacity: int, history: int, recover: bool, allow_pickle: bool
    ) -> tuple[Any, Decoder]:
        self._guarded.check()
        check_keys_of_nodes(key_expression)
        if not is_whole(history) or history < 1:
            raise InvalidArgument(
                f"history={history!r}: a number of messages, 1 or more, is expected. Use recover=False for none at all"
            )
        own = (self.name, self.incarnation)
        decoder = Decoder(
            key_expression,
            self._prefix,
            type=type,
            allow_pickle=allow_pickle,
            own=own,
            is_present=self._membership.arrival_of,
        )
        with self._guarded as session:
            declaration = subscribe(session, self._prefix, key_expression, capacity, history, recover)
        return declaration, decoder

    def _add(self, made: _AnySubscription) -> _AnySubscription:
        """Register a subscription, so that it is closed with the node."""
        with self._lock:
            for one in [one for one in self._subscriptions if one.closed]:
                self._subscriptions.remove(one)
                self._closed_counts.add(one.counts_by_key())
            if not self._guarded.closed:
                self._subscriptions.append(made)
                return made
        made.close()
        raise MeshClosed(f"node {self.name!r} has been closed")

    # --- request and reply --------------------------------------------------------------------------------------

    def serve(self, topic: str, handler: Callable[[Message], Any], *, type: Any = None, threads: int = 4) -> Service:
        """Serve requests for a topic of this node.

        Parameters
        ----------
        topic : str
            The topic, below this node's name.
        handler : callable
            `handler(message)` returns the answer; an exception reaches the requester as `RequestFailed`. A coroutine
            function runs in the event loop in which `serve` is called, or else in a loop of the node.
        type : type, optional
            A `msgspec.Struct` or Protobuf message; other requests are refused.
        threads : int
            Number of requests handled at the same time.

        Returns
        -------
        Service
            `close()` ends it.

        Raises
        ------
        InvalidArgument
            A name is not possible, or this node serves the topic already.

        Examples
        --------
        ::

            node.serve("look", lambda message: find(message.value))
        """
        self._guarded.check()
        check_threads(threads)
        if not callable(handler):
            raise InvalidArgument(f"handler={handler!r}: a function of a message is expected")
        key = serve_key(self.mesh, self.name, check_name(topic, "topic"))
        plain = self.synchronous(handler)
        with self._serving:
            # Zenoh would pass every request to both, and return the answer that comes first.
            self._services = [one for one in self._services if not one.closed]
            if any(one.topic == topic for one in self._services):
                raise InvalidArgument(
                    f"topic={topic!r}: node {self.name!r} serves it already. Close the service that the first serve() "
                    "returned, or use another topic"
                )
            made = Service(self._queryable(key), topic, self._prefix, plain, type=type, threads=threads)
            with self._lock:
                if not self._guarded.closed:
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
        """Send a request to a node, and return its answer.

        Parameters
        ----------
        node, topic : str
            The node, and a topic that it serves.
        value : object
            The content of the request, see `publish`.
        timeout : float
            Seconds.
        type : type, optional
            A `msgspec.Struct` or Protobuf message to decode the answer as.
        again : int, optional
            A number from `next_request_number`, to send the same request again if the first attempt failed: a service
            executes it at most once.

        Returns
        -------
        object
            The answer.

        Raises
        ------
        NodeGone
            The node is not on the mesh, or left meanwhile.
        RouterLost
            This node has lost its connection to the router, so it cannot know if the other node is there.
        NobodyServes
            The node does not serve the topic.
        RequestTimeout
            The node did not answer in time.
        RequestFailed
            Its handler raised.

        Examples
        --------
        ::

            answer = node.request("lang", "parse", "take the cup", timeout=1.0)
        """
        return self._requests.send(node, topic, value, timeout, type, again)

    async def arequest(
        self,
        node: str,
        topic: str,
        value: Any = None,
        timeout: float = 2.0,
        *,
        type: Any = None,
        again: int | None = None,
    ) -> Any:
        """Send a request and await the answer, without blocking the event loop. Otherwise like `request`.

        Parameters
        ----------
        node, topic, value, timeout, type, again
            As for `request`.

        Returns
        -------
        object
            The answer.

        Examples
        --------
        ::

            answer = await node.arequest("lang", "parse", "take the cup", timeout=1.0)
        """
        check_timeout(timeout)
        return await self._async.in_thread(
            lambda left: self.request(node, topic, value, left, type=type, again=again), timeout
        )

    def next_request_number(self) -> int:
        """Return a number for a request that may have to be sent again (`request(again=)`)."""
        return self._requests.next_number()

    # --- membership ---------------------------------------------------------------------------------------------

    def peers(self, timeout: float = 0.5, *, ask: bool = True) -> list[Peer]:
        """Return the other nodes, sorted by name.

        Parameters
        ----------
        timeout : float
            Longest time to wait for statuses, in seconds.
        ask : bool
            Query each node for its status (last step, published topics).

        Returns
        -------
        list of Peer
            The nodes. Those fields are None for nodes that did not reply, and without `ask`.
        """
        self._guarded.check()
        seconds, peers = _seconds(timeout), self._membership.peers()
        if not ask or not peers:
            return peers
        statuses = self._requests.query_status({peer.name for peer in peers}, seconds)
        return [_with_status(peer, statuses.get((peer.name, peer.incarnation))) for peer in peers]

    def peer(self, name: str) -> Peer | None:
        """Return the node of a name, without querying its status.

        Parameters
        ----------
        name : str
            Name of the node.

        Returns
        -------
        Peer or None
            The node; None if it is not on the mesh.
        """
        self._guarded.check()
        return self._membership.get(name)

    def incarnations(self, name: str) -> list[Peer]:
        """Return all present incarnations of a node: more than one only while a restarted node replaces the old one.

        Parameters
        ----------
        name : str
            Name of the node.

        Returns
        -------
        list of Peer
            The incarnations.
        """
        return self._membership.incarnations(name)

    def with_role(self, role: str) -> list[Peer]:
        """Return the nodes that declare a role, in the order of their start times.

        Parameters
        ----------
        role : str
            The role.

        Returns
        -------
        list of Peer
            The nodes.
        """
        self._guarded.check()
        return self._membership.with_role(role)

    def on_join(self, handler: Callable[[Peer], Any]) -> None:
        """Call a function for every other node that is present or joins.

        One thread calls all handlers of joins and leaves, in the order of events.

        Parameters
        ----------
        handler : callable
            Function of a `Peer`.
        """
        self._guarded.check()
        self._membership.on_join(self.synchronous(_checked_handler(handler)))

    def on_leave(self, handler: Callable[[Peer], Any]) -> None:
        """Call a function for every node that leaves: it closes, dies, is stopped or cut off.

        Parameters
        ----------
        handler : callable
            Function of a `Peer`.
        """
        self._guarded.check()
        self._membership.on_leave(self.synchronous(_checked_handler(handler)))

    def wait_for(self, names: str | Iterable[str], timeout: float) -> list[str]:
        """Wait until a node, or each of several, is present.

        Parameters
        ----------
        names : str or iterable of str
            Name of a node, or several.
        timeout : float
            Longest time to wait, in seconds.

        Returns
        -------
        list of str
            The names that are still missing.
        """
        self._guarded.check()
        if not isinstance(names, str | Iterable):
            raise InvalidType(f"names={names!r}: the name of a node, or a list of them, is expected")
        return self._membership.wait_for([names] if isinstance(names, str) else names, _seconds(timeout))

    @property
    def session(self) -> Any:
        """The Zenoh session, for features that a node does not offer. It is closed with the node."""
        self._guarded.check()
        return self._session

    @property
    def connected(self) -> bool:
        """False while a client has no connection to a router. Always True for peers."""
        if self.topology.mode_in_use != "client":
            return True
        return len(list(self._session.info.routers_zid())) > 0

    def check_connected(self, action: str = "") -> None:
        """Raise an error if this node is a client without a connection to a router.

        While a client is cut off it sees no other node. Call this before you act on the absence of one.

        Parameters
        ----------
        action : str
            Begins the text of the error ("request to 'arm'"), "" for none.

        Raises
        ------
        RouterLost
            This node has lost its connection to the router.

        Examples
        --------
        ::

            if node.wait_for("arm", timeout=5.0):
                node.check_connected()  # otherwise the arm may well be there
                start_another_arm()
        """
        self._check_router(action)

    @property
    def alone(self) -> bool:
        """True if this node has seen others, and has seen none for two seconds.

        All of them have ended, or this node is cut off. A warning is logged when it becomes True.
        """
        return self._links is not None and self._links.alone

    @property
    def silent_ports(self) -> tuple[int, ...]:
        """Seed ports of a local mesh on which something listened that did not answer as a node, at the start."""
        return self._silent_ports

    def counts(self) -> dict[str, Counts]:
        """Return the counts of messages (received, lost, dropped, ...) by key, over all subscriptions."""
        together = Ledger(self.name)
        with self._lock:
            for one in (self._closed_counts, *(one._ledger for one in self._subscriptions)):
                together.add(one.copy())
        return together.by_key

    def sent(self) -> dict[str, int]:
        """Return the number of published messages by topic."""
        return {topic: one.sent for topic, one in list(self._publishers.items())}

    def synchronous(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return a blocking function for a handler that may be a coroutine function.

        Coroutines run in the event loop of the current thread, or else in a loop of the node. The function must not be
        called in that loop.

        Parameters
        ----------
        handler : callable
            Function or coroutine function.

        Returns
        -------
        callable
            A function that returns when the handler is done.
        """
        return self._async.synchronous(handler)

    # --- lifetime -----------------------------------------------------------------------------------------------

    def spin(self, timeout: float | None = None) -> None:
        """Block until Ctrl-C, SIGTERM, `close` or the end of `timeout`, while handlers run.

        It returns normally in each case, so that a program ends with status 0. Signals are caught in the main thread
        only; their previous handlers are restored afterwards. In an event loop, use `stream` instead.

        Parameters
        ----------
        timeout : float, optional
            Longest time to block, in seconds; by default there is no limit.

        Examples
        --------
        ::

            with Node("vision") as node:
                node.subscribe("pfc/control", print)
                node.spin()
        """
        self._guarded.check()
        if running_loop() is not None:
            raise MeshError("spin() would block the event loop. Use `async for message in node.stream(...)` there")
        ended = threading.Event()
        before: dict[signal.Signals, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, lambda *_: ended.set())
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while not ended.is_set() and not self._guarded.closed:
                left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
                if left <= 0:
                    return
                ended.wait(left)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Leave the mesh. A second call does nothing.

        It waits up to two seconds for running handlers, except when a handler closes its own node.
        """
        if os.getpid() != self._pid:
            return  # the session belongs to the parent process
        with self._lock:
            first = not self._guarded.closed
            self._guarded.closed = True
        # Coroutines last: they are cancelled after the wait for the handlers.
        running = [
            self._status, self._links, getattr(self, "_membership", None), *self._subscriptions, *self._services,
            self._drainer, self._async,
        ]  # fmt: skip
        parts = [one for one in running if one is not None]
        if not first:
            if not any(one._runs_here() for one in parts):
                self._ended.wait(2 * _END_S)
            return
        try:
            # The presence token is withdrawn first, so that peers know that nothing follows.
            with ExitStack() as stack:  # runs in reverse order, and ends each part whatever another one raises
                stack.callback(self._session.close)
                deadline = time.monotonic() + _END_S
                for one in reversed(parts):
                    stack.callback(one._wait_for_end, deadline)
                for one in reversed(parts):
                    stack.callback(one._stop)
                if self._token is not None:
                    stack.callback(self._withdraw_token)
        finally:
            _OPEN.discard(self)
            self._ended.set()

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, KeyboardInterrupt):
            _end_quietly_with(error)

    async def __aenter__(self) -> Node:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._async._stop()  # only this thread can cancel the coroutines of its loop
        await asyncio.to_thread(self.close)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._guarded.closed

    def __repr__(self) -> str:
        return f"<Node {self.name!r} on mesh {self.mesh!r}{', closed' * self._guarded.closed}>"

    def _repr_html_(self) -> str:
        peers = [] if self.closed else self.peers(ask=False)
        rows = ((peer.name, peer.role, peer.host, peer.pid) for peer in peers)
        count = f"{len(peers)} other node{'s' * (len(peers) != 1)}"
        return html_table(f"{repr(self)[1:-1]}: {count}", ("node", "role", "host", "process"), rows)

    # --- helpers ------------------------------------------------------------------------------------------------

    def _wait_for_links(self, seeds: SeedPorts) -> None:
        """Wait for the links to present nodes, and warn of unusable seed ports."""
        self._silent_ports = seeds.silent
        if seeds.silent:
            _log.warning(
                "node %r: something listens on port %s that does not answer as a node of the mesh %r: another program, "
                "or a node that is stopped. Nodes use the next port, %d", self.name,
                ", ".join(map(str, seeds.silent)), self.mesh, seeds.ports[len(seeds.silent)],
            )  # fmt: skip
        if seeds.answered and not wait_for_links(self._session, _LINK_WAIT_S):
            _log.warning("node %r: a node answered, but no link was opened within %g s", self.name, _LINK_WAIT_S)

    def _check_router(self, action: str, since: float | None = None) -> None:
        """Raise RouterLost if a client is cut off, or with `since` (of `time.monotonic`) was cut off after that."""
        if not self.connected:
            what = "has lost its connection to the router"
            remedy = "Start the router again, or check the network; the node reconnects by itself"
        elif since is not None and self._links is not None and self._links.lost_router_since(since):
            what = "lost its connection to the router for a moment"
            remedy = "Try again; other nodes reconnect as well"
        else:
            return
        routers = ", ".join(self.topology.connect) or "of its Zenoh configuration"
        where = f"{action}: " if action else ""
        raise RouterLost(f"{where}node {self.name!r} {what} ({routers}). {remedy}", self.topology.connect)

    def _publisher(self, topic: str, kind: str | None) -> _Publisher:
        self._guarded.check()
        with self._lock:
            known = self._publishers.get(topic)
            if known is None:
                check_name(topic, "topic")
                kind = check_kind(kind or "stream")
                with self._guarded:
                    publisher = declare_publisher(self._session, message_key(self.mesh, self.name, topic), kind)
                known = self._publishers[topic] = _Publisher(publisher, kind)
            elif kind is not None and kind != known.kind:
                raise InvalidArgument(
                    f"kind={kind!r}: the topic {topic!r} of this node has the kind {known.kind!r} since its first "
                    "message. Use this kind or another topic"
                )
            return known

    def _queryable(self, key: str) -> Any:
        import zenoh

        # A ring: when too many requests are queued, the oldest ends without a reply, and the session does not block.
        with self._guarded:
            return self._session.declare_queryable(key, zenoh.handlers.RingChannel(MAX_QUEUED), complete=True)

    def _report_status(self, message: Message) -> dict[str, Any]:
        topics = {topic: one.kind for topic, one in list(self._publishers.items())}
        return {"incarnation": self.incarnation, "step": self.step, "topics": topics, "sees": self._membership.count()}

    def _check_name_free(self) -> None:
        """Raise if another node has this name; wait for the token of one that has just died to expire."""
        deadline = time.monotonic() + _TAKEN_WAIT_S
        while True:
            # The wildcard also matches nodes below this name.
            replies = self._session.liveliness().get(presence_key(self.mesh, f"{self.name}/**"), timeout=1.0)
            keys = [str(reply.ok.key_expr) for reply in replies if reply.ok is not None]
            taken = any(is_token_of(self.mesh, key, self.name) for key in keys)
            if not taken:
                return
            if time.monotonic() > deadline:
                other = self._membership.get(self.name)
                who = "" if other is None else f" (process {other.pid} on {other.host})"
                raise NameTaken(
                    f"a node called {self.name!r} is on the mesh {self.mesh!r} already{who}. Use another name"
                )
            time.sleep(0.1)


def _seconds(timeout: object) -> float:
    if not is_number(timeout) or timeout != timeout:
        raise InvalidType(f"timeout={timeout!r}: a number of seconds is expected")
    return float(timeout)


def _checked_handler(handler: Any) -> Callable[[Peer], Any]:
    if not callable(handler):
        raise InvalidArgument(f"handler={handler!r}: a function of a peer is expected")
    return handler  # type: ignore[no-any-return]


def _with_status(peer: Peer, status: dict[str, Any] | None) -> Peer:
    if status is None:
        return peer
    step, topics, sees = status.get("step"), status.get("topics"), status.get("sees")
    return replace(
        peer,
        step=step if isinstance(step, int) else None,
        topics={str(topic): str(kind) for topic, kind in topics.items()} if isinstance(topics, dict) else None,
        sees=sees if isinstance(sees, int) else None,
    )


def _end_quietly_with(interrupt: KeyboardInterrupt) -> None:
    """Suppress the traceback of this Ctrl-C if nothing catches it: the node has been closed.

    Python still ends with status 130, as for any Ctrl-C.
    """
    show = sys.excepthook

    def show_others(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if error is not interrupt:
            show(kind, error, traceback)

    sys.excepthook = show_others


@atexit.register
def _close_all() -> None:
    """Close all nodes at exit: an open session would keep threads in a process that is about to end."""
    for node in list(_OPEN):
        node.close()
