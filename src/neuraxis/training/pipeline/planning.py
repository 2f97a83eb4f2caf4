"""Planning of pipeline stages: measure ranks and submodules, and choose where to split.

A *unit* is a submodule that is not split. Stages are consecutive units in the order in which they run, assigned to
ranks in order.
"""

from __future__ import annotations

import copy
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, fx, nn

from neuraxis.comm import Communicator
from neuraxis.comm.host import host_identity
from neuraxis.errors import InvalidArgument
from neuraxis.training.pipeline.unit_graph import UnitGraph
from neuraxis.wire.trees import iter_leaves, map_leaves

__all__ = [
    "Capacity",
    "Unit",
    "capacities_of_devices",
    "capacities_of_ranks",
    "cut_by_capacity",
    "cut_by_names",
    "cut_evenly",
    "estimated_units",
    "fastest_stages",
    "measured_units",
]


_SIDE = 256  # rows of the matrices that are multiplied to measure speed
_REPEATS = 5  # of a measurement; the best counts


class Capacity(msgspec.Struct, frozen=True):
    """Speed and free memory of one rank or device.

    Attributes
    ----------
    rank : int
        Rank, or index in the list of devices.
    operations_per_s : float
        Floating-point operations per second, forward and backward, in the dtype of the model.
    memory_bytes : int
        Free memory in bytes, divided by the number of ranks that share it.

    Examples
    --------
    >>> from neuraxis.training import Capacity
    >>> Capacity(rank=0, operations_per_s=1e12, memory_bytes=8 << 30)
    Capacity(rank=0, operations_per_s=1000000000000.0, memory_bytes=8589934592)
    """

    rank: int
    operations_per_s: float
    memory_bytes: int


