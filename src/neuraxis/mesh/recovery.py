"""Recovery of missed "state" and "event" messages for a subscription of several keys.

A publisher of these kinds keeps its last messages, numbers them, and sends the last number five times a second
(Zenoh's advanced publisher). Zenoh's advanced subscriber follows the numbers by publisher, whatever the key, so a
program that may publish on one key of a subscription can use up the numbers of another node's publisher. This one
follows them by key and publisher. Access rules bind keys to senders: what a sender forges harms its own keys only.

The reader of the subscription passes every sample through `order`. A second thread waits (`wait`), passes on what it
has recovered (`collect`), and sends queries (`ask`). `order` and `collect` are called under one lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from neuraxis.mesh.counts import MAX_STREAMS, streams_to_evict
from neuraxis.mesh.messages import CACHED, declare_subscriber, size_of

__all__ = ["RecoveringSubscriber", "subscribe"]

_log = logging.getLogger("neuraxis.mesh")
_BEATS = "/@adv/pub/"  # between a key and the identity of its publisher, in the keys of heartbeats and caches
_RING = 1000  # heartbeats that wait
_REPLIES = 10_000  # replies to a query that wait; with more, Zenoh waits
_MAX_HELD = 2 * CACHED["event"]  # messages of one publisher that wait for an earlier one
_MAX_HELD_BYTES = 64 * 2**20  # of the same, for all publishers whose keys have the same first part
_MAX_QUERIES = 64  # at a time, for all publishers whose keys have the same first part
_MAX_WAITING = 1000  # publishers to be asked later, of the same
_TIMEOUT_S = 2.0  # of a query
_PAUSE_S = 1.0  # between queries to a publisher that has nothing to add
_HALF = 2**31
_TICK_S = 0.05  # interval at which heartbeats are read
_FAST_S, _SLOW_S = 0.001, 0.01  # intervals at which replies are read
_SOON_S = 0.1  # time after a query in which replies are expected


def subscribe(session: Any, prefix: str, expression: str, capacity: int, history: int, recover: bool) -> Any:
    """Declare the subscriber of a subscription: keys relative to the mesh, capacity of the ring, earlier messages.

    Only the sender can publish on one whole key, so Zenoh's own recovery is enough there.
    """
    if recover and set("*$?") & set(expression):
        return RecoveringSubscriber(session, prefix, expression, capacity, history)
    return declare_subscriber(session, prefix + expression, capacity, history, recover)


@dataclass(slots=True, eq=False)
class _Source:
    """A publisher on a key: `last` is the highest number passed on, `recovered` the highest from a reply."""

    key: str
    identity: str  # session and number, as in the keys of its heartbeats
    owner: str
    last: int = -1
    recovered: int = -1
    is_asked: bool = False  # a query is to be sent, or has not ended
    quiet_until: float = 0.0
    at: float = 0.0
    held: dict[int, tuple[Any, int, bool]] = field(default_factory=dict)  # sample, size, is from a reply


@dataclass(slots=True, eq=False)
class _Query:
    """A query for one source, or (None) for the history of all."""

    source: _Source | None
    replies: Any
    sent_at: float
    last: int = -1  # of the source, when the query was sent
    samples: list[Any] = field(default_factory=list)
    has_ended: bool = False


class RecoveringSubscriber:
    """A subscriber with a ring for an expression of several keys, and what recovers missed messages beside it.

    Parameters
    ----------
    session : zenoh.Session
        The session.
    prefix, expression : str
        The prefix of the mesh, and keys relative to it.
    capacity : int
        Of the ring.
    history : int
        Number of earlier messages of each publisher to receive, 1 or more.
    """

    def __init__(self, session: Any, prefix: str, expression: str, capacity: int, history: int) -> None:
        import zenoh

        self._session = session
        self._prefix = prefix
        self._keys = zenoh.KeyExpr(prefix + expression)
        self._history = history
        self._ended = False
        self._woken = threading.Event()
        self._sources: dict[tuple[str, str], _Source] = {}
        self._held_bytes: Counter[str] = Counter()  # by owner
        self._asked: Counter[str] = Counter()  # queries by owner
        self._waiting: defaultdict[str, deque[_Source]] = defaultdict(deque)  # by owner, to be asked later
        self._to_ask: list[_Source] = []
        self._beats: list[tuple[str, int]] = []
        self._queries: list[_Query] = []
        self._subscriber = declare_subscriber(session, str(self._keys), capacity, history, False)
        self.handler = self._subscriber.handler
        beats: Any = zenoh.handlers.RingChannel(_RING)
        remote = zenoh.Locality.REMOTE
        self._heartbeats = session.declare_subscriber(f"{self._keys}{_BEATS}**", beats, allowed_origin=remote)
        self._beat_channel = self._heartbeats.handler
        self._has_history = False
        self._send(None, f"{self._keys}/@adv/**", f"_max={history}")

    @property
    def key_expr(self) -> Any:
        """The keys that the subscriber receives, as a subscriber of Zenoh has them."""
        return self._keys

    def undeclare(self) -> None:
        self._ended = True
        self._woken.set()
        try:
            self._heartbeats.undeclare()
        finally:
            self._subscriber.undeclare()

    # --- under the lock of the subscription -------------------------------------------------------------------

    def order(self, sample: Any) -> Sequence[Any]:
        """Return the samples to pass on now that this one has arrived: none while an earlier one is being recovered."""
        info = sample.source_info
        if info is None:
            return (sample,)
        passed: list[Any] = []
        self._take(sample, info, False, passed)
        return passed

    def collect(self) -> list[Any]:
        """Return the samples to pass on after the replies and heartbeats that `wait` has read."""
        passed: list[Any] = []
        for query in self._queries:
            samples, query.samples = query.samples, []
            for sample in samples:
                self._take_reply(query, sample, passed)
            if query.has_ended:
                self._finish(query, passed)
        self._queries = [query for query in self._queries if not query.has_ended]
        beats, self._beats = self._beats, []
        for key, number in beats:
            self._take_heartbeat(key, number, passed)
        return passed

    # --- without the lock, in one thread that waits for nothing else --------------------------------------------------

    def wait(self) -> bool:
        """Wait until there may be something to collect or to ask; return False after `undeclare`."""
        if self._queries:
            youngest = time.monotonic() - max(query.sent_at for query in self._queries)
            self._woken.wait(_FAST_S if youngest < _SOON_S else _SLOW_S)
        else:
            self._woken.wait(_TICK_S)
        self._woken.clear()
        if self._ended:
            return False
        for query in self._queries:
            self._read_replies(query)
        try:
            for _ in range(_RING):
                if (beat := self._beat_channel.try_recv()) is None:
                    break
                payload = beat.payload.to_bytes()
                if len(payload) == 4:
                    self._beats.append((str(beat.key_expr), int.from_bytes(payload, "little")))
        except Exception:  # undeclared, or the session is closed
            return False
        return True

    def ask(self) -> None:
        """Send the queries for missed messages."""
        while self._to_ask:
            source = self._to_ask.pop()
            first = "" if source.last < 0 else str(source.last + 1)
            self._send(source, f"{source.key}{_BEATS}{source.identity}/**", f"_sn={first}..")

    # --- helpers ----------------------------------------------------------------------------------------------

    def _send(self, source: _Source | None, key: str, parameters: str) -> None:
        import zenoh

        query = _Query(source, None, time.monotonic(), -1 if source is None else source.last)
        try:
            # Not a ring: that is deleted with its content when the query ends. `wait` empties this one soon.
            fifo: Any = zenoh.handlers.FifoChannel(_REPLIES)
            query.replies = self._session.get(
                f"{key}?{parameters}",
                fifo,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
                accept_replies=zenoh.ReplyKeyExpr.ANY,
                allowed_destination=zenoh.Locality.REMOTE,
                timeout=_TIMEOUT_S,
            )
        except zenoh.ZError as error:
            query.has_ended = True
            if not self._ended:
                _log.warning("subscription %r: a query for missed messages failed: %s", str(self._keys), error)
        self._queries.append(query)

    def _read_replies(self, query: _Query) -> None:
        try:
            while not query.has_ended and (reply := query.replies.try_recv()) is not None:
                if reply.ok is not None:
                    query.samples.append(reply.ok)
        except Exception:  # all replies have been read
            query.has_ended = True

    def _take_reply(self, query: _Query, sample: Any, passed: list[Any]) -> None:
        if query.source is None:
            if not self._keys.intersects(sample.key_expr):
                return
        elif str(sample.key_expr) != query.source.key:
            return
        info = sample.source_info
        if info is not None:
            self._take(sample, info, True, passed)
        elif query.source is None:
            passed.append(sample)

    def _take(self, sample: Any, info: Any, is_reply: bool, passed: list[Any]) -> None:
        """Pass a numbered sample on, or hold it while an earlier one is being recovered."""
        identity = info.source_id
        source = self._source(str(sample.key_expr), f"{identity.zid}/{identity.eid}", passed)
        number = info.source_sn
        if number < source.last - _HALF:  # Zenoh's numbers have 32 bits, and begin again
            self._flush(source, passed)
            source.last = source.recovered = number - 1
        if source.last >= 0 and number <= source.last:
            # One that came twice because it was recovered is no repetition. The decoder counts others.
            if not is_reply and number > source.recovered:
                passed.append(sample)
            return
        if number == source.last + 1:
            self._pass_on(source, number, sample, is_reply, passed)
            return
        if source.last < 0 and not self._has_history and self._history == 1:
            self._pass_on(source, number, sample, is_reply, passed)
            return
        self._hold(source, number, sample, is_reply)
        if source.last < 0 and not self._has_history:
            if len(source.held) >= self._history:
                self._pass_held(source, min(source.held), passed)
        elif not is_reply and not self._want(source):
            self._flush(source, passed)
        if len(source.held) > _MAX_HELD or self._held_bytes[source.owner] > _MAX_HELD_BYTES:
            self._flush(source, passed)

    def _take_heartbeat(self, key: str, number: int, passed: list[Any]) -> None:
        """Ask a publisher that has sent more than has arrived."""
        key, _, rest = key.rpartition(_BEATS)
        identity = "/".join(rest.split("/")[:2])
        source = self._sources.get((key, identity))
        if source is None:
            if not self._has_history:
                return  # it may be about to answer
            source = self._source(key, identity, passed)
        if number > source.last and time.monotonic() >= source.quiet_until:
            self._want(source)

    def _want(self, source: _Source) -> bool:
        """Have a publisher asked for what is missing; return False if too many others are to be asked before."""
        if source.is_asked:
            return True
        waiting = self._waiting[source.owner]
        if len(waiting) >= _MAX_WAITING:
            return False
        source.is_asked = True
        waiting.append(source)
        self._ask_next(source.owner)
        return True

    def _ask_next(self, owner: str) -> None:
        waiting = self._waiting[owner]
        while waiting and self._asked[owner] < _MAX_QUERIES:
            source = waiting.popleft()
            self._asked[owner] += 1
            self._to_ask.append(source)
            self._woken.set()
        if not waiting:
            del self._waiting[owner]

    def _finish(self, query: _Query, passed: list[Any]) -> None:
        """Pass on what was held for a query that has ended, whatever is still missing."""
        source = query.source
        if source is None:
            self._has_history = True
            for one in list(self._sources.values()):
                if not one.is_asked:
                    self._flush(one, passed)
            return
        source.is_asked = False
        self._asked[source.owner] -= 1
        self._ask_next(source.owner)
        if not self._asked[source.owner]:
            del self._asked[source.owner]
        self._flush(source, passed)
        if source.last == query.last:
            source.quiet_until = time.monotonic() + _PAUSE_S

    def _pass_on(self, source: _Source, number: int, sample: Any, is_reply: bool, passed: list[Any]) -> None:
        passed.append(sample)
        source.last = number
        if is_reply:
            source.recovered = number
        if source.held and number + 1 in source.held:
            self._pass_held(source, number + 1, passed)

    def _pass_held(self, source: _Source, number: int, passed: list[Any]) -> None:
        """Pass on a held sample and those that follow it without a gap."""
        while (held := source.held.pop(number, None)) is not None:
            sample, size, is_reply = held
            self._held_bytes[source.owner] -= size
            passed.append(sample)
            source.last = number
            if is_reply:
                source.recovered = number
            number += 1
        if not self._held_bytes[source.owner]:
            del self._held_bytes[source.owner]

    def _hold(self, source: _Source, number: int, sample: Any, is_reply: bool) -> None:
        if number not in source.held:
            size = size_of(sample)
            source.held[number] = sample, size, is_reply
            self._held_bytes[source.owner] += size

    def _flush(self, source: _Source, passed: list[Any]) -> None:
        """Pass on all held samples; the decoder counts those between them as lost."""
        for number in sorted(source.held):
            if number in source.held:
                self._pass_held(source, number, passed)

    def _source(self, key: str, identity: str, passed: list[Any]) -> _Source:
        source = self._sources.get((key, identity))
        if source is None:
            if len(self._sources) >= MAX_STREAMS:
                known = ((name, name[0].removeprefix(self._prefix), name[1], one.at)
                         for name, one in self._sources.items())  # fmt: skip
                for name in streams_to_evict(known):
                    self._flush(self._sources.pop(name), passed)
            owner = key.removeprefix(self._prefix).partition("/")[0]
            source = self._sources[key, identity] = _Source(key, identity, owner)
        source.at = time.monotonic()
        return source
