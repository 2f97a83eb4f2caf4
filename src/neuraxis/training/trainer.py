"""A training loop for those who want one: it does what a careful loop of your own would, with the same public parts.

Everything that decides how the loop goes on (the figures of an epoch, early stop, when to save) is the same on all
ranks, because it comes from averages over all ranks and from counts that all ranks share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neuraxis.comm import Communicator
from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType
from neuraxis.training.arguments import whole_number
from neuraxis.training.checkpointer import Checkpointer, Stateful
from neuraxis.training.chosen_group import exchanged, group_or_world
from neuraxis.training.data_parallel import DataParallel
from neuraxis.training.metrics import Mean, compute_means
from neuraxis.training.progress import EpochProgress
from neuraxis.training.weighting import first_tensor

__all__ = ["EarlyStop", "History", "Trainer"]

Measure = Callable[[Any, Any], Any]


class History(list[dict[str, float]]):
    """One record an epoch: "epoch", "step", "loss" and the metrics, with "val_" in front what `validate` gave."""


@dataclass(frozen=True)
class EarlyStop:
    """Stop after `patience` epochs in which `metric` was not better than the best by more than `least`.

    `metric` is that of the validation where there is one, else that of the training.
    """

    metric: str = "loss"
    patience: int = 3
    least: float = 0.0
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.patience < 1 or self.mode not in ("min", "max"):
            raise InvalidArgument(f"{self}: patience is at least 1, mode is 'min' or 'max'")


class Trainer:
    """Trains a model on batches (inputs, ..., target); `fit` goes on where a saved training was.

    All ranks must have equally many batches in an epoch. A loader without a length (a generator, a stream) is asked for
    one batch at a time, and the ranks agree before each step on whether there is one more. What is iterated once for
    each epoch must begin anew then, which a generator does not.

    Args:
        model: a module, which becomes a `DataParallel`, or one that is.
        optimizer: of parameters of the model.
        loss: loss(output, target), the mean over the batch's rows; with a `DataParallel` that has `weigh` or
            `loss="sum"`, as that says. What is recorded is the mean over all that the model weighed.
        scheduler: stepped after each epoch, or with `schedule="step"` after each step.
        metrics: further figures, metric(output, target), each a mean over the rows (or over what `weigh` counts).
        checkpointer: where to save, or the folder. Model, optimizer, scheduler, scaler, loader and the trainer itself
            become parts of it.
        save_every: steps between two states; after each epoch by default.
        accumulate: batches that make one step.
        clip_norm: the largest norm of all gradients together.
        progress: None shows it on a terminal, True elsewhere too, False never; rank 0 only.
        group: the ranks that train together; the world by default.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Measure,
        *,
        scheduler: Any = None,
        schedule: Literal["epoch", "step"] = "epoch",
        metrics: Mapping[str, Measure] | None = None,
        checkpointer: Checkpointer | str | Path | None = None,
        save_every: int | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        early_stop: EarlyStop | None = None,
        progress: bool | None = None,
        group: Communicator | None = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidType(f"Trainer: optimizer is a {type(optimizer).__name__}, one of torch's is expected")
        if not callable(loss):
            raise InvalidType(f"Trainer: loss is a {type(loss).__name__}, a function is expected")
        if clip_norm is not None and not (isinstance(clip_norm, int | float) and clip_norm > 0):
            raise InvalidArgument(f"Trainer: clip_norm={clip_norm!r}: a number above 0 is expected")
        self._save_every = None if save_every is None else whole_number(save_every, "Trainer: save_every")
        self._accumulate = whole_number(accumulate, "Trainer: accumulate")
        if schedule not in ("epoch", "step"):
            raise InvalidArgument(f"Trainer: schedule={schedule!r} is neither 'epoch' nor 'step'")
        self.group = group_or_world(group, "Trainer")
        self.model = model if isinstance(model, DataParallel) else DataParallel(model, group=group)
        mine = {id(parameter) for parameter in self.model.parameters()}
        if not any(id(parameter) in mine for one in optimizer.param_groups for parameter in one["params"]):
            raise InvalidArgument(
                "Trainer: the optimizer has no parameter of the model, so nothing would be learned: make it of "
                "model.parameters(), of the same module"
            )
        self.optimizer = optimizer
        self.loss = loss
        self.scheduler = scheduler
        self.metrics = dict(metrics or {})
        if "loss" in self.metrics:
            raise InvalidArgument("Trainer: metrics: 'loss' is the name of the loss itself")
        self.early_stop = early_stop
        self.epoch = 0
        self.step = 0
        self.history = History()
        self._schedule = schedule
        self._clip_norm = clip_norm
        self._progress = progress
        self._means = self._new_means()
        self._saved_at = (-1, -1)  # step and epoch
        self._checkpointer = (
            checkpointer if isinstance(checkpointer, Checkpointer | None) else Checkpointer(checkpointer, group=group)
        )

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank

    # --- training ---

    def fit(self, loader: Any, epochs: int, *, validate: Any = None) -> History:
        """Train until `epochs` epochs are over, those of the saved training included; their records.

        At the end all ranks have the same parameters, also with `sync_every`.
        """
        epochs = whole_number(epochs, "Trainer: epochs", least=0)
        self._resume(loader)
        while self.epoch < epochs and not self.stopped:
            self._train_epoch(loader, epochs, validate)
            self._save(self._save_every is None)
        self._save(True)
        if self._checkpointer is None:  # else saving did it
            self.model.synchronize()
        return self.history

    def _train_epoch(self, loader: Any, epochs: int, validate: Any) -> None:
        _set_epoch(loader, self.epoch)
        self.model.train()
        steps = _length(loader)
        left = _steps_left(loader, steps)
        if len(everybody := set(exchanged(self.group, left))) > 1:
            raise InvalidArgument(
                f"Trainer: the ranks' loaders have {' and '.join(sorted(map(str, everybody)))} steps in this epoch, "
                'and all must have equally many: see shard(..., uneven="empty")'
            )
        if self._accumulate > 1 and left is None:
            raise InvalidArgument("Trainer: accumulate needs a loader of known length, to step at an epoch's end")
        done = 0 if steps is None or left is None else steps - left
        batches = 0
        with EpochProgress(self.epoch, epochs, steps, done, rank=self.rank, shown=self._progress) as progress:
            for batch in loader if left is not None else self._while_all_have_one(loader):
                batches += 1
                left = None if left is None else left - 1
                samples = self._train_batch(batch, last=left == 0)
                progress.step(samples, self._means["loss"].local())
            record = {"epoch": float(self.epoch), "step": float(self.step), **compute_means(self._means, self.group)}
            # Not so where a training resumes at the very end of an epoch: that has been measured.
            if batches + done == 0 and math.isnan(record["loss"]):
                raise InvalidArgument(
                    f"Trainer: epoch {self.epoch} has no batch on any rank: give a loader that can be iterated again "
                    "in each epoch (see shard; a generator is used up after one), and data that is not empty"
                )
            self._means = self._new_means()
            if validate is not None:
                record |= {f"val_{name}": value for name, value in self.evaluate(validate).items()}
            self.history.append(record)
            self.epoch += 1
            progress.end(record)
        if self.scheduler is not None and self._schedule == "epoch":
            if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                self.scheduler.step(record.get("val_loss", record["loss"]))
            else:
                self.scheduler.step()

    def _while_all_have_one(self, loader: Any) -> Iterator[Any]:
        """The batches of a loader whose length is not known; InvalidArgument on all ranks where only some have one."""
        batches = iter(loader)
        nothing = object()
        size = 1 if self.group is None else self.group.size
        while True:
            batch = next(batches, nothing)
            have_one = np.array([batch is not nothing], np.int64)
            if self.group is not None:
                self.group.all_reduce(have_one)
            if have_one[0] == 0:
                return
            if have_one[0] < size:
                raise InvalidArgument(
                    f"Trainer: {have_one[0]} of {size} ranks have one more batch in this epoch, and all must have "
                    'equally many: see shard(..., uneven="empty")'
                )
            yield batch

    def _train_batch(self, batch: Any, last: bool) -> float:
        batch = self._moved(batch)
        block = nullcontext() if self._accumulate == 1 else self.model.accumulate(self._accumulate, last=last)
        with block as micro:
            output, target = self.forward(batch)
            samples = float(self.model.last_weight)
            loss = self.loss(output, target)
            self.model.scaler.scale(loss).backward()
            complete = micro is None or micro.complete
        self._measure(self._means, loss, output, target, samples)
        if complete:
            self._update()
            self._save()
        return samples

    def _update(self) -> None:
        scaler = self.model.scaler
        if self._clip_norm is not None:
            scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()
        self.step += 1
        if self.scheduler is not None and self._schedule == "step":
            self.scheduler.step()

    def forward(self, batch: Any) -> tuple[Any, Any]:
        """The model's output for a batch, and its target: the last entry. Override it for batches of another form."""
        parts = [] if isinstance(batch, Mapping | Tensor) or not isinstance(batch, Iterable) else list(batch)
        if len(parts) < 2:
            raise InvalidArgument(
                f"Trainer: a batch is a {type(batch).__name__}, and (inputs, ..., target) is expected: for batches of "
                "another form make a subclass whose forward(self, batch) returns the model's output and the target"
            )
        *inputs, target = parts
        return self.model(*inputs), target

    def evaluate(self, loader: Any) -> dict[str, float]:
        """Loss and metrics over all batches of all ranks, without training. Collective."""
        means = self._new_means()
        batches = Mean()
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                for batch in loader:
                    batches.update(1.0)
                    tensor = first_tensor(batch)
                    if tensor is None or len(tensor):
                        output, target = self.forward(self._moved(batch))
                        weight = float(self.model.last_weight)
                        self._measure(means, self.loss(output, target), output, target, weight)
        finally:
            self.model.train(was_training)
        figures = compute_means({**means, "": batches}, self.group)
        if math.isnan(figures.pop("")):
            raise InvalidArgument(
                "Trainer: there is no batch to evaluate on any rank: give a loader that can be iterated again (a "
                "generator is used up after one epoch), and data that is not empty"
            )
        return figures

    def _measure(self, means: dict[str, Mean], loss: Any, output: Any, target: Any, samples: float) -> None:
        """Count the figures of a batch that weighs `samples`."""
        if samples:
            with torch.no_grad():
                means["loss"].update(loss.detach() / (samples if self.model.loss == "sum" else 1.0), samples)
                for name, metric in self.metrics.items():
                    means[name].update(metric(output, target), samples)

    def _new_means(self) -> dict[str, Mean]:
        return {name: Mean() for name in ("loss", *self.metrics)}

    def _moved(self, batch: Any) -> Any:
        parameter = next(self.model.parameters(), None)
        return batch if parameter is None else _to_device(batch, parameter.device)

    # --- early stop ---

    @property
    def stopped(self) -> bool:
        """Whether the early stop says that it is enough; the same on all ranks, as the history is."""
        rule = self.early_stop
        if rule is None or not self.history:
            return False
        name = f"val_{rule.metric}" if f"val_{rule.metric}" in self.history[-1] else rule.metric
        if name not in self.history[-1]:
            raise InvalidArgument(f"EarlyStop: there is no metric {rule.metric!r}; there are {list(self.history[-1])}")
        sign = 1.0 if rule.mode == "min" else -1.0
        best, since = math.inf, 0
        for record in self.history:
            value = sign * record.get(name, math.nan)
            if value < best - rule.least:  # never with NaN
                best, since = value, 0
            else:
                since += 1
        return since >= rule.patience

    # --- saving ---

    def _resume(self, loader: Any) -> None:
        if self._checkpointer is None:
            return
        if self._save_every is not None and not isinstance(loader, Stateful):
            raise InvalidArgument(
                "Trainer: save_every needs a loader that knows its position (see shard), "
                "else a resumed epoch would begin anew"
            )
        parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.model.scaler, "trainer": self}
        if self.scheduler is not None:
            parts["scheduler"] = self.scheduler
        if isinstance(loader, Stateful):
            parts["loader"] = loader
        first = "trainer" not in self._checkpointer.parts
        self._checkpointer.add(**parts)
        if first:
            self._checkpointer.restore()

    def _save(self, now: bool = False) -> None:
        if self._checkpointer is None or self._saved_at == (self.step, self.epoch):
            return
        if now or (self._save_every is not None and self.step % self._save_every == 0):
            self._saved_at = (self.step, self.epoch)
            self._checkpointer.save(self.step)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step, "history": [dict(record) for record in self.history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]
        self.history[:] = state["history"]
        self._saved_at = (self.step, self.epoch)

    def step_state_dict(self) -> dict[str, Any]:
        """What this rank has summed up of the epoch under way."""
        sums = [(mean.total, mean.count) for mean in self._means.values()]
        size = 1 if self.group is None else self.group.size
        return {"sums": torch.tensor(sums, dtype=torch.float64), "ranks": size, "names": list(self._means)}

    def load_step_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these sums; from another number of ranks they come as a mean, and are dealt anew."""
        if state["names"] != list(self._means):
            raise CheckpointError(f"the metrics were {state['names']}, here they are {list(self._means)}")
        share = state["ranks"] / (1 if self.group is None else self.group.size)
        for mean, (total, count) in zip(self._means.values(), state["sums"].tolist(), strict=True):
            mean.total, mean.count = total * share, count * share


def _to_device(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: _to_device(part, device) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to_device(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(_to_device(part, device) for part in batch)
    return batch


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _steps_left(loader: Any, steps: int | None) -> int | None:
    return steps if steps is None else int(getattr(loader, "steps_left", steps))


def _set_epoch(loader: Any, epoch: int) -> None:
    """Tell a sampler of a plain DataLoader which epoch it is, so that its order changes. (A ShardLoader knows.)"""
    told = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    if told is not None:
        told(epoch)
