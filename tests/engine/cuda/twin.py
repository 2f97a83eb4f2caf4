"""CPU emulation ("twin") of a CUDA device: the kernels' source, compiled for the CPU (see twin.h), on NumPy arrays."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neuraxis.engine.cuda.device import Memory

__all__ = ["TwinDevice", "compiler"]

_HERE = Path(__file__).parent
_LAUNCH = threading.Lock()  # the emulation runs one kernel at a time; threads alternate between kernels
_WARP = 4  # a small one: what counts is that there are several lanes and several warps


_OPTIONS = [
    "-std=c++20",
    "-O1",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
    "-DNEURAXIS_TWIN",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Wno-unused-variable",
    "-Wno-unused-function",
    "-Wno-maybe-uninitialized",
    "-Wno-tautological-compare",
    "-o",
    "kernels.so",
]


@cache
def compiler() -> str | None:
    return shutil.which("g++")


class TwinDevice:
    name = "a CPU in the place of a GPU"
    warp = _WARP
    lock = threading.RLock()

    def __init__(self, multiprocessors: int = 3, shared_bytes: int = 1 << 16, backwards: bool = False) -> None:
        self.multiprocessors = multiprocessors
        self.shared_bytes = shared_bytes
        self._backwards = backwards

    def empty(self, nbytes: int) -> Memory:
        array = np.full(nbytes + 64, 0xA5, np.uint8)  # not zero, to find code that relies on it
        address = -(-array.ctypes.data // 64) * 64
        return Memory(array, address, nbytes)

    def zeros(self, nbytes: int) -> Memory:
        memory = self.empty(nbytes)
        self.clear(memory)
        return memory

    def clear(self, memory: Memory) -> None:
        ctypes.memset(memory.address, 0, memory.nbytes)

    def put(self, array: NDArray[Any]) -> Memory:
        memory = self.empty(array.nbytes)
        self.write(memory, array)
        return memory

    def write(self, memory: Memory, array: NDArray[Any], at: int = 0) -> None:
        data = np.ascontiguousarray(array)
        assert at + data.nbytes <= memory.nbytes
        ctypes.memmove(memory.address + at, data.ctypes.data, data.nbytes)

    def read(self, memory: Memory, kind: Any, count: int, at: int = 0) -> NDArray[Any]:
        data = np.empty(count, kind)
        assert at + data.nbytes <= memory.nbytes
        ctypes.memmove(data.ctypes.data, memory.address + at, data.nbytes)
        return data

    def sort(self, memory: Memory, count: int) -> None:
        self.write(memory, np.sort(self.read(memory, np.uint64, count)))

    def outbound(self, nbytes: int) -> TwinOutbound:
        return TwinOutbound(self, nbytes)

    def compile(self, source: str, resident: bool) -> TwinProgram:
        return TwinProgram(source, self._backwards)

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass


class TwinOutbound:
    """Copy sent data as late as permitted, so that a test finds code that overwrites it too early."""

    def __init__(self, device: TwinDevice, nbytes: int) -> None:
        self._device = device
        self.memory = device.empty(nbytes)
        self._sent = 0

    def send(self, nbytes: int) -> None:
        self._sent = nbytes

    def wait(self) -> NDArray[np.uint64]:
        return self._device.read(self.memory, np.uint64, self._sent // 8)


class TwinProgram:
    def __init__(self, source: str, backwards: bool) -> None:
        self._backwards = backwards
        self._names = re.findall(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\)", source)
        self._library = _compiled(source + _entry(self._names))

    def launch(self, kernel: str, grid: int, block: int, shared: int, arguments: Sequence[int]) -> None:
        which = [name for name, _ in self._names].index(kernel)
        values = (ctypes.c_uint64 * len(arguments))(*[one % 2**64 for one in arguments])
        with _LAUNCH:
            self._library.twin_launch(which, grid, block, ctypes.c_size_t(shared), self._backwards, values)

    def set_layout(self, layout: NDArray[np.void]) -> None:
        there = (ctypes.c_char * layout.nbytes).in_dll(self._library, "layout")
        ctypes.memmove(there, layout.ctypes.data, layout.nbytes)


def _entry(kernels: list[tuple[str, str]]) -> str:
    """A C function that launches any of the kernels: every argument has 8 bytes."""
    cases = []
    for i, (name, parameters) in enumerate(kernels):
        kinds = [re.sub(r"\s*\w+$", "", one.strip()) for one in parameters.split(",")]
        given = ", ".join(f"({kind})arguments[{k}]" for k, kind in enumerate(kinds))
        cases.append(f"    case {i}: twin::kernel = [=] {{ {name}({given}); }}; break;")
    body = "\n".join(cases)
    return (
        '\nextern "C" void twin_launch(int which, unsigned grid, unsigned block, size_t shared, int backwards, '
        f"const u64 *arguments)\n{{\n    switch (which) {{\n{body}\n    }}\n"
        "    twin::run(grid, block, shared, WARP, backwards);\n}\n"
    )


@cache
def _compiled(source: str) -> ctypes.CDLL:
    found = compiler()
    assert found is not None
    digest = hashlib.sha256(source.encode() + (_HERE / "twin.h").read_bytes()).hexdigest()[:20]
    folder = Path(tempfile.gettempdir()) / f"neuraxis-twin-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{digest}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            (Path(work) / "kernels.cpp").write_text(source)
            subprocess.run([found, *_OPTIONS, f"-I{_HERE}", "kernels.cpp"], cwd=work, check=True, timeout=120)
            os.replace(Path(work) / "kernels.so", library)
    return ctypes.CDLL(str(library))
