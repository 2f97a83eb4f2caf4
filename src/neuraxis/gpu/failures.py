"""What CUDA reports, as errors of ours; and which kernels a late report may be about.

A kernel runs after its launch has returned. What goes wrong in it is reported by whatever is called next on that
device, by anyone in the process. So the names of kernels are kept, by device, from their launch until the device was
waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from neuraxis.errors import CudaError, DeviceOutOfMemory, KernelFailed, NeuraxisError

__all__ = ["cuda_calls", "has_failed", "note_finished", "note_launch"]

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
_launched: dict[int, dict[str, None]] = {}  # by device, the names of kernels in the order of launches
_failed: set[int] = set()  # devices that a kernel has taken from this process


def note_launch(device_id: int, kernel: str) -> None:
    with _lock:
        names = _launched.setdefault(device_id, {})
        names.pop(kernel, None)  # the last launch counts
        names[kernel] = None


def note_finished(device_id: int) -> None:
    """The device was waited for, and all that was launched has ended well."""
    with _lock:
        _launched.pop(device_id, None)


def has_failed(device_id: int) -> bool:
    """Whether a KernelFailed was raised for the device: from then on CUDA only repeats it."""
    with _lock:
        return device_id in _failed


@contextmanager
def cuda_calls(what: str, device_id: int) -> Iterator[None]:
    """Errors of CUDA and CuPy within become ours. `what`: what is being done, for the text."""
    try:
        yield
    except NeuraxisError:
        raise
    except MemoryError as error:
        raise DeviceOutOfMemory(f"{what}: device {device_id} has not enough memory free: {error}") from error
    except Exception as error:
        status = getattr(error, "status", None)
        if type(error).__name__ not in ("CUDARuntimeError", "CUDADriverError") or not isinstance(status, int):
            raise
        raise _translated(what, device_id, status, str(error)) from error


def _translated(what: str, device_id: int, status: int, text: str) -> NeuraxisError:
    if status == _OUT_OF_MEMORY:
        return DeviceOutOfMemory(f"{what}: device {device_id} has not enough memory free: {text}")
    if status not in _FAILURES_OF_KERNELS:
        return CudaError(f"{what} on device {device_id}: {text}", status=status)
    with _lock:
        _failed.add(device_id)
        kernels = tuple(_launched.get(device_id, ()))
    if len(kernels) == 1:
        who = f"kernel {kernels[0]!r} failed on device {device_id}"
    elif kernels:
        names = ", ".join(map(repr, kernels))
        who = f"a kernel failed on device {device_id}, one of those launched since it was last waited for: {names}"
    else:
        who = f"a kernel failed on device {device_id}, and it was launched by other code than neuraxis"
    exactly = "" if len(kernels) == 1 else " CudaContext(check_launches=True) tells which."
    return KernelFailed(
        f"{who}: {_FAILURES_OF_KERNELS[status]} ({text}; noticed in {what}). CUDA cannot be used in this process "
        f"any more: start a new one.{exactly}",
        kernels=kernels,
        status=status,
    )
