"""Arrays and tensors as bytes: their element type, shape and memory order, and their elements.

The elements have one of three places:

- *frame*, a message of its own: the length of the header (4 bytes, little endian), the header (msgpack of
  `[type, shape, order]`), zeros up to a multiple of 64 bytes, and the elements. An array is decoded without a copy.
- *inline*, within a value: msgpack of `[type, shape, elements]`, in C order.
- *out of band*, beside a value: msgpack of `[type, shape, order, size in bytes]` within the value, and the elements in
  a buffer of their own, which need not be copied.

The type of an array is NumPy's text for it ("<f4"), or for records the list
`[names, [[type, shape], ...], offsets, item size]`; the type of a tensor is torch's name ("float32", "bfloat16"). The
order is "C" or "F".

Decoders check these against the received size before they create anything: NumPy and torch accept a shape of -1, and
crash on element types that they cannot create. Torch is never imported for received data.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from neuraxis import imports as optional
from neuraxis.errors import NeuraxisError

__all__ = [
    "ALIGNMENT",
    "Order",
    "Take",
    "Unreadable",
    "describe_array",
    "describe_tensor",
    "frame_array",
    "frame_tensor",
    "inline_array",
    "inline_tensor",
    "is_plain_array",
    "is_plain_tensor",
    "read_described",
    "read_frame",
    "read_inline",
    "take_from",
]

ALIGNMENT = 64  # of the elements in a frame, in bytes
_LARGE = 1 << 16  # bytes from which avoiding a copy is worth the overhead
_MAX_DIMENSIONS = 64  # NumPy's limit
_ARRAYS = (np.ndarray, np.memmap)

# Quantized and packed types are excluded on purpose: tensors created from bytes alone crash torch when used.
_TORCH_ONLY = frozenset(
    {"bfloat16", "complex32"} | {"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"}
)
_TENSOR_TYPES = _TORCH_ONLY | frozenset(
    {"bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)

Order = Literal["C", "F"]
Take = Callable[[int], Any]
_Size = Annotated[int, msgspec.Meta(ge=0)]
_Shape = tuple[_Size, ...]

_encode = msgspec.msgpack.encode
_HEADER = msgspec.msgpack.Decoder(tuple[Any, _Shape, Order])
_INLINE = msgspec.msgpack.Decoder(tuple[Any, _Shape, memoryview])
_DESCRIBED = msgspec.msgpack.Decoder(tuple[Any, _Shape, Order, _Size])


class Unreadable(NeuraxisError, ValueError):
    """The content was not made by the encoders of `wire`, or needs a package that is missing here."""


def is_plain_array(value: Any) -> bool:
    """Return True if `value` is an array that can be serialized."""
    # Subclasses have more than their data (a mask, units); elements of size 0 would let a message claim any number.
    return type(value) in _ARRAYS and not value.dtype.hasobject and value.dtype.itemsize > 0


def is_plain_tensor(value: Any) -> bool:
    """Return True if `value` is a torch tensor that can be serialized."""
    torch = optional.loaded("torch")
    return (
        torch is not None
        and isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and _tensor_type(value) in _TENSOR_TYPES
        and value.dim() <= _MAX_DIMENSIONS
    )


# --- encoding -------------------------------------------------------------------------------------------------


def frame_array(array: np.ndarray) -> bytes:
    """Return the frame of an array that `is_plain_array`. Contiguous arrays keep their memory order."""
    flags = array.flags
    order = _order(array)
    # The field names of a record dtype are mutable, so its header is not cached.
    start = (_array_start if array.dtype.names is None else _new_array_start)(array.dtype, array.shape, order)
    if array.nbytes < _LARGE or not (flags.c_contiguous or flags.f_contiguous):
        return start + array.tobytes(order)
    return b"".join((start, array.ravel("K").view(np.uint8).data))


def frame_tensor(tensor: Any) -> bytes:
    """Return the frame of a tensor that `is_plain_tensor`."""
    return b"".join((_start(_tensor_type(tensor), tuple(tensor.shape), "C"), _tensor_elements(tensor)))


def inline_array(array: np.ndarray) -> bytes:
    """Return an array, description and elements, for a place within a value."""
    return _encode([_type(array.dtype), array.shape, array.tobytes()])


def inline_tensor(tensor: Any) -> bytes:
    """Return a tensor, description and elements, for a place within a value."""
    return _encode([_tensor_type(tensor), tuple(tensor.shape), bytes(_tensor_elements(tensor))])


def describe_array(array: np.ndarray) -> tuple[bytes, memoryview]:
    """Return the description of an array, and its elements; without a copy if they are contiguous."""
    order = _order(array)
    elements = np.asarray(array, order=order).ravel("K").view(np.uint8).data
    return _encode([_type(array.dtype), array.shape, order, array.nbytes]), elements


def describe_tensor(tensor: Any) -> tuple[bytes, memoryview]:
    """Return the description of a tensor, and its elements; without a copy if they are contiguous on the host."""
    elements = memoryview(_tensor_elements(tensor))
    return _encode([_tensor_type(tensor), tuple(tensor.shape), "C", len(elements)]), elements


def _order(array: np.ndarray) -> Order:
    return "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"


def _start(element: Any, shape: tuple[int, ...], order: Order) -> bytes:
    """Return the bytes of a frame before its elements."""
    header = _encode([element, shape, order])
    start = len(header).to_bytes(4, "little") + header
    return start + bytes(-len(start) % ALIGNMENT)


def _new_array_start(dtype: np.dtype[Any], shape: tuple[int, ...], order: Order) -> bytes:
    return _start(_type(dtype), shape, order)


_array_start = lru_cache(maxsize=256)(_new_array_start)


def _type(dtype: np.dtype) -> Any:
    """Return a dtype as plain data. A record keeps its offsets, and thereby its padding."""
    if dtype.fields is not None and dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        formats = [[_type(field[0].base), list(field[0].shape)] for field in fields]
        return [list(dtype.names), formats, [field[1] for field in fields], dtype.itemsize]
    return _plain_type(dtype)


@lru_cache(maxsize=256)  # not of records, whose names can be changed
def _plain_type(dtype: np.dtype) -> str:
    if dtype.kind == "V" and not dtype.name.startswith("void"):
        return dtype.name  # bfloat16 and similar types, which ml_dtypes registers by name
    return dtype.str


def _tensor_type(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensor_elements(tensor: Any) -> Any:
    """Return the elements of a tensor in order, as a buffer; without a copy if they are contiguous on the host."""
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = whole.as_strided((whole.numel(),), (1,))  # a single element may have another stride
    # A program with a tensor has imported torch.
    return flat.view(sys.modules["torch"].uint8).numpy() if flat.numel() else b""


# --- decoding -------------------------------------------------------------------------------------------------


def read_frame(frame: Any, *, tensor: bool) -> Any:
    """Return the array of a frame, a view of it where its memory is aligned, or the tensor, a writable copy.

    Raises
    ------
    ValueError
        The frame is malformed.
    """
    end = 4 + int.from_bytes(frame[:4], "little")
    start = end + -end % ALIGNMENT
    if len(frame) < start:
        raise ValueError(f"it has {len(frame)} bytes, less than its header of {start}")
    element, shape, order = _HEADER.decode(frame[4:end])
    if tensor:
        return _tensor_of(element, shape, memoryview(frame)[start:])
    return _aligned(_array_of(element, shape, frame, start, order))


def read_inline(data: memoryview, *, tensor: bool, writable: bool) -> Any:
    """Return the array or tensor of an inline description; a copy. Tensors are always writable."""
    try:
        element, shape, content = _INLINE.decode(data)
    except msgspec.DecodeError as error:
        raise Unreadable(f"an array or tensor is not a type, a shape and bytes: {error}") from error
    if tensor:
        return _tensor_of(element, shape, content)
    return _array_of(element, shape, bytearray(content) if writable else bytes(content))


def read_described(data: memoryview, take: Take, *, tensor: bool, writable: bool) -> Any:
    """Return the array whose elements are the buffer `take(size in bytes)`, or the tensor, a writable copy.

    An array is a view of the buffer, or a copy if that is not aligned, or is read-only and `writable` is True.
    """
    element, shape, order, nbytes = _DESCRIBED.decode(data)
    content = take(nbytes)
    if tensor:
        return _tensor_of(element, shape, content)
    if writable and memoryview(content).readonly:
        content = bytearray(content)
    return _aligned(_array_of(element, shape, content, 0, order))


def take_from(memory: memoryview, start: int, alignment: int = 1) -> Take:
    """Return a function for `read_described` that returns consecutive parts of memory, each aligned to some bytes."""

    def take(nbytes: int) -> memoryview:
        nonlocal start
        begin = start + -start % alignment
        start = begin + nbytes
        if start > len(memory):
            raise Unreadable(f"the elements of an array end after {start:,} bytes, but only {len(memory):,} arrived")
        return memory[begin:start]

    return take


def _aligned(array: np.ndarray) -> np.ndarray:
    if array.flags.aligned:
        return array
    copy = array.copy("K")
    copy.flags.writeable = array.flags.writeable
    return copy


def _array_of(element: Any, shape: tuple[int, ...], content: Any, start: int = 0, order: Order = "C") -> np.ndarray:
    """Return an array that is a view of `content` from `start` on, writable if that is."""
    # The sender's text may also describe a record of any size: the cache is for short plain ones.
    plain = element.__class__ is str and len(element) < 32 and "," not in element
    dtype = _known_dtype(element) if plain else _dtype_of(element)
    _check_size(shape, dtype.itemsize, len(content) - start)
    return np.ndarray(shape, dtype, content, start, None, order)


def _tensor_of(name: Any, shape: tuple[int, ...], content: Any) -> Any:
    """Return a tensor whose elements are a copy of `content`.

    If the program has not imported torch, it is a writable NumPy array: received data must not decide which packages a
    process imports, and an import in one thread breaks other threads that meet the half-imported module.
    """
    if name.__class__ is not str or name not in _TENSOR_TYPES:
        raise Unreadable(f"a tensor claims elements of type {name!s:.80}, which is not supported")
    torch = optional.loaded("torch")
    if torch is None:
        if name in _TORCH_ONLY:
            raise Unreadable(
                f"it is a tensor of {name}, which NumPy lacks, and this program has not imported torch. Import torch "
                f"before such data arrive ({optional.install_command('torch')} installs it)"
            )
        return _array_of(name, shape, bytearray(content))
    dtype = getattr(torch, name, None)
    if dtype is None:
        raise Unreadable(f"a tensor claims elements of type {name}, which this torch lacks")
    _check_size(shape, dtype.itemsize, len(content))
    if not len(content):  # torch.frombuffer refuses an empty buffer
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).view(shape)


def _dtype_of(element: Any) -> np.dtype:
    try:
        dtype = _dtype(element)
    except Exception as error:  # NumPy raises many types
        raise Unreadable(f"an array claims elements of type {element!s:.80}: {error!s:.200}") from error
    if dtype.hasobject or dtype.subdtype is not None or dtype.itemsize == 0:
        raise Unreadable(f"an array claims elements of type {dtype!s:.80}, which is not supported")
    return dtype


_known_dtype = lru_cache(maxsize=256)(_dtype_of)


def _dtype(element: Any) -> np.dtype:
    if element.__class__ is str:
        return np.dtype(element)
    names, formats, offsets, itemsize = element
    parts = [(_dtype(base), tuple(shape)) if shape else _dtype(base) for base, shape in formats]
    return np.dtype({"names": names, "formats": parts, "offsets": offsets, "itemsize": itemsize})


def _check_size(shape: tuple[int, ...], item_bytes: int, present: int) -> None:
    # Python's integers do not overflow; those of NumPy and torch do, even if another factor is zero.
    if (
        len(shape) > _MAX_DIMENSIONS
        or math.prod(shape) * item_bytes != present
        or (not present and math.prod(filter(None, shape)) * item_bytes > sys.maxsize)
    ):
        raise Unreadable(f"the shape {shape!s:.80} does not fit {present} bytes of elements, {item_bytes} each")
