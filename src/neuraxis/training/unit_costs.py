"""What each unit of a module costs: measured on an example, or else estimated from its parameters."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor, fx, nn

from neuraxis.errors import InvalidArgument
from neuraxis.training.cutting import Unit
from neuraxis.training.micro_batches import mapped, tensors_of
from neuraxis.training.unit_graph import UnitGraph

__all__ = ["estimated_units", "measured_units"]

_TURNS = 3


def estimated_units(graph: UnitGraph) -> list[Unit]:
    """Units whose cost is the number of their parameters, and 1 for what has none."""
    separable = graph.separable()
    return [
        Unit(
            name,
            1.0 + sum(parameter.numel() for parameter in graph.parameters_of(place)),
            sum(parameter.numel() * parameter.element_size() for parameter in graph.parameters_of(place)),
            separable=separable[place],
        )
        for place, name in enumerate(graph.names)
    ]


def measured_units(graph: UnitGraph, module: nn.Module, args: tuple[Any, ...]) -> list[Unit]:
    """Units whose cost is the time of their forward and backward passes on these arguments.

    A copy of the module is measured: running statistics and random streams stay as they are.
    """
    units = estimated_units(graph)
    number = 0

    def watch(node: fx.Node, call: tuple[nn.Module, Any, Any]) -> Any:
        nonlocal number
        unit, unit_args, unit_kwargs = call
        seconds, output = _timed(unit, unit_args, unit_kwargs)
        units[number].cost = seconds
        units[number].output_bytes = sum(one.numel() * one.element_size() for one in tensors_of(output))
        number += 1
        return output

    copied = UnitGraph(copy.deepcopy(module))
    stage = copied.stage(0, len(copied.names))
    missing = [name for name, optional in graph.inputs()[len(args) :] if not optional]
    if missing or len(args) > len(graph.inputs()):
        raise InvalidArgument(f"example: the arguments of the module are {[name for name, _ in graph.inputs()]}")
    values = [*args, *graph.defaults()[len(args) :]]
    with torch.random.fork_rng(enabled=True):
        try:
            stage.run(values, watch)
        except Exception as error:
            raise InvalidArgument(f"example: the module cannot be run on it ({error})") from error
    return units


def _timed(unit: nn.Module, args: Any, kwargs: Any) -> tuple[float, Any]:
    best_s = float("inf")
    output: Any = None
    for _ in range(_TURNS):
        given_args, given_kwargs = mapped(args, _entrance), mapped(kwargs, _entrance)
        _synchronize(given_args)
        begun = time.perf_counter()
        with torch.enable_grad():
            output = unit(*given_args, **given_kwargs)
            ends = [tensor for tensor in tensors_of(output) if tensor.requires_grad]
            if ends:
                torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        _synchronize(given_args)
        best_s = min(best_s, time.perf_counter() - begun)
    return best_s, mapped(output, lambda tensor: tensor.detach())


def _entrance(tensor: Tensor) -> Tensor:
    """A copy with a gradient that may be changed in place."""
    if not tensor.is_floating_point():
        return tensor.clone()
    return tensor.detach().requires_grad_().clone()


def _synchronize(value: Any) -> None:
    for tensor in tensors_of(value):
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
