"""A CUDA device as the engine uses it, on a stand-in for CuPy whose memory is the host's and whose kernels do nothing.

On a real GPU all of it runs in tests/gpu/test_engine.py; here it is seen what is asked of CuPy, and that whatever CUDA
says in answer becomes the engine's own error.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from neuraxis.engine.cuda import device as device_module
from neuraxis.engine.cuda.device import CupyDevice, Memory
from neuraxis.errors import KernelFailed


class CudaFailure(Exception):
    """Like CuPy's errors of CUDA."""

    status = 700


class OutOfMemory(MemoryError):
    """Like CuPy's error."""


class Stream:
    ptr = 0

    def __init__(self, cupy: StandIn, non_blocking: bool) -> None:
        self._cupy = cupy

    def synchronize(self) -> None:
        self._cupy.called("synchronize")

    def wait_event(self, event: Any) -> None:
        self._cupy.called("wait_event")

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class DeviceArray(np.ndarray):
    """An array of the device: its memory is known by address alone."""

    cupy: StandIn

    def __array_finalize__(self, source: Any) -> None:
        self.cupy = getattr(source, "cupy", None)  # type: ignore[assignment]

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data, memset_async=self._memset)

    def _memset(self, value: int, nbytes: int, stream: Stream) -> None:
        self.cupy.called("memset")
        ctypes.memset(self.ctypes.data, value, nbytes)

    def sort(self, *args: Any, **options: Any) -> None:
        self.cupy.called("sort")
        super().sort(*args, **options)


