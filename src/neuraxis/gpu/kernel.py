"""Compilation of kernels, with errors that show the user's source lines, and their launch."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from typing import Any

from neuraxis.arguments import is_whole
from neuraxis.devices import compiler_missing
from neuraxis.errors import CudaContextClosed, InvalidArgument, KernelCompileError
from neuraxis.gpu.arguments import Geometry, Limits, QuickMatch, is_device_array, is_tensor, matched
from neuraxis.gpu.failures import cuda_calls
from neuraxis.gpu.launcher import Launcher
from neuraxis.gpu.memory import has_closed_memory, memory_of
from neuraxis.gpu.sources import Parameter, kernel_names, parameters_of
from neuraxis.gpu.tensors import as_cupy_array, make_torch_wait

__all__ = ["Compiled", "Kernel", "compile_error", "compiled"]

_DIAGNOSTIC = re.compile(r"^(?P<file>.*?)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$")
_NAME_MAP_FILE = "__nv_name_map"  # pseudo-file in which NVRTC looks up the requested functions
_MOST = 5  # further errors are mostly consequences of the first ones
_DEFAULT_SHARED_MEMORY = 48 * 1024
_MOST_GEOMETRIES = 256  # checked launch shapes that a kernel caches


class Kernel:
    """Compiled CUDA function; `CudaContext.get_kernel` returns it.

    A call returns after the launch, before the kernel has finished; `CudaContext.synchronize` and `from_gpu` wait for
    it. It runs in the order of CuPy's current stream. If torch tensors are among the arguments, it is also ordered with
    torch's current stream.

    Attributes
    ----------
    name : str
        Name in errors and profiles.
    parameters : tuple of Parameter or None
        Parameters, if the source states them in plain C types.

    Examples
    --------
    ::

        kernel = cuda.get_kernel("scale", source, "scale")
        kernel(array, np.int32(array.size), np.float32(2.0), block=256, grid=(array.size + 255) // 256)
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
        """Launch the kernel.

        Parameters
        ----------
        *arguments
            Contiguous arrays on this GPU of the dtype that the kernel reads, NumPy scalars of the C type that it takes,
            or Python numbers where that type is known; None for a null pointer.
        block : int or tuple of int
            Threads per block, 1 to 3 numbers.
        grid : int or tuple of int
            Blocks, 1 to 3 numbers.
        shared_mem : int
            Bytes of dynamic shared memory per block.

        Raises
        ------
        InvalidArgument, InvalidType
            If an argument, block or grid does not fit; the error names it.
        CudaContextClosed
            If the context of the kernel or of an array was closed.
        KernelFailed, CudaError
            If CUDA reports an error, possibly of an earlier launch.
        """
        geometry = self._geometry(block, grid)
        if not is_whole(shared_mem) or shared_mem < 0:
            raise InvalidArgument(f"shared_mem={shared_mem!r} must be an integer number of bytes")
        given = self._quick(arguments, self._launcher.device_id)
        has_tensors = given is None and any(map(is_tensor, arguments))
        if given is None or has_closed_memory():
            given = matched(self.name, tuple(map(self._on_device, arguments)), self.parameters)
            for position, array in enumerate(given):
                if isinstance(array, self._cupy.ndarray):
                    self._check_place(position, array)
        self._launcher.launch(self.name, self._start, geometry, given, shared_mem, has_tensors)

    def _start(self, geometry: Geometry, given: tuple[Any, ...], shared_mem: int, has_tensors: bool) -> None:
        function = self._compiled.function
        if shared_mem > _DEFAULT_SHARED_MEMORY:
            _allow_shared_memory(function, shared_mem)
        function(geometry.grid, geometry.block, given, shared_mem=shared_mem)
        if has_tensors:
            make_torch_wait(self._cupy, self._launcher.device_id)

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
        """Return GPU memory of another library as a CuPy array on the same memory."""
        if is_tensor(value) and value.is_cuda:
            return as_cupy_array(self._cupy, value)
        if is_device_array(value) and not isinstance(value, self._cupy.ndarray):
            return self._cupy.asarray(value)
        return value

    def _check_place(self, position: int, array: Any) -> None:
        there, here = int(array.data.device_id), self._launcher.device_id
        if there != here:
            raise InvalidArgument(
                f"{self._place(position)}: the array is on device {there}, and this context has device {here}; "
                "to_gpu(array) of this context copies it"
            )
        memory = memory_of(int(array.data.ptr))
        if memory is not None and not memory.open:
            raise CudaContextClosed(
                f"{self._place(position)}: the array belongs to {memory.owner}, which was closed. Copy it with "
                "cupy.array(array), or allocate it in this context"
            )

    def _place(self, position: int) -> str:
        return f"kernel {self.name!r}, argument {position}"


@dataclass(frozen=True)
class Compiled:
    """Compiled function on a device, its parameters and its launch limits."""

    function: Any
    parameters: tuple[Parameter, ...] | None
    limits: Limits


def compiled(launcher: Launcher, name: str, source: str, function_name: str, options: tuple[str, ...]) -> Compiled:
    """Compile for the current device; KernelCompileError shows the faulty line."""
    cupy = launcher.cupy
    # NVRTC translates the C++ name into the mangled one, so plain functions, extern "C" ones, those in namespaces and
    # template instances ("scale<float>") are all found.
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


@dataclass(frozen=True)
class _Diagnostic:
    file: str
    line: int
    text: str


def compile_error(name: str, function_name: str, source: str, log: str, file: str) -> KernelCompileError:
    """Return the error for a source that does not compile.

    Parameters
    ----------
    name : str
        User's name of the kernel.
    function_name : str
        Requested function.
    source : str
        Compiled source.
    log : str
        Output of the compiler.
    file : str
        Name of the source in that output.
    """
    diagnostics = [
        _Diagnostic(found["file"], int(found["line"]), found["text"])
        for line in log.splitlines()
        if (found := _DIAGNOSTIC.match(line.strip()))
    ]
    lines = source.splitlines()
    mine = [one for one in diagnostics if one.file == file and 1 <= one.line <= len(lines)]
    if not mine and any(one.file == _NAME_MAP_FILE for one in diagnostics):
        there = ", ".join(kernel_names(source)) or "no __global__ function"
        text = f"the source of kernel {name!r} has no kernel {function_name!r}; it has {there}"
        return KernelCompileError(text, kernel=name, log=log)
    first = mine[0] if mine else None
    report = [f"kernel {name!r} does not compile:"]
    for diagnostic in diagnostics[:_MOST]:
        if diagnostic in mine:
            report.append(f"  line {diagnostic.line}: {diagnostic.text}")
            report.append(f"  {diagnostic.line:>5} | {lines[diagnostic.line - 1]}")
        else:
            report.append(f"  {diagnostic.file}({diagnostic.line}): {diagnostic.text}")
    if len(diagnostics) > _MOST:
        report.append(f"  and {len(diagnostics) - _MOST} more errors (see the attribute `log`)")
    if not diagnostics:
        report += [f"  {line}" for line in log.strip().splitlines()[:20]]
    return KernelCompileError(
        "\n".join(report),
        kernel=name,
        line=first.line if first else None,
        source_line=lines[first.line - 1] if first else "",
        log=log,
    )


_growing = threading.Lock()


def _allow_shared_memory(function: Any, size: int) -> None:
    """Raise the shared memory limit of a function; it never shrinks, since another thread may need more.

    CuPy loads a source once for all contexts, so several contexts may share a function.
    """
    with _growing:
        if int(function.max_dynamic_shared_size_bytes) < size:
            function.max_dynamic_shared_size_bytes = size


def _is_exact(numbers: Any) -> bool:
    """Return True for exact integers, which can be cached: 1 == 1.0 == True, but only 1 is a number of blocks."""
    return type(numbers) is int or (type(numbers) is tuple and all(type(number) is int for number in numbers))
