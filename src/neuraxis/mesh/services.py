"""Request/reply between nodes, over Zenoh queries.

`Service` answers the requests for a topic with a few threads, and `Requests` sends them. Each request ends with an
answer or an error that says why there is none. A request in JSON, which only other Zenoh programs send, is answered in
JSON. A numbered request that is sent again is deduplicated: the service replies with the first answer (at-most-once
execution).
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from neuraxis.arguments import is_whole
from neuraxis.errors import (
    InvalidArgument,
    MeshError,
    NobodyServes,
    NodeGone,
    NotSerializable,
    RequestFailed,
    RequestTimeout,
)
from neuraxis.mesh.counts import Counts, Ledger
from neuraxis.mesh.declarations import Declaration, GuardedSession
from neuraxis.mesh.keys import check_name, sender_of_key, serve_key, status_key
from neuraxis.mesh.limits import FairDict, Refusals
from neuraxis.mesh.membership import Membership, Peer
from neuraxis.mesh.messages import Message, bounded_time
from neuraxis.mesh.topology import LARGEST_MESSAGE
from neuraxis.request_reply import Exchange, check_timeout, wait_for_reply
from neuraxis.threads import LeaderFollower
from neuraxis.wire.codecs import Undecodable, decode, encode
from neuraxis.wire.envelope import ENVELOPE_MAGIC, NO_STEP, Envelope, open_envelope, seal_envelope
from neuraxis.wire.exceptions import Failure, summarize

__all__ = [
    "MAX_QUEUED",
    "UNNUMBERED",
    "Requests",
    "Service",
    "check_threads",
]

_log = logging.getLogger("neuraxis.mesh")

MAX_QUEUED = 1000  # requests that a service queues
UNNUMBERED = 0  # the number of a request that is not deduplicated

_REMEMBERED = 100_000  # answers that a service caches for deduplication, shared fairly between senders,
_REMEMBERED_BYTES = 64 * 2**20  # with at most this many bytes in total,
_REMEMBERED_S = 60.0  # for this many seconds: senders retry soon
_MAX_PARKED = 4  # repeats of one request that wait for its answer
_GONE_WAIT_S = 0.3  # the end of a query and the withdrawal of a presence token arrive independently
_SETTLE_S = 2.0  # after a lost connection to the router, until the other clients have reconnected as well
_JSON, _MSGPACK = "application/json", "application/msgpack"
_POLL_S = 2e-4  # quick answers arrive within this time, and waking a thread takes about as long


def check_threads(threads: int) -> int:
    if not is_whole(threads) or threads < 1:
        raise InvalidArgument(f"threads={threads!r}: a number of threads, 1 or more, is expected")
    return int(threads)


_Identity = tuple[str, int, int]  # of a numbered request: sender, incarnation, number


class _Parked(Exception):
    """A query repeats a request in progress: the thread that handles it replies to both."""


class Service(Declaration):
    """A served topic, as returned by `Node.serve`.

    `handler(message)` returns the answer; an exception is raised in the requesting node as `RequestFailed`. Several
    threads take requests from one queue, so a slow handler delays others only when all threads are busy. A numbered
    request that is repeated gets the first answer; a request that failed is executed again.
    """

    def __init__(
        self,
        declared: Any,
        topic: str,
        prefix: str,
        handler: Callable[[Message], Any],
        *,
        type: Any,
        threads: int,
        for_many: bool = False,
    ) -> None:
        super().__init__(declared)
        self.topic = topic
        self._for_many = for_many  # accept queries by wildcard, which address many services
        self._key = declared.key_expr
        self._key_start = str(declared.key_expr).removesuffix("**")
        self._prefix = prefix
        self._handler = handler
        self._type = type
        self._ledger = Ledger(f"service {topic!r}")
        self._refusals = Refusals(_log, f"service {topic!r}")
        # Owned by the sender, so that none can evict another's.
        self._answers: FairDict[_Identity, tuple[bytes, str]] = FairDict(_REMEMBERED, _REMEMBERED_BYTES, _REMEMBERED_S)
        self._in_progress: dict[_Identity, list[Any]] = {}  # with the queries that repeat each
        self._leadership = LeaderFollower()
        self._start(f"serves {topic}", self._read, check_threads(threads))

    def __repr__(self) -> str:
        return f"<Service {self.topic!r}{', closed' * self.closed}>"

    def counts(self) -> Counts:
        return self._ledger.total()

    def refused(self) -> dict[str, int]:
        """Return the number of requests dropped because their sender was not verified, by reason."""
        return self._refusals.counts()

    # --- helpers ----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        receive, leadership = self._channel.recv, self._leadership
        leadership.lead()
        while not self.closed:
            try:
                query = receive()
            except Exception:  # undeclared, or the session is closed
                break
            began = leadership.begin()
            parked = False
            try:
                self._answer(query)
            except _Parked:
                parked = True
            except BaseException as error:  # the requester is gone, or its query is malformed: serve the next one
                self._ledger.log_failure("a request could not be answered", error)
            finally:
                if not parked:
                    query.drop()
            leadership.end(began)
        leadership.resign()

    def _answer(self, query: Any) -> None:
        full_key = str(query.key_expr)
        payload = b"" if query.payload is None else bytes(query.payload)
        encoding = "" if query.encoding is None else str(query.encoding)
        attachment = query.attachment
        head = b"" if attachment is None else bytes(attachment)
        envelope = open_envelope(head) if head else None
        sender = "" if self._for_many else self._sender_of(full_key, envelope)
        if sender is None:
            return None  # the query ends without a reply
        key = full_key.removeprefix(self._prefix).partition("/@from/")[0]
        if head[:2] == ENVELOPE_MAGIC and envelope is None:
            self._ledger.note(key, "malformed", why="its envelope has another version")
            text = "the envelope of the request has another version. Run the same release everywhere"
            return self._fail(query, InvalidArgument(text))
        if len(payload) > LARGEST_MESSAGE:
            self._ledger.note(key, "oversized", why=f"{len(payload):,} bytes")
            return self._fail(query, InvalidArgument(f"{len(payload):,} bytes; {LARGEST_MESSAGE:,} are accepted"))
        identity = None
        if envelope is not None and envelope.sequence != UNNUMBERED:
            identity = (sender, envelope.incarnation, envelope.sequence)
        if identity is not None:
            try:
                known = self._known(identity, query)
            except _Parked:
                self._ledger.note(key, "repeated")
                raise
            if known is not None:
                self._ledger.note(key, "repeated")
                return self._reply(query, *known)
        try:
            if query.payload is None and self._type is None:
                value = None
            else:
                value = decode(payload, encoding, type=self._type)
        except Undecodable as error:
            self._ledger.note(key, "malformed", why=error)
            refused = InvalidArgument(str(error))
            self._forget(identity, refused)
            return self._fail(query, refused)
        message = (
            Message(value, key, sender, encoding=encoding, sent_at=time.time())
            if envelope is None
            else Message(
                value, key, sender, envelope.incarnation, envelope.sequence, envelope.step, encoding,
                sent_at=bounded_time(envelope.sent_ns * 1e-9, time.time()),
            )
        )  # fmt: skip
        try:
            assert self._handler is not None
            answer = _encode_answer(self._handler(message), encoding)
            if len(answer[0]) > LARGEST_MESSAGE:
                raise InvalidArgument(f"an answer of {len(answer[0]):,} bytes; {LARGEST_MESSAGE:,} are accepted")
        except BaseException as error:  # SystemExit as well: it must not end this thread
            self._ledger.note_error(key, error)
            self._forget(identity, error)
            return self._fail(query, error)
        self._ledger.note(key, "received")
        self._remember(identity, answer)
        return self._reply(query, *answer)

    def _sender_of(self, key: str, envelope: Envelope | None) -> str | None:
        """Return the sender that the key names; None, and count it, if there is none or the envelope names another.

        Access rules allow keys, and may allow a wildcard that includes a key which they deny. So the key of a request
        has to be exactly this service's key, with one name.
        """
        sender = key.removeprefix(self._key_start)
        if not key.startswith(self._key_start) or sender_of_key(key) != sender:
            self._refusals.add("a request by wildcard, or without a sender in its key", f"on {key}")
        elif envelope is not None and envelope.node != sender:
            self._refusals.add("a request whose envelope and key name different senders", f"on {key}")
        else:
            return sender
        self._ledger.note(key.removeprefix(self._prefix).partition("/@from/")[0], "malformed")
        return None

    def _reply(self, query: Any, payload: bytes, encoding: str) -> None:
        # Replies to a wildcard query carry the service's own key, which identifies it and which access rules allow.
        key = self._key if self._for_many else query.key_expr
        query.reply(key, payload, encoding=encoding, express=True)

    def _fail(self, query: Any, error: BaseException) -> None:
        encoding = "" if query.encoding is None else str(query.encoding)
        codec = msgspec.json if encoding.startswith(_JSON) else msgspec.msgpack
        query.reply_err(codec.encode(summarize(error)), encoding=_JSON if codec is msgspec.json else _MSGPACK)

    # --- deduplication ------------------------------------------------------------------------------------------

    def _known(self, identity: _Identity, query: Any) -> tuple[bytes, str] | None:
        """Return the answer of an earlier request; None if this request must be handled.

        Repeats of a request in progress are parked and get its answer, so that a handler that hangs blocks one thread
        only. Beyond `_MAX_PARKED` the oldest ends without a reply.
        """
        with self._changed:
            parked = self._in_progress.get(identity)
            if parked is not None:
                parked.append(query)
                if len(parked) > _MAX_PARKED:
                    parked.pop(0).drop()
                raise _Parked
            known = self._answers.get(identity)
            if known is None:
                self._in_progress[identity] = []
            return known

    def _remember(self, identity: _Identity | None, answer: tuple[bytes, str]) -> None:
        if identity is None:
            return
        with self._changed:
            parked = self._in_progress.pop(identity, [])
            self._answers.add(identity[0], identity, answer, len(answer[0]))
        self._end_parked(parked, lambda query: self._reply(query, *answer))

    def _forget(self, identity: _Identity | None, error: BaseException) -> None:
        """Forget a request that failed, so that a repeat is executed; parked repeats fail with the same error."""
        if identity is not None:
            with self._changed:
                parked = self._in_progress.pop(identity, [])
            self._end_parked(parked, lambda query: self._fail(query, error))

    def _end_parked(self, parked: list[Any], reply: Callable[[Any], None]) -> None:
        for query in parked:
            try:
                reply(query)
            except Exception as error:  # the requester is gone
                _log.debug("service %r: %s", self.topic, error)
            finally:
                query.drop()


class Requests:
    """The requests that one node, `me`, sends.

    `check_router(action, since)` raises `RouterLost` if the node is not connected to its router, or with `since` (of
    `time.monotonic`) if it has lost the connection since then.
    """

    def __init__(
        self,
        guarded: GuardedSession,
        membership: Membership,
        mesh: str,
        me: Peer,
        check_router: Callable[[str, float | None], None] = lambda action, since: None,
    ) -> None:
        self.guarded = guarded
        self.membership = membership
        self.me = me
        self.check_router = check_router
        self.mesh = mesh
        self._name_bytes = me.name.encode()
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        return next(self._numbers)

    def send(self, node: str, topic: str, value: Any, timeout: float, type: Any, again: int | None) -> Any:
        """Send a request and return the answer; see `Node.request`."""
        query = _Query(self, node, topic, check_timeout(timeout))
        if again is not None and (not is_whole(again) or not 0 < again < 2**63):
            raise InvalidArgument(f"again={again!r}: a number returned by `next_request_number` is expected")
        self.guarded.check()
        query.payload, query.encoding = encode(value)
        if len(query.payload) > LARGEST_MESSAGE:
            raise InvalidArgument(
                f"{query.key}: {len(query.payload):,} bytes; a request has {LARGEST_MESSAGE:,} at most"
            )
        query.envelope = seal_envelope(self._name_bytes, self.me.incarnation, again or UNNUMBERED, NO_STEP)
        return _open_reply(wait_for_reply(query, query.timeout), query.where, type)

    def query_status(self, names: set[str], timeout: float) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the status of the nodes of these names, by name and incarnation."""
        begun = time.monotonic()
        statuses = self._query_status_once(timeout, names)
        # The presence token of a new node may arrive before its status service is known here.
        while names - {name for name, _ in statuses} and time.monotonic() < begun + min(timeout, _GONE_WAIT_S):
            time.sleep(0.01)
            statuses |= self._query_status_once(max(0.01, begun + timeout - time.monotonic()), names)
        return statuses

    def _query_status_once(self, timeout: float, names: set[str]) -> dict[tuple[str, int], dict[str, Any]]:
        import zenoh

        with self.guarded as session:
            replies = session.get(
                status_key(self.mesh),
                zenoh.handlers.FifoChannel(len(names) + 100),
                timeout=timeout,
                target=zenoh.QueryTarget.ALL,
                consolidation=zenoh.ConsolidationMode.NONE,
            )
        statuses: dict[tuple[str, int], dict[str, Any]] = {}
        while names - {name for name, _ in statuses}:
            try:
                reply = replies.recv()
            except zenoh.ZError:
                break  # all have replied, or the query has timed out
            try:
                # The name comes from the key, which access rules verify.
                name = str(reply.ok.key_expr).removeprefix(status_key(self.mesh, ""))
                status = decode(bytes(reply.ok.payload), str(reply.ok.encoding))
                statuses[name, int(status["incarnation"])] = status
            except (Undecodable, AttributeError, KeyError, TypeError, ValueError):
                continue
        return statuses


