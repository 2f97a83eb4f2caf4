"""The tutorial "Using PyCUDA for Custom CUDA Kernels", with torch's tensors: a custom leaky ReLU.

python examples/26_cuda_kernel.py

Differences from the tutorial are marked with "instead of" and "added". Without a GPU it prints what is missing.
"""

import sys

import numpy as np
import torch

from neuraxis.distributed import CudaContext, gpu_to_tensor, tensor_to_gpu
from neuraxis.errors import DeviceUnavailable

# Define CUDA kernel
kernel_source = """
__global__ void custom_activation(float *input, float *output, int n, float alpha)
{
    int idx = threadIdx.x + blockIdx.x * blockDim.x;
    if (idx < n)
    {
        output[idx] = input[idx] > 0 ? input[idx] : alpha * input[idx];
    }
}
"""

# Create CUDA context
try:
    ctx = CudaContext(device_id=0, enable_profiling=True).start()  # instead of: with CudaContext(device_id=0) as ctx
except DeviceUnavailable as error:
    print(f"Nothing was computed. {error}")
    sys.exit()

with ctx:
    # Get kernel
    kernel = ctx.get_kernel(
        name="custom_activation",
        source=kernel_source,
        function_name="custom_activation",
    )

    # Create input tensor
    input_tensor = torch.randn(1000000)  # instead of a tensor class of its own

    # Convert to GPU array
    input_gpu = tensor_to_gpu(input_tensor)

    # Allocate output array
    output_gpu = ctx.allocate(input_gpu.shape, input_gpu.dtype)

    # Launch kernel
    block_size = 256
    grid_size = (input_gpu.size + block_size - 1) // block_size

    kernel(
        input_gpu,
        output_gpu,
        np.int32(input_gpu.size),
        np.float32(0.01),
        block=(block_size, 1, 1),
        grid=(grid_size, 1),
    )

    # Convert back to a tensor: on the GPU, without a copy
    output_tensor = gpu_to_tensor(output_gpu)

    # Print result
    print(f"Input: {input_tensor[:10]}")
    print(f"Output: {output_tensor[:10]}")

    # added: the same by NumPy, and the time that the GPU took
    values = input_tensor.numpy()
    expected = np.where(values > 0, values, np.float32(0.01) * values)
    print(f"the same as NumPy, to the bit: {np.array_equal(ctx.from_gpu(output_gpu), expected)}")
    print(f"{ctx.profile()['custom_activation'].mean_ms:.3f} ms on the GPU")
