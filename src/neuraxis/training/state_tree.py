"""Nested state as plain JSON and named tensors, and back: what `state_dict()` of torch's parts is made of.

Nothing is pickled: what is not in the list here is refused, with its path, when it is saved. Keys keep their types (an
optimizer's are integers), a tensor that is there twice (tied weights) is written once.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neuraxis.errors import CheckpointError, InvalidType

__all__ = ["flatten", "tensor_names", "torch_type", "unflatten"]

# A dictionary's kinds. A module's state is an OrderedDict with the versions of its layers as an attribute.
_KINDS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_ARRAY_TYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def flatten(state: Any, name: str) -> tuple[Any, dict[str, Tensor]]:
    """`state` as JSON and its tensors by name; names begin with `name`.

    Raises:
        InvalidType: something in it is neither plain data nor a dense tensor; the text has its path.
    """
    tensors: dict[str, Tensor] = {}
    return _Flattening(tensors).lowered(state, name), tensors


def unflatten(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What was flattened."""
    if isinstance(tree, list):
        return [unflatten(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = next((kind for kind in tree if kind != "metadata"), "")
    content: Any = tree.get(kind)
    if kind == "tensor":
        return _found(tensors, content)
    if kind in ("array", "scalar"):
        array = _found(tensors, content).numpy()
        return array if kind == "array" else array[()]
    if kind == "tuple":
        return tuple(unflatten(item, tensors) for item in content)
    if kind == "float":
        return float(content)
    if kind in ("dtype", "device"):
        return torch_type(content) if kind == "dtype" else torch.device(content)
    if kind in _KINDS:
        made = _KINDS[kind]()
        for key, item in content:
            made[key] = unflatten(item, tensors)
        if "metadata" in tree:
            made._metadata = unflatten(tree["metadata"], tensors)
        return made
    raise CheckpointError(f"a saved state holds something of the unknown kind {kind!r}")


def torch_type(name: str) -> torch.dtype:
    """The torch dtype of that name."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"a saved tensor has elements of type {name!r}, which this torch lacks")
    return found


def tensor_names(tree: Any) -> set[str]:
    """The names of all tensors in what `flatten` made."""
    if isinstance(tree, list):
        return set().union(*map(tensor_names, tree)) if tree else set()
    if not isinstance(tree, dict):
        return set()
    if kind := next((kind for kind in ("tensor", "array", "scalar") if kind in tree), None):
        return {tree[kind]}
    return set().union(*map(tensor_names, tree.values()))


def _found(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"a saved state names the tensor {name!r} and does not have it")
    return tensors[name]


class _Flattening:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._known: dict[tuple[Any, ...], str] = {}

    def lowered(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is list:
            return [self.lowered(item, f"{path}/{index}") for index, item in enumerate(value)]
        if kind in (tuple, torch.Size):
            return {"tuple": [self.lowered(item, f"{path}/{index}") for index, item in enumerate(value)]}
        for name, dictionary in _KINDS.items():
            if kind is dictionary:
                return self._dictionary(name, value, path)
        if isinstance(value, Tensor):
            return {"tensor": self._tensor(value, path)}
        if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.name in _ARRAY_TYPES:
            array = np.array(value, value.dtype.newbyteorder("="), order="C")
            return {"array" if kind is np.ndarray else "scalar": self._tensor(torch.from_numpy(array), path)}
        if kind is torch.dtype:
            return {"dtype": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"device": str(value)}
        raise InvalidType(
            f"{path}: a {kind.__module__}.{kind.__qualname__} cannot be saved; a state is made of tensors, arrays, "
            "numbers, text, lists, tuples and dictionaries"
        )

    def _dictionary(self, kind: str, value: dict[Any, Any], path: str) -> Any:
        pairs = []
        for key, item in value.items():
            if type(key) not in (int, str):
                raise InvalidType(f"{path}: the key {key!r} cannot be saved; keys are text or integers")
            pairs.append([key, self.lowered(item, f"{path}/{key}")])
        lowered: dict[str, Any] = {kind: pairs}
        if (metadata := getattr(value, "_metadata", None)) is not None:
            lowered["metadata"] = self.lowered(metadata, f"{path}/_metadata")
        return lowered

    def _tensor(self, tensor: Tensor, path: str) -> str:
        if type(tensor) not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise InvalidType(f"{path}: a {type(tensor).__name__} cannot be saved here, only plain tensors")
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise InvalidType(f"{path}: a {tensor.layout} tensor cannot be saved, only dense ones")
        tensor = tensor.detach().resolve_conj().resolve_neg()
        memory = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), str(tensor.device))
        if tensor.numel() and memory in self._known:
            return self._known[memory]
        name, again = path, 1
        while name in self._tensors:  # two paths can read alike: a/b is a key of two dictionaries, or of one
            again += 1
            name = f"{path}~{again}"
        self._tensors[name] = tensor
        self._known[memory] = name
        return name
