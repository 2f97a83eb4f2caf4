"""Groups of some ranks: collectives, roots, subgroups, ranks outside."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.comm import ReduceOp
from neuraxis.errors import CollectiveMismatch, CommunicatorClosed, InvalidArgument
from tests.ranks import RankGroup
from tests.ranks.arrays import LIBRARIES, blank, content, folded, make, terms
from tests.ranks.checks import Checks


def member_lists(size: int) -> list[list[int]]:
    """One, all, the even, the last two ranks: with all kinds of overlap, and world ranks unlike group ranks."""
    lists = [[0], [size - 1], list(range(size)), list(range(0, size, 2)), list(range(size))[-2:]]
    return [ranks for index, ranks in enumerate(lists) if ranks not in lists[:index]]


def patterns_in_groups(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    groups = [(members, dist.new_group(members)) for members in member_lists(size)]
    for members, group in groups:
        if rank not in members:
            continue
        checks("group", members)
        checks.equal(dist.get_rank(group), members.index(rank), "rank")
        checks.equal(dist.get_world_size(group), len(members), "size")
        checks.equal(dist.get_process_group_ranks(group), members, "ranks")
        checks.equal(dist.get_group_rank(group, members[-1]), len(members) - 1, "group rank")
        _every_pattern(checks, library, group, members, rank)
    # All groups at once and in turn: a rank in several groups must not mix them up.
    for turn in range(3):
        for members, group in groups:
            if rank in members:
                array = np.array([rank + 10 * turn])
                group.all_reduce(array)
                checks("turn", turn, members).equal(array.tolist(), [sum(members) + 10 * turn * len(members)])
    for _, group in groups:
        dist.destroy_group(group)
    total = np.array([rank])
    dist.all_reduce(total)
    checks("the world afterwards").equal(total.tolist(), [size * (size - 1) // 2])
    return checks.failures


def _every_pattern(checks: Checks, library: str, group: Any, members: list[int], rank: int) -> None:
    def of(*seed: int) -> Any:
        return make(library, "int32", content("int32", (4,), *seed))

    def new() -> Any:
        return blank(library, "int32", (4,))

    def reduced(*seed: int) -> Any:
        rows = [terms("int32", ReduceOp.SUM, (4,), member, *seed) for member in members]
        return make(library, "int32", folded(rows, ReduceOp.SUM))

    me = members.index(rank)
    group.barrier()
    array = of(rank)
    group.all_reduce(array)
    checks.same(array, reduced(), "all_reduce")
    outputs = [new() for _ in members]
    group.all_gather(outputs, of(rank))
    for output, member in zip(outputs, members, strict=True):
        checks.same(output, of(member), "all_gather")
    group.all_to_all(outputs, [of(rank, member) for member in members])
    for output, member in zip(outputs, members, strict=True):
        checks.same(output, of(member, rank), "all_to_all")
    array = new()
    group.reduce_scatter(array, [of(rank, member) for member in members])
    checks.same(array, reduced(rank), "reduce_scatter")
    for place, root in enumerate(members):
        for where in ({"src": root}, {"group_src": place}):
            array = of(rank, place)
            group.broadcast(array, **where)
            checks.same(array, of(root, place), f"broadcast {where}")
            array = new()
            group.scatter(array, [of(root, m) for m in members] if rank == root else None, **where)
            checks.same(array, of(root, rank), f"scatter {where}")
            shared: list[Any] = [{"from": rank}]
            group.broadcast_object_list(shared, **where)
            checks.equal(shared, [{"from": root}], f"broadcast_object_list {where}")
        for where in ({"dst": root}, {"group_dst": place}):
            array = of(rank)
            group.reduce(array, **where)
            checks.same(array, reduced() if rank == root else of(rank), f"reduce {where}")
            outputs = [new() for _ in members]
            group.gather(of(rank, 7), outputs if rank == root else None, **where)
            for output, member in zip(outputs, members, strict=True):
                checks.same(output, of(member, 7) if rank == root else new(), f"gather {where}")
    after, before = members[(me + 1) % len(members)], members[me - 1]
    array = new()
    work = group.isend(of(rank, 3), dst=after, tag=8)
    checks.equal(group.recv(array, src=before, tag=8), before, "recv")
    work.wait()
    checks.same(array, of(before, 3), "recv")
    work = group.isend(of(rank, 4), group_dst=(me + 1) % len(members))
    group.recv(array, group_src=(me - 1) % len(members))
    work.wait()
    checks.same(array, of(before, 4), "recv by group rank")


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_pattern_in_groups(rank_group: RankGroup, library: str) -> None:
    rank_group.check(patterns_in_groups, library)


def ways_to_name_ranks(context: Any) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    everybody = list(range(size))
    for ranks in (None, everybody[::-1], set(everybody), tuple(everybody), range(size), np.arange(size)):
        group = dist.new_group(ranks)
        checks(repr(ranks))
        checks.equal(dist.get_process_group_ranks(group), everybody, "ranks")
        checks.equal(dist.get_rank(group), rank, "rank")
        group.close()
    for bad in ([], [size], [-1], [0, 0]):
        checks(bad).raises(InvalidArgument, dist.new_group, bad)
    dist.barrier()
    return checks.failures


def test_ranks_may_be_named_in_any_form_and_order(rank_group: RankGroup) -> None:
    rank_group.check(ways_to_name_ranks)


def with_and_without_checks(context: Any) -> list[str]:
    """The comparison of calls is an option of each group, and the same on all ranks."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for check_calls in (False, True, None):
        group = dist.new_group(check_calls=check_calls)
        total = np.full(3, rank + 1.0)
        group.all_reduce(total)
        checks(check_calls).same(total, np.full(3, size * (size + 1) / 2))
        inner = group.new_group()  # as the group it was made of
        inner.all_reduce(total)
        checks(check_calls, "inner").same(total, np.full(3, size * size * (size + 1) / 2))
        if check_calls is not False and size > 1:
            checks.raises(CollectiveMismatch, inner.all_reduce, np.zeros(3 + rank))
        for each in (inner, group):
            each.close()
    if size > 1:
        text = checks("not the same").raises(CollectiveMismatch, lambda: dist.new_group(check_calls=rank == 0))
        checks.contains(text, f"check_calls={rank == 0}")
    return checks.failures


