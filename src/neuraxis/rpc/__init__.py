"""Remote procedure calls to other ranks or nodes, and references to objects that stay in the process that created them.

Example::

    @remote
    def classify(image): ...

    with RpcContext(name="server"):
        ...                                         # serves calls until the context is closed

    with RpcContext(name="client"):
        label = rpc_sync("server", "classify", image)
        future = rpc_async("server", "classify", image)

One layer implements calls (`context`, `calls`, `server`); small transports carry them: Zenoh, a group of ranks, or
torch's TensorPipe; `BACKENDS` lists their names. Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from neuraxis.rpc.context import (
        BACKENDS,
        RpcContext,
        current_rpc_context,
        init_rpc,
        remote_object,
        rpc_async,
        rpc_sync,
    )
    from neuraxis.rpc.future import RpcFuture
    from neuraxis.rpc.handles import RemoteObject
    from neuraxis.rpc.registry import remote
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.rpc.context": [
                "BACKENDS",
                "RpcContext",
                "current_rpc_context",
                "init_rpc",
                "remote_object",
                "rpc_async",
                "rpc_sync",
            ],
            "neuraxis.rpc.future": ["RpcFuture"],
            "neuraxis.rpc.handles": ["RemoteObject"],
            "neuraxis.rpc.registry": ["remote"],
        },
    )
