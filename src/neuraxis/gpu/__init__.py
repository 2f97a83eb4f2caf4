"""CUDA from Python: kernels compiled from source at run time, and arrays on a GPU.

`CudaContext` compiles and launches kernels and allocates memory. `tensor_to_gpu` and `gpu_to_tensor` convert between it
and torch without a copy. `share` and `open_shared` let several processes use one array. The package is built on CuPy,
which is imported when a device is used; without CuPy or a GPU the error says what is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["CudaContext", "Kernel", "KernelTimes", "gpu_to_tensor", "open_shared", "share", "tensor_to_gpu"]

if TYPE_CHECKING:
    from neuraxis.gpu.context import CudaContext
    from neuraxis.gpu.kernel import Kernel
    from neuraxis.gpu.launcher import KernelTimes
    from neuraxis.gpu.sharing import open_shared, share
    from neuraxis.gpu.tensors import gpu_to_tensor, tensor_to_gpu
else:
    from neuraxis.imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "neuraxis.gpu.context": ["CudaContext"],
            "neuraxis.gpu.kernel": ["Kernel"],
            "neuraxis.gpu.launcher": ["KernelTimes"],
            "neuraxis.gpu.sharing": ["open_shared", "share"],
            "neuraxis.gpu.tensors": ["gpu_to_tensor", "tensor_to_gpu"],
        },
    )
