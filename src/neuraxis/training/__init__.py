"""Learning together: several ranks train one model, and the result is that of one process.

`DataParallel` wraps a module; `SyncBatchNorm`, `TopK` and `Half` are parts for it. `shard` deals out a data set,
`Checkpointer` saves and resumes, `Trainer` is a loop for those who want one. `ParameterServer` with `ServerWorker`
trains over nodes that come and go; `partition` cuts a model that is too large for one rank. Every name loads when it
is used, and torch with it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from neuraxis.errors import BackendUnavailable

if TYPE_CHECKING:
    from neuraxis.training.capacity import Capacity
    from neuraxis.training.checkpointer import Checkpointer
    from neuraxis.training.compression import Half, TopK, Traffic
    from neuraxis.training.data_parallel import DataParallel
    from neuraxis.training.metrics import Mean
    from neuraxis.training.parameter_server import ParameterServer
    from neuraxis.training.partitioning import partition
    from neuraxis.training.pipeline import Pipeline
    from neuraxis.training.rpc_channel import RpcChannel
    from neuraxis.training.sampler import ShardSampler
    from neuraxis.training.server_worker import ServerWorker
    from neuraxis.training.sharding import ShardLoader, shard
    from neuraxis.training.sync_batch_norm import SyncBatchNorm
    from neuraxis.training.trainer import EarlyStop, Trainer

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

_HOMES = {
    "Capacity": "capacity",
    "Checkpointer": "checkpointer",
    "DataParallel": "data_parallel",
    "EarlyStop": "trainer",
    "Half": "compression",
    "Mean": "metrics",
    "ParameterServer": "parameter_server",
    "Pipeline": "pipeline",
    "RpcChannel": "rpc_channel",
    "ServerWorker": "server_worker",
    "ShardLoader": "sharding",
    "ShardSampler": "sampler",
    "SyncBatchNorm": "sync_batch_norm",
    "TopK": "compression",
    "Traffic": "compression",
    "Trainer": "trainer",
    "partition": "partitioning",
    "shard": "sharding",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec("torch") is None:
        raise BackendUnavailable("training", "torch is not installed", "pip install 'neuraxis[torch]'")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
