"""Which ranks train together, and the group that their gradients have for themselves."""

from __future__ import annotations

from torch import nn

from neuraxis.comm import Communicator, NonMember, current_context
from neuraxis.comm.environment import detect_launch
from neuraxis.errors import InvalidArgument, NotInitialized
from neuraxis.training.sameness import check_same_model, check_same_settings, spread_state

__all__ = ["group_for_gradients", "ranks_to_train_with"]


def ranks_to_train_with(group: Communicator | None) -> Communicator | None:
    """The ranks to train with; None where this process trains alone."""
    if isinstance(group, NonMember):
        raise InvalidArgument("this rank is not in the group that DataParallel was given")
    if group is None:
        try:
            group = current_context().world
        except NotInitialized:
            launch = detect_launch()
            if launch.world_size > 1:
                raise NotInitialized(
                    f"this process was launched as rank {launch.rank} of {launch.world_size} and has no distributed "
                    "context: call init_distributed() before DataParallel, or each rank would train a model of its own"
                ) from None
            return None
    return group if group.size > 1 else None


def group_for_gradients(parent: Communicator, settings: dict[str, str], module: nn.Module) -> Communicator:
    """A group for gradients alone: other calls may come in between in another order on other ranks.

    Its calls are agreed on here, by model and settings, and need not be compared one by one.
    """
    group = parent.new_group(check_calls=False)
    assert isinstance(group, Communicator)
    try:
        check_same_settings(settings, group)
        check_same_model(module, group)
        spread_state(module, group)
    except BaseException:
        group.destroy()
        raise
    return group
