"""A parameter server and its workers as parties of remote calls, over any backend of those."""

from __future__ import annotations

import time
from typing import Any

from neuraxis.errors import CalleeDied, CalleeGone, CallTimeout, NodeGone, RequestTimeout, UnknownFunction
from neuraxis.rpc import RpcContext
from neuraxis.training.channel import Handler, PieceChannel

__all__ = ["RpcChannel"]

_REGISTER_S = 10.0  # a party can be called before it has registered what it serves
_AGAIN_S = 0.02


class RpcChannel(PieceChannel):
    """A party of an RPC context, which stays open when the channel is closed.

    What is asked is served by the threads of the context: a server needs one for each worker, and one more.
    """

    def __init__(self, context: RpcContext) -> None:
        super().__init__()
        self._context = context
        self.name = context.name

    def announce(self) -> None:
        pass  # it is seen since its context was initialized

    def here(self, name: str) -> bool:
        return name in self._context.names()

    def wait_for(self, name: str, timeout: float) -> bool:
        return not self._context.wait_for([name], timeout)

    def close(self) -> None:
        pass

    def _listen(self, topic: str, handler: Handler, threads: int) -> None:
        self._context.register_function(topic, handler)

    def _ask(self, to: str, topic: str, value: Any, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        patient_until = min(deadline, time.monotonic() + _REGISTER_S)
        while True:
            try:
                left = max(1e-3, deadline - time.monotonic())
                return self._context.call(to, topic, [value], timeout=left)
            except UnknownFunction:
                if time.monotonic() > patient_until:
                    raise
                time.sleep(_AGAIN_S)
            except (CalleeGone, CalleeDied) as error:
                raise NodeGone(str(error), to) from error
            except CallTimeout as error:
                raise RequestTimeout(str(error)) from error
