"""A user's array as what a backend needs: contiguous memory with an address and an element type.

NumPy arrays and torch tensors become a `Buffer` without a copy where their memory is contiguous and where the
backend can reach it. Otherwise the buffer holds a contiguous copy, and `write_back` carries the result to
where the user wants it. torch is never imported here: whoever hands in a tensor has imported it already.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import msgspec
import numpy as np

from neuraxis.comm.array_kernels import address_of_array, array_layout_is_known
from neuraxis.comm.reduction import ElementType, element_type_of
from neuraxis.errors import InvalidArgument, InvalidType

__all__ = ["Buffer", "address_of", "buffer_of"]

# How an element type without a NumPy dtype of its own is held in NumPy memory.
_CARRIERS = {ElementType.BFLOAT16: np.dtype(np.uint16), ElementType.COMPLEX32: np.dtype((np.uint16, 2)).base}


class Buffer(msgspec.Struct):
    """Contiguous memory of one array: an address, and `count` elements of type `element`.

    A msgspec struct because it is made for every argument of every call, and those are quick to make.
    """

    address: int
    count: int
    item_bytes: int
    element: ElementType
    memory: Any  # what owns the memory: the user's array, or a contiguous copy of it
    origin: Any  # the user's array where `memory` is a copy, else None

    @property
    def nbytes(self) -> int:
        return self.count * self.item_bytes

    @property
    def on_cpu(self) -> bool:
        """Whether the memory is the CPU's."""
        return not getattr(self.memory, "is_cuda", False)

    def write_back(self) -> None:
        """Carry the content to the user's array, if this buffer is a copy of it."""
        if self.origin is None:
            return
        if isinstance(self.origin, np.ndarray):
            self.origin[...] = _as_numpy(self.memory).reshape(self.origin.shape)
        else:
            memory = self.memory
            if isinstance(memory, np.ndarray):
                memory = sys.modules["torch"].from_numpy(memory)
            with sys.modules["torch"].no_grad():
                self.origin.copy_(memory.view(self.origin.shape))

    def bytes(self) -> np.ndarray:
        """The memory as a flat array of bytes that shares it."""
        if self.nbytes == 0:
            return np.empty(0, np.uint8)
        memory = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        memory.owner = self.memory  # type: ignore[attr-defined]  # what is under way in a library keeps it alive
        return np.frombuffer(memoryview(memory), np.uint8)

    def numpy(self) -> np.ndarray:
        """The memory as a flat NumPy array of its elements (bfloat16 as uint16, what NumPy lacks as bytes)."""
        if self.element in (ElementType.OPAQUE, ElementType.COMPLEX32):
            return self.bytes()
        carrier = _CARRIERS.get(self.element) or np.dtype(self.element.label)
        return self.bytes().view(carrier)

    def torch(self) -> Any:
        """The memory as a flat torch tensor of its elements (what torch lacks as bytes)."""
        torch = sys.modules["torch"]
        if isinstance(self.memory, torch.Tensor):
            # Not view(-1): a single element may keep a stride that further views stumble over.
            return self.memory.detach().as_strided((self.count,), (1,))
        dtype = {
            ElementType.BFLOAT16: torch.bfloat16,
            ElementType.COMPLEX32: torch.complex32,
        }.get(self.element) or getattr(torch, self.element.label, torch.uint8)
        memory = self.bytes()
        flat = torch.empty(0, dtype=torch.uint8) if memory.size == 0 else torch.from_numpy(memory)
        return flat.view(dtype)


def buffer_of(value: Any, what: str, *, writes: bool, device: str = "cpu") -> Buffer:
    """A buffer over `value`; `what` names the argument in errors, `writes` says that the call will write it.

    `device` is where the backend needs the memory: "cpu", or a torch device such as "cuda:0".
    """
    if type(value) is np.ndarray and device == "cpu":
        known = _PLAIN.get(value.dtype)
        if known is not None and (not writes or value.flags.writeable):
            address = address_of(value)
            if address:  # contiguous, so there is nothing more to do
                return Buffer(address, value.size, known[0], known[1], value, None)
    if isinstance(value, np.ndarray):
        return _buffer_of_numpy(value, what, writes, device)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _buffer_of_tensor(torch, value, what, device)
    raise InvalidType(
        f"{what} must be a NumPy array or a torch tensor, not {type(value).__name__}"
        + (" (the object forms, such as all_gather_object, take any value)" if not isinstance(value, list) else "")
    )


# The usual dtypes in native byte order: item bytes and element type.
_PLAIN: dict[np.dtype, tuple[int, ElementType]] = {
    np.dtype(element.label): (np.dtype(element.label).itemsize, element)
    for element in ElementType
    if element <= ElementType.COMPLEX128 and element is not ElementType.BFLOAT16
}


def address_of(array: np.ndarray) -> int:
    """The address of an array's data; 0 if it is not C-contiguous."""
    if array_layout_is_known():
        return address_of_array(id(array))
    return int(array.ctypes.data) if array.flags.c_contiguous else 0


def _buffer_of_numpy(value: np.ndarray, what: str, writes: bool, device: str) -> Buffer:
    dtype = value.dtype
    if writes and not value.flags.writeable:
        raise InvalidArgument(f"{what} is read-only, and this rank's result would be written to it")
    memory, origin = value, None
    if not (value.flags.c_contiguous and dtype.isnative):
        dtype = dtype.newbyteorder("=")
        memory, origin = np.ascontiguousarray(value, dtype=dtype), value
    element = element_type_of(dtype)
    if device != "cpu":
        torch = sys.modules["torch"]
        on_device = torch.from_numpy(memory if memory.flags.writeable else memory.copy()).to(device)
        return Buffer(
            on_device.data_ptr(),
            memory.size,
            dtype.itemsize,
            element,
            on_device,
            value if origin is None else origin,
        )
    return Buffer(address_of(memory), memory.size, dtype.itemsize, element, memory, origin)


def _buffer_of_tensor(torch: Any, value: Any, what: str, device: str) -> Buffer:
    if value.layout is not torch.strided:
        raise InvalidType(f"{what} must be a dense tensor, not one of layout {value.layout}; use .to_dense()")
    reachable = value.is_cpu if device == "cpu" else value.device == torch.device(device)
    if reachable and value.is_contiguous() and not value.is_conj() and not value.is_neg():
        memory, origin = value, None
    else:
        memory, origin = value.detach().resolve_conj().resolve_neg().to(device).contiguous(), value
        if memory.data_ptr() == value.data_ptr() and memory.numel() > 0:  # nothing above made a copy
            memory = memory.clone(memory_format=torch.contiguous_format)
    element = _TORCH_ELEMENTS.get(value.dtype) or _torch_element(torch, value.dtype)
    return Buffer(memory.data_ptr(), memory.numel(), memory.element_size(), element, memory, origin)


_TORCH_ELEMENTS: dict[Any, ElementType] = {}


def _torch_element(torch: Any, dtype: Any) -> ElementType:
    if not _TORCH_ELEMENTS:
        for element in ElementType:
            torch_dtype = getattr(torch, element.label, None)
            if isinstance(torch_dtype, torch.dtype):
                _TORCH_ELEMENTS[torch_dtype] = element
    return _TORCH_ELEMENTS.get(dtype, ElementType.OPAQUE)


def _as_numpy(memory: Any) -> np.ndarray:
    if isinstance(memory, np.ndarray):
        return memory
    array: np.ndarray = memory.cpu().numpy()
    return array
