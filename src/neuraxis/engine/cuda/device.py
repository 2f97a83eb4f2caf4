"""A CUDA device as the engine needs it: memory, kernels from source, launches. On CuPy, which loads when it is used."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neuraxis.devices import never_free, require_device
from neuraxis.engine.cuda.nvrtc import compiled_file
from neuraxis.errors import InvalidArgument, KernelFailed

__all__ = ["CupyDevice", "Device", "Memory", "Program", "parse_device"]


@dataclass(eq=False)
class Memory:
    """An array on the device; nothing once that is closed."""

    array: Any
    address: int
    nbytes: int


class Outbound(Protocol):
    """Room on the device whose content is copied to the host while kernels run."""

    memory: Memory

    def send(self, nbytes: int) -> None:
        """Begin to copy, after all that was launched before."""

    def wait(self) -> NDArray[np.uint64]:
        """What was sent, until the next `send`."""


class Program(Protocol):
    """Compiled kernels, and their constant PLAN where they have one."""

    def launch(self, kernel: str, grid: int, block: int, shared: int, arguments: Sequence[int]) -> None: ...

    def set_plan(self, plan: NDArray[np.int64]) -> None: ...


class Device(Protocol):
    name: str
    multiprocessors: int
    shared_bytes: int  # that a block can have
    warp: int
    turn: AbstractContextManager[Any]  # one thread at a time; kernels with a plan are told it and run within

    def put(self, array: NDArray[Any]) -> Memory: ...

    def zeros(self, nbytes: int) -> Memory: ...

    def empty(self, nbytes: int) -> Memory: ...

    def write(self, memory: Memory, array: NDArray[Any], at: int = 0) -> None: ...

    def read(self, memory: Memory, kind: Any, count: int, at: int = 0) -> NDArray[Any]: ...

    def clear(self, memory: Memory) -> None: ...

    def outbound(self, nbytes: int) -> Outbound: ...

    def sort(self, memory: Memory, count: int) -> None:
        """Sort uint64 numbers."""

    def compile(self, source: str, resident: bool) -> Program:
        """`resident`: all blocks of a launch are on the device at the same time, or it fails."""

    def synchronize(self) -> None: ...

    def close(self) -> None:
        """Give all memory back, whoever still holds some, unless the device is lost to this process."""


def parse_device(name: str) -> int | None:
    """The number of the CUDA device that a name means ("cuda", "cuda:1"); None for "cpu"."""
    if name == "cpu":
        return None
    kind, colon, number = name.partition(":")
    if kind != "cuda" or (colon and not (number.isascii() and number.isdigit())):
        raise InvalidArgument(f"device={name!r}: 'cpu', 'cuda' or 'cuda:<number>' is expected")
    return int(number or 0)


_LARGE = 1 << 20
# CuPy has one module for all that has the same source, and so one plan for all simulations of alike networks.
_TURNS: defaultdict[int, AbstractContextManager[Any]] = defaultdict(threading.RLock)


class CupyDevice:
    """One NVIDIA GPU."""

    def __init__(self, number: int = 0) -> None:
        self._cupy = cupy = require_device(number)
        self._device = cupy.cuda.Device(number)
        attributes = self._device.attributes
        self.multiprocessors = int(attributes["MultiProcessorCount"])
        self.shared_bytes = int(attributes["MaxSharedMemoryPerBlockOptin"])
        self.warp = 32
        self.turn = _TURNS[number]
        with self._device:
            self.name = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
            self._pool = cupy.cuda.MemoryPool()
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._side = cupy.cuda.Stream(non_blocking=True)  # for what is copied while the other runs
        self._given: weakref.WeakSet[Memory] = weakref.WeakSet()
        self._others: list[Any] = []  # modules and events

    def _array(self, nbytes: int) -> Any:
        with self._device, self._cupy.cuda.using_allocator(self._pool.malloc), self._stream:
            try:
                return self._guard(lambda: self._cupy.empty(max(1, nbytes), np.uint8))
            except self._cupy.cuda.memory.OutOfMemoryError as error:
                free, total = self._cupy.cuda.runtime.memGetInfo()
                raise MemoryError(
                    f"{self.name} has no {nbytes / 2**30:.2f} GiB left for the network: {free / 2**30:.1f} of "
                    f"{total / 2**30:.1f} GiB are free. Use a smaller network, or device='cpu'"
                ) from error

    def empty(self, nbytes: int) -> Memory:
        array = self._array(nbytes)
        memory = Memory(array, int(array.data.ptr), nbytes)
        self._given.add(memory)
        return memory

    def zeros(self, nbytes: int) -> Memory:
        memory = self.empty(nbytes)
        self.clear(memory)
        return memory

    def clear(self, memory: Memory) -> None:
        with self._device:
            self._guard(lambda: memory.array.data.memset_async(0, memory.array.nbytes, self._stream))

    def put(self, array: NDArray[Any]) -> Memory:
        memory = self.empty(array.nbytes)
        self.write(memory, array)
        return memory

    def write(self, memory: Memory, array: NDArray[Any], at: int = 0) -> None:
        data = np.ascontiguousarray(array)
        if data.nbytes:
            with self._device:
                self._guard(lambda: self._cupy.cuda.runtime.memcpyAsync(
                    memory.address + at, data.ctypes.data, data.nbytes, 1, self._stream.ptr))  # fmt: skip
                self._guard(self._stream.synchronize)  # the array is the caller's again

    def read(self, memory: Memory, kind: Any, count: int, at: int = 0) -> NDArray[Any]:
        nbytes = count * np.dtype(kind).itemsize
        if nbytes < _LARGE:
            data = np.empty(count, kind)
        else:  # memory that the card writes to by itself is several times faster
            data = np.frombuffer(self._guard(lambda: self._cupy.cuda.alloc_pinned_memory(nbytes)), kind, count)
        if data.nbytes:
            with self._device:
                self._guard(lambda: self._cupy.cuda.runtime.memcpyAsync(
                    data.ctypes.data, memory.address + at, data.nbytes, 2, self._stream.ptr))  # fmt: skip
                self._guard(self._stream.synchronize)
        return data

    def outbound(self, nbytes: int) -> Outbound:
        return _CupyOutbound(self, nbytes)

    def sort(self, memory: Memory, count: int) -> None:
        with self._device, self._cupy.cuda.using_allocator(self._pool.malloc), self._stream:
            self._guard(memory.array[: 8 * count].view(np.uint64).sort)

    def compile(self, source: str, resident: bool) -> Program:
        return _CupyProgram(self, source, resident)

    def synchronize(self) -> None:
        with self._device:
            self._guard(self._stream.synchronize)

    def _guard(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (self._cupy.cuda.runtime.CUDARuntimeError, self._cupy.cuda.driver.CUDADriverError) as error:
            raise KernelFailed(
                f"the steps of the network failed on {self.name}: {error}. Saved states are not touched by it; "
                "CUDA can be used again by another process",
                status=int(error.status),
            ) from error

    def close(self) -> None:
        if self._stream is None:
            return
        arrays = []
        for memory in list(self._given):
            arrays.append(memory.array)
            memory.array, memory.address = None, 0
        with self._device:
            try:
                self._side.synchronize()
                self._stream.synchronize()
            except self._cupy.cuda.runtime.CUDARuntimeError:  # whoever waited for the launch has heard of it
                never_free([self._pool, self._stream, self._side, *arrays, *self._others])
            else:
                arrays.clear()
                self._pool.free_all_blocks()
            self._stream = self._side = None  # a stream has memory of the card, too


class _CupyOutbound:
    def __init__(self, device: CupyDevice, nbytes: int) -> None:
        self._device = device
        self.memory = device.empty(nbytes)
        with device._device:  # memory that the card writes to by itself
            self._pinned = device._cupy.cuda.alloc_pinned_memory(max(8, nbytes))
            self._ready = device._cupy.cuda.Event(disable_timing=True)
            device._others.append(self._ready)
        self._sent = 0

    def send(self, nbytes: int) -> None:
        self._sent = nbytes
        with self._device._device:
            self._device._guard(self._begin)

    def _begin(self) -> None:
        device = self._device
        self._ready.record(device._stream)
        device._side.wait_event(self._ready)
        if self._sent:
            device._cupy.cuda.runtime.memcpyAsync(
                self._pinned.ptr, self.memory.address, self._sent, 2, device._side.ptr
            )

    def wait(self) -> NDArray[np.uint64]:
        with self._device._device:
            self._device._guard(self._device._side.synchronize)
        return np.frombuffer(self._pinned, np.uint64, self._sent // 8)


class _CupyProgram:
    def __init__(self, device: CupyDevice, source: str, resident: bool) -> None:
        self._device = device
        cupy = device._cupy
        with compiled_file(cupy.cuda.nvrtc, source, int(device._device.compute_capability)) as file, device._device:
            self._module = cupy.RawModule(path=str(file), enable_cooperative_groups=resident)
            device._guard(self._module.compile)  # which loads it
            device._others.append(self._module.module)
        self._resident = resident
        self._kernels: dict[str, Any] = {}
        self._most: dict[tuple[str, int, int], int] = {}

    def launch(self, kernel: str, grid: int, block: int, shared: int, arguments: Sequence[int]) -> None:
        device = self._device
        with device._device:
            if kernel not in self._kernels:
                self._kernels[kernel] = device._guard(lambda: self._module.get_function(kernel))
            function = self._kernels[kernel]
            if shared > 48 * 1024 and function.max_dynamic_shared_size_bytes < shared:
                function.max_dynamic_shared_size_bytes = shared
            if self._resident:
                self._require_room(kernel, grid, block, shared)
            values = tuple(np.int64(one) if one < 2**63 else np.uint64(one) for one in arguments)
            with device._stream:
                device._guard(lambda: function((grid,), (block,), values, shared_mem=shared))

    def _require_room(self, kernel: str, grid: int, block: int, shared: int) -> None:
        """CuPy itself would launch fewer blocks than it was asked for."""
        device, key = self._device, (kernel, block, shared)
        if key not in self._most:
            fitting = device._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            there = device._guard(lambda: fitting(self._kernels[kernel].kernel.ptr, block, shared))
            self._most[key] = device.multiprocessors * there
        if grid > self._most[key]:
            raise KernelFailed(
                f"the steps of the network need {grid} blocks of {block} threads, each with {shared} bytes of shared "
                f"memory, on {device.name} at the same time, and it has room for {self._most[key]}. "
                "Use a smaller network, or device='cpu'"
            )

    def set_plan(self, plan: NDArray[np.int64]) -> None:
        device = self._device
        with device._device:
            pointer = device._guard(lambda: self._module.get_global("PLAN"))
            copy, stream = device._cupy.cuda.runtime.memcpyAsync, device._stream
            device._guard(lambda: copy(pointer.ptr, plan.ctypes.data, plan.nbytes, 1, stream.ptr))
            device._guard(stream.synchronize)
