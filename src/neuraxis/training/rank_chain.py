"""Stages on ranks: micro-batches go forward from rank to rank, their gradients come back.

1F1B: a stage begins with as many forwards as there are stages after it, then takes turns, one forward and one backward:
so it holds few micro-batches at a time. GPipe: all forwards, then all backwards. Both give the same gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from neuraxis.comm import Communicator
from neuraxis.errors import InvalidArgument, PeerLost, StepInterrupted
from neuraxis.training.chosen_group import exchanged
from neuraxis.training.micro_batches import joined, mapped, rows_of, split
from neuraxis.training.stage_messages import Batch, Crossing, Line, broadcast_value
from neuraxis.training.unit_graph import Stage

__all__ = ["LossFunction", "RankChain", "Schedule", "turns"]

LossFunction = Callable[[Any, Any], Tensor]
Schedule = Literal["1f1b", "gpipe"]
_T = TypeVar("_T")


def turns(schedule: Schedule, stages_after: int, micro_batches: int) -> list[tuple[bool, int]]:
    """What a stage does, in order: (whether forward, which micro-batch)."""
    first = micro_batches if schedule == "gpipe" else min(stages_after, micro_batches)
    order = [(True, number) for number in range(first)]
    for number in range(first, micro_batches):
        order += [(True, number), (False, number - first)]
    return order + [(False, number) for number in range(micro_batches - first, micro_batches)]


class RankChain:
    """This rank's part. Every rank calls the same methods; the first gives the input, the last the target.

    Args:
        group: the ranks, with messages of their own.
        chain: the ranks that have a stage, in order. The others take part in what is told to all.
        stage: this rank's, None if it has none.
    """

    def __init__(
        self,
        group: Communicator,
        chain: Sequence[int],
        stage: Stage | None,
        device: torch.device,
        micro_batches: int,
        schedule: Schedule,
    ) -> None:
        self._group = group
        self._last = chain[-1]
        self._stage = stage
        self._device = device
        self._micro_batches = micro_batches
        self._schedule = schedule
        self._failure: BaseException | None = None
        place = chain.index(group.rank) if stage is not None else 0
        self._is_first = stage is not None and place == 0
        self._is_last = stage is not None and place == len(chain) - 1
        self._stages_after = len(chain) - 1 - place
        before = None if self._is_first else chain[place - 1]
        after = None if self._is_last or stage is None else chain[place + 1]
        self._line = Line(group, before, after, device)

    def forward(self, args: Sequence[Any]) -> Any:
        """The whole output on every rank."""
        with torch.no_grad():
            return self._together(lambda: self._evaluate(args))

    def backward_step(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor:
        """Forward and backward of a batch; the mean loss on every rank."""
        with torch.enable_grad():
            return self._together(lambda: self._learn(args, target, loss_function))

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        """What all ranks have, on every rank."""
        whole: dict[str, Any] = {}
        for rank in range(self._group.size):
            whole |= self._together(lambda rank=rank: broadcast_value(self._group, state, rank, self._device))  # type: ignore[misc]
        return whole

    def exchanged(self, value: float) -> list[float]:
        """Every rank's value, on every rank."""
        return self._together(lambda: exchanged(self._group, value))

    # --- helpers ----------------------------------------------------------------------------------------------

    def _evaluate(self, args: Sequence[Any]) -> Any:
        outputs = []
        if self._stage is not None:
            batch, batches = self._first_batch(args)
            number = 0
            while batch is None or number < batch.micro_batches:
                values, _, batch = self._take(batches, number, batch)
                results = self._stage.run(values)
                if self._is_last:
                    outputs.append(results[0])
                else:
                    self._line.send_forward(batch, results)
                number += 1
            self._line.finish()
        whole = joined(outputs) if self._is_last else None
        return broadcast_value(self._group, whole, self._last, self._device)

    def _learn(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        if self._stage is not None:
            total = self._pass(args, target, loss_function)
            self._line.finish()
        loss: Tensor = broadcast_value(self._group, total, self._last, torch.device("cpu"))
        return loss

    def _pass(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor:
        assert self._stage is not None
        batch, batches = self._first_batch(args)
        held: dict[int, tuple[Crossing | None, Crossing | Tensor]] = {}
        targets: list[Any] = []
        total = torch.zeros((), dtype=torch.float64)
        order: Iterator[tuple[bool, int]] | None = None
        turn = (True, 0)
        while True:
            is_forward, number = turn
            if is_forward:
                values, came, batch = self._take(batches, number, batch)
                results = self._stage.run(values)
                if not self._is_last:
                    held[number] = came, self._line.send_forward(batch, results)
                else:
                    targets = targets or self._targets(target, batch)
                    loss = loss_function(results[0], targets[number]) * batch.weight(number)
                    if not isinstance(loss, Tensor) or loss.dim():
                        raise InvalidArgument(
                            "loss_function: a tensor without dimensions, the mean over rows, is expected"
                        )
                    total += loss.detach().to("cpu", torch.float64)
                    held[number] = came, loss
            else:
                self._back(*held.pop(number))
            if order is None:  # how many there are is known with the first of them
                assert batch is not None
                order = iter(turns(self._schedule, self._stages_after, batch.micro_batches)[1:])
            following = next(order, None)
            if following is None:
                return total
            turn = following

    def _back(self, came: Crossing | None, went: Crossing | Tensor) -> None:
        if isinstance(went, Crossing):
            tensors, gradients = self._line.receive_back(went)
            if tensors:
                torch.autograd.backward(tensors, gradients)
        elif went.requires_grad:
            went.backward()
        if came is not None:
            self._line.send_back(came)

    def _first_batch(self, args: Sequence[Any]) -> tuple[Batch | None, list[Any]]:
        """How the batch is cut; the first stage knows it, the others hear it with the first micro-batch."""
        if not self._is_first:
            return None, []
        rows = rows_of(args, "args")
        count = max(1, min(self._micro_batches, rows))
        return Batch(count, rows), split(tuple(args), count)

    def _take(self, batches: list[Any], number: int, batch: Batch | None) -> tuple[list[Any], Crossing | None, Batch]:
        if batch is not None and self._is_first:
            return mapped(list(batches[number]), lambda tensor: tensor.to(self._device)), None, batch
        said, values, crossing = self._line.receive_forward()
        return values, crossing, said

    def _targets(self, target: Any, batch: Batch) -> list[Any]:
        if target is None:
            return [None] * batch.micro_batches
        rows = rows_of(target, "target")
        if rows != batch.rows:
            raise InvalidArgument(f"target has {rows} rows, and the input has {batch.rows}")
        return split(target, batch.micro_batches)

    def _together(self, work: Callable[[], _T]) -> _T:
        """Whoever fails leaves the group, so that the others, who may wait for it, learn of it at once."""
        if isinstance(self._failure, PeerLost):
            raise self._failure
        if self._failure is not None:
            raise StepInterrupted(f"this pipeline ended when a step failed: {self._failure!r}") from self._failure
        try:
            return work()
        except PeerLost as error:
            lost = copy.copy(error)
            _let_go(error)
        except BaseException as error:
            self._leave(error)
            raise
        self._leave(lost)
        raise lost

    def _leave(self, error: BaseException) -> None:
        self._failure = error
        self._line.give_up()
        self._group.abort()


def _let_go(error: BaseException | None) -> None:
    """Free what the frames of an error hold: gloo closes a connection only when nobody refers to its messages."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
