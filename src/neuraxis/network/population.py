"""A population: neurons of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.arguments import label, near, whole
from neuraxis.network.distributions import Constant, Distribution, Values, as_distribution
from neuraxis.network.neuron_model import NeuronModel

__all__ = ["Population", "make_population"]

LARGEST_FLOAT32 = 3.4028234e38
LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Population:
    """`n` neurons of one model; `Network.population` makes it.

    Attributes:
        initial: for every state of the model, in its order, what its first value is drawn from.
        index: the place among the network's populations.
        first_id: the id of neuron 0 in the network; the others follow.
    """

    name: str
    n: int
    model: NeuronModel
    initial: Mapping[str, Distribution]
    index: int
    first_id: int

    def __len__(self) -> int:
        return self.n

    def __hash__(self) -> int:
        return hash((self.name, self.n, self.index))

    def __repr__(self) -> str:
        return f"Population({self.name!r}, {self.n:,} x {self.model.name})"


def make_population(
    name: str, n: int, model: NeuronModel, initial: Mapping[str, object], index: int, first_id: int, dt_ms: float
) -> Population:
    """A population of checked arguments."""
    label(name, "name")
    size = whole(n, f"population {name!r}: n", 1)
    if not isinstance(model, NeuronModel):
        raise InvalidType(f"population {name!r}: model={model!r}: a NeuronModel is expected")
    for state in initial:
        if state not in model.states:
            raise InvalidArgument(
                f"population {name!r}: {model.name} has no state {state!r}; {near(state, model.states)}"
            )
    complete: dict[str, Distribution] = {}
    for state, default in model.states.items():
        given = as_distribution(initial.get(state, default), f"population {name!r}: {state}")
        _check_initial(given, f"population {name!r}: {state}", size, isinstance(default, int))
        complete[state] = given
    return Population(name, size, model.for_step(dt_ms), complete, index, first_id)


def _check_initial(given: Distribution, name: str, n: int, is_whole: bool) -> None:
    if isinstance(given, Values) and len(given) != n:
        raise InvalidArgument(f"{name}: {len(given)} values for {n} neurons; give one for each")
    low, high = given.bounds()
    if not is_whole:
        if max(-low, high) > LARGEST_FLOAT32:
            raise InvalidArgument(f"{name}={given}: beyond what float32 holds")
        return
    if isinstance(given, Values):
        ok = bool((given.array == given.array.round()).all())
    else:
        ok = isinstance(given, Constant) and given.value.is_integer()
    if not ok:
        raise InvalidArgument(f"{name}={given}: this state is a whole number; give one, or an array of them")
    if max(-low, high) > LARGEST_INT32:
        raise InvalidArgument(f"{name}={given}: beyond what int32 holds")
