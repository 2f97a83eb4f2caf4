"""Local SGD: separate steps, and an average of the ranks after every k-th."""

from __future__ import annotations

import copy
import gc
import os
import signal
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

from neuraxis.comm import DistributedContext
from neuraxis.errors import InvalidArgument, PeerLost
from neuraxis.training import DataParallel
from neuraxis.training.parallel.local_sgd import LocalSGD
from tests.ranks import RankGroup
from tests.ranks.checks import Checks
from tests.ranks.processes import Ranks

TOLERANCE = 1e-12


class Net(nn.Module):
    """Two layers, one that only some ranks use, one that nobody uses, a frozen one; running statistics."""

    def __init__(self) -> None:
        super().__init__()
        # No bias before a norm, which takes it out again: its gradient is rounding alone, and Adam makes steps of it.
        self.first = nn.Linear(4, 6, bias=False)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 2)
        self.sometimes = nn.Linear(4, 2)
        self.never = nn.Linear(3, 3)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("number", torch.tensor(2**60 + 1))

    def forward(self, x: Tensor, extra: bool = False) -> Tensor:
        y: Tensor = self.frozen(self.last(torch.tanh(self.norm(self.first(x)))))
        return y + self.sometimes(x) if extra else y


def net(dtype: torch.dtype = torch.float64, device: str = "cpu") -> Net:
    torch.manual_seed(3)
    return Net().to(device, dtype)


def optimizer_of(name: str, module: nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if name == "adamw":
        return torch.optim.AdamW(trained, lr=1e-2)
    return torch.optim.SGD(trained, lr=0.1, momentum=0.9)


def step(module: nn.Module, optimizer: torch.optim.Optimizer, rank: int, number: int, rows: int, extra: bool) -> None:
    generator = torch.Generator().manual_seed(1000 * rank + number)
    like = next(module.parameters())
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64).to(like)
    y = torch.randn(rows, 2, generator=generator, dtype=torch.float64).to(like)
    optimizer.zero_grad()
    nn.functional.mse_loss(module(x, extra), y).backward()
    optimizer.step()


def everything_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """All tensors that a checkpoint would have."""
    found = [value.clone() for value in module.state_dict().values()]
    for parameter in module.parameters():
        state = optimizer.state.get(parameter, {})
        found += [value.clone() for _, value in sorted(state.items()) if isinstance(value, Tensor)]
    return found


def rows_of(rank: int) -> int:
    return 3 + 2 * rank


def averaged(context: Any, name: str, every: int) -> list[str]:
    """Against a process that plays all ranks one after the other and takes the means by itself."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    played = [net() for _ in range(size)]
    their_optimizers = [optimizer_of(name, each) for each in played]
    module = net()
    optimizer = optimizer_of(name, module)
    steps = LocalSGD(module, context.world, every)
    shares = torch.tensor([float(rows_of(each)) for each in range(size)], dtype=torch.float64)
    shares /= shares.sum()
    for number in range(2 * every):
        checks(name, "every", every, "step", number)
        steps.count_samples(rows_of(rank))
        step(module, optimizer, rank, number, rows_of(rank), False)
        for each in range(size):
            # These are no business of `steps`, which knows its own parameters.
            step(played[each], their_optimizers[each], each, number, rows_of(each), False)
        if (number + 1) % every == 0:
            columns = list(zip(*map(everything_of, played, their_optimizers), strict=True))
            means = [
                sum(share * value for share, value in zip(shares, values, strict=True))
                if values[0].is_floating_point()
                else values[0]
                for values in columns
            ]
            for each in range(size):
                put(played[each], their_optimizers[each], means)
        mine, theirs = everything_of(module, optimizer), everything_of(played[rank], their_optimizers[rank])
        checks.equal(len(mine), len(theirs), "tensors")
        worst = max(float((a.double() - b.double()).abs().max()) for a, b in zip(mine, theirs, strict=True))
        checks.equal(worst < TOLERANCE, True, f"difference {worst}")
        equal = same_everywhere(context, mine)
        checks.equal(equal, size == 1 or (number + 1) % every == 0, "all ranks have the same bits")
    checks.equal(int(module.number), 2**60 + 1, "a large integer")
    steps.close()
    return checks.failures


def put(module: nn.Module, optimizer: torch.optim.Optimizer, values: Any) -> None:
    values = iter(values)
    with torch.no_grad():
        for value in module.state_dict().values():
            value.copy_(next(values))
        for parameter in module.parameters():
            for _, value in sorted(optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor):
                    value.copy_(next(values))


def same_everywhere(context: Any, tensors: list[Tensor]) -> bool:
    flat = torch.cat([tensor.double().reshape(-1).cpu() for tensor in tensors])
    everything = flat.new_empty(context.world_size, flat.numel())
    context.world.all_gather_into_tensor(everything.view(-1), flat)
    return all(torch.equal(row, everything[0]) for row in everything)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_every_kth_step_the_ranks_become_their_mean(rank_group: RankGroup, name: str) -> None:
    for every in (1, 3):
        rank_group.check(averaged, name, every)


def one_step_each(context: Any) -> list[str]:
    """Averaging after every step of SGD is averaging gradients."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12 * size, 4, generator=generator, dtype=torch.float64)
    whole, mine = (nn.Linear(4, 2, dtype=torch.float64) for _ in range(2))
    for each in (whole, mine):
        nn.init.constant_(each.weight, 0.1)
        nn.init.zeros_(each.bias)
    steps = LocalSGD(mine, context.world, 1)
    whole_optimizer, optimizer = optimizer_of("sgd", whole), optimizer_of("sgd", mine)
    for number in range(3):
        for each, its_optimizer, rows in (
            (whole, whole_optimizer, x[4 * size * number : 4 * size * (number + 1)]),
            (mine, optimizer, x[4 * size * number + 4 * rank : 4 * size * number + 4 * (rank + 1)]),
        ):
            its_optimizer.zero_grad()
            each(rows).square().mean().backward()
            steps.count_samples(4 if each is mine else 0)
            its_optimizer.step()
    checks.equal(float((whole.weight - mine.weight).detach().abs().max()) < TOLERANCE, True, "weight")
    steps.close()
    return checks.failures


