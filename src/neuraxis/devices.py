"""Availability of CUDA: import CuPy, check for a device, and say what is missing."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from neuraxis import imports as optional
from neuraxis.errors import DeviceUnavailable, MissingDependency

__all__ = ["compiler_missing", "never_free", "require_cupy", "require_device"]

_NO_DEVICE = (
    "It needs an NVIDIA GPU and a driver that is recent enough for CuPy's CUDA version, and CUDA_VISIBLE_DEVICES must "
    "not hide the GPU; `neuraxis doctor` shows what is available"
)


def require_cupy() -> Any:
    """Return the module cupy; DeviceUnavailable if it cannot be imported."""
    if not optional.installed("cupy"):
        raise DeviceUnavailable("CuPy is not installed", optional.install_command("cuda"))
    try:
        return optional.require("cupy", extra="cuda", purpose="CUDA")
    except MissingDependency as missing:
        error = missing.__cause__ or missing
        lines = [line for line in str(error).splitlines() if line.strip(" =")] or ["no reason is given"]
        raise DeviceUnavailable(
            f"CuPy is installed and cannot be loaded: {lines[-1].strip()}",
            "Keep one CuPy (`pip list` shows cupy, cupy-cuda12x, ...), then "
            f"{optional.install_command('cuda')} --force-reinstall",
        ) from error


def require_device(device_id: int) -> Any:
    """Return the module cupy; DeviceUnavailable if there is no such device."""
    cupy = require_cupy()
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # CuPy raises several types without a common base class
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
    """Return the error for an NVRTC (the kernel compiler) that cannot be loaded although CuPy works."""
    lines = str(error).strip().splitlines() or ["no reason is given"]
    return DeviceUnavailable(
        f"NVRTC, which compiles kernels, cannot be loaded: {lines[0]}",
        f"{optional.install_command('cuda')} brings it for CUDA 12; "
        "for a CuPy of another CUDA, install the toolkit of that version",
    )


def never_free(things: Iterable[Any]) -> None:
    """Keep objects alive until the process ends, after a failed kernel has made their device unusable.

    Freeing them would fail, and CuPy would write a traceback for each.
    """
    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
