"""Membership: the nodes that are on the mesh.

Each node declares a liveliness token, its *presence token*. Zenoh withdraws it when the node closes, dies or is cut
off, so Zenoh's keep-alives are the failure detector. The key of a token contains all that is known of a node without
asking it.

When a link is restored while a process wakes from a stop, Zenoh sometimes drops the token of the other side for good.
So a node that was linked again renews its token: it declares one with the next number and withdraws the old one. A node
is present as long as one of its tokens is.

A node that closes declares a last token for a moment, with the number `LEAVING`: so the others know that it has neither
died nor been cut off.
"""

from __future__ import annotations

import base64
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from neuraxis.errors import InvalidArgument
from neuraxis.mesh.declarations import Declaration
from neuraxis.mesh.keys import LONGEST_KEY, check_name, presence_key
from neuraxis.mesh.limits import LineLimit

__all__ = ["LEAVING", "MAX_PEERS", "Membership", "Peer", "is_token_of", "role_key", "token_key"]

MAX_PEERS = 10_000  # nodes that are tracked; each takes about 1 KB
LEAVING = 2**32  # number of the last token of a node that closes
_MAX_INCARNATIONS = 16  # of one name; more than one only while a restarted node replaces the old one
_MAX_TOKENS = 4  # of one node; more than one only while it renews its token
_LOG_S = 10.0
_SHORTEST_PAUSE_S = 0.25  # between two queries for tokens that were not tracked
_LONGEST_PAUSE_S = 60.0

_log = logging.getLogger("neuraxis.mesh")


@dataclass(frozen=True)
class Peer:
    """A node on the mesh, as returned by `Node.peers`.

    Attributes
    ----------
    name, role, host : str
        The node's name, role ("" for none) and host name.
    pid : int
        Its process id.
    incarnation : int
        Its start time in ns since the epoch, by its own clock; distinguishes restarts of a node with this name.
    roles : tuple of str
        Further roles that it can stand in for.
    step : int or None
        The last step that it has reached; None if it has none or did not answer.
    topics : dict or None
        Kind by topic that it publishes; None if it did not answer.
    sees : int or None
        Number of other nodes that it sees; None if it did not answer.

    Examples
    --------
    >>> peer = Peer("vision", "camera", "robot", 4711, 1_700_000_000_000_000_000, ("sensor",))
    >>> peer.has_role("sensor"), peer.since
    (True, 1700000000.0)
    """

    name: str
    role: str
    host: str
    pid: int
    incarnation: int
    roles: tuple[str, ...] = ()
    step: int | None = None
    topics: dict[str, str] | None = None
    sees: int | None = field(default=None, compare=False)

    @property
    def since(self) -> float:
        """Start time in seconds since the epoch, by the node's own clock."""
        return self.incarnation * 1e-9

    def has_role(self, role: str) -> bool:
        """Return True if the node declares a role, as its first or a further one.

        Parameters
        ----------
        role : str
            The role.

        Returns
        -------
        bool
            True if it does.
        """
        return role == self.role or role in self.roles


def token_key(mesh: str, peer: Peer, number: int = 0) -> str:
    """Return the key of a node's presence token: its name, its roles, and encoded facts (host, pid, incarnation).

    `number` counts how often the node has renewed it; a first token has none.

    Roles are parts of the key, so that a router's access rules verify them like the name. Raises InvalidArgument if the
    key is longer than other nodes accept.
    """
    renewed = [number] if number else []
    facts = msgspec.msgpack.encode([peer.role, peer.host, peer.pid, peer.incarnation, list(peer.roles), *renewed])
    key = role_key(mesh, peer.name, {peer.role, *peer.roles}, base64.urlsafe_b64encode(facts).decode().rstrip("="))
    if len(key) > LONGEST_KEY:
        raise InvalidArgument(f"roles: {len(peer.roles):,} roles do not fit into {LONGEST_KEY:,} bytes. Use fewer")
    return key


def role_key(mesh: str, name: str, roles: Iterable[str], facts: str) -> str:
    """Return the key of a presence token. Roles are marked with "~", which names and roles cannot contain."""
    parts = [f"~{role.replace('/', '~')}" for role in sorted(set(roles)) if role]
    return presence_key(mesh, "/".join((name, *parts, facts)))


class _Facts(msgspec.Struct, array_like=True):
    role: str
    host: str
    pid: int
    incarnation: int
    roles: list[str]
    number: int = 0


