"""Arrays on a GPU that several processes use at the same time, without a copy (CUDA IPC).

One process owns the array and creates a handle (`share`); others map the same memory (`open_shared`). CUDA leaves two
things to the user: the owner must not end or leave its `share` block while others use the memory, and writes must be
synchronized by other means (a barrier, a message). A handle gives access to the whole allocation to every process that
has it and may use the GPU, so it is for processes that trust each other.
"""

from __future__ import annotations

import ctypes
import math
import secrets
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from neuraxis.devices import require_cupy, require_device
from neuraxis.errors import CudaContextClosed, DeviceUnavailable, InvalidArgument, InvalidType
from neuraxis.gpu.arguments import is_device_array, is_tensor
from neuraxis.gpu.failures import cuda_calls, synchronizing
from neuraxis.gpu.memory import memory_of
from neuraxis.gpu.tensors import as_cupy_array

__all__ = ["THIS_PROCESS", "SharedHandle", "open_shared", "share"]


THIS_PROCESS = secrets.token_bytes(16)  # unlike a process id, never reused
_IPC_BYTES = 64
_MOST_DIMENSIONS = 32


@contextmanager
def share(array: Any) -> Iterator[bytes]:
    """Yield a handle of an array on a GPU, for other processes on this machine; a context manager.

    The array keeps its memory until the block ends. Data written before are visible to processes that open the handle.

    Parameters
    ----------
    array : cupy.ndarray or CUDA tensor
        Contiguous array of any shape.

    Yields
    ------
    bytes
        Handle to send to other processes by any means.

    Raises
    ------
    InvalidType
        If `array` is not on a GPU.
    InvalidArgument
        If it is empty or not contiguous.
    CudaContextClosed
        If its context was closed.

    Examples
    --------
    ::

        with CudaContext() as cuda:
            array = cuda.allocate(1000, "float32")
            with share(array) as handle:
                send(handle)  # and wait until the other process is done
    """
    if is_tensor(array) and array.is_cuda:
        array = as_cupy_array(require_cupy(), array)
    if not is_device_array(array):
        raise InvalidType(f"share takes an array on a GPU, not {type(array).__name__}")
    if array.size == 0 or not array.flags.c_contiguous:
        raise InvalidArgument(
            f"share: the array, of shape {array.shape}, is empty or not contiguous. Pass cupy.ascontiguousarray(array)"
        )
    device_id, address = int(array.data.device_id), int(array.data.ptr)
    cupy = require_device(device_id)
    memory = memory_of(address)
    if memory is not None and not memory.open:
        raise CudaContextClosed(f"share: the array belongs to {memory.owner}, which was closed. Copy it first")
    runtime = cupy.cuda.runtime
    with cuda_calls("share", device_id), cupy.cuda.Device(device_id):
        runtime.deviceSynchronize()
        base, size = _allocation(address)
        handle = SharedHandle(
            process=THIS_PROCESS,
            device=bytes(runtime.getDeviceProperties(device_id)["uuid"]),
            memory=runtime.ipcGetMemHandle(base),
            size=size,
            offset=address - base,
            shape=tuple(map(int, array.shape)),
            dtype=np.dtype(array.dtype).str,
        )
    yield handle.packed()
    del array  # keeps the memory until here


@contextmanager
def open_shared(handle: bytes) -> Iterator[Any]:
    """Yield the array that another process shares, on the same memory; a context manager.

    Leaving the block waits for the device. The mapping ends with the last array on it, so keep no reference longer than
    the owner keeps the array.

    Parameters
    ----------
    handle : bytes
        Handle from `share` in another process.

    Yields
    ------
    cupy.ndarray
        Array on the owner's memory.

    Raises
    ------
    InvalidArgument
        If the handle is malformed or belongs to this process.
    DeviceUnavailable
        If this process does not see the GPU.

    Examples
    --------
    ::

        with open_shared(handle) as array:
            array += 1
    """
    known = SharedHandle.unpacked(handle)
    if known.process == THIS_PROCESS:
        raise InvalidArgument("open_shared: this process has the array itself; CUDA maps it in other processes only")
    cupy = require_device(0)
    device_id = _device_of(cupy, known.device)
    with cuda_calls("open_shared", device_id), cupy.cuda.Device(device_id):
        mapping = _mapping(cupy, known, device_id)
        memory = cupy.cuda.UnownedMemory(mapping.address, known.size, mapping, device_id)
        pointer = cupy.cuda.MemoryPointer(memory, known.offset)
        array = cupy.ndarray(known.shape, np.dtype(known.dtype), pointer)
    del memory, pointer, mapping
    try:
        yield array
    finally:
        del array
        waits = synchronizing(device_id)
        with cuda_calls("closing a shared array", device_id), cupy.cuda.Device(device_id), waits:
            cupy.cuda.runtime.deviceSynchronize()


