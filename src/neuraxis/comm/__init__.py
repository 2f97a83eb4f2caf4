"""Ranks that move together: a fixed group, collectives, lockstep.

`DistributedContext` makes this process a rank; `Communicator` is a group of ranks; the functions of
`neuraxis.distributed` are its methods, flat. A `Backend` moves the data: `shm` between the processes of one host,
`gloo` and `nccl` through torch, `mpi` through mpi4py, `local` for one rank. Every name loads when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraxis.lazy import loads_lazily

if TYPE_CHECKING:
    from neuraxis.comm.communicator import Communicator
    from neuraxis.comm.context import BACKENDS, DistributedContext, current_context, init_distributed
    from neuraxis.comm.nonmember import NonMember
    from neuraxis.comm.reduction import ReduceOp
    from neuraxis.comm.work import Work

__all__ = [
    "BACKENDS",
    "Communicator",
    "DistributedContext",
    "NonMember",
    "ReduceOp",
    "Work",
    "current_context",
    "init_distributed",
]

__getattr__ = loads_lazily(
    __name__,
    {
        "BACKENDS": "context",
        "Communicator": "communicator",
        "DistributedContext": "context",
        "NonMember": "nonmember",
        "ReduceOp": "reduction",
        "Work": "work",
        "current_context": "context",
        "init_distributed": "context",
    },
)
