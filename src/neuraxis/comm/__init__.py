"""Collectives: a fixed group of ranks that call the same operations in the same order.

`DistributedContext` makes this process a rank; `Communicator` is a group of ranks; the functions of
`neuraxis.distributed` call its methods. A `Backend` moves the data: `shm` between the processes of one host, `gloo` and
`nccl` through torch, `mpi` through mpi4py, `local` for one rank; `BACKENDS` lists the names. Every
name loads on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from neuraxis.comm.backends.base import NonMember
    from neuraxis.comm.communicator import Communicator
    from neuraxis.comm.context import BACKENDS, DistributedContext, current_context, init_distributed
    from neuraxis.comm.operations import Work
    from neuraxis.comm.reduction import ReduceOp
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.comm.backends.base": ["NonMember"],
            "neuraxis.comm.communicator": ["Communicator"],
            "neuraxis.comm.context": ["BACKENDS", "DistributedContext", "current_context", "init_distributed"],
            "neuraxis.comm.operations": ["Work"],
            "neuraxis.comm.reduction": ["ReduceOp"],
        },
    )
