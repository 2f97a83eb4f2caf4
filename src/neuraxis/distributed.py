"""The flat facade: distributed computing under the names that `torch.distributed` and its tutorials use.

import neuraxis.distributed as dist

with dist.DistributedContext():
    dist.all_reduce(array)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuraxis import gpu, training
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
    from neuraxis.gpu import CudaContext, gpu_to_tensor, tensor_to_gpu
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

# Training needs torch, which takes seconds to load, and these load it when they are used.
_TRAINING = (
    "Checkpointer",
    "DataParallel",
    "EarlyStop",
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
# CUDA needs CuPy, and tells so when it is used.
_GPU = ("CudaContext", "gpu_to_tensor", "tensor_to_gpu")

__all__ = [
    "Checkpointer",
    "Communicator",
    "CudaContext",
    "DataParallel",
    "DistributedContext",
    "EarlyStop",
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
    "gpu_to_tensor",
    "init_distributed",
    "partition",
    "shard",
    "tensor_to_gpu",
    *functions.__all__,
]


def __getattr__(name: str) -> Any:
    if name in _TRAINING:
        return getattr(training, name)
    if name in _GPU:
        return getattr(gpu, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
