"""Parameters that differ between the neurons of a population, and the constants of a model that follow from them.

A parameter is a number for all neurons, or a distribution: `Values` (an array) or one that is drawn when the population
is added, with numbers that belong to the seed, the population, the neuron and the parameter (see `drawing`).

The function `constants` of a model computes with numbers. It is called once with arrays instead, and the result is
compared with that for single neurons. Where it cannot take arrays (it has `if`, `max` or `float`), it is called once
for each distinct combination of values, which takes longer for many neurons but gives the same.

What is then equal for all neurons is a constant, as in a model with plain numbers. The rest is a *row*: float32 or
int32 for each neuron, which the engine keeps beside the states and only reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.arguments import HoldsArrays, plain, read_only, set_fields, warn_user
from neuraxis.errors import InvalidArgument, RoundingWarning
from neuraxis.network.distributions import Distribution, Values
from neuraxis.network.drawing import draw

__all__ = ["Drawn", "Row", "as_rows", "constants_of", "values_in_use"]

Number = float | int
Given = Mapping[str, Number | Distribution]
Array = NDArray[Any]

LARGEST_INT32 = 2**31 - 1
_COMPARED = 3  # neurons, besides those with the lowest and the highest value of each parameter


class Drawn(np.ndarray[Any, Any]):
    """Values that were drawn from a distribution: times among them are rounded to steps without a warning."""


@dataclass(frozen=True, eq=False, repr=False)
class Row(HoldsArrays):
    """The values of an argument of a model's function for each neuron, as the engine uses them.

    Parameters
    ----------
    array : array of float32 (in networks in float64: float64) or int32, shape (n,)
        The values, read-only.
    """

    array: NDArray[np.float32] | NDArray[np.float64] | NDArray[np.int32]

    def __post_init__(self) -> None:
        set_fields(self, array=read_only(self.array))

    def __repr__(self) -> str:
        return f"Row({self.array.size:,} from {self.array.min():g} to {self.array.max():g})"

    @property
    def is_integer(self) -> bool:
        return bool(self.array.dtype == np.int32)


def values_in_use(
    parameters: Given, whole: Collection[str], n: int, seed: int, population: int, what: str
) -> dict[str, Number | Array]:
    """Return the parameters of n neurons: a number, or an array where not all neurons have the same.

    Parameters
    ----------
    parameters : mapping of str to float, int or Distribution
        Parameters of a model, in its order.
    whole : collection of str
        Names of the parameters that are ints.
    n : int
        Number of neurons.
    seed, population : int
        Seed of the network, and index of the population.
    what : str
        Name of the population, for errors.

    Returns
    -------
    dict of str to float, int or array of float64 or int64, shape (n,)

    Raises
    ------
    InvalidArgument
        An array has another length.
    """
    found: dict[str, Number | Array] = {}
    for place, (name, given) in enumerate(parameters.items()):
        if not isinstance(given, Distribution):
            found[name] = given
            continue
        if isinstance(given, Values) and len(given) != n:
            raise InvalidArgument(f"{what}: {name}: {len(given):,} values for {n:,} neurons; pass one for each")
        array: Array = draw(given, n, seed, population, place)
        if name in whole:
            array = array.astype(np.int64)
        if not isinstance(given, Values):
            array = array.view(Drawn)
        found[name] = array[0].item() if _all_equal(array) else array
    return found


def constants_of(
    function: Callable[[Mapping[str, Any], float], Mapping[str, Any]],
    parameters: Mapping[str, Number | Array],
    dt_ms: float,
    what: str,
) -> dict[str, Any]:
    """Return the constants of a model, numbers or arrays with a value for each neuron.

    Parameters
    ----------
    function : callable
        Function of (parameters, dt_ms) that returns the constants of one neuron, and perhaps of arrays.
    parameters : mapping of str to float, int or array
        What `values_in_use` returns; at least one is an array.
    dt_ms : float
        Step in ms.
    what : str
        Name of the population, for errors.

    Raises
    ------
    InvalidArgument
        The function refuses the parameters of a neuron; the message names the first one found.
    """
    arrays = {name: one for name, one in parameters.items() if isinstance(one, np.ndarray)}
    one_neuron = _Single(function, parameters, dt_ms, what)
    n = len(next(iter(arrays.values())))
    extremes = {int(place) for array in arrays.values() for place in (array.argmin(), array.argmax())}
    checked = sorted(extremes | set(range(min(_COMPARED, n))))
    singles: dict[int, Mapping[str, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingWarning)
        for neuron in checked:  # also finds most parameters that are not possible, and names the neuron
            singles[neuron] = one_neuron(neuron)
    try:
        with np.errstate(divide="raise", over="raise", invalid="raise"):  # as for numbers
            found = dict(function(parameters, dt_ms))
    except Exception:  # a function of numbers that cannot take arrays, or parameters that are not possible
        found = None
    if found is not None and all(_agrees(found, neuron, single, n) for neuron, single in singles.items()):
        return {name: np.asarray(one) if isinstance(one, np.ndarray) else one for name, one in found.items()}
    return _by_combination(one_neuron, list(arrays.values()), what)


@dataclass(frozen=True)
class _Single:
    """Calls a function of constants for one neuron."""

    function: Callable[[Mapping[str, Any], float], Mapping[str, Any]]
    parameters: Mapping[str, Number | Array]
    dt_ms: float
    what: str

    def __call__(self, neuron: int) -> Mapping[str, Any]:
        given = {k: v[neuron].item() if isinstance(v, np.ndarray) else v for k, v in self.parameters.items()}
        try:
            return {name: plain(value) for name, value in self.function(given, self.dt_ms).items()}
        except InvalidArgument as error:
            raise InvalidArgument(f"{self.what}: neuron {neuron}: {error}") from error


def _agrees(found: Mapping[str, Any], neuron: int, single: Mapping[str, Any], n: int) -> bool:
    """Return True if constants of all neurons have the same bits as those of one of them alone."""
    if found.keys() != single.keys():
        return False
    for name, value in found.items():
        if isinstance(value, np.ndarray) and value.ndim:
            if value.shape != (n,) or value.dtype.kind not in "if":
                return False
            value = value[neuron]
        value = plain(value)
        if type(value) is not type(single[name]) or repr(value) != repr(single[name]):
            return False
    return True


def _by_combination(one_neuron: _Single, arrays: list[Array], what: str) -> dict[str, Any]:
    """Compute constants once for each distinct combination of parameters."""
    bits = np.stack([np.asarray(one, np.float64) for one in arrays], axis=1).view(np.int64)
    _, first, places = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RoundingWarning)
        found = [one_neuron(int(neuron)) for neuron in first]
    rounded = [one for one in caught if issubclass(one.category, RoundingWarning)]
    if rounded and not any(isinstance(one, Drawn) for one in arrays):
        warn_user(f"{what}: {len(rounded):,} combinations of parameters are rounded, the first: {rounded[0].message}")
    made = {}
    for name in found[0]:
        kinds = {type(one.get(name)) for one in found}
        if kinds not in ({int}, {float}):
            raise InvalidArgument(
                f"{what}: constant {name} is not a number of one kind for all neurons. Return an int or a float for "
                "all parameters."
            )
        made[name] = np.array([one[name] for one in found])[places.ravel()]
    return made


def as_rows(values: Mapping[str, Any], what: str, is_wide: bool = False) -> tuple[dict[str, Number], dict[str, Row]]:
    """Return the arguments that are equal for all neurons, and a row for each of the others, with `is_wide` in float64.

    Raises
    ------
    InvalidArgument
        A value is not finite, or beyond float32 or int32; the message names the neuron.
    """
    constants: dict[str, Number] = {}
    rows: dict[str, Row] = {}
    for name, value in values.items():
        if not isinstance(value, np.ndarray) or not value.ndim:
            constants[name] = value
            continue
        array = np.asarray(value)
        if array.dtype.kind == "i":
            bad = (array < -LARGEST_INT32 - 1) | (array > LARGEST_INT32)
        else:
            bad = ~np.isfinite(array) | (np.abs(array) > np.finfo(np.float32).max)
        if bad.any():
            neuron = int(bad.argmax())
            raise InvalidArgument(
                f"{what}: neuron {neuron}: {name}={array[neuron].item()!r}: a finite number within 32 bits is expected"
            )
        if _all_equal(array):
            constants[name] = array[0].item()
        else:
            kind: Any = np.int32 if array.dtype.kind == "i" else np.float64 if is_wide else np.float32
            rows[name] = Row(array.astype(kind))
    return constants, rows


def _all_equal(array: NDArray[Any]) -> bool:
    bits = np.ascontiguousarray(array).view(np.int64)
    return bool((bits == bits[0]).all())
