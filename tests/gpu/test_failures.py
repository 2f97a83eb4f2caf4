"""Translation of CUDA's errors, with fake errors of the same names and numbers."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from neuraxis.errors import CudaError, DeviceOutOfMemory, InvalidArgument, KernelFailed
from neuraxis.gpu import failures
from neuraxis.gpu.failures import cuda_calls, has_failed, record_launch, synchronizing

DEVICE = 90  # does not exist


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(status, text)

    def __str__(self) -> str:
        return self.text


class OutOfMemoryError(MemoryError):
    """CuPy's."""


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    failures._launched.pop(DEVICE, None)
    failures._failed.discard(DEVICE)


def raised_as(error: BaseException) -> BaseException:
    with pytest.raises(BaseException) as caught, cuda_calls("synchronize", DEVICE):  # noqa: PT011
        raise error
    return caught.value


ILLEGAL = CUDARuntimeError(700, "cudaErrorIllegalAddress: an illegal memory access was encountered")


def test_a_failed_kernel_is_named() -> None:
    record_launch(DEVICE, "f")
    record_launch(DEVICE, "f")
    assert not has_failed(DEVICE)
    error = raised_as(ILLEGAL)
    assert type(error) is KernelFailed
    assert (error.kernels, error.status) == (("f",), 700)
    assert str(error).startswith("kernel 'f' failed on device 90: illegal memory access")
    assert "start a new one" in str(error)
    assert has_failed(DEVICE)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.kernels, copy.status, str(copy)) == (error.kernels, 700, str(error))


def test_of_several_all_are_named_since_the_last_synchronization() -> None:
    record_launch(DEVICE, "before")
    with synchronizing(DEVICE):
        pass
    for kernel in ("f", "g", "f"):
        record_launch(DEVICE, kernel)
    error = raised_as(ILLEGAL)
    assert isinstance(error, KernelFailed)
    assert error.kernels == ("g", "f")
    assert "check_launches=True" in str(error)


def test_a_wait_covers_earlier_launches_only() -> None:
    for kernel in ("before", "about to be"):
        record_launch(DEVICE, kernel)
    with synchronizing(DEVICE):
        record_launch(DEVICE, "meanwhile")
    record_launch(DEVICE, "about to be")  # now it is launched
    error = raised_as(ILLEGAL)
    assert isinstance(error, KernelFailed)
    assert error.kernels == ("meanwhile", "about to be")
    with pytest.raises(RuntimeError), synchronizing(DEVICE):
        raise ILLEGAL
    again = raised_as(ILLEGAL)
    assert isinstance(again, KernelFailed)
    assert again.kernels == error.kernels


def test_one_of_another_library() -> None:
    error = raised_as(ILLEGAL)
    assert isinstance(error, KernelFailed)
    assert error.kernels == ()
    assert "launched by other code" in str(error)


def test_other_errors_of_cuda() -> None:
    error = raised_as(CUDARuntimeError(1, "cudaErrorInvalidValue: invalid argument"))
    assert type(error) is CudaError
    assert error.status == 1
    assert "cudaErrorInvalidValue" in str(error)
    assert not has_failed(DEVICE)
    for full in (OutOfMemoryError("Out of memory allocating 9"), CUDARuntimeError(2, "cudaErrorMemoryAllocation")):
        error = raised_as(full)
        assert type(error) is DeviceOutOfMemory
        assert isinstance(error, MemoryError)


def test_other_errors_pass() -> None:
    for other in (InvalidArgument("mine"), ValueError("theirs"), KeyboardInterrupt(), MemoryError("of the host")):
        assert raised_as(other) is other
