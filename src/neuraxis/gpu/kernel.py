"""A compiled kernel, and how it is launched."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import Any

from neuraxis.devices import compiler_missing
from neuraxis.errors import CudaContextClosed, InvalidArgument
from neuraxis.gpu.arguments import QuickMatch, is_device_array, is_tensor, matched
from neuraxis.gpu.compile_log import compile_error
from neuraxis.gpu.failures import cuda_calls
from neuraxis.gpu.geometry import Geometry, Limits
from neuraxis.gpu.launcher import Launcher
from neuraxis.gpu.memory import has_stopped_memory, memory_of
from neuraxis.gpu.sources import Parameter, parameters_of
from neuraxis.gpu.tensors import let_torch_wait, shared_with_cupy

__all__ = ["Compiled", "Kernel", "compiled"]

_SHARED_MEMORY_WITHOUT_ASKING = 48 * 1024
_MOST_GEOMETRIES = 256  # that a kernel remembers as possible


@dataclass(frozen=True)
class Compiled:
    """A function on a device, what it takes, and how it may be launched."""

    function: Any
    parameters: tuple[Parameter, ...] | None
    limits: Limits


def compiled(launcher: Launcher, name: str, source: str, function_name: str, options: tuple[str, ...]) -> Compiled:
    """Compile for the current device; KernelCompileError shows what is wrong with which line."""
    cupy = launcher.cupy
    # NVRTC is asked for the function by its C++ name and tells the mangled one: so plain functions, extern "C" ones,
    # those in namespaces and templates ("scale<float>") all are found.
    module = cupy.RawModule(code=source, options=options, name_expressions=(function_name,))
    try:
        with cuda_calls(f"loading kernel {name!r}", launcher.device_id):
            function = module.get_function(function_name)
            most = int(function.max_threads_per_block)
    except cupy.cuda.compiler.CompileException as error:
        raise compile_error(name, function_name, source, str(error), error.name) from None
    except (RuntimeError, OSError) as error:
        if "nvrtc" in str(error).lower():
            raise compiler_missing(error) from error
        raise
    return Compiled(function, parameters_of(source, function_name), replace(launcher.limits, threads=most))


class Kernel:
    """A function on the GPU: call it with its arguments, and with the `block` and `grid` to run it in.

    It returns when the launch is under way; `synchronize()` and `from_gpu()` of the context wait for it. It runs in the
    order of CuPy's current stream. Where it is given tensors of torch, torch's current stream comes before and after.

    Attributes:
        name: what it was asked for by; errors and profiles call it so.
        parameters: what it takes, as far as its source says so in plain C types; else None.
    """

    def __init__(self, name: str, compiled: Compiled, launcher: Launcher) -> None:
        self.name = name
        self.parameters = compiled.parameters
        self._compiled = compiled
        self._launcher = launcher
        self._cupy = launcher.cupy
        self._quick = QuickMatch(compiled.parameters, launcher.cupy.ndarray)
        self._geometries: dict[tuple[Any, Any], Geometry] = {}

    def __repr__(self) -> str:
        taken = "?" if self.parameters is None else ", ".join(parameter.text for parameter in self.parameters)
        return f"<Kernel {self.name!r} ({taken}) on device {self._launcher.device_id}>"

    def __call__(self, *arguments: Any, block: Any, grid: Any, shared_mem: int = 0) -> None:
        """Launch it.

        Args:
            arguments: arrays on this GPU (contiguous, of the dtype that the kernel reads), NumPy scalars of the C type
                that the kernel takes, or Python's numbers where that type is known; None for a null pointer.
            block: threads in a block, 1 to 3 numbers.
            grid: blocks, 1 to 3 numbers.
            shared_mem: bytes of shared memory for each block, beside what the kernel declares itself.
        """
        geometry = self._geometry(block, grid)
        if isinstance(shared_mem, bool) or not isinstance(shared_mem, int) or shared_mem < 0:
            raise InvalidArgument(f"shared_mem={shared_mem!r} must be a number of bytes")
        given = self._quick(arguments, self._launcher.device_id)
        has_tensors = given is None and any(map(is_tensor, arguments))
        if given is None or has_stopped_memory():
            given = matched(self.name, tuple(map(self._on_device, arguments)), self.parameters)
            for position, array in enumerate(given):
                if isinstance(array, self._cupy.ndarray):
                    self._check_place(position, array)
        self._launcher.launch(self.name, self._start, geometry, given, shared_mem, has_tensors)

    def _start(self, geometry: Geometry, given: tuple[Any, ...], shared_mem: int, has_tensors: bool) -> None:
        function = self._compiled.function
        if shared_mem > _SHARED_MEMORY_WITHOUT_ASKING:
            _allow_shared_memory(function, shared_mem)
        function(geometry.grid, geometry.block, given, shared_mem=shared_mem)
        if has_tensors:
            let_torch_wait(self._cupy, self._launcher.device_id)

    def _geometry(self, block: Any, grid: Any) -> Geometry:
        if not (_is_exact(block) and _is_exact(grid)):
            return Geometry.checked(block, grid, self._compiled.limits)
        known = self._geometries.get((block, grid))
        if known is None:
            known = Geometry.checked(block, grid, self._compiled.limits)
            if len(self._geometries) >= _MOST_GEOMETRIES:
                self._geometries.clear()
            self._geometries[block, grid] = known
        return known

    def _on_device(self, value: Any) -> Any:
        """What another library has in the memory of a GPU, as an array of CuPy on the same memory."""
        if is_tensor(value) and value.is_cuda:
            return shared_with_cupy(self._cupy, value)
        if is_device_array(value) and not isinstance(value, self._cupy.ndarray):
            return self._cupy.asarray(value)
        return value

    def _check_place(self, position: int, array: Any) -> None:
        there, here = int(array.data.device_id), self._launcher.device_id
        if there != here:
            raise InvalidArgument(
                f"{self._place(position)}: the array is on device {there}, and this context has device {here}; "
                "to_gpu(array) of this context brings it over"
            )
        memory = memory_of(int(array.data.ptr))
        if memory is not None and not memory.open:
            raise CudaContextClosed(
                f"{self._place(position)}: the array belongs to {memory.owner}, which was stopped; copy it with "
                "cupy.array(array), or allocate it in this context"
            )

    def _place(self, position: int) -> str:
        return f"kernel {self.name!r}, argument {position}"


_growing = threading.Lock()


def _allow_shared_memory(function: Any, size: int) -> None:
    """What a function may have only grows: another thread may be about to launch the same one with more.

    CuPy loads a source once for all contexts, so the functions of several may be one.
    """
    with _growing:
        if int(function.max_dynamic_shared_size_bytes) < size:
            function.max_dynamic_shared_size_bytes = size


def _is_exact(numbers: Any) -> bool:
    """Whether equal means the same: not so for 1, 1.0 and True, of which only the first is a number of blocks."""
    return type(numbers) is int or (type(numbers) is tuple and all(type(number) is int for number in numbers))
