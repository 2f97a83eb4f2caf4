"""Ask and answer: a service reads questions with a few threads; a question ends with an answer or a clear error."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import msgspec

from neuraxis.errors import InvalidArgument, RequestFailed
from neuraxis.mesh.codecs import Undecodable, decode, encode
from neuraxis.mesh.counts import Counts, Ledger
from neuraxis.mesh.declared import Declared
from neuraxis.mesh.envelope import open_envelope
from neuraxis.mesh.messages import Message
from neuraxis.mesh.topology import LARGEST_MESSAGE
from neuraxis.mesh.turns import Turns

__all__ = ["MOST_WAITING", "UNNUMBERED", "Service", "check_threads", "raise_failure"]

_log = logging.getLogger("neuraxis.mesh")
_REMEMBERED = 10_000  # questions of which a service knows that it has answered them,
_REMEMBERED_BYTES = 64 * 2**20  # as long as the answers have no more bytes than these,
_REMEMBERED_S = 60.0  # and for so long: whoever asks again does so soon

MOST_WAITING = 1000  # questions to a service
UNNUMBERED = 0  # the number of a question that is not asked again


def check_threads(threads: int) -> int:
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise InvalidArgument(f"threads={threads!r}: a number of threads, 1 or more, is expected")
    return threads


class _Failure(msgspec.Struct, tag=True):
    """What a service says when its handler raised."""

    kind: str
    text: str


class Service(Declared):
    """What `Node.serve` returns. `handler(message)` returns the answer; what it raises reaches who asked.

    Several threads answer from one queue of questions, so a slow answer holds up others only when all are busy.
    A numbered question that comes again is answered with the same answer; one that failed is carried out again.
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
        self._for_many = for_many  # whether it may be asked together with others, by a wildcard
        self._key = declared.key_expr
        self._full_key = str(declared.key_expr)
        self._prefix = prefix
        self._handler = handler
        self._type = type
        self._ledger = Ledger(f"service {topic!r}")
        self._answered: OrderedDict[tuple[str, int, int], tuple[bytes, str]] = OrderedDict()
        self._answered_at: deque[float] = deque()
        self._answered_bytes = 0
        self._under_way: set[tuple[str, int, int]] = set()
        self._turns = Turns()
        self._start(f"serves {topic}", self._read, check_threads(threads))

    def counts(self) -> Counts:
        return self._ledger.total()

    # --- helpers ----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        receive, turns = self._channel.recv, self._turns
        turns.take()
        while not self.closed:
            try:
                query = receive()
            except Exception:  # undeclared, or the session is closed
                break
            began = turns.begin()
            try:
                self._answer(query)
            except BaseException:
                # Who asked is gone, or sent what nobody expects: the next one is to be answered all the same.
                _log.warning("service %r: an answer could not be given", self.topic, exc_info=True)
            finally:
                query.drop()
            turns.end(began)
        turns.leave()

    def _answer(self, query: Any) -> None:
        full_key = str(query.key_expr)
        key = full_key.removeprefix(self._prefix)
        payload = b"" if query.payload is None else bytes(query.payload)
        encoding = "" if query.encoding is None else str(query.encoding)
        attachment = query.attachment
        envelope = None if attachment is None else open_envelope(bytes(attachment))
        if not self._for_many and full_key != self._full_key:
            # Rules of access allow keys, and a wildcard may be allowed that includes a key which is not.
            self._ledger.note(key, "malformed", why="asked by a wildcard")
            return self._fail(query, "InvalidArgument", f"{self.topic!r} must be asked by its own key")
        if len(payload) > LARGEST_MESSAGE:
            self._ledger.note(key, "oversized", why=f"{len(payload):,} bytes")
            return self._fail(query, "InvalidArgument", f"{len(payload):,} bytes are more than is accepted")
        identity = None
        if envelope is not None and envelope.sequence != UNNUMBERED:
            identity = (envelope.node, envelope.incarnation, envelope.sequence)
        if identity is not None and (known := self._known(identity)) is not None:
            self._ledger.note(key, "repeated")
            return self._reply(query, *known)
        try:
            if query.payload is None and self._type is None:
                value = None
            else:
                value = decode(payload, encoding, type=self._type)
        except Undecodable as error:
            self._ledger.note(key, "malformed", why=error)
            self._forget(identity)
            return self._fail(query, "InvalidArgument", str(error))
        message = (
            Message(value, key, encoding=encoding)
            if envelope is None
            else Message(value, key, envelope.node, envelope.incarnation, envelope.sequence, envelope.step, encoding)
        )
        try:
            answer = encode(self._handler(message))
        except BaseException as error:  # also SystemExit: it is this thread's, not the program's
            self._ledger.note(key, "handler_errors", why=repr(error))
            self._forget(identity)
            return self._fail(query, type(error).__name__, str(error))
        self._ledger.note(key, "received")
        self._remember(identity, answer)
        return self._reply(query, *answer)

    def _reply(self, query: Any, payload: bytes, encoding: str) -> None:
        # Under its own key, by which whoever asked many at once tells them apart, and which rules of access allow.
        query.reply(self._key, payload, encoding=encoding, express=True)

    def _fail(self, query: Any, kind: str, text: str) -> None:
        query.reply_err(msgspec.msgpack.encode(_Failure(kind, text)), encoding="application/msgpack")

    # --- at most once -------------------------------------------------------------------------------------------

    def _known(self, identity: tuple[str, int, int]) -> tuple[bytes, str] | None:
        """The answer that was given to a question; one that is being answered is waited for."""
        with self._changed:
            while identity in self._under_way and not self.closed:
                self._changed.wait(0.5)
            if identity in self._answered:
                return self._answered[identity]
            self._under_way.add(identity)
            return None

    def _remember(self, identity: tuple[str, int, int] | None, answer: tuple[bytes, str]) -> None:
        if identity is None:
            return
        with self._changed:
            self._under_way.discard(identity)
            self._answered[identity] = answer
            self._answered_at.append(time.monotonic())
            self._answered_bytes += len(answer[0])
            while (
                len(self._answered) > _REMEMBERED
                or self._answered_bytes > _REMEMBERED_BYTES
                or self._answered_at[0] < self._answered_at[-1] - _REMEMBERED_S
            ):
                self._answered_at.popleft()
                _, oldest = self._answered.popitem(last=False)
                self._answered_bytes -= len(oldest[0])
            self._changed.notify_all()

    def _forget(self, identity: tuple[str, int, int] | None) -> None:
        if identity is not None:
            with self._changed:
                self._under_way.discard(identity)
                self._changed.notify_all()


def raise_failure(payload: bytes, where: str) -> None:
    """Raise what a service's handler raised."""
    try:
        failure = msgspec.msgpack.decode(payload, type=_Failure)
    except msgspec.MsgspecError:
        raise RequestFailed(f"{where} failed: {payload[:200]!r}") from None
    raise RequestFailed(f"{where} failed: {failure.kind}: {failure.text}", failure.kind)
