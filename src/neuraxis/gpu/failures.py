"""Translation of CUDA errors, and attribution of late errors to kernels.

A kernel runs after its launch has returned, and the next CUDA call on that device, by any code of the process, reports
its failure. So the names of launched kernels are stored, by device, until the device was synchronized. A
synchronization covers kernels that were launched before it began: launches are numbered, because another thread may
launch kernels at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from neuraxis.errors import CudaError, DeviceOutOfMemory, KernelFailed, NeuraxisError

__all__ = ["cuda_calls", "has_failed", "record_launch", "synchronizing", "translated_error"]

# After such an error the device is unusable in this process: CUDA repeats the error to every call.
_KERNEL_FAILURES = {
    700: "illegal memory access",
    702: "it exceeded the time limit of the device",
    710: "an assertion failed",
    714: "the stack of a thread was corrupted",
    715: "illegal instruction",
    716: "misaligned address",
    717: "address of the wrong memory space",
    718: "invalid program counter",
    719: "launch failure",
}
_OUT_OF_MEMORY = 2

_lock = threading.Lock()
_count = 0  # number of launches
_launched: dict[int, dict[str, int]] = {}  # device -> kernel -> number of its last launch
_failed: set[int] = set()  # devices that a failed kernel has made unusable


def record_launch(device_id: int, kernel: str) -> None:
    """Record a launch; called before and after it.

    Before, so that a kernel that fails at once is known by name; after, because another thread may have synchronized in
    between, which does not cover this launch.
    """
    global _count
    with _lock:
        _count += 1
        _launched.setdefault(device_id, {})[kernel] = _count


@contextmanager
def synchronizing(device_id: int) -> Iterator[None]:
    """Wrap a synchronization of the device: when it succeeds, earlier launches have succeeded too."""
    with _lock:
        before = _count
    yield
    with _lock:
        names = _launched.get(device_id, {})
        for kernel in [kernel for kernel, number in names.items() if number <= before]:
            del names[kernel]


def has_failed(device_id: int) -> bool:
    """Return True if a kernel has failed on the device; CUDA repeats that error from then on."""
    with _lock:
        return device_id in _failed


@contextmanager
def cuda_calls(what: str, device_id: int) -> Iterator[None]:
    """Translate errors of CUDA and CuPy in the block. `what` names the operation for the message."""
    try:
        yield
    except Exception as error:
        translated = translated_error(what, device_id, error)
        if translated is None:
            raise
        raise translated from error


def translated_error(what: str, device_id: int, error: Exception) -> NeuraxisError | None:
    """Return the neuraxis error for an error of CUDA or CuPy; None for any other, such as a lack of host memory."""
    kind, status = type(error).__name__, getattr(error, "status", None)
    if kind == "OutOfMemoryError" and isinstance(error, MemoryError):
        return DeviceOutOfMemory(f"{what}: device {device_id} has not enough memory free: {error}")
    if kind in ("CUDARuntimeError", "CUDADriverError") and isinstance(status, int):
        return _translated(what, device_id, status, str(error))
    return None


def _translated(what: str, device_id: int, status: int, text: str) -> NeuraxisError:
    if status == _OUT_OF_MEMORY:
        return DeviceOutOfMemory(f"{what}: device {device_id} has not enough memory free: {text}")
    if status not in _KERNEL_FAILURES:
        return CudaError(f"{what} on device {device_id}: {text}", status=status)
    with _lock:
        _failed.add(device_id)
        names = _launched.get(device_id, {})
        kernels = tuple(sorted(names, key=names.__getitem__))
    if len(kernels) == 1:
        subject = f"kernel {kernels[0]!r} failed on device {device_id}"
    elif kernels:
        candidates = ", ".join(map(repr, kernels))
        subject = f"a kernel failed on device {device_id}, launched since the last synchronization: one of {candidates}"
    else:
        subject = f"a kernel failed on device {device_id}, and it was launched by other code than neuraxis"
    exactly = "" if len(kernels) == 1 else " CudaContext(check_launches=True) shows which one."
    return KernelFailed(
        f"{subject}: {_KERNEL_FAILURES[status]} ({text}; detected in {what}). CUDA is unusable in this process "
        f"from now on: start a new one.{exactly}",
        kernels=kernels,
        status=status,
    )
