"""Mixed precision by one option: forward passes in 16 bits, the rest in 32, and no rank skips a step alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neuraxis.errors import InvalidArgument
from neuraxis.training import DataParallel, SyncBatchNorm, TopK
from neuraxis.training.parallel.data_parallel import Precision
from tests.ranks import RankGroup
from tests.ranks.checks import Checks

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("name", DTYPES)
def test_a_forward_pass_calculates_in_it(name: str) -> None:
    precision = Precision(name, "cpu")
    layer = nn.Linear(3, 2)
    with precision.autocast():
        result = layer(torch.ones(4, 3))
    assert result.dtype is DTYPES[name]
    assert layer.weight.dtype is torch.float32
    assert precision.scaler.is_enabled() == (name == "fp16")
    loss = result.float().sum()
    scaled = precision.scaler.scale(loss)
    assert float(scaled.detach()) == float(loss.detach()) * (65536.0 if name == "fp16" else 1.0)


def test_other_words_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="precision='fp8' is not one of fp32, bf16, fp16"):
        Precision("fp8", "cpu")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16, bias=False)
        self.norm = SyncBatchNorm(16)
        self.last = nn.Linear(16, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.seen.append(x.dtype)
        result: Tensor = self.last(torch.relu(self.norm(x)))
        return result


def net(device: str = "cpu") -> Net:
    torch.manual_seed(5)
    return Net().to(device)


def batch(step: int, rank: int, size: int) -> tuple[Tensor, Tensor]:
    """Uneven shares, and none for the last of several ranks in every third step."""
    rows = [6 + 2 * each for each in range(size)]
    if size > 1 and step % 3 == 2:
        rows[-1] = 0
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(sum(rows), 6, generator=generator)
    y = x[:, :2] - x[:, 2:4]
    share = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    return x[share], y[share]


def train(model: DataParallel, steps: int, rank: int, size: int, device: str = "cpu") -> None:
    # A small loss and large steps: with the loss scale that torch begins with, no gradient of fp16 is infinite.
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0, momentum=0.9)
    for step in range(steps):
        x, y = (part.to(device) for part in batch(step, rank, size))
        optimizer.zero_grad()
        loss = 0.01 * nn.functional.mse_loss(model(x).float(), y)
        model.scaler.scale(loss).backward()
        model.scaler.step(optimizer)
        model.scaler.update()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().double().flatten().cpu() for value in model.state_dict().values()])


def same_everywhere(context: Any, values: Tensor) -> bool:
    everything = values.new_empty(context.world_size, values.numel())
    context.world.all_gather_into_tensor(everything.view(-1), values)
    return all(torch.equal(row, everything[0]) for row in everything)


def each_precision(context: Any, device: str = "cpu") -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    results = {}
    for name, dtype in DTYPES.items():
        checks(name)
        model = DataParallel(net(device), precision=name)
        train(model, 9, rank, size, device)
        checks.equal(set(model.module.seen), {dtype}, "dtype within a forward pass")
        kinds = {(parameter.dtype, parameter.grad.dtype) for parameter in model.parameters()}
        checks.equal(kinds, {(torch.float32, torch.float32)}, "dtypes of parameters and gradients")
        results[name] = flat(model)
        checks.equal(same_everywhere(context, results[name]), True, "equal bits on all ranks")
        checks.equal(bool(results[name].isfinite().all()), True, "finite")
    start = flat(net())
    way = float((results["fp32"] - start).norm())
    for name, tolerance in (("bf16", 0.1), ("fp16", 0.02)):
        off = float((results[name] - results["fp32"]).norm()) / way
        checks(name).equal(0 < off < tolerance, True, f"as fp32, of the way from the start it is off by {off}")
    return checks.failures


def test_training_in_each_precision(rank_group: RankGroup) -> None:
    rank_group.check(each_precision)


@pytest.mark.gpu
def test_training_in_each_precision_on_a_gpu(rank_group: RankGroup) -> None:
    rank_group.check(each_precision, "cuda")


def infinity_on_one_rank(context: Any, compress: Any, device: str = "cpu") -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    model = DataParallel(net(device), precision="fp16", compress=compress)
    train(model, 2, rank, size, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for bad in range(size):
        before, scale = [parameter.detach().clone() for parameter in model.parameters()], model.scaler.get_scale()
        for planted in (True, False):
            checks("infinity on rank", bad, "planted" if planted else "and a step without it")
            x, y = (part.to(device) for part in batch(0, rank, size))
            optimizer.zero_grad()
            loss = 0.01 * nn.functional.mse_loss(model(x).float(), y)
            if planted and rank == bad:
                loss = loss * float("inf")
            model.scaler.scale(loss).backward()
            model.scaler.step(optimizer)
            model.scaler.update()
            unchanged = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            checks.equal(unchanged, planted, "parameters are as they were")
            checks.equal(model.scaler.get_scale(), scale / 2, "loss scale")
        checks.equal(same_everywhere(context, flat(model)), True, "equal bits on all ranks")
        checks.equal(bool(flat(model).isfinite().all()), True, "finite")
    return checks.failures


def test_an_infinity_of_one_rank_makes_all_skip_the_step(rank_group: RankGroup) -> None:
    for compress in (None, "fp16", TopK(0.2)):
        rank_group.check(infinity_on_one_rank, compress)


@pytest.mark.gpu
def test_an_infinity_on_a_gpu_makes_all_skip_the_step(rank_group: RankGroup) -> None:
    for compress in (None, "fp16", TopK(0.2)):
        rank_group.check(infinity_on_one_rank, compress, "cuda")


def unknown(context: Any) -> list[str]:
    checks = Checks(context.rank)
    checks.contains(checks.raises(InvalidArgument, DataParallel, net(), precision="fp8"), "fp8")
    return checks.failures


def test_data_parallel_refuses_other_words(rank_group: RankGroup) -> None:
    rank_group.check(unknown)
