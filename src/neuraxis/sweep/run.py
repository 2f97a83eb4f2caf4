"""Execution of a sweep: runs the cells on a cluster, and stores each result as soon as it arrives.

The name of a result file is the key of its cell. A sweep that is started again therefore finds the results that exist,
even with additional values or seeds, and never takes results of another brain for its own.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
import tomllib
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from neuraxis.cluster.worker import as_code
from neuraxis.errors import ClusterError, InvalidArgument, NeuraxisError, TaskLost
from neuraxis.process.pickling import install, main_objects
from neuraxis.progress import ProgressLine
from neuraxis.store import replacing
from neuraxis.sweep.plan import Cell, Job, code_digests

if TYPE_CHECKING:
    from neuraxis.cluster import DaskCluster

__all__ = ["SweepFolder", "SweepRun", "cell_work", "run_cell", "run_sweep"]

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows: two sweeps can use one folder at a time
    fcntl = None


class SweepFolder:
    """The folder of the results, with one file for each cell; the context manager locks it for one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """Return the result of a cell: {"answer": ...} or {"error": ...}; None if there is none."""
        try:
            record = msgspec.json.decode((self.path / f"{cell.key}.json").read_bytes())
        except (
            FileNotFoundError,
            msgspec.DecodeError,
            UnicodeDecodeError,
            RecursionError,
        ):  # missing or damaged
            return None
        if not isinstance(record, dict):
            return None
        whole = isinstance(record.get("answer"), dict) or isinstance(record.get("error"), str)
        return record if whole else None

    def write(self, cell: Cell, record: dict[str, Any]) -> None:
        """Write the result of a cell, atomically."""
        target = self.path / f"{cell.key}.json"
        content = msgspec.json.encode({"settings": cell.settings, "seed": cell.seed, **record})
        with replacing(target) as new:
            new.write_bytes(msgspec.json.format(content, indent=1))

    def remove(self, cells: Iterable[Cell]) -> None:
        """Remove the results of these cells."""
        for cell in cells:
            (self.path / f"{cell.key}.json").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise InvalidArgument(f"{self.path}: results cannot be written there ({error.strerror})") from error
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise InvalidArgument(f"{self.path}: another sweep uses this folder; wait, or give another --out") from None
        except OSError:
            pass  # the file system has no locks
        for left in self.path.glob(".*.tmp*"):  # left by a sweep that was killed
            left.unlink(missing_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


# --- One cell, run by a worker of the cluster ---


def cell_work(cell: Cell, job: Job, main: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the data that `run_cell` needs: plain data, and the objects of a notebook that create regions."""
    return {
        "brain": cell.brain,
        "seed": cell.seed,
        "code": cell.code,
        "job": msgspec.to_builtins(job),
        "main": dict(main or {}),
    }


def run_cell(work: dict[str, Any]) -> dict[str, Any]:
    """Run a cell in this process; return {"answer": its result} or {"error": reason, "traceback": text}.

    An exception becomes a result, so that it does not keep other cells from running.
    """
    begun = time.monotonic()
    install(work["main"])
    try:
        answer = _run(work["brain"], work["seed"], msgspec.convert(work["job"], Job), work["code"])
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    return {"answer": {**answer, "wall_s": time.monotonic() - begun, "host": socket.gethostname()}}


_loaded_code: dict[str, str] = {}  # `code_digests` of regions when this process first ran them


def _run(text: str, seed: int, job: Job, code: dict[str, str]) -> dict[str, Any]:
    from neuraxis.brain import Brain
    from neuraxis.brain.checks import validate
    from neuraxis.brain.runs import learn, play, region_rates
    from neuraxis.brain.spec import as_spec

    if job.where is not None:
        folder = str(Path(job.where).parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)  # may have the code of regions in Python
    where = job.where or "brain"
    spec = validate(as_spec({**tomllib.loads(text), "seed": seed}, where), where)
    for name, found in code_digests(spec, _loaded_code).items():
        if found != code[name] and not name.startswith("__main__:"):
            raise InvalidArgument(
                f"{name}: its source on the worker is not that of the sweep: it was changed after the sweep began, or "
                "the worker loaded it before the change. Start new workers and run the same command with --retry-failed"
            )
    with Brain(spec, where=where) as brain:
        if job.task is not None:
            answer, _ = learn(brain, job.task, job.trials, progress=False)
        else:
            answer, _ = play(brain, *job.stimulus_for(spec), progress=False)
        return {**answer, "rates_hz": region_rates(brain)}


# --- The whole sweep ---


Record = dict[str, Any]


@dataclass(frozen=True)
class SweepRun:
    """The state of a sweep after a run.

    Attributes
    ----------
    cells : sequence of Cell
        All cells.
    records : sequence of dict or None
        Result of each cell; None: it has not run.
    ran : int
        Number of cells that ran this time.
    interrupted : bool
        True if Ctrl-C ended the run early.
    """

    cells: Sequence[Cell]
    records: Sequence[Record | None]
    ran: int
    interrupted: bool

    def __repr__(self) -> str:
        done = sum(record is not None for record in self.records)
        return (
            f"<SweepRun: {done} of {len(self.cells)} cells have results, {len(self.failed)} failed"
            f"{', interrupted' * self.interrupted}>"
        )

    @property
    def failed(self) -> list[tuple[Cell, Record]]:
        pairs = zip(self.cells, self.records, strict=True)
        return [(cell, record) for cell, record in pairs if record is not None and "error" in record]


def run_sweep(
    cells: Sequence[Cell],
    job: Job,
    folder: SweepFolder,
    cluster: DaskCluster,
    *,
    retry_failed: bool = False,
    fresh: bool = False,
    no_workers_timeout: float = 600.0,
    progress: bool | None = None,
) -> SweepRun:
    """Run the cells without a result; Ctrl-C ends it.

    The cluster is started if there is a cell to run, and stopped at the end.

    Parameters
    ----------
    cells : sequence of Cell
        All cells of the sweep.
    job : Job
        The run of every cell.
    folder : SweepFolder
        Folder of the results.
    cluster : DaskCluster
        Cluster to run on.
    retry_failed : bool
        Run failed cells again.
    fresh : bool
        Run all cells; their old results are removed once the cluster is available.
    no_workers_timeout : float
        Longest time without a worker, in s.
    progress : bool, optional
        Show a progress bar; None: only on a terminal.

    Raises
    ------
    ClusterError
        Workers have another version of neuraxis (the error names them), or there was none for `no_workers_timeout`.
    """
    known = [None if fresh else folder.read(cell) for cell in cells]
    missing = [i for i, one in enumerate(known) if one is None or (retry_failed and "error" in one)]
    ran = 0
    written: int | None = None
    interrupted = False
    with ProgressLine("sweeping", max(1, len(cells)), progress) as line:
        try:
            if missing:
                with cluster:
                    if not cluster.check_workers():
                        where, limit = cluster.scheduler_address, no_workers_timeout
                        text = f"{where} has no workers yet: waiting {limit:g} s for one"
                        print(text, file=sys.stderr)
                    if fresh:
                        folder.remove(cells)
                    for i, record in _results(cluster, cells, missing, job, no_workers_timeout):
                        folder.write(cells[i], record)
                        written = i
                        known[i] = folder.read(cells[i])  # as a later run will read it
                        ran += 1
                        line.update(len(cells) - len(missing) + ran, _progress_text(known))
        except ClusterError as error:
            done = sum(one is not None for one in known)
            kept = f". The results of {done} of {len(cells)} cells are kept: the same command runs the others"
            raise type(error)(f"{_reason(error)}{kept if done else ''}") from error
        except KeyboardInterrupt:
            interrupted = True
            if written is not None and known[written] is None:  # interrupted between writing and reading it
                known[written] = folder.read(cells[written])
    return SweepRun(cells, known, ran, interrupted)


def _results(
    cluster: DaskCluster, cells: Sequence[Cell], wanted: Sequence[int], job: Job, no_workers_timeout: float
) -> Iterator[tuple[int, Record]]:
    """Yield (index of the cell, result) as cells finish."""
    main = main_objects(name for i in wanted for name in re.findall(r'"(__main__:[\w.]+)"', cells[i].brain))
    if main and cluster.settings.scheduler_address is not None:
        raise InvalidArgument(
            f"{', '.join(main)}: is defined in a notebook or at a prompt, and is sent to workers of this machine only. "
            "Define it in a module that the cluster's workers can import"
        )
    # Sent as code, since workers that join during the run may lack neuraxis.
    futures = cluster.map(as_code(run_cell), [cell_work(cells[i], job, main) for i in wanted], pure=False)
    number = {future.key: i for future, i in zip(futures, wanted, strict=True)}
    order = cluster.completed(futures, no_workers_timeout=no_workers_timeout)
    del futures  # the cluster frees a result when its last future is gone
    for future in order:
        try:
            record = cluster.gather(future)
        except TaskLost as error:
            record = {"error": f"TaskLost: {_reason(error)}", "traceback": ""}
        except NeuraxisError:
            raise
        except Exception as error:  # `run_cell` returns exceptions of a cell; this one comes from the cluster
            raise ClusterError(
                f"the cluster could not run a cell: {type(error).__name__}: {error}; its workers need the same "
                "neuraxis, and the same Python and Dask, as this program"
            ) from error
        yield number[future.key], record


def _reason(error: NeuraxisError) -> str:
    """Return the text of an error of the cluster without the name of the method that raised it."""
    return str(error).removeprefix("completed: ").removeprefix("gather: ")


def _progress_text(known: Sequence[Record | None]) -> str:
    done = sum(one is not None for one in known)
    failed = sum(one is not None and "error" in one for one in known)
    return f"{done}/{len(known)} cells" + (f", {failed} failed" if failed else "")
