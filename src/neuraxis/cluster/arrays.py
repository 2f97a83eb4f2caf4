"""Conversion between tensors and Dask arrays, without a copy where both can share memory.

Dask arrays consist of NumPy arrays, and NumPy lacks some of torch's types. Those are widened to the smallest type that
represents all their values exactly: bfloat16 and the 8-bit floats become float32.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal

import dask
import dask.array as da
import numpy as np
from dask.array.core import concatenate3, normalize_chunks, slices_from_chunks
from dask.base import get_scheduler
from distributed import Client

from neuraxis import imports as optional
from neuraxis.arguments import one_of
from neuraxis.cluster.waiting import Waiter
from neuraxis.errors import InvalidArgument, InvalidType, MissingDependency

__all__ = ["dask_to_tensor", "tensor_to_dask"]

_REPLY_S = 60.0  # time for a reply of the scheduler
_WIDENED = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def tensor_to_dask(tensor: Any, chunks: Any = "auto") -> da.Array:
    """Convert a torch tensor or NumPy array to a Dask array.

    Nothing is copied, unless a type has to be widened: the chunks are views of the tensor's memory. They are sent to
    workers when something is computed, so earlier changes of the tensor are seen.

    Parameters
    ----------
    tensor : torch.Tensor or ndarray
        Tensor in main memory that requires no gradient, of any shape.
    chunks : "auto", int, tuple
        Chunk sizes as everywhere in Dask: "auto", a number, a shape such as (1000, -1), or all sizes along each axis.

    Returns
    -------
    dask.array.Array
        Array of the same shape.

    Raises
    ------
    InvalidArgument
        If `chunks` does not fit the shape.
    InvalidType
        If `tensor` is something else, on a GPU, requires a gradient or is not dense.

    Examples
    --------
    >>> import numpy as np
    >>> from neuraxis.cluster import dask_to_tensor, tensor_to_dask
    >>> array = tensor_to_dask(np.arange(6.0).reshape(3, 2), chunks=(2, -1))
    >>> array.numblocks
    (2, 1)
    >>> dask_to_tensor(array.sum(axis=0), library="numpy")
    array([6., 9.])
    """
    array = _as_numpy(tensor)
    try:
        sizes = normalize_chunks(chunks, array.shape, dtype=array.dtype)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise InvalidArgument(f"chunks={chunks!r}: does not fit the shape {array.shape} ({error})") from error
    # `dask.array.from_array` would copy. The name is unique, because the content of the memory may change: two arrays
    # of the same tensor are not the same array.
    name = f"tensor-{uuid.uuid4().hex}"
    places = np.ndindex(*(len(along) for along in sizes))
    graph = {(name, *place): array[part] for place, part in zip(places, slices_from_chunks(sizes), strict=True)}
    return da.Array(graph, name, sizes, meta=array[(slice(0, 0),) * array.ndim] if array.ndim else array)


def dask_to_tensor(dask_array: da.Array, library: Literal["torch", "numpy"] = "torch") -> Any:
    """Compute a Dask array, on the running cluster or else in threads here, and return it as a torch tensor.

    Parameters
    ----------
    dask_array : dask.array.Array
        Array of numbers, of any shape.
    library : {"torch", "numpy"}
        Type of the result.

    Returns
    -------
    torch.Tensor or ndarray
        Result of the same shape.

    Raises
    ------
    ClusterError
        If the scheduler is gone or does not answer. The computation itself has no time limit.
    InvalidType
        If `dask_array` is no Dask array, or torch lacks its dtype.
    MissingDependency
        If torch is not installed and `library` is "torch".

    Examples
    --------
    >>> import dask.array
    >>> from neuraxis.cluster import dask_to_tensor
    >>> dask_to_tensor(dask.array.ones(3, chunks=2))
    tensor([1., 1., 1.], dtype=torch.float64)
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
    _check_torch_has(array.dtype)  # the computed dtype may differ from the declared one
    # torch needs writable memory in native byte order without negative strides.
    array = np.require(array, array.dtype.newbyteorder("="), "W")
    if any(step < 0 for step in array.strides):
        array = array.copy()
    return torch.from_numpy(array)


def _computed(dask_array: da.Array) -> np.ndarray[Any, np.dtype[Any]]:
    """Compute all chunks and concatenate them in this process.

    Dask's `compute` concatenates on a worker, which needs memory for the whole array, and copies a single chunk.
    """
    chunks = dask_array.to_delayed()
    client = getattr(get_scheduler(collections=[dask_array]), "__self__", None)
    if isinstance(client, Client):
        futures = np.empty(chunks.size, object)
        futures[:] = client.compute(chunks.ravel().tolist())
        parts = Waiter(client, _REPLY_S).gather("dask_to_tensor", futures.reshape(chunks.shape).tolist())
    else:
        (parts,) = dask.compute(chunks.tolist())
    if dask_array.npartitions > 1:
        return np.asarray(concatenate3(parts))
    while isinstance(parts, list):
        (parts,) = parts
    return np.asarray(parts)


def _as_numpy(tensor: Any) -> np.ndarray[Any, np.dtype[Any]]:
    # If torch is not imported, this is no tensor.
    torch = optional.loaded("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        if not isinstance(tensor, np.ndarray):
            raise InvalidType(f"tensor: a torch tensor or a NumPy array is expected, not {type(tensor).__name__}")
        if tensor.dtype.hasobject:
            raise InvalidType(f"tensor: an array of {tensor.dtype} contains Python objects. Pass an array of numbers")
        return tensor
    if tensor.device.type != "cpu":
        raise InvalidType(f"tensor: it is on {tensor.device}, and Dask arrays are in main memory. Pass tensor.cpu()")
    if tensor.requires_grad:
        raise InvalidType("tensor: it requires a gradient, which Dask does not support. Pass tensor.detach()")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise InvalidType(f"tensor: its layout is {tensor.layout}. Pass tensor.to_dense() or tensor.dequantize()")
    if str(tensor.dtype).removeprefix("torch.") in _WIDENED:
        tensor = tensor.float()
    try:
        return tensor.resolve_conj().resolve_neg().numpy()  # type: ignore[no-any-return]
    except TypeError as error:
        raise InvalidType(f"tensor: NumPy has no type for {tensor.dtype} ({error}). Convert it first") from error


def _torch() -> Any:
    try:
        return optional.require("torch", extra="torch", purpose="dask_to_tensor")
    except MissingDependency as error:
        remedy = f'{error.remedy}, or pass library="numpy"'
        raise MissingDependency(error.backend, error.reason, remedy, package="torch") from error


def _check_torch_has(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise InvalidType(f"dask_array: torch has no type for {dtype}. Convert it with astype, or use library='numpy'")
