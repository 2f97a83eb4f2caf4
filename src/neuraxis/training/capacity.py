"""What a rank or a device can do: how fast it computes, and how much memory it has left."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from neuraxis.comm import Communicator
from neuraxis.comm.host import host_identity

__all__ = ["Capacity", "capacities_of_devices", "capacities_of_ranks"]

_SIDE = 256  # of the matrices that are multiplied to measure speed
_TURNS = 5


class Capacity(msgspec.Struct, frozen=True):
    """What one rank (or device, by its place in the list) has.

    Attributes:
        rank: whose it is.
        operations_per_s: of floating point, forward and backward, in the dtype of the model.
        memory_bytes: what is free, shared out among the ranks that share it.
    """

    rank: int
    operations_per_s: float
    memory_bytes: int


def capacities_of_ranks(group: Communicator, device: torch.device, dtype: torch.dtype) -> list[Capacity]:
    """Every rank's, measured at the same time, so that ranks which share cores are measured as they will work."""
    mine = {"place": _place(device), "memory": _free_memory(device)}
    group.barrier()
    mine["speed"] = _operations_per_s(device, dtype)
    everybody: list[Any] = [None] * group.size
    group.all_gather_object(everybody, mine)
    sharing = Counter(one["place"] for one in everybody)
    return [
        Capacity(rank, float(one["speed"]), int(one["memory"]) // sharing[one["place"]])
        for rank, one in enumerate(everybody)
    ]


def capacities_of_devices(devices: Sequence[torch.device], dtype: torch.dtype) -> list[Capacity]:
    """Each device's; one that is named twice is shared."""
    sharing = Counter(devices)
    return [
        Capacity(place, _operations_per_s(device, dtype) / sharing[device], _free_memory(device) // sharing[device])
        for place, device in enumerate(devices)
    ]


# --- helpers --------------------------------------------------------------------------------------------------


def _operations_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """The best of a few turns at a product of matrices, forward and backward."""
    left = torch.ones(_SIDE, _SIDE, dtype=dtype, device=device, requires_grad=True)
    right = torch.ones(_SIDE, _SIDE, dtype=dtype, device=device, requires_grad=True)
    gradient = torch.ones(_SIDE, _SIDE, dtype=dtype, device=device)
    best_s = float("inf")
    for _ in range(1 + _TURNS):  # the first one also loads what it needs
        begun = time.perf_counter()
        with torch.enable_grad():
            torch.autograd.grad(left @ right, (left, right), gradient)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best_s = min(best_s, time.perf_counter() - begun)
    return 3 * 2 * _SIDE**3 / best_s


def _place(device: torch.device) -> str:
    """The same text for ranks that share the memory of this device."""
    if device.type != "cuda":
        return host_identity()
    return f"{host_identity()} {torch.cuda.get_device_properties(device).uuid}"


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_free_of_machine(), _free_of_container())


def _free_of_machine() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # another system
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**62


def _free_of_container() -> int:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            return max(0, int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no such limit here
    return 2**62