def test_averaging_every_step_is_averaging_gradients(rank_group: RankGroup) -> None:
    rank_group.check(one_step_each)


def through_data_parallel(context: Any, device: str = "cpu") -> list[str]:
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    model = DataParallel(net(device=device), sync_every=3)
    optimizer = optimizer_of("adamw", model)
    for number in range(7):
        checks("step", number)
        step(model, optimizer, rank, number, rows_of(rank), False)
        equal = same_everywhere(context, everything_of(model, optimizer))
        checks.equal(equal, size == 1 or number in (2, 5), "all ranks have the same bits")
    model.synchronize()
    checks("synchronize").equal(same_everywhere(context, everything_of(model, optimizer)), True, "the same bits")
    checks.raises(InvalidArgument, DataParallel, net(), sync_every=3, precision="fp16")
    return checks.failures


def test_data_parallel_with_sync_every(rank_group: RankGroup) -> None:
    rank_group.check(through_data_parallel)


@pytest.mark.gpu
def test_data_parallel_with_sync_every_on_a_gpu(rank_group: RankGroup) -> None:
    rank_group.check(through_data_parallel, "cuda")


def lose_a_rank() -> int:
    """Rank 1 is killed before a step that averages; whom the others miss, and where."""
    with DistributedContext("shm", timeout=30) as context:
        module = nn.Linear(2, 2)
        steps = LocalSGD(module, context.world, 2)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for number in range(4):
            module(torch.ones(1, 2)).sum().backward()
            steps.count_samples(1)
            if context.rank == 1 and number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                optimizer.step()
            except PeerLost as error:
                return 10 * number + error.rank
    return -1


def test_a_dead_rank_is_an_error_of_the_others() -> None:
    with Ranks(lose_a_rank, 3, torch=True) as ranks:
        outcomes = ranks.outcomes()
    assert [outcome.value for outcome in outcomes] == [31, None, 31], [outcome.output for outcome in outcomes]


