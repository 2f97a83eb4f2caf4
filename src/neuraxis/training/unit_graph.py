"""A module's forward as a list of steps, and the parts of it that stages are made of.

torch.fx follows the forward of the module down to its units: its children, the items of its ModuleLists, and the
children of nn.Sequential. What is within a unit is never looked at, so it may do what it likes; what the forward does
between them must not depend on values. Units are the modules themselves: they keep their names, and train() and eval()
work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from neuraxis.errors import InvalidArgument

__all__ = ["Stage", "UnitGraph"]


class Stage:
    """Some units in a row, with what is computed between them.

    Attributes:
        module: its parameters and buffers, under the names that they have in the whole module.
        inputs: the names of the values that it needs.
        outputs: the names of the values that later stages need of it or through it.
    """

    def __init__(
        self, module: nn.Module, nodes: Sequence[fx.Node], inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        self.module = module
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.constants: dict[str, Any] = {}
        self._nodes = list(nodes)
        kept = set(outputs)
        self._drop: dict[str, list[str]] = {node.name: [] for node in self._nodes}
        last_use: dict[str, str] = {}
        for node in self._nodes:
            for used in (node, *node.all_input_nodes):
                last_use[used.name] = node.name
        for name, where in last_use.items():
            if name not in kept:
                self._drop[where].append(name)

    def run(self, values: Sequence[Any], watch: Callable[[fx.Node, Any], Any] | None = None) -> list[Any]:
        """From the inputs to the outputs. `watch(node, call)` may carry out the call of a unit in a way of its own."""
        known = dict(zip(self.inputs, values, strict=True))
        for node in self._nodes:
            if node.op == "placeholder":
                continue  # it is among the inputs
            known[node.name] = self._value_of(node, known, watch)
            for name in self._drop[node.name]:
                known.pop(name, None)
        return [known[name] for name in self.outputs]

    def _value_of(self, node: fx.Node, known: dict[str, Any], watch: Callable[[fx.Node, Any], Any] | None) -> Any:
        args = map_arg(node.args, lambda used: known[used.name])
        kwargs = map_arg(node.kwargs, lambda used: known[used.name])
        target: Any = node.target
        if node.op == "output":
            return args[0]
        if node.op == "get_attr":
            return self.constants[target] if target in self.constants else _attribute(self.module, target)
        if node.op == "call_module":
            unit = self.module.get_submodule(target)
            return unit(*args, **kwargs) if watch is None else watch(node, (unit, args, kwargs))
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)


class UnitGraph:
    """The steps of a module's forward in order, and its units: the calls of submodules among them."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        before = set(vars(module))
        try:
            self._nodes = list(_Tracer().trace(module).nodes)
        except Exception as error:
            raise InvalidArgument(
                f"{type(module).__name__} cannot be cut: its forward cannot be followed from unit to unit ({error}). "
                "Put what depends on values into a submodule of its own"
            ) from error
        finally:
            # Tensors that the forward makes of nothing are noted by the tracer in the module itself.
            self._constants = {name: vars(module).pop(name) for name in set(vars(module)) - before}
        self._calls = [place for place, node in enumerate(self._nodes) if node.op == "call_module"]
        self.names = [str(self._nodes[place].target) for place in self._calls] or [""]
        self._unit_of_node = self._assign()

    def separable(self) -> list[bool]:
        """For each unit, whether a stage may begin with it: no units on both sides share a parameter or buffer.

        What the forward itself fetches is no obstacle: it goes from stage to stage as any other value does.
        """
        users: dict[int, list[int]] = {}
        for place, node in enumerate(self._nodes):
            for tensor in self._state_of(node):
                users.setdefault(id(tensor), []).append(self._unit_of_node[place])
        return [
            all(not min(units) < place <= max(units) for units in users.values()) for place in range(len(self.names))
        ]

    def parameters_of(self, unit: int) -> list[Tensor]:
        """The parameters of a unit, and those that the forward fetches there."""
        found = {
            id(tensor): tensor
            for place, node in enumerate(self._nodes)
            if self._unit_of_node[place] == unit
            for tensor in self._state_of(node)
            if isinstance(tensor, nn.Parameter)
        }
        return list(found.values())

    def inputs(self) -> list[tuple[str, bool]]:
        """The arguments of the forward, and whether each may be left out."""
        return [(node.name, bool(node.args)) for node in self._nodes if node.op == "placeholder"]

    def defaults(self) -> list[Any]:
        return [node.args[0] if node.args else None for node in self._nodes if node.op == "placeholder"]

    def stage(self, start: int, end: int) -> Stage:
        """The units from `start` to before `end` as a stage; the submodules are shared with the module."""
        places = range(len(self._nodes))
        mine = [place for place in places if start <= self._unit_of_node[place] < end]
        earlier = {self._nodes[place] for place in places if self._unit_of_node[place] < start}
        later = [self._nodes[place] for place in places if self._unit_of_node[place] >= end]
        nodes = [self._nodes[place] for place in mine]
        here = set(nodes)
        needed_later = {used for node in later for used in node.all_input_nodes}
        needed_here = {used for node in nodes for used in node.all_input_nodes}
        inputs = [node.name for node in self._nodes if node in earlier and node in needed_here | needed_later]
        outputs = [node.name for node in self._nodes if node in needed_later and (node in earlier or node in here)]
        if start == 0:
            inputs = [node.name for node in nodes if node.op == "placeholder"]
        if end >= len(self.names):
            outputs = [node.name for node in nodes if node.op == "output"]
        made = Stage(self._container(nodes), nodes, inputs, outputs)
        made.constants = {
            str(node.target): self._constants[str(node.target)]
            for node in nodes
            if node.op == "get_attr" and node.target in self._constants
        }
        return made

    # --- helpers ----------------------------------------------------------------------------------------------

    def _assign(self) -> list[int]:
        """To which unit each step belongs: the last that began before it; what comes before the first, to the first."""
        units = []
        unit = -1
        for node in self._nodes:
            unit += node.op == "call_module"
            units.append(max(unit, 0))
        places = {node: place for place, node in enumerate(self._nodes)}
        owners: dict[int, int] = {}
        for place in self._calls:
            for tensor in self._state_of(self._nodes[place]):
                owners.setdefault(id(tensor), units[place])
        for place, node in enumerate(self._nodes):  # a parameter is fetched by its unit, or where it is first used
            if node.op == "get_attr" and node.users:
                first_use = min(units[places[user]] for user in node.users)
                units[place] = min([first_use, *(owners.get(id(one), first_use) for one in self._state_of(node))])
        return units

    def _state_of(self, node: fx.Node) -> list[Tensor]:
        """The parameters and buffers of the unit that a step calls, or the one that it fetches."""
        if node.op == "call_module":
            unit = self._module.get_submodule(str(node.target))
            return [*unit.parameters(), *unit.buffers()]
        if node.op == "get_attr" and node.target not in self._constants:
            return [_attribute(self._module, str(node.target))]
        return []

    def _container(self, nodes: Sequence[fx.Node]) -> nn.Module:
        container = nn.Module()
        container.training = self._module.training
        for node in nodes:
            name = str(node.target)
            if node.op == "call_module":
                _place(container, name, self._module.get_submodule(name), persistent=True)
            elif node.op == "get_attr" and name not in self._constants:
                path, _, last = name.rpartition(".")
                owner = self._module.get_submodule(path)
                persistent = last not in owner._non_persistent_buffers_set
                _place(container, name, getattr(owner, last), persistent)
        return container


class _Tracer(fx.Tracer):  # type: ignore[misc]
    proxy_buffer_attributes = True

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        hooked = bool(module._forward_hooks or module._forward_pre_hooks)
        return type(module).forward is not nn.Sequential.forward or hooked


def _attribute(module: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    tensor: Tensor = getattr(module.get_submodule(path), last)
    return tensor


def _place(container: nn.Module, name: str, value: Any, persistent: bool) -> None:
    """Register a submodule, parameter or buffer under a name of several parts."""
    *path, last = name.split(".")
    for part in path:
        if part not in container._modules:
            between = nn.Module()
            between.training = container.training
            container.add_module(part, between)
        container = container.get_submodule(part)
    if isinstance(value, nn.Module):
        container.add_module(last, value)
    elif hasattr(container, last):
        return  # it belongs to a unit that is there
    elif isinstance(value, nn.Parameter):
        container.register_parameter(last, value)
    else:
        assert isinstance(value, torch.Tensor)
        container.register_buffer(last, value, persistent=persistent)
