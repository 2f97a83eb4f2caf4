"""Random sequences of collectives against a model of a few lines of plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import neuraxis.distributed as dist
from neuraxis.comm import ReduceOp
from tests.ranks import RankGroup
from tests.ranks.arrays import LIBRARIES, REDUCIBLE, blank, defined, folded, make, terms
from tests.ranks.checks import Checks

PATTERNS = (
    "barrier",
    "broadcast",
    "reduce",
    "all_reduce",
    "gather",
    "all_gather",
    "scatter",
    "all_to_all",
    "reduce_scatter",
    "message",
    "objects",
)


@dataclass(frozen=True)
class Step:
    """One call of the sequence; the same on every rank."""

    pattern: str
    library: str
    name: str
    op: ReduceOp
    shape: tuple[int, ...]
    members: tuple[int, ...]
    root: int  # an index into members
    asynchronous: bool
    strided: bool


@st.composite
def steps(draw: Any, size: int) -> Step:
    library = draw(st.sampled_from(LIBRARIES))
    name = draw(st.sampled_from(REDUCIBLE[library]))
    op = draw(st.sampled_from([op for op in ReduceOp if defined(name, op)]))
    lengths = st.integers(0, 9) | st.sampled_from([1_000, 8_193, 70_000])
    shape = draw(st.tuples(lengths) | st.tuples(st.integers(0, 3), st.integers(0, 3)) | st.just(()))
    members = draw(st.sets(st.integers(0, size - 1), min_size=1) | st.just(range(size)))
    return Step(
        pattern=draw(st.sampled_from(PATTERNS)),
        library=library,
        name=name,
        op=op,
        shape=shape,
        members=tuple(sorted(members)),
        root=draw(st.integers(0, len(members) - 1)),
        asynchronous=draw(st.booleans()),
        strided=draw(st.booleans()),
    )


# --- what each rank does ---


def run_steps(context: Any, sequence: list[Step]) -> list[str]:
    """Start every step in order, wait for the asynchronous ones at the end, and compare everything then."""
    checks = Checks(context.rank)
    groups = {step.members: None for step in sequence}
    for members in groups:
        groups[members] = dist.new_group(members)
    pending: list[Any] = []
    compared: list[tuple[str, Any, Any]] = []
    for number, step in enumerate(sequence):
        if context.rank in step.members:
            work, results = _start(Call(step, number, context.rank), groups[step.members])
            pending += [work] if work is not None else []
            compared += [(f"step {number} {step}", got, expected) for got, expected in results]
    for work in pending:
        work.wait()
    for case, got, expected in compared:
        if isinstance(expected, list):
            checks(case).equal(got, expected)
        else:
            checks(case).same(got, expected)
    for group in groups.values():
        group.close()
    dist.barrier()
    return checks.failures


class Call:
    """The arrays of one step, by the world ranks that they come from and go to."""

    def __init__(self, step: Step, number: int, rank: int) -> None:
        self.step, self.number, self.rank = step, number, rank

    def values(self, *seed: int) -> np.ndarray:
        return terms(self.step.name, self.step.op, self.step.shape, self.number, *seed)

    def of(self, *seed: int) -> Any:
        return self._laid_out(make(self.step.library, self.step.name, self.values(*seed)))

    def blank(self) -> Any:
        return self._laid_out(blank(self.step.library, self.step.name, self.step.shape))

    def folded(self, *seed: int) -> Any:
        rows = [self.values(member, *seed) for member in self.step.members]
        return make(self.step.library, self.step.name, folded(rows, self.step.op))

    def _laid_out(self, array: Any) -> Any:
        if not self.step.strided or not self.step.shape:
            return array
        shape = (2 * self.step.shape[0], *self.step.shape[1:])
        view = blank(self.step.library, self.step.name, shape)[::2]
        view[...] = array
        return view


def _start(call: Call, group: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """Make the call; what to wait for, and pairs of what is there then and what should be."""
    step, rank = call.step, call.rank
    members, root = step.members, step.members[step.root]
    options: dict[str, Any] = {"async_op": step.asynchronous}
    mine = call.of(rank)
    if step.pattern == "barrier":
        return group.barrier(**options), []
    if step.pattern == "broadcast":
        return group.broadcast(mine, src=root, **options), [(mine, call.of(root))]
    if step.pattern == "all_reduce":
        return group.all_reduce(mine, step.op, **options), [(mine, call.folded())]
    if step.pattern == "reduce":
        expected = call.folded() if rank == root else call.of(rank)
        return group.reduce(mine, root, step.op, **options), [(mine, expected)]
    if step.pattern in ("gather", "all_gather"):
        outputs = [call.blank() for _ in members]
        if step.pattern == "all_gather":
            work = group.all_gather(outputs, mine, **options)
        else:
            work = group.gather(mine, outputs if rank == root else None, dst=root, **options)
        if step.pattern == "gather" and rank != root:
            return work, [(mine, call.of(rank))]
        return work, [(output, call.of(member)) for output, member in zip(outputs, members, strict=True)]
    if step.pattern == "scatter":
        output = call.blank()
        inputs = [call.of(root, member) for member in members] if rank == root else None
        return group.scatter(output, inputs, src=root, **options), [(output, call.of(root, rank))]
    if step.pattern == "all_to_all":
        outputs = [call.blank() for _ in members]
        work = group.all_to_all(outputs, [call.of(rank, member) for member in members], **options)
        return work, [(out, call.of(member, rank)) for out, member in zip(outputs, members, strict=True)]
    if step.pattern == "reduce_scatter":
        output = call.blank()
        inputs = [call.of(rank, member) for member in members]
        work = group.reduce_scatter(output, inputs, step.op, **options)
        return work, [(output, call.folded(rank))]
    if step.pattern == "objects":
        gathered: list[Any] = [None] * len(members)
        group.all_gather_object(gathered, (call.number, rank))
        return None, [(gathered, [(call.number, member) for member in members])]
    return _message(call, group, members)


def _message(call: Call, group: Any, members: tuple[int, ...]) -> tuple[Any, list[tuple[Any, Any]]]:
    """From each member to the next; the tag is the step's number."""
    if len(members) == 1:
        return None, []
    place = members.index(call.rank)
    after, before = members[(place + 1) % len(members)], members[place - 1]
    output = call.blank()
    send = group.isend(call.of(call.rank), dst=after, tag=call.number)
    receive = group.irecv(output, src=before, tag=call.number)
    if not call.step.asynchronous:
        receive.wait()
    return Both(send, receive), [(output, call.of(before))]


