"""Consistency checks: all ranks have the same model and settings, and start from the same values.

Ranks that train different models add gradients that do not belong together, which shows late or never. So the ranks
compare name, shape and dtype of every parameter and buffer once, before the first step. Later changes of a module are
detected before each forward pass. That check must cost almost nothing: torch calls a hook when a parameter or submodule
is registered anywhere, and only then is the module searched.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from neuraxis.comm import Communicator
from neuraxis.errors import CollectiveMismatch, InvalidArgument, ModelMismatch

__all__ = [
    "Description",
    "ModuleStructure",
    "broadcast_state",
    "broadcast_tensors",
    "check_same_model",
    "check_same_settings",
    "compare_models",
    "describe_model",
]

Description = list[tuple[str, str, tuple[int, ...], str, bool]]
"""Parameters and buffers of a model in order: kind ("parameter" or "buffer"), name, shape, dtype, trained or not."""

_CHUNK_BYTES = 25 << 20  # broadcast in one call
_is_trained = attrgetter("requires_grad")


class ModuleStructure:
    """Snapshot of the submodules and parameters of `holder.module`, to detect later changes.

    Attributes
    ----------
    trained : list of (str, Parameter)
        Parameters that require a gradient, in order of registration.
    """

    def __init__(self, holder: nn.Module) -> None:
        module: nn.Module = holder.module
        named = list(module.named_parameters())
        self.trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self._parameters = [parameter for _, parameter in named]
        self._trains = list(map(_is_trained, self._parameters))
        self._submodules = list(module.modules())
        self._owners = {id(holder), *map(id, self._submodules)}
        self._registration_seen = False
        _watch_registration(self)

    def registered(self, owner: nn.Module) -> None:
        """Record that a parameter or submodule was registered in `owner`."""
        self._registration_seen = self._registration_seen or id(owner) in self._owners

    def is_unchanged(self) -> bool:
        """Return True if nothing was registered in the module, frozen or unfrozen.

        Tensors written into a module's dicts without torch's registration are not detected.
        """
        return not self._registration_seen and list(map(_is_trained, self._parameters)) == self._trains

    def new_tensors(self, module: nn.Module) -> list[str]:
        """Return the names of parameters and buffers of `module` that are not in this snapshot.

        Submodules without any may be added, and any submodule may be removed: an unused parameter has no gradient.
        """
        if not self._registration_seen:
            return []
        known = set(map(id, [*self._parameters, *self._submodules]))
        new = [name for name, parameter in module.named_parameters() if id(parameter) not in known]
        for path, part in module.named_modules():
            if id(part) not in known:  # a known submodule may register further buffers
                new += [f"{path}.{name}" if path else name for name in part._buffers]
        self._owners |= set(map(id, module.modules()))
        self._registration_seen = bool(new)
        return new

    def trained_set_changed(self) -> bool:
        """Return True if a parameter was frozen or unfrozen."""
        return list(map(_is_trained, self._parameters)) != self._trains


def _watch_registration(structure: ModuleStructure) -> None:
    """Call `structure.registered` while it is alive. torch has one list of hooks for all modules."""
    reference = weakref.ref(structure)

    def registered(owner: nn.Module, name: str, part: nn.Module | nn.Parameter | None) -> None:
        alive = reference()
        if alive is not None:
            alive.registered(owner)

    for register in (register_module_module_registration_hook, register_module_parameter_registration_hook):
        weakref.finalize(structure, register(registered).remove).atexit = False


def describe_model(module: nn.Module) -> Description:
    """Return the parameters and buffers of a module in order of registration.

    Raises
    ------
    InvalidArgument
        If a lazy module has not determined its shapes yet.
    """
    entries: Description = []
    for kind, tensors in (("parameter", module.named_parameters()), ("buffer", module.named_buffers())):
        for name, tensor in tensors:
            if nn.parameter.is_lazy(tensor):
                raise InvalidArgument(
                    f"{kind} {name!r} has no shape yet. Run one batch through the module before wrapping it"
                )
            dtype = str(tensor.dtype).removeprefix("torch.")
            entries.append((kind, name, tuple(tensor.shape), dtype, tensor.requires_grad))
    return entries


def compare_models(mine: Sequence[Any], theirs: Sequence[Any], rank: int) -> None:
    """Raise ModelMismatch at the first difference between rank 0's description `mine` and that of `rank`."""
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
                f"{kind} {name!r} ({here or there}) exists on rank {there_is} but not on rank {without}, "
                f"which has {min(len(mine), len(theirs))} parameters and buffers"
            )
        elif list(first[:2]) != list(other[:2]):
            text = (
                f"the order of parameters differs between ranks: position {index} is {kind} {name!r} ({here}) "
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
    """Compare the model of every rank with rank 0's. All ranks raise the same ModelMismatch. Collective."""
    gathered: list[Any] = [None] * group.size
    group.all_gather_object(gathered, describe_model(module))
    for index, theirs in enumerate(gathered):
        compare_models(gathered[0], theirs, group.ranks[index])


def check_same_settings(settings: dict[str, str], group: Communicator) -> None:
    """Raise CollectiveMismatch on all ranks unless every rank has the same options. Collective."""
    gathered: list[Any] = [None] * group.size
    group.all_gather_object(gathered, settings)
    for index, theirs in enumerate(gathered):
        for name, value in gathered[0].items():
            if theirs[name] != value:
                raise CollectiveMismatch(
                    f"DataParallel got {name}={value} on rank {group.ranks[0]} and {name}={theirs[name]} on rank "
                    f"{group.ranks[index]}. Pass the same value on every rank",
                    rank=group.ranks[index],
                    mine=f"{name}={value}",
                    theirs=f"{name}={theirs[name]}",
                )


def broadcast_state(module: nn.Module, group: Communicator, source: int = 0) -> None:
    """Copy the parameters and buffers of group rank `source` to all ranks. Collective."""
    with torch.no_grad():
        tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
        broadcast_tensors(tensors, group, source)


def broadcast_tensors(tensors: Iterable[Tensor], group: Communicator, source: int) -> None:
    """Copy the tensors of group rank `source` to all ranks, several in one broadcast of bytes. Collective."""
    for members in _chunks(tensors):
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


def _chunks(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors of one device to broadcast together, the widest elements first, so that all stay aligned."""
    devices: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            devices.setdefault(tensor.device, []).append(tensor)
    for members in devices.values():
        chunk: list[Tensor] = []
        held = 0
        for tensor in sorted(members, key=lambda tensor: -tensor.element_size()):
            chunk.append(tensor)
            held += tensor.numel() * tensor.element_size()
            if held >= _CHUNK_BYTES:
                yield chunk
                chunk, held = [], 0
        if chunk:
            yield chunk


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)