def unused_somewhere(context: Any) -> list[str]:
    """Optimizers begin a state with the first gradient: ranks that had none get the others'."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    for name in ("sgd", "adamw"):
        checks(name)
        module = net(torch.float32)
        never = copy.deepcopy(module.never.state_dict())
        frozen = copy.deepcopy(module.frozen.state_dict())
        optimizer = optimizer_of(name, module)
        steps = LocalSGD(module, context.world, 2)
        for number in range(4):
            steps.count_samples(5)
            step(module, optimizer, rank, number, 5, extra=rank == size - 1)
        tensors = everything_of(module, optimizer)
        checks.equal(same_everywhere(context, tensors), True, "all ranks have the same bits")
        state = optimizer.state[module.sometimes.weight]
        if name == "adamw":
            # First the others took the user's 2, and then it has the lowest rank's, which made none of its own.
            checks.equal(float(state["step"]), 4.0 if size == 1 else 2.0, "steps")
            checks.equal(float(optimizer.state[module.first.weight]["step"]), 4.0, "steps")
        checks.equal(len(optimizer.state[module.never.weight]), 0, "state of what nobody used")
        for part, before in ((module.never, never), (module.frozen, frozen)):
            same = all(torch.equal(value, before[key]) for key, value in part.state_dict().items())
            checks.equal(same, True, "what nobody used or trained is as it was, to the bit")
        steps.close()
    return checks.failures


def test_a_layer_that_only_some_ranks_use(rank_group: RankGroup) -> None:
    rank_group.check(unused_somewhere)


def without_data(context: Any) -> list[str]:
    """A rank that has seen nothing counts for nothing, whatever it has become; `average` can be called any time."""
    rank, size = context.rank, context.world_size
    checks = Checks(rank)
    module = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(float(rank) if rank or size == 1 else float("nan"))
    steps = LocalSGD(module, context.world, 5)
    steps.count_samples(0 if size > 1 and rank == 0 else rank)
    steps.average()
    counted = range(1, size) if size > 1 else range(1)
    total = sum(counted)
    expected = sum(each * each for each in counted) / total if total else 0.0
    checks("one has seen nothing").equal(abs(module.weight[0, 0].item() - expected) < 1e-6, True)
    with torch.no_grad():
        module.weight.fill_(float(rank))
    steps.average()
    checks("nobody has").equal(abs(module.weight[0, 0].item() - (size - 1) / 2) < 1e-6, True)
    steps.close()
    return checks.failures


def test_a_rank_without_samples_has_no_weight(rank_group: RankGroup) -> None:
    rank_group.check(without_data)


def counting(context: Any) -> list[str]:
    """Steps are counted by optimizer, from the last averaging; closed means closed."""
    checks = Checks(context.rank)
    module = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
    first, second = (torch.optim.SGD(part.parameters(), lr=1.0) for part in module)
    steps = LocalSGD(module, context.world, 2)

    def after(*order: torch.optim.Optimizer) -> list[float]:
        for optimizer in order:
            for part in module:
                part.weight.grad = torch.full((1, 1), -float(context.rank))  # each step adds the rank
            steps.count_samples(1)
            optimizer.step()
        return [part.weight.item() for part in module]

    with torch.no_grad():
        for part in module:
            part.weight.zero_()
    rank, mean = context.rank, (context.world_size - 1) / 2
    checks("each one once").equal(after(first, second), [rank, rank])
    checks("one of them twice").equal(after(first), [2 * mean, rank])
    steps.average()
    checks("asked for").equal(after(), [2 * mean, mean])
    checks("counted from there").equal(after(second), [2 * mean, mean + rank])
    checks("the second").equal(after(second), [2 * mean, 3 * mean])
    steps.close()
    checks("closed").equal(after(first, first), [2 * mean + 2 * rank, 3 * mean])
    return checks.failures


def test_each_optimizer_has_its_own_count(rank_group: RankGroup) -> None:
    rank_group.check(counting)


def refused(context: Any) -> list[str]:
    checks = Checks(context.rank)
    module = nn.Linear(2, 1)
    steps = LocalSGD(module, context.world, 1)
    optimizer = torch.optim.LBFGS(module.parameters(), max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = module(torch.ones(3, 2)).square().mean()
        loss.backward()
        return loss

    if context.world_size > 1:
        checks.contains(checks.raises(InvalidArgument, optimizer.step, closure), "LBFGS")
    steps.close()
    checks.contains(checks.raises(InvalidArgument, LocalSGD, module, context.world, 0), "sync_every=0")
    before = len(optimizers._global_optimizer_post_hooks)
    forgotten = LocalSGD(module, context.world, 1)
    checks.equal(len(optimizers._global_optimizer_post_hooks), before + 1, "hooks")
    del forgotten
    gc.collect()
    checks.equal(len(optimizers._global_optimizer_post_hooks), before, "hooks of what is gone")
    return checks.failures


def test_parameters_that_cannot_be_averaged_are_refused_without_side_effects(rank_group: RankGroup) -> None:
    rank_group.check(refused)
