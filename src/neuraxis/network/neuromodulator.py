"""Neuromodulators: levels that the whole network shares, raised by spikes."""

from __future__ import annotations

from dataclasses import dataclass

from neuraxis.network.arguments import label, number, positive, settle
from neuraxis.network.population import Population

__all__ = ["Modulation", "Neuromodulator"]


@dataclass(frozen=True)
class Neuromodulator:
    """A level that decays to its baseline with `tau_ms`; `Network.neuromodulator` declares it."""

    name: str
    baseline: float = 0.0
    tau_ms: float = 200.0
    index: int = 0

    def __post_init__(self) -> None:
        settle(
            self,
            name=label(self.name, "Neuromodulator.name"),
            baseline=number(self.baseline, "Neuromodulator.baseline"),
            tau_ms=positive(self.tau_ms, "Neuromodulator.tau_ms"),
        )


@dataclass(frozen=True)
class Modulation:
    """Each spike of the population adds `amount` to the neuromodulator's level, `delay_ms` later."""

    population: Population
    modulator: Neuromodulator
    amount: float
    delay_ms: float
    index: int = 0

    def __post_init__(self) -> None:
        settle(
            self,
            amount=number(self.amount, "Modulation.amount"),
            delay_ms=positive(self.delay_ms, "Modulation.delay_ms"),
        )
