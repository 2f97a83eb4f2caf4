"""Uneven inputs: ranks that run out of data shadow the collectives of the others.

A rank that has left its loop makes *shadow steps*: it contributes zeros, and sends SHADOW instead of its number of
samples. A step in which every rank is a shadow ends the join, on all ranks together. A shadow has missed what
followed each step, so at the end it receives parameters, buffers and the states of optimizers, scaler and schedulers
from a rank that took part until the last step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument
from neuraxis.training.parallel.buckets import SHADOW
from neuraxis.training.parallel.consistency import broadcast_state
from neuraxis.training.parallel.reducer import Reducer
from neuraxis.wire.trees import iter_leaves, map_leaves

__all__ = ["Joining", "empty_batch", "sum_of"]


class Joining:
    """State of `DataParallel.join` for one model.

    `empty_step` runs a forward and backward pass without rows, for models whose layers communicate; None if zeros can
    be sent without one.
    """

    def __init__(
        self,
        module: nn.Module,
        reducer: Reducer,
        group: Communicator,
        scaler: torch.amp.GradScaler,
        empty_step: Callable[[], None] | None,
    ) -> None:
        self._module = module
        self._reducer = reducer
        self._group = group
        self._scaler = scaler
        self._empty_step = empty_step
        self._others: list[Any] = []
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()

    @property
    def needs_batches(self) -> bool:
        """True if shadow steps need an example of a batch."""
        return self._empty_step is not None

    @contextmanager
    def all_ranks(self, stateful: Sequence[Any]) -> Iterator[None]:
        """Run the block, then shadow the steps of the other ranks until every rank has finished it.

        `stateful` holds optimizers and other objects whose state changes from step to step, in the same order on all
        ranks.
        """
        for one in stateful:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise InvalidArgument(f"join: {one!r} has no state_dict(). Pass optimizers and schedulers")
        self._optimizers.update(one for one in stateful if isinstance(one, Optimizer))
        self._others = [one for one in stateful if not isinstance(one, Optimizer)]
        steps = self._reducer.steps
        with self._watching_optimizers():
            yield  # an exception ends this rank, which the other ranks detect
        self._reducer.discard_accumulated()  # micro-batches of an incomplete accumulation
        self._reducer.release_gradients()
        latest = self._reducer.latest_weights if self._reducer.steps > steps else []
        while set(weights := self._shadow()) != {SHADOW}:
            latest = weights
        if SHADOW in latest:
            self._catch_up(next(rank for rank, weight in enumerate(latest) if weight != SHADOW))

    def _shadow(self) -> list[float]:
        """Make one shadow step and return the samples of each rank."""
        if self._empty_step is None:
            return self._reducer.shadow_step()
        self._reducer.shadowing = True
        try:
            self._empty_step()
        finally:
            self._reducer.shadowing = False
        return self._reducer.latest_weights

    @contextmanager
    def _watching_optimizers(self) -> Iterator[None]:
        ours = {id(parameter) for parameter in self._module.parameters()}

        def stepped(optimizer: Optimizer, *_: Any) -> None:
            if any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
                self._optimizers.add(optimizer)

        handle = register_optimizer_step_post_hook(stepped)
        try:
            yield
        finally:
            handle.remove()

    def _catch_up(self, source: int) -> None:
        """Copy the state of rank `source` to all ranks. It had data in the last step, so it has made every step."""
        broadcast_state(self._module, self._group, source)
        names = {id(parameter): name for name, parameter in self._module.named_parameters()}
        mine: dict[str, Any] = {_identity(optimizer, names): optimizer for optimizer in self._optimizers}
        mine |= {f"{place}: {type(one).__name__}": one for place, one in enumerate(self._others)}
        if self._scaler.is_enabled():
            mine["the scaler"] = self._scaler
        states: list[Any] = [{name: one.state_dict() for name, one in mine.items()}]
        self._group.broadcast_object_list(states, group_src=source)
        missing = [name for name in states[0] if name not in mine]
        gathered: list[Any] = [None] * self._group.size
        self._group.all_gather_object(gathered, missing)
        lost = [self._group.ranks[rank] for rank, names in enumerate(gathered) if names]
        if lost:
            raise InvalidArgument(
                f"join: ranks {lost} made no step with an optimizer that other ranks stepped, so its state cannot be "
                "restored there. Name it: `with model.join(optimizer):`"
            )
        if self._group.rank != source:
            for name, state in states[0].items():
                mine[name].load_state_dict(state)


def _identity(optimizer: Optimizer, names: dict[int, str]) -> str:
    """Return a name for an optimizer that is equal on all ranks: its class and the names of its parameters."""
    own = [names.get(id(parameter), "?") for group in optimizer.param_groups for parameter in group["params"]]
    return f"{type(optimizer).__name__}({', '.join(own)})"


def empty_batch(value: Any, rows: int) -> Any:
    """Return nested forward arguments with all tensors of `rows` rows cut to 0 rows."""

    def cut(tensor: Tensor) -> Tensor:
        return tensor.detach()[:0] if tensor.dim() and tensor.shape[0] == rows else tensor

    return map_leaves(cut, value, Tensor)


def sum_of(output: Any) -> Tensor | None:
    """Return the sum of all elements of nested outputs that require a gradient, or None if there are none."""
    total: Tensor | None = None
    for tensor in iter_leaves(output, Tensor):
        if tensor.requires_grad:
            total = tensor.sum() if total is None else total + tensor.sum()
    return total
