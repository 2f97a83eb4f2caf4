"""What CUDA reports, as errors of ours; and which kernels a late report may be about.

A kernel runs after its launch has returned. What goes wrong in it is reported by whatever is called next on that
device, by anyone in the process. So the names of kernels are kept, by device, from their launch until the device was
waited for. A wait is about what was launched before it began: launches are numbered, because another thread may launch
while this one waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from neuraxis.errors import CudaError, DeviceOutOfMemory, KernelFailed, NeuraxisError

__all__ = ["as_ours", "cuda_calls", "has_failed", "note_launch", "waited_for"]

# What a kernel does wrong leaves the device's state in this process unusable: CUDA repeats the error to every call.
_FAILURES_OF_KERNELS = {
    700: "it used an address that is not its own",
    702: "it ran into the time limit of the device",
    710: "an assertion failed in it",
    714: "the stack or memory of a thread was corrupted",
    715: "it met an illegal instruction",
    716: "it used an address that is not aligned",
    717: "it used an address of the wrong memory space",
    718: "its program counter left the program",
    719: "it failed",
}
_OUT_OF_MEMORY = 2

_lock = threading.Lock()
_count = 0  # of launches
_launched: dict[int, dict[str, int]] = {}  # by device and kernel, the number of its last launch
_failed: set[int] = set()  # devices that a kernel has taken from this process


def note_launch(device_id: int, kernel: str) -> None:
    """A kernel is about to be launched, and then once more: it has been.

    The first, so that one that fails at once is known by name; the second, because somebody may have waited in between,
    and what was launched after that is not what was waited for.
    """
    global _count
    with _lock:
        _count += 1
        _launched.setdefault(device_id, {})[kernel] = _count


@contextmanager
def waited_for(device_id: int) -> Iterator[None]:
    """Around a wait for the device: when it ends well, so have all kernels that were launched before."""
    with _lock:
        before = _count
    yield
    with _lock:
        names = _launched.get(device_id, {})
        for kernel in [kernel for kernel, number in names.items() if number <= before]:
            del names[kernel]


def has_failed(device_id: int) -> bool:
    """Whether a KernelFailed was raised for the device: from then on CUDA only repeats it."""
    with _lock:
        return device_id in _failed


@contextmanager
def cuda_calls(what: str, device_id: int) -> Iterator[None]:
    """Errors of CUDA and CuPy within become ours. `what`: what is being done, for the text."""
    try:
        yield
    except Exception as error:
        ours = as_ours(what, device_id, error)
        if ours is None:
            raise
        raise ours from error


def as_ours(what: str, device_id: int, error: Exception) -> NeuraxisError | None:
    """An error of CUDA or CuPy as one of ours; None for any other, a lack of memory on the host among them."""
    kind, status = type(error).__name__, getattr(error, "status", None)
    if kind == "OutOfMemoryError" and isinstance(error, MemoryError):
        return DeviceOutOfMemory(f"{what}: device {device_id} has not enough memory free: {error}")
    if kind in ("CUDARuntimeError", "CUDADriverError") and isinstance(status, int):
        return _translated(what, device_id, status, str(error))
    return None


def _translated(what: str, device_id: int, status: int, text: str) -> NeuraxisError:
    if status == _OUT_OF_MEMORY:
        return DeviceOutOfMemory(f"{what}: device {device_id} has not enough memory free: {text}")
    if status not in _FAILURES_OF_KERNELS:
        return CudaError(f"{what} on device {device_id}: {text}", status=status)
    with _lock:
        _failed.add(device_id)
        names = _launched.get(device_id, {})
        kernels = tuple(sorted(names, key=names.__getitem__))
    if len(kernels) == 1:
        who = f"kernel {kernels[0]!r} failed on device {device_id}"
    elif kernels:
        told = ", ".join(map(repr, kernels))
        who = f"a kernel failed on device {device_id}, one of those launched since it was last waited for: {told}"
    else:
        who = f"a kernel failed on device {device_id}, and it was launched by other code than neuraxis"
    exactly = "" if len(kernels) == 1 else " CudaContext(check_launches=True) tells which."
    return KernelFailed(
        f"{who}: {_FAILURES_OF_KERNELS[status]} ({text}; noticed in {what}). CUDA cannot be used in this process "
        f"any more: start a new one.{exactly}",
        kernels=kernels,
        status=status,
    )
