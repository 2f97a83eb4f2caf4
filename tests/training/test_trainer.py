"""The trainer's loop equals that of one process on any number of ranks."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from neuraxis.comm import DistributedContext
from neuraxis.errors import InvalidArgument, InvalidType
from neuraxis.training import Checkpointer, DataParallel, EarlyStop, Mean, ShardSampler, Trainer, shard
from tests.ranks.processes import Ranks, run_ranks

TIMEOUT_S = 30.0
GLOBAL_BATCH = 6
Records = list[dict[str, float]]


def data(length: int = 23) -> TensorDataset:
    x = torch.randn(length, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return TensorDataset(x, x.sum(1, keepdim=True).tanh())


def off_by_half(output: Tensor, target: Tensor) -> Tensor:
    return ((output - target).abs() > 0.5).double().mean()


def net() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trainer(kind: type[Trainer] = Trainer, scheduler: Any = None, **options: Any) -> Trainer:
    """`scheduler` makes one for an optimizer."""
    model, optimizer = net()
    options = {"metrics": {"off": off_by_half}, **options}
    if scheduler is not None:
        options["scheduler"] = scheduler(optimizer)
    return kind(model, optimizer, nn.functional.mse_loss, **options)


def fitted(size: int, epochs: int = 3, loader_options: dict[str, Any] | None = None, **options: Any) -> Trainer:
    one = trainer(**options)
    loader = shard(data(), GLOBAL_BATCH // size, seed=1, **(loader_options or {}))
    one.fit(loader, epochs, validate=shard(data(7), 2, shuffle=False))
    return one


def parameters(one: Trainer) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in one.model.parameters()]).tolist()


def close(mine: Records, theirs: Records) -> bool:
    """Equal but for the order in which ranks add up."""
    keys = [list(record) for record in mine] == [list(record) for record in theirs]
    pairs = [(a[k], b[k]) for a, b in zip(mine, theirs, strict=True) for k in a]
    return keys and all(abs(a - b) <= 1e-12 for a, b in pairs)


# --- several ranks ---


def test_ranks_have_the_history_of_one_process() -> None:
    """With uneven batches: 23 samples in batches of 6 leave 5, which are 3 + 2 on two ranks, 2 + 2 + 1 on three."""
    one = fitted(1)
    assert [list(record) for record in one.history] == [["epoch", "step", "loss", "off", "val_loss", "val_off"]] * 3
    assert one.history[-1]["step"] == 12
    assert one.history[-1]["loss"] < one.history[0]["loss"]
    for size in (2, 3):
        answers = run_ranks(_fit, size, torch=True)
        assert all(answer == answers[0] for answer in answers), answers
        history, found = answers[0]
        assert close(history, one.history), (history, one.history)
        assert found == pytest.approx(parameters(one), abs=1e-12)


def _fit() -> tuple[Records, list[float]]:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        one = fitted(context.world_size)
        return list(one.history), parameters(one)


def test_accumulation_clipping_and_a_scheduler_of_steps() -> None:
    """Two batches a step; an epoch of four batches of 6, 6, 6 and 5 rows has two steps: 12 and 11 rows."""
    one = _fitted_with_all_options(1)
    assert one.step == 6
    model, optimizer = net()
    loader = shard(data(), 12, seed=1)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5**step
        if step % 2 == 0:
            batches = iter(loader)
        x, y = next(batches)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        optimizer.step()
    expected = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
    assert parameters(one) == pytest.approx(expected, abs=1e-12)
    for found in run_ranks(_fit_with_all_options, 2, torch=True):
        assert found == pytest.approx(expected, abs=1e-12)


def _fitted_with_all_options(size: int) -> Trainer:
    halving = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    one = trainer(accumulate=2, clip_norm=0.2, scheduler=halving, schedule="step")
    one.fit(shard(data(), GLOBAL_BATCH // size, seed=1), 3)
    return one


def _fit_with_all_options() -> list[float]:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        return parameters(_fitted_with_all_options(context.world_size))


def test_ranks_stop_early_together() -> None:
    """Rank 0 alone would never stop and rank 1 alone after 2 epochs: what counts is the mean."""
    assert run_ranks(_stop_early, 2, torch=True) == [6, 6]


def _stop_early() -> int:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        seen: list[int] = []

        def scripted(output: Tensor, target: Tensor) -> float:
            epoch = len(seen)
            seen.append(epoch)
            falls, rises = -1.0 * min(epoch, 3), 0.1 * epoch
            return (falls if context.rank == 0 else rises) * 2

        one = trainer(early_stop=EarlyStop("scripted", patience=2), metrics={"scripted": scripted})
        one.fit(shard(data(4), 2), 20)
        return len(one.history)


# --- what a figure is a mean of ---


class Masked(nn.Module):
    """Takes a mask with its rows; masked rows do not count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1).double()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        result: Tensor = self.layer(x)
        return result


