"""Messages between two ranks: tags, any source, order, lengths beyond the buffers in between."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.errors import CollectiveTimeout, InvalidArgument
from tests.ranks import RankGroup
from tests.ranks.arrays import LIBRARIES, MOVABLE, blank, content, laid_out, layouts, make
from tests.ranks.checks import Checks

library_rows = pytest.mark.parametrize("library", LIBRARIES)

LONG = 200_003  # bytes; a ring of shared memory has 65,536


def every_dtype(context: Any, library: str) -> list[str]:
    """Round the ring of ranks, each to the next (to itself in a world of one)."""
    rank, size = context.rank, context.world_size
    after, before = (rank + 1) % size, (rank - 1) % size
    checks = Checks(rank)
    for name in MOVABLE[library]:
        for shape in ((0,), (1,), (3, 5), ()):
            checks(name, shape)
            array = blank(library, name, shape)
            work = dist.isend(make(library, name, content(name, shape, rank)), dst=after)
            checks.equal(dist.recv(array, src=before), before, "source")
            work.wait()
            checks.same(array, make(library, name, content(name, shape, before)))
    for layout in layouts(library):
        checks(layout)
        array = laid_out(blank(library, "int32", (4, 3)), layout)
        sent = laid_out(make(library, "int32", content("int32", (4, 3), rank)), layout)
        work = dist.isend(sent, dst=after)
        dist.recv(array, src=before)
        work.wait()
        checks.same(array, make(library, "int32", content("int32", (4, 3), before)))
    return checks.failures


def all_pairs(context: Any, library: str) -> list[str]:
    """All ranks send to all ranks at once, themselves included; each message is longer than a ring."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    arrays = [blank(library, "uint8", (LONG + source,)) for source in range(size)]
    receives = [dist.irecv(arrays[source], src=source, tag=5) for source in range(size)]
    outgoing = [make(library, "uint8", content("uint8", (LONG + rank,), rank, to)) for to in range(size)]
    sends = [dist.isend(outgoing[to], dst=to, tag=5) for to in range(size)]
    for work in [*sends, *receives]:
        checks.equal(work.wait(), True, "wait")
        checks.equal(work.is_completed(), True, "is_completed")
    for source in range(size):
        expected = make(library, "uint8", content("uint8", (LONG + source,), source, rank))
        checks("from", source).same(arrays[source], expected)
    return checks.failures


def tags(context: Any, library: str) -> list[str]:
    """Messages are found by their tag, whatever the order; those of one tag keep theirs."""
    rank, size = context.rank, context.world_size
    after, before = (rank + 1) % size, (rank - 1) % size
    checks = Checks(rank)
    sent = {tag: make(library, "int64", content("int64", (9,), rank, tag)) for tag in range(5)}
    works = [dist.isend(array, dst=after, tag=tag) for tag, array in sent.items()]
    for tag in (3, 0, 4, 1, 2):
        array = blank(library, "int64", (9,))
        dist.recv(array, src=before, tag=tag)
        checks("tag", tag).same(array, make(library, "int64", content("int64", (9,), before, tag)))
    for work in works:
        work.wait()

    arrays = {tag: blank(library, "int64", (9,)) for tag in (7, 6, 5)}
    receives = [dist.irecv(array, src=before, tag=tag) for tag, array in arrays.items()]
    dist.barrier()  # the receives are there before the first message
    works = [
        dist.isend(make(library, "int64", content("int64", (9,), rank, tag)), dst=after, tag=tag) for tag in (5, 6, 7)
    ]
    for work in [*receives, *works]:
        work.wait()
    for tag, array in arrays.items():
        checks("receives first, tag", tag)
        checks.same(array, make(library, "int64", content("int64", (9,), before, tag)))

    many = [make(library, "int32", content("int32", (3,), rank, number)) for number in range(100)]
    works = [dist.isend(array, dst=after, tag=1) for array in many]
    for number in range(100):
        array = blank(library, "int32", (3,))
        dist.recv(array, src=before, tag=1)
        checks("one tag, number", number)
        checks.same(array, make(library, "int32", content("int32", (3,), before, number)))
    for work in works:
        work.wait()
    return checks.failures


@library_rows
@pytest.mark.parametrize("pattern", [every_dtype, all_pairs, tags], ids=lambda p: p.__name__)
def test_messages(rank_group: RankGroup, library: str, pattern: Any) -> None:
    rank_group.check(pattern, library)


