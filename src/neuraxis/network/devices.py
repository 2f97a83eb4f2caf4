"""Inputs of a network (Poisson spikes, given spikes, currents) and probes, which select what is recorded.

Times are in ms since the start of the simulation; `Network` rounds them to steps, with a warning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuraxis.arguments import (
    Floats,
    HoldsArrays,
    Integers,
    ShortRepr,
    float_array,
    id_array,
    is_array,
    label,
    not_negative,
    number,
    positive,
    read_only,
    set_fields,
    whole,
)
from neuraxis.errors import InvalidArgument
from neuraxis.network.parameters import near_variable
from neuraxis.network.population import LARGEST_FLOAT32, Population

__all__ = ["CurrentInput", "PoissonInput", "Probe", "SpikeInput", "as_subset"]


@dataclass(frozen=True, eq=False, repr=False)
class PoissonInput(ShortRepr, HoldsArrays):
    """Independent Poisson spikes into every neuron of a population; `Network.poisson` makes it.

    Parameters
    ----------
    population : Population
        Target.
    rate_hz : float or array_like of float, shape (n,)
        Rate in Hz: one for all neurons, or one for each.
    weight : float
        Weight of each spike, in the unit of the receptor.
    receptor : str
        Receptor of the target's model.
    start_ms : float
        Start in ms.
    stop_ms : float, optional
        End in ms (exclusive); None means that the input never ends.
    index : int
        Position among the network's Poisson inputs.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_exp
    >>> network = Network()
    >>> cells = network.population("cells", 100, lif_exp)
    >>> network.poisson(cells, rate_hz=8000, weight=20)
    PoissonInput(population='cells', rate_hz=8000, weight=20, receptor='input_pa')
    """

    population: Population
    rate_hz: float | Floats
    weight: float
    receptor: str
    start_ms: float = 0.0
    stop_ms: float | None = None
    index: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        rate = _for_neurons(self.rate_hz, self.population, "PoissonInput.rate_hz")
        lowest = float(np.min(rate))
        if lowest < 0:
            raise InvalidArgument(f"PoissonInput.rate_hz={lowest}: a rate must be 0 or more")
        set_fields(self, rate_hz=rate, weight=number(self.weight, "PoissonInput.weight"))
        _check_interval(self)

    @property
    def largest_rate_hz(self) -> float:
        """Largest rate of a neuron, in Hz."""
        return float(np.max(self.rate_hz))


@dataclass(frozen=True, eq=False, repr=False)
class SpikeInput(ShortRepr, HoldsArrays):
    """Spikes that neurons of a population emit at given times, whatever their state; `Network.spikes` makes it.

    A neuron emits at most one spike in a step, even if several are given.

    Parameters
    ----------
    population : Population
        Population that spikes.
    times_ms : array_like of float, shape (n_spikes,)
        Times of the spikes in ms.
    ids : array_like of int, shape (n_spikes,)
        Ids of the neurons within the population.
    index : int
        Position among the network's spike inputs.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import spike_source
    >>> network = Network()
    >>> cells = network.population("cells", 100, spike_source)
    >>> network.spikes(cells, times_ms=[1.0, 2.5], ids=[0, 99])
    SpikeInput(population='cells', times_ms=<2 values>, ids=<2 values>)
    """

    population: Population
    times_ms: Floats
    ids: Integers
    index: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        times = float_array(self.times_ms, "SpikeInput.times_ms")
        ids = id_array(self.ids, "SpikeInput.ids", self.population.n)
        if times.size != ids.size:
            raise InvalidArgument(f"SpikeInput: {times.size} times_ms and {ids.size} ids; a spike needs one of each")
        set_fields(self, times_ms=times, ids=ids)


@dataclass(frozen=True, eq=False, repr=False)
class CurrentInput(ShortRepr, HoldsArrays):
    """Constant current into every neuron of a population; `Network.current` makes it.

    Parameters
    ----------
    population : Population
        Target.
    amplitude_pa : float or array_like of float, shape (n,)
        Current in pA: one for all neurons, or one for each.
    start_ms : float
        Start in ms.
    stop_ms : float, optional
        End in ms (exclusive); None means that the input never ends.
    index : int
        Position among the network's current inputs.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_exp
    >>> network = Network()
    >>> cells = network.population("cells", 100, lif_exp)
    >>> network.current(cells, amplitude_pa=300.0, start_ms=10.0)
    CurrentInput(population='cells', amplitude_pa=300, start_ms=10)
    """

    population: Population
    amplitude_pa: float | Floats
    start_ms: float = 0.0
    stop_ms: float | None = None
    index: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        model = self.population.model
        if not model.takes_current:
            raise InvalidArgument(
                f"current into {self.population.name!r}: {model.name} takes no current. "
                "Add the argument current_pa to its function."
            )
        amplitude_pa = _for_neurons(self.amplitude_pa, self.population, "CurrentInput.amplitude_pa")
        if np.abs(amplitude_pa).max(initial=0.0) > LARGEST_FLOAT32:
            raise InvalidArgument(f"current into {self.population.name!r}: beyond the range of float32 (3.4e38)")
        set_fields(self, amplitude_pa=amplitude_pa)
        _check_interval(self)


@dataclass(frozen=True, eq=False, repr=False)
class Probe(ShortRepr, HoldsArrays):
    """A recording of spikes or of a state of a population; `Network.record` makes it.

    Parameters
    ----------
    population : Population
        Population to record from.
    what : str
        "spikes" or the name of a state.
    every_ms : float, optional
        Time between two samples of a state in ms; None for spikes, which are all recorded.
    subset : int, slice or array_like of int, optional
        Neurons to record: the first n, a slice of the ids, or ids in the order given; None means all.
    index : int
        Position among the network's probes.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_exp
    >>> network = Network()
    >>> cells = network.population("cells", 100, lif_exp)
    >>> network.record(cells, "v_mv", every_ms=1.0, subset=5)
    Probe(population='cells', what='v_mv', every_ms=1, subset=<5 values>)
    """

    population: Population
    what: str
    every_ms: float | None = None
    subset: Integers | None = None
    index: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        model = self.population.model
        what = label(self.what, "Probe.what")
        if what != "spikes" and what not in model.states:
            known = ["spikes", *model.states]
            raise InvalidArgument(
                f"Probe.what={what!r}: cannot be recorded from {self.population.name!r}; {near_variable(what, known)}"
            )
        if what == "spikes" and self.every_ms is not None:
            raise InvalidArgument(f"Probe.every_ms={self.every_ms}: applies to states only; every spike is recorded")
        if what != "spikes" and self.every_ms is None:
            raise InvalidArgument("Probe.every_ms=None: pass the time between two samples of the state")
        set_fields(
            self,
            every_ms=None if self.every_ms is None else positive(self.every_ms, "Probe.every_ms"),
            subset=as_subset(self.subset, self.population),
        )

    @property
    def n(self) -> int:
        """Number of recorded neurons."""
        return self.population.n if self.subset is None else int(self.subset.size)


def as_subset(subset: Any, population: Population) -> Integers | None:
    """Return the ids that `subset` selects (see `Probe`); None for all neurons."""
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
        raise InvalidArgument(f"subset={subset!r}: selects no neuron of {population.name!r} ({n} neurons)")
    if np.unique(ids).size != ids.size:
        raise InvalidArgument("subset: an id occurs more than once")
    return ids


def _for_neurons(value: Any, population: Population, name: str) -> float | Floats:
    """Return a number, or an array with one value for each neuron."""
    if not is_array(value):
        return number(value, name)
    array = float_array(value, name)
    if array.size != population.n:
        raise InvalidArgument(
            f"{name} has {array.size} values; population {population.name!r} has {population.n} neurons"
        )
    return array


def _check_interval(given: PoissonInput | CurrentInput) -> None:
    kind = type(given).__name__
    start_ms = not_negative(given.start_ms, f"{kind}.start_ms")
    stop_ms = None if given.stop_ms is None else number(given.stop_ms, f"{kind}.stop_ms")
    if stop_ms is not None and stop_ms <= start_ms:
        raise InvalidArgument(f"{kind}.stop_ms={stop_ms}: must be after start_ms={start_ms}")
    set_fields(given, start_ms=start_ms, stop_ms=stop_ms)
