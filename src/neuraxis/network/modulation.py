"""Neuromodulators and rhythms: signals that the whole network shares.

Spikes raise or lower the level of a neuromodulator. A rhythm is a function of the step alone,
max(floor, cos(2 pi (frequency * time + phase))), and is therefore the same on every worker. The phase of a step is a
64-bit integer (one cycle is 2**64), and the cosine comes from a table of 4,096 correctly rounded values, so the result
does not depend on the C library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Context, Decimal
from functools import cache

import numpy as np
from numpy.typing import NDArray

from neuraxis.arguments import ShortRepr, label, number, positive, set_fields
from neuraxis.errors import InvalidArgument
from neuraxis.network.population import Population

__all__ = ["CELLS", "Modulation", "Neuromodulator", "Rhythm", "cosine_table"]

CELLS = 4096  # entries of the table of the cosine
_CYCLE = 2**64
_CONTEXT = Context(prec=36)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510")


@dataclass(frozen=True, repr=False)
class Neuromodulator(ShortRepr):
    """A level that decays exponentially to its baseline; `Network.neuromodulator` makes it.

    Parameters
    ----------
    name : str
        Unique name.
    baseline : float
        Level at the start and in the absence of spikes; the unit is arbitrary.
    tau_ms : float
        Time constant of the decay, in ms.
    index : int
        Position among the network's neuromodulators.

    Examples
    --------
    >>> Neuromodulator("dopamine", tau_ms=150.0)
    Neuromodulator(name='dopamine', tau_ms=150)
    """

    name: str
    baseline: float = 0.0
    tau_ms: float = 200.0
    index: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        set_fields(
            self,
            name=label(self.name, "Neuromodulator.name"),
            baseline=number(self.baseline, "Neuromodulator.baseline"),
            tau_ms=positive(self.tau_ms, "Neuromodulator.tau_ms"),
        )


@dataclass(frozen=True, repr=False)
class Modulation(ShortRepr):
    """The effect of a population's spikes on a neuromodulator; `Network.modulate` makes it.

    Parameters
    ----------
    population : Population
        Population whose spikes have the effect.
    modulator : Neuromodulator
        Neuromodulator that is changed.
    amount : float
        Change of the level by each spike; may be negative.
    delay_ms : float
        Delay of the change after the spike, in ms.
    index : int
        Position among the network's modulations.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_exp
    >>> network = Network()
    >>> cells = network.population("cells", 100, lif_exp)
    >>> dopamine = network.neuromodulator("dopamine")
    >>> network.modulate(cells, dopamine, amount=0.01, delay_ms=1.0)
    Modulation(population='cells', modulator='dopamine', amount=0.01, delay_ms=1)
    """

    population: Population
    modulator: Neuromodulator
    amount: float
    delay_ms: float
    index: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        set_fields(
            self,
            amount=number(self.amount, "Modulation.amount"),
            delay_ms=positive(self.delay_ms, "Modulation.delay_ms"),
        )


@dataclass(frozen=True, repr=False)
class Rhythm(ShortRepr):
    """The periodic signal max(floor, cos(2 pi (frequency * time + phase))); `Network.rhythm` makes it.

    Parameters
    ----------
    name : str
        Unique name.
    frequency_hz : float
        Frequency, in Hz.
    phase : float
        Phase at time 0, in cycles.
    floor : float
        Lower limit of the value, from -1 to below 1.
    index : int
        Position among the network's rhythms.

    Examples
    --------
    >>> theta = Rhythm("theta", 8.0, floor=0.0)
    >>> theta
    Rhythm(name='theta', frequency_hz=8, floor=0)
    >>> theta.value_at(0, dt_ms=0.1)
    1.0
    """

    name: str
    frequency_hz: float
    phase: float = 0.0
    floor: float = -1.0
    index: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        set_fields(
            self,
            name=label(self.name, "Rhythm.name"),
            frequency_hz=positive(self.frequency_hz, "Rhythm.frequency_hz"),
            phase=number(self.phase, "Rhythm.phase"),
            floor=number(self.floor, "Rhythm.floor"),
        )
        if not -1 <= self.floor < 1:
            raise InvalidArgument(f"Rhythm.floor={self.floor}: must be from -1 to below 1, as a rhythm is a cosine")

    def increment(self, dt_ms: float) -> int:
        """Return the advance of the phase in one step.

        Parameters
        ----------
        dt_ms : float
            Step in ms.

        Returns
        -------
        int
            The advance, in units of 2**-64 cycles.
        """
        return round(self.frequency_hz * dt_ms * 1e-3 * _CYCLE) % _CYCLE

    @property
    def offset(self) -> int:
        """Phase at step 0, in units of 2**-64 cycles."""
        return round(self.phase * _CYCLE) % _CYCLE

    def phase_at(self, step: int, dt_ms: float) -> float:
        """Return the phase in a step; the value has its maximum at phase 0.

        Parameters
        ----------
        step : int
            Number of the step.
        dt_ms : float
            Step in ms.

        Returns
        -------
        float
            Phase in cycles, from 0 to below 1.
        """
        return ((int(step) * self.increment(dt_ms) + self.offset) % _CYCLE) / _CYCLE

    def value_at(self, step: int, dt_ms: float) -> float:
        """Return the value in a step, exactly as the engine computes it.

        Parameters
        ----------
        step : int
            Number of the step.
        dt_ms : float
            Step in ms.

        Returns
        -------
        float
            A float32 from `floor` to 1.
        """
        cell = ((int(step) * self.increment(dt_ms) + self.offset) % _CYCLE) * CELLS // _CYCLE
        return float(max(cosine_table()[cell], np.float32(self.floor)))


@cache
def cosine_table() -> NDArray[np.float32]:
    """Return cos(2 pi i / CELLS) in float32, correctly rounded; computed for a quarter and mirrored."""
    quarter = CELLS // 4
    first = [float(_cosine(2 * _PI * Decimal(i) / Decimal(CELLS))) for i in range(quarter)] + [0.0]
    half = first + [-value for value in first[-2::-1]]
    table = np.array(half + half[-2:0:-1], np.float32)
    table.flags.writeable = False
    return table


def _cosine(x: Decimal) -> Decimal:
    """Return cos(x) for 0 <= x < pi / 2 by its power series."""
    square = _CONTEXT.multiply(x, x)
    total, term, n = Decimal(1), Decimal(1), 0
    while abs(term) > Decimal("1e-24"):
        n += 2
        term = -_CONTEXT.divide(_CONTEXT.multiply(term, square), Decimal(n * (n - 1)))
        total = _CONTEXT.add(total, term)
    return total
