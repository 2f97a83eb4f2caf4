"""Local SGD: each rank makes steps of its own, and every k-th step the ranks average what they have become.

Averaged are the parameters, the state of their optimizer and the buffers, weighted by the samples that each rank has
seen since the last time. With the optimizer's state in it all ranks are equal after each averaging, so that a
checkpoint taken there is nobody's in particular; for momentum, which is linear, it changes nothing else.

Sums are made in float64: values that are equal on all ranks (of a layer that nobody used, say) come out as they were.
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

from neuraxis.comm.communicator import Communicator
from neuraxis.errors import InvalidArgument

__all__ = ["LocalSteps"]

_PIECE = 1 << 21  # values that are averaged in one call


class LocalSteps:
    """Averages a module every `every`-th step of its optimizer, within `optimizer.step()`.

    All ranks must make equally many steps. With several optimizers each is averaged by its own count, with the
    parameters that it has. Optimizers are recognised by their parameters; those of other modules are left alone.
    """

    def __init__(self, module: nn.Module, group: Communicator, every: int) -> None:
        if every < 1:
            raise InvalidArgument(f"sync_every={every} must be at least 1")
        self.every = every
        self._module = module
        self._group = group
        self._seen = 0.0
        self._accounts: weakref.WeakKeyDictionary[Optimizer, _Account] = weakref.WeakKeyDictionary()
        self._averaged_at = 0.0
        # torch has one list of hooks for all optimizers: it must not keep us alive, nor outlive us.
        myself = weakref.ref(self)

        def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            steps = myself()
            if steps is not None:
                steps._after_step(optimizer)

        handle = register_optimizer_step_post_hook(after_step)
        self._remove = weakref.finalize(self, handle.remove)

    def close(self) -> None:
        """Average no more. Can be called again."""
        self._remove()

    def seen(self, samples: float) -> None:
        """This rank has learned from so many more samples."""
        self._seen += samples

    def average(self, group: Communicator | None = None) -> None:
        """Average everything now, and count steps from here. Every rank makes this call."""
        optimizers = list(self._accounts)
        parameters = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._average(parameters, optimizers, self._seen - self._averaged_at, group or self._group)
        self._averaged_at = self._seen
        for account in self._accounts.values():
            account.steps, account.seen = 0, self._seen

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
        account = self._accounts.get(optimizer)
        if account is None:
            account = self._accounts[optimizer] = _Account(0, self._averaged_at)
        account.steps += 1
        if account.steps == self.every:
            self._average(parameters, [optimizer], self._seen - account.seen, self._group)
            account.steps, account.seen, self._averaged_at = 0, self._seen, self._seen

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
            weights[:] = 1.0  # nobody has seen anything
        if _all_equal(values, group):
            holders = [list(range(group.size))] * len(values)
        else:
            values, holders = _united(values, group, parameters, optimizers)
        _replace_by_means(values, holders, weights, group)


@dataclass
class _Account:
    """Of one optimizer, since its last averaging."""

    steps: int
    seen: float  # how many samples there had been then


@dataclass
class _Value:
    """One tensor that is to be equal on all ranks.

    `home` is where it belongs in the state of an optimizer: (its number, the parameter's number, key). `mean` says
    whether the ranks' mean has a meaning: else the lowest rank's value is taken.
    """

    name: str
    tensor: Tensor
    mean: bool
    home: tuple[int, int, str] | None = None


def _state_of(optimizer: Optimizer, number: int, parameters: Sequence[Tensor]) -> Iterator[_Value]:
    """The tensors that an optimizer keeps for these parameters, in an order that follows from the names alone."""
    for index, parameter in enumerate(parameters):
        state = optimizer.state.get(parameter, {})
        for key in sorted(state, key=str):
            value = state[key]
            if isinstance(value, (list, tuple, dict)):
                raise InvalidArgument(
                    f"sync_every: {type(optimizer).__name__} keeps a {type(value).__name__} ({key!r}) for a parameter; "
                    "only states made of tensors can be averaged"
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
    """Whether all ranks have the same tensors, as they have unless some rank left a parameter unused."""
    sums = np.zeros(group.size, np.int64)
    group.all_gather_into_tensor(sums, np.array([zlib.crc32(repr(_describe(values)).encode())], np.int64))
    return bool((sums == sums[0]).all())


def _united(
    values: Sequence[_Value], group: Communicator, parameters: Sequence[Tensor], optimizers: Sequence[Optimizer]
) -> tuple[list[_Value], list[list[int]]]:
    """Every tensor that some rank has, and which ranks have it; what this rank lacks is made, as zeros.

    An optimizer begins its state for a parameter with the first gradient, which some ranks may not have had yet.
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
            beside = shape or options.get("fused") or options.get("capturable")  # else scalars are kept on the CPU
            device = parameters[index].device if beside else "cpu"
            state[key] = torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
            value = _Value(name, state[key], mean, (number, index, key))
        united.append(value)
        holders.append([rank for rank, theirs in enumerate(everything) if any(form[0] == name for form in theirs)])
    return united, holders


def _replace_by_means(
    values: Sequence[_Value], holders: Sequence[Sequence[int]], weights: np.ndarray, group: Communicator
) -> None:
    """Each value becomes its mean over the ranks that have it, or that of the lowest of them."""
    pieces: dict[torch.dtype, list[tuple[Tensor, np.ndarray]]] = {torch.float64: [], torch.int64: []}
    held = dict.fromkeys(pieces, 0)
    for value, ranks in zip(values, holders, strict=True):
        shares = np.zeros(group.size)
        if value.mean:
            shares[list(ranks)] = weights[list(ranks)]
        if not shares.any():
            shares[ranks[0]] = 1.0
        tensor = torch.view_as_real(value.tensor) if value.tensor.is_complex() else value.tensor
        kind = torch.float64 if tensor.is_floating_point() else torch.int64
        pieces[kind].append((tensor, shares))
        held[kind] += tensor.numel()
        if held[kind] >= _PIECE:
            _replace_piece(pieces[kind], kind, group)
            pieces[kind], held[kind] = [], 0
    for kind, piece in pieces.items():
        if piece:
            _replace_piece(piece, kind, group)


def _replace_piece(piece: Sequence[tuple[Tensor, np.ndarray]], kind: torch.dtype, group: Communicator) -> None:
    place = piece[0][0].device if group.backend_name == "nccl" else torch.device("cpu")
    parts = []
    for tensor, shares in piece:
        share = float(shares[group.rank])
        part = tensor.reshape(-1).to(place, kind)
        # Not times 0, which leaves a NaN what it is; and an integer has one share or none.
        parts.append(torch.zeros_like(part) if share == 0 else part if share == 1 else part * share)
    flat = torch.cat(parts)
    group.all_reduce(flat.numpy() if flat.is_cpu else flat)
    for (tensor, shares), part in zip(piece, flat.split([part.numel() for part in parts]), strict=True):
        total = float(shares.sum())
        tensor.copy_((part if total == 1 else part / total).view(tensor.shape))
