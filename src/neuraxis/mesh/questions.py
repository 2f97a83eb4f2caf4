"""What a node asks others: a question ends with an answer, or with an error that says why there is none."""

from __future__ import annotations

import itertools
import os
import time
from functools import lru_cache
from typing import Any

from neuraxis.errors import InvalidArgument, MeshError, NobodyServes, NodeGone, RequestTimeout
from neuraxis.mesh.codecs import Undecodable, decode, encode
from neuraxis.mesh.envelope import NO_STEP, seal_envelope
from neuraxis.mesh.keys import check_name, serve_key, status_key
from neuraxis.mesh.peers import Peer, Presence
from neuraxis.mesh.services import MOST_WAITING, UNNUMBERED, raise_failure
from neuraxis.mesh.sessions import Owned
from neuraxis.mesh.topology import LARGEST_MESSAGE

__all__ = ["Questions"]

_GONE_WAIT_S = 0.3  # the end of a question and the end of a presence come by two ways
_POLL_S = 2e-4  # quick answers come within this, and to wake a thread takes about as long


class Questions:
    """The questions of one node, `me`."""

    def __init__(self, owned: Owned, presence: Presence, mesh: str, me: Peer) -> None:
        self._owned = owned
        self._presence = presence
        self._mesh = mesh
        self._me = me
        self._name_bytes = me.name.encode()
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        return next(self._numbers)

    def ask(self, node: str, topic: str, value: Any, timeout: float, type: Any, again: int | None) -> Any:
        """See `Node.request`."""
        key = _question_key(self._mesh, node, topic)
        if not isinstance(timeout, int | float) or not 0 < timeout < 1e6:
            raise InvalidArgument(f"timeout={timeout!r}: a number of seconds is expected")
        if again is not None and (isinstance(again, bool) or not isinstance(again, int) or not 0 < again < 2**63):
            raise InvalidArgument(f"again={again!r}: a number that `next_question` gave is expected")
        self._owned.check()
        asked_before = False
        deadline = time.monotonic() + timeout
        while True:
            begun, before = time.monotonic(), self._presence.stay(node)
            reply = self._ask(key, value, deadline - begun, again or UNNUMBERED)
            late = reply is not None and _is_timeout(reply)
            if reply is not None and not late:
                return _open_reply(reply, f"{topic!r} of node {node!r}", type)
            self._owned.check()
            where = f"{topic!r} of node {node!r}"
            late = late or time.monotonic() > deadline - 0.1 * timeout
            if not self._stays(node, before, 0.0 if late else _GONE_WAIT_S / 3 if asked_before else _GONE_WAIT_S):
                raise NodeGone(f"{where} was asked, and no such node is on the mesh {self._mesh!r} (any more)", node)
            if late:
                raise RequestTimeout(f"{where} was asked, and did not answer within {timeout:g} s")
            if asked_before or time.monotonic() > deadline - 0.1 * timeout:
                raise NobodyServes(
                    f"node {node!r} is there, but does not serve {topic!r} (or has {MOST_WAITING:,} others to answer)"
                )
            # What a service is asked, it answers. So nobody was asked: perhaps what it serves was not yet known here.
            asked_before = True

    def ask_status(self, names: set[str], timeout: float) -> dict[tuple[str, int], dict[str, Any]]:
        """What nodes of these names say of themselves, by name and life."""
        begun = time.monotonic()
        said = self._ask_all_status(timeout, names)
        # Those that came this moment may be known before their answers can be asked for.
        while names - {name for name, _ in said} and time.monotonic() < begun + min(timeout, _GONE_WAIT_S):
            time.sleep(0.01)
            said |= self._ask_all_status(max(0.01, begun + timeout - time.monotonic()), names)
        return said

    # --- helpers ----------------------------------------------------------------------------------------------

    def _ask(self, key: str, value: Any, timeout: float, number: int) -> Any:
        """Send a question; the first reply, None where there is none."""
        import zenoh

        self._owned.check()
        payload, encoding = encode(value)
        if len(payload) > LARGEST_MESSAGE:
            raise InvalidArgument(f"{key}: {len(payload):,} bytes; a question has {LARGEST_MESSAGE:,} at most")
        with self._owned as session:
            replies = session.get(
                key,
                zenoh.handlers.FifoChannel(4),
                payload=payload,
                encoding=encoding,
                attachment=seal_envelope(self._name_bytes, self._me.incarnation, number, NO_STEP),
                timeout=timeout,
                consolidation=zenoh.ConsolidationMode.NONE,
                congestion_control=zenoh.CongestionControl.BLOCK,
                express=True,
            )
        try:
            poll_until = time.monotonic() + _POLL_S
            while time.monotonic() < poll_until:
                reply = replies.try_recv()
                if reply is not None:
                    return reply
                os.sched_yield()
            return replies.recv()
        except zenoh.ZError:
            return None  # the query has ended without a reply

    def _stays(self, node: str, before: Any, wait_s: float) -> bool:
        """Whether a node is here, and has been since. A presence that is being withdrawn is seen a moment later."""
        deadline = time.monotonic() + wait_s
        while True:
            now = self._presence.stay(node)
            if node != self._me.name and (now is None or (before is not None and now != before)):
                return False
            if time.monotonic() >= deadline:
                return True
            time.sleep(0.01)

    def _ask_all_status(self, timeout: float, names: set[str]) -> dict[tuple[str, int], dict[str, Any]]:
        import zenoh

        with self._owned as session:
            replies = session.get(
                status_key(self._mesh),
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
                name = str(reply.ok.key_expr).removeprefix(status_key(self._mesh, ""))
                status = decode(bytes(reply.ok.payload), str(reply.ok.encoding))
                said[name, int(status["incarnation"])] = status
            except (Undecodable, AttributeError, KeyError, TypeError, ValueError):
                continue
        return said


@lru_cache(maxsize=1000)
def _question_key(mesh: str, node: str, topic: str) -> str:
    return serve_key(mesh, check_name(node, "node"), check_name(topic, "topic"))


def _open_reply(reply: Any, where: str, type: Any) -> Any:
    answer = reply.ok
    if answer is None:
        raise_failure(bytes(reply.err.payload), where)
    try:
        return decode(bytes(answer.payload), str(answer.encoding), type=type)
    except Undecodable as error:
        raise MeshError(f"the answer of {where} cannot be read: {error}") from None


def _is_timeout(reply: Any) -> bool:
    """Whether a reply is Zenoh's own word for the end of a question's time."""
    return reply.ok is None and bytes(reply.err.payload) == b"Timeout"
