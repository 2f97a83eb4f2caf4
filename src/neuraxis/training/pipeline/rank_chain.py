"""Pipeline stages on ranks: micro-batches are sent forward from rank to rank, and their gradients back.

1F1B: a stage begins with as many forward passes as there are stages after it, then alternates one forward and one
backward pass, so it holds few micro-batches at a time. GPipe: all forward passes, then all backward passes. Both give
the same gradients.

A forward message consists of three integers (bytes of the description, micro-batches, rows), a description (nesting,
and dtype and shape of each tensor) and the tensors, so micro-batches may differ in shape. In the backward direction the
shapes are known, and a message has one flag per tensor: True if the tensor has a gradient.

Sends do not block: the tensors of each are held until its gradients arrive, which shows that it was received, or until
the step ends.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

from neuraxis.comm import Communicator, Work
from neuraxis.errors import InvalidArgument, InvalidType, PeerLost, StepInterrupted
from neuraxis.training.parallel.group import gather_objects
from neuraxis.training.pipeline.micro_batches import concatenate, row_count, split
from neuraxis.training.pipeline.unit_graph import Stage
from neuraxis.wire.objects import decode, encode
from neuraxis.wire.trees import iter_leaves, map_leaves

__all__ = [
    "Batch",
    "LossFunction",
    "RankChain",
    "Schedule",
    "StageLink",
    "Transfer",
    "broadcast_nested",
    "schedule_passes",
]


_FORWARD, _BACKWARD = 1, 2  # tags
_PLAIN = (type(None), bool, int, float, str)


class Batch(msgspec.Struct, frozen=True):
    """Number of micro-batches and total rows of a batch."""

    micro_batches: int
    rows: int

    def weight(self, number: int) -> float:
        """Return the weight of a micro-batch in the mean over the batch."""
        if not self.rows:
            return 1.0 / self.micro_batches
        small, longer = divmod(self.rows, self.micro_batches)
        return (small + (number < longer)) / self.rows


class Transfer:
    """Tensors of one micro-batch that were sent from one stage to the next, on either side.

    Attributes
    ----------
    tensors : list of Tensor
        Tensors that require a gradient. On the receiving side they are the inputs of the graph.
    gradients : dict of int to Tensor
        Gradients from the backward pass of the receiving side, by index.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.gradients: dict[int, Tensor] = {}


class StageLink:
    """Connection of this rank to the previous and the next stage."""

    def __init__(self, group: Communicator, before: int | None, after: int | None, device: torch.device) -> None:
        self._group = group
        self._before = before
        self._after = after
        self._device = device
        self._wire = device if group.backend_name == "nccl" else torch.device("cpu")
        self._sent: list[tuple[Transfer | None, Work, Tensor]] = []

    def send_forward(self, batch: Batch, values: list[Any]) -> Transfer:
        transfer = Transfer()
        tensors = list(iter_leaves(values, Tensor))
        transfer.tensors = [tensor for tensor in tensors if tensor.requires_grad]
        facts = [[_dtype_name(one.dtype), list(one.shape), one.requires_grad] for one in tensors]
        description = encode([_skeleton(values), facts])
        numbers = torch.tensor([len(description), batch.micro_batches, batch.rows])
        words = torch.frombuffer(bytearray(description), dtype=torch.uint8)
        for tensor in (numbers, words, *tensors):
            self._send(tensor.detach(), self._after, _FORWARD, transfer)
        return transfer

    def receive_forward(self) -> tuple[Batch, list[Any], Transfer]:
        numbers = self._receive((3,), torch.int64, self._before, _FORWARD).tolist()
        description = self._receive((numbers[0],), torch.uint8, self._before, _FORWARD)
        skeleton, facts = decode(description.cpu().numpy().tobytes())
        transfer = Transfer()
        tensors = []
        for dtype, shape, has_gradient in facts:
            tensor = self._receive(tuple(shape), getattr(torch, dtype), self._before, _FORWARD).to(self._device)
            if has_gradient and torch.is_grad_enabled():
                tensor = _GraphInput.apply(
                    torch.zeros((), requires_grad=True), [tensor], transfer, len(transfer.tensors)
                )
                transfer.tensors.append(tensor)
            tensors.append(tensor)
        values: list[Any] = _filled(skeleton, tensors)
        return Batch(numbers[1], numbers[2]), values, transfer

    def send_back(self, transfer: Transfer) -> None:
        """Send the gradients of received tensors."""
        if transfer.tensors:
            flags = [place in transfer.gradients for place in range(len(transfer.tensors))]
            self._send(torch.tensor(flags, dtype=torch.uint8), self._before, _BACKWARD)
            for _, gradient in sorted(transfer.gradients.items()):
                self._send(gradient, self._before, _BACKWARD)

    def receive_back(self, transfer: Transfer) -> tuple[list[Tensor], list[Tensor]]:
        """Return the sent tensors that have a gradient, and their gradients."""
        if not transfer.tensors:
            return [], []
        flags = self._receive((len(transfer.tensors),), torch.uint8, self._after, _BACKWARD).tolist()
        tensors = [tensor for tensor, flag in zip(transfer.tensors, flags, strict=True) if flag]
        gradients = [
            self._receive(tuple(tensor.shape), tensor.dtype, self._after, _BACKWARD).to(tensor.device)
            for tensor in tensors
        ]
        self._finish([one for one in self._sent if one[0] is transfer])
        return tensors, gradients

    def finish(self) -> None:
        """Wait until all sent messages have been received."""
        self._finish(self._sent)

    def discard_pending(self) -> None:
        """Drop pending sends, because a backend closes a connection only when nothing refers to its messages."""
        self._sent = []

    # --- helpers ----------------------------------------------------------------------------------------------

    def _send(self, tensor: Tensor, to: int | None, tag: int, transfer: Transfer | None = None) -> None:
        tensor = tensor.to(self._wire).contiguous()
        self._sent.append((transfer, self._group.isend(tensor, group_dst=to, tag=tag), tensor))

    def _finish(self, sent: list[tuple[Transfer | None, Work, Tensor]]) -> None:
        for _, work, _ in sent:
            work.wait()
        done = {id(one) for one in sent}
        self._sent = [one for one in self._sent if id(one) not in done]

    def _receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int | None, tag: int) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self._wire)
        self._group.recv(tensor, group_src=source, tag=tag)
        return tensor


