"""The flat facade: distributed computing under the names that `torch.distributed` and its tutorials use.

import neuraxis.distributed as dist

with dist.DistributedContext():
    dist.all_reduce(array)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuraxis import rpc, training
from neuraxis.comm import (
    Communicator,
    DistributedContext,
    NonMember,
    ReduceOp,
    Work,
    current_context,
    functions,
    init_distributed,
)
from neuraxis.comm.functions import *  # noqa: F403  (its __all__ is the list of patterns)

if TYPE_CHECKING:
    from neuraxis.rpc import (
        RemoteObject,
        RpcContext,
        RpcFuture,
        current_rpc_context,
        init_rpc,
        remote,
        remote_object,
        rpc_async,
        rpc_sync,
    )
    from neuraxis.training import (
        Checkpointer,
        DataParallel,
        Half,
        ParameterServer,
        ServerWorker,
        ShardSampler,
        SyncBatchNorm,
        TopK,
        Trainer,
        partition,
        shard,
    )

# Remote calls need Zenoh, and training torch, which takes seconds to load: these load when they are used.
_RPC = (
    "RemoteObject",
    "RpcContext",
    "RpcFuture",
    "current_rpc_context",
    "init_rpc",
    "remote",
    "remote_object",
    "rpc_async",
    "rpc_sync",
)
_TRAINING = (
    "Checkpointer",
    "DataParallel",
    "Half",
    "ParameterServer",
    "ServerWorker",
    "ShardSampler",
    "SyncBatchNorm",
    "TopK",
    "Trainer",
    "partition",
    "shard",
)

__all__ = [
    "Checkpointer",
    "Communicator",
    "DataParallel",
    "DistributedContext",
    "Half",
    "NonMember",
    "ParameterServer",
    "ReduceOp",
    "RemoteObject",
    "RpcContext",
    "RpcFuture",
    "ServerWorker",
    "ShardSampler",
    "SyncBatchNorm",
    "TopK",
    "Trainer",
    "Work",
    "current_context",
    "current_rpc_context",
    "init_distributed",
    "init_rpc",
    "partition",
    "remote",
    "remote_object",
    "rpc_async",
    "rpc_sync",
    "shard",
    *functions.__all__,
]


def __getattr__(name: str) -> Any:
    if name in _RPC:
        return getattr(rpc, name)
    if name not in _TRAINING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(training, name)
