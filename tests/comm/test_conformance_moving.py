"""Collectives that move data: every dtype, root and layout, lengths from zero to several chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.errors import InvalidArgument
from tests.ranks import RankGroup
from tests.ranks.arrays import LIBRARIES, MOVABLE, blank, content, every_combination, laid_out, layouts, make
from tests.ranks.checks import Checks

SHAPES = ((0,), (7,))
# Of these dtypes every shape, since how a dtype is moved and how a shape is do not depend on each other.
MORE_SHAPES = ((1,), (3, 5), (2, 0, 3), ())
MORE_DTYPES = ("uint8", "int16", "float64", "complex64", "bfloat16", "record", "longdouble")
# A slot of shared memory is 512 KiB: nearly one, exactly one, and several with an odd rest.
LONG = {"uint8": (524_287, 524_288, 3 * 2**20 + 5), "float64": (65_537, 393_217), "complex64": (393_217,)}
FEWER_LONG = {"float64": (196_609,)}

library_rows = pytest.mark.parametrize("library", LIBRARIES)


def shapes_of(name: str, every: bool) -> list[tuple[int, ...]]:
    if every:
        more = MORE_SHAPES if name in MORE_DTYPES else ()
        return [*SHAPES, *more, *((length,) for length in LONG.get(name, ()))]
    more = (*SHAPES, *MORE_SHAPES) if name == "float64" else ((7,),)
    return [*more, *((length,) for length in FEWER_LONG.get(name, ()))]


class Maker:
    """Makes the arrays of one case; `of(rank, place)` is the same on every rank. `roots` lists the roots."""

    def __init__(self, library: str, name: str, shape: tuple[int, ...], roots: Sequence[int] = ()) -> None:
        self.library, self.name, self.shape, self.roots = library, name, shape, roots

    def of(self, *seed: int, shape: tuple[int, ...] | None = None) -> Any:
        return make(self.library, self.name, content(self.name, self.shape if shape is None else shape, *seed))

    def blank(self, shape: tuple[int, ...] | None = None) -> Any:
        return blank(self.library, self.name, self.shape if shape is None else shape)


def cases(context: Any, library: str) -> list[Maker]:
    """Every root for one shape (of one dtype, where not every combination is tried), one root for every other."""
    size, every = context.world_size, every_combination(context)
    found = []
    for number, name in enumerate(MOVABLE[library]):
        for shape in shapes_of(name, every):
            all_roots = shape == (7,) and (every or name == "float64")
            roots = range(size) if all_roots else [size - 1 if every else number % size]
            found.append(Maker(library, name, shape, roots))
    return found


# --- every dtype and shape ---


def broadcast(context: Any, library: str) -> list[str]:
    rank = context.rank
    checks = Checks(rank)
    for maker in cases(context, library):
        for root in maker.roots:
            checks("broadcast", maker.name, maker.shape, "root", root)
            array = maker.of(rank, root)
            dist.broadcast(array, src=root)
            checks.same(array, maker.of(root, root))
    return checks.failures


def gather(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for maker in cases(context, library):
        for root in maker.roots:
            checks("gather", maker.name, maker.shape, "root", root)
            array = maker.of(rank, root)
            outputs = [maker.blank() for _ in range(size)] if rank == root else None
            dist.gather(array, outputs, dst=root)
            checks.same(array, maker.of(rank, root), "input")
            for source, output in enumerate(outputs or ()):
                checks.same(output, maker.of(source, root), f"from {source}")
    return checks.failures


def all_gather(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for maker in cases(context, library):
        checks("all_gather", maker.name, maker.shape)
        array = maker.of(rank)
        outputs = [maker.blank() for _ in range(size)]
        dist.all_gather(outputs, array)
        checks.same(array, maker.of(rank), "input")
        for source, output in enumerate(outputs):
            checks.same(output, maker.of(source), f"from {source}")
    return checks.failures


def scatter(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for maker in cases(context, library):
        for root in maker.roots:
            checks("scatter", maker.name, maker.shape, "root", root)
            inputs = [maker.of(root, to) for to in range(size)] if rank == root else None
            array = maker.blank()
            dist.scatter(array, inputs, src=root)
            checks.same(array, maker.of(root, rank))
            for to, piece in enumerate(inputs or ()):
                checks.same(piece, maker.of(root, to), f"input {to}")
    return checks.failures


def all_to_all(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for maker in cases(context, library):
        checks("all_to_all", maker.name, maker.shape)
        inputs = [maker.of(rank, to) for to in range(size)]
        outputs = [maker.blank() for _ in range(size)]
        dist.all_to_all(outputs, inputs)
        for other in range(size):
            checks.same(inputs[other], maker.of(rank, other), f"input {other}")
            checks.same(outputs[other], maker.of(other, rank), f"from {other}")
    return checks.failures


def single_tensor_forms(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for maker in cases(context, library):
        if np.prod(maker.shape) > 100_000:  # `2 * size` of it would be much, and says nothing new
            continue
        whole = Maker(library, maker.name, (2 * size, *maker.shape))
        checks("all_gather_into_tensor", maker.name, maker.shape)
        array, output = whole.of(rank)[:2], whole.blank()
        dist.all_gather_into_tensor(output, array)
        checks.same(array, whole.of(rank)[:2], "input")
        for source in range(size):
            checks.same(output[2 * source : 2 * source + 2], whole.of(source)[:2], f"from {source}")

        checks("all_to_all_single", maker.name, maker.shape)
        array, output = whole.of(rank), whole.blank()
        dist.all_to_all_single(output, array)
        checks.same(array, whole.of(rank), "input")
        mine = slice(2 * rank, 2 * rank + 2)
        for source in range(size):
            checks.same(output[2 * source : 2 * source + 2], whole.of(source)[mine], f"from {source}")
    return checks.failures


@library_rows
@pytest.mark.parametrize(
    "pattern", [broadcast, gather, all_gather, scatter, all_to_all, single_tensor_forms], ids=lambda p: p.__name__
)
def test_every_dtype_shape_and_root(rank_group: RankGroup, library: str, pattern: Any) -> None:
    rank_group.check(pattern, library)


# --- pieces of other lengths ---


def pair_length(source: int, to: int, scale: int) -> int:
    """Return the length of the data from `source` to `to`: 0, or more than a chunk if scale is large."""
    return 0 if (source + to) % 3 == 0 else scale * (1 + 2 * source + to) + 1


def uneven(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    ranks = range(size)
    for name in ("int32", "float64", "uint8"):
        for scale in (1, 40_000):
            maker = Maker(library, name, ())
            checks("all_to_all", name, scale)
            inputs = [maker.of(rank, to, shape=(pair_length(rank, to, scale),)) for to in ranks]
            outputs = [maker.blank((pair_length(source, rank, scale),)) for source in ranks]
            dist.all_to_all(outputs, inputs)
            for source in ranks:
                expected = maker.of(source, rank, shape=(pair_length(source, rank, scale),))
                checks.same(outputs[source], expected, f"from {source}")

            checks("all_gather", name, scale)
            outputs = [maker.blank((pair_length(source, 0, scale),)) for source in ranks]
            dist.all_gather(outputs, maker.of(rank, shape=(pair_length(rank, 0, scale),)))
            for source in ranks:
                expected = maker.of(source, shape=(pair_length(source, 0, scale),))
                checks.same(outputs[source], expected, f"from {source}")

            for root in ranks:
                checks("gather", name, scale, "root", root)
                outputs = [maker.blank((pair_length(source, root, scale),)) for source in ranks]
                array = maker.of(rank, root, shape=(pair_length(rank, root, scale),))
                dist.gather(array, outputs if rank == root else None, dst=root)
                for source in ranks if rank == root else ():
                    expected = maker.of(source, root, shape=(pair_length(source, root, scale),))
                    checks.same(outputs[source], expected, f"from {source}")

                checks("scatter", name, scale, "root", root)
                inputs = [maker.of(root, to, shape=(pair_length(root, to, scale),)) for to in ranks]
                array = maker.blank((pair_length(root, rank, scale),))
                dist.scatter(array, inputs if rank == root else None, src=root)
                checks.same(array, inputs[rank])
    return checks.failures


def uneven_single(context: Any, library: str) -> list[str]:
    """all_to_all_single with split sizes, of rows of three."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for name in ("int16", "float32"):
        checks(name)
        sent = [pair_length(rank, to, 1) for to in range(size)]
        received = [pair_length(source, rank, 1) for source in range(size)]
        maker = Maker(library, name, ())
        array, output = maker.of(rank, shape=(sum(sent), 3)), maker.blank((sum(received), 3))
        dist.all_to_all_single(output, array, received, sent)
        start = 0
        for source in range(size):
            theirs = [pair_length(source, to, 1) for to in range(size)]
            whole = maker.of(source, shape=(sum(theirs), 3))
            piece = whole[sum(theirs[:rank]) : sum(theirs[: rank + 1])]
            checks.same(output[start : start + received[source]], piece, f"from {source}")
            start += received[source]
    return checks.failures


