"""The flat facade: distributed computing under the names that `torch.distributed` and its tutorials use.

import neuraxis.distributed as dist

with dist.DistributedContext():
    dist.all_reduce(array)
"""

from __future__ import annotations

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

__all__ = [
    "Communicator",
    "DistributedContext",
    "NonMember",
    "ReduceOp",
    "Work",
    "current_context",
    "init_distributed",
    *functions.__all__,
]
