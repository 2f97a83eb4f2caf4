"""Tables of neuron models: tuples of numbers and small NumPy arrays, whose entries a model reads by an index.

A table has one dimension or two, and entries of one kind: float32, or int32 if all are whole. In the tree of a model's
function it is a constant that is a tuple, so that the source of the function contains it.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from neuraxis.arguments import plain
from neuraxis.errors import InvalidArgument
from neuraxis.network.model_source import Definition, located, placed, quoted

__all__ = ["LARGEST_TABLE", "Table", "as_table", "is_table", "with_tables"]

Number = float | int
Table = tuple[Number, ...] | tuple[tuple[Number, ...], ...]

LARGEST_TABLE = 1024  # entries
_LARGEST_FLOAT32 = 3.4028235677973366e38  # numbers below it do not round to infinity


def is_table(value: object) -> bool:
    """Return True if a value is one that `as_table` takes or refuses."""
    return isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim > 0)


def as_table(value: Any) -> Table:
    """Return a tuple, list or array of numbers as a table: floats, or ints if all are whole.

    Raises
    ------
    ValueError
        It is empty, too large, has rows of different lengths, or something other than numbers in range.

    >>> as_table((1, 2.5)), as_table(np.eye(2, dtype=int))
    ((1.0, 2.5), ((1, 0), (0, 1)))
    """
    rows = [*value]
    if not rows:
        raise ValueError("it is empty")
    if not any(is_table(one) for one in rows):
        return _alike([rows])[0]
    if not all(is_table(one) for one in rows) or len({len(one) for one in rows}) > 1 or len(rows[0]) == 0:
        raise ValueError("its rows do not have the same length")
    return tuple(_alike([[*one] for one in rows]))


def _alike(rows: Sequence[Sequence[Any]]) -> list[tuple[Number, ...]]:
    """Return rows of numbers of one kind."""
    found = [[plain(one) for one in row] for row in rows]
    if sum(map(len, found)) > LARGEST_TABLE:
        raise ValueError(f"it has more than {LARGEST_TABLE:,} entries")
    for one in (one for row in found for one in row):
        if isinstance(one, bool):
            raise ValueError(f"it has the truth value {one}; write {int(one)}")
        if not isinstance(one, int | float):
            raise ValueError(f"it has the entry {one!r}, which is no number")
        if not math.isfinite(one) or not abs(one) < _LARGEST_FLOAT32:
            raise ValueError(f"it has the entry {one!r}, which is no float32")
    whole = all(isinstance(one, int) for row in found for one in row)
    if whole and not all(-(2**31) <= one < 2**31 for row in found for one in row):  # type: ignore[operator]
        raise ValueError("it has a whole number beyond 32 bits; write floats")
    return [tuple(one if whole else float(one) for one in row) for row in found]  # type: ignore[arg-type, misc]


def with_tables(tree: ast.FunctionDef, function: Definition) -> ast.FunctionDef:
    """Return the tree of a function with constants in place of the names of tables around it, and of `math.pi`.

    Raises
    ------
    InvalidArgument
        A name that it reads is a tuple, list or array that cannot be a table.
    """
    own = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    own |= {one.arg for one in ast.walk(tree.args) if isinstance(one, ast.arg)}
    tree.body = [_Named(function, own).visit(one) for one in tree.body]
    return tree


class _Named(ast.NodeTransformer):
    def __init__(self, function: Definition, own: set[str]) -> None:
        self._function = function
        self._own = own

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._own:
            return node
        value = self._function.value_of(node.id)
        if not is_table(value):
            return node
        try:
            made = as_table(value)
        except ValueError as error:
            at = located(self._function.name, node)
            raise InvalidArgument(
                f"{at}: {quoted(node)} cannot be a table of a model: {error}. A table is a tuple or an array of one or "
                f"two dimensions, of up to {LARGEST_TABLE:,} numbers."
            ) from error
        return placed(ast.Constant(made), node, node.id)  # type: ignore[arg-type]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replace a number of a module, as math.pi."""
        if isinstance(node.value, ast.Name) and node.value.id not in self._own:
            outer = self._function.value_of(node.value.id)
            number = plain(getattr(outer, node.attr, None)) if isinstance(outer, ModuleType) else None
            if isinstance(number, int | float) and not isinstance(number, bool):
                return placed(ast.Constant(number), node, ast.unparse(node))
        return node
