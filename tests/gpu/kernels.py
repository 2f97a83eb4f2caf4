"""Sources of kernels for tests."""

from __future__ import annotations

__all__ = ["LEAKY", "OUT_OF_BOUNDS", "SCALE"]

SCALE = """
__global__ void scale(float *values, int n, float factor)
{
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i < n)
        values[i] *= factor;
}
"""

LEAKY = """
__global__ void custom_activation(float *input, float *output, int n, float alpha)
{
    int idx = threadIdx.x + blockIdx.x * blockDim.x;
    if (idx < n)
    {
        output[idx] = input[idx] > 0 ? input[idx] : alpha * input[idx];
    }
}
"""

OUT_OF_BOUNDS = """
__global__ void out_of_bounds(float *values)
{
    values[1ull << 40] = 1.0f;
}
"""
