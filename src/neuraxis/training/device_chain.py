"""Stages on several devices of one process: values are copied from device to device, autograd brings gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from neuraxis.errors import InvalidArgument
from neuraxis.training.micro_batches import joined, mapped, rows_of, split
from neuraxis.training.rank_chain import LossFunction, Schedule
from neuraxis.training.stage_messages import Batch
from neuraxis.training.unit_graph import Stage

__all__ = ["DeviceChain"]


class DeviceChain:
    """All stages, each with its device. Devices work while the next micro-batch is launched on those before them."""

    def __init__(self, stages: Sequence[tuple[Stage, torch.device]], micro_batches: int, schedule: Schedule) -> None:
        self._stages = list(stages)
        self._micro_batches = micro_batches
        self._schedule = schedule
        for stage, device in stages:
            stage.module.to(device)
            stage.constants = mapped(stage.constants, lambda tensor, device=device: tensor.to(device))  # type: ignore[misc]

    def forward(self, args: Sequence[Any]) -> Any:
        with torch.no_grad():
            return joined([self._run(values) for values in self._cut(args)[1]])

    def backward_step(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor:
        batch, batches = self._cut(args)
        if target is not None and rows_of(target, "target") != batch.rows:
            raise InvalidArgument(f"target has {rows_of(target, 'target')} rows, and the input has {batch.rows}")
        device = self._stages[-1][1]
        targets = [None] * len(batches) if target is None else split(target, len(batches))
        total = torch.zeros((), dtype=torch.float64)
        held: list[Tensor] = []
        with torch.enable_grad():
            for number, (values, wanted) in enumerate(zip(batches, targets, strict=True)):
                output = self._run(values)
                loss = loss_function(output, mapped(wanted, lambda one: one.to(device))) * batch.weight(number)
                held.append(loss)
                if self._schedule == "1f1b":
                    total += _finished(held)
            total += _finished(held)
        return total

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def exchanged(self, value: float) -> list[float]:
        return [value]

    def _cut(self, args: Sequence[Any]) -> tuple[Batch, list[Any]]:
        rows = rows_of(args, "args")
        count = max(1, min(self._micro_batches, rows))
        return Batch(count, rows), split(tuple(args), count)

    def _run(self, values: Sequence[Any]) -> Any:
        for stage, device in self._stages:
            here = mapped(list(values), lambda tensor, device=device: tensor.to(device))  # type: ignore[misc]
            values = stage.run(here)
        return values[0]


def _finished(losses: list[Tensor]) -> Tensor:
    """The backward pass of the losses that are held; their sum."""
    total = torch.zeros((), dtype=torch.float64)
    for loss in losses:
        if loss.requires_grad:
            loss.backward()
        total += loss.detach().to("cpu", torch.float64)
    losses.clear()
    return total
