"""SyncBatchNorm over several ranks is batch norm over the rows of all of them."""

from __future__ import annotations

import copy
import os
import signal
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from neuraxis.comm import DistributedContext
from neuraxis.errors import InvalidArgument, NotInitialized, PeerLost
from neuraxis.training import DataParallel, SyncBatchNorm
from neuraxis.training.parallel.weighting import forward_weight
from tests.ranks import RankGroup
from tests.ranks.checks import Checks
from tests.ranks.processes import Ranks

CHANNELS = 3
TAILS = ((), (5,), (2, 3), (2, 1, 3), (1, 2, 2, 2))
BATCHES = ("even", "uneven", "some empty", "one row")
OPTIONS = (
    {},
    {"momentum": None},
    {"affine": False},
    {"track_running_stats": False},
    {"eps": 1e-2, "momentum": 0.7},
)
TOLERANCE = 1e-12


class Whole(_BatchNorm):
    """torch's batch norm, for any number of dimensions."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass


def rows_of(batch: str, size: int, step: int = 0) -> list[int]:
    """Return the number of rows of each rank."""
    if batch == "even":
        return [4] * size
    if batch == "uneven":
        return [1 + (2 * rank + step + 1) % 5 for rank in range(size)]
    if batch == "some empty":
        return [3 + rank if (rank + step) % 2 == 0 or size == 1 else 0 for rank in range(size)]
    return [2 if size == 1 else 1] * size


def data(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype)


def loss_of(result: Tensor, target: Tensor) -> Tensor:
    """The mean over rows of something that is not linear."""
    return (torch.tanh(result) - target).square().flatten(1).sum(1).mean()


def prepared(layer: _BatchNorm) -> _BatchNorm:
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(data((CHANNELS,), 1) + 2)
            layer.bias.copy_(data((CHANNELS,), 2))
    return layer


def off(got: Tensor | None, expected: Tensor | None) -> float:
    """The largest difference, by the size of what was expected."""
    if got is None or expected is None:
        return 0.0 if got is expected else float("inf")
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    if not got.numel():
        return 0.0
    got, expected = got.detach(), expected.detach()
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=1.0))


def compare_with_the_whole(context: Any, tail: tuple[int, ...], batch: str, device: str = "cpu") -> list[str]:
    """Three steps, with 3-D inputs on all settings: results, gradients of inputs and parameters, running statistics."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for number, options in enumerate(OPTIONS if len(tail) == 1 else OPTIONS[:1]):
        whole = prepared(Whole(CHANNELS, dtype=torch.float64, device=device, **options))
        mine = prepared(SyncBatchNorm(CHANNELS, dtype=torch.float64, device=device, **options))
        for step in range(3):
            checks("tail", tail, batch, options, "step", step)
            rows = rows_of(batch, size, step)
            total, start = sum(rows), sum(rows[:rank])
            share = slice(start, start + rows[rank])
            everything = (3 * data((total, CHANNELS, *tail), 10 * number + step) + 50).to(device).requires_grad_()
            targets = data((total, CHANNELS, *tail), 1000 + step).to(device)
            part = everything.detach()[share].clone().requires_grad_()
            for layer in (whole, mine):
                layer.zero_grad()
            expected = whole(everything)
            loss_of(expected, targets).backward()
            with forward_weight(float(rows[rank])):
                result = mine(part)
            loss_of(result, targets[share]).backward()
            weight = rows[rank] / total
            checks.equal(off(result, expected[share]) < TOLERANCE, True, "result")
            of_part = part.grad * weight if weight else torch.zeros_like(part)
            checks.equal(off(of_part, everything.grad[share]) < TOLERANCE, True, "gradient of the input")
            for name, parameter in mine.named_parameters():
                gradient = parameter.grad * weight if weight else torch.zeros_like(parameter)
                context.world.all_reduce(gradient)
                checks.equal(off(gradient, whole.get_parameter(name).grad) < TOLERANCE, True, f"gradient of {name}")
            for name, buffer in whole.named_buffers():
                checks.equal(off(mine.get_buffer(name).double(), buffer.double()) < TOLERANCE, True, name)
    return checks.failures


@pytest.mark.parametrize("tail", TAILS, ids=lambda tail: f"{2 + len(tail)}-D")
def test_it_equals_batch_norm_of_the_whole_batch(rank_group: RankGroup, tail: tuple[int, ...]) -> None:
    for batch in BATCHES:
        rank_group.check(compare_with_the_whole, tail, batch)