class _GraphInput(torch.autograd.Function):  # type: ignore[misc]
    """Make a received tensor a non-leaf of this graph, so that units may change it in place."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, box: list[Tensor], transfer: Transfer, place: int) -> Tensor:
        ctx.transfer, ctx.place = transfer, place
        return box[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        ctx.transfer.gradients[ctx.place] = gradient
        return None, None, None, None


def broadcast_nested(group: Communicator, value: Any, source: int, device: torch.device) -> Any:
    """Send a nested value of rank `source` to all ranks and return it. Collective."""
    tensors = list(iter_leaves(value, Tensor)) if group.rank == source else []
    facts = [[_dtype_name(one.dtype), list(one.shape)] for one in tensors]
    box: list[Any] = [[_skeleton(value), facts] if group.rank == source else None]
    group.broadcast_object_list(box, group_src=source)
    skeleton, facts = box[0]
    wire = device if group.backend_name == "nccl" else torch.device("cpu")
    received = []
    for place, (dtype, shape) in enumerate(facts):
        if group.rank == source:
            tensor = tensors[place].detach().to(wire).contiguous()
        else:
            tensor = torch.empty(tuple(shape), dtype=getattr(torch, dtype), device=wire)
        group.broadcast(tensor, group_src=source)
        received.append(tensor.to(device))
    return value if group.rank == source else _filled(skeleton, received)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _skeleton(value: Any) -> list[Any]:
    """Return a nested value as plain data, with placeholders for its tensors."""
    if isinstance(value, Tensor):
        return ["tensor"]
    if isinstance(value, dict):
        return ["dict", [[key, _skeleton(part)] for key, part in value.items()]]
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return [kind, [_skeleton(part) for part in value]]
    if isinstance(value, _PLAIN):
        return ["plain", value]
    if isinstance(value, np.generic):
        return ["plain", value.item()]
    raise InvalidType(
        f"a {type(value).__name__} cannot be sent from one stage to the next. Use tensors, numbers and strings, in "
        "tuples, lists and dictionaries"
    )


def _filled(skeleton: list[Any], tensors: list[Tensor]) -> Any:
    rest = iter(tensors)

    def fill(part: list[Any]) -> Any:
        kind = part[0]
        if kind == "tensor":
            return next(rest)
        if kind == "dict":
            return {key: fill(one) for key, one in part[1]}
        if kind == "list":
            return [fill(one) for one in part[1]]
        return tuple(fill(one) for one in part[1]) if kind == "tuple" else part[1]

    return fill(skeleton)


LossFunction = Callable[[Any, Any], Tensor]
Schedule = Literal["1f1b", "gpipe"]
_T = TypeVar("_T")


def schedule_passes(schedule: Schedule, stages_after: int, micro_batches: int) -> list[tuple[bool, int]]:
    """Return the passes of a stage in order: (forward or not, number of the micro-batch)."""
    first = micro_batches if schedule == "gpipe" else min(stages_after, micro_batches)
    order = [(True, number) for number in range(first)]
    for number in range(first, micro_batches):
        order += [(True, number), (False, number - first)]
    return order + [(False, number) for number in range(micro_batches - first, micro_batches)]


class RankChain:
    """Pipeline over ranks. Every rank calls the same methods; the first gives the input, the last the target.

    Parameters
    ----------
    group : Communicator
        Ranks of the pipeline; used by nothing else.
    chain : sequence of int
        Ranks that have a stage, in order. The others only take part in broadcasts.
    stage : Stage or None
        Stage of this rank.
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
        self._link = StageLink(group, before, after, device)

    def forward(self, args: Sequence[Any]) -> Any:
        """Return the module's output on every rank."""
        with torch.no_grad():
            return self._run_step(lambda: self._evaluate(args))

    def backward_step(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor:
        """Run forward and backward of a batch and return the mean loss on every rank."""
        with torch.enable_grad():
            return self._run_step(lambda: self._train(args, target, loss_function))

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Merge the states of all ranks, on every rank."""
        whole: dict[str, Any] = {}
        for rank in range(self._group.size):
            whole |= self._run_step(lambda rank=rank: broadcast_nested(self._group, state, rank, self._device))  # type: ignore[misc]
        return whole

    def all_gather(self, value: float) -> list[float]:
        """Return the value of every rank."""
        return self._run_step(lambda: gather_objects(self._group, value))

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
                    self._link.send_forward(batch, results)
                number += 1
            self._link.finish()
        whole = concatenate(outputs) if self._is_last else None
        return broadcast_nested(self._group, whole, self._last, self._device)

    def _train(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        if self._stage is not None:
            total = self._pass(args, target, loss_function)
            self._link.finish()
        loss: Tensor = broadcast_nested(self._group, total, self._last, torch.device("cpu"))
        return loss

    def _pass(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor:
        assert self._stage is not None
        batch, batches = self._first_batch(args)
        held: dict[int, tuple[Transfer | None, Transfer | Tensor]] = {}
        targets: list[Any] = []
        total = torch.zeros((), dtype=torch.float64)
        order: Iterator[tuple[bool, int]] | None = None
        turn = (True, 0)
        while True:
            is_forward, number = turn
            if is_forward:
                values, received, batch = self._take(batches, number, batch)
                results = self._stage.run(values)
                if not self._is_last:
                    held[number] = received, self._link.send_forward(batch, results)
                else:
                    targets = targets or self._targets(target, batch)
                    loss = loss_function(results[0], targets[number]) * batch.weight(number)
                    if not isinstance(loss, Tensor) or loss.dim():
                        raise InvalidArgument(
                            "loss_function: a tensor without dimensions, the mean over rows, is expected"
                        )
                    total += loss.detach().to("cpu", torch.float64)
                    held[number] = received, loss
            else:
                self._backward(*held.pop(number))
            if order is None:  # the number of micro-batches is known with the first one
                assert batch is not None
                order = iter(schedule_passes(self._schedule, self._stages_after, batch.micro_batches)[1:])
            following = next(order, None)
            if following is None:
                return total
            turn = following

    def _backward(self, received: Transfer | None, sent: Transfer | Tensor) -> None:
        if isinstance(sent, Transfer):
            tensors, gradients = self._link.receive_back(sent)
            if tensors:
                torch.autograd.backward(tensors, gradients)
        elif sent.requires_grad:
            sent.backward()
        if received is not None:
            self._link.send_back(received)

    def _first_batch(self, args: Sequence[Any]) -> tuple[Batch | None, list[Any]]:
        """Split the batch on the first stage; the others receive the number of micro-batches with the first one."""
        if not self._is_first:
            return None, []
        rows = row_count(args, "args")
        count = max(1, min(self._micro_batches, rows))
        return Batch(count, rows), split(tuple(args), count)

    def _take(self, batches: list[Any], number: int, batch: Batch | None) -> tuple[list[Any], Transfer | None, Batch]:
        if batch is not None and self._is_first:
            return map_leaves(lambda tensor: tensor.to(self._device), list(batches[number]), Tensor), None, batch
        batch, values, transfer = self._link.receive_forward()
        return values, transfer, batch

    def _targets(self, target: Any, batch: Batch) -> list[Any]:
        if target is None:
            return [None] * batch.micro_batches
        rows = row_count(target, "target")
        if rows != batch.rows:
            raise InvalidArgument(f"target has {rows} rows, and the input has {batch.rows}. They must be equal")
        return split(target, batch.micro_batches)

    def _run_step(self, work: Callable[[], _T]) -> _T:
        """Run a step. If it fails, abort the group, so that ranks that wait for this one fail at once."""
        if isinstance(self._failure, PeerLost):
            raise self._failure
        if self._failure is not None:
            raise StepInterrupted(
                f"this pipeline ended when a step failed: {self._failure!r}. Restart from a checkpoint"
            ) from self._failure
        try:
            return work()
        except PeerLost as error:
            lost = copy.copy(error)
            _drop_tracebacks(error)
        except BaseException as error:
            self._abort(error)
            raise
        self._abort(lost)
        raise lost

    def _abort(self, error: BaseException) -> None:
        self._failure = error
        self._link.discard_pending()
        self._group.abort()


def _drop_tracebacks(error: BaseException | None) -> None:
    """Drop the tracebacks of an error: gloo closes a connection only when nothing refers to its messages."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
