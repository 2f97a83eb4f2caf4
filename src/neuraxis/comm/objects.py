"""Python objects as bytes, without pickle.

msgpack carries numbers, text, bytes, lists and dictionaries; what it cannot tell apart or does not know (tuples,
sets, complex and large numbers, NumPy arrays, torch tensors) travels as a tagged extension of it. Nothing of it
runs code when it is read. Anything else needs pickle, which runs whatever the sender wrote: both sides must
have allowed it.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from neuraxis.errors import NeuraxisError, NotSerializable

__all__ = ["decode", "encode"]

_TUPLE, _SET, _FROZENSET, _COMPLEX, _INTEGER, _ARRAY, _TENSOR, _PAIRS, _SCALAR, _PICKLE = range(1, 11)

_PLAIN = (type(None), bool, float, str, bytes)


def encode(value: Any, allow_pickle: bool = False) -> bytes:
    """`value` as bytes."""
    try:
        return msgspec.msgpack.encode(_lower(value, allow_pickle))
    except UnicodeEncodeError as error:
        raise NotSerializable(f"text that is not valid Unicode cannot be sent: {error}") from error


def decode(content: Any, allow_pickle: bool = False) -> Any:
    """What `encode` was given. `content` is bytes or an array of bytes."""
    return msgspec.msgpack.Decoder(ext_hook=lambda code, data: _raise_up(code, data, allow_pickle)).decode(
        memoryview(content)
    )


def _lower(value: Any, allow_pickle: bool) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        if -(2**63) <= value < 2**64:
            return value
        return _extension(_INTEGER, str(value), allow_pickle)
    if kind is list:
        return [_lower(item, allow_pickle) for item in value]
    if kind is dict:
        if all(type(key) is str for key in value):
            return {key: _lower(item, allow_pickle) for key, item in value.items()}
        return _extension(_PAIRS, [[key, item] for key, item in value.items()], allow_pickle)
    if kind is tuple:
        return _extension(_TUPLE, list(value), allow_pickle)
    if kind is set:
        return _extension(_SET, list(value), allow_pickle)
    if kind is frozenset:
        return _extension(_FROZENSET, list(value), allow_pickle)
    if kind is complex:
        return _extension(_COMPLEX, [value.real, value.imag], allow_pickle)
    if isinstance(value, np.generic) and _is_plain_dtype(value.dtype):
        return _extension(_SCALAR, _array_parts(np.asarray(value)), allow_pickle)
    # Subclasses hold more than their data (a mask, units), so only what is nothing but an array goes as one.
    if kind in (np.ndarray, np.memmap) and _is_plain_dtype(value.dtype):
        return _extension(_ARRAY, _array_parts(value), allow_pickle)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided:
        whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        flat = whole.as_strided((whole.numel(),), (1,))  # a single element may have kept another stride
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        parts = [str(value.dtype).removeprefix("torch."), list(value.shape), content]
        return _extension(_TENSOR, parts, allow_pickle)
    if allow_pickle:
        return msgspec.msgpack.Ext(_PICKLE, pickle.dumps(value))
    raise NotSerializable(
        f"an object of type {kind.__module__}.{kind.__qualname__} cannot be sent as plain data. Send its fields (dict, "
        "list, array, ...), or allow pickle on every rank with DistributedContext(allow_pickle=True): then whoever "
        "can send to this process can run code in it"
    )


def _extension(code: int, value: Any, allow_pickle: bool) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, encode(value, allow_pickle))


def _is_plain_dtype(dtype: np.dtype) -> bool:
    return not dtype.hasobject and dtype.subdtype is None


def _array_parts(array: np.ndarray) -> list[Any]:
    return [_describe(array.dtype), list(array.shape), np.ascontiguousarray(array).tobytes()]


def _describe(dtype: np.dtype) -> Any:
    """A dtype as plain data. A record keeps its offsets, so that padding comes back as padding."""
    if dtype.fields is not None and dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        formats = [[_describe(field[0].base), list(field[0].shape)] for field in fields]
        return [list(dtype.names), formats, [field[1] for field in fields], dtype.itemsize]
    if dtype.kind == "V" and not dtype.name.startswith("void"):
        return dtype.name  # bfloat16 and its like, known by name where ml_dtypes is loaded
    return dtype.str


def _dtype(description: Any) -> np.dtype:
    if not isinstance(description, list):
        return np.dtype(str(description))
    names, formats, offsets, itemsize = description
    parts = [(_dtype(base), tuple(shape)) if shape else _dtype(base) for base, shape in formats]
    return np.dtype({"names": names, "formats": parts, "offsets": offsets, "itemsize": itemsize})


def _array(parts: list[Any]) -> np.ndarray:
    description, shape, content = parts
    dtype = _dtype(description)
    if dtype.itemsize == 0:
        return np.empty(shape, dtype)
    return np.frombuffer(bytearray(content), dtype).reshape(shape)


def _tensor(parts: list[Any]) -> Any:
    import torch

    name, shape, content = parts
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise NotSerializable(f"this torch has no dtype {name!r}")
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.view(shape)


_READERS: dict[int, Callable[[Any], Any]] = {
    _TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _COMPLEX: lambda parts: complex(*parts),
    _INTEGER: int,
    _ARRAY: _array,
    _TENSOR: _tensor,
    _SCALAR: lambda parts: _array(parts)[()],
    _PAIRS: lambda pairs: {key: value for key, value in pairs},  # noqa: C416  (pairs are lists)
}


def _raise_up(code: int, data: memoryview, allow_pickle: bool) -> Any:
    if code == _PICKLE:
        if not allow_pickle:
            raise NotSerializable("a pickled object was received, and pickle is not allowed here")
        return pickle.loads(data)
    reader = _READERS.get(code)
    if reader is None:
        raise NeuraxisError(f"a message holds an unknown extension ({code}): is another version of neuraxis at work?")
    return reader(decode(data, allow_pickle))
