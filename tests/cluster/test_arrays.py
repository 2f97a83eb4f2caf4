"""Tensors as Dask arrays and back: shared memory where possible, equal values always."""

from __future__ import annotations

import math

import dask
import dask.array as da
import numpy as np
import pytest
import torch
from distributed.protocol import serialize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from neuraxis.cluster import dask_to_tensor, tensor_to_dask
from neuraxis.errors import InvalidArgument, InvalidType


@pytest.fixture(autouse=True)
def no_threads_that_stay():
    """Compute without threads: without a cluster, Dask would start threads and keep them."""
    with dask.config.set(scheduler="synchronous"):
        yield


def blocks(array):
    """The chunks themselves, by place, as they are in the graph."""
    return {key[1:]: value for key, value in dict(array.__dask_graph__()).items()}


def memory(array):
    """The first and the last byte of an array or tensor."""
    return np.lib.array_utils.byte_bounds(array if isinstance(array, np.ndarray) else array.numpy())


# --- the same memory ---


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_chunks_are_views_of_the_tensor(library):
    values = torch.arange(24.0).reshape(6, 4)
    values = values.numpy() if library == "numpy" else values
    array = tensor_to_dask(values, chunks=(2, 3))
    assert array.chunks == ((2, 2, 2), (3, 1))
    first, last = memory(values)
    found = blocks(array)
    assert sorted(found) == [(i, j) for i in range(3) for j in range(2)]
    for (i, j), block in found.items():
        assert memory(block)[0] == first + 4 * (2 * i * 4 + 3 * j)
        assert memory(block)[1] <= last
        assert np.shares_memory(block, np.asarray(values))


def test_a_tensor_is_sent_to_a_worker_without_a_copy():
    values = torch.arange(4000.0).reshape(100, 40)
    first, last = memory(values)
    for block in blocks(tensor_to_dask(values, chunks=(50, -1))).values():
        _, frames = serialize(block)
        sent = np.frombuffer(max(frames, key=len), np.uint8)
        assert first <= memory(sent)[0] < memory(sent)[1] <= last


def test_one_chunk_round_trips_without_a_copy():
    values = torch.arange(12.0)
    back = dask_to_tensor(tensor_to_dask(values))
    assert back.data_ptr() == values.data_ptr()
    transposed = torch.arange(12.0).reshape(3, 4).T
    back = dask_to_tensor(tensor_to_dask(transposed))
    assert (back.data_ptr(), back.stride()) == (transposed.data_ptr(), transposed.stride())


def test_two_arrays_of_one_tensor_are_two():
    values = torch.zeros(4)
    before = tensor_to_dask(values)
    values += 1
    after = tensor_to_dask(values)
    assert before.name != after.name
    assert dask_to_tensor(before).tolist() == [1, 1, 1, 1]  # nothing was copied, so the change is seen


# --- the same values ---


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.int64, np.uint8, np.bool_, np.complex64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7),
    ),
    st.integers(1, 8),
    st.booleans(),
)
def test_any_array_in_any_chunks_round_trips(values, size, as_tensor):
    given = torch.from_numpy(values) if as_tensor else values
    array = tensor_to_dask(given, chunks=size)
    assert (array.shape, array.dtype) == (values.shape, values.dtype)
    for along, extent in zip(array.chunks, values.shape, strict=True):
        assert sum(along) == extent
        assert all(part <= size for part in along)
    assert np.array_equal(dask_to_tensor(array, library="numpy"), values, equal_nan=values.dtype.kind in "fc")
    back = dask_to_tensor(array)
    assert isinstance(back, torch.Tensor)
    assert np.array_equal(back.numpy(), values, equal_nan=values.dtype.kind in "fc")


@pytest.mark.parametrize("chunks", ["auto", -1, 3, (2, -1), (2, None), ((1, 4), (4,)), {0: 2}])
def test_chunks_take_all_forms_of_dask(chunks):
    values = np.arange(20).reshape(5, 4)
    array = tensor_to_dask(values, chunks=chunks)
    assert array.chunks == da.from_array(values, chunks=chunks).chunks
    assert np.array_equal(array.compute(), values)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
)
def test_types_that_numpy_lacks_are_widened_exactly(dtype):
    bits = torch.arange(-128, 128, dtype=torch.int8)
    values = (bits.to(torch.int16) * 257).view(torch.bfloat16) if dtype is torch.bfloat16 else bits.view(dtype)
    array = tensor_to_dask(values, chunks=100)
    assert array.dtype == np.float32
    back = dask_to_tensor(array)
    assert back.dtype is torch.float32
    again = back.to(dtype).float()
    assert torch.equal(again.nan_to_num(7.0), values.float().nan_to_num(7.0))


