"""Distributed computing in one flat module, under the names that `torch.distributed` and its tutorials use.

Example::

    import neuraxis.distributed as dist

    with dist.DistributedContext():
        dist.all_reduce(array)

Every name is defined in `neuraxis.comm`, `neuraxis.rpc`, `neuraxis.training`, `neuraxis.cluster` or `neuraxis.gpu`, and
loads on first use. `default_pg_timeout` is the time after which a collective without an own timeout raises, and `group`
has the group of all ranks (`group.WORLD`), as in torch.
"""

# ruff: noqa: F405  (type checkers find the names of two star imports; tests/test_public_api.py checks them)

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = [
    "Backend",
    "Checkpointer",
    "Communicator",
    "CudaContext",
    "DaskCluster",
    "DataParallel",
    "DeviceMesh",
    "DistributedContext",
    "EarlyStop",
    "GroupMember",
    "Half",
    "NonMember",
    "P2POp",
    "ParameterServer",
    "ProcessGroup",
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
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "current_context",
    "current_rpc_context",
    "dask_to_tensor",
    "default_pg_timeout",
    "destroy_group",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_backend_config",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "gpu_to_tensor",
    "group",
    "init_device_mesh",
    "init_distributed",
    "init_process_group",
    "init_rpc",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_main_process",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "is_ucc_available",
    "is_xccl_available",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "partition",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "remote",
    "remote_object",
    "rpc_async",
    "rpc_sync",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "shard",
    "supports_complex",
    "tensor_to_dask",
    "tensor_to_gpu",
]

if TYPE_CHECKING:
    from neuraxis.cluster import DaskCluster, dask_to_tensor, tensor_to_dask
    from neuraxis.comm import (
        Communicator,
        DistributedContext,
        NonMember,
        ReduceOp,
        Work,
        current_context,
        init_distributed,
    )
    from neuraxis.comm.functions import *  # noqa: F403  (its __all__ is part of ours)
    from neuraxis.comm.process_groups import *  # noqa: F403  (its __all__ is part of ours)
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
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.cluster": [
                "DaskCluster", "dask_to_tensor", "tensor_to_dask",
            ],
            "neuraxis.comm": [
                "Communicator", "DistributedContext", "NonMember", "ReduceOp", "Work", "current_context",
                "init_distributed",
            ],
            "neuraxis.comm.functions": [
                "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object",
                "all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier",
                "broadcast", "broadcast_object_list", "destroy_group", "gather", "gather_object", "get_backend",
                "get_group_rank", "get_process_group_ranks", "get_rank", "get_world_size", "irecv", "is_initialized",
                "is_main_process", "isend", "new_group", "recv", "recv_object_list", "reduce", "reduce_scatter",
                "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
                "send_object_list",
            ],
            "neuraxis.comm.process_groups": [
                "Backend", "DeviceMesh", "GroupMember", "P2POp", "ProcessGroup", "batch_isend_irecv",
                "default_pg_timeout", "destroy_process_group", "get_backend_config", "get_default_backend_for_device",
                "get_global_rank", "get_node_local_rank", "get_pg_count", "group", "init_device_mesh",
                "init_process_group", "is_available", "is_backend_available", "is_gloo_available", "is_mpi_available",
                "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available",
                "monitored_barrier", "new_subgroups", "new_subgroups_by_enumeration", "reduce_op", "supports_complex",
            ],
            "neuraxis.gpu": [
                "CudaContext", "gpu_to_tensor", "tensor_to_gpu",
            ],
            "neuraxis.rpc": [
                "RemoteObject", "RpcContext", "RpcFuture", "current_rpc_context", "init_rpc", "remote", "remote_object",
                "rpc_async", "rpc_sync",
            ],
            "neuraxis.training": [
                "Checkpointer", "DataParallel", "EarlyStop", "Half", "ParameterServer", "ServerWorker", "ShardSampler",
                "SyncBatchNorm", "TopK", "Trainer", "partition", "shard",
            ],
        },
    )  # fmt: skip
