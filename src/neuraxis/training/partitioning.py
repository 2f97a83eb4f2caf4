"""Cut a module that is too large or too slow for one rank into stages, one for each rank, by what each can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from neuraxis.comm import Communicator, NonMember, current_context
from neuraxis.errors import InvalidArgument, NotInitialized
from neuraxis.training.capacity import Capacity, capacities_of_devices, capacities_of_ranks
from neuraxis.training.chosen_group import group_or_world
from neuraxis.training.cutting import Unit, cut_by_capacity, cut_by_names, cut_evenly
from neuraxis.training.device_chain import DeviceChain
from neuraxis.training.micro_batches import rows_of, split
from neuraxis.training.pipeline import Chain, Pipeline
from neuraxis.training.rank_chain import RankChain, Schedule
from neuraxis.training.sameness import check_same_model, spread_state
from neuraxis.training.unit_costs import estimated_units, measured_units
from neuraxis.training.unit_graph import UnitGraph

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
    """Cut a module into stages that run one after the other, for micro-batch after micro-batch.

    On ranks every rank calls this with the same module (rank 0's values are taken) and keeps its own stage of it. On
    devices, all stages are in this process. Without either it is the ranks of the current context.

    Args:
        devices: devices of this process, one for each stage.
        ranks: a communicator, or ranks of the current context (which all of its ranks name in the same way).
        by: "capacity": each rank's speed and memory are measured, and stages take equally long; "parameters": stages
            have about equally many parameters; "even": equally many units; or the names of the units with which a
            new stage begins.
        example: the arguments of a batch (a tuple, or one tensor), to measure how long each unit takes and what it
            leaves in memory. Without one, time is taken to follow the number of parameters.
        micro_batches: into how many parts a batch is cut.
        schedule: "1f1b" holds fewer micro-batches at a time; "gpipe" is all forwards and then all backwards.
        capacities: what each rank has, instead of measuring it.

    Raises:
        InvalidArgument: the forward cannot be followed from unit to unit, or the model does not fit.
        ModelMismatch: ranks have different models.
    """
    if isinstance(devices, Communicator):
        devices, ranks = None, devices
    if devices is not None and ranks is not None:
        raise InvalidArgument("partition: give devices of this process or ranks, not both")
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
        raise InvalidArgument(f"micro_batches={micro_batches!r}: a number, 1 or more, is expected")
    if schedule not in ("1f1b", "gpipe"):
        raise InvalidArgument(f"schedule={schedule!r}: '1f1b' or 'gpipe' is expected")
    if isinstance(by, str) and by not in ("capacity", "parameters", "even"):
        raise InvalidArgument(f"by={by!r}: 'capacity', 'parameters', 'even', or names of units are expected")
    plan = _Plan(module, by, example, micro_batches, schedule, capacities)
    if devices is not None:
        return plan.on_devices([torch.device(device) for device in devices])
    group = _group_of(ranks)
    if group is None:
        return plan.on_devices([_device_of(module)])
    return plan.on_ranks(group)


class _Plan:
    """One call of `partition`."""

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
            raise InvalidArgument("devices=[]: at least one is expected")
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
        for stage, _ in made:  # a buffer that was moved is another tensor
            for name, buffer in stage.module.named_buffers():
                path, _, last = name.rpartition(".")
                self._module.get_submodule(path).register_buffer(last, buffer, persistent=name in names)
        return self._pipeline(self._module, chain, stages, capacities, names, {})

    def on_ranks(self, ranks: Communicator) -> Pipeline:
        check_same_model(self._module, ranks)
        spread_state(self._module, ranks)
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
                f"capacities={given}: one for each of {size} ranks or devices is expected, with a speed"
            )
        return given

    def _units(self) -> list[Unit]:
        if self._by != "capacity" or self._example is None:
            return estimated_units(self._graph)
        args = self._example if isinstance(self._example, (tuple, list)) else (self._example,)
        count = max(1, min(self._micro_batches, rows_of(args, "example")))
        return measured_units(self._graph, self._module, tuple(split(tuple(args), count)[0]))

    def _agreed(self, ranks: Communicator, capacities: Sequence[Capacity]) -> list[tuple[int, int]]:
        """Times that were measured differ: rank 0 measures and cuts, and the others hear how, or why not."""
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
        """What no unit that is called has: part of the whole module's state all the same."""
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
        raise NotInitialized(f"ranks={list(ranks)}: there is no context; call init_distributed() first") from None
    if isinstance(group, NonMember):
        raise InvalidArgument(f"ranks={list(ranks)}: this rank is not among them, and has no stage")
    return group


def _device_of(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in module.parameters()), torch.device("cpu"))


def _dtype_of(module: nn.Module) -> torch.dtype:
    return next((one.dtype for one in module.parameters() if one.is_floating_point()), torch.get_default_dtype())


def _names_of(module: nn.Module) -> dict[str, list[str]]:
    """The names in the module's state, each with all names of the same tensor."""
    state = module.state_dict(keep_vars=True)
    same: dict[int, list[str]] = {}
    for name, tensor in state.items():
        same.setdefault(id(tensor), []).append(name)
    return {name: same[id(tensor)] for name, tensor in state.items()}
