"""The correct result of each pattern in plain Python, as test oracle of a run, and the moves to draw.

All values differ, so that a value in the wrong rank or place is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neuraxis.report.patterns.model import Held, Move

__all__ = ["DEFINITIONS", "Definition", "create_data", "even_ranks"]


@dataclass(frozen=True)
class Definition:
    """Data of the ranks before a pattern and after it, and the moves between them."""

    before: Sequence[Held]
    after: Sequence[Held]
    moves: list[Move]


def create_data(worker_id: int, dim: int) -> list[int]:
    """Return the values 0 to dim - 1, plus `dim` times the number of the worker."""
    return [place + worker_id * dim for place in range(dim)]


def even_ranks(n: int) -> list[int]:
    return list(range(0, n, 2))


def _broadcast(n: int, dim: int) -> Definition:
    data = _tensors(n, dim)
    return Definition(data, [data[0]] * n, [Move(0, rank) for rank in range(n)])


def _reduce(n: int, dim: int) -> Definition:
    data = _tensors(n, dim)
    return Definition(data, [_sum(data), *data[1:]], [Move(rank, 0) for rank in range(n)])


def _all_reduce(n: int, dim: int) -> Definition:
    data = _tensors(n, dim)
    return Definition(data, [_sum(data)] * n, [Move(source, to) for to in range(n) for source in range(n)])


def _barrier(n: int, dim: int) -> Definition:
    return Definition([None] * n, [None] * n, [])


def _gather(n: int, dim: int) -> Definition:
    data = _tensors(n, dim)
    return Definition(data, [data, *data[1:]], [Move(rank, 0, to_slot=rank) for rank in range(n)])


def _all_gather(n: int, dim: int) -> Definition:
    data = _tensors(n, dim)
    moves = [Move(source, to, to_slot=source) for to in range(n) for source in range(n)]
    return Definition(data, [data] * n, moves)


def _scatter(n: int, dim: int) -> Definition:
    data = _tensors(n, dim)
    return Definition([data, *[None] * (n - 1)], data, [Move(0, rank, from_slot=rank) for rank in range(n)])


def _all_to_all(n: int, dim: int) -> Definition:
    before = _lists(n, dim)
    after = [[before[source][to] for source in range(n)] for to in range(n)]
    moves = [Move(source, to, from_slot=to, to_slot=source) for to in range(n) for source in range(n)]
    return Definition(before, after, moves)


def _reduce_scatter(n: int, dim: int) -> Definition:
    before = _lists(n, dim)
    after = [_sum([before[source][to] for source in range(n)]) for to in range(n)]
    moves = [Move(source, to, from_slot=to) for to in range(n) for source in range(n)]
    return Definition(before, after, moves)


def _send_recv(n: int, dim: int) -> Definition:
    data = _tensors(n, dim)
    after = [data[(rank - 1) % n] for rank in range(n)]
    # A single rank has no neighbour.
    return Definition(data, after, [Move(rank, (rank + 1) % n) for rank in range(n) if n > 1])


def _group(n: int, dim: int) -> Definition:
    data, members = _tensors(n, dim), even_ranks(n)
    total = _sum([data[rank] for rank in members])
    return Definition(data, [total, *data[1:]], [Move(rank, 0) for rank in members])


DEFINITIONS: dict[str, Callable[[int, int], Definition]] = {
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_reduce": _all_reduce,
    "barrier": _barrier,
    "gather": _gather,
    "all_gather": _all_gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "send_recv": _send_recv,
    "group": _group,
}


def _tensors(n: int, dim: int) -> list[list[int]]:
    """Return one tensor for each rank."""
    return [create_data(rank, dim) for rank in range(n)]


def _lists(n: int, dim: int) -> list[list[list[int]]]:
    """Return, for each rank, a list with one tensor for each rank."""
    return [[create_data(rank * n + slot, dim) for slot in range(n)] for rank in range(n)]


def _sum(tensors: Sequence[list[int]]) -> list[int]:
    return [sum(values) for values in zip(*tensors, strict=True)]
