"""What travels between the ranks of neighbouring stages: values on the way forward, gradients on the way back.

A message on the way forward is three numbers (bytes of the description, micro-batches, rows), a description (nesting,
and the dtype and shape of each tensor) and the tensors. So every micro-batch may have rows and shapes of its own. On
the way back the shapes are known, and a flag for each tensor says whether it has a gradient.

Sends never wait: each is kept until its gradients have come, which shows that it was received, or the step ends.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from neuraxis.comm import Communicator, Work
from neuraxis.comm.objects import decode, encode
from neuraxis.errors import InvalidType
from neuraxis.training.micro_batches import tensors_of

__all__ = ["Batch", "Crossing", "Line", "broadcast_value"]

_FORWARD, _BACKWARD = 1, 2  # tags
_PLAIN = (type(None), bool, int, float, str)


class Batch(msgspec.Struct, frozen=True):
    """How a batch was cut: into so many micro-batches, of so many rows together."""

    micro_batches: int
    rows: int

    def weight(self, number: int) -> float:
        """The share of a micro-batch in the mean over the batch."""
        if not self.rows:
            return 1.0 / self.micro_batches
        small, longer = divmod(self.rows, self.micro_batches)
        return (small + (number < longer)) / self.rows


class Crossing:
    """The tensors of one micro-batch that have crossed from one stage to the next, on either side.

    Attributes:
        tensors: those with a gradient. On the receiving side they are where the graph begins.
        gradients: what came out of the backward pass on the receiving side, by place.
    """

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.gradients: dict[int, Tensor] = {}


class Line:
    """This rank's way to the ranks before and after it."""

    def __init__(self, group: Communicator, before: int | None, after: int | None, device: torch.device) -> None:
        self._group = group
        self._before = before
        self._after = after
        self._device = device
        self._wire = device if group.backend_name == "nccl" else torch.device("cpu")
        self._sent: list[tuple[Crossing | None, Work, Tensor]] = []

    def send_forward(self, batch: Batch, values: list[Any]) -> Crossing:
        crossing = Crossing()
        tensors = list(tensors_of(values))
        crossing.tensors = [tensor for tensor in tensors if tensor.requires_grad]
        facts = [[_dtype_name(one.dtype), list(one.shape), one.requires_grad] for one in tensors]
        description = encode([_skeleton(values), facts])
        numbers = torch.tensor([len(description), batch.micro_batches, batch.rows])
        words = torch.frombuffer(bytearray(description), dtype=torch.uint8)
        for tensor in (numbers, words, *tensors):
            self._send(tensor.detach(), self._after, _FORWARD, crossing)
        return crossing

    def receive_forward(self) -> tuple[Batch, list[Any], Crossing]:
        numbers = self._receive((3,), torch.int64, self._before, _FORWARD).tolist()
        description = self._receive((numbers[0],), torch.uint8, self._before, _FORWARD)
        skeleton, facts = decode(description.cpu().numpy().tobytes())
        crossing = Crossing()
        tensors = []
        for dtype, shape, has_gradient in facts:
            tensor = self._receive(tuple(shape), getattr(torch, dtype), self._before, _FORWARD).to(self._device)
            if has_gradient and torch.is_grad_enabled():
                tensor = _Entrance.apply(torch.zeros((), requires_grad=True), [tensor], crossing, len(crossing.tensors))
                crossing.tensors.append(tensor)
            tensors.append(tensor)
        values: list[Any] = _filled(skeleton, tensors)
        return Batch(numbers[1], numbers[2]), values, crossing

    def send_back(self, crossing: Crossing) -> None:
        """Send the gradients of what was received."""
        if crossing.tensors:
            flags = [place in crossing.gradients for place in range(len(crossing.tensors))]
            self._send(torch.tensor(flags, dtype=torch.uint8), self._before, _BACKWARD)
            for _, gradient in sorted(crossing.gradients.items()):
                self._send(gradient, self._before, _BACKWARD)

    def receive_back(self, crossing: Crossing) -> tuple[list[Tensor], list[Tensor]]:
        """The tensors that were sent and have a gradient, and their gradients."""
        if not crossing.tensors:
            return [], []
        flags = self._receive((len(crossing.tensors),), torch.uint8, self._after, _BACKWARD).tolist()
        tensors = [tensor for tensor, flag in zip(crossing.tensors, flags, strict=True) if flag]
        gradients = [
            self._receive(tuple(tensor.shape), tensor.dtype, self._after, _BACKWARD).to(tensor.device)
            for tensor in tensors
        ]
        self._finish([one for one in self._sent if one[0] is crossing])
        return tensors, gradients

    def finish(self) -> None:
        """Wait until all that was sent has been taken."""
        self._finish(self._sent)

    def give_up(self) -> None:
        """Forget what was sent: connections are closed when nobody refers to what goes through them."""
        self._sent = []

    # --- helpers ----------------------------------------------------------------------------------------------

    def _send(self, tensor: Tensor, to: int | None, tag: int, crossing: Crossing | None = None) -> None:
        tensor = tensor.to(self._wire).contiguous()
        self._sent.append((crossing, self._group.isend(tensor, group_dst=to, tag=tag), tensor))

    def _finish(self, sent: list[tuple[Crossing | None, Work, Tensor]]) -> None:
        for _, work, _ in sent:
            work.wait()
        done = {id(one) for one in sent}
        self._sent = [one for one in self._sent if id(one) not in done]

    def _receive(self, shape: tuple[int, ...], dtype: torch.dtype, source: int | None, tag: int) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=self._wire)
        self._group.recv(tensor, group_src=source, tag=tag)
        return tensor


class _Entrance(torch.autograd.Function):  # type: ignore[misc]
    """A tensor that came from elsewhere as one of this graph's: not a leaf, so units may change it in place."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, box: list[Tensor], crossing: Crossing, place: int) -> Tensor:
        ctx.crossing, ctx.place = crossing, place
        return box[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        ctx.crossing.gradients[ctx.place] = gradient
        return None, None, None, None


def broadcast_value(group: Communicator, value: Any, source: int, device: torch.device) -> Any:
    """A nested value of rank `source`, on every rank."""
    tensors = list(tensors_of(value)) if group.rank == source else []
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
    """A nested value as plain data, with places where its tensors were."""
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
        f"a {type(value).__name__} cannot go from one stage to the next: tensors, numbers, texts can, and "
        "tuples, lists and dictionaries of those"
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
