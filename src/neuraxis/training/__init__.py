"""Distributed training with torch: several ranks train one model, with the result of one process.

- `DataParallel` wraps a module; `SyncBatchNorm`, `TopK` and `Half` go with it.
- `shard` distributes a data set over the ranks, `Checkpointer` saves and restores, `Trainer` is a complete loop.
- `ParameterServer` and `ServerWorker` train over nodes that come and go.
- `partition` splits a model that is too large for one rank into pipeline stages.

Each name is imported, and torch with it, when it is first used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

__all__ = [
    "Capacity",
    "Checkpointer",
    "DataParallel",
    "EarlyStop",
    "Half",
    "Mean",
    "ParameterServer",
    "Pipeline",
    "RpcChannel",
    "ServerWorker",
    "ShardLoader",
    "ShardSampler",
    "SyncBatchNorm",
    "TopK",
    "Traffic",
    "Trainer",
    "partition",
    "shard",
]

if TYPE_CHECKING:
    from neuraxis.training.checkpoint.checkpointer import Checkpointer
    from neuraxis.training.data.loader import ShardLoader, shard
    from neuraxis.training.data.sampler import ShardSampler
    from neuraxis.training.parallel.compression import Half, TopK, Traffic
    from neuraxis.training.parallel.data_parallel import DataParallel
    from neuraxis.training.parallel.sync_batch_norm import SyncBatchNorm
    from neuraxis.training.pipeline.partitioning import partition
    from neuraxis.training.pipeline.pipeline import Pipeline
    from neuraxis.training.pipeline.planning import Capacity
    from neuraxis.training.server.channel import RpcChannel
    from neuraxis.training.server.parameter_server import ParameterServer
    from neuraxis.training.server.worker import ServerWorker
    from neuraxis.training.trainer import EarlyStop, Mean, Trainer
else:
    from neuraxis.imports import lazy_names, require

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.training.checkpoint.checkpointer": ["Checkpointer"],
            "neuraxis.training.data.loader": ["ShardLoader", "shard"],
            "neuraxis.training.data.sampler": ["ShardSampler"],
            "neuraxis.training.parallel.compression": ["Half", "TopK", "Traffic"],
            "neuraxis.training.parallel.data_parallel": ["DataParallel"],
            "neuraxis.training.parallel.sync_batch_norm": ["SyncBatchNorm"],
            "neuraxis.training.pipeline.partitioning": ["partition"],
            "neuraxis.training.pipeline.pipeline": ["Pipeline"],
            "neuraxis.training.pipeline.planning": ["Capacity"],
            "neuraxis.training.server.channel": ["RpcChannel"],
            "neuraxis.training.server.parameter_server": ["ParameterServer"],
            "neuraxis.training.server.worker": ["ServerWorker"],
            "neuraxis.training.trainer": ["EarlyStop", "Mean", "Trainer"],
        },
        require=partial(require, "torch", extra="torch", purpose="neuraxis.training"),
    )
