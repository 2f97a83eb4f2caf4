"""The machine and the versions that a benchmark's numbers belong to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path

import neuraxis
from neuraxis.machine import usable_cores
from neuraxis.observe.bench_contender import find_mpirun

__all__ = ["describe_machine"]


def describe_machine() -> dict[str, str]:
    """Names and values, in the order in which to print them; what is not installed is not there."""
    facts = {
        "cpu": _processor(),
        "cores": f"{usable_cores()} usable of {os.cpu_count()}",
        "memory": _memory(),
        "gpu": _graphics(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "neuraxis": neuraxis.__version__,
    }
    for package in ("numpy", "numba", "torch", "mpi4py"):
        with suppress(importlib.metadata.PackageNotFoundError):
            facts[package] = importlib.metadata.version(package)
    facts["mpi"] = _mpi_version()
    return {name: value for name, value in facts.items() if value}


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    with suppress(AttributeError, ValueError, OSError):
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GB"
    return ""


def _graphics() -> str:
    """What the NVIDIA driver says there is: torch would have to be loaded to know."""
    found: list[str] = []
    with suppress(OSError):
        for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
            found += [line.partition(":")[2].strip() for line in path.read_text().splitlines() if "Model:" in line]
    return ", ".join(found)


def _mpi_version() -> str:
    """What mpirun says of itself: mpi4py would have to start MPI to know."""
    mpirun = find_mpirun()
    if mpirun is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=10).stdout
        line = (said.strip().splitlines() or [""])[0]
        return line.removeprefix("mpirun ").strip().replace("(Open MPI)", "Open MPI")
    return ""
