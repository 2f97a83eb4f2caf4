"""Training loop for `DataParallel` models: epochs, metrics, gradient accumulation, early stopping and checkpoints.

Every decision of the loop (metrics of an epoch, early stopping, when to save) is the same on all ranks, because it
follows from averages over all ranks and from counters that all ranks share.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neuraxis.arguments import is_number, whole
from neuraxis.comm import Communicator
from neuraxis.errors import CheckpointError, InvalidArgument, InvalidType
from neuraxis.progress import ProgressLine
from neuraxis.training.checkpoint.checkpointer import Checkpointer, Stateful
from neuraxis.training.parallel.data_parallel import DataParallel
from neuraxis.training.parallel.group import gather_objects, group_or_world
from neuraxis.training.parallel.weighting import first_tensor
from neuraxis.wire.trees import map_leaves

__all__ = ["EarlyStop", "History", "Mean", "Trainer", "compute_means"]


class Mean:
    """Weighted mean over the samples of all ranks.

    `update` is local, `compute` is a collective. An update with ``n=0`` is ignored, because the mean loss of an empty
    batch is NaN.

    Attributes
    ----------
    total : float
        Sum of ``value * n`` on this rank.
    count : float
        Sum of ``n`` on this rank.

    Examples
    --------
    >>> from neuraxis.training import Mean
    >>> accuracy = Mean()
    >>> accuracy.update(0.5, n=30)
    >>> accuracy.update(1.0, n=10)
    >>> accuracy.local()
    0.625
    """

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0.0

    def update(self, value: Any, n: float = 1) -> None:
        """Add the mean of some samples.

        Parameters
        ----------
        value : float or Tensor
            Mean of the samples: a number or a tensor of one element.
        n : float
            Number of samples.
        """
        if n:
            self.total += float(value) * n
            self.count += n

    def local(self) -> float:
        """Return the mean on this rank, or NaN without samples."""
        return self.total / self.count if self.count else float("nan")

    def compute(self, group: Communicator | None = None) -> float:
        """Return the mean over all ranks. Collective.

        Parameters
        ----------
        group : Communicator, optional
            The ranks; by default all.

        Returns
        -------
        float
            The mean; NaN without samples.
        """
        return compute_means({"": self}, group)[""]

    def reset(self) -> None:
        """Discard all samples."""
        self.total = self.count = 0.0


def compute_means(means: Mapping[str, Mean], group: Communicator | None = None) -> dict[str, float]:
    """Reduce several means over all ranks in one all-reduce. All ranks pass the same names in the same order."""
    members = group_or_world(group, "Mean")
    sums = np.array([(mean.total, mean.count) for mean in means.values()], np.float64).reshape(-1, 2)
    if members is not None and sums.size:
        members.all_reduce(sums)
    return {
        name: float(total / count) if count else float("nan") for name, (total, count) in zip(means, sums, strict=True)
    }


Measure = Callable[[Any, Any], Any]


class History(list[dict[str, float]]):
    """List of one record per epoch.

    A record maps "epoch", "step", "loss" and the names of the metrics to floats. Values of the validation set have the
    prefix "val_".
    """


@dataclass(frozen=True)
class EarlyStop:
    """Stop when `metric` has not improved for `patience` epochs.

    Parameters
    ----------
    metric : str
        Name of a metric or "loss". Its validation value is used where there is one, else its training value.
    patience : int
        Number of epochs without an improvement.
    least : float
        Smallest change that counts as an improvement.
    mode : {"min", "max"}
        "min" if a smaller value is better, "max" if a larger one is.

    Raises
    ------
    InvalidArgument
        If `patience` is below 1 or `mode` is unknown.

    Examples
    --------
    >>> from neuraxis.training import EarlyStop
    >>> EarlyStop("accuracy", patience=5, mode="max")
    EarlyStop(metric='accuracy', patience=5, least=0.0, mode='max')
    """

    metric: str = "loss"
    patience: int = 3
    least: float = 0.0
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.patience < 1 or self.mode not in ("min", "max"):
            raise InvalidArgument(f"{self}: patience must be at least 1, and mode 'min' or 'max'")


class Trainer:
    """Training loop over batches ``(inputs, ..., target)``; `fit` resumes from the newest checkpoint.

    All ranks must have the same number of batches in an epoch. For a loader without a length (a stream), the ranks
    agree before each step on whether there is another batch. The loader is iterated once per epoch, so it must be
    re-iterable; a generator is not.

    Parameters
    ----------
    model : torch.nn.Module
        Model to train; wrapped in a `DataParallel` unless it is one.
    optimizer : torch.optim.Optimizer
        Optimizer of the parameters of `model`.
    loss : callable
        ``loss(output, target)``: the mean over the rows of a batch, or what the `loss` and `weigh` arguments of a given
        `DataParallel` state.
    scheduler : optional
        Learning rate scheduler, stepped as `schedule` says.
    schedule : {"epoch", "step"}
        Step the scheduler after each epoch or after each optimizer step.
    metrics : mapping of str to callable, optional
        Further ``metric(output, target)`` functions; each returns a mean over the rows of a batch.
    checkpointer : Checkpointer or path, optional
        Checkpointer, or folder of checkpoints. Model, optimizer, scheduler, scaler, loader and trainer are added to it.
    save_every : int, optional
        Optimizer steps between two checkpoints; by default one checkpoint per epoch.
    accumulate : int
        Micro-batches per optimizer step (gradient accumulation).
    clip_norm : float, optional
        Maximum norm of all gradients together.
    early_stop : EarlyStop, optional
        Criterion to stop before `epochs` epochs.
    progress : bool, optional
        Show progress on rank 0: None only on a terminal, True always, False never.
    group : Communicator, optional
        Ranks that train together; the world by default.

    Attributes
    ----------
    epoch, step : int
        Completed epochs and optimizer steps.
    history : History
        One record per epoch.

    Raises
    ------
    InvalidArgument
        If an option is out of range, or the optimizer has no parameter of the model.
    InvalidType
        If `optimizer` or `loss` has the wrong type.

    Examples
    --------
    >>> import torch
    >>> from neuraxis.training import Trainer
    >>> x = torch.linspace(-1, 1, 32).reshape(16, 2)
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> trainer = Trainer(model, optimizer, torch.nn.functional.mse_loss)
    >>> history = trainer.fit([(x, x.sum(1, keepdim=True))], epochs=20)
    >>> history[-1]["loss"] < history[0]["loss"]
    True
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
            raise InvalidType(f"Trainer: optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer")
        if not callable(loss):
            raise InvalidType(f"Trainer: loss is a {type(loss).__name__}; pass a function loss(output, target)")
        if clip_norm is not None and not (is_number(clip_norm) and clip_norm > 0):
            raise InvalidArgument(f"Trainer: clip_norm={clip_norm!r}: a number above 0 is expected")
        self._save_every = None if save_every is None else whole(save_every, "Trainer: save_every", 1)
        self._accumulate = whole(accumulate, "Trainer: accumulate", 1)
        if schedule not in ("epoch", "step"):
            raise InvalidArgument(f"Trainer: schedule={schedule!r} is neither 'epoch' nor 'step'")
        self.group = group_or_world(group, "Trainer")
        self.model = model if isinstance(model, DataParallel) else DataParallel(model, group=group)
        mine = {id(parameter) for parameter in self.model.parameters()}
        if not any(id(parameter) in mine for one in optimizer.param_groups for parameter in one["params"]):
            raise InvalidArgument(
                "Trainer: the optimizer has no parameter of the model, so training would have no effect. Create it "
                "from model.parameters() of the same module"
            )
        self.optimizer = optimizer
        self.loss = loss
        self.scheduler = scheduler
        self.metrics = dict(metrics or {})
        if "loss" in self.metrics:
            raise InvalidArgument("Trainer: metrics: the name 'loss' is reserved for the loss")
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
        """Rank of this process in `group`; 0 without one."""
        return 0 if self.group is None else self.group.rank

    def fit(self, loader: Any, epochs: int, *, validate: Any = None) -> History:
        """Train until `epochs` epochs are complete, including those of a restored checkpoint. Collective.

        At the end all ranks have the same parameters, also with ``sync_every > 1``.

        Parameters
        ----------
        loader : iterable
            Batches of one epoch, re-iterable; see `shard`.
        epochs : int
            Total number of epochs.
        validate : iterable, optional
            Batches to evaluate after each epoch.

        Returns
        -------
        History
            One record per epoch.

        Raises
        ------
        InvalidArgument
            If the ranks have different numbers of batches, or no rank has any.
        CheckpointError
            If the newest checkpoint does not fit this trainer.
        """
        epochs = whole(epochs, "Trainer: epochs", 0)
        self._resume(loader)
        while self.epoch < epochs and not self.stopped:
            self._train_epoch(loader, epochs, validate)
            self._save(self._save_every is None)
        self._save(True)
        if self._checkpointer is None:  # else saving has synchronized
            self.model.synchronize()
        return self.history

    def _train_epoch(self, loader: Any, epochs: int, validate: Any) -> None:
        _set_epoch(loader, self.epoch)
        self.model.train()
        steps = _length(loader)
        left = _steps_left(loader, steps)
        if len(lengths := set(gather_objects(self.group, left))) > 1:
            raise InvalidArgument(
                f"Trainer: the loaders of the ranks have {' and '.join(sorted(map(str, lengths)))} steps in this "
                'epoch. All ranks need the same number: use shard(..., uneven="empty")'
            )
        if self._accumulate > 1 and left is None:
            raise InvalidArgument(
                "Trainer: accumulate needs a loader of known length, to complete the last step of an epoch"
            )
        done = 0 if steps is None or left is None else steps - left
        batches = 0
        with _EpochProgress(self.epoch, epochs, steps, done, rank=self.rank, shown=self._progress) as progress:
            for batch in loader if left is not None else self._batches_in_step(loader):
                batches += 1
                left = None if left is None else left - 1
                samples = self._train_batch(batch, last=left == 0)
                progress.step(samples, self._means["loss"].local())
            record = {"epoch": float(self.epoch), "step": float(self.step), **compute_means(self._means, self.group)}
            # A run that resumes at the very end of an epoch has no batch left, but has metrics from before.
            if batches + done == 0 and math.isnan(record["loss"]):
                raise InvalidArgument(
                    f"Trainer: epoch {self.epoch} has no batch on any rank. Pass a non-empty loader that can be "
                    "iterated again in each epoch, as shard(...) makes; a generator is exhausted after one epoch"
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

    def _batches_in_step(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of a loader of unknown length while all ranks have one.

        Every rank raises InvalidArgument if only some ranks have another batch.
        """
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
                    f"Trainer: {have_one[0]} of {size} ranks have one more batch in this epoch. All ranks need the "
                    "same "
                    'number: use shard(..., uneven="empty")'
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
        """Return the model's output for a batch, and the target. Override for other batch layouts.

        Parameters
        ----------
        batch : object
            Batch of the loader.

        Returns
        -------
        tuple
            Output of the model, and the target: the last entry of the batch.
        """
        parts = [] if isinstance(batch, Mapping | Tensor) or not isinstance(batch, Iterable) else list(batch)
        if len(parts) < 2:
            raise InvalidArgument(
                f"Trainer: a batch is a {type(batch).__name__}, and not a sequence (inputs, ..., target). For another "
                "layout, write a subclass whose forward(self, batch) returns the model's output and the target"
            )
        *inputs, target = parts
        return self.model(*inputs), target

    def evaluate(self, loader: Any) -> dict[str, float]:
        """Return loss and metrics over the batches of all ranks, without training. Collective.

        Parameters
        ----------
        loader : iterable
            Batches of this rank.

        Returns
        -------
        dict of str to float
            Loss and metrics by name.

        Raises
        ------
        InvalidArgument
            If no rank has a batch.
        """
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
                "Trainer: there is no batch to evaluate on any rank. Pass a non-empty loader that can be iterated "
                "again; a generator is exhausted after one epoch"
            )
        return figures

    def _measure(self, means: dict[str, Mean], loss: Any, output: Any, target: Any, samples: float) -> None:
        """Add loss and metrics of a batch whose weight is `samples`."""
        if samples:
            with torch.no_grad():
                means["loss"].update(loss.detach() / (samples if self.model.loss == "sum" else 1.0), samples)
                for name, metric in self.metrics.items():
                    means[name].update(metric(output, target), samples)

    def _new_means(self) -> dict[str, Mean]:
        return {name: Mean() for name in ("loss", *self.metrics)}

    def _moved(self, batch: Any) -> Any:
        parameter = next(self.model.parameters(), None)
        if parameter is None:
            return batch
        return map_leaves(lambda tensor: tensor.to(parameter.device, non_blocking=True), batch, Tensor)

    # --- early stopping ---

    @property
    def stopped(self) -> bool:
        """True when `early_stop` applies. Equal on all ranks, because the history is."""
        rule = self.early_stop
        if rule is None or not self.history:
            return False
        name = f"val_{rule.metric}" if f"val_{rule.metric}" in self.history[-1] else rule.metric
        if name not in self.history[-1]:
            raise InvalidArgument(f"EarlyStop: there is no metric {rule.metric!r}. Use one of {list(self.history[-1])}")
        sign = 1.0 if rule.mode == "min" else -1.0
        best, since = math.inf, 0
        for record in self.history:
            value = sign * record.get(name, math.nan)
            if value < best - rule.least:  # never with NaN
                best, since = value, 0
            else:
                since += 1
        return since >= rule.patience

    # --- checkpoints ---

    def _resume(self, loader: Any) -> None:
        if self._checkpointer is None:
            return
        if self._save_every is not None and not isinstance(loader, Stateful):
            raise InvalidArgument(
                "Trainer: save_every needs a loader that knows its position, or a resumed epoch would start over. "
                "Use shard(...)"
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
        """Return the progress of the training, for a `Checkpointer`.

        Returns
        -------
        dict
            Epoch, step and history.
        """
        return {"epoch": self.epoch, "step": self.step, "history": [dict(record) for record in self.history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the progress of the training.

        Parameters
        ----------
        state : mapping
            State from `state_dict`.
        """
        self.epoch, self.step = state["epoch"], state["step"]
        self.history[:] = state["history"]
        self._saved_at = (self.step, self.epoch)

    def step_state_dict(self) -> dict[str, Any]:
        """Return this rank's metric sums of the current epoch."""
        sums = [(mean.total, mean.count) for mean in self._means.values()]
        size = 1 if self.group is None else self.group.size
        return {"sums": torch.tensor(sums, dtype=torch.float64), "ranks": size, "names": list(self._means)}

    def load_step_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore metric sums; those of another number of ranks are averages, which are rescaled to this number.

        Parameters
        ----------
        state : mapping
            State from `step_state_dict`.

        Raises
        ------
        CheckpointError
            The state is that of a trainer with other metrics.
        """
        if state["names"] != list(self._means):
            raise CheckpointError(
                f"the checkpoint has the metrics {state['names']}, and this trainer {list(self._means)}. "
                "Create the trainer with the same metrics"
            )
        share = state["ranks"] / (1 if self.group is None else self.group.size)
        for mean, (total, count) in zip(self._means.values(), state["sums"].tolist(), strict=True):
            mean.total, mean.count = total * share, count * share


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def _steps_left(loader: Any, steps: int | None) -> int | None:
    return steps if steps is None else int(getattr(loader, "steps_left", steps))


def _set_epoch(loader: Any, epoch: int) -> None:
    """Pass the epoch to the sampler of a plain DataLoader, so that its order changes. (A ShardLoader counts epochs.)"""
    set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    if set_epoch is not None:
        set_epoch(epoch)


class _EpochProgress:
    """Context manager that shows the progress of one epoch on rank 0.

    Parameters
    ----------
    steps : int or None
        Steps of the epoch; None if unknown.
    shown : bool or None
        None draws a progress line on a terminal only. True also prints one line of text per epoch elsewhere.
    """

    def __init__(self, epoch: int, epochs: int, steps: int | None, done: int, *, rank: int, shown: bool | None) -> None:
        self._title = f"epoch {epoch + 1} of {epochs}"
        terminal = sys.stderr.isatty()
        draws = rank == 0 and shown is not False and terminal
        self._prints = rank == 0 and shown is True and not terminal
        self._line = ProgressLine(self._title, float("inf") if steps is None else steps, enabled=draws)
        self._done = done
        self._samples = 0.0
        self._since = time.monotonic()

    def step(self, samples: float, loss: float) -> None:
        """Count a step of `samples` samples on this rank; `loss` is the mean loss on this rank so far."""
        self._done += 1
        self._samples += samples
        seconds = time.monotonic() - self._since
        speed = f", {self._samples / seconds:,.0f} samples/s" if seconds > 0 else ""
        self._line.update(self._done, f"loss {loss:.4f}{speed}")

    def end(self, record: Mapping[str, float]) -> None:
        """Print the record of the epoch."""
        if self._prints:
            shown = [f"{name} {value:.4f}" for name, value in record.items() if name not in ("epoch", "step")]
            print(f"{self._title}: {', '.join(shown)}", file=sys.stderr, flush=True)

    def __enter__(self) -> _EpochProgress:
        self._line.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._line.__exit__(None, None, None)
