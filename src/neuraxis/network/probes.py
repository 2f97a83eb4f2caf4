"""Probes: what of a population is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument
from neuraxis.network.arguments import id_array, is_array, label, near, positive, settle, whole
from neuraxis.network.arrays import HoldsArrays, Integers, read_only
from neuraxis.network.population import Population

__all__ = ["Probe", "as_subset"]


@dataclass(frozen=True, eq=False)
class Probe(HoldsArrays):
    """The spikes of a population, or one state of its neurons every `every_ms`.

    Attributes:
        what: "spikes" or the name of a state.
        every_ms: the time between two samples of a state; None for spikes, which are all recorded.
        subset: the ids of the recorded neurons within the population, in the order given; None means all.
    """

    population: Population
    what: str
    every_ms: float | None = None
    subset: Integers | None = None
    index: int = 0

    def __post_init__(self) -> None:
        model = self.population.model
        what = label(self.what, "Probe.what")
        if what != "spikes" and what not in model.states:
            known = ["spikes", *model.states]
            raise InvalidArgument(f"Probe.what={what!r}: nothing of {self.population.name!r}; {near(what, known)}")
        if what == "spikes" and self.every_ms is not None:
            raise InvalidArgument(f"Probe.every_ms={self.every_ms}: is for states; every spike is recorded")
        if what != "spikes" and self.every_ms is None:
            raise InvalidArgument("Probe.every_ms=None: a state needs the time between two samples")
        settle(
            self,
            every_ms=None if self.every_ms is None else positive(self.every_ms, "Probe.every_ms"),
            subset=as_subset(self.subset, self.population),
        )

    @property
    def n(self) -> int:
        """How many neurons are recorded."""
        return self.population.n if self.subset is None else int(self.subset.size)


def as_subset(subset: Any, population: Population) -> Integers | None:
    """Ids within a population: None is all, a number n the first n, a slice or an array of ids those."""
    n = population.n
    if subset is None:
        return None
    if isinstance(subset, slice):
        try:
            ids = read_only(np.arange(n, dtype=np.int64)[subset])
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"subset={subset!r}: {error}") from error
    elif not is_array(subset):
        return read_only(np.arange(whole(subset, "subset", 1, n), dtype=np.int64))
    else:
        ids = id_array(subset, "subset", n)
    if not ids.size:
        raise InvalidArgument(f"subset={subset!r}: there is no neuron of {population.name!r} ({n} neurons) in it")
    if np.unique(ids).size != ids.size:
        raise InvalidArgument("subset: an id is there more than once")
    return ids