def any_source(context: Any) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for root in range(size):
        if rank == root:
            sources = []
            for _ in range(size - 1):
                array = np.zeros(2, np.int64)
                source = dist.recv(array, tag=root)
                checks.equal(array.tolist(), [source, 100 * root + source], "message")
                sources.append(source)
            checks.equal(sorted(sources), [r for r in range(size) if r != root], "sources")
        else:
            dist.send(np.array([rank, 100 * root + rank]), dst=root, tag=root)
    return checks.failures


def test_a_message_from_any_rank(rank_group: RankGroup) -> None:
    rank_group.check(any_source)


def message_to_oneself(context: Any) -> list[str]:
    checks = Checks(context.rank)
    array, later = np.zeros(40_000), np.zeros(3)
    work = dist.isend(np.full(40_000, 1.0 + context.rank), dst=context.rank, tag=2)
    dist.recv(array, src=context.rank, tag=2)
    work.wait()
    checks.equal(set(array.tolist()), {1.0 + context.rank})
    receive = dist.irecv(later, src=context.rank)
    checks.equal(receive.is_completed(), False, "received before it was sent")
    dist.isend(np.arange(3.0), dst=context.rank).wait()
    receive.wait()
    checks.equal(later.tolist(), [0, 1, 2])
    return checks.failures


def test_a_message_to_the_same_rank(rank_group: RankGroup) -> None:
    rank_group.check(message_to_oneself)


def completes_unwatched(context: Any) -> list[str]:
    """A transfer progresses while no thread waits for it, by `is_completed` alone."""
    rank, size = context.rank, context.world_size
    after, before = (rank + 1) % size, (rank - 1) % size
    array = np.zeros(LONG, np.uint8)
    works = [dist.irecv(array, src=before), dist.isend(np.full(LONG, rank, np.uint8), dst=after)]
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        states = [work.is_completed() for work in works]  # asks each of them, every time
        if all(states):
            break
    checks = Checks(rank)
    checks.equal([work.is_completed() for work in works], [True, True])
    checks.equal(np.unique(array).tolist(), [before])
    dist.barrier()
    return checks.failures


def test_is_completed(rank_group: RankGroup) -> None:
    rank_group.check(completes_unwatched)


def between_collectives(context: Any) -> list[str]:
    """Messages and collectives are independent: one may be in progress while others run."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    array, total = np.zeros(LONG, np.uint8), np.array([rank])
    receive = dist.irecv(array, src=(rank - 1) % size, tag=9)
    dist.all_reduce(total)
    send = dist.isend(np.full(LONG, rank, np.uint8), dst=(rank + 1) % size, tag=9)
    dist.all_reduce(total)
    receive.wait()
    send.wait()
    checks.equal(total.tolist(), [size * size * (size - 1) // 2])
    checks.equal(np.unique(array).tolist(), [(rank - 1) % size])
    return checks.failures


def test_messages_between_collectives(rank_group: RankGroup) -> None:
    rank_group.check(between_collectives)


def bad_peers(context: Any) -> list[str]:
    checks = Checks(context.rank)
    size, array = context.world_size, np.zeros(1)
    for call in (dist.send, dist.isend, dist.recv, dist.irecv):
        checks(call.__name__)
        for peer in (size, -1, 99):
            checks.raises(InvalidArgument, call, array, peer)
    for call in (dist.send, dist.isend):
        checks.contains(checks.raises(InvalidArgument, call, array), "dst")
    dist.barrier()
    return checks.failures


def test_invalid_peers_are_refused(rank_group: RankGroup) -> None:
    rank_group.check(bad_peers)


def receive_that_expires(context: Any) -> list[str]:
    """`wait(timeout)` raises, the transfer continues, and the message is received when it arrives."""
    checks = Checks(context.rank)
    rank, size = context.rank, context.world_size
    array = np.zeros(3)
    work = dist.irecv(array, src=(rank - 1) % size, tag=4)
    checks.raises(CollectiveTimeout, work.wait, 0.02)
    checks.equal(work.is_completed(), False)
    dist.barrier()
    send = dist.isend(np.full(3, 1.0 + rank), dst=(rank + 1) % size, tag=4)
    work.wait(10)
    send.wait()
    checks.equal(array.tolist(), [1.0 + (rank - 1) % size] * 3)
    return checks.failures


@pytest.mark.parametrize("rank_group", [("shm", 2), ("mpi", 2)], indirect=True, ids=["shm-2", "mpi-2"])
def test_a_wait_that_expires_can_be_repeated(rank_group: RankGroup) -> None:
    rank_group.check(receive_that_expires)
