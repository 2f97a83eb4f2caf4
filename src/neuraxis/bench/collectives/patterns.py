"""The patterns of `neuraxis bench collectives`, their buffers, and the expected contents after one call.

One definition serves every contender, so that all of them move the same bytes, and each is checked to compute the
right result before its time counts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neuraxis.bench.harness import parse_choices
from neuraxis.errors import InvalidArgument, NeuraxisError

__all__ = ["PATTERNS", "SIZES", "Buffers", "WrongResult", "parse_patterns", "parse_sizes", "size_text"]

PATTERNS = (
    "all_reduce",
    "broadcast",
    "reduce",
    "barrier",
    "gather",
    "all_gather",
    "scatter",
    "all_to_all",
    "reduce_scatter",
    "send_recv",
)
SIZES = tuple(4 * 4**step for step in (0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12))  # 4 B ... 64 MB

_DIVIDED = ("scatter", "all_to_all", "reduce_scatter")  # patterns in which each rank gets a part of the input
_UNITS = {"": 1, "B": 1, "K": 2**10, "KB": 2**10, "M": 2**20, "MB": 2**20, "G": 2**30, "GB": 2**30}
_ITEM = 4  # float32
_ALIGNMENT = 64  # a cache line, as torch's allocator gives it


class WrongResult(NeuraxisError, ArithmeticError):
    """A contender's call left other values in its buffer than the pattern defines."""


class Buffers:
    """The arguments of one rank: float32 arrays `source` and `target`, also split into one part per rank.

    `size` is the bytes of `source`, which one rank contributes; for scatter, all_to_all and reduce_scatter it is that
    of all parts, with at least one number for each rank. Rank 0 is the root of every pattern.
    """

    def __init__(self, pattern: str, size: int, ranks: int, rank: int) -> None:
        self.pattern, self.ranks, self.rank = pattern, ranks, rank
        count = max(1, size // _ITEM)
        part = max(1, count // ranks)
        sources = {
            "barrier": 0,
            "scatter": part * ranks if rank == 0 else 0,
            "all_to_all": part * ranks,
            "reduce_scatter": part * ranks,
        }
        targets = {
            "gather": count * ranks if rank == 0 else 0,
            "all_gather": count * ranks,
            "scatter": part,
            "all_to_all": part * ranks,
            "reduce_scatter": part,
            "send_recv": count,
        }
        self.source = _aligned(sources.get(pattern, count))
        self.target = _aligned(targets.get(pattern, 0))
        self.source_parts = np.split(self.source, ranks) if pattern in _DIVIDED else []
        self.target_parts = np.split(self.target, ranks) if self.target.size % ranks == 0 else []

    def fill(self) -> None:
        """Write numbers that differ between ranks and between parts, so that a misrouted part is detected."""
        self.target.fill(-1.0)
        self.source.fill(self._number(self.rank, 0))
        for index, part in enumerate(self.source_parts):
            part.fill(self._number(self.rank, index))

    def check(self) -> None:
        """Raise `WrongResult` unless the buffers hold what one call makes of the numbers of `fill`."""
        for place, array, number in self._expected():
            if not np.all(array == number):
                wrong = array[array != number]
                raise WrongResult(
                    f"{self.pattern}: rank {self.rank} has {wrong[0]} in {place} and should have {number}"
                )

    def clear(self) -> None:
        """Write zeros: repeated sums of other numbers would soon overflow."""
        self.source.fill(0.0)

    def _number(self, rank: int, part: int) -> float:
        return float(1 + rank + part * self.ranks)

    def _expected(self) -> list[tuple[str, np.ndarray, float]]:
        everyone = range(self.ranks)
        root = self.rank == 0
        match self.pattern:
            case "broadcast":
                return [("its tensor", self.source, self._number(0, 0))]
            case "all_reduce":
                return [("its tensor", self.source, sum(self._number(rank, 0) for rank in everyone))]
            case "reduce" if root:
                return [("its tensor", self.source, sum(self._number(rank, 0) for rank in everyone))]
            case "all_gather":
                return self._parts(lambda rank: self._number(rank, 0))
            case "gather" if root:
                return self._parts(lambda rank: self._number(rank, 0))
            case "scatter":
                return [("its output", self.target, self._number(0, self.rank))]
            case "all_to_all":
                return self._parts(lambda rank: self._number(rank, self.rank))
            case "reduce_scatter":
                return [("its output", self.target, sum(self._number(rank, self.rank) for rank in everyone))]
            case "send_recv" if self.rank < 2:
                return [("its output", self.target, self._number(0, 0))]
            case _:
                return []

    def _parts(self, number: Callable[[int], float]) -> list[tuple[str, np.ndarray, float]]:
        return [(f"part {rank}", part, number(rank)) for rank, part in enumerate(self.target_parts)]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return sizes in bytes from "4,64,1KB,64MB" (a KB is 1024 bytes)."""
    sizes = []
    for word in text.split(","):
        stripped = word.strip().upper()
        digits = stripped.rstrip("BKMG ")
        unit = stripped[len(digits) :].strip()
        if not digits.isdecimal() or unit not in _UNITS:
            raise InvalidArgument(f"--sizes: {word.strip()!r} is not a size such as 4, 16KB or 64MB")
        size = int(digits) * _UNITS[unit]
        if size < _ITEM or size % _ITEM:
            raise InvalidArgument(
                f"--sizes: {word.strip()!r} is not a multiple of {_ITEM} bytes, the size of a float32"
            )
        sizes.append(size)
    return tuple(sorted(set(sizes)))


def parse_patterns(text: str) -> tuple[str, ...]:
    """Return patterns from "all_reduce,barrier", in the order of PATTERNS."""
    return parse_choices(text.replace("/", "_").replace("-", "_"), "--patterns", PATTERNS)


def size_text(size: int) -> str:
    """Return a size such as 4 B, 16 KB or 64 MB."""
    for unit, factor in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size} B" if size else "-"


def _aligned(count: int) -> np.ndarray:
    extra = _ALIGNMENT // _ITEM
    array = np.empty(count + extra, np.float32)
    start = -array.ctypes.data % _ALIGNMENT // _ITEM
    return array[start : start + count]