@pytest.mark.gpu
def test_it_does_so_on_a_gpu(rank_group: RankGroup) -> None:
    for batch in BATCHES:
        rank_group.check(compare_with_the_whole, (5,), batch, "cuda")


def large_mean(context: Any) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    rows = rows_of("uneven", size)
    start = sum(rows[:rank])
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        if dtype is torch.float32 and size == 1:
            continue  # torch's own, which does lose some
        checks("mean much larger than the spread", dtype)
        # Values that float32 has exactly, and a spread between the ranks, too.
        values = (data((sum(rows), CHANNELS, 40), 5) * 1024).round() / 1024 + 4096
        values[: rows[0]] += 2
        layer = SyncBatchNorm(CHANNELS, momentum=1.0, dtype=dtype)
        result = layer(values.to(dtype)[start : start + rows[rank]])
        variance, mean = torch.var_mean(values, (0, 2), correction=0, keepdim=True)
        expected = ((values - mean) / (variance + layer.eps).sqrt())[start : start + rows[rank]]
        checks.equal(float((result.detach() - expected).abs().max()) < tolerance, True, "result")
        unbiased = values.var((0, 2))
        checks.equal(float((layer.running_var / unbiased - 1).abs().max()) < tolerance, True, "running variance")
    return checks.failures


def test_a_mean_much_larger_than_the_spread_costs_no_digits(rank_group: RankGroup) -> None:
    rank_group.check(large_mean)


def nothing_anywhere_and_one_value(context: Any) -> list[str]:
    checks = Checks(context.rank)
    layer = SyncBatchNorm(CHANNELS)
    layer(data((4, CHANNELS), context.rank, torch.float32))
    before = copy.deepcopy(layer.state_dict())
    if context.world_size > 1:
        checks("no row on any rank")
        empty = torch.zeros(0, CHANNELS, 2, requires_grad=True)
        result = layer(empty)
        checks.equal(tuple(result.shape), (0, CHANNELS, 2))
        result.sum().backward()
        checks.equal(tuple(empty.grad.shape), (0, CHANNELS, 2))
        for name, value in layer.state_dict().items():
            checks.equal(torch.equal(value, before[name]), True, name)
    checks("one value for each channel")
    only = torch.zeros(1 if context.rank == context.world_size - 1 else 0, CHANNELS)
    if context.world_size > 1:
        checks.contains(checks.raises(InvalidArgument, layer, only), "more than one value")
    else:
        checks.raises(ValueError, layer, only)
    return checks.failures


def test_no_row_anywhere_changes_nothing_and_a_single_value_is_refused_by_all(rank_group: RankGroup) -> None:
    rank_group.check(nothing_anywhere_and_one_value)


def evaluate_alone(context: Any) -> list[str]:
    checks = Checks(context.rank)
    layer = prepared(SyncBatchNorm(CHANNELS, dtype=torch.float64))
    layer(data((5, CHANNELS, 2), context.rank))
    layer.eval()
    if context.rank == context.world_size - 1:  # nobody else takes part, so a call to the others would not come back
        expected = Whole(CHANNELS, dtype=torch.float64)
        expected.load_state_dict(layer.state_dict())
        expected.eval()
        values = data((1, CHANNELS, 2), 99)
        checks.equal(torch.equal(layer(values), expected(values)), True, "evaluation")
    return checks.failures


def test_evaluation_is_local(rank_group: RankGroup) -> None:
    rank_group.check(evaluate_alone)


def half_precision(context: Any) -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for dtype, tolerance in ((torch.bfloat16, 2.0**-7), (torch.float16, 2.0**-10)):
        checks(dtype)
        values = (data((4 * size, CHANNELS, 6), 3) + 1).to(dtype)
        part = values[4 * rank : 4 * rank + 4].clone().requires_grad_()
        layer = SyncBatchNorm(CHANNELS, momentum=1.0)
        result = layer(part)
        result.sum().backward()
        variance, mean = torch.var_mean(values.double(), (0, 2), correction=0, keepdim=True)
        expected = ((values.double() - mean) / (variance + layer.eps).sqrt())[4 * rank : 4 * rank + 4]
        checks.equal((result.dtype, part.grad.dtype, layer.weight.grad.dtype), (dtype, dtype, torch.float32), "dtypes")
        difference = float((result.detach().double() - expected).abs().max())
        checks.equal(difference < tolerance * float(expected.abs().max()), True, "result")
        # The statistics are float32's, not rounded to 16 bits.
        checks.equal(float((layer.running_mean - mean.flatten()).abs().max()) < 1e-6, True, "running mean")
    return checks.failures


