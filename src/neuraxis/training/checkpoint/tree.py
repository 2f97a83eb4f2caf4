"""Convert nested state, such as a torch `state_dict()`, to JSON and named tensors, and back.

Nothing is pickled: values of other types are refused when saved, with their path. Keys keep their types (an optimizer's
are integers), and a tensor that occurs twice (tied weights) is written once.
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

# Kinds of dictionaries. The state of a torch module is an OrderedDict with the versions of its layers as an attribute.
_KINDS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_ARRAY_TYPES = frozenset(
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


def flatten(state: Any, name: str) -> tuple[Any, dict[str, Tensor]]:
    """Convert `state` to JSON data and a dict of tensors whose names begin with `name`.

    Raises
    ------
    InvalidType
        A value is neither plain data nor a dense tensor; the message has its path.
    """
    tensors: dict[str, Tensor] = {}
    return _Flattener(tensors).convert(state, name), tensors


def unflatten(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Convert the result of `flatten` back."""
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
    raise CheckpointError(f"damaged: a saved state holds a value of the unknown kind {kind!r}")


def torch_type(name: str) -> torch.dtype:
    """Return the torch dtype of this name."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(f"a saved tensor has elements of type {name!r}, which this torch lacks")
    return found


def tensor_names(tree: Any) -> set[str]:
    """Return the names of all tensors in the JSON data of `flatten`."""
    if isinstance(tree, list):
        return set().union(*map(tensor_names, tree)) if tree else set()
    if not isinstance(tree, dict):
        return set()
    if kind := next((kind for kind in ("tensor", "array", "scalar") if kind in tree), None):
        return {tree[kind]}
    return set().union(*map(tensor_names, tree.values()))


def _found(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"damaged: a saved state names the tensor {name!r}, which is missing")
    return tensors[name]


class _Flattener:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._known: dict[tuple[Any, ...], str] = {}

    def convert(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if kind is list:
            return [self.convert(item, f"{path}/{index}") for index, item in enumerate(value)]
        if kind in (tuple, torch.Size):
            return {"tuple": [self.convert(item, f"{path}/{index}") for index, item in enumerate(value)]}
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
            pairs.append([key, self.convert(item, f"{path}/{key}")])
        converted: dict[str, Any] = {kind: pairs}
        if (metadata := getattr(value, "_metadata", None)) is not None:
            converted["metadata"] = self.convert(metadata, f"{path}/_metadata")
        return converted

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
        while name in self._tensors:  # two paths can be equal: a/b may be a key of two nested dictionaries, or of one
            again += 1
            name = f"{path}~{again}"
        self._tensors[name] = tensor
        self._known[memory] = name
        return name
