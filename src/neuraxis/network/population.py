"""Populations: neurons that share a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass

from neuraxis.arguments import frozen, label, whole
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.network.distributions import Constant, Distribution, Values, as_distribution
from neuraxis.network.neuron_model import NeuronModel
from neuraxis.network.parameters import near_variable

__all__ = ["Population", "make_population"]

LARGEST_FLOAT32 = 3.4028234e38
LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Population:
    """Neurons that share a model; `Network.population` makes it.

    Parameters
    ----------
    name : str
        Unique name.
    n : int
        Number of neurons.
    model : NeuronModel
        Model with its parameters; those that differ between neurons are `Values`.
    initial : mapping of str to Distribution
        Distribution of the initial value of each state of the model, in its order.
    index : int
        Position among the network's populations.
    first_id : int
        Id of the first neuron within the network; the others follow.

    Examples
    --------
    >>> from neuraxis.network import Network
    >>> from neuraxis.network.models import lif_exp
    >>> Network().population("E", 8000, lif_exp)
    Population('E', 8,000 x lif_exp)
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
    name: str,
    n: int,
    model: NeuronModel,
    initial: Mapping[str, object],
    index: int,
    first_id: int,
    dt_ms: float,
    seed: int,
    precision: str,
) -> Population:
    """Check the arguments and return a population."""
    label(name, "name")
    size = whole(n, f"population {name!r}: n", 1)
    if not isinstance(model, NeuronModel):
        raise _not_a_model(model, name)
    for state in initial:
        if state not in model.states:
            if state in model.parameters:
                raise InvalidArgument(
                    f"population {name!r}: {state} is a parameter of the model, not a state. Pass "
                    f"{model.name}({state}=...) as the model: a number, an array with a value for each neuron, or a "
                    "distribution"
                )
            raise InvalidArgument(
                f"population {name!r}: {model.name} has no state {state!r}; {near_variable(state, model.states)}"
            )
    complete: dict[str, Distribution] = {}
    for state, default in model.states.items():
        given = as_distribution(initial.get(state, default), f"population {name!r}: {state}")
        _check_initial(given, f"population {name!r}: {state}", size, isinstance(default, int))
        complete[state] = given
    used = model.for_population(f"population {name!r}", size, dt_ms, seed, index, precision)
    return Population(name, size, used, frozen(complete), index, first_id)


def _not_a_model(model: object, name: str) -> InvalidType:
    hint = f". In a shell, `neuraxis models {model}` looks for one of this name" if isinstance(model, str) else ""
    if inspect.isfunction(model):
        hint = f". Call it, as {model.__name__}(), or decorate it with neuron_model"
    return InvalidType(
        f"population {name!r}: model={model!r}: a NeuronModel such as neuraxis.network.models.lif_exp_two() is "
        f"expected, not {type(model).__name__}{hint}"
    )


def _check_initial(given: Distribution, name: str, n: int, is_whole: bool) -> None:
    if isinstance(given, Values) and len(given) != n:
        raise InvalidArgument(f"{name}: {len(given)} values for {n} neurons; pass one for each")
    low, high = given.bounds()
    if not is_whole:
        if max(-low, high) > LARGEST_FLOAT32:
            raise InvalidArgument(f"{name}={given}: beyond the range of float32")
        return
    if isinstance(given, Values):
        ok = bool((given.array == given.array.round()).all())
    else:
        ok = isinstance(given, Constant) and given.value.is_integer()
    if not ok:
        raise InvalidArgument(f"{name}={given}: this state is an int; pass a whole number or an array of them")
    if max(-low, high) > LARGEST_INT32:
        raise InvalidArgument(f"{name}={given}: beyond the range of int32")
