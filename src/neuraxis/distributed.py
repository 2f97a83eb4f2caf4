"""The flat facade: distributed computing under the names that `torch.distributed` and its tutorials use.

import neuraxis.distributed as dist

with dist.DistributedContext():
    dist.all_reduce(array)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuraxis import cluster, training
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

# Training needs torch, which takes seconds to load, and these load it when they are used.
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
# The same holds for Dask.
_CLUSTER = ("DaskCluster", "dask_to_tensor", "tensor_to_dask")

__all__ = [
    "Checkpointer",
    "Communicator",
    "DaskCluster",
    "DataParallel",
    "DistributedContext",
    "Half",
    "NonMember",
    "ParameterServer",
    "ReduceOp",
    "ServerWorker",
    "ShardSampler",
    "SyncBatchNorm",
    "TopK",
    "Trainer",
    "Work",
    "current_context",
    "dask_to_tensor",
    "init_distributed",
    "partition",
    "shard",
    "tensor_to_dask",
    *functions.__all__,
]


def __getattr__(name: str) -> Any:
    if name in _TRAINING:
        return getattr(training, name)
    if name in _CLUSTER:
        return getattr(cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