class MaskedTrainer(Trainer):
    def forward(self, batch: Any) -> tuple[Any, Any]:
        x, mask, y = batch
        return self.model(x, mask), (mask, y)


def masked_data() -> tuple[Tensor, Tensor, Tensor]:
    x, y = data().tensors
    return x, (torch.arange(len(x)) % 5 == 0).double()[:, None], y


def masked_sum(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    return ((output - target[1]).square() * target[0]).sum()


def masked_mean(output: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
    return masked_sum(output, target) / target[0].sum().clamp(min=1)


def test_metrics_are_weighted_means() -> None:
    x, mask, y = masked_data()
    expected = masked_mean(Masked()(x, mask), (mask, y)).item()
    for answer in [_weighed(), *run_ranks(_weigh, 2, torch=True)]:
        assert answer == pytest.approx([expected] * 6, abs=1e-12)


def _weighed() -> list[float]:
    """Loss of training and of validation and a metric, of a mean and of a sum; at a rate of 0: nothing changes."""
    loader = partial(shard, TensorDataset(*masked_data()), 3, shuffle=False)
    figures = []
    for loss, function in (("mean", masked_mean), ("sum", masked_sum)):
        model = DataParallel(Masked(), loss=loss, weigh=lambda args, kwargs: float(args[1].sum()))  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        one = MaskedTrainer(model, optimizer, function, metrics={"again": masked_mean})
        record = one.fit(loader(), 1, validate=loader())[0]
        figures += [record["loss"], record["val_loss"], record["again"]]
    return figures


def _weigh() -> list[float]:
    with DistributedContext("shm", timeout=TIMEOUT_S):
        return _weighed()


def test_ranks_that_average_now_and_then_end_with_the_same_parameters() -> None:
    first, second = run_ranks(_fit_locally, 2, torch=True)
    assert first == second


def _fit_locally() -> list[float]:
    with DistributedContext("shm", timeout=TIMEOUT_S):
        model, _ = net()
        together = DataParallel(model, sync_every=3)  # of an epoch of 4 steps
        one = Trainer(together, torch.optim.SGD(together.parameters(), 0.1), nn.functional.mse_loss)
        one.fit(shard(data(), 3), 1)
        return parameters(one)


# --- resuming ---


class Interrupted(Exception):
    pass


class Interruptible(Trainer):
    """One that does not come further than 7 steps."""

    def forward(self, batch: Any) -> tuple[Any, Any]:
        if self.step == 7 and self.model.training:
            raise Interrupted
        return super().forward(batch)


@pytest.mark.parametrize("save_every", [None, 3, 4])
def test_a_training_resumes_in_mid_epoch_and_is_the_same(tmp_path: Path, save_every: int | None) -> None:
    undisturbed = fitted(1)
    first = trainer(Interruptible, checkpointer=tmp_path, save_every=save_every)
    with pytest.raises(Interrupted):
        first.fit(shard(data(), GLOBAL_BATCH, seed=1), 3, validate=shard(data(7), 2, shuffle=False))
    again = fitted(1, checkpointer=Checkpointer(tmp_path, keep=2), save_every=save_every)
    assert again.history == undisturbed.history
    assert parameters(again) == parameters(undisturbed)
    # What is finished is not done again.
    steps = Checkpointer(tmp_path).steps()
    assert steps[-1] == 12
    assert fitted(1, checkpointer=tmp_path, save_every=save_every).history == undisturbed.history


def test_another_number_of_ranks_resumes(tmp_path: Path) -> None:
    undisturbed = fitted(1)
    run_ranks(_fit_until_interrupted, 3, str(tmp_path), torch=True)
    assert Checkpointer(tmp_path).steps()[-1] == 6  # the second step of the second epoch
    for history in run_ranks(_fit_on, 2, str(tmp_path), torch=True):
        assert close(history, undisturbed.history), (history, undisturbed.history)


def _fit_until_interrupted(folder: str) -> None:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        one = trainer(Interruptible, checkpointer=folder, save_every=2)
        with pytest.raises(Interrupted):
            one.fit(shard(data(), GLOBAL_BATCH // context.world_size, seed=1), 3, validate=shard(data(7), 2))


def _fit_on(folder: str) -> Records:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        return list(fitted(context.world_size, checkpointer=folder, save_every=2).history)


# --- means ---


def test_means_of_uneven_batches() -> None:
    assert run_ranks(_mean, 3, torch=True) == [(4.0, True)] * 3


def _mean() -> tuple[float, bool]:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        mean = Mean()
        for value, n in [[(1.0, 2), (4.0, 1)], [(float("nan"), 0)], [(torch.tensor(6.0), 3)]][context.rank]:
            mean.update(value, n)
        nothing = Mean().compute()
        return mean.compute(), nothing != nothing


def test_a_mean_alone() -> None:
    mean = Mean()
    mean.update(3.0)
    mean.update(5.0, 3)
    assert mean.compute() == mean.local() == 4.5
    mean.reset()
    assert mean.compute() != mean.compute()


# --- what is shown ---


def test_nothing_is_shown_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    fitted(1)
    assert capfd.readouterr() == ("", "")


def test_one_line_an_epoch_where_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    one = fitted(1, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"epoch {epoch} of 3" for epoch in (1, 2, 3)]
    assert f"val_loss {one.history[2]['val_loss']:.4f}" in lines[2]


def test_only_rank_0_shows_it() -> None:
    with Ranks(_show, 2, torch=True) as ranks:
        outcomes = ranks.outcomes()
    assert outcomes[0].output.count("epoch") == 3
    assert outcomes[1].output == ""


def _show() -> None:
    with DistributedContext("shm", timeout=TIMEOUT_S):
        fitted(2, progress=True)


def test_a_terminal_shows_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    try:
        with open(theirs, "w") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            patch.setenv("TERM", "xterm")
            fitted(1)
            print("-- the end --", file=terminal, flush=True)
            read = b""
            while b"-- the end --" not in read:
                read += os.read(ours, 1 << 16)
    finally:
        os.close(ours)
    assert b"epoch 3 of 3" in read
    assert b"loss 0." in read
    assert b"samples/s" in read


# --- other loaders, wrong arguments ---


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(data())


def test_a_stream_of_unknown_length() -> None:
    one = trainer(progress=True)
    one.fit(shard(Stream(), GLOBAL_BATCH), 2)
    other = trainer()
    other.fit(shard(data(), GLOBAL_BATCH, shuffle=False), 2)
    assert one.history == other.history
    with pytest.raises(InvalidArgument, match="accumulate needs a loader of known length"):
        trainer(accumulate=2).fit(shard(Stream(), GLOBAL_BATCH), 1)


def test_a_stream_resumes_at_the_very_end_of_an_epoch(tmp_path: Path) -> None:
    """The state of step 4 is within the first epoch, of which no batch is left: that is no epoch without batches."""
    undisturbed = trainer()
    undisturbed.fit(shard(Stream(), GLOBAL_BATCH), 2)
    options = {"checkpointer": tmp_path, "save_every": 4}
    with pytest.raises(Interrupted):
        trainer(Interruptible, **options).fit(shard(Stream(), GLOBAL_BATCH), 2)
    assert Checkpointer(tmp_path).steps() == [4]
    again = trainer(**options)
    again.fit(shard(Stream(), GLOBAL_BATCH), 2)
    assert again.history == undisturbed.history


def batches(count: int) -> Iterator[Any]:
    x, y = data().tensors
    return ((x[:2], y[:2]) for _ in range(count))


def test_loaders_of_unequal_lengths_are_refused_by_all_ranks() -> None:
    run_ranks(_unequal, 2, torch=True)


def _unequal() -> None:
    with DistributedContext("shm", timeout=TIMEOUT_S) as context:
        with pytest.raises(InvalidArgument, match="have 3 and 4 steps"):
            trainer().fit(shard(data(7), 1, uneven="short"), 1)
        one = trainer()
        with pytest.raises(InvalidArgument, match="1 of 2 ranks have one more batch in this epoch"):
            one.fit(batches(3 + context.rank), 1)  # which nobody knows before
        assert one.step == 3
        one.fit(batches(2), 1)
        with pytest.raises(InvalidArgument, match=r"epoch 1 has no batch on any rank.*iterated again"):
            one.fit(batches(0), 2)
        assert one.evaluate(batches(context.rank))["loss"] > 0  # as many as each has
        with pytest.raises(InvalidArgument, match="no batch to evaluate on any rank"):
            one.evaluate(batches(0))


def test_a_loader_that_is_used_up_is_refused() -> None:
    one = trainer()
    with pytest.raises(InvalidArgument, match=r"epoch 1 has no batch on any rank.*iterated again"):
        one.fit(batches(3), 3)
    assert [record["step"] for record in one.history] == [3.0]
    with pytest.raises(InvalidArgument, match="no batch to evaluate"):
        trainer().fit(shard(data(), 6), 2, validate=batches(1))


def test_a_plain_loader_with_a_sampler_gets_a_new_order_each_epoch() -> None:
    sampler = ShardSampler(23, seed=1)
    loader = DataLoader(data(), batch_size=GLOBAL_BATCH, sampler=sampler)
    one = trainer()
    one.fit(loader, 3)
    assert sampler.epoch == 2
    assert parameters(one) == pytest.approx(parameters(fitted(1)), abs=1e-12)


def test_a_plateau_lowers_the_rate() -> None:
    plateau = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, threshold=1e9)
    one = trainer(scheduler=plateau)
    one.fit(shard(data(), GLOBAL_BATCH), 3)
    assert one.optimizer.param_groups[0]["lr"] < 0.1


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="save_every needs a loader that knows its position"):
        trainer(checkpointer=tmp_path, save_every=1).fit(DataLoader(data()), 1)
    with pytest.raises(InvalidArgument, match="accumulate=0"):
        trainer(accumulate=0)
    with pytest.raises(InvalidArgument, match="there is no metric 'accuracy'"):
        fitted(1, early_stop=EarlyStop("accuracy"))
    for form, name in ((lambda rows: {"x": 1, "y": 2}, "dict"), (lambda rows: rows[0][0], "Tensor")):
        with pytest.raises(InvalidArgument, match=rf"a batch is a {name}, and .*subclass whose forward"):
            trainer().fit(shard(data(), collate_fn=form), 1)
    model, optimizer = net()
    for wrong in ((None, nn.functional.mse_loss), (optimizer, None)):
        with pytest.raises(InvalidType, match="is a NoneType"):
            Trainer(model, *wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="has no parameter of the model"):
        Trainer(model, net()[1], nn.functional.mse_loss)
    with pytest.raises(InvalidArgument, match="clip_norm=-1: a number above 0"):
        trainer(clip_norm=-1)
    with pytest.raises(InvalidType, match="epochs='x': a whole number"):
        trainer().fit(shard(data()), "x")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="patience"):
        EarlyStop(patience=0)
