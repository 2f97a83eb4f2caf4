"""The forward of a module as a list of nodes, and the stages that are made from it.

torch.fx traces the forward down to the units: children, items of ModuleLists, and children of nn.Sequential. Units are
not traced, so their code may be arbitrary; the code between them must not depend on tensor values. Units are the
submodules themselves: they keep their names, and train() and eval() work.
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
    """Consecutive units, with the computation between them.

    Attributes
    ----------
    module : torch.nn.Module
        Parameters and buffers of the stage, under their names in the whole module.
    inputs : list of str
        Names of the values that it needs.
    outputs : list of str
        Names of the values that later stages need from it or through it.
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
        """Compute the outputs from the inputs. `watch(node, call)`, if given, carries out the call of a unit."""
        known = dict(zip(self.inputs, values, strict=True))
        for node in self._nodes:
            if node.op == "placeholder":
                continue  # given as an input
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
    """Nodes of a module's forward in order, and its units: the calls of submodules among them."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        before = set(vars(module))
        try:
            self._nodes = list(_Tracer().trace(module).nodes)
        except Exception as error:
            raise InvalidArgument(
                f"{type(module).__name__} cannot be split: its forward cannot be traced ({error}). "
                "Move code that depends on tensor values into a submodule"
            ) from error
        finally:
            # The tracer stores tensors that the forward creates as attributes of the module.
            self._constants = {name: vars(module).pop(name) for name in set(vars(module)) - before}
        self._calls = [place for place, node in enumerate(self._nodes) if node.op == "call_module"]
        self.names = [str(self._nodes[place].target) for place in self._calls] or [""]
        self._unit_of_node = self._assign()

    def separable(self) -> list[bool]:
        """Return for each unit whether a stage may begin with it: no units on both sides share a parameter or buffer.

        Parameters that the forward itself reads are no obstacle: they are sent from stage to stage as other values are.
        """
        users: dict[int, list[int]] = {}
        for place, node in enumerate(self._nodes):
            for tensor in self._state_of(node):
                users.setdefault(id(tensor), []).append(self._unit_of_node[place])
        return [
            all(not min(units) < place <= max(units) for units in users.values()) for place in range(len(self.names))
        ]

    def parameters_of(self, unit: int) -> list[Tensor]:
        """Return the parameters of a unit, and those that the forward reads there."""
        found = {
            id(tensor): tensor
            for place, node in enumerate(self._nodes)
            if self._unit_of_node[place] == unit
            for tensor in self._state_of(node)
            if isinstance(tensor, nn.Parameter)
        }
        return list(found.values())

    def inputs(self) -> list[tuple[str, bool]]:
        """Return the names of the arguments of the forward, and whether each is optional."""
        return [(node.name, bool(node.args)) for node in self._nodes if node.op == "placeholder"]

    def defaults(self) -> list[Any]:
        return [node.args[0] if node.args else None for node in self._nodes if node.op == "placeholder"]

    def stage(self, start: int, end: int) -> Stage:
        """Return units [start, end) as a stage, which shares the submodules with the module."""
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
        """Return the unit of each node: the last one that began before it, or the first."""
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
        for place, node in enumerate(self._nodes):  # a parameter is read by its unit, or at its first use
            if node.op == "get_attr" and node.users:
                first_use = min(units[places[user]] for user in node.users)
                units[place] = min([first_use, *(owners.get(id(one), first_use) for one in self._state_of(node))])
        return units

    def _state_of(self, node: fx.Node) -> list[Tensor]:
        """Return the parameters and buffers of the unit that a node calls, or the tensor that it reads."""
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
    """Register a submodule, parameter or buffer under a dotted name."""
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
        return  # belongs to a unit of the stage
    elif isinstance(value, nn.Parameter):
        container.register_parameter(last, value)
    else:
        assert isinstance(value, torch.Tensor)
        container.register_buffer(last, value, persistent=persistent)
