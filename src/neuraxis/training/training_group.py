"""Which ranks train together, and the group that their gradients have for themselves."""

from __future__ import annotations

from torch import nn

from neuraxis.comm import Communicator
from neuraxis.training.chosen_group import group_or_world
from neuraxis.training.sameness import check_same_model, check_same_settings, spread_state

__all__ = ["group_for_gradients", "ranks_to_train_with"]


def ranks_to_train_with(group: Communicator | None) -> Communicator | None:
    """The ranks to train with; None where this process trains alone."""
    members = group_or_world(group, "DataParallel")
    return members if members is not None and members.size > 1 else None


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
