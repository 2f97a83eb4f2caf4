"""Identity of this host, for sharing memory, and of the GPU of a rank."""

from __future__ import annotations

import os
import platform
import uuid
from contextlib import suppress
from pathlib import Path

from neuraxis import imports as optional
from neuraxis.comm.backends.shm.memory import segment_folder

__all__ = ["gpu_of_rank", "host_identity", "may_have_gpu"]


def host_identity() -> str:
    """Return a text that is the same for processes that can share memory and watch each other, and for no others.

    It is made of one boot of one kernel and the namespaces of processes, network and shared memory. So containers that
    share a kernel but no memory count as different hosts, and so do network namespaces, with which tests simulate
    hosts.
    """
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    for namespace in ("pid", "net"):
        with suppress(OSError):
            parts.append(os.readlink(f"/proc/self/ns/{namespace}"))
    with suppress(OSError):
        parts.append(str(segment_folder().stat().st_dev))
    if len(parts) == 1:
        parts.append(f"{uuid.getnode():x}")
    return "/".join(parts)


def may_have_gpu(device_id: int | None, local_rank: int) -> bool:
    """Return True if this host seems to have the GPU of this rank, without importing torch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not optional.installed("torch"):
        return False
    index = local_rank if device_id is None else device_id
    return index < len(list(Path("/dev").glob("nvidia[0-9]*")))


def gpu_of_rank(device_id: int | None, local_rank: int) -> str:
    """Return the UUID of the GPU that this rank would use, or "" if there is none."""
    torch = optional.require("torch", extra="torch", purpose="a GPU")
    index = local_rank if device_id is None else device_id
    if not torch.distributed.is_nccl_available() or index >= torch.cuda.device_count():
        return ""
    return str(torch.cuda.get_device_properties(index).uuid)
