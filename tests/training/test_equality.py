"""Training on a split batch equals training on the whole batch in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from neuraxis.training import DataParallel
from tests.ranks import RankGroup
from tests.ranks.checks import Checks
from tests.training.case import SPLITS, difference, net, same_on_all_ranks, synchronised, train_part, train_whole

STEPS = 20
TINY = 200  # bytes: several buckets even of a small net


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_equals_one_process(rank_group: RankGroup, optimizer: str) -> None:
    rank_group.check(equality, optimizer)


def equality(context: Any, optimizer: str) -> list[str]:
    checks = Checks(context.rank)
    torch.set_num_threads(1)
    size, rank = context.world_size, context.rank
    for split in SPLITS:
        for options in ({}, {"first_bucket_bytes": TINY, "bucket_bytes": TINY}):
            if options and split == "even":
                continue
            checks(optimizer, split, options)
            compare(checks, context, optimizer, split, torch.float64, 1e-12, options)
    checks(optimizer, "float32")
    compare(checks, context, optimizer, "uneven", torch.float32, 1e-5, {})
    assert (size, rank) == (context.world.size, context.world.rank)
    return checks.failures


def compare(
    checks: Checks,
    context: Any,
    optimizer: str,
    split: str,
    dtype: torch.dtype,
    tolerance: float,
    options: dict[str, Any],
) -> None:
    size, rank = context.world_size, context.rank
    rows = SPLITS[split]
    whole = net(dtype=dtype)
    train_whole(whole, optimizer, rows, size, STEPS, dtype)
    before = net(dtype=dtype)
    moved = difference(whole, before)
    model = DataParallel(synchronised(1 + rank, dtype), **options)  # they begin differently, and as rank 0
    train_part(model, optimizer, rows, rank, size, STEPS, dtype)
    far = difference(model, whole)
    checks.equal(far <= tolerance, True, f"difference {far:g}")
    checks.equal(moved > 0.01, True, f"moved by {moved:g}")
    checks.equal(same_on_all_ranks(model, context.world), True, "equal bits on all ranks")
    checks.equal(model.module.unused.weight.grad, None, "gradient of what nobody used")
    checks.equal(model.module.frozen.weight.grad, None, "gradient of what is frozen")
