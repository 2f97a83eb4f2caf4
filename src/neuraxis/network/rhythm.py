"""Rhythms: values that are functions of the step alone, and so the same wherever they are computed.

A rhythm is max(floor, cos(2 pi (frequency * time + phase))). The phase of a step is a 64-bit integer, a whole turn
being 2^64, and the cosine comes from a table of 4,096 values that are correctly rounded: no C library has a say in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cache

import numpy as np
from numpy.typing import NDArray

from neuraxis.errors import InvalidArgument
from neuraxis.network.arguments import label, number, positive, settle

__all__ = ["CELLS", "Rhythm", "cosine_table"]

CELLS = 4096
_TURN = 2**64
_CONTEXT = Context(prec=36)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510")


@dataclass(frozen=True)
class Rhythm:
    """A rhythm of the whole network; `Network.rhythm` declares it. `phase` is in turns, at time 0."""

    name: str
    frequency_hz: float
    phase: float = 0.0
    floor: float = -1.0
    index: int = 0

    def __post_init__(self) -> None:
        settle(
            self,
            name=label(self.name, "Rhythm.name"),
            frequency_hz=positive(self.frequency_hz, "Rhythm.frequency_hz"),
            phase=number(self.phase, "Rhythm.phase"),
            floor=number(self.floor, "Rhythm.floor"),
        )
        if not -1 <= self.floor < 1:
            raise InvalidArgument(f"Rhythm.floor={self.floor}: from -1 to below 1, since a rhythm is a cosine")

    def increment(self, dt_ms: float) -> int:
        """The turn of one step, in units of 2^-64."""
        return round(self.frequency_hz * dt_ms * 1e-3 * _TURN) % _TURN

    @property
    def offset(self) -> int:
        return round(self.phase * _TURN) % _TURN

    def phase_at(self, step: int, dt_ms: float) -> float:
        """The phase in a step, in turns from 0 to 1; the value is largest at 0."""
        return ((int(step) * self.increment(dt_ms) + self.offset) % _TURN) / _TURN

    def value_at(self, step: int, dt_ms: float) -> float:
        """The value in a step, as the engine has it."""
        cell = ((int(step) * self.increment(dt_ms) + self.offset) % _TURN) * CELLS // _TURN
        return float(max(cosine_table()[cell], np.float32(self.floor)))


@cache
def cosine_table() -> NDArray[np.float32]:
    """cos(2 pi i / CELLS), rounded from decimals; a quarter is computed, the rest is its mirror."""
    quarter = CELLS // 4
    first = [float(_cosine(2 * _PI * Decimal(i) / Decimal(CELLS))) for i in range(quarter)] + [0.0]
    half = first + [-value for value in first[-2::-1]]
    table = np.array(half + half[-2:0:-1], np.float32)
    table.flags.writeable = False
    return table


def _cosine(x: Decimal) -> Decimal:
    """The series, for 0 <= x < pi / 2."""
    square = _CONTEXT.multiply(x, x)
    total, term, n = Decimal(1), Decimal(1), 0
    while abs(term) > Decimal("1e-24"):
        n += 2
        term = -_CONTEXT.divide(_CONTEXT.multiply(term, square), Decimal(n * (n - 1)))
        total = _CONTEXT.add(total, term)
    return total
