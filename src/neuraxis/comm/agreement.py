"""Whether all ranks make the same call, for transports that do not notice by themselves.

gloo aborts the process and MPI hangs or garbles when ranks disagree. So before each collective the ranks compare
what they are about to do: operation, element type, reduction, root, and the bytes between each pair. It costs one
small all-gather; `DistributedContext(check_calls=False)` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from neuraxis.comm.backend import Operation, describe_call
from neuraxis.comm.buffers import Buffer
from neuraxis.comm.reduction import ElementType, ReduceOp
from neuraxis.errors import CollectiveMismatch

__all__ = ["Agreement"]

_CALL_WORDS = 5  # operation, element, reduction, root, count
# Those in which the whole call is the same on every rank; in the others each pair has lengths of its own.
_UNIFORM = (Operation.BARRIER, Operation.REDUCE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER)

AllGatherWords = Callable[[np.ndarray], np.ndarray]
"""Hands in this rank's int64 words; everybody's, one row a rank."""


class Agreement:
    """Compares calls over `all_gather_words`; `world_ranks` name the ranks in errors."""

    def __init__(self, rank: int, world_ranks: Sequence[int], all_gather_words: AllGatherWords, enabled: bool) -> None:
        self._rank = rank
        self._world_ranks = world_ranks
        self._all_gather_words = all_gather_words
        self._enabled = enabled
        self.sequence = -1

    def check(
        self,
        operation: Operation,
        example: Buffer | None = None,
        op: ReduceOp = ReduceOp.SUM,
        root: int = -1,
        sends: Sequence[int] = (),
        receives: Sequence[int] = (),
    ) -> None:
        """Raise CollectiveMismatch unless every rank makes this call. `sends` and `receives` are bytes to and
        from each rank; for a reduction, `sends` is what each rank's piece has, and must be the same everywhere."""
        self.sequence += 1
        size = len(self._world_ranks)
        if not self._enabled or size == 1:
            return
        words = np.zeros(_CALL_WORDS + 2 * size, np.int64)
        element, count = (0, 0) if example is None else (int(example.element), example.count)
        words[:_CALL_WORDS] = (int(operation), element, int(op), root, count)
        words[_CALL_WORDS : _CALL_WORDS + len(sends)] = sends
        words[_CALL_WORDS + size : _CALL_WORDS + size + len(receives)] = receives
        everybody = self._all_gather_words(words)
        for rank, theirs in enumerate(everybody):
            if not self._agree(words, theirs, rank, operation in _UNIFORM):
                raise self._mismatch(rank, words, theirs)

    def _agree(self, mine: np.ndarray, theirs: np.ndarray, rank: int, uniform: bool) -> bool:
        size = len(self._world_ranks)
        if uniform:
            return bool((mine == theirs).all())
        if mine[0] == Operation.BROADCAST and mine[4] != theirs[4]:
            return False
        sends, receives = slice(_CALL_WORDS, _CALL_WORDS + size), slice(_CALL_WORDS + size, None)
        return bool(
            (mine[:4] == theirs[:4]).all()
            and mine[sends][rank] == theirs[receives][self._rank]
            and mine[receives][rank] == theirs[sends][self._rank]
        )

    def _mismatch(self, rank: int, mine: np.ndarray, theirs: np.ndarray) -> CollectiveMismatch:
        my_call, their_call = self._describe(mine), self._describe(theirs)
        other, me = self._world_ranks[rank], self._world_ranks[self._rank]
        detail = ""
        if my_call == their_call:
            sends = theirs[_CALL_WORDS + self._rank]
            expects = theirs[_CALL_WORDS + len(self._world_ranks) + self._rank]
            detail = f" (it sends this rank {sends} bytes and expects {expects} from it)"
        return CollectiveMismatch(
            f"rank {other} called {their_call}{detail} while rank {me} called {my_call}: operation {self.sequence}. "
            "All ranks of a group must make the same calls in the same order",
            rank=other,
            mine=my_call,
            theirs=their_call,
        )

    def _describe(self, words: np.ndarray) -> str:
        operation, element, op, root, count = (int(word) for word in words[:_CALL_WORDS])
        root = self._world_ranks[root] if root >= 0 else root
        return describe_call(Operation(operation), ElementType(element), ReduceOp(op), root, count)
