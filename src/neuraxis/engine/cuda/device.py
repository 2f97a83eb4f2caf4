"""CUDA devices as the engine needs them: memory, compilation of kernels, launches.

`Device` is the protocol; `CupyDevice` implements it with CuPy, which is imported on first use. Kernels are compiled by
NVRTC directly and cached, because CuPy always compiles with `-ftz=true`, which flushes denormal numbers to 0; the CPU
does not.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from neuraxis.devices import compiler_missing, never_free, require_device
from neuraxis.engine.codegen import cache_folder
from neuraxis.errors import InvalidArgument, KernelFailed

__all__ = ["OPTIONS", "CupyDevice", "Device", "Memory", "Program", "compiled", "compiled_file", "parse_device"]

# Options that determine bits: no contraction, and every operation is rounded as in IEEE 754.
OPTIONS = ("-std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")


@dataclass(eq=False)
class Memory:
    """Memory on the device; freed when the device is closed."""

    array: Any
    address: int
    nbytes: int


class Outbound(Protocol):
    """Memory on the device that is copied to the host while kernels run."""

    memory: Memory

    def send(self, nbytes: int) -> None:
        """Start an asynchronous copy after everything launched before."""

    def wait(self) -> NDArray[np.uint64]:
        """Wait for the copy and return it; valid until the next `send`."""


class Program(Protocol):
    """Compiled kernels, and their constant `layout` if they have one."""

    def launch(self, kernel: str, grid: int, block: int, shared: int, arguments: Sequence[int]) -> None: ...

    def set_layout(self, layout: NDArray[np.void]) -> None: ...


class Device(Protocol):
    name: str
    multiprocessors: int
    shared_bytes: int  # shared memory of a block
    warp: int
    lock: AbstractContextManager[Any]  # held while a layout is set and kernels that read it run

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
        """Compile kernels; with `resident`, a launch fails unless all its blocks run at the same time."""

    def synchronize(self) -> None: ...

    def close(self) -> None:
        """Free all memory, unless the device has failed."""


def parse_device(name: str) -> int | None:
    """Return the number of the CUDA device of a name ("cuda", "cuda:1"); None for "cpu"."""
    if name == "cpu":
        return None
    kind, colon, number = name.partition(":")
    if kind != "cuda" or (colon and not (number.isascii() and number.isdigit())):
        raise InvalidArgument(f"device={name!r}: 'cpu', 'cuda' or 'cuda:<number>' is expected")
    return int(number or 0)


_LARGE = 1 << 20
# CuPy shares a module between equal sources, and so one layout between simulations of similar networks.
_LOCKS: defaultdict[int, AbstractContextManager[Any]] = defaultdict(threading.RLock)


class CupyDevice:
    """One NVIDIA GPU."""

    def __init__(self, number: int = 0) -> None:
        self._cupy = cupy = require_device(number)
        self._device = cupy.cuda.Device(number)
        attributes = self._device.attributes
        self.multiprocessors = int(attributes["MultiProcessorCount"])
        self.shared_bytes = int(attributes["MaxSharedMemoryPerBlockOptin"])
        self.warp = 32
        self.lock = _LOCKS[number]
        with self._device:
            self.name = cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()
            self._pool = cupy.cuda.MemoryPool()
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._side = cupy.cuda.Stream(non_blocking=True)  # for copies while kernels run on the other
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
                    f"{total / 2**30:.1f} GiB are free. Use a smaller network, or device='cpu'."
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
                self._guard(self._stream.synchronize)  # the caller may change the array afterwards

    def read(self, memory: Memory, kind: Any, count: int, at: int = 0) -> NDArray[Any]:
        nbytes = count * np.dtype(kind).itemsize
        if nbytes < _LARGE:
            data = np.empty(count, kind)
        else:  # pinned memory is several times faster
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
                f"the steps of the network failed on {self.name}: {error}. Saved states are not touched. "
                "Restore one in a new process, which can use CUDA again.",
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
            except self._cupy.cuda.runtime.CUDARuntimeError:  # reported to the caller of the failed launch
                never_free([self._pool, self._stream, self._side, *arrays, *self._others])
            else:
                arrays.clear()
                self._pool.free_all_blocks()
            self._stream = self._side = None  # a stream also holds device memory


class _CupyOutbound:
    def __init__(self, device: CupyDevice, nbytes: int) -> None:
        self._device = device
        self.memory = device.empty(nbytes)
        with device._device:
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
        """Raise if the blocks do not fit at the same time; CuPy would launch fewer."""
        device, key = self._device, (kernel, block, shared)
        if key not in self._most:
            fitting = device._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
            there = device._guard(lambda: fitting(self._kernels[kernel].kernel.ptr, block, shared))
            self._most[key] = device.multiprocessors * there
        if grid > self._most[key]:
            raise KernelFailed(
                f"the steps of the network need {grid} blocks of {block} threads, each with {shared} bytes of shared "
                f"memory, on {device.name} at the same time, and it has room for {self._most[key]}. "
                "Use a smaller network, or device='cpu'."
            )

    def set_layout(self, layout: NDArray[np.void]) -> None:
        device = self._device
        with device._device:
            pointer = device._guard(lambda: self._module.get_global("layout"))
            copy, stream = device._cupy.cuda.runtime.memcpyAsync, device._stream
            device._guard(lambda: copy(pointer.ptr, layout.ctypes.data, layout.nbytes, 1, stream.ptr))
            device._guard(stream.synchronize)


@contextmanager
def compiled_file(nvrtc: Any, source: str, capability: int) -> Iterator[Path]:
    """Yield a file with the kernels for a compute capability (90 for 9.0), which may be temporary.

    `nvrtc` is CuPy's module of that name.
    """
    try:
        version = nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        raise compiler_missing(error) from error
    key = hashlib.sha256(repr((source, OPTIONS, capability, version)).encode()).hexdigest()[:32]
    folder = cache_folder()
    kept = None if folder is None else folder / f"{key}.cubin"
    if kept is None or not kept.exists():
        code = compiled(nvrtc, source, capability)
        if kept is None or not _keep(code, kept):
            with tempfile.TemporaryDirectory() as place:
                file = Path(place) / "kernels.cubin"
                file.write_bytes(code)
                yield file
            return
    yield kept


def _keep(code: bytes, kept: Path) -> bool:
    try:
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix="compiling-") as place:
            file = Path(place) / "kernels.cubin"
            file.write_bytes(code)
            os.replace(file, kept)  # atomic: other processes may read it
    except OSError:  # a full disk
        return False
    return True


def compiled(nvrtc: Any, source: str, capability: int) -> bytes:
    """Compile kernels to machine code, or to PTX if NVRTC does not know the device."""
    known = [int(one) for one in nvrtc.getSupportedArchs()]
    kind, number = ("sm", capability) if capability in known else ("compute", max(known))
    program = nvrtc.createProgram(source, "kernels.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(program, (*OPTIONS, f"-arch={kind}_{number}"))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise KernelFailed(f"the kernels of the network could not be compiled: {log or error}") from error
        made: bytes = nvrtc.getCUBIN(program) if kind == "sm" else nvrtc.getPTX(program)
        return made
    finally:
        nvrtc.destroyProgram(program)
