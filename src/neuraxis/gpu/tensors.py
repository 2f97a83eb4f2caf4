"""Tensors, arrays of NumPy and arrays on a GPU, made of each other; without a copy where both are on the device."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from neuraxis.errors import BackendUnavailable, DeviceUnavailable, InvalidType
from neuraxis.gpu.arguments import is_device_array, is_tensor
from neuraxis.gpu.current import current_context
from neuraxis.gpu.devices import require_cupy, require_device

__all__ = ["gpu_to_tensor", "host_array", "shared_with_cupy", "tensor_to_gpu"]


def tensor_to_gpu(tensor: Any) -> Any:
    """The tensor as an array on a GPU (cupy.ndarray).

    A tensor that is on a GPU already is not copied: tensor and array are the same memory. What is on the host (a torch
    tensor, a NumPy array) is copied to the device of the CudaContext that this thread has entered last, and belongs to
    it; without one, to CuPy's current device. Gradients are not followed.
    """
    if is_tensor(tensor) and tensor.is_cuda:
        return shared_with_cupy(require_cupy(), tensor)
    if is_device_array(tensor):
        return require_cupy().asarray(tensor)
    context = current_context()
    return require_device(0).asarray(host_array(tensor)) if context is None else context.to_gpu(tensor)


def gpu_to_tensor(gpu_array: Any) -> Any:
    """The array as a torch tensor on the same GPU: the same memory, without a copy.

    The memory stays as long as either of them. `.cpu()` of the tensor, or `from_gpu` of the context, brings it to the
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
    """A CUDA tensor as an array of CuPy on the same memory."""
    try:
        return cupy.from_dlpack(tensor.detach())
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        if hasattr(error, "status"):  # CUDA's own
            raise
        raise InvalidType(f"a tensor of {tensor.dtype} cannot become an array of CuPy: {error}") from error


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
