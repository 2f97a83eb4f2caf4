"""Collectives that reduce: every dtype, operation and root, against a plain model."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import neuraxis.distributed as dist
from neuraxis.comm import ReduceOp
from neuraxis.errors import InvalidType
from tests.ranks import RankGroup
from tests.ranks.arrays import (
    LIBRARIES,
    OPAQUE,
    REDUCIBLE,
    blank,
    defined,
    every_combination,
    folded,
    laid_out,
    layouts,
    make,
    terms,
    torch_module,
)
from tests.ranks.checks import Checks

library_rows = pytest.mark.parametrize("library", LIBRARIES)

# One round, exactly a slot, and several chunks with an odd rest, in shared memory.
LONG = {"float32": (2_049, 131_072, 786_433), "int16": (300_001,), "float16": (262_145,), "complex128": (70_001,)}
FEWER_LONG = {"float32": (393_217,)}
EVERY_OPERATION = ("int32", "float64", "float16", "bool")


class Terms:
    """The contributions of all ranks to one reduction, and its expected result."""

    def __init__(self, library: str, name: str, op: ReduceOp, shape: tuple[int, ...], size: int) -> None:
        self.library, self.name, self.op, self.shape, self.size = library, name, op, shape, size

    def of(self, *seed: int) -> Any:
        return make(self.library, self.name, terms(self.name, self.op, self.shape, *seed))

    def reduced(self, *seed: int) -> Any:
        """The reduction of `of(rank, *seed)` over all ranks."""
        rows = [terms(self.name, self.op, self.shape, rank, *seed) for rank in range(self.size)]
        return make(self.library, self.name, folded(rows, self.op))

    def blank(self) -> Any:
        return blank(self.library, self.name, self.shape)

    def compare(self, checks: Checks, backend: str, got: Any, expected: Any) -> None:
        """The same bits; but how MPI multiplies and divides complex numbers is its own affair."""
        if backend == "mpi" and self.name in ("complex64", "complex128"):
            checks.equal((got.dtype, got.shape), (expected.dtype, expected.shape), "form")
            checks.close(got, expected, 1e-6 if self.name == "complex64" else 1e-15)
        else:
            checks.same(got, expected)


def cases(context: Any, library: str) -> list[Terms]:
    if not every_combination(context):
        return fewer_cases(library, context.world_size)
    size = context.world_size
    found = []
    for name in REDUCIBLE[library]:
        for op in ReduceOp:
            if defined(name, op):
                shapes: list[tuple[int, ...]] = [(3, 5)]
                if op is ReduceOp.SUM:
                    shapes += [(0,), (1,), *((length,) for length in LONG.get(name, ()))]
                if op is ReduceOp.MAX and name in ("int32", "float64", "float16", "longdouble"):
                    shapes += [(), (2, 0)]
                if op is ReduceOp.AVG and name in ("int32", "float16", "complex64"):
                    shapes += [(40_001,)]
                found += [Terms(library, name, op, shape, size) for shape in shapes]
    return found


def fewer_cases(library: str, size: int) -> list[Terms]:
    """Every dtype with one or two operations, some with every one; every shape with some dtype."""
    found = []
    for number, name in enumerate(REDUCIBLE[library]):
        ops = [op for op in ReduceOp if defined(name, op)]
        if name not in EVERY_OPERATION:
            ops = list(dict.fromkeys([ReduceOp.SUM, ops[number % len(ops)]]))
        found += [Terms(library, name, op, (3, 5), size) for op in ops]
        found += [Terms(library, name, ReduceOp.SUM, (length,), size) for length in FEWER_LONG.get(name, ())]
    found += [Terms(library, "float64", ReduceOp.SUM, shape, size) for shape in ((0,), (1,))]
    found += [Terms(library, "float64", ReduceOp.MAX, shape, size) for shape in ((), (2, 0))]
    return [*found, Terms(library, "float16", ReduceOp.AVG, (40_001,), size)]


def all_reduce(context: Any, library: str) -> list[str]:
    rank = context.rank
    checks = Checks(rank)
    for case in cases(context, library):
        checks("all_reduce", case.name, case.op.name, case.shape)
        array = case.of(rank)
        dist.all_reduce(array, op=case.op)
        case.compare(checks, context.backend, array, case.reduced())
    return checks.failures


def reduce(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for number, case in enumerate(cases(context, library)):
        every_root = case.name in ("int32", "float64", "float16") and case.shape == (3, 5)
        for root in range(size) if every_root else [number % size]:
            checks("reduce", case.name, case.op.name, case.shape, "root", root)
            array = case.of(rank)
            dist.reduce(array, dst=root, op=case.op)
            if rank == root:
                case.compare(checks, context.backend, array, case.reduced())
            else:
                checks.same(array, case.of(rank), "what is not the root's")
    return checks.failures


def reduce_scatter(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for case in cases(context, library):
        checks("reduce_scatter", case.name, case.op.name, case.shape)
        inputs = [case.of(rank, to) for to in range(size)]
        output = case.blank()
        dist.reduce_scatter(output, inputs, op=case.op)
        case.compare(checks, context.backend, output, case.reduced(rank))
        for to in range(size):
            checks.same(inputs[to], case.of(rank, to), f"input {to}")
    return checks.failures


@library_rows
@pytest.mark.parametrize("pattern", [all_reduce, reduce, reduce_scatter], ids=lambda p: p.__name__)
def test_every_dtype_and_operation(rank_group: RankGroup, library: str, pattern: Any) -> None:
    rank_group.check(pattern, library)


def uneven_pieces(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for name in ("float32", "int64", "float16"):
        for scale in (1, 60_000):
            # Some ranks get nothing, others get several chunks.
            pieces = [
                Terms(library, name, ReduceOp.SUM, (0 if to % 3 == 1 else scale * (1 + to),), size)
                for to in range(size)
            ]
            checks("reduce_scatter", name, scale)
            output = pieces[rank].blank()
            dist.reduce_scatter(output, [pieces[to].of(rank, to) for to in range(size)])
            checks.same(output, pieces[rank].reduced(rank))

            checks("reduce_scatter_tensor", name, scale)
            whole = Terms(library, name, ReduceOp.MAX, (2 * size, scale), size)
            array, output = whole.of(rank), whole.of(rank)[:2]
            dist.reduce_scatter_tensor(output, array, op=ReduceOp.MAX)
            checks.same(output, whole.reduced()[2 * rank : 2 * rank + 2])
            checks.same(array, whole.of(rank), "input")
    return checks.failures


@library_rows
def test_uneven_pieces_and_one_tensor(rank_group: RankGroup, library: str) -> None:
    rank_group.check(uneven_pieces, library)


def other_layouts(context: Any, library: str) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    names = layouts(library)
    for name in ("int32", "float64", "complex64", "float16"):
        for index in range(len(names)):
            here, there = names[(index + rank) % len(names)], names[(index + rank + 1) % len(names)]
            root = index % size
            case = Terms(library, name, ReduceOp.SUM, (4, 3), size)
            checks(name, here, there, "root", root)
            array = laid_out(case.of(rank), here)
            dist.all_reduce(array)
            checks.same(array, case.reduced(), "all_reduce")
            array = laid_out(case.of(rank), here)
            dist.reduce(array, dst=root)
            checks.same(array, case.reduced() if rank == root else case.of(rank), "reduce")
            output = laid_out(case.blank(), there)
            dist.reduce_scatter(output, [laid_out(case.of(rank, to), here) for to in range(size)])
            checks.same(output, case.reduced(rank), "reduce_scatter")
    return checks.failures


@library_rows
def test_layouts(rank_group: RankGroup, library: str) -> None:
    rank_group.check(other_layouts, library)


def undefined(context: Any, library: str) -> list[str]:
    """Undefined reductions are refused on every rank before anything is sent, and the group stays usable."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for name in REDUCIBLE[library] + OPAQUE[library]:
        for op in ReduceOp:
            if defined(name, op):
                continue
            checks("undefined", name, op.name)
            array = blank(library, name, (3,))
            for asynchronous in (False, True):
                checks.raises(InvalidType, dist.all_reduce, array, op, async_op=asynchronous)
            checks.raises(InvalidType, dist.reduce, array, 0, op)
            checks.raises(InvalidType, dist.reduce_scatter, array, [array] * size, op)
            checks.same(array, blank(library, name, (3,)), "array")
    case = Terms(library, "float32", ReduceOp.SUM, (3,), size)
    array = case.of(rank)
    dist.all_reduce(array)
    checks("afterwards").same(array, case.reduced())
    return checks.failures


