"""The flat facade: distributed computing under the names that `torch.distributed` and its tutorials use.

import neuraxis.distributed as dist

with dist.DistributedContext():
    dist.all_reduce(array)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuraxis import training
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

__all__ = [
    "Checkpointer",
    "Communicator",
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
    "init_distributed",
    "partition",
    "shard",
    *functions.__all__,
]


def __getattr__(name: str) -> Any:
    if name not in _TRAINING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(training, name)
