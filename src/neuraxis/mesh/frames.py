"""One array or tensor as a message, laid out so that an array is read where it lies.

A frame is the length of its header (4 bytes, little endian), the header (msgpack of element type, shape and order, "C"
or "F"), zeros up to a multiple of 64 bytes, the elements. Which elements travel, and whether there are as many as a
header claims, `comm.objects` says: for what comes alone as for what lies within other data. A frame that cannot be
read is a ValueError, or msgspec's own error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np

from neuraxis.comm import objects
from neuraxis.comm.objects import Shape

__all__ = ["frame_array", "frame_tensor", "read_array", "read_tensor"]

_ALIGNMENT = 64
_LARGE = 1 << 16  # bytes from which a saved copy is worth the detour


def frame_array(array: np.ndarray) -> bytes:
    """The frame of an array that `is_plain_array`. It keeps its order in memory where it has one."""
    flags = array.flags
    order: Literal["C", "F"] = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
    # The names of a record can be changed, so what was written of one is not kept.
    header = (_array_header if array.dtype.names is None else _new_array_header)(array.dtype, array.shape, order)
    if array.nbytes < _LARGE or not (flags.c_contiguous or flags.f_contiguous):
        return header + array.tobytes(order)
    return b"".join((header, array.ravel("K").view(np.uint8).data))


def frame_tensor(tensor: Any) -> bytes:
    """The frame of a tensor that `is_plain_tensor`."""
    header = _header(objects.tensor_type(tensor), tuple(tensor.shape), "C")
    return b"".join((header, objects.tensor_elements(tensor)))


def read_array(payload: Any) -> np.ndarray:
    """The array of a frame: a view of `payload`, which must be read-only; a copy where that is not aligned for it."""
    description, shape, order, start = _read_header(payload)
    array = objects.array_of(description, shape, payload, start, order)
    if not array.flags.aligned:
        array = array.copy("K")
        array.flags.writeable = False
    return array


def read_tensor(payload: Any) -> Any:
    """The tensor of a frame: a copy, which can be written."""
    name, shape, _, start = _read_header(payload)
    return objects.tensor_of(name, shape, memoryview(payload)[start:])


def _new_array_header(dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"]) -> bytes:
    return _header(objects.describe(dtype), shape, order)


_array_header = lru_cache(maxsize=256)(_new_array_header)


def _header(description: Any, shape: tuple[int, ...], order: Literal["C", "F"]) -> bytes:
    header = msgspec.msgpack.encode([description, shape, order])
    start = len(header).to_bytes(4, "little") + header
    return start + bytes(-len(start) % _ALIGNMENT)


_HEADER_DECODER = msgspec.msgpack.Decoder(tuple[Any, Shape, Literal["C", "F"]])


def _read_header(payload: Any) -> tuple[Any, tuple[int, ...], Literal["C", "F"], int]:
    """What a frame's header says, and where its elements begin."""
    end = 4 + int.from_bytes(payload[:4], "little")
    start = end + -end % _ALIGNMENT
    if len(payload) < start:
        raise ValueError(f"it has {len(payload)} bytes, and its header alone should have {start}")
    return *_HEADER_DECODER.decode(payload[4:end]), start
