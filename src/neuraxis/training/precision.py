"""Mixed precision by one word: what a forward pass calculates in, and how the loss is scaled.

Parameters, gradients and their averages stay float32. float16 has few small numbers, so its gradients are scaled up
by torch's GradScaler, which leaves a step out where one of them has become infinite. After an all-reduce every rank
has the same gradients, an infinity of one rank included, so every rank's scaler decides alike.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal, get_args

import torch

from neuraxis.errors import InvalidArgument

__all__ = ["Precision", "PrecisionName"]

PrecisionName = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """What forward passes calculate in on devices of a type ("cpu", "cuda").

    Attributes:
        name: "fp32", "bf16" or "fp16".
        device_type: where; can be set when a model has moved.
        scaler: scales the loss for fp16. For the others it lets everything pass as it is, so a loop that uses it
            is right for each of them.
    """

    def __init__(self, name: str, device_type: str = "cpu") -> None:
        if name not in get_args(PrecisionName):
            raise InvalidArgument(f"precision={name!r} is not one of {', '.join(get_args(PrecisionName))}")
        self.name = name
        self.device_type = device_type
        self.scaler = torch.amp.GradScaler(device_type, enabled=name == "fp16")

    def __repr__(self) -> str:
        return f"Precision({self.name!r}, {self.device_type!r})"

    def autocast(self) -> Any:
        """A context manager for forward passes; one that does nothing for fp32."""
        dtype = _DTYPES.get(self.name)
        return nullcontext() if dtype is None else torch.autocast(self.device_type, dtype=dtype)

    def loss_scale(self) -> float:
        """What gradients are multiplied by now."""
        return float(self.scaler.get_scale())