@library_rows
@pytest.mark.parametrize("pattern", [uneven, uneven_single], ids=lambda p: p.__name__)
def test_uneven_pieces(rank_group: RankGroup, library: str, pattern: Any) -> None:
    rank_group.check(pattern, library)


# --- memory that is not contiguous ---


def other_layouts(context: Any, library: str) -> list[str]:
    """Each argument in each layout; ranks have different ones in the same call."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    ranks = range(size)
    names = layouts(library)
    cases = [(name, (4, 3)) for name in ("int32", "float64", "complex64", "int8")]
    for name, shape in [*cases, ("float64", (1, 1))]:
        for index, layout in enumerate(names):
            here = names[(index + rank) % len(names)]
            there = names[(index + rank + 1) % len(names)]
            maker = Maker(library, name, shape)
            root = index % size
            checks(name, shape, here, there, "root", root)
            array = laid_out(maker.of(rank, 1), here)
            dist.broadcast(array, src=root)
            checks.same(array, maker.of(root, 1), "broadcast")

            outputs = [laid_out(maker.blank(), there) for _ in ranks]
            dist.all_gather(outputs, laid_out(maker.of(rank, 2), here))
            for source in ranks:
                checks.same(outputs[source], maker.of(source, 2), "all_gather")

            outputs = [laid_out(maker.blank(), there) for _ in ranks]
            dist.gather(laid_out(maker.of(rank, 3), here), outputs if rank == root else None, dst=root)
            for source in ranks if rank == root else ():
                checks.same(outputs[source], maker.of(source, 3), "gather")

            array = laid_out(maker.blank(), here)
            inputs = [laid_out(maker.of(root, to), layout) for to in ranks]
            dist.scatter(array, inputs if rank == root else None, src=root)
            checks.same(array, maker.of(root, rank), "scatter")

            outputs = [laid_out(maker.blank(), there) for _ in ranks]
            dist.all_to_all(outputs, [laid_out(maker.of(rank, to, 4), here) for to in ranks])
            for source in ranks:
                checks.same(outputs[source], maker.of(source, rank, 4), "all_to_all")

            whole = Maker(library, name, (2 * size, 3))
            output = laid_out(whole.blank(), there)
            dist.all_to_all_single(output, laid_out(whole.of(rank), here))
            for source in ranks:
                mine = whole.of(source)[2 * rank : 2 * rank + 2]
                checks.same(output[2 * source : 2 * source + 2], mine, "all_to_all_single")
            output = laid_out(whole.blank(), there)
            dist.all_gather_into_tensor(output, laid_out(whole.of(rank)[:2], here))
            for source in ranks:
                expected = whole.of(source)[:2]
                checks.same(output[2 * source : 2 * source + 2], expected, "all_gather_into_tensor")
    return checks.failures


@library_rows
def test_layouts(rank_group: RankGroup, library: str) -> None:
    rank_group.check(other_layouts, library)


def gaps_stay(context: Any, library: str) -> list[str]:
    """A call does not write between the elements of a strided array."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    maker = Maker(library, "int32", (2, 9))
    whole = maker.of(rank)
    dist.broadcast(whole[:, 1::2], src=size - 1)
    checks("broadcast").same(whole[:, 1::2], maker.of(size - 1)[:, 1::2])
    checks.same(whole[:, ::2], maker.of(rank)[:, ::2], "gaps")
    whole = maker.of(rank)
    dist.all_reduce(whole[:, 1::2], op=dist.ReduceOp.MAX)
    checks("all_reduce").same(whole[:, ::2], maker.of(rank)[:, ::2], "gaps")
    return checks.failures


