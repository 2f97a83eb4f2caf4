"""CUDA context: a device, memory on it, and kernels compiled from source at run time."""

from __future__ import annotations

import operator
import threading
from typing import Any

import numpy as np

from neuraxis.devices import never_free, require_device
from neuraxis.errors import (
    AlreadyInitialized,
    CudaContextClosed,
    InvalidArgument,
    InvalidType,
    NeuraxisError,
)
from neuraxis.gpu import launcher as current
from neuraxis.gpu.arguments import is_device_array, is_tensor
from neuraxis.gpu.failures import cuda_calls, has_failed
from neuraxis.gpu.kernel import Compiled, Kernel, compiled
from neuraxis.gpu.launcher import KernelTimes, Launcher, Profile
from neuraxis.gpu.memory import DeviceMemory
from neuraxis.gpu.sources import cache_key
from neuraxis.gpu.tensors import as_cupy_array, host_array

__all__ = ["CudaContext"]

_STANDARD = "-std=c++17"


class CudaContext:
    """GPU to allocate memory on and to run kernels on.

    It is a reentrant context manager: entering calls `start`, leaving the outermost block calls `close`. A process can
    have several contexts, of one device or of more; threads may share one. `close` frees the memory that was allocated
    here and is no longer referenced. Arrays, and tensors that share their memory, stay valid while they are referenced.

    Parameters
    ----------
    device_id : int
        Number of the GPU in this process.
    enable_profiling : bool
        Measure the time of every launch; see `profile`.
    check_launches : bool
        Wait for each launch, so that an error in a kernel is raised by the launch that caused it instead of by a later
        call. Slow; for debugging.

    Raises
    ------
    DeviceUnavailable
        On starting: if there is no CuPy, no driver, or no such device.
    InvalidArgument, InvalidType
        If `device_id` is not an integer of 0 or more.

    Examples
    --------
    ::

        source = "__global__ void scale(float *x, int n, float a) {"
                 " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= a; }"
        with CudaContext() as cuda:
            scale = cuda.get_kernel("scale", source, "scale")
            x = cuda.to_gpu(np.ones(1000, np.float32))
            scale(x, 1000, 2.0, block=256, grid=4)
            print(cuda.from_gpu(x)[:3])
    """

    def __init__(self, device_id: int = 0, enable_profiling: bool = False, *, check_launches: bool = False) -> None:
        try:
            number = operator.index(device_id)
        except TypeError:
            raise InvalidType(f"device_id={device_id!r} must be a whole number") from None
        if number < 0 or isinstance(device_id, bool):
            raise InvalidArgument(f"device_id={device_id!r} must be 0 or more")
        self.device_id = number
        self.enable_profiling = bool(enable_profiling)
        self.check_launches = bool(check_launches)
        self._profile = Profile() if enable_profiling else None
        self._launcher: Launcher | None = None
        self._memory: DeviceMemory | None = None
        self._compiled: dict[str, Compiled] = {}
        self._kernels: dict[tuple[str, str], Kernel] = {}
        self._depth = 0
        self._was_closed = False
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<CudaContext of device {self.device_id}, {'running' if self.is_running else 'not running'}>"

    # --- start and close --------------------------------------------------------------------------------

    def start(self) -> CudaContext:
        """Start using the device, and return self. A closed context can be started again, and is then empty.

        Returns
        -------
        CudaContext
            This context.

        Raises
        ------
        AlreadyInitialized
            If it is running.
        DeviceUnavailable
            If there is no CuPy, no driver, or no such device.
        """
        with self._lock:
            if self._launcher is not None:
                raise AlreadyInitialized("this CudaContext is running already. Call close() before start()")
            self._start()
            current.push_context(self)
        return self

    def _start(self) -> None:
        cupy = require_device(self.device_id)
        owner = f"the CudaContext of device {self.device_id}"
        with cuda_calls("starting a CudaContext", self.device_id), cupy.cuda.Device(self.device_id):
            launcher = Launcher(cupy, self.device_id, owner, self._profile, self.check_launches)
            self._memory = DeviceMemory(cupy, self.device_id, owner)
            self._launcher = launcher

    def close(self) -> None:
        """Wait for running kernels, and free memory and kernels. A second call does nothing.

        Raises
        ------
        KernelFailed
            After everything was freed, if a kernel failed and this was not reported yet.
        """
        current.remove_context(self)
        with self._lock:
            launcher, memory = self._launcher, self._memory
            self._launcher = self._memory = None
            self._was_closed = self._was_closed or launcher is not None
            kernels, self._compiled = list(self._compiled.values()), {}
            self._kernels.clear()
        if launcher is None or memory is None:
            return
        launcher.close()
        try:
            if not has_failed(self.device_id):
                launcher.finish()
        finally:
            failed = has_failed(self.device_id)
            memory.close(free=not failed)
            if failed:
                never_free(kernel.function for kernel in kernels)

    def stop(self) -> None:
        """Do the same as `close`."""
        self.close()

    @property
    def is_running(self) -> bool:
        """True between `start` and `close`."""
        return self._launcher is not None

    def __enter__(self) -> CudaContext:
        with self._lock:
            if self._launcher is None:
                self._start()
            current.push_context(self)  # in this thread, even if another one has started it
            self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._lock:
            current.pop_context(self)
            self._depth -= 1
            if self._depth:
                return
        try:
            self.close()
        except NeuraxisError:
            if kind is None:  # an exception of the block is more informative
                raise

    # --- kernels ----------------------------------------------------------------------------------------

    def get_kernel(self, name: str, source: str, function_name: str, *, options: tuple[str, ...] = ()) -> Kernel:
        """Compile a kernel from CUDA C++. The same source is compiled once, whatever its name.

        Parameters
        ----------
        name : str
            Name in errors and profiles.
        source : str
            CUDA C++ for NVRTC. A plain ``__global__ void f(...)`` needs no ``extern "C"``.
        function_name : str
            Function in `source`; of a template, one of its instances ("scale<float>").
        options : tuple of str
            Compiler options, such as ("-DWIDTH=8", "--use_fast_math").

        Returns
        -------
        Kernel
            Callable that launches the function.

        Raises
        ------
        KernelCompileError
            If it does not compile; the message shows the line.
        CudaContextClosed
            If the context is not running.
        InvalidType
            If an argument is not a non-empty string, or `options` not a tuple of strings.
        """
        for argument, value in (("name", name), ("source", source), ("function_name", function_name)):
            if not isinstance(value, str) or not value.strip():
                raise InvalidType(f"get_kernel: {argument}={value!r} must be a non-empty string")
        if not isinstance(options, tuple) or not all(isinstance(option, str) for option in options):
            raise InvalidType(f"get_kernel: options={options!r} must be a tuple of strings")
        if not any(option.startswith(("-std", "--std")) for option in options):
            options = (_STANDARD, *options)
        key = cache_key(source, function_name, options, str(self.device_id))
        with self._lock:  # threads that request the same kernel compile it once, and none after close
            launcher, _ = self._running()
            if key not in self._compiled:
                with launcher.device:
                    self._compiled[key] = compiled(launcher, name, source, function_name, options)
            return self._kernels.setdefault((key, name), Kernel(name, self._compiled[key], launcher))

    def synchronize(self) -> None:
        """Wait for all work on the device, including that of other code.

        Raises
        ------
        KernelFailed
            If a kernel failed; the error names it, or the candidates.
        """
        self._running()[0].synchronize()

    def profile(self) -> dict[str, KernelTimes]:
        """Return launch counts and times by kernel name; waits for running kernels.

        Times are measured on the device, between events before and after each launch, since this object was created.
        Can be called after `close`, too.

        Raises
        ------
        InvalidArgument
            Without ``enable_profiling=True``.
        """
        if self._profile is None:
            raise InvalidArgument("profile(): no times were measured. Create the context with enable_profiling=True")
        launcher = self._launcher
        if launcher is not None:
            launcher.require_open()
            launcher.read_times()
        return self._profile.times()

    # --- memory -----------------------------------------------------------------------------------------

    def allocate(self, shape: Any, dtype: Any) -> Any:
        """Return an array of zeros on the GPU (cupy.ndarray).

        Parameters
        ----------
        shape : int or tuple of int
            Shape.
        dtype : dtype
            Numeric dtype.

        Raises
        ------
        DeviceOutOfMemory
            If the device has not enough free memory.
        InvalidArgument, InvalidType
            If shape or dtype is invalid.
        """
        launcher, memory = self._running()
        wanted, kind = _shape(shape), _dtype(dtype)
        with cuda_calls(f"allocate({wanted}, {kind})", self.device_id), launcher.device:
            array = memory.allocate(wanted, kind)
            array.data.memset_async(0, array.nbytes)
        return array

    def to_gpu(self, array: Any) -> Any:
        """Copy an array from the host or another GPU to this GPU.

        Data on this GPU are not copied.

        Parameters
        ----------
        array : array_like
            A NumPy array, a torch tensor, or what NumPy converts to an array.

        Returns
        -------
        cupy.ndarray
            Array of the same shape and dtype.

        Raises
        ------
        DeviceOutOfMemory
            If the device has not enough free memory.
        InvalidType
            If CUDA lacks the dtype.
        """
        launcher, memory = self._running()
        cupy = launcher.cupy
        there_already = is_device_array(array) or (is_tensor(array) and array.is_cuda)
        values = None if there_already else host_array(array)
        with cuda_calls("to_gpu", self.device_id), launcher.device:
            if values is None:
                if is_tensor(array):
                    array = as_cupy_array(cupy, array)
                there = cupy.asarray(array)
                if int(there.data.device_id) == self.device_id:
                    return there
                with there.device:
                    there = cupy.ascontiguousarray(there)
                    there.device.synchronize()
                here = memory.allocate(there.shape, there.dtype)
                here.data.copy_from_device(there.data, there.nbytes)
                return here
            here = memory.allocate(values.shape, values.dtype)
            if values.size:
                here.set(values)
            return here

    def from_gpu(self, array: Any) -> np.ndarray:
        """Copy an array from the GPU to a NumPy array, after all earlier kernels have finished.

        Parameters
        ----------
        array : cupy.ndarray or CUDA tensor
            Array on a GPU.

        Returns
        -------
        numpy.ndarray
            Copy of the same shape and dtype.

        Raises
        ------
        InvalidType
            If `array` is not on a GPU.
        KernelFailed
            If an earlier kernel failed.
        """
        launcher, _ = self._running()
        if not is_device_array(array) and not (is_tensor(array) and array.is_cuda):
            raise InvalidType(f"from_gpu takes an array on a GPU, not {type(array).__name__}")
        cupy = launcher.cupy
        with cuda_calls("from_gpu", self.device_id), launcher.device:
            there = as_cupy_array(cupy, array) if is_tensor(array) else cupy.asarray(array)
            with there.device:
                values: np.ndarray = there.get()
        return values

    @property
    def used_bytes(self) -> int:
        """Bytes of this context's arrays that are in use."""
        return self._running()[1].used_bytes

    def _running(self) -> tuple[Launcher, DeviceMemory]:
        launcher, memory = self._launcher, self._memory
        if launcher is None or memory is None:
            was = "was closed" if self._was_closed else "is not started"
            raise CudaContextClosed(
                f"this CudaContext of device {self.device_id} {was}. Use it in a `with` statement, or call start()"
            )
        launcher.require_open()
        return launcher, memory


def _shape(shape: Any) -> tuple[int, ...]:
    given = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    try:
        numbers = tuple(operator.index(number) for number in given)
    except TypeError:
        raise InvalidType(f"shape={shape!r} must consist of integers") from None
    if any(number < 0 for number in numbers):
        raise InvalidArgument(f"shape={shape!r} has a negative number")
    return numbers


def _dtype(dtype: Any) -> np.dtype:
    try:
        kind: np.dtype = np.dtype(dtype)
    except TypeError as error:
        raise InvalidType(f"dtype={dtype!r} is no dtype: {error}") from error
    if kind.kind not in "biufc" or kind.char in "gG" or not kind.isnative:
        raise InvalidType(f"dtype={dtype!r}: use a numeric dtype that CUDA has")
    return kind
