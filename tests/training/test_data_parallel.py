"""DataParallel: unused, frozen and accumulated gradients, ranks without data, names, and use as a plain module."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import neuraxis.distributed
from neuraxis.errors import InvalidArgument, InvalidType, ModelMismatch, PeerLost, StepInterrupted
from neuraxis.training import DataParallel, Half, SyncBatchNorm, TopK
from tests.ranks import RankGroup
from tests.ranks.checks import Checks
from tests.training.case import (
    OPTIMIZERS,
    batch,
    difference,
    mine,
    net,
    numbers,
    plain_net,
    rows_of,
    same_on_all_ranks,
    synchronised,
)

SPLIT = [[3, 5, 1, 2, 4], [1, 4, 2, 3, 1], [2, 2, 6, 1, 5]]
TINY: dict[str, Any] = {"first_bucket_bytes": 100, "bucket_bytes": 100}


def mean_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target)


class Branches(nn.Module):
    """Rows of a batch do not say which branch they take: `branch` does."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(3, 2) for _ in range(3))
        self.both = nn.Linear(2, 2)

    def forward(self, x: Tensor, branch: int) -> Tensor:
        result: Tensor = self.both(self.branches[branch](x))
        return result


def branches() -> Branches:
    torch.manual_seed(3)
    return Branches().double()


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def same_gradients(checks: Checks, got: nn.Module, expected: nn.Module, what: str = "") -> None:
    theirs = gradients(expected)
    for name, gradient in gradients(got).items():
        other = theirs[name]
        if gradient is None or other is None:
            checks.equal(gradient is None, other is None, f"{what} {name} is None")
        else:
            far = float((gradient - other).abs().max() / other.abs().max().clamp(min=1))
            checks.equal(far < 1e-13, True, f"{what} {name} off by {far:g}")


def parts(context: Any, step: int, data: Callable[[int, int], tuple[Tensor, Tensor]] = numbers) -> tuple[Any, ...]:
    """Return the rows and targets of this rank, all rows and targets, and how many rows each rank has."""
    rows = rows_of(SPLIT, step, context.world_size)
    x, y = data(step, sum(rows))
    own = mine(rows, context.rank)
    return x[own], y[own], x, y, rows


# --- gradients ---


def test_gradients(rank_group: RankGroup) -> None:
    rank_group.check(gradients_of_all_kinds)


def gradients_of_all_kinds(context: Any) -> list[str]:
    torch.set_num_threads(1)
    checks = Checks(context.rank)
    for case in (
        unused_somewhere,
        several_forwards,
        chained_forwards,
        penalties,
        sums,
        own_weights,
        tied,
        not_zeroed,
        only_some_gradients,
        nested_outputs,
        module_itself,
        kept_graph,
        gradients_with_a_graph,
        two_heads,
        forwards_of_before,
        batch_norm_kept,
        sparse,
        large_batches_in_float16,
        other_dtypes,
        frozen_later,
        frozen_alone,
        frozen_around_a_norm,
        replaced_parts,
        gradients_in_one_memory,
        outputs_with_hooks,
    ):
        case(context, checks(case.__name__))
    for case in (sums, not_zeroed, kept_graph, frozen_later):
        case(context, checks(case.__name__, "in one bucket"), {})
    return checks.failures


def unused_somewhere(context: Any, checks: Checks) -> None:
    """Branch 0 is used by all, 1 by rank 0 alone, 2 by nobody."""
    for options in ({}, TINY, {"overlap": False}):
        whole, model = branches(), DataParallel(branches(), **options)
        for step in range(3):
            x, y, whole_x, whole_y, rows = parts(context, step)
            taken = [1 if rank == 0 else 0 for rank in range(context.world_size)]
            mean_loss(model(x, taken[context.rank]), y).backward()
            outputs = [whole(whole_x[mine(rows, rank)], branch) for rank, branch in enumerate(taken)]
            mean_loss(torch.cat(outputs), whole_y).backward()
            same_gradients(checks, model, whole, f"{options} step {step}")
            model.zero_grad()
            whole.zero_grad()


def several_forwards(context: Any, checks: Checks) -> None:
    """Two forwards in one backward, and one that takes no part."""
    for options in ({}, TINY):
        whole, model = plain_net(), DataParallel(plain_net(), **options)
        x, y, whole_x, whole_y, _ = parts(context, 0)
        model(x * 3)
        (mean_loss(model(x), y) + mean_loss(model(-x), y)).backward()
        (mean_loss(whole(whole_x), whole_y) + mean_loss(whole(-whole_x), whole_y)).backward()
        same_gradients(checks, model, whole)


def chained_forwards(context: Any, checks: Checks) -> None:
    """The second forward uses a layer that the first does not: its gradient is ready before the first is heard of."""
    for options in ({}, TINY):
        whole, model = branches(), DataParallel(branches(), **options)
        x, y, whole_x, whole_y, _ = parts(context, 1)
        mean_loss(model(torch.cat([model(x, 0), x[:, :1]], 1), 1), y).backward()
        mean_loss(whole(torch.cat([whole(whole_x, 0), whole_x[:, :1]], 1), 1), whole_y).backward()
        same_gradients(checks, model, whole)


def penalties(context: Any, checks: Checks) -> None:
    """A term of the loss that is not a mean over rows."""
    whole, model = plain_net(), DataParallel(plain_net())
    x, y, whole_x, whole_y, _ = parts(context, 2)
    for network, rows, targets in ((model, x, y), (whole, whole_x, whole_y)):
        penalty = sum(parameter.square().sum() for parameter in network.parameters())
        (mean_loss(network(rows), targets) + 0.3 * penalty).backward()
    same_gradients(checks, model, whole)


