"""Invalid arguments: refused before anything is sent, so that the group stays usable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.comm import ReduceOp
from neuraxis.errors import InvalidArgument, InvalidType
from tests.ranks import RankGroup
from tests.ranks.arrays import LIBRARIES, make, torch_module
from tests.ranks.checks import Checks


def refused(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)

    def new(name: str = "float32", *shape: int) -> Any:
        return make(library, name, np.zeros(shape or (2,), name))

    good = [new() for _ in range(size)]
    doubles = [new("float64") for _ in range(size)]
    short = good[:-1]
    for what, kind, call in (
        ("python list", InvalidType, lambda: dist.all_reduce([1.0, 2.0])),
        ("python number", InvalidType, lambda: dist.broadcast(1.0, src=0)),
        ("None", InvalidType, lambda: dist.broadcast(None, src=0)),
        ("list for a tensor", InvalidType, lambda: dist.all_gather(good, [1.0])),
        ("python list, async", InvalidType, lambda: dist.all_reduce([1.0], async_op=True)),
        ("short all_gather", InvalidArgument, lambda: dist.all_gather(short, new())),
        ("long all_gather", InvalidArgument, lambda: dist.all_gather([*good, new()], new())),
        ("short all_to_all", InvalidArgument, lambda: dist.all_to_all(good, short)),
        ("short all_to_all output", InvalidArgument, lambda: dist.all_to_all(short, good)),
        ("short reduce_scatter", InvalidArgument, lambda: dist.reduce_scatter(new(), short)),
        ("no list", InvalidArgument, lambda: dist.all_gather(None, new())),
        ("array for a list", InvalidType, lambda: dist.all_gather(new("float32", size, 2), new())),
        ("other dtype, all_gather", InvalidType, lambda: dist.all_gather(doubles, new())),
        ("other dtype, all_to_all", InvalidType, lambda: dist.all_to_all(doubles, good)),
        ("other dtype, reduce_scatter", InvalidType, lambda: dist.reduce_scatter(new("int32"), good)),
        ("mixed dtypes", InvalidType, lambda: dist.all_gather([*doubles[:-1], new()], new("float64")))
        if size > 1
        else ("", InvalidType, lambda: dist.all_gather(doubles, new())),
        ("length, reduce_scatter", InvalidArgument, lambda: dist.reduce_scatter(new("float32", 3), good)),
        (
            "length, all_gather_into_tensor",
            InvalidArgument,
            lambda: dist.all_gather_into_tensor(new("float32", 2 * size + 1), new()),
        ),
        (
            "dtype, all_gather_into_tensor",
            InvalidType,
            lambda: dist.all_gather_into_tensor(new("float64", 2 * size), new()),
        ),
        (
            "length, reduce_scatter_tensor",
            InvalidArgument,
            lambda: dist.reduce_scatter_tensor(new(), new("float32", 2 * size + 1)),
        ),
        (
            "splits, all_to_all_single",
            InvalidArgument,
            lambda: dist.all_to_all_single(new("float32", size), new("float32", size), None, [2] * size),
        ),
        (
            "number of splits",
            InvalidArgument,
            lambda: dist.all_to_all_single(new("float32", 1), new("float32", 1), [1] + [0] * size, None),
        ),
        ("root", InvalidArgument, lambda: dist.broadcast(new(), src=size)),
        ("root", InvalidArgument, lambda: dist.reduce(new(), dst=-1)),
        ("two roots", InvalidArgument, lambda: dist.reduce(new(), dst=0, group_dst=0)),
        ("op", InvalidType, lambda: dist.all_reduce(new(), op="sum")),
        ("op", InvalidType, lambda: dist.all_reduce(new(), op=3)),
        ("op", InvalidType, lambda: dist.reduce(new(), 0, op=None)),
        ("object list", InvalidArgument, lambda: dist.all_gather_object([None] * (size + 1), 1)),
        ("output list", InvalidArgument, lambda: dist.scatter_object_list([], [1] * size, src=0)),
    ):
        checks(what)
        text = checks.raises(kind, call)
        checks.equal(bool(text), True, "an error with words")
    for array in [*good, *doubles]:
        checks.equal(float(abs(array).sum()), 0.0, "arrays stay")
    return checks.failures + usable(context)


def refused_by_role(context: Any, library: str) -> list[str]:
    """Errors that only the root, or only the others, can make: the rest does not take part."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)

    def new(name: str = "float32", *shape: int) -> Any:
        return make(library, name, np.zeros(shape or (2,), name))

    good = [new() for _ in range(size)]
    for root in range(size):
        checks("root", root)
        if rank == root:
            others = [new("float64") for _ in range(size)]
            checks.raises(InvalidArgument, dist.scatter, new(), None, root)
            checks.raises(InvalidArgument, dist.gather, new(), None, root)
            checks.raises(InvalidArgument, dist.scatter, new(), [*good, new()], root)
            checks.raises(InvalidArgument, dist.gather, new(), good[:-1], root)
            checks.raises(InvalidType, dist.scatter, new(), others, root)
            checks.raises(InvalidType, dist.gather, new(), others, root)
            checks.raises(InvalidArgument, dist.scatter, new("float32", 5), good, root)
            checks.raises(InvalidArgument, dist.gather_object, 1, [None] * (size + 1), root)
            checks.raises(InvalidArgument, dist.scatter_object_list, [None], [1] * (size + 1), root)
        else:
            checks.raises(InvalidArgument, dist.scatter, new(), good, root)
            checks.raises(InvalidArgument, dist.gather, new(), good, root)
    return checks.failures + usable(context)


def usable(context: Any) -> list[str]:
    size = context.world_size
    checks = Checks(context.rank)
    total = np.array([context.rank])
    dist.all_reduce(total, op=ReduceOp.SUM)
    checks("the group afterwards").equal(total.tolist(), [size * (size - 1) // 2])
    return checks.failures


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("pattern", [refused, refused_by_role], ids=lambda p: p.__name__)
def test_bad_arguments(rank_group: RankGroup, library: str, pattern: Any) -> None:
    rank_group.check(pattern, library)


def unshareable(context: Any) -> list[str]:
    """Arrays that cannot be moved between processes at all."""
    torch = torch_module()
    checks = Checks(context.rank)
    size = context.world_size
    objects = np.array([object(), "text"])
    sparse = torch.eye(3).to_sparse()
    for array in (objects, sparse):
        checks(type(array).__name__)
        checks.raises(InvalidType, dist.all_reduce, array)
        checks.raises(InvalidType, dist.broadcast, array, 0)
        checks.raises(InvalidType, dist.all_gather, [array] * size, array)
        checks.raises(InvalidType, dist.isend, array, 0)
    checks("object dtype").contains(checks.raises(InvalidType, dist.all_reduce, objects), "object collectives")
    checks("sparse").contains(checks.raises(InvalidType, dist.all_reduce, sparse), "to_dense")
    return checks.failures + usable(context)


def test_arrays_that_cannot_be_shared(rank_group: RankGroup) -> None:
    rank_group.check(unshareable)
