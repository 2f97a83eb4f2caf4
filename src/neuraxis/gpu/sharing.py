"""An array on a GPU that several processes use at the same time, without a copy (CUDA IPC).

One process has the array and gives out a handle (`share`); others map the same memory (`open_shared`). Two things are
for the user to see to, because CUDA does not: the owner must not end or leave its `share` block while others use the
memory, and who writes when is to be agreed on by other means (a barrier, a message). A handle opens the whole of an
allocation to whoever has it and may use the GPU: it is for processes that trust each other.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from neuraxis.devices import require_cupy, require_device
from neuraxis.errors import CudaContextClosed, DeviceUnavailable, InvalidArgument, InvalidType
from neuraxis.gpu.arguments import is_device_array, is_tensor
from neuraxis.gpu.failures import cuda_calls, waited_for
from neuraxis.gpu.memory import memory_of
from neuraxis.gpu.shared_handle import THIS_PROCESS, SharedHandle
from neuraxis.gpu.tensors import shared_with_cupy

__all__ = ["open_shared", "share"]


@contextmanager
def share(array: Any) -> Iterator[bytes]:
    """A handle of an array on a GPU, for other processes on this machine; a context manager.

    The array (of a CudaContext, of CuPy, or a CUDA tensor; contiguous) keeps its memory until the block is left, and
    what was written to it before is there for whoever opens the handle. The handle is bytes: send it in any way.
    """
    if is_tensor(array) and array.is_cuda:
        array = shared_with_cupy(require_cupy(), array)
    if not is_device_array(array):
        raise InvalidType(f"share takes an array on a GPU, not {type(array).__name__}")
    if array.size == 0 or not array.flags.c_contiguous:
        raise InvalidArgument(f"share: the array, of shape {array.shape}, is empty or not contiguous")
    device_id, address = int(array.data.device_id), int(array.data.ptr)
    cupy = require_device(device_id)
    memory = memory_of(address)
    if memory is not None and not memory.open:
        raise CudaContextClosed(f"share: the array belongs to {memory.owner}, which was stopped")
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
    del array  # here and not before


@contextmanager
def open_shared(handle: bytes) -> Iterator[Any]:
    """The array that another process shares (cupy.ndarray), on the same memory; a context manager.

    When the block is left, work on the device is waited for. The mapping ends with the last array on it: keep none
    longer than the owner keeps its own.
    """
    known = SharedHandle.unpacked(handle)
    if known.process == THIS_PROCESS:
        raise InvalidArgument("open_shared: this process has the array itself; CUDA maps it in others only")
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
        waits = waited_for(device_id)
        with cuda_calls("closing a shared array", device_id), cupy.cuda.Device(device_id), waits:
            cupy.cuda.runtime.deviceSynchronize()


class _Mapping:
    """Another process's allocation in the addresses of this one; it ends with the last array on it."""

    def __init__(self, cupy: Any, handle: SharedHandle, device_id: int) -> None:
        self.address = int(cupy.cuda.runtime.ipcOpenMemHandle(handle.memory))
        weakref.finalize(self, _unmap, cupy, self.address, device_id).atexit = False


def _unmap(cupy: Any, address: int, device_id: int) -> None:
    with cupy.cuda.Device(device_id):
        cupy.cuda.runtime.ipcCloseMemHandle(address)


_lock = threading.RLock()
_mappings: weakref.WeakValueDictionary[tuple[bytes, int], _Mapping] = weakref.WeakValueDictionary()


def _mapping(cupy: Any, handle: SharedHandle, device_id: int) -> _Mapping:
    """One for each allocation: CUDA maps none twice in a process."""
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
        "the shared array is on a GPU that this process does not see", "Look at CUDA_VISIBLE_DEVICES of both processes"
    )


def _allocation(address: int) -> tuple[int, int]:
    """Where the allocation begins that the address is in, and its size: what CUDA shares is all of it."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    if status != 0:
        raise InvalidArgument(f"share: CUDA knows no allocation at this array's address (error {status})")
    return int(base.value), int(size.value)
