"""The shape of a launch: blocks of threads, and a grid of blocks."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from neuraxis.errors import InvalidArgument, InvalidType

__all__ = ["Geometry", "Limits"]

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Limits:
    """What a device takes: the longest block and grid along x, y and z, and the threads of a block in all."""

    block: Triple = (1024, 1024, 64)
    grid: Triple = (2**31 - 1, 65535, 65535)
    threads: int = 1024


@dataclass(frozen=True)
class Geometry:
    """A launch's block and grid, three numbers each, found to be possible."""

    block: Triple
    grid: Triple

    @classmethod
    def checked(cls, block: Any, grid: Any, limits: Limits = Limits()) -> Geometry:  # noqa: B008  (it is frozen)
        """From a number, or one to three numbers, each."""
        block, grid = _triple("block", block, limits.block), _triple("grid", grid, limits.grid)
        threads = block[0] * block[1] * block[2]
        if threads > limits.threads:
            raise InvalidArgument(
                f"block={block}: {threads} threads, and this kernel can have {limits.threads} a block"
            )
        return cls(block, grid)


def _triple(name: str, value: Any, limit: Triple) -> Triple:
    given = list(value) if isinstance(value, tuple | list) else [value]
    if not 1 <= len(given) <= 3:
        raise InvalidArgument(f"{name}={value!r}: one to three numbers are needed")
    numbers = []
    for number in given:
        try:
            if isinstance(number, bool):
                raise TypeError
            numbers.append(operator.index(number))
        except TypeError:
            raise InvalidType(f"{name}={value!r}: {number!r} ({type(number).__name__}) is no whole number") from None
    x, y, z = (*numbers, 1, 1)[:3]
    for axis, number, most in zip("xyz", (x, y, z), limit, strict=True):
        if number < 1:
            raise InvalidArgument(
                f"{name}={value!r}: {number} along {axis}, and at least 1 is needed; for an empty array, launch nothing"
            )
        if number > most:
            raise InvalidArgument(f"{name}={value!r}: {number} along {axis}, and this device takes {most}")
    return x, y, z
