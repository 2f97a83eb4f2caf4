"""Local SGD: each rank makes steps on its own, and every k-th step the ranks average their models.

The average includes the parameters, the state of their optimizer and the buffers, weighted by the samples of each rank
since the last time. Because it includes the optimizer state, all ranks are equal after each average, and a checkpoint
taken there does not depend on the rank; for momentum, which is linear, this changes nothing else.

Sums are computed in float64, so values that are equal on all ranks (of an unused layer, for example) do not change.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument

__all__ = ["LocalSGD"]

_CHUNK_VALUES = 1 << 21  # values that are averaged in one call


class LocalSGD:
    """Average a module over the ranks at every `every`-th step of its optimizer, within `optimizer.step()`.

    All ranks must make the same number of steps. With several optimizers, each is averaged by its own step count, with
    its parameters. Optimizers are recognized by their parameters; those of other modules are ignored.
    """

    def __init__(self, module: nn.Module, group: Communicator, every: int) -> None:
        if every < 1:
            raise InvalidArgument(f"sync_every={every} must be at least 1")
        self.every = every
        self._module = module
        self._group = group
        self._seen = 0.0
        self._counters: weakref.WeakKeyDictionary[Optimizer, _Counters] = weakref.WeakKeyDictionary()
        self._averaged_at = 0.0
        # torch has one list of hooks for all optimizers, so the hook holds only a weak reference.
        myself = weakref.ref(self)

        def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            steps = myself()
            if steps is not None:
                steps._after_step(optimizer)

        handle = register_optimizer_step_post_hook(after_step)
        self._remove = weakref.finalize(self, handle.remove)

    def close(self) -> None:
        """Stop averaging. May be called again."""
        self._remove()

    def count_samples(self, samples: float) -> None:
        """Count samples that this rank has trained on."""
        self._seen += samples

    def average(self, group: Communicator | None = None) -> None:
        """Average everything, and count steps from here. Collective."""
        optimizers = list(self._counters)
        parameters = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._average(parameters, optimizers, self._seen - self._averaged_at, group or self._group)
        self._averaged_at = self._seen
        for counters in self._counters.values():
            counters.steps, counters.seen = 0, self._seen

    def _after_step(self, optimizer: Optimizer) -> None:
        ours = {id(parameter) for parameter in self._module.parameters()}
        parameters = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in ours and parameter.requires_grad
        ]
        if not parameters:
            return
        counters = self._counters.get(optimizer)
        if counters is None:
            counters = self._counters[optimizer] = _Counters(0, self._averaged_at)
        counters.steps += 1
        if counters.steps == self.every:
            self._average(parameters, [optimizer], self._seen - counters.seen, self._group)
            counters.steps, counters.seen, self._averaged_at = 0, self._seen, self._seen

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _average(
        self, parameters: Sequence[Tensor], optimizers: Sequence[Optimizer], weight: float, group: Communicator
    ) -> None:
        if group.size == 1:
            return
        values = [_Value(f"parameter {index}", tensor, True) for index, tensor in enumerate(parameters)]
        values += [
            _Value(f"buffer {name}", tensor, tensor.is_floating_point() or tensor.is_complex())
            for name, tensor in self._module.named_buffers()
        ]
        for number, optimizer in enumerate(optimizers):
            values += _state_of(optimizer, number, parameters)
        weights = np.zeros(group.size, np.float64)
        group.all_gather_into_tensor(weights, np.array([weight], np.float64))
        if not weights.sum() > 0:
            weights[:] = 1.0  # no rank has trained on anything
        if _all_equal(values, group):
            holders = [list(range(group.size))] * len(values)
        else:
            values, holders = _union(values, group, parameters, optimizers)
        _replace_by_means(values, holders, weights, group)


@dataclass
class _Counters:
    """Counters of one optimizer since its last average."""

    steps: int
    seen: float  # samples at that time


@dataclass
class _Value:
    """Tensor that becomes equal on all ranks.

    `home` is its place in the state of an optimizer: (optimizer number, parameter number, key). If `mean` is False, the
    value of the lowest rank is used, because a mean has no meaning for it.
    """

    name: str
    tensor: Tensor
    mean: bool
    home: tuple[int, int, str] | None = None


def _state_of(optimizer: Optimizer, number: int, parameters: Sequence[Tensor]) -> Iterator[_Value]:
    """Yield the tensors that an optimizer keeps for these parameters, in an order that follows from the names."""
    for index, parameter in enumerate(parameters):
        state = optimizer.state.get(parameter, {})
        for key in sorted(state, key=str):
            value = state[key]
            if isinstance(value, (list, tuple, dict)):
                raise InvalidArgument(
                    f"sync_every: {type(optimizer).__name__} keeps a {type(value).__name__} ({key!r}) for a parameter; "
                    "use an optimizer whose state consists of tensors"
                )
            if isinstance(value, Tensor):
                mean = key != "step" and (value.is_floating_point() or value.is_complex())
                yield _Value(f"state {number} {index} {key}", value, mean, (number, index, str(key)))


def _describe(values: Sequence[_Value]) -> list[list[Any]]:
    return [
        [value.name, list(value.tensor.shape), str(value.tensor.dtype).removeprefix("torch."), value.mean, value.home]
        for value in values
    ]


def _all_equal(values: Sequence[_Value], group: Communicator) -> bool:
    """Return True if all ranks have the same tensors. They differ if some rank has left a parameter unused."""
    sums = np.zeros(group.size, np.int64)
    group.all_gather_into_tensor(sums, np.array([zlib.crc32(repr(_describe(values)).encode())], np.int64))
    return bool((sums == sums[0]).all())


def _union(
    values: Sequence[_Value], group: Communicator, parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]
) -> tuple[list[_Value], list[list[int]]]:
    """Return every tensor that some rank has, and the ranks that have it; missing ones are created as zeros.

    An optimizer creates its state for a parameter at its first gradient, which some ranks may not have had yet.
    """
    everything: list[Any] = [None] * group.size
    group.all_gather_object(everything, _describe(values))
    forms = {form[0]: form for theirs in everything for form in theirs}
    mine = {value.name: value for value in values}
    united, holders = [], []
    for name, (_, shape, dtype, mean, home) in sorted(forms.items()):
        value = mine.get(name)
        if value is None:
            assert home is not None, f"{name} is not on all ranks"
            number, index, key = home
            state = optimizers[number].state[parameters[index]]
            options = optimizers[number].defaults
            beside = shape or options.get("fused") or options.get("capturable")  # other scalars stay on the CPU
            device = parameters[index].device if beside else "cpu"
            state[key] = torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
            value = _Value(name, state[key], mean, (number, index, key))
        united.append(value)
        holders.append([rank for rank, theirs in enumerate(everything) if any(form[0] == name for form in theirs)])
    return united, holders


def _replace_by_means(
    values: Sequence[_Value], holders: Sequence[Sequence[int]], weights: np.ndarray, group: Communicator
) -> None:
    """Replace each value by its mean over the ranks that have it, or by that of the lowest of them."""
    chunks: dict[torch.dtype, list[tuple[Tensor, np.ndarray]]] = {torch.float64: [], torch.int64: []}
    held = dict.fromkeys(chunks, 0)
    for value, ranks in zip(values, holders, strict=True):
        shares = np.zeros(group.size)
        if value.mean:
            shares[list(ranks)] = weights[list(ranks)]
        if not shares.any():
            shares[ranks[0]] = 1.0
        tensor = torch.view_as_real(value.tensor) if value.tensor.is_complex() else value.tensor
        kind = torch.float64 if tensor.is_floating_point() else torch.int64
        chunks[kind].append((tensor, shares))
        held[kind] += tensor.numel()
        if held[kind] >= _CHUNK_VALUES:
            _replace_chunk(chunks[kind], kind, group)
            chunks[kind], held[kind] = [], 0
    for kind, chunk in chunks.items():
        if chunk:
            _replace_chunk(chunk, kind, group)


def _replace_chunk(chunk: Sequence[tuple[Tensor, np.ndarray]], kind: torch.dtype, group: Communicator) -> None:
    place = chunk[0][0].device if group.backend_name == "nccl" else torch.device("cpu")
    flats = []
    for tensor, shares in chunk:
        share = float(shares[group.rank])
        part = tensor.reshape(-1).to(place, kind)
        # Not multiplied by 0, which would keep a NaN. An integer has a share of 1 or 0.
        flats.append(torch.zeros_like(part) if share == 0 else part if share == 1 else part * share)
    flat = torch.cat(flats)
    group.all_reduce(flat.numpy() if flat.is_cpu else flat)
    for (tensor, shares), part in zip(chunk, flat.split([part.numel() for part in flats]), strict=True):
        total = float(shares.sum())
        tensor.copy_((part if total == 1 else part / total).view(tensor.shape))
