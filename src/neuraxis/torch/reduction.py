"""torch's reduce operations as ours."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from neuraxis.comm.reduction import ReduceOp
from neuraxis.errors import InvalidType

__all__ = ["reduce_op_of"]

_OPERATIONS = {
    kind: ReduceOp[name] for name, kind in dist.ReduceOp.RedOpType.__members__.items() if name in ReduceOp.__members__
}


def reduce_op_of(options: Any) -> ReduceOp:
    """The reduction that the options of a call ask for."""
    kind = options.reduceOp.op
    op = _OPERATIONS.get(kind)
    if op is None:
        raise InvalidType(
            f"the reduction {kind.name} is not defined on backend shm; it has "
            f"{', '.join(op.name for op in ReduceOp)} (for PREMUL_SUM: multiply, then use SUM)"
        )
    return op
