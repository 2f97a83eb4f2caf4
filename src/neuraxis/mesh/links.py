"""Reconnection of peers, renewal of presence tokens, and the warning of a node that no longer sees any other.

Zenoh reconnects a client to its routers and a peer to the endpoints that it was configured with. It does not reconnect
two peers that learned of each other by gossip: a link that was cut, or that ended because one of the two processes was
stopped, stays down. Peers do not relay messages, so the two would stay invisible to each other although both are alive.

One thread per node compares the links that exist with those that existed. The side that had opened a lost link knows
the endpoint at which the other side listens. While something still listens there, the thread opens a short-lived second
session (the *introducer*), which connects to both nodes. By gossip each learns of the other, and one reconnects.
See `docs/decisions/015-reconnection.md` for the alternatives.

Two nodes of a local mesh that never had a link know each other only through the seed ports. While no node listens
there, the thread opens a second session that does, and keeps it: all nodes retry those ports, and find each other.

After a lost link is up again, Zenoh may have dropped the presence token of one side (see `neuraxis.mesh.membership`).
So the thread renews the node's own token once the link has settled.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from neuraxis.mesh.limits import INTERVAL_S
from neuraxis.mesh.membership import Membership
from neuraxis.mesh.topology import (
    OpenedSession,
    Topology,
    is_loopback,
    open_introducer,
    open_seed_listener,
    port_of,
    probe_endpoints,
)

__all__ = ["LinkMonitor"]

_jitter = random.Random()  # a generator of its own: the global one belongs to the program
_log = logging.getLogger("neuraxis.mesh")

_POLL_S = 0.25  # interval at which links and nodes are compared
_PROBE_S = 0.5  # timeout for a TCP connection to a lost peer
_INTRODUCTION_S = 1.0  # longer than the introducer tries to connect, so that it closes immediately
_LONGEST_PAUSE_S = 2.0  # between two tries
_FORGET_S = 3600.0  # a peer that neither refuses nor accepts connections for this long is forgotten
_REFUSALS = 4  # consecutive refusals by a peer on another machine before it is given up: a firewall may refuse briefly
_REFUSED_S = 5.0  # over at least this time
_SEED_POLL_S = 0.5
_UNLINKED_S = 3.0  # without a link through a seed port, although something listens there
_SETTLED_S = 0.5  # after a link was restored, until the token is renewed
_MAX_BROKEN = 1000  # links that are remembered as broken
_ALONE_S = 2.0  # not an alarm earlier: the only other node may be restarting


@dataclass
class _Lost:
    """A peer whose link is down."""

    endpoint: str
    since: float
    next_try: float
    pause_s: float = _POLL_S
    refusals: int = 0
    refused_since: float = 0.0

    def has_ended(self, listens: bool | None, now: float) -> bool:
        """Record a probe of the endpoint; return True if the peer's process counts as ended."""
        if listens is not False:
            self.refusals = 0
            return now - self.since > _FORGET_S
        if is_loopback(self.endpoint):
            return True
        if not self.refusals:
            self.refused_since = now
        self.refusals += 1
        return self.refusals >= _REFUSALS and now - self.refused_since >= _REFUSED_S


