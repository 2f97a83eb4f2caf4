"""The flat facade: distributed computing under the names that `torch.distributed` and its tutorials use.

import neuraxis.distributed as dist

with dist.DistributedContext():
    dist.all_reduce(array)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuraxis import cluster, gpu, rpc, training
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
    from neuraxis.cluster import DaskCluster, dask_to_tensor, tensor_to_dask
    from neuraxis.gpu import CudaContext, gpu_to_tensor, tensor_to_gpu
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
        EarlyStop,
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

__all__ = [
    "Checkpointer",
    "Communicator",
    "CudaContext",
    "DaskCluster",
    "DataParallel",
    "DistributedContext",
    "EarlyStop",
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
    "dask_to_tensor",
    "gpu_to_tensor",
    "init_distributed",
    "init_rpc",
    "partition",
    "remote",
    "remote_object",
    "rpc_async",
    "rpc_sync",
    "shard",
    "tensor_to_dask",
    "tensor_to_gpu",
    *functions.__all__,
]


def __getattr__(name: str) -> Any:
    # What needs torch, Zenoh, Dask or CuPy, which take seconds to load, is loaded when it is used.
    if name in __all__:
        for package in (training, rpc, cluster, gpu):
            if name in package.__all__:
                return getattr(package, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
