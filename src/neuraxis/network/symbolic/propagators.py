"""Exact solutions of linear equations over one step, by the matrix exponential.

For dx/dt = A x + B u with inputs u that are constant within a step, exp(h [[A, B], [0, 0]]) contains the factors of x
and u after a step of length h. The augmented matrix needs no inverse of A, so singular matrices and equal time
constants are not special. It is computed in `decimal`, with digits to spare, and rounded once to float64: the same
bits on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import numpy as np

from neuraxis.errors import InvalidArgument
from neuraxis.network.model_source import DerivedConstants
from neuraxis.network.symbolic.parsing import Place

__all__ = ["LinearStep", "ModelConstants", "exponential_less_one"]

Matrix = list[list[Decimal]]

_DIGITS = 50
_CONTEXT = Context(prec=_DIGITS)
_SMALL = Decimal("0.05")
_MOST_HALVINGS = 200


def exponential_less_one(matrix: Sequence[Sequence[float]], h: float) -> list[list[float]]:
    """Return exp(h * matrix) - 1 (the identity), each element rounded once to float64.

    Parameters
    ----------
    matrix : sequence of sequence of float
        Square matrix.
    h : float
        Length of the step.

    Examples
    --------
    >>> exponential_less_one([[-0.1]], 1.0)
    [[-0.09516258196404043]]
    >>> exponential_less_one([[0.0, 1.0], [0.0, 0.0]], 0.5)
    [[0.0, 0.5], [0.0, 0.0]]
    """
    return [[float(one) for one in row] for row in _exponential_less_one(matrix, h)]


def _exponential_less_one(matrix: Sequence[Sequence[float]], h: float) -> Matrix:
    step = Decimal(h)
    norm = max((sum(abs(Decimal(one)) for one in row) for row in matrix), default=Decimal(0)) * abs(step)
    halvings = 0
    while norm > _SMALL:
        norm, halvings = norm / 2, halvings + 1
        if halvings > _MOST_HALVINGS:
            raise InvalidArgument(f"the equations are too fast for steps of {h:g} ms: a rate exceeds 1e58 per step")
    # Each squaring can lose a bit: spend digits on them.
    context = Context(prec=_DIGITS + halvings)
    divisor = Decimal(2) ** halvings
    small = [[context.divide(context.multiply(Decimal(one), step), divisor) for one in row] for row in matrix]
    made, term, k = small, small, 1
    limit = Decimal(10) ** -context.prec
    while any(abs(one) > limit for row in term for one in row):
        k += 1
        term = [[context.divide(one, Decimal(k)) for one in row] for row in _product(term, small, context)]
        made = _sum(made, term, context)
    for _ in range(halvings):  # (1 + D)^2 - 1 = 2 D + D D
        made = _sum(_sum(made, made, context), _product(made, made, context), context)
    return made


def _sum(a: Matrix, b: Matrix, context: Context) -> Matrix:
    return [[context.add(x, y) for x, y in zip(row, other, strict=True)] for row, other in zip(a, b, strict=True)]


def _product(a: Matrix, b: Matrix, context: Context) -> Matrix:
    made = []
    for row in a:
        nonzero = [(k, one) for k, one in enumerate(row) if one]
        line = []
        for j in range(len(b)):
            found = Decimal(0)
            for k, one in nonzero:
                if b[k][j]:
                    found = context.fma(one, b[k][j], found)
            line.append(found)
        made.append(line)
    return made


class LinearStep:
    """The factors of one step of linear equations dx/dt = A x + B u.

    Parameters
    ----------
    entries : mapping of (int, int) to str
        Name of the constant at each place of (A B) that is not zero; columns from `n` on are inputs.
    n : int
        Number of states.
    results : mapping of (int, int) to str
        Name of the factor for each place of the result that is needed.
    """

    def __init__(self, entries: Mapping[tuple[int, int], str], n: int, results: Mapping[tuple[int, int], str]) -> None:
        self._entries, self._n, self._results = dict(entries), n, dict(results)

    def __call__(self, values: Mapping[str, Any], dt_ms: float) -> dict[str, Any]:
        """Return the factors by name, for steps of `dt_ms`: numbers, or arrays where a constant is one."""
        given = {place: values[name] for place, name in self._entries.items()}
        arrays = [np.asarray(one, np.float64) for one in given.values() if isinstance(one, np.ndarray)]
        known: dict[tuple[float, ...], tuple[Matrix, Matrix]] = {}
        if not arrays:
            return self._factors({place: float(one) for place, one in given.items()}, dt_ms, known)
        bits = np.stack(arrays, axis=1).view(np.int64)
        _, first, places = np.unique(bits, axis=0, return_index=True, return_inverse=True)
        rows = []
        for neuron in first:
            one = {k: float(v[neuron]) if isinstance(v, np.ndarray) else float(v) for k, v in given.items()}
            rows.append(self._factors(one, dt_ms, known))
        return {name: np.array([row[name] for row in rows])[places.ravel()] for name in self._results.values()}

    def _factors(
        self,
        given: Mapping[tuple[int, int], float],
        dt_ms: float,
        known: dict[tuple[float, ...], tuple[Matrix, Matrix]],
    ) -> dict[str, float]:
        n = self._n
        rates = [[given.get((i, j), 0.0) for j in range(n)] for i in range(n)]
        key = tuple(one for row in rates for one in row)
        if key not in known:
            # exp(h [[A, 1], [0, 0]]) has the integral of exp(A s) over the step in its upper right.
            wide = [[*row, *(float(i == j) for j in range(n))] for i, row in enumerate(rates)] + [[0.0] * 2 * n] * n
            found = _exponential_less_one(wide, dt_ms)[:n]
            known[key] = [row[:n] for row in found], [row[n:] for row in found]
        moved, integral = known[key]
        made = {}
        for (i, j), name in self._results.items():
            if j < n:
                made[name] = float(moved[i][j])
                continue
            total = Decimal(0)
            for k in range(n):
                if integral[i][k] and (k, j) in given:
                    total = _CONTEXT.fma(integral[i][k], Decimal(given[k, j]), total)
            made[name] = float(total)
        return made


class ModelConstants:
    """The constants of a model that equations were compiled to: expressions, then steps of linear equations.

    It is a function of (parameters, dt_ms), as `neuron_model(constants=...)` takes it, and can be pickled. `divisors`
    are the parameters that the equations divide by, with the first line of each.
    """

    def __init__(
        self, model: str, expressions: Mapping[str, str], parameters: set[str], steps: Sequence[LinearStep],
        refractory: str | None, divisors: Mapping[str, Place],
    ) -> None:  # fmt: skip
        self._expressions = DerivedConstants(model, expressions, parameters)
        self._steps = list(steps)
        self._model = model
        self._refractory = refractory
        self._divisors = dict(divisors)

    def __call__(self, parameters: Mapping[str, Any], dt_ms: float) -> dict[str, Any]:
        """Return the constants for steps of `dt_ms`; arrays where a parameter is one."""
        from neuraxis.network.models.lif import steps

        try:
            found = dict(self._expressions(parameters, dt_ms))
        except InvalidArgument as error:
            if isinstance(error.__cause__, ZeroDivisionError) and self._divisors:
                raise self._divided_by_zero(parameters) from error
            raise
        for one in self._steps:
            found |= one({**parameters, **found}, dt_ms)
        if self._refractory is not None:
            name = f"{self._model}: refractory time"
            found["refractory_steps"] = steps({name: {**parameters, **found}[self._refractory]}, name, dt_ms)
        return found

    def _divided_by_zero(self, parameters: Mapping[str, Any]) -> InvalidArgument:
        """Return an error about a parameter that is 0, or about several of which a divisor consists."""
        zero = {one: place for one, place in self._divisors.items() if np.ndim(parameters[one]) or not parameters[one]}
        involved = zero or self._divisors
        values = " and ".join(f"{one}={parameters[one]:g}" for one in involved if not np.ndim(parameters[one]))
        place = next(iter(involved.values()))
        which = values or next(iter(involved))
        return place.refuse(f"{self._model}: a division by 0, with {which}. Give another value.")
