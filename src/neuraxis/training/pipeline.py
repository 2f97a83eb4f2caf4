"""A module in stages: what `partition` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from neuraxis.errors import InvalidArgument
from neuraxis.training.capacity import Capacity
from neuraxis.training.rank_chain import LossFunction

__all__ = ["Chain", "Pipeline"]


class Chain(Protocol):
    """How a batch goes through the stages."""

    def forward(self, args: Sequence[Any]) -> Any: ...
    def backward_step(self, args: Sequence[Any], target: Any, loss_function: LossFunction) -> Tensor: ...
    def gathered(self, state: dict[str, Any]) -> dict[str, Any]: ...
    def exchanged(self, value: float) -> list[float]: ...


class Pipeline(nn.Module):  # type: ignore[misc]
    """A module that was cut into stages. On ranks, every rank calls the same methods.

        pipeline = partition(model, ranks=context.world)
        optimizer = torch.optim.SGD(pipeline.parameters(), 0.1)  # of this rank's stage
        loss = pipeline.backward_step((x,), y, torch.nn.functional.cross_entropy)
        optimizer.step()

    The loss is the mean over the whole batch, and gradients are those of the whole module. Batch norm sees a
    micro-batch at a time.

    Attributes:
        stage: this rank's part of the module, with the names that its parameters have in the whole.
        cuts: the units with which the second, third, ... stage begin.
        capacities: what was measured, or given; empty where it was not asked for.
        ranks: the ranks (or places in the list of devices) that have a stage, in order.
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
        self._names = dict(names)  # in the whole module's state: all names of the same tensor
        self._others = dict(others)  # what no stage uses, kept for the whole state
        self._arguments = list(arguments)  # name, default value, whether it may be left out
        if not any(True for _ in stage.parameters()):
            # An optimizer refuses an empty list, and the same program is to run on every rank.
            self.nothing_to_learn = nn.Parameter(torch.zeros(0))

    def forward(self, *args: Any) -> Any:
        """The whole output, on every rank; without gradients, which `backward_step` computes.

        Only the first stage's rank needs the arguments; elsewhere they are not looked at.
        """
        return self._chain.forward(self._complete(args))

    def backward_step(self, args: Any, target: Any, loss_function: LossFunction) -> Tensor:
        """Forward and backward of one batch. Gradients are added to `.grad`; the mean loss comes back on every rank.

        Args:
            args: the arguments of the forward, as a tuple, or one tensor; used on the first stage's rank.
            target: what `loss_function(output, target)` gets; used on the last stage's rank.
            loss_function: the mean over the rows it is given.
        """
        given = args if isinstance(args, (tuple, list)) else () if args is None else (args,)
        return self._chain.backward_step(self._complete(given), target, loss_function)

    def full_state_dict(self) -> dict[str, Tensor]:
        """The state of the whole module, under its names, on every rank (on ranks: collective)."""
        mine = {name: value.detach() for name, value in {**self._others, **self.stage.state_dict()}.items()}
        everything = self._chain.gathered(mine)
        return {
            name: everything[next(other for other in same if other in everything)] for name, same in self._names.items()
        }

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        """What all ranks together have under names of the whole module (on ranks: collective)."""
        return self._chain.gathered(state)

    def parameter_names(self) -> dict[int, str]:
        """By the `id` of each parameter that is here: its name in the whole module, the first if it has several."""
        return {id(parameter): self._names[name][0] for name, parameter in self.stage.named_parameters()}

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale gradients so that the norm of all stages' together is at most `max_norm`; the norm that it was.

        On ranks: collective. (torch's `clip_grad_norm_(pipeline.parameters(), ...)` would see one stage alone.)
        """
        if not max_norm >= 0:
            raise InvalidArgument(f"clip_grad_norm_: max_norm={max_norm} is not a number from 0 on")
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        own = _norm([torch.linalg.vector_norm(gradient, norm_type).item() for gradient in gradients], norm_type)
        norm = _norm(self._chain.exchanged(own.item()), norm_type)
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0).item()
        for gradient in gradients:
            gradient.mul_(scale)
        return norm

    def load_full_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take this rank's part of a whole module's state."""
        missing = [name for name in self.stage.state_dict() if name not in state]
        if missing:
            raise InvalidArgument(f"the state has no {missing[0]!r}: it is not that of the whole module")
        self.stage.load_state_dict({name: state[name] for name in self.stage.state_dict()})
        self._others = {name: state.get(name, value) for name, value in self._others.items()}

    def extra_repr(self) -> str:
        return f"cuts={self.cuts}, ranks={self.ranks}"

    def _complete(self, args: Sequence[Any]) -> list[Any]:
        """The arguments with defaults for those that were left out; too few only where they are not used."""
        if len(args) > len(self._arguments):
            raise InvalidArgument(f"{len(args)} arguments were given, and the module takes {len(self._arguments)}")
        return [*args, *(default for _, default, _ in self._arguments[len(args) :])]


def _norm(norms: list[float], norm_type: float) -> Tensor:
    """The norm of what has these norms."""
    return torch.linalg.vector_norm(torch.tensor(norms or [0.0], dtype=torch.float64), norm_type)
