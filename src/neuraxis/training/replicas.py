"""Several GPUs in one process: a replica of the module on each, a part of the batch for each.

torch does this job (`torch.nn.parallel`): the batch is cut by rows, the outputs are put together on the first GPU, so
a loss and its gradients are those of the whole batch, whatever its length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import data_parallel

from neuraxis.errors import InvalidArgument

__all__ = ["devices_of", "forward_on"]


def devices_of(module: nn.Module, device_ids: Sequence[int | torch.device] | None) -> list[torch.device]:
    """The GPUs to replicate over: those given, or all visible ones; none where one is enough or there is no GPU.

    The module must be on the first of them, where its parameters stay.
    """
    home = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    if home.type != "cuda":
        return []
    ids = range(torch.cuda.device_count()) if device_ids is None else device_ids
    devices = [torch.device("cuda", device) if isinstance(device, int) else torch.device(device) for device in ids]
    if len(devices) < 2:
        return []
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device != devices[0]:
            raise InvalidArgument(
                f"{name!r} is on {tensor.device} and the first of device_ids is {devices[0]}: move the module there"
            )
    return devices


def forward_on(
    devices: Sequence[torch.device], module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The module's output for the whole batch, each GPU having computed its part."""
    return data_parallel(module, args, list(devices), module_kwargs=dict(kwargs))
