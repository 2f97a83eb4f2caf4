"""k backward passes as one: what an `accumulate` block is, and how blocks are counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from neuraxis.errors import InvalidArgument, StepInterrupted
from neuraxis.training.reducer import Reducer

__all__ = ["Accumulation", "accumulation_block"]


@dataclass(frozen=True)
class Accumulation:
    """A block of an accumulation. `block` counts from 1.

    `complete` says that this block is the last: when its backward pass is over, `.grad` holds the mean over all
    samples of all blocks and ranks, and it is time for the optimizer. Before that `.grad` is None.
    """

    block: int
    complete: bool


@contextmanager
def accumulation_block(reducer: Reducer, k: int, last: bool) -> Iterator[Accumulation]:
    """One more block; the k-th, or the one that is said to be the last, sends."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise InvalidArgument(f"accumulate: k={k!r} must be a whole number, 1 or more")
    reducer.blocks += 1
    accumulation = Accumulation(reducer.blocks, last or reducer.blocks >= k)
    steps = reducer.steps
    try:
        with reducer.gathering(accumulation.complete):
            yield accumulation
    except BaseException:
        reducer.drop()
        raise
    if accumulation.complete and reducer.steps == steps:
        reducer.drop()
        raise StepInterrupted(
            f"block {accumulation.block} completes an accumulation, and no backward pass was made in it: "
            "nothing was sent, and what was accumulated is dropped"
        )
