"""Which ranks train together, for parts that work alone as well."""

from __future__ import annotations

from typing import Any

from neuraxis.comm import Communicator, NonMember, current_context
from neuraxis.comm.environment import detect_launch
from neuraxis.errors import InvalidArgument, NotInitialized

__all__ = ["exchanged", "group_or_world"]


def group_or_world(group: Communicator | None, what: str) -> Communicator | None:
    """The group given, else the world of the context, else None: this process is alone.

    Raises:
        NotInitialized: there are other processes and no context; each would take itself for the only one.
    """
    if isinstance(group, NonMember):
        raise InvalidArgument(f"{what}: this rank is not in the group that it was given")
    if group is not None:
        return group
    try:
        return current_context().world
    except NotInitialized:
        launch = detect_launch()
        if launch.world_size > 1:
            raise NotInitialized(
                f"{what}: this is one of {launch.world_size} processes and has no distributed context: "
                "call init_distributed() first, or each would work by itself"
            ) from None
        return None


def exchanged(group: Communicator | None, value: Any) -> list[Any]:
    """Every rank's value, on every rank."""
    if group is None:
        return [value]
    values: list[Any] = [None] * group.size
    group.all_gather_object(values, value)
    return values
