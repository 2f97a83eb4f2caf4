"""Which host this is, as far as sharing memory is concerned, and which GPU a rank has to itself."""

from __future__ import annotations

import importlib.util
import os
import platform
import uuid
from contextlib import suppress
from pathlib import Path

from neuraxis.comm.arena import segment_folder

__all__ = ["gpu_of_rank", "host_identity", "may_have_gpu"]


def host_identity() -> str:
    """The same text for processes that can share memory and watch each other, another for all others.

    One boot of one kernel, one view of its processes, of its shared memory and of its network: containers that
    share a kernel and no memory are different hosts, and so are network namespaces, which stand for hosts.
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
    """Whether this host has as many GPUs as this rank would need, as far as can be seen without loading torch."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or importlib.util.find_spec("torch") is None:
        return False
    index = local_rank if device_id is None else device_id
    return index < len(list(Path("/dev").glob("nvidia[0-9]*")))


def gpu_of_rank(device_id: int | None, local_rank: int) -> str:
    """The identity of the GPU that this rank would use, or "" if it has none."""
    import torch

    index = local_rank if device_id is None else device_id
    if not torch.distributed.is_nccl_available() or index >= torch.cuda.device_count():
        return ""
    return str(torch.cuda.get_device_properties(index).uuid)
