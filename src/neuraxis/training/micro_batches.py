"""A batch cut into micro-batches along its rows, and their outputs put together again.

Values are nested: tensors within tuples, lists and dictionaries, and whatever else a module takes or returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from neuraxis.errors import InvalidArgument

__all__ = ["joined", "mapped", "rows_of", "split", "tensors_of"]


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_of(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from tensors_of(part)


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same value with each tensor replaced."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [mapped(part, change) for part in value]
    if isinstance(value, tuple):
        parts = [mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value


def rows_of(value: Any, what: str) -> int:
    """How many rows the tensors of a batch have; all have the same, except those without dimensions."""
    rows = {tensor.shape[0] for tensor in tensors_of(value) if tensor.dim()}
    if len(rows) != 1:
        raise InvalidArgument(f"{what}: tensors with one number of rows are expected, and there are {sorted(rows)}")
    return int(rows.pop())


def split(value: Any, micro_batches: int) -> list[Any]:
    """The value's micro-batches. Their rows differ by one at most, and none is empty unless the batch is."""
    pieces = {id(tensor): tensor.tensor_split(micro_batches) for tensor in tensors_of(value) if tensor.dim()}
    return [
        mapped(value, lambda tensor, number=number: pieces[id(tensor)][number] if tensor.dim() else tensor)  # type: ignore[misc]
        for number in range(micro_batches)
    ]


def joined(outputs: list[Any]) -> Any:
    """The outputs of all micro-batches as one."""
    if len(outputs) == 1:
        return outputs[0]
    first = outputs[0]
    if isinstance(first, Tensor):
        if not first.dim():
            raise InvalidArgument("the module returns a number for a batch: outputs of micro-batches need rows")
        return torch.cat(outputs)
    if isinstance(first, dict):
        return {key: joined([output[key] for output in outputs]) for key in first}
    if isinstance(first, (tuple, list)):
        parts = [joined(list(column)) for column in zip(*outputs, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first
