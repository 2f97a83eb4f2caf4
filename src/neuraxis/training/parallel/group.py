"""The ranks that train together, and the communicators that they use.

Training components also work in a process without a context. `group_or_world` returns None there, unless the launcher
started several processes: then each would silently train alone, so it raises.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from neuraxis.comm import Communicator, NonMember, current_context
from neuraxis.errors import InvalidArgument, NotInitialized
from neuraxis.process.environment import detect_launch
from neuraxis.training.parallel.consistency import broadcast_state, check_same_model, check_same_settings

__all__ = ["gather_objects", "gradient_group", "group_or_world", "training_group"]


def group_or_world(group: Communicator | None, component: str) -> Communicator | None:
    """Return `group`, else the world of the current context, else None if this process runs alone.

    Raises
    ------
    InvalidArgument
        If this rank is not a member of `group`.
    NotInitialized
        If the launcher started several processes and this one has no context.
    """
    if isinstance(group, NonMember):
        raise InvalidArgument(f"{component}: this rank is not a member of the given group. Call it on members only")
    if group is not None:
        return group
    try:
        return current_context().world
    except NotInitialized:
        launch = detect_launch()
        if launch.world_size > 1:
            advice = "Call init_distributed() first"
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                advice = (
                    "The process group of torch.distributed is not one: call init_process_group of "
                    "neuraxis.distributed instead, or stay with torch's DistributedDataParallel"
                )
            raise NotInitialized(
                f"{component}: this is one of {launch.world_size} processes and has no distributed context. {advice}"
            ) from None
        return None


def training_group(group: Communicator | None) -> Communicator | None:
    """Return the ranks that average gradients, or None if there is only one."""
    members = group_or_world(group, "DataParallel")
    return members if members is not None and members.size > 1 else None


def gradient_group(parent: Communicator, settings: dict[str, str], module: nn.Module) -> Communicator:
    """Create a group for gradients, check that models and settings are equal on all ranks, and copy rank 0's state.

    Gradients need their own group because a backward pass may interleave with other collectives in a different order
    on each rank. With equal models and settings its calls are equal too, so they are not compared one by one.
    """
    group = parent.new_group(check_calls=False)
    assert isinstance(group, Communicator)
    try:
        check_same_settings(settings, group)
        check_same_model(module, group)
        broadcast_state(module, group)
    except BaseException:
        group.close()
        raise
    return group


def gather_objects(group: Communicator | None, value: Any) -> list[Any]:
    """Return the value of every rank, on every rank. Collective."""
    if group is None:
        return [value]
    values: list[Any] = [None] * group.size
    group.all_gather_object(values, value)
    return values