def test_whether_calls_are_compared(rank_group: RankGroup) -> None:
    rank_group.check(with_and_without_checks)


def outside(context: Any) -> list[str]:
    """A rank outside a group continues: each operation is ignored with a warning."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    group = dist.new_group([size - 1])
    if rank != size - 1:
        checks.equal(bool(group), False, "bool")
        checks.equal(dist.get_rank(group), -1, "rank")
        array = np.array([rank])
        calls = [
            lambda: dist.all_reduce(array, group=group),
            lambda: dist.broadcast(array, src=size - 1, group=group),
            lambda: dist.barrier(group=group),
            lambda: dist.all_gather([array], array, group=group),
            lambda: dist.all_gather_object([None], 1, group=group),
            lambda: group.reduce(array, dst=size - 1),
            lambda: dist.isend(array, dst=size - 1, group=group),
        ]
        for call in calls:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                checks.equal(call(), None, "answer")
            checks.equal(len(caught), 1, "warnings")
            for warning in caught:
                checks.contains(str(warning.message), f"rank {rank} is not in the group")
                checks.equal(warning.category, UserWarning, "category")
        checks.equal(array.tolist(), [rank], "array")
    dist.destroy_group(group)
    dist.barrier()
    return checks.failures


def test_ranks_outside_go_on(rank_group: RankGroup) -> None:
    rank_group.check(outside)


def bad_roots(context: Any) -> list[str]:
    """A root outside the group is refused with the ranks that are in it; the group stays usable."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    members = list(range(size))[1:]
    group = dist.new_group(members) if members else None
    if group:
        array = np.array([rank])
        for call in (
            lambda: group.broadcast(array, src=0),
            lambda: group.broadcast(array),  # the default root is world rank 0
            lambda: group.reduce(array, dst=0),
            lambda: group.gather(array, None, dst=0),
            lambda: group.scatter(array, None, src=0),
            lambda: group.send(array, dst=0),
            lambda: group.irecv(array, src=0),
            lambda: group.broadcast_object_list([None], src=0),
            lambda: group.gather_object(1, None, dst=0),
        ):
            checks.contains(checks.raises(InvalidArgument, call), str(members))
        checks.raises(InvalidArgument, group.broadcast, array, group_src=len(members))
        checks.raises(InvalidArgument, group.broadcast, array, group_src=-1)
        checks.contains(checks.raises(InvalidArgument, group.broadcast, array, src=1, group_src=0), "both given")
        group.all_reduce(array)
        checks.equal(array.tolist(), [sum(members)])
    dist.barrier()
    return checks.failures


def test_a_root_outside_the_group(rank_group: RankGroup) -> None:
    rank_group.check(bad_roots)


def after_destroy(context: Any) -> list[str]:
    checks = Checks(context.rank)
    group = dist.new_group()
    work = group.all_reduce(np.ones(1), async_op=True)
    work.wait()
    group.close()
    group.close()  # a second time does nothing
    array = np.array([context.rank])
    for call in (
        lambda: group.all_reduce(array),
        lambda: group.all_reduce(array, async_op=True),
        lambda: group.broadcast(array, src=0),
        lambda: group.barrier(),
        lambda: group.send(array, dst=0),
        lambda: group.irecv(array, src=0),
        lambda: group.all_gather_object([None] * context.world_size, 1),
        lambda: group.new_group([0]),
    ):
        checks.raises(CommunicatorClosed, call)
    checks.equal(array.tolist(), [context.rank])
    dist.barrier()
    return checks.failures


def test_a_destroyed_group_is_closed(rank_group: RankGroup) -> None:
    rank_group.check(after_destroy)


def groups_of_groups(context: Any) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    outer = dist.new_group(list(range(size))[-3:])
    if outer:
        inner_members = list(outer.ranks)[-2:]
        inner = outer.new_group(inner_members)
        if inner:
            array = np.array([rank])
            inner.all_reduce(array)
            checks("inner").equal(array.tolist(), [sum(inner_members)])
            inner.broadcast(array, src=inner_members[0])
            inner.close()
        array = np.array([rank])
        outer.all_reduce(array)
        checks("outer").equal(array.tolist(), [sum(outer.ranks)])
        checks.raises(InvalidArgument, outer.new_group, [size])
    dist.barrier()
    return checks.failures


def test_groups_of_groups(rank_group: RankGroup) -> None:
    rank_group.check(groups_of_groups)
