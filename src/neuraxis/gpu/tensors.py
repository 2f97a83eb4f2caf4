"""Conversion between torch tensors, NumPy arrays and GPU arrays, without a copy where both are on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuraxis import imports as optional
from neuraxis.devices import require_cupy, require_device
from neuraxis.errors import DeviceUnavailable, InvalidType
from neuraxis.gpu.arguments import is_device_array, is_tensor
from neuraxis.gpu.failures import cuda_calls
from neuraxis.gpu.launcher import current_context

__all__ = ["as_cupy_array", "gpu_to_tensor", "host_array", "make_torch_wait", "tensor_to_gpu"]


def tensor_to_gpu(tensor: Any) -> Any:
    """Convert a tensor or array to an array on a GPU.

    A tensor that is on a GPU is not copied: tensor and array share memory. Host data are copied to the device of the
    CudaContext that this thread entered last, and belong to it; without one, to CuPy's current device. Gradients are
    not tracked.

    Parameters
    ----------
    tensor : torch.Tensor, ndarray or GPU array
        Numbers of any shape.

    Returns
    -------
    cupy.ndarray
        Array of the same shape and dtype.

    Raises
    ------
    DeviceUnavailable
        If there is no CuPy or no GPU.
    DeviceOutOfMemory
        If the device has not enough free memory.
    InvalidType
        If CUDA lacks the dtype.

    Examples
    --------
    ::

        with CudaContext() as cuda:
            array = tensor_to_gpu(torch.zeros(1000))
    """
    if is_tensor(tensor) and tensor.is_cuda:
        with cuda_calls("tensor_to_gpu", int(tensor.device.index)):
            return as_cupy_array(require_cupy(), tensor)
    if is_device_array(tensor):
        return require_cupy().asarray(tensor)
    context = current_context()
    if context is not None:
        return context.to_gpu(tensor)
    cupy, values = require_device(0), host_array(tensor)
    with cuda_calls("tensor_to_gpu", int(cupy.cuda.runtime.getDevice())):
        return cupy.asarray(values)


def gpu_to_tensor(gpu_array: Any) -> Any:
    """Convert an array on a GPU to a torch tensor on the same memory, without a copy.

    Torch's next operation on its current stream waits for earlier work on CuPy's current stream. The memory lives as
    long as either of them. Use `.cpu()` of the tensor, or `CudaContext.from_gpu`, to copy it to the host.

    Parameters
    ----------
    gpu_array : cupy.ndarray or other GPU array
        Array of any shape; a torch tensor is returned unchanged.

    Returns
    -------
    torch.Tensor
        CUDA tensor of the same shape and dtype.

    Raises
    ------
    InvalidType
        If `gpu_array` is not on a GPU.
    DeviceUnavailable
        If this torch cannot use CUDA.

    Examples
    --------
    ::

        tensor = gpu_to_tensor(cuda.allocate((10, 3), "float32"))
    """
    if is_tensor(gpu_array):
        return gpu_array
    if not is_device_array(gpu_array):
        raise InvalidType(f"gpu_to_tensor takes an array on a GPU, not {type(gpu_array).__name__}")
    torch = optional.require("torch", extra="torch", purpose="gpu_to_tensor")
    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            "torch here cannot use CUDA (torch.cuda.is_available() is False)",
            "Install a build of torch with CUDA, or copy the values to the host with from_gpu()",
        )
    return torch.from_dlpack(gpu_array)


def as_cupy_array(cupy: Any, tensor: Any) -> Any:
    """Return a CUDA tensor as a CuPy array on the same memory.

    CuPy's current stream waits for earlier work on torch's current stream, as DLPack specifies.
    """
    try:
        return cupy.from_dlpack(tensor.detach())
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        if hasattr(error, "status"):  # an error of CUDA
            raise
        raise InvalidType(
            f"a tensor of {tensor.dtype} cannot become a CuPy array ({error}). Convert it first"
        ) from error


def make_torch_wait(cupy: Any, device_id: int) -> None:
    """Make torch's current stream wait for CuPy's current stream; the device is current.

    Needed after a kernel was launched on tensors, since torch knows nothing of the launch. By default both libraries
    use the same stream, and there is nothing to do.
    """
    torch = optional.require("torch", extra="torch", purpose="a tensor on the GPU")
    theirs = int(torch.cuda.current_stream(device_id).cuda_stream)
    if theirs != int(cupy.cuda.get_current_stream().ptr):
        event = cupy.cuda.Event(disable_timing=True)
        event.record()
        cupy.cuda.runtime.streamWaitEvent(theirs, event.ptr)


def host_array(value: Any) -> np.ndarray:
    """Return host data as a contiguous NumPy array of numbers."""
    try:
        array = value.detach().resolve_conj().resolve_neg().numpy() if is_tensor(value) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"a tensor of {value.dtype}" if is_tensor(value) else type(value).__name__
        raise InvalidType(f"{what} cannot become an array on the GPU ({error}). Convert it first") from error
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        raise InvalidType(f"an array of {array.dtype} cannot be copied to the GPU. Use a numeric dtype that CUDA has")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