class SharedHandle(msgspec.Struct, frozen=True, array_like=True, tag="neuraxis-gpu-1"):
    """Location of an array in the memory of a GPU, for other processes.

    Attributes
    ----------
    process : bytes
        Owner's `THIS_PROCESS`.
    device : bytes
        UUID of the GPU; device numbers may differ between processes.
    memory : bytes
        CUDA's IPC handle of the allocation that contains the array.
    size : int
        Size of the allocation in bytes.
    offset : int
        Offset of the array in it, in bytes.
    shape, dtype : tuple, str
        Of the array, which is contiguous.
    """

    process: bytes
    device: bytes
    memory: bytes
    size: int
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def packed(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpacked(cls, content: bytes) -> SharedHandle:
        """Decode the result of `packed`; InvalidArgument if it is malformed or the array exceeds its allocation."""
        try:
            handle = msgspec.msgpack.decode(content, type=cls)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(
                f"these bytes are no handle of a shared array: {error}. Pass those of share()"
            ) from error
        reason = handle._wrong()
        if reason:
            raise InvalidArgument(f"this handle of a shared array is damaged: {reason}. Pass the bytes of share()")
        return handle

    def _wrong(self) -> str:
        try:
            dtype = np.dtype(self.dtype)
        except (TypeError, ValueError, SyntaxError):
            return f"{self.dtype!r} is no dtype"
        if dtype.kind not in "biufc":
            return f"{self.dtype!r} is no dtype of numbers"
        if len(self.process) != len(THIS_PROCESS) or len(self.device) != 16 or len(self.memory) != _IPC_BYTES:
            return "an identity in it has the wrong length"
        if len(self.shape) > _MOST_DIMENSIONS or any(length < 1 for length in self.shape):
            return f"the shape {self.shape}"
        if self.offset < 0 or self.offset % dtype.itemsize or self.offset + self.nbytes > self.size:
            return f"{self.nbytes} bytes at {self.offset} are not within {self.size}"
        return ""


class _Mapping:
    """Allocation of another process in the address space of this one, until the last array on it is gone."""

    def __init__(self, cupy: Any, handle: SharedHandle, device_id: int) -> None:
        self.address = int(cupy.cuda.runtime.ipcOpenMemHandle(handle.memory))
        weakref.finalize(self, _unmap, cupy, self.address, device_id).atexit = False


def _unmap(cupy: Any, address: int, device_id: int) -> None:
    with cupy.cuda.Device(device_id):
        cupy.cuda.runtime.ipcCloseMemHandle(address)


_lock = threading.RLock()
_mappings: weakref.WeakValueDictionary[tuple[bytes, int], _Mapping] = weakref.WeakValueDictionary()


def _mapping(cupy: Any, handle: SharedHandle, device_id: int) -> _Mapping:
    """Return the mapping of an allocation; CUDA maps none twice in a process."""
    key = (handle.memory, device_id)
    with _lock:
        mapping = _mappings.get(key)
        if mapping is None:
            mapping = _mappings[key] = _Mapping(cupy, handle, device_id)
        return mapping


def _device_of(cupy: Any, uuid: bytes) -> int:
    runtime = cupy.cuda.runtime
    for index in range(int(runtime.getDeviceCount())):
        if bytes(runtime.getDeviceProperties(index)["uuid"]) == uuid:
            return index
    raise DeviceUnavailable(
        "the shared array is on a GPU that this process does not see", "Check CUDA_VISIBLE_DEVICES of both processes"
    )


def _allocation(address: int) -> tuple[int, int]:
    """Return start and size of the allocation at an address; CUDA shares whole allocations."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    if status != 0:
        raise InvalidArgument(f"share: CUDA has no allocation at the address of this array (error {status})")
    return int(base.value), int(size.value)
