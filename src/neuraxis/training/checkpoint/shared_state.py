"""State of all ranks as one checkpoint: what is equal, what differs, and which rank writes which part.

Of a model in pipeline stages, each rank has one stage, and its optimizer numbers only that stage's parameters. Under
the names of the whole module the states of all stages form one state, which the module itself, or any other number of
stages, can load.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from neuraxis.errors import CheckpointError, InvalidArgument
from neuraxis.store.states import SavedFolder, file_sum, json_sum, shard_name, shard_number
from neuraxis.training.checkpoint.pieces import (
    Piece,
    SavedTensor,
    assign_pieces,
    elements_in_order,
    read_pieces,
    write_pieces,
)
from neuraxis.training.pipeline.pipeline import Pipeline

__all__ = ["CollectedState", "StoredState", "WholeModel", "WholeOptimizer", "pipeline_states"]


# --- What a checkpoint has of a model in stages: the state of the whole module, and the optimizer's by parameter ---
#
class WholeModel:
    """State of the whole module of a pipeline. Both methods are collectives."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def state_dict(self) -> dict[str, Any]:
        """Collective."""
        return self._pipeline.full_state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._pipeline.load_full_state_dict(state)


class WholeOptimizer:
    """State of the optimizers of all stages as that of one optimizer.

    It is saved by parameter name; options of parameter groups by their number, since all ranks have the same groups,
    each with the parameters of its stage.
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
        return {"state": self._pipeline.gather_state(state), "param_groups": options}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        own = self._optimizer.state_dict()
        groups = state["param_groups"]
        if len(groups) != len(own["param_groups"]):
            raise CheckpointError(
                f"the saved optimizer had {len(groups)} groups, and here it has {len(own['param_groups'])}. "
                "Create the optimizer with the same parameter groups"
            )
        mine = {number: state["state"][name] for number, name in self._names().items() if name in state["state"]}
        merged = [
            {**options, "params": group["params"]} for options, group in zip(groups, own["param_groups"], strict=True)
        ]
        self._optimizer.load_state_dict({"state": mine, "param_groups": merged})

    def _names(self) -> dict[int, str]:
        """Return the name of each parameter by its number in the optimizer's state."""
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        names = self._pipeline.parameter_names()
        return {number: names[id(one)] for number, one in enumerate(parameters) if id(one) in names}


def pipeline_states(parts: Mapping[str, Any]) -> dict[str, WholeModel | WholeOptimizer]:
    """Return wrappers for the pipelines among `parts`, and for the optimizers of their parameters."""
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
                        f"Checkpointer: {name} has parameters of a pipeline and others. Use one optimizer for each"
                    )
    return whole


class CollectedState:
    """State of one rank to save: trees of plain data by name, and the tensors that they refer to."""

    def __init__(self, trees: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self.trees = trees
        self.tensors = tensors
        self.described = {name: SavedTensor.of(tensor) for name, tensor in tensors.items()}

    def layout(self) -> list[Any]:
        """Return the name, dtype, shape and strides of all tensors, which must be equal on all ranks."""
        return [[name, one.dtype, list(one.shape), list(one.stride or ())] for name, one in self.described.items()]

    def layout_sum(self) -> int:
        return json_sum(self.layout())

    def trees_sum(self) -> int:
        return json_sum(self.trees)

    def tensor_sums(self) -> list[int]:
        """Return a CRC-32 for each tensor, to find those that differ between ranks."""
        return [_crc(tensor) for tensor in self.tensors.values()]

    def assigned(self, differing: Iterable[str], size: int) -> list[Piece]:
        """Return which rank writes which part of which tensor."""
        elements = {name: tensor.numel() for name, tensor in self.tensors.items()}
        weights = {name: tensor.numel() * tensor.element_size() for name, tensor in self.tensors.items()}
        return assign_pieces(weights, elements, differing, size)

    def write(self, data: Path, rank: int, pieces: Iterable[Piece]) -> tuple[str, int, int]:
        """Write one rank's pieces and return the file's name, size in bytes and CRC-32."""
        path = data / shard_name(rank)
        write_pieces(path, self.tensors, [piece for piece in pieces if piece.rank == rank])
        return path.name, *file_sum(path)


class StoredState:
    """Tensors of a checkpoint, as its manifest describes them."""

    def __init__(self, saved: SavedFolder) -> None:
        manifest = saved.metadata
        self._size = int(manifest["size"])
        self._files = {shard_number(name): saved.data / name for name in saved.files}
        self._described = {
            name: SavedTensor(dtype, tuple(shape), None if stride is None else tuple(stride))
            for name, (dtype, shape, stride) in manifest["tensors"].items()
        }
        self._pieces = [Piece(*piece) for piece in manifest["pieces"]]

    def read(self, names: set[str], rank: int | None) -> dict[str, Tensor]:
        """Read tensors to the CPU; of those that differed between ranks, the values of `rank`, or of all for None."""
        shared = [piece for piece in self._pieces if piece.tensor in names and not piece.own]
        own = [piece for piece in self._pieces if piece.tensor in names and piece.own]
        tensors = read_pieces(self._files, shared, self._described)
        if rank is not None:
            return tensors | self._version(own, rank)
        versions = [self._version(own, one) for one in range(self._size)] if own else []
        return tensors | {name: _one_for_all([each[name] for each in versions]) for name in (versions or [{}])[0]}

    def _version(self, own: list[Piece], rank: int) -> dict[str, Tensor]:
        mine = [piece for piece in own if piece.rank == rank]
        return read_pieces(self._files, mine, self._described)


def _one_for_all(versions: list[Tensor]) -> Tensor:
    """Return the mean of floating-point tensors, computed in double precision, or the first of others."""
    first = versions[0]
    if not (first.is_floating_point() or first.is_complex()):
        return first
    wide = torch.complex128 if first.is_complex() else torch.float64
    total = torch.zeros_like(first, dtype=wide)
    for version in versions:
        total += version
    return (total / len(versions)).to(first.dtype)


def _crc(tensor: Tensor) -> int:
    flat = elements_in_order(tensor).cpu()
    return zlib.crc32(flat.view(torch.uint8).numpy()) if flat.numel() else 0