@library_rows
def test_undefined_reductions_are_refused(rank_group: RankGroup, library: str) -> None:
    rank_group.check(undefined, library)


def average_at_the_limits(context: Any, library: str) -> list[str]:
    """Means whose (wrapped) sum is at an end of the integer's range, and of large unsigned numbers."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint64"):
        low, high = np.iinfo(name).min, np.iinfo(name).max
        totals = {low, low + 1, high, high - 1, high // 2, 0} if every_combination(context) else {low, high}
        for total in totals:
            mine = np.array([total if rank == 0 else 0] * 3, name)
            everybody = [np.array([total if r == 0 else 0] * 3, name) for r in range(size)]
            checks("AVG", name, "of the sum", total)
            for pattern in ("all_reduce", "reduce", "reduce_scatter"):
                array = make(library, name, mine)
                if pattern == "all_reduce":
                    dist.all_reduce(array, op=ReduceOp.AVG)
                elif pattern == "reduce":
                    dist.reduce(array, 0, op=ReduceOp.AVG)
                else:
                    dist.reduce_scatter(array, [make(library, name, mine)] * size, op=ReduceOp.AVG)
                if pattern != "reduce" or rank == 0:
                    checks.same(array, make(library, name, folded(everybody, ReduceOp.AVG)), pattern)
    return checks.failures


@library_rows
def test_averages_at_the_limits_of_integers(rank_group: RankGroup, library: str) -> None:
    rank_group.check(average_at_the_limits, library)


def rounded_sums(context: Any, library: str) -> tuple[list[str], list[str]]:
    """Sums of arbitrary floats: digests of what this rank got, and failures about the values."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    digests = []
    names = ["float16", "float32", "float64"] + (["bfloat16"] if library == "torch" else [])
    for name in names:
        for length in (11, 5_000, 300_001) if every_combination(context) else (11, 150_001):
            checks(name, length)
            wide = np.float64 if name == "float64" else np.float32
            rows = []
            for source in range(size):
                values = np.random.default_rng([source, length]).normal(size=length).astype(wide)
                if name == "bfloat16":
                    bits = torch_module().from_numpy(values).bfloat16().float()
                    values = bits.numpy()
                elif name == "float16":
                    values = values.astype(np.float16).astype(np.float32)
                rows.append(values)
            array = make(library, name, rows[rank])
            dist.all_reduce(array)
            expected = make(library, name, folded(rows, ReduceOp.SUM))
            if context.backend in ("shm", "local") or name in ("float16", "bfloat16"):
                checks.same(array, expected)
            else:
                total = sum(abs(row) for row in rows)
                error = abs(array - expected if library == "numpy" else array.numpy() - expected.numpy())
                checks.equal(bool((error <= 4 * np.finfo(wide).eps * total).all()), True, "close")
            flat = array if library == "numpy" else array.view(torch_module().uint8).numpy()
            digests.append(hashlib.sha256(flat.tobytes()).hexdigest())
    return checks.failures, digests