class LinkMonitor:
    """A thread that watches the links of a node's session, and restores lost links to peers.

    Parameters
    ----------
    name, mesh : str
        Names of the node and its mesh.
    topology : Topology
        The topology of the session.
    opened : OpenedSession
        The session with its endpoints.
    membership : Membership
        The other nodes.
    renew_token : callable
        Declares this node's presence token again.
    """

    def __init__(
        self,
        name: str,
        mesh: str,
        topology: Topology,
        opened: OpenedSession,
        membership: Membership,
        renew_token: Callable[[], None],
    ) -> None:
        self._alone = False
        self._name = name
        self._mesh = mesh
        self._topology = topology
        self._is_client = topology.mode_in_use == "client"
        self._opened = opened
        self._membership = membership
        self._renew_token = renew_token
        self._broken: OrderedDict[str, None] = OrderedDict()  # Zenoh ids whose link was lost and is not yet up again
        self._renewals: list[float] = []  # times at which the token is to be renewed
        self._known: dict[str, str] = {}  # endpoint by Zenoh id, of links that this side opened
        self._lost: dict[str, _Lost] = {}
        self._arrived = 0  # number of joins when this node was alone last
        self._vanished = 0  # number of nodes that had left without closing when another one was seen last
        self._alone_since: float | None = None
        self._seed_listener: Any = None
        self._next_seed_poll = 0.0
        self._unlinked_since: float | None = None
        self._failed: dict[str, float] = {}  # by step, the time when its failure was logged last
        import zenoh

        self._link_lost_at = -math.inf  # of `time.monotonic`; at most `_POLL_S` late
        self._link_closed = zenoh.SampleKind.DELETE
        self._reading = threading.Lock()
        self._events = opened.session.info.declare_link_events_listener(zenoh.handlers.RingChannel(1000))
        for link in opened.session.info.links():  # opened before; they may be lost before the thread looks at them
            self._remember(link)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neuraxis links", daemon=True)
        self._thread.start()

    @property
    def alone(self) -> bool:
        """True if other nodes were seen before, and none for two seconds."""
        return self._alone and not self._membership.count()

    def lost_router_since(self, moment: float) -> bool:
        """Return True if a client lost a link to a router after `moment` (of `time.monotonic`)."""
        if not self._is_client:
            return False
        self._read_events()
        return self._link_lost_at > moment  # all links of a client are to routers

    def _stop(self) -> None:
        """Stop the thread, without waiting for it."""
        self._ended.set()

    def _wait_for_end(self, deadline: float) -> None:
        """Wait for the thread until `deadline` (of `time.monotonic`)."""
        if not self._runs_here():
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _runs_here(self) -> bool:
        """Return True if the current thread is this object's thread."""
        return threading.current_thread() is self._thread

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended.wait(_POLL_S):
                self._try("reading the events of links failed", self._read_events)
                self._try("renewing the presence token failed", self._renew)
                if self._opened.own is not None:
                    self._try("restoring links failed", self._watch_links)
                if self._opened.seeds is not None:
                    self._try("checking the seed ports failed", self._watch_seeds)
                self._try("counting the other nodes failed", self._watch_others)
                self._try("querying presence tokens failed", self._membership.recover)
        finally:
            if self._seed_listener is not None:
                self._seed_listener.close()

    def _try(self, failure: str, step: Callable[[], None]) -> None:
        """Run a step; log an exception once per interval."""
        try:
            step()
        except Exception:
            now = time.monotonic()
            if not self._ended.is_set() and now >= self._failed.get(failure, -INTERVAL_S) + INTERVAL_S:
                self._failed[failure] = now
                _log.exception("node %r: %s; it is retried", self._name, failure)

    def _watch_others(self) -> None:
        vanished = self._membership.vanished  # read first: a node that vanishes meanwhile is counted the next time
        others, arrived, now = self._membership.count(), self._membership.arrived, time.monotonic()
        if others:
            if self._alone:
                _log.info("node %r sees other nodes on the mesh %r again: %d", self._name, self._mesh, others)
            self._alone, self._alone_since, self._vanished = False, None, vanished
        elif arrived > self._arrived and self._alone_since is None:
            self._alone_since = now
        elif self._alone_since is not None and now - self._alone_since > _ALONE_S and not self._alone:
            self._alone = True
            if vanished == self._vanished:
                _log.info("node %r sees no other node on the mesh %r: the last one has closed", self._name, self._mesh)
            else:
                _log.warning(
                    "node %r sees no other node on the mesh %r, although it has seen %d: the last one has died, or "
                    "this node is cut off. List the nodes with: neuraxis nodes",
                    self._name, self._mesh, arrived - self._arrived,
                )  # fmt: skip
            self._arrived, self._vanished = arrived, vanished

    def _read_events(self) -> None:
        """Read which links were opened and closed since the last time. Threads of requests call it as well."""
        with self._reading:
            restored = False
            while (event := self._events.try_recv()) is not None:
                zid = str(event.link.zid)
                if event.kind == self._link_closed:
                    self._link_lost_at = time.monotonic()
                    self._broken[zid] = None
                    if len(self._broken) > _MAX_BROKEN:
                        self._broken.popitem(last=False)
                    continue
                self._remember(event.link)
                if zid in self._broken:
                    del self._broken[zid]
                    restored = True
            if restored:
                self._renewals.append(time.monotonic() + _SETTLED_S)

    def _renew(self) -> None:
        now = time.monotonic()
        with self._reading:
            is_due = bool(self._renewals) and self._renewals[0] <= now
            self._renewals = [due for due in self._renewals if due > now]
        if is_due:
            self._renew_token()

    def _watch_links(self) -> None:
        linked = set()
        for link in self._opened.session.info.links():
            self._remember(link)
            linked.add(str(link.zid))
        now = time.monotonic()
        for zid in [zid for zid in self._lost if zid in linked]:
            _log.info("node %r: a lost link is up again after %.1f s", self._name, now - self._lost.pop(zid).since)
        for zid in [zid for zid in self._known if zid not in linked]:
            # Zenoh's own attempts come first, if it makes any.
            self._lost.setdefault(zid, _Lost(self._known.pop(zid), now, now + _POLL_S))
        self._restore(now)

    def _watch_seeds(self) -> None:
        """Listen on a seed port if no node does through which this one could be found."""
        assert self._opened.seeds is not None
        now, seeds = time.monotonic(), self._opened.seeds
        if self._seed_listener is not None or now < self._next_seed_poll:
            return
        # Randomised, since all nodes lose the holder of the port at the same moment.
        self._next_seed_poll = now + _SEED_POLL_S * _jitter.uniform(0.5, 1.5)
        if any(port_of(str(link.dst)) in seeds.ports for link in self._opened.session.info.links()):
            self._unlinked_since = None
            return
        endpoints = {f"tcp/127.0.0.1:{port}": port for port in seeds.ports}
        listens = probe_endpoints(endpoints, _PROBE_S)
        free = [port for endpoint, port in endpoints.items() if listens[endpoint] is False]
        if len(free) < len(endpoints):
            # Another program or a stopped process may listen there, or the session of this node itself.
            if self._unlinked_since is None or seeds.free not in (None, *free):
                self._unlinked_since = now
            if now - self._unlinked_since < _UNLINKED_S or not free:
                return
        self._seed_listener = open_seed_listener(free[0])
        if self._seed_listener is not None:
            _log.info("node %r: listens on the seed port %d of the mesh", self._name, free[0])

    def _remember(self, link: Any) -> None:
        """Remember the endpoint of a link that this side opened.

        The side that accepted a link sees its own listening port as the source.
        """
        near, far = port_of(str(link.src)), port_of(str(link.dst))
        if far and near not in self._opened.ports:
            self._known[str(link.zid)] = str(link.dst)

    def _restore(self, now: float) -> None:
        due = {zid: lost for zid, lost in self._lost.items() if now >= lost.next_try}
        if not due:
            return
        listens = probe_endpoints({lost.endpoint for lost in due.values()}, _PROBE_S)
        for zid, lost in due.items():
            if lost.has_ended(listens[lost.endpoint], now):
                del self._lost[zid]
        # Reachable peers only: closing a session waits for its connection attempts, and blocks other sessions of the
        # process meanwhile.
        reached = {zid: lost for zid, lost in due.items() if listens[lost.endpoint]}
        if reached:
            self._introduce(reached)
        for lost in due.values():
            lost.pause_s = min(2 * lost.pause_s, _LONGEST_PAUSE_S)
            lost.next_try = time.monotonic() + lost.pause_s

    def _introduce(self, wanted: dict[str, _Lost]) -> None:
        """Connect a short-lived session to this node and to lost peers, until they are connected to each other."""
        assert self._opened.own is not None
        endpoints = {lost.endpoint: zid for zid, lost in wanted.items()}
        introducer = open_introducer(self._topology, [self._opened.own, *endpoints])
        try:
            deadline = time.monotonic() + _INTRODUCTION_S
            missing = set(wanted)
            while missing and time.monotonic() < deadline and not self._ended.wait(0.02):
                missing -= {str(zid) for zid in self._opened.session.info.peers_zid()}
                for link in introducer.info.links():
                    zid = endpoints.get(str(link.dst))
                    if zid is not None and str(link.zid) != zid:  # another node has taken the endpoint
                        missing.discard(zid)
                        self._lost.pop(zid, None)
        finally:
            introducer.close()
