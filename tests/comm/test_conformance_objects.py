"""Object collectives: any plain value, of any size, from and to every rank."""

from __future__ import annotations

from typing import Any

import numpy as np

import neuraxis.distributed as dist
from neuraxis.errors import InvalidArgument, NotSerializable
from tests.ranks import RankGroup
from tests.ranks.arrays import torch_module
from tests.ranks.checks import Checks


def value_of(*seed: int) -> Any:
    """Nested plain data; its length differs from rank to rank by far more than a slot of shared memory."""
    rank = seed[0]
    return {
        "seed": list(seed),
        (rank, "tuple"): {rank, -rank, None},
        "large": 2**100 + rank,
        "bytes": bytes([rank]) * (200_000 * rank),
        "nested": [[], {}, (), [1.5, True, None, "é"]],
    }


def object_forms(context: Any) -> list[str]:
    rank, size = context.rank, context.world_size
    ranks = range(size)
    checks = Checks(rank)
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, value_of(rank))
    checks("all_gather_object").equal(gathered, [value_of(source) for source in ranks])
    for root in ranks:
        checks("root", root)
        shared = [value_of(rank, place) for place in range(3)]
        dist.broadcast_object_list(shared, src=root)
        checks.equal(shared, [value_of(root, place) for place in range(3)], "broadcast_object_list")

        gathered = [None] * size
        dist.gather_object(value_of(rank, root), gathered if rank == root else None, dst=root)
        expected = [value_of(source, root) if rank == root else None for source in ranks]
        checks.equal(gathered, expected, "gather_object")

        output: list[Any] = [None, "untouched"]
        inputs = [value_of(to, root) for to in ranks] if rank == root else None
        dist.scatter_object_list(output, inputs, src=root)
        checks.equal(output, [value_of(rank, root), "untouched"], "scatter_object_list")
    shared = []
    dist.broadcast_object_list(shared, src=0)
    checks("no objects").equal(shared, [])
    return checks.failures


def test_object_forms(rank_group: RankGroup) -> None:
    rank_group.check(object_forms)


def arrays_in_objects(context: Any) -> list[str]:
    torch = torch_module()
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    gathered: list[Any] = [None] * size
    mine = {"numpy": np.arange(rank * 3).reshape(3, rank), "torch": torch.full((2, 2), rank).bfloat16()}
    dist.all_gather_object(gathered, mine)
    for source, value in enumerate(gathered):
        checks("from", source)
        checks.same(value["numpy"], np.arange(source * 3).reshape(3, source))
        checks.same(value["torch"], torch.full((2, 2), source).bfloat16())
        value["numpy"][...] = 0  # what was received is the receiver's own
    return checks.failures


def test_arrays_in_objects(rank_group: RankGroup) -> None:
    rank_group.check(arrays_in_objects)


class Thing:
    """Something that only pickle could send."""


def refused_objects(context: Any) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    text = checks.raises(NotSerializable, dist.all_gather_object, [None] * size, Thing())
    checks.contains(text, "Thing")
    checks.contains(text, "allow_pickle")
    if rank == 0:  # only the root's objects are sent, so only it can fail, and before anything is sent
        checks.raises(NotSerializable, dist.broadcast_object_list, [Thing()], 0)
        checks.raises(NotSerializable, dist.scatter_object_list, [None], [Thing()] * size, 0)
        checks.raises(InvalidArgument, dist.gather_object, 1, [None] * (size + 1), 0)
    dist.barrier()
    return checks.failures


def test_objects_that_need_pickle_are_refused(rank_group: RankGroup) -> None:
    rank_group.check(refused_objects)
