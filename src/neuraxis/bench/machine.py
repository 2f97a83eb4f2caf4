"""The machine that a benchmark's figures belong to: hardware, versions, and its load before the start."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import neuraxis
from neuraxis.bench.processes import find_mpirun
from neuraxis.machine import usable_cores

__all__ = ["busy_line", "describe_machine", "machine_load", "machine_state"]

_QUIET_LOAD = 0.5  # busy cores: an idle machine has about 0.1, and this process itself adds a little


def machine_load(processes: int) -> tuple[float, bool]:
    """Return the load average, and whether it leaves too few idle cores to trust figures.

    That is the case when the load average is above 0.5 and fewer cores are idle than the benchmark's `processes` use.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    idle = (os.cpu_count() or 1) - load
    return load, load > _QUIET_LOAD and idle < min(processes, usable_cores())


def machine_state(processes: int, *packages: str) -> dict[str, Any]:
    """Return the fields of `harness.Results`; call it before the benchmark's processes start.

    `packages` are distributions whose versions are added to the usual ones.
    """
    load, busy = machine_load(processes)
    return {"machine": describe_machine(*packages), "load_before": load, "busy": busy}


def busy_line(processes: int) -> str:
    """Return a warning about a machine that is too busy, or an empty string."""
    load, busy = machine_load(processes)
    if not busy:
        return ""
    return (
        f"the machine is too busy to trust the figures (load average {load:.1f} on {os.cpu_count()} cores); "
        "end other programs, wait a minute, and run the benchmark again"
    )


def describe_machine(*packages: str) -> dict[str, str]:
    """Return facts by name in the order in which to print them; packages that are not installed are missing."""
    facts = {
        "cpu": _processor(),
        "cores": f"{usable_cores()} usable of {os.cpu_count()}",
        "memory": _memory(),
        "gpu": _graphics(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "neuraxis": neuraxis.__version__,
    }
    for package in ("numpy", "numba", "torch", "mpi4py", *packages):
        with suppress(importlib.metadata.PackageNotFoundError):
            facts[package.removeprefix("eclipse-")] = importlib.metadata.version(package)
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
    """Return the GPUs that the NVIDIA driver lists; asking torch would load it."""
    found: list[str] = []
    with suppress(OSError):
        for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
            found += [line.partition(":")[2].strip() for line in path.read_text().splitlines() if "Model:" in line]
    return ", ".join(found)


def _mpi_version() -> str:
    """Return the version that mpirun prints; asking mpi4py would start MPI."""
    mpirun = find_mpirun()
    if mpirun is None:
        return ""
    with suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=10).stdout
        line = (output.strip().splitlines() or [""])[0]
        return line.removeprefix("mpirun ").strip().replace("(Open MPI)", "Open MPI")
    return ""
