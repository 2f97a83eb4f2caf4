"""Partitioning: split a module that is too large or too slow for one rank into stages, by the capacity of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from neuraxis.arguments import is_whole
from neuraxis.comm import Communicator, NonMember, current_context
from neuraxis.errors import InvalidArgument, NotInitialized
from neuraxis.training.parallel.consistency import broadcast_state, check_same_model
from neuraxis.training.parallel.group import group_or_world
from neuraxis.training.pipeline.micro_batches import row_count, split
from neuraxis.training.pipeline.pipeline import Chain, DeviceChain, Pipeline
from neuraxis.training.pipeline.planning import (
    Capacity,
    Unit,
    capacities_of_devices,
    capacities_of_ranks,
    cut_by_capacity,
    cut_by_names,
    cut_evenly,
    estimated_units,
    measured_units,
)
from neuraxis.training.pipeline.rank_chain import RankChain, Schedule
from neuraxis.training.pipeline.unit_graph import UnitGraph

__all__ = ["partition"]

By = Literal["capacity", "parameters", "even"] | Sequence[str]


def partition(
    module: nn.Module,
    devices: Sequence[Any] | Communicator | None = None,
    ranks: Communicator | Sequence[int] | None = None,
    *,
    by: By = "capacity",
    example: Any = None,
    micro_batches: int = 4,
    schedule: Schedule = "1f1b",
    capacities: Sequence[Capacity] | None = None,
) -> Pipeline:
    """Split a module into pipeline stages.

    On ranks, every rank calls this with the same module (the values of rank 0 are used) and keeps its own stage. On
    devices, all stages are in this process. Without either, the ranks of the current context are used.

    Parameters
    ----------
    module : torch.nn.Module
        Module to split, between its submodules.
    devices : sequence of device, optional
        Devices of this process, one for each stage.
    ranks : Communicator or sequence of int, optional
        Ranks for the stages; a sequence names ranks of the current context, equally on all of them.
    by : {"capacity", "parameters", "even"} or sequence of str
        "capacity": measure the speed and memory of each rank, and make stages that take equally long. "parameters":
        about equally many parameters per stage. "even": equally many submodules. A sequence names the submodules with
        which the second, third, ... stage begins.
    example : tensor or tuple, optional
        Arguments of a batch, to measure the time and memory of each submodule. Without one, time is estimated from the
        number of parameters.
    micro_batches : int
        Micro-batches per batch.
    schedule : {"1f1b", "gpipe"}
        "1f1b" holds fewer micro-batches at a time; "gpipe" runs all forward passes, then all backward passes.
    capacities : sequence of Capacity, optional
        Capacity of each rank or device, instead of measuring it.

    Returns
    -------
    Pipeline
        The stages of this process.

    Raises
    ------
    InvalidArgument
        If the forward cannot be traced from submodule to submodule, the model does not fit into memory, or an option is
        invalid.
    ModelMismatch
        If the ranks have different models.
    NotInitialized
        If `ranks` is a sequence and there is no context.

    Examples
    --------
    >>> import torch
    >>> from neuraxis.training import partition
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> pipeline = partition(model, devices=["cpu", "cpu"], by=["2"], micro_batches=2)
    >>> pipeline.cuts
    ('2',)
    >>> pipeline(torch.zeros(6, 4)).shape
    torch.Size([6, 2])
    """
    if isinstance(devices, Communicator):
        devices, ranks = None, devices
    if devices is not None and ranks is not None:
        raise InvalidArgument("partition: devices and ranks exclude each other. Pass one of them")
    if not is_whole(micro_batches) or micro_batches < 1:
        raise InvalidArgument(f"micro_batches={micro_batches!r} must be an integer, 1 or more")
    if schedule not in ("1f1b", "gpipe"):
        raise InvalidArgument(f"schedule={schedule!r} is neither '1f1b' nor 'gpipe'")
    if isinstance(by, str) and by not in ("capacity", "parameters", "even"):
        raise InvalidArgument(f"by={by!r} is not 'capacity', 'parameters', 'even' or a list of names of submodules")
    plan = _Plan(module, by, example, micro_batches, schedule, capacities)
    if devices is not None:
        return plan.on_devices([torch.device(device) for device in devices])
    group = _group_of(ranks)
    if group is None:
        return plan.on_devices([_device_of(module)])
    return plan.on_ranks(group)


class _Plan:
    """Arguments of one call of `partition`."""

    def __init__(
        self,
        module: nn.Module,
        by: By,
        example: Any,
        micro_batches: int,
        schedule: Schedule,
        capacities: Sequence[Capacity] | None,
    ) -> None:
        self._module = module
        self._by = by
        self._example = example
        self._micro_batches = micro_batches
        self._schedule = schedule
        self._capacities = capacities
        self._graph = UnitGraph(module)

    def on_devices(self, devices: Sequence[torch.device]) -> Pipeline:
        if not devices:
            raise InvalidArgument("devices=[]: pass at least one device")
        dtype = _dtype_of(self._module)
        capacities = self._given(len(devices))
        if capacities is None:
            capacities = capacities_of_devices(devices, dtype) if self._by == "capacity" else []
        stages = self._cut(self._units(), capacities, len(devices))
        names = _names_of(self._module)
        made = [
            (self._graph.stage(*span), device)
            for span, device in zip(stages, devices, strict=True)
            if span[0] < span[1]
        ]
        chain = DeviceChain(made, self._micro_batches, self._schedule)
        for stage, _ in made:  # moving a buffer creates a new tensor
            for name, buffer in stage.module.named_buffers():
                path, _, last = name.rpartition(".")
                self._module.get_submodule(path).register_buffer(last, buffer, persistent=name in names)
        return self._pipeline(self._module, chain, stages, capacities, names, {})

    def on_ranks(self, ranks: Communicator) -> Pipeline:
        check_same_model(self._module, ranks)
        broadcast_state(self._module, ranks)
        device = _device_of(self._module)
        capacities = self._given(ranks.size)
        if capacities is None:
            measured = capacities_of_ranks(ranks, device, _dtype_of(self._module)) if self._by == "capacity" else []
            capacities = measured
        stages = self._agreed(ranks, capacities)
        group = ranks.new_group(check_calls=False)
        assert isinstance(group, Communicator)  # all are members
        start, end = stages[ranks.rank]
        stage = self._graph.stage(start, end) if start < end else None
        chain = [rank for rank, span in enumerate(stages) if span[0] < span[1]]
        runner = RankChain(group, chain, stage, device, self._micro_batches, self._schedule)
        kept = nn.Module() if stage is None else stage.module
        kept.training = self._module.training
        others = self._unused() if ranks.rank == 0 else {}
        return self._pipeline(kept, runner, stages, capacities, _names_of(self._module), others)

    # --- helpers ----------------------------------------------------------------------------------------------

    def _given(self, size: int) -> list[Capacity] | None:
        if self._capacities is None:
            return None
        given = list(self._capacities)
        if len(given) != size or any(not one.operations_per_s > 0 for one in given):
            raise InvalidArgument(
                f"capacities={given}: pass one for each of {size} ranks or devices, with a positive speed"
            )
        return given

    def _units(self) -> list[Unit]:
        if self._by != "capacity" or self._example is None:
            return estimated_units(self._graph)
        args = self._example if isinstance(self._example, (tuple, list)) else (self._example,)
        count = max(1, min(self._micro_batches, row_count(args, "example")))
        return measured_units(self._graph, self._module, tuple(split(tuple(args), count)[0]))

    def _agreed(self, ranks: Communicator, capacities: Sequence[Capacity]) -> list[tuple[int, int]]:
        """Return the stages as rank 0 measures and splits, since measured times differ between ranks. Collective."""
        box: list[Any] = [None]
        failure: InvalidArgument | None = None
        if ranks.rank == 0:
            try:
                box = [[list(span) for span in self._cut(self._units(), capacities, ranks.size)]]
            except InvalidArgument as error:
                failure, box = error, [str(error)]
        ranks.broadcast_object_list(box, group_src=0)
        if failure is not None:
            raise failure
        if isinstance(box[0], str):
            raise InvalidArgument(box[0])
        return [(int(start), int(end)) for start, end in box[0]]

    def _cut(self, units: list[Unit], capacities: Sequence[Capacity], size: int) -> list[tuple[int, int]]:
        if not isinstance(self._by, str):
            return cut_by_names(units, list(self._by), size)
        if self._by == "even":
            return cut_evenly(units, size)
        if self._by == "parameters":
            capacities = [Capacity(rank, 1.0, 2**62) for rank in range(size)]
        held = [self._micro_batches if self._schedule == "gpipe" else size - rank for rank in range(size)]
        return cut_by_capacity(units, capacities, [min(self._micro_batches, one) for one in held])

    def _unused(self) -> dict[str, Tensor]:
        """Return parameters and buffers that no stage uses but that are part of the module's state."""
        used = self._graph.stage(0, len(self._graph.names)).module
        known = {id(tensor) for tensor in (*used.parameters(), *used.buffers())}
        state = self._module.state_dict(keep_vars=True)
        return {name: value.detach() for name, value in state.items() if id(value) not in known}

    def _pipeline(
        self,
        stage: nn.Module,
        chain: Chain,
        stages: Sequence[tuple[int, int]],
        capacities: Sequence[Capacity],
        names: dict[str, list[str]],
        others: dict[str, Tensor],
    ) -> Pipeline:
        inputs = [
            (name, default, optional)
            for (name, optional), default in zip(self._graph.inputs(), self._graph.defaults(), strict=True)
        ]
        filled = [span for span in stages if span[0] < span[1]]
        return Pipeline(
            stage,
            chain,
            cuts=[self._graph.names[start] for start, _ in filled[1:]],
            ranks=[rank for rank, span in enumerate(stages) if span[0] < span[1]],
            capacities=capacities,
            names=names,
            others=others,
            arguments=inputs,
        )


def _group_of(ranks: Communicator | Sequence[int] | None) -> Communicator | None:
    if ranks is None or isinstance(ranks, Communicator):
        return group_or_world(ranks, "partition")
    try:
        group = current_context().new_group(ranks)
    except NotInitialized:
        raise NotInitialized(f"ranks={list(ranks)}: there is no context. Call init_distributed() first") from None
    if isinstance(group, NonMember):
        raise InvalidArgument(f"ranks={list(ranks)}: this rank is not among them. Call partition on these ranks only")
    return group


def _device_of(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in module.parameters()), torch.device("cpu"))


def _dtype_of(module: nn.Module) -> torch.dtype:
    return next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.get_default_dtype())


def _names_of(module: nn.Module) -> dict[str, list[str]]:
    """Return the names in the module's state, each with all names of the same tensor."""
    state = module.state_dict(keep_vars=True)
    same: dict[int, list[str]] = {}
    for name, tensor in state.items():
        same.setdefault(id(tensor), []).append(name)
    return {name: same[id(tensor)] for name, tensor in state.items()}