def _read_token(prefix: str, key: str) -> tuple[Peer, int] | None:
    """Return the node of a token and the token's number; None if it is malformed."""
    if len(key) > LONGEST_KEY:
        return None
    parts = key.removeprefix(prefix).split("/")
    facts = parts.pop()
    verified = set()
    while parts and parts[-1].startswith("~"):
        verified.add(parts.pop()[1:].replace("~", "/"))
    name = "/".join(parts)
    try:
        content = base64.urlsafe_b64decode(facts + "=" * (-len(facts) % 4))
        found = msgspec.msgpack.decode(content, type=_Facts)
        if {found.role, *found.roles} - {""} != verified:
            return None  # it claims a role that its key does not contain
        node = check_name(name, "name")
        peer = Peer(node, found.role, found.host, found.pid, found.incarnation, tuple(found.roles))
        return peer, found.number
    except (ValueError, msgspec.MsgspecError, InvalidArgument):
        return None


def is_token_of(mesh: str, key: str, name: str) -> bool:
    """Return True if a key is the presence token of a node of this name."""
    token = _read_token(presence_key(mesh, ""), key)
    return token is not None and token[0].name == name


class Membership(Declaration):
    """The other nodes on the mesh, tracked by a thread that reads presence tokens.

    A second thread calls the handlers of joins and leaves, in the order of events, because a handler may block (on a
    request to the new node, say) while tokens have to be read. When more than `MAX_PEERS` calls are queued, a pair of
    join and leave of the same node cancels out.

    The cost of a token does not grow with their number, and at most `MAX_PEERS` are tracked: otherwise a process that
    may declare tokens could keep all nodes busy and fill their memory. Tokens beyond that are counted and queried again
    once there is room, with exponential backoff up to a minute.
    """

    def __init__(self, session: Any, mesh: str, me: Peer | None) -> None:
        import zenoh

        self._prefix = presence_key(mesh, "")
        self._me = me
        self._session = session
        self._all = presence_key(mesh)
        self._incarnations: dict[str, dict[int, Peer]] = {}  # by name and incarnation
        self._arrivals: dict[tuple[str, int], int] = {}
        self._tokens: dict[tuple[str, int], set[int]] = {}  # numbers of the tokens of each node
        self._latest_arrivals: dict[str, tuple[int, int]] = {}  # by name; read by every request
        self._arrived = 0
        self._leaving: set[tuple[str, int]] = set()  # present nodes that close
        self._vanished = 0
        self._surplus = 0  # tokens beyond MAX_PEERS
        self._crowded: dict[str, int] = {}  # by name, number of tokens beyond _MAX_INCARNATIONS
        self._wants_all = False  # there is room for a token that was not tracked: query all tokens
        self._querying = False
        self._pause_s = _SHORTEST_PAUSE_S
        self._next_query = 0.0
        self._warned = False
        self._gone: set[tuple[str, int, int]] | None = None  # tokens withdrawn during a query for all tokens
        self._malformed = _Tally("presence tokens are malformed")
        self._duplicates = _Tally("presence tokens carry this node's name")
        self._joined: list[Callable[[Peer], Any]] = []
        self._left: list[Callable[[Peer], Any]] = []
        self._calls: OrderedDict[int, _Call] = OrderedDict()  # by number, in the order of events
        self._waiting: dict[tuple[str, int], list[int]] = {}  # numbers of the queued calls, by peer
        self._last_call = 0
        self._has_caller = False
        self._token_errors = LineLimit(1)
        self._handler_errors: dict[tuple[int, str], LineLimit] = {}  # by id of the handler, and event
        # A FIFO: a ring that drops the oldest would lose joins and leaves.
        subscriber = session.liveliness().declare_subscriber(
            self._all, zenoh.handlers.FifoChannel(100_000), history=True
        )
        super().__init__(subscriber)
        self._put = zenoh.SampleKind.PUT
        self._start("presence", self._read)

    def peers(self) -> list[Peer]:
        """Return the other nodes, sorted by name and incarnation."""
        with self._changed:
            present = [peer for ones in self._incarnations.values() for peer in ones.values()]
        return sorted(present, key=lambda peer: (peer.name, peer.incarnation))

    def count(self) -> int:
        """Return the number of other nodes."""
        return len(self._arrivals)

    @property
    def arrived(self) -> int:
        """Number of joins so far."""
        return self._arrived

    @property
    def vanished(self) -> int:
        """Number of nodes so far that have left without closing: they died, were stopped or cut off."""
        return self._vanished

    def incarnations(self, name: str) -> list[Peer]:
        """Return all nodes of a name, the latest last."""
        with self._changed:
            return sorted(self._incarnations.get(name, {}).values(), key=lambda peer: peer.incarnation)

    def get(self, name: str) -> Peer | None:
        """Return the latest node of a name; None if there is none."""
        found = self.incarnations(name)
        return found[-1] if found else None

    @property
    def malformed(self) -> int:
        """Number of malformed tokens."""
        return self._malformed.count

    @property
    def surplus(self) -> int:
        """Number of tokens that are not tracked for lack of room."""
        return self._surplus + sum(self._crowded.values())

    def recover(self) -> None:
        """Start a query for tokens that were not tracked, if there is room; do not wait for the replies.

        A thread calls it periodically. Queries back off exponentially, so that a process that declares tokens cannot
        make all nodes query without end.
        """
        now = time.monotonic()
        with self._changed:
            if not (self._surplus or self._wants_all) or len(self._arrivals) >= MAX_PEERS or self.closed:
                return
            if self._querying or now < self._next_query:
                return
            self._querying, self._wants_all, self._gone = True, False, set()
            quiet = now > self._next_query + _LONGEST_PAUSE_S
            self._pause_s = _SHORTEST_PAUSE_S if quiet else min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._next_query = now + self._pause_s
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._start("presence tokens", self._query_all)

    def _query_all(self) -> None:
        try:
            found, more = self._unknown_tokens()
        except Exception:
            found, more = [], True
            if not self.closed:
                _log.exception("membership: the query for presence tokens failed; it is retried")
        with self._changed:
            gone, self._gone = self._gone or set(), None
            self._querying = False
            self._surplus = int(more)
            self._crowded.clear()
            for peer, number in found:
                if (peer.name, peer.incarnation, number) not in gone:
                    self._update(peer, number, True)
            if not self.surplus and self._warned:
                self._warned = False
                _log.warning("membership: all %d nodes are tracked again", len(self._arrivals))

    def _unknown_tokens(self) -> tuple[list[tuple[Peer, int]], bool]:
        """Query all tokens; return those not tracked, at most `MAX_PEERS`, and True if there may be more."""
        import zenoh

        found: list[tuple[Peer, int]] = []
        replies = self._session.liveliness().get(self._all, zenoh.handlers.FifoChannel(100_000), timeout=2.0)
        for number, reply in enumerate(replies):
            if len(found) >= MAX_PEERS or number >= 10 * MAX_PEERS or self.closed:
                return found, True
            token = None if reply.ok is None else _read_token(self._prefix, str(reply.ok.key_expr))
            if token is None or token[0] == self._me:
                continue
            if (token[0].name, token[0].incarnation) not in self._arrivals:
                found.append(token)
        return found, False

    def arrival_of(self, name: str) -> tuple[int, int] | None:
        """Return the latest incarnation of a node and the number of its join; None if it is absent.

        The number changes when the node leaves, even for a moment.
        """
        return self._latest_arrivals.get(name)

    def with_role(self, role: str) -> list[Peer]:
        """Return the nodes that declare a role, in the order of their start times."""
        return sorted((one for one in self.peers() if one.has_role(role)), key=lambda one: (one.incarnation, one.name))

    def wait_for(self, names: Iterable[str], timeout: float) -> list[str]:
        """Wait until all nodes of these names are present; return the missing names after `timeout` seconds."""
        wanted = set(names)
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                missing = {name for name in wanted if name not in self._incarnations}
                left = deadline - time.monotonic()
                if not missing or left <= 0 or self.closed:
                    return sorted(missing)
                self._changed.wait(min(left, 0.5))

    def on_join(self, handler: Callable[[Peer], Any]) -> None:
        with self._changed:
            self._joined.append(handler)
            for ones in self._incarnations.values():
                for peer in ones.values():
                    self._add_call(_Call((handler,), peer, True, is_event=False))
            self._start_caller()

    def on_leave(self, handler: Callable[[Peer], Any]) -> None:
        with self._changed:
            self._left.append(handler)
            self._start_caller()

    def _stop(self) -> None:
        super()._stop()
        with self._changed:
            self._calls.clear()
            self._waiting.clear()

    # --- helpers ----------------------------------------------------------------------------------------------

    def _start_caller(self) -> None:
        if not self._has_caller and not self.closed:
            self._has_caller = True
            self._start("joins and leaves", self._call)

    def _call(self) -> None:
        while (call := self._next_call()) is not None:
            for handler in call.handlers:
                if self.closed:
                    return
                try:
                    handler(call.peer)
                except BaseException:
                    self._log_handler_error(handler, call)

    def _log_handler_error(self, handler: Callable[[Peer], Any], call: _Call) -> None:
        """Log that a handler raised, once per interval for each handler and event."""
        event = "join" if call.joined else "leave"
        withheld = self._handler_errors.setdefault((id(handler), event), LineLimit(1)).take()
        if withheld is not None:
            more = f" ({withheld:,} more since the last line)" if withheld else ""
            _log.exception("membership: an on_%s handler raised for node %s%s", event, call.peer.name, more)

    def _next_call(self) -> _Call | None:
        """Wait for the next call; return None once this is closed."""
        with self._changed:
            while not self._calls and not self.closed:
                self._changed.wait()
            if self.closed:
                return None
            _, call = self._calls.popitem(last=False)
            numbers = self._waiting[call.identity]
            numbers.pop(0)
            if not numbers:
                del self._waiting[call.identity]
            return call

    def _add_call(self, call: _Call) -> None:
        numbers = self._waiting.get(call.identity, [])
        if len(self._calls) >= MAX_PEERS and numbers:
            last = self._calls[numbers[-1]]
            if call.is_event and last.is_event and last.joined != call.joined:  # the two cancel out
                del self._calls[numbers.pop()]
                if not numbers:
                    del self._waiting[call.identity]
                return
        self._last_call += 1
        self._calls[self._last_call] = call
        self._waiting.setdefault(call.identity, numbers).append(self._last_call)
        self._changed.notify_all()

    def _read(self) -> None:
        receive = self._channel.recv
        while True:
            try:
                sample = receive()
            except Exception:  # undeclared: nothing more arrives
                return
            try:
                self._handle_token(str(sample.key_expr), sample.kind == self._put)
            except Exception:
                withheld = self._token_errors.take()
                if withheld is not None:
                    _log.exception("membership: handling a token failed (%d more since the last line)", withheld)

    def _handle_token(self, key: str, joined: bool) -> None:
        token = _read_token(self._prefix, key)
        if token is None:
            self._malformed.add(f"such as {key[:100]!r}")
            return
        peer, number = token
        if peer == self._me:
            return
        if joined and number != LEAVING and self._me is not None and peer.name == self._me.name:
            # Both nodes checked the name when they started, so they were not yet connected then.
            self._duplicates.add(f"another node called {peer.name!r} is on the mesh: process {peer.pid} on {peer.host}")
        with self._changed:
            self._update(peer, number, joined)

    def _update(self, peer: Peer, number: int, joined: bool) -> None:
        """Add or remove a token of a peer, and queue the handlers if the peer joins or leaves by it.

        The caller holds the lock.
        """
        present = self._incarnations.get(peer.name, {})
        if number == LEAVING:
            if joined and peer.incarnation in present:
                self._leaving.add((peer.name, peer.incarnation))
            return
        if not joined and self._gone is not None:
            self._gone.add((peer.name, peer.incarnation, number))
        tokens = self._tokens.get((peer.name, peer.incarnation), set())
        if not joined:
            tokens.discard(number)
        elif len(tokens) < _MAX_TOKENS:
            tokens.add(number)
        if bool(tokens) == (peer.incarnation in present):
            return
        if joined and (len(self._arrivals) >= MAX_PEERS or len(present) >= _MAX_INCARNATIONS):
            if len(present) >= _MAX_INCARNATIONS:
                self._crowded[peer.name] = self._crowded.get(peer.name, 0) + 1
            else:
                self._surplus += 1
            if not self._warned:
                self._warned = True
                _log.warning(
                    "membership: more than %d nodes, or %d of one name, are on the mesh; the rest is not tracked. "
                    "List the nodes with: neuraxis nodes", MAX_PEERS, _MAX_INCARNATIONS,
                )  # fmt: skip
            return
        identity = (peer.name, peer.incarnation)
        if joined:
            self._arrived += 1
            self._incarnations.setdefault(peer.name, present)[peer.incarnation] = peer
            self._arrivals[identity] = self._arrived
            self._tokens[identity] = tokens
        else:
            peer = present.pop(peer.incarnation)
            del self._arrivals[identity], self._tokens[identity]
            self._vanished += identity not in self._leaving
            self._leaving.discard(identity)
            self._wants_all |= peer.name in self._crowded
        if present:
            latest = max(present)
            self._latest_arrivals[peer.name] = latest, self._arrivals[peer.name, latest]
        else:
            del self._incarnations[peer.name]
            del self._latest_arrivals[peer.name]
            self._crowded.pop(peer.name, None)
        self._changed.notify_all()
        handlers = tuple(self._joined if joined else self._left)
        if self._joined or self._left:
            self._add_call(_Call(handlers, peer, joined))


@dataclass(frozen=True)
class _Call:
    """A queued call of handlers with a peer.

    `is_event` is False if the handler was added after the peer had joined.
    """

    handlers: tuple[Callable[[Peer], Any], ...]
    peer: Peer
    joined: bool
    is_event: bool = True

    @property
    def identity(self) -> tuple[str, int]:
        return self.peer.name, self.peer.incarnation


class _Tally:
    """A counter of what remote peers can cause, logged at most once per interval."""

    def __init__(self, what: str) -> None:
        self.count = 0
        self._what = what
        self._logged = 0
        self._next = 0.0

    def add(self, example: str) -> None:
        self.count += 1
        now = time.monotonic()
        if now >= self._next:
            _log.warning("membership: %s (%d): %s", self._what, self.count - self._logged, example)
            self._logged, self._next = self.count, now + _LOG_S
