"""Make `shm` known to `torch.distributed`, and make a group when it asks for one."""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch.distributed as dist

from neuraxis.comm.communicator import Communicator
from neuraxis.comm.shm import ShmBackend
from neuraxis.errors import BackendUnavailable, ForkedProcess
from neuraxis.torch.meeting import StoreExchange, check_one_host
from neuraxis.torch.process_group import ShmProcessGroup

__all__ = ["BACKEND_NAME", "create_process_group", "register"]

BACKEND_NAME = "shm"

_communicators: weakref.WeakSet[Communicator] = weakref.WeakSet()


def register() -> None:
    """Register the backend with `torch.distributed`; a second call changes nothing."""
    if not dist.is_available():
        raise BackendUnavailable(
            BACKEND_NAME, "this torch is built without torch.distributed", "Install a wheel from pytorch.org"
        )
    if BACKEND_NAME.upper() in dist.Backend._plugins:
        return
    dist.Backend.register_backend(BACKEND_NAME, create_process_group, extended_api=True, devices=["cpu"])


def create_process_group(options: Any, backend_options: Any = None) -> ShmProcessGroup:
    """What `init_process_group` and `new_group` call on every member: meet the others, set up the memory."""
    rank, size = int(options.group_rank), int(options.group_size)
    timeout = options.timeout.total_seconds()
    # torch gives no ranks for the default group, whose ranks are those of the world.
    world_ranks = [int(world) for world in options.global_ranks_in_group] or list(range(size))
    exchange = StoreExchange(options.store, rank, size, timeout, world_ranks)
    check_one_host(exchange, world_ranks)
    name = f"torch group {options.group_id}"
    backend = ShmBackend(rank, size, exchange, timeout, world_ranks, label=name)
    communicator = Communicator(backend, world_ranks, timeout, name)
    _communicators.add(communicator)
    return ShmProcessGroup(options.store, communicator)


def _after_fork_in_child() -> None:
    # A forked child (a DataLoader's worker) has a copy of every group; the rank is its parent's.
    error = ForkedProcess(
        f"this process was forked from process {os.getppid()}, whose process group this is; "
        "only that process can use it"
    )
    for communicator in list(_communicators):
        communicator.abandon(error)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
