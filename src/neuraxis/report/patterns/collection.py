"""Start the ranks, collect their observations, and compare them with the definitions."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from neuraxis.errors import BackendUnavailable, InvalidArgument, LaunchTimeout, RankFailed
from neuraxis.imports import install_command, installed
from neuraxis.machine import check_process_count
from neuraxis.report.patterns.catalogue import CATALOGUE, Entry
from neuraxis.report.patterns.definitions import DEFINITIONS, even_ranks
from neuraxis.report.patterns.model import DTYPE, Observation, PatternReport, PatternRun, RankObservations, RankView

__all__ = ["collect_patterns", "differences"]

_TIMEOUT_S = 120.0


def collect_patterns(n: int, backend: str = "auto", dim: int = 4) -> PatternReport:
    """Run every pattern on `n` ranks with tensors of `dim` values, and return the data of each rank.

    Raises
    ------
    InvalidArgument
        A number is too small or too large, or `backend` is "local" with more than one rank.
    BackendUnavailable
        The backend cannot be used here.
    """
    check_process_count(n, "-n")
    if dim < 1:
        raise InvalidArgument(f"--dim is {dim}: each rank needs at least one value")
    if backend == "local" and n > 1:
        raise InvalidArgument(f"backend 'local' has a single rank, and -n is {n}: use -n 1 or another backend")
    _check_available(backend, n)
    ranks = _run_with_mpi(n, dim) if backend == "mpi" else _run(n, backend, dim)
    runs = [_assemble(entry, dim, [rank.observations[entry.name] for rank in ranks]) for entry in CATALOGUE]
    return PatternReport(
        backend=ranks[0].backend,
        world_size=n,
        dim=dim,
        dtype=DTYPE,
        host=socket.gethostname(),
        runs=runs,
        problems=[problem for run in runs for problem in differences(run, dim)],
    )


def differences(run: PatternRun, dim: int) -> list[str]:
    """Return the differences between a run and the definition of its pattern, in words."""
    n = len(run.ranks)
    definition = DEFINITIONS[run.name](n, dim)
    found = []
    for view, before, after in zip(run.ranks, definition.before, definition.after, strict=True):
        for when, held, expected in (("before", view.before, before), ("after", view.after, after)):
            if held != expected:
                found.append(f"{run.name}: rank {view.rank} held {held} {when}, expected {expected}")
    arrivals = [view.arrived_ms for view in run.ranks if view.arrived_ms is not None]
    for view in run.ranks:
        if view.left_ms is not None and view.left_ms < max(arrivals):
            found.append(
                f"{run.name}: rank {view.rank} left at {view.left_ms:.3f} ms, "
                f"before the last arrival at {max(arrivals):.3f} ms"
            )
    return found


def _assemble(entry: Entry, dim: int, observations: Sequence[Observation]) -> PatternRun:
    n = len(observations)
    # The ranks share a host and its monotonic clock, of which only differences are meaningful.
    first_s = min((seen.arrived_s for seen in observations if seen.arrived_s is not None), default=0.0)

    def milliseconds(at_s: float | None) -> float | None:
        return None if at_s is None else round((at_s - first_s) * 1000, 3)

    return PatternRun(
        name=entry.name,
        title=entry.title,
        label=entry.label,
        call=entry.call,
        caption=entry.caption,
        use=entry.use,
        reduces=entry.reduces,
        members=even_ranks(n) if entry.name == "group" else list(range(n)),
        ranks=[
            RankView(rank, seen.before, seen.after, milliseconds(seen.arrived_s), milliseconds(seen.left_s))
            for rank, seen in enumerate(observations)
        ],
        moves=DEFINITIONS[entry.name](n, dim).moves,
    )


def _run(n: int, backend: str, dim: int) -> list[RankObservations]:
    from neuraxis.process import run

    return run(_observe, n, backend, dim, timeout=_TIMEOUT_S)


def _observe(backend: str, dim: int) -> RankObservations:
    # Imported by the ranks only; the process that starts them does not need NumPy.
    from neuraxis.report.patterns.rank import observe_patterns

    return observe_patterns(backend, dim)


def _run_with_mpi(n: int, dim: int) -> list[RankObservations]:
    with tempfile.TemporaryDirectory(prefix="neuraxis-patterns-") as folder:
        file = Path(folder) / "observations.json"
        command = [
            *_mpirun(),
            "-n",
            str(n),
            sys.executable,
            "-m",
            "neuraxis.report.patterns.rank",
            str(dim),
            str(file),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as mpirun:
            try:
                output, _ = mpirun.communicate(timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                mpirun.terminate()  # not kill(): mpirun ends its ranks on SIGTERM
                raise LaunchTimeout(f"mpirun and its {n} ranks had not ended after {_TIMEOUT_S:.0f} s") from None
        if mpirun.returncode != 0 or not file.exists():
            last_lines = "\n".join(output.strip().splitlines()[-8:])
            raise RankFailed(
                f"mpirun ended with exit code {mpirun.returncode}; its last lines:\n{last_lines}",
                exit_code=mpirun.returncode,
            )
        gathered = json.loads(file.read_text(encoding="utf-8"))
    return [
        RankObservations(rank["backend"], {name: Observation(**seen) for name, seen in rank["observations"].items()})
        for rank in gathered
    ]


def _mpirun() -> list[str]:
    """Return the command of the mpirun in this Python environment, or of the first one on the path."""
    beside_python = shutil.which("mpirun", path=str(Path(sys.executable).parent))
    mpirun = beside_python or shutil.which("mpirun")
    if mpirun is None:
        raise BackendUnavailable("mpi", "there is no mpirun", f"Install an MPI, e.g. {install_command('', 'openmpi')}")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version:
        return [mpirun]
    # By default Open MPI refuses to run as root, and to start more ranks than cores.
    as_root = ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [mpirun, *as_root, "--oversubscribe"]


def _check_available(backend: str, n: int) -> None:
    """Raise once, before the ranks start, if a backend is not available."""
    if backend == "mpi":
        if not installed("mpi4py"):
            raise BackendUnavailable("mpi", "mpi4py is not installed", install_command("mpi", "openmpi"))
    elif backend in ("gloo", "nccl"):
        if not installed("torch"):
            raise BackendUnavailable(backend, "torch is not installed", install_command("torch"))
        if backend == "nccl":
            _check_gpus(n)


def _check_gpus(n: int) -> None:
    from neuraxis.comm.backends.torch import require_torch

    gpus = require_torch("nccl").cuda.device_count()
    if gpus < n:
        raise BackendUnavailable(
            "nccl",
            f"each of the {n} ranks needs a GPU of its own and there are {gpus}",
            f"Use -n {gpus}, or another backend",
        )
