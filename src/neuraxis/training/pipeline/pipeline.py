"""The pipeline that `partition` returns, and the execution of its stages on devices of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from neuraxis.deprecation import renamed_members
from neuraxis.errors import InvalidArgument
from neuraxis.training.pipeline.micro_batches import concatenate, row_count, split
from neuraxis.training.pipeline.planning import Capacity
from neuraxis.training.pipeline.rank_chain import Batch, LossFunction, Schedule
from neuraxis.training.pipeline.unit_graph import Stage
from neuraxis.wire.trees import map_leaves

__all__ = ["Chain", "DeviceChain", "Pipeline"]


class Chain(Protocol):
    """Execution of the stages of a pipeline."""

    def forward(self, args: Sequence[Any]) -> Any: ...
    def backward_step(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor: ...
    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]: ...
    def all_gather(self, value: float) -> list[float]: ...


@renamed_members(gathered="gather_state")
class Pipeline(nn.Module):  # type: ignore[misc]
    """Module in stages, as `partition` returns it. On ranks, every rank calls the same methods.

    The loss is the mean over the whole batch, and gradients are those of the whole module. Batch norm sees one
    micro-batch at a time.

    Attributes
    ----------
    stage : torch.nn.Module
        This rank's stage, with the parameter names of the whole module.
    cuts : tuple of str
        Submodules with which the second, third, ... stage begins.
    capacities : tuple of Capacity
        Measured or given capacities; empty if they were not needed.
    ranks : tuple of int
        Ranks (or indices of devices) that have a stage, in order.

    Examples
    --------
    >>> import torch
    >>> from neuraxis.training import partition
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    >>> pipeline = partition(model, devices=["cpu"], by="even")
    >>> optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)  # on ranks: of this rank's stage
    >>> x, y = torch.ones(8, 4), torch.zeros(8, dtype=torch.long)
    >>> losses = []
    >>> for _ in range(2):
    ...     losses.append(pipeline.backward_step(x, y, torch.nn.functional.cross_entropy))
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> bool(losses[1] < losses[0])
    True
    """

    def __init__(
        self,
        stage: nn.Module,
        chain: Chain,
        *,
        cuts: Sequence[str],
        ranks: Sequence[int],
        capacities: Sequence[Capacity],
        names: Mapping[str, Sequence[str]],
        others: Mapping[str, Tensor],
        arguments: Sequence[tuple[str, Any, bool]],
    ) -> None:
        super().__init__()
        self.stage = stage
        self.cuts = tuple(cuts)
        self.ranks = tuple(ranks)
        self.capacities = tuple(capacities)
        self._chain = chain
        self._names = dict(names)  # name in the whole module's state -> all names of the same tensor
        self._others = dict(others)  # tensors that no stage uses, for the whole state
        self._arguments = list(arguments)  # name, default value, optional or not
        if not any(True for _ in stage.parameters()):
            # An optimizer refuses an empty parameter list, and the same program must run on every rank.
            self.nothing_to_learn = nn.Parameter(torch.zeros(0))

    def forward(self, *args: Any) -> Any:
        """Return the module's output on every rank, without gradients. Collective.

        Only the rank of the first stage uses the arguments.

        Parameters
        ----------
        *args
            Arguments of the module; only the rank of the first stage uses them.

        Returns
        -------
        object
            Output of the module.
        """
        return self._chain.forward(self._complete(args))

    def backward_step(self, args: Any, target: Any, loss_function: LossFunction) -> Tensor:
        """Run forward and backward of one batch and add the gradients to `.grad`. Collective.

        Parameters
        ----------
        args : tuple or Tensor
            Arguments of the forward; used on the rank of the first stage.
        target
            Second argument of `loss_function`; used on the rank of the last stage.
        loss_function : callable
            ``loss_function(output, target)``: the mean over the rows of a micro-batch.

        Returns
        -------
        Tensor
            Mean loss over the batch (float64, no dimensions), on every rank.

        Raises
        ------
        InvalidArgument
            If `target` and input have different numbers of rows, or the loss is not a scalar tensor.
        PeerLost
            If a rank of the pipeline has ended.
        StepInterrupted
            If an earlier step failed, which ended the pipeline.
        """
        given = args if isinstance(args, (tuple, list)) else () if args is None else (args,)
        return self._chain.backward_step(self._complete(given), target, loss_function)

    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the state of the whole module, under its names, on every rank. Collective."""
        mine = {name: value.detach() for name, value in {**self._others, **self.stage.state_dict()}.items()}
        everything = self._chain.gather_state(mine)
        return {
            name: everything[next(other for other in same if other in everything)] for name, same in self._names.items()
        }

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Merge the states of all ranks, by names of the whole module. Collective.

        Parameters
        ----------
        state : dict
            State of this rank.

        Returns
        -------
        dict
            States of all ranks.
        """
        return self._chain.gather_state(state)

    def parameter_names(self) -> dict[int, str]:
        """Return the name in the whole module of each parameter of this rank, by its `id`; the first of several."""
        return {id(parameter): self._names[name][0] for name, parameter in self.stage.named_parameters()}

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale gradients so that the norm over all stages is at most `max_norm`. Collective.

        (torch's `clip_grad_norm_(pipeline.parameters(), ...)` would only see one stage.)

        Parameters
        ----------
        max_norm : float
            Largest norm.
        norm_type : float
            Order of the norm.

        Returns
        -------
        Tensor
            Norm of the gradients before.
        """
        if not max_norm >= 0:
            raise InvalidArgument(f"clip_grad_norm_: max_norm={max_norm} must be 0 or more")
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        own = _norm([torch.linalg.vector_norm(gradient, norm_type).item() for gradient in gradients], norm_type)
        norm = _norm(self._chain.all_gather(own.item()), norm_type)
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0).item()
        for gradient in gradients:
            gradient.mul_(scale)
        return norm

    def load_full_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load this rank's stage from the state of the whole module.

        Parameters
        ----------
        state : mapping
            State of the whole module, by its names.
        """
        missing = [name for name in self.stage.state_dict() if name not in state]
        if missing:
            raise InvalidArgument(f"the state has no {missing[0]!r}. Pass a state of the whole module")
        self.stage.load_state_dict({name: state[name] for name in self.stage.state_dict()})
        self._others = {name: state.get(name, value) for name, value in self._others.items()}

    def extra_repr(self) -> str:
        return f"cuts={self.cuts}, ranks={self.ranks}"

    def _complete(self, args: Sequence[Any]) -> list[Any]:
        """Append defaults for omitted arguments. Ranks that do not use the arguments may pass too few."""
        if len(args) > len(self._arguments):
            raise InvalidArgument(f"{len(args)} arguments, but the module takes {len(self._arguments)}")
        return [*args, *(default for _, default, _ in self._arguments[len(args) :])]


def _norm(norms: list[float], norm_type: float) -> Tensor:
    """Return the norm of vectors with these norms."""
    return torch.linalg.vector_norm(torch.tensor(norms or [0.0], dtype=torch.float64), norm_type)


class DeviceChain:
    """Stages on devices of one process: values are copied between devices, and autograd returns the gradients.

    Devices work concurrently, because kernels of the next micro-batch are launched while later stages still run.
    """

    def __init__(self, stages: Sequence[tuple[Stage, torch.device]], micro_batches: int, schedule: Schedule) -> None:
        self._stages = list(stages)
        self._micro_batches = micro_batches
        self._schedule = schedule
        for stage, device in stages:
            stage.module.to(device)
            stage.constants = map_leaves(lambda tensor, device=device: tensor.to(device), stage.constants, Tensor)  # type: ignore[misc]

    def forward(self, args: Sequence[Any]) -> Any:
        with torch.no_grad():
            return concatenate([self._run(values) for values in self._cut(args)[1]])

    def backward_step(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor:
        batch, batches = self._cut(args)
        if target is not None and row_count(target, "target") != batch.rows:
            raise InvalidArgument(
                f"target has {row_count(target, 'target')} rows, and the input has {batch.rows}. They must be equal"
            )
        device = self._stages[-1][1]
        targets = [None] * len(batches) if target is None else split(target, len(batches))
        total = torch.zeros((), dtype=torch.float64)
        held: list[Tensor] = []
        with torch.enable_grad():
            for number, (values, wanted) in enumerate(zip(batches, targets, strict=True)):
                wanted = map_leaves(lambda one: one.to(device), wanted, Tensor)
                loss = loss_function(self._run(values), wanted) * batch.weight(number)
                held.append(loss)
                if self._schedule == "1f1b":
                    total += _finished(held)
            total += _finished(held)
        return total

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def all_gather(self, value: float) -> list[float]:
        return [value]

    def _cut(self, args: Sequence[Any]) -> tuple[Batch, list[Any]]:
        rows = row_count(args, "args")
        count = max(1, min(self._micro_batches, rows))
        return Batch(count, rows), split(tuple(args), count)

    def _run(self, values: Sequence[Any]) -> Any:
        for stage, device in self._stages:
            here = map_leaves(lambda tensor, device=device: tensor.to(device), list(values), Tensor)  # type: ignore[misc]
            values = stage.run(here)
        return values[0]


def _finished(losses: list[Tensor]) -> Tensor:
    """Run the backward passes of the held losses and return the sum of the losses."""
    total = torch.zeros((), dtype=torch.float64)
    for loss in losses:
        if loss.requires_grad:
            loss.backward()
        total += loss.detach().to("cpu", torch.float64)
    losses.clear()
    return total