class StandIn:
    """The module cupy, of which the engine uses this much. `lost` makes all calls fail, as after a failed kernel."""

    def __init__(self) -> None:
        self.lost = False
        self.calls: list[str] = []
        self.room = 2  # blocks of a multiprocessor
        self.layout = np.zeros(4, np.int64)
        runtime = SimpleNamespace(
            CUDARuntimeError=CudaFailure,
            getDeviceProperties=lambda number: {"name": b"stand-in"},
            memcpyAsync=self._copy,
            memGetInfo=lambda: (1 << 30, 4 << 30),
        )
        driver = SimpleNamespace(CUDADriverError=CudaFailure, occupancyMaxActiveBlocksPerMultiprocessor=self._fitting)
        device = type("Device", (nullcontext,), {
            "attributes": {"MultiProcessorCount": 3, "MaxSharedMemoryPerBlockOptin": 1 << 16},
            "compute_capability": "90",
        })  # fmt: skip
        self.cuda = SimpleNamespace(
            Device=device,
            Stream=lambda non_blocking: Stream(self, non_blocking),
            Event=lambda disable_timing: SimpleNamespace(record=lambda stream: self.called("record")),
            MemoryPool=lambda: SimpleNamespace(malloc=None, free_all_blocks=lambda: self.called("free")),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemory),
            using_allocator=lambda allocator: nullcontext(),
            alloc_pinned_memory=self._pinned,
            nvrtc=None,
            runtime=runtime,
            driver=driver,
        )

    def called(self, name: str) -> None:
        if self.lost:
            raise CudaFailure(f"cudaErrorIllegalAddress ({name})")
        self.calls.append(name)

    def empty(self, n: int, dtype: Any) -> DeviceArray:
        self.called("empty")
        array = np.full(n, 0xA5, dtype).view(DeviceArray)
        array.cupy = self
        return array

    def _pinned(self, nbytes: int) -> Any:
        self.called("pinned")
        memory = (ctypes.c_uint8 * nbytes)()
        memory.ptr = ctypes.addressof(memory)  # type: ignore[attr-defined]
        return memory

    def _copy(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        self.called("copy")
        ctypes.memmove(to, source, nbytes)

    def _fitting(self, function: int, block: int, shared: int) -> int:
        self.called("occupancy")
        return self.room

    def RawModule(self, path: str, enable_cooperative_groups: bool) -> Any:
        def function(grid: Any, block: Any, values: Any, shared_mem: int) -> None:
            self.called("launch")

        function.kernel = SimpleNamespace(ptr=1)  # type: ignore[attr-defined]
        function.max_dynamic_shared_size_bytes = 1 << 16  # type: ignore[attr-defined]

        def get(name: str) -> Any:
            self.called("get")
            return function

        def get_global(name: str) -> Any:
            self.called("get")
            return SimpleNamespace(ptr=self.layout.ctypes.data)

        return SimpleNamespace(
            module=SimpleNamespace(), compile=lambda: self.called("load"), get_function=get, get_global=get_global
        )


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    cupy = StandIn()

    @contextmanager
    def compiled_file(nvrtc: Any, source: str, capability: int) -> Iterator[Path]:
        yield Path("kernels.cubin")

    monkeypatch.setattr(device_module, "require_device", lambda number: cupy)
    monkeypatch.setattr(device_module, "compiled_file", compiled_file)
    return cupy


def test_arrays_round_trip_through_the_device(cupy: StandIn) -> None:
    device = CupyDevice()
    numbers = np.random.default_rng(1).integers(0, 2**63, 200_000).astype(np.uint64)
    memory = device.put(numbers)
    np.testing.assert_array_equal(device.read(memory, np.uint64, len(numbers)), numbers)
    device.write(memory, np.arange(3, dtype=np.uint64), at=16)
    assert device.read(memory, np.uint64, 3, at=16).tolist() == [0, 1, 2]
    device.sort(memory, 5)
    assert device.read(memory, np.uint64, 3).tolist() == [0, 1, 2]
    device.clear(memory)
    assert not device.read(memory, np.uint64, len(numbers)).any()
    assert not device.read(device.zeros(100), np.uint8, 100).any()
    room = device.outbound(80)
    device.write(room.memory, np.arange(10))
    room.send(40)
    assert room.wait().tolist() == [0, 1, 2, 3, 4]
    device.close()


def test_kernels_get_their_plan_and_are_launched_where_there_is_room(cupy: StandIn) -> None:
    device = CupyDevice()
    program = device.compile("", resident=True)
    program.set_layout(np.arange(4))
    assert cupy.layout.tolist() == [0, 1, 2, 3]
    for grid in (1, 6):
        program.launch("steps", grid, 256, 0, [1, 2**63 + 1])
    assert cupy.calls.count("launch") == 2
    assert cupy.calls.count("occupancy") == 1
    with pytest.raises(KernelFailed, match=r"7 blocks of 256 threads.*at the same time, and it has room for 6"):
        program.launch("steps", 7, 256, 0, [])
    others = device.compile("", resident=False)
    others.launch("build", 1000, 256, 0, [])  # these take turns
    assert cupy.calls.count("launch") == 3


def test_too_little_memory(cupy: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(n: int, dtype: Any) -> Any:
        raise OutOfMemory

    monkeypatch.setattr(cupy, "empty", none_left)
    with pytest.raises(MemoryError, match=r"stand-in has no 3.00 GiB left for the network: 1.0 of 4.0 GiB are free"):
        CupyDevice().empty(3 << 30)


OPERATIONS: dict[str, Callable[[CupyDevice, Memory, Any, Any], object]] = {
    "read": lambda device, memory, room, program: device.read(memory, np.uint8, 8),
    "read much": lambda device, memory, room, program: device.read(memory, np.uint8, 1 << 20),
    "empty": lambda device, memory, room, program: device.empty(8),
    "write": lambda device, memory, room, program: device.write(memory, np.zeros(8, np.uint8)),
    "clear": lambda device, memory, room, program: device.clear(memory),
    "sort": lambda device, memory, room, program: device.sort(memory, 1),
    "synchronize": lambda device, memory, room, program: device.synchronize(),
    "send": lambda device, memory, room, program: room.send(8),
    "wait": lambda device, memory, room, program: room.wait(),
    "launch": lambda device, memory, room, program: program.launch("steps", 1, 32, 0, []),
    "first launch": lambda device, memory, room, program: program.launch("others", 1, 32, 0, []),
    "layout": lambda device, memory, room, program: program.set_layout(np.arange(4)),
    "compile": lambda device, memory, room, program: device.compile("", resident=True),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_next_call_after_a_device_loss_raises(cupy: StandIn, name: str) -> None:
    device = CupyDevice()
    memory, room, program = device.zeros(8), device.outbound(8), device.compile("", resident=True)
    program.launch("steps", 1, 32, 0, [])
    cupy.lost = True
    with pytest.raises(KernelFailed, match="Saved states are not touched") as failure:
        OPERATIONS[name](device, memory, room, program)
    assert failure.value.status == 700
    device.close()


@pytest.mark.parametrize("lost", [False, True])
def test_closing_frees_everything_unless_the_device_is_lost(cupy: StandIn, lost: bool) -> None:
    device = CupyDevice()
    memory, stream = device.zeros(8), device._stream
    array, before = memory.array, sys.getrefcount(memory.array)
    cupy.lost = lost
    device.close()
    device.close()
    assert memory.array is None
    assert ("free" in cupy.calls) != lost
    # Its holder has released it; memory of a lost device is held for ever.
    assert sys.getrefcount(array) == before - 1 + lost
    assert device._stream is None
    assert sys.getrefcount(stream) == 2 + lost
