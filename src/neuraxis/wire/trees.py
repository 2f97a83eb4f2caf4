"""Nested values: the leaves are everything that is not a mapping, a list or a tuple."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["iter_leaves", "map_leaves"]


def map_leaves(change: Callable[[Any], Any], value: Any, of: type = object, *, plain: bool = False) -> Any:
    """Return a nested value with each leaf replaced by `change(leaf)`.

    Mappings become dicts; lists and tuples keep their types, named tuples included.

    Parameters
    ----------
    change : callable
        Returns the replacement of a leaf.
    value : object
        The value.
    of : type
        The type of leaves to replace; others stay.
    plain : bool
        Also convert tuples to lists, and keys to strings.

    Examples
    --------
    >>> map_leaves(abs, {"a": [-1, ("x", -3)]}, int)
    {'a': [1, ('x', 3)]}
    >>> map_leaves(abs, {1: (2, -3)}, plain=True)
    {'1': [2, 3]}
    """
    if isinstance(value, list | tuple):
        parts = [map_leaves(change, part, of, plain=plain) for part in value]
        if plain or type(value) is list:
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, Mapping):
        return {str(key) if plain else key: map_leaves(change, part, of, plain=plain) for key, part in value.items()}
    return change(value) if isinstance(value, of) else value


def iter_leaves(value: Any, of: type = object) -> Iterator[Any]:
    """Yield the leaves of a nested value that have the type `of`, in order.

    Examples
    --------
    >>> list(iter_leaves({"a": [1, ("x", 3)], "b": {}}, int))
    [1, 3]
    """
    if isinstance(value, list | tuple):
        for part in value:
            yield from iter_leaves(part, of)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from iter_leaves(part, of)
    elif isinstance(value, of):
        yield value
