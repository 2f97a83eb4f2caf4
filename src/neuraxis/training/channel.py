"""How a parameter server and its workers talk: named parties that ask each other.

`Channel` is what they need of a way of communicating. The mesh fills it here, remote calls in `rpc_channel`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from neuraxis.errors import NodeGone
from neuraxis.mesh import Node
from neuraxis.training.pieces import Pieces, restored, taken_apart

__all__ = ["Channel", "Handler", "MeshChannel", "PieceChannel"]

_PIECE_BYTES = 8 << 20
_PUT, _GET = "training/put", "training/get"
_RETURN_S = 3.0  # one that was out of sight for a moment, or to which we were, is seen again within this

Handler = Callable[[dict[str, Any]], Any]


class Channel(Protocol):
    """One party's end. Values are plain data and tensors; nothing is pickled."""

    name: str

    def serve(self, topic: str, handler: Handler, threads: int) -> None:
        """Answer what others ask under a topic; `threads` of them at the same time."""

    def announce(self) -> None:
        """Let the others see this party: all that it serves is in place."""

    def call(self, to: str, topic: str, value: dict[str, Any], timeout: float) -> Any:
        """Ask another party, once.

        Raises NodeGone if it is not there or goes for good, RequestTimeout if it takes too long, and if its handler
        raised RequestFailed, or the same error. A connection that is lost for a moment is not an error, and nothing is
        carried out twice.
        """

    def here(self, name: str) -> bool:
        """Whether a party is there, as far as is known; one that has died is not, after a second or so."""

    def wait_for(self, name: str, timeout: float) -> bool:
        """Wait until a party is there; whether it is."""

    def close(self) -> None:
        """Leave."""


class PieceChannel(ABC):
    """What channels share whose messages have a largest size: tensors beyond `piece_bytes` travel in pieces.

    The way itself is `_listen` and `_ask`.
    """

    def __init__(self, piece_bytes: int = _PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._asked = Pieces()  # of questions that are still to come
        self._answered = Pieces()  # of answers that were given
        self._serves_pieces = False

    def serve(self, topic: str, handler: Handler, threads: int) -> None:
        def answer(question: dict[str, Any]) -> Any:
            result = handler(restored(question, self._asked.take))
            return taken_apart(result, self._piece_bytes, self._answered.keep)

        if not self._serves_pieces:
            self._serves_pieces = True
            self._listen(_PUT, lambda one: self._asked.keep(one["token"], one["piece"]), 4)
            self._listen(_GET, lambda one: self._answered.take(one["token"]), 4)
        self._listen(topic, answer, threads)

    def call(self, to: str, topic: str, value: dict[str, Any], timeout: float) -> Any:
        question = taken_apart(
            value,
            self._piece_bytes,
            lambda token, piece: self._ask(to, _PUT, {"token": token, "piece": piece}, timeout),
        )
        answer = self._ask(to, topic, question, timeout)
        return restored(answer, lambda token: self._ask(to, _GET, {"token": token}, timeout))

    @abstractmethod
    def _listen(self, topic: str, handler: Handler, threads: int) -> None: ...

    @abstractmethod
    def _ask(self, to: str, topic: str, value: Any, timeout: float) -> Any: ...


class MeshChannel(PieceChannel):
    """A node of a mesh. One that is given stays open when the channel is closed."""

    def __init__(
        self, name: str, mesh: str = "default", *, node: Node | None = None, piece_bytes: int = _PIECE_BYTES
    ) -> None:
        super().__init__(piece_bytes)
        self._owns = node is None
        self._node = node or Node(name, role="training", mesh=mesh, announce=False)
        self.name = self._node.name

    def announce(self) -> None:
        self._node.announce()

    def here(self, name: str) -> bool:
        return self._node.peer(name) is not None

    def wait_for(self, name: str, timeout: float) -> bool:
        return not self._node.wait_for([name], timeout)

    def close(self) -> None:
        if self._owns:
            self._node.close()

    def _listen(self, topic: str, handler: Handler, threads: int) -> None:
        self._node.serve(topic, lambda message: handler(message.value), type=dict, threads=threads)

    def _ask(self, to: str, topic: str, value: Any, timeout: float) -> Any:
        """Ask, and ask again when the other one is back: after a pause of either process the link is made anew."""
        number = self._node.next_question()
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return self._node.request(to, topic, value, max(left, 1e-3), again=number)
            except NodeGone:
                if left <= 0 or self._node.wait_for([to], min(left, _RETURN_S)):
                    raise
