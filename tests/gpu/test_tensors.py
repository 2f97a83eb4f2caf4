"""Torch and CuPy on the same memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

from neuraxis.errors import InvalidType
from neuraxis.gpu import CudaContext, gpu_to_tensor, tensor_to_gpu
from tests.gpu.kernels import SCALE

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


def test_device_tensors_are_not_copied() -> None:
    tensor = torch.arange(6.0, device="cuda").reshape(2, 3)
    array = tensor_to_gpu(tensor)
    assert array.data.ptr == tensor.data_ptr()
    assert (array.shape, array.dtype) == ((2, 3), np.float32)
    back = gpu_to_tensor(array)
    assert back.data_ptr() == tensor.data_ptr()
    assert back.device == tensor.device
    back[0, 0] = 7
    assert array[0, 0].get() == 7
    assert tensor[0, 0].item() == 7
    assert tensor_to_gpu(array).data.ptr == array.data.ptr
    assert gpu_to_tensor(back) is back
    with CudaContext() as context:
        assert context.to_gpu(tensor).data.ptr == tensor.data_ptr()
        assert context.to_gpu(array).data.ptr == tensor.data_ptr()
        assert context.from_gpu(tensor).tolist() == [[7, 1, 2], [3, 4, 5]]


def test_host_tensors_are_copied() -> None:
    with CudaContext() as context:
        for values in (torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).T, np.arange(6), [1, 2]):
            array = tensor_to_gpu(values)
            np.testing.assert_array_equal(context.from_gpu(array), np.asarray(values))
    assert tensor_to_gpu(torch.ones(3)).get().tolist() == [1, 1, 1]  # without a context, too


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "bool"]
)
def test_dtypes(dtype: str) -> None:
    tensor = torch.ones(5, dtype=getattr(torch, dtype), device="cuda")
    array = tensor_to_gpu(tensor)
    assert array.dtype == np.dtype(dtype)
    assert gpu_to_tensor(array).dtype == tensor.dtype


def test_gradients_are_left_behind() -> None:
    tensor = torch.ones(3, device="cuda", requires_grad=True)
    array = tensor_to_gpu(tensor)
    assert array.data.ptr == tensor.data_ptr()
    assert not gpu_to_tensor(array).requires_grad
    assert tensor_to_gpu(torch.ones(3, requires_grad=True)).get().tolist() == [1, 1, 1]


def test_a_tensor_can_be_an_argument_of_a_kernel() -> None:
    tensor = torch.arange(4.0, device="cuda")
    with CudaContext() as context:
        kernel = context.get_kernel("scale", SCALE, "scale")
        kernel(tensor, tensor.numel(), 3.0, block=4, grid=1)
        kernel(tensor + 1, tensor.numel(), 3.0, block=4, grid=1)  # a temporary
        context.synchronize()
        assert tensor.tolist() == [0, 3, 6, 9]
        with pytest.raises(InvalidType, match="in the memory of the host"):
            kernel(tensor.cpu(), 4, 3.0, block=4, grid=1)


def test_a_kernel_runs_after_earlier_work_of_torch() -> None:
    side = torch.cuda.Stream()
    with CudaContext() as context:
        kernel = context.get_kernel("scale", SCALE, "scale")
        for turn in range(1, 21):
            with torch.cuda.stream(side):
                tensor = torch.zeros(1 << 22, device="cuda")
                for _ in range(20):
                    tensor += turn
                array = tensor_to_gpu(tensor)
            kernel(array, array.size, 2.0, block=256, grid=array.size // 256)
            values = context.from_gpu(array)
            assert values.min() == values.max() == 40 * turn


def test_torch_continues_after_the_kernel() -> None:
    source = """
    __global__ void late(float *values) {
        long long begun = clock64();
        while (clock64() - begun < 20000000) {}
        values[threadIdx.x] *= 3.0f;
    }
    """
    side = torch.cuda.Stream()  # which does not wait for the stream that CuPy uses by itself
    with CudaContext() as context:
        kernel = context.get_kernel("late", source, "late")
        with torch.cuda.stream(side):
            tensor = torch.full((256,), 2.0, device="cuda")
            kernel(tensor, block=256, grid=1)
            given = (tensor + 0).tolist()
            array = tensor_to_gpu(tensor)
            kernel(array, block=256, grid=1)
            back = (gpu_to_tensor(array) + 0).tolist()
    assert given == [6.0] * 256
    assert back == [18.0] * 256


def test_a_result_outlives_its_context() -> None:
    with CudaContext() as context:
        array = context.to_gpu(np.arange(1000, dtype=np.float32))
        tensor = gpu_to_tensor(array)
        address = array.data.ptr
        del array
    gc.collect()
    filler = [torch.full((1000,), -1.0, device="cuda") for _ in range(100)]
    assert tensor.data_ptr() == address
    assert tensor.sum().item() == 499500
    assert len(filler) == 100


def test_dtypes_that_cupy_lacks_are_refused() -> None:
    with pytest.raises(InvalidType, match="float8"):
        tensor_to_gpu(torch.zeros(3, device="cuda").to(torch.float8_e4m3fn))
    with pytest.raises(InvalidType):
        tensor_to_gpu(torch.zeros(3).to(torch.bfloat16))
    with pytest.raises(InvalidType):
        tensor_to_gpu(torch.zeros(3, 3).to_sparse())
