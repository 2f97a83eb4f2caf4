"""Python objects as bytes, without pickle.

msgpack carries numbers, text, bytes, lists and dictionaries; what it cannot tell apart or does not know (tuples,
sets, complex and large numbers, NumPy arrays, torch tensors) travels as a tagged extension of it. Nothing of it
runs code when it is read. Anything else needs pickle, which runs whatever the sender wrote: both sides must
have allowed it.

An array or tensor is its element type, its shape and its bytes. What is read of one is compared with what really came
before anything is made of it: NumPy and torch believe a shape of -1, and crash on elements that they cannot make.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from neuraxis.errors import NeuraxisError, NotSerializable

__all__ = [
    "ARRAY",
    "PAIRS",
    "PICKLE",
    "TUPLE",
    "Shape",
    "Unreadable",
    "array_of",
    "array_parts",
    "decode",
    "describe",
    "encode",
    "is_plain_array",
    "is_plain_tensor",
    "read_array",
    "read_extension",
    "tensor_elements",
    "tensor_of",
    "tensor_type",
]

# The tags of the extensions. Public are those that the mesh or remote calls write, or read, in a way of their own.
TUPLE, _SET, _FROZENSET, _COMPLEX, _INTEGER, ARRAY, _TENSOR, PAIRS, _SCALAR, PICKLE = range(1, 11)

_PLAIN = (type(None), bool, float, str, bytes)
_ARRAYS = (np.ndarray, np.memmap)
_MOST_DIMENSIONS = 64  # NumPy's limit

# Quantized and packed types are missing on purpose: made from bytes alone they crash torch when they are used.
_TENSOR_TYPES = frozenset(
    {"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"}
    | {"float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"}
    | {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"}
)

Shape = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]


class Unreadable(NeuraxisError, ValueError):
    """Content is not what `encode` makes, or needs what is missing here."""


def encode(value: Any, allow_pickle: bool = False) -> bytes:
    """`value` as bytes."""
    try:
        return msgspec.msgpack.encode(_lower(value, allow_pickle))
    except UnicodeEncodeError as error:
        raise NotSerializable(f"text that is not valid Unicode cannot be sent: {error}") from error


def decode(content: Any, allow_pickle: bool = False) -> Any:
    """What `encode` was given; arrays and tensors can be written. `content` is bytes or an array of bytes.

    Raises:
        NotSerializable: it holds a pickle, and that is not allowed.
        Unreadable: it holds an array or tensor that is not what it claims to be, or an unknown extension.
    """
    return _DECODERS[allow_pickle].decode(memoryview(content))


def read_extension(code: int, data: memoryview, decode: Callable[[memoryview], Any], *, writable: bool) -> Any:
    """What an extension stands for; a pickle, which some may read and some not, is the caller's to read.

    Args:
        decode: reads what lies within, which may hold extensions again.
        writable: whether an array can be written.
    """
    if code not in (ARRAY, _SCALAR, _TENSOR):
        reader = _READERS.get(code)
        if reader is None:
            raise Unreadable(f"it holds an unknown extension ({code}): is another version of neuraxis at work?")
        return reader(decode(data))
    if code == _TENSOR:
        return tensor_of(*_read_parts(data))
    array = read_array(data, writable=writable)
    if code == ARRAY:
        return array
    if array.shape:
        raise Unreadable("it holds a single number that has a shape")
    return array[()]


def read_array(data: memoryview, *, writable: bool) -> np.ndarray:
    """What the extension ARRAY stands for."""
    description, shape, content = _read_parts(data)
    return array_of(description, shape, bytearray(content) if writable else bytes(content))


def _read_parts(data: memoryview) -> tuple[Any, tuple[int, ...], memoryview]:
    try:
        return _PARTS_DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise Unreadable(f"an array or tensor is not a type, a shape and bytes: {error}") from error


# --- arrays and tensors ---------------------------------------------------------------------------------


def is_plain_array(value: Any) -> bool:
    """Whether `value` is an array that travels."""
    # Subclasses hold more than their data (a mask, units); elements of no size would let a message claim any number.
    return type(value) in _ARRAYS and not value.dtype.hasobject and value.dtype.itemsize > 0


def is_plain_tensor(value: Any) -> bool:
    """Whether `value` is a torch tensor that travels."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and tensor_type(value) in _TENSOR_TYPES
        and value.dim() <= _MOST_DIMENSIONS
    )


def describe(dtype: np.dtype) -> Any:
    """A dtype as plain data. A record keeps its offsets, so that padding comes back as padding."""
    if dtype.fields is not None and dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        formats = [[describe(field[0].base), list(field[0].shape)] for field in fields]
        return [list(dtype.names), formats, [field[1] for field in fields], dtype.itemsize]
    return _describe_plain(dtype)


@lru_cache(maxsize=256)  # not of records, whose names can be changed
def _describe_plain(dtype: np.dtype) -> str:
    if dtype.kind == "V" and not dtype.name.startswith("void"):
        return dtype.name  # bfloat16 and its like, known by name where ml_dtypes is loaded
    return dtype.str


def array_parts(array: np.ndarray) -> msgspec.msgpack.Ext:
    """An array that travels, for msgspec to encode."""
    return _parts(ARRAY, describe(array.dtype), array.shape, array.tobytes())


def tensor_type(tensor: Any) -> str:
    """The name of a tensor's element type."""
    return str(tensor.dtype).removeprefix("torch.")


