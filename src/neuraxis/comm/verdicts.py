"""What went wrong in shared memory, said as an error: who is lost, who is late, who made another call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuraxis.comm import kernels, presence
from neuraxis.comm.backend import Operation, describe_call
from neuraxis.comm.liveness import Ending
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.errors import CollectiveMismatch, CollectiveTimeout, NeuraxisError, PeerLost

__all__ = ["FAILED", "LEFT", "PRESENT", "Verdicts"]

# What a rank says of itself in its control block.
PRESENT, LEFT, FAILED = 0, 1, 2


class Verdicts:
    """Makes the errors of one rank of one group, from the kernels' state and what the others have published."""

    def __init__(self, state: np.ndarray, rank: int, world_ranks: Sequence[int], label: str) -> None:
        self._state = state
        self._address = int(state.ctypes.data)
        self._rank = rank
        self._world_ranks = world_ranks
        self._label = label

    def lost(self, what: str, rank: int, status: int, ending: Ending | None) -> PeerLost:
        sequence = int(self._state[kernels.SEQUENCE])
        if status == FAILED:
            how = "gave up on this group after an error of its own"
        elif status == LEFT:
            how = "has shut down its context" + (f" and {ending}" if ending is not None else "")
        else:
            how = str(ending)
        ending = ending or Ending()
        return PeerLost(
            f"rank {self._world_ranks[rank]} {how}; noticed in {what}, operation {sequence} of the {self._label}. "
            "Shut this context down; a new one can be started with the ranks that are left",
            rank=self._world_ranks[rank],
            exit_code=ending.exit_code,
            signal=ending.signal,
            operation=what,
            sequence=sequence,
            reason=how,
        )

    def timeout(self, what: str, missing: list[int], timeout: float) -> CollectiveTimeout:
        sequence = int(self._state[kernels.SEQUENCE])
        ranks = [self._world_ranks[rank] for rank in missing]
        names = ", ".join(map(str, ranks))
        return CollectiveTimeout(
            f"rank{'s' if len(ranks) > 1 else ''} {names} did not arrive within {timeout:g} s: alive, but stopped, "
            f"stuck or elsewhere; waited for in {what}, operation {sequence} of the {self._label}",
            rank=ranks[0],
            operation=what,
            sequence=sequence,
        )

    def mismatch(self) -> NeuraxisError:
        rank = int(self._state[kernels.WAIT_RANK])
        mine = self._call_of(self._rank)
        theirs = self._call_of(rank)
        sequence = int(self._state[kernels.SEQUENCE])
        me, other = self._world_ranks[self._rank], self._world_ranks[rank]
        detail = ""
        if mine == theirs:
            sends, expects = presence.lengths_of(self._address, rank)
            detail = f" (it sends this rank {sends} bytes and expects {expects} from it)"
        return CollectiveMismatch(
            f"rank {other} called {theirs}{detail} while rank {me} called {mine}: "
            f"operation {sequence} of the {self._label}. "
            "All ranks of a group must make the same calls in the same order",
            rank=other,
            mine=mine,
            theirs=theirs,
        )

    def _call_of(self, rank: int) -> str:
        signature, count = presence.header_of(self._address, rank)
        root = (signature >> 24) - 1
        return describe_call(
            Operation(signature & 0xFF),
            ElementType(signature >> 8 & 0xFF),
            ReduceOp(signature >> 16 & 0xFF),
            self._world_ranks[root] if root >= 0 else -1,
            count,
        )
