"""What reaches a network from outside: random spikes, given spikes, currents.

Times are from the start of the run, in ms, rounded to steps. An input acts from `start_ms` on and before `stop_ms`
(None: for ever).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument
from neuraxis.network.arguments import float_array, id_array, is_array, not_negative, number, settle
from neuraxis.network.arrays import Floats, HoldsArrays, Integers
from neuraxis.network.population import Population

__all__ = ["CurrentInput", "PoissonInput", "SpikeInput"]


@dataclass(frozen=True, eq=False)
class PoissonInput(HoldsArrays):
    """Every neuron of the population gets random spikes of its own at `rate_hz` (a number, or one for each neuron)."""

    population: Population
    rate_hz: float | Floats
    weight: float
    receptor: str
    start_ms: float = 0.0
    stop_ms: float | None = None
    index: int = 0

    def __post_init__(self) -> None:
        rate = _for_neurons(self.rate_hz, self.population, "PoissonInput.rate_hz")
        lowest = float(np.min(rate))
        if lowest < 0:
            raise InvalidArgument(f"PoissonInput.rate_hz={lowest}: a rate must be 0 or more")
        settle(self, rate_hz=rate, weight=number(self.weight, "PoissonInput.weight"))
        _settle_interval(self)

    @property
    def largest_rate_hz(self) -> float:
        return float(np.max(self.rate_hz))


@dataclass(frozen=True, eq=False)
class SpikeInput(HoldsArrays):
    """Neuron `ids[i]` of the population emits a spike at `times_ms[i]`, whatever its own state.

    A neuron emits one spike in a step, also where several are given for it.
    """

    population: Population
    times_ms: Floats
    ids: Integers
    index: int = 0

    def __post_init__(self) -> None:
        times = float_array(self.times_ms, "SpikeInput.times_ms")
        ids = id_array(self.ids, "SpikeInput.ids", self.population.n)
        if times.size != ids.size:
            raise InvalidArgument(f"SpikeInput: {times.size} times_ms and {ids.size} ids; one of each makes a spike")
        settle(self, times_ms=times, ids=ids)


@dataclass(frozen=True, eq=False)
class CurrentInput(HoldsArrays):
    """A constant current into every neuron of the population: one number, or one for each neuron."""

    population: Population
    amplitude_pa: float | Floats
    start_ms: float = 0.0
    stop_ms: float | None = None
    index: int = 0

    def __post_init__(self) -> None:
        model = self.population.model
        if not model.takes_current:
            raise InvalidArgument(
                f"current into {self.population.name!r}: {model.name} takes no current; "
                "its function must have the argument current_pa"
            )
        settle(self, amplitude_pa=_for_neurons(self.amplitude_pa, self.population, "CurrentInput.amplitude_pa"))
        _settle_interval(self)


def _for_neurons(value: Any, population: Population, name: str) -> float | Floats:
    """A number, or an array with one for each neuron."""
    if not is_array(value):
        return number(value, name)
    array = float_array(value, name)
    if array.size != population.n:
        raise InvalidArgument(
            f"{name} has {array.size} values; population {population.name!r} has {population.n} neurons"
        )
    return array


def _settle_interval(given: PoissonInput | CurrentInput) -> None:
    kind = type(given).__name__
    start_ms = not_negative(given.start_ms, f"{kind}.start_ms")
    stop_ms = None if given.stop_ms is None else number(given.stop_ms, f"{kind}.stop_ms")
    if stop_ms is not None and stop_ms <= start_ms:
        raise InvalidArgument(f"{kind}.stop_ms={stop_ms}: must be after start_ms={start_ms}")
    settle(given, start_ms=start_ms, stop_ms=stop_ms)
