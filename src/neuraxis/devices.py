"""Whether CUDA can be used here, and what is missing if not."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterable
from typing import Any

from neuraxis.errors import DeviceUnavailable

__all__ = ["compiler_missing", "never_free", "require_cupy", "require_device"]

_INSTALL = "pip install 'neuraxis[cuda]'"
_NO_DEVICE = (
    "It needs an NVIDIA GPU and its driver, as new as CuPy's CUDA wants it, and CUDA_VISIBLE_DEVICES must not hide the "
    "GPU; `neuraxis doctor` tells what is here"
)


def require_cupy() -> Any:
    """The module cupy."""
    if importlib.util.find_spec("cupy") is None:
        raise DeviceUnavailable("CuPy is not installed", _INSTALL)
    try:
        import cupy
    except ImportError as error:
        lines = [line for line in str(error).splitlines() if line.strip(" =")] or ["no reason is given"]
        raise DeviceUnavailable(
            f"CuPy is installed and cannot be loaded: {lines[-1].strip()}",
            f"Keep one CuPy (`pip list` shows cupy, cupy-cuda12x, ...), then {_INSTALL} --force-reinstall",
        ) from error
    return cupy


def require_device(device_id: int) -> Any:
    """The module cupy, once it is known that there is such a device."""
    cupy = require_cupy()
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # CuPy has several for it, and what they have in common is Exception
        raise DeviceUnavailable(f"CuPy finds no driver or no device ({error})", _NO_DEVICE) from error
    if count == 0:
        raise DeviceUnavailable("there is no CUDA device", _NO_DEVICE)
    if device_id >= count:
        there = "there is one, number 0" if count == 1 else f"there are {count}, 0 to {count - 1}"
        raise DeviceUnavailable(
            f"device_id={device_id}, and {there}", "CUDA_VISIBLE_DEVICES sets which devices a process sees"
        )
    return cupy


def compiler_missing(error: BaseException) -> DeviceUnavailable:
    """For when CuPy works and NVRTC, which compiles kernels, cannot be loaded."""
    lines = str(error).strip().splitlines() or ["no reason is given"]
    return DeviceUnavailable(
        f"NVRTC, which compiles kernels, cannot be loaded: {lines[0]}",
        f"{_INSTALL} brings it for CUDA 12; for a CuPy of another CUDA, install the toolkit of that version",
    )


def never_free(things: Iterable[Any]) -> None:
    """Leave memory and functions where they are, on a device that a kernel has taken from this process.

    There is nothing to give back any more, and CuPy would write a traceback for each that it tries to.
    """
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