def tensor_elements(tensor: Any) -> Any:
    """The elements of a tensor that travels, in order, as a buffer; its own memory where they lie so on the host."""
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = whole.as_strided((whole.numel(),), (1,))  # a single element may have kept another stride
    return flat.view(sys.modules["torch"].uint8).numpy() if flat.numel() else b""


def array_of(
    description: Any, shape: tuple[int, ...], content: Any, start: int = 0, order: Literal["C", "F"] = "C"
) -> np.ndarray:
    """The array whose elements are the bytes of `content` from `start` on: a view, writable where they are.

    Raises:
        Unreadable: there are no such elements, or not as many as the shape claims.
    """
    # A text that another side has written may also stand for a record, of any size: those are not kept.
    plain = description.__class__ is str and len(description) < 32 and "," not in description
    dtype = _plain_type(description) if plain else _element_type(description)
    _check_size(shape, dtype.itemsize, len(content) - start)
    return np.ndarray(shape, dtype, content, start, None, order)


def tensor_of(name: Any, shape: tuple[int, ...], content: Any) -> Any:
    """The tensor whose elements are a copy of `content`.

    Raises:
        Unreadable: there are no such elements, not as many as the shape claims, or there is no torch.
    """
    dtype = _torch_types().get(name) if name.__class__ is str else None
    if dtype is None:
        raise Unreadable(f"a tensor claims elements of type {name!s:.80}, which do not travel or this torch lacks")
    _check_size(shape, dtype.itemsize, len(content))
    torch = sys.modules["torch"]
    if not len(content):  # which torch takes for no buffer
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).view(shape)


def _element_type(description: Any) -> np.dtype:
    try:
        dtype = _dtype(description)
    except Exception as error:  # of which NumPy has many kinds
        raise Unreadable(f"an array claims elements of type {description!s:.80}: {error!s:.200}") from error
    if dtype.hasobject or dtype.subdtype is not None or dtype.itemsize == 0:
        raise Unreadable(f"an array claims elements of type {dtype!s:.80}, which do not travel")
    return dtype


_plain_type = lru_cache(maxsize=256)(_element_type)


def _dtype(description: Any) -> np.dtype:
    if description.__class__ is str:
        return np.dtype(description)
    names, formats, offsets, itemsize = description
    parts = [(_dtype(base), tuple(shape)) if shape else _dtype(base) for base, shape in formats]
    return np.dtype({"names": names, "formats": parts, "offsets": offsets, "itemsize": itemsize})


@lru_cache(maxsize=1)
def _torch_types() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise Unreadable("it is a tensor and torch is not installed here: pip install 'neuraxis[torch]'") from error
    return {name: getattr(torch, name) for name in _TENSOR_TYPES if hasattr(torch, name)}


def _check_size(shape: tuple[int, ...], item_bytes: int, present: int) -> None:
    # Python's integers do not overflow, whatever the product is; those of NumPy and torch do, even beside a zero.
    if (
        len(shape) > _MOST_DIMENSIONS
        or math.prod(shape) * item_bytes != present
        or (not present and math.prod(filter(None, shape)) * item_bytes > sys.maxsize)
    ):
        raise Unreadable(f"the shape {shape!s:.80} does not fit {present} bytes of elements, {item_bytes} each")


# --- objects --------------------------------------------------------------------------------------------


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
        return _extension(PAIRS, [[key, item] for key, item in value.items()], allow_pickle)
    if kind is tuple:
        return _extension(TUPLE, list(value), allow_pickle)
    if kind is set:
        return _extension(_SET, list(value), allow_pickle)
    if kind is frozenset:
        return _extension(_FROZENSET, list(value), allow_pickle)
    if kind is complex:
        return _extension(_COMPLEX, [value.real, value.imag], allow_pickle)
    if isinstance(value, np.generic) and is_plain_array(array := np.asarray(value)):
        return _parts(_SCALAR, describe(array.dtype), array.shape, array.tobytes())
    if is_plain_array(value):
        return array_parts(value)
    if is_plain_tensor(value):
        return _parts(_TENSOR, tensor_type(value), tuple(value.shape), bytes(tensor_elements(value)))
    if allow_pickle:
        return msgspec.msgpack.Ext(PICKLE, pickle.dumps(value))
    raise NotSerializable(
        f"an object of type {kind.__module__}.{kind.__qualname__} cannot be sent as plain data. Send its fields (dict, "
        "list, array, ...), or allow pickle on every rank with DistributedContext(allow_pickle=True): then whoever "
        "can send to this process can run code in it"
    )


def _extension(code: int, value: Any, allow_pickle: bool) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, encode(value, allow_pickle))


def _parts(code: int, description: Any, shape: tuple[int, ...], content: bytes) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode([description, shape, content]))


_PARTS_DECODER = msgspec.msgpack.Decoder(tuple[Any, Shape, memoryview])

_READERS: dict[int, Callable[[Any], Any]] = {
    TUPLE: tuple,
    _SET: set,
    _FROZENSET: frozenset,
    _COMPLEX: lambda parts: complex(*parts),
    _INTEGER: int,
    PAIRS: lambda pairs: {key: value for key, value in pairs},  # noqa: C416  (pairs are lists)
}


def _raise_up(allow_pickle: bool, code: int, data: memoryview) -> Any:
    if code != PICKLE:
        return read_extension(code, data, _DECODERS[allow_pickle].decode, writable=True)
    if not allow_pickle:
        raise NotSerializable("a pickled object was received, and pickle is not allowed here")
    return pickle.loads(data)


_DECODERS = {allowed: msgspec.msgpack.Decoder(ext_hook=partial(_raise_up, allowed)) for allowed in (False, True)}
