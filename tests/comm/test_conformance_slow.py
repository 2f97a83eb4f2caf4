"""Arrays beyond 2 GiB, where counts of bytes no longer fit into 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

import neuraxis.distributed as dist
from tests.crew import Crew

GIGABYTE = 10**9
WORDS = 3 * GIGABYTE // 4  # of 32 bits


def three_gigabytes(context: Any) -> list[bool]:
    """Each place holds a number that tells where it is."""
    rank, size = context.rank, context.world_size
    array = np.arange(WORDS, dtype=np.uint32)
    if rank == 0:
        array[:] = 0
    dist.broadcast(array, src=1)
    fine = [_counts_up(array, 1)]
    dist.all_reduce(array)
    fine.append(_counts_up(array, size))
    return fine


def _counts_up(array: np.ndarray, factor: int) -> bool:
    step = 2**24
    return all(
        np.array_equal(
            array[start : start + step],
            np.arange(start, min(start + step, array.size), dtype=np.uint32) * np.uint32(factor),
        )
        for start in range(0, array.size, step)
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("crew", [("shm", 2)], indirect=True, ids=["shm-2"])
def test_three_gigabytes(crew: Crew) -> None:
    if psutil.virtual_memory().available < 14 * GIGABYTE:
        pytest.skip("needs 14 GB of memory")
    assert crew.run(three_gigabytes, limit_s=500) == [[True, True]] * 2
