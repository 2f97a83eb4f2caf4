"""Micro-batches: split a batch along its rows, and concatenate the outputs.

Values are nested: tensors within tuples, lists and dictionaries, and anything else that a module takes or returns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from neuraxis.errors import InvalidArgument
from neuraxis.wire.trees import iter_leaves, map_leaves

__all__ = ["concatenate", "row_count", "split"]


def row_count(value: Any, what: str) -> int:
    """Return the number of rows of the tensors of a batch, which all have, except those without dimensions."""
    rows = {tensor.shape[0] for tensor in iter_leaves(value, Tensor) if tensor.dim()}
    if len(rows) != 1:
        raise InvalidArgument(f"{what}: the tensors must have the same number of rows, and have {sorted(rows)}")
    return int(rows.pop())


def split(value: Any, micro_batches: int) -> list[Any]:
    """Split a value into micro-batches whose rows differ by at most one. None is empty unless the batch is."""
    chunks = {id(tensor): tensor.tensor_split(micro_batches) for tensor in iter_leaves(value, Tensor) if tensor.dim()}
    return [
        map_leaves(lambda tensor, number=number: chunks[id(tensor)][number] if tensor.dim() else tensor, value, Tensor)  # type: ignore[misc]
        for number in range(micro_batches)
    ]


def concatenate(outputs: list[Any]) -> Any:
    """Concatenate the outputs of all micro-batches."""
    if len(outputs) == 1:
        return outputs[0]
    first = outputs[0]
    if isinstance(first, Tensor):
        if not first.dim():
            raise InvalidArgument("the module returns a scalar for a batch. Outputs of micro-batches must have rows")
        return torch.cat(outputs)
    if isinstance(first, dict):
        return {key: concatenate([output[key] for output in outputs]) for key in first}
    if isinstance(first, (tuple, list)):
        parts = [concatenate(list(column)) for column in zip(*outputs, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first