def sums(context: Any, checks: Checks, options: dict[str, Any] = TINY) -> None:
    whole, model = plain_net(), DataParallel(plain_net(), loss="sum", **options)
    x, y, whole_x, whole_y, _ = parts(context, 0)
    for network, rows, targets in ((model, x, y), (whole, whole_x, whole_y)):
        functional.mse_loss(network(rows), targets, reduction="sum").backward()
    same_gradients(checks, model, whole)


def own_weights(context: Any, checks: Checks) -> None:
    """A mean over what is not ignored, of which ranks have other shares than of rows."""

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = plain_net()

        def forward(self, x: Tensor, classes: Tensor) -> Tensor:
            result: Tensor = self.inner(x)
            return result

    whole, model = Weighted(), DataParallel(Weighted(), weigh=lambda args, kwargs: float((args[1] != -100).sum()))
    x, _, whole_x, _, rows = parts(context, 0)
    classes = torch.arange(sum(rows)) % 2
    classes[1 : rows[0]] = -100
    own = classes[mine(rows, context.rank)]
    functional.cross_entropy(model(x, own), own).backward()
    functional.cross_entropy(whole(whole_x, classes), classes).backward()
    same_gradients(checks, model, whole)


def tied(context: Any, checks: Checks) -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(4)
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.Linear(3, 2)).double()
        module[2].weight = module[0].weight
        return module

    whole, model = make(), DataParallel(make(), **TINY)
    x, y, whole_x, whole_y, _ = parts(context, 0)
    mean_loss(model(x), y).backward()
    mean_loss(whole(whole_x), whole_y).backward()
    same_gradients(checks, model, whole)


def not_zeroed(context: Any, checks: Checks, options: dict[str, Any] = TINY) -> None:
    """Gradients that are not zeroed, or zeroed in place, where they lie in the bucket."""
    whole, model = plain_net(), DataParallel(plain_net(), **options)
    for step in range(4):
        x, y, whole_x, whole_y, _ = parts(context, step)
        mean_loss(model(x), y).backward()
        mean_loss(whole(whole_x), whole_y).backward()
        same_gradients(checks, model, whole, f"step {step}")
        if step == 1:
            model.zero_grad(set_to_none=False)
            whole.zero_grad(set_to_none=False)


def only_some_gradients(context: Any, checks: Checks) -> None:
    """autograd.grad goes through the output and fills no .grad: nothing is sent for it."""
    whole, model = plain_net(), DataParallel(plain_net())
    x, y, whole_x, whole_y, _ = parts(context, 0)
    for network, rows, targets in ((model, x, y), (whole, whole_x, whole_y)):
        rows = rows.clone().requires_grad_()
        output = network(rows)
        (slope,) = torch.autograd.grad(output.sum(), rows, create_graph=True)
        torch.autograd.grad(output.sum(), list(network.parameters()), retain_graph=True)
        if network is model:
            checks.equal(model.traffic().steps, 0, "steps")
        (mean_loss(output, targets) + slope.square().sum(1).mean()).backward()
    checks.equal(model.traffic().steps, int(context.world_size > 1), "steps")
    same_gradients(checks, model, whole)


def nested_outputs(context: Any, checks: Checks) -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = plain_net()

        def forward(self, x: Tensor) -> dict[str, Any]:
            y = self.inner(x)
            return {"outputs": (y, [y * 2]), "text": "none", "first": x}

    class Hidden(Nested):
        def forward(self, x: Tensor) -> Any:
            outputs = super().forward(x)
            return lambda: outputs

    for kind in (Nested, Hidden):
        whole, model = kind(), DataParallel(kind(), **TINY)
        x, y, whole_x, whole_y, _ = parts(context, 1)
        for network, rows, targets in ((model, x, y), (whole, whole_x, whole_y)):
            output = network(rows) if kind is Nested else network(rows)()
            mean_loss(output["outputs"][0] + output["outputs"][1][0], targets).backward()
        same_gradients(checks, model, whole, kind.__name__)


def module_itself(context: Any, checks: Checks) -> None:
    """A backward pass that never went through DataParallel's forward: ranks count alike."""
    model = DataParallel(plain_net())
    x, y = numbers(context.rank, 3)
    mean_loss(model.module(x), y).backward()
    whole = plain_net()
    losses = [mean_loss(whole(x), y) for x, y in (numbers(rank, 3) for rank in range(context.world_size))]
    (sum(losses) / context.world_size).backward()  # type: ignore[union-attr]
    same_gradients(checks, model, whole)


def kept_graph(context: Any, checks: Checks, options: dict[str, Any] = TINY) -> None:
    """Two backward passes through one forward."""
    whole, model = plain_net(), DataParallel(plain_net(), **options)
    x, y, whole_x, whole_y, _ = parts(context, 0)
    for network, rows, targets in ((model, x, y), (whole, whole_x, whole_y)):
        loss = mean_loss(network(rows), targets)
        loss.backward(retain_graph=True)
        loss.backward()
    same_gradients(checks, model, whole)