class Both:
    def __init__(self, *works: Any) -> None:
        self.works = works

    def wait(self) -> None:
        for work in self.works:
            work.wait()


# --- the tests ---

# Nothing is shrunk: each attempt at a sequence that hangs would take a deadline, and new ranks.
quietly = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)

ORDER = [
    Step("all_reduce", "numpy", "int64", ReduceOp.SUM, (70_000,), (0, 1, 2), 0, True, False),
    Step("all_reduce", "numpy", "float32", ReduceOp.MAX, (3,), (0, 1, 2), 0, False, False),
    Step("message", "torch", "bfloat16", ReduceOp.SUM, (70_000,), (0, 2), 0, True, True),
    Step("broadcast", "torch", "complex32", ReduceOp.SUM, (2, 3), (1, 2), 1, True, True),
    Step("reduce_scatter", "numpy", "longdouble", ReduceOp.AVG, (5,), (0, 1, 2), 0, False, True),
]


@pytest.mark.parametrize("rank_group", [("shm", 3)], indirect=True, ids=["shm-3"])
@settings(quietly, max_examples=60)
@given(sequence=st.lists(steps(3), min_size=1, max_size=15))
@example(sequence=ORDER)
def test_any_sequence_in_shared_memory(rank_group: RankGroup, sequence: list[Step]) -> None:
    rank_group.ensure()  # hypothesis runs an example that failed once more
    rank_group.check(run_steps, sequence)


@pytest.mark.parametrize("rank_group", [("gloo", 2), ("mpi", 2)], indirect=True, ids=["gloo-2", "mpi-2"])
@settings(quietly, max_examples=15)
@given(sequence=st.lists(steps(2), min_size=1, max_size=10))
def test_any_sequence_over_other_transports(rank_group: RankGroup, sequence: list[Step]) -> None:
    rank_group.ensure()  # hypothesis runs an example that failed once more
    rank_group.check(run_steps, sequence)
