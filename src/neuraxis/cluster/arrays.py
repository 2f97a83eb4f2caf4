"""Tensors as Dask arrays, and back; without a copy where both sides can hold the same memory.

Dask's arrays are made of NumPy arrays, and NumPy lacks some of torch's types. Those are widened to the smallest type
that holds each of their values exactly: bfloat16 and the 8-bit floats become float32.
"""

from __future__ import annotations

import sys
import uuid
from typing import Any, Literal

import dask
import dask.array as da
import numpy as np
from dask.array.core import concatenate3, normalize_chunks, slices_from_chunks
from dask.base import get_scheduler
from distributed import Client

from neuraxis.cluster.waiting import Waiter
from neuraxis.errors import BackendUnavailable, InvalidArgument, InvalidType
from neuraxis.network.arguments import one_of

__all__ = ["dask_to_tensor", "tensor_to_dask"]

_PATIENCE_S = 60.0  # for a scheduler to give a sign of life
_WIDENED = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def tensor_to_dask(tensor: Any, chunks: Any = "auto") -> da.Array:
    """A Dask array of a torch tensor or NumPy array, in chunks of the shape that is asked for.

    Nothing is copied here, except where a type has to be widened: the chunks are views of the tensor's memory. They are
    sent to workers when something is computed, so a change of the tensor before that is seen. A tensor on a GPU, or
    one that a gradient is computed for, is refused as torch refuses it: `tensor.cpu()`, `tensor.detach()`.

    Args:
        chunks: as everywhere in Dask: "auto", a number, a shape, (1000, -1), or all sizes along each axis.
    """
    array = _as_numpy(tensor)
    try:
        sizes = normalize_chunks(chunks, array.shape, dtype=array.dtype)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InvalidArgument(f"chunks={chunks!r}: does not fit the shape {array.shape} ({error})") from error
    # `dask.array.from_array` copies what it is given. A name of its own: what is in the memory may change, so two
    # arrays of the same tensor are not the same array.
    name = f"tensor-{uuid.uuid4().hex}"
    places = np.ndindex(*(len(along) for along in sizes))
    graph = {(name, *place): array[part] for place, part in zip(places, slices_from_chunks(sizes), strict=True)}
    return da.Array(graph, name, sizes, meta=array[(slice(0, 0),) * array.ndim] if array.ndim else array)


def dask_to_tensor(dask_array: da.Array, library: Literal["torch", "numpy"] = "torch") -> Any:
    """Compute a Dask array, on the cluster that runs or else in threads here, and give it as a torch tensor.

    It takes as long as the computation does; a scheduler that is gone or stuck is a ClusterError.

    Args:
        library: "numpy" for a NumPy array.
    """
    one_of(library, "library", ("torch", "numpy"))
    if not isinstance(dask_array, da.Array):
        raise InvalidType(f"dask_array: a dask.array.Array is expected, not {type(dask_array).__name__}")
    if library == "torch":
        torch = _torch()
        _check_torch_has(dask_array.dtype)
    array = _computed(dask_array)
    if library == "numpy":
        return array
    _check_torch_has(array.dtype)  # what a function returned need not be what the array was said to be
    # torch wants memory that can be written, in the machine's own byte order, and no step backwards.
    array = np.require(array, array.dtype.newbyteorder("="), "W")
    if any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _computed(dask_array: da.Array) -> np.ndarray[Any, np.dtype[Any]]:
    """The whole array, put together here.

    Dask's own `compute` puts it together on a worker, which needs memory for all of it, and copies a single chunk.
    """
    chunks = dask_array.to_delayed()
    client = getattr(get_scheduler(collections=[dask_array]), "__self__", None)
    if isinstance(client, Client):
        futures = np.empty(chunks.size, object)
        futures[:] = client.compute(chunks.ravel().tolist())
        parts = Waiter(client, _PATIENCE_S).gather("dask_to_tensor", futures.reshape(chunks.shape).tolist())
    else:
        (parts,) = dask.compute(chunks.tolist())
    if dask_array.npartitions > 1:
        return np.asarray(concatenate3(parts))
    while isinstance(parts, list):
        (parts,) = parts
    return np.asarray(parts)


def _as_numpy(tensor: Any) -> np.ndarray[Any, np.dtype[Any]]:
    # Whoever has a tensor has loaded torch.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        if not isinstance(tensor, np.ndarray):
            raise InvalidType(f"tensor: a torch tensor or a NumPy array is expected, not {type(tensor).__name__}")
        if tensor.dtype.hasobject:
            raise InvalidType(f"tensor: an array of {tensor.dtype} holds Python objects; numbers are expected")
        return tensor
    if tensor.device.type != "cpu":
        raise InvalidType(f"tensor: it is on {tensor.device}, and Dask's arrays are in main memory; give tensor.cpu()")
    if tensor.requires_grad:
        raise InvalidType("tensor: it has a gradient, which Dask does not know of; give tensor.detach()")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise InvalidType(f"tensor: its layout is {tensor.layout}; give tensor.to_dense() or tensor.dequantize()")
    if str(tensor.dtype).removeprefix("torch.") in _WIDENED:
        tensor = tensor.float()
    try:
        return tensor.resolve_conj().resolve_neg().numpy()  # type: ignore[no-any-return]
    except TypeError as error:
        raise InvalidType(f"tensor: NumPy has no type for {tensor.dtype} ({error}); convert it first") from error


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise BackendUnavailable("dask_to_tensor", "torch is not installed", "pip install 'neuraxis[torch]', or "
                                 "say library=\"numpy\"") from error  # fmt: skip
    return torch


def _check_torch_has(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise InvalidType(f"dask_array: torch has no type for {dtype}; convert it with astype, or say library='numpy'")
