"""Arrays beyond 2 GiB, where counts of bytes no longer fit into 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

import neuraxis.distributed as dist
from tests.ranks import RankGroup

GIGABYTE = 10**9
WORDS = 2_200_000_000 // 4  # of 32 bits


def beyond_two_gibibytes(context: Any) -> list[bool]:
    """Each element holds its own position."""
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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rank_group", [("shm", 2)], indirect=True, ids=["shm-2"])
def test_beyond_two_gibibytes(rank_group: RankGroup) -> None:
    if psutil.virtual_memory().available < 10 * GIGABYTE:
        pytest.skip("needs 10 GB of memory")
    assert rank_group.run(beyond_two_gibibytes, limit_s=280) == [[True, True]] * 2