def test_half_precision_and_lazy_conjugates():
    halves = torch.tensor([1.5, -2.25, math.inf], dtype=torch.float16)
    assert torch.equal(dask_to_tensor(tensor_to_dask(halves)), halves)
    values = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.equal(dask_to_tensor(tensor_to_dask(values.conj())), values.conj().resolve_conj())
    assert torch.equal(dask_to_tensor(tensor_to_dask(values.conj().imag)), torch.tensor([-2.0, 4.0]))


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6.0)[::-1],
        np.arange(6, dtype=">i4"),
        np.broadcast_to(np.float32(3), (4, 2)),
        np.frombuffer(b"abcdef", np.uint8),
    ],
    ids=["backwards", "big-endian", "broadcast", "read-only"],
)
def test_arrays_that_torch_cannot_wrap_are_copied(values):
    back = dask_to_tensor(tensor_to_dask(values))
    assert back.numpy().tolist() == values.tolist()
    before = values.tolist()
    back.fill_(9)  # it can be written, and nothing else is changed
    assert values.tolist() == before


def test_an_array_of_unknown_size():
    values = torch.arange(10)
    array = tensor_to_dask(values, chunks=3)
    assert dask_to_tensor(array[array > 5]).tolist() == [6, 7, 8, 9]


# --- on a cluster ---


def standardized(chunk):
    tensor = torch.tensor(chunk)
    return ((tensor - tensor.mean(dim=0)) / tensor.std(dim=0)).numpy()


def test_on_a_cluster(cluster):
    torch.manual_seed(1)
    data = torch.rand(4000, 100, dtype=torch.float64)  # 3 MB: more than one message
    processed = tensor_to_dask(data, chunks=(1000, -1)).map_blocks(standardized, meta=np.empty((0, 0)))
    assert processed.chunks == ((1000,) * 4, (100,))
    found = dask_to_tensor(processed)
    expected = torch.cat([torch.from_numpy(standardized(part.numpy())) for part in data.split(1000)])
    assert torch.equal(found, expected)
    found += 1  # received arrays are writable
    large = torch.arange(2_000_000.0)  # Dask would warn of a graph of this size
    assert torch.equal(dask_to_tensor(tensor_to_dask(large, chunks=500_000) * 2), large * 2)
    assert torch.equal(dask_to_tensor(tensor_to_dask(data[:, :1].to(torch.bfloat16))), data[:, :1].bfloat16().float())
    whole = tensor_to_dask(data.numpy(), chunks=(700, 60)).sum(axis=0)
    assert np.allclose(dask_to_tensor(whole, library="numpy"), data.numpy().sum(axis=0))


# --- what is refused ---


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ([1, 2], "tensor: a torch tensor or a NumPy array is expected, not list"),
        (np.array([{}]), "tensor: an array of object contains Python objects"),
        (
            torch.ones(2, requires_grad=True),
            "tensor: it requires a gradient, which Dask does not support. Pass tensor.det",
        ),
        (torch.ones(2, device="meta"), "tensor: it is on meta, and Dask arrays are in main memory. Pass tensor.cpu"),
        (torch.ones(2).to(torch.float8_e8m0fnu), "tensor: NumPy has no type for torch.float8_e8m0fnu"),
        (torch.eye(2).to_sparse(), "tensor: its layout is torch.sparse_coo. Pass tensor.to_dense()"),
    ],
    ids=["list", "objects", "gradient", "device", "no type", "sparse"],
)
def test_values_that_are_no_arrays_are_refused(tensor, message):
    with pytest.raises(InvalidType) as raised:
        tensor_to_dask(tensor)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("chunks", [(2, 2, 2), ((1, 2), (4,)), "many", (0.5, 1), object()])
def test_chunks_that_do_not_fit_are_refused(chunks):
    with pytest.raises(InvalidArgument, match=r"chunks=.*: does not fit the shape"):
        tensor_to_dask(np.zeros((5, 4)), chunks=chunks)


def test_dtypes_that_torch_lacks_are_refused():
    for array in (da.from_array(np.array(["text"])), da.zeros(2, dtype="M8[s]"), da.zeros(2, dtype=np.longdouble)):
        with pytest.raises(InvalidType, match="torch has no type for"):
            dask_to_tensor(array)
    assert dask_to_tensor(da.from_array(np.array(["text"])), library="numpy").tolist() == ["text"]
    with pytest.raises(InvalidType, match=r"a dask\.array\.Array is expected, not ndarray"):
        dask_to_tensor(np.zeros(3))
    with pytest.raises(InvalidArgument, match="library='jax'"):
        dask_to_tensor(da.zeros(2), library="jax")
