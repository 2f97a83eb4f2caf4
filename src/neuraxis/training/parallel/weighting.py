"""Weights of batches: the number of samples that the gradients of a step represent.

The mean over a global batch is the mean of the ranks' means, weighted by the rows of each rank. `DataParallel`
determines the weight of its batch once per forward pass. A layer whose backward pass combines the ranks
(`SyncBatchNorm`) reads it from `current_weight`.

Such a layer is also the first collective at which a rank whose model changed (a layer was frozen, for example) meets
ranks whose model did not. To raise an error there instead of blocking, it reads `model_has_changed` and announces it.

`SampleCounter` finds the forward passes that took part in a backward pass. A hook on the outputs of a forward pass runs
when a backward pass reaches them, and keeps its `Forward` alive as long as the graph. A forward pass is *open* while a
backward pass may still reach it: until one that frees the graph has, or the graph is garbage collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import ref

from torch import Tensor

from neuraxis.errors import InvalidArgument
from neuraxis.wire.trees import iter_leaves

__all__ = [
    "Forward",
    "SampleCounter",
    "batch_size_of",
    "changed_model_forward",
    "current_weight",
    "first_tensor",
    "forward_weight",
    "model_has_changed",
]

_MANY = 16
_weight: ContextVar[float] = ContextVar("neuraxis_forward_weight", default=1.0)
_changed: ContextVar[bool] = ContextVar("neuraxis_model_has_changed", default=False)


class Forward:
    """Forward pass that may take part in a backward pass; `samples` is the weight of its batch."""

    __slots__ = ("__weakref__", "is_open", "samples", "used_in")

    def __init__(self, samples: float) -> None:
        self.samples = samples
        self.used_in = -1  # number of the backward pass that last reached it
        self.is_open = True


class SampleCounter:
    """Samples of this rank from one exchange to the next. Between `begin` and `end` a backward pass runs."""

    def __init__(self) -> None:
        self._forwards: list[ref[Forward]] = []  # all open ones, and some closed ones
        self._backwards = 0
        self.forget_step()
        self._new_backward()

    def forget_step(self) -> None:
        """Start a new step, after the previous one was sent or dropped."""
        self._known = False
        self._earlier = 0.0  # of the backward passes before this one

    def _new_backward(self) -> None:
        self._used_forwards: list[Forward] = []
        self._used_samples = 0.0
        self._new_forwards = 0
        self._new_samples = 0.0
        self._keeps_graph = False

    def forward(self, samples: float) -> Forward:
        """Register a forward pass."""
        self._new_forwards += 1
        self._new_samples += samples
        forward = Forward(samples)
        if len(self._forwards) >= _MANY:  # without backward passes nothing else removes closed ones
            self._forget_closed()
        self._forwards.append(ref(forward))
        return forward

    def begin(self, keeps_graph: bool) -> None:
        """Start a backward pass; `keeps_graph` if a later one may reach the same forward passes again."""
        self._keeps_graph = keeps_graph

    def mark_used(self, forward: Forward) -> None:
        """Record that the backward pass reached an output of this forward pass."""
        if forward.used_in != self._backwards:
            forward.used_in = self._backwards
            self._used_forwards.append(forward)
            self._used_samples += forward.samples

    def all_forwards_used(self) -> bool:
        """Return True if no other forward pass can take part in this backward pass, so its samples are known."""
        self._forget_closed()
        forwards = (one() for one in self._forwards)
        return all(forward is None or forward.used_in == self._backwards for forward in forwards)

    def total(self) -> float:
        """Return the samples of the step so far; 1.0 if no forward pass is known.

        A backward pass that reached no recorded output (parameters used outside the model's forward, for example)
        counts as one of all forward passes since the previous one.
        """
        if self._used_forwards:
            return self._earlier + self._used_samples
        return self._earlier + self._new_samples if self._known or self._new_forwards else 1.0

    def end(self) -> None:
        """End the backward pass and keep its samples for the step."""
        if self._used_forwards or self._new_forwards:
            self._earlier = self.total()
            self._known = True
        self.forget_backward()

    def forget_backward(self) -> None:
        """End a backward pass that was interrupted, or whose samples were sent."""
        if not self._keeps_graph:
            for forward in self._used_forwards:
                forward.is_open = False
        self._forget_closed()
        self._new_backward()
        self._backwards += 1

    def _forget_closed(self) -> None:
        self._forwards = [one for one in self._forwards if (forward := one()) is not None and forward.is_open]


def current_weight() -> float:
    """Return the weight of the batch of the enclosing `DataParallel.forward`, or 1.0 outside of one."""
    return _weight.get()


class forward_weight:  # a class with a function's name: faster than a generator, and used in every forward pass
    """Context manager that sets `current_weight()`."""

    __slots__ = ("_token", "_weight")

    def __init__(self, weight: float) -> None:
        self._weight = weight

    def __enter__(self) -> None:
        self._token = _weight.set(self._weight)

    def __exit__(self, *exception: object) -> None:
        _weight.reset(self._token)


def model_has_changed() -> bool:
    """Return True if the trained parameters changed since the last forward pass of the enclosing `DataParallel`."""
    return _changed.get()


@contextmanager
def changed_model_forward() -> Iterator[None]:
    """Make `model_has_changed()` return True."""
    token = _changed.set(True)
    try:
        yield
    finally:
        _changed.reset(token)


def batch_size_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """Return the rows of the first tensor in args, then kwargs, depth first; InvalidArgument if there is none."""
    if args and isinstance(args[0], Tensor) and args[0].dim():  # the usual case
        return float(args[0].size(0))
    tensor = first_tensor(args)
    if tensor is None:
        tensor = first_tensor(kwargs)
    if tensor is None:
        raise InvalidArgument(
            "forward was called without a tensor that has rows, so the weight of this batch is unknown. Pass "
            "DataParallel a function weigh=(args, kwargs) -> samples"
        )
    return float(tensor.shape[0])


def first_tensor(value: Any) -> Tensor | None:
    """Return the first tensor with at least one dimension in nested sequences and mappings, depth first."""
    return next((tensor for tensor in iter_leaves(value, Tensor) if tensor.dim()), None)
