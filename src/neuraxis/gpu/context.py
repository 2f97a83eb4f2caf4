"""A CUDA context: a device, memory on it, and kernels that are compiled from source while the program runs."""

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
from neuraxis.gpu import current
from neuraxis.gpu.arguments import is_device_array, is_tensor
from neuraxis.gpu.failures import cuda_calls, has_failed
from neuraxis.gpu.kernel import Compiled, Kernel, compiled
from neuraxis.gpu.launcher import Launcher
from neuraxis.gpu.memory import DeviceMemory
from neuraxis.gpu.profile import KernelTimes, Profile
from neuraxis.gpu.sources import cache_key
from neuraxis.gpu.tensors import host_array, shared_with_cupy

__all__ = ["CudaContext"]

_STANDARD = "-std=c++17"


class CudaContext:
    """A GPU to run kernels on; a context manager, which may be entered again within itself.

    A process can have several, of one device or of more, one after the other or side by side; threads may share one.
    `stop` gives back the memory that was allocated here and that nobody uses any more. Arrays, and tensors made of
    them, that are still held stay valid and are freed when they are let go.

    Args:
        device_id: which GPU, as CUDA counts them in this process.
        enable_profiling: take the time of every launch; see `profile`.
        check_launches: wait for each launch to end, so that an error in a kernel is raised by the launch that caused it
            and not by a later call. For finding errors: it is slow.

    Raises:
        DeviceUnavailable: by `start`, and so by `with`: there is no CuPy, no driver, or no such device.
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
        self._was_stopped = False
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<CudaContext of device {self.device_id}, {'running' if self.is_running else 'not running'}>"

    # --- life -------------------------------------------------------------------------------------------

    def start(self) -> CudaContext:
        """Take the device into use. A context that was stopped can be started again, with nothing in it."""
        with self._lock:
            if self._launcher is not None:
                raise AlreadyInitialized("this CudaContext is running already")
            self._start()
            current.entered(self)
        return self

    def _start(self) -> None:
        cupy = require_device(self.device_id)
        owner = f"the CudaContext of device {self.device_id}"
        with cuda_calls("starting a CudaContext", self.device_id), cupy.cuda.Device(self.device_id):
            launcher = Launcher(cupy, self.device_id, owner, self._profile, self.check_launches)
            self._memory = DeviceMemory(cupy, self.device_id, owner)
            self._launcher = launcher

    def stop(self) -> None:
        """Wait for what runs, and give back memory and kernels. Can be called again.

        KernelFailed, after all is given back, if a kernel failed and nobody has been told so yet.
        """
        current.ended(self)
        with self._lock:
            launcher, memory = self._launcher, self._memory
            self._launcher = self._memory = None
            self._was_stopped = self._was_stopped or launcher is not None
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

    @property
    def is_running(self) -> bool:
        return self._launcher is not None

    def __enter__(self) -> CudaContext:
        with self._lock:
            if self._launcher is None:
                self._start()
            current.entered(self)  # in this thread, whichever one has started it
            self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._lock:
            current.left(self)
            self._depth -= 1
            if self._depth:
                return
        try:
            self.stop()
        except NeuraxisError:
            if kind is None:  # else the error that is under way says more
                raise

    # --- kernels ----------------------------------------------------------------------------------------

    def get_kernel(self, name: str, source: str, function_name: str, *, options: tuple[str, ...] = ()) -> Kernel:
        """A kernel, compiled from CUDA C++; the same source is compiled once, whatever it is called.

        Args:
            name: what errors and profiles call it.
            source: CUDA C++, as NVRTC takes it. A plain `__global__ void f(...)` needs no `extern "C"`.
            function_name: which function; of a template, one of its instances ("scale<float>").
            options: for the compiler, e.g. ("-DWIDTH=8", "--use_fast_math").

        Raises:
            KernelCompileError: it does not compile; the text shows the line.
        """
        for argument, value in (("name", name), ("source", source), ("function_name", function_name)):
            if not isinstance(value, str) or not value.strip():
                raise InvalidType(f"get_kernel: {argument}={value!r} must be text, and not empty")
        if not isinstance(options, tuple) or not all(isinstance(option, str) for option in options):
            raise InvalidType(f"get_kernel: options={options!r} must be a tuple of texts")
        if not any(option.startswith(("-std", "--std")) for option in options):
            options = (_STANDARD, *options)
        key = cache_key(source, function_name, options, str(self.device_id))
        with self._lock:  # two threads that ask for the same compile it once, and none for a context that was stopped
            launcher, _ = self._running()
            if key not in self._compiled:
                with launcher.device:
                    self._compiled[key] = compiled(launcher, name, source, function_name, options)
            return self._kernels.setdefault((key, name), Kernel(name, self._compiled[key], launcher))

    def synchronize(self) -> None:
        """Wait until all work on the device has ended, that of others included.

        Raises:
            KernelFailed: a kernel failed; it names the kernel, or those that it may have been.
        """
        self._running()[0].synchronize()

    def profile(self) -> dict[str, KernelTimes]:
        """By the kernel's name, how often it was launched and how long it took; waits for what runs.

        Times are those of the device, between events before and after each launch, from the construction of this object
        on. Needs `enable_profiling=True`; can be read after `stop`, too.
        """
        if self._profile is None:
            raise InvalidArgument("profile(): no times were taken; make the context with enable_profiling=True")
        launcher = self._launcher
        if launcher is not None:
            launcher.require_open()
            launcher.read_times()
        return self._profile.times()

    # --- memory -----------------------------------------------------------------------------------------

    def allocate(self, shape: Any, dtype: Any) -> Any:
        """An array of zeros on the GPU (cupy.ndarray)."""
        launcher, memory = self._running()
        wanted, kind = _shape(shape), _dtype(dtype)
        with cuda_calls(f"allocate({wanted}, {kind})", self.device_id), launcher.device:
            array = memory.allocate(wanted, kind)
            array.data.memset_async(0, array.nbytes)
        return array

    def to_gpu(self, array: Any) -> Any:
        """The values on this GPU (cupy.ndarray): a copy of what is on the host or on another GPU.

        Takes NumPy arrays, torch tensors and what NumPy makes arrays of. What is on this GPU already is not copied.
        """
        launcher, memory = self._running()
        cupy = launcher.cupy
        there_already = is_device_array(array) or (is_tensor(array) and array.is_cuda)
        values = None if there_already else host_array(array)
        with cuda_calls("to_gpu", self.device_id), launcher.device:
            if values is None:
                if is_tensor(array):
                    array = shared_with_cupy(cupy, array)
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
        """The values as a NumPy array, once the kernels that were launched before have written them."""
        launcher, _ = self._running()
        if not is_device_array(array) and not (is_tensor(array) and array.is_cuda):
            raise InvalidType(f"from_gpu takes an array on a GPU, not {type(array).__name__}")
        cupy = launcher.cupy
        with cuda_calls("from_gpu", self.device_id), launcher.device:
            there = shared_with_cupy(cupy, array) if is_tensor(array) else cupy.asarray(array)
            with there.device:
                values: np.ndarray = there.get()
        return values

    @property
    def used_bytes(self) -> int:
        """The size of the arrays of this context that are in use."""
        return self._running()[1].used_bytes

    def _running(self) -> tuple[Launcher, DeviceMemory]:
        launcher, memory = self._launcher, self._memory
        if launcher is None or memory is None:
            was = "was stopped" if self._was_stopped else "is not started"
            raise CudaContextClosed(
                f"this CudaContext of device {self.device_id} {was}: use it in a `with`, or call start()"
            )
        launcher.require_open()
        return launcher, memory


def _shape(shape: Any) -> tuple[int, ...]:
    given = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    try:
        numbers = tuple(operator.index(number) for number in given)
    except TypeError:
        raise InvalidType(f"shape={shape!r} must be whole numbers") from None
    if any(number < 0 for number in numbers):
        raise InvalidArgument(f"shape={shape!r} has a negative number")
    return numbers


def _dtype(dtype: Any) -> np.dtype:
    try:
        kind: np.dtype = np.dtype(dtype)
    except TypeError as error:
        raise InvalidType(f"dtype={dtype!r} is no dtype: {error}") from error
    if kind.kind not in "biufc" or kind.char in "gG" or not kind.isnative:
        raise InvalidType(f"dtype={dtype!r}: only numbers that CUDA has can be on a GPU")
    return kind
