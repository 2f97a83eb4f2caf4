"""Do all ranks have the same model; and if so, make them begin with the same values.

Ranks that train different models add up gradients that do not belong together, which shows late or never. So what
each rank has is compared once, by name, shape and dtype, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from neuraxis.comm import Communicator
from neuraxis.errors import CollectiveMismatch, InvalidArgument, ModelMismatch

__all__ = [
    "Description",
    "check_same_model",
    "check_same_settings",
    "compare_models",
    "describe_model",
    "spread_state",
    "spread_tensors",
]

Description = list[tuple[str, str, tuple[int, ...], str, bool]]
"""What a model has, in order: kind ("parameter" or "buffer"), name, shape, dtype, whether it is trained."""

_PIECE_BYTES = 25 << 20  # what is sent at once


def describe_model(module: nn.Module) -> Description:
    """The parameters and buffers of a module, in order of registration."""
    entries: Description = []
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in tensors:
            if nn.parameter.is_lazy(tensor):
                raise InvalidArgument(
                    f"{kind} {name!r} has no shape yet: run a batch through the module before it is wrapped"
                )
            dtype = str(tensor.dtype).removeprefix("torch.")
            entries.append((kind, name, tuple(tensor.shape), dtype, tensor.requires_grad))
    return entries


def compare_models(mine: Sequence[Any], theirs: Sequence[Any], rank: int) -> None:
    """Raise ModelMismatch at the first difference. `mine` is rank 0's description, `theirs` that of `rank`."""
    for index in range(max(len(mine), len(theirs))):
        first = mine[index] if index < len(mine) else None
        other = theirs[index] if index < len(theirs) else None
        if first is not None and other is not None and list(first) == list(other):
            continue
        kind, name = (first or other)[:2]  # type: ignore[index]
        here, there = _shown(first), _shown(other)
        if first is None or other is None:
            there_is, without = (0, rank) if other is None else (rank, 0)
            text = (
                f"{kind} {name!r} ({here or there}) is there on rank {there_is} and not on rank {without}, "
                f"which has {min(len(mine), len(theirs))} parameters and buffers"
            )
        elif list(first[:2]) != list(other[:2]):
            text = (
                f"the order of parameters differs between ranks: at place {index} there is {kind} {name!r} ({here}) "
                f"on rank 0, {other[0]} {other[1]!r} ({there}) on rank {rank}"
            )
        else:
            text = f"{kind} {name!r} differs between ranks: {here} on rank 0, {there} on rank {rank}"
        raise ModelMismatch(text, parameter=name, rank=rank, mine=here, theirs=there)


def _shown(entry: Any) -> str:
    if entry is None:
        return ""
    kind, _, shape, dtype, trained = entry
    return f"{dtype} {tuple(shape)}" + (", frozen" if kind == "parameter" and not trained else "")


def check_same_model(module: nn.Module, group: Communicator) -> None:
    """Compare the model of every rank with rank 0's; every rank raises the same ModelMismatch. Collective."""
    everybody: list[Any] = [None] * group.size
    group.all_gather_object(everybody, describe_model(module))
    for index, theirs in enumerate(everybody):
        compare_models(everybody[0], theirs, group.ranks[index])


def check_same_settings(settings: dict[str, str], group: Communicator) -> None:
    """Every rank must have been given the same options. Collective."""
    everybody: list[Any] = [None] * group.size
    group.all_gather_object(everybody, settings)
    for index, theirs in enumerate(everybody):
        for name, value in everybody[0].items():
            if theirs[name] != value:
                raise CollectiveMismatch(
                    f"DataParallel was given {name}={value} on rank {group.ranks[0]} and {name}={theirs[name]} on "
                    f"rank {group.ranks[index]}: every rank must have the same",
                    rank=group.ranks[index],
                    mine=f"{name}={value}",
                    theirs=f"{name}={theirs[name]}",
                )


def spread_state(module: nn.Module, group: Communicator, source: int = 0) -> None:
    """Every rank's parameters and buffers become those of group rank `source`. Collective."""
    with torch.no_grad():
        tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
        spread_tensors(tensors, group, source)


def spread_tensors(tensors: Iterable[Tensor], group: Communicator, source: int) -> None:
    """Every rank's tensors become those of group rank `source`, sent together as bytes. Collective."""
    for members in _pieces(tensors):
        if len(members) == 1 and members[0].is_contiguous():
            group.broadcast(members[0], group_src=source)
            continue
        flat = torch.cat([_as_bytes(tensor) for tensor in members])
        group.broadcast(flat, group_src=source)
        if group.rank != source:
            start = 0
            for tensor in members:
                end = start + tensor.numel() * tensor.element_size()
                tensor.copy_(flat[start:end].view(tensor.dtype).view(tensor.shape))
                start = end


def _pieces(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one device to be sent together; the widest elements first, so that all lie where they may."""
    devices: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            devices.setdefault(tensor.device, []).append(tensor)
    for members in devices.values():
        piece: list[Tensor] = []
        held = 0
        for tensor in sorted(members, key=lambda tensor: -tensor.element_size()):
            piece.append(tensor)
            held += tensor.numel() * tensor.element_size()
            if held >= _PIECE_BYTES:
                yield piece
                piece, held = [], 0
        if piece:
            yield piece


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
