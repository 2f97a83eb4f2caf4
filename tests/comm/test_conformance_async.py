"""Asynchronous calls: order, completion, errors."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.comm import ReduceOp, Work
from neuraxis.errors import CollectiveTimeout
from tests.ranks import RankGroup
from tests.ranks.arrays import LIBRARIES, blank, content, folded, make, terms
from tests.ranks.checks import Checks


def every_pattern(context: Any, library: str) -> list[str]:
    """All patterns outstanding at once, waited for in the reverse order."""
    rank, size = context.rank, context.world_size
    ranks, root = range(size), size - 1
    checks = Checks(rank)
    shape = (50_000,)

    def of(*seed: int) -> Any:
        return make(library, "int32", content("int32", shape, *seed))

    def new() -> Any:
        return blank(library, "int32", shape)

    def total(*seed: int) -> Any:
        rows = [terms("int32", ReduceOp.SUM, shape, other, *seed) for other in ranks]
        return make(library, "int32", folded(rows, ReduceOp.SUM))

    reduced, all_reduced, sent, mine, scattered = of(rank), of(rank), of(rank), new(), new()
    gathered, everywhere, exchanged = ([new() for _ in ranks] for _ in range(3))
    works = [
        dist.reduce(reduced, dst=root, async_op=True),
        dist.all_reduce(all_reduced, async_op=True),
        dist.broadcast(sent, src=root, async_op=True),
        dist.barrier(async_op=True),
        dist.gather(of(rank, 1), gathered if rank == root else None, dst=root, async_op=True),
        dist.all_gather(everywhere, of(rank, 2), async_op=True),
        dist.scatter(scattered, [of(root, to, 3) for to in ranks] if rank == root else None, src=root, async_op=True),
        dist.all_to_all(exchanged, [of(rank, to, 4) for to in ranks], async_op=True),
        dist.reduce_scatter(mine, [of(rank, to, 5) for to in ranks], async_op=True),
    ]
    for number, work in reversed(list(enumerate(works))):
        checks("work", number)
        checks.equal(isinstance(work, Work), True, "a Work")
        checks.equal(work.wait(), True, "wait")
        checks.equal(work.is_completed(), True, "is_completed")
        checks.equal(work.exception(), None, "exception")
        checks.equal(work.wait(timedelta(seconds=1)), True, "a second wait")
    checks("values")
    checks.same(reduced, total() if rank == root else of(rank), "reduce")
    checks.same(all_reduced, total(), "all_reduce")
    checks.same(sent, of(root), "broadcast")
    checks.same(mine, total(rank, 5), "reduce_scatter")
    checks.same(scattered, of(root, rank, 3), "scatter")
    for other in ranks:
        checks.same(gathered[other], of(other, 1) if rank == root else new(), "gather")
        checks.same(everywhere[other], of(other, 2), "all_gather")
        checks.same(exchanged[other], of(other, rank, 4), "all_to_all")
    return checks.failures


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_pattern_at_once(rank_group: RankGroup, library: str) -> None:
    rank_group.check(every_pattern, library)


def order(context: Any) -> list[str]:
    """A later call sees the result of an earlier one, whether or not it was waited for."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for turn in range(20):
        # Broadcast before product: (turn + 2) ** size. The reverse order would give another number.
        array = np.array([turn + 2 + rank], np.int64)
        work = dist.broadcast(array, src=0, async_op=True)
        dist.all_reduce(array, op=ReduceOp.PRODUCT)
        checks("turn", turn).equal(array.tolist(), [(turn + 2) ** size])
        checks.equal(work.is_completed(), True, "the earlier is done")
    array = np.array([1.0 + rank])
    works = []
    for _ in range(100):
        works.append(dist.all_reduce(array, op=ReduceOp.MAX, async_op=True))
        works.append(dist.all_reduce(array, op=ReduceOp.AVG, async_op=True))
    works[-1].wait()
    checks("many").equal(array.tolist(), [float(size)])
    checks.equal([work.is_completed() for work in works], [True] * len(works), "all before the last are done")
    return checks.failures


def test_calls_keep_their_order(rank_group: RankGroup) -> None:
    rank_group.check(order)


def strided(context: Any) -> list[str]:
    """A copy made for the call is written back when the work is done, not before and not never."""
    rank, size = context.rank, context.world_size
    whole = np.full((4, 6), rank, np.int32)
    work = dist.all_reduce(whole[:, ::2], async_op=True)
    work.wait()
    checks = Checks(rank)
    checks.equal(whole[:, ::2].tolist(), [[size * (size - 1) // 2] * 3] * 4)
    checks.equal(whole[:, 1::2].tolist(), [[rank] * 3] * 4, "gaps")
    return checks.failures


def test_a_strided_array(rank_group: RankGroup) -> None:
    rank_group.check(strided)


def completion(context: Any) -> list[str]:
    """A work is not complete before the others have called: they call when this rank signals them."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    go = np.zeros(1)
    if rank == 0:
        done = threading.Event()
        work = dist.barrier(async_op=True)
        work.add_done_callback(lambda finished: done.set() if finished is work else None)
        checks.raises(CollectiveTimeout, work.wait, 0.05)
        checks.raises(CollectiveTimeout, work.wait, timedelta(milliseconds=1))
        checks.equal((work.is_completed(), done.is_set()), (False, False), "before the others came")
        for other in range(1, size):
            dist.send(go, dst=other)
        deadline = time.monotonic() + 20
        while not work.is_completed() and time.monotonic() < deadline:
            pass
        checks.equal(work.is_completed(), True, "after the others came")
        checks.equal(work.wait(), True, "wait")
        checks.equal(done.wait(10), True, "the callback was called")
        late = threading.Event()
        work.add_done_callback(lambda _: late.set())
        checks.equal(late.is_set(), True, "a callback of a finished work is called at once")
    else:
        dist.recv(go, src=0)
        dist.barrier()
    return checks.failures


def test_a_work_completes_when_all_ranks_have_called(rank_group: RankGroup) -> None:
    if rank_group.size == 1:
        pytest.skip("a rank alone waits for nobody")
    rank_group.check(completion)
