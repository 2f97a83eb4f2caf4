"""A batch that has the form of a full one and no rows.

What in a batch is a row cannot be seen from one batch: a list of one tensor may be one sample, or one column. So the
same sample is collated once and twice. What has become twice as long along one dimension, or twice as many, are rows;
what has stayed the same belongs to the form. Anything else (a number that counts the rows) is refused: a rank without
samples must not learn from one, nor from a broken one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuraxis.errors import InvalidArgument

__all__ = ["Collating", "NoRows"]


@dataclasses.dataclass(frozen=True)
class NoRows:
    """What is asked to be collated where a rank has no sample: another rank's, once and twice."""

    one: Any
    two: Any


class Collating:
    """The user's `collate_fn` (or torch's), which also makes batches without rows.

    Args:
        empty: makes such a batch of one with a single row; by default it is found out.
    """

    def __init__(self, collate: Callable[[Any], Any], empty: Callable[[Any], Any] | None) -> None:
        self._collate = collate
        self._empty = empty

    def __call__(self, items: Any) -> Any:
        if not isinstance(items, NoRows):
            return self._collate(items)
        one = self._collate(items.one)
        return self._empty(one) if self._empty is not None else _without_rows(one, self._collate(items.two), "batch")


def _without_rows(one: Any, two: Any, path: str) -> Any:
    """`one`, a batch of one sample, without it; `two` is the batch that has this sample twice."""
    if type(one) is type(two):
        if isinstance(one, Tensor | np.ndarray):
            return _array_without_rows(one, two, path)
        if isinstance(one, Mapping) and one.keys() == two.keys():
            parts = {key: _without_rows(one[key], two[key], f"{path}[{key!r}]") for key in one}
            return _mapping_like(one, parts)
        if dataclasses.is_dataclass(one) and not isinstance(one, type):
            names = [field.name for field in dataclasses.fields(one) if field.init]
            return dataclasses.replace(
                one,
                **{name: _without_rows(getattr(one, name), getattr(two, name), f"{path}.{name}") for name in names},
            )
        if isinstance(one, tuple) and hasattr(one, "_fields"):
            fields = zip(one._fields, one, two, strict=True)
            return type(one)(*(_without_rows(mine, twice, f"{path}.{name}") for name, mine, twice in fields))
        if type(one) in (list, tuple) and len(two) == len(one):
            columns = enumerate(zip(one, two, strict=True))
            return type(one)(_without_rows(mine, twice, f"{path}[{place}]") for place, (mine, twice) in columns)
        if type(one) in (list, tuple) and len(two) == 2 * len(one):
            return type(one)()
        if one is None or (isinstance(one, str | bytes | int | float) and one == two):
            return one
    raise _unknown(one, path)


def _array_without_rows(one: Any, two: Any, path: str) -> Any:
    if one.ndim == two.ndim:
        lengths = enumerate(zip(one.shape, two.shape, strict=True))
        changed = {place: pair for place, pair in lengths if pair[0] != pair[1]}
        doubled = [place for place, (once, twice) in changed.items() if twice == 2 * once]
        if len(changed) == len(doubled) == 1:
            return one[(slice(None),) * doubled[0] + (slice(0, 0),)]
        if doubled == [0] and one.shape[0] == 1:  # rows that are padded anew in each batch may also differ in length
            return one[:0]
        if not changed and (torch.equal(one, two) if isinstance(one, Tensor) else np.array_equal(one, two)):
            return one
    raise _unknown(one, path)


def _mapping_like(one: Mapping[Any, Any], parts: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(one) is dict or not isinstance(one, MutableMapping):
        return parts
    made = copy.copy(one)
    made.update(parts)
    return made


def _unknown(one: Any, path: str) -> InvalidArgument:
    return InvalidArgument(
        f"shard: this rank has no sample in the last round of the epoch, and what {path} is without rows (a "
        f'{type(one).__module__}.{type(one).__qualname__}) is not known: leave that round out (uneven="drop"), or give '
        "empty=, a function that takes a batch of one row and returns it without"
    )
