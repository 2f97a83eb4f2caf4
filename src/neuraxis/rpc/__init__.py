"""Call a registered function on another rank or node, and hold objects that stay where they are.

    @remote
    def classify(image): ...

    with RpcContext(name="server"):
        ...                                         # serves until it is shut down

    with RpcContext(name="client"):
        label = rpc_sync("server", "classify", image)
        future = rpc_async("server", "classify", image)

One layer says what a call means (`context`, `server`); small transports carry it: Zenoh, a group of ranks, or torch's
TensorPipe. Every name loads when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraxis.lazy import loads_lazily

if TYPE_CHECKING:
    from neuraxis.rpc.context import BACKENDS, RpcContext
    from neuraxis.rpc.functions import current_rpc_context, init_rpc, remote_object, rpc_async, rpc_sync
    from neuraxis.rpc.future import RpcFuture
    from neuraxis.rpc.handles import RemoteObject
    from neuraxis.rpc.registry import remote

__all__ = [
    "BACKENDS",
    "RemoteObject",
    "RpcContext",
    "RpcFuture",
    "current_rpc_context",
    "init_rpc",
    "remote",
    "remote_object",
    "rpc_async",
    "rpc_sync",
]

__getattr__ = loads_lazily(
    __name__,
    {
        "BACKENDS": "context",
        "RemoteObject": "handles",
        "RpcContext": "context",
        "RpcFuture": "future",
        "current_rpc_context": "functions",
        "init_rpc": "functions",
        "remote": "registry",
        "remote_object": "functions",
        "rpc_async": "functions",
        "rpc_sync": "functions",
    },
)