def test_inputs_of_16_bits_have_statistics_of_32(rank_group: RankGroup) -> None:
    rank_group.check(half_precision)


def two_groups(context: Any) -> list[str]:
    checks = Checks(context.rank)
    if context.world_size < 3:
        return []
    first, rest = context.new_group([0, 1]), context.new_group(list(range(2, context.world_size)))
    group, members = (first, [0, 1]) if context.rank < 2 else (rest, list(range(2, context.world_size)))
    model = SyncBatchNorm.convert(nn.Sequential(nn.BatchNorm1d(CHANNELS, momentum=1.0, dtype=torch.float64)), group)
    for layer in (model, copy.deepcopy(model)):
        layer(data((4, CHANNELS), context.rank))
        expected = torch.cat([data((4, CHANNELS), rank) for rank in members]).mean(0)
        checks.equal(off(layer[0].running_mean, expected) < TOLERANCE, True, "running mean")
    group.close()
    return checks.failures


def test_a_group_of_its_own(rank_group: RankGroup) -> None:
    rank_group.check(two_groups)


def wrong_inputs(context: Any) -> list[str]:
    checks = Checks(context.rank)
    layer = SyncBatchNorm(CHANNELS)
    checks.contains(checks.raises(InvalidArgument, layer, torch.zeros(4)), "(4,)")
    checks.contains(checks.raises(InvalidArgument, layer, torch.zeros(4, CHANNELS + 1)), f"{CHANNELS} channels")
    return checks.failures


def test_wrong_inputs_are_named(rank_group: RankGroup) -> None:
    rank_group.check(wrong_inputs)