def gradients_with_a_graph(context: Any, checks: Checks) -> None:
    """The mean has no graph, and a rank's own gradient, which has one, is left alone."""
    for options in ({}, TINY) if context.world_size > 1 else ():
        whole, model = plain_net(), DataParallel(plain_net(), **options)
        x, y, whole_x, whole_y, _ = parts(context, 0)
        mean_loss(whole(whole_x), whole_y).backward()
        loss = mean_loss(model(x), y)
        with model.no_sync(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells of a cycle, which is broken below
            loss.backward(create_graph=True)
        kept = [parameter.grad for parameter in model.parameters()]
        values = [gradient.detach().clone() for gradient in kept]
        mean_loss(model(x) * 0, y * 0).backward()  # sends what is there
        checks.equal(any(parameter.grad.requires_grad for parameter in model.parameters()), False, "a graph")
        checks.equal([torch.equal(*pair) for pair in zip(kept, values, strict=True)], [True] * 6, f"{options}")
        same_gradients(checks, model, whole, f"{options}")
        model.zero_grad()


def sparse(context: Any, checks: Checks) -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(5)
        return nn.Sequential(nn.EmbeddingBag(9, 3, mode="sum", sparse=True), nn.Linear(3, 2)).double()

    whole, model = make(), DataParallel(make())
    _, y, _, whole_y, rows = parts(context, 0)
    words = torch.arange(2 * sum(rows)).view(-1, 2) % 9
    mean_loss(model(words[mine(rows, context.rank)]), y).backward()
    mean_loss(whole(words), whole_y).backward()
    whole[0].weight.grad = whole[0].weight.grad.to_dense()
    if context.world_size == 1:
        model.module[0].weight.grad = model.module[0].weight.grad.to_dense()
    same_gradients(checks, model, whole)


def other_dtypes(context: Any, checks: Checks) -> None:
    """Half the parameters in bfloat16, some complex: the control words have a bucket of their own."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(6)
            self.low = nn.Linear(3, 3).bfloat16()
            self.turn = nn.Parameter(torch.ones(3, dtype=torch.complex128))
            self.high = nn.Linear(3, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            low = self.low(x.bfloat16()).double()
            result: Tensor = self.high((low * self.turn).abs())
            return result

    # Values that bfloat16 holds, so that sums of them are exact; and equally many rows on each rank.
    whole, model = Mixed(), DataParallel(Mixed(), **TINY)
    x = torch.arange(4.0 * context.world_size * 3).view(-1, 3).double() % 5
    own = slice(4 * context.rank, 4 * context.rank + 4)
    model(x[own]).sum(1).mean().backward()
    whole(x).sum(1).mean().backward()
    for name, gradient in gradients(model).items():
        expected = gradients(whole)[name]
        assert gradient is not None
        assert expected is not None
        tolerance = 0.02 if name.startswith("low") else 1e-14
        far = float((gradient - expected).abs().max() / expected.abs().max())
        checks.equal(far < tolerance, True, f"{name} off by {far:g}")


def frozen_later(context: Any, checks: Checks, options: dict[str, Any] = TINY) -> None:
    """The set of trained parameters changes, and the dtype of the module."""
    whole, model = plain_net(), DataParallel(plain_net(), **options)
    for step, change in enumerate(
        (
            lambda module: module.get_submodule("0").requires_grad_(False),
            lambda module: module.get_submodule("0").requires_grad_(True),
            lambda module: module.float(),
            lambda module: module.double(),
        )
    ):
        change(model)
        change(whole)
        model.zero_grad()
        whole.zero_grad()
        x, y, whole_x, whole_y, _ = parts(context, step)
        dtype = next(whole.parameters()).dtype
        mean_loss(model(x.to(dtype)), y.to(dtype)).backward()
        mean_loss(whole(whole_x.to(dtype)), whole_y.to(dtype)).backward()
        if dtype is torch.float64:
            same_gradients(checks, model, whole, f"step {step}")
        checks.equal(model.module[0].weight.grad is None, step == 0, f"step {step}: frozen")
        checks.equal(model.module[2].weight.grad.dtype, dtype, "dtype")


def frozen_alone(context: Any, checks: Checks) -> None:
    """One rank freezes a layer, and the others do not: nobody waits for anybody, and all get an error that names it."""
    odd = context.world_size - 1
    if not odd:
        return
    for options in ({}, {"compress": TopK(0.5), **TINY}):
        model = DataParallel(plain_net(), **options)
        for step in range(2):
            if step == 1 and context.rank == odd:
                model.module[0].requires_grad_(False)
            x, y, *_ = parts(context, step)
            try:
                mean_loss(model(x), y).backward()
            except ModelMismatch as error:
                checks.equal((step, error.rank), (1, odd), f"{options}: {error}")
                checks.equal(f"on rank {odd} alone" in str(error), True, str(error))
            else:
                checks.equal(step, 0, f"{options}: no error")


def frozen_around_a_norm(context: Any, checks: Checks) -> None:
    """The same with a SyncBatchNorm, in which ranks wait for each other; and by all ranks, which is no error."""

    def normed(norm: Callable[[int], nn.Module]) -> nn.Sequential:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(3, 8), norm(8), nn.Tanh(), nn.Linear(8, 2)).double()

    odd = context.world_size - 1
    if not odd:
        return
    whole, model = normed(nn.BatchNorm1d), DataParallel(normed(SyncBatchNorm), **TINY)
    for step, frozen in enumerate((None, 0, 3, None)):  # a layer before the norm, and one behind it
        x, y, whole_x, whole_y, _ = parts(context, step)
        if frozen is not None:
            before = copy.deepcopy(model.module[1].state_dict())
            if context.rank == odd:
                model.module[frozen].requires_grad_(False)
            text = checks.raises(ModelMismatch, model, x)
            checks.equal(f"on rank {odd} alone" in text, True, text)
            checks.equal(str(model.module[1].state_dict()), str(before), "running statistics")
            model.module[frozen].requires_grad_()
        for network, rows, targets in ((model, x, y), (whole, whole_x, whole_y)):
            layers = model.module if network is model else whole
            for number in (0, 3):
                layers[number].requires_grad_(number != frozen)
            network.zero_grad()
            mean_loss(network(rows), targets).backward()
        same_gradients(checks, model, whole, f"step {step}")


def replaced_parts(context: Any, checks: Checks) -> None:
    """A module without parameters and buffers may be replaced; replacing another one raises before it is trained."""
    whole, model = plain_net(), DataParallel(plain_net())
    x, y, whole_x, whole_y, _ = parts(context, 0)
    for network, rows, targets in ((model, x, y), (whole, whole_x, whole_y)):
        (model.module if network is model else whole)[1] = nn.Softplus()
        mean_loss(network(rows), targets).backward()
    same_gradients(checks, model, whole)
    if context.world_size == 1:
        return
    model.module[2], before = nn.Linear(8, 8).double(), model.module[2]
    checks.equal("'2.weight' was added to the module" in checks.raises(InvalidArgument, model, x), True, "the layer")
    model.module[2] = before
    model.zero_grad()
    mean_loss(model(x), y).backward()
    same_gradients(checks, model, whole, "put back")
    model.module.append(nn.BatchNorm1d(2, affine=False).double())
    checks.equal("'5.running_mean'" in checks.raises(InvalidArgument, model, x), True, "buffers")


def gradients_in_one_memory(context: Any, checks: Checks) -> None:
    """Autograd may give two parameters gradients in the same memory; here it does, on the even ranks."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = (nn.Parameter(torch.ones(3, 1).double()) for _ in range(2))

        def forward(self, x: Tensor, rank: int) -> Tensor:
            both = self.one.view(3) + self.other.view(3) if rank % 2 == 0 else self.one.view(3) * 2
            return x * both

    whole, model = Sum(), DataParallel(Sum())
    x = [torch.arange(6.0).view(2, 3).double() + rank for rank in range(context.world_size)]
    model(x[context.rank], context.rank).square().sum(1).mean().backward()
    losses = [whole(rows, rank).square().sum(1).mean() for rank, rows in enumerate(x)]
    (sum(losses) / context.world_size).backward()  # type: ignore[union-attr]
    same_gradients(checks, model, whole)


def outputs_with_hooks(context: Any, checks: Checks) -> None:
    """Hooks of others on an output, before and after it was given out, and one that is changed in place."""
    calls: list[str] = []

    class Hooked(nn.Module):
        def __init__(self, within: bool) -> None:
            super().__init__()
            self.net, self.within = plain_net(), within

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.net(x)
            if self.within:
                output.register_hook(lambda gradient: calls.append("within"))
            return output

    for within in (False, True):
        whole, model = Hooked(False), DataParallel(Hooked(within))
        x, y, whole_x, whole_y, _ = parts(context, 0)
        output = model(x)
        if not within:
            torch.save(output, io.BytesIO())  # without a warning, though it has a hook
        handle = output.register_hook(lambda gradient: calls.append("never"))
        output.register_hook(lambda gradient: calls.append("outside"))
        handle.remove()
        output.mul_(2.0)
        output.register_hook(lambda gradient: calls.append("doubled"))
        mean_loss(output, y).backward()
        mean_loss(whole(whole_x) * 2.0, whole_y).backward()
        same_gradients(checks, model, whole, f"{within=}")
    checks.equal(sorted(calls), ["doubled", "doubled", "outside", "outside", "within"], "hooks")


def two_heads(context: Any, checks: Checks) -> None:
    """Two backward passes through one forward pass; the second does not go to the parameters that come first."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.left, self.shared, self.right = nn.Linear(3, 2), nn.Linear(3, 3), nn.Linear(3, 2)
            self.double()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = torch.tanh(self.shared(x))
            return self.left(hidden), self.right(hidden)

    for options in ({}, TINY, {"loss": "sum"}):
        reduction = options.get("loss", "mean")
        whole, model = Heads(), DataParallel(Heads(), **options)
        x, y, whole_x, whole_y, _ = parts(context, 0)
        for each, inputs, targets in ((model, x, y), (whole, whole_x, whole_y)):
            left, right = each(inputs)
            functional.mse_loss(left, targets, reduction=reduction).backward(retain_graph=True)
            functional.mse_loss(right, targets, reduction=reduction).backward()
        same_gradients(checks, model, whole, f"{options}")


def forwards_of_before(context: Any, checks: Checks) -> None:
    """Forward passes that an earlier backward pass has not gone through take part in the next."""
    for options in ({}, TINY, {"loss": "sum"}):
        reduction = options.get("loss", "mean")
        whole, model = branches(), DataParallel(branches(), **options)
        x, y, whole_x, whole_y, _ = parts(context, 0)
        for each, inputs, targets in ((model, x, y), (whole, whole_x, whole_y)):
            losses = [functional.mse_loss(each(inputs, branch), targets, reduction=reduction) for branch in (0, 1, 0)]
            losses[2].backward()
            (losses[0] + losses[1]).backward()
        same_gradients(checks, model, whole, f"{options}")


def batch_norm_kept(context: Any, checks: Checks) -> None:
    """Buffers become equal after the first backward pass, and the second can still be made."""
    torch.manual_seed(0)
    model = DataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    output = model(torch.randn(5, 3))
    output.square().mean().backward(retain_graph=True)
    output.mean().backward()
    checks.equal(same_on_all_ranks(model, context.world), True, "equal on all ranks")


def large_batches_in_float16(context: Any, checks: Checks) -> None:
    """Gradients times samples are more than float16 can hold; their mean is not."""
    module = nn.Linear(4, 1, bias=False).half()
    model = DataParallel(module)
    (200 * model(torch.ones(512, 4, dtype=torch.float16)).mean()).backward()
    checks.equal(module.weight.grad.dtype, torch.float16, "dtype")
    checks.equal(module.weight.grad.tolist(), [[200.0] * 4], "gradient")
    # The same where it is the bytes that are sent, and what is trained has changed before there was a step.
    model = DataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1, bias=False)), compress="fp16")
    model.module[0].requires_grad_(False)
    (200 * (model(torch.ones(512, 4)) * 0 + model.module[1].weight.sum()).mean()).backward()
    checks.equal(model.module[1].weight.grad.tolist(), [[200.0] * 4], "gradient in 16 bits")


# --- several backward passes as one ---


def test_accumulation(rank_group: RankGroup) -> None:
    rank_group.check(accumulation)


def accumulation(context: Any) -> list[str]:
    torch.set_num_threads(1)
    checks = Checks(context.rank)
    for options in ({}, TINY, {"loss": "sum"}):
        checks(options)
        reduction = options.get("loss", "mean")
        scale = 0.01 if reduction == "sum" else 1.0  # for steps of the same length
        whole, model = plain_net(), DataParallel(plain_net(), **options)
        optimizer, optimizer_of_whole = (OPTIMIZERS["sgd"](each.parameters()) for each in (model, whole))
        seen = []
        for step in range(7):  # two times three, and the tail of an epoch
            x, y, *_ = parts(context, step)
            sent = model.traffic().steps
            with model.accumulate(3, last=step == 6) as micro:
                (scale * functional.mse_loss(model(x), y, reduction=reduction)).backward()
                seen.append(micro.complete)
                if micro.complete:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=step < 4)
                else:
                    checks.equal(model.traffic().steps, sent, "steps before the last block")
                    checks.equal([p.grad for p in model.parameters()], [None] * 6, "gradients before it")
        checks.equal(seen, [False, False, True] * 2 + [True], "complete")
        for steps in (range(3), range(3, 6), range(6, 7)):
            rows = [parts(context, step)[2:4] for step in steps]
            x, y = torch.cat([x for x, _ in rows]), torch.cat([y for _, y in rows])
            optimizer_of_whole.zero_grad()
            (scale * functional.mse_loss(whole(x), y, reduction=reduction)).backward()
            optimizer_of_whole.step()
        checks.equal(difference(model, whole) < 1e-13, True, "as one process")
        accumulation_dropped(context, checks, model)
    return checks.failures


def accumulation_dropped(context: Any, checks: Checks, model: DataParallel) -> None:
    """All ranks leave a block by an exception; the next begins anew."""
    x, y, whole_x, whole_y, _ = parts(context, 0)
    with model.accumulate(2):
        mean_loss(model(x * 9), y).backward()
    with pytest.raises(KeyError), model.accumulate(2):
        raise KeyError
    model.zero_grad()
    reduction = "sum" if model._options.weighted is False else "mean"
    for block in range(2):
        with model.accumulate(2) as micro:
            checks.equal(micro.complete, block == 1, "complete after an exception")
            functional.mse_loss(model(x), y, reduction=reduction).backward()
    whole = plain_net()
    whole.load_state_dict(model.state_dict())
    factor = 2 if reduction == "sum" else 1
    (factor * functional.mse_loss(whole(whole_x), whole_y, reduction=reduction)).backward()
    same_gradients(checks, model, whole, "after an exception")
    with pytest.raises(StepInterrupted, match="no backward pass"), model.accumulate(1):
        pass

    def two_passes(k: int) -> None:
        with model.accumulate(k):
            for _ in range(2):
                mean_loss(model(x), y).backward()

    for k in (2, 1):  # in a block that is not the last, and in one that is
        checks.contains(
            checks.raises(InvalidArgument, lambda k=k: two_passes(k)), "second backward pass in one accumulate() block"
        )
    with model.accumulate(2):
        mean_loss(model(x), y).backward()
    checks.equal(model.accumulating, True, "accumulating")
    model.load_step_state_dict(model.step_state_dict())
    checks.equal(model.accumulating, False, "accumulating after a state was loaded")


def test_no_sync_and_empty_ranks(rank_group: RankGroup) -> None:
    rank_group.check(no_sync)


def no_sync(context: Any) -> list[str]:
    torch.set_num_threads(1)
    checks = Checks(context.rank)
    for options in ({}, TINY):
        model = DataParallel(branches(), **options)
        whole = branches()
        x, y, whole_x, whole_y, _ = parts(context, 0)
        with model.no_sync():
            mean_loss(model(x, 1), y).backward()  # a branch that the next one does not use
        checks("no_sync").equal(model.traffic().steps, 0, "steps")
        mean_loss(model(x, 0), y).backward()
        (mean_loss(whole(whole_x, 1), whole_y) + mean_loss(whole(whole_x, 0), whole_y)).backward()
        same_gradients(checks, model, whole)
        checks("nobody has a row")
        model.zero_grad()
        mean_loss(model(x[:0], 0), y[:0]).backward()
        checks.equal([bool((p.grad == 0).all()) for p in model.both.parameters()], [True, True], "gradients are 0")
    checks("evaluation")
    steps = model.traffic().steps
    model.eval()
    with torch.no_grad():
        for _ in range(context.rank + 1):  # each as often as it likes: a call would be one too many somewhere
            model(x, 0)
    model.train()
    model(x, 0)
    checks.equal(model.traffic().steps, steps, "steps")
    return checks.failures


# --- ranks that run out of data ---


def test_joining(rank_group: RankGroup) -> None:
    rank_group.check(joining)


def joining(context: Any) -> list[str]:
    torch.set_num_threads(1)
    checks = Checks(context.rank)
    size, rank = context.world_size, context.rank
    cases: list[tuple[str, bool, dict[str, Any]]] = [("adamw", False, TINY), ("sgd", False, {})]
    for name, synchronise, options in (*cases, ("adamw", True, TINY), ("sgd", True, {})):
        checks(name, "with SyncBatchNorm" if synchronise else "", options)
        make: Callable[[], nn.Module] = (lambda: synchronised(1, torch.float64)) if synchronise else plain_net
        data = batch if synchronise else numbers
        loss = functional.cross_entropy if synchronise else mean_loss
        model, whole = DataParallel(make(), **options), net() if synchronise else plain_net()
        optimizer, optimizer_of_whole = (OPTIMIZERS[name](each.parameters()) for each in (model, whole))
        for epoch in range(2):
            lengths = [2 + (other + epoch) % size for other in range(size)]  # batches of each rank
            with model.join():
                for step in range(lengths[rank]):
                    rows = rows_of(SPLIT, step, size)
                    x, y = data(step + 10 * epoch, sum(rows))
                    own = mine(rows, rank)
                    optimizer.zero_grad()
                    loss(model(x[own]), y[own]).backward()
                    optimizer.step()
                left = {key: None if one is None else one.clone() for key, one in gradients(model).items()}
            for key, gradient in gradients(model).items():  # others' steps leave alone what this rank left with
                same = gradient is None if left[key] is None else torch.equal(gradient, left[key])
                checks.equal(same, True, f"epoch {epoch}: the gradient of {key}")
            checks.equal(same_on_all_ranks(model, context.world), True, f"epoch {epoch}: equal on all ranks")
            for step in range(max(lengths)):
                rows = rows_of(SPLIT, step, size)
                x, y = data(step + 10 * epoch, sum(rows))
                there = [index for other in range(size) if step < lengths[other] for index in _range(rows, other)]
                optimizer_of_whole.zero_grad()
                loss(whole(x[there]), y[there]).backward()
                optimizer_of_whole.step()
            far = difference(model, whole)
            checks.equal(far < 1e-12, True, f"epoch {epoch}: as one process, off by {far:g}")
    joining_without_any(context, checks)
    joining_with_all_states(context, checks)
    return checks.failures


def _range(rows: list[int], rank: int) -> range:
    part = mine(rows, rank)
    return range(part.start, part.stop)


def joining_with_all_states(context: Any, checks: Checks) -> None:
    """Scaler, scheduler and what compression knows are the same everywhere afterwards, so the next steps are."""
    checks("with all states")
    for options in ({"precision": "fp16"}, {"compress": "fp16"}):
        torch.manual_seed(0)
        model = DataParallel(nn.Linear(3, 2), **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        def step(factor: float = 1.0, model: DataParallel = model, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            loss = model(torch.ones(context.rank + 1, 3)).float().square().mean() * factor
            model.scaler.scale(loss).backward()
            model.scaler.step(optimizer)
            model.scaler.update()

        with model.join(optimizer, scheduler):
            for number in range(2 + context.rank):
                step(1e30 if number == 2 and "precision" in options else 1.0)  # a step that is left out
                scheduler.step()
        reported: list[Any] = [None] * context.world_size
        context.world.all_gather_object(reported, [model.scaler.get_scale(), scheduler.get_last_lr()])
        checks.equal(reported, [reported[0]] * context.world_size, f"{options}: scale and rate")
        step()
        checks.equal(same_on_all_ranks(model, context.world), True, f"{options}: equal on all ranks")
    if context.world_size > 1:
        checks.contains(checks.raises(InvalidArgument, lambda: model.join(3).__enter__()), "no state_dict")


def joining_without_any(context: Any, checks: Checks) -> None:
    """A rank that never had a batch learns of the optimizer only if it is named."""
    checks("one rank never had a batch")
    if context.world_size == 1:
        return
    for named in (True, False):
        model = DataParallel(plain_net())
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        steps = 0 if context.rank == 0 else 3

        def loop(
            model: DataParallel = model,
            optimizer: torch.optim.Optimizer = optimizer,
            steps: int = steps,
            named: bool = named,
        ) -> None:
            with model.join(*([optimizer] if named else [])):
                for step in range(steps):
                    x, y = numbers(step, 4)
                    optimizer.zero_grad()
                    mean_loss(model(x), y).backward()
                    optimizer.step()

        if named:
            loop()
            first = next(model.parameters())
            checks.equal(int(optimizer.state[first]["step"]), 3, "steps of the optimizer")
        else:
            checks.contains(checks.raises(InvalidArgument, loop), "ranks [0] made no step")
        checks.equal(same_on_all_ranks(model, context.world), True, "equal on all ranks")


# --- with compression ---


def test_compression_within_steps(rank_group: RankGroup) -> None:
    rank_group.check(compression)


def compression(context: Any) -> list[str]:
    """Uneven ranks, buckets under way in a thread, accumulation and shadows: as without, but for the stated error."""
    torch.set_num_threads(1)
    checks = Checks(context.rank)
    for compress, tolerance, several in ((TopK(1.0), 1e-13, True), ("fp16", 2e-3, True), (Half("bf16"), 2e-2, False)):
        for overlap in (True, False):
            checks(compress, overlap)
            plain = DataParallel(plain_net(), **TINY)
            model = DataParallel(plain_net(), compress=compress, overlap=overlap, **TINY)
            for step in range(4):
                x, y, *_ = parts(context, step)
                for each in (plain, model):
                    each.zero_grad()
                    with each.join() if step == 2 else nullcontext():
                        with each.accumulate(1 + several * step % 2):
                            mean_loss(each(x), y).backward()
                        if several * step % 2:
                            with each.accumulate(2):
                                mean_loss(each(x), y).backward()
                for mine_, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                    far = float((mine_.grad - theirs.grad).abs().max() / theirs.grad.abs().max())
                    checks.equal(far <= tolerance, True, f"step {step} off by {far:g}")
            if context.world_size > 1:
                compressed, wanted = model.traffic(), plain.traffic()
                checks.equal(compressed.steps, wanted.steps, "steps")
                checks.equal(0 <= compressed.relative_error <= tolerance, True, f"{compressed}")
                if not isinstance(compress, TopK):
                    checks.equal(compressed.bytes_sent < 0.5 * compressed.bytes_uncompressed, True, f"{compressed}")
    compression_resumed(context, checks)
    return checks.failures


def compression_resumed(context: Any, checks: Checks) -> None:
    """The residual is part of the state of a step: without it the next steps would differ."""
    checks("resumed")

    def steps(model: DataParallel, numbers_of_steps: range) -> None:
        for step in numbers_of_steps:
            x, y, *_ = parts(context, step)
            model.zero_grad()
            mean_loss(model(x), y).backward()

    first = DataParallel(plain_net(), compress=TopK(0.3), **TINY)
    steps(first, range(3))
    second = DataParallel(plain_net(), compress=TopK(0.3), **TINY)
    second.load_step_state_dict(first.step_state_dict())
    third = DataParallel(plain_net(), compress=TopK(0.3), **TINY)
    for model in (first, second, third):
        steps(model, range(3, 4))
    pairs = [
        all(torch.equal(a.grad, b.grad) for a, b in zip(first.parameters(), other.parameters(), strict=True))
        for other in (second, third)
    ]
    checks.equal(pairs, [True, context.world_size == 1], "as if not interrupted; and it matters")


# --- buffers ---


def test_buffers(rank_group: RankGroup) -> None:
    rank_group.check(buffers)


def buffers(context: Any) -> list[str]:
    torch.set_num_threads(1)
    checks = Checks(context.rank)
    size = context.world_size

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2).double()
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("level", torch.zeros(3), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.count += context.rank + 1
            self.level = self.level + context.rank + 1  # a new tensor
            result: Tensor = self.linear(x)
            return result

    for kind in ("broadcast", "keep"):
        model = DataParallel(Counting(), buffers=kind)  # type: ignore[arg-type]
        for step in range(3):
            source = step % size  # the lowest rank with data
            x, y = numbers(step, 2 if context.rank >= source else 0)
            mean_loss(model(x), y).backward()
        if kind == "keep" or size == 1:
            expected = 3 * (context.rank + 1)
        else:
            expected = sum(step % size + 1 for step in range(3))
        checks(kind).equal(int(model.count), expected, "count")
        checks.equal(model.level.tolist(), [expected] * 3, "level")
    if size > 1:
        checks("sizes that differ")
        model = DataParallel(Counting())
        model.module.level = torch.zeros(context.rank + 1)
        text = checks.raises(ModelMismatch, lambda: mean_loss(model(x), y).backward())
        checks.contains(text, "buffers of the model have 12 bytes on the first rank")
    checks("batch norm")
    model = DataParallel(net())
    x, y = batch(context.rank, 4)
    functional.cross_entropy(model(x), y).backward()
    if size > 1:
        checks.equal(same_on_all_ranks(model, context.world), True, "equal on all ranks")
    return checks.failures


# --- a module as any other ---


def test_names_and_nesting(rank_group: RankGroup) -> None:
    rank_group.check(names)


def names(context: Any) -> list[str]:
    checks = Checks(context.rank)
    plain = net()
    model = DataParallel(net(seed=2 + context.rank))
    checks.equal(list(model.state_dict()), list(plain.state_dict()), "state_dict")
    checks.equal(model.state_dict()._metadata.keys(), plain.state_dict()._metadata.keys(), "metadata")
    for kind in ("named_parameters", "named_buffers"):
        mine, theirs = ([name for name, _ in getattr(each, kind)()] for each in (model, plain))
        checks.equal(mine, theirs, kind)
    checks.equal(len(list(model.parameters())), len(list(plain.parameters())), "parameters")
    checks.equal(model.hidden is model.module.hidden, True, "attributes of the module")
    checks.equal(model.get_submodule("hidden") is model.module.hidden, True, "submodule")
    checks.contains(checks.raises(AttributeError, getattr, model, "nothing_like_this"), "nothing_like_this")
    wrapped = nn.ModuleDict({"a": model, "b": nn.Linear(2, 2)})
    bare = nn.ModuleDict({"a": net(), "b": nn.Linear(2, 2)})
    checks.equal(list(wrapped.state_dict()), list(bare.state_dict()), "nested state_dict")
    checks.equal(
        [name for name, _ in wrapped.named_parameters()],
        [name for name, _ in bare.named_parameters()],
        "nested named_parameters",
    )
    for state in (plain.state_dict(), {f"module.{name}": value for name, value in plain.state_dict().items()}):
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
        checks.equal(difference(model, plain) > 0.5, True, "changed")
        model.load_state_dict(state)
        checks.equal(difference(model, plain), 0.0, "loaded")
    wrapped.load_state_dict(bare.state_dict())
    checks.equal(difference(wrapped, bare), 0.0, "nested loaded")
    checks.contains(checks.raises(RuntimeError, model.load_state_dict, {"x": torch.zeros(1)}), "convolution.weight")
    checks.raises(InvalidType, pickle.dumps, model)
    for kind in ("named_modules", "named_parameters"):
        mine, theirs = ([name for name, _ in getattr(each, kind)()] for each in (model, plain))
        checks.equal(mine, theirs, kind)
    checks.equal(next(DataParallel(nn.Linear(2, 2)).named_modules())[0], "", "root of a module without parts")
    checks.equal(model.eval().module.norm.training, False, "eval")
    checks.equal(model.train().module.norm.training, True, "train")
    checks.equal(model.to(torch.float32) is model, True, "to")
    checks.equal({p.dtype for p in model.parameters()}, {torch.float32}, "dtype")
    with torch.no_grad():
        checks.equal(model(batch(0, 2, torch.float32)[0]).shape, (2, 5), "output")
    # Without a group of its own it takes the world of the time, also that of a later context.
    checks.equal(DataParallel(SyncBatchNorm(3)).module.group, None, "group of SyncBatchNorm")
    layer = DataParallel(SyncBatchNorm(3), group=context.world).module
    checks.equal(layer.group is (context.world if context.world_size > 1 else None), True, "given group")
    return checks.failures


def test_copies_and_averages_of_parameters(rank_group: RankGroup) -> None:
    rank_group.check(copies)


def copies(context: Any) -> list[str]:
    checks = Checks(context.rank)
    model = DataParallel(synchronised(1, torch.float64), group=context.world)
    twin = copy.deepcopy(model)
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    checks.equal(difference(twin, model), 0.0, "copied")
    inputs, targets = batch(context.rank, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        average.update_parameters(model)
    checks.equal(difference(twin, model) > 0, True, "the copy has its own parameters")
    checks.equal(same_on_all_ranks(average.module, context.world), True, "averages are equal on all ranks")
    with torch.no_grad():
        checks.equal(average.eval()(inputs).shape[0], len(targets), "output")
    again = copy.deepcopy(twin)
    for copied in (twin, again, average.module):
        if context.world_size > 1:
            loss = functional.cross_entropy(copied.eval()(inputs), targets)
            checks.contains(checks.raises(InvalidArgument, loss.backward), "a copy of a DataParallel cannot be trained")
    return checks.failures


def test_an_optimizer_step_in_a_hook_is_refused_on_every_rank(rank_group: RankGroup) -> None:
    rank_group.check(step_in_a_hook)


def step_in_a_hook(context: Any) -> list[str]:
    checks = Checks(context.rank)
    if context.world_size == 1:
        return checks.failures
    for options in ({}, {"overlap": False}, TINY):
        model = DataParallel(plain_net(), **options)
        inputs, targets = numbers(context.rank, 4)
        mean_loss(model(inputs), targets).backward()  # hooks that only look are welcome
        parameter = next(model.parameters())
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
        loss = mean_loss(model(inputs), targets)
        try:
            loss.backward()
            checks.equal("nothing", "an error", "backward")
        except (StepInterrupted, PeerLost) as error:  # the second where another rank was first
            if isinstance(error, StepInterrupted):
                checks.contains(str(error), "changed during a backward pass")
    return checks.failures


def test_arguments(rank_group: RankGroup) -> None:
    rank_group.check(arguments)


def arguments(context: Any) -> list[str]:
    checks = Checks(context.rank)
    for text, options in (
        ("loss='max'", {"loss": "max"}),
        ("buffers='mine'", {"buffers": "mine"}),
        ("sync_every=0", {"sync_every": 0}),
        ("Use precision='bf16'", {"sync_every": 2, "precision": "fp16"}),
        ("precision='int8'", {"precision": "int8"}),
        ("compress='zip'", {"compress": "zip"}),
    ):
        checks.contains(checks(text).raises(InvalidArgument, DataParallel, plain_net(), **options), text)
    checks("several devices")
    if context.world_size > 1:
        checks.raises(InvalidArgument, DataParallel, plain_net(), ["cpu", "cpu"])
    model = DataParallel(plain_net(), ["cpu"])
    if context.world_size > 1:
        checks("weigh").contains(checks.raises(InvalidArgument, model, "no tensor"), "weigh")
        bad = DataParallel(plain_net(), weigh=lambda args, kwargs: -1.0)
        checks.contains(checks.raises(InvalidArgument, bad, torch.zeros(2, 3).double()), "-1.0")
    checks("accumulate").raises(InvalidArgument, lambda: model.accumulate(0).__enter__())
    return checks.failures


# --- one process ---


def test_without_a_context_it_is_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    model, whole = DataParallel(plain_net()), plain_net()
    x, y = numbers(0, 5)
    with model.join(), model.no_sync():
        loss = mean_loss(model(x), y)
        loss.backward()
    mean_loss(whole(x), y).backward()
    for mine_, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine_.grad, theirs.grad)
    model.synchronize()
    assert (model.traffic().steps, model.step_state_dict()) == (0, {})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(neuraxis.errors.NotInitialized, match="init_distributed"):
        DataParallel(plain_net())
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(neuraxis.errors.NotInitialized, match=r"group of torch\.distributed is not one"):
            DataParallel(plain_net())
    finally:
        torch.distributed.destroy_process_group()


def test_the_flat_facade_has_it() -> None:
    assert neuraxis.distributed.DataParallel is DataParallel
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = neuraxis.distributed.nothing_like_this
