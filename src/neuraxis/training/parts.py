"""What a module was made of when it was wrapped, to notice before a forward pass that it no longer is.

That is asked before each forward pass, so it must cost next to nothing: torch tells when a parameter or a submodule is
registered anywhere, and only then is the module gone through.
"""

from __future__ import annotations

import weakref
from operator import attrgetter

from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

__all__ = ["Parts"]

_is_trained = attrgetter("requires_grad")


class Parts:
    """The submodules and parameters of `holder.module`, and which of these are trained.

    Attributes:
        trained: the parameters that are trained, by name, in order of registration.
    """

    def __init__(self, holder: nn.Module) -> None:
        module: nn.Module = holder.module
        named = list(module.named_parameters())
        self.trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self._parameters = [parameter for _, parameter in named]
        self._trains = list(map(_is_trained, self._parameters))
        self._submodules = list(module.modules())
        self._owners = {id(holder), *map(id, self._submodules)}
        self._something_came = False
        _when_registered(self)

    def registered(self, owner: nn.Module) -> None:
        """Something was registered in a module; whether it is one of these is found out here."""
        self._something_came = self._something_came or id(owner) in self._owners

    def are_the_same(self) -> bool:
        """Whether nothing has come to the module, and nothing was frozen or thawed.

        What is written into a module's own dicts, past torch's ways to register it, is not noticed.
        """
        return not self._something_came and list(map(_is_trained, self._parameters)) == self._trains

    def new_ones(self, module: nn.Module) -> list[str]:
        """Parameters and buffers of `module` that were not there.

        Parts that have neither may come, and any part may go: what nobody uses has no gradient.
        """
        if not self._something_came:
            return []
        known = set(map(id, [*self._parameters, *self._submodules]))
        new = [name for name, parameter in module.named_parameters() if id(parameter) not in known]
        for path, part in module.named_modules():
            if id(part) not in known:  # one that was there may register buffers as it likes
                new += [f"{path}.{name}" if path else name for name in part._buffers]
        self._owners |= set(map(id, module.modules()))
        self._something_came = bool(new)
        return new

    def are_others_trained(self) -> bool:
        """Whether something was frozen or thawed."""
        return list(map(_is_trained, self._parameters)) != self._trains


def _when_registered(parts: Parts) -> None:
    """Call `parts.registered` for as long as it lives: torch has one list of hooks for all modules."""
    myself = weakref.ref(parts)

    def registered(owner: nn.Module, name: str, part: nn.Module | nn.Parameter | None) -> None:
        listening = myself()
        if listening is not None:
            listening.registered(owner)

    for register in (register_module_module_registration_hook, register_module_parameter_registration_hook):
        weakref.finalize(parts, register(registered).remove).atexit = False
