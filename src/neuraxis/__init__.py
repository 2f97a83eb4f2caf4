"""neuraxis: a distributed runtime for brains and neural networks.

One description runs in one process, on every core, on a cluster in lockstep, on GPUs, or on a network of nodes that
come and go, and gives the same spikes everywhere, bit for bit.

The packages, and the names that most programs need:

========================  =====================================================================
`neuraxis.network`        describe spiking networks: `Network`, `neuron_model`
`neuraxis.simulation`     run them: `Simulation`
`neuraxis.brain`          brains of regions and pathways: `Brain`, `BrainBuilder`
`neuraxis.comm`           collectives between ranks: `DistributedContext`, `init_distributed`
`neuraxis.launch`         start processes: `launch.run`
`neuraxis.mesh`           nodes that come and go: `Node`, `Topology`
`neuraxis.rpc`            remote calls: `RpcContext`
`neuraxis.training`       train one torch model on several ranks: `DataParallel`
`neuraxis.torch`          the shared-memory backend for `torch.distributed`
`neuraxis.cluster`        data processing on Dask
`neuraxis.gpu`            CUDA kernels and arrays
`neuraxis.report`         statistics of spike trains
`neuraxis.distributed`    one flat module, under the names of `torch.distributed`
`neuraxis.errors`         every error, below `NeuraxisError`
========================  =====================================================================

`import neuraxis` imports none of them; each loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraxis.version import __version__

__all__ = [
    "Brain",
    "BrainBuilder",
    "DataParallel",
    "DistributedContext",
    "Network",
    "NeuraxisError",
    "Node",
    "RpcContext",
    "Simulation",
    "Topology",
    "__version__",
    "brain",
    "cluster",
    "comm",
    "distributed",
    "errors",
    "gpu",
    "init_distributed",
    "launch",
    "mesh",
    "network",
    "neuron_model",
    "report",
    "rpc",
    "simulation",
    "torch",
    "training",
]

if TYPE_CHECKING:
    from neuraxis import (
        brain,
        cluster,
        comm,
        distributed,
        errors,
        gpu,
        launch,
        mesh,
        network,
        report,
        rpc,
        simulation,
        torch,
        training,
    )
    from neuraxis.brain import Brain, BrainBuilder
    from neuraxis.comm import DistributedContext, init_distributed
    from neuraxis.errors import NeuraxisError
    from neuraxis.mesh import Node, Topology
    from neuraxis.network import Network, neuron_model
    from neuraxis.rpc import RpcContext
    from neuraxis.simulation import Simulation
    from neuraxis.training import DataParallel
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.brain": ["Brain", "BrainBuilder"],
            "neuraxis.comm": ["DistributedContext", "init_distributed"],
            "neuraxis.errors": ["NeuraxisError"],
            "neuraxis.mesh": ["Node", "Topology"],
            "neuraxis.network": ["Network", "neuron_model"],
            "neuraxis.rpc": ["RpcContext"],
            "neuraxis.simulation": ["Simulation"],
            "neuraxis.training": ["DataParallel"],
        },
        modules=[
            "brain", "cluster", "comm", "distributed", "errors", "gpu", "launch", "mesh", "network", "report", "rpc",
            "simulation", "torch", "training",
        ],
    )  # fmt: skip
