"""A CUDA context on a GPU: kernels, memory, life cycle, and several contexts."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest

from neuraxis.errors import (
    AlreadyInitialized,
    CudaContextClosed,
    DeviceOutOfMemory,
    DeviceUnavailable,
    ForkedProcess,
    InvalidArgument,
    InvalidType,
    KernelCompileError,
)
from neuraxis.gpu import CudaContext, tensor_to_gpu
from tests.gpu.kernels import LEAKY, SCALE

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

MEGABYTE = 1 << 20


def free_memory() -> int:
    import cupy

    cupy.cuda.runtime.deviceSynchronize()
    return int(cupy.cuda.runtime.memGetInfo()[0])


def scaled(context: CudaContext, array: Any, factor: float) -> None:
    kernel = context.get_kernel("scale", SCALE, "scale")
    kernel(array, np.int32(array.size), np.float32(factor), block=128, grid=(array.size + 127) // 128)


# --- kernels ---


def test_the_tutorials_kernel_equals_numpy() -> None:
    values = np.random.default_rng(1).standard_normal(1_000_003, np.float32)
    with CudaContext(device_id=0) as context:
        kernel = context.get_kernel(name="custom_activation", source=LEAKY, function_name="custom_activation")
        given = context.to_gpu(values)
        result = context.allocate(given.shape, given.dtype)
        grid = (given.size + 255) // 256
        kernel(given, result, np.int32(given.size), np.float32(0.01), block=(256, 1, 1), grid=(grid, 1))
        found = context.from_gpu(result)
    expected = np.where(values > 0, values, np.float32(0.01) * values)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("source", "function"),
    [
        (SCALE, "scale"),
        ('extern "C" ' + SCALE.strip(), "scale"),
        ('extern "C" {' + SCALE + "}", "scale"),
        ("namespace inner {" + SCALE + "}", "inner::scale"),
        (SCALE.replace("__global__", "template <typename T> __global__").replace("float *", "T *"), "scale<float>"),
        ("#define KERNEL __global__ void\n" + SCALE.replace("__global__ void", "KERNEL"), "scale"),
    ],
)
def test_functions_are_found_however_they_are_declared(source: str, function: str) -> None:
    with CudaContext() as context:
        array = context.to_gpu(np.arange(5, dtype=np.float32))
        kernel = context.get_kernel("any", source, function)
        kernel(array, np.int32(4), np.float32(10), block=32, grid=1)
        assert context.from_gpu(array).tolist() == [0, 10, 20, 30, 4]


def test_kernels_are_cached_by_source_and_not_by_name() -> None:
    with CudaContext() as context:
        one = context.get_kernel("same", SCALE, "scale")
        assert context.get_kernel("same", SCALE, "scale") is one
        other = context.get_kernel("same", SCALE.replace("*=", "+="), "scale")
        assert other is not one
        assert len(context._compiled) == 2
        renamed = context.get_kernel("renamed", SCALE, "scale")
        assert (renamed.name, len(context._compiled)) == ("renamed", 2)
        with_option = context.get_kernel("same", "#define A 1\n" + SCALE, "scale", options=("-DWIDTH=8",))
        assert with_option is not one
        array = context.to_gpu(np.full(3, 2, np.float32))
        one(array, 3, 5.0, block=3, grid=1)
        other(array, 3, 5.0, block=3, grid=1)
        assert context.from_gpu(array).tolist() == [15, 15, 15]


def test_a_compile_error_shows_the_line() -> None:
    with CudaContext() as context:
        with pytest.raises(KernelCompileError) as caught:
            context.get_kernel("broken", SCALE.replace("factor;", "faktor;"), "scale")
        error = caught.value
        assert error.line == 6
        assert error.source_line == "        values[i] *= faktor;"
        assert 'line 6: identifier "faktor" is undefined\n      6 |         values[i] *= faktor;' in str(error)
        with pytest.raises(KernelCompileError, match="has no kernel 'scala'; it has scale"):
            context.get_kernel("absent", SCALE, "scala")
        scaled(context, context.allocate(4, np.float32), 2)  # and the context is well


def test_launches_are_checked() -> None:
    with CudaContext() as context:
        kernel = context.get_kernel("scale", SCALE, "scale")
        array = context.allocate(8, np.float32)
        good: dict[str, Any] = {"block": 8, "grid": 1}
        for arguments, error, words in (
            ((array, np.int64(8), np.float32(1)), InvalidType, "argument 1 (int n): int64 was given"),
            ((array, np.int32(8)), InvalidType, "takes 3 arguments"),
            (
                (context.allocate(8, np.float64), 8, 1.0),
                InvalidType,
                "an array of float64, and the kernel reads float32",
            ),
            ((np.zeros(8, np.float32), 8, 1.0), InvalidType, "in the memory of the host"),
            ((array[::2], 4, 1.0), InvalidArgument, "not contiguous"),
        ):
            with pytest.raises(error) as caught:
                kernel(*arguments, **good)
            assert words in str(caught.value)
        for geometry in ({"block": 0, "grid": 1}, {"block": 2048, "grid": 1}, {"block": (1, 1, 1, 1), "grid": 1}):
            with pytest.raises(InvalidArgument):
                kernel(array, 8, 1.0, **geometry)
        with pytest.raises(InvalidArgument, match="shared_mem"):
            kernel(array, 8, 1.0, shared_mem=-1, **good)
        kernel(array[4:], 4, 1.0, **good)  # a part in one piece is a part in memory
        assert "float *values, int n, float factor" in repr(kernel)


def test_shared_memory_beyond_the_default_limit() -> None:
    source = """
    __global__ void turn(int *values) {
        extern __shared__ int kept[];
        kept[threadIdx.x * 64] = values[threadIdx.x];
        __syncthreads();
        values[threadIdx.x] = kept[(blockDim.x - 1 - threadIdx.x) * 64];
    }
    """
    with CudaContext() as context:
        array = context.to_gpu(np.arange(256, dtype=np.int32))
        context.get_kernel("turn", source, "turn")(array, block=256, grid=1, shared_mem=64 * 1024)
        assert context.from_gpu(array).tolist() == list(range(255, -1, -1))


def test_blocks_and_grids_of_three_dimensions() -> None:
    source = """
    __global__ void where(int *out, int nx, int ny) {
        int x = blockIdx.x * blockDim.x + threadIdx.x;
        int y = blockIdx.y * blockDim.y + threadIdx.y;
        int z = blockIdx.z * blockDim.z + threadIdx.z;
        out[(z * ny + y) * nx + x] = 100 * z + 10 * y + x;
    }
    """
    with CudaContext() as context:
        out = context.allocate((4, 6, 8), np.int32)
        context.get_kernel("where", source, "where")(out, 8, 6, block=(4, 3, 2), grid=(2, 2, 2))
        z, y, x = np.indices((4, 6, 8))
        np.testing.assert_array_equal(context.from_gpu(out), 100 * z + 10 * y + x)


# --- times ---


def test_a_profile_has_every_launch() -> None:
    with CudaContext(enable_profiling=True) as context:
        array = context.allocate(1 << 20, np.float32)
        scaled(context, array, 2)
        scaled(context, array, 2)
        copy = context.allocate(array.shape, array.dtype)
        activation = context.get_kernel("activation", LEAKY, "custom_activation")
        for _ in range(600):  # more than the limit of unread times
            activation(array, copy, array.size, 0.01, block=256, grid=4096)
        times = context.profile()
        assert {name: one.count for name, one in times.items()} == {"scale": 2, "activation": 600}
        for one in times.values():
            assert 0 < one.min_ms <= one.mean_ms <= one.max_ms <= one.total_ms
        scaled(context, array, 2)
    assert context.profile()["scale"].count == 3


# --- memory ---


def test_arrays_of_any_shape_and_dtype_come_back() -> None:
    with CudaContext() as context:
        for values in (
            np.arange(24, dtype=np.int16).reshape(2, 3, 4),
            np.arange(24.0).reshape(4, 6).T,
            np.arange(10)[::-2],
            np.array(3.5, np.float16),
            np.array([True, False]),
            np.zeros((0, 4), np.float32),
            np.array([1 + 2j], np.complex64),
            np.array([1, 2], ">i4"),
        ):
            there = context.to_gpu(values)
            back = context.from_gpu(there)
            np.testing.assert_array_equal(back, values)
            assert (there.shape, back.dtype) == (values.shape, values.dtype.newbyteorder("="))
        assert context.from_gpu(context.to_gpu([1.0, 2.0])).tolist() == [1.0, 2.0]
        assert context.from_gpu(context.allocate((2, 2), "int32")).tolist() == [[0, 0], [0, 0]]
        assert context.allocate(0, np.float32).size == 0
        for bad in (np.array(["a"]), np.array([object()]), np.zeros(2, "M8[s]"), np.zeros(1, np.longdouble)):
            with pytest.raises(InvalidType):
                context.to_gpu(bad)
        for shape, dtype in ((-1, np.float32), (1.5, np.float32), (3, "U3"), (3, "nonsense"), (3, object)):
            with pytest.raises((InvalidArgument, InvalidType)):
                context.allocate(shape, dtype)
        with pytest.raises(InvalidType, match="from_gpu takes an array on a GPU"):
            context.from_gpu(np.zeros(3))


def test_memory_that_was_used_is_zero_again() -> None:
    with CudaContext() as context:
        for _ in range(3):
            array = context.allocate(1000, np.float32)
            assert not context.from_gpu(array).any()
            array.data.memset(255, array.nbytes)
            del array


def test_stop_frees_the_memory_of_the_context_only() -> None:
    import cupy
    import torch

    other = CudaContext().start()
    theirs = other.to_gpu(np.arange(5))
    tensor = torch.arange(5, device="cuda")
    array = cupy.arange(5)
    before = free_memory()
    pooled = cupy.get_default_memory_pool().total_bytes()
    context = CudaContext().start()
    held = [context.allocate(64 * MEGABYTE, np.uint8) for _ in range(4)]
    assert context.used_bytes == 256 * MEGABYTE
    del held[2:]
    assert context.used_bytes == 128 * MEGABYTE
    assert free_memory() <= before - 256 * MEGABYTE  # the pool keeps them for the next ones
    context.stop()
    assert free_memory() >= before - 160 * MEGABYTE  # what is held is there
    assert not held[0].get().any()
    del held[:]
    gc.collect()
    assert free_memory() >= before - 32 * MEGABYTE
    assert cupy.get_default_memory_pool().total_bytes() == pooled
    assert other.from_gpu(theirs).tolist() == tensor.tolist() == array.get().tolist() == [0, 1, 2, 3, 4]
    scaled(other, other.allocate(4, np.float32), 1)
    other.stop()


def test_more_memory_than_there_is() -> None:
    with CudaContext() as context:
        with pytest.raises(DeviceOutOfMemory, match="device 0 has not enough memory free"):
            context.allocate(1 << 45, np.uint8)
        scaled(context, context.allocate(4, np.float32), 2)


# --- life ---


def test_use_after_stop_is_an_error() -> None:
    context = CudaContext()
    context.start()
    assert context.is_running
    with pytest.raises(AlreadyInitialized):
        context.start()
    array, kernel = context.to_gpu(np.ones(4, np.float32)), context.get_kernel("scale", SCALE, "scale")
    context.stop()
    context.stop()
    assert not context.is_running
    for call in (
        lambda: context.allocate(3, np.float32),
        lambda: context.to_gpu(np.zeros(3)),
        lambda: context.from_gpu(array),
        lambda: context.get_kernel("scale", SCALE, "scale"),
        context.synchronize,
        lambda: kernel(array, 4, 2.0, block=4, grid=1),
    ):
        with pytest.raises(CudaContextClosed, match="was closed"):
            call()
    assert array.get().tolist() == [1, 1, 1, 1]  # what was got can be read
    with CudaContext() as another:
        again = another.get_kernel("scale", SCALE, "scale")
        for stale in (array, array[1:]):
            with pytest.raises(CudaContextClosed, match=r"kernel 'scale', argument 0: the array belongs to .* closed"):
                again(stale, stale.size, 2.0, block=4, grid=1)
    with context:  # it can be started again; what it had before stays of the past
        with pytest.raises(CudaContextClosed):
            kernel(context.allocate(4, np.float32), 4, 2.0, block=4, grid=1)
        with pytest.raises(CudaContextClosed):
            scaled(context, array, 2)
        scaled(context, context.allocate(4, np.float32), 2)


def test_contexts_within_each_other() -> None:
    with CudaContext() as outer, CudaContext() as inner:
        ours, theirs = outer.to_gpu(np.ones(3, np.float32)), inner.to_gpu(np.ones(3, np.float32))
        scaled(inner, ours, 2)  # both run, on one device: arrays of either will do
        scaled(outer, theirs, 3)
        with outer:
            assert outer.used_bytes > 0
            before = outer.used_bytes
            kept = tensor_to_gpu(np.ones(8, np.float32))
            assert outer.used_bytes == before + 32
        assert outer.is_running
        before = inner.used_bytes
        also = tensor_to_gpu(np.ones(8, np.float32))
        assert inner.used_bytes == before + 32
        inner.stop()
        assert outer.from_gpu(ours).tolist() == [2, 2, 2]
        assert outer.from_gpu(theirs).tolist() == [3, 3, 3]
        before = outer.used_bytes
        third = tensor_to_gpu(np.ones(8, np.float32))
        assert outer.used_bytes == before + 32
        assert kept.size + also.size + third.size == 24
    assert not outer.is_running


def test_threads_share_a_context() -> None:
    results: dict[int, list[float]] = {}
    with CudaContext(enable_profiling=True) as context:

        def work(number: int) -> None:
            array = context.to_gpu(np.full(1000, number, np.float32))
            for _ in range(50):
                scaled(context, array, 1)
            scaled(context, array, 2)
            results[number] = sorted(set(context.from_gpu(array).tolist()))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == {number: [2.0 * number] for number in range(8)}
        assert context.profile()["scale"].count == 8 * 51
        assert len(context._compiled) == 1


def test_a_device_that_is_not_there() -> None:
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    with pytest.raises(DeviceUnavailable, match=f"device_id={count}, and there"):
        CudaContext(count).start()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # that is what it is about
def test_use_in_a_forked_child_raises() -> None:
    with CudaContext() as context:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                context.allocate(3, np.float32)
            except ForkedProcess:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        scaled(context, context.allocate(4, np.float32), 2)


def test_arrays_of_another_device() -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("gpu: it needs two devices")
    with CudaContext(0) as first, CudaContext(1) as second:
        array = first.to_gpu(np.arange(6, dtype=np.float32).reshape(2, 3))
        with pytest.raises(InvalidArgument, match=r"on device 0, and this context has device 1; to_gpu\(array\)"):
            scaled(second, array, 2)
        moved = second.to_gpu(array)
        scaled(second, moved, 2)
        assert second.from_gpu(moved).tolist() == [[0, 2, 4], [6, 8, 10]]
