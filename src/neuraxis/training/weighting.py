"""How much a rank's batch counts, and how a layer inside of a forward pass gets to know it, and of a changed model.

The mean over a whole batch is the mean of the ranks' means, weighted by how many rows each rank had. The weight of a
rank's batch is found once, where `DataParallel` is called; a layer whose backward pass mixes the ranks (SyncBatchNorm)
needs it too, and asks `current_weight`.

Such a layer is also the first place where a rank whose model was changed (a layer frozen, say) meets those whose model
was not. They would wait for each other there, so there they must be told: it asks `model_has_changed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from neuraxis.errors import InvalidArgument

__all__ = [
    "batch_size_of",
    "current_weight",
    "first_tensor",
    "forward_of_a_changed_model",
    "forward_weight",
    "model_has_changed",
]

_weight: ContextVar[float] = ContextVar("neuraxis_forward_weight", default=1.0)
_changed: ContextVar[bool] = ContextVar("neuraxis_model_has_changed", default=False)


def current_weight() -> float:
    """The weight of the batch that the DataParallel around the running forward was given; 1.0 outside of one."""
    return _weight.get()


class forward_weight:  # used as a function; a class because that is quicker, and it is in every forward pass
    """Within it, `current_weight()` is `weight`."""

    __slots__ = ("_token", "_weight")

    def __init__(self, weight: float) -> None:
        self._weight = weight

    def __enter__(self) -> None:
        self._token = _weight.set(self._weight)

    def __exit__(self, *exception: object) -> None:
        _weight.reset(self._token)


def model_has_changed() -> bool:
    """Whether what is trained of the model of the running forward was changed since the last one."""
    return _changed.get()


@contextmanager
def forward_of_a_changed_model() -> Iterator[None]:
    """Within it, `model_has_changed()`."""
    token = _changed.set(True)
    try:
        yield
    finally:
        _changed.reset(token)


def batch_size_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """Rows of the first tensor found (args, then kwargs, depth first); InvalidArgument if there is none."""
    if args and isinstance(args[0], Tensor) and args[0].dim():  # as it nearly always is
        return float(args[0].size(0))
    tensor = first_tensor(args)
    if tensor is None:
        tensor = first_tensor(kwargs)
    if tensor is None:
        raise InvalidArgument(
            "forward was called without a tensor that has rows, so how much this batch counts is not known: "
            "give DataParallel a function weigh=(args, kwargs) -> samples"
        )
    return float(tensor.shape[0])


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor with at least one dimension in nested sequences and mappings, depth first."""
    if isinstance(value, Tensor):
        return value if value.dim() else None
    parts: Sequence[Any] = ()
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (tuple, list)):
        parts = value
    for part in parts:
        found = first_tensor(part)
        if found is not None:
            return found
    return None
