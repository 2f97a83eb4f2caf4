"""Ranks whose models differ all raise an error with the parameter's name."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from neuraxis.errors import CollectiveMismatch, InvalidArgument, ModelMismatch
from neuraxis.training import DataParallel
from neuraxis.training.parallel.consistency import broadcast_tensors, compare_models, describe_model
from tests.ranks import RankGroup
from tests.ranks.checks import Checks


def _layers(*names: str, width: int = 4, dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(OrderedDict((name, nn.Linear(3, width)) for name in names)).to(dtype)


def _frozen() -> nn.Module:
    module = _layers("a", "b")
    module.b.weight.requires_grad_(False)
    return module


# What the last rank has in place of `_layers("a", "b")`; the name and what the text says of both.
DIFFERENCES: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "shape": (lambda: _layers("a", "b", width=5), "a.weight", "float32 (4, 3) on rank 0, float32 (5, 3) on rank {}"),
    "dtype": (
        lambda: _layers("a", "b", dtype=torch.float64),
        "a.weight",
        "float32 (4, 3) on rank 0, float64 (4, 3) on rank {}",
    ),
    "order": (lambda: _layers("b", "a"), "a.weight", "position 0 is parameter 'a.weight'"),
    "name": (lambda: _layers("a", "c"), "b.weight", "parameter 'c.weight' (float32 (4, 3)) on rank {}"),
    "fewer": (lambda: _layers("a"), "b.weight", "exists on rank 0 but not on rank {}"),
    "more": (lambda: _layers("a", "b", "c"), "c.weight", "exists on rank {} but not on rank 0"),
    "frozen": (_frozen, "b.weight", "float32 (4, 3), frozen on rank {}"),
    "buffer": (lambda: nn.Sequential(_layers("a", "b"), nn.BatchNorm1d(4)), "a.weight", "'0.a.weight'"),
}


def test_every_rank_raises_the_same_error(rank_group: RankGroup) -> None:
    if rank_group.size == 1:
        pytest.skip("one rank cannot differ")
    rank_group.check(differing_models)


def differing_models(context: Any) -> list[str]:
    checks = Checks(context.rank)
    last = context.world_size - 1
    for name, (make, parameter, text) in DIFFERENCES.items():
        checks(name)
        module = make() if context.rank == last else _layers("a", "b")
        try:
            DataParallel(module)
        except ModelMismatch as error:
            checks.equal(error.parameter, parameter, "parameter")
            checks.equal(error.rank, last, "rank")
            checks.contains(str(error), text.format(last))
            checks.contains(str(error), repr(parameter))
            everybody: list[Any] = [None] * context.world_size
            context.world.all_gather_object(everybody, str(error))
            checks.equal(everybody, [str(error)] * context.world_size, "text on all ranks")
        else:
            checks.equal("no error", "ModelMismatch")
    checks("settings")
    text = checks.raises(CollectiveMismatch, _other_settings, context)
    checks.contains(text, f"sync_every=1 on rank 0 and sync_every={last + 1} on rank {last}" if last else "")
    checks("and the world goes on")
    model = DataParallel(_layers("a", "b"))
    checks.equal(model.module.a.weight.shape, (4, 3), "shape")
    return checks.failures


def _other_settings(context: Any) -> None:
    last = context.world_size - 1
    DataParallel(_layers("a"), sync_every=last + 1 if context.rank == last else 1)


def test_values_of_any_dtype_and_layout_are_spread(rank_group: RankGroup) -> None:
    rank_group.check(spread)


def spread(context: Any) -> list[str]:
    checks = Checks(context.rank)

    def tensors(rank: int) -> list[torch.Tensor]:
        return [
            torch.tensor(rank + 3),
            torch.arange(5.0, dtype=torch.bfloat16) + rank,
            torch.tensor([rank == 0, True]),
            torch.empty(0),
            (torch.arange(24.0).view(2, 3, 4) + rank).transpose(0, 2),
            torch.full((7_000_000,), float(rank)),  # more than is sent at once
            torch.tensor([1j + rank]),
            torch.arange(3, dtype=torch.int16) - rank,
        ]

    for source in range(context.world_size):
        mine = tensors(context.rank)
        broadcast_tensors(mine, context.world, source)
        for index, (got, expected) in enumerate(zip(mine, tensors(source), strict=True)):
            checks(source, index).equal(torch.equal(got, expected), True, f"{got.flatten()[:5]}")
    return checks.failures


def test_descriptions_of_one_model_are_equal_and_lists_do_as_well_as_tuples() -> None:
    mine = describe_model(_layers("a", "b"))
    assert mine[0] == ("parameter", "a.weight", (4, 3), "float32", True)
    compare_models(mine, [[kind, name, shape, dtype, trained] for kind, name, shape, dtype, trained in mine], 1)


def test_a_parameter_without_a_shape_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"parameter 'weight' has no shape yet"):
        describe_model(nn.LazyLinear(3))
