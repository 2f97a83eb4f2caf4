"""What a checkpoint has of a model in stages: the state of the whole module, and the optimizer's by parameter.

Each rank has a stage, and its optimizer counts only that stage's parameters. Under the names of the whole module the
states of all ranks are one, which any other number of stages can take its part of, or the module itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim.optimizer import Optimizer

from neuraxis.errors import CheckpointError, InvalidArgument
from neuraxis.training.pipeline import Pipeline

__all__ = ["WholeModel", "WholeOptimizer", "whole_parts"]


class WholeModel:
    """A pipeline as a part of a checkpoint."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def state_dict(self) -> dict[str, Any]:
        """Collective."""
        return self._pipeline.full_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pipeline.load_full_state_dict(state)


class WholeOptimizer:
    """The optimizers of all stages as one part.

    Its state is saved under the names of the parameters, the options of its groups by their number: on all ranks they
    are the same groups, each with that stage's parameters.
    """

    def __init__(self, pipeline: Pipeline, optimizer: Optimizer) -> None:
        self._pipeline = pipeline
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Collective."""
        own = self._optimizer.state_dict()
        names = self._names()
        state = {names[number]: kept for number, kept in own["state"].items() if number in names}
        options = [{key: value for key, value in group.items() if key != "params"} for group in own["param_groups"]]
        return {"state": self._pipeline.gathered(state), "param_groups": options}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self._optimizer.state_dict()
        groups = state["param_groups"]
        if len(groups) != len(own["param_groups"]):
            raise CheckpointError(f"the optimizer had {len(groups)} groups, and here it has {len(own['param_groups'])}")
        mine = {number: state["state"][name] for number, name in self._names().items() if name in state["state"]}
        merged = [
            {**options, "params": group["params"]} for options, group in zip(groups, own["param_groups"], strict=True)
        ]
        self._optimizer.load_state_dict({"state": mine, "param_groups": merged})

    def _names(self) -> dict[int, str]:
        """The name of each parameter by the number that the optimizer's state has for it."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        names = self._pipeline.parameter_names()
        return {number: names[id(one)] for number, one in enumerate(parameters) if id(one) in names}


def whole_parts(parts: Mapping[str, Any]) -> dict[str, WholeModel | WholeOptimizer]:
    """Of these parts the pipelines, and the optimizers of their parameters, as what is saved of them."""
    pipelines = [part for part in parts.values() if isinstance(part, Pipeline)]
    whole: dict[str, WholeModel | WholeOptimizer] = {}
    for name, part in parts.items():
        if isinstance(part, Pipeline):
            whole[name] = WholeModel(part)
        elif isinstance(part, Optimizer) and pipelines:
            wanted = {id(parameter) for group in part.param_groups for parameter in group["params"]}
            for pipeline in pipelines:
                own = {id(parameter) for parameter in pipeline.parameters()}
                if wanted <= own:
                    whole[name] = WholeOptimizer(pipeline, part)
                elif wanted & own:
                    raise InvalidArgument(
                        f"Checkpointer: {name} has parameters of a pipeline and others: give each its own optimizer"
                    )
    return whole