def in_data_parallel(context: Any) -> list[str]:
    """Means and sums as the loss, and blocks of an accumulation, whose statistics are those of each block."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)

    def net(norm: type[_BatchNorm]) -> nn.Sequential:
        torch.manual_seed(2)
        parts = [nn.Linear(4, CHANNELS, bias=False), norm(CHANNELS), nn.Tanh(), nn.Linear(CHANNELS, 2)]
        return nn.Sequential(*parts).double()

    for loss, blocks in (("mean", 1), ("sum", 1), ("mean", 2)):
        checks(loss, blocks, "blocks")
        whole, mine = net(Whole), DataParallel(SyncBatchNorm.convert(net(Whole)), loss=loss)
        total = 0
        for block in range(blocks):
            rows = rows_of("uneven", size, block)
            values, share = data((sum(rows), 4), block), slice(sum(rows[:rank]), sum(rows[: rank + 1]))
            total += sum(rows)
            whole(values).square().sum().backward()
            with mine.accumulate(blocks):
                squares = mine(values[share]).square()
                (squares.sum() if loss == "sum" else squares.sum(1).mean()).backward()
        for (name, expected), (_, got) in zip(whole.named_parameters(), mine.named_parameters(), strict=True):
            gradient = expected.grad if loss == "sum" else expected.grad / total
            checks.equal(off(got.grad, gradient) < TOLERANCE, True, f"gradient of {name}")
    return checks.failures


def test_within_data_parallel(rank_group: RankGroup) -> None:
    rank_group.check(in_data_parallel)


def lose_a_rank(where: str) -> int:
    """Rank 1 is killed before its second forward pass or the backward pass of it; whom the others miss."""
    with DistributedContext("shm", timeout=30) as context:
        layer = SyncBatchNorm(CHANNELS)
        for step in range(2):
            values = data((4, CHANNELS), context.rank, torch.float32).requires_grad_()
            if context.rank == 1 and step == 1 and where == "forward":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                result = layer(values).square().sum()
                if context.rank == 1 and step == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                result.backward()
            except PeerLost as error:
                return error.rank if (step, error.signal) == (1, signal.SIGKILL) else -1
    return -1


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_dead_rank_is_an_error_of_the_others(where: str) -> None:
    with Ranks(lose_a_rank, 3, where, torch=True) as ranks:
        outcomes = ranks.outcomes()
    assert [outcome.value for outcome in outcomes] == [1, None, 1], [outcome.output for outcome in outcomes]


# --- without a context ---


@pytest.mark.parametrize("shape", [(6, CHANNELS), (4, CHANNELS, 5), (4, CHANNELS, 2, 3)], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_without_a_context_it_is_batch_norm(shape: tuple[int, ...], training: bool) -> None:
    expected, layer = prepared(Whole(CHANNELS)), prepared(SyncBatchNorm(CHANNELS))
    for each in (expected, layer):
        each.train(training)
    values, same_values = (data(shape, 1, torch.float32).requires_grad_() for _ in range(2))
    for each, inputs in ((expected, values), (layer, same_values)):
        loss_of(each(inputs), torch.zeros(shape)).backward()
    assert torch.equal(values.grad, same_values.grad)
    assert torch.equal(layer.weight.grad, expected.weight.grad)
    assert all(torch.equal(layer.get_buffer(name), buffer) for name, buffer in expected.named_buffers())


def test_ranks_without_a_common_group_get_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    layer = SyncBatchNorm(CHANNELS)
    with pytest.raises(NotInitialized, match="init_distributed"):
        layer(torch.zeros(2, CHANNELS))
    layer.eval()
    assert layer(torch.zeros(2, CHANNELS)).shape == (2, CHANNELS)


# --- convert ---


def example() -> nn.Module:
    shared = nn.BatchNorm1d(4, momentum=None)
    model = nn.ModuleDict(
        {
            "flat": nn.Sequential(nn.Linear(4, 4), shared, nn.ReLU()),
            "deep": nn.ModuleList([nn.Sequential(nn.BatchNorm2d(2, eps=1e-3), nn.BatchNorm3d(2, affine=False))]),
            "bare": nn.BatchNorm1d(3, track_running_stats=False),
            "torch": nn.SyncBatchNorm(5, momentum=0.3),
            "again": shared,
            "instance": nn.InstanceNorm1d(4),
            "meta": nn.BatchNorm2d(2, device="meta"),
        }
    ).double()
    model["deep"].eval()
    shared.running_mean.add_(3)
    return model


SETTINGS = ("num_features", "eps", "momentum", "affine", "track_running_stats", "training")


def test_convert_keeps_everything_but_the_class() -> None:
    model = example()
    names = dict(model.named_modules(remove_duplicate=False))
    state = model.state_dict(keep_vars=True)
    parameters = list(model.parameters())
    converted = SyncBatchNorm.convert(model)
    assert converted is model
    assert [id(parameter) for parameter in converted.parameters()] == [id(parameter) for parameter in parameters]
    after = converted.state_dict(keep_vars=True)
    assert list(after) == list(state)
    assert all(after[name] is state[name] for name in state)
    for name, module in converted.named_modules(remove_duplicate=False):
        was = names[name]
        if isinstance(was, _BatchNorm):
            assert type(module) is SyncBatchNorm
            assert {key: getattr(module, key) for key in SETTINGS} == {key: getattr(was, key) for key in SETTINGS}
        else:
            assert module is was
    assert converted["again"] is converted["flat"][1]
    assert converted["meta"].weight.is_meta
    assert SyncBatchNorm.convert(converted)["bare"] is converted["bare"]


def test_convert_of_a_batch_norm_is_a_new_layer_with_its_parameters_and_hooks() -> None:
    norm = nn.BatchNorm1d(3)
    calls: list[str] = []
    handle = norm.register_forward_hook(lambda *_: calls.append("forward"))
    layer = SyncBatchNorm.convert(norm)
    assert isinstance(layer, SyncBatchNorm)
    assert type(norm) is nn.BatchNorm1d
    assert layer.weight is norm.weight
    assert layer.running_var is norm.running_var
    layer.eval()
    assert norm.training
    layer(torch.zeros(2, 3))
    handle.remove()
    layer(torch.zeros(2, 3))
    assert calls == ["forward"]


def test_convert_needs_to_know_the_channels() -> None:
    with pytest.raises(InvalidArgument, match=r"module\.1 .*LazyBatchNorm1d"):
        SyncBatchNorm.convert(nn.Sequential(nn.ReLU(), nn.LazyBatchNorm1d()))