@library_rows
def test_gaps_of_a_view_are_left_alone(rank_group: RankGroup, library: str) -> None:
    rank_group.check(gaps_stay, library)


def read_only(context: Any) -> list[str]:
    """Read-only arrays: welcome where they are only read, refused before anything is sent where written."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    maker = Maker("numpy", "float32", (5,))

    def frozen(*seed: int) -> np.ndarray:
        array = maker.of(*seed)
        array.flags.writeable = False
        return array

    for root in range(size):
        checks("accepted, root", root)
        array = frozen(rank) if rank == root else maker.blank()
        dist.broadcast(array, src=root)
        checks.same(array, maker.of(root))
        outputs = [maker.blank() for _ in range(size)]
        dist.gather(frozen(rank), outputs if rank == root else None, dst=root)
        dist.scatter(outputs[0], [frozen(to) for to in range(size)] if rank == root else None, src=root)
        checks.same(outputs[0], maker.of(rank))
        array = maker.of(rank) if rank == root else frozen(rank)
        dist.reduce(array, dst=root)
        checks.same(array, array if rank == root else maker.of(rank))
    outputs = [maker.blank() for _ in range(size)]
    dist.all_gather(outputs, frozen(rank))
    dist.all_to_all(outputs, [frozen(rank, to) for to in range(size)])
    dist.reduce_scatter(outputs[0], [frozen(rank, to) for to in range(size)])
    work = dist.isend(frozen(rank), dst=rank)
    dist.recv(outputs[0], src=rank)
    work.wait()
    checks.same(outputs[0], maker.of(rank))

    checks("refused")
    good, bad = [maker.blank() for _ in range(size)], [frozen(to) for to in range(size)]
    for call in (
        lambda: dist.all_reduce(frozen(rank)),
        lambda: dist.all_gather(bad, maker.of(rank)),
        lambda: dist.all_to_all(bad, good),
        lambda: dist.reduce_scatter(frozen(rank), good),
        lambda: dist.scatter(frozen(rank), good if rank == 0 else None, src=0),
        lambda: dist.recv(frozen(rank), src=rank),
        lambda: dist.irecv(frozen(rank), src=rank),
        lambda: dist.all_gather_into_tensor(np.broadcast_to(np.float32(0), (size,)), np.zeros(1, np.float32)),
    ):
        checks.contains(checks.raises(InvalidArgument, call), "read-only")
    if rank == 0:
        checks.raises(InvalidArgument, dist.reduce, frozen(rank), 0)
        checks.raises(InvalidArgument, dist.gather, maker.of(rank), bad, 0)
    else:
        checks.raises(InvalidArgument, dist.broadcast, frozen(rank), 0)
    dist.barrier()
    return checks.failures


def test_read_only_arrays(rank_group: RankGroup) -> None:
    rank_group.check(read_only)


def barriers(context: Any) -> list[int]:
    """A barrier orders events before it on any rank and events after it on any other."""
    seen = []
    for turn in range(context.world_size):
        counter = np.array([turn if context.rank == turn else -1])
        dist.barrier()
        dist.all_reduce(counter, op=dist.ReduceOp.MAX)
        seen.append(int(counter[0]))
    return seen


def test_barrier(rank_group: RankGroup) -> None:
    assert rank_group.run(barriers) == [list(range(rank_group.size))] * rank_group.size
