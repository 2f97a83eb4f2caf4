"""Ranks that run out of data: they go on taking part in the others' steps, with nothing.

A rank that has left its loop makes *shadow steps*: it sends zeros, and says so where others say how many samples they
have. A step in which every rank is a shadow is the end, and all ranks see it together. A shadow has missed what was
done after each step: in the end it takes parameters, buffers and the states of optimizers, scaler and schedulers
from a rank that was there until the last step.
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
from neuraxis.training.control_words import SHADOW
from neuraxis.training.reducer import Reducer
from neuraxis.training.sameness import spread_state

__all__ = ["Joining", "empty_batch", "sum_of"]


class Joining:
    """What `join` needs to know of one model.

    Args:
        scaler: of the loss.
        empty_step: a forward and backward pass without rows, for models whose layers communicate themselves; None
            where zeros can be sent without one.
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
        """Whether shadow steps need to know what a batch looks like."""
        return self._empty_step is not None

    @contextmanager
    def all_ranks(self, stateful: Sequence[Any]) -> Iterator[None]:
        """Until every rank has come to the end of this block, those that have take part in the others' steps.

        `stateful`: optimizers, and what else has a state that changes from step to step; in the same order everywhere.
        """
        for one in stateful:
            if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
                raise InvalidArgument(f"join: {one!r} has no state_dict(); optimizers and schedulers are expected")
        self._optimizers.update(one for one in stateful if isinstance(one, Optimizer))
        self._others = [one for one in stateful if not isinstance(one, Optimizer)]
        steps = self._reducer.steps
        with self._watching_optimizers():
            yield  # an exception goes its own way: the others are told by the end of this rank
        self._reducer.drop()  # blocks of an accumulation that was not completed
        self._reducer.release_gradients()
        latest = self._reducer.latest_weights if self._reducer.steps > steps else []
        while set(weights := self._shadow()) != {SHADOW}:
            latest = weights
        if SHADOW in latest:
            self._catch_up(next(rank for rank, weight in enumerate(latest) if weight != SHADOW))

    def _shadow(self) -> list[float]:
        """Take part in a step; the samples of each rank in it."""
        if self._empty_step is None:
            return self._reducer.shadow()
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
        """Every rank becomes what `source` is. It was there in the last step with data, so it has made all steps."""
        spread_state(self._module, self._group, source)
        names = {id(parameter): name for name, parameter in self._module.named_parameters()}
        mine: dict[str, Any] = {_identity(optimizer, names): optimizer for optimizer in self._optimizers}
        mine |= {f"{place}: {type(one).__name__}": one for place, one in enumerate(self._others)}
        if self._scaler.is_enabled():
            mine["the scaler"] = self._scaler
        states: list[Any] = [{name: one.state_dict() for name, one in mine.items()}]
        self._group.broadcast_object_list(states, group_src=source)
        missing = [name for name in states[0] if name not in mine]
        everybody: list[Any] = [None] * self._group.size
        self._group.all_gather_object(everybody, missing)
        lost = [self._group.ranks[rank] for rank, names in enumerate(everybody) if names]
        if lost:
            raise InvalidArgument(
                f"join: ranks {lost} have made no step with an optimizer that the others stepped, so its state cannot "
                "be set there: name it, as in `with model.join(optimizer):`"
            )
        if self._group.rank != source:
            for name, state in states[0].items():
                mine[name].load_state_dict(state)


def _identity(optimizer: Optimizer, names: dict[int, str]) -> str:
    """What an optimizer is called on every rank: its class and the parameters that it has."""
    own = [names.get(id(parameter), "?") for group in optimizer.param_groups for parameter in group["params"]]
    return f"{type(optimizer).__name__}({', '.join(own)})"


def empty_batch(value: Any, rows: int) -> Any:
    """Nested arguments of a forward pass with no row of what had `rows` rows."""
    if isinstance(value, Tensor):
        return value.detach()[:0] if value.dim() and value.shape[0] == rows else value
    if isinstance(value, dict):
        return {key: empty_batch(part, rows) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(empty_batch(part, rows) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(empty_batch(part, rows) for part in value)
    return value


def sum_of(output: Any) -> Tensor | None:
    """The sum of all elements of nested outputs that a backward pass can begin at; None if there is none."""
    parts: list[Any] = [output]
    total: Tensor | None = None
    while parts:
        part = parts.pop(0)
        if isinstance(part, Tensor) and part.requires_grad:
            total = part.sum() if total is None else total + part.sum()
        elif isinstance(part, dict):
            parts = [*part.values(), *parts]
        elif isinstance(part, (tuple, list)):
            parts = [*part, *parts]
    return total
