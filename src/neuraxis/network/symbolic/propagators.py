"""Exact solutions of linear equations over one step, by the matrix exponential.

For dx/dt = A x + B u with inputs u that are constant within a step, exp(h [[A, B], [0, 0]]) contains the factors of x
and u after a step of length h. The augmented matrix needs no inverse of A, so singular matrices and equal time
constants are not special. It is computed in `decimal`, with digits to spare, and rounded once to float64: the same
bits on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal

from neuraxis.errors import InvalidArgument
from neuraxis.network.model_source import DerivedConstants

__all__ = ["LinearStep", "ModelConstants", "exponential_less_one"]

Number = float | int

_DIGITS = 50
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
    n = len(matrix)
    context = Context(prec=_DIGITS)
    step = Decimal(h)
    scaled = [[context.multiply(Decimal(one), step) for one in row] for row in matrix]
    norm = max((sum((abs(one) for one in row), Decimal(0)) for row in scaled), default=Decimal(0))
    halvings = 0
    while norm > Decimal("0.05"):
        norm, halvings = norm / 2, halvings + 1
        if halvings > _MOST_HALVINGS:
            raise InvalidArgument(f"the equations are too fast for steps of {h:g} ms: a rate exceeds 1e58 per step")
    # A double that was halved `halvings` times loses as many bits in the squarings: spend digits on them.
    context = Context(prec=_DIGITS + halvings)
    divisor = Decimal(2) ** halvings
    small = [[context.divide(context.multiply(Decimal(one), step), divisor) for one in row] for row in matrix]
    made, term, k = [list(row) for row in small], small, 1
    limit = Decimal(10) ** -(context.prec)
    while any(abs(one) > limit for row in term for one in row):
        k += 1
        term = _product(term, small, context, Decimal(k))
        made = [[context.add(a, b) for a, b in zip(x, y, strict=True)] for x, y in zip(made, term, strict=True)]
    for _ in range(halvings):  # (1 + D)^2 - 1 = 2 D + D D
        square = _product(made, made, context, Decimal(1))
        made = [
            [context.add(context.add(a, a), b) for a, b in zip(x, y, strict=True)]
            for x, y in zip(made, square, strict=True)
        ]
    return [[float(made[i][j]) for j in range(n)] for i in range(n)]


def _product(
    a: Sequence[Sequence[Decimal]], b: Sequence[Sequence[Decimal]], context: Context, divisor: Decimal
) -> list[list[Decimal]]:
    n = len(a)
    made = []
    for row in a:
        nonzero = [(k, one) for k, one in enumerate(row) if one]
        line = []
        for j in range(n):
            found = Decimal(0)
            for k, one in nonzero:
                if b[k][j]:
                    found = context.fma(one, b[k][j], found)
            line.append(context.divide(found, divisor) if found and divisor != 1 else found)
        made.append(line)
    return made


class LinearStep:
    """The factors of one step of linear equations.

    Parameters
    ----------
    entries : mapping of (int, int) to str
        Name of the constant at each place of the matrix that is not zero; columns from `n` on are inputs.
    size : int
        Number of states and inputs.
    results : mapping of (int, int) to str
        Name of the factor for each place of the result that is needed.
    """

    def __init__(
        self, entries: Mapping[tuple[int, int], str], size: int, results: Mapping[tuple[int, int], str]
    ) -> None:
        self._entries, self._size, self._results = dict(entries), size, dict(results)

    def __call__(self, values: Mapping[str, Number], dt_ms: float) -> dict[str, float]:
        """Return the factors by name, for steps of `dt_ms`."""
        matrix = [[0.0] * self._size for _ in range(self._size)]
        for (i, j), name in self._entries.items():
            matrix[i][j] = float(values[name])
        found = exponential_less_one(matrix, dt_ms)
        return {name: found[i][j] for (i, j), name in self._results.items()}


class ModelConstants:
    """The constants of a model that equations were compiled to: expressions, then steps of linear equations.

    It is a function of (parameters, dt_ms), as `neuron_model(constants=...)` takes it, and can be pickled.
    """

    def __init__(
        self, model: str, expressions: Mapping[str, str], parameters: set[str], steps: Sequence[LinearStep],
        refractory: str | None,
    ) -> None:  # fmt: skip
        self._expressions = DerivedConstants(model, expressions, parameters)
        self._steps = list(steps)
        self._model = model
        self._refractory = refractory

    def __call__(self, parameters: Mapping[str, Number], dt_ms: float) -> dict[str, Number]:
        """Return the constants for steps of `dt_ms`."""
        from neuraxis.network.grid import on_grid, to_steps

        found: dict[str, Number] = dict(self._expressions(parameters, dt_ms))
        for one in self._steps:
            found |= one({**parameters, **found}, dt_ms)
        if self._refractory is not None:
            time = float({**parameters, **found}[self._refractory])
            name = f"{self._model}: refractory"
            found["refractory_steps"] = to_steps(on_grid(time, dt_ms, name), dt_ms, name)
        return found
