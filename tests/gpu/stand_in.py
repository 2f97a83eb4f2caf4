"""A fake CuPy with one device that does nothing: for the order of calls, and for threads.

What runs on a GPU is tested on one; where there is none, this shows what is called, and can hold a call up.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["OutOfMemoryError", "stand_in"]


class OutOfMemoryError(MemoryError):
    """Like CuPy's error."""


class _Array:
    def __init__(self, shape: tuple[int, ...], dtype: Any, data: Any = None) -> None:
        self.shape, self.dtype, self.data = shape, np.dtype(dtype), data
        self.nbytes = int(np.prod(shape)) * self.dtype.itemsize
        self.flags = SimpleNamespace(c_contiguous=True)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise AssertionError("there is no memory")


class _Pointer:
    def __init__(self, memory: Any, offset: int) -> None:
        self.mem, self.ptr, self.device_id = memory, memory.ptr + offset, memory.device_id

    def memset_async(self, value: int, size: int) -> None:
        pass


class _Function:
    def __init__(self, calls: list[str], during: dict[str, Callable[[], None]]) -> None:
        self.max_threads_per_block = 1024
        self.max_dynamic_shared_size_bytes = 48 * 1024
        self._calls, self._during = calls, during

    def __call__(self, grid: Any, block: Any, arguments: Any, *, shared_mem: int = 0) -> None:
        self._during.get("launch", lambda: None)()
        self._calls.append("launch")


def stand_in() -> tuple[ModuleType, list[str], dict[str, Callable[[], None]]]:
    """The module; what was called, as it ends; and, by the name of such a call, what is done in the middle of it."""
    calls: list[str] = []
    during: dict[str, Callable[[], None]] = {}
    addresses = itertools.count(1 << 58, 1 << 30)

    class Device:
        def __init__(self, device_id: int) -> None:
            self.id = device_id
            self.attributes = {f"Max{what}Dim{axis}": 1024 for what in ("Block", "Grid") for axis in "XYZ"}
            self.attributes["MaxThreadsPerBlock"] = 1024
            self._entered: list[int] = []

        def __enter__(self) -> None:
            self._entered.append(threading.get_ident())
            # CuPy keeps there which device to go back to, and would send one thread to the device of another.
            assert len(set(self._entered)) == 1, "two threads are in one Device"

        def __exit__(self, *error: object) -> None:
            self._entered.pop()

        def synchronize(self) -> None:
            during.get("synchronize", lambda: None)()
            calls.append("synchronize")

    class MemoryPool:
        def malloc(self, size: int) -> Any:
            during.get("malloc", lambda: None)()
            return SimpleNamespace(ptr=next(addresses))

        def free_all_blocks(self) -> None:
            calls.append("free")

    def raw_module(code: str, options: Any, name_expressions: Any) -> Any:
        return SimpleNamespace(get_function=lambda name: _Function(calls, during))

    def unowned(address: int, size: int, owner: Any, device_id: int) -> Any:
        return SimpleNamespace(ptr=address, owner=owner, device_id=device_id)

    def asarray(values: Any) -> Any:
        during.get("asarray", lambda: None)()
        return _Array(values.shape, values.dtype)

    module: Any = ModuleType("cupy")
    module.__spec__ = ModuleSpec("cupy", None)
    module.ndarray, module.RawModule, module.asarray = _Array, raw_module, asarray
    module.cuda = SimpleNamespace(
        Device=Device,
        MemoryPool=MemoryPool,
        MemoryPointer=_Pointer,
        UnownedMemory=unowned,
        compiler=SimpleNamespace(CompileException=type("CompileException", (Exception,), {})),
        runtime=SimpleNamespace(getDeviceCount=lambda: 1, getDevice=lambda: 0),
    )
    return module, calls, during