class _Query(Exchange[Any]):
    """A request as a Zenoh query, which Zenoh ends at its timeout, or immediately if it reaches no service.

    A service replies to every query. So a query that ends early without a reply has reached none, or the service is
    gone. It is sent once more, because the declaration of a new service may not have arrived yet.
    """

    payload: bytes
    encoding: str
    envelope: bytes

    def __init__(self, requests: Requests, node: str, topic: str, timeout: float) -> None:
        self.key = _request_key(requests.mesh, node, topic, requests.me.name)
        self.where = f"{topic!r} of node {node!r}"
        self.timeout = timeout
        self._begun = time.monotonic()
        self._late_at = self._begun + 0.9 * timeout  # from then on it is not sent again
        self._requests = requests
        self._node = node
        self._topic = topic
        self._is_retry = False
        self._timed_out = False

    def send(self, timeout: float) -> None:
        import zenoh

        self._arrival = self._requests.membership.arrival_of(self._node)
        with self._requests.guarded as session:
            self._replies = session.get(
                self.key,
                zenoh.handlers.FifoChannel(4),
                payload=self.payload,
                encoding=self.encoding,
                attachment=self.envelope,
                timeout=timeout,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                express=True,
            )

    def receive(self, timeout: float) -> Any:
        import zenoh

        reply, try_receive = None, self._replies.try_recv
        try:
            poll_until = time.monotonic() + _POLL_S
            while reply is None and time.monotonic() < poll_until:
                reply = try_receive()
                if reply is None:
                    os.sched_yield()
            if reply is None:
                reply = self._replies.recv()
        except zenoh.ZError:
            return None  # the query has ended without a reply
        # By this error reply Zenoh reports that a query has timed out.
        self._timed_out = reply.ok is None and bytes(reply.err.payload) == b"Timeout"
        return None if self._timed_out else reply

    def must_resend(self) -> bool:
        self._requests.guarded.check()
        if self._timed_out or time.monotonic() > self._late_at:
            raise self.too_late()
        self._check_present(_GONE_WAIT_S / 3 if self._is_retry else _GONE_WAIT_S)
        if self._is_retry or time.monotonic() > self._late_at:
            self._check_router(self._begun - _SETTLE_S)
            raise NobodyServes(
                f"node {self._node!r} is on the mesh, but does not serve {self._topic!r} (or has {MAX_QUEUED:,} "
                "requests queued). Check the topic, and that the node serves it before requests arrive"
            )
        self._is_retry = True
        return True

    def too_late(self) -> Exception:
        self._requests.guarded.check()
        self._check_present(0.0)
        self._check_router()
        return RequestTimeout(
            f"request to {self.where}: no answer within {self.timeout:g} s. Allow more time (timeout=)"
        )

    def _check_present(self, wait_s: float) -> None:
        """Raise if the node has left since the query was sent; wait `wait_s` for its token to be withdrawn."""
        requests, node = self._requests, self._node
        deadline = time.monotonic() + wait_s
        while True:
            arrival = requests.membership.arrival_of(node)
            if node != requests.me.name and (arrival is None or self._arrival not in (None, arrival)):
                self._check_router(self._begun - _SETTLE_S)
                raise NodeGone(
                    f"request to {self.where}: the node is not, or no longer, on the mesh {requests.mesh!r}. "
                    "Start it, or check its name with: neuraxis nodes",
                    node,
                )
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)

    def _check_router(self, since: float | None = None) -> None:
        """Raise RouterLost if this node is cut off (or was, after `since`): then it knows nothing of the other node."""
        self._requests.check_router(f"request to {self.where}", since)


def _encode_answer(value: Any, encoding: str) -> tuple[bytes, str]:
    """Encode an answer: plain data as JSON for a request in JSON, whose sender may not read msgpack."""
    answer = encode(value)
    if answer[1] == _MSGPACK and encoding.startswith(_JSON):
        try:
            return encode(value, "json")
        except NotSerializable:
            pass  # it contains an array, say
    return answer


@lru_cache(maxsize=1000)
def _request_key(mesh: str, node: str, topic: str, sender: str) -> str:
    return serve_key(mesh, check_name(node, "node"), check_name(topic, "topic"), sender)


def _open_reply(reply: Any, where: str, type: Any) -> Any:
    answer = reply.ok
    if answer is None:
        payload = bytes(reply.err.payload)
        try:
            failure = decode(payload, str(reply.err.encoding), type=Failure)
        except Undecodable:
            raise RequestFailed(f"{where} failed: {payload[:200]!r}") from None
        raise RequestFailed(f"{where} failed: {failure.kind}: {failure.text}", failure.kind)
    try:
        return decode(bytes(answer.payload), str(answer.encoding), type=type)
    except Undecodable as error:
        raise MeshError(f"the answer of {where} cannot be decoded: {error}") from None