def capacities_of_ranks(group: Communicator, device: torch.device, dtype: torch.dtype) -> list[Capacity]:
    """Measure all ranks at the same time, so that ranks that share cores are measured under load. Collective."""
    mine = {"place": _place(device), "memory": _free_memory(device)}
    group.barrier()
    mine["speed"] = _operations_per_s(device, dtype)
    measured: list[Any] = [None] * group.size
    group.all_gather_object(measured, mine)
    sharing = Counter(one["place"] for one in measured)
    return [
        Capacity(rank, float(one["speed"]), int(one["memory"]) // sharing[one["place"]])
        for rank, one in enumerate(measured)
    ]


def capacities_of_devices(devices: Sequence[torch.device], dtype: torch.dtype) -> list[Capacity]:
    """Measure each device; one that is listed twice is shared."""
    sharing = Counter(devices)
    return [
        Capacity(place, _operations_per_s(device, dtype) / sharing[device], _free_memory(device) // sharing[device])
        for place, device in enumerate(devices)
    ]


Stages = list[tuple[int, int]]  # for each rank the range of its units [start, end); empty if it has none

_COPIES = 4  # a parameter, its gradient and the state of its optimizer


class Unit(msgspec.Struct):
    """Submodule that is not split.

    Attributes
    ----------
    name : str
        Name of the submodule.
    cost : float
        Time, in any unit that is the same for all.
    parameter_bytes : int
        Bytes of its parameters.
    output_bytes : int
        Bytes that it keeps for the backward pass of one micro-batch.
    separable : bool
        A stage may begin with it; False if it shares parameters with an earlier unit.
    """

    name: str
    cost: float
    parameter_bytes: int = 0
    output_bytes: int = 0
    separable: bool = True


def cut_by_capacity(units: Sequence[Unit], capacities: Sequence[Capacity], in_flight: Sequence[int]) -> Stages:
    """Return the stages whose slowest takes the least time, each within the memory of its rank.

    `in_flight` is the number of micro-batches that each rank holds at the same time. A rank that would only slow the
    others down gets no unit. Raises InvalidArgument, with required and free memory, if the model does not fit.
    """
    parameters = [0, *accumulate(unit.parameter_bytes for unit in units)]
    outputs = [0, *accumulate(unit.output_bytes for unit in units)]

    def fits(rank: int, start: int, end: int) -> bool:
        needed = _COPIES * (parameters[end] - parameters[start]) + in_flight[rank] * (outputs[end] - outputs[start])
        return needed <= capacities[rank].memory_bytes

    stages = fastest_stages(
        [unit.cost for unit in units],
        [unit.separable for unit in units],
        [capacity.operations_per_s for capacity in capacities],
        fits,
    )
    if stages is None:
        needed = _COPIES * parameters[-1] + min(in_flight) * outputs[-1]
        there = ", ".join(f"rank {one.rank} {one.memory_bytes:,}" for one in capacities)
        raise InvalidArgument(
            f"the model does not fit into memory: training needs about {needed:,} bytes, in submodules that are not "
            f"split; free bytes: {there}. Use more ranks or smaller micro-batches"
        )
    return stages


def cut_evenly(units: Sequence[Unit], size: int) -> Stages:
    """Return stages with about equally many units."""
    stages = fastest_stages([1.0] * len(units), [unit.separable for unit in units], [1.0] * size, lambda *_: True)
    assert stages is not None  # everything fits
    return stages


def cut_by_names(units: Sequence[Unit], names: Sequence[str], size: int) -> Stages:
    """Return stages that begin at the named units; remaining ranks get none."""
    places = {unit.name: place for place, unit in reversed(list(enumerate(units)))}
    for name in names:
        if name not in places:
            raise InvalidArgument(f"by={list(names)}: {name!r} is not one of the submodules {', '.join(places)}")
        if not units[places[name]].separable:
            raise InvalidArgument(f"by={list(names)}: {name!r} shares parameters with an earlier submodule")
    starts = [0, *(places[name] for name in names)]
    if starts != sorted(set(starts)):
        raise InvalidArgument(f"by={list(names)}: name submodules in the order {', '.join(places)}, without the first")
    if len(starts) > size:
        raise InvalidArgument(
            f"by={list(names)}: these are {len(starts)} stages for {size} ranks or devices. Name fewer submodules"
        )
    ends = [*starts[1:], len(units)]
    return list(zip(starts, ends, strict=True)) + [(len(units), len(units))] * (size - len(starts))


def fastest_stages(
    costs: Sequence[float],
    separable: Sequence[bool],
    speeds: Sequence[float],
    fits: Callable[[int, int, int], bool],
) -> Stages | None:
    """Return the assignment of units to ranks, in order, whose slowest stage is fastest; None if nothing fits.

    Exact, by dynamic programming over prefixes of the ranks and of the units. Of equally good assignments, earlier
    ranks get more.
    """
    count = len(costs)
    total = [0.0, *accumulate(costs)]
    places = [place for place in range(count + 1) if place in (0, count) or separable[place]]
    best: dict[int, float] = {0: 0.0}  # assigned units -> time of the slowest stage
    choices: list[dict[int, int]] = []
    for rank, speed in enumerate(speeds):
        better: dict[int, float] = {}
        choice: dict[int, int] = {}
        for end in places:
            for start in reversed(places):
                if start > end or start not in best or (start < end and not fits(rank, start, end)):
                    continue
                slowest = max(best[start], (total[end] - total[start]) / speed if start < end else 0.0)
                if end not in better or slowest < better[end]:
                    better[end], choice[end] = slowest, start
        best = better
        choices.append(choice)
    if count not in best:
        return None
    stages: Stages = []
    end = count
    for choice in reversed(choices):
        stages.append((choice[end], end))
        end = choice[end]
    return stages[::-1]


def estimated_units(graph: UnitGraph) -> list[Unit]:
    """Return units whose cost is the number of their parameters plus 1."""
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
    """Return units whose cost is the measured time of their forward and backward passes.

    A copy of the module is measured, so running statistics and random states do not change.
    """
    units = estimated_units(graph)
    number = 0

    def watch(node: fx.Node, call: tuple[nn.Module, Any, Any]) -> Any:
        nonlocal number
        unit, unit_args, unit_kwargs = call
        seconds, output = _timed(unit, unit_args, unit_kwargs)
        units[number].cost = seconds
        units[number].output_bytes = sum(one.numel() * one.element_size() for one in iter_leaves(output, Tensor))
        number += 1
        return output

    copied = UnitGraph(copy.deepcopy(module))
    stage = copied.stage(0, len(copied.names))
    missing = [name for name, optional in graph.inputs()[len(args) :] if not optional]
    if missing or len(args) > len(graph.inputs()):
        raise InvalidArgument(f"example: the module takes the arguments {[name for name, _ in graph.inputs()]}")
    values = [*args, *graph.defaults()[len(args) :]]
    with torch.random.fork_rng(enabled=True):
        try:
            stage.run(values, watch)
        except Exception as error:
            raise InvalidArgument(f"example: the module raised on it: {error}") from error
    return units


def _timed(unit: nn.Module, args: Any, kwargs: Any) -> tuple[float, Any]:
    best_s = float("inf")
    output: Any = None
    for _ in range(_REPEATS):
        given_args, given_kwargs = (map_leaves(_graph_input, one, Tensor) for one in (args, kwargs))
        _synchronize(given_args)
        begun = time.perf_counter()
        with torch.enable_grad():
            output = unit(*given_args, **given_kwargs)
            ends = [tensor for tensor in iter_leaves(output, Tensor) if tensor.requires_grad]
            if ends:
                torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        _synchronize(given_args)
        best_s = min(best_s, time.perf_counter() - begun)
    return best_s, map_leaves(Tensor.detach, output, Tensor)


def _graph_input(tensor: Tensor) -> Tensor:
    """Return a copy that requires a gradient and is not a leaf, so that the unit may change it in place."""
    if not tensor.is_floating_point():
        return tensor.clone()
    return tensor.detach().requires_grad_().clone()


def _synchronize(value: Any) -> None:
    for tensor in iter_leaves(value, Tensor):
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)


def _operations_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Return the best rate of a few matrix products, forward and backward."""
    left = torch.ones(_SIDE, _SIDE, dtype=dtype, device=device, requires_grad=True)
    right = torch.ones(_SIDE, _SIDE, dtype=dtype, device=device, requires_grad=True)
    gradient = torch.ones(_SIDE, _SIDE, dtype=dtype, device=device)
    best_s = float("inf")
    for _ in range(1 + _REPEATS):  # the first one is a warm-up
        begun = time.perf_counter()
        with torch.enable_grad():
            torch.autograd.grad(left @ right, (left, right), gradient)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best_s = min(best_s, time.perf_counter() - begun)
    return 3 * 2 * _SIDE**3 / best_s


def _place(device: torch.device) -> str:
    """Return an identifier that is equal for ranks that share the memory of this device."""
    if device.type != "cuda":
        return host_identity()
    return f"{host_identity()} {torch.cuda.get_device_properties(device).uuid}"


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_free_on_machine(), _free_in_container())


def _free_on_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # another system
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**62


def _free_in_container() -> int:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            return max(0, int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no such limit here
    return 2**62
