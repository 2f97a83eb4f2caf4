"""Tensors, arrays of NumPy and arrays on a GPU, made of each other; without a copy where both are on the device."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np

from neuraxis.devices import require_cupy, require_device
from neuraxis.errors import BackendUnavailable, DeviceUnavailable, InvalidType
from neuraxis.gpu.arguments import is_device_array, is_tensor
from neuraxis.gpu.current import current_context
from neuraxis.gpu.failures import cuda_calls

__all__ = ["gpu_to_tensor", "host_array", "let_torch_wait", "shared_with_cupy", "tensor_to_gpu"]


def tensor_to_gpu(tensor: Any) -> Any:
    """The tensor as an array on a GPU (cupy.ndarray).

    A tensor that is on a GPU already is not copied: tensor and array are the same memory. What is on the host (a torch
    tensor, a NumPy array) is copied to the device of the CudaContext that this thread has entered last, and belongs to
    it; without one, to CuPy's current device. Gradients are not followed.
    """
    if is_tensor(tensor) and tensor.is_cuda:
        with cuda_calls("tensor_to_gpu", int(tensor.device.index)):
            return shared_with_cupy(require_cupy(), tensor)
    if is_device_array(tensor):
        return require_cupy().asarray(tensor)
    context = current_context()
    if context is not None:
        return context.to_gpu(tensor)
    cupy, values = require_device(0), host_array(tensor)
    with cuda_calls("tensor_to_gpu", int(cupy.cuda.runtime.getDevice())):
        return cupy.asarray(values)


def gpu_to_tensor(gpu_array: Any) -> Any:
    """The array as a torch tensor on the same GPU: the same memory, without a copy.

    What torch does with it next, on its current stream, waits for what CuPy's current stream was given before. The
    memory stays as long as either of them. `.cpu()` of the tensor, or `from_gpu` of the context, brings it to the
    host.
    """
    if is_tensor(gpu_array):
        return gpu_array
    if not is_device_array(gpu_array):
        raise InvalidType(f"gpu_to_tensor takes an array on a GPU, not {type(gpu_array).__name__}")
    if importlib.util.find_spec("torch") is None:
        raise BackendUnavailable("torch", "torch is not installed", "pip install 'neuraxis[torch]'")
    import torch

    if not torch.cuda.is_available():
        raise DeviceUnavailable(
            "torch here cannot use CUDA (torch.cuda.is_available() is False)",
            "Install a build of torch with CUDA, or take the values to the host with from_gpu()",
        )
    return torch.from_dlpack(gpu_array)


def shared_with_cupy(cupy: Any, tensor: Any) -> Any:
    """A CUDA tensor as an array of CuPy on the same memory.

    CuPy's current stream waits for what torch's current stream was given before; that is part of DLPack.
    """
    try:
        return cupy.from_dlpack(tensor.detach())
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        if hasattr(error, "status"):  # CUDA's own
            raise
        raise InvalidType(f"a tensor of {tensor.dtype} cannot become an array of CuPy: {error}") from error


def let_torch_wait(cupy: Any, device_id: int) -> None:
    """Have torch's current stream wait for what CuPy's current stream was given; the device is current.

    For tensors that kernels were given: torch has them all the while, and nothing else tells it. Both libraries begin
    on the same stream, and then there is nothing to do.
    """
    torch = sys.modules["torch"]
    theirs = int(torch.cuda.current_stream(device_id).cuda_stream)
    if theirs != int(cupy.cuda.get_current_stream().ptr):
        event = cupy.cuda.Event(disable_timing=True)
        event.record()
        cupy.cuda.runtime.streamWaitEvent(theirs, event.ptr)


def host_array(value: Any) -> np.ndarray:
    """What is on the host, as a contiguous NumPy array of numbers."""
    try:
        array = value.detach().resolve_conj().resolve_neg().numpy() if is_tensor(value) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"a tensor of {value.dtype}" if is_tensor(value) else type(value).__name__
        raise InvalidType(f"{what} cannot become an array on the GPU: {error}") from error
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        raise InvalidType(f"an array of {array.dtype} cannot go to the GPU: only numbers that CUDA has can")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(array.shape)
