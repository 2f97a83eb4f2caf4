"""Questions to this node, answered by threads that take turns.

Not a `mesh` service: between a question and its answer there is nothing here that a call does not need, because each
line of Python on the way adds to the time of every call.
"""

from __future__ import annotations

import logging
from typing import Any

from neuraxis.mesh.declared import Declared
from neuraxis.mesh.services import MOST_WAITING
from neuraxis.mesh.turns import Turns
from neuraxis.rpc.transport import Answer

__all__ = ["Answering"]

_log = logging.getLogger("neuraxis.rpc")


class Answering(Declared):
    """Answers what is asked under a key with `answer`. Where too many wait, the oldest ends without an answer."""

    def __init__(self, session: Any, key: str, answer: Answer, threads: int) -> None:
        import zenoh

        super().__init__(session.declare_queryable(key, zenoh.handlers.RingChannel(MOST_WAITING), complete=True))
        self._key = self._declared.key_expr
        self._key_text = key
        self._answer = answer
        self._turns = Turns()
        self._start("rpc", self._read, threads)

    def add_thread(self) -> None:
        if not self.closed:
            self._start("rpc", self._read)

    def _read(self) -> None:
        receive, turns = self._declared.handler.recv, self._turns
        turns.take()
        while not self.closed:
            try:
                query = receive()
            except Exception:  # undeclared, or the session is closed
                break
            began = turns.begin()
            try:
                # Rules of access allow keys, and a wildcard may be allowed that includes a key which is not.
                if str(query.key_expr) == self._key_text and query.payload is not None:
                    query.reply(self._key, self._answer(query.payload.to_bytes()), express=True)
                else:
                    query.reply_err("a call must be asked by its own key")
            except BaseException:
                # Who asked is gone: the next one is to be answered all the same.
                _log.warning("rpc: an answer could not be given", exc_info=True)
            finally:
                query.drop()
            turns.end(began)
        turns.leave()
