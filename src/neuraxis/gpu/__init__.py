"""CUDA from Python: kernels compiled from source while the program runs, and arrays on a GPU.

`CudaContext` compiles and launches kernels and allocates memory; `tensor_to_gpu` and `gpu_to_tensor` go between torch
and it without a copy; `share` and `open_shared` let several processes use one array. It stands on CuPy, which loads
when a device is used. Without CuPy or without a GPU this package can be imported, and using it says what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuraxis.lazy import loads_lazily

if TYPE_CHECKING:
    from neuraxis.gpu.context import CudaContext
    from neuraxis.gpu.kernel import Kernel
    from neuraxis.gpu.profile import KernelTimes
    from neuraxis.gpu.sharing import open_shared, share
    from neuraxis.gpu.tensors import gpu_to_tensor, tensor_to_gpu

__all__ = ["CudaContext", "Kernel", "KernelTimes", "gpu_to_tensor", "open_shared", "share", "tensor_to_gpu"]

__getattr__ = loads_lazily(
    __name__,
    {
        "CudaContext": "context",
        "Kernel": "kernel",
        "KernelTimes": "profile",
        "gpu_to_tensor": "tensors",
        "open_shared": "sharing",
        "share": "sharing",
        "tensor_to_gpu": "tensors",
    },
)