@library_rows
def test_sums_of_floats_are_the_same_on_every_rank(rank_group: RankGroup, library: str) -> None:
    answers = rank_group.run(rounded_sums, library)
    assert [failures for failures, _ in answers] == [[]] * rank_group.size
    assert [digests for _, digests in answers] == [answers[0][1]] * rank_group.size


def not_a_number(context: Any, library: str) -> list[str]:
    """MIN and MAX hand on a NaN, whichever rank has it."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for name in ("float16", "float32", "float64"):
        for op in (ReduceOp.MIN, ReduceOp.MAX):
            for owner in range(size):
                values = np.array([rank, np.nan if rank == owner else rank, -rank], np.float32)
                array = make(library, name, values.astype(np.float64 if name == "float64" else np.float32))
                dist.all_reduce(array, op=op)
                got = [float(value) for value in array]
                checks(name, op.name, "NaN on", owner)
                checks.equal(got[1] != got[1], True, "NaN")
                checks.equal(got[0], 0.0 if op is ReduceOp.MIN else size - 1.0)
                checks.equal(got[2], 1.0 - size if op is ReduceOp.MIN else 0.0)
    return checks.failures


@library_rows
@pytest.mark.parametrize("rank_group", [("shm", 1), ("shm", 3)], indirect=True, ids=["shm-1", "shm-3"])
def test_min_and_max_hand_on_nan(rank_group: RankGroup, library: str) -> None:
    rank_group.check(not_a_number, library)


def torch_particulars(context: Any) -> list[str]:
    """Parameters with gradients, conjugated views, 0-dimensional tensors, torch's own ReduceOp."""
    torch = torch_module()
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    parameter = torch.nn.Parameter(torch.full((3,), float(rank + 1)))
    dist.all_reduce(parameter)
    total = size * (size + 1) / 2
    checks("parameter").equal(parameter.tolist(), [total] * 3)
    checks.equal(parameter.requires_grad, True)
    leaf = torch.arange(6.0).reshape(2, 3).requires_grad_()
    dist.all_reduce(leaf.t(), op=torch.distributed.ReduceOp.SUM)
    checks("view of a leaf").equal(leaf.tolist(), [[0, size, 2 * size], [3 * size, 4 * size, 5 * size]])
    conjugated = torch.tensor([complex(rank, 1)]).conj()
    dist.all_reduce(conjugated)
    checks("conjugated view").equal(conjugated.resolve_conj().tolist(), [complex(total - size, -size)])
    scalar = torch.tensor(rank)
    dist.all_reduce(scalar, op=torch.distributed.ReduceOp.MAX)
    checks("0-dimensional").equal(scalar.item(), size - 1)
    return checks.failures


def test_torch_particulars(rank_group: RankGroup) -> None:
    rank_group.check(torch_particulars)


def mixed_libraries(context: Any) -> list[str]:
    """Some ranks with NumPy arrays, others with tensors, in one call."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    library = LIBRARIES[rank % 2]
    case = Terms(library, "float32", ReduceOp.SUM, (5,), size)
    array = case.of(rank)
    dist.all_reduce(array)
    checks.same(array, case.reduced())
    dist.broadcast(array, src=size - 1)
    checks.same(array, case.reduced())
    return checks.failures


def test_libraries_may_be_mixed(rank_group: RankGroup) -> None:
    rank_group.check(mixed_libraries)
